//! The tasks `cleanup-logs` and `extend-blob-retention-time`.

use super::report::Amount;
use super::stats::{CleanupLogsStats, ExtendBlobRetentionStats, count32};
use super::{Done, Error, Result, Session};
use crate::epoch::names;
use crate::format::{BLOBCFG_BLOB, FORMAT_BLOB};
use crate::legacy;
use crate::maintenance::LogRetention;
use crate::worker::blocking;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, BlobMetadata, ErrorKind, Retention};
use lifeboat_index::PackUsage;

/// What the names of diagnostic logs start with.
const LOG_PREFIX: &str = "_";
/// Locks must outlast the time to the next full maintenance by this much, or they could end before it.
const LOCK_MARGIN: SignedDuration = SignedDuration::from_hours(24);
/// How many packs are handed over at a time.
const WINDOW: usize = 10_000;

/// Says for each log, the newest first, whether it is kept. From the first one beyond a limit on, none is.
struct Keeper {
    limits: LogRetention,
    now: Timestamp,
    kept: Amount,
    full: bool,
}

impl Keeper {
    fn keeps(&mut self, size: u64, modified: Timestamp) -> bool {
        let LogRetention { max_total_size, max_count, max_age, .. } = &self.limits;
        let beyond = |limit: i64, value: u64| limit > 0 && value > limit.unsigned_abs();
        let age = self.now.duration_since(modified);
        self.full = self.full
            || beyond(*max_total_size, self.kept.bytes + size)
            || beyond(*max_count, self.kept.count + 1)
            || (max_age.0 != 0 && age > SignedDuration::from_nanos(max_age.0));
        if !self.full {
            self.kept.add(size);
        }
        !self.full
    }
}

impl Session {
    /// `cleanup-logs`: the newest diagnostic logs are kept, up to the repository's limits.
    pub(super) async fn cleanup_logs(&mut self) -> Result<Done> {
        let now = self.repository.environment().clock.now();
        let limits = self.params.log_retention.or_default();
        let mut keeper = Keeper { limits, now, kept: Amount::default(), full: false };
        // Newest first: the key is the time, counted backwards, and the name.
        let mut sorter = self.scratch.sorter(size_of::<u64>());
        let store = self.repository.store().clone();
        let mut logs = store.list(LOG_PREFIX);
        while let Some(log) = logs.try_next().await? {
            let mut key = (i128::MAX - log.modified.as_nanosecond()).to_be_bytes().to_vec();
            key.extend_from_slice(log.id.as_str().as_bytes());
            sorter.push(&key, &log.size.to_be_bytes())?;
        }
        let sorted = blocking(move || sorter.finish()).await??;
        let mut read = sorted.read()?;
        let (mut doomed, mut deleted) = (Amount::default(), Amount::default());
        let mut fenced = false;
        while read.advance()? {
            let (time, name) = read.key().split_at(size_of::<i128>());
            let time = time.first_chunk().map_or(0, |bytes| i128::MAX - i128::from_be_bytes(*bytes));
            let size = read.tail().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if keeper.keeps(size, Timestamp::from_nanosecond(time).unwrap_or(Timestamp::MAX)) {
                continue;
            }
            doomed.add(size);
            if !self.options.dry_run {
                if !std::mem::replace(&mut fenced, true) {
                    self.ledger.fence(&self.repository).await?;
                }
                match store.delete(&BlobId::new(String::from_utf8_lossy(name))?).await {
                    // A default of the bucket: it goes when the lock has ended.
                    Err(error) if error.kind() == ErrorKind::Locked => continue,
                    outcome => outcome?,
                }
                deleted.add(size);
            }
        }
        self.report.reclaimed.count += doomed.count;
        self.report.reclaimed.bytes += doomed.bytes;
        let stats = CleanupLogsStats {
            to_delete_blob_count: doomed.count,
            to_delete_blob_size: doomed.bytes,
            deleted_blob_count: deleted.count,
            deleted_blob_size: deleted.bytes,
            retained_blob_count: keeper.kept.count,
            retained_blob_size: keeper.kept.bytes,
        };
        Done::with(&stats, format!("logs deleted: {doomed}, kept: {}", keeper.kept))
    }

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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::gojson::Nanos;

    fn kept(limits: LogRetention, logs: &[(u64, i64)]) -> usize {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut keeper = Keeper { limits, now, kept: Amount::default(), full: false };
        logs.iter().filter(|(size, age)| keeper.keeps(*size, now - SignedDuration::from_hours(*age))).count()
    }

    #[test]
    fn logs_are_kept_until_the_first_limit() {
        let logs = [(10, 0), (10, 1), (50, 2), (1, 3), (1, 100)];
        let limit = |max_total_size, max_count, hours| LogRetention {
            max_total_size,
            max_count,
            max_age: Nanos::from_hours(hours),
            ..LogRetention::default()
        };
        assert_eq!(kept(limit(0, 0, 0), &logs), 5);
        assert_eq!(kept(limit(0, 3, 0), &logs), 3);
        assert_eq!(kept(limit(69, 0, 0), &logs), 2, "small logs behind a large one go as well");
        assert_eq!(kept(limit(70, 0, 0), &logs), 3);
        assert_eq!(kept(limit(0, 0, 50), &logs), 4);
        assert_eq!(go_duration(std::time::Duration::from_secs(90_061)), "25h1m1s");
    }
}
