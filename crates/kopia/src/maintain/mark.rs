//! Marking: finding every content that any snapshot needs, in bounded memory and reading nothing twice.
//!
//! All snapshots are walked at once, level by level from their roots. The nodes of the next level (directories, and
//! the indexes of large objects) are collected in a [`Sorter`], which also removes the duplicates among them; what an
//! earlier level has had is looked up in the sorted files of those levels. So a directory is read once however many
//! snapshots share it, and what is in memory does not depend on how many there are. What an earlier *run* has read is
//! [recalled](super::recall) from a local file instead, so that only new directories are fetched and taken apart.
//!
//! Marking fails closed. Whatever cannot be read or understood becomes an [`Obstacle`], and as long as there is one,
//! nobody may conclude from what was found that something else is not needed.

use super::expand::{Found, Node, expand, found_entry};
use super::recall::{Links, Memory, Recall, Shelf};
use super::regions::{Located, Region, Sealed, regions};
use super::report::{Obstacle, Obstacles};
use super::settled::names_of;
use crate::content::ContentStore;
use crate::manifest::ManifestId;
use crate::object::ObjectText;
use crate::repo::Repository;
use crate::snapshot::SnapshotList;
use crate::sort::{Merge, Probe, Run, RunWriter, Scratch, Sorted, Sorter};
use crate::worker::blocking;
use crate::{Error, Result};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lifeboat_index::{ContentId, IndexEntry};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records carry the number of a snapshot that leads to them, so that what is broken can be named.
const SNAPSHOT: usize = size_of::<u32>();
/// So many nodes are looked up and ordered by their place in the packs at a time.
const WINDOW: usize = 4096;
/// So many finds are handed on at a time.
const BATCH: usize = 1024;
/// How often marking starts over because snapshots were deleted under it.
const ATTEMPTS: usize = 3;
/// With so many obstacles nothing is learnt from looking further.
const MAX_OBSTACLES: u64 = 1000;
/// The most memory set aside for reading one node that consists of several contents.
const LARGE_NODE: u64 = 8 << 20;

/// What the snapshots need.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    /// The contents; the tail is the number of a snapshot that needs it.
    pub(super) contents: Sorted,
    /// The snapshots by number.
    pub(super) snapshots: Arc<[ManifestId]>,
    /// What tells these snapshots from others.
    pub(super) names: String,
    /// What could not be read.
    pub(super) obstacles: Obstacles,
    /// How many directories and object indexes were read.
    pub(super) read: u64,
    /// How many of them were known from earlier runs.
    pub(super) recalled: u64,
}

impl Marks {
    /// The snapshot that the tail of a record names.
    pub(super) fn snapshot(&self, tail: &[u8]) -> ManifestId {
        snapshot_of(&self.snapshots, number(tail))
    }
}

/// Finds what all snapshots need, as the repository is now.
///
/// A snapshot that is deleted while this goes on is no obstacle.
pub(super) async fn mark(repository: &Repository, scratch: &Scratch, parallel: usize) -> Result<Marks> {
    for _ in 1..ATTEMPTS {
        let marks = mark_once(repository, scratch, parallel).await?;
        if marks.obstacles.is_empty() || !any_is_gone(repository, &marks.obstacles).await? {
            return Ok(marks);
        }
    }
    mark_once(repository, scratch, parallel).await
}

async fn any_is_gone(repository: &Repository, obstacles: &Obstacles) -> Result<bool> {
    repository.contents().refresh().await?;
    repository.manifests().reload().await?;
    for id in obstacles.named.iter().filter_map(Obstacle::snapshot) {
        match repository.manifests().get(id).await {
            Err(Error::ManifestNotFound { .. }) => return Ok(true),
            found => found.map(drop)?,
        }
    }
    Ok(false)
}

async fn mark_once(repository: &Repository, scratch: &Scratch, parallel: usize) -> Result<Marks> {
    repository.contents().refresh().await?;
    repository.manifests().reload().await?;
    let list = repository.snapshots().await?;
    let mut obstacles = Obstacles::default();
    for damage in repository.manifests().damage().await? {
        obstacles.add(Obstacle::Manifests { content: damage.content, reason: damage.reason });
    }
    for damaged in &list.damaged {
        let (id, reason) = (damaged.id.clone(), damaged.error.to_string());
        obstacles.add(Obstacle::Snapshot { id, object: String::new(), reason });
    }
    let shelf = Shelf::of(repository);
    let memory = match shelf.clone() {
        Some(shelf) => blocking(move || shelf.open()).await?,
        None => None,
    };
    let links = match shelf.is_some() {
        true => Some(Mutex::new(scratch.sorter(0))),
        false => None,
    };
    let walk = Walk {
        repository: repository.clone(),
        scratch: scratch.clone(),
        parallel: parallel.max(1),
        memory,
        finds: Arc::new(Finds {
            snapshots: list.snapshots.iter().map(|snapshot| snapshot.id.clone()).collect(),
            contents: Mutex::new(scratch.sorter(SNAPSHOT)),
            nodes: Mutex::new(scratch.sorter(SNAPSHOT)),
            obstacles: Mutex::new(obstacles),
            links,
            read: AtomicU64::new(0),
            recalled: AtomicU64::new(0),
        }),
    };
    let names = names_of(&list);
    walk.roots(list).await?;
    let reached = walk.levels().await?;
    if let Some(shelf) = shelf {
        walk.remember(shelf, reached).await?;
    }
    walk.finish(names).await
}

/// What the walk has found so far.
struct Finds {
    snapshots: Arc<[ManifestId]>,
    contents: Mutex<Sorter>,
    /// The nodes of the next level.
    nodes: Mutex<Sorter>,
    obstacles: Mutex<Obstacles>,
    /// What was found where, if that is to be remembered.
    links: Option<Mutex<Sorter>>,
    read: AtomicU64,
    recalled: AtomicU64,
}

impl Finds {
    /// Notes that `object` of a snapshot cannot be read; what is no damage but a failure is passed on.
    fn settle(&self, snapshot: u32, object: impl ToString, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if error.is_damage() => {
                let (object, reason) = (object.to_string(), error.to_string());
                let id = snapshot_of(&self.snapshots, snapshot);
                self.obstacles.lock().add(Obstacle::Snapshot { id, object, reason });
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// What was found in one node, on its way to the sorters.
struct Batch<'a> {
    finds: &'a Finds,
    snapshot: u32,
    /// The node, if what is found in it is to be remembered.
    links: Option<Links>,
    contents: Vec<ContentId>,
    nodes: Vec<Node>,
}

impl<'a> Batch<'a> {
    /// For what is known already.
    fn new(finds: &'a Finds, snapshot: u32) -> Self {
        Batch { finds, snapshot, links: None, contents: Vec::new(), nodes: Vec::new() }
    }

    /// For what is found in `node`.
    fn of(node: &Node, finds: &'a Finds, snapshot: u32) -> Self {
        finds.read.fetch_add(1, Ordering::Relaxed);
        let links = finds.links.is_some().then(|| Links::of(&node.key()));
        Batch { links, ..Batch::new(finds, snapshot) }
    }

    fn hand_on(&mut self) -> Result<()> {
        let tail = self.snapshot.to_be_bytes();
        if let (Some(links), Some(sorter)) = (&self.links, &self.finds.links) {
            let mut sorter = sorter.lock();
            self.contents.iter().try_for_each(|content| sorter.push(&links.to_content(content), &[]))?;
            self.nodes.iter().try_for_each(|node| sorter.push(&links.to_node(node), &[]))?;
        }
        if !self.contents.is_empty() {
            let mut sorter = self.finds.contents.lock();
            self.contents.drain(..).try_for_each(|content| sorter.push(content.key(), &tail))?;
        }
        if !self.nodes.is_empty() {
            let mut sorter = self.finds.nodes.lock();
            self.nodes.drain(..).try_for_each(|node| sorter.push(&node.key(), &tail))?;
        }
        Ok(())
    }

    /// Hands on what is left, also of a node that turned out to be damaged in the middle.
    fn finish(mut self, outcome: Result<()>) -> Result<()> {
        self.hand_on()?;
        if let (Ok(()), Some(links), Some(sorter)) = (&outcome, &self.links, &self.finds.links) {
            sorter.lock().push(&links.end(), &[])?;
        }
        outcome
    }
}

impl Found for Batch<'_> {
    fn content(&mut self, content: ContentId) -> Result<()> {
        self.contents.push(content);
        if self.contents.len() < BATCH { Ok(()) } else { self.hand_on() }
    }

    fn node(&mut self, node: Node) -> Result<()> {
        self.nodes.push(node);
        if self.nodes.len() < BATCH { Ok(()) } else { self.hand_on() }
    }
}

/// A node and where its one content lies.
struct Placed {
    node: Node,
    snapshot: u32,
    entry: IndexEntry,
}

impl Located for Placed {
    fn entry(&self) -> &IndexEntry {
        &self.entry
    }
}

/// The nodes of one level that no earlier level has had.
struct Level {
    nodes: Merge,
    earlier: Probe,
    fresh: RunWriter,
    recall: Option<Recall>,
}

impl Level {
    fn new(
        nodes: &Sorted,
        earlier: &Sorted,
        scratch: &Scratch,
        memory: Option<&Arc<Memory>>,
    ) -> Result<Self> {
        Ok(Level {
            nodes: nodes.read()?,
            earlier: earlier.probe()?,
            fresh: RunWriter::create(scratch, SNAPSHOT)?,
            recall: memory.map(Recall::new),
        })
    }

    /// The next nodes that have to be read. What is known of those before and between them is added to `finds`.
    fn take(&mut self, count: usize, finds: &Finds) -> Result<Vec<(Node, u32)>> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count && self.nodes.advance()? {
            if self.earlier.contains(self.nodes.key())? {
                continue;
            }
            self.fresh.push(self.nodes.key(), self.nodes.tail())?;
            let (node, snapshot) = (Node::from_key(self.nodes.key())?, number(self.nodes.tail()));
            if !self.recall(&node, snapshot, finds)? {
                taken.push((node, snapshot));
            }
        }
        Ok(taken)
    }

    fn recall(&mut self, node: &Node, snapshot: u32, finds: &Finds) -> Result<bool> {
        let Some(recall) = &mut self.recall else { return Ok(false) };
        let mut batch = Batch::new(finds, snapshot);
        let known = recall.expand(node, &mut batch)?;
        batch.hand_on()?;
        finds.recalled.fetch_add(u64::from(known), Ordering::Relaxed);
        Ok(known)
    }

    fn finish(self) -> Result<Run> {
        self.fresh.finish()
    }
}

struct Walk {
    repository: Repository,
    scratch: Scratch,
    parallel: usize,
    memory: Option<Arc<Memory>>,
    finds: Arc<Finds>,
}

impl Walk {
    async fn roots(&self, list: SnapshotList) -> Result<()> {
        let finds = self.finds.clone();
        let add = move || -> Result<()> {
            for (number, snapshot) in list.snapshots.iter().enumerate() {
                let mut batch = Batch::new(&finds, number as u32);
                // A snapshot without a root is among the damaged ones already.
                let Some(root) = &snapshot.root_entry else { continue };
                let outcome = found_entry(&mut batch, root);
                let outcome = batch.finish(outcome);
                finds.settle(number as u32, &root.object, outcome)?;
            }
            Ok(())
        };
        blocking(add).await?
    }

    /// Goes down level by level; returns all nodes that were reached.
    async fn levels(&self) -> Result<Sorted> {
        let mut earlier = Sorted::empty(&self.scratch, SNAPSHOT);
        loop {
            let next = self.scratch.sorter(SNAPSHOT);
            let found = std::mem::replace(&mut *self.finds.nodes.lock(), next);
            let (scratch, known, memory) = (self.scratch.clone(), earlier.clone(), self.memory.clone());
            let start = move || -> Result<Option<Level>> {
                let nodes = found.finish()?;
                match nodes.is_empty() {
                    true => Ok(None),
                    false => Level::new(&nodes, &known, &scratch, memory.as_ref()).map(Some),
                }
            };
            let Some(level) = blocking(start).await?? else { return Ok(earlier) };
            let run = self.level(level).await?;
            earlier = blocking(move || earlier.add(run).map(|()| earlier)).await??;
            if self.finds.obstacles.lock().count >= MAX_OBSTACLES {
                return Ok(earlier);
            }
        }
    }

    async fn level(&self, mut level: Level) -> Result<Run> {
        loop {
            let (contents, finds) = (self.repository.contents().clone(), self.finds.clone());
            let take = move || -> Result<_> {
                let window = level.take(WINDOW, &finds)?;
                let (placed, others) = place(&contents, window)?;
                Ok((level, placed, others))
            };
            let (same, placed, others) = blocking(take).await??;
            level = same;
            if placed.is_empty() && others.is_empty() {
                return blocking(move || level.finish()).await?;
            }
            stream::iter(regions(placed, self.repository.budget()))
                .map(Ok)
                .try_for_each_concurrent(self.parallel, |region| self.region(region).boxed())
                .await?;
            stream::iter(others)
                .map(Ok)
                .try_for_each_concurrent(self.parallel, |(node, snapshot)| self.large(node, snapshot).boxed())
                .await?;
        }
    }

    /// Reads nodes that are one content each.
    async fn region(&self, region: Region<Placed>) -> Result<()> {
        let _memory = region.reserve(self.repository.budget()).await?;
        let contents = self.repository.contents().clone();
        let read = region.read(&contents).await?;
        let finds = self.finds.clone();
        let expand_all = move || -> Result<()> {
            for (Placed { node, snapshot, .. }, sealed) in read {
                let mut batch = Batch::of(&node, &finds, snapshot);
                let outcome = open(&contents, sealed).and_then(|text| expand(&node, &text[..], &mut batch));
                finds.settle(snapshot, node.object(), batch.finish(outcome))?;
            }
            Ok(())
        };
        blocking(expand_all).await?
    }

    /// Reads a node that is several contents, or whose content was not found at first sight.
    async fn large(&self, node: Node, snapshot: u32) -> Result<()> {
        let budget = self.repository.budget();
        let _memory = budget.reserve_async(LARGE_NODE.min(budget.total() / 64)).await?;
        let reader = match self.repository.objects().open(node.text()).await {
            Ok(reader) => reader,
            Err(error) => return self.finds.settle(snapshot, node.object(), Err(error)),
        };
        let (finds, runtime) = (self.finds.clone(), self.repository.runtime().clone());
        let expand_text = move || -> Result<()> {
            let mut text = ObjectText::new(reader, runtime);
            let mut batch = Batch::of(&node, &finds, snapshot);
            let outcome = expand(&node, &mut text, &mut batch);
            let outcome = text.failed.take().map_or(outcome, Err);
            finds.settle(snapshot, node.object(), batch.finish(outcome))
        };
        blocking(expand_text).await?
    }

    /// Remembers what was found for the next run. Without that it only takes longer, so that a failure is no failure.
    async fn remember(&self, shelf: Shelf, reached: Sorted) -> Result<()> {
        let Some(links) = &self.finds.links else { return Ok(()) };
        let (read, recalled) = (&self.finds.read, &self.finds.recalled);
        let (read, recalled) = (read.load(Ordering::Relaxed), recalled.load(Ordering::Relaxed));
        let stale = self.memory.as_ref().is_some_and(|memory| memory.nodes > 2 * (read + recalled));
        if read == 0 && !stale {
            return Ok(());
        }
        let spare = self.scratch.sorter(0);
        let links = std::mem::replace(&mut *links.lock(), spare);
        let memory = self.memory.clone();
        let save = move || shelf.save(&reached, memory.as_ref(), &links.finish()?);
        if let Err(error) = blocking(save).await? {
            tracing::warn!(%error, "the next run has to read all directories again");
        }
        Ok(())
    }

    async fn finish(self, names: String) -> Result<Marks> {
        let spare = self.scratch.sorter(SNAPSHOT);
        let contents = std::mem::replace(&mut *self.finds.contents.lock(), spare);
        let contents = blocking(move || contents.finish()).await??;
        let obstacles = std::mem::take(&mut *self.finds.obstacles.lock());
        let (snapshots, read) = (self.finds.snapshots.clone(), self.finds.read.load(Ordering::Relaxed));
        let recalled = self.finds.recalled.load(Ordering::Relaxed);
        Ok(Marks { contents, snapshots, names, obstacles, read, recalled })
    }
}

/// Looks up the nodes that are one content; the others are to be read as objects.
#[allow(clippy::type_complexity)]
fn place(contents: &ContentStore, window: Vec<(Node, u32)>) -> Result<(Vec<Placed>, Vec<(Node, u32)>)> {
    let (mut placed, mut others) = (Vec::with_capacity(window.len()), Vec::new());
    for (node, snapshot) in window {
        let entry = match node.single_content() {
            Some(content) => contents.lookup(&content)?,
            None => None,
        };
        match entry {
            Some(entry) => placed.push(Placed { node, snapshot, entry }),
            None => others.push((node, snapshot)),
        }
    }
    Ok((placed, others))
}

fn open(contents: &ContentStore, sealed: Sealed) -> Result<bytes::Bytes> {
    let (entry, sealed) = sealed?;
    contents
        .sealer()
        .open_content(&entry.id, entry.compression, entry.original_length, &sealed)
        .map_err(|reason| Error::DamagedContent { id: entry.id, blob: entry.pack.to_string(), reason })
}

fn number(tail: &[u8]) -> u32 {
    tail.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn snapshot_of(snapshots: &[ManifestId], number: u32) -> ManifestId {
    snapshots.get(number as usize).cloned().unwrap_or_default()
}
