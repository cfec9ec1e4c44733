//! Memory that files are read into: a room for each thread.

use lifeboat_budget::{Budget, Reservation};
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::AsFd;

/// Files up to this size are read whole and written together. With the default splitter, these are one chunk each
/// for sure, whatever is in them.
const SMALL_FILE: usize = 2 << 20;
/// A room holds several small files, or pieces of a large one, so that they can be hashed side by side.
const ROOM: usize = 24 << 20;
/// The longest piece of a large file with the default splitter.
const LONGEST_PIECE: usize = 8 << 20;

/// The room of a thread: bytes of small files, one after another, or a region of a large one.
#[derive(Debug)]
pub(super) struct Room {
    bytes: Box<[u8]>,
    filled: usize,
    _memory: Option<Reservation>,
}

impl Room {
    /// Rooms for so many threads, or for as many as the budget has room for a large file's longest piece for; smaller
    /// than usual if it is small. The first one is there in any case: there is no backup without it.
    pub(super) fn for_threads(budget: &Budget, threads: usize) -> Vec<Room> {
        // The other half is for packs, and for what is known about the repository.
        let share = usize::try_from(budget.total() / 2).unwrap_or(usize::MAX);
        let threads = threads.min(share / LONGEST_PIECE).max(1);
        let len = (share / threads).clamp(64 << 10, ROOM);
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

    /// All of an empty room, if it has at least so many bytes.
    pub(super) fn whole(&mut self, least: usize) -> Option<&mut [u8]> {
        (self.filled == 0 && self.bytes.len() >= least).then_some(&mut self.bytes)
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

/// A room that threads share whose own is too small for what has to be in memory at once.
#[derive(Debug, Default)]
pub(super) struct SharedRoom(Mutex<Vec<u8>>);

impl SharedRoom {
    /// Does something with a room of at least so many bytes: a thread's own one, else the shared one, which exceeds the
    /// budget, but only once.
    pub(super) fn with<T>(&self, own: &mut Room, least: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
        if let Some(room) = own.whole(least) {
            return work(room);
        }
        let mut shared = self.0.lock();
        if shared.len() < least {
            *shared = vec![0; least];
        }
        work(&mut shared)
    }
}
