//! `Range` and `If-Range` of RFC 9110, section 14, for one representation of known size.

use std::ops::Range;

/// What part of a file a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All of it: no range, one that is to be ignored, or several (a server may ignore them).
    Whole,
    /// These bytes; never empty.
    Part(Range<u64>),
    /// Nothing that the file has.
    Unsatisfiable,
}

/// Reads the value of a `Range` header for a file of `size` bytes.
pub fn parse(value: &str, size: u64) -> Wanted {
    let Some((unit, set)) = value.split_once('=') else { return Wanted::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") || set.contains(',') {
        return Wanted::Whole;
    }
    let Some((first, last)) = set.trim().split_once('-') else { return Wanted::Whole };
    match (number(first), number(last)) {
        (Some(first), _) if !last.is_empty() && number(last).is_none_or(|last| last < first) => {
            Wanted::Whole
        }
        (Some(first), _) if first >= size => Wanted::Unsatisfiable,
        (Some(first), None) => Wanted::Part(first..size),
        (Some(first), Some(last)) => Wanted::Part(first..last.saturating_add(1).min(size)),
        (None, Some(count)) if first.is_empty() => match count.min(size) {
            0 => Wanted::Unsatisfiable,
            count => Wanted::Part(size - count..size),
        },
        _ => Wanted::Whole,
    }
}

/// Digits as a number; one that is too large for any file counts as the largest.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_when_well_formed_then_cut_to_the_file() {
        assert_eq!(parse("bytes=0-0", 10), Wanted::Part(0..1));
        assert_eq!(parse("bytes=3-", 10), Wanted::Part(3..10));
        assert_eq!(parse("Bytes=3-99", 10), Wanted::Part(3..10));
        assert_eq!(parse("bytes=-4", 10), Wanted::Part(6..10));
        assert_eq!(parse("bytes=-40", 10), Wanted::Part(0..10));
        assert_eq!(parse("bytes=2-99999999999999999999999", 10), Wanted::Part(2..10));
    }

    #[test]
    fn range_when_outside_the_file_then_unsatisfiable() {
        for value in ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=99999999999999999999999-"] {
            assert_eq!(parse(value, 10), Wanted::Unsatisfiable, "{value}");
        }
        assert_eq!(parse("bytes=0-", 0), Wanted::Unsatisfiable);
    }

    #[test]
    fn range_when_malformed_or_several_then_ignored() {
        for value in [
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-3",
            "bytes=a-b",
            "bytes=0-1,4-5",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=1-x",
        ] {
            assert_eq!(parse(value, 10), Wanted::Whole, "{value}");
        }
    }
}
