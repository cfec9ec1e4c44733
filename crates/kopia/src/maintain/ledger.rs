//! The schedule as the one thing that maintenance runs have in common: who may run, what ran, and the fence.

use super::report::Extent;
use super::{Error, Result};
use crate::format::Format;
use crate::gojson::{self, GoTime};
use crate::maintenance::{Params, Run, SCHEDULE_BLOB, Schedule, Task};
use crate::repo::Repository;
use crate::{Clock, Environment};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, BlobStore};
use std::sync::Arc;

/// The schedule as we have written it last.
///
/// The repository has no locks, and the schedule blob is written without compare-and-swap. So everything that is
/// about to delete passes the [`fence`](Self::fence) first, and whoever writes the schedule in between is noticed:
/// every run of maintenance, ours or Kopia's, writes it before its first task and after each one.
#[derive(Debug)]
pub(super) struct Ledger {
    store: Arc<dyn BlobStore>,
    format: Arc<Format>,
    environment: Environment,
    max_skew: SignedDuration,
    us: String,
    schedule: Schedule,
    /// The schedule as text, as it is in the store if nobody else changes it.
    known: Vec<u8>,
    /// Whether we have written it.
    written: bool,
}

impl Ledger {
    /// Reads the schedule.
    pub(super) async fn open(repository: &Repository, max_skew: SignedDuration) -> Result<Self> {
        let (store, format) = (repository.store().clone(), repository.format().await);
        let schedule = Schedule::load(&*store, &format).await?;
        let known = encode(&schedule)?;
        let environment = repository.environment().clone();
        let identity = repository.identity();
        let us = format!("{}@{}", identity.username, identity.hostname);
        Ok(Ledger { store, format, environment, max_skew, us, schedule, known, written: false })
    }

    /// What is scheduled, and what ran.
    pub(super) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Fails unless we are the one who runs maintenance.
    pub(super) fn check_owner(&self, params: &Params) -> Result<()> {
        match params.owner == self.us {
            true => Ok(()),
            false => Err(Error::NotOwner { owner: params.owner.clone(), us: self.us.clone() }),
        }
    }

    /// Which part of maintenance is due, if any.
    pub(super) fn due(&self, params: &Params) -> Option<Extent> {
        let now = self.environment.clock.now();
        let is_due = |cycle: &crate::maintenance::Cycle, next: GoTime| cycle.enabled && now >= next.0;
        if is_due(&params.full, self.schedule.next_full) {
            Some(Extent::Full)
        } else if is_due(&params.quick, self.schedule.next_quick) {
            Some(Extent::Quick)
        } else {
            None
        }
    }

    /// Writes into the schedule when maintenance is due next, so that a run that crashes is not repeated at once, and
    /// returns the store's time.
    pub(super) async fn start(&mut self, extent: Extent, params: &Params) -> Result<Timestamp> {
        let now = self.environment.clock.now();
        let next = |cycle: &crate::maintenance::Cycle| {
            GoTime(now.saturating_add(cycle.interval.to_duration()).unwrap_or(Timestamp::MAX))
        };
        if extent == Extent::Full {
            self.schedule.next_full = next(&params.full);
        }
        self.schedule.next_quick = next(&params.quick);
        self.write().await
    }

    /// Adds a run to the schedule.
    pub(super) async fn record(&mut self, task: Task, run: Run) -> Result<()> {
        self.check_unchanged().await?;
        self.schedule.report(task, run);
        self.write().await.map(drop)
    }

    /// Fails unless it is still safe to delete: maintenance is still ours, nobody else is at it, and the clocks agree.
    /// Everything is read from the store, as it is now. Before the run has written anything (see
    /// [`Options::free_first`](super::Options::free_first)) the clocks cannot be compared, and nobody goes by them.
    pub(super) async fn fence(&mut self, repository: &Repository) -> Result<()> {
        repository.contents().refresh().await?;
        repository.manifests().reload().await?;
        let params = Params::load(repository.manifests()).await?.unwrap_or_default();
        self.check_owner(&params)?;
        self.check_unchanged().await?;
        if self.written {
            self.write().await?;
        }
        Ok(())
    }

    async fn check_unchanged(&self) -> Result<()> {
        let found = Schedule::load(&*self.store, &self.format).await?;
        match encode(&found)? == self.known {
            true => Ok(()),
            false => Err(Error::Contended),
        }
    }

    /// Writes the schedule and compares the store's clock with ours.
    async fn write(&mut self) -> Result<Timestamp> {
        let clock: &dyn Clock = &*self.environment.clock;
        let before = clock.now();
        self.schedule.save(&*self.store, &self.format, &self.environment).await?;
        let written = self.store.head(&BlobId::new(SCHEDULE_BLOB)?).await?.modified;
        let after = clock.now().max(before);
        // The store put its stamp on the blob at some moment between the two.
        let nearest = written.clamp(before, after);
        if written.duration_since(nearest).abs() > self.max_skew {
            return Err(Error::ClockSkew { local: nearest, store: written, limit: self.max_skew });
        }
        (self.known, self.written) = (encode(&self.schedule)?, true);
        Ok(written)
    }
}

fn encode(schedule: &Schedule) -> Result<Vec<u8>> {
    let encoded = gojson::to_vec(schedule);
    encoded.map_err(|e| crate::Error::Invalid(format!("cannot encode the maintenance schedule: {e}")).into())
}

/// When one of `tasks` last ended well.
pub(super) fn last_success(schedule: &Schedule, tasks: &[Task]) -> Option<Timestamp> {
    let runs = tasks.iter().flat_map(|task| schedule.runs_of(*task));
    runs.filter(|run| run.success).map(|run| run.end.0).max()
}

/// The time up to which deletions can be dropped from the index: the newest run of `snapshot-gc` that a later one
/// has confirmed, less `extra`. `also` is a run that has not been recorded yet.
///
/// A content that was marked as deleted in one run may have been taken up by a backup that went on at the same
/// moment. The next run sees the snapshot of that backup and brings the content back, provided that at least
/// `margin` lies between the two. What was deleted before the *earlier* of two such runs, and was not brought back
/// by it or by the later one, is not needed by anybody.
pub(super) fn safe_drop_time(
    schedule: &Schedule,
    also: Option<Run>,
    margin: SignedDuration,
    extra: SignedDuration,
) -> Option<Timestamp> {
    let recorded = schedule.runs_of(Task::SnapshotGc).iter().filter(|run| run.success);
    let mut runs: Vec<(Timestamp, Timestamp)> =
        recorded.chain(also.as_ref()).map(|run| (run.start.0, run.end.0)).collect();
    runs.sort_unstable_by(|a, b| b.cmp(a));
    let (latest, _) = *runs.first()?;
    let confirmed = runs.iter().skip(1).find(|(_, end)| latest.duration_since(*end) > margin)?;
    confirmed.0.checked_sub(extra).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + hours * HOUR).unwrap()
    }

    fn run(start: i64, end: i64, success: bool) -> Run {
        Run { start: GoTime(at(start)), end: GoTime(at(end)), success, ..Run::default() }
    }

    fn drop_time(runs: &[(i64, i64, bool)]) -> Option<Timestamp> {
        let mut schedule = Schedule::default();
        runs.iter().for_each(|(start, end, ok)| schedule.report(Task::SnapshotGc, run(*start, *end, *ok)));
        safe_drop_time(&schedule, None, SignedDuration::from_hours(4), SignedDuration::from_hours(1))
    }

    #[test]
    fn a_deletion_is_dropped_only_after_two_good_runs_that_are_far_enough_apart() {
        assert_eq!(drop_time(&[]), None);
        assert_eq!(drop_time(&[(0, 1, true)]), None);
        assert_eq!(drop_time(&[(0, 1, true), (5, 6, true)]), None, "four hours are not more than four hours");
        assert_eq!(drop_time(&[(0, 1, true), (6, 7, true)]), Some(at(-1)));
        assert_eq!(drop_time(&[(0, 1, true), (6, 7, false)]), None, "only runs that ended well count");
        assert_eq!(drop_time(&[(0, 1, true), (6, 7, true), (8, 9, true)]), Some(at(-1)));
        assert_eq!(drop_time(&[(0, 1, true), (6, 7, true), (30, 31, true)]), Some(at(5)));
        assert_eq!(
            drop_time(&[(30, 31, true), (0, 1, true)]),
            Some(at(-1)),
            "in whatever order they are recorded"
        );
    }

    #[test]
    fn the_last_success_is_the_latest_end_among_the_tasks() {
        let mut schedule = Schedule::default();
        schedule.report(Task::FullRewriteContents, run(0, 1, true));
        schedule.report(Task::FullRewriteContents, run(5, 6, false));
        schedule.report(Task::QuickRewriteContents, run(2, 3, true));
        assert_eq!(last_success(&schedule, &[Task::FullRewriteContents]), Some(at(1)));
        let both = [Task::FullRewriteContents, Task::QuickRewriteContents];
        assert_eq!(last_success(&schedule, &both), Some(at(3)));
        assert_eq!(last_success(&schedule, &[Task::CleanupLogs]), None);
    }
}
