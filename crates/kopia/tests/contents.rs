//! Contents: what is written is found, read, deduplicated, deleted and published.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{create, create_with, noise, options, worker};
use futures::TryStreamExt;
use lifeboat_blobs::MemoryStore;
use lifeboat_blobs::{BlobMetadata, BlobStore};
use lifeboat_budget::{Budget, Buffer};
use lifeboat_index::{ContentId, Deleted, Prefix};
use lifeboat_kopia::Error;
use lifeboat_kopia::content::{ContentRange, ContentStore, ContentToWrite};
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::repo::{Access, Repository};
use lifeboat_primitives::compress::Compressor;
use std::sync::Arc;

fn item(data: &[u8]) -> ContentToWrite<'_> {
    ContentToWrite { data, prefix: Prefix::NONE, compression: None }
}

async fn write(
    contents: &ContentStore,
    data: Vec<u8>,
    prefix: Prefix,
    compression: Option<Compressor>,
) -> ContentId {
    let contents = contents.clone();
    worker(move || contents.write(&ContentToWrite { data: &data, prefix, compression }).unwrap()).await
}

async fn names(store: &MemoryStore, prefix: &str) -> Vec<String> {
    let blobs: Vec<BlobMetadata> = store.list(prefix).try_collect().await.unwrap();
    let mut names: Vec<String> = blobs.into_iter().map(|blob| blob.id.to_string()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_are_readable_before_and_after_a_flush_and_by_others() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let contents = repository.contents();
    let data: Vec<Vec<u8>> =
        [0, 1, 100, 70_000, 5 << 20, 3 << 20].iter().map(|len| noise(*len as u64, *len)).collect();
    let mut ids = Vec::new();
    for (n, data) in data.iter().enumerate() {
        let prefix = if n % 2 == 0 { Prefix::NONE } else { Prefix::DIRECTORY };
        ids.push(write(contents, data.clone(), prefix, None).await);
    }
    for (id, data) in ids.iter().zip(&data) {
        assert_eq!(&contents.read(id).await.unwrap()[..], &data[..]);
    }
    assert_eq!(names(&store, "xn").await.len(), 1, "nothing is published before the flush");
    repository.flush().await.unwrap();
    for (id, data) in ids.iter().zip(&data) {
        assert_eq!(&contents.read(id).await.unwrap()[..], &data[..]);
    }
    assert!(names(&store, "s").await.is_empty(), "the session marker goes with the flush");
    let packs = names(&store, "p").await;
    let session = packs[0].split('-').nth(1).unwrap().to_owned();
    let published = names(&store, "xn0_").await;
    assert!(
        published.iter().any(|name| name.ends_with(&format!("-{session}-c1"))),
        "{published:?} {session}"
    );

    let mut reader = options(Arc::new(store.clone()));
    reader.access = Access::ReadOnly;
    let other = Repository::open(reader).await.unwrap();
    for (id, data) in ids.iter().zip(&data) {
        assert_eq!(&other.contents().read(id).await.unwrap()[..], &data[..]);
    }
    let refused = other.contents().clone();
    let refused = worker(move || refused.write(&item(b"x"))).await;
    assert!(matches!(refused, Err(Error::ReadOnly { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_not_written_again() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let contents = repository.contents().clone();
    let batch = contents.clone();
    let ids = worker(move || {
        let (a, b) = (noise(1, 1000), noise(2, 1000));
        batch.write_batch(&[item(&a), item(&b), item(&a), item(&b)]).unwrap()
    })
    .await;
    assert_eq!((ids[0], ids[1]), (ids[2], ids[3]));
    assert_eq!(contents.totals().new_contents, 2 + 1, "two contents and the manifest");
    repository.flush().await.unwrap();
    let packed = contents.totals().packed_bytes;
    assert_eq!(write(&contents, noise(1, 1000), Prefix::NONE, None).await, ids[0]);
    assert_eq!(contents.totals().packed_bytes, packed);
    let packs = names(&store, "p").await;
    repository.flush().await.unwrap();
    assert_eq!(names(&store, "p").await, packs);
}

/// A buffer with this data.
fn buffer_of(contents: &ContentStore, data: &[u8]) -> Buffer {
    let mut buffer = contents.take_buffer(data.len()).unwrap();
    buffer.as_mut().copy_from_slice(data);
    buffer
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_in_a_buffer_are_written_like_others() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let contents = repository.contents().clone();
    let before = contents.totals().new_contents;
    let mut data = noise(5, 8 << 20);
    data.copy_within(0..1 << 20, 3 << 20);
    // One that is known, one that is there twice, small and empty ones, and gaps between them.
    let known = 6 << 20..7 << 20;
    let ranges = [
        0..1 << 20,
        1 << 20..(3 << 20) - 5,
        3 << 20..4 << 20,
        5 << 20..5 << 20,
        (5 << 20) + 1..(5 << 20) + 99,
        known.clone(),
    ];
    let (writing, all, wanted) = (contents.clone(), data.clone(), ranges.clone());
    let ids = worker(move || {
        writing.write(&item(&all[known])).unwrap();
        let ids = writing.write_buffer(buffer_of(&writing, &all), &wanted, Prefix::NONE).unwrap();
        let items: Vec<_> = wanted.iter().map(|range| item(&all[range.clone()])).collect();
        assert_eq!(writing.write_batch(&items).unwrap(), ids);
        ids
    })
    .await;
    assert_eq!((ids[0], contents.totals().new_contents - before), (ids[2], 5));
    for (id, range) in ids.iter().zip(&ranges) {
        assert!(contents.read(id).await.unwrap() == data[range.clone()], "from memory: {range:?}");
    }
    repository.flush().await.unwrap();
    let other = Repository::open(options(Arc::new(store))).await.unwrap();
    for (id, range) in ids.iter().zip(&ranges) {
        assert!(other.contents().read(id).await.unwrap() == data[range.clone()], "from its pack: {range:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_that_overlap_or_are_not_in_their_buffer_are_refused() {
    let repository = create(Arc::new(MemoryStore::new())).await;
    let contents = repository.contents().clone();
    let data = noise(6, 3 << 20);
    let (id, expected) = worker(move || {
        for ranges in [[0..2 << 20, (2 << 20) - 1..3 << 20], [0..1 << 20, 2 << 20..(3 << 20) + 1]] {
            let refused = contents.write_buffer(buffer_of(&contents, &data), &ranges, Prefix::NONE);
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
        let all = std::slice::from_ref(&(0..3 << 20));
        let ids = contents.write_buffer(buffer_of(&contents, &data), all, Prefix::NONE).unwrap();
        (ids[0], data)
    })
    .await;
    assert!(repository.contents().read(&id).await.unwrap() == expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_that_write_the_same_from_buffers_write_it_once_within_their_memory() {
    let store = MemoryStore::new();
    let mut small = options(Arc::new(store.clone()));
    small.budget = Budget::new(32 << 20);
    let repository = create_with(small, &CreateOptions::default()).await;
    let contents = repository.contents().clone();
    let before = contents.totals().new_contents;
    let (writing, loan) = (contents.clone(), repository.budget().try_reserve(8 << 20).unwrap());
    let data: Vec<Vec<u8>> = (0..24).map(|seed| noise(seed, 4 << 20)).collect();
    let (ids, expected) = worker(move || {
        let _loan = writing.lend(loan).unwrap();
        let chunks: Vec<_> = (0..4).map(|n: usize| n << 20..(n + 1) << 20).collect();
        let ids = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let (writing, data, chunks) = (&writing, &data, &chunks);
                    scope.spawn(move || {
                        let turn = data.iter().cycle().skip(thread * 5).take(data.len());
                        turn.map(|data| {
                            writing.write_buffer(buffer_of(writing, data), chunks, Prefix::NONE).unwrap()
                        })
                        .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
        });
        (ids, data)
    })
    .await;
    assert_eq!(contents.totals().new_contents - before, 24 * 4);
    repository.flush().await.unwrap();
    for (ids, data) in ids.iter().zip(&expected) {
        for (id, chunk) in ids.iter().zip(data.chunks(1 << 20)) {
            assert!(contents.read(id).await.unwrap() == chunk);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compression_is_kept_only_if_it_helps() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let contents = repository.contents();
    let text = b"all work and no play ".repeat(5000);
    for compressor in Compressor::ALL {
        let mut data = text.clone();
        data.extend_from_slice(compressor.name().as_bytes());
        let id = write(contents, data.clone(), Prefix::NONE, Some(compressor)).await;
        let entry = contents.lookup(&id).unwrap().unwrap();
        assert_eq!(entry.compression, compressor.id(), "{}", compressor.name());
        assert!(entry.packed_length < 20_000 && entry.original_length as usize == data.len());
        assert_eq!(&contents.read(&id).await.unwrap()[..], &data[..], "{}", compressor.name());
    }
    let id = write(contents, noise(5, 10_000), Prefix::NONE, Some(Compressor::Zstd)).await;
    assert_eq!(contents.lookup(&id).unwrap().unwrap().compression, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_contents_are_readable_hidden_and_written_again() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    let contents = repository.contents();
    let id = write(contents, noise(1, 5000), Prefix::NONE, None).await;
    repository.flush().await.unwrap();
    let written = contents.lookup(&id).unwrap().unwrap();
    contents.delete(&id).unwrap();
    repository.flush().await.unwrap();

    let deleted = contents.lookup(&id).unwrap().unwrap();
    assert!(deleted.deleted && deleted.timestamp_seconds > written.timestamp_seconds);
    assert_eq!((&deleted.pack, deleted.pack_offset), (&written.pack, written.pack_offset));
    assert_eq!(&contents.read(&id).await.unwrap()[..], &noise(1, 5000)[..]);
    let live =
        |deleted| contents.iterate(ContentRange::Prefix(Prefix::NONE), deleted).map(Result::unwrap).count();
    assert_eq!((live(Deleted::Skip), live(Deleted::Include)), (0, 1));

    assert_eq!(write(contents, noise(1, 5000), Prefix::NONE, None).await, id);
    let again = contents.lookup(&id).unwrap().unwrap();
    assert!(
        !again.deleted && again.timestamp_seconds > deleted.timestamp_seconds && again.pack != deleted.pack
    );
    repository.flush().await.unwrap();
    assert_eq!(live(Deleted::Skip), 1);

    let (location, sealed) = contents.fetch(contents.resolve(&id).unwrap()).await.unwrap();
    let store2 = contents.clone();
    let since = contents.snapshot().since(&contents.snapshot()).unwrap();
    assert!(worker(move || store2.rewrite(&location.entry, &sealed, &since).unwrap()).await);
    repository.flush().await.unwrap();
    let rewritten = contents.lookup(&id).unwrap().unwrap();
    assert!(!rewritten.deleted && rewritten.pack != again.pack);
    assert_eq!(&contents.read(&id).await.unwrap()[..], &noise(1, 5000)[..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_threads_write_while_others_flush() {
    let store = MemoryStore::new();
    let mut options = options(Arc::new(store.clone()));
    options.budget = lifeboat_budget::Budget::new(24 << 20);
    let repository = common::create_with(options, &Default::default()).await;
    let mut threads = Vec::new();
    for thread in 0..6u64 {
        let contents = repository.contents().clone();
        threads.push(tokio::task::spawn_blocking(move || {
            let mut ids = Vec::new();
            for round in 0..40u64 {
                // Half of the contents are shared with the neighbour.
                let seeds = [round * 2 + 1, thread * 1000 + round * 2, (thread ^ 1) * 1000 + round * 2];
                let data: Vec<Vec<u8>> =
                    seeds.iter().map(|seed| noise(*seed, 1000 + (*seed as usize * 7919) % 300_000)).collect();
                let items: Vec<_> = data.iter().map(|data| item(data)).collect();
                ids.extend(seeds.into_iter().zip(contents.write_batch(&items).unwrap()));
            }
            ids
        }));
    }
    for _ in 0..8 {
        repository.flush().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let mut ids = Vec::new();
    for thread in threads {
        ids.extend(thread.await.unwrap());
    }
    repository.flush().await.unwrap();
    let unique: std::collections::HashSet<ContentId> = ids.iter().map(|(_, id)| *id).collect();
    let other = Repository::open(common::options(Arc::new(store.clone()))).await.unwrap();
    for (seed, id) in &ids {
        let data = other.contents().read(id).await.unwrap();
        assert_eq!(&data[..], &noise(*seed, 1000 + (*seed as usize * 7919) % 300_000)[..]);
    }
    let indexed = other.contents().iterate(ContentRange::Prefix(Prefix::NONE), Deleted::Skip).count();
    assert_eq!(indexed, unique.len());
    assert_eq!(
        repository.contents().totals().new_contents as usize,
        unique.len() + 1,
        "nothing is written twice"
    );
    assert!(names(&store, "s").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn opening_an_unchanged_repository_reads_one_listing_and_no_index() {
    let store = MemoryStore::new();
    let repository = create(Arc::new(store.clone())).await;
    for round in 0..3 {
        write(repository.contents(), noise(round, 1000), Prefix::NONE, None).await;
        repository.flush().await.unwrap();
    }
    let cache = tempfile::tempdir().unwrap();
    let mut calls = Vec::new();
    for _ in 0..2 {
        let fault = lifeboat_blobs::wrap::Fault::new(store.clone());
        let control = fault.control();
        let mut options = options(Arc::new(fault));
        options.cache_folder = Some(cache.path().to_path_buf());
        let opened = Repository::open(options).await.unwrap();
        calls = control.log().into_iter().map(|call| format!("{} {}", call.operation, call.blob)).collect();
        assert_eq!(opened.contents().snapshot().count().unwrap(), 4);
    }
    calls.sort();
    assert_eq!(calls, ["list x", "read kopia.blobcfg", "read kopia.repository"]);
}
