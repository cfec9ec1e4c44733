//! Reading many contents with few requests: neighbours in a pack come together.

use crate::Result;
use crate::content::ContentStore;
use bytes::Bytes;
use lifeboat_blobs::{BlobId, ErrorKind};
use lifeboat_budget::{Budget, Reservation};
use lifeboat_index::IndexEntry;
use std::ops::Range;

/// Neighbouring contents are read together up to this size, less if memory is scarce.
const MAX_READ: u64 = 4 << 20;
const MIN_READ: u64 = 128 << 10;
/// Gaps up to this size are read and thrown away rather than read around.
const MAX_GAP: u64 = 64 << 10;

/// Something whose content is to be read.
pub(super) trait Located {
    /// Where the content is.
    fn entry(&self) -> &IndexEntry;
}

impl Located for IndexEntry {
    fn entry(&self) -> &IndexEntry {
        self
    }
}

/// A part of a pack with contents that are to be read.
#[derive(Debug)]
pub(super) struct Region<T> {
    range: Range<u64>,
    items: Vec<T>,
}

/// The sealed bytes of a content with the entry that they belong to, or why they cannot be had.
pub(super) type Sealed = Result<(IndexEntry, Bytes)>;

/// The share of the budget that each of the regions that are being read at the same time may take.
fn share(budget: &Budget) -> u64 {
    budget.total() / 64
}

/// Joins what lies close together.
pub(super) fn regions<T: Located>(mut items: Vec<T>, budget: &Budget) -> Vec<Region<T>> {
    let max_read = share(budget).clamp(MIN_READ, MAX_READ);
    let place = |item: &T| (item.entry().pack.clone(), item.entry().pack_offset);
    items.sort_by_cached_key(place);
    let mut regions: Vec<Region<T>> = Vec::new();
    for item in items {
        let entry = item.entry();
        let start = u64::from(entry.pack_offset);
        let end = start + u64::from(entry.packed_length);
        match regions.last_mut() {
            Some(region)
                if region.items.first().is_some_and(|first| first.entry().pack == entry.pack)
                    && start <= region.range.end + MAX_GAP
                    && end - region.range.start <= max_read =>
            {
                region.range.end = end.max(region.range.end);
                region.items.push(item);
            }
            _ => regions.push(Region { range: start..end, items: vec![item] }),
        }
    }
    regions
}

impl<T: Located> Region<T> {
    /// Sets aside what reading it and opening its contents one by one takes in memory. More than its share is never
    /// waited for: other parts of the repository may need memory before this one can give its own back.
    pub(super) async fn reserve(&self, budget: &Budget) -> Result<Reservation> {
        let largest =
            self.items.iter().map(|item| u64::from(item.entry().original_length)).max().unwrap_or(0);
        let wanted = self.range.end - self.range.start + largest;
        Ok(budget.reserve_async(wanted.min(share(budget))).await?)
    }

    /// Reads the contents. What is wrong with a single one (it is gone, the pack is too short) is its result; a
    /// failure of the storage is a failure of the call.
    pub(super) async fn read(self, contents: &ContentStore) -> Result<Vec<(T, Sealed)>> {
        let Some(first) = self.items.first() else { return Ok(Vec::new()) };
        let pack = BlobId::new(first.entry().pack.as_str())?;
        match contents.store().get_range(&pack, self.range.clone()).await {
            Ok(bytes) => Ok(self.cut(&bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidRange) => {
                self.read_singly(contents).await
            }
            Err(error) => Err(error.into()),
        }
    }

    fn cut(self, bytes: &Bytes) -> Vec<(T, Sealed)> {
        let start = self.range.start;
        let slice = |item: T| {
            let entry = item.entry().clone();
            let from = (u64::from(entry.pack_offset) - start) as usize;
            let sealed = bytes.slice(from..from + entry.packed_length as usize);
            (item, Ok((entry, sealed)))
        };
        self.items.into_iter().map(slice).collect()
    }

    /// The pack is gone or short: the contents may be elsewhere by now, or some of them still here.
    async fn read_singly(self, contents: &ContentStore) -> Result<Vec<(T, Sealed)>> {
        let mut read = Vec::with_capacity(self.items.len());
        for item in self.items {
            let sealed = match contents.resolve(&item.entry().id) {
                Ok(location) => {
                    contents.fetch(location).await.map(|(location, sealed)| (location.entry, sealed))
                }
                Err(error) => Err(error),
            };
            match sealed {
                Err(error) if !error.is_damage() => return Err(error),
                sealed => read.push((item, sealed)),
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(pack: &str, pack_offset: u32, packed_length: u32) -> IndexEntry {
        IndexEntry {
            id: "00".parse().unwrap(),
            pack: pack.into(),
            pack_offset,
            packed_length,
            original_length: packed_length,
            timestamp_seconds: 0,
            format_version: 3,
            compression: 0,
            encryption_key_id: 0,
            deleted: false,
        }
    }

    #[test]
    fn neighbours_are_joined_within_a_pack_and_up_to_a_size() {
        let far = MAX_READ as u32;
        let entries = vec![
            entry("p2", 10, 10),
            entry("p1", 100, 50),
            entry("p1", 0, 100),
            entry("p1", far - 100, 100),
            entry("p1", far + 200_000, 5),
            entry("p1", 20, 5),
        ];
        let found = regions(entries, &Budget::new(1 << 30));
        let shape: Vec<_> = found.iter().map(|region| (region.range.clone(), region.items.len())).collect();
        let far = u64::from(far);
        assert_eq!(shape, [(0..150, 3), (far - 100..far, 1), (far + 200_000..far + 200_005, 1), (10..20, 1)]);
        let bytes = Bytes::from((0..150u8).collect::<Vec<_>>());
        let cut = found.into_iter().next().unwrap().cut(&bytes);
        let lengths: Vec<_> = cut.into_iter().map(|(_, sealed)| sealed.unwrap().1[0]).collect();
        assert_eq!(lengths, [0, 20, 100]);
    }
}
