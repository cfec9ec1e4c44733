//! A directory becomes a snapshot.
//!
//! Any number of threads walk the tree together, depth first. A directory hands out its sub-directories and its files
//! in batches, in the order of a listing, and along with them what earlier snapshots say about them; the results
//! come back in any order and become the listing. Nothing is kept but the path that is being walked.

mod buffers;
mod checkpoint;
mod child;
mod directory;
mod entry;
mod estimate;
mod files;
mod large;
mod links;
mod log;
mod missing;
mod parents;
mod placeholders;
mod schedule;
#[cfg(test)]
mod tests;

use crate::actions::{self, Scope};
use crate::progress::{Cancel, Progress};
use crate::source::{Ignore, Names, SourceDir, Spelling, extras_of_open, is_cache};
use crate::{Error, Result};
use buffers::{Room, Rooms};
pub(crate) use checkpoint::{Finished, checkpointed, save_checkpoints};
use directory::{Directory, DirectorySupply, Listing, PreviousDir};
use entry::{head_entry, set_extras};
use estimate::Estimate;
pub use estimate::{Counted, estimate};
use files::{Batch, Child, FileWork};
use jiff::Timestamp;
use large::LargeFile;
use lifeboat_budget::Budget;
use lifeboat_kopia::policy::{ActionsPolicy, PolicyTree};
use lifeboat_kopia::snapshot::{
    DirEntry, IncompleteReason, SnapshotManifest, SourceInfo, Stats, listed_name,
};
use lifeboat_repository::{ErrorKind, Id, ObjectWriteOptions, Repository, WholeObject};
use links::Links;
use log::Details;
pub use log::LogDetails;
use parents::{ParentDir, ParentListing};
use parking_lot::Mutex;
use rustix::fs::Stat;
use schedule::{Schedule, Source};
use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// So many large files for each thread may be open and wait for their turn.
const LARGE_FILES_PER_THREAD: usize = 4;

/// Checkpoints keep what was written safe from garbage collection, which is why Kopia allows no longer interval.
pub const MAX_CHECKPOINT_INTERVAL: Duration = Duration::from_mins(45);

/// What to back up, and how.
#[derive(Debug, Clone)]
pub struct BackupOptions {
    /// The directory.
    pub path: PathBuf,
    /// Under which identity the snapshot is saved.
    pub source: SourceInfo,
    /// The policies of the source and of what is below it.
    pub policies: PolicyTree,
    /// Earlier snapshots of the source: what has not changed since is not read again. The first one counts most.
    pub parents: Vec<SnapshotManifest>,
    /// Free text.
    pub description: String,
    /// Whether to keep what Kopia has no place for: extended attributes, hard links, devices, pipes, sockets, holes,
    /// names that are not UTF-8. Without it listings are byte for byte Kopia's.
    pub extras: bool,
    /// Whether the placeholders of a shallow restore are taken for what they stand for, as Kopia does. Whoever writes one
    /// names an object of the repository, and gets at it by a restore: only for trees whose owner may read all of it.
    pub placeholders: bool,
    /// How often to save what is there so far as an incomplete snapshot, at most every
    /// [`MAX_CHECKPOINT_INTERVAL`]; also when the backup is cancelled. Never if not given.
    pub checkpoint_interval: Option<Duration>,
    /// Whether to count ahead how much there is, for whoever shows the progress, if no earlier snapshot tells.
    pub estimate: bool,
    /// Whether the first entry that fails, and may not be ignored, ends the backup.
    pub fail_fast: bool,
    /// Whether the commands that policies name are run.
    pub actions: bool,
    /// Of how many files in a hundred the data is read although an earlier snapshot has it, chosen by chance: what
    /// changed without its size or time is found that way.
    pub force_hash: f64,
    /// After how many bytes that the repository did not have the backup ends, with an incomplete snapshot that the next
    /// one goes on from.
    pub upload_limit: Option<u64>,
    /// How detailed the log is, where that is not for the policies to say.
    pub log_details: LogDetails,
    /// How many threads read and write; 0 = what the policy says, else as many as there are processors.
    pub threads: usize,
    /// The memory that buffers draw on.
    pub budget: Budget,
}

impl BackupOptions {
    fn threads(&self) -> usize {
        let by_policy = self.policies.policy().upload.max_parallel_file_reads;
        match (self.threads, by_policy.and_then(|count| usize::try_from(count).ok())) {
            (0, Some(count)) if count > 0 => count,
            (given, _) => threads(given),
        }
    }
}

/// Backs up a directory.
///
/// The snapshot is returned, not saved: its data is durable after the repository's next flush. Entries that failed are
/// in its summary, those that the policy says to ignore and those that it does not; it is up to the caller whether
/// the latter make it worthless. If the backup was cancelled, and checkpoints are wanted, the snapshot is incomplete
/// and says so, two seconds after that at the latest; if the storage does not answer until then, there is none, and the
/// repository's writes stay [interrupted](Repository::interrupt_writes). Saving it is for the caller, best by
/// [`Cancel::interrupting_save`].
pub fn back_up(
    repository: &dyn Repository,
    options: &BackupOptions,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<SnapshotManifest> {
    let source_path = &options.path;
    let ActionsPolicy { before_snapshot_root, after_snapshot_root, .. } = &options.policies.policy().actions;
    let commands = [before_snapshot_root, after_snapshot_root];
    // The command after runs when this goes, which is after everything else.
    let scope = Scope::enter(options.actions, actions::ROOT, commands, source_path, cancel)?;
    let moved = scope.as_ref().and_then(Scope::moved_to);
    let moved = moved.map(|path| BackupOptions { path: path.to_owned(), ..options.clone() });
    let options = moved.as_ref().unwrap_or(options);
    let open = SourceDir::root(&options.path)?;
    let device = open.own_stat()?.st_dev;
    let own_clock = open.has_own_clock();
    let rooms = Rooms::new(repository, &options.budget, options.threads())?;
    let run = Run {
        repository,
        options,
        progress,
        cancel,
        source_path,
        device,
        own_clock,
        start_time: repository.now(),
        written_before: repository.written().new,
        schedule: Schedule::default(),
        top: Mutex::default(),
        root: Mutex::default(),
        failure: Mutex::default(),
        failed: Cancel::default(),
        links: Links::default(),
        empty: OnceLock::new(),
        rooms,
        lot: RandomState::new(),
    };
    let snapshot = cancel.interrupting_writes(repository, || {
        run.start(open)?;
        // Otherwise it goes with its last piece of work, and a cancel in that one finds nothing to keep.
        let _top = run.top.lock().upgrade();
        match run.work() {
            Err(Error::Cancelled) if !cancel.is_cancelled() && run.is_limit_reached() => {
                run.incomplete_snapshot(IncompleteReason::LimitReached)
            }
            Err(Error::Cancelled) if options.checkpoint_interval.is_some() => {
                run.incomplete_snapshot(IncompleteReason::Canceled)
            }
            outcome => outcome.map(|()| None),
        }
    })?;
    match (snapshot, run.root.into_inner()) {
        (Some(incomplete), _) => Ok(incomplete),
        (None, Some(root)) => Ok(manifest(options, run.start_time, repository.now(), root, progress)),
        (None, None) => Err(if cancel.is_cancelled() { Error::Cancelled } else { Error::Worker }),
    }
}

fn manifest(
    options: &BackupOptions,
    start_time: Timestamp,
    end_time: Timestamp,
    mut root: DirEntry,
    progress: &Progress,
) -> SnapshotManifest {
    if options.extras {
        root.extras.get_or_insert_default().recorded = true;
    }
    let totals = progress.totals();
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    SnapshotManifest {
        source: options.source.clone(),
        description: options.description.clone(),
        start_time,
        end_time: end_time.max(start_time),
        stats: Stats {
            total_size: count(totals.bytes),
            file_count: count(totals.hashed_files),
            cached_files: count(totals.cached_files),
            non_cached_files: count(totals.hashed_files),
            dir_count: count(totals.directories),
            excluded_total_size: count(totals.excluded_bytes),
            excluded_file_count: count(totals.excluded_files),
            excluded_dir_count: count(totals.excluded_directories),
            ignored_error_count: count(totals.ignored_errors),
            error_count: count(totals.errors),
            ..Stats::default()
        },
        root_entry: Some(root),
        ..SnapshotManifest::default()
    }
}

pub(crate) fn threads(wanted: usize) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

/// A piece of work.
enum Task {
    /// Open a directory in one that is open.
    Open(Arc<Directory>, u64, Child),
    Files(Arc<Directory>, u64, Batch),
}

/// One backup.
struct Run<'a> {
    repository: &'a dyn Repository,
    options: &'a BackupOptions,
    progress: &'a Progress,
    cancel: &'a Cancel,
    /// The directory as the caller names it; actions may say to read it somewhere else.
    source_path: &'a Path,
    /// Where the root is.
    device: u64,
    /// Whether it is our own kernel that notes there when a file changes.
    own_clock: bool,
    start_time: Timestamp,
    /// Bytes that were new to the repository before this backup.
    written_before: u64,
    schedule: Schedule<Directory, LargeFile>,
    /// The root while it is open.
    top: Mutex<Weak<Directory>>,
    /// The root when it is complete.
    root: Mutex<Option<DirEntry>>,
    failure: Mutex<Option<Error>>,
    /// Tells the other threads that there is a failure.
    failed: Cancel,
    links: Links,
    empty: OnceLock<String>,
    rooms: Rooms,
    /// Decides by chance, for each file alike however often it is asked.
    lot: RandomState,
}

impl Run<'_> {
    /// Enters the root.
    fn start(&self, open: SourceDir) -> Result<()> {
        let name = self.options.path.file_name().map_or(&b"/"[..], OsStrExt::as_bytes);
        let parents = parents::roots(&self.options.parents);
        let previous = parents.first().map(|(_, root)| PreviousDir {
            json: Vec::new(),
            entry: (*root).clone(),
            recorded: None,
        });
        let parents: Vec<ParentDir> = parents.into_iter().map(|(parent, _)| parent).collect();
        let above = Arc::new(Ignore::default());
        let place = Place { parent: None, path: String::new(), name: name.to_vec() };
        let directory = self.enter(open, place, &self.options.policies, &above, previous, &parents)?;
        if let Some(directory) = directory {
            *self.top.lock() = Arc::downgrade(&directory);
            self.schedule.push(directory);
        }
        Ok(())
    }

    /// Runs the threads until all is done.
    fn work(&self) -> Result<()> {
        let (finished, counted_enough) = (Finished::default(), Cancel::default());
        std::thread::scope(|scope| {
            if let Some(interval) = self.options.checkpoint_interval {
                let so_far = || self.incomplete_snapshot(IncompleteReason::Checkpoint);
                let finished = &finished;
                scope.spawn(move || {
                    // Without checkpoints garbage collection may remove what a long backup has written.
                    if let Err(error) = save_checkpoints(self.repository, finished, interval, so_far) {
                        self.fail(error);
                    }
                });
            }
            match estimate::by_parents(&self.options.parents).filter(|_| self.options.estimate) {
                Some((files, bytes)) => self.progress.estimate(files, bytes),
                None if self.options.estimate => {
                    let enough = &counted_enough;
                    // The backup itself says what is left out, and what cannot be read.
                    scope.spawn(move || {
                        Estimate::new(self.progress, enough, &mut |_| {})
                            .run(&self.options.path, &self.options.policies);
                    });
                }
                None => {}
            }
            let work = || {
                let mut room = Room::default();
                // A thread that panics must not leave the others waiting for it.
                let _stop = StopOnPanic(self);
                while let Some(source) = self.schedule.take() {
                    if let Err(error) = self.step(source, &mut room) {
                        self.fail(error);
                    }
                    self.schedule.done();
                }
            };
            let threads: Vec<_> = (0..self.rooms.threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| drop(thread.join()));
            finished.set();
            // What is not counted by now is of no use any more.
            counted_enough.cancel();
        });
        match self.failure.lock().take() {
            Some(error) => Err(error),
            None => {
                self.progress.all_done();
                Ok(())
            }
        }
    }

    fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.failed.cancel();
        self.schedule.stop();
    }

    /// Takes one piece of work and does it.
    fn step(&self, source: Source<Directory, LargeFile>, room: &mut Room) -> Result<()> {
        self.check()?;
        match source {
            Source::Large(file) => file.back_up_region(self),
            Source::Directory(directory) => {
                let (task, supply) = directory.pull(self)?;
                self.schedule.put_back(&directory, supply);
                task.map_or(Ok(()), |task| self.work_on(task, room))
            }
        }
    }

    fn work_on(&self, task: Task, room: &mut Room) -> Result<()> {
        match task {
            Task::Open(directory, slot, child) => self.open_child(&directory, slot, &child, room),
            Task::Files(directory, slot, batch) => {
                FileWork::new(self, &directory, slot).back_up(&batch, room)
            }
        }
    }

    /// Goes on with a directory that was entered: a small one is worked on at once, others are for all threads.
    fn go_on(&self, directory: Arc<Directory>, room: &mut Room) -> Result<()> {
        if !directory.is_one_piece() {
            self.schedule.push(directory);
            return Ok(());
        }
        while let (Some(task), _) = directory.pull(self)? {
            self.work_on(task, room)?;
        }
        Ok(())
    }

    /// A large file to help with, as long as too many are open, for a thread that is in the middle of something.
    fn large_file_to_help_with(&self) -> Option<Arc<LargeFile>> {
        self.schedule.take_large(LARGE_FILES_PER_THREAD * self.options.threads())
    }

    /// Whether to go on: neither was the backup cancelled, nor has it written as much as it may, nor did a thread fail.
    fn check(&self) -> Result<()> {
        self.cancel.check()?;
        self.failed.check()?;
        if self.is_limit_reached() { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn is_limit_reached(&self) -> bool {
        let new = || self.repository.written().new - self.written_before;
        self.options.upload_limit.is_some_and(|limit| new() > limit)
    }

    /// Whether the lot fell on a file to be read although an earlier snapshot has it.
    fn is_to_be_hashed(&self, directory: &str, name: &CStr) -> bool {
        let percent = self.options.force_hash;
        percent > 0.0 && self.lot.hash_one((directory, name)) as f64 / u64::MAX as f64 * 100.0 < percent
    }

    /// Reads a directory that was opened; `None` if it is left out because it is on another file system.
    fn enter(
        &self,
        open: SourceDir,
        place: Place,
        policies: &PolicyTree,
        above: &Arc<Ignore>,
        previous: Option<PreviousDir>,
        parents: &[ParentDir],
    ) -> Result<Option<Arc<Directory>>> {
        let extras = self.options.extras;
        let stat = open.own_stat()?;
        if let Some((parent, _)) = &place.parent
            && above.is_elsewhere(stat.st_dev, parent.device)
        {
            return Ok(None);
        }
        let name = CString::new(open.path.file_name().map_or(&b"/"[..], OsStrExt::as_bytes));
        let scope = self.run_action_before(&place.path, policies)?;
        let (open, stat) = match scope.as_ref().and_then(Scope::moved_to) {
            Some(path) => open_moved(&open.path, path)?,
            None => (open, stat),
        };
        let mut names =
            Names::read(&open, Spelling { escape: extras, placeholders: self.options.placeholders })?;
        if is_cache(&open, &names, policies) {
            names.clear();
        }
        let ignore = Ignore::below(above, &open, &names, &place.path, policies)?;
        let listed = match &place.parent {
            Some(_) => place.name,
            None => listed_name(&place.name).filter(|_| extras).map_or(place.name, String::into_bytes),
        };
        let mut entry = head_entry(&name.unwrap_or_default(), &listed, &stat, extras);
        let own_clock = self.own_clock && stat.st_dev == self.device;
        if extras {
            let known = previous.as_ref().and_then(|it| it.known_extras(&entry, &stat, own_clock));
            let found = match known {
                Some(known) => known,
                None => extras_of_open(open.fd.as_fd(), || open.path.clone(), &stat, self.device)?,
            };
            set_extras(&mut entry, found);
        }
        let opened = parents.iter().map(|parent| ParentListing::open(self.repository, parent, own_clock));
        let parents: Vec<Option<ParentListing>> = opened.collect();
        let previous = previous.filter(|_| parents.first().is_some_and(Option::is_some));
        let supply =
            DirectorySupply { names, parents: parents.into_iter().flatten().collect(), next_slot: 0 };
        Ok(Some(Arc::new(Directory {
            parent: place.parent,
            open,
            path: place.path,
            device: stat.st_dev,
            entry,
            details: Details::of(&policies.policy().logging, self.options.log_details),
            entered: Instant::now(),
            policies: policies.clone(),
            ignore,
            previous,
            supply: Mutex::new(supply),
            listing: Mutex::new(Listing::default()),
            _scope: scope,
        })))
    }

    /// Runs the command that belongs before a directory by its own policy, for this is not inherited.
    fn run_action_before(&self, path: &str, policies: &PolicyTree) -> Result<Option<Scope>> {
        if !policies.is_defined() {
            return Ok(None);
        }
        let ActionsPolicy { before_folder, after_folder, .. } = &policies.policy().actions;
        let source = match path.trim_start_matches('/') {
            "" => self.source_path.to_owned(),
            below => self.source_path.join(below),
        };
        let commands = [before_folder, after_folder];
        Scope::enter(self.options.actions, actions::FOLDER, commands, &source, self.cancel)
    }

    /// An entry went away between being listed and being looked at.
    fn vanished(&self, path: &str) {
        info!(path, "vanished while the backup was running");
        self.progress.vanished(path);
    }

    /// A file was written to while it was read.
    fn changed(&self, path: &str) {
        info!(path, "changed while it was being backed up");
        self.progress.changed(path);
    }

    fn entry_failed(&self, path: &str, error: &Error, ignored: bool) -> Result<()> {
        warn!(path, %error, ignored, "could not be backed up");
        self.progress.entry_failed(ignored);
        if self.options.fail_fast && !ignored {
            let path = path.trim_start_matches('/').to_owned();
            let denied = error.is_denied();
            return Err(Error::Entries { count: 1, path, error: error.to_string(), denied });
        }
        Ok(())
    }

    /// Whether an object of an earlier snapshot is still there: what is lost comes back when the file is read again.
    fn can_reuse(&self, object: &str) -> Result<bool> {
        match self.repository.is_whole(&Id::new(object)) {
            // It is not an object at all.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(false),
            known => Ok(known?),
        }
    }

    fn write_one(&self, object: &WholeObject<'_>) -> Result<Id> {
        let ids = self.repository.write_objects(std::slice::from_ref(object))?;
        ids.into_iter().next().ok_or(Error::Worker)
    }

    /// The object without any bytes.
    fn empty_object(&self) -> Result<String> {
        if let Some(known) = self.empty.get() {
            return Ok(known.clone());
        }
        let options = ObjectWriteOptions::default();
        let id = self.write_one(&WholeObject { data: &[], options: &options })?;
        Ok(self.empty.get_or_init(|| id.into_string()).clone())
    }
}

/// Opens what an action says to read in the place of a directory.
fn open_moved(directory: &Path, moved: &Path) -> Result<(SourceDir, Stat)> {
    let opened = SourceDir::root(moved).and_then(|open| open.own_stat().map(|stat| (open, stat)));
    opened.map_err(|error| Error::Action {
        action: actions::FOLDER.before,
        path: directory.to_owned(),
        reason: error.to_string(),
    })
}

/// Where a directory is.
struct Place {
    parent: Option<(Arc<Directory>, u64)>,
    path: String,
    /// Its name in the listing; of the root, in the file system.
    name: Vec<u8>,
}

struct StopOnPanic<'r, 'a>(&'r Run<'a>);

impl Drop for StopOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::Worker);
        }
    }
}
