//! Volumes and snapshots on disk: one folder each, whose appearance and disappearance is a single rename.
//!
//! Nothing is kept in memory. An object is prepared in the work folder and renamed into place, and renamed out of
//! place before it is deleted, so a driver killed at any moment leaves whole objects plus litter in its work folder,
//! which the next start sweeps. Several drivers, one for each node, may share a state folder.
//!
//! ```text
//! volumes/<id>/record.json     published/<hash>.json     image | data/
//! snapshots/<id>/record.json                             image | data/
//! work/<node>/                 objects being made or deleted, filesystems being frozen
//! locks/<id>                   held while an operation on the object runs
//! ```

use crate::error::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const RECORD: &str = "record.json";
const PUBLISHED: &str = "published";
const LOCK_ATTEMPTS: u32 = 250;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// How the bytes of a volume or snapshot are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// A plain directory.
    Directory,
    /// A sparse image file: a block volume, or an ext4 filesystem.
    Image,
}

/// How a volume is presented to its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessType {
    /// As a mounted filesystem.
    Mount,
    /// As a block device.
    Block,
}

/// How changed blocks are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockStyle {
    /// Not at all: as on storage without changed block tracking.
    None,
    /// In blocks of one size.
    Fixed,
    /// In runs of whole blocks.
    Variable,
}

/// The granularity and form of changed-block answers for a volume and its snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedBlocks {
    /// The form.
    pub style: BlockStyle,
    /// The size of a block in bytes.
    pub block_size: u64,
}

/// What a volume was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A snapshot, by its id.
    Snapshot(Id),
    /// Another volume, by its id.
    Volume(Id),
}

/// All that is known of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The name it was created under.
    pub name: String,
    /// Its size.
    pub capacity_bytes: u64,
    /// Filesystem or block device.
    pub access_type: AccessType,
    /// Directory or image.
    pub backing: Backing,
    /// Where its first content came from.
    pub source: Option<Source>,
    /// It may only be read. If it was made from a snapshot, it has no content of its own and shows the snapshot.
    pub read_only: bool,
    /// The node it can be used on; none if it can be used on all.
    pub node: Option<String>,
    /// Changed-block answers for its snapshots.
    pub changed_blocks: ChangedBlocks,
    /// The parameters it was created with.
    pub parameters: BTreeMap<String, String>,
}

impl Volume {
    /// The snapshot this volume shows instead of having content of its own.
    pub fn shows_snapshot(&self) -> Option<&Id> {
        match &self.source {
            Some(Source::Snapshot(snapshot)) if self.read_only => Some(snapshot),
            _ => None,
        }
    }

    /// The object that has the content: the volume itself, whose id is `id`, or a snapshot.
    pub fn content_owner<'a>(&'a self, id: &'a Id) -> &'a Id {
        self.shows_snapshot().unwrap_or(id)
    }
}

/// All that is known of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The name it was created under.
    pub name: String,
    /// The volume it is a snapshot of; together with the time this is the chain that changes are reported along.
    pub source_volume: Id,
    /// Nanoseconds since 1970.
    pub created_ns: i64,
    /// The size of the volume at that time.
    pub capacity_bytes: u64,
    /// How the volume was presented.
    pub access_type: AccessType,
    /// Directory or image.
    pub backing: Backing,
    /// How changes are reported.
    pub changed_blocks: ChangedBlocks,
    /// The parameters it was created with.
    pub parameters: BTreeMap<String, String>,
}

/// A volume shown at a path on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// The node.
    pub node: String,
    /// The path.
    pub target: PathBuf,
    /// Whether writing through this path is impossible.
    pub read_only: bool,
    /// The access mode, as numbered by CSI.
    pub mode: i32,
}

/// A kind of object in the store.
pub trait Record: Serialize + DeserializeOwned {
    /// What messages call it.
    const KIND: &'static str;
    /// The folder its objects are in.
    const FOLDER: &'static str;
    /// What its ids begin with.
    const PREFIX: &'static str;
    /// The name the object was created under.
    fn name(&self) -> &str;
    /// The parameters the object was created with.
    fn parameters(&self) -> &BTreeMap<String, String>;
}

impl Record for Volume {
    const KIND: &'static str = "volume";
    const FOLDER: &'static str = "volumes";
    const PREFIX: &'static str = "vol-";
    fn name(&self) -> &str {
        &self.name
    }
    fn parameters(&self) -> &BTreeMap<String, String> {
        &self.parameters
    }
}

impl Record for Snapshot {
    const KIND: &'static str = "snapshot";
    const FOLDER: &'static str = "snapshots";
    const PREFIX: &'static str = "snap-";
    fn name(&self) -> &str {
        &self.name
    }
    fn parameters(&self) -> &BTreeMap<String, String> {
        &self.parameters
    }
}

/// The id of an object: derived from its name, which makes creation idempotent, and safe to use as a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Id(String);

impl Id {
    /// The id of the object of that name.
    pub fn of_name<R: Record>(name: &str) -> Id {
        Id(format!("{}{}", R::PREFIX, short_hash(&[name])))
    }

    /// An id received from outside; none if no object of this kind can have it.
    pub fn parse<R: Record>(text: &str) -> Option<Id> {
        let digits = text.strip_prefix(R::PREFIX)?;
        let plain =
            digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        plain.then(|| Id(text.to_owned()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn busy(id: &Id) -> Error {
    Error::Aborted(format!("another operation on {id} is under way"))
}

fn short_hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    hex::encode(&hash.finalize()[..16])
}

/// Held while an operation runs; released when dropped or when the process ends in whatever way.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Whether a lock excludes everybody or only those who exclude everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The object is read or used.
    Shared,
    /// The object is made, changed or deleted.
    Exclusive,
}

/// The state folder as seen by the driver of one node.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    work: PathBuf,
}

impl Store {
    /// Opens the state folder, making it if it does not exist.
    pub fn open(root: &Path, node: &str) -> Result<Store> {
        let store = Store { root: root.to_owned(), work: root.join("work").join(short_hash(&[node])) };
        for folder in
            [&root.join(Volume::FOLDER), &root.join(Snapshot::FOLDER), &root.join("locks"), &store.work]
        {
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        Ok(store)
    }

    /// The folder for unfinished things of this node's driver.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// The filesystem path everything is kept under.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of an object.
    pub fn folder<R: Record>(&self, id: &Id) -> PathBuf {
        self.root.join(R::FOLDER).join(&id.0)
    }

    /// The record of an object, if there is such an object.
    pub fn find<R: Record>(&self, id: &Id) -> Result<Option<R>> {
        read_json(&self.folder::<R>(id).join(RECORD))
    }

    /// The object that a request names; not found if there is none or if the id is nonsense.
    pub fn get<R: Record>(&self, id: &str) -> Result<(Id, R)> {
        let missing = || Error::NotFound(format!("{} {id:?}", R::KIND));
        let parsed = Id::parse::<R>(id).ok_or_else(missing)?;
        let record = self.find(&parsed)?.ok_or_else(missing)?;
        Ok((parsed, record))
    }

    /// All objects of a kind, in the order of their ids.
    pub fn list<R: Record>(&self) -> Result<Vec<(Id, R)>> {
        let mut found = Vec::new();
        for name in names(&self.root.join(R::FOLDER))? {
            let Some(id) = Id::parse::<R>(&name) else { continue };
            // Between listing and reading another call may have deleted it.
            if let Some(record) = self.find(&id)? {
                found.push((id, record));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Makes an object: `fill` puts the content into the folder it is given; then all of it appears at once.
    pub fn create<R: Record>(
        &self,
        id: &Id,
        record: &R,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let draft = self.work.join(&id.0);
        remove_tree(&draft)?;
        fs::create_dir(&draft).map_err(Error::io("create", &draft))?;
        let made = fill(&draft).and_then(|()| write_json(&draft.join(RECORD), record)).and_then(|()| {
            fs::rename(&draft, self.folder::<R>(id)).map_err(Error::io("put in place", &draft))
        });
        if made.is_err() {
            // The first failure is the one to report; the next start sweeps what remains.
            let _ = remove_tree(&draft);
        }
        made
    }

    /// Replaces the record of an object.
    pub fn update<R: Record>(&self, id: &Id, record: &R) -> Result<()> {
        write_json(&self.folder::<R>(id).join(RECORD), record)
    }

    /// Deletes an object; nothing happens if there is none.
    pub fn remove<R: Record>(&self, id: &Id) -> Result<()> {
        let grave = self.work.join(format!("{id}.deleted"));
        remove_tree(&grave)?;
        match fs::rename(self.folder::<R>(id), &grave) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::io("delete", &self.folder::<R>(id))(error)),
            Ok(()) => remove_tree(&grave),
        }
    }

    /// Takes the lock of an object, or fails as aborted if another operation is in the way: callers try again.
    pub fn lock(&self, id: &Id, hold: Hold) -> Result<Lock> {
        self.try_lock(&id.0, hold)?.ok_or_else(|| busy(id))
    }

    /// Takes the right to change how the content of `owner` is mounted for `volume`; neither is deleted meanwhile.
    ///
    /// Waits a little, since mounting is quick and two pods of one volume often start together.
    pub fn lock_mounts(&self, volume: &Id, owner: &Id) -> Result<[Lock; 3]> {
        for _ in 0..LOCK_ATTEMPTS {
            if let Some(volume) = self.try_lock(&volume.0, Hold::Shared)?
                && let Some(content) = self.try_lock(&owner.0, Hold::Shared)?
                && let Some(mounts) = self.try_lock(&format!("{owner}.mounts"), Hold::Exclusive)?
            {
                return Ok([volume, content, mounts]);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(busy(volume))
    }

    /// Forgets the locks of an object; only for the exclusive holder, once the object is gone.
    pub fn forget_locks(&self, id: &Id, _held: &Lock) {
        for name in [id.to_string(), format!("{id}.mounts")] {
            // A lock file that stays is harmless.
            let _ = fs::remove_file(self.root.join("locks").join(name));
        }
    }

    fn try_lock(&self, name: &str, hold: Hold) -> Result<Option<Lock>> {
        let path = self.root.join("locks").join(name);
        let file = File::create(&path).map_err(Error::io("open", &path))?;
        let taken = match hold {
            Hold::Shared => file.try_lock_shared(),
            Hold::Exclusive => file.try_lock(),
        };
        match taken {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            Ok(()) => {}
        }
        // Who deletes an object unlinks its lock file as well, and a lock on an unlinked file protects nothing.
        let current = fs::metadata(&path).map(|now| now.ino()).ok();
        let ours = file.metadata().map(|now| now.ino()).map_err(Error::io("look at", &path))?;
        Ok((current == Some(ours)).then_some(Lock { _file: file }))
    }

    /// Where a volume is published.
    pub fn publications(&self, volume: &Id) -> Result<Vec<Publication>> {
        let folder = self.folder::<Volume>(volume).join(PUBLISHED);
        let mut found = Vec::new();
        for name in names(&folder)?.iter().filter(|name| name.ends_with(".json")) {
            found.extend(read_json::<Publication>(&folder.join(name))?);
        }
        Ok(found)
    }

    /// Remembers a publication.
    pub fn add_publication(&self, volume: &Id, publication: &Publication) -> Result<()> {
        let path = self.publication_path(volume, &publication.node, &publication.target);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        }
        write_json(&path, publication)
    }

    /// Forgets a publication; nothing happens if it is not known.
    pub fn remove_publication(&self, volume: &Id, node: &str, target: &Path) -> Result<()> {
        let path = self.publication_path(volume, node, target);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("delete", &path)(error)),
            _ => Ok(()),
        }
    }

    fn publication_path(&self, volume: &Id, node: &str, target: &Path) -> PathBuf {
        let name = short_hash(&[node, &target.to_string_lossy()]);
        self.folder::<Volume>(volume).join(PUBLISHED).join(format!("{name}.json"))
    }
}

/// The names in a folder; none if the folder does not exist.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io("list", folder)(error)),
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<_>>()
            .map_err(Error::io("list", folder)),
    }
}

/// Deletes a folder and all in it; nothing happens if it does not exist.
pub(crate) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("delete", path)(error)),
        _ => Ok(()),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| Error::Malformed { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// Writes a file so that readers see the old or the new text, never a part.
fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|error| Error::Malformed { path: path.to_owned(), reason: error.to_string() })?;
    let draft = path.with_extension("new");
    fs::write(&draft, text).map_err(Error::io("write", &draft))?;
    fs::rename(&draft, path).map_err(Error::io("replace", path))
}
