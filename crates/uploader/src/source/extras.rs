//! Reading what an entry has beyond what Kopia keeps.

use crate::source::SourceDir;
use crate::{Error, Result};
use lifeboat_kopia::gojson::Base64;
use lifeboat_kopia::snapshot::{DeviceNumber, Extras, HardLink, Hole, Holes, SpecialKind, XattrName};
use rustix::fs::{FileType, SeekFrom, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

/// Not backed up: the node gives every volume the label of the pod that mounts it.
const NOT_KEPT: &[u8] = b"security.selinux";
/// The most that the kernel returns for a list of names or a value.
const MAX_XATTR: usize = 64 << 10;

/// The extras of something that is not open; `root_device` is where the root of the snapshot is.
pub(crate) fn extras_of(directory: &SourceDir, name: &CStr, stat: &Stat, root_device: u64) -> Result<Extras> {
    // There is no system call for links and special files that is relative to a directory.
    let mut path = format!("/proc/self/fd/{}/", directory.fd.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    let path = CString::new(path).unwrap_or_default();
    let list = |room: &mut [u8]| rustix::fs::llistxattr(&path, room);
    let get = |attribute: &CStr, room: &mut [u8]| rustix::fs::lgetxattr(&path, attribute, room);
    let xattrs = xattrs(list, get).map_err(|e| directory.failed(READ, name, e))?;
    Ok(Extras { xattrs, ..from_stat(stat, root_device) })
}

/// The extras of an open file or directory.
pub(crate) fn extras_of_open(
    file: BorrowedFd<'_>,
    path: impl FnOnce() -> std::path::PathBuf,
    stat: &Stat,
    root_device: u64,
) -> Result<Extras> {
    let list = |room: &mut [u8]| rustix::fs::flistxattr(file, room);
    let get = |attribute: &CStr, room: &mut [u8]| rustix::fs::fgetxattr(file, attribute, room);
    let xattrs = xattrs(list, get).map_err(|e| Error::file(READ, &path(), e))?;
    Ok(Extras { xattrs, ..from_stat(stat, root_device) })
}

const READ: &str = "read the extended attributes of";

fn from_stat(stat: &Stat, root_device: u64) -> Extras {
    let file_type = FileType::from_raw_mode(stat.st_mode);
    let kind = match file_type {
        FileType::Fifo => Some(SpecialKind::Fifo),
        FileType::Socket => Some(SpecialKind::Socket),
        FileType::CharacterDevice => Some(SpecialKind::CharDevice),
        FileType::BlockDevice => Some(SpecialKind::BlockDevice),
        _ => None,
    };
    let is_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
    let device = is_device.then(|| DeviceNumber {
        major: rustix::fs::major(stat.st_rdev),
        minor: rustix::fs::minor(stat.st_rdev),
        ..DeviceNumber::default()
    });
    let has_names = file_type != FileType::Directory && stat.st_nlink > 1;
    let hard_link = has_names.then(|| HardLink {
        inode: stat.st_ino,
        file_system: stat.st_dev ^ root_device,
        names: stat.st_nlink,
        ..HardLink::default()
    });
    Extras { kind, device, hard_link, ..Extras::default() }
}

fn xattrs(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&CStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<BTreeMap<XattrName, Base64>> {
    let mut names = match with_room(&list) {
        Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(BTreeMap::new()),
        names => names?,
    };
    let mut found = BTreeMap::new();
    if names.last().is_some_and(|last| *last != 0) {
        names.push(0);
    }
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(attribute) = CStr::from_bytes_with_nul(name) else { continue };
        if attribute.to_bytes() == NOT_KEPT {
            continue;
        }
        match with_room(|room| get(attribute, room)) {
            Ok(value) => drop(found.insert(XattrName(attribute.to_bytes().to_vec()), Base64(value))),
            // It went away since it was listed, or the file system lists what it does not have.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Calls with more room if there was too little; almost always the first is enough.
fn with_room(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut small = [0; 256];
    match call(&mut small) {
        Ok(len) => Ok(small[..len].to_vec()),
        Err(Errno::RANGE) => {
            let mut large = vec![0; MAX_XATTR];
            let len = call(&mut large)?;
            large.truncate(len);
            Ok(large)
        }
        Err(error) => Err(error),
    }
}

/// Whether a file may have holes.
pub(crate) fn is_sparse(stat: &Stat) -> bool {
    let allocated = stat.st_blocks.saturating_mul(512);
    allocated < stat.st_size
}

/// The holes of an open file; none if there are too many, or if the file system does not tell.
pub(crate) fn holes_of(file: BorrowedFd<'_>, size: u64, path: &Path) -> Result<Holes> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < size && holes.len() <= Holes::MAX {
        let Some(offset) = seek(file, SeekFrom::Hole(at), path)?.filter(|hole| *hole < size) else { break };
        let end = seek(file, SeekFrom::Data(offset), path)?.map_or(size, |data| data.min(size));
        // A file that changes meanwhile must not make us run in circles.
        if end <= offset {
            break;
        }
        holes.push(Hole { offset, length: end - offset });
        at = end;
    }
    Ok(Holes::new(holes).unwrap_or_default())
}

/// `None` behind the end.
fn seek(file: BorrowedFd<'_>, to: SeekFrom, path: &Path) -> Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(place) => Ok(Some(place)),
        Err(Errno::NXIO | Errno::INVAL | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(Error::file("look for holes in", path, error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn attributes_of_open_and_of_named_files_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let long = vec![7; 4000];
        for (name, value) in [("user.a", &b"v\0"[..]), ("user.empty", b""), ("user.long", &long)] {
            rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
        }
        std::fs::hard_link(&path, folder.path().join("other")).unwrap();
        let directory = SourceDir::root(folder.path()).unwrap();
        let (file, stat) = directory.open_file(c"file").unwrap();
        let named = extras_of(&directory, c"file", &stat, stat.st_dev).unwrap();
        let open = extras_of_open(file.as_fd(), || path, &stat, stat.st_dev).unwrap();
        assert_eq!(named, open);
        let values: Vec<_> = named.xattrs.values().map(|value| value.0.len()).collect();
        assert_eq!(values, [2, 0, 4000]);
        let link = named.hard_link.unwrap();
        assert_eq!((link.names, link.file_system, link.inode), (2, 0, stat.st_ino));
    }

    #[test]
    fn holes_are_found_where_they_are() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[1; 4096], 256 << 10).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        assert!(is_sparse(&stat));
        let holes: Vec<_> = holes_of(file.as_fd(), 1 << 20, Path::new("file")).unwrap().iter().collect();
        let end = (256 << 10) + 4096;
        let expected = [Hole { offset: 0, length: 256 << 10 }, Hole { offset: end, length: (1 << 20) - end }];
        assert_eq!(holes, expected);
    }
}
