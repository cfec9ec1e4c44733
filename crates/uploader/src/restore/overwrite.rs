//! What happens to what is there already.

use super::Run;
use super::attributes::Attributes;
use super::files::How;
use super::target::{Directory, SAFE};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::EntryType;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};

/// What is done with a file or link of the target that the snapshot has, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// It is an error, and what is there stays.
    Fail,
    /// What is there stays.
    Skip,
    /// What is there stays if it was modified later than the snapshot's.
    KeepNewer,
    /// It is removed, and a new one takes its place.
    #[default]
    Replace,
    /// Of files with the same size and time nothing is read; into others only what differs is written, in place. This
    /// also resumes a restore that was interrupted.
    Update,
}

impl Existing {
    /// Whether what is there may go.
    pub(super) fn replaces(self) -> bool {
        matches!(self, Existing::Replace | Existing::Update)
    }
}

/// What is done with an entry.
pub(super) enum Decision {
    /// It is restored.
    Restore(How),
    /// Its bytes are there; its attributes are set.
    AttributesOnly,
    /// Nothing.
    Skip,
}

/// Decides about an entry that is not a directory.
pub(super) fn decide(
    run: &Run<'_>,
    directory: &Directory,
    name: &CStr,
    entry_type: &EntryType,
    size: u64,
    attributes: &Attributes,
) -> Result<Decision> {
    const CREATE: Decision = Decision::Restore(How::New { replaces: false });
    const REPLACE: Decision = Decision::Restore(How::New { replaces: true });
    if !directory.existed {
        return Ok(CREATE);
    }
    let Some(stat) = directory.stat(name)? else { return Ok(CREATE) };
    let is_link = *entry_type == EntryType::Symlink;
    let policy = if is_link { run.options.existing_links } else { run.options.existing_files };
    let is_newer =
        (stat.st_mtime, stat.st_mtime_nsec as u32) > (attributes.time.seconds, attributes.time.nanoseconds);
    match policy {
        Existing::Fail => return Err(directory.failed("create", name, Errno::EXIST)),
        Existing::Skip => return Ok(Decision::Skip),
        Existing::KeepNewer if is_newer => return Ok(Decision::Skip),
        _ => {}
    }
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        if !run.options.delete_extra {
            return Err(directory.failed("replace", name, Errno::ISDIR));
        }
        run.tally.deleted(
            remove(directory.fd()?.as_fd(), name, 0)
                .map_err(|e| Error::file("remove", &directory.join(name), e))?,
        );
        return Ok(CREATE);
    }
    let is_special = attributes.extras.as_ref().is_some_and(|extras| extras.kind.is_some());
    match policy == Existing::Update && *entry_type == EntryType::File && !is_special {
        true => Ok(update(&stat, size, attributes)),
        false => Ok(REPLACE),
    }
}

fn update(stat: &Stat, size: u64, attributes: &Attributes) -> Decision {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let same_time =
        (stat.st_mtime, stat.st_mtime_nsec as u32) == (attributes.time.seconds, attributes.time.nanoseconds);
    // What is written in place is written to all names of a file, of which some may be outside of the target.
    match is_file && (stat.st_nlink == 1 || attributes.may_have_names()) {
        false => Decision::Restore(How::New { replaces: true }),
        true if same_time && stat.st_size == size as i64 => Decision::AttributesOnly,
        true => Decision::Restore(How::InPlace),
    }
}

/// The names that a listing has, as hashes: if two had the same one, something extra would stay, not go.
#[derive(Debug, Default)]
pub(super) struct Names {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Names {
    pub(super) fn add(&mut self, name: &[u8]) {
        self.hashes.insert(self.hasher.hash_one(name));
    }

    fn contains(&self, name: &[u8]) -> bool {
        self.hashes.contains(&self.hasher.hash_one(name))
    }
}

/// Removes what the snapshot does not have, unless the filter is not concerned with it.
pub(super) fn delete_extra(run: &Run<'_>, directory: &Directory, names: &Names) -> Result<()> {
    let fd = directory.fd()?;
    for name in list(fd.as_fd()).map_err(|e| Error::file("list", &directory.path(), e))? {
        let is_ours = run.temporary.as_ref().is_some_and(|temporary| temporary.has(&name));
        let is_wanted = names.contains(name.to_bytes()) || is_ours;
        if is_wanted || !run.options.filter.takes(&directory.relative_to(&name)) {
            continue;
        }
        match remove(fd.as_fd(), &name, directory.depth) {
            Ok(count) => run.tally.deleted(count),
            Err(error) => run.entry_failed(directory, &name, directory.failed("remove", &name, error)),
        }
    }
    Ok(())
}

fn list(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes an entry with everything below it, never through a link; tells how many entries that were.
pub(super) fn remove(directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> rustix::io::Result<u64> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => return Ok(1),
        Err(Errno::NOENT) => return Ok(0),
        // Which of the two it is depends on the file system.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    if depth > super::MAX_DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    let child =
        rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::DIRECTORY | SAFE, Mode::empty())?;
    let mut count = 1;
    for name in list(child.as_fd())? {
        count += remove(child.as_fd(), &name, depth + 1)?;
    }
    drop(child);
    rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
    Ok(count)
}
