//! Verifying snapshots: every file of every tree, down to the packs that hold it.

use super::PackList;
use crate::manifest::ManifestId;
use crate::object::{ObjectId, ObjectLayout, Objects};
use crate::repo::Repository;
use crate::snapshot::{DirEntry, DirParser, SnapshotManifest, SourceInfo};
use crate::{Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use lifeboat_index::ContentId;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// How snapshots are verified.
#[derive(Debug, Clone)]
pub struct VerifySnapshots {
    /// Which; all if not given.
    pub only: Option<Vec<ManifestId>>,
    /// Of how many percent of the files the data is read; of the others only the index is asked.
    pub read_percent: u8,
    /// How many directories are read at once.
    pub parallel: usize,
}

impl Default for VerifySnapshots {
    fn default() -> Self {
        VerifySnapshots { only: None, read_percent: 0, parallel: 8 }
    }
}

/// Something in a snapshot that cannot be restored as it should.
#[derive(Debug)]
pub struct SnapshotDamage {
    /// The snapshot.
    pub snapshot: ManifestId,
    /// What it is a snapshot of, and since when; not known of one whose manifest cannot be read.
    pub taken: Option<(SourceInfo, Timestamp)>,
    /// The path below the root of the snapshot; empty for the root or the snapshot as a whole.
    pub path: String,
    /// The object.
    pub object: String,
    /// What is wrong, naming the content and the blob where one is to blame.
    pub error: Error,
}

impl fmt::Display for SnapshotDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot {}", self.snapshot)?;
        if let Some((source, time)) = &self.taken {
            write!(f, " of {source} at {time}")?;
        }
        write!(f, ": {:?}: {}", self.path, self.error)
    }
}

/// What was verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotsReport {
    /// Snapshots looked at.
    pub snapshots: u64,
    /// Directories read; those seen before in a sound state are not read again.
    pub directories: u64,
    /// Files and links looked at.
    pub files: u64,
    /// Bytes of files read.
    pub bytes_read: u64,
    /// Damages found.
    pub damaged: u64,
}

/// Verifies snapshots. Each damage is passed to `found` as it is met, once for each snapshot that it touches.
pub async fn snapshots(
    repository: &Repository,
    options: &VerifySnapshots,
    found: &mut (dyn FnMut(SnapshotDamage) + Send),
) -> Result<SnapshotsReport> {
    let list = repository.snapshots().await?;
    let wanted = |id: &ManifestId| options.only.as_ref().is_none_or(|only| only.contains(id));
    let packs = PackList::load(repository.store()).await?;
    let mut walk = Walk {
        objects: repository.objects(),
        options,
        packs,
        salt: repository.environment().random_array()?,
        sound: HashSet::new(),
        report: SnapshotsReport::default(),
        found,
    };
    for damaged in list.damaged.into_iter().filter(|damaged| wanted(&damaged.id)) {
        walk.report.damaged += 1;
        let (snapshot, error) = (damaged.id, damaged.error);
        let (path, object) = (String::new(), String::new());
        (walk.found)(SnapshotDamage { snapshot, taken: None, path, object, error });
    }
    for snapshot in list.snapshots.iter().filter(|snapshot| wanted(&snapshot.id)) {
        walk.snapshot(snapshot).await?;
    }
    Ok(walk.report)
}

struct Walk<'a> {
    objects: &'a Objects,
    options: &'a VerifySnapshots,
    packs: PackList,
    /// Decides which files are read, differently in each run.
    salt: [u8; 8],
    /// Directories below which everything is sound. A damaged one is walked again in each snapshot, to name it.
    sound: HashSet<ObjectId>,
    report: SnapshotsReport,
    found: &'a mut (dyn FnMut(SnapshotDamage) + Send),
}

/// A directory that is to be read.
struct Directory {
    number: u64,
    object: ObjectId,
    path: String,
}

/// The directories of a snapshot on their way: those to be read, and those whose children are not all done.
#[derive(Default)]
struct Tree {
    waiting: Vec<Directory>,
    open: HashMap<u64, Open>,
    numbers: u64,
}

struct Open {
    object: ObjectId,
    parent: Option<u64>,
    children: usize,
    damaged: bool,
}

impl Tree {
    fn add(&mut self, object: ObjectId, path: String, parent: Option<u64>) {
        let number = self.numbers;
        self.numbers += 1;
        self.open.insert(number, Open { object, parent, children: 0, damaged: false });
        self.waiting.push(Directory { number, object, path });
    }

    /// The next directories to read, the deepest first, so that few are waiting.
    fn next(&mut self, count: usize) -> Vec<Directory> {
        self.waiting.split_off(self.waiting.len().saturating_sub(count.max(1)))
    }

    /// Closes a directory if all below it is done, and then its parents; returns those that are sound.
    fn close(&mut self, number: u64) -> Vec<ObjectId> {
        let mut sound = Vec::new();
        let mut next = Some(number);
        while let Some(number) = next.filter(|number| self.open.get(number).is_some_and(|o| o.children == 0))
        {
            let Some(done) = self.open.remove(&number) else { break };
            if !done.damaged {
                sound.push(done.object);
            }
            if let Some(parent) = done.parent.and_then(|parent| self.open.get_mut(&parent)) {
                parent.children = parent.children.saturating_sub(1);
                parent.damaged |= done.damaged;
            }
            next = done.parent;
        }
        sound
    }
}

/// What looking at entries gave.
#[derive(Default)]
struct Outcome {
    directories: Vec<(ObjectId, String)>,
    damages: Vec<(String, String, Error)>,
    files: u64,
    bytes_read: u64,
}

impl Outcome {
    fn damage(&mut self, path: &str, object: &str, error: Error) {
        self.damages.push((path.to_owned(), object.to_owned(), error));
    }
}

impl Walk<'_> {
    async fn snapshot(&mut self, snapshot: &SnapshotManifest) -> Result<()> {
        self.report.snapshots += 1;
        let mut tree = Tree::default();
        let mut outcome = Outcome::default();
        if let Some(root) = &snapshot.root_entry {
            self.entry(root, String::new(), &mut outcome).await;
        }
        self.settle(snapshot, &mut tree, None, outcome);
        loop {
            let batch = tree.next(self.options.parallel);
            if batch.is_empty() {
                return Ok(());
            }
            let read = batch.iter().map(|directory| self.directory(directory));
            let outcomes = futures::future::join_all(read).await;
            for (directory, outcome) in batch.iter().zip(outcomes) {
                self.report.directories += 1;
                self.settle(snapshot, &mut tree, Some(directory.number), outcome);
            }
        }
    }

    /// Takes over what reading the directory `number` (or the root entry) gave.
    fn settle(
        &mut self,
        snapshot: &SnapshotManifest,
        tree: &mut Tree,
        number: Option<u64>,
        outcome: Outcome,
    ) {
        let Outcome { mut directories, damages, files, bytes_read } = outcome;
        self.report.files += files;
        self.report.bytes_read += bytes_read;
        self.report.damaged += damages.len() as u64;
        directories.retain(|(object, _)| !self.sound.contains(object));
        if let Some(open) = number.and_then(|number| tree.open.get_mut(&number)) {
            open.children = directories.len();
            open.damaged = !damages.is_empty();
        }
        for (path, object, error) in damages {
            let taken = Some((snapshot.source.clone(), snapshot.start_time));
            (self.found)(SnapshotDamage { snapshot: snapshot.id.clone(), taken, path, object, error });
        }
        directories.into_iter().for_each(|(object, path)| tree.add(object, path, number));
        if let Some(number) = number {
            self.sound.extend(tree.close(number));
        }
    }

    async fn directory(&self, directory: &Directory) -> Outcome {
        let mut outcome = Outcome::default();
        if let Err(error) = self.read_directory(directory, &mut outcome).await {
            outcome.damage(&directory.path, &directory.object.to_string(), error);
        }
        outcome
    }

    async fn read_directory(&self, directory: &Directory, outcome: &mut Outcome) -> Result<()> {
        let mut reader = self.objects.open(directory.object).await?;
        let mut parser = DirParser::new(directory.object.to_string());
        loop {
            let chunk = reader.next_chunk().await?;
            if chunk.is_empty() {
                break;
            }
            parser.feed(&chunk);
            while let Some(entry) = parser.next_entry()? {
                let name = String::from_utf8_lossy(entry.name.as_bytes());
                let path = match directory.path.is_empty() {
                    true => name.into_owned(),
                    false => format!("{}/{name}", directory.path),
                };
                self.entry(&entry, path, outcome).await;
            }
        }
        parser.finish().map(drop)
    }

    async fn entry(&self, entry: &DirEntry, path: String, outcome: &mut Outcome) {
        let object = match entry.object.parse::<ObjectId>() {
            Ok(object) => object,
            Err(error) => {
                let error = Error::DamagedObject { id: entry.object.clone(), reason: error.to_string() };
                return outcome.damage(&path, &entry.object, error);
            }
        };
        if entry.is_dir() {
            outcome.directories.push((object, path));
            return;
        }
        outcome.files += 1;
        match self.object(object).await {
            Ok(bytes) => outcome.bytes_read += bytes,
            Err(error) => outcome.damage(&path, &entry.object, error),
        }
    }

    /// Checks that all contents of an object are there, and reads them if it was chosen for that.
    async fn object(&self, object: ObjectId) -> Result<u64> {
        let read = self.is_chosen(&object.content());
        if object.levels() == 0 && !read {
            return self.content(&object.content()).await.map(|()| 0);
        }
        let layout = ObjectLayout::load(self.objects, object).await?;
        for entry in layout.entries() {
            self.content(&entry.content).await?;
        }
        if !read {
            return Ok(0);
        }
        let reads = layout.entries().iter().map(|entry| self.objects.read_part(object, entry));
        let lengths = stream::iter(reads).buffer_unordered(2).map_ok(|data| data.len() as u64);
        lengths.try_fold(0, |total, length| async move { Ok(total + length) }).await
    }

    fn is_chosen(&self, content: &ContentId) -> bool {
        let mixed = content.hash().iter().chain(&self.salt).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (mixed >> 32) % 100 < u64::from(self.options.read_percent)
    }

    async fn content(&self, id: &ContentId) -> Result<()> {
        let entry = self.objects.contents().lookup(id)?.ok_or(Error::ContentNotFound { id: *id })?;
        self.packs.check(&entry).await?.map_err(|reason| Error::DamagedContent {
            id: *id,
            blob: entry.pack.to_string(),
            reason,
        })
    }
}
