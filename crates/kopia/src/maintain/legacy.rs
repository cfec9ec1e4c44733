//! The upkeep of the index without epochs: `index-compaction`, and dropping deletions by rewriting the whole index.
//!
//! A compaction writes its outputs, then a log (`m`) that says what they replace. The inputs go when the log is old
//! enough for everybody to know it, the oldest log first; then the log itself is scheduled for deletion (`l`), and
//! goes later still. An index blob is always gone before the log that hides it.

use super::stats::CompactIndexesStats;
use super::{Done, Result, Session};
use crate::gojson::GoTime;
use crate::legacy::{
    CLEANUP_LOG, COMPACTION_LOG, CleanupLog, CompactionLog, INDEX, LegacyIndex, LoggedBlob, active,
};
use futures::TryStreamExt;
use jiff::Timestamp;
use lifeboat_blobs::{BlobId, BlobMetadata};
use std::collections::{BTreeMap, BTreeSet};

/// A compaction merges from so many index blobs on.
const MIN_BLOBS: usize = 8;
/// An index blob below this share of the largest pack is very small.
const VERY_SMALL: u64 = 20;
/// Random bytes at the end of a compacted index: two compactions must not give the same blob.
const SUFFIX_LEN: usize = 32;

/// Which of the blobs in force a compaction merges; with `all`, every one of them.
fn choose(blobs: Vec<BlobMetadata>, max_pack_size: u64, all: bool) -> Vec<BlobMetadata> {
    if all {
        return blobs;
    }
    let small: Vec<_> = blobs.into_iter().filter(|blob| blob.size <= max_pack_size).collect();
    if small.len() < MIN_BLOBS {
        return Vec::new();
    }
    let is_very_small = |blob: &&BlobMetadata| blob.size < max_pack_size / VERY_SMALL;
    let very_small: Vec<_> = small.iter().filter(is_very_small).cloned().collect();
    let others = small.len() - very_small.len();
    match very_small.len() > small.len() / 2 && others + 1 < MIN_BLOBS {
        true => very_small,
        false => small,
    }
}

impl Session {
    /// `index-compaction`, or with `dropped` the compaction that drops deletions up to that time.
    pub(super) async fn compact_legacy(
        &mut self,
        index: &LegacyIndex,
        dropped: Option<Timestamp>,
    ) -> Result<Done> {
        self.repository.contents().refresh().await?;
        self.stop_at(self.check_index())?;
        let max_pack_size = self.format.repository().max_pack_size();
        let inputs = choose(index.active().await?, max_pack_size, dropped.is_some());
        let needed = inputs.len() > 1 || (dropped.is_some() && !inputs.is_empty());
        if needed && !self.options.dry_run {
            if dropped.is_some() {
                self.ledger.fence(&self.repository).await?;
            }
            let log = self.write_compaction(&inputs, dropped).await?;
            self.delete_inputs(index, log.modified).await?;
        }
        if !self.options.dry_run {
            self.clean_up_logs_of_compactions().await?;
            self.repository.contents().refresh().await?;
        }
        if !needed {
            return Ok(Done::nothing("the index is compact"));
        }
        let stats =
            CompactIndexesStats { dropped_contents_deleted_before: dropped.map_or(GoTime::ZERO, GoTime) };
        Done::with(&stats, format!("index blobs merged: {}", inputs.len()))
    }

    /// Merges `inputs`, and writes the outputs and the log.
    async fn write_compaction(
        &self,
        inputs: &[BlobMetadata],
        dropped: Option<Timestamp>,
    ) -> Result<BlobMetadata> {
        let merged = self
            .repository
            .contents()
            .merge_index(inputs, dropped.map_or(i64::MIN, Timestamp::as_second))
            .await?;
        let mut outputs = Vec::new();
        for shard in 0..merged.shard_count() {
            let suffix = self.repository.environment().random_array::<SUFFIX_LEN>()?;
            let sealed = merged.seal_shard(shard, &suffix).await?;
            let id = BlobId::new(sealed.blob.name(INDEX, None))?;
            outputs.push(self.put_and_look(&id, sealed.blob.bytes().clone()).await?);
        }
        let log = CompactionLog { inputs: logged(inputs), outputs: logged(&outputs) };
        self.put_log(COMPACTION_LOG, &log).await
    }

    /// Deletes the inputs of compactions that everybody knows of by `now`, the store's time.
    async fn delete_inputs(&mut self, index: &LegacyIndex, now: Timestamp) -> Result<()> {
        let cutoff = now.saturating_sub(self.safety.legacy_index_settle_time).unwrap_or(Timestamp::MIN);
        let store = self.repository.store();
        let mut logs: Vec<BlobMetadata> = store.list(COMPACTION_LOG).try_collect().await?;
        logs.sort_by_key(|log| log.modified);
        let mut known: Vec<(BlobMetadata, CompactionLog)> = Vec::new();
        for log in logs {
            if let Some(content) = index.read_log(&log.id).await? {
                known.push((log, content));
            }
        }
        let indexes: Vec<BlobMetadata> = store.list(INDEX).try_collect().await?;
        // Only what is not in force may go, whatever a log says: its outputs may have been lost.
        let in_force: BTreeSet<BlobId> =
            active(&indexes, known.iter().map(|(_, log)| log)).into_iter().map(|blob| blob.id).collect();
        let present: BTreeMap<&str, &BlobMetadata> =
            indexes.iter().map(|blob| (blob.id.as_str(), blob)).collect();
        let settled: Vec<&(BlobMetadata, CompactionLog)> =
            known.iter().filter(|(log, _)| log.modified <= cutoff).collect();
        if settled.is_empty() {
            return Ok(());
        }
        self.ledger.fence(&self.repository).await?;
        let mut done = Vec::new();
        for (log, content) in settled {
            let inputs: Vec<BlobMetadata> = content
                .inputs
                .iter()
                .filter_map(|input| present.get(input.id.as_str()).map(|blob| (*blob).clone()))
                .collect();
            if inputs.iter().any(|input| in_force.contains(&input.id)) {
                continue;
            }
            let deleted = self.delete_replaced(&inputs, 1).await?;
            if deleted.count == inputs.len() as u64 {
                done.push(log.id.to_string());
            }
        }
        if !done.is_empty() {
            self.put_log(CLEANUP_LOG, &CleanupLog { blob_ids: done, cleanup_schedule_time: now }).await?;
        }
        Ok(())
    }

    /// Deletes logs whose time has come. Age is counted in the store's time.
    async fn clean_up_logs_of_compactions(&mut self) -> Result<()> {
        let store = self.repository.store();
        let sealer = self.repository.contents().sealer();
        let cleanups: Vec<BlobMetadata> = store.list(CLEANUP_LOG).try_collect().await?;
        let Some(now) = cleanups.iter().map(|blob| blob.modified).max() else { return Ok(()) };
        let mut due = Vec::new();
        for blob in cleanups {
            let sealed = match store.get(&blob.id).await {
                Err(error) if error.is_not_found() => continue,
                sealed => sealed?,
            };
            let plain = sealer.open_blob(blob.id.as_str(), &sealed)?;
            let log: CleanupLog = serde_json::from_slice(&plain).map_err(|e| crate::Error::DamagedBlob {
                blob: blob.id.to_string(),
                reason: format!("not a clean-up log: {e}"),
            })?;
            if now.duration_since(log.cleanup_schedule_time) >= self.safety.legacy_index_settle_time {
                due.push((blob, log));
            }
        }
        if due.is_empty() {
            return Ok(());
        }
        self.ledger.fence(&self.repository).await?;
        for (blob, log) in due {
            for id in log.blob_ids.iter().filter(|id| id.starts_with(COMPACTION_LOG)) {
                store.delete(&BlobId::new(id)?).await?;
            }
            store.delete(&blob.id).await?;
        }
        Ok(())
    }

    async fn put_log<T: serde::Serialize>(&self, prefix: &str, log: &T) -> Result<BlobMetadata> {
        let plain = serde_json::to_vec(log).map_err(|e| crate::Error::Invalid(e.to_string()))?;
        let sealed = self.repository.contents().sealer().seal_blob(&plain)?;
        self.put_and_look(&BlobId::new(sealed.name(prefix, None))?, sealed.bytes().clone()).await
    }

    async fn put_and_look(&self, id: &BlobId, bytes: bytes::Bytes) -> Result<BlobMetadata> {
        let store = self.repository.store();
        store.put(id, bytes.into(), &self.format.put_options(id)?).await?;
        Ok(store.head(id).await?)
    }
}

fn logged(blobs: &[BlobMetadata]) -> Vec<LoggedBlob> {
    let log = |blob: &BlobMetadata| LoggedBlob {
        id: blob.id.to_string(),
        length: blob.size,
        timestamp: blob.modified,
    };
    blobs.iter().map(log).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn chosen(sizes: &[u64], all: bool) -> usize {
        let blob = |(number, size): (usize, &u64)| BlobMetadata {
            id: BlobId::new(format!("n{number}")).unwrap(),
            size: *size,
            modified: Timestamp::UNIX_EPOCH,
        };
        choose(sizes.iter().enumerate().map(blob).collect(), 100, all).len()
    }

    #[test]
    fn small_index_blobs_are_merged_when_there_are_enough_of_them() {
        assert_eq!(chosen(&[1; 7], false), 0);
        assert_eq!(chosen(&[1; 8], false), 8);
        assert_eq!(chosen(&[1, 1, 1, 1, 1, 1, 50, 500], false), 0, "large ones do not count");
        assert_eq!(
            chosen(&[1, 1, 1, 1, 1, 50, 50, 50, 500], false),
            5,
            "very small ones are merged by themselves"
        );
        assert_eq!(chosen(&[1, 1, 50, 50, 50, 50, 50, 50], false), 8);
        assert_eq!(chosen(&[500, 1], true), 2);
    }
}
