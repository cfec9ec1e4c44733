//! How much there is to back up, counted ahead of the backup by a thread of its own.

use crate::progress::{Cancel, Progress};
use crate::source::{Ignore, Kind, Names, SourceDir, Spelling, is_cache};
use crate::{Error, Result};
use lifeboat_kopia::policy::PolicyTree;
use lifeboat_kopia::snapshot::SnapshotManifest;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

/// So many entries are counted before they are told.
const TOLD_EVERY: u64 = 1000;

/// Something that was looked at, by its path below the source.
#[derive(Debug)]
pub enum Counted<'a> {
    /// A file that a backup takes, and its size.
    File(&'a str, u64),
    /// A file that is left out, and its size.
    LeftOutFile(&'a str, u64),
    /// A directory that is left out.
    LeftOutDirectory(&'a str),
    /// What cannot be read.
    Unreadable(&'a str, &'a Error),
}

/// Counts what is below a directory, as the policies say. What cannot be read is not counted.
pub(super) struct Estimate<'a> {
    progress: &'a Progress,
    cancel: &'a Cancel,
    told: &'a mut (dyn FnMut(Counted<'_>) + Send),
    files: u64,
    bytes: u64,
}

/// How many files and bytes there were in an earlier snapshot: as good as a count that takes as long as the backup of
/// what has not changed since.
pub(super) fn by_parents(parents: &[SnapshotManifest]) -> Option<(u64, u64)> {
    let complete = parents.iter().find(|parent| parent.is_complete())?;
    let summary = complete.root_entry.as_ref()?.summary.as_ref()?;
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Some((count(summary.files.saturating_add(summary.symlinks)), count(summary.size)))
}

/// A directory that is being counted.
struct Level {
    open: SourceDir,
    path: String,
    device: u64,
    names: Names,
    policies: PolicyTree,
    ignore: Arc<Ignore>,
}

impl<'a> Estimate<'a> {
    pub(super) fn new(
        progress: &'a Progress,
        cancel: &'a Cancel,
        told: &'a mut (dyn FnMut(Counted<'_>) + Send),
    ) -> Self {
        Estimate { progress, cancel, told, files: 0, bytes: 0 }
    }

    /// Counts until it is done, or cancelled.
    pub(super) fn run(mut self, path: &Path, policies: &PolicyTree) {
        let above = Arc::new(Ignore::default());
        let root = SourceDir::root(path).and_then(|open| self.level(open, String::new(), policies, &above));
        let mut levels: Vec<Level> = self.readable("/", root).into_iter().collect();
        while let Some(current) = levels.last_mut() {
            if self.cancel.is_cancelled() {
                return;
            }
            let Some(name) = current.names.peek() else {
                levels.pop();
                continue;
            };
            let (kind, name, listed) = (name.kind, name.as_c_str().to_owned(), name.listed.to_vec());
            let advanced =
                current.names.advance().map_err(|e| Error::file("list", Path::new(&current.path), e));
            if self.readable(&current.path, advanced).is_none() {
                levels.pop();
                continue;
            }
            if let Some(below) = self.count(current, kind, &name, &listed) {
                levels.push(below);
            }
        }
        self.progress.estimate(self.files, self.bytes);
    }

    /// Counts an entry; returns the directory to go on with if it is one.
    fn count(&mut self, level: &Level, kind: Kind, name: &CString, listed: &[u8]) -> Option<Level> {
        let listed = String::from_utf8_lossy(listed);
        let path = format!("{}/{listed}", level.path);
        let is_dir = kind == Kind::Directory;
        let is_left_out = level.ignore.has_rules() && level.ignore.leaves_out(&path, is_dir);
        if is_left_out && is_dir {
            (self.told)(Counted::LeftOutDirectory(below(&path)));
            return None;
        }
        let stat = self.readable(&path, level.open.stat(name))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_elsewhere = level.ignore.is_elsewhere(stat.st_dev, level.device);
        match is_dir {
            true if is_elsewhere => (self.told)(Counted::LeftOutDirectory(below(&path))),
            true => {
                let policies = level.policies.child(&listed);
                let open = level.open.child(name);
                let open = open.and_then(|open| self.level(open, path.clone(), &policies, &level.ignore));
                return self.readable(&path, open);
            }
            false if is_left_out || is_elsewhere || level.ignore.is_too_large(size) => {
                (self.told)(Counted::LeftOutFile(below(&path), size));
            }
            false => {
                if kind == Kind::File {
                    (self.told)(Counted::File(below(&path), size));
                }
                self.files += 1;
                self.bytes += if kind == Kind::Special { 0 } else { size };
                if self.files.is_multiple_of(TOLD_EVERY) {
                    self.progress.estimate(self.files, self.bytes);
                }
            }
        }
        None
    }

    fn level(
        &mut self,
        open: SourceDir,
        path: String,
        policies: &PolicyTree,
        above: &Arc<Ignore>,
    ) -> Result<Level> {
        let device = open.own_stat()?.st_dev;
        let mut names = Names::read(&open, Spelling { escape: true, placeholders: false })?;
        if is_cache(&open, &names, policies) {
            (self.told)(Counted::LeftOutDirectory(below(&path)));
            names.clear();
        }
        let ignore = Ignore::below(above, &open, &names, &path, policies)?;
        Ok(Level { open, path, device, names, policies: policies.clone(), ignore })
    }

    /// What was read, unless it could not be: that is told.
    fn readable<T>(&mut self, path: &str, outcome: Result<T>) -> Option<T> {
        outcome.inspect_err(|error| (self.told)(Counted::Unreadable(below(path), error))).ok()
    }
}

/// A path as it is told: without a slash in front.
fn below(path: &str) -> &str {
    path.strip_prefix('/').unwrap_or(path)
}

/// Counts what a backup of `path` would take, as `progress` tells meanwhile and at the end; `told` of each thing.
pub fn estimate(
    path: &Path,
    policies: &PolicyTree,
    progress: &Progress,
    cancel: &Cancel,
    told: &mut (dyn FnMut(Counted<'_>) + Send),
) {
    Estimate::new(progress, cancel, told).run(path, policies);
}
