//! Reading a pack's own index, for when the repository's index is lost.

use super::postamble::{self, Postamble};
use crate::sealer::Sealer;
use crate::{Error, Result};
use lifeboat_blobs::{BlobMetadata, BlobStore};
use lifeboat_budget::{Budget, Reservation, TooLarge};
use lifeboat_index::{IndexEntry, IndexReader};
use lifeboat_primitives::aead::OVERHEAD;

/// How much of the end of a pack is read first: the local index of most packs is within it.
const TAIL: u64 = 8192;
/// No local index may take more than this share of the budget: half of it is the writer's for as long as a repository
/// is open for writing, and waiting for more than the rest would never end.
const SHARE: u64 = 4;

/// A pack's own index: its contents, and deletions that were queued with them. It was checked as a whole.
#[derive(Debug)]
pub struct LocalIndex {
    index: IndexReader<Vec<u8>>,
    _memory: Reservation,
}

impl LocalIndex {
    /// Reads the local index of `pack`. The memory that it takes is drawn from `budget`.
    ///
    /// Fails with [`Error::DamagedBlob`] if the pack has no whole local index, as a truncated one has not, or if it has
    /// that of another pack.
    pub async fn read(
        store: &dyn BlobStore,
        sealer: &Sealer,
        budget: &Budget,
        pack: &BlobMetadata,
    ) -> Result<LocalIndex> {
        let damaged = |reason: String| Error::DamagedBlob { blob: pack.id.to_string(), reason };
        if pack.size == 0 {
            return Err(damaged("it is empty".into()));
        }
        let tail_start = pack.size.saturating_sub(TAIL);
        let tail = store.get_range(&pack.id, tail_start..pack.size).await?;
        let postamble = Postamble::find(&tail[tail.len().saturating_sub(postamble::MAX_LEN)..])
            .ok_or_else(|| damaged("it does not end with a postamble".into()))?;
        let range =
            postamble.range(pack.size).ok_or_else(|| damaged("its postamble points outside of it".into()))?;
        let memory = reserve(budget, range.end - range.start).await?;
        let sealed = match range.start >= tail_start {
            true => tail.slice((range.start - tail_start) as usize..(range.end - tail_start) as usize),
            false => store.get_range(&pack.id, range).await?,
        };
        let plain = sealer
            .open_with_id(&postamble.iv, &sealed)
            .map_err(|e| damaged(format!("its local index cannot be opened: {e}")))?;
        let index = IndexReader::parse(plain, OVERHEAD as u32)
            .map_err(|e| damaged(format!("its local index cannot be read: {e}")))?;
        let local = LocalIndex { index, _memory: memory };
        for entry in local.entries() {
            let entry = entry.map_err(|e| damaged(format!("its local index cannot be read: {e}")))?;
            // Only deletions speak of other packs.
            if !entry.deleted && entry.pack.as_str() != pack.id.as_str() {
                return Err(damaged(format!("it is a copy of pack {:?}", entry.pack.as_str())));
            }
        }
        Ok(local)
    }

    /// How many entries there are.
    pub fn len(&self) -> u64 {
        self.index.len().into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The entries, in order of their ids.
    pub fn entries(
        &self,
    ) -> impl Iterator<Item = std::result::Result<IndexEntry, lifeboat_index::CodecError>> {
        self.index.iter()
    }
}

/// Memory for `len` sealed bytes and what they become when opened.
async fn reserve(budget: &Budget, len: u64) -> Result<Reservation> {
    let (requested, total) = (len.saturating_mul(2), budget.total() / SHARE);
    match requested <= total {
        true => Ok(budget.reserve_async(requested).await?),
        false => Err(Error::Budget(TooLarge { requested, total })),
    }
}
