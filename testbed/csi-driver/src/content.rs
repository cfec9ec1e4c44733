//! The bytes of volumes and snapshots: made empty, or copied from one another.

use crate::error::{Error, Result};
use crate::store::{AccessType, Backing, remove_tree};
use crate::{freeze, loops, mounts, tool};
use rustix::mount::MountFlags;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SWEEP_ATTEMPTS: u32 = 100;
const SWEEP_PAUSE: Duration = Duration::from_millis(50);

/// Content to be copied.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// The folder of the object that has it.
    pub(crate) folder: PathBuf,
    pub(crate) backing: Backing,
    pub(crate) access_type: AccessType,
}

impl Content {
    /// The image file or directory itself.
    pub(crate) fn path(&self) -> PathBuf {
        path_in(&self.folder, self.backing)
    }
}

/// Where an object in `folder` has its content.
pub(crate) fn path_in(folder: &Path, backing: Backing) -> PathBuf {
    folder.join(match backing {
        Backing::Directory => "data",
        Backing::Image => "image",
    })
}

/// Makes empty content in `folder`: a directory, zeros, or a new ext4 filesystem.
pub(crate) fn create(folder: &Path, backing: Backing, access_type: AccessType, size: u64) -> Result<()> {
    let path = path_in(folder, backing);
    if backing == Backing::Directory {
        return fs::create_dir(&path).map_err(Error::io("create", &path));
    }
    set_size(&path, size)?;
    if access_type == AccessType::Mount {
        let options = ["-q", "-F", "-t", "ext4", "-m", "0"].map(OsStr::new);
        tool::run("mke2fs", &[&options[..], &[path.as_os_str()]].concat())?;
    }
    Ok(())
}

/// Copies `source` into `folder`, sparsely, sharing blocks where the filesystem can.
///
/// A mounted filesystem image is frozen meanwhile, so the copy is as of one moment. A block device is flushed and a
/// directory is copied as it stands: whoever writes to them during the copy gets a mix of before and after.
/// `freezer` is an unused path in a folder that [`sweep`] clears.
pub(crate) fn copy(source: &Content, folder: &Path, freezer: &Path) -> Result<()> {
    let (from, to) = (source.path(), path_in(folder, source.backing));
    if !from.exists() {
        return Err(Error::Lost(from.display().to_string()));
    }
    let _frozen = match (source.backing, source.access_type) {
        (Backing::Directory, _) => None,
        (Backing::Image, AccessType::Mount) => Frozen::filesystem_of(&from, freezer)?,
        (Backing::Image, AccessType::Block) => flush_devices(&from).map(|()| None)?,
    };
    let options = ["--archive", "--no-target-directory", "--reflink=auto", "--sparse=auto"].map(OsStr::new);
    tool::run("cp", &[&options[..], &[from.as_os_str(), to.as_os_str()]].concat()).map(drop)
}

/// Gives an image its size; the part that is new reads as zeros.
pub(crate) fn set_size(image: &Path, size: u64) -> Result<()> {
    File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(image)
        .and_then(|file| file.set_len(size))
        .map_err(Error::io("set the size of", image))
}

/// Grows the filesystem of an image that nobody uses to the size of the image.
pub(crate) fn grow_unused_filesystem(image: &Path) -> Result<()> {
    let size = fs::metadata(image).map_err(Error::io("look at", image))?.len();
    if !loops::attached(image)?.is_empty() || filesystem_size(image)?.is_none_or(|filled| filled >= size) {
        return Ok(());
    }
    // Its exit code 1, for errors that it repaired, is no failure; where errors remain, resize2fs refuses.
    let _ = tool::run("e2fsck", &[OsStr::new("-fp"), image.as_os_str()]);
    tool::run("resize2fs", &[image]).map(drop)
}

/// Grows the mounted filesystem of an image to the size of the image, if the kernel lets us.
pub(crate) fn grow_mounted_filesystem(image: &Path) -> Result<()> {
    loops::refresh_size(image)?;
    for found in loops::attached(image)?.iter().filter(|found| !found.read_only) {
        tool::run("resize2fs", &[&found.device]).map_err(|error| match error {
            Error::Tool { reason, .. } if reason.contains("Permission denied") => Error::FailedPrecondition(
                "growing a mounted ext4 takes CAP_SYS_RESOURCE; without it, it grows when it is staged again"
                    .into(),
            ),
            other => other,
        })?;
    }
    Ok(())
}

/// The size of the ext4 filesystem in an image; none if there is no such thing.
fn filesystem_size(image: &Path) -> Result<Option<u64>> {
    const SUPERBLOCK: u64 = 1024;
    const MAGIC: u16 = 0xef53;
    let mut superblock = [0; 1024];
    match File::open(image).and_then(|file| file.read_exact_at(&mut superblock, SUPERBLOCK)) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read.map_err(Error::io("read", image))?,
    }
    let word =
        |at: usize| u64::from(u32::from_le_bytes([at, at + 1, at + 2, at + 3].map(|at| superblock[at])));
    if u16::from_le_bytes([superblock[0x38], superblock[0x39]]) != MAGIC {
        return Ok(None);
    }
    let blocks = word(0x04) | word(0x150) << 32;
    Ok(1024_u64
        .checked_shl(u32::try_from(word(0x18)).unwrap_or(u32::MAX))
        .and_then(|size| size.checked_mul(blocks)))
}

fn flush_devices(image: &Path) -> Result<()> {
    for found in loops::attached(image)?.iter().filter(|found| !found.read_only) {
        File::open(&found.device)
            .and_then(|device| device.sync_all())
            .map_err(Error::io("flush", &found.device))?;
    }
    Ok(())
}

/// A filesystem that holds still until this is dropped.
struct Frozen {
    freezer: PathBuf,
}

impl Frozen {
    /// Freezes the filesystem in `image` if it is mounted anywhere on the machine.
    ///
    /// Its mount points may be in the mount namespaces of other nodes. Mounting the same device once more gives a
    /// mount point of our own of the same filesystem.
    fn filesystem_of(image: &Path, freezer: &Path) -> Result<Option<Frozen>> {
        let Some(found) = loops::attached(image)?.into_iter().find(|found| !found.read_only) else {
            return Ok(None);
        };
        fs::create_dir_all(freezer).map_err(Error::io("create", freezer))?;
        mounts::mount_ext4(&found.device, freezer, MountFlags::empty(), None)?;
        let frozen = Frozen { freezer: freezer.to_owned() };
        freeze::freeze(freezer)?;
        Ok(Some(frozen))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Err(error) = thaw(&self.freezer) {
            tracing::error!(%error, "a filesystem may stay frozen until the driver starts again");
        }
    }
}

fn thaw(freezer: &Path) -> Result<()> {
    if mounts::is_mount_point(freezer)? {
        freeze::thaw(freezer)?;
        mounts::unmount(freezer)?;
    }
    fs::remove_dir(freezer).map_err(Error::io("delete", freezer))
}

/// Clears the work folder of a driver that was killed: thaws what it froze, deletes what it left unfinished.
pub(crate) fn sweep(work: &Path) -> Result<()> {
    for name in crate::store::names(work)? {
        let path = work.join(name);
        if mounts::is_mount_point(&path)? {
            thaw(&path)?;
            continue;
        }
        // Tools of that driver were killed with it, but may take a moment to end.
        let mut swept = remove_tree(&path);
        for _ in 0..SWEEP_ATTEMPTS {
            if swept.is_ok() {
                break;
            }
            std::thread::sleep(SWEEP_PAUSE);
            swept = remove_tree(&path);
        }
        swept?;
    }
    Ok(())
}
