//! Contents: the chunks that objects are made of, named by the hash of their bytes.
//!
//! A [`ContentStore`] finds, reads and writes them. Reading is async; writing is blocking and belongs on worker
//! threads, because it is all hashing, compressing and sealing; the packs that fill up are put by tasks of their
//! own. [`flush`](ContentStore::flush) publishes.

mod cache;
mod committed;
mod flush;
mod in_place;
mod iterate;
mod load;
mod merge;
mod nearby;
mod packing;
mod presence;
mod read;
mod recover;
mod session;
mod tend;
mod write;
mod writer;

pub use committed::{DamagedIndex, IndexBlobs};
pub use iterate::ContentRange;
pub use merge::{MergedIndex, SealedShard};
pub use presence::MissingPacks;
pub use recover::{PackChoice, RecoverOptions, RecoverReport, UnreadPack};
pub use session::ClientIdentity;

use crate::pack::PackKind;
use crate::sealer::Sealer;
use crate::{Environment, Error, Result};
use async_trait::async_trait;
use bytes::Bytes;
use cache::MetadataCache;
use committed::CommittedIndex;
use jiff::SignedDuration;
use lifeboat_blobs::{BlobMetadata, BlobStore, ErrorKind, Operation, PutOptions, Retention};
use lifeboat_budget::{Budget, BufferPool, Reservation};
use lifeboat_index::{Catalog, CatalogOptions, IndexEntry, IndexVersion, Prefix, Snapshot};
use lifeboat_primitives::aead::OVERHEAD;
use lifeboat_primitives::compress::Compressor;
use load::IndexLoader;
use nearby::Nearby;
use presence::Presence;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use writer::Writer;

/// From this age on, the index is loaded again before it is relied on for deduplication, as Kopia does.
const REFRESH_AFTER: SignedDuration = SignedDuration::from_mins(15);
/// Beyond this age, garbage collection by others may have removed what the index names: writing must not go on.
const RELY_ON_AT_MOST: SignedDuration = SignedDuration::from_mins(20);
/// The share of the budget for packs has at least this size where the budget allows it at all: one large content.
const MIN_WRITE_SHARE: u64 = 4 << 20;
/// Packs that are open or on their way at once, at most: more memory would not make it faster.
const PACKS_IN_MEMORY: u64 = 5;

/// A content to be written.
#[derive(Debug, Clone, Copy)]
pub struct ContentToWrite<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// What kind it is.
    pub prefix: Prefix,
    /// How to compress it, if that makes it shorter. Repositories with index version 1 store it as it is.
    pub compression: Option<Compressor>,
}

/// Where a content is.
#[derive(Debug, Clone)]
pub struct ContentLocation {
    /// What the index says.
    pub entry: IndexEntry,
    /// Its sealed bytes, if they are still in this process's memory.
    here: Option<Bytes>,
}

impl ContentLocation {
    /// Where its sealed bytes lie in the pack.
    pub fn range(&self) -> Range<u64> {
        let start = u64::from(self.entry.pack_offset);
        start..start + u64::from(self.entry.packed_length)
    }

    /// Its sealed bytes, if its pack is not in the store yet.
    pub fn in_memory(&self) -> Option<&Bytes> {
        self.here.as_ref()
    }
}

/// What the repository's format says about contents.
#[derive(Debug, Clone)]
pub struct ContentFormat {
    /// The format version, which every entry carries.
    pub version: u8,
    /// The version of the index encoding.
    pub index_version: u8,
    /// At which size a pack is closed.
    pub max_pack_size: u64,
    /// What every pack begins with; empty in repositories whose password can be changed.
    pub recovery_block: Bytes,
    /// The object lock of packs and index blobs.
    pub retention: Option<Retention>,
}

/// The same, as the parts below need it.
#[derive(Debug)]
struct Layout {
    version: u8,
    index_version: IndexVersion,
    max_pack_size: u64,
    recovery_block: Bytes,
    retention: Option<Retention>,
}

impl Layout {
    fn new(format: ContentFormat) -> Self {
        let index_version = match format.index_version {
            1 => IndexVersion::V1 { overhead: OVERHEAD as u32 },
            _ => IndexVersion::V2,
        };
        let ContentFormat { version, max_pack_size, recovery_block, retention, .. } = format;
        Layout { version, index_version, max_pack_size, recovery_block, retention }
    }

    /// Index version 1 has no room for the compressor.
    fn supports_compression(&self) -> bool {
        matches!(self.index_version, IndexVersion::V2)
    }

    /// How packs and index blobs are put: all of them are under the repository's retention.
    fn put_options(&self) -> PutOptions {
        PutOptions { retention: self.retention, ..PutOptions::default() }
    }
}

/// Whether a repository may still be written to. Asked from time to time during long runs: somebody may have locked it
/// for an upgrade.
#[async_trait]
pub trait WritePermission: fmt::Debug + Send + Sync {
    /// Fails if nothing may be written any more.
    async fn check(&self) -> Result<()>;
}

/// What a [`ContentStore`] is opened with.
#[derive(Debug)]
pub struct ContentOptions {
    /// Where the blobs are.
    pub store: Arc<dyn BlobStore>,
    /// The keys.
    pub sealer: Arc<Sealer>,
    /// Time and chance.
    pub environment: Environment,
    /// What the format says.
    pub format: ContentFormat,
    /// The index blobs.
    pub index: IndexBlobs,
    /// Who writes.
    pub identity: ClientIdentity,
    /// What is asked whether anything may be written; without it, nothing is.
    pub write_permission: Option<Arc<dyn WritePermission>>,
    /// Where local files may be kept from one run to the next; without it they last as long as the store is open.
    pub cache_folder: Option<PathBuf>,
    /// The memory budget. For writing, up to three eighths of it are set aside for packs for as long as the store is
    /// open; the rest is for the caller's buffers, so that neither can starve the other.
    pub budget: Budget,
    /// How many packs are put at once.
    pub parallel_puts: usize,
    /// The most memory for opened metadata contents.
    pub metadata_cache_bytes: usize,
    /// Where background work runs.
    pub runtime: Handle,
}

/// The contents of a repository. Cloning gives another handle to the same.
#[derive(Debug, Clone)]
pub struct ContentStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn BlobStore>,
    sealer: Arc<Sealer>,
    environment: Environment,
    format: Layout,
    identity: ClientIdentity,
    committed: CommittedIndex,
    presence: Presence,
    cache: MetadataCache,
    nearby: Nearby,
    writer: Option<Writer>,
    write_permission: Option<Arc<dyn WritePermission>>,
    /// Ends calls of the storage that writers wait for.
    interrupted: CancellationToken,
    runtime: Handle,
}

/// Running totals of what was written since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteTotals {
    /// Contents that were handed in.
    pub hashed_contents: u64,
    /// Their bytes.
    pub hashed_bytes: u64,
    /// Contents that were not there before.
    pub new_contents: u64,
    /// Their bytes as handed in.
    pub new_bytes: u64,
    /// Their bytes in packs.
    pub packed_bytes: u64,
    /// Packs in the store.
    pub uploaded_packs: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
}

impl ContentStore {
    /// Opens the contents of a repository and loads its index.
    pub async fn open(options: ContentOptions) -> Result<Self> {
        let ContentOptions { store, sealer, environment, index, identity, budget, runtime, .. } = options;
        let format = Layout::new(options.format);
        let catalog_options = CatalogOptions { budget: Some(budget.clone()), ..CatalogOptions::default() };
        let catalog = match &options.cache_folder {
            Some(folder) => Catalog::open(folder, catalog_options)?,
            None => Catalog::temporary(catalog_options)?,
        };
        let files = options.cache_folder.unwrap_or_else(std::env::temp_dir);
        let loader = IndexLoader::new(store.clone(), sealer.clone(), budget.clone(), files);
        let committed = CommittedIndex::new(
            index,
            loader,
            catalog,
            environment.clock.clone(),
            runtime.clone(),
            format.index_version,
            format.put_options(),
        );
        committed.open().await?;
        let write_permission = options.write_permission;
        let writer = match write_permission.is_some() {
            false => None,
            true => {
                let share = write_share(&budget, format.max_pack_size).await?;
                let pool = BufferPool::new(share.bytes() as usize, Some(share));
                Some(Writer::new(pool, options.parallel_puts, environment.clock.now()))
            }
        };
        let nearby = Nearby::new(budget.clone());
        let cache = MetadataCache::new(budget, options.metadata_cache_bytes);
        let shared = Shared {
            store,
            sealer,
            environment,
            format,
            identity,
            committed,
            presence: Presence::default(),
            cache,
            nearby,
            writer,
            write_permission,
            interrupted: CancellationToken::new(),
            runtime,
        };
        Ok(ContentStore { shared: Arc::new(shared) })
    }

    /// The blobs below.
    pub fn store(&self) -> &Arc<dyn BlobStore> {
        &self.shared.store
    }

    /// The keys.
    pub fn sealer(&self) -> &Arc<Sealer> {
        &self.shared.sealer
    }

    /// The blobs of the index.
    pub fn index_blobs(&self) -> &IndexBlobs {
        &self.shared.committed.blobs
    }

    /// The published index as last loaded; what is not published yet is not in it.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.committed.snapshot()
    }

    /// Blobs of the index that could not be used when it was last loaded, and those that were found to be missing.
    /// Everything else is there; what only these knew counts as unknown.
    pub fn damaged_index(&self) -> Vec<DamagedIndex> {
        self.shared.committed.damaged()
    }

    /// Loads the index as others have left it.
    pub async fn refresh(&self) -> Result<()> {
        self.shared.committed.refresh().await
    }

    /// Blobs of the index that a second listing shows and that are not part of the index as last loaded.
    pub(crate) async fn lacking_index(&self) -> Result<Vec<BlobMetadata>> {
        self.shared.committed.lacking().await
    }

    /// What was written so far.
    pub fn totals(&self) -> WriteTotals {
        let Some(writer) = &self.shared.writer else { return WriteTotals::default() };
        let counters = &writer.counters;
        WriteTotals {
            hashed_contents: counters.hashed_contents.load(Ordering::Relaxed),
            hashed_bytes: counters.hashed_bytes.load(Ordering::Relaxed),
            new_contents: counters.new_contents.load(Ordering::Relaxed),
            new_bytes: counters.new_bytes.load(Ordering::Relaxed),
            packed_bytes: counters.packed_bytes.load(Ordering::Relaxed),
            uploaded_packs: counters.uploaded_packs.load(Ordering::Relaxed),
            uploaded_bytes: counters.uploaded_bytes.load(Ordering::Relaxed),
        }
    }

    /// The bytes in the pack of `kind` that is being filled, if there is one.
    pub(crate) fn open_pack_len(&self, kind: PackKind) -> Option<u64> {
        let mut state = self.shared.writer.as_ref()?.state.lock();
        state.current.as_mut()?.open_sizes().find_map(|(open, size)| (open == kind).then_some(size))
    }

    /// Whether contents carry their compressor, so that the content layer compresses.
    pub fn supports_compression(&self) -> bool {
        self.shared.format.supports_compression()
    }

    /// Makes writes and flushes that wait for the storage fail soon, and all later ones at once: for whoever gives up
    /// and cannot wait for a storage that hangs. What is not in the storage yet is lost; what is there is as good
    /// as after a crash.
    pub fn interrupt_writes(&self) {
        self.shared.interrupted.cancel();
    }

    /// Waits for a call of the storage unless writing is interrupted.
    async fn unless_interrupted<T, E: From<lifeboat_blobs::Error>>(
        &self,
        operation: Operation,
        blob: &str,
        call: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        let interrupted = || {
            let store = self.shared.store.describe();
            lifeboat_blobs::Error::new(ErrorKind::Other, operation, blob, store, "writing was interrupted")
        };
        let outcome = self.shared.interrupted.run_until_cancelled(call).await;
        outcome.unwrap_or_else(|| Err(interrupted().into()))
    }

    fn writer(&self, action: &'static str) -> Result<&Writer> {
        self.shared.writer.as_ref().ok_or(Error::ReadOnly { action })
    }

    /// Makes sure that we may still write, and that the index is young enough to deduplicate against. For worker
    /// threads only.
    fn keep_index_fresh(&self) -> Result<()> {
        let committed = &self.shared.committed;
        if committed.age() <= REFRESH_AFTER {
            return Ok(());
        }
        let refresh = async {
            if let Some(permission) = &self.shared.write_permission {
                permission.check().await?;
            }
            committed.refresh_if_older(REFRESH_AFTER).await
        };
        let refresh = self.unless_interrupted(Operation::Get, "index", refresh);
        match self.shared.runtime.block_on(refresh) {
            Err(Error::Storage(error)) if committed.age() <= RELY_ON_AT_MOST => {
                tracing::warn!(%error, "the index could not be refreshed; it is young enough to go on for now");
                Ok(())
            }
            refreshed => refreshed,
        }
    }
}

/// Sets aside memory for packs: three eighths of the budget, or what is left of it, but never more than is of use.
async fn write_share(budget: &Budget, max_pack_size: u64) -> Result<Reservation> {
    let mut wanted = (budget.total() / 8 * 3).min(max_pack_size.saturating_mul(PACKS_IN_MEMORY));
    while wanted > MIN_WRITE_SHARE {
        if let Some(share) = budget.try_reserve(wanted) {
            return Ok(share);
        }
        wanted /= 2;
    }
    Ok(budget.reserve_async(MIN_WRITE_SHARE.min(budget.total() / 8 * 3)).await?)
}
