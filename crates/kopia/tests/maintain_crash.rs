//! Maintenance that dies, or fails, at any single storage call, or works on a store that answers late, twice or with what was:
//! reopening works and every snapshot is whole. `fault_suite.rs` has the table of what is enumerated where.
#![allow(missing_docs, clippy::unwrap_used)]

mod maintain_common;

use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Logged, Rule};
use lifeboat_blobs::{ErrorKind, Operation};
use lifeboat_kopia::epoch::{EpochState, names};
use lifeboat_kopia::maintain::{self, Mode, Options, Outcome, Report, Safety};
use lifeboat_kopia::maintenance::Task;
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repo::Repository;
use maintain_common::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A repository in which one full maintenance has everything to do.
struct Scene {
    world: World,
    expected: BTreeMap<ManifestId, Files>,
}

impl Scene {
    async fn new(version: u8) -> Scene {
        let world = World::new();
        let mut repository = world.create(version).await;
        if version > 1 {
            repository = quicken_epochs(&world, repository, 1).await;
        }
        let mut expected = BTreeMap::new();
        for number in 0..2 {
            let files = files(&[("a", 1, 30_000), ("sub/b", 2 + number, 150_000)]);
            expected.insert(take_snapshot(&repository, &files).await, files);
        }
        let doomed = take_snapshot(&repository, &files(&[("a", 1, 30_000), ("sub/c", 9, 150_000)])).await;
        delete_snapshot(&repository, &doomed).await;
        for round in 0..5u64 {
            for number in 0..10u64 {
                write_orphan(&repository, round * 100 + number).await;
                world.clock.advance(jiff::SignedDuration::from_mins(5));
            }
            run(&repository, Mode::Quick, &Safety::FULL).await;
        }
        world.clock.advance(hours(6));
        write_orphan(&repository, 9999).await;
        if version > 1 {
            // An epoch that is settled, and nobody who writes has seen it so: it is compacted in the run.
            let epoch = EpochState::from_listing(world.list("x").await).write_epoch;
            world.put(&id(&names::marker(epoch + 1)), names::MARKER_CONTENT).await;
            repository.refresh().await.unwrap();
            write_orphan(&repository, 9998).await;
            world.put(&id(&names::marker(epoch + 2)), names::MARKER_CONTENT).await;
        }
        world.clock.advance(hours(1));
        Scene { world, expected }
    }

    /// Maintains a copy of the scene until `rule` strikes; returns the copy and what was called.
    async fn play(&self, rule: Option<Rule>) -> (World, maintain::Result<Report>, Vec<Logged>) {
        let world = self.world.fork().await;
        let store = Fault::new(world.store.clone());
        let control = store.control();
        let repository = Repository::open(world.options_on(Arc::new(store))).await.unwrap();
        let opened = control.calls();
        if let Some(rule) = rule {
            control.plan(rule);
        }
        let outcome = maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await;
        let log = control.log().split_off(opened);
        (world, outcome, log)
    }

    /// Whatever happened, everything is whole, and another run does what is left.
    async fn check(&self, world: &World, what: &str) {
        let reopened = world.open().await;
        assert_whole(&reopened, &self.expected).await;
        world.clock.advance(hours(1));
        let report = run(&reopened, Mode::Full, &Safety::NONE).await;
        assert!(report.is_clean(), "{what}: {report}");
        let bytes = world.data_bytes().await;
        assert!(bytes < 400_000, "{what}: {bytes} bytes are left: {report}");
        reopened.refresh().await.unwrap();
        assert_whole(&reopened, &self.expected).await;
    }
}

fn is_change(call: &Logged) -> bool {
    matches!(call.operation, Operation::Put | Operation::Delete)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_change_leaves_every_snapshot_whole() {
    for version in [1, 3] {
        let scene = Scene::new(version).await;
        let (world, outcome, log) = scene.play(None).await;
        let report = outcome.unwrap();
        assert!(report.is_clean(), "{report}");
        if version == 3 {
            let busy = [
                Task::FullRewriteContents,
                Task::FullDropDeletedContent,
                Task::FullDeleteBlobs,
                Task::GenerateEpochRangeIndex,
                Task::CleanupEpochMarkers,
                Task::DeleteSupersededEpochIndexes,
            ];
            for task in busy {
                let done = report.task(task).unwrap();
                assert!(done.outcome == Outcome::Done && !done.summary.starts_with("no "), "{report}");
            }
            let is_compaction =
                |call: &Logged| call.operation == Operation::Put && call.blob.starts_with("xs");
            assert!(log.iter().any(is_compaction), "{report}");
        }
        scene.check(&world, "nothing").await;
        // Between two changes the store stays as it is: a crash at a read is a crash after the change before it.
        let changes = log.iter().filter(|call| is_change(call)).count();
        assert!(changes > 50, "{changes}");
        let kills = (0..changes).flat_map(|change| {
            [Action::CrashBefore, Action::CrashAfter].map(|action| {
                let what = format!("version {version}, {action:?} at change {change} of {changes}");
                (what, (change, crash_at(&log, change, action)))
            })
        });
        let scene = Arc::new(scene);
        let killed = play_all(kills, move |what, (change, rule)| {
            let scene = scene.clone();
            async move {
                let (world, outcome, _) = scene.play(Some(rule)).await;
                // The order of deletions varies from run to run, so that the last ones may be passed by.
                assert!(outcome.is_err() || change + 20 > changes || outcome.unwrap().is_clean(), "{what}");
                scene.check(&world, &what).await;
            }
        })
        .await;
        println!("version {version}: {changes} changes, {killed} kills");
    }
}

/// A rule that strikes at the `change`-th call of the log that changes something.
fn crash_at(log: &[Logged], change: usize, action: Action) -> Rule {
    let call = log.iter().filter(|call| is_change(call)).nth(change).unwrap();
    let same = |other: &&Logged| other.operation == call.operation;
    let before = log.iter().take_while(|other| !std::ptr::eq(*other, call)).filter(same).count();
    Rule::on(call.operation).skip(before as u64).action(action)
}

/// Owner, schedule and clocks are looked at right before each phase of deletion, in the store.
#[tokio::test(flavor = "multi_thread")]
async fn every_phase_of_deletion_begins_with_the_fence() {
    for version in [1, 3] {
        let (_, outcome, log) = Scene::new(version).await.play(None).await;
        let report = outcome.unwrap();
        assert!(report.is_clean(), "{report}");
        // The marker of its own session goes without.
        let deletes = |call: &Logged| {
            let own = |other: &Logged| other.operation == Operation::Put && other.blob == call.blob;
            call.operation == Operation::Delete && !(call.blob.starts_with('s') && log.iter().any(own))
        };
        let mut kinds = BTreeSet::new();
        for (number, call) in log.iter().enumerate() {
            if !deletes(call) || deletes(&log[number - 1]) {
                continue;
            }
            let fence = log[number - 3..number].iter().map(|call| (call.operation, call.blob.as_str()));
            let schedule = [Operation::Get, Operation::Put, Operation::Head];
            assert!(fence.eq(schedule.map(|operation| (operation, "kopia.maintenance"))), "{call:?}");
            // Parameters are a manifest, which is looked for in the index as it is now.
            let before = log[..number - 3].iter().rev();
            let mut since = before.take_while(|call| !deletes(call) && call.blob != "kopia.maintenance");
            let index = if version == 1 { "n" } else { "x" };
            assert!(since.any(|call| call.operation == Operation::List && call.blob == index), "{call:?}");
            kinds.insert(call.blob.chars().take(if version == 1 { 1 } else { 2 }).collect::<String>());
        }
        println!("version {version}: phases of deletion began with {kinds:?}");
        assert!(kinds.len() >= 2, "version {version}: {kinds:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fails_or_answers_late_twice_or_stale_harms_nothing() {
    let scene = Arc::new(Scene::new(3).await);
    let (_, _, log) = scene.play(None).await;
    let calls = log.len();
    let strikes = log.into_iter().enumerate().flat_map(|(number, call)| {
        let mut ways = actions(call.operation);
        ways.retain(|way| !matches!(way, Action::CrashBefore | Action::CrashAfter));
        if call.operation == Operation::Get {
            ways.push(Action::FailBefore(ErrorKind::NotFound));
        }
        ways.into_iter().map(move |way| {
            (format!("{way:?} at call {number}: {call:?}"), Rule::any().skip(number as u64).action(way))
        })
    });
    let struck = play_all(strikes, move |what, rule| {
        let scene = scene.clone();
        async move {
            let (world, outcome, _) = scene.play(Some(rule)).await;
            if let Err(error) = outcome {
                assert!(!error.to_string().is_empty());
            }
            let reopened = world.open().await;
            for (id, files) in &scene.expected {
                assert!(restore(&reopened, id).await == *files, "{what}");
            }
            assert_sound(&reopened).await;
        }
    })
    .await;
    println!("{calls} calls, {struck} strikes");
}
