//! What an index says about a content, and which of several statements wins.

use crate::ContentId;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The longest pack name that an index can hold, in bytes.
pub const MAX_PACK_NAME_LEN: usize = 255;

/// The name of the blob that holds a content. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackName(Arc<str>);

impl PackName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PackName {
    fn from(name: &str) -> Self {
        PackName(name.into())
    }
}

impl From<String> for PackName {
    fn from(name: String) -> Self {
        PackName(name.into())
    }
}

impl From<Arc<str>> for PackName {
    fn from(name: Arc<str>) -> Self {
        PackName(name)
    }
}

impl AsRef<str> for PackName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for PackName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Where a content is and how it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// The content.
    pub id: ContentId,
    /// The blob that holds it.
    pub pack: PackName,
    /// Where it starts in the pack.
    pub pack_offset: u32,
    /// Its length in the pack: compressed and encrypted.
    pub packed_length: u32,
    /// Its length as it was handed in.
    pub original_length: u32,
    /// When the entry was made, in seconds since 1970.
    pub timestamp_seconds: i64,
    /// The repository format it was written under; informational.
    pub format_version: u8,
    /// How it is compressed: a compressor's number, or 0.
    pub compression: u32,
    /// Which key it is encrypted with; always 0 so far.
    pub encryption_key_id: u8,
    /// Whether the entry says that the content was deleted.
    pub deleted: bool,
}

/// Whether `a` takes precedence over `b`, both being statements on the same content: the later wins, then the one
/// that is not a deletion, then the greater pack name.
///
/// What is equal in all that is ordered by the remaining fields, so that the outcome of a merge never depends on the
/// order of its inputs.
pub fn supersedes(a: &IndexEntry, b: &IndexEntry) -> bool {
    let pack = || a.pack.cmp(&b.pack);
    a.fields().precedence(&b.fields(), pack) == Ordering::Greater
}

impl IndexEntry {
    pub(crate) fn fields(&self) -> Fields {
        Fields {
            timestamp: self.timestamp_seconds,
            pack_offset: self.pack_offset,
            packed_length: self.packed_length,
            original_length: self.original_length,
            format: Format {
                compression: self.compression,
                version: self.format_version,
                key_id: self.encryption_key_id,
            },
            deleted: self.deleted,
        }
    }
}

/// What contents of a kind have in common; indexes store each combination once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Format {
    pub(crate) compression: u32,
    pub(crate) version: u8,
    pub(crate) key_id: u8,
}

/// All of an entry but its id and its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) timestamp: i64,
    pub(crate) pack_offset: u32,
    pub(crate) packed_length: u32,
    pub(crate) original_length: u32,
    pub(crate) format: Format,
    pub(crate) deleted: bool,
}

impl Fields {
    /// The order of [`supersedes`]; `pack` compares the pack names and is asked only on a tie.
    pub(crate) fn precedence(&self, other: &Self, pack: impl FnOnce() -> Ordering) -> Ordering {
        let rest = |f: &Self| (f.pack_offset, f.packed_length, f.original_length, f.format);
        (self.timestamp, !self.deleted)
            .cmp(&(other.timestamp, !other.deleted))
            .then_with(pack)
            .then_with(|| rest(self).cmp(&rest(other)))
    }
}

/// An entry whose pack is a number into a table that is kept elsewhere: what is moved around by the million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: ContentId,
    pub(crate) pack: u32,
    pub(crate) fields: Fields,
}

impl Record {
    pub(crate) fn into_entry(self, pack: PackName) -> IndexEntry {
        let Fields { timestamp, pack_offset, packed_length, original_length, format, deleted } = self.fields;
        IndexEntry {
            id: self.id,
            pack,
            pack_offset,
            packed_length,
            original_length,
            timestamp_seconds: timestamp,
            format_version: format.version,
            compression: format.compression,
            encryption_key_id: format.key_id,
            deleted,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(timestamp_seconds: i64, deleted: bool, pack: &str) -> IndexEntry {
        IndexEntry {
            id: "00".parse().unwrap(),
            pack: pack.into(),
            pack_offset: 32,
            packed_length: 33,
            original_length: 5,
            timestamp_seconds,
            format_version: 3,
            compression: 0,
            encryption_key_id: 0,
            deleted,
        }
    }

    #[test]
    fn later_then_living_then_greater_pack_wins() {
        let ascending = [
            entry(1, true, "z"),
            entry(1, false, "a"),
            entry(1, false, "b"),
            entry(2, true, "a"),
            entry(2, false, "a"),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(supersedes(a, b), i > j, "{a:?} {b:?}");
            }
        }
    }
}
