//! Reading the target back and comparing it with the snapshot.
//!
//! The repository names what it stores by its hash: to compare, only the target has to be read.

use super::Run;
use super::target::{Directory, Slot};
use crate::io::fills;
use crate::{Error, Result};
use lifeboat_kopia::snapshot::{DirEntry, EntryType};
use lifeboat_repository::{Destination, Id, Wanted};
use rustix::fs::{Advice, FileType};
use std::ffi::CString;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A file or link of the target that is being compared.
pub(super) struct Check<'a> {
    run: &'a Run<'a>,
    directory: Arc<Directory>,
    name: CString,
    is_link: bool,
    slot: Arc<Slot>,
}

impl<'a> Check<'a> {
    /// What has to be read of the repository to check an entry; special files have nothing to compare.
    pub(super) fn wanted(
        run: &'a Run<'a>,
        directory: &Arc<Directory>,
        name: CString,
        entry: DirEntry,
    ) -> Option<Wanted<'a>> {
        let is_special = entry.extras.as_ref().is_some_and(|extras| extras.kind.is_some());
        if is_special {
            return None;
        }
        let is_link = entry.entry_type == EntryType::Symlink;
        let to = Arc::new(Check { run, directory: directory.clone(), name, is_link, slot: Arc::default() });
        Some(Wanted { id: Id::new(entry.object), to, compare: true })
    }

    /// The file, not as the kernel remembers it but, as far as the kernel can be moved to, as the disk has it.
    fn open(&self) -> Result<Arc<OwnedFd>> {
        self.directory.files().get(&self.slot, || {
            let fd = self.directory.open_unchanged(&self.name)?;
            let _ = rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed);
            Ok(fd)
        })
    }

    /// The bytes of a link.
    fn link(&self) -> Result<Vec<u8>> {
        let directory = self.directory.fd()?;
        let target = rustix::fs::readlinkat(&directory, &self.name, Vec::new());
        let target = target.map_err(|e| self.directory.failed("read the link", &self.name, e))?;
        Ok(target.into_bytes())
    }

    fn differs(&self, how: &str) {
        let path = self.directory.join(&self.name);
        let source = std::io::Error::other(format!("it is not what the snapshot has: {how}"));
        self.run.entry_failed(&self.directory, &self.name, Error::File { action: "verify", path, source });
    }

    fn length(&self) -> Result<Option<u64>> {
        if self.is_link {
            return Ok(Some(self.link()?.len() as u64));
        }
        let stat =
            rustix::fs::fstat(&self.open()?).map_err(|e| self.directory.failed("examine", &self.name, e))?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(is_file.then(|| u64::try_from(stat.st_size).unwrap_or(0)))
    }
}

impl Destination for Check<'_> {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        // What could not be told by its hash is here to be compared, all else differs.
        let mut there = vec![0; bytes.len()];
        if self.read_back(offset, &mut there) && there == bytes {
            return self.kept(offset, bytes.len() as u64);
        }
        let readable = if self.is_link { Ok(()) } else { self.open().map(drop) };
        match readable {
            Ok(()) => self.differs(&format!("the bytes from {offset} on")),
            Err(error) => self.run.entry_failed(&self.directory, &self.name, error),
        }
        ControlFlow::Break(())
    }

    fn kept(&self, _: u64, length: u64) -> ControlFlow<()> {
        self.run.tally.verified(length);
        ControlFlow::Continue(())
    }

    fn read_back(&self, offset: u64, buffer: &mut [u8]) -> bool {
        if self.is_link {
            let target = self.link().unwrap_or_default();
            let part = target.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
            return part.map(|part| buffer.copy_from_slice(part)).is_some();
        }
        self.open().is_ok_and(|fd| fills(&fd, buffer, offset))
    }

    fn finished(&self, outcome: lifeboat_repository::Result<u64>) {
        match outcome.map_err(Error::from).and_then(|expected| Ok((expected, self.length()?))) {
            Ok((expected, Some(found))) if expected == found => {}
            Ok((expected, Some(found))) => self.differs(&format!("{found} bytes instead of {expected}")),
            Ok((_, None)) => self.differs("it is not a file"),
            Err(error) => self.run.entry_failed(&self.directory, &self.name, error),
        }
        self.slot.close();
    }
}
