//! Memory that files are read into: a room for each thread, out of what the repository writes from.

use crate::Result;
use lifeboat_budget::{Budget, Buffer, Loan};
use lifeboat_repository::Repository;
use parking_lot::Mutex;
use std::ops::Range;
use std::os::fd::AsFd;

/// Files up to this size are read whole and written together. With the default splitter, these are one chunk each
/// for sure, whatever is in them.
const SMALL_FILE: usize = 2 << 20;
/// A room holds several small files, or pieces of a large one, so that they can be hashed side by side.
const ROOM: usize = 64 << 20;
/// The longest piece of a large file with the default splitter.
const LONGEST_PIECE: usize = 8 << 20;

/// How much memory a backup reads into, and how it is shared out.
#[derive(Debug)]
pub(super) struct Rooms {
    /// How many threads have a room of their own.
    pub(super) threads: usize,
    /// How large a room is.
    pub(super) len: usize,
    /// Held by a thread that needs more at once than that, which exceeds the budget, but only once.
    beyond: Mutex<()>,
    _memory: Option<Loan>,
}

impl Rooms {
    /// Rooms for so many threads, or for as many as the budget has room for a large file's longest piece for; smaller
    /// than usual if it is small. The first one is there in any case: there is no backup without it.
    pub(super) fn new(repository: &dyn Repository, budget: &Budget, threads: usize) -> Result<Self> {
        // The other half is for packs, and for what is known about the repository.
        let share = usize::try_from(budget.total() / 2).unwrap_or(usize::MAX);
        let threads = threads.min(share / LONGEST_PIECE).max(1);
        let len = (share / threads).clamp(64 << 10, ROOM);
        let fitting = |count: usize| budget.try_reserve((count * len) as u64).map(|memory| (count, memory));
        let (threads, memory) = match (1..=threads).rev().find_map(fitting) {
            Some((threads, memory)) => (threads, Some(repository.lend(memory)?)),
            None => (1, None),
        };
        Ok(Rooms { threads, len, beyond: Mutex::default(), _memory: memory })
    }

    /// The largest size of a file that is read whole.
    pub(super) fn small_file(&self) -> u64 {
        SMALL_FILE.min(self.len / 2) as u64
    }

    /// Does something with a buffer for `wanted` bytes, or for as many of them as go into a room, but for `least` in any
    /// case.
    pub(super) fn with<T>(
        &self,
        repository: &dyn Repository,
        (least, wanted): (usize, u64),
        work: impl FnOnce(Buffer) -> Result<T>,
    ) -> Result<T> {
        let _alone = (least > self.len).then(|| self.beyond.lock());
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        work(repository.take_buffer(wanted.min(self.len.max(least)))?)
    }
}

/// The room of a thread: bytes of small files, one after another. They are written together, and the memory goes with
/// them.
#[derive(Debug, Default)]
pub(super) struct Room {
    buffer: Option<Buffer>,
    filled: usize,
}

impl Room {
    /// Makes sure that there is memory, of `len` bytes.
    pub(super) fn open(&mut self, repository: &dyn Repository, len: usize) -> Result<()> {
        if self.buffer.is_none() {
            self.buffer = Some(repository.take_buffer(len)?);
        }
        Ok(())
    }

    /// Whether so many bytes more can be read into it once it is open.
    pub(super) fn has(&self, wanted: usize) -> bool {
        self.buffer.as_ref().is_none_or(|buffer| buffer.len() - self.filled >= wanted)
    }

    /// Empties it.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.filled = 0;
        self.buffer.take()
    }

    fn left(&mut self) -> &mut [u8] {
        let filled = self.filled;
        self.buffer.as_mut().and_then(|buffer| buffer.as_mut().get_mut(filled..)).unwrap_or_default()
    }

    /// Adds bytes, as many as there is room for.
    pub(super) fn push(&mut self, data: &[u8]) -> Range<usize> {
        let left = self.left();
        let count = data.len().min(left.len());
        left[..count].copy_from_slice(&data[..count]);
        let start = self.filled;
        self.filled += count;
        start..self.filled
    }

    /// Reads `wanted` bytes of a file from its beginning, wherever looking for holes has left it, or up to its end.
    pub(super) fn read(&mut self, file: impl AsFd, wanted: usize) -> rustix::io::Result<Range<usize>> {
        let left = self.left();
        let wanted = wanted.min(left.len());
        let mut count = 0;
        while count < wanted {
            match rustix::io::pread(&file, &mut left[count..wanted], count as u64) {
                Ok(0) => break,
                Ok(more) => {
                    count += more;
                    // One byte more than expected was asked for: a file that has not grown ends here.
                    if count + 1 == wanted {
                        break;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        let start = self.filled;
        self.filled += count;
        Ok(start..self.filled)
    }
}
