//! Backups that do not reach their end: cancelled, or cut off with the process, and gone on with afterwards.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{BUDGET, CANCEL_TAKES_EFFECT, Opened, Place, root_object, write};
use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::{FsOptions, FsStore, Operation};
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_repository::Repository as _;
use lifeboat_testkit::tree::Random;
use lifeboat_uploader::{Cancel, Error, Progress, back_up, find_parents, save_snapshot};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

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
    let (progress, cancel, cancelled) = (Progress::default(), Cancel::default(), OnceLock::new());
    let mut snapshot = std::thread::scope(|scope| {
        scope.spawn(|| {
            while progress.totals().hashed_bytes < 20_000_000 {
                std::thread::sleep(Duration::from_millis(1));
            }
            cancelled.get_or_init(Instant::now);
            cancel.cancel();
        });
        back_up(&opened.interface, &options, &progress, &cancel).unwrap()
    });
    assert_eq!(snapshot.incomplete, "canceled");
    let summary = snapshot.root_entry.as_ref().unwrap().summary.as_ref().unwrap();
    assert_eq!(summary.incomplete, "canceled");
    let save = || {
        save_snapshot(&opened.interface, &mut snapshot)?;
        Ok(opened.interface.flush()?)
    };
    cancel.interrupting_save(&opened.interface, save).unwrap();
    // Whoever runs it is promised that: it is measured here, once, and with a margin.
    let took = cancelled.get().unwrap().elapsed();
    assert!(took < CANCEL_TAKES_EFFECT, "it took {took:?} until the cancelled backup was saved");
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

/// A command before each of these folders waits until it is let through.
fn plant_gates(place: &Place, folders: &[&str]) {
    std::fs::create_dir(place.path("open")).unwrap();
    let script = place.path("gate");
    let open = place.path("open").display().to_string();
    let wait = format!("while [ ! -e \"{open}/${{KOPIA_SOURCE_PATH##*/}}\" ]; do sleep 0.02; done");
    write(&script, format!("#!/bin/sh\n{wait}\n"));
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    for folder in folders {
        let path = place.source().join(folder);
        let flags = [path.to_str().unwrap(), "--before-folder-action", script.to_str().unwrap()];
        place.kopia.set_policy(&flags).unwrap();
    }
}

fn open_gate(place: &Place, folder: &str) {
    write(place.path("open").join(folder), b"");
}

fn plant_files(place: &Place, folder: &str, count: usize) {
    let folder = place.source().join(folder);
    std::fs::create_dir(&folder).unwrap();
    (0..count).for_each(|number| write(folder.join(number.to_string()), format!("{folder:?} {number}")));
}

/// Waits for something, but not for ever: whoever waits lets a backup go on afterwards.
fn comes(condition: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !condition() {
        if started.elapsed() > Duration::from_secs(120) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

#[test]
fn what_was_done_an_interval_before_the_end_of_a_process_is_in_a_checkpoint() {
    const FOLDERS: [&str; 4] = ["1", "2", "3", "4"];
    const FILES: usize = 10;
    const INTERVAL: Duration = Duration::from_millis(500);
    /// For saving it, seeing it, and whatever runs beside the test.
    const MARGIN: Duration = Duration::from_secs(18);
    let place = Place::new();
    FOLDERS.iter().for_each(|folder| plant_files(&place, folder, FILES));
    plant_gates(&place, &FOLDERS);
    let (opened, control) = open_slow(&place, Duration::ZERO, BUDGET);
    let observer = place.open();
    let mut options = opened.options();
    options.checkpoint_interval = Some(INTERVAL);
    options.actions = true;
    options.threads = 1;
    let progress = Progress::default();
    let (outcome, ages) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut ages = Vec::new();
            for (number, folder) in FOLDERS[..3].iter().enumerate() {
                open_gate(&place, folder);
                let files = (number + 1) * FILES;
                let is_done = comes(|| progress.totals().hashed_files >= files as u64);
                let done = Instant::now();
                let is_safe = || {
                    observer.refresh();
                    incomplete_as_seen_by(&observer, &place).iter().any(|it| files_in(it) >= files as i64)
                };
                ages.push((is_done && comes(is_safe)).then(|| done.elapsed()));
            }
            control.crash();
            open_gate(&place, FOLDERS[3]);
            ages
        });
        let outcome = back_up(&opened.interface, &options, &progress, &Cancel::default());
        (outcome, watching.join().unwrap())
    });
    drop((opened, observer));
    for age in ages {
        assert!(age.is_some_and(|age| age < INTERVAL + MARGIN), "it came into a checkpoint after {age:?}");
    }
    // Of so little data nothing was to be stored after the last checkpoint but the end.
    drop(outcome);
    let (_, totals) = place.open().back_up(|options| options.actions = true);
    assert_eq!((totals.hashed_files, totals.cached_files), (FILES as u64, 3 * FILES as u64));
}

#[test]
fn what_any_of_several_earlier_snapshots_has_is_not_read_again() {
    let place = Place::new();
    plant_files(&place, "z-old", 30);
    place.back_up();
    plant_files(&place, "a-new", 20);
    plant_files(&place, "m-newer", 10);
    plant_gates(&place, &["m-newer"]);
    let opened = place.open();
    let mut options = opened.options();
    options.checkpoint_interval = Some(Duration::from_secs(600));
    options.actions = true;
    // In the order of the listing: the old files come last.
    options.threads = 1;
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let mut cancelled = std::thread::scope(|scope| {
        scope.spawn(|| {
            comes(|| progress.totals().hashed_files >= 20);
            cancel.cancel();
        });
        back_up(&opened.interface, &options, &progress, &cancel).unwrap()
    });
    assert_eq!((&*cancelled.incomplete, files_in(&cancelled)), ("canceled", 20));
    save_snapshot(&opened.interface, &mut cancelled).unwrap();
    opened.interface.flush().unwrap();
    drop(opened);

    open_gate(&place, "m-newer");
    let opened = place.open();
    assert_eq!(opened.options().parents.len(), 2, "one is complete, one is newer");
    let (snapshot, totals) = opened.back_up(|options| options.actions = true);
    assert_eq!((totals.hashed_files, totals.cached_files), (10, 30 + 20));
    let fresh = opened.back_up(|options| options.parents.clear()).0;
    assert_eq!(root_object(&fresh), root_object(&snapshot), "it is as if nothing had happened");
    place.kopia.verify_snapshots().unwrap();
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
