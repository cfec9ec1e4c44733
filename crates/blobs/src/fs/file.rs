//! Files: atomic durable writes, exact reads, and what operating-system errors mean.

use crate::wrap::pace::Scope;
use crate::{Error, ErrorKind, Operation, Payload, PutMode, PutOptions};
use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What comes between the final name and the random part of a temporary file's name, as Kopia writes it.
pub(super) const TEMP_INFIX: &str = ".tmp.";
pub(super) const TEMP_RANDOM_DIGITS: usize = 16;

/// How new files and folders look.
#[derive(Debug, Clone)]
pub(super) struct Looks {
    pub(super) file_mode: u32,
    pub(super) dir_mode: u32,
    /// Applied only by root, as Kopia does.
    pub(super) owner: Option<(u32, u32)>,
}

/// The meaning of an operating-system error for a caller.
pub(super) fn kind_of(error: &io::Error) -> ErrorKind {
    let Some(errno) = error.raw_os_error().map(Errno::from_raw_os_error) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => ErrorKind::Corrupt,
            _ => ErrorKind::Other,
        };
    };
    match errno {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::EXIST => ErrorKind::AlreadyExists,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::PermissionDenied,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::Full,
        // Network filesystems and momentary shortages.
        Errno::STALE | Errno::TIMEDOUT | Errno::AGAIN | Errno::INTR | Errno::BUSY => ErrorKind::Transient,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => ErrorKind::Transient,
        Errno::NAMETOOLONG | Errno::NOTDIR | Errno::ISDIR => ErrorKind::Configuration,
        _ => ErrorKind::Other,
    }
}

/// An operating-system error as an error of the store.
pub(super) fn failure(operation: Operation, blob: &str, store: &str, doing: &str, error: io::Error) -> Error {
    let kind = kind_of(&error);
    let made = Error::new(kind, operation, blob, store, format!("{doing}: {error}"));
    match kind {
        ErrorKind::Full => made.with_remedy("free space on that filesystem or raise the quota"),
        ErrorKind::PermissionDenied => made.with_remedy("check owner and mode of the folder and its mount"),
        _ => made,
    }
    .with_source(error)
}

/// Writes `root/relative` so that it appears whole or not at all, and is on disk when this returns.
pub(super) fn write_atomically(
    root: &Path,
    relative: &Path,
    payload: &Payload,
    options: &PutOptions,
    looks: &Looks,
    pace: Option<&Scope>,
) -> io::Result<()> {
    let target = root.join(relative);
    let (temp, mut file) = create_temp(root, relative, looks)?;
    write_all(&mut file, payload, pace)?;
    if let Some((uid, gid)) = looks.owner.filter(|_| rustix::process::geteuid().is_root())
        && let Err(error) = std::os::unix::fs::fchown(&file, Some(uid), Some(gid))
    {
        // Kopia carries on, too: an odd owner is better than a missing backup.
        tracing::warn!(path = %target.display(), %error, "cannot set the owner of a blob's file");
    }
    if let Some(modified) = options.modified {
        file.set_modified(modified.into())?;
    }
    file.sync_all()?;
    drop(file);
    match options.mode {
        PutMode::Overwrite => std::fs::rename(&temp.path, &target)?,
        PutMode::CreateOnly => rename_if_absent(&temp.path, &target)?,
    }
    temp.keep();
    sync_dir(target.parent().unwrap_or(root))
}

/// A temporary file that disappears unless it is kept.
struct Temp {
    path: PathBuf,
}

impl Temp {
    fn keep(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn create_temp(root: &Path, relative: &Path, looks: &Looks) -> io::Result<(Temp, File)> {
    let mut random = [0u8; TEMP_RANDOM_DIGITS / 2];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut name: OsString = root.join(relative).into();
    name.push(TEMP_INFIX);
    name.push(hex::encode(random));
    let path = PathBuf::from(name);

    let mut open = OpenOptions::new();
    open.write(true).create_new(true).mode(looks.file_mode);
    let file = match open.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_dirs(root, relative.parent().unwrap_or(Path::new("")), looks.dir_mode)?;
            open.open(&path)?
        }
        other => other?,
    };
    Ok((Temp { path }, file))
}

/// Creates the folders of `relative` below `root`, never `root` itself: a root that vanished is an unmounted disk.
fn create_dirs(root: &Path, relative: &Path, mode: u32) -> io::Result<()> {
    let mut at = root.to_path_buf();
    for part in relative.components() {
        let parent = at.clone();
        at.push(part);
        match DirBuilder::new().mode(mode).create(&at) {
            Ok(()) => sync_dir(&parent)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(file: &mut File, payload: &Payload, pace: Option<&Scope>) -> io::Result<()> {
    if let Some(pace) = pace {
        for piece in payload.pieces() {
            for chunk in piece.chunks(pace.up_quantum()) {
                pace.upload_blocking(chunk.len());
                file.write_all(chunk)?;
            }
        }
        return Ok(());
    }
    let mut slices: Vec<IoSlice<'_>> = payload.pieces().iter().map(|piece| IoSlice::new(piece)).collect();
    let mut slices = slices.as_mut_slice();
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Renames unless the target exists, decided by the filesystem.
fn rename_if_absent(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Network filesystems do not know the flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => link_if_absent(from, to),
        other => Ok(other?),
    }
}

/// The same by a hard link, which never replaces anything.
fn link_if_absent(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()) {
        Ok(()) => {}
        // NFS may answer "exists" to its own repeated request: the link count tells the truth.
        Err(Errno::EXIST) if std::fs::metadata(from)?.nlink() == 2 => {}
        Err(error) => return Err(error.into()),
    }
    std::fs::remove_file(from)
}

/// Makes new and changed entries of a folder durable.
fn sync_dir(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // Some filesystems (FUSE, CIFS) have no such thing: they write entries through.
        Err(error) if matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::INVAL)) => {
            Ok(())
        }
        other => other,
    }
}

/// Reads `range`, which must be there, into a buffer that is empty. The file must not be shared: this moves its position.
pub(super) fn read_exact_at(
    mut file: &File,
    range: Range<u64>,
    mut bytes: Vec<u8>,
    pace: Option<&Scope>,
) -> io::Result<Bytes> {
    let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
    let length = range.end.saturating_sub(range.start);
    bytes.try_reserve_exact(usize::try_from(length).map_err(|_| too_large())?).map_err(|_| too_large())?;
    if range.start > 0 {
        file.seek(SeekFrom::Start(range.start))?;
    }
    let mut left = length;
    while left > 0 {
        let step = pace.map_or(left, |pace| left.min(pace.down_quantum() as u64));
        if let Some(pace) = pace {
            pace.download_blocking(step as usize);
        }
        // Reads into spare capacity: nothing is zeroed first, nothing is copied after.
        if file.take(step).read_to_end(&mut bytes)? as u64 != step {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= step;
    }
    Ok(bytes.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_create_leave_an_existing_file_alone() {
        for create in [rename_if_absent, link_if_absent] {
            let folder = tempfile::tempdir().unwrap();
            let (from, to) = (folder.path().join("from"), folder.path().join("to"));
            std::fs::write(&from, "new").unwrap();
            create(&from, &to).unwrap();
            assert!(!from.exists());
            std::fs::write(&from, "newer").unwrap();
            assert_eq!(create(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read_to_string(&to).unwrap(), "new");
        }
    }

    #[test]
    fn a_link_that_was_made_although_it_was_refused_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::write(&from, "ours").unwrap();
        std::fs::hard_link(&from, &to).unwrap();
        link_if_absent(&from, &to).unwrap();
        assert!(!from.exists() && to.exists());
    }
}
