//! Loop devices over image files.
//!
//! The kernel is the only record of what is attached: devices are found by the inode of their backing file, so a
//! driver that was killed, restarted or sees the file under another path finds them again.

use crate::error::Result;
use crate::tool;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A loop device attached to some image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) device: PathBuf,
    pub(crate) read_only: bool,
}

/// All loop devices attached to `image`.
pub(crate) fn attached(image: &Path) -> Result<Vec<Loop>> {
    if !image.exists() {
        return Ok(Vec::new());
    }
    let columns = ["--noheadings", "--output", "NAME,RO", "--associated"].map(OsStr::new);
    let listing = tool::run("losetup", &[&columns[..], &[image.as_os_str()]].concat())?;
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        Some(Loop { device: words.next()?.into(), read_only: words.next()? == "1" })
    };
    Ok(listing.lines().filter_map(parse).collect())
}

/// The loop device of `image` with that access, attaching one if there is none.
///
/// One device serves all users of an image, so that they share one page cache.
pub(crate) fn attach(image: &Path, read_only: bool) -> Result<PathBuf> {
    if let Some(found) = attached(image)?.into_iter().find(|found| found.read_only == read_only) {
        return Ok(found.device);
    }
    let mut arguments = vec![OsStr::new("--find"), OsStr::new("--show")];
    if read_only {
        arguments.push(OsStr::new("--read-only"));
    }
    arguments.push(image.as_os_str());
    Ok(PathBuf::from(tool::run("losetup", &arguments)?.trim_end()))
}

/// Detaches `device`, at once or, if it is still open somewhere, when its last user closes it.
pub(crate) fn detach(device: &Path) -> Result<()> {
    tool::run("losetup", &[OsStr::new("--detach"), device.as_os_str()]).map(drop)
}

/// Detaches every device of `image`; false if one is still in use.
pub(crate) fn detach_all(image: &Path) -> Result<bool> {
    for found in attached(image)? {
        detach(&found.device)?;
    }
    Ok(attached(image)?.is_empty())
}

/// Makes the devices of `image` see its present size.
pub(crate) fn refresh_size(image: &Path) -> Result<()> {
    for found in attached(image)? {
        tool::run("losetup", &[OsStr::new("--set-capacity"), found.device.as_os_str()])?;
    }
    Ok(())
}
