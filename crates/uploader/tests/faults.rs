//! Backups to a store that fails now and then, answers late, or stalls.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Place, root_object, write};
use lifeboat_blobs::wrap::fault::{Action, Control, Rule};
use lifeboat_blobs::wrap::{Fault, Retry, RetryPolicy};
use lifeboat_blobs::{BlobStore, ErrorKind, FsOptions, FsStore, Operation};
use lifeboat_repository::Repository as _;
use lifeboat_testkit::tree::{Random, TreeSpec};
use lifeboat_uploader::{Cancel, Progress, back_up, save_snapshot};
use std::sync::Arc;
use std::time::Duration;

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
