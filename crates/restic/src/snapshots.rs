//! restic's snapshots, and what they look like as manifests.

use crate::errors::of_engine;
use crate::repository::Shared;
use jiff::Timestamp;
use lifeboat_kopia::gojson;
use lifeboat_kopia::snapshot::{
    DirEntry, DirSummary, EntryType, Extras, GoMode, ManifestId, SNAPSHOT_TYPE, SnapshotManifest, SourceInfo,
};
use lifeboat_repository::{Error, ErrorKind, Id, Manifest, ManifestMetadata, Result};
use parking_lot::Mutex;
use rustic_core::repofile::{SnapshotFile, SnapshotId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Snapshots that are read at a time: each is a small file, and far stores take long to begin.
const READERS: usize = 8;
/// The shortest beginning of an id that names a snapshot, as restic has it.
const SHORT_ID: usize = 8;

/// A snapshot, with the names that restic's own `--json` has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// When it was taken.
    pub time: Timestamp,
    /// The id of the tree at its top.
    pub tree: String,
    /// What was backed up.
    pub paths: Vec<String>,
    /// On which machine.
    pub hostname: String,
    /// By whom.
    pub username: String,
    /// The number of that user.
    pub uid: u32,
    /// The number of that user's group.
    pub gid: u32,
    /// Words that people gave it.
    pub tags: Vec<String>,
    /// What wrote it; older programs did not say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub program_version: String,
    /// Its id.
    pub id: String,
    /// The beginning of its id.
    pub short_id: String,
    /// How many files it has, if that was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// How many bytes they have, if that was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The snapshots of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotList {
    /// Those that are understood, the oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Those that are not.
    pub damaged: Vec<DamagedSnapshot>,
}

/// A snapshot that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedSnapshot {
    /// Its id.
    pub id: String,
    /// Why.
    pub error: String,
}

impl SnapshotList {
    /// The snapshot that `name` means: `latest`, an id, or the beginning of one.
    pub fn find(&self, name: &str) -> Result<&Snapshot> {
        let not_found = |text: String| Error::new(ErrorKind::NotFound, text);
        if name == "latest" {
            return self
                .snapshots
                .last()
                .ok_or_else(|| not_found("the repository has no snapshots".to_owned()));
        }
        let is_called = |id: &str| !name.is_empty() && id.starts_with(name);
        let mut found = self.snapshots.iter().filter(|snapshot| is_called(&snapshot.id));
        match (found.next(), found.next()) {
            (Some(snapshot), None) => Ok(snapshot),
            (Some(_), Some(_)) => {
                let text = format!("several snapshots have an id that begins with {name}: use more of it");
                Err(Error::new(ErrorKind::InvalidInput, text))
            }
            (None, _) => match self.damaged.iter().find(|damaged| is_called(&damaged.id)) {
                Some(DamagedSnapshot { id, error }) => {
                    Err(Error::new(ErrorKind::Damaged, format!("snapshot {id} cannot be used: {error}")))
                }
                None => Err(not_found(format!("there is no snapshot {name}; use `latest` or the id of one"))),
            },
        }
    }
}

impl Snapshot {
    fn new(id: &SnapshotId, file: &SnapshotFile) -> Self {
        let id = id.to_hex().as_str().to_owned();
        let summary = file.summary.as_ref();
        Snapshot {
            time: file.time.timestamp(),
            tree: file.tree.to_hex().as_str().to_owned(),
            paths: file.paths.iter().cloned().collect(),
            hostname: file.hostname.clone(),
            username: file.username.clone(),
            uid: file.uid,
            gid: file.gid,
            tags: file.tags.iter().cloned().collect(),
            program_version: file.program_version.clone(),
            short_id: id.chars().take(SHORT_ID).collect(),
            id,
            files: summary.map(|summary| summary.total_files_processed),
            bytes: summary.map(|summary| summary.total_bytes_processed),
        }
    }

    /// The directory above everything that was backed up. restic keeps nothing about it but what is in it: it is given
    /// to whoever took the snapshot, and to nobody else.
    pub fn root(&self) -> DirEntry {
        let count = |count: Option<u64>| count.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        DirEntry {
            entry_type: EntryType::Directory,
            mode: GoMode::from_unix(0o700),
            mtime: self.time,
            uid: self.uid,
            gid: self.gid,
            object: self.tree.clone(),
            summary: count(self.bytes).map(|size| DirSummary {
                size,
                files: count(self.files).unwrap_or_default(),
                ..DirSummary::default()
            }),
            // restic looks for extended attributes, so an entry without has none.
            extras: Some(Box::new(Extras { recorded: true, ..Extras::default() })),
            ..DirEntry::default()
        }
    }

    /// The snapshot as a record of the interface. A tag `name=value`, as Velero writes them, is a label.
    pub(crate) fn manifest(&self) -> Result<Manifest> {
        let source = SourceInfo::new(&self.username, &self.hostname, self.paths.join(","));
        let tags: BTreeMap<String, String> = self
            .tags
            .iter()
            .map(|tag| tag.split_once('=').unwrap_or((tag, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut labels = tags.clone();
        labels.extend(source.labels(SNAPSHOT_TYPE));
        let manifest = SnapshotManifest {
            id: ManifestId::from(self.id.as_str()),
            source,
            description: self.program_version.clone(),
            start_time: self.time,
            end_time: self.time,
            root_entry: Some(self.root()),
            tags,
            ..SnapshotManifest::default()
        };
        let payload = gojson::to_vec(&manifest).map_err(|error| {
            let text = format!("snapshot {} cannot be shown as a manifest: {error}", self.id);
            Error::new(ErrorKind::Other, text)
        })?;
        let metadata = ManifestMetadata {
            id: Id::new(self.id.clone()),
            length: payload.len() as u64,
            labels,
            modified: self.time,
        };
        Ok(Manifest { metadata, payload })
    }
}

/// Reads all snapshots. One that cannot be read hides no others; a storage that fails does.
pub(crate) fn list(shared: &Shared) -> Result<SnapshotList> {
    let ids: Vec<SnapshotId> =
        shared.open().list().map_err(|error| of_engine("cannot list the snapshots", &error))?.collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(ids.len())));
    std::thread::scope(|scope| {
        for _ in 0..READERS.min(ids.len()) {
            scope.spawn(|| {
                while let Some(id) = ids.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let file = shared.open().get_file::<SnapshotFile>(id);
                    found.lock().push((*id, file));
                }
            });
        }
    });
    let mut list = SnapshotList::default();
    for (id, file) in found.into_inner() {
        match file.map_err(|error| of_engine("it cannot be read", &error)) {
            Ok(file) => list.snapshots.push(Snapshot::new(&id, &file)),
            Err(error) if error.kind() == ErrorKind::Damaged => {
                let id = id.to_hex().as_str().to_owned();
                list.damaged.push(DamagedSnapshot { id, error: error.to_string() });
            }
            Err(error) => return Err(error),
        }
    }
    list.snapshots.sort_by(|a, b| (a.time, &a.id).cmp(&(b.time, &b.id)));
    list.damaged.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(list)
}
