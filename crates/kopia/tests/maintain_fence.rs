//! The fence before every deletion: who is not the owner, whose clock is wrong, who is not alone, or who sees only a part
//! of the store deletes nothing.
#![allow(missing_docs, clippy::unwrap_used)]

mod maintain_common;

use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Rule};
use lifeboat_blobs::{MemoryStore, Operation};
use lifeboat_kopia::Clock;
use lifeboat_kopia::maintain::{self, Error, Mode, Obstacle, Options, Outcome, Report, Safety};
use lifeboat_kopia::maintenance::{Params, Task};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::session::{SessionId, SessionMarker};
use maintain_common::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_runs_it_and_only_if_the_clocks_agree() {
    let world = World::new();
    let repository = world.create(3).await;
    let mut options = world.options();
    options.identity.username = "somebody".into();
    let other = Repository::open(options).await.unwrap();
    let refused = maintain::run(&other, Mode::Auto, &Safety::FULL, &Options::default()).await;
    assert!(matches!(refused, Err(Error::NotOwner { owner, .. }) if owner == "tester@testhost"));
    assert!(world.names("kopia.maintenance").await.is_empty());

    let mut options = world.options();
    let behind = ManualClock::new();
    behind.advance(jiff::SignedDuration::from_mins(-6));
    options.environment.clock = Arc::new(behind);
    let skewed = Repository::open(options).await.unwrap();
    let refused = maintain::run(&skewed, Mode::Full, &Safety::NONE, &Options::default()).await;
    assert!(matches!(refused, Err(Error::ClockSkew { .. })), "{refused:?}");
    assert!(full(&repository).await.is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_else_writes_the_schedule_is_noticed_before_anything_is_deleted() {
    let world = World::new();
    let repository = world.create(3).await;
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 900_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    world.clock.advance(hours(1));
    let store = Fault::new(world.store.clone());
    // An answer from before our last write looks the same as a schedule that somebody else wrote.
    store.control().plan(Rule::on(Operation::Get).prefix("kopia.maintenance").skip(1).action(Action::Stale));
    let ours = Repository::open(world.options_on(Arc::new(store))).await.unwrap();
    let before = world.names("p").await;
    let stopped = maintain::run(&ours, Mode::Full, &Safety::NONE, &Options::default()).await;
    assert!(matches!(stopped, Err(Error::Contended)), "{stopped:?}");
    assert_eq!(world.names("p").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn ownership_that_is_lost_on_the_way_stops_the_deletion() {
    let world = World::new();
    let repository = world.create(3).await;
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 900_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    world.clock.advance(hours(1));
    let before = world.names("p").await;
    let store = Fault::new(world.store.clone());
    let ours = Repository::open(world.options_on(Arc::new(store.clone()))).await.unwrap();
    let stopped = meanwhile(&store, ours, async || {
        repository.refresh().await.unwrap();
        let params = Params { owner: "other@host".into(), ..Params::default() };
        params.save(repository.manifests()).await.unwrap();
        repository.flush().await.unwrap();
    })
    .await;
    assert!(matches!(stopped, Err(Error::NotOwner { .. })), "{stopped:?}");
    assert_eq!(world.names("p").await, before);
}

/// Runs full maintenance on another task, holds it up while it lists the packs, that is after the marking and before the
/// deletion, and does `meanwhile`.
async fn meanwhile(
    store: &Fault<MemoryStore>,
    repository: Repository,
    meanwhile: impl AsyncFnOnce(),
) -> maintain::Result<Report> {
    let delay = Action::Delay(Duration::from_millis(300));
    store.control().plan(Rule::on(Operation::List).prefix("p0").action(delay));
    let run = tokio::spawn(async move {
        maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await
    });
    for _ in 0..3000 {
        if store.control().log().iter().any(|call| call.blob == "p0") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    meanwhile().await;
    run.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_part_on_the_way_stop_the_deletion() {
    let world = World::new();
    let repository = world.create(3).await;
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 900_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    world.clock.advance(hours(1));
    let store = Fault::new(world.store.clone());
    let mut options = world.options_on(Arc::new(store.clone()));
    let ours = ManualClock::new();
    ours.set(world.clock.now());
    options.environment.clock = Arc::new(ours);
    let client = Repository::open(options).await.unwrap();
    let before = world.names("p").await;
    let clock = world.clock.clone();
    let stopped = meanwhile(&store, client, async || clock.advance(jiff::SignedDuration::from_mins(6))).await;
    assert!(matches!(stopped, Err(Error::ClockSkew { .. })), "{stopped:?}");
    assert_eq!(world.names("p").await, before);
}

/// So many snapshots to keep, and one whose space is to be freed.
async fn written(world: &World, version: u8, kept: u64) -> BTreeMap<ManifestId, Files> {
    let repository = world.create(version).await;
    let mut expected = BTreeMap::new();
    for number in 0..kept {
        let files = files(&[("a", number, 60_000), ("sub/b", 100 + number, 50_000)]);
        expected.insert(take_snapshot(&repository, &files).await, files);
    }
    let doomed = take_snapshot(&repository, &files(&[("c", 77, 900_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    world.clock.advance(hours(1));
    expected
}

/// Maintains through a store whose listings with exactly this prefix end early, each time.
async fn maintain_with_cut(world: &World, prefix: &str, after: usize) -> maintain::Result<Report> {
    let store = Fault::new(world.store.clone());
    let control = store.control();
    let ours = Repository::open(world.options_on(Arc::new(store))).await.unwrap();
    cut_listings(&control, prefix, after);
    maintain::run(&ours, Mode::Full, &Safety::NONE, &Options::default()).await
}

fn incomplete(report: &Report) -> Vec<&str> {
    let blobs = report.obstacles.iter().filter_map(|obstacle| match obstacle {
        Obstacle::IncompleteListing { blob } => Some(blob.as_str()),
        _ => None,
    });
    blobs.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_packs_that_ends_too_early_is_noticed_and_nothing_is_deleted() {
    let world = World::new();
    // One pack has nobody to be gathered with, and stays.
    let expected = written(&world, 3, 1).await;
    let packs = world.names("p").await;
    let fork = world.fork().await;
    assert!(run(&fork.open().await, Mode::Full, &Safety::NONE).await.reclaimed.bytes > 900_000);
    let mut noticed = 0;
    for digit in "0123456789abcdef".chars() {
        let world = world.fork().await;
        let report = maintain_with_cut(&world, &format!("p{digit}"), 0).await.unwrap();
        let left_out = incomplete(&report);
        if !left_out.is_empty() {
            assert!(left_out.iter().all(|blob| blob.starts_with(&format!("p{digit}"))), "{report}");
            assert_eq!(report.task(Task::FullDeleteBlobs).unwrap().outcome, Outcome::Obstructed, "{report}");
            let after = world.names("p").await;
            assert!(packs.iter().all(|pack| after.contains(pack)), "{report}");
            noticed += 1;
        }
        assert_whole(&world.open().await, &expected).await;
    }
    assert_eq!(noticed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_the_index_that_ends_too_early_is_noticed_and_nothing_is_deleted() {
    for (version, prefix) in [(1, "n"), (2, "x"), (3, "x")] {
        let world = World::new();
        let expected = written(&world, version, 6).await;
        let (packs, indexes) = (world.names("p").await, world.names(prefix).await.len());
        for after in 0..indexes {
            let world = world.fork().await;
            let what = format!("version {version}, {after} of {indexes}");
            match maintain_with_cut(&world, prefix, after).await {
                Ok(report) => {
                    let left_out = incomplete(&report);
                    assert!(!left_out.is_empty(), "{what}: {report}");
                    assert!(left_out.iter().all(|blob| blob.starts_with(prefix)), "{what}: {report}");
                    assert_eq!(report.reclaimed.bytes, 0, "{what}: {report}");
                }
                // What says who the owner is was left out, too.
                Err(error) => assert!(matches!(error, Error::NotOwner { .. }), "{what}: {error}"),
            }
            let left = world.names("p").await;
            assert!(packs.iter().all(|pack| left.contains(pack)), "{what}");
            assert_whole(&world.open().await, &expected).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_of_a_session_whose_marker_was_not_listed_are_left_alone() {
    let world = World::new();
    let repository = world.create(3).await;
    let session = SessionId::generate(repository.environment()).unwrap();
    let marker = SessionMarker::new(session.clone(), world.clock.now(), "u", "h");
    let sealed = repository.contents().sealer().seal_blob(&serde_json::to_vec(&marker).unwrap()).unwrap();
    let marker = sealed.name("s", Some(session.as_str()));
    let orphan = format!("p0{}-{session}", "0".repeat(31));
    world.put(&id(&marker), sealed.bytes()).await;
    world.put(&id(&orphan), &[1; 1000]).await;
    world.clock.advance(hours(30));

    let store = Fault::new(world.store.clone());
    let ours = Repository::open(world.options_on(Arc::new(store.clone()))).await.unwrap();
    store.control().plan(Rule::on(Operation::List).prefix("s").action(Action::CutListing { after: 0 }));
    let report = full(&ours).await;
    assert_eq!(incomplete(&report), [&marker], "{report}");
    assert!(world.names("p").await.contains(&orphan), "{report}");
    assert!(full(&ours).await.is_clean());
    assert!(world.names("p").await.contains(&orphan), "its session may be alive");
}
