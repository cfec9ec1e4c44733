//! System calls on files, always relative to an open directory and never through a symbolic link.

use crate::{Error, Result};
use lifeboat_kopia::snapshot::{DirEntry, EntryType, GoMode, entry_time};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

    /// Makes a directory in this one, private until it is complete, and opens it. One that is there is kept.
    pub(crate) fn make_child(&self, name: &CStr) -> Result<Self> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => self.child(name),
            Err(error) => Err(Error::file("create", &self.join(name), error)),
        }
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

    /// Creates a file that must not exist, private until it is complete.
    pub(crate) fn create_file(&self, name: &CStr) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE;
        rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::file("create", &self.join(name), e))
    }

    /// The target of a link.
    pub(crate) fn read_link(&self, name: &CStr) -> Result<Vec<u8>> {
        rustix::fs::readlinkat(&self.fd, name, Vec::new())
            .map(CString::into_bytes)
            .map_err(|e| Error::file("read the link", &self.join(name), e))
    }

    /// Makes a link.
    pub(crate) fn make_link(&self, name: &CStr, target: &CStr) -> Result<()> {
        rustix::fs::symlinkat(target, &self.fd, name)
            .map_err(|e| Error::file("create the link", &self.join(name), e))
    }

    /// Removes a file or link; it need not be there.
    pub(crate) fn remove(&self, name: &CStr) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(Error::file("remove", &self.join(name), error)),
        }
    }

    /// Sets owner and time of a link itself.
    pub(crate) fn set_link_attributes(&self, name: &CStr, entry: &DirEntry, owner: bool) -> Result<()> {
        let failed = |e: rustix::io::Errno| Error::file("set the attributes of", &self.join(name), e);
        if owner {
            let (uid, gid) = owner_of(entry);
            rustix::fs::chownat(&self.fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        }
        rustix::fs::utimensat(&self.fd, name, &times_of(entry), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
    }
}

/// Sets owner, mode and time, in this order: a change of owner clears set-uid bits.
pub(crate) fn set_attributes(fd: BorrowedFd<'_>, path: &Path, entry: &DirEntry, owner: bool) -> Result<()> {
    let failed = |e: rustix::io::Errno| Error::file("set the attributes of", path, e);
    if owner {
        let (uid, gid) = owner_of(entry);
        rustix::fs::fchown(fd, uid, gid).map_err(failed)?;
    }
    rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode.to_unix())).map_err(failed)?;
    rustix::fs::futimens(fd, &times_of(entry)).map_err(failed)
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

fn owner_of(entry: &DirEntry) -> (Option<rustix::fs::Uid>, Option<rustix::fs::Gid>) {
    (Some(rustix::fs::Uid::from_raw(entry.uid)), Some(rustix::fs::Gid::from_raw(entry.gid)))
}

fn times_of(entry: &DirEntry) -> rustix::fs::Timestamps {
    let nanoseconds = entry.mtime.as_nanosecond();
    let time = rustix::fs::Timespec {
        // Before 1970 seconds are rounded down, so that the nanoseconds are never negative.
        tv_sec: i64::try_from(nanoseconds.div_euclid(1_000_000_000)).unwrap_or(0),
        tv_nsec: i64::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or(0),
    };
    rustix::fs::Timestamps { last_access: time, last_modification: time }
}
