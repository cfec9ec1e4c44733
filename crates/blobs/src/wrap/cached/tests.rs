#![allow(clippy::unwrap_used)]

use super::*;
use crate::MemoryStore;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn options(folder: &Path, limit: u64) -> CacheOptions {
    let rule = |prefix: &str, unit| CacheRule { prefix: prefix.to_owned(), unit };
    CacheOptions {
        folder: folder.join("cache"),
        limit,
        store_id: "one".to_owned(),
        rules: vec![rule("q", CacheUnit::WholeBlob), rule("p", CacheUnit::Range)],
    }
}

fn id(name: &str) -> BlobId {
    BlobId::new(name).unwrap()
}

async fn put(store: &impl BlobStore, name: &str, bytes: Vec<u8>) {
    store.put(&id(name), bytes.into(), &PutOptions::default()).await.unwrap();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let shards = std::fs::read_dir(folder.join("cache")).unwrap().map(|shard| shard.unwrap().path());
    let entries = shards.flat_map(|shard| std::fs::read_dir(shard).unwrap());
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn the_second_read_does_not_reach_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryStore::new();
    for name in ["q1", "p1", "n1"] {
        put(&memory, name, (0..100).collect()).await;
    }
    let store = Cached::new(memory.clone(), options(folder.path(), 1 << 20)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(&store.get_range(&id("q1"), 10..12).await.unwrap()[..], [10, 11]);
        assert_eq!(&store.get_range(&id("p1"), 10..12).await.unwrap()[..], [10, 11]);
        assert_eq!(store.get(&id("n1")).await.unwrap().len(), 100);
        memory.delete(&id("q1")).await.unwrap();
        memory.delete(&id("p1")).await.unwrap();
    }
    assert_eq!(store.statistics(), CacheStatistics { hits: 2, misses: 2 });
    assert_eq!(store.get(&id("q1")).await.unwrap().len(), 100);
    assert!(store.get(&id("p1")).await.unwrap_err().is_not_found());
    for file in files(folder.path()) {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[tokio::test]
async fn a_damaged_cut_or_swapped_file_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryStore::new();
    put(&memory, "q1", vec![1; 1000]).await;
    put(&memory, "q2", vec![2; 1000]).await;
    let store = Cached::new(memory, options(folder.path(), 1 << 20)).await.unwrap();
    let read_both = async || {
        assert_eq!(&store.get(&id("q1")).await.unwrap()[..], [1; 1000]);
        assert_eq!(&store.get(&id("q2")).await.unwrap()[..], [2; 1000]);
    };
    read_both().await;
    let damages: [fn(&Path, &Path); 4] = [
        |a, _| {
            let mut bytes = std::fs::read(a).unwrap();
            bytes[500] ^= 1;
            std::fs::write(a, bytes).unwrap();
        },
        |a, _| File::options().write(true).open(a).unwrap().set_len(700).unwrap(),
        |a, _| std::fs::write(a, b"").unwrap(),
        |a, b| {
            let swapped = std::fs::read(b).unwrap();
            std::fs::write(a, swapped).unwrap();
        },
    ];
    for damage in damages {
        let before = store.statistics();
        let files = files(folder.path());
        assert_eq!(files.len(), 2);
        damage(&files[0], &files[1]);
        read_both().await;
        assert_eq!(store.statistics(), CacheStatistics { hits: before.hits + 1, misses: before.misses + 1 });
    }
}
use std::fs::File;

#[tokio::test]
async fn the_folder_stays_within_its_limit_and_keeps_what_was_used_last() {
    let folder = tempfile::tempdir().unwrap();
    let memory = MemoryStore::new();
    let limit = 100 << 10;
    let store = Cached::new(memory.clone(), options(folder.path(), limit)).await.unwrap();
    for n in 0..50u8 {
        let name = format!("q{n}");
        put(&memory, &name, vec![n; 10 << 10]).await;
        store.get(&id(&name)).await.unwrap();
    }
    let total: u64 = files(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(total <= limit + (11 << 10), "{total}");
    memory.delete(&id("q49")).await.unwrap();
    assert_eq!(&store.get(&id("q49")).await.unwrap()[..3], [49; 3]);
}

#[tokio::test]
async fn stores_that_share_a_folder_do_not_see_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (MemoryStore::new(), MemoryStore::new());
    put(&one, "q", vec![1]).await;
    put(&two, "q", vec![2]).await;
    let first = Cached::new(one, options(folder.path(), 1 << 20)).await.unwrap();
    let other = CacheOptions { store_id: "two".to_owned(), ..options(folder.path(), 1 << 20) };
    let second = Cached::new(two, other).await.unwrap();
    assert_eq!(&first.get(&id("q")).await.unwrap()[..], [1]);
    assert_eq!(&second.get(&id("q")).await.unwrap()[..], [2]);
}
