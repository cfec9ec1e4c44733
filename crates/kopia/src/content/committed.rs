//! The published index: which blobs are in force, and the catalogue of their entries in local files.

use super::load::{FetchError, IndexLoader};
use crate::epoch::EpochIndex;
use crate::legacy::LegacyIndex;
use crate::sealer::{SealedBlob, Sealer};
use crate::session::SessionId;
use crate::{Clock, Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, BlobMetadata, PutOptions};
use lifeboat_index::{
    Catalog, IndexBlobName, IndexEntry, IndexSource, IndexVersion, LoadError, Snapshot, codec,
};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How many index blobs are fetched at once.
const PARALLEL_FETCHES: usize = 8;
/// How often the listing is taken again because a listed blob was gone, and the first pause before.
const RELIST_ATTEMPTS: u32 = 10;
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
    /// The blobs in force and the deletion watermark; listed anew, or as of the last write.
    async fn active(&self, anew: bool) -> Result<(Vec<BlobMetadata>, i64)> {
        match self {
            IndexBlobs::Epochs(index) => {
                let committed = if anew { index.refresh().await? } else { index.current().await? };
                Ok((committed.state.active(), committed.state.watermark.unwrap_or(i64::MIN)))
            }
            IndexBlobs::Legacy(index) => Ok((index.active().await?, i64::MIN)),
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

/// The published index of a repository.
#[derive(Debug)]
pub(super) struct CommittedIndex {
    pub(super) blobs: IndexBlobs,
    loader: Arc<IndexLoader>,
    catalog: Arc<Catalog>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    version: IndexVersion,
    put_options: PutOptions,
    current: RwLock<(Snapshot, Timestamp)>,
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
            current: RwLock::new((Snapshot::empty(), Timestamp::MIN)),
            loading: tokio::sync::Mutex::new(()),
        }
    }

    /// What fetches index blobs.
    pub(super) fn loader(&self) -> &Arc<IndexLoader> {
        &self.loader
    }

    /// The index as last loaded.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.current.read().0.clone()
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

    /// How long ago the index was loaded.
    pub(super) fn age(&self) -> SignedDuration {
        self.clock.now().duration_since(self.current.read().1)
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

    /// Brings the catalogue to the blobs that are in force, and `own` blobs that were just written.
    async fn load(&self, mut anew: bool, own: &BTreeSet<IndexBlobName>) -> Result<()> {
        let mut pause = RELIST_PAUSE;
        for _ in 0..RELIST_ATTEMPTS {
            let started = self.clock.now();
            let (active, watermark) = self.blobs.active(anew).await?;
            match self.load_active(active, watermark, own).await {
                Ok(snapshot) => {
                    *self.current.write() = (snapshot, started);
                    return Ok(());
                }
                // Somebody compacted the index between the listing and now: what replaced the blob is listed next.
                Err(FetchError::Vanished(id)) => {
                    tracing::debug!(blob = %id, "an index blob vanished; listing again");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                    anew = true;
                }
                Err(FetchError::Failed(error)) => return Err(error),
            }
        }
        Err(Error::Invalid("index blobs keep vanishing while they are being read; try again later".into()))
    }

    async fn load_active(
        &self,
        active: Vec<BlobMetadata>,
        watermark: i64,
        own: &BTreeSet<IndexBlobName>,
    ) -> std::result::Result<Snapshot, FetchError> {
        let sizes: Arc<BTreeMap<IndexBlobName, BlobMetadata>> =
            Arc::new(active.into_iter().map(|blob| (IndexBlobName::from(blob.id.as_str()), blob)).collect());
        let mut names: BTreeSet<IndexBlobName> = sizes.keys().cloned().collect();
        names.extend(own.iter().cloned());
        let names = Arc::new(names);

        let missing = {
            let (catalog, names) = (self.catalog.clone(), names.clone());
            blocking(move || catalog.missing(&names)).await?.map_err(Error::from)?
        };
        stream::iter(
            missing.into_iter().filter_map(|name| sizes.get(&name).cloned().map(|blob| (name, blob))),
        )
        .map(Ok)
        .try_for_each_concurrent(PARALLEL_FETCHES, |(name, blob)| async move {
            let (source, memory) = self.loader.fetch(&blob).await?;
            let catalog = self.catalog.clone();
            blocking(move || catalog.add(&name, &source)).await?.map_err(Error::from)?;
            drop(memory);
            Ok::<(), FetchError>(())
        })
        .await?;

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
                (Ok(snapshot), _) => Ok(snapshot),
                (Err(_), Some(id)) => Err(FetchError::Vanished(id)),
                (Err(error), None) => Err(FetchError::Failed(error.into())),
            }
        };
        blocking(update).await?
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

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::Worker(e.to_string()))
}
