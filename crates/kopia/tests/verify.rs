//! Verification: every damage is found and named with the snapshots and paths that it touches.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/tree.rs"]
mod tree;

use common::{create_with, noise, options};
use lifeboat_blobs::{BlobId, BlobStore, MemoryStore, PutOptions};
use lifeboat_kopia::Error;
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::object::{ObjectId, ObjectLayout};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::verify::{self, SnapshotDamage, SnapshotsReport, VerifyContents, VerifySnapshots};
use std::fs;
use std::sync::Arc;
use tree::back_up;

/// Two snapshots of a folder; the second has one file more, in a folder of its own.
async fn two_snapshots(store: &MemoryStore) -> (Repository, Vec<String>) {
    let create = CreateOptions { splitter: "FIXED-128K".into(), ..CreateOptions::default() };
    let repository = create_with(options(Arc::new(store.clone())), &create).await;
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("a/b")).unwrap();
    fs::write(folder.path().join("a/b/large"), noise(1, 500_000)).unwrap();
    fs::write(folder.path().join("a/small"), noise(2, 5000)).unwrap();
    let mut ids = Vec::new();
    ids.push(back_up(&repository, folder.path(), None).await.id.to_string());
    fs::create_dir(folder.path().join("c")).unwrap();
    fs::write(folder.path().join("c/new"), noise(3, 5000)).unwrap();
    ids.push(back_up(&repository, folder.path(), None).await.id.to_string());
    (repository, ids)
}

async fn check(repository: &Repository, read_percent: u8) -> (SnapshotsReport, Vec<SnapshotDamage>) {
    let options = VerifySnapshots { read_percent, ..VerifySnapshots::default() };
    let mut damages = Vec::new();
    let report = verify::snapshots(repository, &options, &mut |damage| damages.push(damage)).await.unwrap();
    assert_eq!(report.damaged as usize, damages.len());
    (report, damages)
}

/// The pack that holds the part of a file, found by its path in the last snapshot.
async fn place(repository: &Repository, path: &[&str]) -> (BlobId, std::ops::Range<u64>) {
    let list = repository.snapshots().await.unwrap();
    let mut object: ObjectId = list.snapshots.last().unwrap().root_object().unwrap().parse().unwrap();
    for name in path {
        let listing = repository.objects().read_all(object, 1 << 20).await.unwrap();
        let mut entries = lifeboat_kopia::snapshot::DirEntries::new("x", &listing[..]).map(Result::unwrap);
        object = entries.find(|entry| entry.name.as_str() == Some(name)).unwrap().object.parse().unwrap();
    }
    let layout = ObjectLayout::load(repository.objects(), object).await.unwrap();
    let location = repository.contents().resolve(&layout.entries().last().unwrap().content).unwrap();
    (BlobId::new(location.entry.pack.as_str()).unwrap(), location.range())
}

async fn flip(store: &MemoryStore, pack: &BlobId, at: u64) {
    let mut bytes = store.get(pack).await.unwrap().to_vec();
    bytes[at as usize] ^= 1;
    store.put(pack, bytes.into(), &PutOptions::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_repository_has_no_damage_and_shared_folders_are_read_once() {
    let store = MemoryStore::new();
    let (repository, _) = two_snapshots(&store).await;
    let (report, damages) = check(&repository, 100).await;
    assert!(damages.is_empty(), "{damages:?}");
    // Two roots, a, a/b and c; a is the same in both.
    assert_eq!((report.snapshots, report.directories, report.files), (2, 5, 3));
    assert_eq!(report.bytes_read, 510_000);
    assert_eq!(check(&repository, 0).await.0.bytes_read, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_named_in_every_snapshot_that_has_it() {
    let store = MemoryStore::new();
    let (repository, ids) = two_snapshots(&store).await;
    let (pack, range) = place(&repository, &["a", "b", "large"]).await;
    flip(&store, &pack, range.start + 20).await;
    assert!(check(&repository, 0).await.1.is_empty(), "only reading shows it");
    let (_, damages) = check(&repository, 100).await;
    let named: Vec<_> =
        damages.iter().map(|d| (d.snapshot.as_ref().unwrap().to_string(), d.path.as_str())).collect();
    assert_eq!(named, ids.iter().map(|id| (id.clone(), "a/b/large")).collect::<Vec<_>>());
    for damage in &damages {
        let blames = matches!(&damage.error, Error::DamagedContent { blob, .. } if blob == pack.as_str());
        assert!(blames, "{:?}", damage.error);
    }
    let mut contents = Vec::new();
    let full = VerifyContents { full: true, ..VerifyContents::default() };
    let report = verify::contents(&repository, &full, &mut |damage| contents.push(damage)).await.unwrap();
    assert_eq!((report.damaged, contents.len(), contents[0].pack.as_str()), (1, 1, pack.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_pack_is_found_without_reading_and_does_not_hide_other_damage() {
    let store = MemoryStore::new();
    let (repository, ids) = two_snapshots(&store).await;
    let (first, _) = place(&repository, &["a", "small"]).await;
    let (second, range) = place(&repository, &["c", "new"]).await;
    assert_ne!(first, second);
    store.delete(&first).await.unwrap();
    flip(&store, &second, range.start).await;
    let (_, damages) = check(&repository, 100).await;
    let mut named: Vec<_> =
        damages.iter().map(|d| (d.snapshot.as_ref().unwrap().to_string(), d.path.as_str())).collect();
    named.sort();
    let mut expected: Vec<_> =
        ids.iter().flat_map(|id| ["a/b/large", "a/small"].map(|p| (id.clone(), p))).collect();
    expected.push((ids[1].clone(), "c/new"));
    expected.sort();
    assert_eq!(named, expected);
    let (_, quick) = check(&repository, 0).await;
    assert_eq!(quick.len(), 4, "the pack that is missing is noticed by its absence");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_folder_is_one_damage_and_the_rest_is_walked() {
    let store = MemoryStore::new();
    let (repository, ids) = two_snapshots(&store).await;
    let (pack, range) = place(&repository, &["c"]).await;
    flip(&store, &pack, range.start + 13).await;
    let fresh = Repository::open(options(Arc::new(store.clone()))).await.unwrap();
    let (report, damages) = check(&fresh, 100).await;
    assert_eq!(damages.len(), 1, "{damages:?}");
    assert_eq!(
        (damages[0].snapshot.as_ref().unwrap().as_str(), damages[0].path.as_str()),
        (ids[1].as_str(), "c")
    );
    assert_eq!(report.files, 2);
}
