//! Reading a pack's own index, for when the repository's index is lost.

use super::postamble::{self, Postamble};
use crate::sealer::Sealer;
use crate::{Error, Result};
use lifeboat_blobs::{BlobMetadata, BlobStore};
use lifeboat_index::{IndexEntry, IndexReader};
use lifeboat_primitives::aead::OVERHEAD;

/// How much of the end of a pack is read first: the local index of most packs is within it.
const TAIL: u64 = 8192;

/// The entries that a pack's local index holds: its contents, and deletions that were queued with them.
///
/// Fails with [`Error::DamagedBlob`] if the pack has no whole local index, as a truncated one has not.
pub async fn recover(store: &dyn BlobStore, sealer: &Sealer, pack: &BlobMetadata) -> Result<Vec<IndexEntry>> {
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
    let sealed = match range.start >= tail_start {
        true => tail.slice((range.start - tail_start) as usize..(range.end - tail_start) as usize),
        false => store.get_range(&pack.id, range).await?,
    };
    let plain = sealer
        .open_with_id(&postamble.iv, &sealed)
        .map_err(|e| damaged(format!("its local index cannot be opened: {e}")))?;
    let index = IndexReader::parse(plain, OVERHEAD as u32)
        .map_err(|e| damaged(format!("its local index cannot be read: {e}")))?;
    index.iter().collect::<std::result::Result<_, _>>().map_err(|e| damaged(e.to_string()))
}
