//! Buffers that are taken from a fixed amount of memory, become parts of what is stored, and come back.

use crate::Reservation;
use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Buffers are rounded up to multiples of one of these, so that one that comes back fits the next use.
const LARGE_GRAIN: usize = 1 << 20;
const SMALL_GRAIN: usize = 64 << 10;
/// What has no such page in it would gain nothing.
const HUGE_PAGE: usize = 2 << 20;

/// An amount of memory, handed out in buffers that return when the last holder of their bytes lets go.
///
/// Buffers are kept for reuse: the pages of a fresh one cost as much as encrypting into it. What lies idle counts
/// as used, and is given up when another size is needed.
#[derive(Clone)]
pub struct BufferPool {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    /// Held for as long as the pool or any of its buffers lives.
    _share: Option<Reservation>,
}

#[derive(Default)]
struct State {
    total: usize,
    taken: usize,
    idle: Vec<Memory>,
    idle_bytes: usize,
    /// Loans that have ended while buffers were still out that only they had room for.
    ended: Vec<Reservation>,
}

/// Memory that a pool may hand out in addition, until this is dropped.
#[derive(Debug)]
pub struct Loan {
    pool: BufferPool,
    memory: Option<Reservation>,
}

impl BufferPool {
    /// A pool of `total` bytes; `share` is what they were reserved with.
    pub fn new(total: usize, share: Option<Reservation>) -> Self {
        let state = Mutex::new(State { total, ..State::default() });
        BufferPool { inner: Arc::new(Inner { state, _share: share }) }
    }

    /// Bytes in buffers that are in use now.
    pub fn taken(&self) -> usize {
        self.inner.state.lock().taken
    }

    /// Adds memory to the pool.
    pub fn lend(&self, memory: Reservation) -> Loan {
        self.inner.state.lock().total += memory.bytes() as usize;
        Loan { pool: self.clone(), memory: Some(memory) }
    }

    /// A buffer of at least `len` bytes, if it fits what is left.
    pub fn take(&self, len: usize) -> Option<Buffer> {
        let capacity = rounded(len);
        let mut state = self.inner.state.lock();
        if state.taken.checked_add(capacity)? > state.total && state.find_idle(len, capacity).is_none() {
            return None;
        }
        Some(self.take_locked(&mut state, len, capacity))
    }

    /// A buffer of at least `len` bytes, even beyond the total: for a caller that could wait forever otherwise.
    pub fn take_anyway(&self, len: usize) -> Buffer {
        self.take_locked(&mut self.inner.state.lock(), len, rounded(len))
    }

    fn take_locked(&self, state: &mut State, len: usize, capacity: usize) -> Buffer {
        let memory = state.reuse(len, capacity).unwrap_or_else(|| {
            state.give_up_idle(capacity);
            Memory::new(capacity)
        });
        state.taken += memory.len();
        Buffer { memory, len: 0, pool: self.inner.clone() }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.state.lock();
        f.debug_struct("BufferPool")
            .field("total", &state.total)
            .field("taken", &state.taken)
            .field("idle", &state.idle_bytes)
            .finish()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut state = self.pool.inner.state.lock();
        state.total -= memory.bytes() as usize;
        state.give_up_idle(0);
        state.ended.push(memory);
        state.end_loans();
    }
}

impl State {
    /// Where the smallest idle buffer is that holds `len` bytes and is not much larger than a new one would be.
    fn find_idle(&self, len: usize, capacity: usize) -> Option<usize> {
        let fits = |idle: &Memory| idle.len() >= len && idle.len() <= capacity.saturating_mul(2);
        let fitting = self.idle.iter().enumerate().filter(|(_, idle)| fits(idle));
        fitting.min_by_key(|(_, idle)| idle.len()).map(|(place, _)| place)
    }

    fn reuse(&mut self, len: usize, capacity: usize) -> Option<Memory> {
        let memory = self.idle.swap_remove(self.find_idle(len, capacity)?);
        self.idle_bytes -= memory.len();
        Some(memory)
    }

    /// Gives up idle buffers until `wanted` bytes fit in beside those that stay.
    fn give_up_idle(&mut self, wanted: usize) {
        while self.taken.saturating_add(self.idle_bytes).saturating_add(wanted) > self.total
            && let Some(memory) = self.idle.pop()
        {
            self.idle_bytes -= memory.len();
        }
    }

    /// Gives back what was lent once nothing is out that needs it.
    fn end_loans(&mut self) {
        if self.taken <= self.total {
            self.ended.clear();
        }
    }
}

fn rounded(len: usize) -> usize {
    let grain = if len >= LARGE_GRAIN { LARGE_GRAIN } else { SMALL_GRAIN };
    len.max(1).div_ceil(grain).saturating_mul(grain)
}

/// Zeroed memory straight from the kernel, which gets it back: buffers of many sizes that come and go would leave holes
/// in the allocator's memory that nothing else fits.
enum Memory {
    Mapped(MmapMut),
    /// Where the kernel allows no more mappings.
    Heap(Vec<u8>),
}

impl Memory {
    fn new(len: usize) -> Self {
        let Ok(memory) = MmapMut::map_anon(len) else { return Memory::Heap(vec![0; len]) };
        // Large buffers are filled from end to end by the kernel and read by many lanes at a time: with large pages both
        // find their way quicker. A kernel that has none, or knows none, has small ones.
        if len >= HUGE_PAGE {
            let _ = memory.advise(Advice::HugePage);
        }
        Memory::Mapped(memory)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::Heap(Vec::new())
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Memory::Mapped(bytes) => bytes,
            Memory::Heap(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Mapped(bytes) => bytes,
            Memory::Heap(bytes) => bytes,
        }
    }
}

/// A buffer that is being filled from the front.
pub struct Buffer {
    memory: Memory,
    len: usize,
    pool: Arc<Inner>,
}

impl Buffer {
    /// How many bytes can still be added.
    pub fn room(&self) -> usize {
        self.memory.len() - self.len
    }

    /// How many bytes were added.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `len` bytes and returns them to be overwritten; `None` if there is no room for them.
    pub fn extend(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.len;
        let added = self.memory.get_mut(start..start.checked_add(len)?)?;
        self.len += len;
        Some(added)
    }

    /// The filled part as shared bytes; the memory returns to the pool when the last of them is dropped.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).field("room", &self.room()).finish()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut state = self.pool.state.lock();
        state.taken -= memory.len();
        if state.taken + state.idle_bytes + memory.len() <= state.total {
            state.idle_bytes += memory.len();
            state.idle.push(memory);
        }
        state.end_loans();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Budget;

    #[test]
    fn buffers_come_back_and_are_used_again() {
        let pool = BufferPool::new(8 << 20, None);
        let mut buffer = pool.take(3 << 20).unwrap();
        let place = buffer.memory.as_ptr();
        buffer.extend(5).unwrap().copy_from_slice(b"hello");
        let bytes = buffer.into_bytes();
        let part = bytes.slice(1..3);
        drop(bytes);
        assert_eq!((&part[..], pool.taken()), (&b"el"[..], 3 << 20));
        drop(part);
        assert_eq!(pool.taken(), 0);
        assert_eq!(pool.take((2 << 20) + 1).unwrap().memory.as_ptr(), place);
    }

    #[test]
    fn the_total_holds_unless_the_caller_insists() {
        let pool = BufferPool::new(2 << 20, None);
        let first = pool.take(1 << 20).unwrap();
        assert!(pool.take((1 << 20) + 1).is_none());
        let more = pool.take_anyway(4 << 20);
        assert_eq!(pool.taken(), 5 << 20);
        drop((first, more));
        assert_eq!(pool.taken(), 0);
        assert!(pool.inner.state.lock().idle_bytes <= 2 << 20);
    }

    #[test]
    fn idle_buffers_give_way_to_another_size() {
        let pool = BufferPool::new(4 << 20, None);
        drop((pool.take(1 << 20), pool.take(1 << 20), pool.take(1 << 20)));
        let large = pool.take(4 << 20).unwrap();
        assert_eq!((large.room(), pool.inner.state.lock().idle_bytes), (4 << 20, 0));
    }

    #[test]
    fn a_loan_lasts_until_what_it_made_room_for_is_back() {
        let budget = Budget::new(8 << 20);
        let pool = BufferPool::new(2 << 20, budget.try_reserve(2 << 20));
        let loan = pool.lend(budget.try_reserve(4 << 20).unwrap());
        let (first, second) = (pool.take(4 << 20).unwrap(), pool.take(2 << 20).unwrap());
        assert!(pool.take(1).is_none());
        drop(loan);
        assert!(budget.try_reserve(3 << 20).is_none(), "its memory is still in use");
        drop(first);
        assert!(budget.try_reserve(6 << 20).is_some());
        assert!(pool.take(1).is_none());
        drop(second);
        assert!(pool.take(2 << 20).is_some() && pool.take(3 << 20).is_none());
    }
}
