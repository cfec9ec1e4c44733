//! The task `extend-blob-retention-time`.

use super::stats::{ExtendBlobRetentionStats, count32};
use super::{Done, Error, Result, Session};
use crate::epoch::names;
use crate::format::{BLOBCFG_BLOB, FORMAT_BLOB};
use crate::legacy;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use jiff::SignedDuration;
use lifeboat_blobs::{BlobId, BlobMetadata, ErrorKind, Retention};
use lifeboat_index::PackUsage;

/// Locks must outlast the time to the next full maintenance by this much, or they could end before it.
const LOCK_MARGIN: SignedDuration = SignedDuration::from_hours(24);
/// How many packs are handed over at a time.
const WINDOW: usize = 10_000;

impl Session {
    /// `extend-blob-retention-time`: the locks of everything that the repository needs are extended. Packs that
    /// nothing names are left to expire.
    pub(super) async fn extend_locks(&mut self) -> Result<Done> {
        let Some(lock) = self.format.config().retention()? else {
            return Ok(Done::nothing("the repository has no object locks"));
        };
        let period = SignedDuration::try_from(lock.period).unwrap_or(SignedDuration::MAX);
        let interval = SignedDuration::from_nanos(self.params.full.interval.0);
        if period < interval.saturating_add(LOCK_MARGIN) {
            return Err(Error::Blocked(format!(
                "the retention period of the repository ({period:#}) must be longer than the interval of full \
                 maintenance ({interval:#}) by {LOCK_MARGIN:#}, or locks end before they are extended"
            )));
        }
        let mut extended = 0;
        for prefix in [FORMAT_BLOB, BLOBCFG_BLOB, names::ALL, legacy::INDEX] {
            let blobs: Vec<BlobMetadata> = self.repository.store().list(prefix).try_collect().await?;
            extended += self.extend(blobs.into_iter().map(|blob| blob.id).collect(), &lock).await?;
        }
        let index = self.repository.contents().snapshot();
        let (send, mut receive) = tokio::sync::mpsc::channel::<Vec<BlobId>>(1);
        let collect = tokio::task::spawn_blocking(move || -> crate::Result<()> {
            let mut window = Vec::new();
            for usage in index.pack_usage()? {
                let PackUsage { pack, live_contents, .. } = usage?;
                if live_contents > 0 {
                    window.push(BlobId::new(pack.as_str())?);
                }
                // Whoever does not receive any more has failed, and says so itself.
                if window.len() >= WINDOW && send.blocking_send(std::mem::take(&mut window)).is_err() {
                    return Ok(());
                }
            }
            let _ = send.blocking_send(window);
            Ok(())
        });
        while let Some(window) = receive.recv().await {
            extended += self.extend(window, &lock).await?;
        }
        collect.await.map_err(|e| crate::Error::Worker(e.to_string()))??;
        let stats = ExtendBlobRetentionStats {
            to_extend_blob_count: count32(extended),
            extended_blob_count: count32(extended),
            retention_period: go_duration(lock.period),
        };
        Done::with(&stats, format!("locks extended by {period:#}: {extended}"))
    }

    async fn extend(&self, blobs: Vec<BlobId>, lock: &Retention) -> Result<u64> {
        if self.options.dry_run {
            return Ok(blobs.len() as u64);
        }
        let store = self.repository.store();
        let extended = stream::iter(blobs)
            .map(|id| {
                async move {
                    match store.extend_retention(&id, lock).await {
                        // A pack that is gone is named by the deletion of blobs; an index blob may have been replaced.
                        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
                        outcome => outcome.map(|()| 1),
                    }
                }
                .boxed()
            })
            .buffer_unordered(self.options.parallel.max(1))
            .try_fold(0, |total, one| async move { Ok(total + one) });
        Ok(extended.await?)
    }
}

/// A span as Go prints it: hours, minutes and seconds.
fn go_duration(period: std::time::Duration) -> String {
    let seconds = period.as_secs();
    format!("{}h{}m{}s", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_does() {
        assert_eq!(go_duration(std::time::Duration::from_secs(90_061)), "25h1m1s");
    }
}
