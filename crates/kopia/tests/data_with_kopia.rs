//! Contents, packs, indexes and objects crossed with the real kopia: each side reads, verifies, repairs and maintains
//! what the other wrote.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/place.rs"]
mod place;
#[path = "common/tree.rs"]
mod tree;

use lifeboat_kopia::format::CreateOptions;
use lifeboat_primitives::compress::Compressor;
use lifeboat_testkit::tree::TreeSpec;
use place::{Place, blobs, verify_all};
use tree::{back_up, read_folder, read_tree};

#[tokio::test(flavor = "multi_thread")]
async fn kopia_reads_maintains_and_extends_what_we_write() {
    let place = Place::new(&TreeSpec { exact_sizes: vec![0, 1, 25_000_003], ..TreeSpec::small(1) });
    let repository = place.create(&CreateOptions::default()).await;
    let snapshot = back_up(&repository, &place.source(), None).await;
    place.kopia_agrees(snapshot.root_object().unwrap(), "first");
    place.kopia.run(["index", "epoch", "list"]).unwrap();
    place.kopia.run(["index", "inspect", "--all"]).unwrap();
    assert!(blobs(&place.repository(), "s").is_empty(), "no session marker is left");

    place.kopia.full_maintenance().unwrap();
    place.kopia_agrees(snapshot.root_object().unwrap(), "maintained");
    let theirs = place.kopia.snapshot(&place.source(), &[]).unwrap();
    assert_eq!(Some(theirs.root.obj.as_str()), snapshot.root_object(), "the same tree has the same id");
    repository.refresh().await.unwrap();
    assert_eq!(repository.snapshots().await.unwrap().snapshots.len(), 2);
    verify_all(&repository).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn we_read_what_kopia_writes() {
    let place = Place::new(&TreeSpec { exact_sizes: vec![0, 1, 25_000_003], ..TreeSpec::small(2) });
    place.create_by_kopia(&[]);
    place.kopia.set_policy(&["--global", "--compression=s2-default"]).unwrap();
    let taken = place.kopia.snapshot(&place.source(), &[]).unwrap();
    let repository = place.open().await;
    assert!(read_tree(&repository, &taken.root.obj).await == read_folder(&place.source()));
    verify_all(&repository).await;

    // Both write at the same time, and neither loses anything.
    TreeSpec::small(3).grow(&place.source().join("more")).unwrap();
    let source = place.source();
    let (ours, theirs) = tokio::join!(back_up(&repository, &source, Some(Compressor::Zstd)), async {
        tokio::task::block_in_place(|| place.kopia.snapshot(&place.source(), &[]).unwrap())
    });
    assert_eq!(ours.root_object(), Some(theirs.root.obj.as_str()));
    repository.refresh().await.unwrap();
    verify_all(&repository).await;
    place.kopia_agrees(ours.root_object().unwrap(), "ours");
    place.kopia.full_maintenance().unwrap();
    place.kopia_agrees(&theirs.root.obj, "theirs");
    let fresh = place.open().await;
    verify_all(&fresh).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_crosses_both_ways() {
    let with = |version, hash: &str, encryption: &str, splitter: &str| CreateOptions {
        version,
        hash: hash.into(),
        encryption: encryption.into(),
        splitter: splitter.into(),
        ..CreateOptions::default()
    };
    let (aes, chacha) = ("AES256-GCM-HMAC-SHA256", "CHACHA20-POLY1305-HMAC-SHA256");
    let mut formats = vec![
        (with(1, "HMAC-SHA256", aes, "FIXED-1M"), Some(Compressor::Gzip)),
        (with(1, "BLAKE2B-256-128", chacha, "DYNAMIC-1M-BUZHASH"), Some(Compressor::Zstd)),
        (with(2, "BLAKE3-256", chacha, "DYNAMIC-1M-RABINKARP"), Some(Compressor::S2Default)),
        (with(3, "BLAKE3-256-128", aes, "DYNAMIC-128K-BUZHASH"), Some(Compressor::ZstdBetterCompression)),
        (with(3, "HMAC-SHA3-224", aes, "DYNAMIC-128K-RABINKARP"), Some(Compressor::Pgzip)),
        (with(3, "HMAC-SHA224", chacha, "FIXED-8M"), Some(Compressor::DeflateDefault)),
    ];
    let mut ecc = with(3, "BLAKE2S-256", aes, "DYNAMIC-2M-BUZHASH");
    ecc.error_correction = Some(("REED-SOLOMON-CRC32".into(), 5));
    formats.push((ecc, Some(Compressor::S2Better)));

    for (seed, (create, compression)) in formats.into_iter().enumerate() {
        let place =
            Place::new(&TreeSpec { exact_sizes: vec![3_000_000], ..TreeSpec::small(100 + seed as u64) });
        let repository = place.create(&create).await;
        let snapshot = back_up(&repository, &place.source(), compression).await;
        place.kopia_agrees(snapshot.root_object().unwrap(), "restored");
        if let Some(compressor) = compression {
            place.kopia.set_policy(&["--global", &format!("--compression={}", compressor.name())]).unwrap();
        }
        TreeSpec::small(200 + seed as u64).grow(&place.source().join("more")).unwrap();
        let theirs = place.kopia.snapshot(&place.source(), &[]).unwrap();
        repository.refresh().await.unwrap();
        assert!(read_tree(&repository, &theirs.root.obj).await == read_folder(&place.source()), "{create:?}");
        verify_all(&repository).await;
        place.kopia.full_maintenance().unwrap();
        repository.refresh().await.unwrap();
        verify_all(&repository).await;
        // Format version 1 compresses objects before they are hashed, so there the bytes of the compressor show.
        if create.version > 1 {
            let ours = back_up(&repository, &place.source(), compression).await;
            assert_eq!(ours.root_object(), Some(theirs.root.obj.as_str()), "{create:?}");
        }
    }
}
