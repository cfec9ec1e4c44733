//! Contents, packs, indexes and objects crossed with the real kopia: each side reads, verifies, repairs and maintains
//! what the other wrote.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
#[path = "common/tree.rs"]
mod tree;

use common::{create_with, options};
use lifeboat_blobs::{FsOptions, FsStore};
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::verify::{self, VerifyContents, VerifySnapshots};
use lifeboat_primitives::compress::Compressor;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::TreeSpec;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tree::{back_up, read_folder, read_tree};

/// A repository in a folder, something to back up, and a kopia that uses the repository too.
struct Place {
    folder: TempDir,
    kopia: Kopia,
}

/// Kopia would otherwise rely on listings that are half a minute old, and not see what we just wrote.
const FLAGS: [&str; 3] =
    ["--override-username=tester", "--override-hostname=testhost", "--max-list-cache-duration=0s"];

impl Place {
    fn new(spec: &TreeSpec) -> Place {
        let place =
            Place { folder: tempfile::tempdir().unwrap(), kopia: Kopia::new("correct horse").unwrap() };
        spec.grow(&place.source()).unwrap();
        place
    }

    fn repository(&self) -> PathBuf {
        self.folder.path().join("repository")
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    fn target(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn create(&self, create: &CreateOptions) -> Repository {
        let store = FsStore::create(FsOptions::new(self.repository())).await.unwrap();
        let repository = create_with(options(Arc::new(store)), create).await;
        self.connect();
        repository
    }

    fn connect(&self) {
        self.kopia.connect_filesystem(&self.repository(), &FLAGS).unwrap();
    }

    async fn open(&self) -> Repository {
        let store = FsStore::open(FsOptions::new(self.repository())).await.unwrap();
        Repository::open(options(Arc::new(store))).await.unwrap()
    }

    /// All of kopia's checks, and a restore of the object `root`. (By the id of a snapshot, kopia restores only
    /// from repositories with 128-bit hashes.)
    fn kopia_agrees(&self, root: &str, restored: &str) {
        self.kopia.verify_contents().unwrap();
        self.kopia.verify_snapshots().unwrap();
        self.kopia.restore(root, &self.target(restored)).unwrap();
        assert!(read_folder(&self.source()) == read_folder(&self.target(restored)), "{restored} differs");
    }
}

async fn verify_all(repository: &Repository) {
    let options = VerifyContents { full: true, include_deleted: true, ..VerifyContents::default() };
    let mut damages = Vec::new();
    let report = verify::contents(repository, &options, &mut |damage| damages.push(damage)).await.unwrap();
    assert!(damages.is_empty() && report.contents > 0 && report.bytes_read > 0, "{report:?} {damages:?}");
    let options = VerifySnapshots { read_percent: 100, ..VerifySnapshots::default() };
    let mut damages = Vec::new();
    let report = verify::snapshots(repository, &options, &mut |damage| damages.push(damage)).await.unwrap();
    assert!(damages.is_empty() && report.files > 0 && report.bytes_read > 0, "{report:?} {damages:?}");
}

fn blobs(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for child in std::fs::read_dir(next).unwrap() {
            let path = child.unwrap().path();
            let relative = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('/', "");
            if path.is_dir() {
                waiting.push(path);
            } else if relative.starts_with(prefix) {
                found.push(path);
            }
        }
    }
    found
}

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
    std::fs::create_dir(place.repository()).unwrap();
    place.kopia.create_filesystem(&place.repository(), &FLAGS).unwrap();
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
async fn a_lost_index_is_recovered_from_our_packs_by_kopia_and_by_us() {
    let place = Place::new(&TreeSpec::small(4));
    let repository = place.create(&CreateOptions::default()).await;
    let snapshot = back_up(&repository, &place.source(), None).await;
    for ours in [false, true] {
        for path in blobs(&place.repository(), "xn") {
            std::fs::remove_file(path).unwrap();
        }
        if ours {
            let repository = place.open().await;
            let mut damaged = Vec::new();
            let report = repository
                .contents()
                .recover_index(true, &mut |pack, error| damaged.push(format!("{pack}: {error}")))
                .await
                .unwrap();
            assert!(
                damaged.is_empty() && report.missing > 0 && report.missing == report.entries,
                "{report:?}"
            );
            verify_all(&repository).await;
        } else {
            // Without its caches it has nothing but the packs.
            place.kopia.run(["cache", "clear"]).unwrap();
            place.kopia.run(["index", "recover", "--commit", "--dangerous-commands=enabled"]).unwrap();
        }
        place.kopia.run(["cache", "clear"]).unwrap();
        place.kopia_agrees(snapshot.root_object().unwrap(), if ours { "by-us" } else { "by-kopia" });
    }
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
