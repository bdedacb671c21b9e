use super::*;

fn references(objects: &[u64]) -> References {
    let mut references = References::new();
    references.hint(&Hint::Append { job: 1, objects });
    references.hint(&Hint::Close { job: 1 });
    references
}

#[test]
fn future_along_the_sequence_then_exact_positions() {
    let mut references = references(&[1, 2, 1, 3]);
    assert_eq!(references.future(1), Future::At(0));
    assert!(references.observe(1));
    assert_eq!(references.future(1), Future::At(2));
    assert_eq!(references.uses(1), Some(1));
    assert!(references.observe(2));
    assert_eq!(references.future(2), Future::Dead);
    assert_eq!(references.future(9), Future::Unknown);
}

#[test]
fn observe_out_of_order_then_struck_off_and_the_rest_still_expected() {
    let mut references = references(&[1, 2, 3, 4]);
    assert!(references.observe(3));
    assert_eq!(references.now(), 0);
    assert_eq!(references.future(1), Future::At(0));
    assert!(references.observe(1));
    assert!(references.observe(2));
    assert_eq!(references.now(), 3);
    assert_eq!(references.future(4), Future::At(3));
}

#[test]
fn observe_what_no_job_named_then_a_stray_and_nothing_moves() {
    let mut references = references(&[1, 2]);
    assert!(!references.observe(77));
    assert_eq!(references.future(1), Future::At(0));
}

#[test]
fn skipped_reference_then_given_up_soon_in_an_orderly_sequence() {
    let objects: Vec<u64> = (0..300).collect();
    let mut references = references(&objects);
    for object in 1..200 {
        assert!(references.observe(object), "{object}");
    }
    assert_eq!(references.future(0), Future::Dead);
    assert_eq!(references.now(), 200);
}

#[test]
fn accesses_that_the_sequence_lacks_then_its_references_stay() {
    // Objects 0..100 in rounds; every tenth access is one more, of an object half a round away.
    let objects: Vec<u64> = (0..20).flat_map(|_| 0..100).collect();
    let mut references = references(&objects);
    for (at, &object) in objects.iter().take(1_000).enumerate() {
        assert!(references.observe(object), "{at}");
        if at % 10 == 5 && at > 100 {
            assert!(!references.observe((object + 50) % 100), "{at}");
        }
    }
    assert_eq!(references.now(), 1_000);
}

#[test]
fn references_up_to_fifty_out_of_place_then_nearly_all_come_true() {
    let mut sequence: Vec<u64> = (0..40).flat_map(|_| 0..200).collect();
    let exact = sequence.clone();
    for block in sequence.chunks_mut(50) {
        block.reverse();
    }
    let mut references = references(&sequence);
    let matched = exact.iter().filter(|object| references.observe(**object)).count();
    assert!(matched > exact.len() * 95 / 100, "{matched} of {}", exact.len());
}

#[test]
fn job_not_heard_of_then_without_credit_until_it_is() {
    let mut references = references(&[1, 2, 3]);
    for _ in 0..=MAX_STRAYS {
        references.observe(77);
    }
    assert_eq!(references.future(2), Future::Unknown);
    references.observe(1);
    assert_eq!(references.future(2), Future::At(1));
}

#[test]
fn two_jobs_interleaved_then_distances_follow_their_paces() {
    let mut references = References::new();
    let fast: Vec<u64> = (0..900).collect();
    let slow: Vec<u64> = (1000..1300).collect();
    references.hint(&Hint::Append { job: 1, objects: &fast });
    references.hint(&Hint::Append { job: 2, objects: &slow });
    for round in 0..200 {
        for step in 0..3 {
            references.observe(round * 3 + step);
        }
        references.observe(1000 + round);
    }
    let distance = |object| match references.future(object) {
        Future::At(at) => at - references.now(),
        other => panic!("{object}: {other:?}"),
    };
    // 30 references of the slow job take as long as 90 of the fast one: 120 in all.
    assert!((110..=125).contains(&distance(1230)), "{}", distance(1230));
    assert!((105..=130).contains(&distance(690)), "{}", distance(690));
}

#[test]
fn advance_and_withdraw_then_the_references_are_gone() {
    let mut references = references(&[1, 2, 3, 1]);
    references.hint(&Hint::Advance { job: 1, by: 2 });
    assert_eq!((references.uses(1), references.uses(2)), (Some(1), Some(0)));
    assert_eq!(references.upcoming(1, 9).collect::<Vec<_>>(), [3, 1]);
    references.hint(&Hint::Withdraw { job: 1 });
    assert_eq!(references.future(3), Future::Unknown);
    assert_eq!(references.ahead(), 0);
}

#[test]
fn job_that_leaps_far_ahead_then_is_followed_there_and_keeps_its_credit() {
    for (to, disorder) in [(300, 1), (5_000, 1), (5_000, 8)] {
        let objects: Vec<u64> = (0..10_000).collect();
        let mut references = references(&objects);
        for object in 0..100 {
            references.observe(object);
        }
        let mut after: Vec<u64> = (to..to + 200).collect();
        for block in after.chunks_mut(disorder) {
            block.reverse();
        }
        let followed = after.iter().filter(|object| references.observe(**object)).count();
        assert!(followed >= 190, "leap to {to}: {followed} of 200");
        let progress = references.progress(1).expect("a job");
        assert!(progress.trusted && progress.skipped >= to - 140, "{progress:?}");
        assert!(references.cursor(1) >= to + 100, "{}", references.cursor(1));
        assert_eq!(references.future(50), Future::Dead);
    }
}

#[test]
fn two_readers_of_the_halves_of_a_sequence_then_neither_is_given_up() {
    let objects: Vec<u64> = (0..10_000).collect();
    let mut references = references(&objects);
    for object in 0..1_000 {
        references.observe(object);
        references.observe(object + 5_000);
    }
    assert_eq!(references.progress(1).expect("a job").skipped, 0);
}

#[test]
fn accesses_far_ahead_here_and_there_then_no_leap() {
    let objects: Vec<u64> = (0..10_000).collect();
    let mut references = references(&objects);
    for object in 0..400 {
        references.observe(object);
        references.observe((object * 7_919) % 9_000 + 1_000);
    }
    let cursor = references.cursor(1);
    assert!((390..=400).contains(&cursor), "{cursor}");
}

#[test]
fn progress_along_the_way_then_every_reference_is_counted_once() {
    let mut references = references(&[1, 2, 3, 4, 5]);
    references.observe(1);
    references.observe(3);
    references.hint(&Hint::Advance { job: 1, by: 3 });
    let progress = references.progress(1).expect("a job");
    let expected =
        Progress { given: 5, followed: 2, skipped: 2, ahead: 1, trusted: progress.trusted };
    assert_eq!(progress, expected);
    assert_eq!(references.reference(1, references.cursor(1)), Some((5, true)));
    assert_eq!((references.position(1, 5), references.position(1, 1)), (Some(4), None));
}
