//! Counters that only grow, and the switch that ends a run early.

use lifeboat_repository::Repository;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};
use tracing::warn;

/// How soon a cancel is seen by those who cannot look themselves.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a backup that is cancelled may take to write down how far it has come: with [`PATIENCE`] and what it takes to
/// give up, two seconds, which is what people are promised.
const GRACE: Duration = Duration::from_millis(1500);
/// How long after the cancel that may take to be saved. A storage that answers needs no more than the two seconds, but one
/// that is slow gets longer, since what is not saved was moved for nothing; one that hangs is given up then.
const GRACE_TO_SAVE: Duration = Duration::from_secs(10);

/// So many entries of a kind are remembered by name.
const NAMED: usize = 10;

/// Entries that are counted, the first of them by name.
#[derive(Debug, Default)]
struct Named {
    count: AtomicU64,
    first: Mutex<Vec<String>>,
}

impl Named {
    fn add(&self, path: &str) {
        if self.count.fetch_add(1, Ordering::Relaxed) < NAMED as u64 {
            self.first.lock().push(path.trim_start_matches('/').to_owned());
        }
    }
}

/// Counters of a running backup or restore; shared with whoever shows them.
#[derive(Debug, Default)]
pub struct Progress {
    /// Of a restore; of a backup, files are either hashed or cached.
    files: AtomicU64,
    directories: AtomicU64,
    /// The same of bytes.
    bytes: AtomicU64,
    errors: AtomicU64,
    ignored_errors: AtomicU64,
    hashed_files: AtomicU64,
    hashed_bytes: AtomicU64,
    cached_files: AtomicU64,
    cached_bytes: AtomicU64,
    excluded_files: AtomicU64,
    excluded_bytes: AtomicU64,
    excluded_directories: AtomicU64,
    vanished: Named,
    changed: Named,
    estimated_files: AtomicU64,
    estimated_bytes: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Files and links done.
    pub files: u64,
    /// Directories done.
    pub directories: u64,
    /// Bytes of file data that are done: of a backup, read or taken over; of a restore, written.
    pub bytes: u64,
    /// Entries that failed.
    pub errors: u64,
    /// Entries that failed where the policy says to go on without them.
    pub ignored_errors: u64,
    /// Of a backup: files and links that were read.
    pub hashed_files: u64,
    /// Their bytes, as far as they were read.
    pub hashed_bytes: u64,
    /// Of a backup: files and links that were taken over from an earlier snapshot.
    pub cached_files: u64,
    /// Their bytes.
    pub cached_bytes: u64,
    /// Of a backup: files and links that the policies left out.
    pub excluded_files: u64,
    /// Their bytes, as far as they were looked at.
    pub excluded_bytes: u64,
    /// Of a backup: directories that the policies left out.
    pub excluded_directories: u64,
    /// Of a backup: entries that were gone before they could be read.
    pub vanished: u64,
    /// Of a backup: files that were written to while they were read.
    pub changed: u64,
    /// How many files and links there will be; 0 while nobody knows. Never less than are done; it grows, and only when
    /// all is done it becomes what was done.
    pub estimated_files: u64,
    /// How many bytes there will be; likewise.
    pub estimated_bytes: u64,
}

impl Progress {
    /// The counters now.
    pub fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (hashed_files, cached_files) = (get(&self.hashed_files), get(&self.cached_files));
        let (hashed_bytes, cached_bytes) = (get(&self.hashed_bytes), get(&self.cached_bytes));
        // Sums of what is shown beside them: they agree with it at every moment, and grow as it does.
        let files = get(&self.files) + hashed_files + cached_files;
        let bytes = get(&self.bytes) + hashed_bytes + cached_bytes;
        // What was expected by an earlier snapshot may be less than there is.
        let expected = |estimate: &AtomicU64, done: u64| match get(estimate) {
            0 => 0,
            estimate => estimate.max(done),
        };
        Totals {
            files,
            directories: get(&self.directories),
            bytes,
            errors: get(&self.errors),
            ignored_errors: get(&self.ignored_errors),
            hashed_files,
            hashed_bytes,
            cached_files,
            cached_bytes,
            excluded_files: get(&self.excluded_files),
            excluded_bytes: get(&self.excluded_bytes),
            excluded_directories: get(&self.excluded_directories),
            vanished: get(&self.vanished.count),
            changed: get(&self.changed.count),
            estimated_files: expected(&self.estimated_files, files),
            estimated_bytes: expected(&self.estimated_bytes, bytes),
        }
    }

    /// Of a backup: entries that were gone before they could be read, the first ten.
    pub fn vanished_paths(&self) -> Vec<String> {
        self.vanished.first.lock().clone()
    }

    /// Of a backup: files that were written to while they were read, the first ten.
    pub fn changed_paths(&self) -> Vec<String> {
        self.changed.first.lock().clone()
    }

    pub(crate) fn file_done(&self) {
        add(&self.files, 1);
    }

    pub(crate) fn directory_done(&self) {
        add(&self.directories, 1);
    }

    pub(crate) fn bytes_done(&self, bytes: u64) {
        add(&self.bytes, bytes);
    }

    pub(crate) fn failed(&self) {
        add(&self.errors, 1);
    }

    /// Bytes of a file were read.
    pub(crate) fn hashed(&self, bytes: u64) {
        add(&self.hashed_bytes, bytes);
    }

    /// A file was read to its end.
    pub(crate) fn file_hashed(&self) {
        add(&self.hashed_files, 1);
    }

    /// Files were taken over. For many at a time: threads that count the same get in each other's way.
    pub(crate) fn cached(&self, files: u64, bytes: u64) {
        add(&self.cached_files, files);
        add(&self.cached_bytes, bytes);
    }

    /// Bytes need not be read because an earlier snapshot has them.
    pub(crate) fn taken_over(&self, bytes: u64) {
        add(&self.cached_bytes, bytes);
    }

    /// So much is expected in all; a later estimate counts only if it is higher.
    pub(crate) fn estimate(&self, files: u64, bytes: u64) {
        self.estimated_files.fetch_max(files, Ordering::Relaxed);
        self.estimated_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// There is no more to come than is done. What was expected and did not come, because it is gone, is left out or could not
    /// be read, is known for sure only now: an estimate that was taken back earlier would be a guess about the rest, and
    /// one that was kept would show the end as less than all.
    pub(crate) fn all_done(&self) {
        let totals = self.totals();
        self.estimated_files.fetch_min(totals.files, Ordering::Relaxed);
        self.estimated_bytes.fetch_min(totals.bytes, Ordering::Relaxed);
    }

    pub(crate) fn excluded_file(&self, bytes: u64) {
        add(&self.excluded_files, 1);
        add(&self.excluded_bytes, bytes);
    }

    pub(crate) fn excluded_directory(&self) {
        add(&self.excluded_directories, 1);
    }

    pub(crate) fn entry_failed(&self, ignored: bool) {
        add(if ignored { &self.ignored_errors } else { &self.errors }, 1);
    }

    pub(crate) fn vanished(&self, path: &str) {
        self.vanished.add(path);
    }

    pub(crate) fn changed(&self, path: &str) {
        self.changed.add(path);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Ends a run at the next buffer. Cloning gives another handle to the same switch.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<Switch>);

#[derive(Debug, Default)]
struct Switch {
    is_on: AtomicBool,
    since: OnceLock<Instant>,
}

impl Cancel {
    /// Ends the run.
    pub fn cancel(&self) {
        self.0.since.get_or_init(Instant::now);
        self.0.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// For how long the run has been to end.
    fn elapsed(&self) -> Duration {
        self.0.since.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Does `work`, and makes the reads that it waits for fail if the run is to end meanwhile.
    pub(crate) fn interrupting<T>(
        &self,
        repository: &dyn Repository,
        work: impl FnOnce() -> crate::Result<T>,
    ) -> crate::Result<T> {
        self.watching(Duration::ZERO, || repository.interrupt_reads(), work)
    }

    /// Does `work` that writes. If the run is to end meanwhile, it has a moment to come to an orderly end; then what
    /// it waits for fails, since the storage may hang, and the result is [`crate::Error::Cancelled`].
    pub(crate) fn interrupting_writes<T>(
        &self,
        repository: &dyn Repository,
        work: impl FnOnce() -> crate::Result<T>,
    ) -> crate::Result<T> {
        self.interrupting_writes_after(GRACE, repository, work)
    }

    /// Does `work`, which saves a snapshot and flushes the repository. A run that is to end waits for that until ten seconds
    /// after it was told to, and not for ever: then the result is [`crate::Error::Cancelled`], and the repository's writes
    /// stay [interrupted](Repository::interrupt_writes).
    pub fn interrupting_save<T>(
        &self,
        repository: &dyn Repository,
        work: impl FnOnce() -> crate::Result<T>,
    ) -> crate::Result<T> {
        // Commands that run after a backup may have taken longer than that: saving gets its moment in any case.
        let left = GRACE_TO_SAVE.saturating_sub(self.elapsed()).max(GRACE);
        self.interrupting_writes_after(left, repository, work)
    }

    fn interrupting_writes_after<T>(
        &self,
        grace: Duration,
        repository: &dyn Repository,
        work: impl FnOnce() -> crate::Result<T>,
    ) -> crate::Result<T> {
        let interrupted = Cancel::default();
        let interrupt = || {
            warn!(
                "the backup was cancelled and the storage does not answer: what is not stored yet is given up"
            );
            interrupted.cancel();
            repository.interrupt_writes();
            repository.interrupt_reads();
        };
        let outcome = self.watching(grace, interrupt, work);
        match interrupted.is_cancelled() {
            true => outcome.map_err(|_| crate::Error::Cancelled),
            false => outcome,
        }
    }

    /// Does `work`, and calls `interrupt` if the run is to end meanwhile and `work` goes on for `grace` after that.
    fn watching<T>(&self, grace: Duration, interrupt: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
        let (ended_out, ended) = mpsc::channel::<()>();
        let goes_on = move |time: Duration| ended.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while goes_on(PATIENCE) {
                    if self.is_cancelled() {
                        if goes_on(grace) {
                            interrupt();
                        }
                        return;
                    }
                }
            });
            let outcome = work();
            drop(ended_out);
            outcome
        })
    }

    pub(crate) fn check(&self) -> crate::Result<()> {
        if self.is_cancelled() { Err(crate::Error::Cancelled) } else { Ok(()) }
    }
}
