//! The task `snapshot-gc`: contents that no snapshot needs are marked as deleted, and those that one needs again are
//! brought back. Nothing leaves the store here.

use super::copy::copy;
use super::mark::{Marks, mark};
use super::report::{Amount, Obstacle, Obstacles, Waiting};
use super::settled::Settled;
use super::stats::{SnapshotGcStats, count32};
use super::{Done, Result, Session};
use crate::content::ContentStore;
use crate::sort::Merge;
use crate::worker::blocking;
use jiff::Timestamp;
use lifeboat_index::{ContentId, Contents, Deleted, IdRange, IndexEntry, Prefix};

/// So many contents are dealt with at a time.
const WINDOW: usize = 10_000;
/// After so many changes they are published, as in Kopia.
const FLUSH_EVERY: usize = 100_000;

/// What is to happen to a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It holds manifests, which have rules of their own.
    System,
    /// A snapshot needs it.
    InUse,
    /// A snapshot needs it, and it is marked as deleted.
    Undelete,
    /// Nothing needs it, but it is young.
    TooYoung,
    /// Nothing needs it.
    Delete,
    /// Nothing needs it, and it is marked as deleted already.
    Deleted,
}

/// Goes through all contents and all marks side by side: both are in order of the ids.
pub(super) struct Join {
    contents: Contents,
    marks: Merge,
    /// Whether `marks` stands at a mark.
    marked: bool,
    /// Unix seconds; what is not younger may go.
    old: i64,
}

impl Join {
    pub(super) fn new(contents: Contents, mut marks: Merge, old: i64) -> crate::Result<Self> {
        let marked = marks.advance()?;
        Ok(Join { contents, marks, marked, old })
    }

    /// The next content; marks that no content belongs to are passed to `missing`.
    pub(super) fn next(
        &mut self,
        missing: &mut dyn FnMut(&[u8], &[u8]),
    ) -> crate::Result<Option<(IndexEntry, Verdict)>> {
        let entry = self.contents.next().transpose()?;
        let key = entry.as_ref().map(|entry| entry.id.key());
        while self.marked && key.is_none_or(|key| self.marks.key() < key) {
            missing(self.marks.key(), self.marks.tail());
            self.marked = self.marks.advance()?;
        }
        let Some(entry) = entry else { return Ok(None) };
        let needed = self.marked && self.marks.key() == entry.id.key();
        if needed {
            self.marked = self.marks.advance()?;
        }
        let verdict = match (needed, entry.deleted) {
            _ if entry.id.prefix() == Prefix::MANIFEST => Verdict::System,
            (true, false) => Verdict::InUse,
            (true, true) => Verdict::Undelete,
            (false, _) if entry.timestamp_seconds > self.old => Verdict::TooYoung,
            (false, false) => Verdict::Delete,
            (false, true) => Verdict::Deleted,
        };
        Ok(Some((entry, verdict)))
    }
}

/// What was found by going through all contents once.
#[derive(Debug, Default)]
pub(super) struct Survey {
    amounts: [Amount; 6],
    /// The first marks without a content, with their tails.
    missing: Vec<(Vec<u8>, Vec<u8>)>,
    missing_count: u64,
    /// When the youngest of those that are too young was written.
    youngest: i64,
    /// Those that are marked as deleted and that this run does not drop either.
    waiting: Amount,
    /// When the last of them was marked.
    last_deleted: i64,
}

impl Survey {
    /// Goes through everything; `dropped` is the time (unix seconds) up to which this run drops deletions.
    pub(super) fn take(mut join: Join, dropped: i64) -> crate::Result<Survey> {
        let mut survey = Survey::default();
        let (mut missing, mut missing_count) = (Vec::new(), 0);
        let mut note = |key: &[u8], tail: &[u8]| {
            missing_count += 1;
            if missing.len() < 100 {
                missing.push((key.to_vec(), tail.to_vec()));
            }
        };
        while let Some((entry, verdict)) = join.next(&mut note)? {
            survey.amounts[verdict as usize].add(entry.packed_length.into());
            match verdict {
                Verdict::TooYoung => survey.youngest = survey.youngest.max(entry.timestamp_seconds),
                Verdict::Deleted if entry.timestamp_seconds > dropped => {
                    survey.waiting.add(entry.packed_length.into());
                    survey.last_deleted = survey.last_deleted.max(entry.timestamp_seconds);
                }
                _ => {}
            }
        }
        Ok(Survey { missing, missing_count, ..survey })
    }

    /// What there is to be found where all is settled.
    fn of_settled(settled: &Settled) -> Survey {
        let mut survey = Survey::default();
        survey.amounts[Verdict::InUse as usize] = settled.in_use;
        survey.amounts[Verdict::System as usize] = settled.system;
        survey
    }

    fn amount(&self, verdict: Verdict) -> Amount {
        self.amounts[verdict as usize]
    }

    fn stats(&self, deleted: Amount, recovered: Amount) -> SnapshotGcStats {
        let [in_use, system] = [Verdict::InUse, Verdict::System].map(|verdict| self.amount(verdict));
        let [delete, gone] = [Verdict::Delete, Verdict::Deleted].map(|verdict| self.amount(verdict));
        let [young, back] = [Verdict::TooYoung, Verdict::Undelete].map(|verdict| self.amount(verdict));
        SnapshotGcStats {
            unreferenced_content_count: count32(delete.count + gone.count),
            unreferenced_content_size: delete.bytes + gone.bytes,
            deleted_content_count: count32(deleted.count),
            deleted_content_size: deleted.bytes,
            unreferenced_recent_content_count: count32(young.count),
            unreferenced_recent_content_size: young.bytes,
            in_use_content_count: count32(in_use.count + back.count),
            in_use_content_size: in_use.bytes + back.bytes,
            in_use_system_content_count: count32(system.count),
            in_use_system_content_size: system.bytes,
            recovered_content_count: count32(recovered.count),
            recovered_content_size: recovered.bytes,
        }
    }
}

impl Session {
    /// Runs `snapshot-gc`.
    pub(super) async fn collect(&mut self) -> Result<Done> {
        self.settled = self.recall_settled().await?;
        if let Some(settled) = &self.settled {
            let survey = Survey::of_settled(settled);
            self.stop_at(self.check_index())?;
            let mut done = self.collected(&survey, Amount::default(), Amount::default())?;
            done.summary.insert_str(0, "snapshots and index are as the last run left them; ");
            return Ok(done);
        }
        let marks = mark(&self.repository, &self.scratch, self.options.parallel).await?;
        let mut obstacles = marks.obstacles.clone();
        let survey = self.survey(&marks).await?;
        obstacles.extend(self.confirm_missing(&marks, &survey).await?);
        obstacles.extend(self.check_index());
        let blocked = !obstacles.is_empty();
        let (delete, undelete) = (survey.amount(Verdict::Delete), survey.amount(Verdict::Undelete));
        tracing::info!(
            snapshots = marks.snapshots.len(),
            read = marks.read,
            recalled = marks.recalled,
            %delete,
            %undelete,
            obstacles = obstacles.count,
            "marked what the snapshots need"
        );
        let (mut deleted, mut recovered) = (delete, undelete);
        if !self.options.dry_run {
            (deleted, recovered) = (Amount::default(), Amount::default());
            if undelete.count > 0 || (delete.count > 0 && !blocked) {
                self.ledger.fence(&self.repository).await?;
                (deleted, recovered) = self.apply(&marks, &mut obstacles).await?;
            }
        }
        if obstacles.is_empty() && !self.options.dry_run {
            self.marks = Some(marks);
        }
        let collected = self.collected(&survey, deleted, recovered)?;
        self.stop_at(obstacles)?;
        Ok(collected)
    }

    /// What is said of contents that were dealt with.
    fn collected(&mut self, survey: &Survey, deleted: Amount, recovered: Amount) -> Result<Done> {
        self.forecast(survey, deleted);
        let summary = format!(
            "contents in use: {}, marked as deleted: {deleted}, brought back: {recovered}",
            survey.amount(Verdict::InUse)
        );
        Done::with(&survey.stats(deleted, recovered), summary)
    }

    /// The youngest age at which an unused content may go, as a time.
    fn old(&self) -> i64 {
        let limit = self.start.saturating_sub(self.safety.min_content_age_for_gc).unwrap_or(Timestamp::MIN);
        limit.as_second()
    }

    async fn survey(&self, marks: &Marks) -> Result<Survey> {
        let contents = self.repository.contents().snapshot().iter(IdRange::all(), Deleted::Include);
        let (marks, old, dropped) = (marks.contents.clone(), self.old(), self.drop_time(true));
        let dropped = dropped.map_or(i64::MIN, Timestamp::as_second);
        Ok(blocking(move || Survey::take(Join::new(contents, marks.read()?, old)?, dropped)).await??)
    }

    /// Contents that are missing although the index was looked at once more.
    async fn confirm_missing(&self, marks: &Marks, survey: &Survey) -> Result<Obstacles> {
        let mut obstacles = Obstacles::default();
        if survey.missing_count == 0 {
            return Ok(obstacles);
        }
        let contents = self.repository.contents();
        contents.refresh().await?;
        for (key, tail) in &survey.missing {
            let content = ContentId::from_key(key).map_err(|e| crate::Error::Worker(e.to_string()))?;
            if contents.lookup(&content)?.is_none() {
                obstacles.add(Obstacle::MissingContent { snapshot: marks.snapshot(tail), content });
            }
        }
        // Those that were only counted are missing as well, as far as anybody knows.
        obstacles.count += survey.missing_count - survey.missing.len() as u64;
        Ok(obstacles)
    }

    /// Marks as deleted what is not needed, unless there are obstacles, and brings back what is.
    async fn apply(&self, marks: &Marks, obstacles: &mut Obstacles) -> Result<(Amount, Amount)> {
        let contents = self.repository.contents();
        let may_delete = obstacles.is_empty();
        let index = contents.snapshot();
        let entries = index.iter(IdRange::all(), Deleted::Include);
        let (sorted, old) = (marks.contents.clone(), self.old());
        let mut join = blocking(move || Join::new(entries, sorted.read()?, old)).await??;
        let (mut deleted, mut recovered, mut unpublished) = (Amount::default(), Amount::default(), 0);
        loop {
            let store = contents.clone();
            let step = move || -> crate::Result<_> {
                let window = Window::take(&mut join, &store, may_delete)?;
                Ok((join, window))
            };
            let (same, window) = blocking(step).await??;
            join = same;
            deleted.count += window.deleted.count;
            deleted.bytes += window.deleted.bytes;
            unpublished += window.deleted.count as usize + window.undelete.len();
            let copied = copy(&self.repository, &index, window.undelete, self.options.parallel).await?;
            recovered.count += copied.written.count;
            recovered.bytes += copied.written.bytes;
            for (content, reason) in copied.damaged {
                tracing::warn!(%content, reason, "a content that a snapshot needs cannot be brought back");
                obstacles.add(unreadable(marks, content, reason));
            }
            if window.is_last || unpublished >= FLUSH_EVERY {
                self.repository.flush().await?;
                unpublished = 0;
            }
            if window.is_last {
                return Ok((deleted, recovered));
            }
        }
    }

    fn forecast(&mut self, survey: &Survey, deleted: Amount) {
        let seconds = |unix: i64| Timestamp::from_second(unix).unwrap_or(Timestamp::MAX);
        let youngest = seconds(survey.youngest).saturating_add(self.safety.min_content_age_for_gc);
        let marked = self.next_full_after(youngest.unwrap_or(Timestamp::MAX));
        self.report.wait(
            Waiting::YoungContents,
            survey.amount(Verdict::TooYoung),
            self.dropped_after(marked),
        );
        if self.safety.two_gc_cycles {
            let (kept, new) = (survey.waiting, deleted);
            let waiting = Amount { count: kept.count + new.count, bytes: kept.bytes + new.bytes };
            let since = if new.count > 0 { self.start } else { seconds(survey.last_deleted) };
            self.report.wait(Waiting::DeletedContents, waiting, self.dropped_after(since));
        }
    }
}

fn unreadable(marks: &Marks, content: ContentId, reason: String) -> Obstacle {
    let find = || -> crate::Result<Option<Vec<u8>>> {
        let mut read = marks.contents.read()?;
        while read.advance()? {
            if read.key() == content.key() {
                return Ok(Some(read.tail().to_vec()));
            }
        }
        Ok(None)
    };
    let id = find().ok().flatten().map(|tail| marks.snapshot(&tail)).unwrap_or_default();
    Obstacle::Snapshot { id, object: content.to_string(), reason }
}

/// A number of contents that were looked at.
struct Window {
    deleted: Amount,
    undelete: Vec<IndexEntry>,
    is_last: bool,
}

impl Window {
    fn take(join: &mut Join, contents: &ContentStore, may_delete: bool) -> crate::Result<Window> {
        let mut window = Window { deleted: Amount::default(), undelete: Vec::new(), is_last: false };
        while window.deleted.count as usize + window.undelete.len() < WINDOW {
            let Some((entry, verdict)) = join.next(&mut |_, _| {})? else {
                window.is_last = true;
                break;
            };
            match verdict {
                Verdict::Undelete => window.undelete.push(entry),
                // Whoever wrote it again since the index was loaded needs it.
                Verdict::Delete if may_delete && contents.lookup(&entry.id)?.as_ref() == Some(&entry) => {
                    contents.delete(&entry.id)?;
                    window.deleted.add(entry.packed_length.into());
                }
                _ => {}
            }
        }
        Ok(window)
    }
}
