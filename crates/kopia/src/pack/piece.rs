//! Memory for packs: buffers that are taken from a fixed amount, become parts of a pack, and come back.

use bytes::Bytes;
use lifeboat_budget::Reservation;
use memmap2::MmapMut;
use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Buffers are rounded up to multiples of one of these, so that one that comes back fits the next content.
const LARGE_GRAIN: usize = 1 << 20;
const SMALL_GRAIN: usize = 64 << 10;

/// A fixed amount of memory, handed out in buffers that return when the last holder of their bytes lets go.
///
/// Buffers are kept for reuse: the pages of a fresh one cost as much as encrypting into it. What lies idle counts
/// as used, and is given up when another size is needed.
#[derive(Clone)]
pub struct PiecePool {
    inner: Arc<Inner>,
}

struct Inner {
    total: usize,
    state: Mutex<State>,
    /// Held for as long as the pool or any of its buffers lives.
    _share: Option<Reservation>,
}

#[derive(Default)]
struct State {
    taken: usize,
    idle: Vec<Buffer>,
    idle_bytes: usize,
}

impl PiecePool {
    /// A pool of `total` bytes; `share` is what they were reserved with.
    pub fn new(total: usize, share: Option<Reservation>) -> Self {
        PiecePool { inner: Arc::new(Inner { total, state: Mutex::default(), _share: share }) }
    }

    /// Bytes in buffers that are in use now.
    pub fn taken(&self) -> usize {
        self.inner.state.lock().taken
    }

    /// A buffer of at least `len` bytes, if it fits what is left.
    pub fn take(&self, len: usize) -> Option<Piece> {
        self.take_within(len, self.inner.total)
    }

    /// A buffer of at least `len` bytes, even beyond the total: for a caller that could wait forever otherwise.
    pub fn take_anyway(&self, len: usize) -> Piece {
        let capacity = rounded(len);
        match self.take_within(len, usize::MAX) {
            Some(piece) => piece,
            None => Piece { buffer: Buffer::new(capacity), len: 0, pool: self.inner.clone() },
        }
    }

    fn take_within(&self, len: usize, limit: usize) -> Option<Piece> {
        let capacity = rounded(len);
        let mut state = self.inner.state.lock();
        if let Some(buffer) = state.reuse(len, capacity) {
            state.taken += buffer.len();
            return Some(Piece { buffer, len: 0, pool: self.inner.clone() });
        }
        if state.taken.checked_add(capacity)? > limit {
            return None;
        }
        while state.taken + state.idle_bytes + capacity > self.inner.total
            && let Some(buffer) = state.idle.pop()
        {
            state.idle_bytes -= buffer.len();
        }
        state.taken += capacity;
        drop(state);
        Some(Piece { buffer: Buffer::new(capacity), len: 0, pool: self.inner.clone() })
    }
}

impl fmt::Debug for PiecePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.state.lock();
        f.debug_struct("PiecePool")
            .field("total", &self.inner.total)
            .field("taken", &state.taken)
            .field("idle", &state.idle_bytes)
            .finish()
    }
}

impl State {
    /// The smallest idle buffer that holds `len` bytes and is not much larger than a new one would be.
    fn reuse(&mut self, len: usize, capacity: usize) -> Option<Buffer> {
        let fits = |buffer: &Buffer| buffer.len() >= len && buffer.len() <= capacity.saturating_mul(2);
        let (place, _) =
            self.idle.iter().enumerate().filter(|(_, b)| fits(b)).min_by_key(|(_, buffer)| buffer.len())?;
        let buffer = self.idle.swap_remove(place);
        self.idle_bytes -= buffer.len();
        Some(buffer)
    }
}

fn rounded(len: usize) -> usize {
    let grain = if len >= LARGE_GRAIN { LARGE_GRAIN } else { SMALL_GRAIN };
    len.max(1).div_ceil(grain).saturating_mul(grain)
}

/// Zeroed memory straight from the kernel, which gets it back: buffers of many sizes that come and go would leave holes
/// in the allocator's memory that nothing else fits.
enum Buffer {
    Mapped(MmapMut),
    /// Where the kernel allows no more mappings.
    Heap(Vec<u8>),
}

impl Buffer {
    fn new(len: usize) -> Self {
        MmapMut::map_anon(len).map_or_else(|_| Buffer::Heap(vec![0; len]), Buffer::Mapped)
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer::Heap(Vec::new())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Buffer::Mapped(bytes) => bytes,
            Buffer::Heap(bytes) => bytes,
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::Mapped(bytes) => bytes,
            Buffer::Heap(bytes) => bytes,
        }
    }
}

/// A buffer that is being filled from the front.
pub struct Piece {
    buffer: Buffer,
    len: usize,
    pool: Arc<Inner>,
}

impl Piece {
    /// How many bytes can still be added.
    pub fn room(&self) -> usize {
        self.buffer.len() - self.len
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
        let added = self.buffer.get_mut(start..start.checked_add(len)?)?;
        self.len += len;
        Some(added)
    }

    /// The filled part as shared bytes; the memory returns to the pool when the last of them is dropped.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("len", &self.len).field("room", &self.room()).finish()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let mut state = self.pool.state.lock();
        state.taken -= buffer.len();
        if state.taken + state.idle_bytes + buffer.len() <= self.pool.total {
            state.idle_bytes += buffer.len();
            state.idle.push(buffer);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_are_used_again() {
        let pool = PiecePool::new(8 << 20, None);
        let mut piece = pool.take(3 << 20).unwrap();
        let place = piece.buffer.as_ptr();
        piece.extend(5).unwrap().copy_from_slice(b"hello");
        let bytes = piece.into_bytes();
        let part = bytes.slice(1..3);
        drop(bytes);
        assert_eq!((&part[..], pool.taken()), (&b"el"[..], 3 << 20));
        drop(part);
        assert_eq!(pool.taken(), 0);
        assert_eq!(pool.take((2 << 20) + 1).unwrap().buffer.as_ptr(), place);
    }

    #[test]
    fn the_total_holds_unless_the_caller_insists() {
        let pool = PiecePool::new(2 << 20, None);
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
        let pool = PiecePool::new(4 << 20, None);
        drop((pool.take(1 << 20), pool.take(1 << 20), pool.take(1 << 20)));
        let large = pool.take(4 << 20).unwrap();
        assert_eq!((large.room(), pool.inner.state.lock().idle_bytes), (4 << 20, 0));
    }
}
