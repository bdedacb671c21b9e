//! Sizes and durations as people write them: `4G`, `512MiB`, `80%`, `5s`, `200ms`.

use std::time::Duration;

const BINARY: [(&str, u64); 6] = [
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("P", 1 << 50),
    ("E", 1 << 60),
];

/// Splits `12.5MiB` into the number and its unit.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim_start()))
}

/// Parses a number of bytes. `K`, `KiB` and `KB` all mean 1024 bytes, as in most tools that size
/// file systems; likewise `M`, `G`, `T`, `P`, `E`. A number alone counts bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let explain = || {
        format!(
            "'{text}' is not a size; write a number with an optional unit, such as 512M or 4GiB"
        )
    };
    let (number, unit) = split_number(text).ok_or_else(explain)?;
    let unit = unit.to_ascii_uppercase();
    let factor = if unit.is_empty() || unit == "B" {
        1
    } else {
        let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
        BINARY
            .iter()
            .find(|(name, _)| *name == letter)
            .map(|(_, factor)| *factor)
            .ok_or_else(explain)?
    };
    let bytes = number * factor as f64;
    if bytes >= u64::MAX as f64 {
        return Err(format!("'{text}' is too large"));
    }
    Ok(bytes as u64)
}

/// Parses a percentage: `80%`, from 0 to 100.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
    number
        .filter(|n| (0.0..=100.0).contains(n))
        .ok_or_else(|| format!("'{text}' is not a percentage; write for example 90%"))
}

/// Parses a duration with a unit: `ns`, `us`, `ms`, `s`, `m` or `min`, `h`, `d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let explain = || {
        format!("'{text}' is not a duration; write a number and a unit, such as 200ms, 5s or 2min")
    };
    let (number, unit) = split_number(text).ok_or_else(explain)?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "" if number == 0.0 => 0.0,
        _ => return Err(explain()),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("'{text}' is too long"))
}

/// Bytes for people: three digits and a binary unit.
pub fn format_bytes(bytes: u64) -> String {
    let Some((unit, factor)) = BINARY.iter().rev().find(|(_, factor)| bytes >= *factor) else {
        return format!("{bytes} B");
    };
    let number = bytes as f64 / *factor as f64;
    let digits = if number < 9.995 {
        2
    } else if number < 99.95 {
        1
    } else {
        0
    };
    format!("{number:.digits$} {unit}iB")
}

/// Seconds for people: the two largest units.
pub fn format_seconds(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// A duration in the form that [`parse_duration`] reads, without loss down to the nanosecond.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    for (unit, size) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if nanos.is_multiple_of(size) {
            return format!("{}{unit}", nanos / size);
        }
    }
    format!("{nanos}ns")
}

/// A count with separators between thousands.
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_bytes_when_units_vary_then_all_are_binary() {
        for (text, bytes) in [
            ("4G", 4 << 30),
            ("512MiB", 512 << 20),
            ("1kb", 1024),
            ("1.5K", 1536),
            ("7", 7),
            ("7 B", 7),
            ("2T", 2 << 40),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "4X", "-1", "4GiBs", "1e30E", "80%", "1..2"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parse_duration_when_unit_is_missing_then_it_is_refused() {
        assert_eq!(parse_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for text in ["5", "s", "", "5 parsecs", "-5s", "1e99d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parse_percent_when_out_of_range_then_it_is_refused() {
        assert_eq!(parse_percent("90%"), Ok(90.0));
        for text in ["90", "101%", "-1%", "%", "nan%"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn format_when_given_odd_sizes_then_three_digits_remain() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1023), "1023 B");
        assert_eq!(format_bytes(1536), "1.50 KiB");
        assert_eq!(format_bytes(10 << 30), "10.0 GiB");
        assert_eq!(format_bytes(u64::MAX), "16.0 EiB");
        assert_eq!(format_seconds(59), "59 s");
        assert_eq!(format_seconds(3_725), "1 h 02 min");
        assert_eq!(format_count(1_234_567), "1,234,567");
    }

    #[test]
    fn format_duration_when_parsed_again_then_equal() {
        for nanos in [0, 1, 999, 1_000, 1_500_000, 5_000_000_000, 61_000_000_001] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }
}
