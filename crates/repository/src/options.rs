//! How a repository is found and how an object is to be written.

use crate::Id;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// A string that never shows up in logs and is wiped from memory when dropped.
#[derive(Clone, Default)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a secret.
    pub fn new(value: impl Into<String>) -> Self {
        Secret(Zeroizing::new(value.into()))
    }

    /// The secret itself, for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Settings of the storage below, by name. Values may be credentials, so they are not printed.
#[derive(Clone, Default)]
pub struct StorageOptions(pub BTreeMap<String, String>);

impl fmt::Debug for StorageOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Everything needed to create, connect, open or maintain a repository.
#[derive(Debug, Clone, Default)]
pub struct RepositoryOptions {
    /// Engine-specific name of the kind of storage: `s3`, `filesystem`, `gcs`, `azure`.
    pub storage_type: String,
    /// The repository's password.
    pub password: Secret,
    /// Where the engine keeps its local connection file.
    pub config_file: PathBuf,
    /// Settings of the engine, by name; unknown ones are refused.
    pub general_options: BTreeMap<String, String>,
    /// Settings of the storage, by name; unknown ones are refused.
    pub storage_options: StorageOptions,
    /// For logs only; controls nothing.
    pub description: String,
}

/// What an object's data is. The numbers are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum DataType {
    /// Not said.
    #[default]
    Unknown = 0,
    /// It tells how other data is organised: a directory, the map of a disk.
    Metadata = 1,
    /// The user's bytes.
    Data = 2,
}

/// How an object's data is accessed. The numbers are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum AccessMode {
    /// Not said.
    #[default]
    Unknown = 0,
    /// Written from start to end, as a file is.
    File = 1,
    /// Written at any offset, as a block device is.
    Block = 2,
}

/// Whether an object is written in full or as changes over a parent. The numbers are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum BackupMode {
    /// Not said: full.
    #[default]
    Unknown = 0,
    /// Every byte is written by the mover; what is not written is zero.
    Full = 1,
    /// What the mover does not write is taken from [`ObjectWriteOptions::parent`] without reading it.
    Incremental = 2,
}

/// How one object is to be written.
#[derive(Debug, Clone, Default)]
pub struct ObjectWriteOptions {
    /// Logical path of the object, for messages.
    pub full_path: String,
    /// What the data is.
    pub data_type: DataType,
    /// For messages only.
    pub description: String,
    /// A prefix of the name that the object is stored under, where the engine has such (Kopia: one letter g–z).
    pub prefix: Option<char>,
    /// Sequential or positional writing.
    pub access_mode: AccessMode,
    /// Full or incremental.
    pub backup_mode: BackupMode,
    /// The object that unchanged ranges are taken from; needed by, and only allowed with, [`BackupMode::Incremental`].
    pub parent: Option<Id>,
    /// The object's size, where it is known ([`AccessMode::Block`]): what nobody writes up to there is the parent's
    /// data or zeros. Without it the object reaches as far as was written, or as the parent does.
    pub length: Option<u64>,
    /// Name of a compressor of the engine; empty for none.
    pub compressor: String,
    /// How the object is cut, by a name of the engine; empty for the repository's own way.
    pub splitter: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_interface() {
        assert_eq!([DataType::Unknown as u8, DataType::Metadata as u8, DataType::Data as u8], [0, 1, 2]);
        assert_eq!([AccessMode::Unknown as u8, AccessMode::File as u8, AccessMode::Block as u8], [0, 1, 2]);
        assert_eq!(
            [BackupMode::Unknown as u8, BackupMode::Full as u8, BackupMode::Incremental as u8],
            [0, 1, 2]
        );
    }
}
