//! Names of directory entries: bytes, as file systems have them.

use crate::gojson::{self, OmitEmpty};
use serde::ser::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt;

/// The name of an entry. Usually UTF-8, but file systems do not care.
///
/// JSON can only hold text: each byte that is not part of a character is written as the escape `\ufffd`, as Go does
/// it, and read back as the replacement character. Whoever wants the real name back has to store it elsewhere.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryName(Vec<u8>);

impl EntryName {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name as text, if it is.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Whether it holds, or will hold when written, the replacement character.
    pub(super) fn is_replaced(&self) -> bool {
        self.as_str().is_none_or(|name| name.contains(char::REPLACEMENT_CHARACTER))
    }
}

impl From<&str> for EntryName {
    fn from(name: &str) -> Self {
        EntryName(name.as_bytes().to_vec())
    }
}

impl From<String> for EntryName {
    fn from(name: String) -> Self {
        EntryName(name.into_bytes())
    }
}

impl From<Vec<u8>> for EntryName {
    fn from(name: Vec<u8>) -> Self {
        EntryName(name)
    }
}

impl PartialEq<str> for EntryName {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl OmitEmpty for EntryName {
    fn is_empty_value(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for EntryName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_str() {
            Some(name) => serializer.serialize_str(name),
            None => {
                let raw = escaped(&self.0).and_then(RawValue::from_string).map_err(S::Error::custom)?;
                raw.serialize(serializer)
            }
        }
    }
}

/// A JSON string in which `\ufffd` stands for each byte that is not part of a character.
fn escaped(name: &[u8]) -> serde_json::Result<String> {
    let mut json = String::from("\"");
    for chunk in name.utf8_chunks() {
        let quoted = gojson::to_string(chunk.valid())?;
        json.push_str(&quoted[1..quoted.len() - 1]);
        json.extend(chunk.invalid().iter().map(|_| "\\ufffd"));
    }
    json.push('"');
    Ok(json)
}

impl<'de> Deserialize<'de> for EntryName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(EntryName::from)
    }
}
