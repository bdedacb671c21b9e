//! Minimising a failing sequence.

/// The smallest subsequence found that still fails, by delta debugging (Zeller and Hildebrandt,
/// "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002, algorithm ddmin).
///
/// `fails` is called at most `budget` times; every item of `items` may be left out, so a sequence
/// with holes must still be a valid one. `items` itself must fail, else it comes back unchanged.
pub fn minimise<T: Clone>(
    items: &[T],
    budget: usize,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut current = items.to_vec();
    let mut pieces = 2;
    let mut left = budget;
    while current.len() >= 2 {
        let size = current.len().div_ceil(pieces);
        let smaller = (0..current.len()).step_by(size).find_map(|start| {
            let mut rest = current.clone();
            rest.drain(start..(start + size).min(current.len()));
            left = left.checked_sub(1)?;
            fails(&rest).then_some(rest)
        });
        match smaller {
            Some(rest) => {
                current = rest;
                pieces = pieces.saturating_sub(1).max(2);
            }
            None if left == 0 || size == 1 => break,
            None => pieces = (pieces * 2).min(current.len()),
        }
    }
    current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimise_when_two_items_matter_then_only_these_remain() {
        let items: Vec<u32> = (0..100).collect();
        let small = minimise(&items, 10_000, |seq| seq.contains(&17) && seq.contains(&80));
        assert_eq!(small, [17, 80]);
    }

    #[test]
    fn minimise_when_budget_is_spent_then_the_result_still_fails() {
        let items: Vec<u32> = (0..100).collect();
        let mut calls = 0;
        let small = minimise(&items, 5, |seq| {
            calls += 1;
            seq.contains(&99)
        });
        assert!(small.contains(&99) && calls <= 5);
    }
}
