//! System calls on files, always relative to an open directory and never through a symbolic link.

use crate::{Error, Result};
use lifeboat_kopia::snapshot::{DirEntry, EntryType, GoMode, entry_time};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Flags for opening something that must not be a link: whoever can write to the tree could otherwise point us
/// at files outside of it.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// A directory to be read or filled, and its path for messages.
#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
}

impl OpenDir {
    /// Opens the root of a tree; its path is the caller's and may contain links.
    pub(crate) fn root(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::file("open", path, e))?;
        Ok(OpenDir { fd, path: path.to_path_buf() })
    }

    /// Opens a directory in this one.
    pub(crate) fn child(&self, name: &CStr) -> Result<Self> {
        let path = self.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty());
        Ok(OpenDir { fd: fd.map_err(|e| Error::file("open", &path, e))?, path })
    }

    /// The path of an entry, for messages.
    pub(crate) fn join(&self, name: &CStr) -> PathBuf {
        self.path.join(std::ffi::OsStr::from_bytes(name.to_bytes()))
    }

    /// The names in this directory, in bytewise order.
    pub(crate) fn names(&self) -> Result<Vec<CString>> {
        let failed = |e: rustix::io::Errno| Error::file("list", &self.path, e);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// What an entry is.
    pub(crate) fn stat(&self, name: &CStr) -> Result<Stat> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| Error::file("examine", &self.join(name), e))
    }

    /// Opens a regular file for reading. A pipe that took its place in the meantime does not block us.
    pub(crate) fn open_file(&self, name: &CStr) -> Result<OwnedFd> {
        rustix::fs::openat(&self.fd, name, OFlags::RDONLY | OFlags::NONBLOCK | SAFE, Mode::empty())
            .map_err(|e| Error::file("open", &self.join(name), e))
    }

    /// The target of a link.
    pub(crate) fn read_link(&self, name: &CStr) -> Result<Vec<u8>> {
        rustix::fs::readlinkat(&self.fd, name, Vec::new())
            .map(CString::into_bytes)
            .map_err(|e| Error::file("read the link", &self.join(name), e))
    }
}

/// Reads into `buffer` until it is full or the file ends.
pub(crate) fn read_full(fd: impl AsFd, buffer: &mut [u8], path: &Path) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::read(&fd, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::file("read", path, error)),
        }
    }
    Ok(filled)
}

/// The entry of something, without its object; `None` for what Kopia does not keep (devices, pipes, sockets).
pub(crate) fn entry_of(name: &str, stat: &Stat) -> Option<DirEntry> {
    let entry_type = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryType::File,
        FileType::Directory => EntryType::Directory,
        FileType::Symlink => EntryType::Symlink,
        _ => return None,
    };
    // Of a directory only what is below counts; of a link the length of its target, which the caller sets.
    let size = if entry_type == EntryType::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    Some(DirEntry {
        name: name.into(),
        entry_type,
        mode: GoMode::from_unix(stat.st_mode),
        size,
        mtime: entry_time(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        uid: stat.st_uid,
        gid: stat.st_gid,
        ..DirEntry::default()
    })
}
