//! Further names of files, links and special files.

use super::Run;
use super::files::File;
use super::places::{Key, Places};
use super::special::Link;
use super::target::Directory;
use crate::{Error, Result};
use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// So many groups are kept in memory. Of more, those whose first name is there are written to a file.
const MOST: usize = 4096;

/// Files that have more names than were found so far.
#[derive(Default)]
pub(super) struct HardLinks<'a> {
    files: HashMap<Key, Linked<'a>>,
    /// With so many in memory it is time to write some to a file.
    limit: usize,
    places: Option<Places>,
}

struct Linked<'a> {
    first: First<'a>,
    /// Names that may still come.
    left: u64,
}

/// The first name of a file.
pub(super) enum First<'a> {
    File(Arc<File<'a>>),
    Symlink(Arc<Link<'a>>),
    /// It is there.
    There(Arc<Directory>, CString),
}

/// What became of a first name.
pub(super) enum Settled<'a> {
    There(&'a Directory, &'a CStr),
    Lost,
}

impl First<'_> {
    /// `None` while it is being restored.
    fn settled(&self) -> Option<Settled<'_>> {
        match self {
            First::File(file) => file.settled(),
            First::Symlink(link) => link.settled(),
            First::There(directory, name) => Some(Settled::There(directory, name)),
        }
    }
}

impl<'a> HardLinks<'a> {
    /// Remembers the first of so many names.
    pub(super) fn add(&mut self, key: Key, names: u64, first: First<'a>, directory: &Directory) {
        // Whoever does not say how many there are may have any number.
        let left = if names == 0 { u64::MAX } else { names - 1 };
        if left == 0 {
            return;
        }
        self.files.insert(key, Linked { first, left });
        if self.files.len() > self.limit.max(MOST) {
            self.put_away(directory);
            // What is being restored stays, and is not looked at again for each that comes.
            self.limit = self.files.len() * 2;
        }
    }

    /// Writes to a file what need not be in memory. If that cannot be done, it stays there.
    fn put_away(&mut self, directory: &Directory) {
        let target = directory.target();
        if self.places.is_none() {
            self.places = Places::new(&target).ok();
        }
        let Some(places) = &mut self.places else { return };
        self.files.retain(|key, linked| {
            let at = match linked.first.settled() {
                None => return true,
                Some(Settled::Lost) => None,
                Some(Settled::There(directory, name)) => Some((directory, name)),
            };
            places.insert(&target, *key, at, linked.left).is_err()
        });
    }

    /// Makes `name` another name of its file; `false` if it is the first.
    pub(super) fn add_name(
        &mut self,
        run: &Run<'_>,
        key: Key,
        directory: &Arc<Directory>,
        name: &CStr,
    ) -> Result<bool> {
        let Some(linked) = self.files.get_mut(&key) else {
            return self.add_name_of_place(run, key, directory, name);
        };
        linked.left = linked.left.saturating_sub(1);
        let outcome = match &linked.first {
            First::File(file) => file.link(directory, name.to_owned()),
            First::Symlink(link) => link.link(directory, name.to_owned()),
            First::There(first, first_name) => link_there(run, first, first_name, directory, name),
        };
        // Nobody else will ask for it.
        if linked.left == 0 {
            self.files.remove(&key);
        }
        outcome.map(|()| true)
    }

    /// The same for a file that is not in memory.
    fn add_name_of_place(
        &mut self,
        run: &Run<'_>,
        key: Key,
        directory: &Directory,
        name: &CStr,
    ) -> Result<bool> {
        let Some(places) = &mut self.places else { return Ok(false) };
        let failed = |e: Errno| directory.failed("find the other names of", name, e);
        let Some(found) = places.take(key).map_err(failed)? else { return Ok(false) };
        if found.is_lost() {
            return Err(lost(directory, name));
        }
        let (from, first) = places.open(&directory.target(), &found).map_err(failed)?;
        count(run, link_at(&from, &first, directory, name)?);
        Ok(true)
    }

    /// How many groups are in memory.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> usize {
        self.files.len()
    }
}

/// Gives what is there another name, and counts it.
pub(super) fn link_there(
    run: &Run<'_>,
    from: &Directory,
    first: &CStr,
    to: &Directory,
    name: &CStr,
) -> Result<()> {
    let from = from.fd()?;
    count(run, link_at(&from, first, to, name)?);
    Ok(())
}

fn count(run: &Run<'_>, is_new: bool) {
    match is_new {
        true => run.progress.file_done(),
        false => run.tally.skipped(),
    }
}

/// Gives a file another name; what has that name goes, unless it is the file. Tells whether the name is new.
pub(super) fn link_at(from: &OwnedFd, first: &CStr, to: &Directory, name: &CStr) -> Result<bool> {
    let failed = |e: Errno| to.failed("link", name, e);
    let to_fd = to.fd()?;
    // Without a flag that says so, what is a symbolic link is not followed.
    let link = || rustix::fs::linkat(from, first, &to_fd, name, AtFlags::empty());
    match link() {
        Err(Errno::EXIST) => {
            let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
            let stat = rustix::fs::statat(from, first, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            if Some(identity(stat)) == to.stat(name)?.map(identity) {
                return Ok(false);
            }
            to.unlink(name)?;
            link().map_err(failed)?;
        }
        outcome => outcome.map_err(failed)?,
    }
    Ok(true)
}

/// Why another name of what could not be restored is not there.
pub(super) fn lost(directory: &Directory, name: &CStr) -> Error {
    let source = std::io::Error::other("the file that it is another name of could not be restored");
    Error::File { action: "link", path: directory.join(name), source }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn name(number: u64) -> CString {
        CString::new(format!("file {number}")).unwrap()
    }

    /// Ten thousand groups in ten directories, one of which is moved away and has a link in its place.
    #[test]
    fn what_is_too_much_for_memory_is_found_again_and_never_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::fs::create_dir(&target).unwrap();
        let top = Arc::new(Directory::top(&target, false, None).unwrap());
        let above = Arc::new(top.child(c"above".into(), false, None));
        let mut links = HardLinks::default();
        for directory in 0..10 {
            let directory = Arc::new(above.child(name(directory), false, None));
            for number in 0..1000 {
                directory.create(&name(number), 0o600, None).unwrap();
                let first = First::There(directory.clone(), name(number));
                let inode = directory.stat(&name(number)).unwrap().unwrap().st_ino;
                links.add((0, inode, 0), 3, first, &top);
                assert!(links.in_memory() <= MOST);
            }
        }
        let inode = |path: &std::path::Path| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(path).unwrap().ino()
        };
        let mut places = links.places.take().unwrap();
        let fd = top.target();
        let mut found = 0;
        for directory in 0..10 {
            for number in 0..1000 {
                let path = target.join(format!("above/file {directory}/file {number}"));
                let key = (0, inode(&path), 0);
                if links.files.contains_key(&key) {
                    continue;
                }
                found += 1;
                for other in ["second", "third"] {
                    let place = places.take(key).unwrap().unwrap();
                    let (from, first) = places.open(&fd, &place).unwrap();
                    let other = CString::new(format!("{other} {directory} {number}")).unwrap();
                    assert!(link_at(&from, &first, &top, &other).unwrap());
                    assert_eq!(inode(&target.join(other.to_str().unwrap())), key.1);
                }
                assert_eq!(places.take(key).unwrap(), None, "all names have come");
            }
        }
        assert!(found >= 10_000 - MOST, "{found}");
        // Of another kind, and of another file system.
        let key = (0, inode(&target.join("above/file 0/file 0")), 0);
        for unknown in [(0, key.1, 1), (1, key.1, 0)] {
            assert_eq!(places.take(unknown).unwrap(), None);
        }
        places.insert(&fd, (7, 7, 7), None, 1).unwrap();
        assert!(places.take((7, 7, 7)).unwrap().unwrap().is_lost());

        let directory = Arc::new(top.child(c"later".into(), false, None));
        directory.create(c"file", 0o600, None).unwrap();
        places.insert(&fd, (8, 8, 8), Some((&directory, c"file")), 1).unwrap();
        std::fs::rename(target.join("later"), folder.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", target.join("later")).unwrap();
        let place = places.take((8, 8, 8)).unwrap().unwrap();
        assert!(places.open(&fd, &place).is_err());
    }
}
