//! Entries on their way into an index blob.

use crate::codec::{CodecError, IndexVersion, encode};
use crate::id::MAX_HASH_LEN;
use crate::{ContentId, IndexEntry, supersedes};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The most entries that one index blob may hold; more are split into shards.
pub const MAX_SHARD_ENTRIES: usize = 16_000_000;

/// Collects entries (of one flush, say), keeps the best of each content and writes them as indexes.
#[derive(Debug, Clone, Default)]
pub struct IndexBuilder {
    entries: BTreeMap<ContentId, IndexEntry>,
}

impl IndexBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        IndexBuilder::default()
    }

    /// Adds an entry, unless the one that is there [supersedes] it.
    pub fn add(&mut self, entry: IndexEntry) {
        match self.entries.entry(entry.id) {
            Entry::Vacant(slot) => {
                slot.insert(entry);
            }
            Entry::Occupied(mut slot) => {
                if supersedes(&entry, slot.get()) {
                    slot.insert(entry);
                }
            }
        }
    }

    /// The entry of a content.
    pub fn get(&self, id: &ContentId) -> Option<&IndexEntry> {
        self.entries.get(id)
    }

    /// How many contents have an entry.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &IndexEntry> + Clone {
        self.entries.values()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// One index of all entries, followed by `suffix` (random bytes where the format asks for them, else empty).
    pub fn encode(&self, version: IndexVersion, suffix: &[u8]) -> Result<Vec<u8>, CodecError> {
        let mut bytes = Vec::new();
        encode(version, self.iter(), &mut bytes)?;
        bytes.extend_from_slice(suffix);
        Ok(bytes)
    }

    /// Splits the entries so that each part holds about `max_entries` at most; no part is empty.
    ///
    /// Which part a content goes to depends on its id and the number of parts only.
    pub fn shards(self, max_entries: usize) -> Vec<IndexBuilder> {
        let count = shard_count(self.len(), max_entries);
        if count <= 1 {
            return if self.is_empty() { Vec::new() } else { vec![self] };
        }
        let mut shards = vec![IndexBuilder::new(); count as usize];
        for (id, entry) in self.entries {
            shards[shard_of(&id, count) as usize].entries.insert(id, entry);
        }
        shards.retain(|shard| !shard.is_empty());
        shards
    }
}

impl Extend<IndexEntry> for IndexBuilder {
    fn extend<I: IntoIterator<Item = IndexEntry>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.add(entry));
    }
}

/// Into how many shards `entries` entries are to be split.
pub fn shard_count(entries: usize, max_entries: usize) -> u32 {
    u32::try_from(entries.div_ceil(max_entries.max(1))).unwrap_or(u32::MAX)
}

/// The shard of a content: the FNV-1a hash of its text form modulo the number of shards.
pub fn shard_of(id: &ContentId, shard_count: u32) -> u32 {
    let mut buffer = [0; 1 + 2 * MAX_HASH_LEN];
    let hash = id
        .encode_text(&mut buffer)
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash % shard_count.max(1)
}
