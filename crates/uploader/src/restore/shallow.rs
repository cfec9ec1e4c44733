//! Shallow restores: below some depth, placeholders stand for what stays in the repository.

use super::Run;
use super::attributes::{Attributes, Before, On};
use super::target::Directory;
use crate::io::write_at;
use crate::placeholder::{SUFFIX, encode, name_for};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::{DirEntry, EntryType};
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Nobody is to believe that a placeholder can be written to.
const WRITABLE: u32 = 0o222;

/// How deep a restore goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shallow {
    /// Directories are made down to this depth, where 0 is the target itself; of what they hold further down, there are
    /// placeholders.
    pub depth: usize,
    /// Files of fewer bytes are restored at any depth.
    pub min_size: u64,
}

impl Shallow {
    /// The name of the placeholder for an entry of `directory`; `None` if the entry itself is restored: links, devices
    /// and the like are no larger than a placeholder, and what has a long name has no room for the name of one.
    pub(super) fn placeholder(
        &self,
        directory: &Directory,
        name: &CStr,
        entry: &DirEntry,
    ) -> Option<CString> {
        let is_special = entry.extras.as_ref().is_some_and(|extras| extras.kind.is_some());
        let is_left = match entry.entry_type {
            EntryType::Directory => true,
            EntryType::File => !is_special && entry.size >= self.min_size,
            _ => false,
        };
        if is_left && directory.depth >= self.depth { name_for(name) } else { None }
    }
}

/// Writes the placeholder for an entry of `directory`.
pub(super) fn leave(
    run: &Run<'_>,
    directory: &Arc<Directory>,
    name: &CStr,
    placeholder: CString,
    mut entry: DirEntry,
) -> Result<()> {
    if directory.stat(name)?.is_some() {
        let reason = "what it would stand for is there; move that away, or restore it without --shallow";
        let source = std::io::Error::new(std::io::ErrorKind::AlreadyExists, reason);
        return Err(Error::File { action: "write a placeholder for", path: directory.join(name), source });
    }
    forget(directory, name)?;
    let json = encode(&entry)?;
    let is_dir = entry.is_dir();
    let attributes = Attributes::of(&mut entry);
    let attributes = Attributes { mode: attributes.mode & !WRITABLE, extras: None, ..attributes };
    match is_dir {
        true => {
            // Private, as Kopia makes it; the file in it has the attributes.
            let folder = directory.child(placeholder, false, None);
            write(run, &folder, SUFFIX, &json, &attributes)?;
        }
        false => write(run, directory, &placeholder, &json, &attributes)?,
    }
    run.tally.left();
    Ok(())
}

fn write(
    run: &Run<'_>,
    directory: &Directory,
    name: &CStr,
    json: &[u8],
    attributes: &Attributes,
) -> Result<()> {
    let (mode, owner) = run.keep.creation(attributes);
    let (file, given) = directory.create(name, mode, owner)?;
    write_at(&file, json, 0).map_err(|e| directory.failed("write", name, e))?;
    run.set_attributes(directory, Some(name), attributes, On::Open(file.as_fd()), Before::New(given))
}

/// Removes the placeholder of an entry, if there is one: now that the entry itself is there, a backup must not find both.
pub(super) fn forget(directory: &Directory, name: &CStr) -> Result<()> {
    let Some(placeholder) = name_for(name) else { return Ok(()) };
    let Some(stat) = directory.stat(&placeholder)? else { return Ok(()) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => directory.unlink(&placeholder),
        FileType::Directory => {
            let folder = directory.open(&placeholder, OFlags::DIRECTORY)?;
            let removed = match rustix::fs::unlinkat(&folder, SUFFIX, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                outcome => outcome,
            };
            let parent = directory.fd()?;
            match removed.and_then(|()| rustix::fs::unlinkat(&parent, &placeholder, AtFlags::REMOVEDIR)) {
                // Somebody keeps other things there.
                Ok(()) | Err(Errno::NOTEMPTY) => Ok(()),
                Err(error) => Err(directory.failed("remove", &placeholder, error)),
            }
        }
        _ => Ok(()),
    }
}

/// The same for the target of a restore, which need not be in a directory that we may read.
pub(super) fn forget_target(folder: &Path, name: &CStr) -> Result<()> {
    let there = |name: CString| folder.join(OsStr::from_bytes(name.as_bytes())).symlink_metadata().is_ok();
    match name_for(name).is_some_and(there) {
        true => forget(&Directory::top(folder, true, None)?, name),
        false => Ok(()),
    }
}
