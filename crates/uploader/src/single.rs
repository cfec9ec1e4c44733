//! A snapshot of a directory with one file in it: what devices and streams become.

use crate::{Error, Result};
use jiff::Timestamp;
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::{
    DIRECTORY_PREFIX, DirEntry, DirWriter, EntryType, GoMode, IncompleteReason, SnapshotManifest, SourceInfo,
    Stats, SummaryBuilder,
};
use lifeboat_repository::{AccessMode, DataType, Id, ObjectWriteOptions, Repository, WholeObject};

/// The file.
pub(crate) fn file(name: &str, mode: u32, size: u64, time: Timestamp, object: Id) -> DirEntry {
    DirEntry {
        name: name.to_owned().into(),
        entry_type: EntryType::File,
        mode: GoMode::from_unix(mode),
        size,
        mtime: time,
        object: object.into_string(),
        ..DirEntry::default()
    }
}

/// The directory, and what is said of the snapshot.
pub(crate) struct Single<'a> {
    pub(crate) source: &'a SourceInfo,
    pub(crate) description: &'a str,
    pub(crate) policy: &'a Policy,
    pub(crate) start_time: Timestamp,
    /// Name, permissions and time of the directory.
    pub(crate) name: String,
    pub(crate) mode: u32,
    pub(crate) time: Timestamp,
}

impl Single<'_> {
    /// Writes the directory, and makes the snapshot of it.
    pub(crate) fn snapshot(self, repository: &dyn Repository, file: &DirEntry) -> Result<SnapshotManifest> {
        self.write(repository, file, "")
    }

    /// The same of what is there so far.
    pub(crate) fn incomplete(
        self,
        repository: &dyn Repository,
        file: &DirEntry,
        reason: IncompleteReason,
    ) -> Result<SnapshotManifest> {
        self.write(repository, file, reason.as_str())
    }

    fn write(
        self,
        repository: &dyn Repository,
        file: &DirEntry,
        incomplete: &str,
    ) -> Result<SnapshotManifest> {
        let mut summary = SummaryBuilder::default();
        summary.add(file);
        let summary = summary.build(self.time, incomplete);
        let mut listing = DirWriter::new();
        listing.push(file)?;
        let write_options = ObjectWriteOptions {
            full_path: self.name.clone(),
            data_type: DataType::Metadata,
            access_mode: AccessMode::File,
            prefix: Some(DIRECTORY_PREFIX),
            compressor: self.policy.metadata_compression.compressor.clone(),
            ..ObjectWriteOptions::default()
        };
        let bytes = listing.finish(&summary)?;
        let ids = repository.write_objects(&[WholeObject { data: &bytes, options: &write_options }])?;
        let root = DirEntry {
            name: self.name.into(),
            entry_type: EntryType::Directory,
            mode: GoMode::from_unix(self.mode),
            mtime: self.time,
            object: ids.into_iter().next().ok_or(Error::Worker)?.into_string(),
            summary: Some(summary),
            ..DirEntry::default()
        };
        Ok(SnapshotManifest {
            source: self.source.clone(),
            description: self.description.to_owned(),
            start_time: self.start_time,
            end_time: repository.now().max(self.start_time),
            stats: Stats {
                total_size: i64::try_from(file.size).unwrap_or(i64::MAX),
                file_count: 1,
                non_cached_files: 1,
                dir_count: 1,
                ..Stats::default()
            },
            root_entry: Some(root),
            incomplete: incomplete.to_owned(),
            ..SnapshotManifest::default()
        })
    }
}
