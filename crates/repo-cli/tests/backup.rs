//! `snapshot create` as a process: killed, ended by a signal, and faced with files that it must not read.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Ours, end_by};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::{Compare, Random, assert_same};
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PASSWORD: &str = "correct horse battery staple";

struct Place {
    folder: tempfile::TempDir,
    ours: Ours,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), ours: Ours::new(PASSWORD).unwrap() };
        std::fs::create_dir(place.source()).unwrap();
        place.ours.create_filesystem(&place.repository(), &[]).unwrap();
        place
    }

    fn repository(&self) -> PathBuf {
        self.folder.path().join("repository")
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    /// Data that takes a while to back up.
    fn plant(&self, files: usize, size: usize) {
        let mut random = Random::new(1);
        for number in 0..files {
            let folder = self.source().join(format!("{:03}", number / 20));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(format!("{number:04}")), random.bytes(size)).unwrap();
        }
    }

    fn start(&self, extra: &[&str]) -> Child {
        let source = self.source();
        let words = ["snapshot", "create", source.to_str().unwrap()];
        let mut command = self.ours.command(words.iter().chain(extra));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Lets backups store so many bytes a second.
    fn limit_uploads(&self, bytes: &str) {
        let flag = format!("--upload-bytes-per-second={bytes}");
        self.ours.run(["repository", "throttle", "set", &flag]).unwrap();
    }

    fn snapshots(&self) -> Vec<Value> {
        let output = self.ours.run(["snapshot", "list", "--all", "--json"]).unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn incomplete(&self) -> Vec<Value> {
        self.snapshots().into_iter().filter(|snapshot| !snapshot["incomplete"].is_null()).collect()
    }

    /// The next backup takes over what the incomplete one had, and kopia finds nothing wrong.
    fn assert_goes_on(&self, files: u64) {
        self.ours.snapshot(&self.source(), &[]).unwrap();
        let snapshots = self.snapshots();
        let last = snapshots.last().unwrap();
        assert!(last["incomplete"].is_null());
        assert!(last["stats"]["cachedFiles"].as_u64().unwrap() > 0, "{last}");
        assert_eq!(last["rootEntry"]["summ"]["files"], files);
        assert!(self.incomplete().is_empty());
        let kopia = Kopia::new(PASSWORD).unwrap();
        kopia.connect_filesystem(&self.repository(), &[]).unwrap();
        kopia.verify_snapshots().unwrap();
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(300), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_backup_that_is_killed_is_gone_on_with_from_its_last_checkpoint() {
    let place = Place::new();
    place.plant(600, 500_000);
    // However long it takes to see a checkpoint, the backup takes longer.
    place.limit_uploads("10000000");
    let mut child = place.start(&["--checkpoint-interval", "100ms", "--memory-budget-mb=48"]);
    wait_for("a checkpoint", || {
        let files = |snapshot: &Value| snapshot["rootEntry"]["summ"]["files"].as_u64().unwrap_or(0);
        place.incomplete().iter().any(|snapshot| files(snapshot) > 0) || child.try_wait().unwrap().is_some()
    });
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "the backup was over before it could be killed");
    place.limit_uploads("unlimited");
    place.assert_goes_on(600);
}

#[test]
fn backups_that_are_ended_by_either_signal_at_any_time_damage_nothing() {
    let place = Place::new();
    place.plant(60, 100_000);
    let before = place.ours.snapshot(&place.source(), &[]).unwrap();
    let kept = place.folder.path().join("kept");
    let mut copy = std::process::Command::new("cp");
    assert!(copy.arg("-a").arg(place.source()).arg(&kept).status().unwrap().success());
    place.plant(200, 300_000);
    let mut random = Random::new(9);
    for round in 0..8 {
        let source = place.source();
        let words = ["snapshot", "create", source.to_str().unwrap(), "--checkpoint-interval", "30ms"];
        let mut command = place.ours.command(words);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(60 << (round / 2 * 2))));
        // It may be over already, which is one of the times.
        end_by(child, [Signal::KILL, Signal::TERM][round % 2]);
    }
    let snapshot = place.ours.snapshot(&place.source(), &[]).unwrap();
    let kopia = Kopia::new(PASSWORD).unwrap();
    kopia.connect_filesystem(&place.repository(), &[]).unwrap();
    kopia.verify_snapshots().unwrap();
    for (id, tree) in [(snapshot.id, place.source()), (before.id, kept)] {
        let restored = place.folder.path().join(&id);
        kopia.restore(&id, &restored).unwrap();
        assert_same(&tree, &restored, Compare::kept_by_kopia()).unwrap();
    }
}

/// The bytes of what was stored whole in a folder.
fn stored_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let count = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => stored_in(&entry.path()),
        false if entry.file_name().to_string_lossy().contains(".tmp.") => 0,
        // What is renamed in this moment is counted the next time.
        false => entry.metadata().map_or(0, |found| found.len()),
    };
    entries.map(count).sum()
}

#[test]
fn a_backup_that_is_killed_uploads_no_more_than_an_interval_of_it_again() {
    const RATE: u64 = 10_000_000;
    const INTERVAL: u64 = 1;
    /// So long it takes until what was in memory at a checkpoint is stored: less than the budget.
    const SAVING: u64 = 3;
    const PACK: u64 = 10 << 20;
    const TOTAL: u64 = 300 * 500_000;
    let place = Place::new();
    place.plant(300, 500_000);
    place.ours.run(["repository", "set-parameters", "--max-pack-size-mb=10"]).unwrap();
    place.limit_uploads(&RATE.to_string());
    let mut child = place.start(&["--checkpoint-interval", "1s", "--memory-budget-mb=48"]);
    // Any time will do, once more is stored than may be lost.
    let enough = 75_000_000 + u64::from(std::process::id()) % 40_000_000;
    wait_for("enough data", || {
        stored_in(&place.repository()) > enough || child.try_wait().unwrap().is_some()
    });
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "the backup was over before it could be killed");
    let stored = stored_in(&place.repository());
    place.limit_uploads("unlimited");
    place.assert_goes_on(300);
    let again = stored_in(&place.repository()) - stored;
    let lost = (again + stored).saturating_sub(TOTAL);
    let bound = RATE * (INTERVAL + SAVING) + PACK;
    assert!(lost <= bound, "{stored} bytes were stored, then {again}: {lost} of them again");
}

#[test]
fn a_signal_ends_a_backup_with_an_incomplete_snapshot() {
    let place = Place::new();
    place.plant(600, 500_000);
    let mut child = place.start(&["--parallel", "1"]);
    let packs = || {
        let folders = std::fs::read_dir(place.repository()).unwrap();
        folders.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('p')).count()
    };
    wait_for("the first packs", || packs() > 0 || child.try_wait().unwrap().is_some());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    assert!(!child.wait().unwrap().success());
    let incomplete = place.incomplete();
    assert_eq!(incomplete.len(), 1);
    assert_eq!(incomplete[0]["incomplete"], "canceled");
    place.assert_goes_on(600);
}

/// Runs a backup as somebody who must not read everything.
fn back_up_as_nobody(place: &Place, extra: &[&str]) -> std::process::Output {
    let source = place.source();
    let words = ["snapshot", "create", "--json", source.to_str().unwrap()];
    let mut command = place.ours.command(words.iter().chain(extra));
    if rustix::process::geteuid().is_root() {
        for path in [place.folder.path(), &place.repository(), place.ours.home()] {
            give_to_nobody(path);
        }
        command.uid(65534).gid(65534);
    }
    command.output().unwrap()
}

fn give_to_nobody(path: &Path) {
    std::os::unix::fs::lchown(path, Some(65534), Some(65534)).unwrap();
    if path.is_dir() && !path.ends_with("source") {
        std::fs::read_dir(path).unwrap().for_each(|entry| give_to_nobody(&entry.unwrap().path()));
    }
}

#[test]
fn what_must_not_be_read_is_named_and_the_policy_decides() {
    let place = Place::new();
    let source = place.source();
    std::fs::write(source.join("open"), "x").unwrap();
    std::fs::write(source.join("closed"), "x").unwrap();
    std::fs::set_permissions(source.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    std::fs::create_dir(source.join("locked")).unwrap();
    std::fs::set_permissions(source.join("locked"), PermissionsExt::from_mode(0o000)).unwrap();

    let strict = back_up_as_nobody(&place, &[]);
    let errors = String::from_utf8_lossy(&strict.stderr);
    assert!(!strict.status.success(), "{errors}");
    assert!(errors.contains("closed") && errors.contains("locked"), "{errors}");
    assert!(errors.contains("2 entries"), "{errors}");
    let snapshot: Value = serde_json::from_slice(&strict.stdout).unwrap();
    assert_eq!(snapshot["rootEntry"]["summ"]["numFailed"], 2);
    assert_eq!(snapshot["rootEntry"]["summ"]["files"], 1);

    let fast = back_up_as_nobody(&place, &["--fail-fast"]);
    assert!(!fast.status.success() && fast.stdout.is_empty());

    let kopia = Kopia::new(PASSWORD).unwrap();
    kopia.connect_filesystem(&place.repository(), &[]).unwrap();
    kopia.set_policy(&["--global", "--ignore-identical-snapshots=true"]).unwrap();
    let again = back_up_as_nobody(&place, &[]);
    let errors = String::from_utf8_lossy(&again.stderr);
    assert!(errors.contains("Not saved") && again.stdout.is_empty(), "{errors}");
    assert!(
        !again.status.success() && errors.contains("2 entries"),
        "that it is as before makes it no better: {errors}"
    );
    assert!(errors.contains(snapshot["id"].as_str().unwrap()), "{errors}");

    let lenient = ["--global", "--ignore-file-errors=true", "--ignore-dir-errors=true"];
    kopia.set_policy(&lenient).unwrap();
    let lenient = back_up_as_nobody(&place, &[]);
    let errors = String::from_utf8_lossy(&lenient.stderr);
    assert!(lenient.status.success(), "{errors}");
    assert!(errors.contains("2 errors were ignored"), "{errors}");
    // So that the folder can be removed.
    std::fs::set_permissions(source.join("locked"), PermissionsExt::from_mode(0o700)).unwrap();
}

/// Starts a backup of what is written into it.
fn start_stream(place: &Place, name: &str) -> Child {
    let mut command = place.ours.command(["snapshot", "create", "--stdin-file", name, "/dumps"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_stream_becomes_a_file_that_kopia_restores_too() {
    let place = Place::new();
    let bytes = Random::new(6).bytes(9_000_001);
    let mut child = start_stream(&place, "dump.sql");
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success());
    let snapshots = place.snapshots();
    let [snapshot] = snapshots.as_slice() else { panic!("{snapshots:?}") };
    assert_eq!(snapshot["source"]["path"], "/dumps");
    assert_eq!(snapshot["stats"]["totalSize"], 9_000_001);
    let id = snapshot["id"].as_str().unwrap();
    let kopia = Kopia::new(PASSWORD).unwrap();
    kopia.connect_filesystem(&place.repository(), &[]).unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|name| place.folder.path().join(name));
    place.ours.restore(id, &ours).unwrap();
    kopia.restore(id, &theirs).unwrap();
    assert_eq!(std::fs::read(ours.join("dump.sql")).unwrap(), bytes);
    assert_same(&ours, &theirs, Compare::kept_by_kopia()).unwrap();
    kopia.verify_snapshots().unwrap();
}

#[test]
fn a_writer_is_seen_while_it_writes() {
    let place = Place::new();
    let sessions = || -> Vec<Value> {
        let output = place.ours.run(["session", "list", "--json"]).unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert!(sessions().is_empty());
    let mut child = start_stream(&place, "dump");
    // More than a pack: the marker is there before it is.
    child.stdin.as_mut().unwrap().write_all(&Random::new(8).bytes(60_000_000)).unwrap();
    let started = Instant::now();
    let found = loop {
        match sessions().pop() {
            Some(found) => break found,
            None => assert!(started.elapsed() < Duration::from_secs(120), "no session is seen"),
        }
    };
    assert!(found["id"].as_str().unwrap().starts_with('s'), "{found}");
    assert!(found["startTime"].is_string() && found["username"].is_string(), "{found}");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(sessions().is_empty());
}

#[test]
fn a_stream_that_is_cancelled_is_no_snapshot() {
    let place = Place::new();
    let mut child = start_stream(&place, "dump.sql");
    let mut stream = child.stdin.take().unwrap();
    // More than a pipe holds: the program reads, so that it knows what a signal means.
    stream.write_all(&Random::new(7).bytes(5_000_000)).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // It says that it has heard it; only then the stream ends.
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("a second signal ends at once")));
    drop(stream);
    assert!(!child.wait().unwrap().success());
    assert!(place.snapshots().is_empty());
    for name in ["", "..", "a/b"] {
        let refused = place.ours.try_run(["snapshot", "create", "--stdin-file", name, "/dumps"]).unwrap();
        assert!(!refused.status.success(), "{name:?}");
    }
}
