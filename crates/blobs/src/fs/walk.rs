//! Listing: a walk over the folders that can hold matching blobs, one page at a time.

use super::file::{TEMP_INFIX, TEMP_RANDOM_DIGITS};
use super::layout::SUFFIX;
use crate::{BlobId, BlobMetadata};
use jiff::Timestamp;
use std::fs::{DirEntry, Metadata, ReadDir};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A temporary file older than this belongs to a writer that died: no put takes that long.
const TEMP_EXPIRES: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest name that can be a blob's; deeper folders cannot hold one.
const MAX_NAME: usize = 1000;

/// A walk in progress. It owns its open folders, so it can move between threads from page to page.
pub(super) struct Walk {
    prefix: Vec<u8>,
    root: PathBuf,
    started: bool,
    /// The folders that are being read, outermost first, each with the part of the name that it stands for.
    open: Vec<(ReadDir, Vec<u8>)>,
    removes_stale_temps: bool,
}

impl Walk {
    pub(super) fn new(root: &Path, prefix: &str, removes_stale_temps: bool) -> Self {
        Walk {
            prefix: prefix.as_bytes().to_vec(),
            root: root.to_path_buf(),
            started: false,
            open: Vec::new(),
            removes_stale_temps,
        }
    }

    /// The next blobs, at most `limit` of them; none at the end.
    pub(super) fn next_page(&mut self, limit: usize) -> io::Result<Vec<BlobMetadata>> {
        if !self.started {
            self.open.push((std::fs::read_dir(&self.root)?, Vec::new()));
            self.started = true;
        }
        let mut page = Vec::new();
        while page.len() < limit
            && let Some((folder, above)) = self.open.last_mut()
        {
            let Some(entry) = folder.next().transpose()? else {
                self.open.pop();
                continue;
            };
            let name = [above, entry.file_name().as_bytes()].concat();
            let is_dir = match entry.file_type() {
                Ok(kind) => kind.is_dir(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // deleted meanwhile
                Err(error) => return Err(error),
            };
            if is_dir {
                if self.can_match(&name) {
                    self.enter(&entry, name)?;
                }
            } else if let Some(blob) = self.blob(&entry, &name)? {
                page.push(blob);
            }
        }
        Ok(page)
    }

    /// Whether a name that starts with `name` can start with the prefix.
    fn can_match(&self, name: &[u8]) -> bool {
        let common = name.len().min(self.prefix.len());
        name.len() <= MAX_NAME && name[..common] == self.prefix[..common]
    }

    fn enter(&mut self, entry: &DirEntry, name: Vec<u8>) -> io::Result<()> {
        match std::fs::read_dir(entry.path()) {
            Ok(folder) => self.open.push((folder, name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The blob that a file holds, if it is one and matches.
    fn blob(&self, entry: &DirEntry, name: &[u8]) -> io::Result<Option<BlobMetadata>> {
        let Some(id) = name.strip_suffix(SUFFIX.as_bytes()) else {
            if self.removes_stale_temps && is_temp(name) {
                remove_if_stale(entry);
            }
            return Ok(None);
        };
        if !id.starts_with(&self.prefix) {
            return Ok(None);
        }
        let Some(id) = std::str::from_utf8(id).ok().and_then(|id| BlobId::new(id).ok()) else {
            return Ok(None); // not a name that we or Kopia would have written
        };
        match entry.metadata() {
            Ok(file) if file.is_file() => Ok(Some(metadata(id, &file)?)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None), // deleted meanwhile
            Err(error) => Err(error),
        }
    }
}

/// What a blob's file says about it.
pub(super) fn metadata(id: BlobId, file: &Metadata) -> io::Result<BlobMetadata> {
    let modified = Timestamp::try_from(file.modified()?).map_err(io::Error::other)?;
    Ok(BlobMetadata { id, size: file.len(), modified })
}

fn is_temp(name: &[u8]) -> bool {
    let Some(random_at) = name.len().checked_sub(TEMP_RANDOM_DIGITS) else { return false };
    let (start, random) = name.split_at(random_at);
    start.ends_with(TEMP_INFIX.as_bytes()) && random.iter().all(u8::is_ascii_hexdigit)
}

/// Best effort: what cannot be removed today is ignored by every reader anyway.
fn remove_if_stale(entry: &DirEntry) {
    let age = entry.metadata().and_then(|file| file.modified()).ok();
    let age = age.and_then(|modified| SystemTime::now().duration_since(modified).ok());
    if age.is_some_and(|age| age > TEMP_EXPIRES) && std::fs::remove_file(entry.path()).is_ok() {
        tracing::debug!(path = %entry.path().display(), "removed the leftover of an interrupted write");
    }
}
