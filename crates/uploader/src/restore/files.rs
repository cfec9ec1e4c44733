//! Regular files: their bytes come in pieces, in any order, from several threads.
//!
//! A file that comes in one piece, as most do, is created, written and finished at once. Others are created at their
//! first piece and finished after their last one. The time of modification is set last of all: a file that is not
//! whole never looks like one that is, which is what resuming relies on.

use super::attributes::{Attributes, Before, On};
use super::links::{Settled, link_at, link_there, lost};
use super::shallow;
use super::sparse::{self, Segment};
use super::target::{Directory, Given, Slot};
use super::{Run, is_fatal};
use crate::io::{fills, write_at};
use crate::{Error, Result};
use lifeboat_repository::Destination;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FileType, OFlags, Stat};
use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// How a file comes to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// As a new one; nothing is there, or what is there goes first.
    New {
        /// Whether something is there.
        replaces: bool,
    },
    /// What differs is written into the one that is there.
    InPlace,
    /// As a new one under another name, which takes the place of the one that is there when it is whole.
    Aside,
}

/// A file that is being restored.
pub(super) struct File<'a> {
    run: &'a Run<'a>,
    directory: Arc<Directory>,
    name: CString,
    size: u64,
    attributes: Attributes,
    how: How,
    /// What it is called until it is whole, if nobody is to see it before.
    temporary: Option<CString>,
    slot: Arc<Slot>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether it has been given its name, if it had another one before.
    is_named: bool,
    /// Which file it is, once it is there, so that it is known again when it is opened again.
    identity: Option<Identity>,
    /// Whether all bytes are there, so that only attributes can be missing.
    has_bytes: bool,
    ended: Option<Ended>,
    /// Further names that it has by now, or gets when it is whole if nobody is to see it before.
    links: Vec<(Arc<Directory>, CString)>,
}

#[derive(Clone, Copy)]
struct Identity {
    device: u64,
    inode: u64,
    before: Before,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// It was written and got its attributes.
    Whole,
    Failed,
}

impl<'a> File<'a> {
    /// A file of `directory`, which waits for it.
    pub(super) fn new(
        run: &'a Run<'a>,
        directory: &Arc<Directory>,
        name: CString,
        size: u64,
        attributes: Attributes,
        how: How,
    ) -> Self {
        directory.expect();
        File {
            run,
            directory: directory.clone(),
            name,
            size,
            attributes,
            how,
            temporary: match how {
                How::InPlace => None,
                How::New { .. } if !run.options.atomic => None,
                How::New { .. } | How::Aside => run.temporary.next(),
            },
            slot: Arc::default(),
            state: Mutex::default(),
        }
    }

    /// What it is called now.
    fn current_name(&self, state: &State) -> &CStr {
        match &self.temporary {
            Some(temporary) if !state.is_named => temporary,
            _ => &self.name,
        }
    }

    /// Gives a whole file its name, in the place of what has it.
    fn take_name(&self) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(temporary) = self.temporary.as_ref().filter(|_| !state.is_named) {
            self.directory.rename(temporary, &self.name)?;
            state.is_named = true;
        }
        Ok(())
    }

    /// Whether the repository should first ask what is there.
    pub(super) fn compares(&self) -> bool {
        self.how == How::InPlace
    }

    /// Gives the file a further name in `directory`. It need not be whole for that.
    pub(super) fn link(&self, directory: &Arc<Directory>, name: CString) -> Result<()> {
        {
            let mut state = self.state.lock();
            match state.ended {
                Some(Ended::Failed) => return Err(lost(directory, &name)),
                Some(Ended::Whole) => {}
                None if self.temporary.is_some() => {
                    directory.expect();
                    state.links.push((directory.clone(), name));
                    return Ok(());
                }
                None => {
                    // One that is there stays, and may not let us open it any more once it is whole.
                    if state.identity.is_none() {
                        self.open(&mut state)?;
                    }
                    // It is counted with the file. Nobody can find it whole, or failed, before it is noted.
                    link_at(&*self.directory.fd()?, &self.name, directory, &name)?;
                    state.links.push((directory.clone(), name));
                    return Ok(());
                }
            }
        }
        link_there(self.run, &self.directory, &self.name, directory, &name)
    }

    /// What became of it.
    pub(super) fn settled(&self) -> Option<Settled<'_>> {
        self.state.lock().ended.map(|ended| match ended {
            Ended::Whole => Settled::There(&self.directory, &self.name),
            Ended::Failed => Settled::Lost,
        })
    }

    /// Whether it is what `directory` has under `name`.
    fn is_at(&self, directory: &Directory, name: &CStr) -> Result<bool> {
        let Some(stat) = directory.stat(name)? else { return Ok(false) };
        let identity = self.state.lock().identity;
        Ok(identity.is_some_and(|own| (own.device, own.inode) == (stat.st_dev, stat.st_ino)))
    }

    /// The open file; created if it is not there yet.
    fn handle(&self) -> Result<Arc<OwnedFd>> {
        self.open(&mut self.state.lock())
    }

    fn open(&self, state: &mut State) -> Result<Arc<OwnedFd>> {
        if state.ended == Some(Ended::Failed) {
            return Err(lost(&self.directory, &self.name));
        }
        self.directory.files().get(&self.slot, || match state.identity {
            Some(identity) => self.reopen(self.current_name(state), identity),
            None => {
                let (fd, identity) = self.make()?;
                state.identity = Some(identity);
                Ok(fd)
            }
        })
    }

    /// Creates the file, or opens the one that is there, and gives it its size.
    fn make(&self) -> Result<(OwnedFd, Identity)> {
        let (fd, before) = match self.how {
            How::New { .. } | How::Aside => {
                let (fd, given) = self.create()?;
                (fd, Before::New(given))
            }
            How::InPlace => (self.directory.open(&self.name, OFlags::RDWR)?, Before::Old),
        };
        let stat = self.stat(&fd)?;
        // What it was decided by may be long ago: through a name that it got since, something else would be written to.
        if self.how == How::InPlace && stat.st_nlink != 1 {
            return Err(self.exchanged());
        }
        if stat.st_size != self.size as i64 {
            rustix::fs::ftruncate(&fd, self.size)
                .map_err(|e| self.directory.failed("set the size of", &self.name, e))?;
        }
        Ok((fd, Identity { device: stat.st_dev, inode: stat.st_ino, before }))
    }

    fn create(&self) -> Result<(OwnedFd, Given)> {
        let (mode, owner) = self.run.keep.creation(&self.attributes);
        if let Some(temporary) = &self.temporary {
            return self.directory.create(temporary, mode, owner);
        }
        if self.how == (How::New { replaces: true }) {
            self.directory.unlink(&self.name)?;
        }
        self.directory.create(&self.name, mode, owner)
    }

    fn stat(&self, fd: &OwnedFd) -> Result<Stat> {
        let stat = rustix::fs::fstat(fd).map_err(|e| self.directory.failed("examine", &self.name, e))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(stat),
            _ => Err(self.exchanged()),
        }
    }

    fn reopen(&self, name: &CStr, identity: Identity) -> Result<OwnedFd> {
        let fd = self.directory.open(name, OFlags::RDWR)?;
        let stat = self.stat(&fd)?;
        match (stat.st_dev, stat.st_ino) == (identity.device, identity.inode) {
            true => Ok(fd),
            false => Err(self.exchanged()),
        }
    }

    fn exchanged(&self) -> Error {
        let source = std::io::Error::other("somebody put something else in its place meanwhile");
        Error::File { action: "write", path: self.directory.join(&self.name), source }
    }

    /// Creates, writes and finishes a file whose bytes are all here. Not one with further names: whoever makes those must
    /// find it again.
    fn write_whole(&self, bytes: &[u8]) -> Result<()> {
        let (fd, given) = self.create()?;
        let write = || match self.is_sparse(bytes.len()) {
            true => {
                rustix::fs::ftruncate(&fd, self.size)
                    .map_err(|e| self.directory.failed("set the size of", &self.name, e))?;
                self.write_segments(&fd, 0, bytes)
            }
            false => self.write(&fd, bytes, 0),
        };
        if let Err(error) = write() {
            let _ = self.directory.unlink(self.temporary.as_ref().unwrap_or(&self.name));
            return Err(error);
        }
        self.set_attributes(&fd, Before::New(given))?;
        self.take_name()
    }

    fn is_sparse(&self, length: usize) -> bool {
        let holes =
            self.attributes.extras.as_ref().is_some_and(|extras| extras.holes.iter().next().is_some());
        self.run.options.sparse && (holes || length >= sparse::WORTHWHILE)
    }

    fn set_attributes(&self, fd: &OwnedFd, before: Before) -> Result<()> {
        let on = On::Open(fd.as_fd());
        self.run.set_attributes(&self.directory, Some(&self.name), &self.attributes, on, before)
    }

    fn write(&self, fd: &OwnedFd, bytes: &[u8], offset: u64) -> Result<()> {
        write_at(fd, bytes, offset).map_err(|e| self.directory.failed("write", &self.name, e))
    }

    /// Zeros that are too many to be worth looking at: what is a hole is not written.
    fn take_zeros(&self, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length).filter(|end| *end <= self.size);
        let end = end.ok_or_else(|| self.wrong_size("more"))?;
        let fd = self.handle()?;
        let recorded = self.attributes.extras.as_deref().map(|extras| &extras.holes);
        for (range, is_hole) in sparse::zeros(recorded, offset..end) {
            match is_hole && self.run.options.sparse {
                true => self.make_hole(&fd, range)?,
                false => self.write_zeros(&fd, range)?,
            }
        }
        self.run.progress.bytes_done(length);
        Ok(())
    }

    fn write_zeros(&self, fd: &OwnedFd, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let step = (range.end - at).min(ZEROS.len() as u64);
            self.write(fd, &ZEROS[..step as usize], at)?;
            at += step;
        }
        Ok(())
    }

    /// Writes what is not a hole, and makes holes of the rest.
    fn write_segments(&self, fd: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<()> {
        let extras = self.attributes.extras.as_deref();
        for segment in sparse::segments(extras.map(|extras| &extras.holes), offset, bytes) {
            match segment {
                Segment::Data(range) => {
                    let at = offset + range.start as u64;
                    self.write(fd, &bytes[range], at)?;
                }
                Segment::Hole(range) => {
                    self.make_hole(fd, offset + range.start as u64..offset + range.end as u64)?;
                }
            }
        }
        Ok(())
    }

    /// A new file is all hole until something is written; in another one whatever is there has to go.
    fn make_hole(&self, fd: &OwnedFd, range: Range<u64>) -> Result<()> {
        if self.how != How::InPlace {
            return Ok(());
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(fd, punch, range.start, range.end - range.start) {
            Ok(()) => Ok(()),
            Err(_) => self.write_zeros(fd, range),
        }
    }

    fn take(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            return Err(self.wrong_size("more"));
        }
        let is_first = || self.state.lock().identity.is_none();
        let is_whole = length == self.size && self.how != How::InPlace && !self.attributes.may_have_names();
        if is_whole && is_first() {
            self.write_whole(bytes)?;
            self.state.lock().ended = Some(Ended::Whole);
        } else {
            let fd = self.handle()?;
            match self.run.options.sparse {
                true => self.write_segments(&fd, offset, bytes)?,
                false => self.write(&fd, bytes, offset)?,
            }
        }
        self.run.progress.bytes_done(length);
        Ok(())
    }

    fn wrong_size(&self, than: &str) -> Error {
        let reason = format!("its object has {than} bytes than the {} that the directory says", self.size);
        let path = self.directory.join(&self.name);
        Error::File { action: "restore", path, source: std::io::Error::other(reason) }
    }

    /// All bytes are there.
    fn finish(&self, length: u64) -> Result<()> {
        if length != self.size {
            return Err(self.wrong_size("fewer"));
        }
        if self.state.lock().ended.is_none() {
            let fd = self.handle()?;
            let before = {
                let mut state = self.state.lock();
                state.has_bytes = true;
                state.identity.map_or(Before::Old, |identity| identity.before)
            };
            self.set_attributes(&fd, before)?;
            self.slot.close();
            self.take_name()?;
        }
        if self.directory.existed {
            shallow::forget(&self.directory, &self.name)?;
        }
        let mut state = self.state.lock();
        state.ended = Some(Ended::Whole);
        if self.temporary.is_none() {
            (0..=state.links.len()).for_each(|_| self.run.progress.file_done());
            return Ok(());
        }
        let links = std::mem::take(&mut state.links);
        drop(state);
        self.run.progress.file_done();
        for (directory, name) in links {
            if let Err(error) = link_there(self.run, &self.directory, &self.name, &directory, &name) {
                self.run.entry_failed(&directory, &name, error);
            }
            self.run.part_done(&directory);
        }
        Ok(())
    }

    /// Gives the file up. One that is not whole must not look like one that is: it goes, unless it was there before.
    fn fail(&self, error: Error) -> ControlFlow<()> {
        let (links, is_partial, name) = {
            let mut state = self.state.lock();
            if state.ended.replace(Ended::Failed) == Some(Ended::Failed) {
                return ControlFlow::Break(());
            }
            let is_partial = state.identity.is_some() && !state.has_bytes && self.how != How::InPlace;
            (std::mem::take(&mut state.links), is_partial, self.current_name(&state).to_owned())
        };
        self.slot.close();
        if is_fatal(&error) {
            self.run.stop_with(error);
            return ControlFlow::Break(());
        }
        if is_partial && self.is_at(&self.directory, &name).unwrap_or(false) {
            let _ = self.directory.unlink(&name);
        }
        for (directory, name) in links.into_iter().filter(|_| is_partial || self.temporary.is_some()) {
            self.run.entry_failed(&directory, &name, lost(&directory, &name));
            match self.temporary {
                // It has not been made, and what is there stays.
                Some(_) => self.run.part_done(&directory),
                None => _ = directory.unlink(&name),
            }
        }
        self.run.entry_failed(&self.directory, &self.name, error);
        self.run.part_done(&self.directory);
        ControlFlow::Break(())
    }

    fn go_on(&self, outcome: Result<()>) -> ControlFlow<()> {
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => self.fail(error),
        }
    }
}

impl Drop for File<'_> {
    /// What never became whole must not stay under a name that nobody knows.
    fn drop(&mut self) {
        let is_named = self.state.get_mut().is_named;
        if let Some(temporary) = self.temporary.as_ref().filter(|_| !is_named && self.directory.is_made()) {
            let _ = self.directory.unlink(temporary);
        }
    }
}

/// Names for files that are not whole, of one restore.
pub(super) struct TemporaryNames {
    start: String,
    next: AtomicU64,
}

impl TemporaryNames {
    pub(super) fn new() -> Self {
        let token = RandomState::new().hash_one(std::process::id());
        TemporaryNames { start: format!(".lifeboat-{token:016x}-"), next: AtomicU64::new(0) }
    }

    fn next(&self) -> Option<CString> {
        CString::new(format!("{}{:x}", self.start, self.next.fetch_add(1, Ordering::Relaxed))).ok()
    }

    /// Whether a name is one of them.
    pub(super) fn has(&self, name: &CStr) -> bool {
        name.to_bytes().starts_with(self.start.as_bytes())
    }
}

impl Destination for File<'_> {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        self.go_on(self.take(offset, bytes))
    }

    fn zeros(&self, offset: u64, length: u64) -> ControlFlow<()> {
        match length <= ZEROS.len() as u64 {
            true => self.deliver(offset, &ZEROS[..length as usize]),
            false => self.go_on(self.take_zeros(offset, length)),
        }
    }

    fn kept(&self, _: u64, length: u64) -> ControlFlow<()> {
        self.run.progress.bytes_done(length);
        self.run.tally.kept(length);
        ControlFlow::Continue(())
    }

    fn read_back(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.handle().is_ok_and(|fd| fills(&fd, buffer, offset))
    }

    fn finished(&self, outcome: lifeboat_repository::Result<u64>) {
        match outcome.map_err(Error::from).and_then(|length| self.finish(length)) {
            Ok(()) => self.run.part_done(&self.directory),
            Err(error) => {
                let _ = self.fail(error);
            }
        }
    }
}
