//! Scattered reads: few requests, every error with its own object, bounded memory, an end when it is wanted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{create, create_with, noise, options, worker};
use lifeboat_blobs::wrap::fault::{Action, Control, Fault, Rule};
use lifeboat_blobs::wrap::{Retry, RetryPolicy};
use lifeboat_blobs::{BlobId, BlobStore, ErrorKind, MemoryStore, Operation, PutOptions};
use lifeboat_budget::Budget;
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::object::{
    Destination, ObjectId, Objects, PositionalOptions, ScatterOptions, ScatterTotals, Wanted, WriterOptions,
};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::{Error, Result};
use lifeboat_primitives::compress::Compressor;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An object in memory.
#[derive(Default)]
struct Collected {
    bytes: Mutex<Vec<u8>>,
    came: AtomicU64,
    outcome: Mutex<Option<Result<u64>>>,
}

impl Collected {
    fn assert_is(&self, data: &[u8]) {
        let outcome = self.outcome.lock().unwrap().take();
        assert_eq!(outcome.unwrap().unwrap(), data.len() as u64);
        assert_eq!(self.came.load(Ordering::Relaxed), data.len() as u64);
        assert!(*self.bytes.lock().unwrap() == data);
    }
}

impl Destination for &Collected {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        let mut all = self.bytes.lock().unwrap();
        let end = offset as usize + bytes.len();
        let len = all.len().max(end);
        all.resize(len, 0);
        all[offset as usize..end].copy_from_slice(bytes);
        self.came.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        ControlFlow::Continue(())
    }

    fn zeros(&self, offset: u64, length: u64) -> ControlFlow<()> {
        self.deliver(offset, &vec![0; length as usize])
    }

    fn kept(&self, _: u64, _: u64) -> ControlFlow<()> {
        panic!("nothing was compared")
    }

    fn read_back(&self, _: u64, _: &mut [u8]) -> bool {
        panic!("nothing is compared")
    }

    fn finished(&self, outcome: Result<u64>) {
        assert!(self.outcome.lock().unwrap().replace(outcome).is_none(), "an object ends once");
    }
}

/// Reads objects on a worker thread.
async fn read(objects: &Objects, ids: Vec<ObjectId>) -> (Result<ScatterTotals>, Vec<Collected>) {
    let objects = objects.clone();
    worker(move || {
        let to: Vec<Collected> = ids.iter().map(|_| Collected::default()).collect();
        let wanted = ids.iter().zip(&to);
        let wanted = wanted.map(|(object, to)| Wanted { object: *object, to, compare: false });
        let totals = objects.read_scattered(wanted, ScatterOptions { threads: 2, stop: &|| false });
        (totals, to)
    })
    .await
}

async fn write_all(objects: &Objects, data: Vec<Vec<u8>>, options: WriterOptions) -> Vec<ObjectId> {
    let objects = objects.clone();
    worker(move || {
        let write = |data: &Vec<u8>| {
            let mut writer = objects.writer(options.clone());
            writer.write(data).unwrap();
            writer.finish().unwrap()
        };
        data.iter().map(write).collect()
    })
    .await
}

fn small_files() -> Vec<Vec<u8>> {
    (0..3000).map(|seed| noise(seed, 100 + (seed as usize * 37) % 4000)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_small_objects_take_a_handful_of_reads() {
    let repository = create(Arc::new(MemoryStore::new())).await;
    let data = small_files();
    let mut ids = write_all(repository.objects(), data.clone(), WriterOptions::default()).await;
    repository.flush().await.unwrap();
    ids.reverse();
    let (totals, to) = read(repository.objects(), ids).await;
    to.iter().zip(data.iter().rev()).for_each(|(to, data)| to.assert_is(data));
    let totals = totals.unwrap();
    assert!(totals.reads <= 5, "{totals:?}");
    let size: usize = data.iter().map(Vec::len).sum();
    assert!(totals.bytes < size as u64 * 11 / 10, "{totals:?} for {size}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_of_compressing_and_every_format_comes_back() {
    for version in [1, 2, 3] {
        for compression in [None, Some(Compressor::Zstd)] {
            let create =
                CreateOptions { splitter: "DYNAMIC-128K-BUZHASH".into(), version, ..Default::default() };
            let repository = create_with(options(Arc::new(MemoryStore::new())), &create).await;
            let mut text = b"all work and no play ".repeat(60_000);
            text[200_000..500_000].copy_from_slice(&noise(3, 300_000));
            let data = vec![text, b"short ".repeat(300), noise(4, 900_000), Vec::new(), vec![0; 700_000]];
            let how = WriterOptions { compression, ..WriterOptions::default() };
            let ids = write_all(repository.objects(), data.clone(), how).await;
            repository.flush().await.unwrap();
            let (totals, to) = read(repository.objects(), ids).await;
            totals.unwrap();
            to.iter().zip(&data).for_each(|(to, data)| to.assert_is(data));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_index_has_an_index_is_streamed() {
    let create = CreateOptions { splitter: "FIXED-128K".into(), ..Default::default() };
    let repository = create_with(options(Arc::new(MemoryStore::new())), &create).await;
    let objects = repository.objects().clone();
    let positional = PositionalOptions {
        writer: WriterOptions::default(),
        chunk_size: 4096,
        parent: None,
        length: Some(40 << 20),
    };
    let writer = objects.positional_writer(positional).await.unwrap();
    let mut data = vec![0; 40 << 20];
    let id = worker(move || {
        for at in [5, 4096, 20_000_000] {
            writer.write_at(at, &noise(at, 100_000)).unwrap();
        }
        writer.finish().unwrap()
    })
    .await;
    for at in [5usize, 4096, 20_000_000] {
        data[at..at + 100_000].copy_from_slice(&noise(at as u64, 100_000));
    }
    assert!(id.levels() >= 2, "{id}");
    repository.flush().await.unwrap();
    let (totals, to) = read(&objects, vec![id, id]).await;
    totals.unwrap();
    to.iter().for_each(|to| to.assert_is(&data));
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_fails_the_objects_that_it_hits_and_no_other() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let data = small_files();
    let ids = write_all(repository.objects(), data.clone(), WriterOptions::default()).await;
    repository.flush().await.unwrap();
    let entry = repository.contents().resolve(&ids[7].content()).unwrap().entry;
    let pack = BlobId::new(entry.pack.as_str()).unwrap();
    let mut bytes = store.get(&pack).await.unwrap().to_vec();
    bytes[entry.pack_offset as usize + 20] ^= 1;
    // The last objects are cut off.
    let cut = repository.contents().resolve(&ids[2990].content()).unwrap().entry;
    assert_eq!(cut.pack, entry.pack);
    bytes.truncate(cut.pack_offset as usize + 5);
    store.put(&pack, bytes.into(), &PutOptions::default()).await.unwrap();
    let (totals, to) = read(repository.objects(), ids.clone()).await;
    totals.unwrap();
    for (number, (to, data)) in to.iter().zip(&data).enumerate() {
        let at = repository.contents().resolve(&ids[number].content()).unwrap().entry.pack_offset;
        if number == 7 || at >= cut.pack_offset {
            let error = to.outcome.lock().unwrap().take().unwrap().unwrap_err();
            assert!(matches!(error, Error::DamagedContent { .. }), "{number}: {error}");
        } else {
            to.assert_is(data);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_pack_fails_its_objects_with_its_name() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let data = vec![noise(1, 1000), noise(2, 30 << 20)];
    let ids = write_all(repository.objects(), data.clone(), WriterOptions::default()).await;
    repository.flush().await.unwrap();
    let pack = repository.contents().resolve(&ids[0].content()).unwrap().entry.pack;
    store.delete(&BlobId::new(pack.as_str()).unwrap()).await.unwrap();
    let (totals, to) = read(repository.objects(), ids).await;
    totals.unwrap();
    let error = to[0].outcome.lock().unwrap().take().unwrap().unwrap_err();
    assert!(matches!(&error, Error::MissingBlob { blob, .. } if *blob == *pack.as_str()), "{error}");
}

/// A store with faults and, above them, the usual retries, with the control of the faults.
fn shaky() -> (Arc<dyn BlobStore>, Control) {
    let fault = Fault::new(MemoryStore::new());
    let control = fault.control();
    let policy = RetryPolicy {
        attempts: 5,
        first_delay: Duration::from_millis(1),
        longest_delay: Duration::from_millis(5),
        ..RetryPolicy::default()
    };
    (Arc::new(Retry::new(fault, policy)), control)
}

async fn with_large_objects(store: Arc<dyn BlobStore>) -> (Repository, Vec<ObjectId>, Vec<Vec<u8>>) {
    let repository = create(store).await;
    let data: Vec<Vec<u8>> = (0..6).map(|seed| noise(seed, 20 << 20)).collect();
    let ids = write_all(repository.objects(), data.clone(), WriterOptions::default()).await;
    repository.flush().await.unwrap();
    (repository, ids, data)
}

#[tokio::test(flavor = "multi_thread")]
async fn passing_failures_are_not_seen_and_lasting_ones_end_the_call() {
    let (store, control) = shaky();
    let (repository, ids, data) = with_large_objects(store).await;
    for skip in (0..60).step_by(7) {
        let rule = Rule::on(Operation::Get).prefix("p").skip(skip);
        control.plan(rule.action(Action::FailBefore(ErrorKind::Transient)));
    }
    let (totals, to) = read(repository.objects(), ids.clone()).await;
    totals.unwrap();
    to.iter().zip(&data).for_each(|(to, data)| to.assert_is(data));
    let lasting = Rule::on(Operation::Get).prefix("p").skip(3).times(u64::MAX);
    control.plan(lasting.action(Action::FailBefore(ErrorKind::Transient)));
    let (totals, _) = read(repository.objects(), ids).await;
    assert!(matches!(totals, Err(Error::Storage(_))), "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_does_not_wait_for_a_store_that_hangs() {
    let (store, control) = shaky();
    let (repository, ids, _) = with_large_objects(store).await;
    let hang = Rule::on(Operation::Get).prefix("p").skip(2).times(u64::MAX);
    control.plan(hang.action(Action::Delay(Duration::from_secs(3600))));
    let objects = repository.objects().clone();
    let ended = worker(move || {
        let to = Collected::default();
        let asked = AtomicBool::new(false);
        let started = Instant::now();
        let wanted = ids.iter().map(|object| Wanted { object: *object, to: &to, compare: false });
        let stop = || {
            asked.store(true, Ordering::Relaxed);
            started.elapsed() > Duration::from_millis(300)
        };
        objects.read_scattered(wanted, ScatterOptions { threads: 2, stop: &stop }).map(|_| asked.into_inner())
    });
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the stop was not heard");
    assert!(ended.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_budget_is_kept() {
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::new());
    let (repository, ids, data) = with_large_objects(store.clone()).await;
    drop(repository);
    let mut small = options(store);
    small.budget = Budget::new(24 << 20);
    small.access = lifeboat_kopia::repo::Access::ReadOnly;
    let budget = small.budget.clone();
    let repository = Repository::open(small).await.unwrap();
    let (totals, to) = read(repository.objects(), ids).await;
    totals.unwrap();
    to.iter().zip(&data).for_each(|(to, data)| to.assert_is(data));
    assert!(budget.peak() <= 24 << 20 && budget.peak() > 8 << 20, "{}", budget.peak());
}
