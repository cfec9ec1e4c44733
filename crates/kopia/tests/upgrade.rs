//! Upgrades of format versions 1 and 2 that are finished, rolled back, put off, and struck at any storage call: whoever
//! begins again comes to the end, and whoever goes back has what was there before.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod maintain_common;

use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Logged, Rule};
use lifeboat_blobs::{ErrorKind, Operation};
use lifeboat_kopia::format::{BACKUP_PREFIX, Format, Password, UpgradeLock};
use lifeboat_kopia::maintain::{Mode, Safety};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repo::{OpenOptions, Repository};
use lifeboat_kopia::upgrade::{self, Comparison, Extent, Step, UpgradeOptions};
use lifeboat_kopia::{Error, Result};
use maintain_common::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const OWNER: &str = "the-owner";

fn to(extent: Extent) -> UpgradeOptions {
    UpgradeOptions { extent, ..UpgradeOptions::default() }
}

fn as_owner(options: OpenOptions) -> OpenOptions {
    OpenOptions { upgrade_owner: Some(OWNER.to_owned()), ..options }
}

async fn begin(options: OpenOptions, extent: Extent) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    upgrade::begin(&as_owner(options), &to(extent), &mut |step| steps.push(step)).await?;
    Ok(steps)
}

async fn open_format(world: &World, owner: Option<&str>) -> Result<Format> {
    let options = world.options();
    Format::open(&world.store, &Password::new(PASSWORD), &options.environment, owner).await
}

async fn roll_back(world: &World) -> Result<()> {
    let mut format = open_format(world, Some(OWNER)).await?;
    format.roll_back_upgrade(&world.store, &world.options().environment).await
}

async fn version(world: &World) -> (i64, bool) {
    let format = open_format(world, None).await.unwrap();
    (format.repository().version, format.repository().epochs().is_some())
}

/// A repository of an old version with snapshots, deletions and, in version 1, a compacted index.
struct Scene {
    version: u8,
    world: World,
    expected: BTreeMap<ManifestId, Files>,
}

impl Scene {
    async fn new(version: u8) -> Scene {
        let world = World::new();
        let repository = world.create(version).await;
        let mut expected = BTreeMap::new();
        for number in 0..2 {
            let files = files(&[("a", 1, 30_000), ("sub/b", 2 + number, 150_000)]);
            expected.insert(take_snapshot(&repository, &files).await, files);
        }
        let doomed = take_snapshot(&repository, &files(&[("sub/c", 9, 150_000)])).await;
        delete_snapshot(&repository, &doomed).await;
        for seed in 0..6 {
            write_orphan(&repository, 100 + seed).await;
        }
        world.clock.advance(hours(26));
        run(&repository, Mode::Full, &Safety::FULL).await;
        write_orphan(&repository, 200).await;
        world.clock.advance(hours(1));
        Scene { version, world, expected }
    }

    fn before(&self) -> (i64, bool) {
        (self.version.into(), self.version > 1)
    }

    /// Everything is there, and whoever opens it can go on.
    async fn check(&self, world: &World, what: &str) {
        let repository = world.open().await;
        assert_whole(&repository, &self.expected).await;
        world.clock.advance(hours(1));
        let mut expected = self.expected.clone();
        let more = files(&[("new", 77, 50_000)]);
        expected.insert(take_snapshot(&repository, &more).await, more);
        world.clock.advance(hours(1));
        let report = run(&repository, Mode::Full, &Safety::NONE).await;
        assert!(report.is_clean(), "{what}: {report}");
        assert_whole(&world.open().await, &expected).await;
    }

    /// Upgrades a copy of the scene until `rule` strikes.
    async fn play(&self, rule: Option<Rule>) -> (World, Result<Vec<Step>>, Vec<Logged>) {
        let world = self.world.fork().await;
        let store = Fault::new(world.store.clone());
        let control = store.control();
        if let Some(rule) = rule {
            control.plan(rule);
        }
        let outcome = begin(world.options_on(Arc::new(store)), Extent::IfEqual).await;
        (world, outcome, control.log())
    }

    /// Whoever was struck begins again, or goes back and begins then.
    async fn recover(&self, world: World, what: &str) {
        let other = world.fork().await;
        let again = begin(world.options(), Extent::IfEqual).await;
        let again = again.unwrap_or_else(|error| panic!("{what}: beginning again: {error}"));
        assert!(matches!(again.last(), Some(Step::Committed | Step::UpToDate)), "{what}: {again:?}");
        assert_eq!(version(&world).await, (3, true), "{what}");
        self.check(&world, what).await;

        match roll_back(&other).await {
            Ok(()) => {
                assert_eq!(version(&other).await, self.before(), "{what}");
                assert!(self.version > 1 || other.names("x").await.is_empty(), "{what}");
                assert!(other.names(BACKUP_PREFIX).await.is_empty(), "{what}");
                self.check(&other, what).await;
                begin(other.options(), Extent::IfEqual).await.unwrap();
                assert_eq!(version(&other).await, (3, true), "{what}");
                let repository = other.open().await;
                assert_sound(&repository).await;
            }
            // It had not begun, or was over.
            Err(Error::Invalid(reason)) if reason.contains("no upgrade") => {}
            Err(error) => panic!("{what}: rolling back: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_old_versions_become_the_newest_one_and_nothing_is_lost() {
    for version in [1, 2] {
        let scene = Scene::new(version).await;
        let (world, outcome, _) = scene.play(None).await;
        let steps = outcome.unwrap();
        let migrates = version == 1;
        assert_eq!(steps.contains(&Step::Migrated), migrates);
        assert_eq!(steps.contains(&Step::Drained), migrates, "clients of version 2 keep working");
        let is_equal =
            |step: &Step| matches!(step, Step::Compared(Comparison { contents: 1.., differences: 0, .. }));
        assert_eq!(steps.iter().any(is_equal), migrates, "{steps:?}");
        assert_eq!(steps.last(), Some(&Step::Committed));
        assert!(world.names(BACKUP_PREFIX).await.is_empty());
        scene.check(&world, "upgraded").await;
        assert_eq!(begin(world.options(), Extent::IfEqual).await.unwrap(), [Step::UpToDate]);
        // Passwords can be changed where they could before.
        let mut format = open_format(&world, None).await.unwrap();
        let environment = world.options().environment;
        let changed = format.change_password(&world.store, &Password::new("another"), &environment).await;
        assert_eq!(changed.is_ok(), version == 2, "{changed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_is_struck_at_any_call_can_be_finished_and_rolled_back() {
    let long = std::env::var_os("LIFEBOAT_LONG").is_some();
    for version in [1, 2] {
        let scene = Scene::new(version).await;
        let (_, _, log) = scene.play(None).await;
        let mut struck = 0;
        for (number, call) in log.iter().enumerate() {
            let is_change = matches!(call.operation, Operation::Put | Operation::Delete);
            let mut actions = vec![Action::FailBefore(ErrorKind::Transient)];
            if is_change {
                actions = vec![Action::CrashAfter];
            }
            if is_change && long {
                actions.extend([
                    Action::CrashBefore,
                    Action::FailAfter(ErrorKind::Transient),
                    Action::Duplicate,
                ]);
            }
            // Reading changes nothing: what it leaves behind is what the change before it did.
            if !is_change && !long {
                continue;
            }
            for action in actions {
                let what = format!("{action:?} at call {number}, {} {:?}", call.operation, call.blob);
                let rule = Rule::any().skip(number as u64).action(action);
                let (world, _, _) = scene.play(Some(rule)).await;
                scene.recover(world, &what).await;
                struck += 1;
            }
        }
        println!("version {version}: {} calls, {struck} strikes", log.len());
        assert!(struck > 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_back_that_is_struck_at_any_call_can_be_repeated_and_the_upgrade_finished() {
    let scene = Scene::new(1).await;
    begin(scene.world.options(), Extent::UpToCommit).await.unwrap();
    let play = async |rule: Option<Rule>| {
        let world = scene.world.fork().await;
        let store = Fault::new(world.store.clone());
        let control = store.control();
        let environment = world.options().environment;
        let mut format =
            Format::open(&world.store, &Password::new(PASSWORD), &environment, Some(OWNER)).await.unwrap();
        if let Some(rule) = rule {
            control.plan(rule);
        }
        let outcome = format.roll_back_upgrade(&store, &environment).await;
        (world, outcome, control.log())
    };
    let (world, outcome, log) = play(None).await;
    outcome.unwrap();
    assert_eq!(version(&world).await, (1, false));
    for (number, call) in log.iter().enumerate() {
        if matches!(call.operation, Operation::Put | Operation::Delete) {
            let what = format!("crash after call {number}, {} {:?}", call.operation, call.blob);
            let rule = Rule::any().skip(number as u64).action(Action::CrashAfter);
            scene.recover(play(Some(rule)).await.0, &what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_but_the_owner_is_kept_out_and_nobody_goes_on_in_the_old_index() {
    let scene = Scene::new(1).await;
    let world = &scene.world;
    let early = world.open().await;
    begin(world.options(), Extent::LockOnly).await.unwrap();
    assert!(matches!(Repository::open(world.options()).await, Err(Error::UpgradeInProgress { .. })));
    let mut other = world.options();
    other.upgrade_owner = Some("somebody-else".to_owned());
    let refused = upgrade::begin(&other, &to(Extent::IfEqual), &mut |_| {}).await;
    assert!(matches!(refused, Err(Error::UpgradeInProgress { owner, .. }) if owner == OWNER));
    world.clock.advance(jiff::SignedDuration::from_mins(16));
    let locked_out = try_write_tree(&early, &files(&[("x", 300, 1000)])).await;
    assert!(matches!(locked_out, Err(Error::UpgradeInProgress { .. })), "{locked_out:?}");

    begin(world.options(), Extent::IfEqual).await.unwrap();
    let too_late = try_write_tree(&early, &files(&[("x", 300, 1000)])).await;
    assert!(matches!(too_late, Err(Error::FormatChanged)), "{too_late:?}");
    scene.check(world, "upgraded").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_rolled_back_migration_left_is_not_believed_by_the_next_one() {
    let scene = Scene::new(1).await;
    let world = &scene.world;
    begin(world.options(), Extent::UpToCommit).await.unwrap();
    let mut left = Vec::new();
    for name in world.names("x").await {
        left.push((id(&name), world.get(&id(&name)).await));
    }
    roll_back(world).await.unwrap();
    // Kopia leaves the new index behind.
    for (blob, bytes) in &left {
        world.put(blob, bytes).await;
    }
    assert!(!left.is_empty());
    let repository = world.open().await;
    let mut expected = scene.expected.clone();
    let (doomed, _) = expected.pop_first().unwrap();
    delete_snapshot(&repository, &doomed).await;
    for _ in 0..3 {
        world.clock.advance(hours(48));
        run(&repository, Mode::Full, &Safety::FULL).await;
    }
    begin(world.options(), Extent::IfEqual).await.unwrap();
    assert_whole(&world.open().await, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_was_announced_begins_when_it_is_time() {
    let scene = Scene::new(1).await;
    let world = &scene.world;
    let environment = world.options().environment;
    let mut format = open_format(world, None).await.unwrap();
    let hour = std::time::Duration::from_secs(3600);
    let lock = UpgradeLock {
        owner_id: OWNER.to_owned(),
        creation_time: lifeboat_kopia::gojson::GoTime(environment.clock.now()),
        advance_notice: (24 * hour).into(),
        io_drain_timeout: (hour / 4).into(),
        status_poll_interval: (hour / 60).into(),
        message: "tomorrow".to_owned(),
        max_permitted_clock_drift: (hour / 12).into(),
        ..UpgradeLock::default()
    };
    for wrong in [
        UpgradeLock { owner_id: String::new(), ..lock.clone() },
        UpgradeLock { advance_notice: (hour / 2).into(), ..lock.clone() },
        UpgradeLock { status_poll_interval: hour.into(), ..lock.clone() },
    ] {
        let refused = format.place_upgrade_lock(&world.store, &environment, wrong).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    }
    format.place_upgrade_lock(&world.store, &environment, lock.clone()).await.unwrap();
    let repository = world.open().await;
    assert_whole(&repository, &scene.expected).await;
    // Put off, never brought forward.
    let later = UpgradeLock { advance_notice: (25 * hour).into(), ..lock.clone() };
    format.place_upgrade_lock(&world.store, &environment, later).await.unwrap();
    assert!(format.place_upgrade_lock(&world.store, &environment, lock).await.is_err());

    world.clock.advance(hours(25));
    assert!(matches!(Repository::open(world.options()).await, Err(Error::UpgradeInProgress { .. })));
    roll_back(world).await.unwrap();
    assert_eq!(version(world).await, (1, false));
    scene.check(world, "rolled back").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_migrates_without_a_lock_and_is_struck_at_any_change() {
    let scene = Scene::new(1).await;
    let play = async |rule: Option<Rule>| {
        let world = scene.world.fork().await;
        let store = Fault::new(world.store.clone());
        let control = store.control();
        let repository = Repository::open(world.options_on(Arc::new(store))).await.unwrap();
        let opened = control.calls();
        if let Some(rule) = rule {
            control.plan(rule);
        }
        let outcome = upgrade::migrate(&repository, |_, _| {}).await;
        (world, outcome, control.log().split_off(opened))
    };
    let (world, outcome, log) = play(None).await;
    outcome.unwrap();
    assert_eq!(version(&world).await, (2, true));
    scene.check(&world, "migrated").await;
    for (number, call) in log.iter().enumerate() {
        if matches!(call.operation, Operation::Put | Operation::Delete) {
            let what = format!("crash after call {number}, {} {:?}", call.operation, call.blob);
            let (world, _, _) = play(Some(Rule::any().skip(number as u64).action(Action::CrashAfter))).await;
            upgrade::migrate(&world.open().await, |_, _| {}).await.unwrap();
            assert_eq!(version(&world).await, (2, true), "{what}");
            scene.check(&world, &what).await;
        }
    }
}
