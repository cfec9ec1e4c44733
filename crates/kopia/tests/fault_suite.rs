//! Backup and repair that die or fail at any single storage call, or work on a store that answers late, twice or with
//! what was: reopening works, no completed snapshot is damaged, and doing it again succeeds.
//!
//! What is enumerated: every storage call of a job, by its number, each in every one of these ways (`maintain_common::actions`).
//!
//! | way | changes | listings | reads |
//! | --- | --- | --- | --- |
//! | killed before the call | `CrashBefore` | `CrashBefore` | `CrashBefore` |
//! | killed after it, its answer lost | `CrashAfter` | `CrashAfter` | `CrashAfter` |
//! | fails | `FailBefore` for good and for now, `FailAfter` | `FailBefore`, `BreakListing` | `FailBefore` |
//! | late | `Delay` | `Delay` | `Delay` |
//! | twice | `Duplicate` | a listing that is taken twice is the same | `Duplicate` |
//! | stale | changes have no answer that could be | `Stale`, `CutListing` | `Stale` |
//!
//! | job | where | formats |
//! | --- | --- | --- |
//! | backup, repair | here | 3; with `LIFEBOAT_LONG=1` all |
//! | maintenance, killed at changes | `maintain_crash.rs`; all kills at reads come to one of these | 1 and 3 |
//! | maintenance, all other ways | `maintain_crash.rs` | 3 |
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod maintain_common;

use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Logged, Rule};
use lifeboat_kopia::Result;
use lifeboat_kopia::maintain::{Mode, Safety};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repair::{self, RepairOptions};
use lifeboat_kopia::repo::Repository;
use maintain_common::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Backup,
    Repair,
}

/// A repository in which a job has something to do.
struct Scene {
    job: Job,
    world: World,
    /// Snapshots that are whole whatever happens.
    whole: BTreeMap<ManifestId, Files>,
    /// A snapshot that is damaged in the scene of a repair.
    damaged: Option<(ManifestId, Files)>,
}

/// What is backed up by a backup, and by the one after a repair.
fn current_files() -> Files {
    files(&[("a", 1, 30_000), ("sub/b", 3, 200_000), ("sub/c", 4, 20)])
}

impl Scene {
    async fn new(job: Job, version: u8) -> Scene {
        let world = World::new();
        let repository = world.create(version).await;
        let first = files(&[("a", 1, 30_000), ("sub/b", 2, 150_000)]);
        let mut whole = BTreeMap::from([(take_snapshot(&repository, &first).await, first)]);
        world.clock.advance(hours(1));
        let damaged = match job {
            Job::Backup => None,
            Job::Repair => {
                let before = world.names("p").await;
                let current = current_files();
                let id = take_snapshot(&repository, &current).await;
                let third = files(&[("d", 5, 10_000)]);
                let indexes = world.names("").await;
                whole.insert(take_snapshot(&repository, &third).await, third);
                run(&repository, Mode::Quick, &Safety::FULL).await;
                // The data of the second snapshot is gone, nobody can read the index of the third, and more.
                for pack in world.names("p").await {
                    if !before.contains(&pack) && indexes.contains(&pack) {
                        world.delete(&maintain_common::id(&pack)).await;
                    }
                }
                let prefix = if version == 1 { "n" } else { "xn" };
                for index in world.names(prefix).await {
                    if !indexes.contains(&index) {
                        world
                            .put(&maintain_common::id(&index), b"garbage that is long enough for a seal")
                            .await;
                    }
                }
                world.put(&maintain_common::id("kopia.maintenance"), b"garbage").await;
                Some((id, current))
            }
        };
        world.clock.advance(hours(1));
        Scene { job, world, whole, damaged }
    }

    async fn work(&self, repository: &Repository) -> Result<Option<ManifestId>> {
        match self.job {
            Job::Backup => {
                let root = try_write_tree(repository, &current_files()).await?;
                let id = try_save_snapshot(repository, root).await?;
                repository.flush().await?;
                Ok(Some(id))
            }
            Job::Repair => {
                repair::run(repository, &RepairOptions::default(), &mut |_| {}).await?;
                repository.flush().await?;
                Ok(None)
            }
        }
    }

    /// Does the job on a copy of the scene until `rule` strikes.
    async fn play(&self, rule: Option<Rule>) -> (World, Result<Option<ManifestId>>, Vec<Logged>) {
        let world = self.world.fork().await;
        let store = Fault::new(world.store.clone());
        let control = store.control();
        if let Some(rule) = rule {
            control.plan(rule);
        }
        let outcome = match Repository::open(world.options_on(Arc::new(store))).await {
            Ok(repository) => self.work(&repository).await,
            Err(error) => Err(error),
        };
        (world, outcome, control.log())
    }

    /// Whatever happened: what was whole is, what was reported done is done, and doing it again succeeds.
    async fn check(&self, world: &World, outcome: &Result<Option<ManifestId>>, what: &str) {
        let mut whole = self.whole.clone();
        if let Ok(Some(id)) = outcome {
            whole.insert(id.clone(), current_files());
        }
        let repository = world.open().await;
        // A repair that was struck may have left the index as it was.
        if self.job == Job::Backup {
            self.check_listed(&repository, &whole, what).await;
        }
        world.clock.advance(hours(1));
        let again = self.work(&repository).await;
        let again = again.unwrap_or_else(|error| panic!("{what}: doing it again: {error}"));
        whole.extend(again.map(|id| (id, current_files())));
        self.check_listed(&repository, &whole, what).await;
        if let Some((id, files)) = &self.damaged {
            // The next backup brings back what was lost.
            let healed = take_snapshot(&repository, files).await;
            whole.extend([id.clone(), healed].map(|id| (id, files.clone())));
        }
        world.clock.advance(hours(1));
        let report = run(&repository, Mode::Full, &Safety::NONE).await;
        assert!(report.is_clean(), "{what}: {report}");
        repository.refresh().await.unwrap();
        self.check_listed(&repository, &whole, what).await;
        assert_sound(&repository).await;
    }

    /// Every one of `whole` is, and so is every other snapshot that is listed, but for the damaged one.
    async fn check_listed(&self, repository: &Repository, whole: &BTreeMap<ManifestId, Files>, what: &str) {
        let listed = repository.snapshots().await.unwrap();
        assert!(listed.damaged.is_empty(), "{what}: {:?}", listed.damaged);
        let listed: Vec<_> = listed.snapshots.into_iter().map(|snapshot| snapshot.id).collect();
        for id in whole.keys() {
            assert!(listed.contains(id), "{what}: snapshot {id} is gone");
        }
        let damaged = self.damaged.as_ref().map(|(id, _)| id);
        for id in listed.iter().filter(|id| whole.contains_key(id) || Some(*id) != damaged) {
            let expected = whole.get(id).cloned().unwrap_or_else(current_files);
            assert!(restore(repository, id).await == expected, "{what}: snapshot {id} differs");
        }
    }

    async fn strike_every_call(self) {
        let (world, outcome, log) = self.play(None).await;
        self.check(&world, &outcome, "nothing").await;
        outcome.unwrap();
        let (job, calls, scene) = (self.job, log.len(), Arc::new(self));
        let strikes = log.into_iter().enumerate().flat_map(|(number, call)| {
            actions(call.operation).into_iter().map(move |action| {
                let Logged { operation, blob, .. } = &call;
                let what = format!("{job:?}: {action:?} at call {number}, {operation} {blob:?}");
                (what, Rule::any().skip(number as u64).action(action))
            })
        });
        let struck = play_all(strikes, move |what, rule| {
            let scene = scene.clone();
            async move {
                let (world, outcome, _) = scene.play(Some(rule)).await;
                scene.check(&world, &outcome, &what).await;
            }
        })
        .await;
        println!("{job:?}: {calls} calls, {struck} strikes");
        assert!(calls > 20 && struck >= 7 * calls);
    }
}

async fn strike(job: Job) {
    for version in if long() { vec![1, 2, 3] } else { vec![3] } {
        Scene::new(job, version).await.strike_every_call().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_struck_at_any_call_damages_nothing_and_can_be_done_again() {
    strike(Job::Backup).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_that_is_struck_at_any_call_damages_nothing_and_can_be_done_again() {
    strike(Job::Repair).await;
}
