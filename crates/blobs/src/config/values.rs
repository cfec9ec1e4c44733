//! Values of connection files that need care: secrets, unknown fields, bytes and durations as Go writes them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt;
use std::time::Duration;
use zeroize::Zeroize;

/// Text that is never shown: debug output hides it, memory is wiped when it is dropped.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "none" } else { "…" })
    }
}

/// Fields that are not known here, kept as they are. Debug output shows their names only.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Extra(pub Map<String, Value>);

impl fmt::Debug for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A duration as Kopia writes one that is not set.
pub(super) fn zero_duration() -> String {
    "0s".to_owned()
}

/// Reads a duration as Go writes it (`1h30m0.5s`), or a number of nanoseconds.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if let Ok(nanos) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(nanos / 1e9).ok();
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(unit_at);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, after) = tail.split_at(unit_end);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = after;
    }
    Some(total)
}

/// Bytes as Go writes them in JSON.
pub(super) mod base64_bytes {
    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(|bytes| BASE64_STANDARD.encode(bytes)).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let bytes = text.map(|text| BASE64_STANDARD.decode(text)).transpose();
        bytes.map_err(|_| serde::de::Error::custom("the value is not base64"))
    }
}
