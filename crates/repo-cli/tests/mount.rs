//! `lifeboat-repo mount`: what is seen is what was backed up, and nothing stays mounted.
#![allow(clippy::unwrap_used)]

mod common;

use common::Ours;
use lifeboat_testkit::process::Daemon;
use lifeboat_testkit::tree::{Compare, Random, TreeSpec, assert_same};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PASSWORD: &str = "correct horse battery staple";
/// Longer than a mount takes to end on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Little enough that not everything that is read can be kept.
const LITTLE_MEMORY: &str = "--memory-budget-mb=24";
/// The files that take several chunks.
const LARGE: u64 = 25_000_003;

/// A repository with a tree that was backed up.
struct Place {
    folder: TempDir,
    ours: Ours,
}

impl Place {
    fn new(spec: &TreeSpec) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let ours = Ours::new(PASSWORD).unwrap();
        ours.create_filesystem(&folder.path().join("repository"), &[]).unwrap();
        spec.grow(&folder.path().join("source")).unwrap();
        Place { folder, ours }
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    fn back_up(&self) -> String {
        self.ours.snapshot(&self.source(), &[]).unwrap().id
    }

    fn mount(&self, object: &str) -> Mount {
        let point = self.folder.path().join("mounted");
        fs::create_dir_all(&point).unwrap();
        let command = self.ours.command(["mount", LITTLE_MEMORY, object, point.to_str().unwrap()]);
        let daemon = Daemon::spawn("mount", command, &self.folder.path().join("log")).unwrap();
        let mut mount = Mount { point, daemon };
        let point = mount.point.clone();
        mount.daemon.wait_until(|| is_mounted(&point)).unwrap();
        mount
    }
}

/// A mount that goes with this value, however the test ends.
struct Mount {
    point: PathBuf,
    daemon: Daemon,
}

impl Mount {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.daemon.pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end of the program, which must be a good one that leaves nothing mounted.
    fn assert_ended(mut self) {
        let started = Instant::now();
        let status = loop {
            match self.daemon.exit_status() {
                Some(status) => break status,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
            assert!(started.elapsed() < LIMIT, "it did not end: {}", self.daemon.log_tail());
        };
        assert!(status.success(), "{status}: {}", self.daemon.log_tail());
        assert!(!is_mounted(&self.point));
        assert!(fs::read_dir(&self.point).unwrap().next().is_none());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Most tests have unmounted it themselves.
        let _ = rustix::mount::unmount(&self.point, UnmountFlags::DETACH);
    }
}

fn is_mounted(point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == point.to_str())
}

fn with_everything(seed: u64) -> TreeSpec {
    TreeSpec { undecodable_names: true, exact_sizes: vec![0, 1, 4096, LARGE], ..TreeSpec::small(seed) }
}

/// The largest file of the tree.
fn largest(folder: &Path) -> PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => found.push((entry.metadata().unwrap().len(), entry.path())),
                _ => {}
            }
        }
    }
    found.into_iter().max().unwrap().1
}

#[test]
fn a_mounted_snapshot_is_the_tree_that_was_backed_up() {
    let place = Place::new(&with_everything(31));
    let source = place.source();
    fs::write(source.join("one"), "one file").unwrap();
    fs::hard_link(source.join("one"), source.join("two names")).unwrap();
    rustix::fs::setxattr(source.join("one"), "user.note", b"a note", XattrFlags::empty()).unwrap();
    rustix::fs::mknodat(CWD, source.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let device = rustix::fs::makedev(1, 3);
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, source.join("null"), FileType::CharacterDevice, mode, device).unwrap();
    let mount = place.mount(&place.back_up());
    assert_same(&source, &mount.point, Compare::exact()).unwrap();

    let (one, two) = (mount.point.join("one"), mount.point.join("two names"));
    assert_eq!(fs::metadata(&one).unwrap().ino(), fs::metadata(&two).unwrap().ino());
    assert_eq!(fs::metadata(&one).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(mount.point.join("null")).unwrap().rdev(), device);
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(&one, "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"a note");
    let length = rustix::fs::listxattr(&one, &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"user.note\0");
    assert!(rustix::fs::getxattr(&one, "user.other", &mut value[..]).is_err());

    // Reads at any place, by several handles, as they come.
    let path = largest(&source);
    let seen = mount.point.join(path.strip_prefix(&source).unwrap());
    let original = fs::read(&path).unwrap();
    let mut random = Random::new(4);
    let handles = [File::open(&seen).unwrap(), File::open(&seen).unwrap()];
    for turn in 0..60 {
        let offset = random.below(LARGE) as usize;
        let length = (1 + random.below(3 << 20) as usize).min(original.len() - offset);
        let mut bytes = vec![0; length];
        handles[turn % 2].read_exact_at(&mut bytes, offset as u64).unwrap();
        assert!(bytes == original[offset..offset + length], "{length} bytes at {offset} are wrong");
    }
    let mut tail = Vec::new();
    let mut file = &handles[0];
    file.seek(SeekFrom::End(-5)).unwrap();
    file.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, original[original.len() - 5..]);
    drop(handles);

    // Nothing can be changed.
    assert!(fs::write(&one, "changed").is_err());
    assert!(fs::remove_file(&one).is_err());
    assert!(fs::write(mount.point.join("new"), "new").is_err());

    mount.signal(Signal::TERM);
    mount.assert_ended();
}

#[test]
fn all_snapshots_are_seen_until_it_is_unmounted() {
    let place = Place::new(&TreeSpec::small(32));
    place.back_up();
    let copy = place.folder.path().join("first");
    rustix::fs::rename(place.source(), &copy).unwrap();
    TreeSpec::small(33).grow(&place.source()).unwrap();
    place.back_up();
    let mount = place.mount("all");
    let only = |folder: &Path| -> Vec<PathBuf> {
        let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    };
    let owners = only(&mount.point);
    let [owner] = owners.as_slice() else { unreachable!("{owners:?}") };
    let sources = only(owner);
    let [source] = sources.as_slice() else { unreachable!("{sources:?}") };
    assert!(source.to_str().unwrap().ends_with("_source"), "{source:?}");
    let times = only(source);
    let [first, second] = times.as_slice() else { unreachable!("{times:?}") };
    assert_same(&copy, first, Compare::exact()).unwrap();
    assert_same(&place.source(), second, Compare::exact()).unwrap();
    rustix::mount::unmount(&mount.point, UnmountFlags::empty()).unwrap();
    mount.assert_ended();
}

#[test]
fn a_mount_that_is_in_use_ends_with_ctrl_c() {
    let place = Place::new(&TreeSpec { exact_sizes: vec![LARGE], ..TreeSpec::small(34) });
    let mount = place.mount(&place.back_up());
    let path = largest(&place.source());
    let mut used = File::open(mount.point.join(path.strip_prefix(place.source()).unwrap())).unwrap();
    used.read_exact(&mut [0; 10]).unwrap();
    mount.signal(Signal::INT);
    mount.assert_ended();
}

#[test]
fn what_cannot_be_mounted_is_refused() {
    let place = Place::new(&TreeSpec { odd_names: false, ..TreeSpec::small(35) });
    fs::write(place.source().join("file"), "a file").unwrap();
    let id = place.back_up();
    let refused = |object: &str, point: &Path, reason: &str| {
        let output = place.ours.try_run(["mount", object, point.to_str().unwrap()]).unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(reason), "{text}");
    };
    let empty = place.folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    refused(&id, &place.source(), "is not empty");
    refused(&id, &place.folder.path().join("missing"), "No such file");
    refused(&format!("{id}/file"), &empty, "is not a directory");
    refused("nothing", &empty, "there is no snapshot");
}
