//! Trees at the limits of file systems: one directory with very many entries, and paths of any length.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Opened, Place, root_object, write};
use lifeboat_kopia::snapshot::{DirEntry, SourceInfo};
use lifeboat_testkit::tree::{Compare, assert_same};
use lifeboat_uploader::{Cancel, Progress, RestoreOptions, RestoreReport, find_snapshots, restore};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

fn restore_to(opened: &Opened<'_>, root: &DirEntry, target: &Path) -> RestoreReport {
    let options = RestoreOptions::new(target);
    restore(&opened.interface, root, &options, &Progress::default(), &Cancel::default()).unwrap()
}

/// Backs a folder up by kopia; the root of that snapshot.
fn backed_up_by_kopia(place: &Place, source: &Path) -> DirEntry {
    let theirs = place.kopia.snapshot(source, &[]).unwrap();
    let info = SourceInfo::new("u", "h", source.to_str().unwrap());
    let found = find_snapshots(&place.open().interface, &info, &BTreeMap::new()).unwrap();
    let theirs = found.into_iter().find(|snapshot| snapshot.id.as_str() == theirs.id).unwrap();
    theirs.root_entry.unwrap()
}

fn times(seconds: i64) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    Timestamps { last_access: time, last_modification: time }
}

#[test]
fn a_directory_with_a_hundred_thousand_entries_comes_back_through_us_and_through_kopia() {
    const ENTRIES: u64 = 100_000;
    let place = Place::new();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| folder.path().join(name);
    let source = path("source");
    fs::create_dir(&source).unwrap();
    for number in 0..ENTRIES {
        let name = format!("{:05}-{}", number * 48_271 % ENTRIES, "x".repeat(number as usize % 40));
        write(source.join(name), format!("content {:02} ", number % 100).repeat(number as usize % 100));
    }
    fs::create_dir(source.join("zz")).unwrap();
    symlink("zz", source.join("link")).unwrap();

    let (ours, totals) = place.open().back_up(|options| options.path.clone_from(&source));
    assert_eq!(totals.files, ENTRIES + 1);
    let opened = place.open();
    let entries = opened.entries(root_object(&ours));
    assert_eq!(entries.len() as u64, ENTRIES + 2);
    assert!(entries.is_sorted_by(|a, b| a.listing_order(b).is_lt()));
    let (_, totals) = opened.back_up(|options| options.path.clone_from(&source));
    assert_eq!((totals.cached_files, totals.hashed_files), (ENTRIES + 1, 0));
    drop(opened);

    let (by_us, by_kopia) = (path("by-us"), path("by-kopia"));
    let report = restore_to(&place.open(), ours.root_entry.as_ref().unwrap(), &by_us);
    assert_eq!((report.files, report.directories), (ENTRIES + 1, 2));
    let read = report.read_bytes;
    assert!(report.bytes > 50_000_000 && read < 8 << 20, "equal contents are read once: {report:?}");
    assert_same(&source, &by_us, Compare::exact()).unwrap();
    fs::remove_dir_all(&by_us).unwrap();
    place.kopia.restore(ours.id.as_str(), &by_kopia).unwrap();
    assert_same(&source, &by_kopia, Compare::kept_by_kopia()).unwrap();

    // Of another path than ours is said to be of: kopia reads it all itself.
    let theirs = backed_up_by_kopia(&place, &source);
    restore_to(&place.open(), &theirs, &by_us);
    assert_same(&source, &by_us, Compare::exact()).unwrap();
}

const NAME: &str = "a_rather_long_name";

fn open(folder: &OwnedFd, name: &str) -> OwnedFd {
    rustix::fs::openat(folder, name, OFlags::DIRECTORY, Mode::empty()).unwrap()
}

#[test]
fn a_path_that_is_longer_than_any_name_for_it_is_walked_to_its_end_and_comes_back() {
    const DEPTH: u32 = 600;
    let place = Place::new();
    let top = |path: &Path| rustix::fs::open(path, OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut directory = top(&place.source());
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&directory, NAME, Mode::RWXU).unwrap();
        directory = open(&directory, NAME);
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(&directory, "file", flags, Mode::RUSR).unwrap();
    rustix::io::write(&file, b"at the end").unwrap();
    rustix::fs::futimens(&file, &times(5)).unwrap();
    // What is made in a directory changes its time.
    let mut directory = top(&place.source());
    for depth in 0..DEPTH {
        rustix::fs::futimens(&directory, &times(1000 + i64::from(depth))).unwrap();
        directory = open(&directory, NAME);
    }
    rustix::fs::futimens(&directory, &times(6)).unwrap();

    let (snapshot, totals) = place.back_up();
    assert_eq!((totals.directories, totals.files), (601, 1));
    let opened = place.open();
    assert_eq!(opened.entry(&snapshot, &format!("{NAME}/").repeat(600)).summary.unwrap().files, 1);
    let target = place.path("target");
    let report = restore_to(&opened, snapshot.root_entry.as_ref().unwrap(), &target);
    assert_eq!((report.directories, report.files), (601, 1));

    let time = |stat: rustix::fs::Stat| (stat.st_mtime, stat.st_mtime_nsec as u32);
    let mut directory = top(&target);
    for depth in 0..DEPTH {
        let found = time(rustix::fs::fstat(&directory).unwrap());
        assert_eq!(found, (1000 + i64::from(depth), 123_456_789), "{depth}");
        directory = open(&directory, NAME);
    }
    assert_eq!(time(rustix::fs::fstat(&directory).unwrap()), (6, 123_456_789));
    let file = rustix::fs::openat(&directory, "file", OFlags::RDONLY, Mode::empty()).unwrap();
    assert_eq!(time(rustix::fs::fstat(&file).unwrap()), (5, 123_456_789));
    let mut content = [0; 20];
    let length = rustix::io::read(&file, &mut content[..]).unwrap();
    assert_eq!(&content[..length], b"at the end");
}

/// As long as kopia, which names files by their paths, can go.
#[test]
fn a_path_as_long_as_one_may_be_comes_back_through_us_and_through_kopia() {
    const LENGTH: usize = 3900;
    let place = Place::new();
    let mut folder = place.source();
    while folder.as_os_str().len() + NAME.len() < LENGTH {
        folder.push(NAME);
        fs::create_dir(&folder).unwrap();
        write(folder.join("file"), folder.as_os_str().as_bytes());
        symlink("file", folder.join("link")).unwrap();
    }
    for (number, folder) in folder.ancestors().take_while(|path| *path != place.folder.path()).enumerate() {
        rustix::fs::utimensat(CWD, folder, &times(number as i64), AtFlags::empty()).unwrap();
    }
    let (ours, totals) = place.back_up();
    assert_eq!((totals.errors, totals.ignored_errors), (0, 0));
    // As long as the source.
    let (by_us, by_kopia) = (place.path("target"), place.path("kopia's"));
    restore_to(&place.open(), ours.root_entry.as_ref().unwrap(), &by_us);
    assert_same(&place.source(), &by_us, Compare::exact()).unwrap();
    fs::remove_dir_all(&by_us).unwrap();
    place.kopia.restore(ours.id.as_str(), &by_kopia).unwrap();
    assert_same(&place.source(), &by_kopia, Compare::kept_by_kopia()).unwrap();
    let theirs = backed_up_by_kopia(&place, &place.source());
    restore_to(&place.open(), &theirs, &by_us);
    assert_same(&place.source(), &by_us, Compare::exact()).unwrap();
}
