//! The conformance suite on the stores that need no server, and on every wrapper.

#![allow(clippy::unwrap_used, missing_docs)]

use lifeboat_blobs::conformance::{Expectations, Locks, run};
use lifeboat_blobs::wrap::cached::{CacheOptions, CacheRule, CacheUnit};
use lifeboat_blobs::wrap::{
    Cached, Fault, Limit, Metered, Metrics, Pace, Pacer, Prefix, Rates, ReadOnly, Retry, RetryPolicy,
};
use lifeboat_blobs::{
    BlobId, BlobStore, ErrorKind, FsOptions, FsStore, MemoryStore, Payload, PutOptions, Retention,
};
use std::sync::Arc;
use std::time::Duration;

const MEMORY: Expectations = Expectations { locks: Locks::PreventDelete, many: 2500 };

/// Runs the suite on memory stores wrapped by `wrap`.
async fn run_wrapped<S: BlobStore + 'static>(wrap: impl Fn(MemoryStore) -> S) {
    run(MEMORY, || {
        let store: Arc<dyn BlobStore> = Arc::new(wrap(MemoryStore::new()));
        async { store }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    run_wrapped(|memory| memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn folder() {
    let folders = tempfile::tempdir().unwrap();
    run(Expectations { locks: Locks::Unsupported, many: 2500 }, async || {
        let path = tempfile::tempdir_in(&folders).unwrap().keep();
        Arc::new(FsStore::create(FsOptions::new(path)).await.unwrap()) as Arc<dyn BlobStore>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn folder_paced() {
    let folders = tempfile::tempdir().unwrap();
    let pacer = Arc::new(Pacer::new(Rates { up: Some(2e9), down: Some(2e9), ..Rates::default() }));
    run(Expectations { locks: Locks::Unsupported, many: 1100 }, async || {
        let path = tempfile::tempdir_in(&folders).unwrap().keep();
        let store = FsStore::create(FsOptions::new(path)).await.unwrap();
        Arc::new(Pace::new(store, pacer.clone())) as Arc<dyn BlobStore>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retry() {
    run_wrapped(|memory| Retry::new(memory, RetryPolicy::default())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pace() {
    let rates = Rates { up: Some(2e9), down: Some(2e9), ..Rates::default() };
    run_wrapped(|memory| Pace::new(memory, Arc::new(Pacer::new(rates)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limit() {
    run_wrapped(|memory| Limit::new(memory, 1, 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metered() {
    run_wrapped(|memory| Metered::new(memory, Arc::new(Metrics::default()))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_without_a_plan() {
    run_wrapped(Fault::new).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prefix() {
    run_wrapped(|memory| Prefix::new(memory, "kopia/ns/")).await;
    // Two stores beside each other do not mix.
    let memory = MemoryStore::new();
    let (a, b) = (Prefix::new(memory.clone(), "x"), Prefix::new(memory.clone(), "xy"));
    let id = |name| BlobId::new(name).unwrap();
    b.put(&id("1"), Payload::default(), &PutOptions::default()).await.unwrap();
    assert!(a.head(&id("1")).await.unwrap_err().is_not_found());
    assert!(a.head(&id("y1")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn cached() {
    for unit in [CacheUnit::WholeBlob, CacheUnit::Range] {
        let folder = tempfile::tempdir().unwrap();
        let next = std::sync::atomic::AtomicU64::new(0);
        run(MEMORY, async || {
            let options = CacheOptions {
                folder: folder.path().to_owned(),
                limit: 64 << 20,
                store_id: next.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string(),
                rules: vec![CacheRule { prefix: String::new(), unit }],
            };
            Arc::new(Cached::new(MemoryStore::new(), options).await.unwrap()) as Arc<dyn BlobStore>
        })
        .await;
    }
}

#[tokio::test]
async fn a_read_only_store_refuses_every_change_and_answers_every_read() {
    let memory = MemoryStore::new();
    let id = BlobId::new("a").unwrap();
    memory.put(&id, Payload::from(vec![1, 2, 3]), &PutOptions::default()).await.unwrap();
    let store = ReadOnly::new(memory.clone());
    let lock = Retention { mode: lifeboat_blobs::RetentionMode::Governance, period: Duration::from_secs(1) };
    for refused in [
        store.put(&id, Payload::default(), &PutOptions::default()).await,
        store.delete(&id).await,
        store.extend_retention(&id, &lock).await,
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    assert_eq!(&store.get(&id).await.unwrap()[..], [1, 2, 3]);
    assert_eq!(&store.get_range(&id, 1..2).await.unwrap()[..], [2]);
    assert_eq!(store.head(&id).await.unwrap().size, 3);
    assert_eq!(memory.totals(), (1, 3));
}

#[tokio::test]
async fn metrics_count_calls_errors_and_bytes() {
    let metrics = Arc::new(Metrics::default());
    let store = Metered::new(MemoryStore::new(), metrics.clone());
    let id = BlobId::new("a").unwrap();
    store.put(&id, Payload::from(vec![0; 10]), &PutOptions::default()).await.unwrap();
    store.get(&id).await.unwrap();
    store.get_range(&id, 0..4).await.unwrap();
    store.get(&BlobId::new("b").unwrap()).await.unwrap_err();
    futures::TryStreamExt::try_collect::<Vec<_>>(store.list("")).await.unwrap();
    store.delete(&id).await.unwrap();
    let seen = metrics.snapshot();
    assert_eq!((seen.put.calls, seen.put.bytes, seen.put.errors), (1, 10, 0));
    assert_eq!((seen.get.calls, seen.get.bytes, seen.get.errors), (3, 14, 1));
    assert_eq!((seen.list.bytes, seen.delete.calls, seen.head.calls), (1, 1, 0));
    assert!(seen.get.total_time >= seen.get.slowest);
}

#[tokio::test]
async fn a_limit_holds_no_turn_while_the_consumer_of_a_listing_works() {
    let memory = MemoryStore::new();
    for n in 0..300 {
        let id = BlobId::new(format!("b{n}")).unwrap();
        memory.put(&id, Payload::from(vec![1]), &PutOptions::default()).await.unwrap();
    }
    let store = Limit::new(memory, 1, 1);
    let mut listing = store.list("b");
    let mut read = 0;
    while let Some(blob) = futures::StreamExt::next(&mut listing).await {
        read += store.get(&blob.unwrap().id).await.unwrap().len();
    }
    assert_eq!(read, 300);
}
