//! Moments and spans of time as people write them.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};

/// Which of several snapshots is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The last one.
    Latest,
    /// The first one.
    Oldest,
    /// The last one that was begun before this moment.
    Before(Timestamp),
}

/// A moment as snapshots are listed with it, in UTC or in the time zone of this machine; or as in RFC 3339.
pub fn parse_moment(text: &str) -> Result<Timestamp, String> {
    let as_listed = || {
        let (time, zone) = text.rsplit_once(' ')?;
        let time = DateTime::strptime("%Y-%m-%d %H:%M:%S", time).ok()?;
        if ["UTC", "GMT"].contains(&zone) {
            return TimeZone::UTC.to_timestamp(time).ok();
        }
        // When clocks are set back, an hour happens twice: the name of the zone tells which one it is.
        let here = TimeZone::system();
        let found = [here.to_ambiguous_timestamp(time).earlier(), here.to_ambiguous_timestamp(time).later()];
        let is_meant = |moment: &Timestamp| here.to_offset_info(*moment).abbreviation() == zone;
        found.into_iter().flatten().find(is_meant)
    };
    text.parse().ok().or_else(as_listed).ok_or_else(|| {
        "a time is written as 2026-01-31 18:30:00 UTC, in UTC or the time zone of this machine, or as \
         2026-01-31T18:30:00+01:00"
            .to_owned()
    })
}

/// Which snapshot is meant by a time, by Kopia's words: what is less exact than a second means all of it.
pub fn parse_when(text: &str) -> Result<When, String> {
    parse_when_at(text, &Zoned::now())
}

fn parse_when_at(text: &str, now: &Zoned) -> Result<When, String> {
    let wrong = |error: jiff::Error| format!("{text:?} is out of range: {error}");
    let here = now.time_zone();
    let midnight = |date: Date| {
        let start = date.to_zoned(here.clone()).map_err(wrong)?;
        Ok(When::Before(start.timestamp()))
    };
    match text {
        "latest" => return Ok(When::Latest),
        "oldest" => return Ok(When::Oldest),
        "yesterday" => return midnight(now.date()),
        "last-month" => return midnight(now.date().first_of_month()),
        "last-year" => return midnight(now.date().first_of_year()),
        _ => {}
    }
    if let Some(span) = text.strip_suffix("-ago").and_then(parse_ago) {
        let day = now.date().checked_sub(span).and_then(Date::tomorrow).map_err(wrong)?;
        return midnight(day);
    }
    if let Ok(moment) = parse_moment(text) {
        return Ok(When::Before(moment.checked_add(1.second()).map_err(wrong)?));
    }
    let (time, length) = parse_local(text).ok_or_else(|| {
        format!("{text:?} is none of latest, oldest, yesterday, last-month, last-year, 1y-2m-3d-ago, 2026-01-31 18:30")
    })?;
    let end = time.checked_add(length).and_then(|end| here.to_timestamp(end)).map_err(wrong)?;
    Ok(When::Before(end))
}

/// Years, months and days, in this order, each of which may be missing.
fn parse_ago(text: &str) -> Option<Span> {
    let units: [&[&str]; 3] =
        [&["y", "year", "years"], &["m", "mo", "month", "months"], &["d", "day", "days"]];
    let mut counts = [0i64; 3];
    let mut next = 0;
    for part in text.split('-') {
        let digits = part.find(|letter: char| !letter.is_ascii_digit())?;
        let (count, name) = part.split_at(digits);
        let unit = next + units[next..].iter().position(|names| names.contains(&name))?;
        counts[unit] = count.parse().ok().filter(|count| *count < 1000)?;
        next = unit + 1;
    }
    let [years, months, days] = counts;
    Some(Span::new().years(years).months(months).days(days))
}

/// A time without a zone, and how long what it names lasts.
fn parse_local(text: &str) -> Option<(DateTime, Span)> {
    let text = text.replacen('T', " ", 1);
    let left_out: [(&str, Span); 6] = [
        ("", 1.second()),
        (":00", 1.minute()),
        (":00:00", 1.hour()),
        (" 00:00:00", 1.day()),
        ("-01 00:00:00", 1.month()),
        ("-01-01 00:00:00", 1.year()),
    ];
    left_out.into_iter().find_map(|(rest, length)| {
        Some((DateTime::strptime("%Y-%m-%d %H:%M:%S", format!("{text}{rest}")).ok()?, length))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_listed() {
        let expected: Timestamp = "2026-01-31T18:30:00Z".parse().unwrap();
        let listed = crate::output::time(expected);
        for text in ["2026-01-31 18:30:00 UTC", "2026-01-31T19:30:00+01:00", &listed] {
            assert_eq!(parse_moment(text), Ok(expected), "{text}");
        }
        for text in
            ["", "yesterday", "2026-01-31 18:30:00", "2026-01-31 18:30:00 XYZ", "2026-02-31 18:30:00 UTC"]
        {
            assert!(parse_moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_of_snapshots_are_kopias() {
        let now: Zoned = "2026-03-15T12:00:00+00:00[UTC]".parse().unwrap();
        let cases = [
            ("yesterday", "2026-03-15T00:00:00Z"),
            ("last-month", "2026-03-01T00:00:00Z"),
            ("last-year", "2026-01-01T00:00:00Z"),
            ("1d-ago", "2026-03-15T00:00:00Z"),
            ("1y-2months-3d-ago", "2025-01-13T00:00:00Z"),
            ("2mo-ago", "2026-01-16T00:00:00Z"),
            ("2025", "2026-01-01T00:00:00Z"),
            ("2025-12", "2026-01-01T00:00:00Z"),
            ("2025-12-31", "2026-01-01T00:00:00Z"),
            ("2025-12-31 23", "2026-01-01T00:00:00Z"),
            ("2025-12-31T23:59", "2026-01-01T00:00:00Z"),
            ("2025-12-31 23:59:59", "2026-01-01T00:00:00Z"),
            ("2025-12-31T23:59:59Z", "2026-01-01T00:00:00Z"),
            ("2025-12-31 23:59:59 UTC", "2026-01-01T00:00:00Z"),
        ];
        for (text, end) in cases {
            assert_eq!(parse_when_at(text, &now), Ok(When::Before(end.parse().unwrap())), "{text}");
        }
        assert_eq!(parse_when_at("latest", &now), Ok(When::Latest));
        assert_eq!(parse_when_at("oldest", &now), Ok(When::Oldest));
        for wrong in ["", "soon", "1x-ago", "3d-1y-ago", "2025-13", "2025-12-31 25"] {
            assert!(parse_when_at(wrong, &now).is_err(), "{wrong}");
        }
    }
}
