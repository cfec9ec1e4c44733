//! The manifest of a snapshot, and how snapshots are found, saved and changed.

use super::{DirEntry, SourceInfo};
use crate::gojson::go_object;
use crate::manifest::{Labels, Manifest, ManifestId, ManifestStore, TYPE_LABEL};
use crate::{Error, Result};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// The value of the label `type` of snapshots.
pub const SNAPSHOT_TYPE: &str = "snapshot";

/// Why a snapshot is not complete, as Kopia writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncompleteReason {
    /// Written while the upload was going on.
    Checkpoint,
    /// The upload was cancelled.
    Canceled,
    /// The upload reached a limit of bytes.
    LimitReached,
}

impl IncompleteReason {
    /// The text in the manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            IncompleteReason::Checkpoint => "checkpoint",
            IncompleteReason::Canceled => "canceled",
            IncompleteReason::LimitReached => "limit reached",
        }
    }
}

go_object! {
    /// What the upload did.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Stats {
        /// Bytes in all files.
        pub total_size: i64 => "totalSize",
        /// Bytes in files that a policy excluded.
        pub excluded_total_size: i64 => "excludedTotalSize",
        /// Files that were read and hashed.
        pub file_count: i64 => "fileCount",
        /// Files that were taken over from an earlier snapshot.
        pub cached_files: i64 => "cachedFiles",
        /// Files that were not.
        pub non_cached_files: i64 => "nonCachedFiles",
        /// Directories.
        pub dir_count: i64 => "dirCount",
        /// Files that a policy excluded.
        pub excluded_file_count: i64 => "excludedFileCount",
        /// Directories that a policy excluded.
        pub excluded_dir_count: i64 => "excludedDirCount",
        /// Errors that a policy told to ignore.
        pub ignored_error_count: i64 => "ignoredErrorCount",
        /// Errors.
        pub error_count: i64 => "errorCount",
    }
}

impl Stats {
    /// Kopia reads the counts as 32-bit numbers. A manifest that it cannot read is no root for its garbage
    /// collection, so larger counts are cut.
    fn limit_counts(&mut self) {
        for count in [
            &mut self.file_count,
            &mut self.cached_files,
            &mut self.non_cached_files,
            &mut self.dir_count,
            &mut self.excluded_file_count,
            &mut self.excluded_dir_count,
            &mut self.ignored_error_count,
            &mut self.error_count,
        ] {
            *count = (*count).clamp(i64::from(i32::MIN), i64::from(i32::MAX));
        }
    }
}

go_object! {
    /// A snapshot: when, of what, and the root of its tree.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct SnapshotManifest {
        /// The manifest's id; empty in storage and until it is saved.
        pub id: ManifestId => "id",
        /// What it is of.
        pub source: SourceInfo => "source",
        /// Free text.
        pub description: String => "description",
        /// When it was begun.
        pub start_time: Timestamp => "startTime",
        /// When it was finished.
        pub end_time: Timestamp => "endTime",
        /// What the upload did.
        pub stats: Stats => "stats",
        /// Why it is not complete ([`IncompleteReason`]); empty if it is.
        pub incomplete: String => "incomplete" omitempty,
        /// The root of the tree.
        pub root_entry: Option<DirEntry> => "rootEntry",
        /// Tags; each is also a label of the manifest.
        pub tags: BTreeMap<String, String> => "tags" omitempty,
        /// Names of pins: while there is one, no retention deletes the snapshot.
        pub pins: Vec<String> => "pins" omitempty,
    }
}

impl SnapshotManifest {
    /// Whether nothing is missing.
    pub fn is_complete(&self) -> bool {
        self.incomplete.is_empty()
    }

    /// The id of the root object.
    pub fn root_object(&self) -> Option<&str> {
        self.root_entry.as_ref().map(|root| root.object.as_str()).filter(|id| !id.is_empty())
    }

    /// Reads the snapshot in `manifest`.
    pub fn from_manifest(manifest: &Manifest) -> Result<SnapshotManifest> {
        let damaged = |reason: &str| Error::DamagedManifest {
            id: manifest.id().to_string(),
            reason: reason.to_owned(),
        };
        if manifest.labels().get(TYPE_LABEL).map(String::as_str) != Some(SNAPSHOT_TYPE) {
            return Err(damaged("it is not a snapshot"));
        }
        let mut snapshot: SnapshotManifest = manifest.parse()?;
        if snapshot.root_object().is_none() {
            return Err(damaged("the snapshot has no root"));
        }
        snapshot.id = manifest.id().clone();
        Ok(snapshot)
    }

    /// The labels of its manifest: the source, and every tag.
    pub fn labels(&self) -> Result<Labels> {
        let source = &self.source;
        for (part, value) in
            [("host", &source.host), ("user name", &source.user_name), ("path", &source.path)]
        {
            if value.is_empty() {
                return Err(Error::Invalid(format!(
                    "the source of a snapshot needs a {part}, {source} has none"
                )));
            }
        }
        let mut labels = source.labels(SNAPSHOT_TYPE);
        for (name, value) in &self.tags {
            if labels.insert(name.clone(), value.clone()).is_some() {
                let text =
                    format!("a snapshot cannot have the tag {name:?}: a label of this name exists already");
                return Err(Error::Invalid(text));
            }
        }
        Ok(labels)
    }

    /// As it is stored: without its id, which is that of the manifest, and with counts that Kopia can read.
    pub fn for_storage(&self) -> SnapshotManifest {
        let mut stored = SnapshotManifest { id: ManifestId::default(), ..self.clone() };
        stored.stats.limit_counts();
        stored
    }

    /// Adds and removes pins and keeps the list sorted; returns whether it changed.
    pub fn update_pins<'a>(
        &mut self,
        add: impl IntoIterator<Item = &'a str>,
        remove: impl IntoIterator<Item = &'a str>,
    ) -> bool {
        let before = self.pins.clone();
        self.pins.extend(add.into_iter().map(str::to_owned));
        for pin in remove {
            self.pins.retain(|known| known != pin);
        }
        self.pins.sort();
        self.pins.dedup();
        self.pins != before
    }
}

/// A snapshot whose manifest is not understood.
#[derive(Debug)]
pub struct DamagedSnapshot {
    /// The manifest.
    pub id: ManifestId,
    /// What is wrong with it.
    pub error: Error,
}

/// The result of listing snapshots: one that is damaged does not hide the others.
#[derive(Debug, Default)]
pub struct SnapshotList {
    /// The snapshots by start time, the oldest first.
    pub snapshots: Vec<SnapshotManifest>,
    /// Those that are not understood.
    pub damaged: Vec<DamagedSnapshot>,
}

/// The snapshots of `source` (empty parts match anything) that have all of `tags`.
pub async fn list(
    manifests: &ManifestStore,
    source: &SourceInfo,
    tags: &BTreeMap<String, String>,
) -> Result<SnapshotList> {
    let mut labels = source.labels(SNAPSHOT_TYPE);
    labels.extend(tags.iter().map(|(name, value)| (name.clone(), value.clone())));
    let mut list = SnapshotList::default();
    for manifest in manifests.find(&labels).await? {
        match SnapshotManifest::from_manifest(&manifest) {
            Ok(snapshot) => list.snapshots.push(snapshot),
            Err(error) => list.damaged.push(DamagedSnapshot { id: manifest.id().clone(), error }),
        }
    }
    list.snapshots.sort_by_key(|snapshot| (snapshot.start_time, snapshot.end_time));
    Ok(list)
}

/// The snapshot with the manifest `id`.
pub async fn load(manifests: &ManifestStore, id: &ManifestId) -> Result<SnapshotManifest> {
    SnapshotManifest::from_manifest(&manifests.get(id).await?)
}

/// Saves `snapshot` as a new manifest and sets its id. Its whole tree must have been written before: garbage
/// collection of the repository stops at a snapshot that is not whole.
pub async fn save(manifests: &ManifestStore, snapshot: &mut SnapshotManifest) -> Result<ManifestId> {
    if snapshot.root_object().is_none() {
        return Err(Error::Invalid("a snapshot without a root object cannot be saved".to_owned()));
    }
    let labels = snapshot.labels()?;
    snapshot.id = manifests.put(labels, &snapshot.for_storage()).await?;
    Ok(snapshot.id.clone())
}

/// Saves a changed snapshot (description, pins, tags) under a new id and deletes the old manifest.
pub async fn update(manifests: &ManifestStore, snapshot: &mut SnapshotManifest) -> Result<ManifestId> {
    let old = snapshot.id.clone();
    let id = save(manifests, snapshot).await?;
    manifests.delete(&old).await?;
    Ok(id)
}

/// The snapshots to compare a new one of the same source with: the latest complete one, and every incomplete one
/// that was begun after it. Those begun after `not_after` are not considered.
pub fn previous(snapshots: &[SnapshotManifest], not_after: Option<Timestamp>) -> Vec<&SnapshotManifest> {
    let considered = || snapshots.iter().filter(|s| not_after.is_none_or(|limit| s.start_time <= limit));
    let complete = considered().filter(|s| s.is_complete()).max_by_key(|s| s.start_time);
    let since = complete.map_or(Timestamp::UNIX_EPOCH, |s| s.start_time);
    let incomplete = considered().filter(|s| !s.is_complete() && s.start_time > since);
    complete.into_iter().chain(incomplete).collect()
}
