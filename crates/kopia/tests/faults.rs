//! Stores that fail: nothing is lost silently, nothing that is not there is published, and a crash at any call
//! leaves a sound repository.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{create, noise, options, worker};
use futures::TryStreamExt;
use lifeboat_blobs::MemoryStore;
use lifeboat_blobs::wrap::fault::{Action, Control, Logged, Rule};
use lifeboat_blobs::wrap::{Fault, Retry, RetryPolicy};
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, ErrorKind, Operation, PutOptions};
use lifeboat_index::{ContentId, Prefix};
use lifeboat_kopia::content::{ContentStore, ContentToWrite};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::verify::{self, ContentsReport, VerifyContents};
use lifeboat_kopia::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

async fn open_failing(store: &MemoryStore) -> (Repository, Control) {
    let fault = Fault::new(store.clone());
    let control = fault.control();
    let mut options = options(Arc::new(fault));
    options.budget = lifeboat_budget::Budget::new(64 << 20);
    (Repository::open(options).await.unwrap(), control)
}

async fn write(contents: &ContentStore, seeds: std::ops::Range<u64>, len: usize) -> Result<Vec<ContentId>> {
    let contents = contents.clone();
    worker(move || {
        seeds
            .map(|seed| {
                let data = noise(seed, len);
                let prefix = if seed % 3 == 0 { Prefix::DIRECTORY } else { Prefix::NONE };
                contents.write(&ContentToWrite { data: &data, prefix, compression: None })
            })
            .collect()
    })
    .await
}

async fn names(store: &MemoryStore, prefix: &str) -> Vec<String> {
    let blobs: Vec<BlobMetadata> = store.list(prefix).try_collect().await.unwrap();
    blobs.into_iter().map(|blob| blob.id.to_string()).collect()
}

/// Everything in the index is there and sound.
async fn assert_sound(store: &MemoryStore) -> (Repository, ContentsReport) {
    let repository = Repository::open(options(Arc::new(store.clone()))).await.unwrap();
    let mut damages = Vec::new();
    let full = VerifyContents { full: true, include_deleted: true, ..VerifyContents::default() };
    let report = verify::contents(&repository, &full, &mut |damage| damages.push(damage)).await.unwrap();
    assert!(damages.is_empty(), "{damages:?}");
    repository.snapshots().await.unwrap();
    (repository, report)
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_that_cannot_be_written_are_kept_and_not_published() {
    let store = MemoryStore::new();
    create(Arc::new(store.clone())).await.close().await.unwrap();
    let published = names(&store, "xn").await;
    let (repository, control) = open_failing(&store).await;
    let contents = repository.contents();
    control.plan(
        Rule::on(Operation::Put).prefix("p").times(u64::MAX).action(Action::FailBefore(ErrorKind::Other)),
    );

    // More than the memory for packs: the writer would wait forever for packs that never leave.
    let outcome = write(contents, 0..30, 3 << 20).await;
    assert!(matches!(outcome, Err(Error::PackNotWritten { .. })), "{outcome:?}");
    assert!(matches!(repository.flush().await, Err(Error::PackNotWritten { .. })));
    assert_eq!(names(&store, "xn").await, published, "no index names a pack that is not there");
    assert!(matches!(write(contents, 100..101, 10).await, Err(Error::PackNotWritten { .. })));

    control.clear();
    repository.flush().await.unwrap();
    let ids = write(contents, 0..30, 3 << 20).await.unwrap();
    repository.flush().await.unwrap();
    let (fresh, _) = assert_sound(&store).await;
    for (seed, id) in ids.iter().enumerate() {
        assert_eq!(&fresh.contents().read(id).await.unwrap()[..], &noise(seed as u64, 3 << 20)[..]);
    }
    assert!(names(&store, "s").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_that_lies_in_the_callers_buffer_is_kept_until_the_store_takes_it() {
    const LEN: usize = 3 << 20;
    let store = MemoryStore::new();
    create(Arc::new(store.clone())).await.close().await.unwrap();
    let (repository, control) = open_failing(&store).await;
    control.plan(
        Rule::on(Operation::Put).prefix("p").times(u64::MAX).action(Action::FailBefore(ErrorKind::Other)),
    );
    let contents = repository.contents().clone();
    let ids = worker(move || {
        let mut buffer = contents.take_buffer(3 * LEN).unwrap();
        for (seed, place) in buffer.as_mut().chunks_exact_mut(LEN).enumerate() {
            place.copy_from_slice(&noise(seed as u64, LEN));
        }
        let ranges = [0..LEN, LEN..2 * LEN, 2 * LEN..3 * LEN];
        contents.write_buffer(buffer, &ranges, Prefix::NONE).unwrap()
    })
    .await;
    assert!(matches!(repository.flush().await, Err(Error::PackNotWritten { .. })));

    // What was sealed is still there to be read, and to be sent once more, as often as it takes.
    for _ in 0..2 {
        for (seed, id) in ids.iter().enumerate() {
            assert_eq!(&repository.contents().read(id).await.unwrap()[..], &noise(seed as u64, LEN)[..]);
        }
        assert!(matches!(repository.flush().await, Err(Error::PackNotWritten { .. })));
    }
    control.clear();
    repository.flush().await.unwrap();
    let (fresh, _) = assert_sound(&store).await;
    for (seed, id) in ids.iter().enumerate() {
        assert_eq!(&fresh.contents().read(id).await.unwrap()[..], &noise(seed as u64, LEN)[..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_sends_a_failed_pack_again_unless_the_store_has_had_all_its_time() {
    let store = MemoryStore::new();
    create(Arc::new(store.clone())).await.close().await.unwrap();
    let fault = Fault::new(store.clone());
    let control = fault.control();
    // No time at all: whatever passes by itself has had it all with its first failure.
    let impatient = RetryPolicy { deadline: Duration::ZERO, ..RetryPolicy::default() };
    let mut options = options(Arc::new(Retry::new(fault, impatient)));
    options.budget = lifeboat_budget::Budget::new(64 << 20);
    let repository = Repository::open(options).await.unwrap();
    let tries = |control: &Control| {
        let puts = |call: &&Logged| call.operation == Operation::Put && call.blob.starts_with('p');
        control.log().iter().filter(puts).count()
    };
    let failing =
        |kind| Rule::on(Operation::Put).prefix("p").times(u64::MAX).action(Action::FailBefore(kind));

    for (seed, kind, expected) in [(1, ErrorKind::Other, 2), (2, ErrorKind::Transient, 1)] {
        control.plan(failing(kind));
        let before = tries(&control);
        write(repository.contents(), seed..seed + 1, 1000).await.unwrap();
        assert!(matches!(repository.flush().await, Err(Error::PackNotWritten { .. })));
        assert_eq!(tries(&control) - before, expected, "{kind:?}");
        control.clear();
        repository.flush().await.unwrap();
    }
    let (fresh, _) = assert_sound(&store).await;
    let ids = write(fresh.contents(), 1..3, 1000).await.unwrap();
    assert!(ids.iter().all(|id| fresh.contents().lookup(id).unwrap().is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_cannot_be_written_is_written_by_the_next_flush() {
    let store = MemoryStore::new();
    create(Arc::new(store.clone())).await.close().await.unwrap();
    let (repository, control) = open_failing(&store).await;
    let ids = write(repository.contents(), 0..10, 1000).await.unwrap();
    control.plan(Rule::on(Operation::Put).prefix("x").action(Action::FailBefore(ErrorKind::Transient)));
    assert!(matches!(repository.flush().await, Err(Error::Storage(_))));
    // Not visible to others, still readable here.
    assert_eq!(&repository.contents().read(&ids[1]).await.unwrap()[..], &noise(1, 1000)[..]);
    let more = write(repository.contents(), 10..20, 1000).await.unwrap();
    repository.flush().await.unwrap();
    let (fresh, _) = assert_sound(&store).await;
    for (seed, id) in ids.iter().chain(&more).enumerate() {
        assert_eq!(&fresh.contents().read(id).await.unwrap()[..], &noise(seed as u64, 1000)[..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_call_leaves_what_was_flushed_and_can_be_gone_on_from() {
    for action in [Action::CrashBefore, Action::CrashAfter] {
        let mut call = 0;
        loop {
            let store = MemoryStore::new();
            let first = create(Arc::new(store.clone())).await;
            let kept = write(first.contents(), 0..5, 2000).await.unwrap();
            first.flush().await.unwrap();
            drop(first);

            let (repository, control) = open_failing(&store).await;
            control.plan(Rule::any().skip(call).action(action.clone()));
            let run = async {
                write(repository.contents(), 5..9, 2000).await?;
                repository.contents().delete(&kept[1])?;
                repository.flush().await?;
                write(repository.contents(), 9..12, 2000).await?;
                repository.flush().await
            };
            let finished = run.await;
            let crashed = control.has_crashed();
            drop(repository);

            let (fresh, _) = assert_sound(&store).await;
            for (seed, id) in kept.iter().enumerate() {
                assert_eq!(&fresh.contents().read(id).await.unwrap()[..], &noise(seed as u64, 2000)[..]);
            }
            let ids = write(fresh.contents(), 0..12, 2000).await.unwrap();
            fresh.flush().await.unwrap();
            let (again, _) = assert_sound(&store).await;
            for (seed, id) in ids.iter().enumerate() {
                assert!(!again.contents().lookup(id).unwrap().unwrap().deleted);
                assert_eq!(&again.contents().read(id).await.unwrap()[..], &noise(seed as u64, 2000)[..]);
            }
            if !crashed {
                finished.unwrap();
                break;
            }
            call += 1;
            assert!(call < 200, "the run never ends");
        }
        assert!(call > 8, "only {call} calls were made");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_of_every_kind_of_blob_is_an_error_that_names_it() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let ids = write(repository.contents(), 0..9, 100_000).await.unwrap();
    repository.flush().await.unwrap();
    let overwrite = |name: String, bytes: Vec<u8>| {
        let store = store.clone();
        async move {
            let id = BlobId::new(name).unwrap();
            store.put(&id, bytes.into(), &PutOptions::default()).await.unwrap();
        }
    };
    let blob = |name: &str| BlobId::new(name).unwrap();

    let pack = repository.contents().lookup(&ids[1]).unwrap().unwrap().pack.to_string();
    let good = store.get(&blob(&pack)).await.unwrap();
    let location = repository.contents().resolve(&ids[1]).unwrap();
    let mut flipped = good.to_vec();
    flipped[location.range().start as usize + 50] ^= 1;
    overwrite(pack.clone(), flipped).await;
    let read = repository.contents().read(&ids[1]).await;
    assert!(
        matches!(&read, Err(Error::DamagedContent { id, blob, .. }) if *id == ids[1] && *blob == pack),
        "{read:?}"
    );
    assert!(repository.contents().read(&ids[2]).await.is_ok(), "its neighbours are not affected");

    overwrite(pack.clone(), good[..location.range().start as usize + 10].to_vec()).await;
    let read = repository.contents().read(&ids[1]).await;
    assert!(matches!(&read, Err(Error::DamagedContent { blob, .. }) if *blob == pack), "{read:?}");
    let mut damages = Vec::new();
    verify::contents(&repository, &VerifyContents::default(), &mut |damage| damages.push(damage))
        .await
        .unwrap();
    assert!(damages.len() >= 2 && damages.iter().all(|damage| damage.pack == pack));

    store.delete(&blob(&pack)).await.unwrap();
    let read = repository.contents().read(&ids[1]).await;
    assert!(matches!(&read, Err(Error::MissingBlob { blob, .. }) if *blob == pack), "{read:?}");
    overwrite(pack.clone(), good.to_vec()).await;
    assert!(repository.contents().read(&ids[1]).await.is_ok());

    // Packs that are exchanged, and indexes that are damaged, truncated or gone.
    for index in names(&store, "xn").await {
        let good = store.get(&blob(&index)).await.unwrap();
        let mut flipped = good.to_vec();
        flipped[good.len() / 2] ^= 1;
        for bad in [flipped, good[..good.len() - 1].to_vec(), good[..5].to_vec(), Vec::new()] {
            overwrite(index.clone(), bad).await;
            let opened = Repository::open(options(Arc::new(store.clone()))).await.unwrap();
            let damaged = opened.contents().damaged_index();
            assert!(damaged.len() == 1 && damaged[0].blob.as_str() == index, "{damaged:?}");
        }
        overwrite(index, good.to_vec()).await;
    }
    assert_sound(&store).await;
}
