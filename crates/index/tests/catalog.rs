//! Scenarios of the catalogue: what is loaded when, what is kept, who may share it, and what damage does.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::{Model, decode, eager_options, entry, files, id};
use lifeboat_index::{
    Catalog, CatalogOptions, Deleted, Error, IdRange, IndexBlobName, IndexEntry, IndexSource, IndexVersion,
    Snapshot, shard_of,
};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

/// A content id that looks like a real one.
fn hashed(number: u64) -> lifeboat_index::ContentId {
    let prefix = if number.is_multiple_of(50) { b'k' } else { 0 };
    id(prefix, &blake3::hash(&number.to_le_bytes()).as_bytes()[..16])
}

fn numbered(numbers: std::ops::Range<u64>) -> impl Iterator<Item = IndexEntry> {
    numbers.map(|i| entry(hashed(i), 1_700_000_000 + i as i64, &format!("p{:032x}-s{:016x}122", i / 100, 7)))
}

#[test]
fn unchanged_blobs_are_loaded_once() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Catalog::open(directory.path(), CatalogOptions::default()).unwrap();
    let mut model = Model::new();
    for blob in 0..30 {
        model.upload(&format!("xn0_{blob:02}"), numbered(blob * 10..blob * 10 + 15));
    }
    assert_eq!(open().missing(&model.active).unwrap().len(), 30);
    model.check(&open());
    assert_eq!(model.loads, 30);
    assert!(open().missing(&model.active).unwrap().is_empty());

    model.check(&open());
    assert_eq!(model.loads, 30, "opening the same set again loads nothing");
    model.upload("xn0_new", numbered(1000..1010));
    assert_eq!(open().missing(&model.active).unwrap(), ["xn0_new".into()]);
    model.check(&open());
    assert_eq!(model.loads, 31, "only the new blob is loaded");
    model.active.remove(&IndexBlobName::from("xn0_07"));
    model.check(&open());
    assert_eq!(model.loads, 31, "what a removed blob was merged with is still there");
}

#[test]
fn blobs_added_beforehand_are_not_loaded() {
    let catalog = Catalog::temporary(CatalogOptions::default()).unwrap();
    let mut model = Model::new();
    model.upload("xn0_a", numbered(0..100));
    model.upload("xn0_b", numbered(50..150));
    for blob in catalog.missing(&model.active).unwrap() {
        catalog.add(&blob, &IndexSource::memory(model.blobs[&blob].clone())).unwrap();
    }
    model.check(&catalog);
    assert_eq!(model.loads, 0);
}

#[test]
fn an_entry_vanishes_with_the_only_blob_that_had_it() {
    let catalog = Catalog::temporary(eager_options()).unwrap();
    let mut model = Model::new();
    for blob in 0..20 {
        model.upload(&format!("xn0_{blob}"), numbered(blob * 10..blob * 10 + 11));
        model.check(&catalog);
    }
    while let Some(name) = model.active.pop_first() {
        model.check(&catalog);
        drop(name);
    }
    let snapshot = model.update(&catalog).unwrap();
    assert_eq!(snapshot.count().unwrap(), 0);
}

#[test]
fn blocks_are_searched_correctly_at_their_edges() {
    let catalog = Catalog::temporary(CatalogOptions::default()).unwrap();
    let mut model = Model::new();
    model.upload("xn0_many", numbered(0..5000));
    // All of these share more than the first eight bytes of their keys, over several blocks.
    let alike = |i: u16| id(0, &[&[0x77; 12][..], &i.to_be_bytes(), &[0, 0]].concat());
    model.upload("xn0_alike", (0..1000).map(|i| entry(alike(2 * i), 5, "p0")));
    let snapshot = model.update(&catalog).unwrap();
    model.compare(&snapshot).unwrap();
    for i in 0..1000 {
        assert!(!snapshot.contains_live(&alike(2 * i + 1)).unwrap());
    }
    for i in 5000..10_000 {
        assert_eq!(snapshot.get(&hashed(i)).unwrap(), None);
    }
    for start in model.merged().keys().step_by(93) {
        let first = snapshot.iter(IdRange::starting_at(start), Deleted::Skip).next().unwrap().unwrap();
        assert_eq!(first.id, *start);
    }
}

#[test]
fn the_watermark_hides_old_deletions_only() {
    let catalog = Catalog::temporary(CatalogOptions::default()).unwrap();
    let (old, new, undone) = (id(0, b"old1"), id(0, b"new1"), id(0, b"undo"));
    let deleted = |id, timestamp| IndexEntry { deleted: true, ..entry(id, timestamp, "p1") };
    let mut model = Model::new();
    model.upload("xn0_a", [old, new, undone].map(|id| entry(id, 1, "p1")));
    model.upload("xn0_b", [deleted(old, 10), deleted(new, 11), deleted(undone, 5)]);
    model.upload("xn0_c", [entry(undone, 6, "p2")]);
    model.watermark = 10;
    let snapshot = model.update(&catalog).unwrap();
    assert_eq!(snapshot.get(&old).unwrap(), None);
    assert!(snapshot.get(&new).unwrap().is_some_and(|entry| entry.deleted));
    assert!(snapshot.contains_live(&undone).unwrap() && !snapshot.contains_live(&new).unwrap());
    assert!(snapshot.with_watermark(i64::MIN).get(&old).unwrap().is_some_and(|entry| entry.deleted));
    model.check(&catalog);
}

/// What the filters of new segments answer is what looking everything up would.
#[test]
fn whether_an_entry_still_stands_is_told_by_what_is_new() {
    for options in [CatalogOptions::default(), eager_options()] {
        let catalog = Catalog::temporary(options).unwrap();
        let mut model = Model::new();
        for blob in 0..12 {
            model.upload(&format!("xn0_{blob:02}"), numbered(blob * 50..blob * 50 + 60));
        }
        let before = model.update(&catalog).unwrap();
        let entries: Vec<IndexEntry> =
            before.iter(IdRange::all(), Deleted::Include).map(Result::unwrap).collect();
        let check = |now: &Snapshot, changed: usize| {
            let (since, other) = (now.since(&before).unwrap(), before.since(now).unwrap());
            let mut found = 0;
            for entry in &entries {
                let still = now.get(&entry.id).unwrap().as_ref() == Some(entry);
                assert_eq!(now.still_has(entry, &since).unwrap(), still, "{entry:?}");
                // What is of other views is of no use, and does no harm.
                assert_eq!(now.still_has(entry, &other).unwrap(), still, "{entry:?}");
                found += usize::from(!still);
            }
            assert_eq!(found, changed);
        };
        check(&before, 0);
        let moved = |i: u64| entry(hashed(i), 1_800_000_000, "pnew");
        for blob in 0..15 {
            model.upload(&format!("xn1_{blob:02}"), (blob * 10..blob * 10 + 3).map(moved));
        }
        let later = model.update(&catalog).unwrap();
        check(&later, 45);
        assert_ne!(later.identity(), before.identity());
        check(&later.with_watermark(1_900_000_000), 45);
        model.active.remove(&IndexBlobName::from("xn0_05"));
        let shrunk = model.update(&catalog).unwrap();
        check(&shrunk, 45 + 40);
        assert_eq!(model.update(&catalog).unwrap().identity(), shrunk.identity());
    }
}

#[test]
fn version_1_blobs_mix_with_version_2() {
    let catalog = Catalog::temporary(CatalogOptions::default()).unwrap();
    let mut model = Model::new();
    model.upload("n1", numbered(0..300));
    model.upload("n2", numbered(200..500));
    let mut v1 = Vec::new();
    lifeboat_index::codec::encode(IndexVersion::V1 { overhead: 28 }, &model.entries[&"n1".into()], &mut v1)
        .unwrap();
    model.blobs.insert("n1".into(), v1);
    model.check(&catalog);
}

#[test]
fn a_compacted_index_says_the_same() {
    let catalog = Catalog::temporary(eager_options()).unwrap();
    let mut model = Model::new();
    for blob in 0..5 {
        model.upload(&format!("xn0_{blob}"), numbered(blob * 100..blob * 100 + 150));
    }
    let snapshot = model.update(&catalog).unwrap();
    let expected: Vec<_> = model.merged().into_values().collect();
    let mut whole = Vec::new();
    let written = snapshot.encode_index(IndexVersion::V2, 0, 1, &mut whole).unwrap();
    assert_eq!(written, Some(whole.len() as u64));
    assert_eq!(decode(&whole), expected);
    let mut direct = Vec::new();
    lifeboat_index::codec::encode(IndexVersion::V2, &expected, &mut direct).unwrap();
    assert_eq!(whole, direct, "equal entries give equal bytes, wherever they come from");

    for shard in 0..3 {
        let mut part = Vec::new();
        snapshot.encode_index(IndexVersion::V2, shard, 3, &mut part).unwrap();
        let mine = expected.iter().filter(|entry| shard_of(&entry.id, 3) == shard);
        assert!(decode(&part).iter().eq(mine));
    }
    assert_eq!(Snapshot::empty().encode_index(IndexVersion::V2, 0, 1, &mut Vec::new()).unwrap(), None);
}

#[test]
fn a_damaged_blob_is_named_and_the_rest_is_kept() {
    let catalog = Catalog::temporary(CatalogOptions::default()).unwrap();
    let mut model = Model::new();
    model.upload("xn0_a", numbered(0..100));
    model.upload("xn0_b", numbered(100..200));
    let bad = model.blobs.get_mut(&"xn0_b".into()).unwrap();
    bad.truncate(300);
    let error = model.update(&catalog).unwrap_err();
    assert!(matches!(&error, Error::Index { blob, .. } if blob.as_str() == "xn0_b"), "{error}");
    // Two entries in the wrong order.
    let mut swapped = model.blobs[&"xn0_a".into()].clone();
    swapped[17..17 + 2 * 33].rotate_left(33);
    model.blobs.insert("xn0_b".into(), swapped);
    let error = model.update(&catalog).unwrap_err();
    assert!(matches!(&error, Error::Index { blob, .. } if blob.as_str() == "xn0_b"), "{error}");
    model.active.remove(&IndexBlobName::from("xn0_b"));
    let loads = model.loads;
    model.check(&catalog);
    assert_eq!(model.loads, loads);
}

#[test]
fn a_failing_loader_is_passed_through() {
    let catalog = Catalog::temporary(CatalogOptions::default()).unwrap();
    let active = BTreeSet::from([IndexBlobName::from("xn0_gone")]);
    let error = catalog.update(&active, 0, &mut |_| Err("not found".into())).unwrap_err();
    assert_eq!(error.to_string(), "cannot load index blob xn0_gone: not found");
}

#[test]
fn damage_in_any_page_is_found_before_it_is_believed() {
    let directory = tempfile::tempdir().unwrap();
    let mut model = Model::new();
    model.upload("xn0_a", numbered(0..1500));
    let open = |check_limit| {
        Catalog::open(directory.path(), CatalogOptions { check_limit, ..eager_options() }).unwrap()
    };
    model.check(&open(0));
    let own = files(directory.path()).into_iter().find(|name| name.starts_with("own-")).unwrap();
    let path = directory.path().join(own);
    let pages = fs::metadata(&path).unwrap().len() / 4096;
    assert!(pages > 18);
    for page in 0..=pages {
        for check_limit in [0, u64::MAX] {
            let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let (at, mut byte) = (page * 4096, [0]);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            let loads = model.loads;
            if check_limit > 0 {
                let snapshot = model.update(&open(check_limit)).unwrap();
                model.compare(&snapshot).unwrap();
            } else {
                model.check(&open(check_limit));
            }
            assert!(model.loads <= loads + 1);
        }
    }
}

#[test]
fn nothing_but_what_is_needed_stays_in_the_folder() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(directory.path().join("new/folder"), eager_options()).unwrap();
    let directory = directory.path().join("new/folder");
    fs::write(directory.join("not-ours"), "x").unwrap();
    fs::write(directory.join("tmp-of-a-crash"), "x").unwrap();
    let mut model = Model::new();
    for blob in 0..70 {
        model.upload(&format!("xn0_{blob}"), numbered(blob * 5..blob * 5 + 6));
    }
    model.check(&catalog);
    let count = |prefix: &str| files(&directory).iter().filter(|name| name.starts_with(prefix)).count();
    assert_eq!((count("own-"), count("cover-"), count("tmp-"), count("not-ours")), (70, 1, 0, 1));
    assert!(count("merged-") <= 3);
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    for name in files(&directory).iter().filter(|name| *name != "not-ours") {
        assert_eq!(fs::metadata(directory.join(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    let all: Vec<_> = (0..350).collect();
    model.active.clear();
    model.upload("xs0_all", all.iter().flat_map(|&i| numbered(i..i + 1)));
    model.check(&catalog);
    assert_eq!((count("own-"), count("merged-"), count("cover-")), (1, 0, 1));
}

#[test]
fn files_of_others_stay_for_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let options = CatalogOptions { grace: Duration::from_secs(3600), ..eager_options() };
    let catalog = Catalog::open(directory.path(), options).unwrap();
    let mut model = Model::new();
    model.upload("xn0_a", numbered(0..10));
    model.check(&catalog);
    model.upload("xn0_b", numbered(10..20));
    model.active.remove(&IndexBlobName::from("xn0_a"));
    model.check(&catalog);
    model.active.insert("xn0_a".into());
    model.check(&catalog);
    assert_eq!(model.loads, 2, "the segment of the removed blob was still there");
}

#[test]
fn the_list_of_another_set_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(directory.path(), CatalogOptions::default()).unwrap();
    let covers = || files(directory.path()).into_iter().filter(|name| name.starts_with("cover-"));
    let mut model = Model::new();
    model.upload("xn0_a", numbered(0..10));
    model.check(&catalog);
    let first = covers().next().unwrap();
    model.upload("xn0_b", numbered(10..20));
    model.check(&catalog);
    let second = covers().find(|name| *name != first).unwrap();
    fs::copy(directory.path().join(first), directory.path().join(second)).unwrap();
    model.check(&catalog);
}

#[test]
fn a_snapshot_outlives_its_folder_and_the_folder_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let catalog = Catalog::open(&path, CatalogOptions::default()).unwrap();
    let mut model = Model::new();
    model.upload("xn0_a", numbered(0..1000));
    let snapshot = model.update(&catalog).unwrap();
    fs::remove_dir_all(&path).unwrap();
    model.compare(&snapshot).unwrap();
    model.check(&catalog);
    assert_eq!(model.loads, 2);
}

#[test]
fn several_catalogues_share_a_folder() {
    let directory = tempfile::tempdir().unwrap();
    let options = CatalogOptions { max_segments: 2, ..CatalogOptions::default() };
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (directory, options) = (directory.path(), options.clone());
            scope.spawn(move || {
                let mut model = Model::new();
                for round in 0..40_u64 {
                    // All see much the same blobs, not all at the same time.
                    model.upload(&format!("xn0_{round}"), numbered(round * 20..round * 20 + 30));
                    if round % 5 == worker {
                        model.active.pop_first();
                    }
                    model.check(&Catalog::open(directory, options.clone()).unwrap());
                }
            });
        }
    });
    assert!(files(directory.path()).iter().all(|name| !name.starts_with("tmp-")));
}
