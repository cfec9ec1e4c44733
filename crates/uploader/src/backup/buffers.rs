//! Memory that files are read into: a room for small files for each thread, and regions of large files.

use super::Run;
use crate::{Result, io};
use bytes::Bytes;
use lifeboat_budget::{Budget, Reservation};
use lifeboat_repository::RegionWriter;
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Files up to this size are read whole and written together. With the default splitter, these are one chunk each
/// for sure, whatever is in them.
const SMALL_FILE: usize = 2 << 20;
/// A room holds several small files, so that they can be hashed side by side.
const ROOM: usize = 8 << 20;
/// Large files are read in regions of at most this size; with a small budget they are smaller.
const MAX_REGION: usize = 4 << 20;
const MIN_REGION: usize = 512 << 10;
/// What a region may have in front of it for the repository to see.
const CONTEXT: usize = 4096;
/// Fewer zeros than this are data like any other.
const LEAST_ZEROS: usize = 4096;
/// A thread that waits for memory looks this often whether it shall go on at all.
const PATIENCE: Duration = Duration::from_millis(100);

/// The room of a thread: bytes of small files, one after another.
#[derive(Debug)]
pub(super) struct Room {
    bytes: Box<[u8]>,
    filled: usize,
    _memory: Option<Reservation>,
}

impl Room {
    /// Rooms for so many threads, or for as many as the budget allows; smaller than usual if it is small. The first one
    /// is there in any case: there is no backup without it.
    pub(super) fn for_threads(budget: &Budget, threads: usize) -> Vec<Room> {
        let share = usize::try_from(budget.total() / 8).unwrap_or(ROOM) / threads.max(1);
        let len = share.clamp(64 << 10, ROOM);
        let mut rooms = Vec::new();
        while rooms.len() < threads {
            let memory = budget.try_reserve(len as u64);
            if memory.is_none() && !rooms.is_empty() {
                break;
            }
            rooms.push(Room { bytes: vec![0; len].into_boxed_slice(), filled: 0, _memory: memory });
        }
        rooms
    }

    /// The largest size of a file that is read whole.
    pub(super) fn small_file(&self) -> u64 {
        SMALL_FILE.min(self.bytes.len() / 2) as u64
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.filled
    }

    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    pub(super) fn get(&self, place: &Range<usize>) -> &[u8] {
        &self.bytes[place.clone()]
    }

    /// Adds bytes, as many as there is room for.
    pub(super) fn push(&mut self, data: &[u8]) -> Range<usize> {
        let count = data.len().min(self.left());
        let place = self.filled..self.filled + count;
        self.bytes[place.clone()].copy_from_slice(&data[..count]);
        self.filled = place.end;
        place
    }

    /// Reads `wanted` bytes of a file from its beginning, wherever looking for holes has left it, or up to its end.
    pub(super) fn read(&mut self, file: impl AsFd, wanted: usize) -> rustix::io::Result<Range<usize>> {
        let start = self.filled;
        let end = start + wanted.min(self.left());
        let mut at = start;
        while at < end {
            match rustix::io::pread(&file, &mut self.bytes[at..end], (at - start) as u64) {
                Ok(0) => break,
                Ok(count) => {
                    at += count;
                    // One byte more than expected was asked for: a file that has not grown ends here.
                    if at + 1 == end {
                        break;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.filled = at;
        Ok(start..at)
    }
}

/// Buffers for regions of large files. They are made when the first one is needed and used again and again.
#[derive(Debug)]
pub(super) struct Regions {
    budget: Budget,
    region: usize,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct State {
    memory: Vec<Reservation>,
    /// How many there are, in use or not, made or not.
    count: usize,
    idle: Vec<Box<[u8]>>,
    /// How many more may be made.
    unmade: usize,
    /// Whether somebody waits for one.
    is_awaited: bool,
}

impl Regions {
    pub(super) fn new(budget: &Budget) -> Self {
        // Eight of them fit into the share below.
        let fitting = usize::try_from(budget.total() / 32).unwrap_or(MAX_REGION);
        let region = fitting.clamp(MIN_REGION, MAX_REGION) & !(MIN_REGION - 1);
        Regions { budget: budget.clone(), region, shared: Arc::default() }
    }

    /// How long a region is.
    pub(super) fn region_bytes(&self) -> usize {
        self.region
    }

    /// A buffer for the next region of the object that `writer` writes: one that all earlier ones have theirs
    /// already.
    ///
    /// This does not wait forever: earlier regions are being read, or are with the writer, where `work` frees all
    /// but those of an unfinished chunk; and there is always one buffer more than these need.
    pub(super) fn take(&self, run: &Run<'_>, writer: &dyn RegionWriter) -> Result<RegionBuffer> {
        loop {
            if let Some(buffer) = self.try_take(writer) {
                return Ok(buffer);
            }
            run.check()?;
            writer.work()?;
            let mut state = self.shared.state.lock();
            if state.idle.is_empty() {
                self.shared.returned.wait_for(&mut state, PATIENCE);
            }
        }
    }

    fn try_take(&self, writer: &dyn RegionWriter) -> Option<RegionBuffer> {
        let mut state = self.shared.state.lock();
        self.provide(&mut state, writer.most_held());
        let bytes = match (state.idle.pop(), state.unmade) {
            (Some(bytes), _) => bytes,
            (None, 0) => {
                state.is_awaited = true;
                return None;
            }
            (None, _) => {
                state.unmade -= 1;
                vec![0; self.region + CONTEXT].into_boxed_slice()
            }
        };
        state.is_awaited = false;
        Some(RegionBuffer { bytes, used: 0..0, shared: self.shared.clone() })
    }

    /// Whether somebody waits for a buffer, so that whoever submits a region should see to it that `work` is done.
    pub(super) fn is_awaited(&self) -> bool {
        self.shared.state.lock().is_awaited
    }

    /// Allows as many buffers as an object needs of which the writer may hold back `most_held` bytes.
    ///
    /// They take up to a quarter of the budget: the rest is for packs and for whatever else has to go on meanwhile. A
    /// budget that is too small for one chunk is exceeded by it.
    fn provide(&self, state: &mut State, most_held: u64) {
        // What may be held back, the region that it begins in, and one to go on with.
        let least = usize::try_from(most_held).unwrap_or(usize::MAX).div_ceil(self.region) + 2;
        if state.count >= least {
            return;
        }
        let bytes = |count: usize| (count * (self.region + CONTEXT)) as u64;
        let fitting = usize::try_from(self.budget.total() / 4 / bytes(1)).unwrap_or(least);
        let reserve = |count: usize| Some((count, self.budget.try_reserve(bytes(count - state.count))?));
        let reserved = (least..=fitting.max(least)).rev().find_map(reserve);
        let count = reserved.as_ref().map_or(least, |(count, _)| *count);
        state.memory.extend(reserved.map(|(_, memory)| memory));
        state.unmade += count - state.count;
        state.count = count;
    }
}

/// Memory for one region; returns when the last holder of its bytes lets go.
#[derive(Debug)]
pub(super) struct RegionBuffer {
    bytes: Box<[u8]>,
    used: Range<usize>,
    shared: Arc<Shared>,
}

impl RegionBuffer {
    /// Reads `wanted` bytes at `offset`, or up to the end of the file.
    pub(super) fn read_at(
        &mut self,
        file: &OwnedFd,
        wanted: usize,
        offset: u64,
    ) -> rustix::io::Result<usize> {
        io::read_at(file, &mut self.bytes[..wanted], offset)
    }

    pub(super) fn get(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Whether these bytes are zeros and enough of them to make a difference.
    pub(super) fn is_zero(&self, range: Range<usize>) -> bool {
        range.len() >= LEAST_ZEROS && io::is_zero(&self.bytes[range])
    }

    /// These bytes.
    pub(super) fn into_bytes(mut self, range: Range<usize>) -> Bytes {
        self.used = range;
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for RegionBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.used.clone()]
    }
}

impl Drop for RegionBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.shared.state.lock().idle.push(bytes);
        self.shared.returned.notify_one();
    }
}
