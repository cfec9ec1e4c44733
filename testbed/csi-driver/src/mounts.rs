//! Mounting and unmounting, each step safe to repeat.

use crate::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// More mounts than this on one path can only be somebody else's doing.
const MOST_STACKED: usize = 16;

/// The mount options a storage class may ask for.
const OPTIONS: [(&str, MountFlags); 8] = [
    ("ro", MountFlags::RDONLY),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("rw", MountFlags::empty()),
];

/// Translates mount options, refusing those that a bind mount cannot carry.
pub(crate) fn options(names: &[String]) -> Result<MountFlags> {
    names.iter().try_fold(MountFlags::empty(), |flags, name| {
        let (_, flag) = OPTIONS
            .iter()
            .find(|(known, _)| known == name)
            .ok_or_else(|| Error::InvalidArgument(format!("mount option {name:?} is not supported")))?;
        Ok(flags | *flag)
    })
}

/// Whether something is mounted on exactly this path.
pub(crate) fn is_mount_point(path: &Path) -> Result<bool> {
    match rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
        Ok(stat) => Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(Error::io("look at", path)(error)),
    }
}

/// Whether both paths lead to the same file, directory or device.
pub(crate) fn same(a: &Path, b: &Path) -> bool {
    let (Ok(a), Ok(b)) = (fs::metadata(a), fs::metadata(b)) else { return false };
    (a.dev(), a.ino()) == (b.dev(), b.ino()) || (a.rdev() != 0 && a.rdev() == b.rdev())
}

/// Mounts the ext4 filesystem on `device`.
pub(crate) fn mount_ext4(
    device: &Path,
    target: &Path,
    flags: MountFlags,
    data: Option<&'static str>,
) -> Result<()> {
    let data = data.and_then(|text| std::ffi::CString::new(text).ok());
    rustix::mount::mount(device, target, "ext4", flags, data.as_deref())
        .map_err(Error::io("mount on", target))
}

/// Shows `source` at `target` with these options, or puts the options right if it is there already.
pub(crate) fn bind(source: &Path, target: &Path, flags: MountFlags) -> Result<()> {
    if is_mount_point(target)? && !same(source, target) {
        unmount(target)?;
    }
    if !is_mount_point(target)? {
        rustix::mount::mount_bind(source, target).map_err(Error::io("bind mount on", target))?;
    }
    rustix::mount::mount_remount(target, flags | MountFlags::BIND, "")
        .map_err(Error::io("set mount options of", target))
}

/// Unmounts everything that is mounted on `path`.
pub(crate) fn unmount(path: &Path) -> Result<()> {
    for _ in 0..MOST_STACKED {
        if !is_mount_point(path)? {
            return Ok(());
        }
        rustix::mount::unmount(path, UnmountFlags::NOFOLLOW).map_err(Error::io("unmount", path))?;
    }
    Err(Error::FailedPrecondition(format!("{} has more than {MOST_STACKED} mounts", path.display())))
}
