//! What a backup holds, what it takes over from earlier ones, and what it does when files misbehave.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Place, root_object, write};
use lifeboat_kopia::gojson::Base64;
use lifeboat_kopia::snapshot::{EntryType, Extras, SpecialKind, XattrName};
use lifeboat_testkit::tree::{Random, TreeSpec};
use lifeboat_uploader::{Cancel, Progress, back_up};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

fn make_special(path: &Path, kind: FileType, device: u64) {
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device).unwrap();
}

/// One of everything that Kopia has no place for.
fn plant_extras(top: &Path) {
    fs::create_dir_all(top.join("sub")).unwrap();
    write(top.join("attributes"), b"x");
    setxattr(top.join("attributes"), "user.a", b"v\0", XattrFlags::empty()).unwrap();
    setxattr(top.join("sub"), "user.of-a-directory", b"", XattrFlags::empty()).unwrap();
    write(top.join("linked"), b"several names");
    fs::hard_link(top.join("linked"), top.join("sub/other name")).unwrap();
    make_special(&top.join("fifo"), FileType::Fifo, 0);
    make_special(&top.join("socket"), FileType::Socket, 0);
    make_special(&top.join("null"), FileType::CharacterDevice, makedev(1, 3));
    write(top.join(OsStr::from_bytes(b"not \xff text")), b"raw");
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&[1; 4096], 5 << 20).unwrap();
}

#[test]
fn what_kopia_has_no_place_for_is_kept_beside_it() {
    let place = Place::new();
    plant_extras(&place.source());
    let (snapshot, totals) = place.open().back_up(|options| options.threads = 1);
    // What was read under one name is not read again under the other; two threads may read it at once.
    assert_eq!((totals.errors, totals.files, totals.hashed_files), (0, 8, 7));
    let opened = place.open();
    let extras = |path: &str| *opened.entry(&snapshot, path).extras.unwrap_or_default();
    let xattr = |name: &str, value: &[u8]| (XattrName(name.into()), Base64(value.to_vec()));
    assert_eq!(extras("attributes").xattrs, [xattr("user.a", b"v\0")].into());
    assert_eq!(extras("sub").xattrs, [xattr("user.of-a-directory", b"")].into());
    let (link, other) = (extras("linked").hard_link.unwrap(), extras("sub/other name").hard_link.unwrap());
    assert_eq!((link.group(), link.names), (other.group(), 2));
    assert_eq!(opened.entry(&snapshot, "linked").object, opened.entry(&snapshot, "sub/other name").object);
    assert_eq!(extras("fifo").kind, Some(SpecialKind::Fifo));
    assert_eq!(extras("socket").kind, Some(SpecialKind::Socket));
    let null = extras("null");
    let device = null.device.unwrap();
    assert_eq!((null.kind, device.major, device.minor), (Some(SpecialKind::CharDevice), 1, 3));
    let holes: Vec<_> = extras("sparse").holes.iter().map(|hole| (hole.offset, hole.length)).collect();
    assert_eq!(holes, [(0, 5 << 20), ((5 << 20) + 4096, (5 << 20) - 4096)]);
    let raw = opened.entries(root_object(&snapshot)).into_iter().find(|e| e.file_name() == b"not \xff text");
    assert_eq!(raw.unwrap().size, 3);
    let root = snapshot.root_entry.as_ref().unwrap();
    assert_eq!(root.extras, Some(Box::new(Extras { recorded: true, ..Extras::default() })));

    place.kopia.verify_snapshots().unwrap();
    place.kopia.full_maintenance().unwrap();
    let restored = place.path("restored");
    place.kopia.restore(snapshot.id.as_str(), &restored).unwrap();
    assert_eq!(fs::read(restored.join("sub/other name")).unwrap(), b"several names");
    assert_eq!(fs::metadata(restored.join("fifo")).unwrap().len(), 0);
}

#[test]
fn a_small_file_with_holes_is_read_from_its_beginning() {
    let place = Place::new();
    let file = fs::File::create(place.source().join("sparse")).unwrap();
    file.set_len(300_000).unwrap();
    file.write_all_at(b"the beginning", 0).unwrap();
    file.write_all_at(b"the end", 299_993).unwrap();
    let (snapshot, totals) = place.back_up();
    assert_eq!((totals.changed, totals.hashed_bytes), (0, 300_000));
    let restored = place.path("restored");
    place.kopia.restore(snapshot.id.as_str(), &restored).unwrap();
    assert!(fs::read(restored.join("sparse")).unwrap() == fs::read(place.source().join("sparse")).unwrap());
}

#[test]
fn special_files_are_left_out_or_refused_where_extras_are_not_kept() {
    let place = Place::new();
    write(place.source().join("file"), b"x");
    make_special(&place.source().join("fifo"), FileType::Fifo, 0);
    let (snapshot, totals) = place.open().back_up(|options| options.extras = false);
    assert_eq!((totals.files, totals.errors), (1, 0));
    assert_eq!(place.open().entries(root_object(&snapshot)).len(), 1);

    place.kopia.set_policy(&["--global", "--ignore-unknown-types=false"]).unwrap();
    let (snapshot, totals) = place.open().back_up(|options| options.extras = false);
    assert_eq!(totals.errors, 1);
    let summary = snapshot.root_entry.unwrap().summary.unwrap();
    assert_eq!((summary.failed, &*summary.errors[0].path), (1, "fifo"));
}

#[test]
fn nothing_is_read_or_written_again_when_nothing_changed() {
    let place = Place::new();
    let grown = TreeSpec::medium(11).grow(&place.source()).unwrap();
    plant_extras(&place.source());
    let (first, totals) = place.back_up();
    let files = totals.files;
    assert!(files > (grown.files + grown.symlinks) as u64);
    for _ in 0..2 {
        let opened = place.open();
        let (again, totals) = opened.back_up(|_| {});
        assert_eq!((totals.hashed_files, totals.hashed_bytes, totals.cached_files), (0, 0, files));
        assert_eq!(root_object(&again), root_object(&first));
        let entry = |snapshot: &lifeboat_kopia::snapshot::SnapshotManifest| snapshot.root_entry.clone();
        assert_eq!(entry(&again), entry(&first));
    }
}

#[test]
fn every_kind_of_change_is_found() {
    let place = Place::new();
    let top = place.source();
    TreeSpec::small(13).grow(&top).unwrap();
    for name in ["content", "mode", "owner", "time", "size", "gone", "type", "attribute"] {
        write(top.join(name), format!("{name} before"));
    }
    symlink("a", top.join("link")).unwrap();
    place.back_up();
    let time = |name: &str| fs::metadata(top.join(name)).unwrap().modified().unwrap();
    let before = time("content");
    write(top.join("content"), "content later!");
    fs::File::open(top.join("content"))
        .unwrap()
        .set_modified(before + std::time::Duration::from_nanos(1))
        .unwrap();
    fs::set_permissions(top.join("mode"), std::os::unix::fs::PermissionsExt::from_mode(0o601)).unwrap();
    std::os::unix::fs::chown(top.join("owner"), Some(1234), Some(5678)).unwrap();
    fs::File::open(top.join("time"))
        .unwrap()
        .set_modified(before - std::time::Duration::from_secs(9))
        .unwrap();
    let kept = time("size");
    write(top.join("size"), "longer than before");
    fs::File::open(top.join("size")).unwrap().set_modified(kept).unwrap();
    fs::remove_file(top.join("gone")).unwrap();
    fs::remove_file(top.join("type")).unwrap();
    fs::create_dir(top.join("type")).unwrap();
    setxattr(top.join("attribute"), "user.new", b"1", XattrFlags::empty()).unwrap();
    fs::remove_file(top.join("link")).unwrap();
    symlink("b", top.join("link")).unwrap();

    let (snapshot, totals) = place.back_up();
    assert_eq!(totals.hashed_files, 6, "{totals:?}");
    let opened = place.open();
    let entry = |path: &str| opened.entry(&snapshot, path);
    assert_eq!(entry("mode").mode.to_unix(), 0o601);
    assert_eq!((entry("owner").uid, entry("owner").gid), (1234, 5678));
    assert_eq!(entry("size").size, 18);
    assert_eq!(entry("type").entry_type, EntryType::Directory);
    assert_eq!(entry("attribute").extras.unwrap().xattrs.len(), 1);
    let names: Vec<_> = opened.entries(root_object(&snapshot)).into_iter().map(|entry| entry.name).collect();
    assert!(!names.iter().any(|name| *name == *"gone"));
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn the_estimate_is_what_the_backup_then_finds() {
    let place = Place::new();
    TreeSpec::small(23).grow(&place.source()).unwrap();
    write(place.source().join(".kopiaignore"), "dir-00*\n");
    let (_, totals) = place.open().back_up(|options| options.estimate = true);
    // It may not have come to its end, but never tells more than there is.
    assert!(totals.estimated_files <= totals.files && totals.estimated_bytes <= totals.bytes, "{totals:?}");
    assert!(totals.excluded_directories > 0);
}

#[test]
fn with_an_earlier_snapshot_the_estimate_is_what_that_one_had_until_more_is_known() {
    let place = Place::new();
    TreeSpec::small(24).grow(&place.source()).unwrap();
    let (_, first) = place.back_up();
    write(place.source().join("more"), b"than there was");
    let (_, totals) = place.open().back_up(|options| options.estimate = true);
    assert_eq!(totals.files, first.files + 1);
    assert_eq!((totals.estimated_files, totals.estimated_bytes), (totals.files, totals.bytes));
    fs::remove_file(place.source().join("more")).unwrap();
    let (_, totals) = place.open().back_up(|options| options.estimate = true);
    assert_eq!((totals.estimated_files, totals.estimated_bytes), (first.files, first.bytes));
    assert_eq!(place.back_up().1.estimated_files, 0, "nobody asked for it");
}

#[test]
fn attributes_of_a_directory_are_read_again_only_if_anything_about_it_changed() {
    let place = Place::new();
    let sub = place.source().join("sub");
    fs::create_dir(&sub).unwrap();
    let set = |value: &[u8]| setxattr(&sub, "user.a", value, XattrFlags::empty()).unwrap();
    let kept = |snapshot| {
        let extras = place.open().entry(snapshot, "sub").extras.unwrap();
        extras.xattrs.into_values().map(|value| value.0).collect::<Vec<_>>()
    };
    set(b"before");
    place.back_up();
    set(b"after");
    let (unchanged, _) = place.open().back_up(|options| {
        // As if the earlier snapshot were of a later time than the change.
        let later = options.parents[0].start_time + std::time::Duration::from_secs(3600);
        let root = options.parents[0].root_entry.as_mut().unwrap();
        root.extras.as_mut().unwrap().begun = Some(later);
    });
    assert_eq!(kept(&unchanged), [b"before"]);
    set(b"later");
    let (changed, _) = place.back_up();
    assert_eq!(kept(&changed), [b"later"]);
}

#[test]
fn a_damaged_parent_costs_time_and_nothing_else() {
    let place = Place::new();
    TreeSpec::small(17).grow(&place.source()).unwrap();
    let (first, totals) = place.back_up();
    let opened = place.open();
    let (again, second) = opened.back_up(|options| {
        let root = options.parents[0].root_entry.as_mut().unwrap();
        root.object = "kffffffffffffffffffffffffffffffff".to_owned();
    });
    assert_eq!(second.hashed_files, totals.files);
    assert_eq!(root_object(&again), root_object(&first));
}

#[test]
fn data_that_is_lost_is_read_again_although_the_file_is_as_it_was() {
    let place = Place::new();
    let grown = TreeSpec::small(19).grow(&place.source()).unwrap();
    write(place.source().join("large"), Random::new(1).bytes(20 << 20));
    let (first, _) = place.back_up();
    place.remove_packs_of_data();
    let (again, totals) = place.back_up();
    assert_eq!((totals.cached_files, totals.hashed_files), (0, (grown.files + grown.symlinks + 1) as u64));
    assert_eq!(root_object(&again), root_object(&first));
    place.kopia.verify_snapshots().unwrap();
    place.kopia.verify_contents().unwrap();
}

#[test]
fn files_that_change_while_they_are_read_are_named_and_do_no_harm() {
    let place = Place::new();
    let paths: Vec<_> = (0..8).map(|n| place.source().join(format!("file-{n}"))).collect();
    for path in &paths {
        write(path, vec![5; 12 << 20]);
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0usize;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let path = &paths[round % paths.len()];
                match round % 5 {
                    0 => drop(fs::remove_file(path)),
                    1 => drop(fs::OpenOptions::new().write(true).open(path).map(|f| f.set_len(1 << 20))),
                    2 => drop(fs::write(path, vec![round as u8; 9 << 20])),
                    _ => drop(
                        fs::OpenOptions::new().append(true).open(path).map(|f| f.write_at(b"x", 15 << 20)),
                    ),
                }
                round += 1;
            }
        });
        for _ in 0..5 {
            let opened = place.open();
            let mut options = opened.options();
            options.parents.clear();
            let progress = Progress::default();
            let outcome = back_up(&opened.interface, &options, &progress, &Cancel::default());
            let snapshot = outcome.unwrap();
            assert!(snapshot.root_object().is_some());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let (_, totals) = place.back_up();
    assert_eq!(totals.errors, 0);
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn a_directory_whose_ignore_rules_cannot_be_found_is_an_error_and_has_not_vanished() {
    let place = Place::new();
    let folder = place.source().join("folder");
    fs::create_dir(&folder).unwrap();
    write(folder.join("file"), b"x");
    symlink("nowhere", folder.join(".kopiaignore")).unwrap();
    let (snapshot, totals) = place.back_up();
    assert_eq!((totals.vanished, totals.errors), (0, 1));
    let summary = snapshot.root_entry.unwrap().summary.unwrap();
    assert_eq!((summary.failed, &*summary.errors[0].path), (1, "folder"));
    // Kopia cannot read it, either.
    let source = place.source();
    let kopia = place.kopia.try_run(["snapshot", "create", source.to_str().unwrap()]).unwrap();
    assert!(!kopia.status.success());

    fs::remove_file(folder.join(".kopiaignore")).unwrap();
    let (snapshot, totals) = place.back_up();
    assert_eq!((totals.errors, totals.files), (0, 1));
    assert_eq!(place.open().entry(&snapshot, "folder/file").size, 1);
}
