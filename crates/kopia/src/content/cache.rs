//! A small memory of metadata contents: directories and object indexes are read again and again.

use bytes::Bytes;
use lifeboat_budget::{Budget, Reservation};
use lifeboat_index::ContentId;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

/// Contents above this are not kept: one would push out hundreds of others.
const MAX_CONTENT: usize = 1 << 20;

/// Opened contents with a prefix, in order of their use, oldest out first. Its bytes are drawn from the budget as
/// they are needed, and never waited for: when the budget is short, the cache is the first to give way.
#[derive(Debug)]
pub(super) struct MetadataCache {
    budget: Budget,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kept: HashMap<ContentId, (Bytes, u64, Reservation)>,
    /// Uses in order; those that were overtaken by a later use of the same content are skipped.
    uses: VecDeque<(ContentId, u64)>,
    clock: u64,
    bytes: usize,
}

impl MetadataCache {
    pub(super) fn new(budget: Budget, limit: usize) -> Self {
        MetadataCache { budget, limit, state: Mutex::default() }
    }

    pub(super) fn get(&self, id: &ContentId) -> Option<Bytes> {
        if id.prefix().is_none() {
            return None;
        }
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        let (data, used, _) = state.kept.get_mut(id)?;
        *used = now;
        let data = data.clone();
        state.uses.push_back((*id, now));
        // Hits alone must not make the list of uses grow.
        if state.uses.len() > 4 * state.kept.len() + 64 {
            let State { kept, uses, .. } = &mut *state;
            uses.retain(|(id, use_)| kept.get(id).is_some_and(|(_, last, _)| last == use_));
        }
        Some(data)
    }

    pub(super) fn put(&self, id: &ContentId, data: &Bytes) {
        if id.prefix().is_none() || data.len() > MAX_CONTENT.min(self.limit) {
            return;
        }
        let mut state = self.state.lock();
        if state.kept.contains_key(id) {
            return;
        }
        while state.bytes + data.len() > self.limit && state.evict() {}
        let mut reservation = self.budget.try_reserve(data.len() as u64);
        while reservation.is_none() && state.evict() {
            reservation = self.budget.try_reserve(data.len() as u64);
        }
        let Some(reservation) = reservation else { return };
        state.clock += 1;
        let now = state.clock;
        state.bytes += data.len();
        // A copy: the bytes may be a small part of a large buffer.
        state.kept.insert(*id, (Bytes::copy_from_slice(data), now, reservation));
        state.uses.push_back((*id, now));
    }
}

impl State {
    /// Drops what was used longest ago; `false` if there is nothing left.
    fn evict(&mut self) -> bool {
        while let Some((id, use_)) = self.uses.pop_front() {
            if self.kept.get(&id).is_some_and(|(_, last, _)| *last == use_) {
                if let Some((data, ..)) = self.kept.remove(&id) {
                    self.bytes -= data.len();
                }
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn id(number: u8) -> ContentId {
        format!("k{number:02x}").parse().unwrap()
    }

    #[test]
    fn the_least_recently_used_goes_first_and_the_limit_holds() {
        let budget = Budget::new(1000);
        let cache = MetadataCache::new(budget.clone(), 300);
        let data = Bytes::from(vec![7; 100]);
        (0..3).for_each(|n| cache.put(&id(n), &data));
        assert!(cache.get(&id(0)).is_some());
        cache.put(&id(3), &data);
        assert!(cache.get(&id(1)).is_none());
        assert!([0, 2, 3].iter().all(|n| cache.get(&id(*n)).is_some()));
        assert_eq!(budget.used(), 300);
        cache.put(&"00ff".parse().unwrap(), &data);
        assert!(cache.get(&"00ff".parse().unwrap()).is_none(), "user data is not kept");
    }

    #[test]
    fn it_gives_way_when_the_budget_is_short() {
        let budget = Budget::new(250);
        let cache = MetadataCache::new(budget.clone(), 1000);
        let held = budget.try_reserve(200).unwrap();
        cache.put(&id(1), &Bytes::from(vec![1; 100]));
        assert!(cache.get(&id(1)).is_none());
        drop(held);
        cache.put(&id(1), &Bytes::from(vec![1; 200]));
        cache.put(&id(2), &Bytes::from(vec![1; 200]));
        assert!(cache.get(&id(1)).is_none() && cache.get(&id(2)).is_some());
        (0..1000).for_each(|_| assert!(cache.get(&id(2)).is_some()));
        assert!(cache.state.lock().uses.len() < 100);
    }
}
