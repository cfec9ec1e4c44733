//! Verifying contents: every entry of the index against the packs.

use super::PackList;
use crate::Result;
use crate::content::{ContentRange, ContentStore};
use crate::repo::Repository;
use crate::worker::blocking;
use futures::{StreamExt, stream};
use lifeboat_blobs::{BlobId, ErrorKind};
use lifeboat_index::{ContentId, Deleted, IndexEntry};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many entries are looked at at a time: sorted by their place, they are read in few large pieces.
const WINDOW: usize = 100_000;
/// Neighbouring contents are read together up to this size.
const MAX_READ: u64 = 8 << 20;
/// Gaps up to this size are read and thrown away rather than read around.
const MAX_GAP: u64 = 64 << 10;

/// How contents are verified.
#[derive(Debug, Clone)]
pub struct VerifyContents {
    /// Read, decrypt and decompress every content, instead of only checking that its pack is there and long enough.
    pub full: bool,
    /// Without `full`, how many percent of the contents are read all the same; each is chosen by chance.
    pub read_percent: f64,
    /// Which contents.
    pub range: ContentRange,
    /// Also those that are deleted and not dropped yet.
    pub include_deleted: bool,
    /// How many reads are under way at once.
    pub parallel: usize,
    /// How far it is, for whoever shows that.
    pub progress: Arc<VerifyProgress>,
}

/// How many contents were verified so far, and what of them.
#[derive(Debug, Default)]
pub struct VerifyProgress {
    /// Contents that are known to be sound or damaged.
    pub verified: AtomicU64,
    /// Damaged ones.
    pub damaged: AtomicU64,
}

impl Default for VerifyContents {
    fn default() -> Self {
        VerifyContents {
            full: false,
            read_percent: 0.0,
            range: ContentRange::All,
            include_deleted: false,
            parallel: 8,
            progress: Arc::default(),
        }
    }
}

/// A content that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentDamage {
    /// The content.
    pub id: ContentId,
    /// The pack that should hold it.
    pub pack: String,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for ContentDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "content {} in pack {}: {}", self.id, self.pack, self.reason)
    }
}

/// What was verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentsReport {
    /// Contents looked at.
    pub contents: u64,
    /// Bytes read from packs.
    pub bytes_read: u64,
    /// Contents that are damaged.
    pub damaged: u64,
}

/// Verifies the contents of a repository. Each damage is passed to `found` as it is met.
pub async fn contents(
    repository: &Repository,
    options: &VerifyContents,
    found: &mut (dyn FnMut(ContentDamage) + Send),
) -> Result<ContentsReport> {
    let contents = repository.contents();
    let packs = PackList::load(repository.store()).await?;
    let deleted = if options.include_deleted { Deleted::Include } else { Deleted::Skip };
    let mut entries = contents.iterate(options.range.clone(), deleted);
    let progress = &*options.progress;
    let mut run =
        Run { contents, packs, report: ContentsReport::default(), refreshed: false, progress, found };
    let mut dice = Dice::new(repository)?;
    loop {
        let window = move || -> Result<(Vec<IndexEntry>, _)> {
            let window = entries.by_ref().take(WINDOW).collect::<Result<Vec<_>>>()?;
            Ok((window, entries))
        };
        let (window, rest) = blocking(window).await??;
        entries = rest;
        if window.is_empty() {
            return Ok(run.report);
        }
        run.report.contents += window.len() as u64;
        let mut sound = run.check(window).await?;
        if !options.full {
            let all = sound.len();
            sound.retain(|_| dice.says_yes(options.read_percent));
            run.verified(all - sound.len());
        }
        run.read(repository, sound, options.parallel).await?;
    }
}

struct Run<'a> {
    contents: &'a ContentStore,
    packs: PackList,
    report: ContentsReport,
    refreshed: bool,
    progress: &'a VerifyProgress,
    found: &'a mut (dyn FnMut(ContentDamage) + Send),
}

/// Which contents are read where not all are: others in each run.
struct Dice(u64);

impl Dice {
    fn new(repository: &Repository) -> Result<Self> {
        Ok(Dice(u64::from_le_bytes(repository.environment().random_array()?) | 1))
    }

    fn says_yes(&mut self, percent: f64) -> bool {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64) < percent / 100.0 * (1u64 << 53) as f64
    }
}

impl Run<'_> {
    fn verified(&self, count: usize) {
        self.progress.verified.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Reports entries whose pack is missing or too short; returns the others.
    async fn check(&mut self, window: Vec<IndexEntry>) -> Result<Vec<IndexEntry>> {
        let mut sound = Vec::with_capacity(window.len());
        for entry in window {
            match self.packs.check(&entry).await? {
                Ok(()) => sound.push(entry),
                Err(reason) => match self.moved(&entry).await? {
                    Some(entry) => sound.push(entry),
                    None => {
                        self.verified(1);
                        self.damaged(&entry, reason);
                    }
                },
            }
        }
        Ok(sound)
    }

    /// Where the content is now, if somebody has moved it since the index was loaded.
    async fn moved(&mut self, entry: &IndexEntry) -> Result<Option<IndexEntry>> {
        if !self.refreshed {
            self.refreshed = true;
            self.contents.refresh().await?;
            self.packs = PackList::load(self.contents.store()).await?;
        }
        let now = self.contents.lookup(&entry.id)?;
        let elsewhere = |now: &IndexEntry| (&now.pack, now.pack_offset) != (&entry.pack, entry.pack_offset);
        match now.filter(elsewhere) {
            Some(now) => Ok(self.packs.check(&now).await?.is_ok().then_some(now)),
            None => Ok(None),
        }
    }

    fn damaged(&mut self, entry: &IndexEntry, reason: String) {
        self.report.damaged += 1;
        self.progress.damaged.fetch_add(1, Ordering::Relaxed);
        (self.found)(ContentDamage { id: entry.id, pack: entry.pack.to_string(), reason });
    }

    async fn read(
        &mut self,
        repository: &Repository,
        entries: Vec<IndexEntry>,
        parallel: usize,
    ) -> Result<()> {
        let contents = self.contents.clone();
        let mut outcomes = stream::iter(regions(entries))
            .map(|region| {
                let (contents, budget) = (contents.clone(), repository.budget().clone());
                async move {
                    // The region and the largest content that comes out of it.
                    let wanted = region.memory().min(budget.total() / 2);
                    let _memory = budget.reserve_async(wanted).await?;
                    let count = region.entries.len();
                    region.verify(contents).await.map(|(bytes, damages)| (count, bytes, damages))
                }
            })
            .buffer_unordered(parallel.max(1));
        while let Some(outcome) = outcomes.next().await {
            let (count, bytes, damages) = outcome?;
            self.report.bytes_read += bytes;
            self.verified(count);
            for (entry, reason) in damages {
                self.damaged(&entry, reason);
            }
        }
        Ok(())
    }
}

/// Neighbouring contents of a pack.
struct Region {
    range: Range<u64>,
    entries: Vec<IndexEntry>,
}

fn regions(mut entries: Vec<IndexEntry>) -> Vec<Region> {
    entries.sort_unstable_by(|a, b| (&a.pack, a.pack_offset).cmp(&(&b.pack, b.pack_offset)));
    let mut regions: Vec<Region> = Vec::new();
    for entry in entries {
        let start = u64::from(entry.pack_offset);
        let end = start + u64::from(entry.packed_length);
        match regions.last_mut() {
            Some(region)
                if region.entries.first().is_some_and(|first| first.pack == entry.pack)
                    && start <= region.range.end + MAX_GAP
                    && end - region.range.start <= MAX_READ =>
            {
                region.range.end = end.max(region.range.end);
                region.entries.push(entry);
            }
            _ => regions.push(Region { range: start..end, entries: vec![entry] }),
        }
    }
    regions
}

type Damages = Vec<(IndexEntry, String)>;

impl Region {
    fn memory(&self) -> u64 {
        let largest = self.entries.iter().map(|entry| u64::from(entry.original_length)).max().unwrap_or(0);
        self.range.end - self.range.start + largest
    }

    async fn verify(self, contents: ContentStore) -> Result<(u64, Damages)> {
        let Some(first) = self.entries.first() else { return Ok((0, Vec::new())) };
        let bytes = match BlobId::new(first.pack.as_str()) {
            Ok(pack) => contents.store().get_range(&pack, self.range.clone()).await,
            Err(error) => Err(error),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) if is_damage(error.kind()) => {
                let reason = error.to_string();
                return Ok((0, self.entries.into_iter().map(|entry| (entry, reason.clone())).collect()));
            }
            // What cannot be reached is not known to be damaged.
            Err(error) => return Err(error.into()),
        };
        let verify = move || {
            let mut damages = Vec::new();
            for entry in self.entries {
                let start = (u64::from(entry.pack_offset) - self.range.start) as usize;
                let sealed = &bytes[start..start + entry.packed_length as usize];
                if let Err(reason) = contents.check_sealed(&entry, sealed) {
                    damages.push((entry, reason));
                }
            }
            (bytes.len() as u64, damages)
        };
        blocking(verify).await
    }
}

/// Whether a failed read says something about the blob, and not only about the way to it.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::InvalidRange | ErrorKind::Configuration)
}
