//! What is below a directory, in numbers.

use super::{DirEntry, EntryType};
use crate::gojson::go_object;
use jiff::Timestamp;

/// How many failed entries a summary names.
pub const MAX_REPORTED_ERRORS: usize = 10;

go_object! {
    /// An entry that could not be backed up.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct EntryError {
        /// Its path below the root of the snapshot.
        pub path: String => "path",
        /// What happened.
        pub error: String => "error",
    }
}

go_object! {
    /// Totals of a directory and everything below it.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct DirSummary {
        /// Bytes in files.
        pub size: i64 => "size",
        /// Files.
        pub files: i64 => "files",
        /// Symbolic links.
        pub symlinks: i64 => "symlinks",
        /// Directories, this one included.
        pub dirs: i64 => "dirs",
        /// The newest modification time below.
        pub max_time: Timestamp => "maxTime",
        /// Why something is missing; empty if nothing is.
        pub incomplete: String => "incomplete" omitempty,
        /// Entries that failed.
        pub failed: i64 => "numFailed",
        /// Entries that failed and were ignored by policy.
        pub ignored_errors: i64 => "numIgnoredErrors" omitempty,
        /// The first failed entries by path.
        pub errors: Vec<EntryError> => "errors" omitempty,
    }
}

/// Adds up the entries of one directory as Kopia does, so that both write the same summary for the same directory.
#[derive(Debug, Clone, Default)]
pub struct SummaryBuilder {
    totals: DirSummary,
    entries: u64,
}

impl SummaryBuilder {
    /// Counts an entry; a sub-directory counts with its own summary.
    pub fn add(&mut self, entry: &DirEntry) {
        self.add_file(&entry.entry_type, entry.size, entry.mtime);
        if let (EntryType::Directory, Some(below)) = (&entry.entry_type, &entry.summary) {
            self.add_below(below);
        }
    }

    /// Counts an entry that is no directory, of which no more than this is known.
    pub fn add_file(&mut self, entry_type: &EntryType, size: u64, mtime: Timestamp) {
        let totals = &mut self.totals;
        self.entries += 1;
        // Kopia starts from the Unix epoch: older entries never raise it.
        totals.max_time = totals.max_time.max(mtime);
        match entry_type {
            EntryType::File => {
                totals.files = totals.files.saturating_add(1);
                totals.size = totals.size.saturating_add(i64::try_from(size).unwrap_or(i64::MAX));
            }
            EntryType::Symlink => totals.symlinks = totals.symlinks.saturating_add(1),
            _ => {}
        }
    }

    fn add_below(&mut self, below: &DirSummary) {
        let totals = &mut self.totals;
        totals.size = totals.size.saturating_add(below.size);
        totals.files = totals.files.saturating_add(below.files);
        totals.symlinks = totals.symlinks.saturating_add(below.symlinks);
        totals.dirs = totals.dirs.saturating_add(below.dirs);
        totals.failed = totals.failed.saturating_add(below.failed);
        totals.ignored_errors = totals.ignored_errors.saturating_add(below.ignored_errors);
        totals.max_time = totals.max_time.max(below.max_time);
        for error in &below.errors {
            self.report(error.clone());
        }
    }

    /// Counts the entries that another builder has counted: those of another part of the same directory.
    pub fn add_part(&mut self, part: &SummaryBuilder) {
        self.entries += part.entries;
        self.add_below(&part.totals);
    }

    /// Counts an entry that is not in the listing because it failed.
    pub fn add_failure(&mut self, path: impl Into<String>, error: impl Into<String>, ignored: bool) {
        let count = if ignored { &mut self.totals.ignored_errors } else { &mut self.totals.failed };
        *count = count.saturating_add(1);
        self.report(EntryError { path: path.into(), error: error.into(), ..EntryError::default() });
    }

    /// Keeps the first few by path.
    fn report(&mut self, error: EntryError) {
        let errors = &mut self.totals.errors;
        let at = errors.partition_point(|known| known.path <= error.path);
        if at < MAX_REPORTED_ERRORS {
            errors.insert(at, error);
            errors.truncate(MAX_REPORTED_ERRORS);
        }
    }

    /// The summary of a directory that was modified at `mtime`; `incomplete` says why something is missing.
    pub fn build(mut self, mtime: Timestamp, incomplete: &str) -> DirSummary {
        self.totals.dirs = self.totals.dirs.saturating_add(1);
        if self.entries == 0 {
            self.totals.max_time = mtime;
        }
        self.totals.incomplete = incomplete.to_owned();
        self.totals
    }
}
