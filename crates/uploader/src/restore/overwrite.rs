//! What happens to what is there already.

use super::attributes::{Attributes, On};
use super::files::How;
use super::target::{Directory, SAFE};
use super::{PathFilter, Run};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::EntryType;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    /// Of files with the same size and time nothing is read; into others only what differs is written, in place. One that
    /// has several names is replaced as a whole, when the new one is whole: nobody knows whose the other names are. This
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
    /// Its bytes are there; its attributes are set, unless they are, too.
    There { has_attributes: bool },
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
        return match remove_entry(run, directory, name)? {
            true => Ok(CREATE),
            // The filter protects something below it.
            false => Err(directory.failed("replace", name, Errno::NOTEMPTY)),
        };
    }
    let is_special = attributes.extras.as_ref().is_some_and(|extras| extras.kind.is_some());
    let is_file = *entry_type == EntryType::File && !is_special;
    if policy != Existing::Update
        || !is_file
        || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
    {
        return Ok(REPLACE);
    }
    let same_time =
        (stat.st_mtime, stat.st_mtime_nsec as u32) == (attributes.time.seconds, attributes.time.nanoseconds);
    let has_bytes = same_time && stat.st_size == size as i64;
    // What is written in place, be it an attribute, is written to all names of a file, and nobody knows how many of them
    // are outside of the target. One that an earlier restore completed needs nothing.
    match stat.st_nlink == 1 {
        true if has_bytes => Ok(Decision::There { has_attributes: false }),
        true => Ok(Decision::Restore(How::InPlace)),
        false if has_bytes && attributes.may_have_names() => {
            let fd = directory.fd()?;
            let on = On::Named { directory: fd.as_fd(), name, is_link: false };
            match run.keep.are_set(attributes, on).map_err(|e| directory.failed("examine", name, e))? {
                true => Ok(Decision::There { has_attributes: true }),
                false => Ok(Decision::Restore(How::Aside)),
            }
        }
        false => Ok(Decision::Restore(How::Aside)),
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
        if names.contains(name.to_bytes()) || run.temporary.has(&name) {
            continue;
        }
        if let Err(error) = remove_entry(run, directory, &name) {
            run.entry_failed(directory, &name, error);
        }
    }
    Ok(())
}

/// Removes what the filter takes of an entry and below it; tells whether that was all.
fn remove_entry(run: &Run<'_>, directory: &Directory, name: &CStr) -> Result<bool> {
    let mut count = 0;
    let removed = Removal { filter: &run.options.filter, count: &mut count }.remove(
        directory.fd()?.as_fd(),
        name,
        &directory.relative_to(name),
        directory.depth,
    );
    run.tally.deleted(count);
    removed.map_err(|e| directory.failed("remove", name, e))
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

/// Removes trees, never through a link, but for what the filter does not take.
struct Removal<'a> {
    filter: &'a PathFilter,
    /// How many entries went.
    count: &'a mut u64,
}

impl Removal<'_> {
    /// Whether the entry is gone: directories stay if something in them does.
    fn remove(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
        depth: usize,
    ) -> rustix::io::Result<bool> {
        let goes = self.filter.takes(path);
        if goes {
            match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                Ok(()) => {
                    *self.count += 1;
                    return Ok(true);
                }
                Err(Errno::NOENT) => return Ok(true),
                // Which of the two it is depends on the file system.
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error),
            }
        } else if !self.filter.descends(path) {
            return Ok(false);
        }
        if depth > super::MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE;
        let child = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            // Nothing can be below it.
            Err(Errno::NOTDIR | Errno::LOOP) if !goes => return Ok(false),
            child => child?,
        };
        let mut is_empty = true;
        for name in list(child.as_fd())? {
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            is_empty &= self.remove(child.as_fd(), &name, &path, depth + 1)?;
        }
        drop(child);
        if goes && is_empty {
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
            *self.count += 1;
        }
        Ok(goes && is_empty)
    }
}
