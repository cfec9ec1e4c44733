//! One entry of a directory.

use super::{DirSummary, EntryName, GoMode};
use crate::gojson::{OmitEmpty, go_object};
use jiff::Timestamp;
use jiff::civil;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum EntryType {
    /// Not said.
    #[default]
    Unspecified,
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; the object holds its target.
    Symlink,
    /// Something that this program does not know.
    Other(String),
}

impl EntryType {
    fn code(&self) -> &str {
        match self {
            EntryType::Unspecified => "",
            EntryType::File => "f",
            EntryType::Directory => "d",
            EntryType::Symlink => "s",
            EntryType::Other(code) => code,
        }
    }
}

impl OmitEmpty for EntryType {
    fn is_empty_value(&self) -> bool {
        self.code().is_empty()
    }
}

impl Serialize for EntryType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for EntryType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = String::deserialize(deserializer)?;
        Ok(match code.as_str() {
            "" => EntryType::Unspecified,
            "f" => EntryType::File,
            "d" => EntryType::Directory,
            "s" => EntryType::Symlink,
            _ => EntryType::Other(code),
        })
    }
}

go_object! {
    /// A file, directory or symbolic link in a listing, or the root of a snapshot.
    ///
    /// Fields that Kopia does not have are carried in `unknown`; Kopia ignores them.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct DirEntry {
        /// The name as data: see [`safe_name`](DirEntry::safe_name) before it becomes part of a path.
        pub name: EntryName => "name" omitempty,
        /// What it is.
        pub entry_type: EntryType => "type" omitempty,
        /// Permissions.
        pub mode: GoMode => "mode" omitempty,
        /// Files: bytes stored. Links: length of the target. Directories: 0.
        pub size: u64 => "size" omitempty,
        /// When its content was modified.
        pub mtime: Timestamp => "mtime" omitempty,
        /// The owner.
        pub uid: u32 => "uid" omitempty,
        /// The group.
        pub gid: u32 => "gid" omitempty,
        /// The id of the object with its content.
        pub object: String => "obj",
        /// Of directories: what is below.
        pub summary: Option<DirSummary> => "summ" omitempty,
    }
}

impl DirEntry {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.entry_type == EntryType::Directory
    }

    /// The name if it can be a single path element: not empty, not `.` or `..`, no `/`, no NUL.
    ///
    /// Names come from whoever wrote the repository. Some are not even meant as one (Velero stores a block device
    /// under its absolute path); none may lead a restore out of its target.
    pub fn safe_name(&self) -> Option<&[u8]> {
        let name = self.name.as_bytes();
        let harmless =
            !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        harmless.then_some(name)
    }

    /// The order of a listing: directories first, then everything else, each bytewise by name.
    pub fn listing_order(&self, other: &DirEntry) -> Ordering {
        other.is_dir().cmp(&self.is_dir()).then_with(|| self.name.cmp(&other.name))
    }
}

/// The time of an entry from a file's seconds and nanoseconds, moved into the years 0 to 9999 that JSON can hold.
pub fn entry_time(seconds: i64, nanoseconds: u32) -> Timestamp {
    let year_zero = civil::date(0, 1, 1).at(0, 0, 0, 0);
    let earliest = jiff::tz::Offset::UTC.to_timestamp(year_zero).unwrap_or(Timestamp::MIN);
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or(0);
    match Timestamp::new(seconds, nanoseconds) {
        Ok(time) => time.max(earliest),
        Err(_) if seconds < 0 => earliest,
        Err(_) => Timestamp::MAX,
    }
}
