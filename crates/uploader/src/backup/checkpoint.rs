//! Incomplete snapshots: what is there so far, as a tree of its own, saved from time to time and when a backup is
//! cancelled.
//!
//! They keep what was written safe from garbage collection, and the next backup takes files over from them.

use super::directory::{Directory, Open, Part};
use super::{MAX_CHECKPOINT_INTERVAL, Run, manifest};
use crate::Result;
use crate::snapshots::save_snapshot;
use lifeboat_kopia::snapshot::{DirEntry, IncompleteReason, SnapshotManifest};
use lifeboat_repository::{Id, Repository};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tracing::info;

/// The longest name that Linux file systems take.
const MAX_NAME: usize = 255;

/// Ends the thread that saves checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Finished {
    pub(crate) fn set(&self) {
        *self.done.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for `time`; says whether it was set meanwhile.
    fn wait(&self, time: Duration) -> bool {
        let mut done = self.done.lock();
        self.changed.wait_while_for(&mut done, |done| !*done, time);
        *done
    }
}

/// Saves what is there so far at every interval until the backup is done, each time in place of the checkpoint before.
pub(crate) fn save_checkpoints(
    repository: &dyn Repository,
    finished: &Finished,
    interval: Duration,
    so_far: impl Fn() -> Result<Option<SnapshotManifest>>,
) -> Result<()> {
    let interval = interval.min(MAX_CHECKPOINT_INTERVAL);
    let (mut last, mut pause): (Option<Id>, _) = (None, interval);
    while !finished.wait(pause) {
        let begun = Instant::now();
        if let Some(mut snapshot) = so_far()? {
            let id = save_snapshot(repository, &mut snapshot)?;
            repository.flush()?;
            info!(%id, "saved a checkpoint");
            if let Some(last) = last.replace(id) {
                // It takes effect with the next flush; until then there are two.
                repository.delete_manifest(&last)?;
            }
        }
        // Counted from when the last one was begun: what a crash costs is not older. But no more than half of the time
        // is for saving, however short the interval.
        let took = begun.elapsed();
        pause = interval.saturating_sub(took).max(took.min(interval));
    }
    Ok(())
}

impl Run<'_> {
    /// What is there so far; `None` if the root is complete.
    pub(super) fn incomplete_snapshot(&self, reason: IncompleteReason) -> Result<Option<SnapshotManifest>> {
        let Some(root) = self.top.lock().upgrade() else { return Ok(None) };
        // Parents before children; the other way round each finds its children done. No recursion: paths can be deep.
        let mut open = vec![root];
        let mut next = 0;
        while let Some(directory) = open.get(next) {
            let below = directory.open_directories();
            open.extend(below);
            next += 1;
        }
        let mut entries: HashMap<*const Directory, DirEntry> = HashMap::new();
        for directory in open.iter().rev() {
            if let Some(entry) = directory.so_far(self, reason, &entries)? {
                entries.insert(Arc::as_ptr(directory), entry);
            }
        }
        let root = open.first().and_then(|root| entries.remove(&Arc::as_ptr(root)));
        Ok(root.map(|root| SnapshotManifest {
            incomplete: reason.as_str().to_owned(),
            ..manifest(self.options, self.start_time, self.repository.now(), root, self.progress)
        }))
    }
}

impl Directory {
    fn open_directories(&self) -> Vec<Arc<Directory>> {
        let listing = self.listing.lock();
        let directories = listing.open.values().filter_map(|open| match open {
            Open::Directory(directory) => directory.upgrade(),
            Open::Files(_) => None,
        });
        directories.collect()
    }

    /// The entry of the directory with what is there so far; `None` if it is complete. `below` has the entries of the
    /// directories in it that are not.
    fn so_far(
        &self,
        run: &Run<'_>,
        reason: IncompleteReason,
        below: &HashMap<*const Directory, DirEntry>,
    ) -> Result<Option<DirEntry>> {
        let (mut writer, mut summary, earlier, parts, open) = {
            let mut listing = self.listing.lock();
            if listing.is_written {
                return Ok(None);
            }
            // A listing that has become large is cut here: its parts are joined again at the end.
            if let Some(stream) = listing.stream.take() {
                let object = stream.result()?;
                listing.segments.push(object);
            }
            let open: Vec<(u64, Open)> =
                listing.open.iter().map(|(slot, open)| (*slot, open.clone())).collect();
            let parts = listing.early.clone();
            (listing.writer.clone(), listing.summary.clone(), listing.segments.clone(), parts, open)
        };
        let mut parts = parts;
        let mut unfinished = Part::default();
        for (slot, open) in open {
            let mut part = Part::default();
            match open {
                Open::Directory(directory) => {
                    if let Some(entry) = below.get(&Weak::as_ptr(&directory)) {
                        part.add(entry)?;
                    }
                }
                Open::Files(gathering) => {
                    let Some(gathering) = gathering.upgrade() else { continue };
                    part = gathering.so_far();
                    for file in gathering.open_files() {
                        for (object, length) in file.checkpoint()? {
                            unfinished.add(&checkpointed(&file.spec.entry, object, length))?;
                        }
                    }
                }
            }
            // The result may have come in meanwhile.
            parts.entry(slot).or_insert(part);
        }
        // Files that are not whole come last, where they do not disturb the order: nobody looks for them.
        for part in parts.values().chain([&unfinished]) {
            writer.push_encoded(&part.entries);
            summary.add_part(&part.summary);
        }
        let summary = summary.build(self.entry.mtime, reason.as_str());
        let rest = writer.finish(&summary)?;
        let object = self.store(run, earlier, None, &rest)?.into_string();
        Ok(Some(DirEntry { object, summary: Some(summary), ..self.entry.clone() }))
    }
}

/// The entry of a file that is not whole, under a name that keeps it from being taken for the file.
pub(crate) fn checkpointed(entry: &DirEntry, object: Id, size: u64) -> DirEntry {
    let name = entry.name.to_string();
    let room = MAX_NAME.saturating_sub(".checkpointed..".len() + object.as_str().len());
    let mut end = name.len().min(room);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let name = format!(".checkpointed.{}.{object}", &name[..end]);
    DirEntry { name: name.into(), object: object.into_string(), size, extras: None, ..entry.clone() }
}

impl super::large::LargeFile {
    /// The objects that hold what was written so far, and their lengths.
    fn checkpoint(&self) -> Result<Vec<(Id, u64)>> {
        let parts = self.parts();
        parts.iter().filter_map(|part| part.so_far().transpose()).collect()
    }
}
