//! Random trees with everything that file systems allow go into a repository and come back exactly.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::Place;
use lifeboat_kopia::snapshot::SourceInfo;
use lifeboat_testkit::tree::{Compare, differences};
use lifeboat_uploader::{Cancel, Progress, RestoreOptions, find_snapshots, restore};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, makedev, mknodat};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
enum What {
    Directory,
    File(Vec<u8>),
    /// Its size, and where data begins.
    Sparse(u32, u32),
    Symlink(Vec<u8>),
    /// One of the files before it.
    HardLink(usize),
    Fifo,
    Socket,
    Device,
}

#[derive(Debug, Clone)]
struct Node {
    /// Which of the directories before it it is in.
    place: usize,
    name: Vec<u8>,
    what: What,
    mode: u32,
    time: (i64, u32),
    owner: (u32, u32),
    xattr: Option<(u8, Vec<u8>)>,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte =
        prop_oneof![any::<u8>(), Just(b'\n'), Just(0xff), prop::char::range('a', 'z').prop_map(|c| c as u8)];
    let short = prop::collection::vec(byte.clone(), 1..12);
    let long = prop::collection::vec(byte, 255);
    let text = "[a-z%<>&\u{2028}é\u{fffd}\"\\\\]{1,8}".prop_map(String::into_bytes);
    prop_oneof![6 => short, 6 => text, 1 => long].prop_map(|mut name| {
        name.iter_mut().filter(|byte| matches!(byte, b'/' | 0)).for_each(|byte| *byte = b'_');
        // `.` and `..` are taken.
        if name.iter().all(|byte| *byte == b'.') { b"dots".to_vec() } else { name }
    })
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        4 => Just(What::Directory),
        6 => prop::collection::vec(any::<u8>(), 0..3000).prop_map(What::File),
        1 => (0..5_000_000u32, 0..5_000_000u32).prop_map(|(size, data)| What::Sparse(size, data)),
        1 => prop::collection::vec(1..=255u8, 1..300).prop_map(What::Symlink),
        2 => any::<usize>().prop_map(What::HardLink),
        1 => Just(What::Fifo),
        1 => Just(What::Socket),
        1 => Just(What::Device),
    ]
}

fn node() -> impl Strategy<Value = Node> {
    let time = (-0x8000_0000i64..0x3_0000_0000, 0..1_000_000_000u32);
    let xattr = prop::option::weighted(0.2, (any::<u8>(), prop::collection::vec(any::<u8>(), 0..100)));
    let rest = (0..0o10000u32, time, (0..70_000u32, 0..70_000u32), xattr);
    (any::<usize>(), name(), what(), rest).prop_map(|(place, name, what, (mode, time, owner, xattr))| Node {
        place,
        name,
        what,
        mode,
        time,
        owner,
        xattr,
    })
}

/// Makes the tree; nodes whose name is taken are left out.
fn plant(top: &Path, nodes: &[Node]) {
    fs::create_dir(top).unwrap();
    let mut directories = vec![top.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    let mut made: Vec<(PathBuf, &Node)> = Vec::new();
    for node in nodes {
        let path = directories[node.place % directories.len()].join(OsStr::from_bytes(&node.name));
        // Paths that the test itself cannot name are for another test.
        if path.as_os_str().len() > 3000 || fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        let special = |kind, device| mknodat(CWD, &path, kind, Mode::RUSR, device).unwrap();
        match &node.what {
            What::Directory => {
                fs::create_dir(&path).unwrap();
                directories.push(path.clone());
            }
            What::File(data) => fs::write(&path, data).unwrap(),
            What::Sparse(size, data) => {
                let file = fs::File::create(&path).unwrap();
                file.set_len((*size).into()).unwrap();
                if data < size {
                    file.write_all_at(b"data", (*data).into()).unwrap();
                }
            }
            What::Symlink(target) => symlink(OsStr::from_bytes(target), &path).unwrap(),
            What::HardLink(number) => match files.is_empty() {
                true => continue,
                false => fs::hard_link(&files[number % files.len()], &path).unwrap(),
            },
            What::Fifo => special(FileType::Fifo, 0),
            What::Socket => special(FileType::Socket, 0),
            What::Device => special(FileType::BlockDevice, makedev(7, 200)),
        }
        if matches!(node.what, What::File(_) | What::Sparse(..)) {
            files.push(path.clone());
        }
        made.push((path, node));
    }
    // Attributes at the end, the deepest first: making entries changes the times of directories.
    for (path, node) in made.iter().rev() {
        std::os::unix::fs::lchown(path, Some(node.owner.0), Some(node.owner.1)).unwrap();
        let is_link = matches!(node.what, What::Symlink(_));
        if let (Some((name, value)), What::File(_) | What::Directory) = (&node.xattr, &node.what) {
            let name = format!("user.attribute-{name}");
            rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
        }
        if !is_link {
            fs::set_permissions(path, fs::Permissions::from_mode(node.mode)).unwrap();
        }
        let time = Timespec { tv_sec: node.time.0, tv_nsec: node.time.1.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// The extended attributes of everything below.
fn xattrs(top: &Path) -> BTreeMap<PathBuf, Vec<(String, Vec<u8>)>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let full = top.join(&path);
        let mut names = vec![0; 4096];
        let len = rustix::fs::llistxattr(&full, &mut names[..]).unwrap();
        let names = String::from_utf8(names[..len].to_vec()).unwrap();
        let mut all = Vec::new();
        for name in names.split_terminator('\0').filter(|name| *name != "security.selinux") {
            let mut value = vec![0; 4096];
            let len = rustix::fs::lgetxattr(&full, name, &mut value[..]).unwrap();
            all.push((name.to_owned(), value[..len].to_vec()));
        }
        all.sort();
        if fs::symlink_metadata(&full).unwrap().is_dir() {
            waiting.extend(fs::read_dir(&full).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        found.insert(path, all);
    }
    found
}

/// Without what stock kopia cannot carry: pipes, sockets and devices, names that are not text or have no room for what
/// it adds to them while it restores, and times that are too many nanoseconds.
fn carried_by_kopia(nodes: &[Node]) -> Vec<Node> {
    let carried = nodes.iter().filter(|node| {
        let special = matches!(node.what, What::Fifo | What::Socket | What::Device);
        !special && node.name.len() < 200 && std::str::from_utf8(&node.name).is_ok()
    });
    let carried = carried.cloned().map(|node| {
        let (seconds, nanoseconds) = node.time;
        Node { time: (seconds.min(0x2_0000_0000), nanoseconds), ..node }
    });
    carried.collect()
}

/// So many trees, ten times as many in the long run.
fn cases(count: u32) -> u32 {
    if std::env::var_os("LIFEBOAT_LONG").is_some() { 10 * count } else { count }
}

#[test]
fn any_tree_that_kopia_can_carry_comes_back_through_it_in_both_directions() {
    let place = Place::new();
    let rounds = Cell::new(0);
    let mut runner =
        TestRunner::new(Config { cases: cases(3), failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(node(), 0..60), |nodes| {
        let round = rounds.replace(rounds.get() + 1);
        let path = |name: &str| place.path(&format!("{name}-{round}"));
        let (source, by_kopia, by_us) = (path("tree"), path("by-kopia"), path("by-us"));
        plant(&source, &carried_by_kopia(&nodes));
        let opened = place.open();
        let (ours, _) = opened.back_up(|options| options.path.clone_from(&source));
        place.kopia.restore(ours.id.as_str(), &by_kopia).unwrap();
        let theirs = place.kopia.snapshot(&source, &[]).unwrap();
        let opened = place.open();
        let info = SourceInfo::new("u", "h", source.to_str().unwrap());
        let found = find_snapshots(&opened.interface, &info, &BTreeMap::new()).unwrap();
        let theirs = found.into_iter().find(|snapshot| snapshot.id.as_str() == theirs.id).unwrap();
        let options = RestoreOptions::new(&by_us);
        let root = theirs.root_entry.unwrap();
        restore(&opened.interface, &root, &options, &Progress::default(), &Cancel::default()).unwrap();
        for target in [by_kopia, by_us] {
            let found = differences(&source, &target, Compare::kept_by_kopia()).unwrap();
            prop_assert!(found.is_empty(), "{}: {:#?}", target.display(), found);
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn any_tree_comes_back_bit_for_bit_with_all_its_metadata() {
    let place = Place::new();
    let opened = place.open();
    let rounds = Cell::new(0);
    let mut runner =
        TestRunner::new(Config { cases: cases(16), failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(node(), 0..60), |nodes| {
        let round = rounds.replace(rounds.get() + 1);
        let (source, target) = (place.path(&format!("tree-{round}")), place.path(&format!("back-{round}")));
        plant(&source, &nodes);
        let (snapshot, totals) = opened.back_up(|options| options.path.clone_from(&source));
        prop_assert_eq!((totals.errors, totals.ignored_errors), (0, 0));
        let root = snapshot.root_entry.unwrap();
        let options = RestoreOptions::new(&target);
        let report = restore(&opened.interface, &root, &options, &Progress::default(), &Cancel::default());
        prop_assert!(report.is_ok(), "{:?}", report);
        let found = differences(&source, &target, Compare::exact()).unwrap();
        prop_assert!(found.is_empty(), "{:#?}", found);
        prop_assert_eq!(xattrs(&source), xattrs(&target));
        // The same tree again is taken over as a whole.
        let (_, again) = opened.back_up(|options| options.path.clone_from(&source));
        prop_assert_eq!((again.hashed_files, again.files), (0, totals.files));
        fs::remove_dir_all(&source).unwrap();
        fs::remove_dir_all(&target).unwrap();
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    place.kopia.verify_snapshots().unwrap();
}
