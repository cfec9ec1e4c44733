//! Snapshots: the manifest that names a tree, and the directory listings that the tree consists of.

mod entry;
pub mod extras;
mod listing;
mod manifest;
mod mode;
mod name;
mod raw;
mod source;
mod summary;

pub use entry::{DirEntry, EntryType, entry_time};
pub use extras::{
    DeviceNumber, ExactTime, Extras, HardLink, Hole, Holes, SpecialKind, XattrName, listed_name,
};
pub use listing::{DirEntries, DirParser, DirWriter, MAX_VALUE_LEN, encode_entry};
pub use manifest::{
    DamagedSnapshot, IncompleteReason, SNAPSHOT_TYPE, SnapshotList, SnapshotManifest, Stats, list, load,
    previous, save, update,
};
pub use mode::GoMode;
pub use name::EntryName;
pub use raw::{PlainEntry, RawEntry};
pub use source::{HOSTNAME_LABEL, PATH_LABEL, SourceInfo, USERNAME_LABEL};
pub use summary::{DirSummary, EntryError, MAX_REPORTED_ERRORS, SummaryBuilder};

// Part of the model: by these a snapshot is named and found.
pub use crate::manifest::{ManifestId, TYPE_LABEL};

/// The prefix of the contents of directory listings.
pub const DIRECTORY_PREFIX: char = 'k';

#[cfg(test)]
mod tests;
