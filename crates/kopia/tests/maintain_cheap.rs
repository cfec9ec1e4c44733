//! What maintenance costs: nothing is read twice, rewriting keeps to its limits and goes on, and writers keep the index
//! small by themselves.
#![allow(missing_docs, clippy::unwrap_used)]

mod maintain_common;

use jiff::SignedDuration;
use lifeboat_blobs::Operation;
use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::Logged;
use lifeboat_index::{Deleted, Prefix};
use lifeboat_kopia::content::{ContentRange, ContentToWrite};
use lifeboat_kopia::epoch::EpochState;
use lifeboat_kopia::maintain::{self, Mode, Options, Outcome, Report, Safety};
use lifeboat_kopia::maintenance::Task;
use lifeboat_kopia::repair::{self, RepairOptions};
use lifeboat_kopia::repo::{OpenOptions, Repository};
use maintain_common::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Maintains as a new process would, with what is kept in `cache`; returns how often packs with metadata were read.
async fn maintain_with(world: &World, cache: &Path, safety: &Safety) -> (Report, usize) {
    let store = Fault::new(world.store.clone());
    let control = store.control();
    let options = OpenOptions {
        cache_folder: Some(cache.to_owned()),
        metadata_cache_bytes: 0,
        ..world.options_on(Arc::new(store))
    };
    let repository = Repository::open(options).await.unwrap();
    let report = run(&repository, Mode::Full, safety).await;
    let is_read = |call: &&Logged| call.operation == Operation::Get && call.blob.starts_with('q');
    let reads = control.log().iter().filter(is_read).count();
    (report, reads)
}

/// Contents stay where they are, so that what is read is read for marking.
fn marking_only() -> Safety {
    Safety { min_content_age_for_rewrite: hours(100_000), ..Safety::FULL }
}

/// The file that marking keeps.
fn memory_file(cache: &Path) -> std::path::PathBuf {
    let repository = std::fs::read_dir(cache).unwrap().next().unwrap().unwrap().path();
    repository.join("recall")
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_an_earlier_run_has_read_are_not_read_again() {
    let (world, cache) = (World::new(), tempfile::tempdir().unwrap());
    let repository = world.create(3).await;
    let mut expected = BTreeMap::new();
    for day in 0..10u64 {
        // A folder and a large file that stay, and a folder of its own.
        let (own, big) = (format!("day{day}/f"), ("same/big", 7, 900_000));
        let files = files(&[("same/a", 1, 500), big, (&own, 100 + day, 500)]);
        expected.insert(take_snapshot(&repository, &files).await, files);
        world.clock.advance(hours(24));
    }
    let (report, first) = maintain_with(&world, cache.path(), &marking_only()).await;
    assert!(report.is_clean(), "{report}");
    let (report, again) = maintain_with(&world, cache.path(), &marking_only()).await;
    assert!(report.is_clean(), "{report}");
    // What is left are the manifests.
    assert!(again < first, "{again} reads after {first}");

    // Something new: its directories are read, and those of before are not.
    world.clock.advance(hours(24));
    let newer = files(&[("same/a", 1, 500), ("new/f", 999, 500)]);
    expected.insert(take_snapshot(&repository, &newer).await, newer);
    let doomed = expected.keys().next().unwrap().clone();
    delete_snapshot(&repository, &doomed).await;
    expected.remove(&doomed);
    let (report, more) = maintain_with(&world, cache.path(), &marking_only()).await;
    assert!(report.is_clean(), "{report}");
    assert!(more > again && more < again + first, "{more} reads after {again} and {first}");
    for _ in 0..6 {
        world.clock.advance(hours(24));
        let (report, _) = maintain_with(&world, cache.path(), &Safety::FULL).await;
        assert!(report.is_clean(), "{report}");
    }
    assert_whole(&world.open().await, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_remembered_is_not_believed_if_it_is_damaged_or_of_another_repository() {
    let (world, cache) = (World::new(), tempfile::tempdir().unwrap());
    let repository = world.create(3).await;
    let content = files(&[("sub/a", 1, 500), ("sub/big", 2, 900_000), ("other/c", 3, 100)]);
    let expected = BTreeMap::from([(take_snapshot(&repository, &content).await, content)]);
    world.clock.advance(hours(30));
    let (_, first) = maintain_with(&world, cache.path(), &marking_only()).await;
    let file = memory_file(cache.path());
    let good = std::fs::read(&file).unwrap();
    let (_, again) = maintain_with(&world, cache.path(), &marking_only()).await;
    assert!(again < first);
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let elsewhere = {
        let (world, cache) = (World::new(), tempfile::tempdir().unwrap());
        take_snapshot(&world.create(3).await, &files(&[("sub/a", 1, 500)])).await;
        maintain_with(&world, cache.path(), &marking_only()).await;
        std::fs::read(memory_file(cache.path())).unwrap()
    };
    let bad = [
        Vec::new(),
        vec![0; good.len()],
        good[..good.len() - 9].to_vec(),
        flipped(0),
        flipped(12),
        flipped(40),
        flipped(good.len() / 2),
        flipped(good.len() - 1),
        elsewhere,
    ];
    for (number, bytes) in bad.into_iter().enumerate() {
        std::fs::write(&file, bytes).unwrap();
        let (report, reads) = maintain_with(&world, cache.path(), &marking_only()).await;
        assert!(report.is_clean() && reads > again, "{number}: {reads} reads, {report}");
        let (_, reads) = maintain_with(&world, cache.path(), &marking_only()).await;
        assert_eq!(reads, again, "{number}: it is remembered anew");
        assert_whole(&world.open().await, &expected).await;
    }
}

/// Many small contents in two packs, which nothing needs yet.
async fn two_short_packs(repository: &Repository, contents: u64) {
    for half in 0..2 {
        let store = repository.contents().clone();
        let write = move || {
            for seed in half * contents / 2..(half + 1) * contents / 2 {
                let data = noise(seed, 30);
                let item = ContentToWrite { data: &data, prefix: Prefix::NONE, compression: None };
                store.write(&item).unwrap();
            }
        };
        tokio::task::spawn_blocking(write).await.unwrap();
        repository.flush().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rewriting_stops_when_time_is_up_and_the_next_run_goes_on() {
    let world = World::new();
    let repository = world.create(3).await;
    two_short_packs(&repository, 24_000).await;
    world.clock.advance(hours(3));
    let packs = world.names("p").await;
    assert_eq!(packs.len(), 2);
    let safety = Safety {
        rewrite_to_deletion_delay: SignedDuration::ZERO,
        min_content_age_for_rewrite: SignedDuration::ZERO,
        min_pack_age: SignedDuration::ZERO,
        ..Safety::FULL
    };
    let options = Options { rewrite_time: Some(SignedDuration::ZERO), ..Options::default() };
    for round in 0..2 {
        world.clock.advance(hours(1));
        let report = maintain::run(&repository, Mode::Full, &safety, &options).await.unwrap();
        let task = report.task(Task::FullRewriteContents).unwrap();
        assert!(task.outcome == Outcome::Done && task.summary.contains("time was up"), "{report}");
        assert!(report.is_clean(), "{report}");
        let names = world.names("p").await;
        let left = packs.iter().filter(|pack| names.contains(pack)).count();
        // 10 000 of the 12 000 contents of the first pack were moved, and then the rest of them.
        assert_eq!(left, 2 - round, "{report}");
    }
    for _ in 0..2 {
        world.clock.advance(hours(1));
        assert!(run(&repository, Mode::Full, &safety).await.is_clean());
    }
    assert!(world.names("p").await.iter().all(|pack| !packs.contains(pack)), "both are empty and gone");
    assert_sound(&world.open().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_contents_are_gathered_once_however_many_there_are() {
    let world = World::new();
    let repository = world.create(3).await;
    two_short_packs(&repository, 210_000).await;
    let safety = Safety { min_content_age_for_rewrite: SignedDuration::ZERO, ..Safety::FULL };
    world.clock.advance(hours(3));
    let report = run(&repository, Mode::Full, &safety).await;
    let task = report.task(Task::FullRewriteContents).unwrap();
    assert!(task.summary.contains("moved to new packs: 210000"), "{report}");
    world.clock.advance(hours(3));
    let report = run(&repository, Mode::Full, &safety).await;
    let moved_again =
        report.task(Task::FullRewriteContents).is_some_and(|task| task.outcome == Outcome::Done);
    assert!(!moved_again, "{report}");
    assert_sound(&world.open().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repair_forgets_more_lost_contents_than_it_keeps_in_memory() {
    let world = World::new();
    let repository = world.create(3).await;
    let files = files(&[("f", 1_000_000, 20_000)]);
    let expected = BTreeMap::from([(take_snapshot(&repository, &files).await, files)]);
    let whole = world.names("p").await;
    // More than are forgotten at a time.
    two_short_packs(&repository, 110_000).await;
    for pack in world.names("p").await.iter().filter(|pack| !whole.contains(pack)) {
        world.delete(&id(pack)).await;
    }
    world.clock.advance(hours(1));
    let report = repair::run(&repository, &RepairOptions::default(), &mut |_| {}).await.unwrap();
    assert_eq!((report.lost_contents, report.lost_manifests), (110_000, 0));
    let reopened = world.open().await;
    let left = reopened.contents().iterate(ContentRange::Prefix(Prefix::NONE), Deleted::Include);
    assert_eq!(left.map(Result::unwrap).count(), 1);
    assert_whole(&reopened, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_bytes_leaves_the_longer_packs_to_later_runs() {
    let world = World::new();
    let repository = world.create(3).await;
    for seed in 0..6 {
        take_snapshot(&repository, &files(&[("f", seed, 20_000 + 10_000 * seed as usize)])).await;
        world.clock.advance(hours(3));
    }
    let safety = Safety { min_content_age_for_rewrite: SignedDuration::ZERO, ..Safety::FULL };
    let options = Options { rewrite_bytes: 70_000, ..Options::default() };
    let report = maintain::run(&repository, Mode::Full, &safety, &options).await.unwrap();
    let task = report.task(Task::FullRewriteContents).unwrap();
    // Of the data the two shortest packs, with 50 kB together; and what there is of metadata.
    assert!(task.outcome == Outcome::Done && report.is_clean(), "{report}");
    let moved: u64 = world.list("p").await.iter().map(|pack| pack.size).max().unwrap();
    assert!(world.names("p").await.len() == 7 && moved < 75_000, "{report}");
    assert_sound(&world.open().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_keep_the_index_small_without_any_maintenance() {
    let world = World::new();
    let created = world.create(3).await;
    let writers = [quicken_epochs(&world, created, 4).await, world.open().await];
    let mut number = 0;
    for _ in 0..40 {
        for writer in &writers {
            for _ in 0..3 {
                number += 1;
                write_orphan(writer, number).await;
                world.clock.advance(SignedDuration::from_mins(2));
            }
        }
    }
    let state = EpochState::from_listing(world.list("x").await);
    assert!(state.write_epoch > 10, "{}", state.write_epoch);
    let in_force = state.active().len();
    assert!(in_force < 60, "{in_force} of {} index blobs are in force", state.indexes().count());
    assert!(state.holes().is_empty());
    let reopened = world.open().await;
    assert!(reopened.contents().damaged_index().is_empty());
    let found = reopened.contents().iterate(ContentRange::Prefix(Prefix::NONE), Deleted::Skip);
    assert_eq!(found.map(Result::unwrap).count() as u64, number);
}
