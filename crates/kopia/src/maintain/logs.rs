//! Diagnostic logs: the newest are kept, up to limits. It is the task `cleanup-logs`, and can be done by itself.

use super::report::Amount;
use super::stats::CleanupLogsStats;
use super::{Done, Result, Session};
use crate::maintenance::LogRetention;
use crate::repo::Repository;
use crate::sort::Scratch;
use crate::worker::blocking;
use futures::TryStreamExt;
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, ErrorKind};

/// What the names of diagnostic logs start with.
const LOG_PREFIX: &str = "_";

/// What became of the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogCleanup {
    /// Those within the limits.
    pub kept: Amount,
    /// Those beyond the limits.
    pub beyond: Amount,
    /// Those that were deleted: none in a dry run, and not those that the storage locks.
    pub deleted: Amount,
}

/// Deletes the logs beyond `limits`, or only counts them. They are nothing that a repository needs: no owner, schedule
/// or clock has to be asked.
pub async fn clean_up_logs(
    repository: &Repository,
    limits: &LogRetention,
    dry_run: bool,
) -> Result<LogCleanup> {
    let scratch = Scratch { folder: std::env::temp_dir(), budget: repository.budget().clone() };
    clean_up(repository, &scratch, limits.clone(), (!dry_run).then_some(async || Ok(()))).await
}

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

/// Deletes the logs beyond `limits` once `permit` agrees, which is asked before the first one; without it, only counts.
async fn clean_up(
    repository: &Repository,
    scratch: &Scratch,
    limits: LogRetention,
    permit: Option<impl AsyncFnOnce() -> Result<()>>,
) -> Result<LogCleanup> {
    let now = repository.environment().clock.now();
    let mut keeper = Keeper { limits, now, kept: Amount::default(), full: false };
    // Newest first: the key is the time, counted backwards, and the name.
    let mut sorter = scratch.sorter(size_of::<u64>());
    let store = repository.store();
    let mut logs = store.list(LOG_PREFIX);
    while let Some(log) = logs.try_next().await? {
        let mut key = (i128::MAX - log.modified.as_nanosecond()).to_be_bytes().to_vec();
        key.extend_from_slice(log.id.as_str().as_bytes());
        sorter.push(&key, &log.size.to_be_bytes())?;
    }
    let sorted = blocking(move || sorter.finish()).await??;
    let mut read = sorted.read()?;
    let (mut beyond, mut deleted) = (Amount::default(), Amount::default());
    let (deletes, mut permit) = (permit.is_some(), permit);
    while read.advance()? {
        let (time, name) = read.key().split_at(size_of::<i128>());
        let time = time.first_chunk().map_or(0, |bytes| i128::MAX - i128::from_be_bytes(*bytes));
        let size = read.tail().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        if keeper.keeps(size, Timestamp::from_nanosecond(time).unwrap_or(Timestamp::MAX)) {
            continue;
        }
        beyond.add(size);
        if let Some(permit) = permit.take() {
            permit().await?;
        }
        if deletes {
            match store.delete(&BlobId::new(String::from_utf8_lossy(name))?).await {
                // A default of the bucket: it goes when the lock has ended.
                Err(error) if error.kind() == ErrorKind::Locked => continue,
                outcome => outcome?,
            }
            deleted.add(size);
        }
    }
    Ok(LogCleanup { kept: keeper.kept, beyond, deleted })
}

impl Session {
    /// `cleanup-logs`: the newest diagnostic logs are kept, up to the repository's limits.
    pub(super) async fn cleanup_logs(&mut self) -> Result<Done> {
        let limits = self.params.log_retention.or_default();
        let (ledger, repository) = (&mut self.ledger, &self.repository);
        let permit = (!self.options.dry_run).then_some(async || ledger.fence(repository).await);
        let LogCleanup { kept, beyond, deleted } =
            clean_up(repository, &self.scratch, limits, permit).await?;
        self.report.reclaimed.count += beyond.count;
        self.report.reclaimed.bytes += beyond.bytes;
        let stats = CleanupLogsStats {
            to_delete_blob_count: beyond.count,
            to_delete_blob_size: beyond.bytes,
            deleted_blob_count: deleted.count,
            deleted_blob_size: deleted.bytes,
            retained_blob_count: kept.count,
            retained_blob_size: kept.bytes,
        };
        Done::with(&stats, format!("logs deleted: {beyond}, kept: {kept}"))
    }
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
    }
}
