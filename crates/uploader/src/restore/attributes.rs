//! What an entry has beside its bytes: owner, mode, time, extended attributes.

use super::target::Given;
use lifeboat_kopia::snapshot::{DirEntry, ExactTime, Extras};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Attributes that a change of owner or mode would undo: they come after it.
const LATE: [&[u8]; 3] = [b"system.posix_acl_access", b"system.posix_acl_default", b"security.capability"];
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
/// Without it not even the owner of a file, if not root, may set extended attributes of users.
const WRITABLE: u32 = 0o200;

/// What an entry of a snapshot says about its file.
#[derive(Debug, Clone)]
pub(super) struct Attributes {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    pub(super) time: ExactTime,
    pub(super) extras: Option<Box<Extras>>,
}

impl Attributes {
    pub(super) fn of(entry: &mut DirEntry) -> Self {
        let time = entry.file_time();
        Attributes {
            uid: entry.uid,
            gid: entry.gid,
            mode: entry.mode.to_unix(),
            time,
            extras: entry.extras.take(),
        }
    }

    /// Whether the file may have further names.
    pub(super) fn may_have_names(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.hard_link.is_some())
    }

    /// A program that runs as its owner must not do so for somebody else.
    fn mode_for(&self, is_owner: bool) -> u32 {
        if is_owner { self.mode } else { self.mode & !SET_ID }
    }

    fn times(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.time.seconds, tv_nsec: self.time.nanoseconds.into() };
        Timestamps { last_access: time, last_modification: time }
    }
}

/// Which attributes are restored, and how failures are taken.
#[derive(Debug)]
pub(super) struct Keep {
    pub(super) owner: bool,
    pub(super) permissions: bool,
    pub(super) times: bool,
    pub(super) extras: bool,
    pub(super) ignore_permission_errors: bool,
    /// Whether what the snapshot does not say about extended attributes means that there were none.
    pub(super) extras_are_complete: bool,
    /// How many attributes could not be set, by permission or because the file system has no such thing.
    pub(super) ignored: AtomicU64,
}

/// What attributes are set on.
#[derive(Debug, Clone, Copy)]
pub(super) enum On<'a> {
    /// A file or directory.
    Open(BorrowedFd<'a>),
    /// What cannot be opened: a link, or a special file.
    Named { directory: BorrowedFd<'a>, name: &'a CStr, is_link: bool },
}

/// An extended attribute that the file system has no room for.
#[derive(Debug)]
pub(super) struct Misfit {
    name: String,
    length: usize,
    error: Errno,
}

impl From<Misfit> for std::io::Error {
    /// Not as the number alone: one attribute that does not fit tells nothing about the room for files.
    fn from(misfit: Misfit) -> Self {
        let Misfit { name, length, error } = misfit;
        std::io::Error::other(format!(
            "the extended attribute {name} of {length} bytes does not fit: {error}; all else was set, restore to a \
             file system that has room for it, or without extended attributes"
        ))
    }
}

/// What is known of a file before its attributes are set.
#[derive(Debug, Clone, Copy)]
pub(super) enum Before {
    /// It is new, and has this.
    New(Given),
    /// It was there, or is a directory.
    Old,
}

impl Keep {
    /// The mode to create a file with, and the owner that it must get for that.
    pub(super) fn creation(&self, attributes: &Attributes) -> (u32, Option<(u32, u32)>) {
        let mode = if self.permissions { attributes.mode } else { 0o666 };
        let extras = attributes.extras.as_deref().filter(|_| self.extras);
        // Its own mode comes when they are set.
        let is_marked = extras.is_some_and(has_users) && !rustix::process::geteuid().is_root();
        let mode = if is_marked { mode | WRITABLE } else { mode };
        (mode, self.owner.then_some((attributes.uid, attributes.gid)))
    }

    /// Sets what differs. The order matters: a change of owner clears set-id bits and capabilities, one of the mode
    /// changes access control lists, and everything that writes changes the time. What does not fit keeps nothing else
    /// from being set; the first of it is told.
    pub(super) fn apply(
        &self,
        attributes: &Attributes,
        on: On<'_>,
        before: Before,
    ) -> Result<Option<Misfit>> {
        let mut given = match before {
            Before::New(given) => given,
            Before::Old => on.stat()?,
        };
        let extras = attributes.extras.as_deref().filter(|_| self.extras);
        let mut misfit = None;
        let others = match matches!(before, Before::Old) || given.acl {
            true => self.others(extras, on)?,
            false => Vec::new(),
        };
        let needs_writing =
            extras.is_some_and(has_users) || others.iter().any(|name| is_users(name.to_bytes()));
        let protected = if needs_writing { self.unprotect(&mut given, on) } else { None };
        for name in others {
            match on.remove_xattr(&name) {
                Err(Errno::NODATA) => {}
                outcome => self.tolerate(outcome)?,
            }
        }
        if let Some(extras) = extras {
            misfit = self.set_xattrs(extras, on, false)?;
        }
        let owner = (attributes.uid, attributes.gid);
        if self.owner && (given.uid, given.gid) != owner {
            self.tolerate(on.set_owner(owner))?;
            if attributes.mode & SET_ID != 0 || matches!(before, Before::Old) {
                given = on.stat()?;
            } else {
                (given.uid, given.gid) = owner;
            }
        }
        if self.permissions && !matches!(on, On::Named { is_link: true, .. }) {
            let mode = attributes.mode_for((given.uid, given.gid) == owner || on.is_directory());
            if given.mode != mode {
                self.tolerate(on.set_mode(mode))?;
            }
        }
        if let Some(extras) = extras {
            misfit = misfit.or(self.set_xattrs(extras, on, true)?);
        }
        if let Some(mode) = protected.filter(|_| !self.permissions) {
            self.tolerate(on.set_mode(mode))?;
        }
        if self.times {
            self.tolerate(on.set_times(&attributes.times()))?;
        }
        Ok(misfit)
    }

    /// Lets the owner of a file set what takes the right to write to it; returns the mode that it had. That of somebody
    /// else's file cannot be changed, and neither can its attributes, which is told then.
    fn unprotect(&self, given: &mut Given, on: On<'_>) -> Option<u32> {
        let mode = given.mode;
        // The kernel may take set-group-id from a file whose mode changes.
        let stays = !self.permissions && mode & 0o2000 != 0;
        let is_protected = mode & WRITABLE == 0 && matches!(on, On::Open(_)) && !stays;
        if !is_protected || rustix::process::geteuid().is_root() || on.set_mode(mode | WRITABLE).is_err() {
            return None;
        }
        given.mode |= WRITABLE;
        Some(mode)
    }

    /// Whether a file that is there has these attributes, beside its time and what it cannot be given anyway.
    pub(super) fn are_set(&self, attributes: &Attributes, on: On<'_>) -> Result<bool> {
        let given = on.stat()?;
        let is_root = rustix::process::geteuid().is_root();
        let is_owner = (given.uid, given.gid) == (attributes.uid, attributes.gid);
        // Nobody but root gives files away.
        let has_owner = is_owner || !self.owner || !is_root;
        let has_mode = !self.permissions || given.mode == attributes.mode_for(is_owner);
        let extras = attributes.extras.as_deref().filter(|_| self.extras);
        let lacks = |name: &[u8], value: &[u8]| -> Result<bool> {
            let name_there = CString::new(name).map_err(|_| Errno::INVAL)?;
            Ok(match on.xattr(&name_there, value.len()) {
                Ok(found) => found != value,
                Err(Errno::NODATA) => is_root || is_owners(name),
                Err(error) => error == Errno::RANGE,
            })
        };
        for (name, value) in extras.iter().flat_map(|extras| &extras.xattrs) {
            if lacks(&name.0, &value.0)? {
                return Ok(false);
            }
        }
        Ok(has_owner && has_mode && self.others(extras, on)?.is_empty())
    }

    fn set_xattrs(&self, extras: &Extras, on: On<'_>, late: bool) -> Result<Option<Misfit>> {
        let mut misfit = None;
        for (name, value) in extras.xattrs.iter().filter(|(name, _)| LATE.contains(&&name.0[..]) == late) {
            let name = CString::new(&name.0[..]).map_err(|_| Errno::INVAL)?;
            match on.set_xattr(&name, &value.0) {
                Err(error @ (Errno::NOSPC | Errno::TOOBIG | Errno::RANGE)) => {
                    let (name, length) = (name.to_string_lossy().into_owned(), value.0.len());
                    misfit.get_or_insert(Misfit { name, length, error });
                }
                outcome => self.tolerate(outcome)?,
            }
        }
        Ok(misfit)
    }

    /// Extended attributes that a file has and its entry is known not to have.
    fn others(&self, extras: Option<&Extras>, on: On<'_>) -> Result<Vec<CString>> {
        if !self.extras || !self.extras_are_complete {
            return Ok(Vec::new());
        }
        let names = on.xattrs().unwrap_or_default();
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let is_wanted =
            |name: &[u8]| extras.is_some_and(|extras| extras.xattrs.keys().any(|key| key.0 == name));
        let is_other = |name: &&[u8]| (is_owners(name) || LATE.contains(name)) && !is_wanted(name);
        names.filter(is_other).map(|name| CString::new(name).map_err(|_| Errno::INVAL)).collect()
    }

    /// Counts what may fail, if it may.
    fn tolerate(&self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) if self.ignore_permission_errors => {
                self.ignored.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// Whether an extended attribute is one that the owner of a file may set.
fn is_owners(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

/// Whether an extended attribute is one that takes the right to write to its file.
fn is_users(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

fn has_users(extras: &Extras) -> bool {
    extras.xattrs.keys().any(|name| is_users(&name.0))
}

impl On<'_> {
    fn stat(&self) -> Result<Given> {
        let stat = match self {
            On::Open(fd) => rustix::fs::fstat(fd)?,
            On::Named { directory, name, .. } => {
                rustix::fs::statat(directory, *name, AtFlags::SYMLINK_NOFOLLOW)?
            }
        };
        Ok(Given::of(&stat))
    }

    fn is_directory(&self) -> bool {
        let is_directory = |stat: rustix::fs::Stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
        };
        matches!(self, On::Open(fd) if rustix::fs::fstat(fd).is_ok_and(is_directory))
    }

    fn set_owner(&self, (uid, gid): (u32, u32)) -> Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            On::Open(fd) => rustix::fs::fchown(fd, uid, gid),
            On::Named { directory, name, .. } => {
                rustix::fs::chownat(directory, *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    fn set_mode(&self, mode: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            On::Open(fd) => rustix::fs::fchmod(fd, mode),
            // By name the kernel would follow a link that took its place.
            On::Named { directory, name, .. } => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = rustix::fs::openat(directory, *name, flags, Mode::empty())?;
                rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)
            }
        }
    }

    fn set_times(&self, times: &Timestamps) -> Result<()> {
        match self {
            On::Open(fd) => rustix::fs::futimens(fd, times),
            On::Named { directory, name, .. } => {
                rustix::fs::utimensat(directory, *name, times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }

    fn set_xattr(&self, attribute: &CStr, value: &[u8]) -> Result<()> {
        match self {
            On::Open(fd) => rustix::fs::fsetxattr(fd, attribute, value, XattrFlags::empty()),
            On::Named { .. } => {
                rustix::fs::lsetxattr(self.proc_path(), attribute, value, XattrFlags::empty())
            }
        }
    }

    /// The value of an extended attribute that is no longer than `length`.
    fn xattr(&self, attribute: &CStr, length: usize) -> Result<Vec<u8>> {
        // Without any room, only the length would be told.
        let mut value = vec![0; length + 1];
        let length = match self {
            On::Open(fd) => rustix::fs::fgetxattr(fd, attribute, &mut value[..])?,
            On::Named { .. } => rustix::fs::lgetxattr(self.proc_path(), attribute, &mut value[..])?,
        };
        value.truncate(length);
        Ok(value)
    }

    fn remove_xattr(&self, attribute: &CStr) -> Result<()> {
        match self {
            On::Open(fd) => rustix::fs::fremovexattr(fd, attribute),
            On::Named { .. } => rustix::fs::lremovexattr(self.proc_path(), attribute),
        }
    }

    /// The names of its extended attributes, each ended by a zero.
    fn xattrs(&self) -> Result<Vec<u8>> {
        let mut names = vec![0; 64 << 10];
        let length = match self {
            On::Open(fd) => rustix::fs::flistxattr(fd, &mut names[..])?,
            On::Named { .. } => rustix::fs::llistxattr(self.proc_path(), &mut names[..])?,
        };
        names.truncate(length);
        Ok(names)
    }

    /// A path for calls that know no open directories.
    fn proc_path(&self) -> PathBuf {
        match self {
            On::Open(fd) => PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())),
            On::Named { directory, name, .. } => {
                let directory = format!("/proc/self/fd/{}", directory.as_raw_fd());
                PathBuf::from(directory).join(OsStr::from_bytes(name.to_bytes()))
            }
        }
    }
}
