//! Bringing a repository to the newest format version, as `kopia repository upgrade` does it: announce it, wait until
//! everybody else keeps away, migrate the index to epochs, compare, and let everybody in again.
//!
//! The lock of the format says who upgrades, so that whoever was killed can begin again under the same name: what is done
//! is not done again. Until the end it can be rolled back.

use crate::content::IndexBlobs;
use crate::epoch::names::IndexKind;
use crate::epoch::{self, EpochState};
use crate::format::{
    BlobConfig, EpochParameters, Format, MAX_VERSION, RepositoryFormat, UpgradeLock, delete_epochs,
};
use crate::gojson::GoTime;
use crate::legacy::{self, LegacyIndex};
use crate::repo::{OpenOptions, Repository};
use crate::worker::blocking;
use crate::{Error, Result};
use futures::TryStreamExt;
use lifeboat_blobs::BlobMetadata;
use lifeboat_index::IndexEntry;
use std::cmp::Ordering;
use std::time::Duration;

/// How many differences between two indexes are described.
const MAX_DESCRIBED: usize = 20;

/// How long an upgrade waits for others, and what it does at the end. The defaults are Kopia's.
#[derive(Debug, Clone)]
pub struct UpgradeOptions {
    /// How long a client may take to notice the lock and finish what it was doing.
    pub io_drain_timeout: Duration,
    /// How often those who wait look again.
    pub status_poll_interval: Duration,
    /// How far clocks may be apart.
    pub max_permitted_clock_drift: Duration,
    /// Where to stop.
    pub extent: Extent,
}

/// How far an upgrade goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    /// It places the lock.
    LockOnly,
    /// It does everything that can still be rolled back.
    UpToCommit,
    /// It is finished, unless the two indexes differ.
    #[default]
    IfEqual,
    /// It is finished even if the two indexes differ.
    Always,
}

impl Default for UpgradeOptions {
    fn default() -> Self {
        UpgradeOptions {
            io_drain_timeout: crate::format::FORMAT_BLOB_VALIDITY,
            status_poll_interval: Duration::from_secs(60),
            max_permitted_clock_drift: Duration::from_secs(5 * 60),
            extent: Extent::default(),
        }
    }
}

/// What an upgrade has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// There is nothing to do.
    UpToDate,
    /// Nobody else may begin anything.
    LockPlaced,
    /// It was announced; come back then.
    Announced(jiff::Timestamp),
    /// Others may still be at work for so long.
    Draining(Duration),
    /// Nobody else is at work.
    Drained,
    /// The index has epochs now.
    Migrated,
    /// The old and the new index were compared.
    Compared(Comparison),
    /// The repository has the newest version, and is open to everybody.
    Committed,
}

/// What the index from before an upgrade and the one after it have in common.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Contents in the old index.
    pub contents: u64,
    /// Contents that are in one of them only, or not the same in both.
    pub differences: u64,
    /// The first of them, in words.
    pub described: Vec<String>,
}

/// Upgrades the repository of `options`, whose `upgrade_owner` says in whose name; `hear` is told of each step.
pub async fn begin(
    options: &OpenOptions,
    upgrade: &UpgradeOptions,
    hear: &mut (dyn FnMut(Step) + Send),
) -> Result<()> {
    let (store, env) = (&*options.store, &options.environment);
    let owner = options.upgrade_owner.as_deref();
    let mut format = Format::open(store, &options.password, env, owner).await?;
    let from = format.repository().version;
    let lock = UpgradeLock {
        owner_id: owner.unwrap_or_default().to_owned(),
        creation_time: GoTime(env.clock.now()),
        io_drain_timeout: upgrade.io_drain_timeout.into(),
        status_poll_interval: upgrade.status_poll_interval.into(),
        message: format!("Upgrading from format version {from} -> {MAX_VERSION}"),
        max_permitted_clock_drift: upgrade.max_permitted_clock_drift.into(),
        ..UpgradeLock::default()
    };
    let Some(lock) = format.place_upgrade_lock(store, env, lock).await? else {
        hear(Step::UpToDate);
        return Ok(());
    };
    if !lock.is_locked(env.clock.now()) {
        hear(Step::Announced(lock.established_at()));
        return Ok(());
    }
    hear(Step::LockPlaced);
    if upgrade.extent == Extent::LockOnly {
        return Ok(());
    }
    // Somebody else may have placed a lock at the same moment: the last one counts.
    let mut format = format.refresh(store, env, owner).await?;
    if format.repository().epochs().is_none() || lock.advance_notice.0 != 0 {
        format = drain(format, options, hear).await?;
    }
    let had_epochs = format.before_upgrade(store).await?.is_none_or(|(before, _)| before.epochs().is_some());
    if format.repository().epochs().is_none() {
        let repository = Repository::open(options.clone()).await?;
        migrate_index(&repository, &mut format, |_, _| {}).await?;
        hear(Step::Migrated);
    }
    // What was not migrated by this upgrade has gone its own ways since.
    if !had_epochs {
        let comparison = compare(&Repository::open(options.clone()).await?).await?;
        let differences = comparison.differences;
        hear(Step::Compared(comparison));
        if differences > 0 && upgrade.extent == Extent::IfEqual {
            return Err(Error::Invalid(format!(
                "the index after the migration differs from the one before it in {differences} contents: \
                 the repository stays locked; roll the upgrade back"
            )));
        }
    }
    if upgrade.extent != Extent::UpToCommit {
        format.commit_upgrade(store, env).await?;
        hear(Step::Committed);
    }
    Ok(())
}

/// Waits until nobody but the owner of the lock can be at work.
async fn drain(format: Format, options: &OpenOptions, hear: &mut (dyn FnMut(Step) + Send)) -> Result<Format> {
    let (store, env) = (&*options.store, &options.environment);
    let mut format = format;
    loop {
        let revoked = || Error::Invalid("the upgrade was rolled back by somebody else".to_owned());
        let lock = format.repository().upgrade_lock.as_ref().ok_or_else(revoked)?;
        let now = env.clock.now();
        if lock.is_exclusive(now) {
            hear(Step::Drained);
            return Ok(format);
        }
        let left = Duration::try_from(lock.established_at().duration_since(now)).unwrap_or_default();
        hear(Step::Draining(left));
        let poll = lock.status_poll_interval.to_duration().max(Duration::from_secs(1));
        env.clock.sleep(left.min(poll).max(Duration::from_millis(100))).await;
        format = format.refresh(store, env, options.upgrade_owner.as_deref()).await?;
    }
}

/// Migrates without a lock, as `kopia repository set-parameters --upgrade` does it: for repositories that nobody else
/// uses at the time. `change` sets whatever else shall be set. The repository has to be opened again.
pub async fn migrate(
    repository: &Repository,
    change: impl FnOnce(&mut RepositoryFormat, &mut BlobConfig),
) -> Result<()> {
    let (store, env) = (&**repository.store(), repository.environment());
    let mut format = repository.format().await.refresh(store, env, None).await?;
    let had_epochs = format.repository().epochs().is_some();
    let change = |inner: &mut RepositoryFormat, config: &mut BlobConfig| {
        inner.version = inner.version.max(2);
        change(inner, config);
    };
    migrate_index(repository, &mut format, change).await?;
    if !had_epochs {
        format.put_poison(store).await?;
    }
    Ok(())
}

/// Gives the repository an index with epochs if it has none, and sets what `change` sets. The old index stays: nobody
/// looks at it any more.
async fn migrate_index(
    repository: &Repository,
    format: &mut Format,
    change: impl FnOnce(&mut RepositoryFormat, &mut BlobConfig),
) -> Result<()> {
    let (store, env) = (repository.store(), repository.environment());
    let migrates = format.repository().epochs().is_none();
    if migrates {
        let IndexBlobs::Legacy(index) = repository.contents().index_blobs() else {
            return Err(Error::FormatChanged);
        };
        // A migration that did not come to its end, or was rolled back, may have left what is not true any more.
        delete_epochs(&**store).await?;
        let blobs = index.active().await?;
        repository.contents().write_index_set(IndexKind::Uncompacted(0), &blobs).await?;
    }
    let change = |inner: &mut RepositoryFormat, config: &mut BlobConfig| {
        if migrates {
            inner.epoch_parameters = Some(EpochParameters::default());
            inner.index_version_field = 2;
        }
        change(inner, config);
    };
    format.set_parameters(&**store, env, change).await
}

/// Compares the index without epochs, as it was left, with the one with epochs.
///
/// They are equal after a migration, until somebody writes. `Comparison::default()` if there is no old index.
pub async fn compare(repository: &Repository) -> Result<Comparison> {
    let (store, contents) = (repository.store(), repository.contents());
    let mut old = LegacyIndex::new(store.clone(), contents.sealer().clone()).active().await?;
    old.retain(|blob| !legacy::is_poison(blob.id.as_str()));
    if old.is_empty() {
        return Ok(Comparison::default());
    }
    let listed: Vec<BlobMetadata> = store.list(epoch::names::ALL).try_collect().await?;
    let new = EpochState::from_listing(listed).active();
    let old = contents.merge_index(&old, i64::MIN).await?;
    let new = contents.merge_index(&new, i64::MIN).await?;
    blocking(move || compare_entries(old.entries(), new.entries())).await?
}

/// Both are in ascending order of contents.
fn compare_entries(
    old: impl Iterator<Item = Result<IndexEntry>>,
    new: impl Iterator<Item = Result<IndexEntry>>,
) -> Result<Comparison> {
    let mut found = Comparison::default();
    let differs = |text: &dyn Fn() -> String, found: &mut Comparison| {
        found.differences += 1;
        if found.described.len() < MAX_DESCRIBED {
            found.described.push(text());
        }
    };
    let (mut old, mut new) = (old.peekable(), new.peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return Ok(found),
            (Some(Ok(a)), Some(Ok(b))) => a.id.cmp(&b.id),
            (Some(_), None) | (Some(Err(_)), _) => Ordering::Less,
            (None, Some(_)) | (_, Some(Err(_))) => Ordering::Greater,
        };
        let before = if order.is_le() { old.next().transpose()? } else { None };
        let after = if order.is_ge() { new.next().transpose()? } else { None };
        found.contents += u64::from(before.is_some());
        match (before, after) {
            (Some(a), Some(b)) if a != b => {
                differs(&|| format!("content {}: {a:?} became {b:?}", a.id), &mut found);
            }
            (Some(a), None) => {
                differs(&|| format!("content {} in {} is not in the new index", a.id, a.pack), &mut found);
            }
            (None, Some(b)) => {
                differs(&|| format!("content {} in {} was not in the old index", b.id, b.pack), &mut found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(id: &str, offset: u32) -> Result<IndexEntry> {
        Ok(IndexEntry {
            id: id.parse().unwrap(),
            pack: "p1".into(),
            pack_offset: offset,
            packed_length: 30,
            original_length: 2,
            timestamp_seconds: 1,
            format_version: 1,
            compression: 0,
            encryption_key_id: 0,
            deleted: false,
        })
    }

    #[test]
    fn every_difference_between_two_indexes_is_found() {
        let compared = |old: &[(&str, u32)], new: &[(&str, u32)]| {
            let entries = |list: &[(&str, u32)]| {
                list.iter().map(|(id, offset)| entry(id, *offset)).collect::<Vec<_>>().into_iter()
            };
            let found = compare_entries(entries(old), entries(new)).unwrap();
            assert_eq!(found.described.len() as u64, found.differences);
            (found.contents, found.differences)
        };
        let (a, b, c) = ("aa00000000000000", "bb00000000000000", "cc00000000000000");
        assert_eq!(compared(&[], &[]), (0, 0));
        assert_eq!(compared(&[(a, 1), (b, 2)], &[(a, 1), (b, 2)]), (2, 0));
        assert_eq!(compared(&[(a, 1), (b, 2)], &[(a, 1), (b, 3)]), (2, 1));
        assert_eq!(compared(&[(a, 1), (c, 2)], &[(b, 1), (c, 2)]), (2, 2));
        assert_eq!(compared(&[], &[(b, 1)]), (0, 1));
        assert_eq!(compared(&[(a, 1), (b, 1), (c, 1)], &[]), (3, 3));
        let failing = vec![entry(a, 1), Err(Error::FormatChanged)].into_iter();
        assert!(compare_entries(failing, vec![entry(a, 1), entry(b, 1)].into_iter()).is_err());
    }
}
