//! Storage that fails, hangs and crawls, disks that fill up, and people who change their mind.

use crate::fixture::{Fixture, failures, noise};
use lifeboat_blobs::wrap::fault::{Action, Rule};
use lifeboat_blobs::{BlobId, BlobStore, ErrorKind, Operation, PutOptions};
use lifeboat_repository::Repository;
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_testkit::tree::{Compare, Random, TreeSpec, assert_same};
use lifeboat_uploader::{Cancel, Error, Existing, Progress, RestoreOptions, restore};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How soon a cancel has to take effect: two seconds are promised, and whatever runs beside the test may take as much time
/// again several times over.
const CANCEL_TAKES_EFFECT: Duration = Duration::from_secs(2 + 18);

fn medium(fixture: &Fixture, seed: u64) -> (PathBuf, lifeboat_kopia::snapshot::DirEntry) {
    let source = fixture.path("source");
    TreeSpec::medium(seed).grow(&source).unwrap();
    let root = fixture.back_up(&source);
    (source, root)
}

#[test]
fn a_store_that_fails_every_twentieth_call_is_not_noticed() {
    let fixture = Fixture::new();
    let (source, root) = medium(&fixture, 1);
    let mut random = Random::new(7);
    let mut call = 0;
    for _ in 0..200 {
        call += 1 + random.below(39);
        let rule = Rule::on(Operation::Get).skip(call);
        fixture.faults.plan(rule.action(Action::FailBefore(ErrorKind::Transient)));
    }
    fixture.restore(&root, &fixture.path("target")).unwrap();
    assert_same(&source, &fixture.path("target"), Compare::exact()).unwrap();
}

#[test]
fn a_slow_store_only_takes_longer() {
    let fixture = Fixture::new();
    let (source, root) = medium(&fixture, 2);
    let slow = Rule::on(Operation::Get).times(u64::MAX);
    fixture.faults.plan(slow.action(Action::Delay(Duration::from_millis(20))));
    let calls = fixture.faults.calls();
    fixture.restore(&root, &fixture.path("target")).unwrap();
    assert_same(&source, &fixture.path("target"), Compare::exact()).unwrap();
    let calls = fixture.faults.calls() - calls;
    assert!(calls < 100, "{calls} calls for some hundred files");
}

#[test]
fn a_store_that_is_down_ends_the_restore_and_says_so() {
    let fixture = Fixture::new();
    let (source, root) = medium(&fixture, 3);
    let down = Rule::on(Operation::Get).skip(8).times(u64::MAX);
    fixture.faults.plan(down.action(Action::FailBefore(ErrorKind::Transient)));
    let outcome = fixture.restore(&root, &fixture.path("target"));
    assert!(matches!(outcome, Err(Error::Repository(_) | Error::Model(_))), "{outcome:?}");
    fixture.faults.clear();
    resume(&fixture, &source, &root);
}

/// Goes on with what an interrupted restore left, and is exact then.
fn resume(fixture: &Fixture, source: &Path, root: &lifeboat_kopia::snapshot::DirEntry) {
    let options = RestoreOptions {
        existing_files: Existing::Update,
        existing_links: Existing::Update,
        ..RestoreOptions::new(fixture.path("target"))
    };
    fixture.restore_with(root, &options).unwrap();
    assert_same(source, &fixture.path("target"), Compare::exact()).unwrap();
}

#[test]
fn a_cancel_ends_soon_even_if_the_store_hangs_and_the_rest_can_be_resumed() {
    let fixture = Fixture::new();
    let (source, root) = medium(&fixture, 4);
    for (prefix, skip) in [("p", 3), ("p", 5), ("q", 0)] {
        // Who has read directories before does not ask for them again.
        let repository = fixture.opened_afresh();
        let hang = Rule::on(Operation::Get).prefix(prefix).skip(skip).times(u64::MAX);
        fixture.faults.plan(hang.action(Action::Delay(Duration::from_secs(3600))));
        let cancel = Cancel::default();
        let progress = Progress::default();
        let options = RestoreOptions::new(fixture.path("target"));
        let ended = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                cancel.cancel();
                let cancelled = Instant::now();
                while !ended.load(Ordering::Relaxed) {
                    assert!(cancelled.elapsed() < CANCEL_TAKES_EFFECT, "the cancel was not heard");
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let outcome = restore(&repository, &root, &options, &progress, &cancel);
            ended.store(true, Ordering::Relaxed);
            outcome
        });
        assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
        fixture.faults.clear();
    }
    resume(&fixture, &source, &root);
}

#[test]
fn a_cancel_is_heard_while_a_restore_waits_for_memory() {
    let fixture = Fixture::new();
    let (_, root) = medium(&fixture, 4);
    let budget = &fixture.budget;
    let _all = budget.try_reserve(budget.total() - budget.used()).unwrap();
    let (progress, cancel) = (Progress::default(), Cancel::default());
    let (ended_out, ended) = std::sync::mpsc::channel();
    let cancelled = cancel.clone();
    let repository = KopiaRepository::new(fixture.engine.clone());
    let options = RestoreOptions::new(fixture.path("target"));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            cancelled.cancel();
            assert!(ended.recv_timeout(CANCEL_TAKES_EFFECT).is_ok(), "the cancel was not heard");
        });
        let outcome = restore(&repository, &root, &options, &progress, &cancel);
        assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
        ended_out.send(()).unwrap();
    });
}

#[test]
fn what_was_complete_is_not_read_again() {
    let fixture = Fixture::new();
    let entries: Vec<_> =
        (10..30u64).map(|number| fixture.file(format!("f{number}"), &noise(number, 5 << 20))).collect();
    let root = fixture.directory("root", &entries);
    fixture.repository.flush().unwrap();
    let options = RestoreOptions { threads: 1, ..RestoreOptions::new(fixture.path("target")) };
    let (progress, cancel) = (Progress::default(), Cancel::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while progress.totals().files < 8 && !cancel.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            cancel.cancel();
        });
        let repository = KopiaRepository::new(fixture.engine.clone());
        let _ = restore(&repository, &root, &options, &progress, &cancel);
        cancel.cancel();
    });
    let options = RestoreOptions { existing_files: Existing::Update, ..options };
    let report = fixture.restore_with(&root, &options).unwrap();
    assert!(report.skipped >= 8, "{report:?}");
    assert!(report.read_bytes + report.kept_bytes <= 12 * (5 << 20) + (1 << 20), "{report:?}");
    for number in 10..30u64 {
        let found = std::fs::read(fixture.path("target").join(format!("f{number}"))).unwrap();
        assert!(found == noise(number, 5 << 20), "f{number}");
    }
}

#[test]
fn damage_costs_the_files_that_it_hits() {
    let fixture = Fixture::new();
    let entries: Vec<_> = (10..90u64)
        .map(|number| fixture.file(format!("f{number}"), &noise(number, 10_000 + number as usize)))
        .collect();
    let root = fixture.directory("root", &entries);
    fixture.repository.flush().unwrap();
    let hit: Vec<u64> = vec![17, 40, 88];
    for number in &hit {
        let object: lifeboat_kopia::object::ObjectId = entries[*number as usize - 10].object.parse().unwrap();
        let entry = fixture.engine.contents().resolve(&object.content()).unwrap().entry;
        let pack = BlobId::new(entry.pack.as_str()).unwrap();
        let mut bytes = fixture.runtime.block_on(fixture.store.get(&pack)).unwrap().to_vec();
        bytes[entry.pack_offset as usize + 100] ^= 1;
        fixture.runtime.block_on(fixture.store.put(&pack, bytes.into(), &PutOptions::default())).unwrap();
    }
    let (report, mut paths) = failures(fixture.restore(&root, &fixture.path("target")));
    paths.sort();
    assert_eq!(paths, hit.iter().map(|number| format!("f{number}")).collect::<Vec<_>>());
    assert_eq!((report.files, report.failed), (77, 3));
    for number in (10..90).filter(|number| !hit.contains(number)) {
        let found = std::fs::read(fixture.path("target").join(format!("f{number}"))).unwrap();
        assert!(found == noise(number, 10_000 + number as usize));
    }
    assert_eq!(std::fs::read_dir(fixture.path("target")).unwrap().count(), 77);
}

/// A small file system of its own, gone when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf, size: &str) -> SmallDisk {
        assert!(
            rustix::process::geteuid().is_root(),
            "mounting a small disk takes root: run the test as root"
        );
        std::fs::create_dir(&path).unwrap();
        let disk = SmallDisk(path);
        disk.mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        disk
    }

    fn grow(&self, size: &str) {
        self.mount(&["-o", &format!("remount,size={size}")]);
    }

    fn mount(&self, words: &[&str]) {
        assert!(Command::new("mount").args(words).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_ends_the_restore_at_once_and_a_larger_one_completes_it() {
    let fixture = Fixture::new();
    let source = fixture.path("source");
    TreeSpec { exact_sizes: vec![6 << 20, 7 << 20, 9 << 20], ..TreeSpec::small(6) }.grow(&source).unwrap();
    let root = fixture.back_up(&source);
    let disk = SmallDisk::new(fixture.path("disk"), "12m");
    let target = disk.0.join("target");
    let error = fixture.restore(&root, &target).unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(matches!(error, Error::File { .. }), "{error:?}");
    disk.grow("100m");
    let options = RestoreOptions {
        existing_files: Existing::Update,
        existing_links: Existing::Update,
        ..RestoreOptions::new(&target)
    };
    fixture.restore_with(&root, &options).unwrap();
    assert_same(&source, &target, Compare::exact()).unwrap();
}

#[test]
fn memory_stays_within_the_budget() {
    let fixture = Fixture::new();
    let before = fixture.budget.used();
    let (_, root) = medium(&fixture, 8);
    fixture.restore(&root, &fixture.path("target")).unwrap();
    assert!(fixture.budget.peak() <= fixture.budget.total());
    assert!(fixture.budget.used() <= before + (32 << 20), "{} bytes are kept", fixture.budget.used());
}
