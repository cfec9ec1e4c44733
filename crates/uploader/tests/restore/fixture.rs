//! A repository in memory whose storage fails on demand, and snapshots made by hand.

use lifeboat_blobs::wrap::fault::{Control, Fault};
use lifeboat_blobs::wrap::{Retry, RetryPolicy};
use lifeboat_blobs::{BlobStore, MemoryStore};
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository as Engine};
use lifeboat_kopia::snapshot::{
    DIRECTORY_PREFIX, DirEntry, DirSummary, DirWriter, EntryType, Extras, GoMode, SourceInfo,
};
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_repository::{DataType, ObjectWriteOptions, Repository};
use lifeboat_uploader::{
    BackupOptions, Cancel, Error, LogDetails, Progress, RestoreOptions, RestoreReport, Result, back_up,
    restore,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub struct Fixture {
    pub runtime: tokio::runtime::Runtime,
    pub engine: Engine,
    pub repository: KopiaRepository,
    pub store: MemoryStore,
    pub faults: Control,
    pub budget: Budget,
    pub folder: TempDir,
    shaky: Arc<dyn BlobStore>,
}

impl Fixture {
    pub fn new() -> Fixture {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let store = MemoryStore::new();
        let shaky = Fault::new(store.clone());
        let faults = shaky.control();
        let policy = RetryPolicy {
            first_delay: Duration::from_millis(1),
            longest_delay: Duration::from_millis(20),
            ..RetryPolicy::default()
        };
        let shaky: Arc<dyn BlobStore> = Arc::new(Retry::new(shaky, policy));
        let budget = Budget::new(96 << 20);
        let engine = runtime.block_on(async {
            let options = options(&shaky, &budget);
            Engine::create(options, &CreateOptions::default(), InitialState::Kopia).await.unwrap()
        });
        let repository = KopiaRepository::new(engine.clone());
        let folder = tempfile::tempdir().unwrap();
        Fixture { runtime, engine, repository, store, faults, budget, folder, shaky }
    }

    /// The repository as another process sees it, which has read nothing of it yet.
    pub fn opened_afresh(&self) -> KopiaRepository {
        let budget = Budget::new(self.budget.total());
        let open = async { Engine::open(options(&self.shaky, &budget)).await.unwrap() };
        KopiaRepository::new(self.runtime.block_on(open))
    }

    /// A path in the test's folder.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Backs up a directory and gives the root of the snapshot.
    pub fn back_up(&self, path: &Path) -> DirEntry {
        let options = BackupOptions {
            path: path.to_path_buf(),
            source: SourceInfo::new("tester", "testhost", path.to_str().unwrap()),
            policies: Policy::defaults().into(),
            parents: Vec::new(),
            description: String::new(),
            placeholders: false,
            log_details: LogDetails::default(),
            extras: true,
            checkpoint_interval: None,
            estimate: false,
            fail_fast: true,
            actions: false,
            force_hash: 0.0,
            upload_limit: None,
            threads: 2,
            budget: self.budget.clone(),
        };
        let (progress, cancel) = (Progress::default(), Cancel::default());
        let manifest = back_up(&self.repository, &options, &progress, &cancel).unwrap();
        self.repository.flush().unwrap();
        manifest.root_entry.unwrap()
    }

    /// Stores bytes as an object.
    pub fn object(&self, data: &[u8]) -> String {
        let options = ObjectWriteOptions { data_type: DataType::Data, ..Default::default() };
        let mut writer = self.repository.new_object(&options).unwrap();
        writer.write(data).unwrap();
        writer.result().unwrap().as_str().to_owned()
    }

    /// An entry of a file with these bytes.
    pub fn file(&self, name: impl AsRef<[u8]>, data: &[u8]) -> DirEntry {
        DirEntry {
            name: name.as_ref().to_vec().into(),
            entry_type: EntryType::File,
            mode: GoMode::from_unix(0o644),
            size: data.len() as u64,
            mtime: "2020-02-02T20:20:20.123456789Z".parse().unwrap(),
            object: self.object(data),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            ..DirEntry::default()
        }
    }

    /// An entry of a symbolic link.
    pub fn link(&self, name: &str, target: &str) -> DirEntry {
        DirEntry { entry_type: EntryType::Symlink, ..self.file(name, target.as_bytes()) }
    }

    /// An entry of a directory with these entries, in this order.
    pub fn directory(&self, name: &str, entries: &[DirEntry]) -> DirEntry {
        let mut listing = DirWriter::new();
        entries.iter().for_each(|entry| listing.push(entry).unwrap());
        let listing = listing.finish(&DirSummary::default()).unwrap();
        self.directory_of(name, &listing)
    }

    /// An entry of a directory with this listing.
    pub fn directory_of(&self, name: &str, listing: &[u8]) -> DirEntry {
        let options = ObjectWriteOptions { prefix: Some(DIRECTORY_PREFIX), ..Default::default() };
        let mut writer = self.repository.new_object(&options).unwrap();
        writer.write(listing).unwrap();
        let object = writer.result().unwrap().as_str().to_owned();
        let entry_type = EntryType::Directory;
        DirEntry { object, entry_type, size: 0, mode: GoMode::from_unix(0o755), ..self.file(name, b"") }
    }

    /// Restores with default options into `target`.
    pub fn restore(&self, root: &DirEntry, target: &Path) -> Result<RestoreReport> {
        self.restore_with(root, &RestoreOptions::new(target))
    }

    pub fn restore_with(&self, root: &DirEntry, options: &RestoreOptions) -> Result<RestoreReport> {
        self.repository.flush().unwrap();
        restore(&self.repository, root, options, &Progress::default(), &Cancel::default())
    }
}

fn options(store: &Arc<dyn BlobStore>, budget: &Budget) -> OpenOptions {
    let identity = ClientIdentity { username: "tester".into(), hostname: "testhost".into() };
    OpenOptions {
        budget: budget.clone(),
        ..OpenOptions::new(store.clone(), Password::new("a password"), identity)
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn with_extras(mut entry: DirEntry, extras: Extras) -> DirEntry {
    entry.extras = Some(Box::new(extras));
    entry
}

/// The report of a restore that failed for some entries, with their paths.
pub fn failures(outcome: Result<RestoreReport>) -> (RestoreReport, Vec<String>) {
    match outcome {
        Err(Error::Unrestored(report)) => {
            let paths = report.failures.iter().map(|failure| failure.path.display().to_string()).collect();
            (*report, paths)
        }
        other => panic!("some entries should have failed: {other:?}"),
    }
}

/// Bytes that do not compress, the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    lifeboat_repository::conformance::noise(seed, length)
}
