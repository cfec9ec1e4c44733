//! Files that are nearly all hole. A binary of its own: what its process reads is counted.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Place, extents};
use lifeboat_kopia::snapshot::{DirEntry, SourceInfo};
use lifeboat_testkit::tree::Random;
use lifeboat_uploader::{Cancel, Progress, RestoreOptions, find_snapshots, restore};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// How much this process has read by system calls so far.
fn read_so_far() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// A file with data at its start, in its middle and at its end; what is where.
fn plant(path: &Path, size: u64) -> Vec<(u64, Vec<u8>)> {
    let mut random = Random::new(size);
    let parts = [(0, 3 * MIB + 77), (size / 2 + 12_345, 2 * MIB), (size - 100_001, 100_001)];
    let parts = parts.map(|(at, length)| (at, random.bytes(length as usize)));
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    parts.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
    parts.into()
}

/// Holes are holes again, and the rest is what it was.
fn assert_restored(source: &Path, restored: &Path, parts: &[(u64, Vec<u8>)]) {
    assert_eq!(extents(restored), extents(source));
    let (before, after) = (fs::metadata(source).unwrap(), fs::metadata(restored).unwrap());
    assert_eq!((before.len(), before.mtime(), before.blocks()), (after.len(), after.mtime(), after.blocks()));
    let file = File::open(restored).unwrap();
    for (from, until) in extents(restored) {
        let mut found = vec![0; (until - from) as usize];
        file.read_exact_at(&mut found, from).unwrap();
        let mut expected = vec![0; found.len()];
        for (at, bytes) in parts.iter().filter(|(at, _)| (from..until).contains(at)) {
            let at = (at - from) as usize;
            expected[at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert!(found == expected, "the bytes from {from} on");
    }
}

fn restore_to(place: &Place, root: &DirEntry, target: &Path) {
    let options = RestoreOptions::new(target);
    restore(&place.open().interface, root, &options, &Progress::default(), &Cancel::default()).unwrap();
}

#[test]
fn holes_are_neither_read_nor_written_be_the_file_as_large_as_it_may() {
    let place = Place::new();
    // A file system that takes files of that size.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    let parts = plant(&source.join("huge"), TIB);
    let before = read_so_far();
    let (snapshot, totals) = place.open().back_up(|options| options.path.clone_from(&source));
    assert_eq!((totals.bytes, totals.errors), (TIB, 0));
    let read = read_so_far() - before;
    assert!(read < 300 * MIB, "the backup read {} MiB", read / MIB);
    let before = read_so_far();
    restore_to(&place, snapshot.root_entry.as_ref().unwrap(), &target);
    let read = read_so_far() - before;
    // All zeros are one content, which is read again only after many of its places.
    assert!(read < TIB / 64, "the restore read {} MiB", read / MIB);
    assert_restored(&source.join("huge"), &target.join("huge"), &parts);

    // A size that kopia, which reads holes, gets through.
    fs::remove_file(source.join("huge")).unwrap();
    fs::remove_dir_all(&target).unwrap();
    let parts = plant(&source.join("large"), 4 << 30);
    let (ours, _) = place.open().back_up(|options| options.path.clone_from(&source));
    let flags = ["snapshot", "restore", "--no-progress", "--write-sparse-files", ours.id.as_str()];
    place.kopia.run(flags.into_iter().chain([target.to_str().unwrap()])).unwrap();
    assert_restored(&source.join("large"), &target.join("large"), &parts);
    fs::remove_dir_all(&target).unwrap();
    let theirs = place.kopia.snapshot(&source, &[]).unwrap();
    let info = SourceInfo::new("u", "h", source.to_str().unwrap());
    let found = find_snapshots(&place.open().interface, &info, &BTreeMap::new()).unwrap();
    let theirs = found.into_iter().find(|snapshot| snapshot.id.as_str() == theirs.id).unwrap();
    restore_to(&place, theirs.root_entry.as_ref().unwrap(), &target);
    assert_restored(&source.join("large"), &target.join("large"), &parts);
}
