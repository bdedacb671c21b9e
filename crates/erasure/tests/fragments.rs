//! Files as fragments, against the bytes that went in.

use std::convert::Infallible;

use forebay_erasure::Error;
use forebay_erasure::fragments::{Decoder, Encoder, Layout, UNIT, unsealed};
use proptest::prelude::*;

const VERSION: u64 = 0x1234_5678_9abc_def0;

fn contents(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// All fragments of a file, made segment by segment and some stripes at a time.
fn fragments_of(file: &[u8], data: usize, count: usize, ends: &[u64], step: usize) -> Vec<Vec<u8>> {
    let all: Vec<usize> = (0..count).collect();
    let mut encoder = Encoder::new(data, count, &all).unwrap();
    let mut fragments = vec![Vec::new(); count];
    let mut from = 0;
    for segments in 1..=ends.len() {
        let layout = Layout::new(data, &ends[..segments]).unwrap();
        let stripes = layout.stripes(from..layout.size());
        from = layout.size();
        for some in stripes.chunks(step) {
            for (at, fragment) in fragments.iter().enumerate() {
                assert_eq!(layout.piece(&some[0], at).at, fragment.len() as u64);
            }
            let read = |at: u64, to: &mut [u8]| {
                to.copy_from_slice(&file[at as usize..at as usize + to.len()]);
                Ok::<(), Infallible>(())
            };
            let made = encoder.encode(VERSION, &layout, some, read).unwrap();
            for (fragment, made) in fragments.iter_mut().zip(made) {
                fragment.extend(made);
            }
        }
    }
    fragments
}

/// The file from the fragments that are there; wrong pieces count as lost.
fn restored(
    layout: &Layout,
    data: usize,
    fragments: &[Option<Vec<u8>>],
) -> Result<Vec<u8>, Error> {
    let mut decoder = Decoder::new(data, fragments.len())?;
    let mut file = vec![0; layout.size() as usize];
    for stripe in layout.stripes(0..layout.size()) {
        let piece = |(at, fragment): (usize, &'_ Option<Vec<u8>>)| {
            let piece = layout.piece(&stripe, at);
            let range = piece.at as usize..(piece.at + piece.stored()) as usize;
            let stored = fragment.as_ref()?.get(range)?.to_vec();
            unsealed(VERSION, &stripe, at, &stored).map(<[u8]>::to_vec)
        };
        let pieces: Vec<Option<Vec<u8>>> = fragments.iter().enumerate().map(piece).collect();
        let pieces: Vec<Option<&[u8]>> = pieces.iter().map(Option::as_deref).collect();
        let range = stripe.start as usize..stripe.end() as usize;
        decoder.decode(&stripe, &pieces, &mut file[range])?;
    }
    Ok(file)
}

/// Ends of segments around the borders of units and stripes.
fn segments() -> impl Strategy<Value = Vec<u64>> {
    let step = prop_oneof![
        1u64..100,
        UNIT - 1..UNIT + 2,
        2 * UNIT..2 * UNIT + 2,
        4 * UNIT - 1..4 * UNIT + 2,
        1..9 * UNIT,
    ];
    proptest::collection::vec(step, 0..5).prop_map(|steps| {
        let ends = steps.iter().scan(0, |end, step| {
            *end += step;
            Some(*end)
        });
        ends.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn fragments_when_any_enough_are_left_then_the_file_and_else_an_error(
        ends in segments(),
        data in 2usize..6,
        more in 0usize..4,
        lost in proptest::collection::vec(any::<bool>(), 9),
        step in 1usize..4,
    ) {
        let count = data + more;
        let file = contents(ends.last().copied().unwrap_or(0));
        let made = fragments_of(&file, data, count, &ends, step);
        let layout = Layout::new(data, &ends).unwrap();
        for (at, fragment) in made.iter().enumerate() {
            prop_assert_eq!(fragment.len() as u64, layout.fragment_bytes(at));
        }
        let kept: Vec<Option<Vec<u8>>> =
            made.into_iter().zip(&lost).map(|(fragment, lost)| (!lost).then_some(fragment)).collect();
        let left = kept.iter().flatten().count();
        match restored(&layout, data, &kept) {
            Ok(found) => prop_assert_eq!(found, file),
            // Short stripes may need fewer.
            Err(error) => prop_assert!(left < data, "{error} with {left} of {data}"),
        }
    }

    #[test]
    fn bytes_of_a_fragment_when_changed_then_found_and_made_from_the_others(
        ends in segments(),
        which in 0usize..5,
        at in any::<proptest::sample::Index>(),
        change in 1u8..,
    ) {
        let file = contents(ends.last().copied().unwrap_or(0));
        let mut kept: Vec<Option<Vec<u8>>> =
            fragments_of(&file, 4, 5, &ends, 2).into_iter().map(Some).collect();
        let Some(fragment) = kept[which].as_mut().filter(|fragment| !fragment.is_empty()) else {
            return Ok(());
        };
        let at = at.index(fragment.len());
        fragment[at] ^= change;
        prop_assert_eq!(restored(&Layout::new(4, &ends).unwrap(), 4, &kept).unwrap(), file);
    }

    #[test]
    fn one_fragment_when_made_alone_then_the_same_as_with_all(
        ends in segments(),
        which in 0usize..5,
    ) {
        let file = contents(ends.last().copied().unwrap_or(0));
        let all = fragments_of(&file, 3, 5, &ends, 2);
        let layout = Layout::new(3, &ends).unwrap();
        let mut one = Encoder::new(3, 5, &[which]).unwrap();
        let read = |at: u64, to: &mut [u8]| {
            to.copy_from_slice(&file[at as usize..at as usize + to.len()]);
            Ok::<(), Infallible>(())
        };
        let stripes = layout.stripes(0..layout.size());
        let made = one.encode(VERSION, &layout, &stripes, read).unwrap();
        prop_assert_eq!(&made[0], &all[which]);
    }
}

#[test]
fn piece_of_another_version_stripe_or_fragment_then_not_taken() {
    let ends = [4 * 2 * UNIT];
    let file = contents(ends[0]);
    let made = fragments_of(&file, 2, 3, &ends, 9);
    let layout = Layout::new(2, &ends).unwrap();
    let stripes = layout.stripes(0..ends[0]);
    let stored = &made[1][..layout.piece(&stripes[0], 1).stored() as usize];
    assert!(unsealed(VERSION, &stripes[0], 1, stored).is_some());
    assert!(unsealed(VERSION + 1, &stripes[0], 1, stored).is_none());
    assert!(unsealed(VERSION, &stripes[1], 1, stored).is_none());
    assert!(unsealed(VERSION, &stripes[0], 0, stored).is_none());
    assert!(unsealed(VERSION, &stripes[0], 1, &stored[..10]).is_none());
}

#[test]
fn layouts_and_codes_of_no_sense_then_refused() {
    assert_eq!(Layout::new(4, &[5, 5]), Err(Error::Segments));
    assert_eq!(Layout::new(4, &[0]), Err(Error::Segments));
    assert!(Layout::new(0, &[]).is_err());
    assert!(Encoder::new(4, 3, &[0]).is_err());
    assert!(Encoder::new(4, 5, &[5]).is_err());
    assert_eq!(Layout::new(4, &[]).unwrap().stripes(0..9), []);
}
