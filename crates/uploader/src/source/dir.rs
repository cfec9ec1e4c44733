//! System calls on a directory that is backed up: always relative to it, never through a symbolic link.

use crate::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Whoever can write to the tree could otherwise point us at files outside of it.
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// File systems on which nobody but our own kernel notes when a file changes, as `statfs` names them: ext2 to ext4, XFS,
/// Btrfs, F2FS, ZFS, tmpfs.
const LOCAL: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0x0102_1994];

/// An open directory and its path for messages.
#[derive(Debug)]
pub(crate) struct SourceDir {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
}

impl SourceDir {
    /// Opens the root of a tree; its path is the caller's and may contain links.
    pub(crate) fn root(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::file("open", path, e))?;
        Ok(SourceDir { fd, path: path.to_path_buf() })
    }

    /// Opens a directory in this one.
    pub(crate) fn child(&self, name: &CStr) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(SourceDir { fd, path: self.join(name) }),
            Err(error) => Err(self.failed("open", name, error)),
        }
    }

    /// The path of an entry, for messages.
    pub(crate) fn join(&self, name: &CStr) -> PathBuf {
        self.path.join(OsStr::from_bytes(name.to_bytes()))
    }

    /// What went wrong with an entry.
    pub(crate) fn failed(&self, action: &'static str, name: &CStr, error: Errno) -> Error {
        Error::file(action, &self.join(name), error)
    }

    /// What the directory itself is.
    pub(crate) fn own_stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.fd).map_err(|e| Error::file("examine", &self.path, e))
    }

    /// Whether it is our own kernel that notes when a file of this file system changes, by the clock that we know; if
    /// in doubt, it is not.
    pub(crate) fn has_own_clock(&self) -> bool {
        // The number is a C integer whose width and sign depend on the platform.
        rustix::fs::fstatfs(&self.fd).is_ok_and(|found| LOCAL.contains(&(found.f_type as u32)))
    }

    /// What an entry is.
    pub(crate) fn stat(&self, name: &CStr) -> Result<Stat> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| self.failed("examine", name, e))
    }

    /// Opens a regular file and says what it is. A pipe or device that took its place in the meantime does not block
    /// us, and is refused.
    pub(crate) fn open_file(&self, name: &CStr) -> Result<(OwnedFd, Stat)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | SAFE;
        let open = || {
            let file = match rustix::fs::openat(&self.fd, name, flags | OFlags::NOATIME, Mode::empty()) {
                // Only the owner may leave the time of access alone.
                Err(Errno::PERM) => rustix::fs::openat(&self.fd, name, flags, Mode::empty()),
                opened => opened,
            }?;
            let stat = rustix::fs::fstat(&file)?;
            Ok((file, stat))
        };
        let (file, stat) = open().map_err(|e| self.failed("open", name, e))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((file, stat)),
            _ => Err(Error::file("back up", &self.join(name), changed())),
        }
    }

    /// The target of a link.
    pub(crate) fn read_link(&self, name: &CStr) -> Result<Vec<u8>> {
        rustix::fs::readlinkat(&self.fd, name, Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(|e| self.failed("read the link", name, e))
    }
}

/// An entry was replaced by something else while it was looked at.
pub(crate) fn changed() -> std::io::Error {
    std::io::Error::other("it changed while it was being backed up")
}
