//! Verifying the blobs themselves: those that say what the repository is and where its contents are, and what packs say
//! of themselves.

use crate::content::IndexBlobs;
use crate::epoch::names;
use crate::format::{BLOBCFG_BLOB, FORMAT_BLOB};
use crate::legacy::{self, CleanupLog, CompactionLog};
use crate::maintenance::{SCHEDULE_BLOB, Schedule};
use crate::pack::LocalIndex;
use crate::repo::Repository;
use crate::session::{MARKER_PREFIX, SessionMarker};
use crate::{Error, Result};
use futures::{FutureExt, TryStreamExt};
use lifeboat_blobs::{BlobMetadata, BlobStore, ErrorKind};
use serde::de::DeserializeOwned;
use std::fmt;

/// Prefix of the logs that Kopia keeps of its own doings.
const LOG_PREFIX: &str = "_log_";
/// Session markers, logs and the like are small; a larger one is none.
const MAX_SMALL: u64 = 64 << 20;

/// How blobs are verified.
#[derive(Debug, Clone)]
pub struct VerifyBlobs {
    /// Also read what each pack says of itself, from which a lost index is recovered: some kilobytes of each.
    pub packs: bool,
    /// How many blobs are read at once.
    pub parallel: usize,
}

impl Default for VerifyBlobs {
    fn default() -> Self {
        VerifyBlobs { packs: true, parallel: 8 }
    }
}

/// What a blob is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlobKind {
    /// What the repository is.
    Format,
    /// Its retention.
    Config,
    /// The schedule of maintenance.
    Schedule,
    /// Where contents are.
    Index,
    /// What says which index blobs are in force.
    IndexLog,
    /// Starts an epoch.
    EpochMarker,
    /// Says which deletions are dropped.
    Watermark,
    /// Says that somebody is writing.
    Session,
    /// What Kopia noted about its own doings.
    Log,
    /// Contents.
    Pack,
    /// Not one of ours.
    Other,
}

impl BlobKind {
    fn of(name: &str) -> BlobKind {
        let starts = |prefix: &str| name.starts_with(prefix);
        match name {
            FORMAT_BLOB => BlobKind::Format,
            BLOBCFG_BLOB => BlobKind::Config,
            SCHEDULE_BLOB => BlobKind::Schedule,
            _ if legacy::is_poison(name) => BlobKind::Other,
            _ if starts(names::MARKER) => BlobKind::EpochMarker,
            _ if starts(names::WATERMARK) => BlobKind::Watermark,
            _ if starts(names::ALL) || starts(legacy::INDEX) => BlobKind::Index,
            _ if starts(legacy::COMPACTION_LOG) || starts(legacy::CLEANUP_LOG) => BlobKind::IndexLog,
            _ if starts("p") || starts("q") => BlobKind::Pack,
            _ if starts(MARKER_PREFIX) => BlobKind::Session,
            _ if starts(LOG_PREFIX) => BlobKind::Log,
            _ => BlobKind::Other,
        }
    }
}

impl fmt::Display for BlobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlobKind::Format => "format blob",
            BlobKind::Config => "retention configuration",
            BlobKind::Schedule => "maintenance schedule",
            BlobKind::Index => "index blob",
            BlobKind::IndexLog => "log of index compactions",
            BlobKind::EpochMarker => "epoch marker",
            BlobKind::Watermark => "deletion watermark",
            BlobKind::Session => "session marker",
            BlobKind::Log => "log",
            BlobKind::Pack => "pack",
            BlobKind::Other => "blob",
        })
    }
}

/// A blob that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobDamage {
    /// Its name; of blobs that are missing, what their names begin with.
    pub blob: String,
    /// What it is for.
    pub kind: BlobKind,
    /// What is wrong.
    pub reason: String,
}

impl BlobDamage {
    /// What the damage means.
    pub fn effect(&self) -> &'static str {
        match self.kind {
            BlobKind::Format => "the repository cannot be opened again; restore the blob, or repair it",
            BlobKind::Config => "the repository cannot be written to; repair it",
            BlobKind::Schedule => "maintenance does not run until it is repaired",
            BlobKind::Index => "contents that only it names are not found until the index is repaired",
            BlobKind::IndexLog => {
                "index blobs that were replaced count again; maintenance stops until it is repaired"
            }
            BlobKind::EpochMarker => "kopia may overlook parts of the index until it is repaired",
            BlobKind::Watermark | BlobKind::Session | BlobKind::Log | BlobKind::Other => {
                "nothing is affected"
            }
            BlobKind::Pack => "should the index get lost, it cannot be recovered from this pack",
        }
    }
}

impl fmt::Display for BlobDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.blob, self.reason, self.effect())
    }
}

/// What was verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlobsReport {
    /// Blobs looked at.
    pub blobs: u64,
    /// Blobs that are damaged or missing.
    pub damaged: u64,
}

/// Verifies the blobs of a repository. Each damage is passed to `found` as it is met.
pub async fn blobs(
    repository: &Repository,
    options: &VerifyBlobs,
    found: &mut (dyn FnMut(BlobDamage) + Send),
) -> Result<BlobsReport> {
    let mut report = BlobsReport::default();
    let wanted = |blob: &BlobMetadata| match BlobKind::of(blob.id.as_str()) {
        BlobKind::Pack => options.packs,
        BlobKind::Other => false,
        _ => true,
    };
    let store = repository.store();
    let mut outcomes = store
        .list("")
        .try_filter(|blob| futures::future::ready(wanted(blob)))
        .map_err(Error::from)
        .map_ok(|blob| async move { Ok((check(repository, &blob).await?, blob)) }.boxed())
        .try_buffer_unordered(options.parallel.max(1));
    while let Some((damage, blob)) = outcomes.try_next().await? {
        report.blobs += 1;
        if let Some(reason) = damage {
            report.damaged += 1;
            let kind = BlobKind::of(blob.id.as_str());
            found(BlobDamage { blob: blob.id.to_string(), kind, reason });
        }
    }
    for damage in missing(repository).await? {
        report.damaged += 1;
        found(damage);
    }
    Ok(report)
}

/// What is wrong with a blob, if anything is. One that is gone by now was not needed.
async fn check(repository: &Repository, blob: &BlobMetadata) -> Result<Option<String>> {
    match check_kind(repository, blob).await {
        Ok(()) => Ok(None),
        Err(Error::DamagedBlob { reason, .. }) => Ok(Some(reason)),
        Err(error @ (Error::WrongPassword | Error::UnknownAlgorithm { .. } | Error::Budget(_))) => {
            Ok(Some(error.to_string()))
        }
        Err(Error::Storage(error)) => match error.kind() {
            ErrorKind::NotFound => Ok(None),
            ErrorKind::InvalidRange | ErrorKind::Corrupt | ErrorKind::PermissionDenied => {
                Ok(Some(error.to_string()))
            }
            _ => Err(error.into()),
        },
        Err(error) => Err(error),
    }
}

async fn check_kind(repository: &Repository, blob: &BlobMetadata) -> Result<()> {
    let store = &**repository.store();
    let name = blob.id.as_str();
    match BlobKind::of(name) {
        BlobKind::Format | BlobKind::Config => {
            let format = repository.format().await;
            let fresh = format.refresh(store, repository.environment(), None).await?;
            if name == BLOBCFG_BLOB { fresh.check_config() } else { Ok(()) }
        }
        BlobKind::Schedule => Schedule::load(store, &*repository.format().await).await.map(drop),
        BlobKind::Index => repository.contents().check_index_blob(blob).await,
        BlobKind::IndexLog if name.starts_with(legacy::COMPACTION_LOG) => {
            json::<CompactionLog>(repository, store, blob).await
        }
        BlobKind::IndexLog => json::<CleanupLog>(repository, store, blob).await,
        BlobKind::EpochMarker => plain(store, blob, names::MARKER_CONTENT).await,
        BlobKind::Watermark => plain(store, blob, names::WATERMARK_CONTENT).await,
        BlobKind::Session => json::<SessionMarker>(repository, store, blob).await,
        BlobKind::Log => sealed(repository, store, blob).await.map(drop),
        BlobKind::Pack => {
            let sealer = repository.contents().sealer();
            LocalIndex::read(store, sealer, repository.budget(), blob).await.map(drop)
        }
        BlobKind::Other => Ok(()),
    }
}

fn damaged(blob: &BlobMetadata, reason: impl Into<String>) -> Error {
    Error::DamagedBlob { blob: blob.id.to_string(), reason: reason.into() }
}

async fn plain(store: &dyn BlobStore, blob: &BlobMetadata, expected: &[u8]) -> Result<()> {
    if blob.size != expected.len() as u64 || store.get(&blob.id).await? != expected {
        return Err(damaged(blob, "it does not hold what it should; only its name counts"));
    }
    Ok(())
}

async fn sealed(repository: &Repository, store: &dyn BlobStore, blob: &BlobMetadata) -> Result<bytes::Bytes> {
    let limit = MAX_SMALL.min(repository.budget().total() / 8);
    if blob.size > limit {
        return Err(damaged(blob, format!("it has {} bytes, which is too much for what it is", blob.size)));
    }
    let _memory = repository.budget().reserve_async(2 * blob.size).await?;
    repository.contents().sealer().open_blob(blob.id.as_str(), &store.get(&blob.id).await?)
}

async fn json<T: DeserializeOwned>(
    repository: &Repository,
    store: &dyn BlobStore,
    blob: &BlobMetadata,
) -> Result<()> {
    let plain = sealed(repository, store, blob).await?;
    serde_json::from_slice::<T>(&plain).map(drop).map_err(|e| damaged(blob, format!("not understood: {e}")))
}

/// What should be in the listing of the index and is not.
async fn missing(repository: &Repository) -> Result<Vec<BlobDamage>> {
    let IndexBlobs::Epochs(index) = repository.contents().index_blobs() else { return Ok(Vec::new()) };
    let state = index.refresh().await?.state;
    let mut missing: Vec<BlobDamage> = state
        .holes()
        .into_iter()
        .map(|hole| BlobDamage { blob: hole.blobs(), kind: BlobKind::Index, reason: hole.reason() })
        .collect();
    if let Some(marker) = state.missing_marker() {
        let reason = "it is missing, though index blobs of this epoch are there".to_owned();
        missing.push(BlobDamage { blob: names::marker(marker), kind: BlobKind::EpochMarker, reason });
    }
    Ok(missing)
}
