//! Finding and opening restic repositories.

use crate::ResticRepository;
use crate::errors::{of_storage, read_only};
use crate::storage::Storage;
use lifeboat_blobs::{BlobStore, OpenOptions, StoreConfig};
use lifeboat_budget::Budget;
use lifeboat_repository::{
    Error, ErrorKind, MaintenanceMode, MaintenanceOutcome, Readiness, Repository, RepositoryOptions,
    RepositoryService, Result,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// How often Velero asks for maintenance of a restic repository.
const MAINTENANCE_FREQUENCY: Duration = Duration::from_secs(7 * 24 * 3600);

/// Opens the storage of a restic repository, for reading whatever `options` say. Its prefix is a folder, whether it ends
/// with `/` or not.
pub async fn open_store(config: &StoreConfig, options: OpenOptions) -> Result<Arc<dyn BlobStore>> {
    let mut config = config.clone();
    let prefix = match &mut config {
        StoreConfig::S3(s3) => Some(&mut s3.prefix),
        StoreConfig::Gcs(gcs) => Some(&mut gcs.prefix),
        StoreConfig::Azure(azure) => Some(&mut azure.prefix),
        _ => None,
    };
    if let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty() && !prefix.ends_with('/')) {
        prefix.push('/');
    }
    let options = OpenOptions { read_only: true, plain_folder: true, ..options };
    config.open(&options).await.map_err(|error| of_storage(&error))
}

/// The restic engine. It needs no connection file: options say where the repository is each time.
#[derive(Debug, Clone)]
pub struct ResticService {
    runtime: Handle,
    budget: Budget,
}

impl ResticService {
    /// An engine whose storage calls run on `runtime` and whose buffers draw on `budget`.
    pub fn new(runtime: Handle, budget: Budget) -> Self {
        ResticService { runtime, budget }
    }

    fn store(&self, options: &RepositoryOptions) -> Result<Arc<dyn BlobStore>> {
        if let Some(name) = options.general_options.keys().next() {
            let text = format!("the option {name:?} is not known: restic repositories have none");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let config = lifeboat_repository::kopia::store_config(options)?;
        self.runtime.block_on(open_store(&config, OpenOptions::default()))
    }

    fn open_repository(&self, options: &RepositoryOptions) -> Result<ResticRepository> {
        let store = self.store(options)?;
        ResticRepository::open(store, &options.password, self.runtime.clone(), self.budget.clone())
    }
}

impl RepositoryService for ResticService {
    fn create(&self, _: &RepositoryOptions) -> Result<()> {
        Err(read_only("create a restic repository"))
    }

    /// Checks the password; there is nothing to remember.
    fn connect(&self, options: &RepositoryOptions) -> Result<()> {
        self.open_repository(options).map(drop)
    }

    fn readiness(&self, options: &RepositoryOptions) -> Result<Readiness> {
        let store = match self.store(options) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Readiness::Absent),
            store => store?,
        };
        match Storage::new(store, self.runtime.clone()).has_config()? {
            true => Ok(Readiness::Ready),
            false => Ok(Readiness::Absent),
        }
    }

    fn open(&self, options: &RepositoryOptions) -> Result<Arc<dyn Repository>> {
        Ok(Arc::new(self.open_repository(options)?))
    }

    fn maintain(&self, _: &RepositoryOptions, _: MaintenanceMode) -> Result<MaintenanceOutcome> {
        Err(read_only("maintain a restic repository"))
    }

    fn default_maintenance_frequency(&self) -> Duration {
        MAINTENANCE_FREQUENCY
    }
}
