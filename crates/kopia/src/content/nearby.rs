//! Metadata that lies together is read together: listings and object indexes of one snapshot are neighbours in a few
//! packs, are small, and are wanted one after another, so that each would cost a round trip of its own.

use bytes::Bytes;
use lifeboat_blobs::{BlobId, BlobStore, Result};
use lifeboat_budget::{Budget, Reservation};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// How much is read at a time: some hundred listings, and less to transfer than a round trip takes.
const BLOCK: u64 = 1 << 20;
/// The most memory that blocks take: beyond that a walk through a tree gains nothing.
const MOST: u64 = 4 << 20;
/// Of how many packs it is remembered that somebody has read from them.
const PACKS: usize = 64;

/// The sealed bytes around metadata contents that were read lately. Like the cache of opened ones it only takes
/// memory that nobody else needs.
#[derive(Debug)]
pub(super) struct Nearby {
    budget: Budget,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Used last at the back.
    blocks: VecDeque<Arc<Block>>,
    /// Packs that were read from, with their size once that is known.
    packs: VecDeque<(BlobId, Option<u64>)>,
}

#[derive(Debug)]
struct Block {
    pack: BlobId,
    range: Range<u64>,
    /// Filled by the first who needs it; others wait for that.
    bytes: tokio::sync::OnceCell<Bytes>,
    _memory: Reservation,
}

impl Nearby {
    pub(super) fn new(budget: Budget) -> Self {
        let limit = ((budget.total() / 16).min(MOST) / BLOCK) as usize;
        Nearby { budget, limit, state: Mutex::default() }
    }

    /// Reads `range` of `pack`, and what lies around it for the next.
    pub(super) async fn read(
        &self,
        store: &dyn BlobStore,
        pack: &BlobId,
        range: Range<u64>,
    ) -> Result<Bytes> {
        if self.limit == 0 || range.end - range.start > BLOCK / 2 {
            return store.get_range(pack, range).await;
        }
        let block = match self.held(pack, &range) {
            Some(block) => Some(block),
            // What a listing names was written before it and lies before it; how long the pack is does not matter.
            None if self.is_first(pack) => self.add(pack, range.end.saturating_sub(BLOCK)..range.end, &range),
            None => match self.size(pack) {
                Some(size) => {
                    let from = range.start / BLOCK * BLOCK;
                    self.add(pack, from..range.end.max(from + BLOCK).min(size), &range)
                }
                None => {
                    let (read, size) = tokio::join!(store.get_range(pack, range), store.head(pack));
                    self.remember_size(pack, size?.size);
                    return read;
                }
            },
        };
        let Some(block) = block else { return store.get_range(pack, range).await };
        let fetch = || store.get_range(pack, block.range.clone());
        let bytes = block.bytes.get_or_try_init(fetch).await?;
        let at = |offset: u64| (offset - block.range.start) as usize;
        Ok(bytes.slice(at(range.start)..at(range.end)))
    }

    /// Remembers that a pack is read from; `true` if it was not before.
    fn is_first(&self, pack: &BlobId) -> bool {
        let mut state = self.state.lock();
        if state.packs.iter().any(|(known, _)| known == pack) {
            return false;
        }
        if state.packs.len() == PACKS {
            state.packs.pop_front();
        }
        state.packs.push_back((pack.clone(), None));
        true
    }

    fn size(&self, pack: &BlobId) -> Option<u64> {
        self.state.lock().packs.iter().find(|(known, _)| known == pack)?.1
    }

    fn remember_size(&self, pack: &BlobId, size: u64) {
        if let Some((_, known)) = self.state.lock().packs.iter_mut().find(|(known, _)| known == pack) {
            *known = Some(size);
        }
    }

    /// The block that holds `wanted`, if there is one.
    fn held(&self, pack: &BlobId, wanted: &Range<u64>) -> Option<Arc<Block>> {
        let mut state = self.state.lock();
        let holds = |block: &Arc<Block>| {
            block.pack == *pack && block.range.start <= wanted.start && wanted.end <= block.range.end
        };
        let place = state.blocks.iter().position(holds)?;
        let block = state.blocks.remove(place)?;
        state.blocks.push_back(block.clone());
        Some(block)
    }

    /// A new block for `range`; `None` if there is no memory for it, or the pack is too short to hold what is wanted.
    fn add(&self, pack: &BlobId, range: Range<u64>, wanted: &Range<u64>) -> Option<Arc<Block>> {
        if range.end < wanted.end {
            return None;
        }
        let mut state = self.state.lock();
        while state.blocks.len() >= self.limit {
            state.blocks.pop_front();
        }
        let mut memory = self.budget.try_reserve(range.end - range.start);
        while memory.is_none() && state.blocks.pop_front().is_some() {
            memory = self.budget.try_reserve(range.end - range.start);
        }
        let block =
            Arc::new(Block { pack: pack.clone(), range, bytes: Default::default(), _memory: memory? });
        state.blocks.push_back(block.clone());
        Some(block)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_blobs::wrap::fault::{Control, Fault};
    use lifeboat_blobs::{ErrorKind, MemoryStore, PutOptions};

    async fn pack(len: usize) -> (Fault<MemoryStore>, Control, BlobId, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
        let store = MemoryStore::new();
        let id = BlobId::new("q1").unwrap();
        store.put(&id, bytes.clone().into(), &PutOptions::default()).await.unwrap();
        let store = Fault::new(store);
        let control = store.control();
        (store, control, id, bytes)
    }

    #[tokio::test]
    async fn many_small_reads_take_few_requests_and_give_the_right_bytes() {
        let (store, control, id, bytes) = pack(5_000_001).await;
        let nearby = Nearby::new(Budget::new(128 << 20));
        for round in 0..2 {
            for start in (0..bytes.len() - 700).step_by(611) {
                let range = start as u64..start as u64 + 700;
                let read = nearby.read(&store, &id, range).await.unwrap();
                assert!(read[..] == bytes[start..start + 700], "{start} in round {round}");
            }
        }
        let last = bytes.len() as u64 - 5..bytes.len() as u64;
        assert_eq!(nearby.read(&store, &id, last).await.unwrap()[..], bytes[bytes.len() - 5..]);
        assert!(control.log().len() < 30, "{} requests", control.log().len());
    }

    #[tokio::test]
    async fn memory_stays_within_the_budget_and_a_range_beyond_the_pack_is_refused() {
        let (store, _, id, bytes) = pack(3 << 20).await;
        let budget = Budget::new(32 << 20);
        let nearby = Nearby::new(budget.clone());
        let held = budget.try_reserve(31 << 20).unwrap();
        for start in [0, 2 << 20, 1 << 20, 100] {
            let read = nearby.read(&store, &id, start..start + 10).await.unwrap();
            assert_eq!(read[..], bytes[start as usize..start as usize + 10]);
        }
        drop(held);
        let end = bytes.len() as u64;
        let beyond = nearby.read(&store, &id, end - 5..end + 5).await.unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::InvalidRange);
        assert!(budget.peak() <= 32 << 20);
    }
}
