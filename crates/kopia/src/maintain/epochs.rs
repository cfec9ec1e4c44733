//! The upkeep of the index under epochs: advancing, compacting, and deleting what was replaced; and dropping
//! deletions by moving the watermark.

use super::stats::{
    AdvanceEpochStats, CleanupMarkersStats, CleanupSupersededIndexesStats, CompactIndexesStats,
    CompactSingleEpochStats, GenerateRangeCheckpointStats,
};
use super::{Done, Result, Session};
use crate::epoch::names::{self, IndexKind};
use crate::epoch::{EpochIndex, EpochState};
use crate::gojson::GoTime;
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, BlobMetadata};
use std::collections::{BTreeMap, BTreeSet};

impl Session {
    /// `compact-single-epoch`: the blobs of the oldest epoch that is settled and not compacted become one set.
    pub(super) async fn compact_single_epoch(&mut self, index: &EpochIndex) -> Result<Done> {
        let state = index.refresh().await?.state;
        let Some((epoch, blobs)) = state.next_to_compact() else {
            return Ok(Done::nothing("no epoch is ready to be compacted"));
        };
        self.merge(index, IndexKind::Single(epoch), &blobs).await?;
        let stats = CompactSingleEpochStats {
            superseded_index_blob_count: blobs.len() as u64,
            superseded_index_total_size: blobs.iter().map(|blob| blob.size).sum(),
            epoch,
        };
        Done::with(&stats, format!("index blobs of epoch {epoch} merged: {}", blobs.len()))
    }

    /// `advance-epoch`: begins the next epoch if enough was written into the current one.
    pub(super) async fn advance_epoch(&mut self, index: &EpochIndex) -> Result<Done> {
        let state = index.refresh().await?.state;
        let (mut current_epoch, was_advanced) = (state.write_epoch, state.should_advance(index.parameters()));
        if was_advanced {
            current_epoch += 1;
            self.put(&names::marker(current_epoch), names::MARKER_CONTENT).await?;
            if !self.options.dry_run {
                index.refresh().await?;
            }
        }
        let summary = match was_advanced {
            true => format!("epoch {current_epoch} begins"),
            false => format!("epoch {current_epoch} goes on"),
        };
        Done::with(&AdvanceEpochStats { current_epoch, was_advanced }, summary)
    }

    /// `generate-epoch-range-index`: all epochs since the last time become one set, if they are enough.
    pub(super) async fn generate_range(&mut self, index: &EpochIndex) -> Result<Done> {
        let state = index.refresh().await?.state;
        // Blobs of an epoch that is lost may come back. Under a range that was made without them nobody would see them.
        if !state.holes().is_empty() {
            return Ok(Done::nothing("no range is made while index blobs of an epoch are missing"));
        }
        let Some((first, last, blobs)) = state.next_range(index.parameters()) else {
            return Ok(Done::nothing("too few epochs for a range"));
        };
        self.merge(index, IndexKind::Range(first, last), &blobs).await?;
        let stats = GenerateRangeCheckpointStats { range_min_epoch: first, range_max_epoch: last };
        Done::with(&stats, format!("epochs {first} to {last} merged: {} blobs", blobs.len()))
    }

    /// `cleanup-epoch-markers`: markers and watermarks that later ones have replaced are deleted.
    pub(super) async fn cleanup_markers(&mut self, index: &EpochIndex) -> Result<Done> {
        let state = index.refresh().await?.state;
        let superseded = state.superseded(index.parameters());
        let known = |id: &BlobId| {
            let mut all = state.markers.values().chain(state.watermarks.values());
            all.find(|blob| blob.id == *id).cloned()
        };
        let markers: Vec<_> = superseded.markers.iter().filter_map(known).collect();
        let watermarks: Vec<_> = superseded.watermarks.iter().filter_map(known).collect();
        if markers.is_empty() && watermarks.is_empty() {
            return Ok(Done::nothing("no markers to delete"));
        }
        self.delete_index_blobs(index, &[markers.as_slice(), &watermarks].concat()).await?;
        let stats = CleanupMarkersStats {
            deleted_epoch_marker_blob_count: markers.len() as u64,
            deleted_watermark_blob_count: watermarks.len() as u64,
        };
        let summary = format!("markers deleted: {}, watermarks: {}", markers.len(), watermarks.len());
        Done::with(&stats, summary)
    }

    /// `delete-superseded-epoch-indexes`: index blobs are deleted whose compacted set is old enough for everybody
    /// to know it.
    pub(super) async fn delete_superseded(&mut self, index: &EpochIndex) -> Result<Done> {
        // Everything in force has been fetched, opened and parsed when this returns: also what replaces the blobs.
        self.repository.contents().refresh().await?;
        self.stop_at(self.check_index())?;
        let state = index.refresh().await?.state;
        let doomed = self.superseded_indexes(index, &state);
        if doomed.is_empty() {
            return Ok(Done::nothing("no index blobs to delete"));
        }
        self.delete_index_blobs(index, &doomed).await?;
        let margin = SignedDuration::from_nanos(index.parameters().cleanup_safety_margin);
        let newest =
            state.uncompacted.values().flatten().map(|blob| blob.modified).max().unwrap_or(self.start);
        let size = doomed.iter().map(|blob| blob.size).sum();
        let stats = CleanupSupersededIndexesStats {
            max_replacement_time: GoTime(newest.saturating_sub(margin).unwrap_or(Timestamp::MIN)),
            deleted_blob_count: doomed.len() as u64,
            deleted_total_size: size,
        };
        Done::with(&stats, format!("replaced index blobs deleted: {} ({size} bytes)", doomed.len()))
    }

    fn superseded_indexes(&self, index: &EpochIndex, state: &EpochState) -> Vec<BlobMetadata> {
        let all: BTreeMap<&BlobId, &BlobMetadata> =
            state.uncompacted.values().flatten().map(|blob| (&blob.id, blob)).collect();
        let superseded = state.superseded(index.parameters()).indexes;
        superseded.iter().filter_map(|id| all.get(id).map(|blob| (*blob).clone())).collect()
    }

    async fn delete_index_blobs(&mut self, index: &EpochIndex, blobs: &[BlobMetadata]) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        self.ledger.fence(&self.repository).await?;
        let parallel = usize::try_from(index.parameters().delete_parallelism).unwrap_or(1);
        self.delete_replaced(blobs, parallel).await?;
        index.refresh().await?;
        Ok(())
    }

    /// Moves the deletion watermark to `time`; `false` if it is there already.
    pub(super) async fn move_watermark(&mut self, index: &EpochIndex, time: Timestamp) -> Result<Done> {
        let state = index.refresh().await?.state;
        let seconds = time.as_second();
        if state.watermark.is_some_and(|watermark| watermark >= seconds) {
            return Ok(Done::nothing("deletions are dropped up to a later time already"));
        }
        if !self.options.dry_run {
            self.ledger.fence(&self.repository).await?;
        }
        self.put(&names::watermark(seconds), names::WATERMARK_CONTENT).await?;
        if !self.options.dry_run {
            self.repository.contents().refresh().await?;
        }
        let stats = CompactIndexesStats { dropped_contents_deleted_before: GoTime(time) };
        Done::with(&stats, format!("deletions up to {time} are dropped from the index"))
    }

    async fn merge(&self, index: &EpochIndex, kind: IndexKind, blobs: &[BlobMetadata]) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        Ok(self.repository.contents().compact_index(index, kind, blobs, &BTreeSet::new()).await?)
    }

    async fn put(&self, name: &str, content: &'static [u8]) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        let id = BlobId::new(name)?;
        let options = self.format.put_options(&id)?;
        Ok(self.repository.store().put(&id, content.into(), &options).await?)
    }
}
