//! Creating, connecting, opening and maintaining Kopia repositories.

use super::KopiaRepository;
use super::settings::{self, Settings};
use crate::{
    Error, ErrorKind, MaintenanceMode, MaintenanceOutcome, Readiness, Repository, RepositoryOptions,
    RepositoryService, Result,
};
use lifeboat_blobs::{BlobStore, StoreConfig};
use lifeboat_budget::Budget;
use lifeboat_kopia::connection::{CachingOptions, Connection, StorageInfo};
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{Format, Password};
use lifeboat_kopia::maintenance::Params;
use lifeboat_kopia::repo::{self, Access, InitialState, OpenOptions};
use lifeboat_kopia::{Environment, maintain, velero};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How often Velero asks for maintenance of a Kopia repository.
const MAINTENANCE_FREQUENCY: Duration = Duration::from_secs(3600);

/// The Kopia engine.
#[derive(Debug, Clone)]
pub struct KopiaService {
    runtime: Handle,
    budget: Budget,
    environment: Environment,
}

impl KopiaService {
    /// An engine whose storage calls run on `runtime` and whose buffers draw on `budget`.
    pub fn new(runtime: Handle, budget: Budget) -> Self {
        KopiaService { runtime, budget, environment: Environment::default() }
    }

    fn store(&self, storage: &StorageInfo, create: bool) -> Result<Arc<dyn BlobStore>> {
        let json = serde_json::json!({ "type": storage.storage_type, "config": storage.config });
        let config: StoreConfig = serde_json::from_value(json).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, format!("the storage is not understood: {e}"))
        })?;
        let options = lifeboat_blobs::OpenOptions { create, ..Default::default() };
        let store = self.runtime.block_on(config.open(&options));
        Ok(store.map_err(lifeboat_kopia::Error::from)?)
    }

    fn open_options(
        &self,
        store: Arc<dyn BlobStore>,
        options: &RepositoryOptions,
        identity: ClientIdentity,
    ) -> OpenOptions {
        let _context = self.runtime.enter();
        OpenOptions {
            budget: self.budget.clone(),
            environment: self.environment.clone(),
            runtime: self.runtime.clone(),
            ..OpenOptions::new(store, password(options), identity)
        }
    }

    /// Opens the repository of the connection file.
    fn open_connected(&self, options: &RepositoryOptions, access: Access) -> Result<repo::Repository> {
        let settings = Settings::parse(options)?;
        let connection = Connection::load(&options.config_file)?;
        let store = self.store(connection.storage()?, false)?;
        let identity =
            ClientIdentity { username: connection.username.clone(), hostname: connection.hostname.clone() };
        let mut open = self.open_options(store, options, identity);
        open.cache_folder = connection.caching.map(|caching| PathBuf::from(caching.cache_directory));
        open.access = if connection.readonly || settings.read_only { Access::ReadOnly } else { access };
        Ok(self.runtime.block_on(repo::Repository::open(open))?)
    }

    /// Writes the connection file.
    fn remember(&self, options: &RepositoryOptions, settings: &Settings, storage: StorageInfo) -> Result<()> {
        let mut connection = Connection::new(storage, options.description.clone());
        connection.username.clone_from(&settings.identity.username);
        connection.hostname.clone_from(&settings.identity.hostname);
        connection.readonly = settings.read_only;
        let default_cache = || options.config_file.with_extension("cache");
        let folder = settings.cache_folder.clone().unwrap_or_else(default_cache);
        let bytes = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        connection.caching = Some(CachingOptions {
            cache_directory: folder.to_string_lossy().into_owned(),
            content_cache_size: bytes(settings.data_cache_bytes),
            metadata_cache_size: bytes(settings.metadata_cache_bytes),
            ..CachingOptions::default()
        });
        Ok(connection.save(&options.config_file)?)
    }

    /// Finishes what an interrupted creation left: the owner of maintenance and the marker.
    fn complete(
        &self,
        store: &Arc<dyn BlobStore>,
        options: &RepositoryOptions,
        settings: &Settings,
    ) -> Result<()> {
        let open = self.open_options(store.clone(), options, settings.identity.clone());
        self.runtime.block_on(async {
            let repository = repo::Repository::open(open).await?;
            let mut params = Params::load(repository.manifests()).await?.unwrap_or_default();
            params.owner = velero::MAINTENANCE_OWNER.to_owned();
            self.finish_creation(repository, params, settings).await
        })
    }

    async fn finish_creation(
        &self,
        repository: repo::Repository,
        mut params: Params,
        settings: &Settings,
    ) -> Result<()> {
        if let Some(interval) = settings.full_maintenance_interval {
            params.full.interval = interval.into();
        }
        params.save(repository.manifests()).await?;
        let format = repository.format().await;
        let store = repository.store().clone();
        repository.close().await?;
        // Last of all: it says that everything before is there.
        velero::Marker::write(&*store, &format).await?;
        Ok(())
    }
}

impl RepositoryService for KopiaService {
    fn create(&self, options: &RepositoryOptions) -> Result<()> {
        let settings = Settings::parse(options)?;
        let storage = storage_info(options)?;
        match self.readiness(options)? {
            Readiness::Ready => {
                let store = self.store(&storage, false)?;
                return Err(lifeboat_kopia::Error::AlreadyInitialized { store: store.describe() }.into());
            }
            Readiness::Incomplete => {
                let store = self.store(&storage, false)?;
                self.complete(&store, options, &settings)?;
            }
            Readiness::Absent => {
                let store = self.store(&storage, true)?;
                let open = self.open_options(store, options, settings.identity.clone());
                self.runtime.block_on(async {
                    let created =
                        repo::Repository::create(open, &settings.create, InitialState::Kopia).await?;
                    let owner = velero::MAINTENANCE_OWNER.to_owned();
                    self.finish_creation(created, Params { owner, ..Params::default() }, &settings).await
                })?;
            }
        }
        self.remember(options, &settings, storage)
    }

    fn connect(&self, options: &RepositoryOptions) -> Result<()> {
        let settings = Settings::parse(options)?;
        let storage = storage_info(options)?;
        let store = self.store(&storage, false)?;
        self.runtime.block_on(Format::open(&*store, &password(options), &self.environment, None))?;
        self.remember(options, &settings, storage)
    }

    fn readiness(&self, options: &RepositoryOptions) -> Result<Readiness> {
        Settings::parse(options)?;
        let store = match self.store(&storage_info(options)?, false) {
            Ok(store) => store,
            // A folder or bucket that does not exist holds no repository.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Readiness::Absent),
            Err(error) => return Err(error),
        };
        self.runtime.block_on(async {
            match Format::open(&*store, &password(options), &self.environment, None).await {
                Ok(format) => match velero::Marker::check(&*store, &format).await? {
                    velero::Readiness::Ready => Ok(Readiness::Ready),
                    velero::Readiness::Unmarked => Ok(Readiness::Incomplete),
                },
                Err(lifeboat_kopia::Error::NoRepository { .. }) => Ok(Readiness::Absent),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn open(&self, options: &RepositoryOptions) -> Result<Arc<dyn Repository>> {
        Ok(Arc::new(KopiaRepository::new(self.open_connected(options, Access::ReadWrite)?)))
    }

    fn maintain(&self, options: &RepositoryOptions, mode: MaintenanceMode) -> Result<MaintenanceOutcome> {
        let repository = self.open_connected(options, Access::ReadWrite)?;
        let mode = match mode {
            MaintenanceMode::Auto => maintain::Mode::Auto,
            MaintenanceMode::Quick => maintain::Mode::Quick,
            MaintenanceMode::Full => maintain::Mode::Full,
        };
        let (safety, how) = (maintain::Safety::FULL, maintain::Options::default());
        let run = maintain::run(&repository, mode, &safety, &how);
        let report = self.runtime.block_on(run).map_err(maintenance_error)?;
        self.runtime.block_on(repository.close())?;
        Ok(MaintenanceOutcome {
            ran: report.ran.map(|extent| match extent {
                maintain::Extent::Quick => MaintenanceMode::Quick,
                maintain::Extent::Full => MaintenanceMode::Full,
            }),
            report: report.to_string().lines().map(str::to_owned).collect(),
        })
    }

    fn default_maintenance_frequency(&self) -> Duration {
        MAINTENANCE_FREQUENCY
    }
}

fn maintenance_error(error: maintain::Error) -> Error {
    match error {
        maintain::Error::Repository(error) => error.into(),
        busy @ (maintain::Error::NotOwner { .. } | maintain::Error::Contended) => {
            Error::from_source(ErrorKind::Busy, busy)
        }
        other => Error::from_source(ErrorKind::Other, other),
    }
}

fn password(options: &RepositoryOptions) -> Password {
    Password::new(options.password.reveal())
}

/// The storage that options of the interface name, for engines that have the same kinds of it.
pub fn store_config(options: &RepositoryOptions) -> Result<StoreConfig> {
    Ok(storage_info(options)?.store_config()?)
}

fn storage_info(options: &RepositoryOptions) -> Result<StorageInfo> {
    let mut storage = settings::storage(options)?;
    let config = storage.get_mut("config").map(serde_json::Value::take).unwrap_or_default();
    let storage_type = storage.get("type").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    Ok(StorageInfo { storage_type, config, ..StorageInfo::default() })
}
