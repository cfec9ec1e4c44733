//! Keeping the index small while writing: who publishes into an epoch that is full begins the next one, and merges the
//! blobs of one that is settled. So index blobs do not pile up until somebody runs maintenance.
//!
//! Nothing here waits for memory: whoever flushes may hold all of it, or be waited for by those who do.

use super::ContentStore;
use super::committed::IndexBlobs;
use crate::Result;
use crate::epoch::EpochIndex;
use crate::epoch::names::{self, IndexKind};
use lifeboat_blobs::BlobId;

impl ContentStore {
    /// Looks after the index, now that something was published. What was published is safe whatever comes of this, so
    /// that a failure is no failure of the backup.
    pub(super) async fn tend_index(&self) {
        let IndexBlobs::Epochs(index) = self.index_blobs() else { return };
        // What replaces blobs must hold all that they hold: damage is for repair to deal with.
        if !self.damaged_index().is_empty() {
            return;
        }
        if let Err(error) = self.tend_epochs(index).await {
            tracing::warn!(%error, "the index could not be compacted; maintenance will do it");
        }
    }

    async fn tend_epochs(&self, index: &EpochIndex) -> Result<()> {
        let mut state = index.current().await?.state;
        if state.should_advance(index.parameters()) {
            let marker = BlobId::new(names::marker(state.write_epoch + 1))?;
            let options = self.shared.format.put_options();
            self.shared.store.put(&marker, names::MARKER_CONTENT.into(), &options).await?;
            state = index.refresh().await?.state;
        }
        if let Some((epoch, blobs)) = state.next_to_compact() {
            match self.compact_index_now(index, IndexKind::Single(epoch), &blobs).await? {
                true => _ = index.refresh().await?,
                false => tracing::debug!(epoch, "no memory to compact the epoch; maintenance will do it"),
            }
        }
        Ok(())
    }
}
