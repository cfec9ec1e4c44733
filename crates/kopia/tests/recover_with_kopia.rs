//! The index recovered from the packs: by us from kopia's packs and by kopia from ours, in every format.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
mod maintain_common;
#[path = "common/place.rs"]
mod place;
#[path = "common/tree.rs"]
mod tree;

use lifeboat_blobs::BlobId;
use lifeboat_blobs::wrap::Fault;
use lifeboat_index::{Deleted, Prefix};
use lifeboat_kopia::content::{ContentRange, ContentToWrite, PackChoice, RecoverOptions, RecoverReport};
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::maintain::{Mode, Safety};
use lifeboat_kopia::repo::Repository;
use lifeboat_testkit::tree::TreeSpec;
use maintain_common::World;
use place::{Place, blobs, verify_all};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tree::{back_up, read_tree};

/// Everything that holds index entries, or says which of it is in force.
const INDEX_PREFIXES: [&str; 7] = ["xn", "xs", "xr", "xe", "n", "m", "l"];

const AES: &str = "AES256-GCM-HMAC-SHA256";
const CHACHA: &str = "CHACHA20-POLY1305-HMAC-SHA256";

/// Every format version, every cipher, and error correction.
fn formats() -> Vec<CreateOptions> {
    let with = |version, hash: &str, encryption: &str, ecc: bool| CreateOptions {
        version,
        hash: hash.into(),
        encryption: encryption.into(),
        splitter: "DYNAMIC-128K-BUZHASH".into(),
        error_correction: ecc.then(|| ("REED-SOLOMON-CRC32".into(), 2)),
        ..CreateOptions::default()
    };
    vec![
        with(1, "BLAKE2B-256-128", AES, false),
        with(1, "HMAC-SHA256", CHACHA, false),
        with(2, "BLAKE3-256", CHACHA, false),
        with(3, "BLAKE2B-256-128", AES, false),
        with(3, "HMAC-SHA3-224", CHACHA, true),
    ]
}

/// The same as flags of kopia.
fn flags(create: &CreateOptions) -> Vec<String> {
    let mut flags = vec![
        format!("--format-version={}", create.version),
        format!("--block-hash={}", create.hash),
        format!("--encryption={}", create.encryption),
        format!("--object-splitter={}", create.splitter),
    ];
    flags.extend(
        create.error_correction.iter().map(|(_, percent)| format!("--ecc-overhead-percent={percent}")),
    );
    flags
}

fn index_files(place: &Place) -> Vec<PathBuf> {
    INDEX_PREFIXES.iter().flat_map(|prefix| blobs(&place.repository(), prefix)).collect()
}

fn lose_the_index(place: &Place) {
    let files = index_files(place);
    assert!(!files.is_empty());
    files.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    // Without its caches kopia has nothing but the packs.
    place.kopia.run(["cache", "clear"]).unwrap();
}

async fn recover(
    repository: &Repository,
    options: &RecoverOptions,
) -> (RecoverReport, BTreeMap<BlobId, String>) {
    let mut damaged = BTreeMap::new();
    let report = repository
        .contents()
        .recover_index(options, &mut |pack, error| drop(damaged.insert(pack.clone(), error.to_string())))
        .await
        .unwrap();
    (report, damaged)
}

fn commit() -> RecoverOptions {
    RecoverOptions { commit: true, ..RecoverOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn we_recover_the_index_of_kopias_packs_in_every_format() {
    for (seed, create) in formats().into_iter().enumerate() {
        let place = Place::new(&TreeSpec::small(seed as u64));
        let flags = flags(&create);
        place.create_by_kopia(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        place.kopia.snapshot(&place.source(), &[]).unwrap();
        // A content that is deleted in the index only, and a snapshot after that.
        let repository = place.open().await;
        let orphan = b"deleted by kopia, written by us".as_slice();
        let item = ContentToWrite { data: orphan, prefix: Prefix::NONE, compression: None };
        let contents = repository.contents().clone();
        let orphan = tokio::task::spawn_blocking(move || contents.write(&item).unwrap()).await.unwrap();
        repository.flush().await.unwrap();
        place.kopia.run(["content", "delete", &orphan.to_string(), "--dangerous-commands=enabled"]).unwrap();
        TreeSpec::small(100 + seed as u64).grow(&place.source().join("more")).unwrap();
        let taken = place.kopia.snapshot(&place.source(), &[]).unwrap();

        lose_the_index(&place);
        let repository = place.open().await;
        assert!(repository.snapshots().await.unwrap().snapshots.is_empty(), "{create:?}");
        let before = blobs(&place.repository(), "");
        let (planned, damaged) = recover(&repository, &RecoverOptions::default()).await;
        assert!(damaged.is_empty() && planned.missing > 0, "{planned:?} {damaged:?}");
        assert_eq!(blobs(&place.repository(), "").len(), before.len(), "a dry run writes nothing");

        let (report, damaged) = recover(&repository, &commit()).await;
        assert!(damaged.is_empty(), "{damaged:?}");
        assert_eq!((report.packs, report.entries), (planned.packs, planned.entries));
        repository.refresh().await.unwrap();
        assert_eq!(repository.snapshots().await.unwrap().snapshots.len(), 2, "{create:?}");
        verify_all(&repository).await;
        assert!(read_tree(&repository, &taken.root.obj).await == tree::read_folder(&place.source()));
        let again = recover(&repository, &commit()).await.0;
        assert_eq!(again.missing, 0, "nothing is left to recover");

        place.kopia.run(["cache", "clear"]).unwrap();
        place.kopia_agrees(&taken.root.obj, "recovered");
        place.kopia.full_maintenance().unwrap();
        place.kopia_agrees(&taken.root.obj, "maintained");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kopia_recovers_the_index_of_our_packs_in_every_format() {
    for (seed, create) in formats().into_iter().enumerate() {
        let place = Place::new(&TreeSpec::small(200 + seed as u64));
        let repository = place.create(&create).await;
        back_up(&repository, &place.source(), None).await;
        TreeSpec::small(300 + seed as u64).grow(&place.source().join("more")).unwrap();
        let snapshot = back_up(&repository, &place.source(), None).await;
        drop(repository);
        lose_the_index(&place);
        place.kopia.run(["index", "recover", "--commit", "--dangerous-commands=enabled"]).unwrap();
        place.kopia_agrees(snapshot.root_object().unwrap(), "recovered");
        let repository = place.open().await;
        assert_eq!(repository.snapshots().await.unwrap().snapshots.len(), 2, "{create:?}");
        verify_all(&repository).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions_that_packs_know_of_are_recovered_with_them() {
    for version in [1, 3] {
        let place = Place::new(&TreeSpec::small(7));
        let create = CreateOptions { version, ..CreateOptions::default() };
        let repository = place.create(&create).await;
        let taken = back_up(&repository, &place.source(), None).await;
        let ids: Vec<_> = repository
            .contents()
            .iterate(ContentRange::Prefixed, Deleted::Skip)
            .map(|entry| entry.unwrap().id)
            .filter(|id| id.prefix() == Prefix::DIRECTORY)
            .take(2)
            .collect();
        // The deletion goes into the pack that is open for contents of its kind.
        let contents = repository.contents().clone();
        let write = move || {
            let item = ContentToWrite { data: b"a directory", prefix: Prefix::DIRECTORY, compression: None };
            contents.write(&item).unwrap();
            contents.delete(&ids[0]).unwrap();
            ids
        };
        let ids = tokio::task::spawn_blocking(write).await.unwrap();
        repository.flush().await.unwrap();
        lose_the_index(&place);

        let repository = place.open().await;
        let (report, damaged) = recover(&repository, &commit()).await;
        assert!(damaged.is_empty() && report.missing > 0);
        let deleted = |id| repository.contents().lookup(id).unwrap().unwrap().deleted;
        assert!(deleted(&ids[0]) && !deleted(&ids[1]), "version {version}");
        assert!(
            repository.contents().read(&ids[0]).await.is_ok(),
            "what is deleted can be read until it is dropped"
        );
        let listed = place.kopia.run(["content", "list", "--deleted-only"]).unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains(&ids[0].to_string()));
        place.kopia_agrees(taken.root_object().unwrap(), "recovered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_that_cannot_be_read_are_named_and_do_not_stop_the_others() {
    let place = Place::new(&TreeSpec::small(11));
    let repository = place.create(&CreateOptions::default()).await;
    for number in 0..6 {
        std::fs::write(place.source().join("numbered"), common::noise(number, 50_000)).unwrap();
        back_up(&repository, &place.source(), None).await;
    }
    let whole = recover(&repository, &RecoverOptions::default()).await.0;
    assert_eq!((whole.missing, whole.damaged_packs), (0, 0));
    let mut packs = blobs(&place.repository(), "p");
    packs.sort();
    let name = |path: &PathBuf| {
        let relative = path.strip_prefix(place.repository()).unwrap().to_str().unwrap().replace('/', "");
        BlobId::new(relative.strip_suffix(".f").unwrap()).unwrap()
    };
    let good: Vec<Vec<u8>> = packs.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let flipped = |bytes: &[u8], from_end: usize| {
        let mut bytes = bytes.to_vec();
        let at = bytes.len() - from_end;
        bytes[at] ^= 4;
        bytes
    };
    std::fs::write(&packs[0], &good[0][..good[0].len() / 2]).unwrap();
    std::fs::write(&packs[1], b"").unwrap();
    std::fs::write(&packs[2], flipped(&good[2], 1)).unwrap();
    std::fs::write(&packs[3], flipped(&good[3], 150)).unwrap();
    std::fs::write(&packs[4], &good[5]).unwrap();
    lose_the_index(&place);

    let repository = place.open().await;
    let (report, damaged) = recover(&repository, &commit()).await;
    assert_eq!(damaged.keys().cloned().collect::<Vec<_>>(), packs[..5].iter().map(name).collect::<Vec<_>>());
    assert_eq!((report.packs, report.damaged_packs), (whole.packs, 5));
    assert!(damaged[&name(&packs[4])].contains(name(&packs[5]).as_str()), "{damaged:?}");
    assert_eq!(repository.snapshots().await.unwrap().snapshots.len(), 6, "all manifests are back");

    // What is put back is recovered by its name, and by its prefix.
    packs.iter().zip(&good).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    let named = PackChoice::Named(vec![name(&packs[0]), BlobId::new("p00-s1").unwrap()]);
    let (report, damaged) = recover(&repository, &RecoverOptions { packs: named, ..commit() }).await;
    assert!(report.missing > 0 && report.packs == 2);
    assert_eq!(damaged.keys().map(BlobId::as_str).collect::<Vec<_>>(), ["p00-s1"]);
    let prefixes = PackChoice::Prefixes(vec!["p".into()]);
    let (report, damaged) = recover(&repository, &RecoverOptions { packs: prefixes, ..commit() }).await;
    assert!(damaged.is_empty() && report.missing > 0);
    assert_eq!(recover(&repository, &commit()).await.0.missing, 0);
    verify_all(&repository).await;
    place.kopia.run(["cache", "clear"]).unwrap();
    place.kopia.verify_contents().unwrap();
    place.kopia.verify_snapshots().unwrap();
}

/// A repository whose index has been compacted in every way that there is.
async fn compacted_world(version: u8) -> (World, Repository, String) {
    let world = World::new();
    let mut repository = world.create(version).await;
    if version > 1 {
        repository = maintain_common::quicken_epochs(&world, repository, 1).await;
    }
    let files = maintain_common::files(&[("a", 1, 30_000), ("sub/b", 2, 150_000)]);
    let id = maintain_common::take_snapshot(&repository, &files).await;
    for round in 0..6u64 {
        for number in 0..10u64 {
            maintain_common::write_orphan(&repository, round * 100 + number).await;
            world.clock.advance(jiff::SignedDuration::from_mins(5));
        }
        maintain_common::run(&repository, Mode::Full, &Safety::FULL).await;
    }
    for kind in if version > 1 { ["xe", "xs", "xr", "xn"].as_slice() } else { ["n", "m"].as_slice() } {
        assert!(!world.names(kind).await.is_empty(), "no {kind}");
    }
    let root = lifeboat_kopia::snapshot::load(repository.manifests(), &id).await.unwrap();
    (world, repository, root.root_object().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_not_to_be_believed_is_replaced_as_a_whole() {
    for version in [1, 3] {
        let (world, repository, root) = compacted_world(version).await;
        let before = world.names("").await;
        let contents = repository.contents().snapshot().count().unwrap();
        let options = RecoverOptions { replace_index: true, ..RecoverOptions::default() };
        let (planned, damaged) = recover(&repository, &options).await;
        assert!(damaged.is_empty() && planned.missing > 0 && planned.replaced_blobs > 0, "{planned:?}");
        assert_eq!(world.names("").await, before, "a dry run writes nothing");
        assert_eq!(repository.contents().snapshot().count().unwrap(), contents, "and forgets nothing");

        // As long as a pack cannot be read, the old index stays: only it knows what is in there.
        let damaged_pack = world.list("p").await.remove(0);
        let good = world.get(&damaged_pack.id).await;
        world.put(&damaged_pack.id, &good[..good.len() - 1]).await;
        let options = RecoverOptions { commit: true, ..options };
        let (report, damaged) = recover(&repository, &options).await;
        assert_eq!(damaged.into_keys().collect::<Vec<_>>(), std::slice::from_ref(&damaged_pack.id));
        assert!(report.damaged_packs == 1 && world.names("").await.len() > before.len());
        world.put(&damaged_pack.id, &good).await;
        // It stays, too, if not every pack was listed, or chosen.
        let old = world.names(if version > 1 { "x" } else { "n" }).await;
        let store = Fault::new(world.store.clone());
        let control = store.control();
        let through_cuts = Repository::open(world.options_on(Arc::new(store))).await.unwrap();
        maintain_common::cut_listings(&control, "p", 1);
        let only_metadata =
            RecoverOptions { packs: PackChoice::Prefixes(vec!["q".into()]), ..options.clone() };
        for (client, options) in [(&through_cuts, &options), (&repository, &only_metadata)] {
            let (report, damaged) = recover(client, options).await;
            assert!(damaged.is_empty() && !report.is_complete(), "{report:?}");
            assert!(report.unread_pack.unwrap().pack.starts_with('p'));
            let left = world.names(if version > 1 { "x" } else { "n" }).await;
            assert!(old.iter().all(|blob| left.contains(blob)));
        }

        let (report, damaged) = recover(&repository, &options).await;
        assert!(
            damaged.is_empty() && report.missing > 0 && report.missing <= planned.missing,
            "{report:?} {planned:?}"
        );
        let left = world.names(if version > 1 { "x" } else { "n" }).await;
        assert!(left.iter().all(|name| !name.starts_with("xs") && !name.starts_with("xr")), "{left:?}");
        assert!(world.names("m").await.is_empty());

        // Kopia finds everything, compacts and maintains it.
        let place = Place::new(&TreeSpec::small(1));
        world.export(&place.repository()).await;
        place.connect();
        place.kopia.verify_contents().unwrap();
        place.kopia.verify_snapshots().unwrap();
        place.kopia.full_maintenance().unwrap();
        place.kopia.verify_contents().unwrap();
        place.kopia.restore(&root, &place.target("restored")).unwrap();
        verify_all(&place.open().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_entries_are_recovered_in_little_memory() {
    /// More than are ever kept in memory before they are published.
    const CONTENTS: u32 = 230_000;
    const PACK: u32 = 10_000;
    let world = World::new();
    let repository = world.create(3).await;
    for start in (0..CONTENTS).step_by(PACK as usize) {
        let contents = repository.contents().clone();
        let write = move || {
            let data: Vec<[u8; 4]> = (start..start + PACK).map(u32::to_le_bytes).collect();
            let item = |data| ContentToWrite { data, prefix: Prefix::NONE, compression: None };
            let items: Vec<_> = data.iter().map(|data| item(data.as_slice())).collect();
            contents.write_batch(&items).unwrap();
        };
        tokio::task::spawn_blocking(write).await.unwrap();
        repository.flush().await.unwrap();
    }
    drop(repository);
    for blob in world.list("x").await {
        world.delete(&blob.id).await;
    }
    let mut options = world.options();
    options.budget = lifeboat_budget::Budget::new(12 << 20);
    let repository = Repository::open(options).await.unwrap();
    let (report, damaged) = recover(&repository, &commit()).await;
    assert!(damaged.is_empty() && report.missing >= CONTENTS.into(), "{report:?} {damaged:?}");
    assert!(world.names("xn").await.len() > 1, "published on the way");
    assert_eq!(recover(&world.open().await, &RecoverOptions::default()).await.0.missing, 0);
}
