//! The memory for what is under way: a share of the budget, taken as a whole, so that nobody who holds some of it ever
//! waits for more.

use super::super::Objects;
use super::wait_unless;
use crate::Result;
use bytes::BytesMut;
use futures::FutureExt;
use futures::future::BoxFuture;
use lifeboat_blobs::arrival::Admission;
use lifeboat_budget::Reservation;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// The most memory that is of use: four of the largest contents of the default splitter, and the pieces beside them.
const MOST: u64 = 42 << 20;
/// Less than this and nothing overlaps any more.
const LEAST: u64 = 2 << 20;
/// The part of it that is for pieces; the rest is for the bytes that arrive, are opened and delivered.
const FOR_PIECES: u64 = 5;
/// What a piece takes, its object and its destination included, as long as those have nothing out of the ordinary.
const PIECE: u64 = 1 << 10;
/// So many windows of pieces are under way: one is planned, one is launched, and the others are asked for or arrive.
const WINDOWS: usize = 4;
/// So many buffers for regions there are: while some are opened, others are filled.
const BUFFERS: u64 = 4;
/// A region that would fill less than this part of a buffer has memory of its own.
const WORTH_A_BUFFER: u64 = 4;

/// The memory of one call.
pub(super) struct Room {
    incoming: Arc<Incoming>,
    /// For pieces, from their planning to their delivery. Its permits are pieces.
    pub(super) pieces: Arc<Semaphore>,
    /// The most pieces of a window.
    pub(super) window: usize,
    _share: Reservation,
}

/// The part for bytes that arrive.
struct Incoming {
    /// Its permits are bytes.
    free: Arc<Semaphore>,
    limit: u64,
    /// The size of a buffer.
    size: u64,
    /// Buffers that nobody uses now. They are used again and again: fresh pages cost more than what is done with them, and
    /// buffers that come and go in all sizes leave gaps in the pools of the C library, as much as is in use.
    idle: Mutex<Vec<Vec<u8>>>,
}

impl Room {
    /// Takes the share; `None` if the call is to end while it waits for it.
    pub(super) fn new(objects: &Objects, stop: &(dyn Fn() -> bool + Sync)) -> Result<Option<Self>> {
        let budget = &objects.budget;
        let mut wanted = (budget.total() / 8 * 5).min(MOST);
        let share = loop {
            match budget.try_reserve(wanted) {
                Some(share) => break share,
                None if wanted / 2 >= LEAST => wanted /= 2,
                None => {
                    let least = budget.reserve_async(wanted.min(LEAST));
                    match wait_unless(&objects.runtime, least, stop) {
                        Some(share) => break share?,
                        None => return Ok(None),
                    }
                }
            }
        };
        Ok(Some(Room::of(share)))
    }

    fn of(share: Reservation) -> Self {
        let for_pieces = share.bytes() / FOR_PIECES;
        let limit = share.bytes() - for_pieces;
        let window = ((for_pieces / PIECE) as usize / WINDOWS).max(1);
        let incoming = Incoming {
            free: Arc::new(Semaphore::new(limit as usize)),
            limit,
            size: (limit / BUFFERS).max(1),
            idle: Mutex::default(),
        };
        Room {
            incoming: Arc::new(incoming),
            pieces: Arc::new(Semaphore::new(window * WINDOWS)),
            window,
            _share: share,
        }
    }

    /// How long a region may become.
    pub(super) fn region(&self) -> u64 {
        self.incoming.size
    }

    /// Room for a region of `length` bytes whose opening takes `opened` more. `turn` is its place among those that are waited
    /// for, given up when it arrives.
    pub(super) fn arrival(
        &self,
        length: u64,
        opened: u64,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Arc<Arrival> {
        let incoming = self.incoming.clone();
        let Incoming { size, limit, .. } = *incoming;
        let in_buffer = (size / WORTH_A_BUFFER..=size).contains(&length);
        // What is more than everything waits for everything.
        let needed = (if in_buffer { size } else { length } + opened).min(limit) as u32;
        Arc::new(Arrival { incoming, in_buffer, needed, taken: OnceCell::new(), turn: Mutex::new(turn) })
    }

    /// Takes the bytes of a region back, before their room is given up.
    pub(super) fn reclaim(&self, mut bytes: BytesMut) {
        bytes.clear();
        let buffer = Vec::from(bytes);
        if buffer.capacity() as u64 == self.incoming.size {
            self.incoming.idle.lock().push(buffer);
        }
    }
}

/// Room for a region, taken when it begins to arrive.
pub(super) struct Arrival {
    incoming: Arc<Incoming>,
    in_buffer: bool,
    needed: u32,
    taken: OnceCell<OwnedSemaphorePermit>,
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Arrival {
    /// The room that was taken, if any was.
    pub(super) fn into_room(self: Arc<Self>) -> Option<OwnedSemaphorePermit> {
        Arc::into_inner(self)?.taken.into_inner()
    }
}

impl Admission for Arrival {
    fn admit(&self) -> BoxFuture<'_, Vec<u8>> {
        async {
            let Incoming { free, size, idle, .. } = &*self.incoming;
            // The semaphore is never closed.
            let _ = self.taken.get_or_try_init(|| free.clone().acquire_many_owned(self.needed)).await;
            self.turn.lock().take();
            let mut idle = idle.lock();
            let buffer = match self.in_buffer {
                true => idle.pop().unwrap_or_else(|| Vec::with_capacity(*size as usize)),
                false => Vec::new(),
            };
            // What is idle lies in what is free.
            idle.truncate((free.available_permits() as u64 / size) as usize);
            buffer
        }
        .boxed()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_budget::Budget;

    fn room() -> Room {
        Room::of(Budget::new(10 << 20).try_reserve(10 << 20).unwrap())
    }

    /// What a store makes of a buffer, as it comes to the workers.
    fn filled(mut buffer: Vec<u8>, length: u64) -> BytesMut {
        buffer.resize(length as usize, 7);
        bytes::Bytes::from(buffer).try_into_mut().unwrap()
    }

    #[tokio::test]
    async fn a_buffer_is_used_again_however_much_of_it_was_filled() {
        let room = room();
        let size = room.region();
        let mut place = None;
        for length in [size, size / 2, size - 1, size] {
            let arrival = room.arrival(length, 0, None);
            let buffer = arrival.admit().await;
            assert_eq!((buffer.len(), buffer.capacity() as u64), (0, size));
            assert_eq!(*place.get_or_insert(buffer.as_ptr()), buffer.as_ptr());
            room.reclaim(filled(buffer, length));
            assert!(arrival.into_room().is_some());
        }
        assert_eq!(room.incoming.idle.lock().len(), 1);
    }

    #[tokio::test]
    async fn what_is_idle_gives_way_to_what_needs_its_room() {
        let room = room();
        let size = room.region();
        let arrivals = [(); BUFFERS as usize].map(|()| room.arrival(size, 0, None));
        for arrival in &arrivals {
            room.reclaim(filled(arrival.admit().await, size));
        }
        assert_eq!(room.incoming.free.available_permits(), 0);
        drop(arrivals);
        // Much smaller than a buffer, larger than one, and one whose opening takes room.
        for (length, opened, left) in [(100, 0, 3), (size + 1, 0, 2), (2 * size, 0, 2), (size, size, 2)] {
            room.incoming.idle.lock().resize_with(BUFFERS as usize, Vec::new);
            let arrival = room.arrival(length, opened, None);
            let buffer = arrival.admit().await;
            assert_eq!(room.incoming.idle.lock().len(), left, "{length} {opened}");
            assert_eq!(buffer.capacity() as u64, 0, "{length} {opened}");
        }
    }
}
