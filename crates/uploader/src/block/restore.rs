//! A snapshot of a block device becomes a device, or an image file, again.
//!
//! Pieces are written as they come, at their offsets, from many threads. Ranges of zeros are discarded where the
//! device can do that and then reads zeros, and written where it cannot.

use crate::io::{fills, is_zero, write_at};
use crate::progress::{Cancel, Progress};
use crate::restore::sparse::{self, Segment};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::{DirEntries, DirEntry, EntryType};
use lifeboat_repository::{Destination, Id, Repository, ScatterOptions, Wanted};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Discards have to begin and end at blocks of the device; no device has larger ones.
const ALIGNMENT: u64 = 4096;
/// On a device a discard costs as much as writing about so much.
const WORTH_A_DISCARD: usize = 1 << 20;
/// Some writers fill the last chunk up with zeros; more than this is not that.
const MOST_PADDING: u64 = 8 << 20;

/// Where to restore a block volume to, and how.
#[derive(Debug, Clone)]
pub struct BlockRestoreOptions {
    /// The device, which must be at least as large as the volume and not in use; or an image file, which is made if it
    /// does not exist and has the size of the volume in the end.
    pub target: PathBuf,
    /// Read what is there, and write only what differs.
    pub compare: bool,
    /// How many threads decrypt and write; 0 = as many as there are processors.
    pub threads: usize,
}

/// What a restore of a block volume did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockRestoreReport {
    /// The size of the volume.
    pub size: u64,
    /// Bytes that were written.
    pub written: u64,
    /// Bytes that were zero, and discarded or left as holes where possible.
    pub zeros: u64,
    /// Bytes that were there already.
    pub kept: u64,
    /// Bytes that came from the storage.
    pub read_bytes: u64,
}

/// Restores the only file of the snapshot with this `root`, whatever its name is, and waits until it is on disk.
pub fn restore_block(
    repository: &dyn Repository,
    root: &DirEntry,
    options: &BlockRestoreOptions,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<BlockRestoreReport> {
    let volume = cancel.interrupting(repository, || only_file(repository, root))?;
    let device = Arc::new(Device::open(options, volume.size, progress)?);
    let wanted = Wanted { id: Id::new(volume.object), to: device.clone(), compare: options.compare };
    let stop = || cancel.is_cancelled() || device.failed.load(Ordering::Relaxed);
    let how = ScatterOptions { threads: options.threads, stop: &stop };
    let totals = repository.read_scattered(&mut std::iter::once(wanted), how)?;
    device.end(cancel)?;
    progress.file_done();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(BlockRestoreReport {
        size: volume.size,
        written: count(&device.written),
        zeros: count(&device.zeros),
        kept: count(&device.kept),
        read_bytes: totals.bytes,
    })
}

/// The entry of the volume: `root` itself, or the only entry of its directory, as Velero writes it.
fn only_file(repository: &dyn Repository, root: &DirEntry) -> Result<DirEntry> {
    if root.entry_type == EntryType::File {
        return Ok(root.clone());
    }
    if root.summary.as_ref().is_some_and(|summary| !summary.incomplete.is_empty()) {
        let reason =
            "it is of a backup that did not end: what was not read would be zeros; restore another snapshot";
        return Err(lifeboat_kopia::Error::Invalid(reason.to_owned()).into());
    }
    let id = Id::new(root.object.clone());
    let mut entries = DirEntries::new(id.as_str(), repository.open_object(&id)?);
    match (entries.next().transpose()?, entries.next()) {
        (Some(entry), None) if entry.entry_type == EntryType::File => Ok(entry),
        _ => {
            let reason = "it is not of a block volume: it does not hold exactly one file".to_owned();
            Err(lifeboat_kopia::Error::DamagedObject { id: root.object.clone(), reason }.into())
        }
    }
}

/// The device or image that is being written.
struct Device<'a> {
    file: OwnedFd,
    path: &'a Path,
    size: u64,
    is_device: bool,
    /// Whether it holds nothing but zeros to begin with.
    is_blank: bool,
    can_discard: AtomicBool,
    progress: &'a Progress,
    written: AtomicU64,
    zeros: AtomicU64,
    kept: AtomicU64,
    failed: AtomicBool,
    outcome: Mutex<Option<Result<()>>>,
}

impl<'a> Device<'a> {
    /// Opens the target and makes sure that the volume fits, before a byte is written.
    fn open(options: &'a BlockRestoreOptions, size: u64, progress: &'a Progress) -> Result<Self> {
        let path = options.target.as_path();
        let failed = |action, e: Errno| Error::file(action, path, e);
        let is_device = match rustix::fs::stat(path) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::BlockDevice => true,
                FileType::RegularFile => false,
                _ => return Err(failed("restore a volume to", Errno::NOTBLK)),
            },
            Err(Errno::NOENT) => false,
            Err(error) => return Err(failed("examine", error)),
        };
        // The kernel refuses a device that is mounted or otherwise taken.
        let flags = if is_device { OFlags::EXCL } else { OFlags::CREATE };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| failed("open", e))?;
        if is_device {
            let available = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| failed("examine", e))?;
            if available < size {
                return Err(Error::TargetTooSmall { path: path.to_path_buf(), needed: size, available });
            }
        } else {
            if !options.compare {
                rustix::fs::ftruncate(&file, 0).map_err(|e| failed("empty", e))?;
            }
            rustix::fs::ftruncate(&file, size).map_err(|e| failed("set the size of", e))?;
        }
        Ok(Device {
            file,
            path,
            size,
            is_device,
            is_blank: !is_device && !options.compare,
            can_discard: AtomicBool::new(true),
            progress,
            written: AtomicU64::new(0),
            zeros: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            outcome: Mutex::default(),
        })
    }

    /// What the repository said in the end; then everything is on disk.
    fn end(&self, cancel: &Cancel) -> Result<()> {
        match self.outcome.lock().take() {
            Some(outcome) => outcome?,
            None => {
                cancel.check()?;
                return Err(Error::Worker);
            }
        }
        rustix::fs::fsync(&self.file).map_err(|e| Error::file("write to disk", self.path, e))
    }

    /// How much of a piece lies inside of the volume. Only zeros may lie outside.
    fn inside(&self, offset: u64, length: u64, is_zero: impl FnOnce(usize) -> bool) -> Result<u64> {
        let inside = self.size.saturating_sub(offset).min(length);
        match inside == length || is_zero(inside as usize) {
            true => Ok(inside),
            false => Err(self.damaged("more")),
        }
    }

    fn damaged(&self, than: &str) -> Error {
        let reason = format!("the volume's object has {than} bytes than the {} of the volume", self.size);
        Error::file("restore a volume to", self.path, std::io::Error::other(reason))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        write_at(&self.file, bytes, offset).map_err(|e| Error::file("write", self.path, e))
    }

    fn take(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let inside = self.inside(offset, bytes.len() as u64, |from| is_zero(&bytes[from..]))?;
        let bytes = &bytes[..inside as usize];
        // Data with short runs of zeros in it goes to a device as it is.
        let is_hole = |segment: &Segment| matches!(segment, Segment::Hole(range) if !self.is_device || range.len() >= WORTH_A_DISCARD);
        let mut from = 0;
        for segment in sparse::segments(None, offset, bytes).into_iter().filter(is_hole) {
            let Segment::Hole(hole) = segment else { continue };
            self.write(offset + from as u64, &bytes[from..hole.start])?;
            self.make_zero(offset + hole.start as u64, hole.len() as u64)?;
            from = hole.end;
        }
        self.write(offset + from as u64, &bytes[from..])?;
        self.progress.bytes_done(inside);
        Ok(())
    }

    /// Makes a range read as zeros.
    fn make_zero(&self, offset: u64, length: u64) -> Result<()> {
        self.zeros.fetch_add(length, Ordering::Relaxed);
        if self.is_blank {
            return Ok(());
        }
        let end = offset + length;
        let from = offset.next_multiple_of(ALIGNMENT).min(end);
        let until = (end / ALIGNMENT * ALIGNMENT).max(from);
        if until > from && self.can_discard.load(Ordering::Relaxed) {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&self.file, punch, from, until - from) {
                Ok(()) => {
                    self.write_zeros(offset, from)?;
                    return self.write_zeros(until, end);
                }
                Err(_) => self.can_discard.store(false, Ordering::Relaxed),
            }
        }
        self.write_zeros(offset, end)
    }

    fn write_zeros(&self, mut from: u64, until: u64) -> Result<()> {
        static ZEROS: [u8; 256 << 10] = [0; 256 << 10];
        while from < until {
            let step = (until - from).min(ZEROS.len() as u64);
            self.write(from, &ZEROS[..step as usize])?;
            from += step;
        }
        Ok(())
    }

    fn go_on(&self, outcome: Result<()>) -> ControlFlow<()> {
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.outcome.lock().get_or_insert(Err(error));
                self.failed.store(true, Ordering::Relaxed);
                ControlFlow::Break(())
            }
        }
    }
}

impl Destination for Device<'_> {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        self.go_on(self.take(offset, bytes))
    }

    fn zeros(&self, offset: u64, length: u64) -> ControlFlow<()> {
        let inside = self.inside(offset, length, |_| true);
        self.go_on(inside.and_then(|inside| {
            self.progress.bytes_done(inside);
            self.make_zero(offset, inside)
        }))
    }

    fn kept(&self, _: u64, length: u64) -> ControlFlow<()> {
        self.kept.fetch_add(length, Ordering::Relaxed);
        self.progress.bytes_done(length);
        ControlFlow::Continue(())
    }

    fn read_back(&self, offset: u64, buffer: &mut [u8]) -> bool {
        fills(&self.file, buffer, offset)
    }

    fn finished(&self, outcome: lifeboat_repository::Result<u64>) {
        let outcome = outcome.map_err(Error::from).and_then(|length| {
            match (self.size..=self.size.saturating_add(MOST_PADDING)).contains(&length) {
                true => Ok(()),
                false => Err(self.damaged(if length < self.size { "fewer" } else { "more" })),
            }
        });
        self.outcome.lock().get_or_insert(outcome);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// Zeros from an odd place on, some in front of a block, many blocks of them, and some behind, made on what is full
    /// of something else.
    #[test]
    fn zeros_are_written_to_the_byte_where_nothing_can_be_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("image");
        let size = 3 << 20;
        let (from, until) = (4096 + 17, size - 4096 - 5);
        let mut expected = vec![7; size];
        expected[from..until].fill(0);
        for can_discard in [true, false] {
            std::fs::write(&target, vec![7; size]).unwrap();
            let options = BlockRestoreOptions { target: target.clone(), compare: true, threads: 1 };
            let progress = Progress::default();
            let device = Device::open(&options, size as u64, &progress).unwrap();
            device.can_discard.store(can_discard, Ordering::Relaxed);
            assert!(device.zeros(from as u64, (until - from) as u64).is_continue());
            assert!(std::fs::read(&target).unwrap() == expected, "can discard: {can_discard}");
            let written = device.written.load(Ordering::Relaxed);
            let zeros = device.zeros.load(Ordering::Relaxed);
            assert_eq!(zeros, (until - from) as u64);
            assert_eq!(progress.totals().bytes, zeros);
            // What is discarded takes no room; what is written does.
            let room = std::fs::metadata(&target).unwrap().blocks() * 512;
            match can_discard {
                true => assert!(written < 8192 && room < 1 << 20, "{written} written, {room} taken"),
                false => assert!(written == zeros && room >= size as u64, "{written} written, {room} taken"),
            }
            // The same by pieces that hold both, as a device and as an image.
            std::fs::write(&target, vec![9; size]).unwrap();
            assert!(device.deliver(0, &expected).is_continue());
            assert!(std::fs::read(&target).unwrap() == expected, "can discard: {can_discard}");
        }
    }
}
