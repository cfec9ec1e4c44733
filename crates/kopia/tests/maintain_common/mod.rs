//! A small world for the tests of maintenance: a store and a client that share a clock which the test moves.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::{
    BlobId, BlobMetadata, BlobStore, ErrorKind, FsOptions, FsStore, MemoryStore, Operation, PutOptions,
};
use lifeboat_budget::Budget;
use lifeboat_index::Prefix;
use lifeboat_kopia::content::{ClientIdentity, ContentToWrite};
use lifeboat_kopia::format::{CreateOptions, Format, Password, RepositoryFormat};
use lifeboat_kopia::maintain::{self, Mode, Options, Report, Safety};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::object::{ObjectId, WriterOptions};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_kopia::snapshot::{
    self, DirEntries, DirEntry, DirWriter, EntryType, SnapshotManifest, SourceInfo, SummaryBuilder,
};
use lifeboat_kopia::verify::{self, VerifyContents, VerifySnapshots};
use lifeboat_kopia::{Clock, Environment};
use lifeboat_primitives::kdf::KeyAlgorithm;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

pub const PASSWORD: &str = "correct horse";

const MINUTE: i64 = 60_000_000_000;

/// A clock that stands still until it is moved.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    pub fn new() -> Self {
        ManualClock(Arc::new(AtomicI64::new(1_750_000_000)))
    }

    pub fn advance(&self, by: SignedDuration) {
        self.0.fetch_add(by.as_secs(), Ordering::SeqCst);
    }

    pub fn set(&self, to: Timestamp) {
        self.0.store(to.as_second(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::SeqCst)).unwrap()
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'_, ()> {
        self.0.fetch_add(time.as_secs() as i64, Ordering::SeqCst);
        std::future::ready(()).boxed()
    }
}

pub fn hours(count: i64) -> SignedDuration {
    SignedDuration::from_hours(count)
}

/// Files by path; paths have at most one slash.
pub type Files = BTreeMap<String, Vec<u8>>;

pub fn files(list: &[(&str, u64, usize)]) -> Files {
    list.iter().map(|(path, seed, len)| ((*path).to_owned(), noise(*seed, *len))).collect()
}

/// Pseudo-random bytes that never repeat within a test.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = vec![0; len.next_multiple_of(8)];
    for word in data.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    data.truncate(len);
    data
}

/// A store in memory, with the clock that it goes by and the password, which copies of the world share: its key is derived once.
#[derive(Debug, Clone)]
pub struct World {
    pub clock: ManualClock,
    pub store: MemoryStore,
    password: Password,
}

impl World {
    pub fn new() -> Self {
        World::with(Password::new(PASSWORD))
    }

    fn with(password: Password) -> Self {
        let clock = ManualClock::new();
        let server = clock.clone();
        World { store: MemoryStore::with_clock(move || server.now()), clock, password }
    }

    /// The same blobs with the same times in a store of its own.
    pub async fn fork(&self) -> World {
        let fork = World::with(self.password.clone());
        for blob in self.list("").await {
            fork.clock.set(blob.modified);
            let bytes = self.store.get(&blob.id).await.unwrap();
            fork.store.put(&blob.id, bytes.into(), &PutOptions::default()).await.unwrap();
        }
        fork.clock.set(self.clock.now());
        fork
    }

    pub fn options(&self) -> OpenOptions {
        self.options_on(Arc::new(self.store.clone()))
    }

    /// To open the repository through another store, such as one that fails.
    pub fn options_on(&self, store: Arc<dyn BlobStore>) -> OpenOptions {
        let identity = ClientIdentity { username: "tester".into(), hostname: "testhost".into() };
        let mut options = OpenOptions::new(store, self.password.clone(), identity);
        options.budget = Budget::new(32 << 20);
        options.environment = Environment { clock: Arc::new(self.clock.clone()), ..Environment::default() };
        options
    }

    pub async fn create(&self, version: u8) -> Repository {
        let create = CreateOptions {
            version,
            key_algorithm: KeyAlgorithm::Pbkdf2,
            splitter: "DYNAMIC-128K-BUZHASH".into(),
            ..CreateOptions::default()
        };
        Repository::create(self.options(), &create, InitialState::Kopia).await.unwrap()
    }

    pub async fn open(&self) -> Repository {
        Repository::open(self.options()).await.unwrap()
    }

    pub async fn list(&self, prefix: &str) -> Vec<BlobMetadata> {
        self.store.list(prefix).try_collect().await.unwrap()
    }

    pub async fn names(&self, prefix: &str) -> Vec<String> {
        self.list(prefix).await.into_iter().map(|blob| blob.id.to_string()).collect()
    }

    pub async fn get(&self, blob: &BlobId) -> Vec<u8> {
        self.store.get(blob).await.unwrap().to_vec()
    }

    pub async fn put(&self, blob: &BlobId, bytes: &[u8]) {
        self.store.put(blob, bytes.to_vec().into(), &PutOptions::default()).await.unwrap();
    }

    pub async fn delete(&self, blob: &BlobId) {
        self.store.delete(blob).await.unwrap();
    }

    /// The same blobs in a folder that others can use.
    pub async fn export(&self, folder: &Path) {
        let store = FsStore::create(FsOptions::new(folder.to_owned())).await.unwrap();
        for blob in self.list("").await {
            let bytes = self.get(&blob.id).await;
            store.put(&blob.id, bytes.into(), &PutOptions::default()).await.unwrap();
        }
    }

    /// Bytes in packs with user data.
    pub async fn data_bytes(&self) -> u64 {
        self.list("p").await.iter().map(|blob| blob.size).sum()
    }
}

pub async fn full(repository: &Repository) -> Report {
    run(repository, Mode::Full, &Safety::FULL).await
}

pub async fn run(repository: &Repository, mode: Mode, safety: &Safety) -> Report {
    maintain::run(repository, mode, safety, &Options::default()).await.unwrap()
}

async fn write_objects(
    repository: &Repository,
    data: Vec<Vec<u8>>,
    prefix: Prefix,
) -> lifeboat_kopia::Result<Vec<ObjectId>> {
    let objects = repository.objects().clone();
    let write = move || {
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        objects.write_many(&data, &WriterOptions { prefix, ..WriterOptions::default() })
    };
    tokio::task::spawn_blocking(write).await.unwrap()
}

async fn write_directory(
    repository: &Repository,
    mut entries: Vec<DirEntry>,
    name: &str,
) -> lifeboat_kopia::Result<DirEntry> {
    entries.sort_by(DirEntry::listing_order);
    let (mut writer, mut summary) = (DirWriter::new(), SummaryBuilder::default());
    for entry in &entries {
        writer.push(entry).unwrap();
        summary.add(entry);
    }
    let summary = summary.build(Timestamp::UNIX_EPOCH, "");
    let listing = writer.finish(&summary).unwrap();
    let object = write_objects(repository, vec![listing], Prefix::DIRECTORY).await?[0];
    Ok(DirEntry {
        name: name.into(),
        entry_type: EntryType::Directory,
        object: object.to_string(),
        summary: Some(summary),
        ..DirEntry::default()
    })
}

/// Writes files and directories; they are published by the next flush.
pub async fn write_tree(repository: &Repository, files: &Files) -> DirEntry {
    try_write_tree(repository, files).await.unwrap()
}

/// The same on a store that may fail.
pub async fn try_write_tree(repository: &Repository, files: &Files) -> lifeboat_kopia::Result<DirEntry> {
    let objects = write_objects(repository, files.values().cloned().collect(), Prefix::NONE).await?;
    let mut folders: BTreeMap<&str, Vec<DirEntry>> = BTreeMap::new();
    for ((path, data), object) in files.iter().zip(objects) {
        let (folder, name) = path.split_once('/').unwrap_or(("", path));
        folders.entry(folder).or_default().push(DirEntry {
            name: name.into(),
            entry_type: EntryType::File,
            size: data.len() as u64,
            object: object.to_string(),
            ..DirEntry::default()
        });
    }
    let mut top = folders.remove("").unwrap_or_default();
    for (folder, entries) in folders {
        top.push(write_directory(repository, entries, folder).await?);
    }
    write_directory(repository, top, "root").await
}

/// Saves a snapshot of a tree; it is published by the next flush.
pub async fn save_snapshot(repository: &Repository, root: DirEntry) -> ManifestId {
    try_save_snapshot(repository, root).await.unwrap()
}

/// The same on a store that may fail.
pub async fn try_save_snapshot(
    repository: &Repository,
    root: DirEntry,
) -> lifeboat_kopia::Result<ManifestId> {
    let now = repository.environment().clock.now();
    let mut snapshot = SnapshotManifest {
        source: SourceInfo::new("tester", "testhost", "/data"),
        start_time: now,
        end_time: now,
        root_entry: Some(root),
        ..SnapshotManifest::default()
    };
    snapshot::save(repository.manifests(), &mut snapshot).await
}

/// Writes a snapshot and saves it; it is published by the next flush.
pub async fn write_snapshot(repository: &Repository, files: &Files) -> ManifestId {
    let root = write_tree(repository, files).await;
    save_snapshot(repository, root).await
}

/// Makes epochs short, so that a few index blobs are enough for all that can happen to them.
pub async fn quicken_epochs(world: &World, repository: Repository, checkpoint_every: i64) -> Repository {
    let environment = repository.environment().clone();
    let mut format = Format::open(&world.store, &world.password, &environment, None).await.unwrap();
    let quicken = move |format: &mut RepositoryFormat, _: &mut _| {
        if let Some(epochs) = &mut format.epoch_parameters {
            epochs.epoch_refresh_frequency = 3 * MINUTE;
            epochs.min_epoch_duration = 10 * MINUTE;
            epochs.cleanup_safety_margin = 60 * MINUTE;
            epochs.epoch_advance_on_count_threshold = 10;
            epochs.full_checkpoint_frequency = checkpoint_every;
        }
    };
    format.set_parameters(&world.store, &environment, quicken).await.unwrap();
    world.open().await
}

/// A content that no snapshot needs, in a pack and an index blob of its own.
pub async fn write_orphan(repository: &Repository, seed: u64) {
    let contents = repository.contents().clone();
    let write = move || {
        let data = noise(seed, 100);
        contents.write(&ContentToWrite { data: &data, prefix: Prefix::NONE, compression: None }).unwrap();
    };
    tokio::task::spawn_blocking(write).await.unwrap();
    repository.flush().await.unwrap();
}

/// Takes a snapshot, whole and published.
pub async fn take_snapshot(repository: &Repository, files: &Files) -> ManifestId {
    let id = write_snapshot(repository, files).await;
    repository.flush().await.unwrap();
    id
}

pub async fn delete_snapshot(repository: &Repository, id: &ManifestId) {
    repository.manifests().delete(id).await.unwrap();
    repository.flush().await.unwrap();
}

/// The files of a snapshot, read back.
pub async fn restore(repository: &Repository, id: &ManifestId) -> Files {
    let snapshot = snapshot::load(repository.manifests(), id).await.unwrap();
    let mut files = Files::new();
    let mut folders = vec![(String::new(), snapshot.root_entry.unwrap().object)];
    while let Some((path, object)) = folders.pop() {
        let listing = repository.objects().read_all(object.parse().unwrap(), 1 << 30).await.unwrap();
        for entry in DirEntries::new(object, &listing[..]) {
            let entry = entry.unwrap();
            let path = format!("{path}{}", entry.name);
            match entry.is_dir() {
                true => folders.push((path + "/", entry.object)),
                false => {
                    let data =
                        repository.objects().read_all(entry.object.parse().unwrap(), 1 << 30).await.unwrap();
                    files.insert(path, data.to_vec());
                }
            }
        }
    }
    files
}

/// Fails unless exactly these snapshots are there and every byte of them is, and the index is sound.
pub async fn assert_whole(repository: &Repository, expected: &BTreeMap<ManifestId, Files>) {
    let list = repository.snapshots().await.unwrap();
    assert!(list.damaged.is_empty(), "{:?}", list.damaged);
    let mut found: Vec<_> = list.snapshots.into_iter().map(|snapshot| snapshot.id).collect();
    found.sort();
    assert_eq!(found, expected.keys().cloned().collect::<Vec<_>>());
    for (id, files) in expected {
        assert!(restore(repository, id).await == *files, "snapshot {id} differs");
    }
    assert_sound(repository).await;
}

/// Fails unless every content and every snapshot verifies.
pub async fn assert_sound(repository: &Repository) {
    let mut damages = Vec::new();
    let options = VerifyContents { full: true, ..VerifyContents::default() };
    verify::contents(repository, &options, &mut |damage| damages.push(format!("{damage:?}"))).await.unwrap();
    let options = VerifySnapshots { read_percent: 100, ..VerifySnapshots::default() };
    verify::snapshots(repository, &options, &mut |damage| damages.push(format!("{damage:?}"))).await.unwrap();
    assert!(damages.is_empty(), "{damages:#?}");
}

pub fn id(name: &str) -> BlobId {
    BlobId::new(name).unwrap()
}

/// Whether everything is played that takes long.
pub fn long() -> bool {
    std::env::var_os("LIFEBOAT_LONG").is_some()
}

/// How late a late answer is.
const DELAY: Duration = Duration::from_millis(20);

/// Every way in which a call is struck: the table in `fault_suite.rs` says what each stands for.
pub fn actions(operation: Operation) -> Vec<Action> {
    let mut actions = vec![
        Action::CrashBefore,
        Action::CrashAfter,
        Action::FailBefore(ErrorKind::Transient),
        Action::FailBefore(ErrorKind::Other),
        Action::Delay(DELAY),
    ];
    actions.extend(match operation {
        Operation::Put | Operation::Delete | Operation::Retain => {
            vec![Action::FailAfter(ErrorKind::Transient), Action::Duplicate]
        }
        Operation::List => vec![
            Action::BreakListing { every: 1 },
            Action::Stale,
            Action::CutListing { after: 0 },
            Action::CutListing { after: 2 },
        ],
        _ => vec![Action::Duplicate, Action::Stale],
    });
    actions
}

/// Plays scenarios that know nothing of each other, each on a thread of its own and as many at once as there are processors;
/// returns how many there were. Each comes with its name, which is told if it fails.
pub async fn play_all<T, F>(
    scenarios: impl IntoIterator<Item = (String, T)>,
    play: impl Fn(String, T) -> F + Clone + Send + 'static,
) -> usize
where
    T: Send + 'static,
    F: Future<Output = ()>,
{
    let at_once = std::thread::available_parallelism().map_or(2, usize::from);
    let played = stream::iter(scenarios).map(|(name, scenario)| {
        let (play, told) = (play.clone(), name.clone());
        let thread = move || Handle::current().block_on(play(name, scenario));
        tokio::task::spawn_blocking(thread)
            .map(move |outcome| outcome.map_err(|error| format!("{told}: {error}")))
    });
    played.buffer_unordered(at_once).map(Result::unwrap).count().await
}

/// Makes every listing with exactly this prefix end early; those with a longer one are left alone.
pub fn cut_listings(control: &Control, prefix: &str, after: usize) {
    // The first rule that applies decides.
    for more in ('0'..='9').chain('a'..='z') {
        control.plan(Rule::on(Operation::List).prefix(format!("{prefix}{more}")).times(u64::MAX));
    }
    let cut = Action::CutListing { after };
    control.plan(Rule::on(Operation::List).prefix(prefix).times(u64::MAX).action(cut));
}
