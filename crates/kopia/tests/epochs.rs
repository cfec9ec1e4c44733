//! Epochs in motion: index blobs are written into the right epoch while somebody else advances it.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use async_trait::async_trait;
use bytes::Bytes;
use common::{create, noise, options, worker};
use futures::{FutureExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::MemoryStore;
use lifeboat_blobs::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Payload, PutOptions, Result as BlobResult,
};
use lifeboat_budget::Budget;
use lifeboat_index::Prefix;
use lifeboat_kopia::content::{ContentStore, ContentToWrite, IndexBlobs};
use lifeboat_kopia::epoch::names;
use lifeboat_kopia::format::UpgradeLock;
use lifeboat_kopia::gojson::GoTime;
use lifeboat_kopia::maintain::{self, Mode, Options, Safety};
use lifeboat_kopia::object::WriterOptions;
use lifeboat_kopia::repo::{OpenOptions, Repository};
use lifeboat_kopia::{Clock, Error};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A clock that is set by hand.
#[derive(Debug)]
struct HandClock(Mutex<Timestamp>);

impl HandClock {
    fn advance(&self, by: SignedDuration) {
        let mut now = self.0.lock();
        *now += by;
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

type Hook = Box<dyn Fn(&MemoryStore) + Send + Sync>;

/// Does something right after each put of an index blob.
struct Hooked {
    store: MemoryStore,
    after_index: Hook,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

#[async_trait]
impl BlobStore for Hooked {
    fn describe(&self) -> String {
        "hooked".into()
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> BlobResult<()> {
        self.store.put(id, payload, options).await?;
        if id.as_str().starts_with(names::UNCOMPACTED) {
            (self.after_index)(&self.store);
        }
        Ok(())
    }
    async fn get(&self, id: &BlobId) -> BlobResult<Bytes> {
        self.store.get(id).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> BlobResult<Bytes> {
        self.store.get_range(id, range).await
    }
    async fn head(&self, id: &BlobId) -> BlobResult<BlobMetadata> {
        self.store.head(id).await
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        self.store.list(prefix)
    }
    async fn delete(&self, id: &BlobId) -> BlobResult<()> {
        self.store.delete(id).await
    }
}

fn put(store: &MemoryStore, name: String, bytes: &'static [u8]) {
    let id = BlobId::new(name).unwrap();
    store.put(&id, bytes.into(), &PutOptions::default()).now_or_never().unwrap().unwrap();
}

fn advance(store: &MemoryStore, epochs: u64) {
    let blobs: Vec<BlobMetadata> = store.list(names::MARKER).try_collect().now_or_never().unwrap().unwrap();
    let last = blobs.iter().filter_map(|blob| names::epoch_of(blob.id.as_str())).max().unwrap_or(0);
    (last + 1..=last + epochs).for_each(|epoch| put(store, names::marker(epoch), names::MARKER_CONTENT));
}

async fn write(contents: &ContentStore, seed: u64) {
    let contents = contents.clone();
    worker(move || {
        let data = noise(seed, 100);
        contents.write(&ContentToWrite { data: &data, prefix: Prefix::NONE, compression: None }).unwrap();
    })
    .await;
}

async fn indexes(store: &MemoryStore) -> Vec<u64> {
    let blobs: Vec<BlobMetadata> = store.list(names::UNCOMPACTED).try_collect().await.unwrap();
    let mut epochs: Vec<u64> = blobs.iter().filter_map(|blob| names::epoch_of(blob.id.as_str())).collect();
    epochs.sort_unstable();
    epochs
}

async fn hooked(
    store: &MemoryStore,
    after_index: impl Fn(&MemoryStore) + Send + Sync + 'static,
) -> OpenOptions {
    create(Arc::new(store.clone())).await.close().await.unwrap();
    options(Arc::new(Hooked { store: store.clone(), after_index: Box::new(after_index) }))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_advance_during_a_write_is_harmless() {
    let store = MemoryStore::new();
    let repository = Repository::open(hooked(&store, |store| advance(store, 1)).await).await.unwrap();
    write(repository.contents(), 1).await;
    repository.flush().await.unwrap();
    assert_eq!(indexes(&store).await, [0, 0]);
    write(repository.contents(), 2).await;
    repository.flush().await.unwrap();
    assert_eq!(indexes(&store).await, [0, 0, 1], "the next index goes into the new epoch");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_advances_during_a_write_take_it_back_and_the_next_flush_succeeds() {
    let store = MemoryStore::new();
    let times = Arc::new(Mutex::new(1));
    let hook = move |store: &MemoryStore| {
        let mut times = times.lock();
        if *times > 0 {
            *times -= 1;
            advance(store, 2);
        }
    };
    let repository = Repository::open(hooked(&store, hook).await).await.unwrap();
    write(repository.contents(), 1).await;
    assert!(matches!(repository.flush().await, Err(Error::IndexWriteTooSlow)));
    assert_eq!(indexes(&store).await, [0], "what was written too late is taken back");
    repository.flush().await.unwrap();
    assert_eq!(indexes(&store).await, [0, 2]);
    let fresh = Repository::open(options(Arc::new(store))).await.unwrap();
    assert_eq!(fresh.contents().snapshot().count().unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn knowledge_of_the_epoch_expires() {
    let store = MemoryStore::new();
    let mut options = hooked(&store, |_| ()).await;
    let clock = Arc::new(HandClock(Mutex::new(Timestamp::now())));
    options.environment.clock = clock.clone();
    let repository = Repository::open(options).await.unwrap();
    let IndexBlobs::Epochs(index) = repository.contents().index_blobs() else { panic!("no epochs") };
    assert_eq!(index.current().await.unwrap().state.write_epoch, 0);
    advance(&store, 1);
    clock.advance(SignedDuration::from_mins(19));
    assert_eq!(index.current().await.unwrap().state.write_epoch, 0, "still trusted");
    clock.advance(SignedDuration::from_mins(2));
    assert_eq!(index.current().await.unwrap().state.write_epoch, 1);
    advance(&store, 1);
    // A write asks for knowledge that stays valid for most of its time.
    clock.advance(SignedDuration::from_mins(6));
    write(repository.contents(), 1).await;
    repository.flush().await.unwrap();
    assert_eq!(indexes(&store).await, [0, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watermark_drops_what_was_deleted_before_it() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let contents = repository.contents().clone();
    let id = worker(move || {
        contents.write(&ContentToWrite { data: b"gone", prefix: Prefix::NONE, compression: None }).unwrap()
    })
    .await;
    repository.flush().await.unwrap();
    repository.contents().delete(&id).unwrap();
    repository.flush().await.unwrap();
    let deleted = repository.contents().lookup(&id).unwrap().unwrap().timestamp_seconds;
    put(&store, names::watermark(deleted - 1), names::WATERMARK_CONTENT);
    repository.refresh().await.unwrap();
    assert!(repository.contents().lookup(&id).unwrap().is_some());
    put(&store, names::watermark(deleted), names::WATERMARK_CONTENT);
    repository.refresh().await.unwrap();
    assert!(repository.contents().lookup(&id).unwrap().is_none());
    assert!(matches!(repository.contents().read(&id).await, Err(Error::ContentNotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn long_runs_publish_and_look_again_by_themselves() {
    let store = MemoryStore::new();
    let mut options = hooked(&store, |_| ()).await;
    let clock = Arc::new(HandClock(Mutex::new(Timestamp::now())));
    options.environment.clock = clock.clone();
    let repository = Repository::open(options).await.unwrap();
    write(repository.contents(), 1).await;
    assert_eq!(indexes(&store).await.len(), 1);
    clock.advance(SignedDuration::from_mins(11));
    write(repository.contents(), 2).await;
    for _ in 0..500 {
        if indexes(&store).await.len() > 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(indexes(&store).await.len(), 2, "ten minutes after the last flush there is another one");

    let other = Repository::open(common::options(Arc::new(store.clone()))).await.unwrap();
    write(other.contents(), 3).await;
    other.flush().await.unwrap();
    let known = repository.contents().snapshot().count().unwrap();
    clock.advance(SignedDuration::from_mins(16));
    let packed = repository.contents().totals().packed_bytes;
    write(repository.contents(), 3).await;
    assert_eq!(repository.contents().totals().packed_bytes, packed, "what others wrote is found");
    assert!(repository.contents().snapshot().count().unwrap() > known);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_does_not_wait_for_memory_to_compact_the_index_which_is_left_to_maintenance() {
    let store = MemoryStore::new();
    create(Arc::new(store.clone())).await.close().await.unwrap();
    let mut options = options(Arc::new(store.clone()));
    options.budget = Budget::new(16 << 20);
    let budget = options.budget.clone();
    let repository = Repository::open(options).await.unwrap();
    // A shard of so many entries takes more than the mebibyte that is left below.
    let objects = repository.objects().clone();
    worker(move || {
        let data: Vec<Vec<u8>> = (0..20_000_u64).map(|number| noise(number, 16)).collect();
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        objects.write_many(&data, &WriterOptions::default()).unwrap();
    })
    .await;
    repository.flush().await.unwrap();
    advance(&store, 2);
    repository.refresh().await.unwrap();
    let compacted = || {
        let listed = store.list(names::SINGLE).try_collect::<Vec<BlobMetadata>>();
        listed.now_or_never().unwrap().unwrap().len()
    };

    let held = budget.try_reserve(budget.total() - budget.used() - (1 << 20)).unwrap();
    write(repository.contents(), 1).await;
    let flush = tokio::time::timeout(Duration::from_secs(60), repository.flush());
    flush
        .await
        .unwrap_or_else(|_| panic!("the flush waits for memory that is held for as long as it takes"))
        .unwrap();
    assert_eq!(compacted(), 0);

    // Maintenance may wait.
    let maintain = tokio::spawn({
        let repository = repository.clone();
        async move { maintain::run(&repository, Mode::Quick, &Safety::FULL, &Options::default()).await }
    });
    drop(held);
    let report = maintain.await.unwrap().unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(compacted(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_is_locked_for_an_upgrade_is_left_alone_during_long_runs() {
    let store = MemoryStore::new();
    let mut options = hooked(&store, |_| ()).await;
    let clock = Arc::new(HandClock(Mutex::new(Timestamp::now())));
    options.environment.clock = clock.clone();
    let repository = Repository::open(options).await.unwrap();
    write(repository.contents(), 1).await;
    let lock =
        UpgradeLock { owner_id: "somebody".into(), creation_time: GoTime(clock.now()), ..Default::default() };
    let mut format = (*repository.format().await).clone();
    let environment = repository.environment().clone();
    format.set_parameters(&store, &environment, |format, _| format.upgrade_lock = Some(lock)).await.unwrap();
    clock.advance(SignedDuration::from_mins(16));
    let contents = repository.contents().clone();
    let refused = worker(move || {
        contents.write(&ContentToWrite { data: b"late", prefix: Prefix::NONE, compression: None })
    })
    .await;
    assert!(
        matches!(&refused, Err(Error::UpgradeInProgress { owner, .. }) if owner == "somebody"),
        "{refused:?}"
    );
}
