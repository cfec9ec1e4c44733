//! How much there is to back up, counted ahead of the backup by a thread of its own.

use crate::Result;
use crate::progress::{Cancel, Progress};
use crate::source::{Ignore, Kind, Names, SourceDir, Spelling, is_cache};
use lifeboat_kopia::policy::PolicyTree;
use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

/// So many entries are counted before they are told.
const TOLD_EVERY: u64 = 1000;

/// Counts what is below a directory, as the policies say. What cannot be read is not counted: the backup says so.
pub(super) struct Estimate<'a> {
    progress: &'a Progress,
    cancel: &'a Cancel,
    files: u64,
    bytes: u64,
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
    pub(super) fn new(progress: &'a Progress, cancel: &'a Cancel) -> Self {
        Estimate { progress, cancel, files: 0, bytes: 0 }
    }

    /// Counts until it is done, or cancelled.
    pub(super) fn run(mut self, path: &Path, policies: &PolicyTree) {
        let above = Arc::new(Ignore::default());
        let root = SourceDir::root(path).and_then(|open| level(open, String::new(), policies, &above));
        let mut levels: Vec<Level> = root.into_iter().collect();
        while let Some(current) = levels.last_mut() {
            if self.cancel.is_cancelled() {
                return;
            }
            let Some(name) = current.names.peek() else {
                levels.pop();
                continue;
            };
            let (kind, name, listed) = (name.kind, name.as_c_str().to_owned(), name.listed.to_vec());
            if current.names.advance().is_err() {
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
        if level.ignore.has_rules() && level.ignore.leaves_out(&path, is_dir) {
            return None;
        }
        let stat = level.open.stat(name).ok()?;
        if level.ignore.is_elsewhere(stat.st_dev, level.device) {
            return None;
        }
        if is_dir {
            let policies = level.policies.child(&listed);
            return level
                .open
                .child(name)
                .and_then(|open| self::level(open, path, &policies, &level.ignore))
                .ok();
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if !level.ignore.is_too_large(size) {
            self.files += 1;
            self.bytes += if kind == Kind::Special { 0 } else { size };
            if self.files.is_multiple_of(TOLD_EVERY) {
                self.progress.estimate(self.files, self.bytes);
            }
        }
        None
    }
}

fn level(open: SourceDir, path: String, policies: &PolicyTree, above: &Arc<Ignore>) -> Result<Level> {
    let device = open.own_stat()?.st_dev;
    let mut names = Names::read(&open, Spelling { escape: true, placeholders: false })?;
    if is_cache(&open, &names, policies) {
        names.clear();
    }
    let ignore = Ignore::below(above, &open, &names, &path, policies)?;
    Ok(Level { open, path, device, names, policies: policies.clone(), ignore })
}

/// Counts what a backup of `path` would take, as `progress` tells meanwhile and at the end.
pub fn estimate(path: &Path, policies: &PolicyTree, progress: &Progress, cancel: &Cancel) {
    Estimate::new(progress, cancel).run(path, policies);
}
