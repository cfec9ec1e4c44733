//! A block device or image file becomes a snapshot in the shape that Velero gives it: a directory with one file, both
//! named like the device.
//!
//! All threads read and write pieces of it at the same time. Zeros are not written, and with an earlier snapshot and
//! a list of what changed since, nothing else is even read.

use crate::actions::{self, Scope};
use crate::backup::{Finished, checkpointed, save_checkpoints, threads};
use crate::compression::compressor_for;
use crate::io::{is_zero, read_ahead, read_at};
use crate::progress::{Cancel, Progress};
use crate::single::{self, Single};
use crate::{Error, Result};
use jiff::Timestamp;
use lifeboat_budget::Budget;
use lifeboat_kopia::policy::{ActionsPolicy, Policy};
use lifeboat_kopia::snapshot::{DirEntries, EntryType, IncompleteReason, SnapshotManifest, SourceInfo};
use lifeboat_repository::{
    AccessMode, BackupMode, DataType, Id, ObjectWriteOptions, ObjectWriter, Repository,
};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// The device is read in pieces of this size.
const PIECE: u64 = 8 << 20;
/// Changed ranges are widened to multiples of this, the size that objects with block access are cut into, so that no
/// piece of the earlier object has to be read to fill one up.
const GRAIN: u64 = 1 << 20;
/// What Velero gives the directory: Go's zero time, as far as nanoseconds since 1970 can hold it.
const ROOT_TIME: Timestamp = Timestamp::constant(-6_795_364_579, 128_654_848);
/// What Velero gives directory and file.
const MODE: u32 = 0o777;

/// What to back up, and how.
#[derive(Debug, Clone)]
pub struct BlockBackupOptions {
    /// The device, or a file with the image of one.
    pub path: PathBuf,
    /// Under which identity the snapshot is saved.
    pub source: SourceInfo,
    /// Compression of data and metadata.
    pub policy: Policy,
    /// An earlier snapshot of the same device, and all ranges that changed since. Without them, or if the earlier
    /// snapshot turns out not to be one of a device, or not to be complete and whole, everything is read.
    pub changes: Option<(SnapshotManifest, Vec<Range<u64>>)>,
    /// Free text.
    pub description: String,
    /// How often to save what is there so far as an incomplete snapshot, at most every
    /// [`MAX_CHECKPOINT_INTERVAL`](crate::MAX_CHECKPOINT_INTERVAL); also when the backup is cancelled. Never if not given.
    pub checkpoint_interval: Option<Duration>,
    /// Whether the commands that the policy names before and after a snapshot are run. The one before may say that
    /// another device or file is to be read, such as a snapshot of the volume.
    pub actions: bool,
    /// How many threads read and write; 0 = as many as there are processors.
    pub threads: usize,
    /// The memory that buffers draw on.
    pub budget: Budget,
}

/// Backs up a block device or an image file.
///
/// The snapshot is returned, not saved: its data is durable after the repository's next flush. If the backup was
/// cancelled, and checkpoints are wanted, the snapshot is incomplete and says so; if the storage does not answer any
/// more then, there is none, and the repository's writes stay [interrupted](Repository::interrupt_writes).
///
/// An incomplete snapshot keeps what was written safe from garbage collection. No other backup takes it for what is on the
/// device: it reads everything, and finds what is there already by its hash.
pub fn back_up_block(
    repository: &dyn Repository,
    options: &BlockBackupOptions,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<SnapshotManifest> {
    let start_time = repository.now();
    let ActionsPolicy { before_snapshot_root, after_snapshot_root, .. } = &options.policy.actions;
    let commands = [before_snapshot_root, after_snapshot_root];
    // The command after runs when this goes, which is after everything else.
    let scope = Scope::enter(options.actions, actions::ROOT, commands, &options.path, cancel)?;
    let device = Device::open(scope.as_ref().and_then(Scope::moved_to).unwrap_or(&options.path))?;
    let earlier = options.changes.as_ref().and_then(|(parent, changed)| {
        let object = object_of(repository, parent);
        object.map(|(object, length)| (object, widened(changed, length, device.size)))
    });
    let incremental = earlier.is_some();
    let (parent, ranges) = match earlier {
        Some((object, ranges)) => (Some(object), ranges),
        None => (None, std::iter::once(0..device.size).collect()),
    };
    let name = options.path.file_name().unwrap_or_default().to_string_lossy();
    let write_options = ObjectWriteOptions {
        full_path: options.path.to_string_lossy().into_owned(),
        data_type: DataType::Data,
        access_mode: AccessMode::Block,
        backup_mode: if incremental { BackupMode::Incremental } else { BackupMode::Full },
        parent,
        length: Some(device.size),
        compressor: compressor_for(&options.policy.compression, &name, device.size).to_owned(),
        ..ObjectWriteOptions::default()
    };
    let wanted: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    progress.estimate(1, device.size);
    progress.taken_over(device.size - wanted);
    let writer = repository.new_object(&write_options)?;
    let (writer_of, failure) = (&*writer, Mutex::default());
    let run = Run {
        repository,
        options,
        start_time,
        device: &device,
        writer: writer_of,
        incremental,
        progress,
        cancel,
        failure,
    };
    let incomplete = cancel.interrupting_writes(repository, || match run.work(ranges) {
        Err(Error::Cancelled) if options.checkpoint_interval.is_some() => {
            run.so_far(IncompleteReason::Canceled)?.ok_or(Error::Cancelled).map(Some)
        }
        outcome => outcome.map(|()| None),
    })?;
    if let Some(incomplete) = incomplete {
        return Ok(incomplete);
    }
    let object = cancel.interrupting_writes(repository, || Ok(writer.result()?))?;
    progress.file_hashed();
    let name = options.path.to_string_lossy();
    let file = single::file(&name, MODE, device.size, start_time, object);
    directory(options, start_time).snapshot(repository, &file)
}

/// The object of a snapshot of a device, and its length; `None`, with a warning, if it is not one, or if any of its data
/// is lost or was never read: that comes when the device is read again.
fn object_of(repository: &dyn Repository, snapshot: &SnapshotManifest) -> Option<(Id, u64)> {
    let find = || -> Result<Option<(Id, u64)>> {
        if !snapshot.is_complete() {
            return Ok(None);
        }
        let Some(root) = snapshot.root_object() else { return Ok(None) };
        let listing = repository.open_object(&Id::new(root))?;
        let mut entries = DirEntries::new(root, listing);
        let (Some(first), None) = (entries.next().transpose()?, entries.next()) else { return Ok(None) };
        let object = Id::new(first.object);
        if first.entry_type != EntryType::File || !repository.is_whole(&object)? {
            return Ok(None);
        }
        let length = repository.open_object(&object)?.length();
        Ok(Some((object, length)))
    };
    match find() {
        Ok(Some(found)) => Some(found),
        Ok(None) => {
            warn!(id = %snapshot.id, "the earlier snapshot is not a complete one of a device, or has lost data; all of the device is read");
            None
        }
        Err(error) => {
            warn!(id = %snapshot.id, %error, "the earlier snapshot cannot be read; all of the device is");
            None
        }
    }
}

/// The ranges to read: those that changed, widened to whole chunks, and what the earlier object does not reach; in
/// order, neighbours joined.
fn widened(changed: &[Range<u64>], earlier: u64, size: u64) -> Vec<Range<u64>> {
    let grown = (earlier < size).then_some(earlier..size);
    let mut wide: Vec<Range<u64>> = changed
        .iter()
        .cloned()
        .chain(grown)
        .filter(|range| !range.is_empty())
        .map(|range| {
            let end = range.end.checked_next_multiple_of(GRAIN).unwrap_or(u64::MAX).min(size);
            (range.start - range.start % GRAIN).min(end)..end
        })
        .filter(|range| !range.is_empty())
        .collect();
    wide.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(wide.len());
    for range in wide {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// What is read.
struct Device {
    file: OwnedFd,
    path: PathBuf,
    size: u64,
    /// Whether it may tell where it has holes.
    is_file: bool,
}

impl Device {
    fn open(path: &Path) -> Result<Device> {
        let failed = |action: &'static str, e: rustix::io::Errno| Error::file(action, path, e);
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
            .map_err(|e| match e {
            rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
                let reason = format!("{e}; a container must be privileged to read a device");
                Error::file("open", path, std::io::Error::new(e.kind(), reason))
            }
            _ => failed("open", e),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(|e| failed("examine", e))?;
        let is_file = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => true,
            FileType::BlockDevice => false,
            _ => {
                let reason = std::io::Error::other("it is neither a block device nor a file");
                return Err(Error::file("back up", path, reason));
            }
        };
        let size = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| failed("find the size of", e))?;
        // Reading ahead pays: it is read from the beginning to the end.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
        Ok(Device { file, path: path.to_owned(), size, is_file })
    }

    /// Where the next data is at or after `at`; behind the end if there is none.
    fn next_data(&self, at: u64) -> u64 {
        if !self.is_file {
            return at;
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => data.min(self.size),
            Err(rustix::io::Errno::NXIO) => self.size,
            // The file system does not tell.
            Err(_) => at,
        }
    }

    /// Fills the buffer; a device that has become shorter meanwhile is an error.
    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match read_at(&self.file, buffer, offset) {
            Ok(count) if count == buffer.len() => Ok(()),
            Ok(_) => Err(Error::file("read", &self.path, crate::source::changed())),
            Err(error) => Err(Error::file("read", &self.path, error)),
        }
    }
}

struct Run<'a> {
    repository: &'a dyn Repository,
    options: &'a BlockBackupOptions,
    start_time: Timestamp,
    device: &'a Device,
    writer: &'a dyn ObjectWriter,
    /// What is not written is the parent's data, not zeros.
    incremental: bool,
    progress: &'a Progress,
    cancel: &'a Cancel,
    failure: Mutex<Option<Error>>,
}

impl Run<'_> {
    fn work(&self, ranges: Vec<Range<u64>>) -> Result<()> {
        let options = self.options;
        let pieces = &Mutex::new(Pieces { ranges: ranges.into_iter(), current: 0..0 });
        let finished = &Finished::default();
        let threads = threads(options.threads);
        let share = options.budget.total() / 2;
        // A small budget has fewer threads rather than pieces that are not worth a system call.
        let fitting = usize::try_from(share / PIECE).unwrap_or(threads).max(1);
        let memory = options.budget.try_reserve(share);
        let _memory = memory.map(|memory| self.repository.lend(memory)).transpose()?;
        std::thread::scope(|scope| {
            if let Some(interval) = options.checkpoint_interval {
                let so_far = || self.so_far(IncompleteReason::Checkpoint);
                scope.spawn(move || {
                    // Without checkpoints garbage collection may remove what a long backup has written.
                    if let Err(error) = save_checkpoints(self.repository, finished, interval, so_far) {
                        self.fail(error);
                    }
                });
            }
            let copy = || self.copy(pieces).unwrap_or_else(|error| self.fail(error));
            let copying: Vec<_> = (0..threads.min(fitting)).map(|_| scope.spawn(copy)).collect();
            for thread in copying {
                // What a thread that has panicked did not write must not be missing from a snapshot.
                thread.join().unwrap_or_else(|_| self.fail(Error::Worker));
            }
            finished.set();
        });
        match self.failure.lock().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
    }

    /// A snapshot of what is there so far; `None` if nothing is.
    fn so_far(&self, reason: IncompleteReason) -> Result<Option<SnapshotManifest>> {
        let Some((object, length)) = self.writer.checkpoint_meanwhile()? else { return Ok(None) };
        let name = self.options.path.to_string_lossy();
        let whole = single::file(&name, MODE, length, self.start_time, object.clone());
        let file = checkpointed(&whole, object, length);
        directory(self.options, self.start_time).incomplete(self.repository, &file, reason).map(Some)
    }

    fn copy(&self, pieces: &Mutex<Pieces>) -> Result<()> {
        loop {
            self.cancel.check()?;
            if self.failure.lock().is_some() {
                return Ok(());
            }
            let Some(piece) = pieces.lock().next(self.device, !self.incremental, self.progress) else {
                return Ok(());
            };
            let length = (piece.end - piece.start) as usize;
            let mut buffer = self.repository.take_buffer(length)?;
            self.device.read(buffer.as_mut(), piece.start)?;
            // An image may have a hole there, which would be memory full of zeros.
            if !self.device.is_file {
                read_ahead(&self.device.file, pieces.lock().upcoming());
            }
            let ranges = self.to_be_written(buffer.as_ref());
            self.writer.write_buffer_at(piece.start, buffer, &ranges)?;
            self.progress.hashed(length as u64);
        }
    }

    /// The chunks that are not zeros, or everything if zeros have to be said.
    fn to_be_written(&self, data: &[u8]) -> Vec<Range<usize>> {
        let chunks = data.chunks(GRAIN as usize).scan(0, |at, chunk| {
            let start = *at;
            *at += chunk.len();
            Some((start..*at, chunk))
        });
        let is_said = |(_, chunk): &(Range<usize>, &[u8])| self.incremental || !is_zero(chunk);
        chunks.filter(is_said).map(|(range, _)| range).collect()
    }
}

/// Hands out pieces in order.
struct Pieces {
    ranges: std::vec::IntoIter<Range<u64>>,
    current: Range<u64>,
}

impl Pieces {
    /// What will be handed out next, as far as nothing lies between.
    fn upcoming(&self) -> Range<u64> {
        self.current.start..self.current.end.min(self.current.start.saturating_add(PIECE))
    }

    fn next(&mut self, device: &Device, skip_holes: bool, progress: &Progress) -> Option<Range<u64>> {
        loop {
            if self.current.is_empty() {
                self.current = self.ranges.next()?;
            }
            let mut start = self.current.start;
            if skip_holes {
                // On the grid, so that no chunk is written in two pieces.
                let data = device.next_data(start);
                start = (data - data % GRAIN).max(start).min(self.current.end);
                progress.hashed(start - self.current.start);
            }
            let end = (start - start % PIECE + PIECE).min(self.current.end);
            self.current.start = end;
            if start < end {
                return Some(start..end);
            }
        }
    }
}

/// The directory that the device is in.
fn directory(options: &BlockBackupOptions, start_time: Timestamp) -> Single<'_> {
    Single {
        source: &options.source,
        description: &options.description,
        policy: &options.policy,
        start_time,
        name: options.path.to_string_lossy().into_owned(),
        mode: MODE,
        time: ROOT_TIME,
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // a list of ranges is what is meant
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ranges(changed: &[Range<u64>], earlier: u64, size: u64) -> Vec<Range<u64>> {
        widened(changed, earlier, size)
    }

    #[test]
    fn changed_ranges_are_widened_joined_and_end_with_the_device() {
        let size = 10 * MIB + 5;
        assert_eq!(ranges(&[], size, size), []);
        assert_eq!(ranges(&[1..2], size, size), [0..MIB]);
        assert_eq!(
            ranges(&[5 * MIB..5 * MIB + 1, 0..MIB + 1, MIB..2 * MIB], size, size),
            [0..2 * MIB, 5 * MIB..6 * MIB]
        );
        assert_eq!(ranges(&[10 * MIB..u64::MAX], size, size), [10 * MIB..size]);
        assert_eq!(ranges(&[u64::MAX - 1..u64::MAX, 3..3], size, size), []);
        assert_eq!(ranges(&[0..1], 9 * MIB + 7, size), [0..MIB, 9 * MIB..size]);
        assert_eq!(ranges(&[], size, 3 * MIB), []);
    }

    #[test]
    fn the_time_of_the_directory_is_the_one_that_velero_writes() {
        assert_eq!(ROOT_TIME.to_string(), "1754-08-30T22:43:41.128654848Z");
    }
}
