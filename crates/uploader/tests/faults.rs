//! Backups to a store that fails now and then, answers late, or stalls.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{CANCEL_TAKES_EFFECT, Opened, Place, root_object, write};
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::wrap::{Fault, Retry, RetryPolicy};
use lifeboat_blobs::{BlobStore, ErrorKind, FsOptions, FsStore, Operation};
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_repository::{Repository as _, WrittenBytes};
use lifeboat_testkit::tree::{Random, TreeSpec};
use lifeboat_uploader::{
    BackupOptions, BlockBackupOptions, Cancel, Progress, Totals, back_up, back_up_block, save_snapshot,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// More calls than any of these backups makes.
const CALLS: u64 = 4000;

/// The repository's folder behind faults that can be planned, and behind them the retries of every real store.
fn store_with_faults(place: &Place) -> (Arc<dyn BlobStore>, Control) {
    let open = FsStore::open(FsOptions::new(place.path("repository")));
    let fault = Fault::new(place.runtime.block_on(open).unwrap());
    let control = fault.control();
    let policy = RetryPolicy {
        first_delay: Duration::from_millis(1),
        longest_delay: Duration::from_millis(20),
        ..RetryPolicy::default()
    };
    (Arc::new(Retry::new(fault, policy)), control)
}

/// Small files, and large ones that do not compress.
fn plant(place: &Place) {
    TreeSpec::medium(29).grow(&place.source()).unwrap();
    plant_large(place);
}

fn plant_large(place: &Place) {
    let mut random = Random::new(29);
    for number in 0..6 {
        write(place.source().join(format!("large-{number}")), random.bytes(9 << 20));
    }
}

/// A backup found what an undisturbed one finds.
fn assert_same_as_undisturbed(place: &Place, (disturbed, totals): (SnapshotManifest, Totals)) {
    assert!(disturbed.is_complete());
    assert_eq!((totals.errors, totals.ignored_errors), (0, 0));
    let undisturbed = place.open().back_up(|options| options.parents.clear()).0;
    assert_eq!(root_object(&disturbed), root_object(&undisturbed));
    place.kopia.verify_snapshots().unwrap();
    place.kopia.verify_contents().unwrap();
}

#[test]
fn a_store_that_fails_one_call_in_twenty_costs_nothing_but_time() {
    let place = Place::new();
    // Many calls, however soon it is over.
    place.kopia.run(["repository", "set-parameters", "--max-pack-size-mb=10"]).unwrap();
    plant(&place);
    let (store, control) = store_with_faults(&place);
    for number in 0..CALLS / 20 {
        let action = match number % 2 {
            0 => Action::FailBefore(ErrorKind::Transient),
            _ => Action::FailAfter(ErrorKind::Transient),
        };
        control.plan(Rule::any().skip(number * 20 + 7).action(action));
    }
    let often = |options: &mut BackupOptions| options.checkpoint_interval = Some(Duration::from_millis(300));
    assert_same_as_undisturbed(&place, place.open_store(store).back_up(often));
    assert!(control.calls() >= 8, "the eighth call is the first to fail: there were {}", control.calls());
}

#[test]
fn a_slow_store_that_also_stalls_is_waited_for() {
    let place = Place::new();
    plant(&place);
    let (store, control) = store_with_faults(&place);
    let puts = || Rule::on(Operation::Put);
    control.plan(puts().prefix("p").skip(1).action(Action::Delay(Duration::from_secs(5))));
    control.plan(puts().times(CALLS).action(Action::Delay(Duration::from_millis(50))));
    let opened = place.open_store(store);
    let all = back_up_watched(&place, &opened);
    assert!(all.1.estimated_bytes > 0, "nothing was counted ahead: {:?}", all.1);
    assert_same_as_undisturbed(&place, all);

    // The earlier snapshot lets more be expected than there is.
    std::fs::remove_file(place.source().join("large-5")).unwrap();
    write(place.source().join("large-0"), Random::new(30).bytes(20 << 20));
    let less = back_up_watched(&place, &opened);
    assert!(less.1.cached_bytes > 0 && less.1.hashed_bytes >= 20 << 20, "{:?}", less.1);
    assert_same_as_undisturbed(&place, less);
}

/// Backs up while somebody looks at the counters all the time.
fn back_up_watched(place: &Place, opened: &Opened<'_>) -> (SnapshotManifest, Totals) {
    let mut options = opened.options();
    options.estimate = true;
    options.checkpoint_interval = Some(Duration::from_millis(300));
    let (progress, ended) = (Progress::default(), AtomicBool::new(false));
    let in_folder = || stored_in(&place.path("repository"));
    let (folder_before, stored_before) = (in_folder(), opened.interface.written().stored);
    let look = || (progress.totals(), opened.interface.written());
    let snapshot = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut before, mut looks) = (look(), 0);
            while !ended.load(Ordering::Relaxed) {
                let now = look();
                assert_honest(&before, &now);
                (before, looks) = (now, looks + 1);
                std::thread::sleep(Duration::from_millis(1));
            }
            looks
        });
        let taken = back_up(&opened.interface, &options, &progress, &Cancel::default());
        let saved = taken.and_then(|mut snapshot| {
            save_snapshot(&opened.interface, &mut snapshot)?;
            opened.interface.flush()?;
            Ok(snapshot)
        });
        ended.store(true, Ordering::Relaxed);
        assert!(watching.join().unwrap() > 20, "it was over before anyone looked");
        saved.unwrap()
    });
    let totals = progress.totals();
    assert_eq!(totals.estimated_bytes, totals.bytes, "{totals:?}");
    assert_eq!(totals.estimated_files, totals.files, "{totals:?}");
    let stored = opened.interface.written().stored - stored_before;
    assert_eq!(stored, in_folder() - folder_before, "what is said to be stored, and what is");
    (snapshot, totals)
}

/// The bytes of all packs in a folder.
fn stored_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let count = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => stored_in(&entry.path()),
        false => entry.metadata().unwrap().len(),
    };
    let is_pack = |path: &Path| {
        let name = path.strip_prefix(folder).unwrap().as_os_str().as_encoded_bytes();
        // Below the folders that the first letters name, everything is what they are.
        !folder.ends_with("repository") || matches!(name.first(), Some(b'p' | b'q'))
    };
    entries.filter(|entry| is_pack(&entry.path())).map(count).sum()
}

/// Nothing has become less, and the counters agree with each other.
fn assert_honest(before: &(Totals, WrittenBytes), now: &(Totals, WrittenBytes)) {
    let counters = |(totals, written): &(Totals, WrittenBytes)| {
        let files = [totals.files, totals.hashed_files, totals.cached_files, totals.directories];
        let bytes = [totals.bytes, totals.hashed_bytes, totals.cached_bytes];
        [&files[..], &bytes, &[written.new, written.stored]].concat()
    };
    let has_grown = counters(before).iter().zip(counters(now)).all(|(before, now)| *before <= now);
    assert!(has_grown, "something became less: {before:?}, then {now:?}");
    let totals = &now.0;
    assert_eq!(totals.cached_files + totals.hashed_files, totals.files, "{totals:?}");
    assert_eq!(totals.cached_bytes + totals.hashed_bytes, totals.bytes, "{totals:?}");
    for (before, now, done) in [
        (before.0.estimated_files, totals.estimated_files, totals.files),
        (before.0.estimated_bytes, totals.estimated_bytes, totals.bytes),
    ] {
        assert!(now == 0 || now >= done, "{totals:?}");
        assert!(
            now >= before || now == done,
            "the estimate became less before the end: {before}, {totals:?}"
        );
    }
}

#[test]
fn a_store_that_is_full_ends_the_backup_with_its_reason_and_harms_no_earlier_snapshot() {
    let place = Place::new();
    TreeSpec::small(31).grow(&place.source()).unwrap();
    let (before, _) = place.back_up();
    plant_large(&place);
    let (store, control) = store_with_faults(&place);
    let full = Rule::on(Operation::Put).prefix("p").skip(1).times(CALLS);
    control.plan(full.action(Action::FailBefore(ErrorKind::Full)));
    let opened = place.open_store(store);
    let (options, progress) = (opened.options(), Progress::default());
    let taken = back_up(&opened.interface, &options, &progress, &Cancel::default());
    let outcome = taken.and_then(|mut snapshot| {
        // The last packs are written when the snapshot is.
        save_snapshot(&opened.interface, &mut snapshot)?;
        Ok(opened.interface.flush()?)
    });
    let error = outcome.unwrap_err();
    assert!(format!("{error:?}").contains("Full"), "{error:?}");
    drop(opened);
    place.kopia.verify_snapshots().unwrap();
    let restored = place.path("restored");
    place.kopia.restore(before.id.as_str(), &restored).unwrap();
}

/// Does `work` and cancels it once it is in the middle of it; the cancel must be heard within `limit`, however long the
/// storage stalls.
fn assert_cancel_is_heard<T: std::fmt::Debug>(
    progress: &Progress,
    limit: Duration,
    is_stuck: impl Fn() -> bool + Sync,
    work: impl FnOnce(&Cancel) -> lifeboat_uploader::Result<T>,
) {
    let (cancel, ended) = (Cancel::default(), AtomicBool::new(false));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let patience = |since: &Instant, limit: Duration, what: &str| {
                assert!(since.elapsed() < limit, "{what}: {:?}", progress.totals());
                std::thread::sleep(Duration::from_millis(20));
            };
            let started = Instant::now();
            while !is_stuck() {
                let what = "the backup does not get where it is to be cancelled";
                patience(&started, Duration::from_secs(180), what);
            }
            let cancelled = Instant::now();
            cancel.cancel();
            while !ended.load(Ordering::Relaxed) {
                patience(&cancelled, limit, "the cancel was not heard");
            }
        });
        let outcome = work(&cancel);
        ended.store(true, Ordering::Relaxed);
        outcome
    });
    assert!(matches!(outcome, Err(lifeboat_uploader::Error::Cancelled)), "{outcome:?}");
}

/// A store that takes no pack any more.
fn stalled_store(place: &Place) -> Arc<dyn BlobStore> {
    let (store, control) = store_with_faults(place);
    let for_ever = Action::Delay(Duration::from_secs(100 * 3600));
    control.plan(Rule::on(Operation::Put).prefix("p").times(CALLS).action(for_ever));
    store
}

#[test]
fn a_cancel_ends_a_backup_although_the_store_stalls_for_ever() {
    let place = Place::new();
    plant_large(&place);
    let opened = place.open_store_within(stalled_store(&place), 32 << 20);
    let progress = Progress::default();
    let mut options = opened.options();
    options.checkpoint_interval = Some(Duration::from_secs(600));
    // All memory is in packs that nobody takes once nothing has been hashed for a while.
    let hashed = Mutex::new((0, Instant::now()));
    let is_stuck = || {
        let mut hashed = hashed.lock().unwrap();
        let now = progress.totals().hashed_bytes;
        if now != hashed.0 {
            *hashed = (now, Instant::now());
        }
        now > 0 && hashed.1.elapsed() > Duration::from_secs(2)
    };
    assert_cancel_is_heard(&progress, CANCEL_TAKES_EFFECT, is_stuck, |cancel| {
        back_up(&opened.interface, &options, &progress, cancel)
    });
    let flushed = opened.interface.flush();
    assert!(flushed.is_err(), "nothing waits for the store any more");
    drop(opened);
    place.back_up();
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn a_cancel_ends_a_snapshot_that_is_being_saved_although_the_store_stalls_for_ever() {
    let place = Place::new();
    write(place.source().join("file"), b"little enough to go with the last pack");
    let (store, control) = store_with_faults(&place);
    let opened = place.open_store(store);
    let progress = Progress::default();
    let taken = back_up(&opened.interface, &opened.options(), &progress, &Cancel::default());
    let mut snapshot = taken.unwrap();
    let for_ever = Action::Delay(Duration::from_secs(100 * 3600));
    control.plan(Rule::on(Operation::Put).times(CALLS).action(for_ever));
    let before = control.calls();
    // Longer than for a backup: ten seconds, since what is not saved was moved for nothing.
    let limit = CANCEL_TAKES_EFFECT + Duration::from_secs(8);
    assert_cancel_is_heard(
        &progress,
        limit,
        || control.calls() > before,
        |cancel| {
            cancel.interrupting_save(&opened.interface, || {
                save_snapshot(&opened.interface, &mut snapshot)?;
                Ok(opened.interface.flush()?)
            })
        },
    );
    assert!(opened.interface.flush().is_err(), "nothing waits for the store any more");
    drop(opened);
    place.back_up();
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn a_cancel_ends_a_block_backup_that_waits_for_the_store_or_for_memory() {
    let place = Place::new();
    let image = place.path("image");
    write(&image, Random::new(3).bytes(60 << 20));
    for without_memory in [false, true] {
        let opened = place.open_store_within(stalled_store(&place), 32 << 20);
        let progress = Progress::default();
        let options = BlockBackupOptions {
            path: image.clone(),
            source: place.source_info(),
            policy: Policy::default(),
            changes: None,
            actions: false,
            description: String::new(),
            checkpoint_interval: None,
            threads: 2,
            budget: opened.budget.clone(),
        };
        let all =
            without_memory.then(|| opened.budget.try_reserve(opened.budget.total() - opened.budget.used()));
        let packed = || opened.inner.contents().totals().packed_bytes;
        assert_cancel_is_heard(
            &progress,
            CANCEL_TAKES_EFFECT,
            || without_memory || packed() > 4 << 20,
            |cancel| back_up_block(&opened.interface, &options, &progress, cancel),
        );
        drop(all);
    }
}
