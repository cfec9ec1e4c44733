//! A run that finds snapshots and index as the last one left them, with nothing to do, looks at nothing again; whatever
//! has changed, everything is looked at.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod maintain_common;

use lifeboat_index::{ContentId, Deleted, Prefix};
use lifeboat_kopia::content::ContentRange;
use lifeboat_kopia::epoch::names;
use lifeboat_kopia::maintain::{Mode, Obstacle, Outcome, Report, Safety};
use lifeboat_kopia::maintenance::Task;
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repo::{OpenOptions, Repository};
use maintain_common::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tempfile::TempDir;

/// A repository in which nothing is left to do, and what maintenance remembers of it.
struct Scene {
    world: World,
    cache: TempDir,
    expected: BTreeMap<ManifestId, Files>,
}

impl Scene {
    async fn new(version: u8) -> Scene {
        let (world, cache) = (World::new(), tempfile::tempdir().unwrap());
        let repository = world.create(version).await;
        let mut expected = BTreeMap::new();
        for number in 0..4u64 {
            let files = files(&[("a", 1, 30_000), ("sub/b", 2 + number, 150_000), ("sub/c", 9, 900_000)]);
            expected.insert(take_snapshot(&repository, &files).await, files);
            world.clock.advance(hours(1));
        }
        let doomed = expected.keys().next().unwrap().clone();
        delete_snapshot(&repository, &doomed).await;
        expected.remove(&doomed);
        let scene = Scene { world, cache, expected };
        let first = scene.maintain().await;
        assert!(!is_brief(&first) && first.reclaimed.bytes > 100_000, "{first}");
        scene.settle().await;
        scene
    }

    /// Maintains as a new process would, with what is kept on the machine.
    async fn maintain(&self) -> Report {
        self.world.clock.advance(hours(1));
        let cache_folder = Some(self.cache.path().to_owned());
        let options = OpenOptions { cache_folder, ..self.world.options() };
        let repository = Repository::open(options).await.unwrap();
        run(&repository, Mode::Full, &Safety::NONE).await
    }

    /// Maintains until nothing is left to do; the run after that finds it so.
    async fn settle(&self) {
        for _ in 0..4 {
            let report = self.maintain().await;
            assert!(report.is_clean(), "{report}");
            if is_brief(&report) {
                return;
            }
        }
        panic!("there is always something left to do");
    }

    /// Everything is looked at, to good effect, and the next runs find nothing to do again.
    async fn assert_full_look(&self) -> Report {
        let report = self.maintain().await;
        assert!(report.is_clean() && !is_brief(&report), "{report}");
        self.settle().await;
        assert_whole(&self.world.open().await, &self.expected).await;
        report
    }

    fn memory_file(&self) -> PathBuf {
        std::fs::read_dir(self.cache.path()).unwrap().next().unwrap().unwrap().path().join("settled")
    }

    async fn contents(&self, prefix: Prefix) -> Vec<ContentId> {
        let contents = self.world.open().await.contents().clone();
        contents.iterate(ContentRange::Prefix(prefix), Deleted::Skip).map(|entry| entry.unwrap().id).collect()
    }
}

fn is_brief(report: &Report) -> bool {
    report.task(Task::SnapshotGc).unwrap().summary.contains("as the last run left them")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_looked_at_again_where_nothing_has_changed() {
    for version in [1, 3] {
        let scene = Scene::new(version).await;
        let before = scene.world.names("").await;
        for _ in 0..3 {
            let report = scene.maintain().await;
            assert!(report.is_clean() && is_brief(&report), "{report}");
            assert_eq!(report.task(Task::FullRewriteContents).unwrap().outcome, Outcome::Skipped, "{report}");
        }
        let packs = |names: Vec<String>| names.into_iter().filter(|name| name.starts_with(['p', 'q']));
        assert!(packs(scene.world.names("").await).eq(packs(before)));
        assert_whole(&scene.world.open().await, &scene.expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_is_new_or_gone_leads_to_a_full_look() {
    for version in [1, 3] {
        let mut scene = Scene::new(version).await;
        let new = files(&[("a", 1, 30_000), ("new", 77, 40_000)]);
        let id = take_snapshot(&scene.world.open().await, &new).await;
        scene.expected.insert(id.clone(), new);
        scene.assert_full_look().await;
        delete_snapshot(&scene.world.open().await, &id).await;
        scene.expected.remove(&id);
        let before = scene.contents(Prefix::NONE).await.len();
        scene.assert_full_look().await;
        assert!(scene.contents(Prefix::NONE).await.len() < before, "what only it needed is gone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_is_new_or_deleted_leads_to_a_full_look() {
    for version in [1, 3] {
        let scene = Scene::new(version).await;
        let before = scene.contents(Prefix::NONE).await;
        write_orphan(&scene.world.open().await, 555).await;
        scene.assert_full_look().await;
        assert_eq!(scene.contents(Prefix::NONE).await, before, "what nobody needs is gone");

        // Somebody is wrong about what is needed: it is brought back.
        scene.world.clock.advance(hours(1));
        let other = scene.world.open().await;
        let deleted = before[0];
        other.contents().delete(&deleted).unwrap();
        other.flush().await.unwrap();
        assert!(!scene.contents(Prefix::NONE).await.contains(&deleted));
        let report = scene.assert_full_look().await;
        assert!(report.task(Task::SnapshotGc).unwrap().summary.contains("brought back: 1 "), "{report}");
        assert_eq!(scene.contents(Prefix::NONE).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_that_is_lost_or_that_nobody_knows_is_noticed() {
    let scene = Scene::new(3).await;
    let orphan = id("p0123456789abcdef0123456789abcdef-s0123456789abcdef0123456789");
    scene.world.put(&orphan, b"a pack that its writer did not live to publish").await;
    let report = scene.maintain().await;
    assert!(report.is_clean() && is_brief(&report), "{report}");
    assert!(!scene.world.names("p").await.contains(&orphan.to_string()), "{report}");

    let lost = scene.world.names("p").await.remove(0);
    let bytes = scene.world.get(&id(&lost)).await;
    scene.world.delete(&id(&lost)).await;
    let report = scene.maintain().await;
    let names_it = |obstacle: &Obstacle| matches!(obstacle, Obstacle::MissingPack { pack } if *pack == lost);
    assert!(report.obstacles.iter().any(names_it), "{report}");
    assert_eq!(report.task(Task::FullDeleteBlobs).unwrap().outcome, Outcome::Obstructed, "{report}");
    scene.world.put(&id(&lost), &bytes).await;
    assert!(scene.maintain().await.is_clean());
    assert_whole(&scene.world.open().await, &scene.expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_remembered_is_not_believed_if_it_is_damaged_or_the_watermark_is_gone() {
    let scene = Scene::new(3).await;
    let good = std::fs::read(scene.memory_file()).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for bad in [Vec::new(), vec![0; good.len()], flipped, good[1..].to_vec()] {
        std::fs::write(scene.memory_file(), bad).unwrap();
        scene.assert_full_look().await;
    }
    std::fs::remove_file(scene.memory_file()).unwrap();
    scene.assert_full_look().await;
    // Deletions that were forgotten come back with an earlier watermark.
    for watermark in scene.world.names(names::WATERMARK).await {
        scene.world.delete(&id(&watermark)).await;
    }
    let report = scene.maintain().await;
    assert!(report.is_clean() && !is_brief(&report), "{report}");
    assert_whole(&scene.world.open().await, &scene.expected).await;
}
