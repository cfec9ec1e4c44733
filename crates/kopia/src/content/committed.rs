//! The published index: which blobs are in force, and the catalogue of their entries in local files.

use super::load::{FetchError, IndexLoader};
use crate::epoch::{EpochIndex, Hole};
use crate::legacy::{self, LegacyIndex};
use crate::sealer::{SealedBlob, Sealer};
use crate::session::SessionId;
use crate::worker::blocking;
use crate::{Clock, Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, BlobMetadata, PutOptions};
use lifeboat_index::{
    Catalog, IndexBlobName, IndexEntry, IndexSource, IndexVersion, LoadError, Snapshot, codec,
};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// How many index blobs are fetched at once.
const PARALLEL_FETCHES: usize = 8;
/// How often the listing is taken again because a listed blob was gone, and the first pause before.
const RELIST_ATTEMPTS: u32 = 7;
const RELIST_PAUSE: Duration = Duration::from_millis(100);

/// The blobs of the index, under the rules of the repository's format.
#[derive(Debug)]
pub enum IndexBlobs {
    /// With epochs.
    Epochs(EpochIndex),
    /// Without.
    Legacy(LegacyIndex),
}

impl IndexBlobs {
    /// The blobs in force, listed anew or as of the last write. Those in `left_out` are passed over.
    async fn active(&self, anew: bool, left_out: &BTreeSet<BlobId>, clock: &dyn Clock) -> Result<Active> {
        match self {
            IndexBlobs::Epochs(index) => {
                let committed = if anew { index.refresh().await? } else { index.current().await? };
                let mut state = committed.state;
                if !left_out.is_empty() {
                    state = Arc::new(state.without(left_out));
                }
                Ok(Active {
                    blobs: state.active(),
                    watermark: state.watermark.unwrap_or(i64::MIN),
                    holes: state.holes(),
                    listed_at: committed.listed_at,
                })
            }
            IndexBlobs::Legacy(index) => Ok(Active {
                listed_at: clock.now(),
                blobs: index.active_without(left_out).await?,
                watermark: i64::MIN,
                holes: Vec::new(),
            }),
        }
    }

    /// The blobs in force by a listing in other portions.
    async fn look_again(&self, left_out: &BTreeSet<BlobId>) -> Result<Vec<BlobMetadata>> {
        match self {
            IndexBlobs::Epochs(index) => Ok(index.look_again().await?.without(left_out).active()),
            IndexBlobs::Legacy(index) => index.look_again(left_out).await,
        }
    }

    /// All blobs that hold index entries, in force or not, and what says which of them are.
    pub(super) async fn all(&self) -> Result<Vec<BlobMetadata>> {
        match self {
            IndexBlobs::Epochs(index) => Ok(index.refresh().await?.state.indexes().cloned().collect()),
            IndexBlobs::Legacy(index) => index.all().await,
        }
    }

    async fn write(
        &self,
        shards: &[SealedBlob],
        session: &SessionId,
        options: &PutOptions,
    ) -> Result<Vec<BlobId>> {
        match self {
            IndexBlobs::Epochs(index) => index.write(shards, session, options).await,
            IndexBlobs::Legacy(index) => index.write(shards, session, options).await,
        }
    }
}

/// The index as the listing shows it.
struct Active {
    /// When the listing began.
    listed_at: Timestamp,
    blobs: Vec<BlobMetadata>,
    /// Deletions up to this time (unix seconds) are gone.
    watermark: i64,
    /// Epochs of which nothing is there.
    holes: Vec<Hole>,
}

/// The index as it was loaded.
#[derive(Debug)]
struct Loaded {
    snapshot: Snapshot,
    /// The blobs whose merge it is.
    blobs: Arc<BTreeSet<IndexBlobName>>,
    /// Since when that may have changed.
    listed_at: Timestamp,
}

/// A blob of the index that cannot be used, or is missing. What only it knows is unknown until the index is recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedIndex {
    /// The blob; of blobs that are missing, what their names begin with.
    pub blob: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Why a blob of the index is passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LeftOut {
    /// It cannot be read. It gets another chance whenever the index is loaded anew.
    Damaged(String),
    /// It is about to be replaced by what is being recovered.
    Replaced,
}

/// The published index of a repository.
///
/// A blob that cannot be read does not keep the others from being used: it is left out, and what it had replaced is
/// used in its stead. Nothing is written or deleted on the strength of what is missing: contents that are not known
/// are written again, and maintenance stops for as long as anything is left out.
#[derive(Debug)]
pub(super) struct CommittedIndex {
    pub(super) blobs: IndexBlobs,
    loader: Arc<IndexLoader>,
    catalog: Arc<Catalog>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    version: IndexVersion,
    put_options: PutOptions,
    current: RwLock<Loaded>,
    left_out: Mutex<BTreeMap<BlobId, LeftOut>>,
    holes: Mutex<Vec<Hole>>,
    /// One load at a time.
    loading: tokio::sync::Mutex<()>,
}

impl CommittedIndex {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        blobs: IndexBlobs,
        loader: IndexLoader,
        catalog: Catalog,
        clock: Arc<dyn Clock>,
        runtime: Handle,
        version: IndexVersion,
        put_options: PutOptions,
    ) -> Self {
        CommittedIndex {
            blobs,
            loader: Arc::new(loader),
            catalog: Arc::new(catalog),
            clock,
            runtime,
            version,
            put_options,
            current: RwLock::new(Loaded {
                snapshot: Snapshot::empty(),
                blobs: Arc::default(),
                listed_at: Timestamp::MIN,
            }),
            left_out: Mutex::default(),
            holes: Mutex::default(),
            loading: tokio::sync::Mutex::new(()),
        }
    }

    /// What fetches index blobs.
    pub(super) fn loader(&self) -> &Arc<IndexLoader> {
        &self.loader
    }

    /// The index as last loaded.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.current.read().snapshot.clone()
    }

    /// Asks the index something. For worker threads: a local file that turns out to be damaged is built again.
    pub(super) fn ask<T>(
        &self,
        question: impl Fn(&Snapshot) -> std::result::Result<T, lifeboat_index::Error>,
    ) -> Result<T> {
        match question(&self.snapshot()) {
            Err(error) if error.is_damaged_cache() => {
                tracing::warn!(%error, "loading the index again");
                self.runtime.block_on(self.refresh())?;
                Ok(question(&self.snapshot())?)
            }
            answer => Ok(answer?),
        }
    }

    /// How long ago the index was listed.
    pub(super) fn age(&self) -> SignedDuration {
        self.clock.now().duration_since(self.current.read().listed_at)
    }

    /// Blobs in force, by a listing in other portions, that are not part of the index as last loaded: somebody has just
    /// written them, or the listing that it was loaded by has left them out.
    pub(super) async fn lacking(&self) -> Result<Vec<BlobMetadata>> {
        let left_out: BTreeSet<BlobId> = self.left_out.lock().keys().cloned().collect();
        let listed = self.blobs.look_again(&left_out).await?;
        let loaded = self.current.read().blobs.clone();
        let is_lacking = |blob: &BlobMetadata| !loaded.contains(&IndexBlobName::from(blob.id.as_str()));
        Ok(listed.into_iter().filter(is_lacking).collect())
    }

    /// Loads the index for the first time; a listing that was taken ahead will do.
    pub(super) async fn open(&self) -> Result<()> {
        let _one = self.loading.lock().await;
        self.load(false, &BTreeSet::new()).await
    }

    /// Loads the index as it is in the store now.
    pub(super) async fn refresh(&self) -> Result<()> {
        let _one = self.loading.lock().await;
        self.load(true, &BTreeSet::new()).await
    }

    /// Loads the index if nobody else did so meanwhile.
    pub(super) async fn refresh_if_older(&self, than: SignedDuration) -> Result<()> {
        let _one = self.loading.lock().await;
        match self.age() > than {
            true => self.load(true, &BTreeSet::new()).await,
            false => Ok(()),
        }
    }

    /// Publishes `entries`, which are in ascending order of their ids, in the name of `session`.
    pub(super) async fn publish(&self, entries: Vec<IndexEntry>, session: &SessionId) -> Result<()> {
        let _one = self.loading.lock().await;
        let (sealer, version) = (self.loader.sealer().clone(), self.version);
        let encode = move || encode_index(&sealer, version, &entries);
        let (plain, sealed) = blocking(encode).await??;
        let written = self.blobs.write(&[sealed], session, &self.put_options).await?;
        let own: BTreeSet<IndexBlobName> =
            written.iter().map(|id| IndexBlobName::from(id.as_str())).collect();
        let catalog = self.catalog.clone();
        let names = own.clone();
        blocking(move || -> Result<()> {
            let source = IndexSource::memory(plain);
            names.iter().try_for_each(|name| Ok(catalog.add(name, &source)?))
        })
        .await??;
        self.load(false, &own).await
    }

    /// What was left out when the index was last loaded, and what was missing.
    pub(super) fn damaged(&self) -> Vec<DamagedIndex> {
        let damaged = |(blob, why): (&BlobId, &LeftOut)| match why {
            LeftOut::Damaged(reason) => Some(DamagedIndex { blob: blob.to_string(), reason: reason.clone() }),
            LeftOut::Replaced => None,
        };
        let mut all: Vec<DamagedIndex> = self.left_out.lock().iter().filter_map(damaged).collect();
        let missing = |hole: &Hole| DamagedIndex { blob: hole.blobs(), reason: hole.reason() };
        all.extend(self.holes.lock().iter().map(missing));
        all
    }

    /// Passes over `blobs` from now on, whatever they hold, and over nothing else but what is damaged.
    pub(super) async fn replace(&self, blobs: impl IntoIterator<Item = BlobId>) -> Result<()> {
        let _one = self.loading.lock().await;
        let replaced = blobs.into_iter().map(|blob| (blob, LeftOut::Replaced)).collect();
        *self.left_out.lock() = replaced;
        self.load(true, &BTreeSet::new()).await
    }

    /// Passes over a blob if it is only the blob that is the matter.
    fn leave_out(&self, blob: String, reason: String) -> Result<()> {
        let id = BlobId::new(&blob)?;
        if legacy::is_poison(&blob) {
            return Err(Error::DamagedBlob { blob, reason });
        }
        tracing::warn!(blob, reason, "an index blob cannot be used and is left out; recover the index");
        match self.left_out.lock().insert(id, LeftOut::Damaged(reason.clone())) {
            None => Ok(()),
            // Passing over it did not help: it is one that we have just written.
            Some(_) => Err(Error::DamagedBlob { blob, reason }),
        }
    }

    /// Brings the catalogue to the blobs that are in force, and `own` blobs that were just written.
    async fn load(&self, mut anew: bool, own: &BTreeSet<IndexBlobName>) -> Result<()> {
        if anew {
            self.left_out.lock().retain(|_, why| *why == LeftOut::Replaced);
        }
        let mut pause = RELIST_PAUSE;
        let mut relisted = 0;
        // Each round ends it, leaves out one blob more, or is one of a few that list again.
        loop {
            match self.load_once(anew, own).await {
                Ok(Some(loaded)) => {
                    *self.current.write() = loaded;
                    return Ok(());
                }
                Ok(None) => anew = false,
                Err(FetchError::Failed(Error::DamagedBlob { blob, reason })) => {
                    self.leave_out(blob, reason)?;
                    anew = false;
                }
                // Somebody compacted the index between the listing and now: what replaced the blob is listed next.
                Err(FetchError::Vanished(id)) if relisted < RELIST_ATTEMPTS => {
                    tracing::debug!(blob = %id, "an index blob vanished; listing again");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                    relisted += 1;
                    anew = true;
                }
                Err(FetchError::Vanished(id)) => {
                    self.leave_out(
                        id.to_string(),
                        "it is listed again and again, but it is not there".into(),
                    )?;
                    anew = false;
                }
                Err(FetchError::Failed(error)) => return Err(error),
            }
        }
    }

    /// One attempt to load; `None` if blobs had to be left out, so that others may be in force.
    async fn load_once(
        &self,
        anew: bool,
        own: &BTreeSet<IndexBlobName>,
    ) -> std::result::Result<Option<Loaded>, FetchError> {
        let left_out: BTreeSet<BlobId> = self.left_out.lock().keys().cloned().collect();
        let Active { listed_at, blobs, watermark, holes } =
            self.blobs.active(anew, &left_out, &*self.clock).await?;
        *self.holes.lock() = holes;
        let loaded = self.load_active(blobs, watermark, own).await?;
        Ok(loaded.map(|(snapshot, blobs)| Loaded { snapshot, blobs, listed_at }))
    }

    async fn load_active(
        &self,
        active: Vec<BlobMetadata>,
        watermark: i64,
        own: &BTreeSet<IndexBlobName>,
    ) -> std::result::Result<Option<(Snapshot, Arc<BTreeSet<IndexBlobName>>)>, FetchError> {
        let sizes: Arc<BTreeMap<IndexBlobName, BlobMetadata>> =
            Arc::new(active.into_iter().map(|blob| (IndexBlobName::from(blob.id.as_str()), blob)).collect());
        let mut names: BTreeSet<IndexBlobName> = sizes.keys().cloned().collect();
        names.extend(own.iter().cloned());
        let names = Arc::new(names);

        let missing = {
            let (catalog, names) = (self.catalog.clone(), names.clone());
            blocking(move || catalog.missing(&names)).await?.map_err(Error::from)?
        };
        let any_left_out = AtomicBool::new(false);
        stream::iter(
            missing.into_iter().filter_map(|name| sizes.get(&name).cloned().map(|blob| (name, blob))),
        )
        .map(Ok)
        .try_for_each_concurrent(PARALLEL_FETCHES, |(name, blob)| {
            let any_left_out = &any_left_out;
            async move {
                match self.fetch_and_add(name, &blob).await {
                    Err(FetchError::Failed(Error::DamagedBlob { blob, reason })) => {
                        any_left_out.store(true, Ordering::Relaxed);
                        Ok(self.leave_out(blob, reason)?)
                    }
                    outcome => outcome,
                }
            }
        })
        .await?;
        if any_left_out.into_inner() {
            return Ok(None);
        }

        let (catalog, loader, runtime) = (self.catalog.clone(), self.loader.clone(), self.runtime.clone());
        let update = move || {
            // Asked only for blobs whose local file turned out to be damaged just now.
            let mut vanished = None;
            let mut load = |name: &IndexBlobName| -> std::result::Result<IndexSource, LoadError> {
                let blob = sizes.get(name).ok_or("the blob was just written and its local file is gone")?;
                match runtime.block_on(loader.fetch(blob)) {
                    Ok((source, _memory)) => Ok(source),
                    Err(FetchError::Vanished(id)) => {
                        vanished = Some(id);
                        Err("the blob vanished".into())
                    }
                    Err(FetchError::Failed(error)) => Err(error.into()),
                }
            };
            let updated = catalog.update(&names, watermark, &mut load);
            match (updated, vanished) {
                (Ok(snapshot), _) => Ok(Some((snapshot, names))),
                (Err(_), Some(id)) => Err(FetchError::Vanished(id)),
                (Err(error), None) => Err(FetchError::Failed(error.into())),
            }
        };
        blocking(update).await?
    }

    async fn fetch_and_add(
        &self,
        name: IndexBlobName,
        blob: &BlobMetadata,
    ) -> std::result::Result<(), FetchError> {
        let (source, memory) = self.loader.fetch(blob).await?;
        let catalog = self.catalog.clone();
        blocking(move || catalog.add(&name, &source)).await?.map_err(Error::from)?;
        drop(memory);
        Ok(())
    }
}

fn encode_index(
    sealer: &Sealer,
    version: IndexVersion,
    entries: &[IndexEntry],
) -> Result<(Vec<u8>, SealedBlob)> {
    let mut plain = Vec::new();
    codec::encode(version, entries, &mut plain)
        .map_err(|e| Error::Invalid(format!("cannot encode the index of this session: {e}")))?;
    let sealed = sealer.seal_blob(&plain)?;
    Ok((plain, sealed))
}
