//! Backups of devices that do not reach their end: what their checkpoints hold is safe, and taken for nothing more.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Opened, Place, root_object};
use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::{FsOptions, FsStore, Operation};
use lifeboat_kopia::object::ObjectLayout;
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_repository::{Id, Repository as _};
use lifeboat_testkit::tree::Random;
use lifeboat_uploader::{
    BlockBackupOptions, BlockRestoreOptions, Cancel, Error, Progress, apply_retention, back_up_block,
    find_parents, restore_block, save_snapshot,
};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// What is in the image, each mebibyte in a piece of its own.
const DATA: u64 = 80 * MIB;
/// How large it is: there are holes in it.
const SIZE: u64 = 120 * MIB;
/// More than listings, indexes and a piece of zeros take.
const SLACK: u64 = 2 * MIB;

/// An image that does not compress, in a repository with small packs.
fn plant() -> Place {
    let place = Place::new();
    place.kopia.run(["repository", "set-parameters", "--max-pack-size-mb=10"]).unwrap();
    let file = File::create_new(place.path("image")).unwrap();
    file.set_len(SIZE).unwrap();
    let mut random = Random::new(8);
    for number in 0..DATA / MIB {
        file.write_all_at(&random.bytes(MIB as usize), (number + number / 2) * MIB).unwrap();
    }
    place
}

fn options(place: &Place, opened: &Opened<'_>) -> BlockBackupOptions {
    BlockBackupOptions {
        path: place.path("image"),
        source: place.source_info(),
        policy: Policy::defaults(),
        changes: None,
        actions: false,
        description: String::new(),
        checkpoint_interval: Some(Duration::from_secs(600)),
        threads: 2,
        budget: opened.budget.clone(),
    }
}

/// Opens the repository on a store whose packs take their time, with memory for so few that a backup cannot run ahead.
fn open_slow(place: &Place, delay: Duration) -> (Opened<'_>, Control) {
    let open = FsStore::open(FsOptions::new(place.path("repository")));
    let fault = Fault::new(Arc::new(place.runtime.block_on(open).unwrap()));
    let control = fault.control();
    control.plan(Rule::on(Operation::Put).prefix("p").times(u64::MAX).action(Action::Delay(delay)));
    (place.open_store_within(Arc::new(fault), 28 << 20), control)
}

fn incomplete(opened: &Opened<'_>, place: &Place) -> Vec<SnapshotManifest> {
    let mut found = find_parents(&opened.interface, &place.source_info()).unwrap();
    found.retain(|snapshot| !snapshot.is_complete());
    found
}

/// The name and the object of the only file.
fn file_of(opened: &Opened<'_>, snapshot: &SnapshotManifest) -> (String, String) {
    let mut entries = opened.entries(root_object(snapshot));
    assert_eq!((entries.len(), entries[0].size), (1, SIZE));
    let file = entries.remove(0);
    (file.name.to_string(), file.object)
}

fn data_of(opened: &Opened<'_>, snapshot: &SnapshotManifest) -> Vec<u8> {
    let mut data = Vec::new();
    let object = Id::new(file_of(opened, snapshot).1);
    opened.interface.open_object(&object).unwrap().read_to_end(&mut data).unwrap();
    data
}

/// How much of the data is in a snapshot.
fn kept(opened: &Opened<'_>, place: &Place, snapshot: &SnapshotManifest) -> u64 {
    let load = ObjectLayout::load(opened.inner.objects(), file_of(opened, snapshot).1.parse().unwrap());
    let layout = place.runtime.block_on(load).unwrap();
    let pieces: HashSet<_> = layout.entries().iter().map(|entry| entry.content).collect();
    // One of them is that of zeros.
    (pieces.len() as u64 - 1) * MIB
}

/// What is there of an incomplete snapshot is the image's, all else is zeros.
fn assert_is_part(opened: &Opened<'_>, place: &Place, snapshot: &SnapshotManifest) {
    let (data, image) = (data_of(opened, snapshot), std::fs::read(place.path("image")).unwrap());
    assert_eq!(data.len(), image.len());
    for (found, wanted) in data.chunks(MIB as usize).zip(image.chunks(MIB as usize)) {
        assert!(found == wanted || found.iter().all(|byte| *byte == 0));
    }
    assert!(file_of(opened, snapshot).0.starts_with(".checkpointed."), "it is taken for the device");
}

/// The next backup uploads no more than what is not `safe`, and takes the place of incomplete ones.
fn assert_goes_on(place: &Place, safe: u64, changes: Option<SnapshotManifest>) {
    let opened = place.open();
    let (mut options, progress) = (options(place, &opened), Progress::default());
    options.changes = changes.map(|parent| (parent, Vec::new()));
    let mut snapshot = back_up_block(&opened.interface, &options, &progress, &Cancel::default()).unwrap();
    assert!(snapshot.is_complete());
    assert_eq!(progress.totals().hashed_bytes, SIZE, "an incomplete snapshot was relied on");
    save_snapshot(&opened.interface, &mut snapshot).unwrap();
    apply_retention(&opened.interface, &options.source, &options.policy.retention).unwrap();
    opened.interface.flush().unwrap();
    let new = opened.interface.written().new;
    assert!(new <= DATA - safe + SLACK, "{new} bytes were written, where {safe} were safe");
    assert!(data_of(&opened, &snapshot) == std::fs::read(place.path("image")).unwrap());
    assert!(incomplete(&opened, place).is_empty(), "the complete snapshot replaces incomplete ones");
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn what_a_checkpoint_holds_is_safe_from_garbage_collection_and_not_uploaded_again() {
    // A machine may be done with the backup before anyone sees that a checkpoint is there: give it more to wait for.
    let delays = [300, 2_000, 8_000].map(Duration::from_millis);
    let Some(place) = delays.into_iter().find_map(die_behind_a_checkpoint) else {
        panic!("every backup was done before its process could be ended");
    };
    let opened = place.open();
    let found = incomplete(&opened, &place);
    let last = found.iter().max_by_key(|snapshot| kept(&opened, &place, snapshot)).unwrap();
    let safe = kept(&opened, &place, last);
    assert!(safe >= 8 * MIB && last.incomplete == "checkpoint", "{safe} {last:?}");
    assert_is_part(&opened, &place, last);
    drop(opened);
    place.kopia.verify_snapshots().unwrap();
    place.kopia.full_maintenance().unwrap();
    place.kopia.verify_snapshots().unwrap();
    assert_goes_on(&place, safe, Some(last.clone()));
}

/// A backup that ends with its process after a checkpoint; `None` if the backup was done before.
fn die_behind_a_checkpoint(delay: Duration) -> Option<Place> {
    let place = plant();
    let (opened, control) = open_slow(&place, delay);
    let observer = place.open();
    let mut options = options(&place, &opened);
    options.checkpoint_interval = Some(Duration::from_millis(100));
    let (progress, done) = (Progress::default(), AtomicBool::new(false));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Not before a checkpoint was published with something in it.
            let published = || {
                observer.refresh();
                let found = incomplete(&observer, &place);
                found.iter().any(|found| kept(&observer, &place, found) >= 8 * MIB)
            };
            while !done.load(Ordering::Relaxed) {
                if published() {
                    return control.crash();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let outcome = back_up_block(&opened.interface, &options, &progress, &Cancel::default());
        done.store(true, Ordering::Relaxed);
        outcome
    });
    drop((opened, observer));
    outcome.is_err().then_some(place)
}

#[test]
fn a_cancelled_backup_leaves_what_is_there_which_is_not_taken_for_the_device() {
    let place = plant();
    let (opened, _) = open_slow(&place, Duration::from_millis(300));
    let (options, progress, cancel) = (options(&place, &opened), Progress::default(), Cancel::default());
    let mut snapshot = std::thread::scope(|scope| {
        scope.spawn(|| {
            while progress.totals().hashed_bytes < 30 * MIB {
                std::thread::sleep(Duration::from_millis(1));
            }
            cancel.cancel();
        });
        back_up_block(&opened.interface, &options, &progress, &cancel).unwrap()
    });
    assert_eq!(snapshot.incomplete, "canceled");
    let summary = snapshot.root_entry.as_ref().unwrap().summary.as_ref().unwrap();
    assert_eq!(summary.incomplete, "canceled");
    save_snapshot(&opened.interface, &mut snapshot).unwrap();
    opened.interface.flush().unwrap();
    let safe = kept(&opened, &place, &snapshot);
    assert!(safe >= 8 * MIB, "{safe}");
    assert_is_part(&opened, &place, &snapshot);
    let (root, target) = (snapshot.root_entry.as_ref().unwrap(), place.path("target"));
    let into = BlockRestoreOptions { target: target.clone(), compare: false, threads: 0 };
    let refused = restore_block(&opened.interface, root, &into, &Progress::default(), &Cancel::default());
    assert!(refused.unwrap_err().to_string().contains("did not end"));
    assert!(!target.exists(), "nothing is written");
    drop(opened);
    place.kopia.verify_snapshots().unwrap();
    assert_goes_on(&place, safe, Some(snapshot));
}

#[test]
fn checkpoints_do_not_change_what_a_backup_comes_to() {
    let place = plant();
    let (opened, _) = open_slow(&place, Duration::from_millis(50));
    let mut options = options(&place, &opened);
    options.checkpoint_interval = Some(Duration::from_millis(10));
    let back_up = |options: &BlockBackupOptions, changed: Option<SnapshotManifest>| {
        let mut options = options.clone();
        options.changes = changed.map(|parent| (parent, std::iter::once(0..20 * MIB).collect()));
        let mut snapshot =
            back_up_block(&opened.interface, &options, &Progress::default(), &Cancel::default()).unwrap();
        save_snapshot(&opened.interface, &mut snapshot).unwrap();
        opened.interface.flush().unwrap();
        snapshot
    };
    let first = back_up(&options, None);
    let file = File::options().write(true).open(place.path("image")).unwrap();
    file.write_all_at(&Random::new(9).bytes(20 << 20), 0).unwrap();
    let second = back_up(&options, Some(first.clone()));
    options.checkpoint_interval = None;
    let without = back_up(&options, Some(first));
    assert_eq!(file_of(&opened, &second), file_of(&opened, &without));
    assert!(data_of(&opened, &second) == std::fs::read(place.path("image")).unwrap());
    drop(opened);
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn a_backup_that_is_cancelled_before_anything_is_stored_leaves_nothing() {
    let place = plant();
    let opened = place.open();
    let cancel = Cancel::default();
    cancel.cancel();
    let options = options(&place, &opened);
    let outcome = back_up_block(&opened.interface, &options, &Progress::default(), &cancel);
    assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
    assert!(incomplete(&opened, &place).is_empty());
}
