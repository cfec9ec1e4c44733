//! What is logged about each entry, as detailed as policies say, in Kopia's words and from Kopia's levels on.
//!
//! Lines are for whoever looks for the reason of something: they go to the log at the level of debugging.

use jiff::Timestamp;
use lifeboat_kopia::policy::LoggingPolicy;
use lifeboat_kopia::snapshot::DirEntry;
use std::time::Instant;
use tracing::{Level, debug, enabled};

/// From which detail on a line has a field.
const DURATION: i64 = 1;
const SIZE: i64 = 3;
const COUNTS: i64 = 5;
const TIME: i64 = 6;
const OBJECT: i64 = 7;
/// From which detail on it is told that a file is not as it was.
const CACHE_MISS: i64 = 5;

/// Details that replace those of policies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogDetails {
    /// Of directories.
    pub directories: Option<i64>,
    /// Of files and links.
    pub entries: Option<i64>,
}

/// How detailed lines are about one directory and what is in it; 0 is none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Details {
    snapshotted_directory: i64,
    ignored_directory: i64,
    snapshotted: i64,
    ignored: i64,
    cache_hit: i64,
    cache_miss: i64,
}

impl Details {
    pub(super) fn of(policy: &LoggingPolicy, instead: LogDetails) -> Self {
        let or_none = |detail: Option<i64>| detail.unwrap_or(0);
        let (directories, entries) = (&policy.directories, &policy.entries);
        Details {
            snapshotted_directory: instead.directories.unwrap_or(or_none(directories.snapshotted)),
            ignored_directory: or_none(directories.ignored),
            snapshotted: instead.entries.unwrap_or(or_none(entries.snapshotted)),
            ignored: or_none(entries.ignored),
            cache_hit: instead.entries.unwrap_or(or_none(entries.cache_hit)),
            cache_miss: or_none(entries.cache_miss),
        }
    }

    pub(super) fn directory_done(&self, path: &str, entry: &DirEntry, entered: Instant) {
        log("snapshotted directory", self.snapshotted_directory, path, Some(entry), Some(entered));
    }

    pub(super) fn directory_ignored(&self, path: &str) {
        log("ignored directory", self.ignored_directory, path, None, None);
    }

    /// A file or link was read. How long that took is not known of each: they are read many at a time.
    pub(super) fn file_done(&self, path: impl FnOnce() -> String, entry: &DirEntry) {
        let message = match entry.entry_type {
            lifeboat_kopia::snapshot::EntryType::Symlink => "snapshotted symlink",
            _ => "snapshotted file",
        };
        if is_wanted(self.snapshotted) {
            log(message, self.snapshotted, &path(), Some(entry), None);
        }
    }

    pub(super) fn file_ignored(&self, path: impl FnOnce() -> String) {
        if is_wanted(self.ignored) {
            log("ignored", self.ignored, &path(), None, None);
        }
    }

    /// A file or link is as in an earlier snapshot.
    pub(super) fn file_cached(&self, path: impl FnOnce() -> String, entry: impl FnOnce() -> DirEntry) {
        if is_wanted(self.cache_hit) {
            log("cached", self.cache_hit, &path(), Some(&entry()), None);
        }
    }

    /// A file or link is not as it was in the earlier snapshot that `previous` is of.
    pub(super) fn file_changed(
        &self,
        path: impl FnOnce() -> String,
        previous: impl FnOnce() -> Option<DirEntry>,
    ) {
        if self.cache_miss >= CACHE_MISS && is_wanted(self.cache_miss) {
            let previous = previous().unwrap_or_default();
            let DirEntry { size, mtime, .. } = previous;
            let mode = format!("{:o}", previous.mode.to_unix());
            debug!(path = trimmed(&path()), mode, size, mtime = %mtime, "cache miss");
        }
    }
}

fn is_wanted(detail: i64) -> bool {
    detail > 0 && enabled!(Level::DEBUG)
}

/// Kopia calls the root by a dot, and has no slash before others.
fn trimmed(path: &str) -> &str {
    match path.trim_start_matches('/') {
        "" => ".",
        path => path,
    }
}

fn log(message: &str, detail: i64, path: &str, entry: Option<&DirEntry>, begun: Option<Instant>) {
    if !is_wanted(detail) {
        return;
    }
    let from = |least: i64| entry.filter(|_| detail >= least);
    let summary = |least: i64| from(least).and_then(|entry| entry.summary.as_ref());
    let size = |entry: &DirEntry| entry.summary.as_ref().map_or(entry.size, |all| all.size.unsigned_abs());
    let time = |entry: &DirEntry| entry.summary.as_ref().map_or(entry.mtime, |all| all.max_time);
    let rounded = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    debug!(
        path = trimmed(path),
        dur = begun.filter(|_| detail >= DURATION).map(|begun| format!("{:?}", begun.elapsed())),
        size = from(SIZE).map(size),
        files = summary(COUNTS).map(|all| all.files),
        dirs = summary(COUNTS).map(|all| all.dirs),
        errors = summary(COUNTS).map(|all| all.failed + all.ignored_errors),
        mtime = from(TIME).map(time).map(rounded),
        oid = from(OBJECT).map(|entry| entry.object.as_str()),
        "{message}"
    );
}
