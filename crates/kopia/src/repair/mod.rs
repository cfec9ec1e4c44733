//! Repair: doing what can be done about the damage that verification finds, and saying what cannot.
//!
//! [`run`] works on a repository that can be opened; [`format_blob`] and [`config`] make one that cannot be opened openable
//! again. Data that is gone comes back by itself with the next backup of the files that held it: contents have the same
//! name whoever writes them, so older snapshots become whole as well. What repair does for that is to make every client
//! forget the contents that are lost, so that they are not taken for being there.
//!
//! Whoever can get lost blobs back from elsewhere (versions of a bucket, a copy) should do so **before** repairing.

mod format;
mod lost;
mod report;

pub use format::{FormatRepair, config, format_blob};
pub use report::{Finding, Remedy, RepairReport};

use crate::content::{IndexBlobs, RecoverOptions};
use crate::epoch::EpochIndex;
use crate::epoch::names::{self, IndexKind};
use crate::maintenance::SCHEDULE_BLOB;
use crate::repo::{Access, Repository};
use crate::sort::Scratch;
use crate::verify::{
    self, BlobDamage, BlobKind, ContentDamage, VerifyBlobs, VerifyContents, VerifySnapshots,
};
use crate::worker::blocking;
use crate::{Error, Result};
use lifeboat_blobs::{BlobId, ErrorKind};
use lifeboat_index::{Deleted, IdRange};
use lost::{Collector, Forget, Lost};
use std::time::Duration;

/// So many seconds are waited for one to be over; more only a clock that is wrong would ask for.
const MAX_WAIT: u64 = 5;
/// So many lost contents are forgotten at a time.
const WINDOW: usize = 100_000;

/// How a repository is repaired.
#[derive(Debug, Clone)]
pub struct RepairOptions {
    /// Find out what would be done, and change nothing.
    pub dry_run: bool,
    /// Read every content. Without it, only packs that are missing or too short are noticed.
    pub full: bool,
    /// How many reads from the store are under way at once.
    pub parallel: usize,
}

impl Default for RepairOptions {
    fn default() -> Self {
        RepairOptions { dry_run: false, full: false, parallel: 8 }
    }
}

/// Repairs a repository. Everything that is found is passed to `found` as it is met; the report says what was done about
/// it and what is left.
///
/// It may be stopped and started again at any point: each step leaves the repository no worse than it was.
pub async fn run(
    repository: &Repository,
    options: &RepairOptions,
    found: &mut (dyn FnMut(Finding) + Send),
) -> Result<RepairReport> {
    if repository.access() == Access::ReadOnly && !options.dry_run {
        return Err(Error::ReadOnly { action: "repair the repository" });
    }
    let mut repair = Repair { repository, options, found, report: RepairReport::default() };
    repository.refresh().await?;
    let damages = repair.verify_blobs().await?;
    repair.small_blobs(&damages).await?;
    repair.index(&damages).await?;
    // What cannot be found by half an index is not lost.
    if repair.report.unread_pack.is_none() {
        repair.contents().await?;
    }
    repair.snapshots().await?;
    Ok(repair.report)
}

struct Repair<'a> {
    repository: &'a Repository,
    options: &'a RepairOptions,
    found: &'a mut (dyn FnMut(Finding) + Send),
    report: RepairReport,
}

impl Repair<'_> {
    async fn verify_blobs(&mut self) -> Result<Vec<BlobDamage>> {
        let options = VerifyBlobs { packs: true, parallel: self.options.parallel };
        let mut damages = Vec::new();
        let report = &mut self.report;
        let found = &mut *self.found;
        let mut note = |damage: BlobDamage| {
            report.blobs += 1;
            if damage.kind != BlobKind::Pack {
                damages.push(damage.clone());
            }
            found(Finding::Blob(damage));
        };
        verify::blobs(self.repository, &options, &mut note).await?;
        Ok(damages)
    }

    /// Blobs that can simply be made again.
    async fn small_blobs(&mut self, damages: &[BlobDamage]) -> Result<()> {
        for damage in damages {
            match damage.kind {
                BlobKind::Schedule => {
                    self.delete(SCHEDULE_BLOB).await?;
                    self.report.done(Remedy::ScheduleReset);
                }
                BlobKind::EpochMarker => self.write(&damage.blob, names::MARKER_CONTENT).await?,
                BlobKind::Watermark => self.write(&damage.blob, names::WATERMARK_CONTENT).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Recovers what unreadable and missing index blobs held, and removes them.
    async fn index(&mut self, damages: &[BlobDamage]) -> Result<()> {
        let of_index = |kind| matches!(kind, BlobKind::Index | BlobKind::IndexLog);
        let damages: Vec<&BlobDamage> = damages.iter().filter(|damage| of_index(damage.kind)).collect();
        if damages.is_empty() {
            return Ok(());
        }
        let contents = self.repository.contents();
        let blobs = damages.iter().filter_map(|damage| BlobId::new(&damage.blob).ok());
        // A copy of a damaged blob on this machine would hide from us what the others do not know.
        contents.distrust(blobs).await?;
        let options = RecoverOptions {
            parallel: self.options.parallel,
            commit: !self.options.dry_run,
            ..RecoverOptions::default()
        };
        // Packs that cannot be read were named before.
        let recovered = contents.recover_index(&options, &mut |_, _| {}).await?;
        self.report.done(Remedy::IndexRecovered {
            entries: recovered.missing,
            packs: recovered.packs - recovered.damaged_packs,
            unreadable_packs: recovered.damaged_packs,
        });
        self.report.unread_pack = recovered.unread_pack;
        // As long as the index is known to be damaged, maintenance deletes nothing: what was not read waits for the next repair.
        if self.report.unread_pack.is_none() {
            self.give_up(&damages).await?;
        }
        contents.distrust([]).await?;
        self.repository.manifests().reload().await
    }

    /// Does away with what was wrong with the index, now that it holds all that can be known.
    async fn give_up(&mut self, damages: &[&BlobDamage]) -> Result<()> {
        if let IndexBlobs::Epochs(index) = self.repository.contents().index_blobs() {
            self.fill_epochs(index, damages).await?;
        }
        for damage in damages {
            // Of what is missing there is nothing to delete.
            if self.repository.store().head(&BlobId::new(&damage.blob)?).await.is_ok() {
                self.delete(&damage.blob).await?;
                self.report.done(Remedy::IndexBlobRemoved { blob: damage.blob.clone() });
            }
        }
        Ok(())
    }

    /// Writes a range checkpoint if epochs would be left without any index blob, which nobody could tell from a loss.
    async fn fill_epochs(&mut self, index: &EpochIndex, damages: &[&BlobDamage]) -> Result<()> {
        let state = index.refresh().await?.state;
        let removed = damages.iter().filter_map(|damage| BlobId::new(&damage.blob).ok()).collect();
        let state = state.without(&removed);
        let Some(last) = state.write_epoch.checked_sub(2) else { return Ok(()) };
        if state.holes().is_empty() {
            return Ok(());
        }
        let kind = IndexKind::Range(state.first_unchained(), last);
        if !self.options.dry_run {
            self.repository.contents().compact_index(index, kind, &state.active(), &removed).await?;
        }
        self.report.done(Remedy::EpochsFilled { first: state.first_unchained(), last });
        Ok(())
    }

    /// Makes everybody forget contents that are lost.
    async fn contents(&mut self) -> Result<()> {
        let options = VerifyContents {
            full: self.options.full,
            parallel: self.options.parallel,
            ..VerifyContents::default()
        };
        let scratch = Scratch { folder: std::env::temp_dir(), budget: self.repository.budget().clone() };
        let mut lost = Collector::new(&scratch);
        let found = &mut *self.found;
        let mut note = |damage: ContentDamage| {
            lost.add(&damage);
            found(Finding::Content(damage));
        };
        verify::contents(self.repository, &options, &mut note).await?;
        let lost = blocking(move || lost.finish()).await??;
        let Lost { count, manifests, .. } = lost;
        if count == 0 {
            return Ok(());
        }
        if !self.options.dry_run {
            self.forget(lost.forget()?).await?;
            self.settle(lost).await?;
            self.repository.manifests().reload().await?;
        }
        self.report.lost_contents = count;
        self.report.lost_manifests = manifests;
        self.report.done(Remedy::ContentsForgotten { count });
        Ok(())
    }

    async fn forget(&self, mut forget: Forget) -> Result<()> {
        loop {
            let contents = self.repository.contents().clone();
            let step = move || forget.next(WINDOW, &contents).map(|more| (forget, more));
            let (same, more) = blocking(step).await??;
            forget = same;
            // Until then they are in memory.
            self.repository.flush().await?;
            if !more {
                return Ok(());
            }
        }
    }

    /// Drops what was forgotten from the index at once, where that drops nothing else: maintenance by Kopia fails over
    /// deleted contents that it cannot move to other packs. Otherwise it is dropped with the others, when it is time.
    async fn settle(&mut self, lost: Lost) -> Result<()> {
        let contents = self.repository.contents();
        let IndexBlobs::Epochs(index) = contents.index_blobs() else { return Ok(()) };
        // Deletions that are not known would be dropped, too.
        if !contents.damaged_index().is_empty() || !contents.lacking_index().await?.is_empty() {
            return Ok(());
        }
        let snapshot = contents.snapshot();
        let dropped_already = snapshot.watermark();
        let find = move || -> Result<Option<i64>> {
            let (mut last, mut first_other) = (i64::MIN, i64::MAX);
            let mut forgotten = lost.probe()?;
            for entry in snapshot.iter(IdRange::all(), Deleted::Include) {
                let entry = entry?;
                if !entry.deleted {
                    continue;
                }
                match forgotten.contains(entry.id.key())? {
                    true => last = last.max(entry.timestamp_seconds),
                    false => first_other = first_other.min(entry.timestamp_seconds),
                }
            }
            Ok(Some(last).filter(|last| *last > dropped_already && *last < first_other))
        };
        let found = blocking(find).await?;
        let Some(time) = found? else { return Ok(()) };
        // Deletions of a second are dropped together: it has to be over, or somebody else's would go too. A deletion is
        // dated after what it deletes, so that second may still be to come.
        let clock = &self.repository.environment().clock;
        let left = (time + 1).saturating_sub(clock.now().as_second());
        match u64::try_from(left) {
            Ok(seconds) if seconds > MAX_WAIT => return Ok(()),
            Ok(seconds) => clock.sleep(Duration::from_secs(seconds)).await,
            Err(_) => {}
        }
        self.put(&names::watermark(time), names::WATERMARK_CONTENT).await?;
        index.refresh().await?;
        contents.refresh().await
    }

    /// Names the snapshots that are still not whole.
    async fn snapshots(&mut self) -> Result<()> {
        let options = VerifySnapshots { parallel: self.options.parallel, ..VerifySnapshots::default() };
        let found = &mut *self.found;
        let verified = verify::snapshots(self.repository, &options, &mut |damage| {
            found(Finding::Snapshot(Box::new(damage)));
        })
        .await?;
        self.report.damaged_files = verified.damaged;
        Ok(())
    }

    async fn delete(&self, blob: &str) -> Result<()> {
        if self.options.dry_run {
            return Ok(());
        }
        match self.repository.store().delete(&BlobId::new(blob)?).await {
            Err(error) if error.kind() == ErrorKind::Locked => {
                tracing::warn!(blob, %error, "a damaged blob cannot be removed before its lock ends");
                Ok(())
            }
            deleted => Ok(deleted?),
        }
    }

    async fn write(&mut self, blob: &str, content: &'static [u8]) -> Result<()> {
        if !self.options.dry_run {
            self.put(blob, content).await?;
        }
        self.report.done(Remedy::MarkerWritten { blob: blob.to_owned() });
        Ok(())
    }

    async fn put(&self, blob: &str, content: &'static [u8]) -> Result<()> {
        let id = BlobId::new(blob)?;
        let options = self.repository.format().await.put_options(&id)?;
        Ok(self.repository.store().put(&id, content.into(), &options).await?)
    }
}
