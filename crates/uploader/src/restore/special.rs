//! What has no bytes of its own: symbolic links, devices, pipes, sockets.

use super::Run;
use super::attributes::{Attributes, Before, On};
use super::files::How;
use super::links::{Settled, link_there, lost};
use super::target::{Directory, Given};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::SpecialKind;
use lifeboat_repository::Destination;
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The longest target that a link can have on Linux.
const MAX_LINK: u64 = 4096;

/// Sets the attributes of a file whose bytes are right already.
pub(super) fn set_attributes(
    run: &Run<'_>,
    directory: &Directory,
    name: &CStr,
    attributes: &Attributes,
) -> Result<()> {
    let fd = directory.open(name, OFlags::RDONLY)?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| directory.failed("examine", name, e))?;
    // Another name that it got since it was looked at is somebody else's.
    if stat.st_nlink != 1 || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let reason = "somebody put something else in its place meanwhile";
        return Err(directory.failed("set the attributes of", name, std::io::Error::other(reason)));
    }
    run.set_attributes(directory, Some(name), attributes, On::Open(fd.as_fd()), Before::Old)
}

/// Makes a device, pipe or socket; `false` if it may not be made.
pub(super) fn make_special(
    run: &Run<'_>,
    directory: &Directory,
    name: &CStr,
    attributes: &Attributes,
    how: How,
) -> Result<bool> {
    let Some(extras) = attributes.extras.as_deref() else { return Ok(false) };
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
            return Ok(false);
        }
        outcome => outcome.map_err(|e| directory.failed("create", name, e))?,
    }
    let on = On::Named { directory: fd.as_fd(), name, is_link: false };
    set_new(run, directory, name, attributes, on).map(|()| true)
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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    target: Vec<u8>,
    /// Whether it was made, once that was tried.
    is_made: Option<bool>,
    /// Further names that it gets when it is made.
    links: Vec<(Arc<Directory>, CString)>,
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
        Link { run, directory: directory.clone(), name, attributes, how, state: Mutex::default() }
    }

    /// Gives it a further name in `directory`, which waits for that if it is not there yet.
    pub(super) fn link(&self, directory: &Arc<Directory>, name: CString) -> Result<()> {
        let is_made = {
            let mut state = self.state.lock();
            if state.is_made.is_none() {
                directory.expect();
                state.links.push((directory.clone(), name.clone()));
            }
            state.is_made
        };
        match is_made {
            None => Ok(()),
            Some(true) => link_there(self.run, &self.directory, &self.name, directory, &name),
            Some(false) => Err(lost(directory, &name)),
        }
    }

    /// What became of it.
    pub(super) fn settled(&self) -> Option<Settled<'_>> {
        self.state.lock().is_made.map(|is_made| match is_made {
            true => Settled::There(&self.directory, &self.name),
            false => Settled::Lost,
        })
    }

    fn make(&self) -> Result<()> {
        let target = std::mem::take(&mut self.state.lock().target);
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

    /// It was made, or could not be: those that wait for it go on.
    fn settle(&self, is_made: bool) {
        let links = {
            let mut state = self.state.lock();
            state.is_made = Some(is_made);
            std::mem::take(&mut state.links)
        };
        for (directory, name) in links {
            let outcome = match is_made {
                true => link_there(self.run, &self.directory, &self.name, &directory, &name),
                false => Err(lost(&directory, &name)),
            };
            if let Err(error) = outcome {
                self.run.entry_failed(&directory, &name, error);
            }
            self.run.part_done(&directory);
        }
    }
}

impl Destination for Link<'_> {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        let target = &mut self.state.lock().target;
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
        let outcome = outcome.map_err(Error::from).and_then(|_| self.make());
        let is_made = outcome.is_ok();
        if let Err(error) = outcome {
            match super::is_fatal(&error) {
                true => return self.run.stop_with(error),
                false => self.run.entry_failed(&self.directory, &self.name, error),
            }
        }
        self.settle(is_made);
        self.run.part_done(&self.directory);
    }
}
