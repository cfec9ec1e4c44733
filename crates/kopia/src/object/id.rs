//! Object ids: the name of a content, with the number of index levels above it.

use lifeboat_index::ContentId;
use std::fmt;
use std::str::FromStr;

/// More levels than any real object has: two already reach exabytes.
const MAX_LEVELS: u8 = 16;

/// The id of an object: `I`* [`Z`] content id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    content: ContentId,
    levels: u8,
    compressed: bool,
}

impl ObjectId {
    /// An object that is one content.
    pub fn direct(content: ContentId) -> Self {
        ObjectId { content, levels: 0, compressed: false }
    }

    /// An object that is one content, compressed by the object layer (repositories with index version 1 only).
    pub fn direct_compressed(content: ContentId) -> Self {
        ObjectId { content, levels: 0, compressed: true }
    }

    /// The object whose indirect index is the object `index`.
    pub fn indirect(index: ObjectId) -> Option<Self> {
        let levels = index.levels + 1;
        (!index.compressed && levels <= MAX_LEVELS).then_some(ObjectId { levels, ..index })
    }

    /// The content at the root: the object's bytes, or the top of its index.
    pub fn content(&self) -> ContentId {
        self.content
    }

    /// How many levels of index stand above the data.
    pub fn levels(&self) -> u8 {
        self.levels
    }

    /// Whether the content is compressed by the object layer.
    pub fn is_compressed(&self) -> bool {
        self.compressed
    }

    /// The object that holds this one's index; `None` for a direct object.
    pub fn index_object(&self) -> Option<ObjectId> {
        let levels = self.levels.checked_sub(1)?;
        Some(ObjectId { levels, ..*self })
    }
}

impl From<ContentId> for ObjectId {
    fn from(content: ContentId) -> Self {
        ObjectId::direct(content)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for _ in 0..self.levels {
            f.write_str("I")?;
        }
        if self.compressed {
            f.write_str("Z")?;
        }
        self.content.fmt(f)
    }
}

/// A text that is not an object id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an object id")]
pub struct InvalidObjectId(String);

impl FromStr for ObjectId {
    type Err = InvalidObjectId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidObjectId(text.chars().take(100).collect());
        let rest = text.trim_start_matches('I');
        let levels = u8::try_from(text.len() - rest.len()).map_err(|_| invalid())?;
        let (compressed, rest) = match rest.strip_prefix('Z') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        // A marker of early releases that means nothing.
        let rest = rest.strip_prefix('D').unwrap_or(rest);
        if levels > MAX_LEVELS || (compressed && levels > 0) {
            return Err(invalid());
        }
        let content = rest.parse().map_err(|_| invalid())?;
        Ok(ObjectId { content, levels, compressed })
    }
}

impl serde::Serialize for ObjectId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for ObjectId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_kopia_reads_them() {
        for (text, printed) in [
            ("Df0f0", "f0f0"),
            ("IDf0f0", "If0f0"),
            ("IIDf0f0", "IIf0f0"),
            ("Dxf0f0", "xf0f0"),
            ("IDxf0f0", "Ixf0f0"),
            ("Zf0f0", "Zf0f0"),
            ("Dabcd", "abcd"),
        ] {
            assert_eq!(text.parse::<ObjectId>().unwrap().to_string(), printed, "{text}");
        }
        for text in ["Dxf0f", "Da", "Daf0f0", "I1", "IZabcd", "X", "I.x", ""] {
            assert!(text.parse::<ObjectId>().is_err(), "{text}");
        }
        assert!(("I".repeat(300) + "abcd").parse::<ObjectId>().is_err());
    }

    #[test]
    fn levels_are_added_and_taken_off() {
        let direct: ObjectId = "xabcd".parse().unwrap();
        let indirect = ObjectId::indirect(direct).unwrap();
        assert_eq!(indirect.to_string(), "Ixabcd");
        assert_eq!(indirect.index_object(), Some(direct));
        assert_eq!(direct.index_object(), None);
        assert_eq!(ObjectId::indirect("Zabcd".parse().unwrap()), None);
    }
}
