//! Large files, which all threads work on at once, with hardly any memory and when something fails meanwhile.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Place, root_object, write};
use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Rule};
use lifeboat_blobs::{ErrorKind, FsOptions, FsStore, Operation};
use lifeboat_testkit::tree::Random;
use lifeboat_uploader::{Cancel, Progress, back_up};
use std::fs::File;
use std::sync::Arc;

const MIB: usize = 1 << 20;
/// Too little for a single chunk: everything that has to be there at once for the work to go on exceeds it.
const HARDLY_ANYTHING: u64 = MIB as u64;

/// Files of which several are being read at any moment.
fn plant(place: &Place) {
    let mut random = Random::new(71);
    for number in 0..6 {
        // The ends of files and of regions are not the same.
        write(place.source().join(format!("random-{number}")), random.bytes(11 * MIB + number * 77_777));
        // Never cut before the largest size of a chunk.
        write(place.source().join(format!("uniform-{number}")), vec![number as u8; 17 * MIB]);
    }
}

#[test]
fn several_large_files_get_through_with_less_memory_than_one_chunk_needs() {
    let place = Place::with(&["--object-splitter=DYNAMIC-4M-BUZHASH"]);
    plant(&place);
    let roomy = place.open().back_up(|_| {}).0;
    for threads in [1, 2, 7] {
        let (snapshot, totals) = place.open_within(HARDLY_ANYTHING).back_up(|options| {
            options.parents.clear();
            options.threads = threads;
        });
        assert_eq!((totals.errors, totals.hashed_files), (0, 12));
        assert_eq!(root_object(&snapshot), root_object(&roomy));
    }
}

#[test]
fn a_file_whose_chunks_are_larger_than_those_before_it_finds_room_for_them() {
    let place = Place::with(&["--object-splitter=DYNAMIC-1M-BUZHASH"]);
    plant(&place);
    let large = place.source().join("uniform-5");
    place.kopia.set_policy(&[large.to_str().unwrap(), "--splitter=DYNAMIC-8M-BUZHASH"]).unwrap();
    let (_, totals) = place.open_within(HARDLY_ANYTHING).back_up(|options| options.threads = 3);
    assert_eq!((totals.errors, totals.hashed_files), (0, 12));
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn a_file_that_is_too_large_for_an_index_fails_by_its_name_and_the_others_are_backed_up() {
    let place = Place::with(&["--object-splitter=DYNAMIC-128K-BUZHASH"]);
    write(place.source().join("small"), b"x");
    // As a single object, which is refused before its index is written.
    let source = place.source().to_str().unwrap().to_owned();
    place.kopia.set_policy(&[&source, "--parallel-upload-above-size-mib=100000000"]).unwrap();
    // Nothing but a hole: more pieces than an object may have.
    let huge = File::create(place.source().join("huge")).unwrap();
    huge.set_len(10 << 40).unwrap();
    let (snapshot, totals) = place.open().back_up(|_| {});
    assert_eq!((totals.errors, totals.ignored_errors, totals.hashed_files), (1, 0, 1));
    let summary = snapshot.root_entry.as_ref().unwrap().summary.clone().unwrap();
    let [error] = summary.errors.as_slice() else { panic!("{summary:?}") };
    assert!(error.path == "huge" && error.error.contains("too large"), "{error:?}");
    place.kopia.set_policy(&[&source, "--ignore-file-errors=true"]).unwrap();
    let (_, totals) = place.open().back_up(|_| {});
    assert_eq!((totals.errors, totals.ignored_errors), (0, 1));
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn a_store_that_fails_ends_the_backup_instead_of_leaving_threads_behind() {
    let place = Place::with(&["--object-splitter=DYNAMIC-4M-BUZHASH"]);
    plant(&place);
    for (round, budget) in [HARDLY_ANYTHING, common::BUDGET].into_iter().enumerate() {
        let open = FsStore::open(FsOptions::new(place.path("repository")));
        let fault = Fault::new(Arc::new(place.runtime.block_on(open).unwrap()));
        let full = Rule::on(Operation::Put).prefix("p").skip(round as u64).times(u64::MAX);
        fault.control().plan(full.action(Action::FailBefore(ErrorKind::PermissionDenied)));
        let opened = place.open_store_within(Arc::new(fault), budget);
        let mut options = opened.options();
        options.threads = 3;
        let outcome = back_up(&opened.interface, &options, &Progress::default(), &Cancel::default());
        assert!(outcome.is_err(), "{outcome:?}");
    }
}
