//! Freezing and thawing filesystems: the two kernel calls for which there is no safe wrapper.
//!
//! They are made here rather than by the `fsfreeze` tool because a tool could still freeze a filesystem after the
//! driver that ran it was killed and the next one has thawed everything.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, ioctl, opcode};
use std::fs::File;
use std::path::Path;

const FREEZE: Opcode = opcode::read_write::<i32>(b'X', 119);
const THAW: Opcode = opcode::read_write::<i32>(b'X', 120);

/// Flushes the filesystem mounted at `path` and stops all changes to it.
pub(crate) fn freeze(path: &Path) -> Result<()> {
    let folder = File::open(path).map_err(Error::io("open", path))?;
    // SAFETY: FIFREEZE takes no argument and touches no memory of the process.
    unsafe { ioctl(&folder, NoArg::<FREEZE>::new()) }.map_err(Error::io("freeze", path))
}

/// Lets the filesystem mounted at `path` change again; nothing happens if it is not frozen.
pub(crate) fn thaw(path: &Path) -> Result<()> {
    let folder = File::open(path).map_err(Error::io("open", path))?;
    // SAFETY: FITHAW takes no argument and touches no memory of the process.
    match unsafe { ioctl(&folder, NoArg::<THAW>::new()) } {
        Err(Errno::INVAL) => Ok(()),
        thawed => thawed.map_err(Error::io("thaw", path)),
    }
}
