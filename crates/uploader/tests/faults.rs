//! Backups to a store that fails now and then, answers late, or stalls.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Place, root_object, write};
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::wrap::{Fault, Retry, RetryPolicy};
use lifeboat_blobs::{BlobStore, ErrorKind, FsOptions, FsStore, Operation};
use lifeboat_kopia::policy::Policy;
use lifeboat_repository::Repository as _;
use lifeboat_testkit::tree::{Random, TreeSpec};
use lifeboat_uploader::{BlockBackupOptions, Cancel, Progress, back_up, back_up_block, save_snapshot};
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

/// Backs up through the store, and finds what an undisturbed backup finds.
fn assert_same_as_undisturbed(place: &Place, store: Arc<dyn BlobStore>) {
    let (disturbed, totals) = place.open_store(store).back_up(|options| {
        options.checkpoint_interval = Some(Duration::from_millis(300));
    });
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
    plant(&place);
    let (store, control) = store_with_faults(&place);
    for number in 0..CALLS / 20 {
        let action = match number % 2 {
            0 => Action::FailBefore(ErrorKind::Transient),
            _ => Action::FailAfter(ErrorKind::Transient),
        };
        control.plan(Rule::any().skip(number * 20 + 7).action(action));
    }
    assert_same_as_undisturbed(&place, store);
    assert!(control.calls() > 20, "nothing can have failed");
}

#[test]
fn a_slow_store_that_also_stalls_is_waited_for() {
    let place = Place::new();
    plant(&place);
    let (store, control) = store_with_faults(&place);
    let puts = || Rule::on(Operation::Put);
    control.plan(puts().prefix("p").skip(1).action(Action::Delay(Duration::from_secs(5))));
    control.plan(puts().times(CALLS).action(Action::Delay(Duration::from_millis(50))));
    assert_same_as_undisturbed(&place, store);
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

/// Does `work` and cancels it once it is in the middle of it; the cancel must be heard, however long the storage stalls.
fn assert_cancel_is_heard<T: std::fmt::Debug>(
    progress: &Progress,
    is_stuck: impl Fn() -> bool + Sync,
    work: impl FnOnce(&Cancel) -> lifeboat_uploader::Result<T>,
) {
    let (cancel, ended) = (Cancel::default(), AtomicBool::new(false));
    let started = Instant::now();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let patience = |what: &str| {
                assert!(started.elapsed() < Duration::from_secs(180), "{what}: {:?}", progress.totals());
                std::thread::sleep(Duration::from_millis(20));
            };
            while !is_stuck() {
                patience("the backup does not get where it is to be cancelled");
            }
            cancel.cancel();
            while !ended.load(Ordering::Relaxed) {
                patience("the cancel was not heard");
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
    assert_cancel_is_heard(&progress, is_stuck, |cancel| {
        back_up(&opened.interface, &options, &progress, cancel)
    });
    let flushed = opened.interface.flush();
    assert!(flushed.is_err(), "nothing waits for the store any more");
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
            || without_memory || packed() > 4 << 20,
            |cancel| back_up_block(&opened.interface, &options, &progress, cancel),
        );
        drop(all);
    }
}
