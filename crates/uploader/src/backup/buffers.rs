//! Memory that files are read into: a room for small files for each thread, and regions of large files.

use super::Run;
use crate::Result;
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
/// A thread that waits for memory looks this often whether it shall go on at all.
const PATIENCE: Duration = Duration::from_millis(100);

/// The room of a thread: bytes of small files, one after another.
#[derive(Debug)]
pub(super) struct Room {
    bytes: Box<[u8]>,
    filled: usize,
    _memory: Reservation,
}

impl Room {
    /// A room; smaller than usual if the budget is small.
    pub(super) fn new(budget: &Budget, threads: usize) -> Result<Room> {
        let share = usize::try_from(budget.total() / 8).unwrap_or(ROOM) / threads.max(1);
        let len = share.clamp(64 << 10, ROOM);
        let memory = budget.reserve(len as u64).map_err(lifeboat_kopia::Error::from)?;
        Ok(Room { bytes: vec![0; len].into_boxed_slice(), filled: 0, _memory: memory })
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

    /// Reads `wanted` bytes of a file, or up to its end.
    pub(super) fn read(&mut self, file: impl AsFd, wanted: usize) -> rustix::io::Result<Range<usize>> {
        let start = self.filled;
        let end = start + wanted.min(self.left());
        let mut at = start;
        while at < end {
            match rustix::io::read(&file, &mut self.bytes[at..end]) {
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
    /// Whether it was decided how many there may be.
    is_set_up: bool,
    _memory: Option<Reservation>,
    idle: Vec<Box<[u8]>>,
    /// How many more may be made.
    unmade: usize,
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
            if state.idle.is_empty() && state.unmade == 0 {
                self.shared.returned.wait_for(&mut state, PATIENCE);
            }
        }
    }

    fn try_take(&self, writer: &dyn RegionWriter) -> Option<RegionBuffer> {
        let mut state = self.shared.state.lock();
        if !state.is_set_up {
            state.is_set_up = true;
            (state._memory, state.unmade) = self.reserve(writer.most_held());
        }
        let bytes = match state.idle.pop() {
            Some(bytes) => bytes,
            None => {
                state.unmade = state.unmade.checked_sub(1)?;
                vec![0; self.region + CONTEXT].into_boxed_slice()
            }
        };
        Some(RegionBuffer { bytes, used: 0..0, shared: self.shared.clone() })
    }

    /// Memory for as many regions as a quarter of the budget holds: the rest is for packs and for whatever else has
    /// to go on meanwhile. A budget that is too small for one chunk is exceeded by it.
    fn reserve(&self, most_held: u64) -> (Option<Reservation>, usize) {
        let bytes = |count: usize| (count * (self.region + CONTEXT)) as u64;
        // What may be held back, the region that it begins in, and one to go on with.
        let least = usize::try_from(most_held).unwrap_or(usize::MAX).div_ceil(self.region) + 2;
        let fitting = usize::try_from(self.budget.total() / 4 / bytes(1)).unwrap_or(least);
        for count in (least..=fitting.max(least)).rev() {
            if let Some(memory) = self.budget.try_reserve(bytes(count)) {
                return (Some(memory), count);
            }
        }
        (None, least)
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
        let room = &mut self.bytes[..wanted];
        let mut filled = 0;
        while filled < room.len() {
            match rustix::io::pread(file, &mut room[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    pub(super) fn get(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Whether these bytes are zeros and enough of them to make a difference.
    pub(super) fn is_zero(&self, range: Range<usize>) -> bool {
        static ZEROS: [u8; 4096] = [0; 4096];
        range.len() >= ZEROS.len()
            && self.bytes[range].chunks(ZEROS.len()).all(|part| part == &ZEROS[..part.len()])
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
