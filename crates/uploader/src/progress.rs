//! Counters that only grow, and the switch that ends a run early.

use lifeboat_repository::Repository;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How soon a cancel is seen by those who cannot look themselves.
const PATIENCE: Duration = Duration::from_millis(100);

/// Counters of a running backup or restore; shared with whoever shows them.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    directories: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Files and links done.
    pub files: u64,
    /// Directories done.
    pub directories: u64,
    /// Bytes of file data read (backup) or written (restore).
    pub bytes: u64,
    /// Entries that failed.
    pub errors: u64,
}

impl Progress {
    /// The counters now.
    pub fn totals(&self) -> Totals {
        Totals {
            files: self.files.load(Ordering::Relaxed),
            directories: self.directories.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn file_done(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn directory_done(&self) {
        self.directories.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bytes_done(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends a run at the next buffer. Cloning gives another handle to the same switch.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the run.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the run is to end.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Does `work`, and makes the reads that it waits for fail if the run is to end meanwhile.
    pub(crate) fn interrupting<T>(
        &self,
        repository: &dyn Repository,
        work: impl FnOnce() -> crate::Result<T>,
    ) -> crate::Result<T> {
        let (ended_out, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if self.is_cancelled() {
                        return repository.interrupt_reads();
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
