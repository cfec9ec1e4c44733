//! Values that Go writes in a form of their own: byte strings, instants and spans of time.

use super::OmitEmpty;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::time::Duration;

/// Bytes, in JSON a padded standard base64 text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Base64(pub Vec<u8>);

impl OmitEmpty for Base64 {
    fn is_empty_value(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        STANDARD.decode(text.as_bytes()).map(Base64).map_err(serde::de::Error::custom)
    }
}

/// An instant whose empty value is Go's zero time, `0001-01-01T00:00:00Z`.
///
/// (Kopia's own timestamps count from the Unix epoch; those are plain [`Timestamp`]s here.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoTime(pub Timestamp);

impl GoTime {
    /// Go's zero time: "never".
    pub const ZERO: GoTime = GoTime(Timestamp::constant(-62_135_596_800, 0));

    /// Whether this is "never".
    pub fn is_zero(self) -> bool {
        self == GoTime::ZERO
    }

    /// The instant, or `None` for "never".
    pub fn get(self) -> Option<Timestamp> {
        (!self.is_zero()).then_some(self.0)
    }
}

impl Default for GoTime {
    fn default() -> Self {
        GoTime::ZERO
    }
}

impl Serialize for GoTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for GoTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Timestamp::deserialize(deserializer).map(GoTime)
    }
}

/// A span of time, in JSON a whole number of nanoseconds; may be negative in what others wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub i64);

impl Nanos {
    /// `count` seconds.
    pub const fn from_secs(count: i64) -> Nanos {
        Nanos(count * 1_000_000_000)
    }

    /// `count` hours.
    pub const fn from_hours(count: i64) -> Nanos {
        Nanos::from_secs(count * 3600)
    }

    /// As a duration; a negative span counts as none.
    pub fn to_duration(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
}

impl From<Duration> for Nanos {
    /// Spans that Go cannot hold (292 years) become the longest it can.
    fn from(duration: Duration) -> Self {
        Nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl OmitEmpty for Nanos {
    fn is_empty_value(&self) -> bool {
        self.0 == 0
    }
}

impl Serialize for Nanos {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        i64::deserialize(deserializer).map(Nanos)
    }
}
