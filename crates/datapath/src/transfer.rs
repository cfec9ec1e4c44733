//! The data path itself, without Kubernetes: one volume into a repository, or back out of it.

use crate::resume::distrust_files;
use crate::wire::{AccessPoint, BackupResult, Progress, RestoreResult, VolumeMode};
use lifeboat_blobs::wrap::cached::{CacheOptions, CacheRule, CacheUnit};
use lifeboat_blobs::wrap::{Cached, RetryPolicy};
use lifeboat_blobs::{BlobStore, StoreConfig};
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::Password;
use lifeboat_kopia::policy::{self, PolicySet};
use lifeboat_kopia::repo::{self, Access, OpenOptions};
use lifeboat_kopia::snapshot::{DirEntry, SnapshotManifest, SourceInfo};
use lifeboat_kopia::velero;
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_repository::{ErrorKind, Id, Repository, Secret};
use lifeboat_restic::ResticRepository;
use lifeboat_uploader::{
    BackupOptions, BlockBackupOptions, BlockRestoreOptions, Cancel, Existing, LogDetails, RestoreOptions,
    apply_retention, back_up, back_up_block, find_snapshots, load_snapshot, restore, restore_block,
    save_snapshot,
};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tracing::{info, warn};

/// How often backups save what is there so far.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_mins(10);

/// The longest wait between two tries of a call to the store, so that its return does not go unnoticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why data did not move.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// It was stopped.
    #[error("canceled")]
    Canceled,
    /// The repository failed.
    #[error(transparent)]
    Repository(lifeboat_kopia::Error),
    /// Moving the data failed.
    #[error(transparent)]
    Uploader(lifeboat_uploader::Error),
    /// Nothing is written to repositories of restic.
    #[error("repositories of restic are only read: back up into one of kopia")]
    OnlyRead,
    /// The volume is not what it is said to be.
    #[error("{} is to be moved as a block volume but is not a block device", .0.display())]
    NotADevice(PathBuf),
    /// The volume cannot be looked at.
    #[error("cannot look at the volume at {}: {source}; is the container allowed to use the device?", path.display())]
    NoVolume {
        /// Where it should be.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl From<lifeboat_kopia::Error> for TransferError {
    fn from(error: lifeboat_kopia::Error) -> Self {
        Self::Repository(error)
    }
}

impl From<lifeboat_repository::Error> for TransferError {
    fn from(error: lifeboat_repository::Error) -> Self {
        Self::Uploader(error.into())
    }
}

impl From<lifeboat_uploader::Error> for TransferError {
    fn from(error: lifeboat_uploader::Error) -> Self {
        match error {
            lifeboat_uploader::Error::Cancelled => Self::Canceled,
            other => Self::Uploader(other),
        }
    }
}

impl TransferError {
    /// Whether it is that the system did not allow something.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Uploader(error) => error.is_denied(),
            Self::NoVolume { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            Self::Canceled | Self::Repository(_) | Self::OnlyRead | Self::NotADevice(_) => false,
        }
    }
}

/// Who writes repositories of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Kopia, and we.
    Kopia,
    /// restic did, for earlier releases of Velero.
    Restic,
}

/// An open repository.
#[derive(Debug, Clone)]
pub enum Opened {
    /// One that is read and written.
    Kopia(repo::Repository),
    /// One that is only read.
    Restic(ResticRepository),
}

impl Opened {
    fn interface(&self) -> Box<dyn Repository> {
        match self {
            Self::Kopia(repository) => Box::new(KopiaRepository::new(repository.clone())),
            Self::Restic(repository) => Box::new(repository.clone()),
        }
    }
}

/// Where a repository is and how it is opened.
#[derive(Debug, Clone)]
pub struct Vault {
    /// Of which kind it is.
    pub format: Format,
    /// Its store.
    pub store: StoreConfig,
    /// Its password.
    pub password: Password,
    /// A folder for what need not be read twice.
    pub cache_folder: PathBuf,
    /// How much may be in it, in bytes.
    pub cache_limit: u64,
    /// How long a call to the store is tried again.
    pub patience: Duration,
}

impl Vault {
    /// Opens the repository; it must have been created.
    ///
    /// # Errors
    /// If the store cannot be reached, the password is wrong or there is no repository.
    pub async fn open(&self, budget: &Budget, access: Access) -> Result<Opened, TransferError> {
        match self.format {
            Format::Kopia => Ok(Opened::Kopia(self.open_kopia(budget, access).await?)),
            Format::Restic => Ok(Opened::Restic(self.open_restic(budget).await?)),
        }
    }

    async fn open_restic(&self, budget: &Budget) -> Result<ResticRepository, lifeboat_repository::Error> {
        let options = lifeboat_blobs::OpenOptions { retry: self.retry(), ..Default::default() };
        let store = lifeboat_restic::open_store(&self.store, options).await?;
        let (password, runtime) = (Secret::new(self.password.expose()), Handle::current());
        let budget = budget.clone();
        // It waits for its store by itself, which only a thread that may block can do.
        let open = move || ResticRepository::open(store, &password, runtime, budget);
        tokio::task::spawn_blocking(open).await.unwrap_or_else(|error| {
            let text = format!("opening the repository of restic ended unexpectedly: {error}");
            Err(lifeboat_repository::Error::new(ErrorKind::Other, text))
        })
    }

    async fn open_kopia(
        &self,
        budget: &Budget,
        access: Access,
    ) -> Result<repo::Repository, lifeboat_kopia::Error> {
        let options = lifeboat_blobs::OpenOptions { retry: self.retry(), ..Default::default() };
        let store = self.store.open(&options).await?;
        let listings = CacheRule { prefix: "q".to_owned(), unit: CacheUnit::WholeBlob };
        let cache = CacheOptions {
            folder: self.cache_folder.join("blobs"),
            limit: self.cache_limit,
            store_id: self.store.to_string(),
            rules: vec![listings],
        };
        let store: Arc<dyn BlobStore> = Arc::new(Cached::new(store, cache).await?);
        let identity =
            ClientIdentity { username: velero::IDENTITY.to_owned(), hostname: velero::IDENTITY.to_owned() };
        let mut options = OpenOptions::new(store, self.password.clone(), identity);
        options.access = access;
        options.budget = budget.clone();
        options.cache_folder = Some(self.cache_folder.clone());
        repo::Repository::open(options).await
    }

    /// A store that is away for some minutes, as stores are when they are upgraded, must not cost a run that takes hours. It is
    /// time alone that ends the tries, however many calls are under way.
    fn retry(&self) -> RetryPolicy {
        RetryPolicy {
            attempts: usize::MAX,
            longest_delay: LONGEST_PAUSE,
            deadline: self.patience,
            budget: u32::MAX,
            ..RetryPolicy::default()
        }
    }
}

/// A volume on its way into a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Where the volume is.
    pub path: PathBuf,
    /// What it is.
    pub mode: VolumeMode,
    /// The workflow that asks, a part of the snapshot's identity.
    pub requester: &'static str,
    /// What is backed up, a name such as `<namespace>/<claim>` that is the same for every backup of it.
    pub real_source: String,
    /// Tags of the snapshot beside those that every snapshot has.
    pub tags: BTreeMap<String, String>,
    /// How many files are read at once; 0 for as many as there are processors.
    pub parallel_files: usize,
}

/// A volume on its way back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    /// Where the volume is.
    pub path: PathBuf,
    /// What it is.
    pub mode: VolumeMode,
    /// The snapshot.
    pub snapshot_id: String,
    /// Whether runs of zeros become holes.
    pub sparse: bool,
    /// How many files are written at once; 0 for as many as there are processors.
    pub parallel_files: usize,
    /// Whether another mover has begun with it and was lost: what that has written is not read again from the store.
    pub goes_on: bool,
}

/// How far a transfer is; shared with whoever reports it.
#[derive(Debug, Default)]
pub struct Meter {
    progress: lifeboat_uploader::Progress,
    /// What a restore will come to; a backup counts ahead itself.
    expected: AtomicU64,
}

impl Meter {
    /// How far it is now.
    #[must_use]
    pub fn read(&self) -> Progress {
        let totals = self.progress.totals();
        let total = self.expected.load(Ordering::Relaxed).max(totals.estimated_bytes);
        // While counting is not done the total is behind; nobody wants to see more than all of it.
        let done = if total > 0 { totals.bytes.min(total) } else { totals.bytes };
        Progress { total_bytes: signed(total), done_bytes: signed(done) }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// One transfer with an open repository. Its calls block.
#[derive(Debug)]
pub struct Transfer {
    /// The repository.
    pub repository: Opened,
    /// Where its storage calls run.
    pub runtime: Handle,
    /// The memory for buffers.
    pub budget: Budget,
    /// How far it is.
    pub meter: Arc<Meter>,
    /// Ends it.
    pub cancel: Cancel,
    /// Whether another run is to follow if it is ended: then a backup leaves what is there so far.
    pub to_be_continued: Arc<AtomicBool>,
    /// How often a backup saves what is there so far: so much work is lost at most if its pod is.
    pub checkpoint_interval: Duration,
}

impl Transfer {
    /// Backs a volume up as Velero's snapshots are: with its identity, tags, pin and policy. `all_moved` is called
    /// when all data is in the store; if the transfer is ended for good before that returns, there never is a snapshot.
    ///
    /// # Errors
    /// If anything of the volume could not be stored; there is no snapshot then.
    pub fn back_up(&self, backup: &Backup, all_moved: impl FnOnce()) -> Result<BackupResult, TransferError> {
        let Opened::Kopia(repository) = &self.repository else { return Err(TransferError::OnlyRead) };
        let interface = KopiaRepository::new(repository.clone());
        let source = velero::source(backup.requester, &backup.real_source, "");
        let policies = self.policies(repository, &source, backup.parallel_files)?;
        let retention = policies.policy().retention.clone();
        let taken = match backup.mode {
            VolumeMode::Filesystem => {
                let options = BackupOptions {
                    path: backup.path.clone(),
                    source: source.clone(),
                    policies,
                    parents: parents(&interface, &source, backup.requester)?,
                    description: velero::DESCRIPTION.to_owned(),
                    extras: true,
                    // A volume belongs to whoever runs in the pod, the repository to the cluster.
                    placeholders: false,
                    log_details: LogDetails::default(),
                    checkpoint_interval: Some(self.checkpoint_interval),
                    estimate: true,
                    fail_fast: true,
                    actions: false,
                    force_hash: 0.0,
                    upload_limit: None,
                    threads: 0,
                    budget: self.budget.clone(),
                };
                back_up(&interface, &options, &self.meter.progress, &self.cancel)
            }
            VolumeMode::Block => {
                check_device(&backup.path)?;
                let options = BlockBackupOptions {
                    path: backup.path.clone(),
                    source: source.clone(),
                    policy: (**policies.policy()).clone(),
                    changes: None,
                    actions: false,
                    description: velero::DESCRIPTION.to_owned(),
                    checkpoint_interval: Some(self.checkpoint_interval),
                    threads: backup.parallel_files,
                    budget: self.budget.clone(),
                };
                back_up_block(&interface, &options, &self.meter.progress, &self.cancel)
            }
        };
        let mut taken = taken?;
        let new = interface.written().new;
        if !taken.is_complete() && self.to_be_continued.load(Ordering::Relaxed) {
            let save = || {
                let id = save_snapshot(&interface, &mut taken)?;
                interface.flush()?;
                Ok(id)
            };
            let id = self.cancel.interrupting_save(&interface, save)?;
            info!(%id, "saved what is there so far, for another run");
            return Err(TransferError::Canceled);
        }
        if !taken.is_complete() || self.is_ended_for_good() {
            return self.give_up(&interface, &source);
        }
        check_entries(&taken)?;
        // A snapshot that nobody wants any more would stay for ever: nothing names it. So there is none before that is known.
        self.cancel.interrupting_save(&interface, || Ok(interface.flush()?))?;
        all_moved();
        if self.is_ended_for_good() {
            return self.give_up(&interface, &source);
        }
        taken.tags = velero::tags(backup.requester, &backup.tags);
        taken.update_pins([velero::PIN], []);
        let save = || {
            let id = save_snapshot(&interface, &mut taken)?;
            apply_retention(&interface, &source, &retention)?;
            interface.flush()?;
            Ok(id)
        };
        let id = self.cancel.interrupting_save(&interface, save)?;
        info!(stored = interface.written().stored, "bytes went to the store");
        Ok(self.backed_up(backup, &taken, id, new))
    }

    /// Ends a backup that nobody wants any more. A store that does not answer is not waited for.
    fn give_up<T>(&self, interface: &KopiaRepository, source: &SourceInfo) -> Result<T, TransferError> {
        self.cancel.interrupting_save(interface, || drop_checkpoints(interface, source))?;
        Err(TransferError::Canceled)
    }

    /// Whether nobody wants what it has moved.
    fn is_ended_for_good(&self) -> bool {
        self.cancel.is_cancelled() && !self.to_be_continued.load(Ordering::Relaxed)
    }

    /// What a backup came to; `new` is how much of it the repository did not have.
    fn backed_up(&self, backup: &Backup, taken: &SnapshotManifest, id: Id, new: u64) -> BackupResult {
        let totals = self.meter.progress.totals();
        let excluded = totals.excluded_files + totals.excluded_directories;
        if excluded > 0 {
            let bytes = totals.excluded_bytes;
            warn!(excluded, bytes, "left out what .kopiaignore files and cache directory tags say");
        }
        // Of files, what the parent did not have was read; of a device all is read, so what was new counts.
        let incremental = match backup.mode {
            VolumeMode::Filesystem => totals.hashed_bytes,
            VolumeMode::Block => new,
        };
        info!(snapshot = %id, files = totals.files, bytes = totals.bytes, incremental, "backed up");
        BackupResult {
            snapshot_id: id.into_string(),
            empty_snapshot: false,
            source: access_point(&backup.path, backup.mode),
            total_bytes: taken.stats.total_size,
            incremental_bytes: signed(incremental),
        }
    }

    /// Stores Velero's policy for the source, and gives the policies in force.
    fn policies(
        &self,
        repository: &repo::Repository,
        source: &SourceInfo,
        parallel_files: usize,
    ) -> Result<policy::PolicyTree, lifeboat_kopia::Error> {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        let reads = if parallel_files == 0 { processors() } else { parallel_files };
        let own = velero::policy(i64::try_from(reads).unwrap_or(i64::MAX));
        self.runtime.block_on(async {
            policy::save(repository.manifests(), source, &own).await?;
            PolicySet::load(repository.manifests()).await?.tree(source)
        })
    }

    /// Brings a volume back from a snapshot, and waits until it is on disk. Then `all_moved` is called; if the transfer is
    /// ended for good before that returns, it is not done but cancelled.
    ///
    /// # Errors
    /// If anything of the snapshot could not be restored.
    pub fn restore(&self, job: &Restore, all_moved: impl FnOnce()) -> Result<RestoreResult, TransferError> {
        let interface = self.repository.interface();
        let root = self.root_of(&*interface, &job.snapshot_id)?;
        let bytes = match job.mode {
            VolumeMode::Filesystem => {
                let existing = existing(job);
                let options = RestoreOptions {
                    existing_files: existing,
                    existing_links: existing,
                    // restic keeps what is in a volume and nothing of its root, which stays as it is.
                    attributes_of_target: !matches!(self.repository, Opened::Restic(_)),
                    sparse: job.sparse,
                    sync: true,
                    threads: job.parallel_files,
                    ..RestoreOptions::new(&job.path)
                };
                let report = restore(&*interface, &root, &options, &self.meter.progress, &self.cancel)?;
                if report.ignored_errors > 0 {
                    warn!(count = report.ignored_errors, "attributes could not be set");
                }
                report.bytes
            }
            VolumeMode::Block => {
                check_device(&job.path)?;
                let options = BlockRestoreOptions {
                    target: job.path.clone(),
                    compare: job.goes_on,
                    threads: job.parallel_files,
                };
                restore_block(&*interface, &root, &options, &self.meter.progress, &self.cancel)?.size
            }
        };
        all_moved();
        if self.is_ended_for_good() {
            return Err(TransferError::Canceled);
        }
        info!(snapshot = job.snapshot_id, bytes, "restored");
        Ok(RestoreResult { target: access_point(&job.path, job.mode), total_bytes: signed(bytes) })
    }

    fn root_of(&self, repository: &dyn Repository, snapshot_id: &str) -> Result<DirEntry, TransferError> {
        let snapshot = load_snapshot(repository, &Id::new(snapshot_id))?;
        let damaged = || lifeboat_kopia::Error::DamagedManifest {
            id: snapshot_id.to_owned(),
            reason: "the snapshot has no root".to_owned(),
        };
        let root = snapshot.root_entry.ok_or_else(damaged)?;
        // restic keeps no other sum than that of the root.
        let summed = root.summary.as_ref().map_or(0, |summary| summary.size);
        let size = u64::try_from(snapshot.stats.total_size.max(summed)).unwrap_or(0);
        self.meter.expected.store(size, Ordering::Relaxed);
        Ok(root)
    }
}

/// What a new snapshot is compared with: the one that Velero would choose, and what unfinished runs saved since then.
fn parents(
    repository: &KopiaRepository,
    source: &SourceInfo,
    requester: &str,
) -> Result<Vec<SnapshotManifest>, lifeboat_uploader::Error> {
    let snapshots = find_snapshots(repository, source, &BTreeMap::new())?;
    let complete = velero::parent(&snapshots, requester);
    let later = |snapshot: &&SnapshotManifest| {
        !snapshot.is_complete() && complete.is_none_or(|parent| snapshot.start_time > parent.start_time)
    };
    Ok(complete.into_iter().chain(snapshots.iter().filter(later)).cloned().collect())
}

/// Forgets what a run that nobody wants any more saved on its way.
fn drop_checkpoints(
    repository: &KopiaRepository,
    source: &SourceInfo,
) -> Result<(), lifeboat_uploader::Error> {
    let snapshots = find_snapshots(repository, source, &BTreeMap::new())?;
    let unfinished: Vec<_> = snapshots.iter().filter(|snapshot| !snapshot.is_complete()).collect();
    if unfinished.is_empty() {
        return Ok(());
    }
    for snapshot in unfinished {
        repository.delete_manifest(&Id::new(snapshot.id.as_str()))?;
    }
    Ok(repository.flush()?)
}

/// A snapshot that misses something is none; entries of unknown types are no loss.
fn check_entries(snapshot: &SnapshotManifest) -> Result<(), lifeboat_uploader::Error> {
    let summary = snapshot.root_entry.as_ref().and_then(|root| root.summary.as_ref());
    let Some(summary) = summary.filter(|summary| summary.failed > 0) else { return Ok(()) };
    let first = summary.errors.first();
    Err(lifeboat_uploader::Error::Entries {
        count: u64::try_from(summary.failed).unwrap_or_default(),
        path: first.map(|entry| entry.path.clone()).unwrap_or_default(),
        error: first.map(|entry| entry.error.clone()).unwrap_or_default(),
        denied: false,
    })
}

/// What a restore does with files that are there.
fn existing(job: &Restore) -> Existing {
    if !job.goes_on {
        return Existing::default();
    }
    match distrust_files(&job.path) {
        Ok(files) => {
            info!(files, "a mover was lost: its files are compared, and only what is missing is read");
            Existing::Update
        }
        Err(error) => {
            warn!(%error, "a mover was lost, and its files cannot be told from whole ones: all is restored anew");
            Existing::default()
        }
    }
}

fn check_device(path: &Path) -> Result<(), TransferError> {
    let no_volume = |source| TransferError::NoVolume { path: path.to_owned(), source };
    let found = std::fs::metadata(path).map_err(no_volume)?;
    if found.file_type().is_block_device() { Ok(()) } else { Err(TransferError::NotADevice(path.to_owned())) }
}

fn access_point(path: &Path, mode: VolumeMode) -> AccessPoint {
    AccessPoint { by_path: path.to_string_lossy().into_owned(), volume_mode: mode }
}
