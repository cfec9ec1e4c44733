//! What has no bytes of its own: further names of files, symbolic links, devices, pipes, sockets.

use super::Run;
use super::attributes::{Attributes, Before, On};
use super::files::{File, How};
use super::target::{Directory, Given};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::{HardLink, SpecialKind};
use lifeboat_repository::Destination;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The longest target that a link can have on Linux.
const MAX_LINK: u64 = 4096;

/// Files that have more names than were found so far.
#[derive(Default)]
pub(super) struct HardLinks<'a> {
    files: HashMap<(u64, u64), Linked<'a>>,
}

struct Linked<'a> {
    first: First<'a>,
    /// Names that may still come.
    left: u64,
}

/// The first name of a file.
enum First<'a> {
    Restored(Arc<File<'a>>),
    /// It was there before.
    There(Arc<Directory>, CString),
}

impl<'a> HardLinks<'a> {
    /// Remembers a file that is being restored.
    pub(super) fn add_file(&mut self, group: &HardLink, file: &Arc<File<'a>>) {
        self.add(group, First::Restored(file.clone()));
    }

    /// Remembers a file that was there before.
    pub(super) fn add_there(&mut self, group: &HardLink, directory: &Arc<Directory>, name: &CStr) {
        self.add(group, First::There(directory.clone(), name.to_owned()));
    }

    fn add(&mut self, group: &HardLink, first: First<'a>) {
        self.files.insert(group.group(), Linked { first, left: group.names.saturating_sub(1) });
    }

    /// Makes `name` another name of its file; `false` if it is the first.
    pub(super) fn add_name(
        &mut self,
        group: &HardLink,
        directory: &Arc<Directory>,
        name: &CStr,
    ) -> Result<bool> {
        let Some(linked) = self.files.get_mut(&group.group()) else { return Ok(false) };
        linked.left = linked.left.saturating_sub(1);
        let outcome = match &linked.first {
            First::Restored(file) => file.link(directory, name.to_owned()),
            First::There(first, first_name) => link(first, first_name, directory, name),
        };
        // Nobody else will ask for it.
        if linked.left == 0 {
            self.files.remove(&group.group());
        }
        outcome.map(|()| true)
    }
}

/// Gives a file another name; what has that name goes, unless it is the file.
pub(super) fn link(from: &Directory, first: &CStr, to: &Directory, name: &CStr) -> Result<()> {
    let failed = |e: Errno| to.failed("link", name, e);
    let (from_fd, to_fd) = (from.fd()?, to.fd()?);
    let link = || rustix::fs::linkat(&from_fd, first, &to_fd, name, AtFlags::empty());
    match link() {
        Err(Errno::EXIST) => {
            let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
            if from.stat(first)?.map(identity) == to.stat(name)?.map(identity) {
                return Ok(());
            }
            to.unlink(name)?;
            link().map_err(failed)
        }
        outcome => outcome.map_err(failed),
    }
}

/// Sets the attributes of a file whose bytes are right already.
pub(super) fn set_attributes(
    run: &Run<'_>,
    directory: &Directory,
    name: &CStr,
    attributes: &Attributes,
) -> Result<()> {
    let fd = directory.open(name, OFlags::RDONLY)?;
    run.set_attributes(directory, Some(name), attributes, On::Open(fd.as_fd()), Before::Old)
}

/// Makes a device, pipe or socket.
pub(super) fn make_special(
    run: &Run<'_>,
    directory: &Directory,
    name: &CStr,
    attributes: &Attributes,
    how: How,
) -> Result<()> {
    let Some(extras) = attributes.extras.as_deref() else { return Ok(()) };
    let file_type = match &extras.kind {
        Some(SpecialKind::Fifo) => FileType::Fifo,
        Some(SpecialKind::Socket) => FileType::Socket,
        Some(SpecialKind::CharDevice) => FileType::CharacterDevice,
        Some(SpecialKind::BlockDevice) => FileType::BlockDevice,
        other => {
            let source = std::io::Error::other(format!("it is of the unknown kind {other:?}"));
            return Err(Error::File { action: "create", path: directory.join(name), source });
        }
    };
    let device = extras.device.clone().unwrap_or_default();
    let device = rustix::fs::makedev(device.major, device.minor);
    if how == (How::New { replaces: true }) {
        directory.unlink(name)?;
    }
    let fd = directory.fd()?;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::mknodat(&fd, name, file_type, mode, device) {
        // Devices are for those who may make them.
        Err(Errno::PERM) if run.keep.ignore_permission_errors => {
            run.tally.skipped();
            return Ok(());
        }
        outcome => outcome.map_err(|e| directory.failed("create", name, e))?,
    }
    let on = On::Named { directory: fd.as_fd(), name, is_link: false };
    set_new(run, directory, name, attributes, on)
}

/// Sets the attributes of something that was just made and cannot be opened.
fn set_new(
    run: &Run<'_>,
    directory: &Directory,
    name: &CStr,
    attributes: &Attributes,
    on: On<'_>,
) -> Result<()> {
    let Some(stat) = directory.stat(name)? else {
        return Err(directory.failed("examine", name, Errno::NOENT));
    };
    let given = match on {
        On::Named { is_link: false, .. } => Given::by(directory.fd()?, &stat),
        // Links have no access control lists.
        _ => Given::of(&stat),
    };
    run.set_attributes(directory, Some(name), attributes, on, Before::New(given))?;
    run.progress.file_done();
    Ok(())
}

/// A symbolic link, whose target is an object.
pub(super) struct Link<'a> {
    run: &'a Run<'a>,
    directory: Arc<Directory>,
    name: CString,
    attributes: Attributes,
    how: How,
    target: Mutex<Vec<u8>>,
}

impl<'a> Link<'a> {
    /// A link in `directory`, which waits for it.
    pub(super) fn new(
        run: &'a Run<'a>,
        directory: &Arc<Directory>,
        name: CString,
        attributes: Attributes,
        how: How,
    ) -> Self {
        directory.expect();
        Link { run, directory: directory.clone(), name, attributes, how, target: Mutex::default() }
    }

    fn make(&self) -> Result<()> {
        let target = std::mem::take(&mut *self.target.lock());
        let failed = |e: Errno| self.directory.failed("create the link", &self.name, e);
        let target = CString::new(target).map_err(|_| failed(Errno::INVAL))?;
        if self.how == (How::New { replaces: true }) {
            self.directory.unlink(&self.name)?;
        }
        let fd = self.directory.fd()?;
        rustix::fs::symlinkat(&target, &fd, &self.name).map_err(failed)?;
        let on = On::Named { directory: fd.as_fd(), name: &self.name, is_link: true };
        set_new(self.run, &self.directory, &self.name, &self.attributes, on)
    }
}

impl Destination for Link<'_> {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        let mut target = self.target.lock();
        // What is longer cannot be a link; that is found when it is made.
        let end = (offset.saturating_add(bytes.len() as u64)).min(MAX_LINK + 1) as usize;
        let start = (offset.min(end as u64)) as usize;
        if target.len() < end {
            target.resize(end, b'x');
        }
        target[start..end].copy_from_slice(&bytes[..end - start]);
        ControlFlow::Continue(())
    }

    fn finished(&self, outcome: lifeboat_repository::Result<u64>) {
        if let Err(error) = outcome.map_err(Error::from).and_then(|_| self.make()) {
            match super::is_fatal(&error) {
                true => return self.run.stop_with(error),
                false => self.run.entry_failed(&self.directory, &self.name, error),
            }
        }
        self.run.part_done(&self.directory);
    }
}
