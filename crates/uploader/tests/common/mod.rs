//! A repository in a folder that both we and the real kopia write to, and a folder that is backed up.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use lifeboat_blobs::{BlobStore, FsOptions, FsStore};
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::Password;
use lifeboat_kopia::object::ObjectLayout;
use lifeboat_kopia::policy::PolicySet;
use lifeboat_kopia::repo::{OpenOptions, Repository};
use lifeboat_kopia::snapshot::{DirEntries, DirEntry, SnapshotManifest, SourceInfo};
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_repository::{Id, Repository as _};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_uploader::{
    BackupOptions, Cancel, LogDetails, Progress, Totals, apply_retention, back_up, find_parents,
    save_snapshot,
};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

const PASSWORD: &str = "correct horse";
/// What a container with little memory would have.
pub const BUDGET: u64 = 64 << 20;
/// How soon a cancel has to take effect: two seconds are promised, and whatever runs beside the test may take as much time
/// again several times over.
pub const CANCEL_TAKES_EFFECT: Duration = Duration::from_secs(2 + 18);

/// A place for a test.
pub struct Place {
    pub folder: tempfile::TempDir,
    pub kopia: Kopia,
    pub runtime: Runtime,
}

/// An open repository.
pub struct Opened<'a> {
    place: &'a Place,
    pub inner: Repository,
    pub interface: KopiaRepository,
    pub budget: Budget,
}

impl Place {
    pub fn new() -> Place {
        Place::with(&[])
    }

    /// With further flags for the creation of the repository.
    pub fn with(extra: &[&str]) -> Place {
        let place = Place {
            folder: tempfile::tempdir().unwrap(),
            kopia: Kopia::new(PASSWORD).unwrap(),
            runtime: Runtime::new().unwrap(),
        };
        std::fs::create_dir(place.path("repository")).unwrap();
        std::fs::create_dir(place.source()).unwrap();
        let identity = ["--override-hostname=h", "--override-username=u"];
        place.kopia.create_filesystem(&place.path("repository"), &[&identity, extra].concat()).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn source(&self) -> PathBuf {
        self.path("source")
    }

    pub fn source_info(&self) -> SourceInfo {
        SourceInfo::new("u", "h", self.source().to_str().unwrap())
    }

    /// Loses all data; listings and manifests are in other packs.
    pub fn remove_packs_of_data(&self) {
        let folders = std::fs::read_dir(self.path("repository")).unwrap().map(|entry| entry.unwrap().path());
        for packs in folders.filter(|path| path.file_name().is_some_and(|name| name.as_bytes()[0] == b'p')) {
            std::fs::remove_dir_all(packs).unwrap();
        }
    }

    pub fn open(&self) -> Opened<'_> {
        self.open_within(BUDGET)
    }

    /// With so much memory for buffers.
    pub fn open_within(&self, bytes: u64) -> Opened<'_> {
        let open = FsStore::open(FsOptions::new(self.path("repository")));
        self.open_store_within(Arc::new(self.runtime.block_on(open).unwrap()), bytes)
    }

    pub fn open_store(&self, store: Arc<dyn BlobStore>) -> Opened<'_> {
        self.open_store_within(store, BUDGET)
    }

    pub fn open_store_within(&self, store: Arc<dyn BlobStore>, bytes: u64) -> Opened<'_> {
        let _context = self.runtime.enter();
        let identity = ClientIdentity { username: "u".into(), hostname: "h".into() };
        let budget = Budget::new(bytes);
        let mut options = OpenOptions::new(store, Password::new(PASSWORD), identity);
        options.budget = budget.clone();
        let inner = self.runtime.block_on(Repository::open(options)).unwrap();
        Opened { place: self, interface: KopiaRepository::new(inner.clone()), inner, budget }
    }

    /// Backs the source up and saves the snapshot, with extras.
    pub fn back_up(&self) -> (SnapshotManifest, Totals) {
        self.open().back_up(|_| {})
    }
}

impl Opened<'_> {
    /// What a backup of the source is done with.
    pub fn options(&self) -> BackupOptions {
        let source = self.place.source_info();
        let policies = self.place.runtime.block_on(PolicySet::load(self.inner.manifests())).unwrap();
        BackupOptions {
            path: self.place.source(),
            policies: policies.tree(&source).unwrap(),
            parents: find_parents(&self.interface, &source).unwrap(),
            source,
            description: "test".into(),
            extras: true,
            placeholders: true,
            log_details: LogDetails::default(),
            checkpoint_interval: None,
            estimate: false,
            fail_fast: false,
            actions: false,
            force_hash: 0.0,
            upload_limit: None,
            threads: 0,
            budget: self.budget.clone(),
        }
    }

    /// Backs the source up and saves the snapshot.
    pub fn back_up(&self, change: impl FnOnce(&mut BackupOptions)) -> (SnapshotManifest, Totals) {
        let mut options = self.options();
        change(&mut options);
        let progress = Progress::default();
        let mut manifest = back_up(&self.interface, &options, &progress, &Cancel::default()).unwrap();
        save_snapshot(&self.interface, &mut manifest).unwrap();
        let retention = &options.policies.policy().retention;
        apply_retention(&self.interface, &options.source, retention).unwrap();
        self.interface.flush().unwrap();
        (manifest, progress.totals())
    }

    /// Sees what others have published since it was opened.
    pub fn refresh(&self) {
        self.place.runtime.block_on(self.inner.refresh()).unwrap();
    }

    /// The entries of a directory.
    pub fn entries(&self, object: &str) -> Vec<DirEntry> {
        let reader = self.interface.open_object(&Id::new(object)).unwrap();
        DirEntries::new(object, reader).map(Result::unwrap).collect()
    }

    /// How each content of the data of an object is compressed: 0 is not at all.
    pub fn compressions(&self, object: &str) -> Vec<u32> {
        let load = ObjectLayout::load(self.inner.objects(), object.parse().unwrap());
        let layout = self.place.runtime.block_on(load).unwrap();
        let entries = layout.entries().iter().map(|entry| self.inner.contents().lookup(&entry.content));
        entries.map(|entry| entry.unwrap().unwrap().compression).collect()
    }

    /// The entry at a path below the root of a snapshot; its elements are names in listings.
    pub fn entry(&self, snapshot: &SnapshotManifest, path: &str) -> DirEntry {
        let mut entry = snapshot.root_entry.clone().unwrap();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let found = self.entries(&entry.object).into_iter().find(|entry| entry.name == *name);
            entry = found.unwrap_or_else(|| panic!("{path}: there is no {name}"));
        }
        entry
    }
}

pub fn root_object(snapshot: &SnapshotManifest) -> &str {
    snapshot.root_object().unwrap()
}

/// Where a file has data: where each stretch of it begins and ends.
pub fn extents(path: &Path) -> Vec<(u64, u64)> {
    let file = std::fs::File::open(path).unwrap();
    let seek = |to| match rustix::fs::seek(&file, to) {
        Ok(place) => Some(place),
        Err(rustix::io::Errno::NXIO) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(data) = seek(rustix::fs::SeekFrom::Data(at)) {
        at = seek(rustix::fs::SeekFrom::Hole(data)).unwrap();
        found.push((data, at));
    }
    found
}

pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    std::fs::write(path, bytes).unwrap();
}
