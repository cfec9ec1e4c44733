//! The directories of the target: opened one step at a time, never through a link, and not too many at once.
//!
//! Whoever names a file does so relative to its open directory and by a single name. So neither a snapshot with
//! hostile names nor somebody who exchanges directories for links meanwhile can lead out of the target, on any
//! kernel and any file system.

use super::attributes::Attributes;
use crate::{Error, Result};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Flags for opening something that must not be a link. A pipe that took its place does not block us.
pub(super) const SAFE: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// More would not make anything faster.
const MOST_OPEN: u64 = 512;
/// With fewer nothing works.
const LEAST_OPEN: u64 = 16;

/// What is open. Beyond a limit, what was opened longest ago is closed, and opened again when it is needed.
#[derive(Debug)]
pub(super) struct OpenFiles {
    limit: usize,
    open: Mutex<VecDeque<Weak<Slot>>>,
}

/// A file or directory that may be open.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<Option<Arc<OwnedFd>>>);

impl OpenFiles {
    /// At most a quarter of what the process may open: others open files, too.
    pub(super) fn new() -> Self {
        let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = (allowed.unwrap_or(u64::MAX) / 4).clamp(LEAST_OPEN, MOST_OPEN) as usize;
        OpenFiles { limit, open: Mutex::default() }
    }

    /// What is in `slot`, opened by `open` if it is not.
    pub(super) fn get(
        &self,
        slot: &Arc<Slot>,
        open: impl FnOnce() -> Result<OwnedFd>,
    ) -> Result<Arc<OwnedFd>> {
        let mut held = slot.0.lock();
        if let Some(fd) = &*held {
            return Ok(fd.clone());
        }
        let fd = Arc::new(open()?);
        *held = Some(fd.clone());
        drop(held);
        let oldest = {
            let mut open = self.open.lock();
            open.push_back(Arc::downgrade(slot));
            if open.len() > self.limit { open.pop_front() } else { None }
        };
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            oldest.close();
        }
        Ok(fd)
    }
}

impl Slot {
    fn opened(&self) -> Option<Arc<OwnedFd>> {
        self.0.lock().clone()
    }

    pub(super) fn close(&self) {
        self.0.lock().take();
    }
}

/// What a new file in a directory gets without being asked: owner and group from the process or the directory, of the
/// mode what the process's mask leaves, and an access control list if the directory hands one down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
    pub(super) acl: bool,
}

impl Given {
    /// What a file has that was not asked about its access control list.
    pub(super) fn of(stat: &Stat) -> Self {
        Given { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o7777, acl: false }
    }

    /// What a new file got from `directory`; or a new directory, itself, which hands down what it was handed.
    pub(super) fn by(directory: impl AsFd, stat: &Stat) -> Self {
        let length = rustix::fs::fgetxattr(directory, c"system.posix_acl_default", &mut [0; 0][..]);
        Given { acl: length.is_ok(), ..Given::of(stat) }
    }
}

/// A directory of the target.
#[derive(Debug)]
pub(super) struct Directory {
    place: Place,
    slot: Arc<Slot>,
    /// What is open in the whole target.
    files: Arc<OpenFiles>,
    /// Whether it was there before; otherwise it holds nothing but what we put there.
    pub(super) existed: bool,
    /// Whether it is there by now.
    is_made: AtomicBool,
    /// What it gets when it is complete; nothing if it is not part of the snapshot.
    pub(super) attributes: Option<Attributes>,
    /// Entries that are not complete, and the walk while it may find more.
    outstanding: AtomicUsize,
    /// What files got that were created with a mode.
    given: Mutex<Vec<(u32, Given)>>,
    /// Where its name is written, if it is; 0 if not.
    noted: AtomicU64,
    pub(super) depth: usize,
}

#[derive(Debug)]
enum Place {
    /// The target, which is always open; its path is the caller's and may contain links.
    Top {
        path: PathBuf,
        fd: Arc<OwnedFd>,
    },
    In {
        parent: Arc<Directory>,
        name: CString,
    },
}

impl Directory {
    /// Opens the target.
    pub(super) fn top(path: &Path, existed: bool, attributes: Option<Attributes>) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::file("open", path, e))?;
        let place = Place::Top { path: path.to_path_buf(), fd: Arc::new(fd) };
        Ok(Directory::new(place, Arc::new(OpenFiles::new()), existed, attributes, 0))
    }

    /// A directory in this one; if it did not exist it is made when it is first needed.
    pub(super) fn child(
        self: &Arc<Self>,
        name: CString,
        existed: bool,
        attributes: Option<Attributes>,
    ) -> Self {
        let place = Place::In { parent: self.clone(), name };
        Directory::new(place, self.files.clone(), existed, attributes, self.depth + 1)
    }

    /// Whether it is there by now.
    pub(super) fn is_made(&self) -> bool {
        self.is_made.load(Ordering::Relaxed)
    }

    fn new(
        place: Place,
        files: Arc<OpenFiles>,
        existed: bool,
        attributes: Option<Attributes>,
        depth: usize,
    ) -> Self {
        Directory {
            slot: Arc::default(),
            files,
            existed,
            is_made: AtomicBool::new(existed || matches!(place, Place::Top { .. })),
            place,
            attributes,
            outstanding: AtomicUsize::new(1),
            given: Mutex::default(),
            noted: AtomicU64::new(0),
            depth,
        }
    }

    /// Where its name is written; 0 if nowhere.
    pub(super) fn noted(&self) -> u64 {
        self.noted.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, place: u64) {
        self.noted.store(place, Ordering::Relaxed);
    }

    /// What is open in the whole target.
    pub(super) fn files(&self) -> &OpenFiles {
        &self.files
    }

    /// The open directory; made, private until it is complete, if it is not there.
    pub(super) fn fd(&self) -> Result<Arc<OwnedFd>> {
        // Upwards to the next one that is open, and down again. Not by recursion: trees may be deep.
        let mut closed = Vec::new();
        let mut at = self;
        let mut fd = loop {
            match &at.place {
                Place::Top { fd, .. } => break fd.clone(),
                Place::In { parent, .. } => match at.slot.opened() {
                    Some(fd) => break fd,
                    None => {
                        closed.push(at);
                        at = parent;
                    }
                },
            }
        };
        while let Some(directory) = closed.pop() {
            fd = self.files.get(&directory.slot, || directory.open_in(&fd))?;
        }
        Ok(fd)
    }

    fn open_in(&self, parent: &OwnedFd) -> Result<OwnedFd> {
        let Place::In { name, .. } = &self.place else {
            return Err(Error::file("open", &self.path(), Errno::INVAL));
        };
        if !self.is_made() {
            rustix::fs::mkdirat(parent, name, Mode::RWXU)
                .map_err(|e| Error::file("create", &self.path(), e))?;
            self.is_made.store(true, Ordering::Relaxed);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | SAFE;
        rustix::fs::openat(parent, name, flags, Mode::empty())
            .map_err(|e| Error::file("open", &self.path(), e))
    }

    /// Its path, for messages.
    pub(super) fn path(&self) -> PathBuf {
        match &self.place {
            Place::Top { path, .. } => path.clone(),
            Place::In { .. } => self.top_path().join(self.relative()),
        }
    }

    fn top_path(&self) -> &Path {
        self.the_top().0
    }

    /// The open target.
    pub(super) fn target(&self) -> Arc<OwnedFd> {
        self.the_top().1.clone()
    }

    fn the_top(&self) -> (&Path, &Arc<OwnedFd>) {
        let mut at = self;
        loop {
            match &at.place {
                Place::Top { path, fd } => return (path, fd),
                Place::In { parent, .. } => at = parent,
            }
        }
    }

    /// Its path below the target.
    pub(super) fn relative(&self) -> PathBuf {
        let mut names = Vec::new();
        let mut at = self;
        while let Place::In { parent, name } = &at.place {
            names.push(OsStr::from_bytes(name.to_bytes()));
            at = parent;
        }
        names.into_iter().rev().collect()
    }

    /// The path of an entry, for messages.
    pub(super) fn join(&self, name: &CStr) -> PathBuf {
        self.path().join(OsStr::from_bytes(name.to_bytes()))
    }

    /// The path of an entry below the target.
    pub(super) fn relative_to(&self, name: &CStr) -> PathBuf {
        self.relative().join(OsStr::from_bytes(name.to_bytes()))
    }

    pub(super) fn failed(&self, action: &'static str, name: &CStr, error: impl Into<io::Error>) -> Error {
        Error::file(action, &self.join(name), error)
    }

    /// What an entry is; `None` if it is not there.
    pub(super) fn stat(&self, name: &CStr) -> Result<Option<Stat>> {
        if !self.is_made() {
            return Ok(None);
        }
        match rustix::fs::statat(&self.fd()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("examine", name, error)),
        }
    }

    /// Removes what is not a directory; it need not be there.
    pub(super) fn unlink(&self, name: &CStr) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd()?, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failed("remove", name, error)),
        }
    }

    /// Gives an entry another name, in the place of what has that name.
    pub(super) fn rename(&self, name: &CStr, new: &CStr) -> Result<()> {
        let fd = self.fd()?;
        rustix::fs::renameat(&fd, name, &fd, new).map_err(|e| self.failed("create", new, e))
    }

    /// Opens a file that is there, also if only its mode is against it and it is ours.
    pub(super) fn open(&self, name: &CStr, flags: OFlags) -> Result<OwnedFd> {
        let fd = self.fd()?;
        match rustix::fs::openat(&fd, name, flags | SAFE, Mode::empty()) {
            Err(Errno::ACCESS) => open_own(&fd, name, flags),
            outcome => outcome,
        }
        .map_err(|e| self.failed("open", name, e))
    }

    /// Opens a file that is there for reading, if its mode lets us: nothing about it changes.
    pub(super) fn open_unchanged(&self, name: &CStr) -> Result<OwnedFd> {
        rustix::fs::openat(&self.fd()?, name, OFlags::RDONLY | SAFE, Mode::empty())
            .map_err(|e| self.failed("open", name, e))
    }

    /// Creates a file that must not be there. If it will have `owner` anyway it may have `mode` from the start, else it
    /// is private until it has another owner. What it got is asked for once for each mode, and then known.
    pub(super) fn create(
        &self,
        name: &CStr,
        mode: u32,
        owner: Option<(u32, u32)>,
    ) -> Result<(OwnedFd, Given)> {
        let known = |mode: u32| self.given.lock().iter().find(|(asked, _)| *asked == mode).map(|g| g.1);
        let is_right = |given: Given| owner.is_none_or(|owner| owner == (given.uid, given.gid));
        let first = self.given.lock().first().map(|given| given.1);
        let mode = match first {
            Some(given) if is_right(given) => mode & 0o777,
            _ => 0o600,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | SAFE;
        let fd = rustix::fs::openat(&self.fd()?, name, flags, Mode::from_raw_mode(mode))
            .map_err(|e| self.failed("create", name, e))?;
        let given = match known(mode) {
            Some(given) => given,
            None => {
                let stat = rustix::fs::fstat(&fd).map_err(|e| self.failed("examine", name, e))?;
                let given = Given::by(&self.fd()?, &stat);
                self.given.lock().push((mode, given));
                given
            }
        };
        Ok((fd, given))
    }

    /// Something of this directory is now outstanding.
    pub(super) fn expect(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    /// Something of it is done; `true` if that was the last.
    pub(super) fn is_complete(&self) -> bool {
        self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(super) fn parent(&self) -> Option<&Arc<Directory>> {
        self.place().map(|(parent, _)| parent)
    }

    /// The directory that it is in, and its name there; `None` for the target.
    pub(super) fn place(&self) -> Option<(&Arc<Directory>, &CStr)> {
        match &self.place {
            Place::Top { .. } => None,
            Place::In { parent, name } => Some((parent, name)),
        }
    }
}

/// Opens a file whose mode does not let its owner, who has the right to change that, and does so for the moment.
fn open_own(directory: &OwnedFd, name: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // Of two that change the mode of one file, the second would take what it is for the moment for what it was.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    let place = rustix::fs::openat(
        directory,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let stat = rustix::fs::fstat(&place)?;
    // The kernel takes set-group-id from whoever changes a mode and is not of the group, and does not give it back.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_mode & 0o2000 != 0 {
        return Err(Errno::ACCESS);
    }
    // By this path it is the same file, whatever has its name meanwhile.
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    rustix::fs::chmod(&path, mode | Mode::RUSR | Mode::WUSR).map_err(|_| Errno::ACCESS)?;
    let opened = rustix::fs::open(&path, (flags | SAFE).difference(OFlags::NOFOLLOW), Mode::empty());
    rustix::fs::chmod(&path, mode)?;
    opened
}
