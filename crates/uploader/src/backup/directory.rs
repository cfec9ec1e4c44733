//! A directory while it is being backed up: where its pieces of work come from, and where their results go.
//!
//! Work is handed out in the order of the listing, in slots; results arrive in any order and are put together in
//! slots' order as JSON. Whoever brings the last result writes the listing and passes the directory's own entry on
//! to the directory that it is in, up to the root.

use super::entry::{change_time, is_same_state};
use super::files::Batch;
use super::large::Gathering;
use super::log::Details;
use super::parents::{ParentListing, extras_until};
use super::schedule::Supply;
use super::{Run, Task};
use crate::actions::Scope;
use crate::source::{Ignore, Kind, Names, SourceDir};
use crate::{Error, Result};
use jiff::Timestamp;
use lifeboat_kopia::policy::PolicyTree;
use lifeboat_kopia::snapshot::{DIRECTORY_PREFIX, DirEntry, DirWriter, Extras, SummaryBuilder, encode_entry};
use lifeboat_repository::{
    AccessMode, BackupMode, DataType, Id, ObjectWriteOptions, ObjectWriter, WholeObject,
};
use parking_lot::Mutex;
use rustix::fs::Stat;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// So many files are one piece of work.
const BATCH_FILES: usize = 256;
/// So many results may wait for an earlier one. Beyond that nothing is handed out, so that a huge file at the
/// beginning does not make the results of all that follow it pile up.
const MAX_EARLY: usize = 64;
/// A listing is handed to the repository in pieces of this size; most are smaller.
const LISTING_BYTES: usize = 1 << 20;

/// A directory that is being backed up.
#[derive(Debug)]
pub(super) struct Directory {
    /// The directory that it is in, and its slot there.
    pub(super) parent: Option<(Arc<Directory>, u64)>,
    pub(super) open: SourceDir,
    /// Its path below the root: empty for the root itself, else it begins with a slash.
    pub(super) path: String,
    pub(super) device: u64,
    /// Its own entry but for the object and the summary.
    pub(super) entry: DirEntry,
    pub(super) details: Details,
    /// Since when it is being backed up.
    pub(super) entered: Instant,
    pub(super) policies: PolicyTree,
    pub(super) ignore: Arc<Ignore>,
    /// The same directory in the first parent.
    pub(super) previous: Option<PreviousDir>,
    pub(super) supply: Mutex<DirectorySupply>,
    pub(super) listing: Mutex<Listing>,
    /// Whatever becomes of the directory, the action after it runs when it is dropped.
    pub(super) _scope: Option<Scope>,
}

/// What the first parent says about a directory.
#[derive(Debug)]
pub(super) struct PreviousDir {
    /// Its entry as it is written there; of the root, nothing.
    pub(super) json: Vec<u8>,
    pub(super) entry: DirEntry,
    /// When the parent was begun; `None` if what an entry has beyond Kopia's fields was not looked for, and of the root.
    pub(super) recorded: Option<Timestamp>,
}

impl PreviousDir {
    /// What the directory still has beyond Kopia's fields, if nothing about it changed since; `entry` is its own, as far
    /// as it is known without that.
    pub(super) fn known_extras(&self, entry: &DirEntry, stat: &Stat, own_clock: bool) -> Option<Extras> {
        let until = extras_until(self.recorded, own_clock)?;
        let is_known = is_same_state(&self.entry, entry) && change_time(stat) < until;
        is_known.then(|| self.entry.extras.as_deref().cloned().unwrap_or_default())
    }
}

/// Where the pieces of work come from.
#[derive(Debug)]
pub(super) struct DirectorySupply {
    pub(super) names: Names,
    /// The first one is that of [`Directory::previous`], if there is one.
    pub(super) parents: Vec<ParentListing>,
    pub(super) next_slot: u64,
}

/// What became of a piece of work: entries in order, ready to be written.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// JSON, with commas in between.
    pub(super) entries: Vec<u8>,
    pub(super) summary: SummaryBuilder,
    /// Whether all entries are, byte for byte, those of the first parent.
    pub(super) same: bool,
}

impl Default for Part {
    fn default() -> Self {
        Part { entries: Vec::new(), summary: SummaryBuilder::default(), same: true }
    }
}

impl Part {
    /// Something that is not in the listing because it failed.
    pub(super) fn failed(path: &str, error: &Error, ignored: bool) -> Part {
        let mut part = Part { same: false, ..Part::default() };
        part.add_failure(path, error, ignored);
        part
    }

    pub(super) fn add_failure(&mut self, path: &str, error: &Error, ignored: bool) {
        self.summary.add_failure(path.trim_start_matches('/'), error.to_string(), ignored);
        self.same = false;
    }

    /// Adds an entry that is written as `json`.
    pub(super) fn add_json(&mut self, json: &[u8]) {
        self.separate();
        self.entries.extend_from_slice(json);
    }

    /// Adds an entry that is not as in the parent.
    pub(super) fn add(&mut self, entry: &DirEntry) -> Result<()> {
        self.separate();
        encode_entry(entry, &mut self.entries)?;
        self.summary.add(entry);
        self.same = false;
        Ok(())
    }

    fn separate(&mut self) {
        if !self.entries.is_empty() {
            self.entries.push(b',');
        }
    }

    /// Adds the entries that follow.
    pub(super) fn append(&mut self, part: &Part) {
        if !part.entries.is_empty() {
            self.add_json(&part.entries);
        }
        self.summary.add_part(&part.summary);
        self.same &= part.same;
    }
}

/// A piece of work that is being done, for checkpoints. Whoever does it keeps it alive.
#[derive(Debug, Clone)]
pub(super) enum Open {
    Directory(Weak<Directory>),
    Files(Weak<Gathering>),
}

/// Where the results go.
#[derive(Default)]
pub(super) struct Listing {
    /// The slot whose result is written next.
    pub(super) next: u64,
    /// How many slots there are, once that is known.
    total: Option<u64>,
    /// Results that wait for earlier ones.
    pub(super) early: BTreeMap<u64, Part>,
    /// What is being worked on in the slots that have no result yet.
    pub(super) open: BTreeMap<u64, Open>,
    pub(super) writer: DirWriter,
    /// A listing that has become large.
    pub(super) stream: Option<Box<dyn ObjectWriter>>,
    /// The beginning of a large listing, up to the last checkpoint.
    pub(super) segments: Vec<Id>,
    pub(super) summary: SummaryBuilder,
    /// Whether anything differs from the first parent's listing.
    differs: bool,
    /// Whether the listing was written, and everything here is gone.
    pub(super) is_written: bool,
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listing")
            .field("next", &self.next)
            .field("total", &self.total)
            .finish_non_exhaustive()
    }
}

impl Listing {
    fn is_complete(&self) -> bool {
        self.total == Some(self.next)
    }
}

impl Directory {
    /// The path of an entry below the root, which begins with a slash.
    pub(super) fn join(&self, name: &[u8]) -> String {
        format!("{}/{}", self.path, String::from_utf8_lossy(name))
    }

    /// Whether all that is left to do is one piece of work.
    pub(super) fn is_one_piece(&self) -> bool {
        self.supply.lock().names.are_few_files(BATCH_FILES)
    }

    /// Takes the next piece of work.
    pub(super) fn pull(self: &Arc<Self>, run: &Run<'_>) -> Result<(Option<Task>, Supply)> {
        if self.listing.lock().early.len() > MAX_EARLY {
            return Ok((None, Supply::Later));
        }
        let mut supply = self.supply.lock();
        let slot = supply.next_slot;
        let task = match supply.names.peek().map(|name| name.kind) {
            None => {
                let same = supply.parents.first_mut().is_some_and(ParentListing::is_used_up);
                drop(supply);
                self.all_supplied(run, slot, same)?;
                return Ok((None, Supply::Exhausted));
            }
            Some(Kind::Directory) => Task::Open(self.clone(), slot, supply.next_directory(&self.open)?),
            Some(_) => {
                let batch = Batch::take(&mut supply, BATCH_FILES, &self.open)?;
                Task::Files(self.clone(), slot, batch)
            }
        };
        supply.next_slot += 1;
        Ok((Some(task), Supply::More))
    }

    /// There will be no more than `total` slots.
    fn all_supplied(self: &Arc<Self>, run: &Run<'_>, total: u64, same: bool) -> Result<()> {
        let complete = {
            let mut listing = self.listing.lock();
            listing.total = Some(total);
            listing.differs |= !same;
            listing.is_complete()
        };
        if complete { self.written(run) } else { Ok(()) }
    }

    /// Says what is being worked on in a slot.
    pub(super) fn note(&self, slot: u64, open: Open) {
        self.listing.lock().open.insert(slot, open);
    }

    /// Adds the result of a slot.
    pub(super) fn complete(self: &Arc<Self>, run: &Run<'_>, slot: u64, part: Part) -> Result<()> {
        if self.add(run, slot, part)? { self.written(run) } else { Ok(()) }
    }

    /// Adds the result of a slot; says whether it was the last one.
    fn add(&self, run: &Run<'_>, slot: u64, part: Part) -> Result<bool> {
        let mut guard = self.listing.lock();
        let listing = &mut *guard;
        listing.open.remove(&slot);
        listing.early.insert(slot, part);
        while let Some(part) = listing.early.remove(&listing.next) {
            listing.next += 1;
            listing.differs |= !part.same;
            listing.summary.add_part(&part.summary);
            listing.writer.push_encoded(&part.entries);
            if listing.writer.buffered() >= LISTING_BYTES {
                let stream = match &mut listing.stream {
                    Some(stream) => stream,
                    none => none.insert(run.repository.new_object(&self.write_options())?),
                };
                stream.write(&listing.writer.take())?;
            }
        }
        Ok(listing.is_complete())
    }

    /// All results are in: writes the listing, and so on upwards for as long as that completes a directory.
    fn written(self: &Arc<Self>, run: &Run<'_>) -> Result<()> {
        let mut directory = self.clone();
        loop {
            let (entry, same) = directory.write(run)?;
            run.progress.directory_done();
            directory.details.directory_done(&directory.path, &entry, directory.entered);
            let Some((parent, slot)) = directory.parent.clone() else {
                *run.root.lock() = Some(entry);
                return Ok(());
            };
            let mut part = Part::default();
            part.add(&entry)?;
            let previous = directory.previous.as_ref().map(|previous| &previous.json);
            part.same = same && previous == Some(&part.entries);
            if !parent.add(run, slot, part)? {
                return Ok(());
            }
            directory = parent;
        }
    }

    /// Writes the listing; returns the directory's entry, and whether its listing is that of the first parent.
    fn write(&self, run: &Run<'_>) -> Result<(DirEntry, bool)> {
        let written = Listing { is_written: true, ..Listing::default() };
        let listing = std::mem::replace(&mut *self.listing.lock(), written);
        let summary = listing.summary.build(self.entry.mtime, "");
        let previous = self.previous.as_ref().filter(|_| !listing.differs);
        let object = match previous.filter(|previous| previous.entry.summary.as_ref() == Some(&summary)) {
            Some(previous) => previous.entry.object.clone(),
            None => {
                let rest = listing.writer.finish(&summary)?;
                self.store(run, listing.segments, listing.stream, &rest)?.into_string()
            }
        };
        let same = previous.is_some_and(|previous| previous.entry.object == object);
        Ok((DirEntry { object, summary: Some(summary), ..self.entry.clone() }, same))
    }

    /// Stores a listing whose beginning is stored already.
    pub(super) fn store(
        &self,
        run: &Run<'_>,
        mut segments: Vec<Id>,
        stream: Option<Box<dyn ObjectWriter>>,
        rest: &[u8],
    ) -> Result<Id> {
        let last = match stream {
            Some(mut stream) => {
                stream.write(rest)?;
                stream.result()?
            }
            None => run.write_one(&WholeObject { data: rest, options: &self.write_options() })?,
        };
        if segments.is_empty() {
            return Ok(last);
        }
        segments.push(last);
        Ok(run.repository.concatenate(&segments)?)
    }

    fn write_options(&self) -> ObjectWriteOptions {
        ObjectWriteOptions {
            full_path: self.path.clone(),
            data_type: DataType::Metadata,
            access_mode: AccessMode::File,
            backup_mode: BackupMode::Full,
            prefix: Some(DIRECTORY_PREFIX),
            compressor: self.policies.policy().metadata_compression.compressor.clone(),
            ..ObjectWriteOptions::default()
        }
    }
}

// Directories hold those that they are in: without this, the last one of a deep tree would drop all others one
// inside the other, and overflow the stack.
impl Drop for Directory {
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        while let Some((directory, _)) = parent {
            parent = Arc::into_inner(directory).and_then(|mut directory| directory.parent.take());
        }
    }
}
