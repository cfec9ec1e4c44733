//! How often a far storage is asked: each question that waits for the one before it costs a round trip.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Opened, Place, write};
use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::Control;
use lifeboat_blobs::{FsOptions, FsStore, Operation};
use lifeboat_testkit::tree::Random;
use lifeboat_uploader::{Cancel, Progress, RestoreOptions, find_snapshots, restore};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Opens the repository on a store that remembers what it was asked.
fn open(place: &Place) -> (Opened<'_>, Control) {
    let store = place.runtime.block_on(FsStore::open(FsOptions::new(place.path("repository")))).unwrap();
    let store = Fault::new(store);
    let control = store.control();
    (place.open_store(Arc::new(store)), control)
}

/// How often an operation was asked for blobs (or listings) whose names begin so.
fn count(control: &Control, operation: Operation, prefix: &str) -> usize {
    control.log().iter().filter(|call| call.operation == operation && call.blob.starts_with(prefix)).count()
}

#[test]
fn a_restore_asks_for_metadata_once_and_for_nothing_that_only_writers_need() {
    let place = Place::new();
    let mut random = Random::new(5);
    write(place.source().join("huge"), random.bytes(50 << 20));
    for folder in 0..20 {
        let folder = place.source().join(format!("folder-{folder:02}"));
        std::fs::create_dir(&folder).unwrap();
        write(folder.join("file"), random.bytes(2_000));
    }
    place.back_up();

    let (opened, control) = open(&place);
    let snapshots = find_snapshots(&opened.interface, &place.source_info(), &BTreeMap::new()).unwrap();
    // The index is listed once, and each of its blobs and each manifest is read once: those of the creation, those of
    // the backup.
    assert_eq!(count(&control, Operation::List, ""), 1);
    assert_eq!(count(&control, Operation::Get, "x"), 2);
    assert_eq!(count(&control, Operation::Get, "q"), 2);
    let root = snapshots[0].root_entry.as_ref().unwrap();
    let options = RestoreOptions::new(place.path("target"));
    restore(&opened.interface, root, &options, &Progress::default(), &Cancel::default()).unwrap();

    // All listings, and the index of the large file, come with the root.
    assert_eq!(count(&control, Operation::Get, "q"), 3);
    assert_eq!(count(&control, Operation::List, ""), 1);
    for unneeded in [Operation::Head, Operation::Put, Operation::Delete] {
        assert_eq!(count(&control, unneeded, ""), 0, "{unneeded:?}");
    }
}
