//! Dates as HTTP writes them (RFC 9110, section 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY: i64 = 86_400;

/// Seconds since 1970 as a date; years of four digits only.
pub(super) fn write(seconds: i64) -> Option<String> {
    let (day, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, date) = civil(day);
    if !(1..=9999).contains(&year) {
        return None;
    }
    let name = DAYS[day.rem_euclid(7) as usize];
    let month = MONTHS[month as usize - 1];
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    Some(format!("{name}, {date:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT"))
}

/// The same back. The two obsolete forms, which nobody has sent for decades, are not understood.
pub(super) fn read(text: &str) -> Option<i64> {
    let (_, rest) = text.trim().split_once(", ")?;
    let mut words = rest.split(' ');
    let mut word = || words.next();
    let (date, month, year, time) = (word()?, word()?, word()?, word()?);
    if word()? != "GMT" || words.next().is_some() {
        return None;
    }
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let mut parts = time.split(':').map(|part| part.parse::<i64>().ok());
    let mut part = || parts.next().flatten();
    let (hour, minute, second) = (part()?, part()?, part()?);
    let (date, year) = (date.parse::<i64>().ok()?, year.parse::<i64>().ok()?);
    let sound = (1..=31).contains(&date)
        && (1..=9999).contains(&year)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    sound.then(|| days(year, month, date) * DAY + hour * 3600 + minute * 60 + second)
}

/// Days since 1970 of a date (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn days(year: i64, month: i64, date: i64) -> i64 {
    // Years begin in March, so that the day of leap years is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + date - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and date of a day since 1970.
fn civil(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_when_written_then_as_the_standard_has_them_and_the_same_back() {
        for (seconds, text) in [
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (-1, "Wed, 31 Dec 1969 23:59:59 GMT"),
        ] {
            assert_eq!(write(seconds).as_deref(), Some(text));
            assert_eq!(read(text), Some(seconds), "{text}");
        }
        for day in -200_000..200_000 {
            let (year, month, date) = civil(day);
            assert_eq!(days(year, month, date), day);
        }
        assert_eq!(write(i64::MAX), None);
    }

    #[test]
    fn dates_when_senseless_then_none() {
        for text in [
            "",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT more",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
