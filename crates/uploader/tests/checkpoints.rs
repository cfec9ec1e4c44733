//! Backups that do not reach their end: cancelled, or cut off with the process, and gone on with afterwards.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{BUDGET, Opened, Place, root_object, write};
use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::{FsOptions, FsStore, Operation};
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_repository::Repository as _;
use lifeboat_testkit::tree::Random;
use lifeboat_uploader::{Cancel, Error, Progress, back_up, find_parents, save_snapshot};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is planted.
const TREE_BYTES: u64 = 20 * 40 * 60_000 + (50 << 20);
/// More than the listings of it take.
const LISTINGS: u64 = 1 << 20;

/// About a hundred megabytes that do not compress, in small and large files.
fn plant(place: &Place) {
    let mut random = Random::new(5);
    for folder in 0..20 {
        let folder = place.source().join(format!("folder-{folder:02}"));
        std::fs::create_dir(&folder).unwrap();
        for file in 0..40 {
            write(folder.join(format!("file-{file:02}")), random.bytes(60_000));
        }
    }
    write(place.source().join("huge"), random.bytes(50 << 20));
}

/// Opens the repository on a store whose packs take their time.
fn open_slow<'a>(place: &'a Place, delay: Duration, memory: u64) -> (Opened<'a>, Control) {
    let open = FsStore::open(FsOptions::new(place.path("repository")));
    let store = Arc::new(place.runtime.block_on(open).unwrap());
    let fault = Fault::new(store);
    let control = fault.control();
    let slow = Rule::on(Operation::Put).prefix("p").times(u64::MAX).action(Action::Delay(delay));
    control.plan(slow);
    (place.open_store_within(Arc::new(fault), memory), control)
}

fn incomplete(place: &Place) -> Vec<SnapshotManifest> {
    incomplete_as_seen_by(&place.open(), place)
}

fn incomplete_as_seen_by(opened: &Opened<'_>, place: &Place) -> Vec<SnapshotManifest> {
    let parents = find_parents(&opened.interface, &place.source_info()).unwrap();
    parents.into_iter().filter(|parent| !parent.is_complete()).collect()
}

/// The next backup finishes what an incomplete snapshot began.
fn assert_goes_on(place: &Place) {
    let before = incomplete(place);
    assert!(!before.is_empty(), "there is no incomplete snapshot");
    place.kopia.verify_snapshots().unwrap();
    let opened = place.open();
    let (snapshot, totals) = opened.back_up(|_| {});
    assert!(snapshot.is_complete());
    assert!(totals.cached_files >= 40, "{totals:?}");
    assert_eq!(totals.files, 801);
    // What a checkpoint holds is safe: nothing is uploaded but what came after it, and listings.
    let safe = before.iter().map(bytes_in).max().unwrap_or(0);
    let written = opened.interface.written().new;
    assert!(written <= TREE_BYTES - safe + LISTINGS, "{written} bytes, where {safe} were safe");
    assert!(incomplete(place).is_empty(), "the complete snapshot replaces incomplete ones");
    place.kopia.verify_snapshots().unwrap();
    let fresh = opened.back_up(|options| options.parents.clear()).0;
    assert_eq!(root_object(&fresh), root_object(&snapshot), "it is as if nothing had happened");
}

#[test]
fn a_cancelled_backup_leaves_a_snapshot_that_the_next_one_goes_on_from() {
    let place = Place::new();
    plant(&place);
    let (opened, _) = open_slow(&place, Duration::from_millis(300), BUDGET);
    let mut options = opened.options();
    options.checkpoint_interval = Some(Duration::from_secs(600));
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let mut snapshot = std::thread::scope(|scope| {
        scope.spawn(|| {
            while progress.totals().hashed_bytes < 20_000_000 {
                std::thread::sleep(Duration::from_millis(1));
            }
            cancel.cancel();
        });
        back_up(&opened.interface, &options, &progress, &cancel).unwrap()
    });
    assert_eq!(snapshot.incomplete, "canceled");
    let summary = snapshot.root_entry.as_ref().unwrap().summary.as_ref().unwrap();
    assert_eq!(summary.incomplete, "canceled");
    save_snapshot(&opened.interface, &mut snapshot).unwrap();
    place.runtime.block_on(opened.inner.flush()).unwrap();
    assert_goes_on(&place);
}

#[test]
fn a_backup_whose_process_died_is_gone_on_with_from_its_last_checkpoint() {
    // A machine may be done with the backup before anyone sees that a checkpoint is there: give it more to wait for.
    let delays = [300, 2_000, 8_000].map(Duration::from_millis);
    let Some(place) = delays.into_iter().find_map(die_behind_a_checkpoint) else {
        panic!("every backup was done before its process could be ended");
    };
    assert_goes_on(&place);
}

/// A backup that ends with its process after a checkpoint; `None` if the backup was done before.
fn die_behind_a_checkpoint(delay: Duration) -> Option<Place> {
    let place = Place::new();
    plant(&place);
    // Ten packs and memory for two: the backup cannot run ahead of its store.
    place.kopia.run(["repository", "set-parameters", "--max-pack-size-mb=10"]).unwrap();
    let (opened, control) = open_slow(&place, delay, 28 << 20);
    let observer = place.open();
    let mut options = opened.options();
    options.checkpoint_interval = Some(Duration::from_millis(100));
    options.threads = 2;
    let (progress, done) = (Progress::default(), AtomicBool::new(false));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Not before a checkpoint was published with something in it.
            let published = || {
                observer.refresh();
                incomplete_as_seen_by(&observer, &place).iter().any(|found| files_in(found) >= 80)
            };
            while !done.load(Ordering::Relaxed) {
                if published() {
                    return control.crash();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let outcome = back_up(&opened.interface, &options, &progress, &Cancel::default());
        done.store(true, Ordering::Relaxed);
        outcome
    });
    drop((opened, observer));
    outcome.is_err().then_some(place)
}

fn bytes_in(snapshot: &SnapshotManifest) -> u64 {
    let summary = snapshot.root_entry.as_ref().and_then(|root| root.summary.as_ref());
    summary.map_or(0, |summary| u64::try_from(summary.size).unwrap())
}

fn files_in(snapshot: &SnapshotManifest) -> i64 {
    snapshot.root_entry.as_ref().and_then(|root| root.summary.as_ref()).map_or(0, |summary| summary.files)
}

#[test]
fn a_backup_that_is_cancelled_without_checkpoints_leaves_nothing() {
    let place = Place::new();
    write(place.source().join("file"), b"x");
    let opened = place.open();
    let cancel = Cancel::default();
    cancel.cancel();
    let outcome = back_up(&opened.interface, &opened.options(), &Progress::default(), &cancel);
    assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
    assert!(incomplete(&place).is_empty());
}
