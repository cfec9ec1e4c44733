//! Random trees with everything that file systems allow go into a repository and come back exactly.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::Place;
use lifeboat_kopia::snapshot::{SourceInfo, listed_name};
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
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
enum What {
    Directory,
    File(Vec<u8>),
    /// Its size, and where there is data.
    Sparse(u32, Vec<u32>),
    Symlink(Vec<u8>),
    /// One of those before it that are not directories.
    HardLink(usize),
    Fifo,
    Socket,
    BlockDevice,
    CharDevice,
}

/// An extended attribute; those that an entry cannot have are left out.
#[derive(Debug, Clone)]
enum Mark {
    User(u8, Vec<u8>),
    Trusted(u8, Vec<u8>),
    Capability(u32),
    /// An access control list: a user, what that one may do, and what the owner, the group and others may.
    Access(u32, [u16; 4]),
    Default(u32, [u16; 4]),
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
    marks: Vec<Mark>,
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
        // That one block is missing of a small file is not seen if its attributes take another.
        1 => (200_000..5_000_000u32, prop::collection::vec(0..5_000_000u32, 0..6))
            .prop_map(|(size, data)| What::Sparse(size, data)),
        1 => prop::collection::vec(1..=255u8, 1..300).prop_map(What::Symlink),
        2 => any::<usize>().prop_map(What::HardLink),
        1 => Just(What::Fifo),
        1 => Just(What::Socket),
        1 => Just(What::BlockDevice),
        1 => Just(What::CharDevice),
    ]
}

fn mark() -> impl Strategy<Value = Mark> {
    let value = || prop::collection::vec(any::<u8>(), 0..100);
    let list = || (any::<u32>(), [0..8u16, 0..8u16, 0..8u16, 0..8u16]);
    prop_oneof![
        2 => (any::<u8>(), value()).prop_map(|(name, value)| Mark::User(name, value)),
        1 => (any::<u8>(), value()).prop_map(|(name, value)| Mark::Trusted(name, value)),
        1 => any::<u32>().prop_map(Mark::Capability),
        1 => list().prop_map(|(user, rights)| Mark::Access(user, rights)),
        1 => list().prop_map(|(user, rights)| Mark::Default(user, rights)),
    ]
}

impl Mark {
    /// Its name and value on a file of this type; `None` if there is no such thing.
    fn on(&self, file_type: fs::FileType) -> Option<(String, Vec<u8>)> {
        let (is_file, is_dir) = (file_type.is_file(), file_type.is_dir());
        match self {
            Mark::User(name, value) => {
                (is_file || is_dir).then(|| (format!("user.attribute-{name}"), value.clone()))
            }
            Mark::Trusted(name, value) => Some((format!("trusted.attribute-{name}"), value.clone())),
            Mark::Capability(permitted) => is_file.then(|| {
                let words = [0x0200_0000, *permitted, 0, 0, 0];
                ("security.capability".to_owned(), words.iter().flat_map(|word| word.to_le_bytes()).collect())
            }),
            Mark::Access(user, rights) => (!file_type.is_symlink())
                .then(|| ("system.posix_acl_access".to_owned(), access_control_list(*user, *rights))),
            Mark::Default(user, rights) => {
                is_dir.then(|| ("system.posix_acl_default".to_owned(), access_control_list(*user, *rights)))
            }
        }
    }
}

/// Version 2: owner, user, group, mask, others.
fn access_control_list(user: u32, [one, owner, group, others]: [u16; 4]) -> Vec<u8> {
    let none = u32::MAX;
    [
        (1u16, owner, none),
        (2, one, user.min(none - 1)),
        (4, group, none),
        (16, one | group, none),
        (32, others, none),
    ]
    .iter()
    .fold(2u32.to_le_bytes().to_vec(), |mut bytes, (tag, rights, id)| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes
    })
}

fn node() -> impl Strategy<Value = Node> {
    let time = (-0x8000_0000i64..0x3_0000_0000, 0..1_000_000_000u32);
    let marks = prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(mark(), 1..4)];
    let rest = (0..0o10000u32, time, (0..70_000u32, 0..70_000u32), marks);
    (any::<usize>(), name(), what(), rest).prop_map(|(place, name, what, (mode, time, owner, marks))| Node {
        place,
        name,
        what,
        mode,
        time,
        owner,
        marks,
    })
}

/// Makes the tree; nodes whose name is taken are left out.
fn plant(top: &Path, nodes: &[Node]) {
    fs::create_dir(top).unwrap();
    let mut directories = vec![top.to_owned()];
    let mut linkable: Vec<PathBuf> = Vec::new();
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
                for place in data.iter().filter(|place| *place < size) {
                    file.write_all_at(b"data", (*place).into()).unwrap();
                }
            }
            What::Symlink(target) => symlink(OsStr::from_bytes(target), &path).unwrap(),
            What::HardLink(number) => match linkable.is_empty() {
                true => continue,
                false => fs::hard_link(&linkable[number % linkable.len()], &path).unwrap(),
            },
            What::Fifo => special(FileType::Fifo, 0),
            What::Socket => special(FileType::Socket, 0),
            What::BlockDevice => special(FileType::BlockDevice, makedev(7, 200)),
            What::CharDevice => special(FileType::CharacterDevice, makedev(1, 3)),
        }
        if !matches!(node.what, What::Directory | What::HardLink(_)) {
            linkable.push(path.clone());
        }
        made.push((path, node));
    }
    // Attributes at the end, the deepest first: making entries changes the times of directories.
    for (path, node) in made.iter().rev() {
        std::os::unix::fs::lchown(path, Some(node.owner.0), Some(node.owner.1)).unwrap();
        // A further name is of the type of the first.
        let file_type = fs::symlink_metadata(path).unwrap().file_type();
        if !file_type.is_symlink() {
            fs::set_permissions(path, fs::Permissions::from_mode(node.mode)).unwrap();
        }
        for (name, value) in node.marks.iter().filter_map(|mark| mark.on(file_type)) {
            rustix::fs::lsetxattr(path, name, &value, XattrFlags::empty()).unwrap();
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

/// Where files have data.
fn layouts(top: &Path) -> BTreeMap<PathBuf, Vec<(u64, u64)>> {
    let is_file = |path: &PathBuf| fs::symlink_metadata(top.join(path)).unwrap().is_file();
    let files = xattrs(top).into_keys().filter(is_file);
    files.map(|path| (path.clone(), common::extents(&top.join(path)))).collect()
}

/// Takes what stock kopia cannot carry out of a tree, and what it made of that out of what it restored.
fn keep_what_kopia_carries(tree: &Path, restored: &Path) {
    let mut waiting = vec![PathBuf::new()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(tree.join(&folder)).unwrap() {
            let name = entry.unwrap().file_name();
            let path = folder.join(&name);
            let metadata = fs::symlink_metadata(tree.join(&path)).unwrap();
            let file_type = metadata.file_type();
            let is_known = file_type.is_dir() || file_type.is_file() || file_type.is_symlink();
            let is_carried = is_known
                && kopia_can_name(name.as_bytes())
                && (file_type.is_dir() || metadata.mtime() <= LAST_TIME_OF_KOPIA);
            if is_carried {
                waiting.extend(file_type.is_dir().then_some(path));
                continue;
            }
            let other = listed_name(name.as_bytes()).map(|listed| folder.join(listed));
            remove(&tree.join(&path));
            remove(&restored.join(&path));
            other.iter().for_each(|other| remove(&restored.join(other)));
        }
    }
}

fn remove(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}

/// Later ones are too many nanoseconds.
const LAST_TIME_OF_KOPIA: i64 = 0x2_0000_0000;

/// It keeps no names that are not text, and adds something to them while it restores.
fn kopia_can_name(name: &[u8]) -> bool {
    name.len() < 200 && std::str::from_utf8(name).is_ok()
}

/// Without what stock kopia cannot carry: pipes, sockets and devices, such names and such times.
fn carried_by_kopia(nodes: &[Node]) -> Vec<Node> {
    let carried = nodes.iter().filter(|node| {
        let special = matches!(node.what, What::Fifo | What::Socket | What::BlockDevice | What::CharDevice);
        !special && kopia_can_name(&node.name)
    });
    let carried = carried.cloned().map(|node| {
        let (seconds, nanoseconds) = node.time;
        Node { time: (seconds.min(LAST_TIME_OF_KOPIA), nanoseconds), ..node }
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
        prop_assert_eq!(layouts(&source), layouts(&target));
        // The same tree again is taken over as a whole.
        let (_, again) = opened.back_up(|options| options.path.clone_from(&source));
        prop_assert_eq!((again.hashed_files, again.files), (0, totals.files));
        if round % 4 == 0 {
            // What kopia knows of it, it restores, too.
            let by_kopia = place.path(&format!("by-kopia-{round}"));
            let id = snapshot.id.as_str();
            let flags = ["snapshot", "restore", "--no-progress", "--ignore-errors", id];
            place.kopia.run(flags.map(OsStr::new).into_iter().chain([by_kopia.as_os_str()])).unwrap();
            keep_what_kopia_carries(&source, &by_kopia);
            let found = differences(&source, &by_kopia, Compare::kept_by_kopia()).unwrap();
            prop_assert!(found.is_empty(), "by kopia: {:#?}", found);
            fs::remove_dir_all(&by_kopia).unwrap();
        }
        fs::remove_dir_all(&source).unwrap();
        fs::remove_dir_all(&target).unwrap();
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    place.kopia.verify_snapshots().unwrap();
}
