//! Maintenance in simulated time: what is deleted is freed, after its time and never before, and nothing else is.
#![allow(missing_docs, clippy::unwrap_used)]

mod maintain_common;

use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Rule};
use lifeboat_blobs::{BlobStore, Operation, PutOptions};
use lifeboat_index::{Deleted, Prefix};
use lifeboat_kopia::Clock;
use lifeboat_kopia::content::{ContentRange, ContentToWrite};
use lifeboat_kopia::maintain::{self, Error, Mode, Obstacle, Options, Outcome, Safety, Waiting};
use lifeboat_kopia::maintenance::{Schedule, Task};
use lifeboat_kopia::manifest::Labels;
use lifeboat_kopia::object::ObjectId;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::session::{SessionId, SessionMarker};
use maintain_common::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn clock_seconds(world: &World) -> i64 {
    world.clock.now().as_second()
}

fn contents(repository: &Repository, deleted: Deleted) -> usize {
    repository.contents().iterate(ContentRange::Prefix(Prefix::NONE), deleted).map(Result::unwrap).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_snapshot_is_freed_after_the_required_cycles_and_never_earlier() {
    for version in [1, 3] {
        let world = World::new();
        let repository = world.create(version).await;
        let kept = files(&[("a", 1, 100_000), ("sub/b", 2, 300_000)]);
        let gone = files(&[("a", 1, 100_000), ("sub/c", 3, 900_000)]);
        let doomed = take_snapshot(&repository, &gone).await;
        let expected = BTreeMap::from([(take_snapshot(&repository, &kept).await, kept)]);
        delete_snapshot(&repository, &doomed).await;
        let (all, before) = (contents(&repository, Deleted::Include), world.data_bytes().await);
        let mut freed_on = None;
        for day in 0..10 {
            let report = full(&repository).await;
            assert!(report.is_clean(), "{report}");
            assert_whole(&repository, &expected).await;
            let (alive, known) =
                (contents(&repository, Deleted::Skip), contents(&repository, Deleted::Include));
            match day {
                // Contents are younger than a day, then they are marked, then another run confirms that.
                0 => assert_eq!((alive, known), (all, all)),
                1 | 2 => {
                    assert!(alive < all && known == all, "version {version}, day {day}: {alive} of {known}");
                }
                _ => {
                    assert!(
                        alive == known && known < all,
                        "version {version}, day {day}: {alive} of {known}"
                    );
                }
            }
            if known == all {
                assert!(world.data_bytes().await >= before, "nothing leaves while it can be brought back");
                assert!(report.pending.iter().any(|pending| pending.amount.bytes > 0), "{report}");
            }
            if freed_on.is_none() && world.data_bytes().await < before - 800_000 {
                freed_on = Some(day);
            }
            world.clock.advance(hours(24));
        }
        assert!(matches!(freed_on, Some(3..=5)), "version {version}: freed on day {freed_on:?}");
        assert!(world.names("s").await.is_empty());
        let reopened = world.open().await;
        assert_whole(&reopened, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_safety_everything_goes_at_once() {
    for version in [1, 2, 3] {
        let world = World::new();
        let repository = world.create(version).await;
        let kept = files(&[("a", 1, 100_000)]);
        let doomed = take_snapshot(&repository, &files(&[("b", 2, 900_000)])).await;
        let expected = BTreeMap::from([(take_snapshot(&repository, &kept).await, kept)]);
        delete_snapshot(&repository, &doomed).await;
        world.clock.advance(hours(1));
        let report = run(&repository, Mode::Full, &Safety::NONE).await;
        assert!(report.is_clean() && report.pending.is_empty(), "{report}");
        assert!(world.data_bytes().await < 300_000, "{report}");
        assert!(report.reclaimed.bytes > 900_000, "{report}");
        assert_whole(&world.open().await, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schedule_says_what_is_due_and_remembers_what_ran() {
    let world = World::new();
    let repository = world.create(3).await;
    let auto = |repository: Repository| async move { run(&repository, Mode::Auto, &Safety::FULL).await };
    assert_eq!(auto(repository.clone()).await.ran, Some(maintain::Extent::Full));
    let nothing = auto(repository.clone()).await;
    assert!(nothing.ran.is_none() && nothing.tasks.is_empty());
    world.clock.advance(hours(1));
    assert_eq!(auto(repository.clone()).await.ran, Some(maintain::Extent::Quick));
    world.clock.advance(hours(23));
    assert_eq!(auto(repository.clone()).await.ran, Some(maintain::Extent::Full));
    let schedule = Schedule::load(&world.store, &*repository.format().await).await.unwrap();
    let runs = |task| schedule.runs_of(task).len();
    assert_eq!((runs(Task::SnapshotGc), runs(Task::CompactSingleEpoch), runs(Task::AdvanceEpoch)), (2, 3, 3));
    assert_eq!((runs(Task::CleanupLogs), runs(Task::FullDeleteBlobs)), (2, 2));
    assert!(schedule.runs_of(Task::SnapshotGc).iter().all(|run| run.success && run.error.is_empty()));
    assert_eq!(schedule.runs_of(Task::SnapshotGc)[0].extra[0].kind, "snapshotGCStats");
    assert_eq!(nothing.next_full, schedule.next_full.get().map(|next| next - hours(24)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_the_plan_and_changes_nothing() {
    let world = World::new();
    let repository = world.create(3).await;
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 900_000)])).await;
    let kept = take_snapshot(&repository, &files(&[("a", 1, 100_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    world.clock.advance(hours(30));
    let before = (world.list("").await, world.store.totals());
    let options = Options { dry_run: true, ..Options::default() };
    let plan = maintain::run(&repository, Mode::Full, &Safety::FULL, &options).await.unwrap();
    assert_eq!((world.list("").await, world.store.totals()), before);
    assert!(plan.is_clean() && plan.dry_run, "{plan}");
    assert_eq!(plan.task(Task::SnapshotGc).unwrap().outcome, Outcome::Planned);
    let deleted = plan.pending.iter().find(|pending| pending.waiting == Waiting::DeletedContents).unwrap();
    assert!(
        deleted.amount.bytes > 900_000 && deleted.not_before.as_second() > clock_seconds(&world) + 4 * 3600,
        "{plan}"
    );
    // What a client that may only read asks for is a plan, too.
    let mut options = world.options();
    options.access = lifeboat_kopia::repo::Access::ReadOnly;
    let reader = Repository::open(options).await.unwrap();
    let refused = maintain::run(&reader, Mode::Full, &Safety::FULL, &Options::default()).await;
    assert!(matches!(refused, Err(Error::Repository(lifeboat_kopia::Error::ReadOnly { .. }))));
    let options = Options { dry_run: true, ..Options::default() };
    assert!(maintain::run(&reader, Mode::Full, &Safety::FULL, &options).await.unwrap().is_clean());
    restore(&repository, &kept).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_understood_blocks_deletion_and_is_named_but_the_index_is_kept_up() {
    let world = World::new();
    let repository = world.create(3).await;
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 900_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    let labels = [("type", "snapshot"), ("hostname", "h"), ("username", "u"), ("path", "/x")];
    let labels: Labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let strange = repository.manifests().put(labels, &serde_json::json!({"rootEntry": 5})).await.unwrap();
    repository.flush().await.unwrap();
    world.clock.advance(hours(1));
    let (packs, all) = (world.names("p").await, contents(&repository, Deleted::Skip));
    let report = run(&repository, Mode::Full, &Safety::NONE).await;
    assert!(!report.is_clean());
    assert!(matches!(&report.obstacles[..], [Obstacle::Snapshot { id, .. }] if *id == strange), "{report}");
    assert_eq!(report.task(Task::SnapshotGc).unwrap().outcome, Outcome::Obstructed);
    assert_eq!(report.task(Task::FullDeleteBlobs).unwrap().outcome, Outcome::Skipped);
    assert_eq!(report.task(Task::AdvanceEpoch).unwrap().outcome, Outcome::Done);
    assert_eq!((world.names("p").await, contents(&repository, Deleted::Skip)), (packs, all));
    let schedule = Schedule::load(&world.store, &*repository.format().await).await.unwrap();
    let failed = &schedule.runs_of(Task::SnapshotGc)[0];
    assert!(!failed.success && failed.error.contains(strange.as_str()), "{}", failed.error);

    delete_snapshot(&repository, &strange).await;
    world.clock.advance(hours(1));
    assert!(run(&repository, Mode::Full, &Safety::NONE).await.is_clean());
    assert!(world.names("p").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_blocks_deletion_and_is_named_until_it_is_gone() {
    for lost in ["a directory", "the data of a file"] {
        let world = World::new();
        let repository = world.create(3).await;
        let good = files(&[("sub/a", 1, 50_000)]);
        let doomed = take_snapshot(&repository, &files(&[("c", 3, 900_000)])).await;
        // The tree and the manifest get packs of their own.
        let tree = write_tree(&repository, &good).await;
        repository.flush().await.unwrap();
        let content = match lost {
            "a directory" => tree.object.parse::<ObjectId>().unwrap().content(),
            _ => {
                let data = repository.contents().iterate(ContentRange::Prefix(Prefix::NONE), Deleted::Skip);
                data.map(Result::unwrap).find(|entry| entry.original_length == 50_000).unwrap().id
            }
        };
        let victim = id(repository.contents().lookup(&content).unwrap().unwrap().pack.as_str());
        let expected = BTreeMap::from([(save_snapshot(&repository, tree).await, good)]);
        repository.flush().await.unwrap();
        delete_snapshot(&repository, &doomed).await;
        world.clock.advance(hours(1));

        let bytes = world.store.get(&victim).await.unwrap();
        world.store.delete(&victim).await.unwrap();
        let before = world.names("p").await;
        let report = run(&world.open().await, Mode::Full, &Safety::NONE).await;
        assert!(!report.is_clean() && report.obstacle_count > 0, "{lost}: {report}");
        let named = report.obstacles.iter().any(|obstacle| match obstacle {
            Obstacle::MissingPack { pack } => *pack == victim.to_string(),
            Obstacle::Snapshot { id, reason, .. } => {
                expected.contains_key(id) && reason.contains(victim.as_str())
            }
            _ => false,
        });
        assert!(named, "{lost}: {report}");
        assert!(
            before.iter().all(|pack| pack.starts_with('p')) && report.reclaimed.bytes == 0,
            "{lost}: {report}"
        );
        let after = world.names("p").await;
        assert!(before.iter().all(|pack| after.contains(pack)), "{lost}: {report}");

        world.store.put(&victim, bytes.into(), &PutOptions::default()).await.unwrap();
        world.clock.advance(hours(1));
        let report = run(&world.open().await, Mode::Full, &Safety::NONE).await;
        assert!(report.is_clean() && report.reclaimed.bytes > 900_000, "{lost}: {report}");
        assert_whole(&world.open().await, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_deduplicated_against_a_content_being_collected_is_safe() {
    for version in [1, 3] {
        let world = World::new();
        let repository = world.create(version).await;
        let shared = files(&[("sub/x", 7, 500_000)]);
        let old = take_snapshot(&repository, &shared).await;
        delete_snapshot(&repository, &old).await;
        world.clock.advance(hours(25));
        // The writer loads the index while everything is still alive, and takes its time.
        let writer = world.open().await;
        assert!(full(&repository).await.is_clean());
        assert_eq!(contents(&repository, Deleted::Skip), 0, "everything is marked as deleted");
        world.clock.advance(jiff::SignedDuration::from_mins(10));
        let packed = writer.contents().totals().packed_bytes;
        let id = write_snapshot(&writer, &shared).await;
        assert_eq!(writer.contents().totals().packed_bytes, packed, "nothing is written again");
        writer.flush().await.unwrap();
        let expected = BTreeMap::from([(id, shared.clone())]);
        let mut brought_back = false;
        for _ in 0..8 {
            repository.refresh().await.unwrap();
            assert_eq!(restore(&repository, expected.keys().next().unwrap()).await, shared);
            world.clock.advance(hours(24));
            let report = full(&repository).await;
            assert!(report.is_clean(), "{report}");
            brought_back |=
                !report.task(Task::SnapshotGc).unwrap().summary.ends_with("brought back: 0 (0 bytes)");
            assert_whole(&world.open().await, &expected).await;
        }
        assert!(brought_back);
    }
}

/// Until its contents are dropped from the index, a deletion can be undone: whoever saves the manifest again has the snapshot back.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_was_deleted_by_mistake_can_be_saved_again_while_its_contents_are_only_marked() {
    for version in [1, 3] {
        let world = World::new();
        let repository = world.create(version).await;
        let wanted = files(&[("a", 1, 100_000), ("sub/b", 2, 300_000)]);
        let root = write_tree(&repository, &wanted).await;
        let mistake = save_snapshot(&repository, root.clone()).await;
        repository.flush().await.unwrap();
        delete_snapshot(&repository, &mistake).await;
        world.clock.advance(hours(25));
        let marked = full(&repository).await;
        assert_eq!(contents(&repository, Deleted::Skip), 0, "everything is marked as deleted: {marked}");
        let window =
            marked.pending.iter().find(|pending| pending.waiting == Waiting::DeletedContents).unwrap();
        assert!(window.amount.bytes > 400_000 && window.not_before > world.clock.now(), "{marked}");

        let expected = BTreeMap::from([(save_snapshot(&repository, root).await, wanted)]);
        repository.flush().await.unwrap();
        for _ in 0..6 {
            world.clock.advance(hours(24));
            assert!(full(&repository).await.is_clean());
        }
        assert_whole(&world.open().await, &expected).await;
    }
}

/// The deletion is still in the index blobs, only hidden, and must not outrank what was written after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_dropped_is_written_again_also_by_a_client_whose_clock_is_behind() {
    for version in [1, 2, 3] {
        let world = World::new();
        let repository = world.create(version).await;
        let same = files(&[("a", 1, 100_000), ("sub/b", 2, 100_000)]);
        let doomed = take_snapshot(&repository, &same).await;
        delete_snapshot(&repository, &doomed).await;
        world.clock.advance(hours(1));
        assert!(run(&repository, Mode::Full, &Safety::NONE).await.is_clean());
        assert_eq!(contents(&repository, Deleted::Include), 0, "version {version}");
        world.clock.advance(-jiff::SignedDuration::from_mins(2));
        let behind = world.open().await;
        let expected = BTreeMap::from([(take_snapshot(&behind, &same).await, same)]);
        assert_whole(&world.open().await, &expected).await;
        world.clock.advance(hours(1));
        assert!(run(&world.open().await, Mode::Full, &Safety::NONE).await.is_clean());
        assert_whole(&world.open().await, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_of_a_session_that_may_be_alive_are_left_alone() {
    let world = World::new();
    let repository = world.create(3).await;
    let environment = repository.environment().clone();
    let sealer = repository.contents().sealer().clone();
    let mut orphans = Vec::new();
    for (number, sealed) in [("0", true), ("1", false)] {
        let session = SessionId::generate(&environment).unwrap();
        let marker = SessionMarker::new(session.clone(), world.clock.now(), "u", "h");
        let plain = serde_json::to_vec(&marker).unwrap();
        let blob = sealer.seal_blob(&plain).unwrap();
        // One of the markers cannot be read: its session counts as alive all the same.
        let bytes = if sealed { blob.bytes().clone() } else { bytes::Bytes::from_static(b"?") };
        let options = PutOptions::default();
        world.store.put(&id(&blob.name("s", Some(session.as_str()))), bytes.into(), &options).await.unwrap();
        let pack = format!("p{number}{}-{session}", "0".repeat(31));
        world.store.put(&id(&pack), vec![1; 1000].into(), &options).await.unwrap();
        orphans.push(pack);
    }
    world.clock.advance(hours(95));
    let report = full(&repository).await;
    assert!(report.is_clean(), "{report}");
    assert!(report.pending.iter().any(|pending| pending.waiting == Waiting::UnreferencedBlobs), "{report}");
    let mut packs = world.names("p").await;
    packs.sort();
    assert_eq!((packs, world.names("s").await.len()), (orphans, 2));
    world.clock.advance(hours(24));
    let report = full(&repository).await;
    assert_eq!(
        (report.reclaimed.count, world.names("p").await.len(), world.names("s").await.len()),
        (4, 0, 0),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn short_packs_are_gathered_and_deletions_stay_where_they_are() {
    let world = World::new();
    let repository = world.create(3).await;
    let mut expected = BTreeMap::new();
    for number in 0..5 {
        let files = files(&[("a", number, 60_000), ("b", 100 + number, 50_000)]);
        expected.insert(take_snapshot(&repository, &files).await, files);
        world.clock.advance(hours(3));
    }
    let doomed = take_snapshot(&repository, &files(&[("a", 0, 60_000), ("c", 77, 60_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    assert!(world.names("p").await.len() > 5);
    world.clock.advance(hours(30));
    assert!(full(&repository).await.task(Task::FullRewriteContents).unwrap().outcome == Outcome::Done);
    let deleted = |repository: &Repository| {
        let entries = repository.contents().iterate(ContentRange::Prefix(Prefix::NONE), Deleted::Include);
        entries.map(Result::unwrap).find(|entry| entry.deleted).unwrap()
    };
    let marked = deleted(&repository).timestamp_seconds;
    assert!(marked <= clock_seconds(&world) + 1);
    world.clock.advance(hours(24));
    let report = full(&repository).await;
    assert_eq!(report.task(Task::FullRewriteContents).unwrap().outcome, Outcome::Skipped);
    // One pack with what was gathered, one with nothing but the deletion, which is left to expire.
    assert_eq!(world.names("p").await.len(), 2, "{report}");
    assert_eq!(deleted(&repository).timestamp_seconds, marked);
    assert_whole(&world.open().await, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn months_of_writing_leave_a_small_index() {
    for version in [1, 3] {
        let world = World::new();
        let repository = world.create(version).await;
        let mut expected = BTreeMap::new();
        for day in 0..45u64 {
            for hour in 0..12u64 {
                let seed = day * 100 + hour;
                let contents = repository.contents().clone();
                let write = move || {
                    let data = noise(seed, 300);
                    let item = ContentToWrite { data: &data, prefix: Prefix::NONE, compression: None };
                    contents.write(&item).unwrap();
                };
                tokio::task::spawn_blocking(write).await.unwrap();
                repository.flush().await.unwrap();
                world.clock.advance(hours(2));
            }
            if day % 9 == 0 {
                let files = files(&[("sub/f", 10_000 + day, 3000)]);
                expected.insert(take_snapshot(&repository, &files).await, files);
            }
            let report = run(&repository, Mode::Auto, &Safety::FULL).await;
            assert!(report.is_clean(), "version {version}, day {day}: {report}");
        }
        let index = if version == 1 { world.names("n").await } else { world.names("xn").await };
        assert!(index.len() < 150, "version {version}: {} index blobs", index.len());
        if version == 3 {
            let (markers, watermarks) = (world.names("xe").await.len(), world.names("xw").await.len());
            assert!(markers <= 3 && watermarks <= 3, "{markers} markers, {watermarks} watermarks");
            assert!(!world.names("xs").await.is_empty() && !world.names("xr").await.is_empty());
        } else {
            let logs = world.names("m").await.len() + world.names("l").await.len();
            assert!(logs < 20, "{logs} logs");
        }
        let reopened = world.open().await;
        assert_whole(&reopened, &expected).await;
        // All that was written without a snapshot is gone by and by.
        for _ in 0..6 {
            world.clock.advance(hours(24));
            assert!(full(&reopened).await.is_clean());
        }
        assert!(world.data_bytes().await < 40_000, "version {version}: {} bytes", world.data_bytes().await);
        assert_whole(&world.open().await, &expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_is_freed_before_anything_is_written() {
    let world = World::new();
    let repository = world.create(3).await;
    let kept = files(&[("a", 1, 100_000)]);
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 900_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    let expected = BTreeMap::from([(take_snapshot(&repository, &kept).await, kept)]);
    // What a writer left that was killed before it could publish it.
    let orphan = format!("p{}-s0000000000000000122", "7".repeat(32));
    world.store.put(&id(&orphan), vec![1; 500_000].into(), &PutOptions::default()).await.unwrap();
    world.clock.advance(hours(30));
    take_snapshot(&repository, &files(&[("z", 99, 10)])).await;

    let store = Fault::new(world.store.clone());
    let no_room = Action::FailBefore(lifeboat_blobs::ErrorKind::Full);
    store.control().plan(Rule::on(Operation::Put).times(u64::MAX).action(no_room));
    let ours = Repository::open(world.options_on(Arc::new(store))).await.unwrap();
    let is_full = |outcome: maintain::Result<maintain::Report>| match outcome {
        Err(Error::Repository(lifeboat_kopia::Error::Storage(error))) => {
            error.kind() == lifeboat_blobs::ErrorKind::Full
        }
        _ => false,
    };
    assert!(is_full(maintain::run(&ours, Mode::Full, &Safety::FULL, &Options::default()).await));
    assert!(world.names("p").await.contains(&orphan), "without being asked to, it writes first");
    let options = Options { free_first: true, ..Options::default() };
    assert!(is_full(maintain::run(&ours, Mode::Full, &Safety::FULL, &options).await));
    assert!(!world.names("p").await.contains(&orphan));
    let reopened = world.open().await;
    for (id, files) in &expected {
        assert!(restore(&reopened, id).await == *files);
    }
    assert_sound(&reopened).await;
}
