//! Durations as Go reads and prints them (`1h30m0s`), which is how they stand in every `velero.io` object.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// A signed number of nanoseconds, as wide as Go's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(i64);

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: write numbers with units, such as \"10m\", \"1h30m\" or \"500ms\"")]
pub struct ParseDurationError(String);

impl Duration {
    /// So many seconds; what does not fit becomes the longest duration there is.
    #[must_use]
    pub fn from_secs(seconds: u64) -> Self {
        Self(i64::try_from(seconds.saturating_mul(SECOND)).unwrap_or(i64::MAX))
    }

    /// The duration for a timer; a negative one has passed already.
    #[must_use]
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Whether nothing was set, which the server reads as "take the default".
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Display for Duration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.unsigned_abs();
        if nanoseconds == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if nanoseconds < SECOND {
            let (unit, name) = match nanoseconds {
                n if n < MICROSECOND => (1, "ns"),
                n if n < MILLISECOND => (MICROSECOND, "µs"),
                _ => (MILLISECOND, "ms"),
            };
            return write!(f, "{}{name}", Decimal { value: nanoseconds, unit });
        }
        let (hours, minutes) = (nanoseconds / HOUR, nanoseconds / MINUTE % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", Decimal { value: nanoseconds % MINUTE, unit: SECOND })
    }
}

/// `value / unit` with as many digits after the point as it needs.
struct Decimal {
    value: u64,
    unit: u64,
}

impl Display for Decimal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.value / self.unit, self.value % self.unit);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = self.unit.ilog10() as usize;
        let fraction = format!("{rest:0digits$}");
        write!(f, "{whole}.{}", fraction.trim_end_matches('0'))
    }
}

impl FromStr for Duration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        let error = || ParseDurationError(text.chars().take(64).collect());
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(error());
        }
        let mut total = 0u64;
        while !rest.is_empty() {
            let (term, after) = term(rest).ok_or_else(error)?;
            total = total.checked_add(term).ok_or_else(error)?;
            rest = after;
        }
        // Go's smallest duration has no positive counterpart.
        match (negative, i64::try_from(total)) {
            (false, Ok(value)) => Ok(Self(value)),
            (true, Ok(value)) => Ok(Self(-value)),
            (true, Err(_)) if total == i64::MIN.unsigned_abs() => Ok(Self(i64::MIN)),
            _ => Err(error()),
        }
    }
}

/// One number with its unit from the front of `text`, in nanoseconds, and what follows it.
fn term(text: &str) -> Option<(u64, &str)> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(number_end);
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let unit = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Digits below a nanosecond are dropped, as Go drops them; 18 digits fit whatever the unit is.
    let digits = &fraction[..fraction.len().min(18)];
    let part = if digits.is_empty() {
        0
    } else {
        u128::from(digits.parse::<u64>().ok()?) * u128::from(unit)
            / 10u128.pow(u32::try_from(digits.len()).ok()?)
    };
    Some((whole.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)?, rest))
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_and_reads_as_go_does() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (36_000_000_000_000, "10h0m0s"),
            (-600_000_000_000, "-10m0s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(Duration(nanoseconds).to_string(), text);
            assert_eq!(text.parse(), Ok(Duration(nanoseconds)));
        }
    }

    #[test]
    fn reads_what_people_write() {
        for (text, printed) in [
            ("0", "0s"),
            ("+5m", "5m0s"),
            ("1.5h", "1h30m0s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("90s", "1m30s"),
            ("1h1ms", "1h0m0.001s"),
        ] {
            assert_eq!(text.parse::<Duration>().unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in [
            "",
            "-",
            "3",
            "m",
            "1.2.3s",
            ".s",
            "1d",
            "10 m",
            "1e3s",
            "9223372036854775808ns",
            "99999999999h",
            "µs",
        ] {
            let error = text.parse::<Duration>().unwrap_err();
            assert!(error.to_string().contains("is not a duration"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_duration_survives_printing(nanoseconds: i64) {
            prop_assert_eq!(Duration(nanoseconds).to_string().parse(), Ok(Duration(nanoseconds)));
        }

        #[test]
        fn no_text_breaks_the_parser(text in ".{0,40}") {
            let _ = text.parse::<Duration>();
        }
    }
}
