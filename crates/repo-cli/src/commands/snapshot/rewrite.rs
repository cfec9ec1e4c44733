//! A snapshot's tree written again with some entries changed; directories without a change stay as they are.

use crate::tree::Trees;
use anyhow::{Context, Result, anyhow};
use lifeboat_index::Prefix;
use lifeboat_kopia::object::{ObjectId, WriterOptions};
use lifeboat_kopia::snapshot::{DirEntry, DirWriter, EntryName, EntryType, SummaryBuilder};
use lifeboat_primitives::compress::Compressor;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// So many entries are judged at a time, for each thread.
const AT_ONCE: usize = 64;
/// So many bytes of a listing are gathered before they are handed on.
const HANDED_ON: usize = 1 << 20;
/// What the names of stubs begin with, as in Kopia.
const STUB_PREFIX: &str = ".INVALID.";

/// What becomes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep,
    /// It is left out.
    Remove,
    /// A small file takes its place, which says what was there and why it is not.
    Stub(String),
}

/// Decides about entries, from several threads at once.
pub trait Judge: Sync {
    /// About a file or link; directories are asked about before they are entered.
    fn entry(&self, path: &Path, entry: &DirEntry) -> Result<Verdict>;

    /// About a directory that cannot be read.
    fn unreadable(&self, path: &Path, error: &anyhow::Error) -> Result<Verdict>;
}

/// Writes trees again. What was found out about a directory holds for all snapshots that share it.
pub struct Rewriter<'a, J> {
    trees: &'a Trees,
    judge: J,
    compression: Option<Compressor>,
    threads: usize,
    known: HashMap<(String, PathBuf), Option<DirEntry>>,
}

/// What becomes of the entries of a directory, by their names in the listing.
type Changes = BTreeMap<EntryName, Option<DirEntry>>;

impl<'a, J: Judge> Rewriter<'a, J> {
    pub fn new(trees: &'a Trees, judge: J, compression: Option<Compressor>, threads: usize) -> Self {
        Rewriter { trees, judge, compression, threads: threads.max(1), known: HashMap::new() }
    }

    /// The root to use instead of `root`; `None` if everything stays.
    pub fn root(&mut self, root: &DirEntry) -> Result<Option<DirEntry>> {
        let verdict = self.judge.entry(Path::new(""), root)?;
        let after = self.entry(Path::new(""), root, verdict)?;
        match after {
            Some(after) if after == *root => Ok(None),
            Some(after) => Ok(Some(after)),
            None => {
                let empty = DirEntry { entry_type: EntryType::Directory, ..root.clone() };
                self.write(&empty, std::iter::empty()).map(Some)
            }
        }
    }

    /// What becomes of an entry.
    fn entry(&mut self, path: &Path, entry: &DirEntry, verdict: Verdict) -> Result<Option<DirEntry>> {
        match verdict {
            Verdict::Keep if entry.is_dir() => self.directory(path, entry),
            Verdict::Keep => Ok(Some(entry.clone())),
            Verdict::Remove => Ok(None),
            Verdict::Stub(reason) => self.stub(entry, &reason).map(Some),
        }
    }

    fn directory(&mut self, path: &Path, directory: &DirEntry) -> Result<Option<DirEntry>> {
        let key = (directory.object.clone(), path.to_owned());
        if let Some(known) = self.known.get(&key) {
            // Its own attributes may differ from those that it had elsewhere.
            let same = |known: &DirEntry| DirEntry {
                object: known.object.clone(),
                summary: known.summary.clone(),
                ..directory.clone()
            };
            return Ok(known.as_ref().map(same));
        }
        let after = match self.changes(path, directory) {
            Ok(changes) if changes.is_empty() => Some(directory.clone()),
            Ok(changes) => Some(self.apply(directory, changes)?),
            Err(Listing::Unreadable(error)) => match self.judge.unreadable(path, &error)? {
                Verdict::Keep => Some(directory.clone()),
                Verdict::Remove => None,
                Verdict::Stub(reason) => Some(self.stub(directory, &reason)?),
            },
            Err(Listing::Failed(error)) => return Err(error),
        };
        self.known.insert(key, after.clone());
        Ok(after)
    }

    /// What changes in a directory: usually little, however many entries it has.
    fn changes(&mut self, path: &Path, directory: &DirEntry) -> Result<Changes, Listing> {
        let mut changes = Changes::new();
        let mut children = self.trees.children(directory).map_err(Listing::Unreadable)?;
        loop {
            let some = children.by_ref().take(self.threads * AT_ONCE).map(|entry| {
                let entry = entry.map_err(|error| Listing::Unreadable(error.into()))?;
                Ok((path.join(entry.name.to_string()), entry))
            });
            let some = some.collect::<Result<Vec<_>, Listing>>()?;
            if some.is_empty() {
                return Ok(changes);
            }
            for ((path, entry), verdict) in some.iter().zip(self.verdicts(&some)) {
                let after = verdict.and_then(|verdict| self.entry(path, entry, verdict));
                let after = after.map_err(Listing::Failed)?;
                if after.as_ref() != Some(entry) {
                    changes.insert(entry.name.clone(), after);
                }
            }
        }
    }

    /// What the judge says about some entries, asked from all threads.
    fn verdicts(&self, entries: &[(PathBuf, DirEntry)]) -> Vec<Result<Verdict>> {
        let share = entries.len().div_ceil(self.threads);
        let judge = &self.judge;
        let ask = |(path, entry): &(PathBuf, DirEntry)| judge.entry(path, entry);
        if share == entries.len() {
            return entries.iter().map(ask).collect();
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = entries
                .chunks(share)
                .map(|entries| scope.spawn(move || entries.iter().map(ask).collect::<Vec<_>>()))
                .collect();
            let lost = |_| vec![Err(anyhow!("a thread that looked at files panicked"))];
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_else(lost)).collect()
        })
    }

    fn apply(&self, directory: &DirEntry, changes: Changes) -> Result<DirEntry> {
        // Stubs have other names, and so other places in the order.
        let mut stubs: Vec<DirEntry> = changes
            .iter()
            .filter_map(|(name, after)| after.clone().filter(|after| after.name != *name))
            .collect();
        stubs.sort_by(DirEntry::listing_order);
        let mut stubs = stubs.into_iter().peekable();
        let mut kept = self
            .trees
            .children(directory)?
            .filter_map(|entry| match entry {
                Ok(entry) => match changes.get(&entry.name) {
                    None => Some(Ok(entry)),
                    Some(after) => after.clone().filter(|after| after.name == entry.name).map(Ok),
                },
                Err(error) => Some(Err(anyhow::Error::from(error))),
            })
            .peekable();
        let merged = std::iter::from_fn(|| match (kept.peek(), stubs.peek()) {
            (Some(Ok(entry)), Some(stub)) if stub.listing_order(entry).is_lt() => stubs.next().map(Ok),
            (None, Some(_)) => stubs.next().map(Ok),
            _ => kept.next(),
        });
        self.write(directory, merged)
    }

    /// Writes a listing and returns `directory` with it.
    fn write(
        &self,
        directory: &DirEntry,
        entries: impl IntoIterator<Item = Result<DirEntry>>,
    ) -> Result<DirEntry> {
        let options = WriterOptions {
            prefix: Prefix::DIRECTORY,
            compression: self.compression,
            metadata_compression: self.compression,
            splitter: None,
        };
        let mut object = self.trees.repository.objects().writer(options);
        let (mut listing, mut summary) = (DirWriter::new(), SummaryBuilder::default());
        for entry in entries {
            let entry = entry?;
            summary.add(&entry);
            listing.push(&entry)?;
            if listing.buffered() >= HANDED_ON {
                object.write(&listing.take())?;
            }
        }
        let incomplete = directory.summary.as_ref().map_or("", |summary| summary.incomplete.as_str());
        let summary = summary.build(directory.mtime, incomplete);
        object.write(&listing.finish(&summary)?)?;
        let object: ObjectId = object.finish()?;
        Ok(DirEntry { object: object.to_string(), summary: Some(summary), ..directory.clone() })
    }

    fn stub(&self, entry: &DirEntry, reason: &str) -> Result<DirEntry> {
        let text = serde_json::json!({
            "info": "The original entry was replaced by this stub because of an error.",
            "error": reason,
            "entry": entry,
        });
        let text = serde_json::to_vec_pretty(&text)?;
        let options = WriterOptions {
            prefix: Prefix::NONE,
            compression: self.compression,
            metadata_compression: self.compression,
            splitter: None,
        };
        let mut object = self.trees.repository.objects().writer(options);
        object.write(&text)?;
        let object = object.finish().context("cannot write a stub")?;
        Ok(DirEntry {
            name: EntryName::from(format!("{STUB_PREFIX}{}", entry.name)),
            entry_type: EntryType::File,
            size: text.len() as u64,
            object: object.to_string(),
            summary: None,
            extras: None,
            ..entry.clone()
        })
    }
}

/// Why the changes of a directory are not known.
enum Listing {
    /// Its listing cannot be read.
    Unreadable(anyhow::Error),
    /// Something below went wrong that must stop everything.
    Failed(anyhow::Error),
}
