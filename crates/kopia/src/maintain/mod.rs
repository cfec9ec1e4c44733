//! Maintenance: freeing the space of what no snapshot needs any more, and keeping the index small.
//!
//! [`run`] does what `kopia maintenance run` does, task by task, on the same schedule and under the same rules, so
//! that either may follow the other. What differs is what it takes for something to be deleted:
//!
//! * **It fails closed.** A snapshot that cannot be read or understood, a living content whose pack is missing, a
//!   listing that is not complete: each is an [`Obstacle`], is named in the [`Report`], and nothing is deleted until
//!   it is out of the way. The upkeep of the index goes on meanwhile.
//! * **It deletes behind a fence.** Right before each deletion the owner and the schedule are read from the store
//!   again, and the clocks are compared. Whoever else maintains the repository at the same time is noticed.
//! * **It can die at any point.** Every task leaves the repository whole after each of its steps, and does what is
//!   left when it is run again.
//!
//! Nothing is deleted at once. A content that no snapshot needs is *marked* as deleted in one run; later runs may bring
//! it back; once two of them had the chance to, it is *dropped* from the index; and a pack without contents is then
//! deleted. Until the drop everything can be undone. [`Safety`] has the margins.

mod collect;
mod copy;
mod epochs;
mod error;
mod expand;
mod ledger;
mod legacy;
mod locks;
mod logs;
mod mark;
mod packs;
mod recall;
mod regions;
mod report;
mod rewrite;
mod safety;
mod settled;
mod stats;
mod upkeep;

pub use error::{Error, Result};
pub use logs::{LogCleanup, clean_up_logs};
pub use report::{Amount, Extent, Obstacle, Outcome, Pending, Report, TaskReport, Waiting};
pub use safety::Safety;

use crate::content::{DamagedIndex, IndexBlobs};
use crate::format::Format;
use crate::gojson::GoTime;
use crate::maintenance::{Params, Run, RunExtra, Task};
use crate::pack::PackKind;
use crate::repo::{Access, Repository};
use crate::sort::Scratch;
use jiff::{SignedDuration, Timestamp};
use ledger::{Ledger, last_success, safe_drop_time};
use mark::Marks;
use report::Obstacles;
use settled::Settled;
use stats::Stats;
use std::path::PathBuf;
use std::sync::Arc;

/// How often the index is loaded until a second listing confirms it: others may be publishing all the time.
const LOOKS: usize = 3;

/// Which maintenance to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// What the repository's schedule says is due, possibly nothing.
    #[default]
    Auto,
    /// The cheap part, due or not.
    Quick,
    /// Everything, due or not.
    Full,
}

/// How maintenance is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Find out what would be done, and change nothing.
    pub dry_run: bool,
    /// Where temporary files are put: some 20 bytes for each use of a content by a directory. Without it, in the
    /// system's folder for such files.
    pub scratch_folder: Option<PathBuf>,
    /// How many reads from the store are under way at once.
    pub parallel: usize,
    /// At most so many bytes of each kind of pack are rewritten; the rest is left to later runs.
    pub rewrite_bytes: u64,
    /// After so long no more contents are rewritten; the rest is left to later runs.
    pub rewrite_time: Option<SignedDuration>,
    /// For a store that is full: what nothing names any more is deleted before anything is written. Its age is
    /// judged by the newest blob in the store, since only a write would tell the store's time.
    pub free_first: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            dry_run: false,
            scratch_folder: None,
            parallel: 8,
            rewrite_bytes: u64::MAX,
            rewrite_time: None,
            free_first: false,
        }
    }
}

/// Maintains a repository.
///
/// Fails with [`Error::NotOwner`] unless the repository's parameters name this client as the one who does it. Two
/// runs on one machine are kept apart by the caller (Kopia takes a file lock beside the connection file); two runs on
/// different machines notice each other and stop with [`Error::Contended`].
///
/// A task that fails is reported and does not keep those from running that do not depend on it.
pub async fn run(repository: &Repository, mode: Mode, safety: &Safety, options: &Options) -> Result<Report> {
    if repository.access() == Access::ReadOnly && !options.dry_run {
        return Err(crate::Error::ReadOnly { action: "maintain the repository" }.into());
    }
    if !options.dry_run && !options.free_first {
        repository.flush().await?;
    }
    repository.refresh().await?;
    let params = Params::load(repository.manifests()).await?.unwrap_or_default();
    let ledger = Ledger::open(repository, safety.max_clock_skew).await?;
    ledger.check_owner(&params)?;
    let extent = match mode {
        Mode::Auto => ledger.due(&params),
        Mode::Quick => Some(Extent::Quick),
        Mode::Full => Some(Extent::Full),
    };
    let mut report = Report::new(options.dry_run);
    let Some(extent) = extent else {
        (report.next_quick, report.next_full) = next_times(&ledger);
        return Ok(report);
    };
    report.ran = Some(extent);
    let folder = options.scratch_folder.clone().unwrap_or_else(std::env::temp_dir);
    let mut session = Session {
        repository: repository.clone(),
        options: options.clone(),
        safety: safety.clone(),
        params,
        format: repository.format().await,
        ledger,
        start: repository.environment().clock.now(),
        scratch: Scratch { folder, budget: repository.budget().clone() },
        report,
        marks: None,
        settled: None,
        lacking: Obstacles::default(),
    };
    if options.free_first && !options.dry_run {
        session.free_first().await?;
        repository.flush().await?;
    }
    if !options.dry_run {
        session.start = session.ledger.start(extent, &session.params).await?;
    }
    session.refresh(extent).await?;
    match extent {
        Extent::Full => session.full().await?,
        Extent::Quick => session.quick().await?,
    }
    let Session { mut report, ledger, .. } = session;
    (report.next_quick, report.next_full) = next_times(&ledger);
    Ok(report)
}

fn next_times(ledger: &Ledger) -> (Option<Timestamp>, Option<Timestamp>) {
    (ledger.schedule().next_quick.get(), ledger.schedule().next_full.get())
}

/// What a task that was done has to say.
#[derive(Debug)]
struct Done {
    extra: Option<RunExtra>,
    summary: String,
}

impl Done {
    /// With statistics for the schedule.
    fn with(stats: &impl Stats, summary: String) -> Result<Self> {
        Ok(Done { extra: Some(stats.extra()?), summary })
    }

    /// There was nothing to do.
    fn nothing(why: &str) -> Self {
        Done { extra: None, summary: why.to_owned() }
    }
}

/// One run of maintenance.
struct Session {
    repository: Repository,
    options: Options,
    safety: Safety,
    params: Params,
    format: Arc<Format>,
    ledger: Ledger,
    /// When it began, in the store's time.
    start: Timestamp,
    scratch: Scratch,
    report: Report,
    /// What the snapshots need, once that is known for sure.
    marks: Option<Marks>,
    /// What an earlier run found out that still holds.
    settled: Option<Settled>,
    /// What the index lacks, as it was loaded last.
    lacking: Obstacles,
}

impl Session {
    fn now(&self) -> Timestamp {
        self.repository.environment().clock.now()
    }

    /// Looks at the repository as it is now that the schedule says that we are at work.
    async fn refresh(&mut self, extent: Extent) -> Result<()> {
        match extent {
            Extent::Full => self.load_index().await?,
            // What it deletes, it loads the index for again.
            Extent::Quick => self.repository.contents().refresh().await?,
        }
        self.repository.manifests().reload().await?;
        if !self.options.dry_run && self.repository.manifests().compact_if_needed().await? {
            self.repository.flush().await?;
        }
        Ok(())
    }

    /// Loads the index, and once more if a second listing shows that the first has left something out: what only a part of
    /// the index knows that is missing would look as if nobody needed it.
    async fn load_index(&mut self) -> Result<()> {
        let contents = self.repository.contents();
        let mut lacking = Vec::new();
        for _ in 0..LOOKS {
            contents.refresh().await?;
            lacking = contents.lacking_index().await?;
            if lacking.is_empty() {
                break;
            }
        }
        self.lacking = Obstacles::default();
        // What was written since this run began is protected by its age.
        for blob in lacking.into_iter().filter(|blob| blob.modified < self.start) {
            self.lacking.add(Obstacle::IncompleteListing { blob: blob.id.to_string() });
        }
        Ok(())
    }

    /// Deletes what can be deleted without writing. It is not entered into the schedule; the tasks that run later in
    /// their order are.
    async fn free_first(&mut self) -> Result<()> {
        self.start = self.newest_blob().await?;
        let rewrites = [Task::FullRewriteContents, Task::QuickRewriteContents];
        let delay = self.safety.rewrite_to_deletion_delay;
        let from =
            last_success(self.ledger.schedule(), &rewrites).and_then(|end| end.checked_add(delay).ok());
        if from.is_none_or(|from| self.start >= from) {
            self.delete_blobs(&packs::ALL_KINDS).await?;
        }
        let repository = self.repository.clone();
        if let IndexBlobs::Epochs(index) = repository.contents().index_blobs() {
            self.delete_superseded(index).await?;
        }
        self.cleanup_logs().await?;
        // The run that follows finds out what is left to wait for.
        self.report.pending.clear();
        Ok(())
    }

    async fn full(&mut self) -> Result<()> {
        let begun = self.now();
        let collected = self.collect().await;
        if self.conclude(Task::SnapshotGc, begun, collected).await? {
            self.rewrite_if_time(Task::FullRewriteContents).await?;
            let dropped = self.drop_deleted().await?;
            self.delete_blobs_if_time(Task::FullDeleteBlobs).await?;
            self.index_upkeep(Extent::Full, dropped).await?;
            self.remember_settled().await;
        } else {
            for task in [Task::FullRewriteContents, Task::FullDropDeletedContent, Task::FullDeleteBlobs] {
                self.skip(task, "what the snapshots need is not known for sure");
            }
            self.index_upkeep(Extent::Full, false).await?;
        }
        if self.params.extend_object_locks {
            let begun = self.now();
            let outcome = self.extend_locks().await;
            self.conclude(Task::ExtendBlobRetentionTime, begun, outcome).await?;
        }
        self.log_upkeep().await
    }

    async fn quick(&mut self) -> Result<()> {
        if matches!(self.repository.contents().index_blobs(), IndexBlobs::Epochs(_)) {
            return self.index_upkeep(Extent::Quick, false).await;
        }
        self.rewrite_if_time(Task::QuickRewriteContents).await?;
        // What a full rewrite has emptied is to be deleted before the next rewrite, or it never would be.
        let last = |task| last_success(self.ledger.schedule(), &[task]);
        let full = last(Task::FullRewriteContents) >= last(Task::QuickRewriteContents);
        self.delete_blobs_if_time(if full { Task::FullDeleteBlobs } else { Task::QuickDeleteBlobs }).await?;
        self.index_upkeep(Extent::Quick, false).await?;
        self.log_upkeep().await
    }

    /// Rewrites short packs, unless an earlier rewrite is still waiting for its packs to be deleted: one that was
    /// followed by the next for ever would never come to that.
    async fn rewrite_if_time(&mut self, task: Task) -> Result<()> {
        let rewrites: &[Task] = match task {
            Task::FullRewriteContents => &[Task::FullRewriteContents],
            _ => &[Task::FullRewriteContents, Task::QuickRewriteContents],
        };
        let schedule = self.ledger.schedule();
        let rewritten = last_success(schedule, rewrites);
        let deleted = last_success(schedule, &[Task::FullDeleteBlobs, Task::QuickDeleteBlobs]);
        if rewritten > deleted && !self.safety.rewrite_to_deletion_delay.is_zero() {
            self.skip(task, "packs of the last rewrite are still to be deleted");
            return Ok(());
        }
        let kinds: &[PackKind] = match task {
            Task::FullRewriteContents => &PackKind::ALL,
            _ => &[PackKind::Metadata],
        };
        let begun = self.now();
        match self.rewrite(kinds).await.transpose() {
            // Not noted as a run: nothing was moved, so nobody has to wait for anything.
            None => self.skip(task, "no contents are worth moving"),
            Some(outcome) => drop(self.conclude(task, begun, outcome).await?),
        }
        Ok(())
    }

    /// Drops deletions that are certain; returns whether it was their time.
    async fn drop_deleted(&mut self) -> Result<bool> {
        if self.settled().is_some() {
            self.skip(Task::FullDropDeletedContent, "there are no deletions");
            return Ok(false);
        }
        let Some(time) = self.drop_time(self.options.dry_run) else {
            self.skip(Task::FullDropDeletedContent, "deletions are dropped after two runs that confirm them");
            return Ok(false);
        };
        let begun = self.now();
        let repository = self.repository.clone();
        let outcome = match repository.contents().index_blobs() {
            IndexBlobs::Epochs(index) => self.move_watermark(index, time).await,
            IndexBlobs::Legacy(index) => self.compact_legacy(index, Some(time)).await,
        };
        self.conclude(Task::FullDropDeletedContent, begun, outcome).await
    }

    /// The time up to which deletions may be dropped; with `and_now` as if `snapshot-gc` had just ended well.
    fn drop_time(&self, and_now: bool) -> Option<Timestamp> {
        if !self.safety.two_gc_cycles {
            return Some(self.now());
        }
        let now = GoTime(self.now());
        let also = and_now.then(|| Run { start: now, end: now, success: true, ..Run::default() });
        let (margin, extra) = (self.safety.margin_between_gc_cycles, self.safety.extra_margin_for_drop);
        safe_drop_time(self.ledger.schedule(), also, margin, extra)
    }

    async fn delete_blobs_if_time(&mut self, task: Task) -> Result<()> {
        let rewrites = [Task::FullRewriteContents, Task::QuickRewriteContents];
        let rewritten = last_success(self.ledger.schedule(), &rewrites);
        let delay = self.safety.rewrite_to_deletion_delay;
        let from = rewritten.and_then(|end| end.checked_add(delay).ok());
        if from.is_some_and(|from| self.now() < from) {
            self.skip(task, "clients may still read from the packs that were rewritten last");
            return Ok(());
        }
        let kinds: &[&str] =
            if task == Task::FullDeleteBlobs { &packs::ALL_KINDS } else { &packs::METADATA_ONLY };
        let begun = self.now();
        let outcome = self.delete_blobs(kinds).await;
        self.conclude(task, begun, outcome).await.map(drop)
    }

    /// Keeps the index small. `compacted` says that the legacy index was just compacted as a whole.
    async fn index_upkeep(&mut self, extent: Extent, compacted: bool) -> Result<()> {
        let repository = self.repository.clone();
        match repository.contents().index_blobs() {
            IndexBlobs::Epochs(index) => self.epoch_upkeep(index, extent).await,
            IndexBlobs::Legacy(_) if compacted => Ok(()),
            IndexBlobs::Legacy(index) => {
                let begun = self.now();
                let outcome = self.compact_legacy(index, None).await;
                self.conclude(Task::IndexCompaction, begun, outcome).await.map(drop)
            }
        }
    }

    async fn epoch_upkeep(&mut self, index: &crate::epoch::EpochIndex, extent: Extent) -> Result<()> {
        let begun = self.now();
        let outcome = self.compact_single_epoch(index).await;
        self.conclude(Task::CompactSingleEpoch, begun, outcome).await?;
        let begun = self.now();
        let outcome = self.advance_epoch(index).await;
        self.conclude(Task::AdvanceEpoch, begun, outcome).await?;
        if extent == Extent::Quick {
            return Ok(());
        }
        let begun = self.now();
        let outcome = self.generate_range(index).await;
        self.conclude(Task::GenerateEpochRangeIndex, begun, outcome).await?;
        let begun = self.now();
        let outcome = self.cleanup_markers(index).await;
        self.conclude(Task::CleanupEpochMarkers, begun, outcome).await?;
        let begun = self.now();
        let outcome = self.delete_superseded(index).await;
        self.conclude(Task::DeleteSupersededEpochIndexes, begun, outcome).await.map(drop)
    }

    async fn log_upkeep(&mut self) -> Result<()> {
        let begun = self.now();
        let outcome = self.cleanup_logs().await;
        self.conclude(Task::CleanupLogs, begun, outcome).await.map(drop)
    }

    /// Blobs of the index that are left out: what only they name looks as if nobody needed it.
    fn check_index(&self) -> Obstacles {
        let mut obstacles = self.lacking.clone();
        for DamagedIndex { blob, reason } in self.repository.contents().damaged_index() {
            obstacles.add(Obstacle::DamagedIndex { blob, reason });
        }
        obstacles
    }

    /// Names what is in the way, if anything is, and ends the task.
    fn stop_at(&mut self, obstacles: Obstacles) -> Result<()> {
        if obstacles.is_empty() {
            return Ok(());
        }
        let summary = obstacles.summary();
        self.report.obstruct(obstacles);
        Err(Error::Obstructed(summary))
    }

    fn skip(&mut self, task: Task, why: &str) {
        let (outcome, summary) = (Outcome::Skipped, why.to_owned());
        self.report.tasks.push(TaskReport { task, outcome, summary });
    }

    /// Enters what became of a task into the schedule and the report; returns whether it went well. An error that
    /// leaves no doubt that we must stop is passed on.
    async fn conclude(&mut self, task: Task, begun: Timestamp, outcome: Result<Done>) -> Result<bool> {
        let obstructed = matches!(outcome, Err(Error::Obstructed(_)));
        let (success, extra, error, summary) = match outcome {
            Ok(Done { extra, summary }) => (true, extra, String::new(), summary),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => (false, None, error.to_string(), error.to_string()),
        };
        match success {
            true => tracing::info!(task = task.name(), summary, "maintenance task done"),
            false => tracing::warn!(task = task.name(), error, "maintenance task failed"),
        }
        if !self.options.dry_run {
            let (start, end) = (GoTime(begun), GoTime(self.now()));
            let extra = extra.into_iter().collect();
            self.ledger.record(task, Run { start, end, success, error, extra, ..Run::default() }).await?;
        }
        let outcome = match (success, self.options.dry_run) {
            (false, _) if obstructed => Outcome::Obstructed,
            (false, _) => Outcome::Failed,
            (true, true) => Outcome::Planned,
            (true, false) => Outcome::Done,
        };
        self.report.tasks.push(TaskReport { task, outcome, summary });
        Ok(success)
    }

    /// When full maintenance is to run at or after `time`.
    fn next_full_after(&self, time: Timestamp) -> Timestamp {
        let next = self.ledger.schedule().next_full.get().unwrap_or(self.start);
        let interval = self.params.full.interval.0;
        let late = time.as_nanosecond() - next.as_nanosecond();
        if late <= 0 || interval <= 0 {
            return next.max(time);
        }
        let runs = (late + i128::from(interval) - 1) / i128::from(interval);
        Timestamp::from_nanosecond(next.as_nanosecond().saturating_add(runs.saturating_mul(interval.into())))
            .unwrap_or(Timestamp::MAX)
    }

    /// When contents that were marked as deleted at `time` are dropped, if full maintenance runs as scheduled.
    fn dropped_after(&self, time: Timestamp) -> Timestamp {
        let later = |time: Timestamp, by: SignedDuration| time.saturating_add(by).unwrap_or(Timestamp::MAX);
        let confirmed = self.next_full_after(later(time, self.safety.extra_margin_for_drop));
        self.next_full_after(later(confirmed, self.safety.margin_between_gc_cycles))
    }
}
