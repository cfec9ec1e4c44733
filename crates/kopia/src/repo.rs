//! A repository as a whole: creating it, opening it, and the parts that it consists of.

use crate::content::{
    ClientIdentity, ContentFormat, ContentOptions, ContentRange, ContentStore, ContentToWrite, IndexBlobs,
    WritePermission,
};
use crate::epoch::{EpochIndex, Listing};
use crate::format::{CreateOptions, Format, Password};
use crate::legacy::LegacyIndex;
use crate::maintenance;
use crate::manifest::{ManifestContents, ManifestStore};
use crate::object::Objects;
use crate::policy::{self, Policy};
use crate::sealer::{Sealer, SealerKeys};
use crate::snapshot::{self, SnapshotList, SourceInfo};
use crate::worker::blocking;
use crate::{Environment, Error, Result, velero};
use async_trait::async_trait;
use bytes::Bytes;
use lifeboat_blobs::BlobStore;
use lifeboat_blobs::wrap::ReadOnly;
use lifeboat_budget::Budget;
use lifeboat_index::{ContentId, Deleted, Prefix};
use lifeboat_primitives::aead::CipherAlgorithm;
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::ecc;
use lifeboat_primitives::hash::HashAlgorithm;
use lifeboat_primitives::splitter::SplitterAlgorithm;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::RwLock;

/// Whether a repository is opened to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Nothing is written, not even by accident: the store refuses it.
    ReadOnly,
    /// Everything may be done.
    #[default]
    ReadWrite,
}

/// What it takes to open a repository.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Where it is. For remote stores, wrap it in [`Cached`](lifeboat_blobs::wrap::Cached) to keep packs with
    /// metadata (names that start with `q`) on this machine.
    pub store: Arc<dyn BlobStore>,
    /// Its password.
    pub password: Password,
    /// Whether it is to be changed.
    pub access: Access,
    /// Who opens it.
    pub identity: ClientIdentity,
    /// A folder for local files that make the next opening fast; several repositories may share it.
    pub cache_folder: Option<PathBuf>,
    /// The memory budget of the process.
    pub budget: Budget,
    /// Time and chance.
    pub environment: Environment,
    /// Where background work runs.
    pub runtime: Handle,
    /// How many packs are put at once.
    pub parallel_puts: usize,
    /// The most memory for metadata that was read before.
    pub metadata_cache_bytes: usize,
    /// The name under which we hold an upgrade lock, if we do.
    pub upgrade_owner: Option<String>,
}

impl OpenOptions {
    /// The usual options. Must be called from async code.
    pub fn new(store: Arc<dyn BlobStore>, password: Password, identity: ClientIdentity) -> Self {
        let budget = Budget::new(lifeboat_budget::default_bytes());
        OpenOptions {
            store,
            password,
            access: Access::default(),
            identity,
            cache_folder: None,
            metadata_cache_bytes: (budget.total() / 8) as usize,
            budget,
            environment: Environment::default(),
            runtime: Handle::current(),
            parallel_puts: 8,
            upgrade_owner: None,
        }
    }
}

/// What a new repository holds from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InitialState {
    /// As `kopia repository create` leaves it: a global policy, and maintenance owned by whoever creates it.
    #[default]
    Kopia,
    /// As Velero leaves it: maintenance owned by Velero, and the marker that says that the repository is complete.
    Velero,
}

/// An open repository. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Repository {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn BlobStore>,
    format: Arc<CurrentFormat>,
    options: OpenOptions,
    contents: ContentStore,
    objects: Objects,
    manifests: ManifestStore,
    cache_folder: Option<PathBuf>,
}

impl Repository {
    /// Creates a repository in an empty place and opens it.
    pub async fn create(options: OpenOptions, create: &CreateOptions, initial: InitialState) -> Result<Self> {
        if options.access == Access::ReadOnly {
            return Err(Error::ReadOnly { action: "create a repository" });
        }
        check_algorithms(create)?;
        let format = Format::create(&*options.store, &options.password, create, &options.environment).await?;
        let repository = Repository::with_format(options, format, None).await?;
        repository.write_initial_state(initial).await?;
        Ok(repository)
    }

    async fn write_initial_state(&self, initial: InitialState) -> Result<()> {
        let manifests = self.manifests();
        let owner = match initial {
            InitialState::Kopia => {
                policy::save(manifests, &SourceInfo::global(), &Policy::defaults()).await?;
                let ClientIdentity { username, hostname } = &self.shared.options.identity;
                format!("{username}@{hostname}")
            }
            InitialState::Velero => velero::MAINTENANCE_OWNER.to_owned(),
        };
        maintenance::Params { owner, ..maintenance::Params::default() }.save(manifests).await?;
        self.flush().await?;
        if initial == InitialState::Velero {
            velero::Marker::write(&*self.shared.store, &*self.format().await).await?;
        }
        Ok(())
    }

    /// Opens a repository.
    pub async fn open(options: OpenOptions) -> Result<Self> {
        let OpenOptions { store, password, environment, .. } = &options;
        let owner = options.upgrade_owner.as_deref();
        // The index is listed while the key is derived. If that fails, it is tried again when it counts. Without epochs (format
        // version 1) it is listed in vain, but at no one's time: the version is sealed, too.
        let (format, listing) = tokio::join!(
            Format::open(&**store, password, environment, owner),
            Listing::take(&**store, &*environment.clock),
        );
        let format = format?;
        for warning in format.warnings() {
            tracing::warn!("{warning}");
        }
        match (format.check_config(), options.access) {
            (Ok(()), _) => {}
            (Err(error), Access::ReadOnly) => tracing::warn!(%error, "the retention is not known"),
            (Err(error), Access::ReadWrite) => return Err(error),
        }
        Repository::with_format(options, format, listing.ok()).await
    }

    async fn with_format(options: OpenOptions, format: Format, listing: Option<Listing>) -> Result<Self> {
        let store: Arc<dyn BlobStore> = match options.access {
            Access::ReadOnly => Arc::new(ReadOnly::new(options.store.clone())),
            Access::ReadWrite => options.store.clone(),
        };
        let current = Arc::new(CurrentFormat {
            store: store.clone(),
            environment: options.environment.clone(),
            upgrade_owner: options.upgrade_owner.clone(),
            format: RwLock::new(Arc::new(format)),
        });
        let contents = open_contents(&options, store.clone(), &current, listing).await?;
        let splitter = SplitterAlgorithm::from_name(current.get().await.repository().splitter())?;
        let objects =
            Objects::new(contents.clone(), splitter, options.budget.clone(), options.runtime.clone());
        let manifests = ManifestStore::new(Arc::new(contents.clone()), options.environment.clone());
        let cache_folder = cache_folder(&options, &*current.get().await);
        let shared = Shared { store, format: current, options, contents, objects, manifests, cache_folder };
        Ok(Repository { shared: Arc::new(shared) })
    }

    /// The blobs.
    pub fn store(&self) -> &Arc<dyn BlobStore> {
        &self.shared.store
    }

    /// The format, as last read.
    pub async fn format(&self) -> Arc<Format> {
        self.shared.format.get().await
    }

    /// The contents.
    pub fn contents(&self) -> &ContentStore {
        &self.shared.contents
    }

    /// The objects.
    pub fn objects(&self) -> &Objects {
        &self.shared.objects
    }

    /// The manifests. What is put there is published by [`flush`](Self::flush).
    pub fn manifests(&self) -> &ManifestStore {
        &self.shared.manifests
    }

    /// All snapshots, and those manifests that should be one and cannot be read.
    pub async fn snapshots(&self) -> Result<SnapshotList> {
        snapshot::list(self.manifests(), &SourceInfo::global(), &BTreeMap::new()).await
    }

    /// The memory budget.
    pub fn budget(&self) -> &Budget {
        &self.shared.options.budget
    }

    /// Time and chance.
    pub fn environment(&self) -> &Environment {
        &self.shared.options.environment
    }

    /// Who has opened it.
    pub fn identity(&self) -> &ClientIdentity {
        &self.shared.options.identity
    }

    /// Whether it may be changed.
    pub fn access(&self) -> Access {
        self.shared.options.access
    }

    /// The folder for local files about this repository, if files are to be kept between runs.
    pub(crate) fn cache_folder(&self) -> Option<PathBuf> {
        self.shared.cache_folder.clone()
    }

    /// Where background work runs.
    pub fn runtime(&self) -> &Handle {
        &self.shared.options.runtime
    }

    /// Publishes everything written so far: manifests become contents, packs are stored, the index names them.
    ///
    /// A manifest becomes visible to others together with what was written before it, or later; never earlier.
    pub async fn flush(&self) -> Result<()> {
        if self.access() == Access::ReadOnly {
            return Ok(());
        }
        self.shared.manifests.flush().await?;
        self.shared.contents.flush().await
    }

    /// Reads again what others may have changed: the format (with its checks for upgrades and features), the
    /// index, the manifests.
    pub async fn refresh(&self) -> Result<()> {
        self.shared.format.refresh().await?;
        self.shared.contents.refresh().await?;
        self.shared.manifests.reload().await
    }

    /// Publishes what is left. Dropping a repository without closing it loses what was not flushed.
    pub async fn close(self) -> Result<()> {
        self.flush().await
    }
}

/// The format as last read, and what it takes to read it again.
#[derive(Debug)]
struct CurrentFormat {
    store: Arc<dyn BlobStore>,
    environment: Environment,
    upgrade_owner: Option<String>,
    format: RwLock<Arc<Format>>,
}

impl CurrentFormat {
    async fn get(&self) -> Arc<Format> {
        self.format.read().await.clone()
    }

    /// Reads the format again, with all its checks. Parameters that changed take effect at the next opening.
    async fn refresh(&self) -> Result<()> {
        let owner = self.upgrade_owner.as_deref();
        let known = self.get().await;
        let fresh = known.refresh(&*self.store, &self.environment, owner).await?;
        // Whoever goes on in the old index is heard by nobody.
        if fresh.repository().epochs().is_some() != known.repository().epochs().is_some() {
            return Err(Error::FormatChanged);
        }
        *self.format.write().await = Arc::new(fresh);
        Ok(())
    }
}

#[async_trait]
impl WritePermission for CurrentFormat {
    async fn check(&self) -> Result<()> {
        self.refresh().await
    }
}

async fn open_contents(
    options: &OpenOptions,
    store: Arc<dyn BlobStore>,
    current: &Arc<CurrentFormat>,
    listing: Option<Listing>,
) -> Result<ContentStore> {
    let format = current.get().await;
    let environment = options.environment.clone();
    let sealer = Arc::new(sealer(&format, &environment)?);
    let index = match format.repository().epochs() {
        Some(parameters) => {
            let clock = environment.clock.clone();
            IndexBlobs::Epochs(EpochIndex::new(store.clone(), clock, parameters.clone(), listing))
        }
        None => IndexBlobs::Legacy(LegacyIndex::new(store.clone(), sealer.clone())),
    };
    let write_permission: Option<Arc<dyn WritePermission>> = match options.access {
        Access::ReadOnly => None,
        Access::ReadWrite => Some(current.clone()),
    };
    ContentStore::open(ContentOptions {
        store,
        sealer,
        environment,
        format: content_format(&format)?,
        index,
        identity: options.identity.clone(),
        write_permission,
        cache_folder: cache_folder(options, &format).map(|folder| folder.join("index")),
        budget: options.budget.clone(),
        parallel_puts: options.parallel_puts,
        metadata_cache_bytes: options.metadata_cache_bytes,
        runtime: options.runtime.clone(),
    })
    .await
}

/// The part of the cache that belongs to the repository.
fn cache_folder(options: &OpenOptions, format: &Format) -> Option<PathBuf> {
    options.cache_folder.as_ref().map(|cache| cache.join(hex::encode(format.unique_id())))
}

fn check_algorithms(create: &CreateOptions) -> Result<()> {
    HashAlgorithm::from_name(&create.hash)?;
    CipherAlgorithm::from_name(&create.encryption)?;
    SplitterAlgorithm::from_name(&create.splitter)?;
    match &create.error_correction {
        Some((name, _)) if name != ecc::NAME => {
            Err(Error::UnknownAlgorithm { kind: "error correction", name: name.clone() })
        }
        _ => Ok(()),
    }
}

fn sealer(format: &Format, environment: &Environment) -> Result<Sealer> {
    let repository = format.repository();
    let ecc_overhead_percent = match repository.error_correction() {
        Some((name, overhead)) if name == ecc::NAME => Some(overhead),
        Some((name, _)) => {
            return Err(Error::UnknownAlgorithm { kind: "error correction", name: name.to_owned() });
        }
        None => None,
    };
    let keys = SealerKeys {
        hash: HashAlgorithm::from_name(&repository.hash)?,
        hash_secret: repository.hash_secret.expose(),
        cipher: CipherAlgorithm::from_name(&repository.encryption)?,
        master_key: repository.master_key.expose(),
        ecc_overhead_percent,
    };
    Sealer::new(&keys, environment)
}

fn content_format(format: &Format) -> Result<ContentFormat> {
    let repository = format.repository();
    Ok(ContentFormat {
        version: repository.version as u8,
        index_version: repository.index_version(),
        max_pack_size: repository.max_pack_size(),
        recovery_block: format.recovery_block()?.unwrap_or_default().into(),
        retention: format.config().retention()?,
    })
}

#[async_trait]
impl ManifestContents for ContentStore {
    async fn list(&self) -> Result<Vec<ContentId>> {
        let entries = self.iterate(ContentRange::Prefix(Prefix::MANIFEST), Deleted::Skip);
        let collect = move || entries.map(|entry| entry.map(|entry| entry.id)).collect();
        blocking(collect).await?
    }

    async fn read(&self, id: &ContentId) -> Result<Bytes> {
        ContentStore::read(self, id).await
    }

    async fn write(&self, data: Bytes, superseded: &[ContentId]) -> Result<ContentId> {
        let (store, superseded) = (self.clone(), superseded.to_vec());
        let write = move || {
            let compression = Some(Compressor::ZstdFastest);
            let item = ContentToWrite { data: &data, prefix: Prefix::MANIFEST, compression };
            store.write_and_delete(&item, &superseded)
        };
        blocking(write).await?
    }
}
