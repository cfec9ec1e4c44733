//! Verifying snapshots: every file of every tree, down to the packs that hold it.

use super::PackList;
use crate::manifest::ManifestId;
use crate::object::{ObjectId, ObjectLayout, Objects};
use crate::repo::Repository;
use crate::snapshot::{DirEntry, DirParser, SourceInfo};
use crate::{Error, Result};
use futures::stream::FuturesUnordered;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use lifeboat_index::ContentId;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Semaphore, SemaphorePermit};

/// How snapshots are verified.
#[derive(Debug, Clone)]
pub struct VerifySnapshots {
    /// Which; all if not given.
    pub only: Option<Vec<ManifestId>>,
    /// Objects that are verified after them: what they are called, and a file or directory.
    pub objects: Vec<(String, DirEntry)>,
    /// Of how many percent of the files the data is read; of the others only the index is asked.
    pub read_percent: u8,
    /// How many directories are read at once.
    pub parallel: usize,
    /// How many files are verified at once.
    pub files_at_once: usize,
    /// How many files may wait for that; while they do, no directory is read on.
    pub waiting_files: usize,
    /// The walk ends after so many damages; without, it names all of them.
    pub max_damages: Option<u64>,
}

impl Default for VerifySnapshots {
    fn default() -> Self {
        VerifySnapshots {
            only: None,
            objects: Vec::new(),
            read_percent: 0,
            parallel: 8,
            files_at_once: 8,
            waiting_files: 1000,
            max_damages: None,
        }
    }
}

/// Something in a snapshot that cannot be restored as it should.
#[derive(Debug)]
pub struct SnapshotDamage {
    /// The snapshot; none if an object was verified by itself.
    pub snapshot: Option<ManifestId>,
    /// What it is a snapshot of, and since when; not known of one whose manifest cannot be read.
    pub taken: Option<(SourceInfo, Timestamp)>,
    /// The path below the root of the snapshot, which is empty for the root or the snapshot as a whole; of an object that was
    /// verified by itself, behind its name.
    pub path: String,
    /// The object.
    pub object: String,
    /// What is wrong, naming the content and the blob where one is to blame.
    pub error: Error,
}

impl fmt::Display for SnapshotDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "snapshot {snapshot}")?,
            None => write!(f, "object")?,
        }
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
    /// Their bytes, as directories tell.
    pub bytes: u64,
    /// Files and links read.
    pub files_read: u64,
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
        waiting: Semaphore::new(options.waiting_files.clamp(1, Semaphore::MAX_PERMITS)),
        turns: Semaphore::new(options.files_at_once.clamp(1, Semaphore::MAX_PERMITS)),
        damages: AtomicU64::new(0),
        report: SnapshotsReport::default(),
        found,
    };
    for damaged in list.damaged.into_iter().filter(|damaged| wanted(&damaged.id)) {
        let (path, object) = (String::new(), String::new());
        walk.tell(Origin { snapshot: Some(&damaged.id), taken: None }, path, object, damaged.error);
    }
    for snapshot in list.snapshots.iter().filter(|snapshot| wanted(&snapshot.id)) {
        if walk.is_enough() {
            break;
        }
        let taken = Some((&snapshot.source, snapshot.start_time));
        walk.report.snapshots += 1;
        if let Some(root) = &snapshot.root_entry {
            walk.tree(Origin { snapshot: Some(&snapshot.id), taken }, root, "").await;
        }
    }
    for (name, root) in &options.objects {
        walk.tree(Origin { snapshot: None, taken: None }, root, name).await;
    }
    Ok(walk.report)
}

/// What a tree is the tree of.
#[derive(Clone, Copy)]
struct Origin<'a> {
    snapshot: Option<&'a ManifestId>,
    taken: Option<(&'a SourceInfo, Timestamp)>,
}

struct Walk<'a> {
    objects: &'a Objects,
    options: &'a VerifySnapshots,
    packs: PackList,
    /// Decides which files are read, differently in each run.
    salt: [u8; 8],
    /// Directories below which everything is sound. A damaged one is walked again in each snapshot, to name it.
    sound: HashSet<ObjectId>,
    /// Places for files that wait, and for those that are being verified.
    waiting: Semaphore,
    turns: Semaphore,
    /// Damages met so far, also those that are not told yet.
    damages: AtomicU64,
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
    bytes: u64,
    files_read: u64,
    bytes_read: u64,
}

/// A file that was verified: its path and object, and how much of it was read, if anything.
struct Verified {
    path: String,
    object: ObjectId,
    read: Result<Option<u64>>,
}

impl Outcome {
    fn take(&mut self, file: Verified) {
        match file.read {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                self.files_read += 1;
                self.bytes_read += bytes;
            }
            Err(error) => self.damages.push((file.path, file.object.to_string(), error)),
        }
    }
}

/// Does something and goes on with files meanwhile: they may hold memory that it waits for.
async fn beside<T>(
    work: impl Future<Output = T>,
    files: &mut FuturesUnordered<impl Future<Output = Verified>>,
    outcome: &mut Outcome,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            Some(file) = files.next() => outcome.take(file),
            done = &mut work => return done,
        }
    }
}

impl Walk<'_> {
    /// Walks the tree of `root`, which paths call `name`.
    async fn tree(&mut self, origin: Origin<'_>, root: &DirEntry, name: &str) {
        let mut tree = Tree::default();
        let outcome = self.root(root, name).await;
        self.settle(origin, &mut tree, None, outcome);
        while !self.is_enough() {
            let batch = tree.next(self.options.parallel);
            if batch.is_empty() {
                return;
            }
            let read = batch.iter().map(|directory| self.directory(directory));
            let outcomes = futures::future::join_all(read).await;
            for (directory, outcome) in batch.iter().zip(outcomes) {
                self.report.directories += 1;
                self.settle(origin, &mut tree, Some(directory.number), outcome);
            }
        }
    }

    /// Whether so many damages were met that the user wants to know of no more.
    fn is_enough(&self) -> bool {
        self.options.max_damages.is_some_and(|most| self.damages.load(Ordering::Relaxed) >= most)
    }

    /// Tells a damage, unless enough were told.
    fn tell(&mut self, origin: Origin<'_>, path: String, object: String, error: Error) {
        if self.options.max_damages.is_some_and(|most| self.report.damaged >= most) {
            return;
        }
        self.report.damaged += 1;
        self.damages.fetch_max(self.report.damaged, Ordering::Relaxed);
        let snapshot = origin.snapshot.cloned();
        let taken = origin.taken.map(|(source, time)| (source.clone(), time));
        (self.found)(SnapshotDamage { snapshot, taken, path, object, error });
    }

    /// Takes over what reading the directory `number` (or the root entry) gave.
    fn settle(&mut self, origin: Origin<'_>, tree: &mut Tree, number: Option<u64>, outcome: Outcome) {
        let Outcome { mut directories, mut damages, files, bytes, files_read, bytes_read } = outcome;
        // Whichever was found first.
        damages.sort_by(|a, b| a.0.cmp(&b.0));
        self.report.files += files;
        self.report.bytes += bytes;
        self.report.files_read += files_read;
        self.report.bytes_read += bytes_read;
        directories.retain(|(object, _)| !self.sound.contains(object));
        if let Some(open) = number.and_then(|number| tree.open.get_mut(&number)) {
            open.children = directories.len();
            open.damaged = !damages.is_empty();
        }
        for (path, object, error) in damages {
            self.tell(origin, path, object, error);
        }
        directories.into_iter().for_each(|(object, path)| tree.add(object, path, number));
        if let Some(number) = number {
            self.sound.extend(tree.close(number));
        }
    }

    async fn root(&self, root: &DirEntry, name: &str) -> Outcome {
        let (mut files, mut outcome) = (FuturesUnordered::new(), Outcome::default());
        if let Some((object, path)) = self.sort(root, name.to_owned(), &mut outcome) {
            files.push(self.file(None, object, path));
        }
        while let Some(file) = files.next().await {
            outcome.take(file);
        }
        outcome
    }

    async fn directory(&self, directory: &Directory) -> Outcome {
        let (mut files, mut outcome) = (FuturesUnordered::new(), Outcome::default());
        let verify = |place, object, path| self.file(place, object, path);
        let read = self.read_directory(directory, &mut files, &mut outcome, verify).await;
        while let Some(file) = files.next().await {
            outcome.take(file);
        }
        if let Err(error) = read {
            self.damages.fetch_add(1, Ordering::Relaxed);
            outcome.damages.push((directory.path.clone(), directory.object.to_string(), error));
        }
        outcome
    }

    /// Reads a directory and starts to verify its files.
    async fn read_directory<'a, F: Future<Output = Verified>>(
        &'a self,
        directory: &Directory,
        files: &mut FuturesUnordered<F>,
        outcome: &mut Outcome,
        verify: impl Fn(Option<SemaphorePermit<'a>>, ObjectId, String) -> F,
    ) -> Result<()> {
        let mut reader = beside(self.objects.open(directory.object), files, outcome).await?;
        let mut parser = DirParser::new(directory.object.to_string());
        while !self.is_enough() {
            let chunk = beside(reader.next_chunk(), files, outcome).await?;
            if chunk.is_empty() {
                return parser.finish().map(drop);
            }
            parser.feed(&chunk);
            while let Some(entry) = parser.next_entry()? {
                let name = String::from_utf8_lossy(entry.name.as_bytes());
                let path = match directory.path.is_empty() {
                    true => name.into_owned(),
                    false => format!("{}/{name}", directory.path),
                };
                if let Some((object, path)) = self.sort(&entry, path, outcome) {
                    let place = beside(self.waiting.acquire(), files, outcome).await;
                    files.push(verify(place.ok(), object, path));
                }
            }
        }
        Ok(())
    }

    /// Takes an entry in: directories are read later, and files are returned.
    fn sort(&self, entry: &DirEntry, path: String, outcome: &mut Outcome) -> Option<(ObjectId, String)> {
        let object = match entry.object.parse::<ObjectId>() {
            Ok(object) => object,
            Err(error) => {
                let error = Error::DamagedObject { id: entry.object.clone(), reason: error.to_string() };
                self.damages.fetch_add(1, Ordering::Relaxed);
                outcome.damages.push((path, entry.object.clone(), error));
                return None;
            }
        };
        if entry.is_dir() {
            outcome.directories.push((object, path));
            return None;
        }
        outcome.files += 1;
        outcome.bytes += entry.size;
        Some((object, path))
    }

    /// Verifies a file when it is its turn; its place among those that wait is free afterwards.
    async fn file(&self, _place: Option<SemaphorePermit<'_>>, object: ObjectId, path: String) -> Verified {
        let _turn = self.turns.acquire().await;
        let read = if self.is_enough() { Ok(None) } else { self.object(object).await };
        if read.is_err() {
            self.damages.fetch_add(1, Ordering::Relaxed);
        }
        Verified { path, object, read }
    }

    /// Checks that all contents of an object are there, and reads them if it was chosen for that.
    async fn object(&self, object: ObjectId) -> Result<Option<u64>> {
        let read = self.is_chosen(&object.content());
        if object.levels() == 0 && !read {
            return self.content(&object.content()).await.map(|()| None);
        }
        let layout = ObjectLayout::load(self.objects, object).await?;
        for entry in layout.entries() {
            self.content(&entry.content).await?;
        }
        if !read {
            return Ok(None);
        }
        let reads = layout.entries().iter().map(|entry| self.objects.read_part(object, entry));
        let lengths = stream::iter(reads).buffer_unordered(2).map_ok(|data| data.len() as u64);
        lengths.try_fold(0, |total, length| async move { Ok(total + length) }).await.map(Some)
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
