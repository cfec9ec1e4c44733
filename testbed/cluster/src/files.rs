//! Writing the cluster's files: parents are made, secrets are readable by their owner only.

use crate::{Error, Result};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Makes a folder and its parents that only the owner may enter.
pub(crate) fn private_folder(path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::io("create", path))
}

/// Removes a folder with all that is in it, if it is there.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(problem) if problem.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(problem))
        }
        _ => Ok(()),
    }
}

/// Writes a file that anybody on the node may read.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    write_with_mode(path, content.as_ref(), 0o644)
}

/// Writes a file that only the owner may read.
pub(crate) fn write_secret(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    write_with_mode(path, content.as_ref(), 0o600)
}

/// Writes beside the target and renames, so that a reader sees the old or the new file, never half of one.
fn write_with_mode(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    if let Some(parent) = path.parent() {
        private_folder(parent)?;
    }
    let fresh = path.with_extension("new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&fresh)
        .map_err(Error::io("create", &fresh))?;
    file.write_all(content).map_err(Error::io("write", &fresh))?;
    fs::rename(&fresh, path).map_err(Error::io("put in place", path))
}

/// Reads a text file.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::io("read", path))
}
