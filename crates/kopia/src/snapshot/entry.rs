//! One entry of a directory.

use super::{DirSummary, EntryName, ExactTime, Extras, GoMode, extras};
use crate::gojson::{OmitEmpty, go_object};
use jiff::Timestamp;
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
    /// What Kopia does not have is carried in `extras` and `unknown`; Kopia ignores it.
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
        /// What it has beyond what Kopia keeps; `None` if nothing.
        pub extras: Option<Box<Extras>> => "lifeboat" omitempty,
    }
}

impl DirEntry {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.entry_type == EntryType::Directory
    }

    /// The name of the file that the entry is of: its real one, where the listing has another because it is not UTF-8.
    pub fn file_name(&self) -> &[u8] {
        match &self.extras {
            Some(extras) if !extras.raw_name.0.is_empty() => &extras.raw_name.0,
            _ => self.name.as_bytes(),
        }
    }

    /// The time of the file that the entry is of, also where the listing cannot hold it.
    pub fn file_time(&self) -> ExactTime {
        let nanoseconds = self.mtime.as_nanosecond();
        let listed = || ExactTime {
            // Both fit: a timestamp is within the years -9999 to 9999. Seconds are rounded down, also before 1970.
            seconds: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).unwrap_or_default(),
            nanoseconds: u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or_default(),
        };
        self.extras.as_ref().and_then(|extras| extras.mtime).unwrap_or_else(listed)
    }

    /// Sets the time to that of a file, and keeps it exactly in `extras` if the listing cannot hold it.
    pub fn set_file_time(&mut self, seconds: i64, nanoseconds: u32) {
        let (listed, exact) = extras::listed_time(seconds, nanoseconds);
        self.mtime = listed;
        if exact.is_some() {
            self.extras.get_or_insert_default().mtime = exact;
        }
    }

    /// The [file name](Self::file_name) if it can be a single path element: not empty, not `.` or `..`, no `/`, no NUL.
    ///
    /// Names come from whoever wrote the repository. Some are not even meant as one (Velero stores a block device
    /// under its absolute path); none may lead a restore out of its target.
    pub fn safe_name(&self) -> Option<&[u8]> {
        let name = self.file_name();
        let harmless =
            !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        harmless.then_some(name)
    }

    /// The order of a listing: directories first, then everything else, each bytewise by name.
    pub fn listing_order(&self, other: &DirEntry) -> Ordering {
        other.is_dir().cmp(&self.is_dir()).then_with(|| self.name.cmp(&other.name))
    }
}

/// The first second of the year 0.
const YEAR_ZERO: Timestamp = Timestamp::constant(-62_167_219_200, 0);

/// The time of an entry from a file's seconds and nanoseconds, moved into the years 0 to 9999 that JSON can hold.
pub fn entry_time(seconds: i64, nanoseconds: u32) -> Timestamp {
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or(0);
    match Timestamp::new(seconds, nanoseconds) {
        Ok(time) => time.max(YEAR_ZERO),
        Err(_) if seconds < 0 => YEAR_ZERO,
        Err(_) => Timestamp::MAX,
    }
}
