//! Rates as people write them.

/// Parses a rate and returns bytes a second. As in media tools a number counts **bits** a second
/// and its letter is decimal: `2M`, `2Mb`, `2Mbit/s` are 250,000 bytes a second. A capital `B`
/// says bytes: `250KB`, `1MB/s`.
///
/// # Errors
/// What is wrong with the text, and what would be right.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("'{text}' is not a rate; write bits a second such as 2M, or bytes such as 250KB")
    };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let number: f64 = trimmed[..end].parse().map_err(|_| wrong())?;
    let unit = trimmed[end..].trim().trim_end_matches("/s").trim_end_matches("ps");
    let (factor, rest) = match unit.chars().next() {
        Some('k' | 'K') => (1e3, &unit[1..]),
        Some('M' | 'm') => (1e6, &unit[1..]),
        Some('G' | 'g') => (1e9, &unit[1..]),
        _ => (1.0, unit),
    };
    let bits = match rest {
        "" | "b" | "bit" | "bits" => 1.0,
        "B" => 8.0,
        _ => return Err(wrong()),
    };
    let rate = (number * factor * bits / 8.0).ceil();
    if !(1.0..=1e12).contains(&rate) {
        return Err(wrong());
    }
    Ok(rate as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_when_written_in_any_usual_way_then_bytes_a_second() {
        let rates = [
            ("2M", 250_000),
            ("2Mb", 250_000),
            ("2Mbit/s", 250_000),
            ("2mbps", 250_000),
            ("800", 100),
            ("1.5 M", 187_500),
            ("250KB", 250_000),
            ("1MB/s", 1_000_000),
            ("1G", 125_000_000),
            ("9", 2),
        ];
        for (text, rate) in rates {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
    }

    #[test]
    fn rate_when_senseless_then_refused_with_an_example() {
        for text in
            ["", "M", "0", "-1", "2X", "2MiB", "nan", "inf", "1e9", "99999G", "..", "2M\u{e9}"]
        {
            assert!(parse_rate(text).is_err_and(|why| why.contains("250KB")), "{text}");
        }
    }
}
