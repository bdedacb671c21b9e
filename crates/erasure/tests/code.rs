//! Any losses within the parity are made good, wrong shards are found, and all kernels agree.

use forebay_erasure::{Code, Error, Kernel, Seal};
use proptest::prelude::*;

fn stripe(code: &Code, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut shards = code.split(bytes);
    let mut parity = vec![vec![0xee; code.shard_length(bytes.len())]; code.parity()];
    code.encode(&shards, &mut parity).expect("encodes");
    shards.append(&mut parity);
    shards
}

/// A code, some bytes, and the shards that are lost: at most as many as the code bears.
fn cases() -> impl Strategy<Value = (usize, usize, Vec<u8>, Vec<usize>)> {
    (1usize..13, 1usize..6).prop_flat_map(|(data, parity)| {
        let shards: Vec<usize> = (0..data + parity).collect();
        let bytes = proptest::collection::vec(any::<u8>(), 0..5000);
        (Just(data), Just(parity), bytes, proptest::sample::subsequence(shards, 0..=parity))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn losses_within_the_parity_then_all_shards_come_back((data, parity, bytes, lost) in cases()) {
        let code = Code::new(data, parity).expect("a code");
        let whole = stripe(&code, &bytes);
        let mut shards: Vec<Option<Vec<u8>>> = whole.iter().cloned().map(Some).collect();
        for at in &lost {
            shards[*at] = None;
        }
        code.reconstruct(&mut shards).expect("reconstructs");
        let made: Vec<Vec<u8>> = shards.into_iter().flatten().collect();
        prop_assert_eq!(&made, &whole);
        let mut joined = made[..data].concat();
        joined.truncate(bytes.len());
        prop_assert_eq!(joined, bytes);
    }

    #[test]
    fn kernels_on_the_same_bytes_then_the_same_shards((data, parity, bytes, lost) in cases()) {
        let reference = Code::with_kernel(data, parity, Kernel::PORTABLE).expect("a code");
        let expected = stripe(&reference, &bytes);
        for kernel in Kernel::available() {
            let code = Code::with_kernel(data, parity, kernel).expect("a code");
            let whole = stripe(&code, &bytes);
            prop_assert_eq!(&whole, &expected, "{}", kernel.name());
            let present: Vec<usize> = (0..data + parity).filter(|at| !lost.contains(at)).collect();
            let recovery = code.recovery(&present, &lost).expect("enough is left");
            // A range with odd ends, as a degraded read has.
            let length = whole[0].len();
            let range = length / 7..length - length / 5;
            let sources: Vec<&[u8]> =
                recovery.sources().iter().map(|at| &whole[*at][range.clone()]).collect();
            let mut made = vec![vec![0; range.len()]; lost.len()];
            recovery.run(&sources, &mut made).expect("runs");
            for (at, shard) in lost.iter().zip(&made) {
                prop_assert_eq!(&shard[..], &whole[*at][range.clone()], "{}", kernel.name());
            }
        }
    }

    #[test]
    fn damage_within_the_parity_then_found_and_made_good(
        (data, parity, bytes, damaged) in cases(),
        place in any::<proptest::sample::Index>(),
        bit in 0u8..8,
        kind in 0u8..3,
    ) {
        let code = Code::new(data, parity).expect("a code");
        let whole = stripe(&code, &bytes);
        prop_assume!(!whole[0].is_empty());
        let seals: Vec<Seal> =
            whole.iter().enumerate().map(|(at, shard)| Seal::of(7, at, shard)).collect();
        let mut shards: Vec<Option<Vec<u8>>> = whole.iter().cloned().map(Some).collect();
        for at in &damaged {
            let shard = shards[*at].as_mut().expect("is there");
            match kind {
                0 => shard[place.index(whole[0].len())] ^= 1 << bit,
                1 => shard.truncate(place.index(whole[0].len())),
                _ => shard.push(0),
            }
        }
        let wrong = code.restore(7, &seals, &mut shards).expect("restores");
        prop_assert_eq!(wrong, damaged);
        let made: Vec<Vec<u8>> = shards.into_iter().flatten().collect();
        prop_assert_eq!(made, whole);
    }
}

#[test]
fn shards_of_another_stripe_or_place_when_restored_then_found_wrong() {
    let code = Code::new(2, 1).expect("a code");
    let whole = stripe(&code, b"the same bytes, the same bytes, ");
    assert_eq!(whole[0], whole[1], "the point of the test: equal bytes in two places");
    let seals: Vec<Seal> =
        whole.iter().enumerate().map(|(at, shard)| Seal::of(1, at, shard)).collect();
    assert!(seals[0].fits(1, 0, &whole[0]));
    assert!(!seals[0].fits(1, 1, &whole[0]), "another place");
    assert!(!seals[0].fits(2, 0, &whole[0]), "another stripe or version");
    let mut shards: Vec<Option<Vec<u8>>> = whole.into_iter().map(Some).collect();
    let lost = code.restore(2, &seals, &mut shards);
    assert_eq!(lost, Err(Error::TooFew { present: 0, needed: 2 }));
}

#[test]
fn losses_beyond_the_parity_then_refused_and_nothing_changed() {
    let code = Code::new(4, 2).expect("a code");
    let whole = stripe(&code, &[5; 1000]);
    let mut shards: Vec<Option<Vec<u8>>> = whole.into_iter().map(Some).collect();
    for at in [0, 3, 5] {
        shards[at] = None;
    }
    let before = shards.clone();
    let refused = code.reconstruct(&mut shards);
    assert_eq!(refused, Err(Error::TooFew { present: 3, needed: 4 }));
    assert_eq!(shards, before);
}

#[test]
fn every_pair_of_losses_of_the_largest_code_then_made_good() {
    let code = Code::new(250, 6).expect("a code");
    let bytes: Vec<u8> = (0..1000u32).map(|at| ((at * at) >> 3) as u8).collect();
    let whole = stripe(&code, &bytes);
    for first in (0..256).step_by(85) {
        for second in (first + 1..256).step_by(61) {
            let mut shards: Vec<Option<Vec<u8>>> = whole.iter().cloned().map(Some).collect();
            for at in [first, second] {
                shards[at] = None;
            }
            code.reconstruct(&mut shards).expect("reconstructs");
            assert!(shards.iter().flatten().eq(&whole));
        }
    }
}

#[test]
fn first_parity_then_the_exclusive_or_of_the_data() {
    let code = Code::new(3, 2).expect("a code");
    let whole = stripe(&code, &[1, 2, 4]);
    assert_eq!(whole[3], [1 ^ 2 ^ 4]);
}

#[test]
fn bad_arguments_then_errors_that_name_them() {
    for (data, parity) in [(0, 2), (4, 0), (255, 2), (usize::MAX, 1)] {
        assert_eq!(Code::new(data, parity).err(), Some(Error::Shape { data, parity }));
    }
    let code = Code::new(2, 1).expect("a code");
    let uneven = code.encode(&[vec![0; 3], vec![0; 4]], &mut [vec![0; 3]]);
    assert_eq!(uneven, Err(Error::Length { expected: 3, given: 4 }));
    let few = code.encode(&[vec![0; 3]], &mut [vec![0; 3]]);
    assert_eq!(few, Err(Error::Count { expected: 2, given: 1 }));
    let twice = code.recovery(&[1, 1], &[0]).err();
    assert_eq!(twice, Some(Error::TooFew { present: 1, needed: 2 }));
    let none = code.recovery(&[0, 1], &[3]).err();
    assert_eq!(none, Some(Error::Count { expected: 3, given: 3 }));
}
