//! Whether what was listed and then not found is gone.
//!
//! A network file system may go on listing a name that it finds nothing under. Taken for something that was removed in
//! the meantime, that would be missing from each snapshot without a word.

use crate::source::{Kind, SourceDir, extras_of};
use crate::{Error, Result};
use rustix::fs::{Mode, OFlags, RawDir};
use std::collections::HashSet;
use std::ffi::CStr;

/// How often a directory is looked at that changes while one looks.
const LOOKS: usize = 3;
/// Room for what one system call returns.
const READ_BYTES: usize = 32 << 10;

impl SourceDir {
    /// Which of these entries, none of which was found, are gone, or were for a moment: those that are not are still
    /// listed, and still not found.
    pub(crate) fn are_gone(&self, names: &[(&CStr, Kind)]) -> Vec<bool> {
        if names.is_empty() {
            return Vec::new();
        }
        let mut gone = vec![false; names.len()];
        for _ in 0..LOOKS {
            match self.look_again(names) {
                Err(error) => return vec![error.is_not_found(); names.len()],
                Ok((seen, has_changed)) => {
                    gone.iter_mut().zip(seen).for_each(|(gone, seen)| *gone |= seen);
                    if !has_changed {
                        break;
                    }
                }
            }
        }
        gone
    }

    /// One look, and whether the directory changed meanwhile: then a name that comes and goes may be listed and not found,
    /// too, and only one that is so in every look is still there.
    fn look_again(&self, names: &[(&CStr, Kind)]) -> Result<(Vec<bool>, bool)> {
        let last_change = || {
            let stat = self.own_stat()?;
            Ok::<_, Error>((stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec))
        };
        let before = last_change()?;
        let unlisted = self.unlisted(names.iter().map(|(name, _)| *name).collect())?;
        let is_gone = |(name, kind): &(&CStr, Kind)| unlisted.contains(name) || self.can_find(name, *kind);
        let gone = names.iter().map(is_gone).collect();
        Ok((gone, last_change()? != before))
    }

    /// Which of these names the directory does not list any more.
    fn unlisted<'a>(&self, mut names: HashSet<&'a CStr>) -> Result<HashSet<&'a CStr>> {
        let failed = |e| Error::file("list", &self.path, e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let again = rustix::fs::openat(&self.fd, c".", flags, Mode::empty()).map_err(failed)?;
        let mut buffer = Vec::with_capacity(READ_BYTES);
        let mut entries = RawDir::new(&again, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            names.remove(entry.map_err(failed)?.file_name());
            if names.is_empty() {
                break;
            }
        }
        Ok(names)
    }

    /// Whether an entry is found by what a backup does with it.
    fn can_find(&self, name: &CStr, kind: Kind) -> bool {
        let found = match kind {
            Kind::Directory => self.child(name).map(drop),
            Kind::File => self.open_file(name).map(drop),
            Kind::Symlink | Kind::Special => {
                self.stat(name).and_then(|stat| extras_of(self, name, &stat, stat.st_dev)).map(drop)
            }
        };
        !found.is_err_and(|error| error.is_not_found())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_listed_any_more_or_is_found_after_all_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("made again"), b"x").unwrap();
        let directory = SourceDir::root(folder.path()).unwrap();
        let names = [(c"removed", Kind::File), (c"made again", Kind::File)];
        assert_eq!(directory.are_gone(&names), [true, true]);
        std::fs::remove_file(folder.path().join("made again")).unwrap();
        std::fs::remove_dir(folder.path()).unwrap();
        assert_eq!(directory.are_gone(&[(c"removed", Kind::Directory)]), [true]);
    }
}
