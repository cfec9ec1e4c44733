//! Everything that a snapshot carries comes back.

use crate::fixture::{Fixture, is_root, noise, with_extras};
use lifeboat_kopia::gojson::Base64;
use lifeboat_kopia::snapshot::{
    DeviceNumber, DirEntry, ExactTime, Extras, GoMode, HardLink, Hole, Holes, SpecialKind, XattrName,
    listed_name,
};
use lifeboat_testkit::tree::{Compare, TreeSpec, assert_same};
use lifeboat_uploader::{Existing, RestoreOptions};
use rustix::fs::XattrFlags;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Version 2; owner rw-, user 1234 r--, group r--, mask rw-, others ---.
fn access_control_list() -> Vec<u8> {
    [(1u16, 6u16, u32::MAX), (2, 4, 1234), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)]
        .iter()
        .fold(2u32.to_le_bytes().to_vec(), |mut bytes, (tag, rights, id)| {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(rights.to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes
        })
}

#[test]
fn random_trees_come_back_exactly() {
    let fixture = Fixture::new();
    for seed in 0..8 {
        let source = fixture.path(&format!("source-{seed}"));
        TreeSpec { exact_sizes: vec![0, 1, 5 << 20], ..TreeSpec::small(seed) }.grow(&source).unwrap();
        let root = fixture.back_up(&source);
        let target = fixture.path(&format!("target-{seed}"));
        let options = RestoreOptions { owner: is_root(), ..RestoreOptions::new(&target) };
        fixture.restore_with(&root, &options).unwrap();
        assert_same(&source, &target, Compare::exact()).unwrap();
        // Again, over itself, in both ways of writing.
        fixture.restore_with(&root, &options).unwrap();
        assert_same(&source, &target, Compare::exact()).unwrap();
        let options = RestoreOptions { existing_files: Existing::Update, threads: 7, ..options };
        fixture.restore_with(&root, &options).unwrap();
        assert_same(&source, &target, Compare::exact()).unwrap();
        // And with names that come last, over what is there and where nothing is.
        let existing_files = Existing::Replace;
        let options = RestoreOptions { existing_files, atomic: true, delete_extra: true, ..options };
        fixture.restore_with(&root, &options).unwrap();
        assert_same(&source, &target, Compare::exact()).unwrap();
        let target = fixture.path(&format!("new-{seed}"));
        fixture.restore_with(&root, &RestoreOptions { target: target.clone(), ..options }).unwrap();
        assert_same(&source, &target, Compare::exact()).unwrap();
    }
}

#[test]
fn a_file_that_does_not_become_whole_replaces_none_if_names_come_last() {
    let fixture = Fixture::new();
    let mut entry = fixture.file("file", &noise(1, 10_000));
    // Its object ends too early.
    entry.size += 1;
    let link = HardLink { inode: 2, names: 2, ..HardLink::default() };
    let other = DirEntry { name: "other".into(), ..entry.clone() };
    let linked = [entry, other].map(|entry| {
        with_extras(entry, Extras { hard_link: Some(link.clone()), recorded: true, ..Extras::default() })
    });
    let root = fixture.directory("root", &linked);
    let target = fixture.path("target");
    fs::create_dir(&target).unwrap();
    for name in ["file", "other"] {
        fs::write(target.join(name), "as before").unwrap();
    }
    let options = RestoreOptions { atomic: true, ..RestoreOptions::new(&target) };
    let Err(lifeboat_uploader::Error::Unrestored(report)) = fixture.restore_with(&root, &options) else {
        unreachable!("it cannot be restored");
    };
    assert_eq!(report.failed, 2, "{report:?}");
    for name in ["file", "other"] {
        assert_eq!(fs::read(target.join(name)).unwrap(), b"as before");
    }
    assert_eq!(fs::read_dir(&target).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn extended_attributes_acls_and_capabilities_come_back() {
    let fixture = Fixture::new();
    // Version 2, a mask of one bit: what `setcap cap_net_raw+p` writes.
    let mut capability = 0x0200_0000u32.to_le_bytes().to_vec();
    capability.extend([0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let acl = access_control_list();
    let mut wanted = vec![("user.note", b"a value".to_vec()), ("user.empty", Vec::new())];
    wanted.push(("system.posix_acl_access", acl));
    if is_root() {
        wanted.push(("security.capability", capability));
        wanted.push(("trusted.thing", b"\x00\xff".to_vec()));
    }
    let extras = || Extras {
        xattrs: wanted
            .iter()
            .map(|(name, value)| (XattrName(name.as_bytes().to_vec()), Base64(value.clone())))
            .collect(),
        ..Extras::default()
    };
    let mode = GoMode::from_unix(0o660);
    let file = with_extras(
        DirEntry { mode, uid: 1000 * u32::from(is_root()), ..fixture.file("file", b"x") },
        extras(),
    );
    let large = with_extras(DirEntry { mode, ..fixture.file("large", &noise(1, 9 << 20)) }, extras());
    let mut of_directory = extras();
    of_directory.xattrs.remove(&XattrName(b"security.capability".to_vec()));
    let directory = with_extras(fixture.directory("sub", &[]), of_directory);
    let root = fixture.directory("root", &[directory, file, large]);
    let target = fixture.path("target");
    let report = fixture.restore(&root, &target).unwrap();
    assert_eq!(report.ignored_errors, 0, "the test needs a file system with extended attributes");
    for name in ["file", "large", "sub"] {
        for (attribute, value) in &wanted {
            if name == "sub" && *attribute == "security.capability" {
                continue;
            }
            let mut found = vec![0; 4096];
            let length = rustix::fs::lgetxattr(target.join(name), *attribute, &mut found[..]);
            let length = length.unwrap_or_else(|error| panic!("{attribute} of {name}: {error}"));
            assert_eq!(found[..length], value[..], "{attribute} of {name}");
        }
    }
    assert_eq!(fs::metadata(target.join("file")).unwrap().mode() & 0o7777, 0o660);
}

#[test]
fn an_update_removes_attributes_that_the_snapshot_does_not_have() {
    let fixture = Fixture::new();
    let root = fixture.directory("root", &[fixture.file("file", b"content")]);
    let root = with_extras(root, Extras { recorded: true, ..Extras::default() });
    let target = fixture.path("target");
    fixture.restore(&root, &target).unwrap();
    let file = target.join("file");
    rustix::fs::setxattr(&file, "user.extra", b"x", XattrFlags::empty()).unwrap();
    let options = RestoreOptions { existing_files: Existing::Update, ..RestoreOptions::new(&target) };
    fixture.restore_with(&root, &options).unwrap();
    assert!(rustix::fs::getxattr(&file, "user.extra", &mut [0; 8][..]).is_err());
}

#[test]
fn what_is_restored_has_no_access_control_list_that_only_the_target_handed_down() {
    let fixture = Fixture::new();
    let pipe = Extras { kind: Some(SpecialKind::Fifo), ..Extras::default() };
    let entries = [
        fixture.directory("sub", &[fixture.file("inner", b"content")]),
        fixture.file("file", b"content"),
        fixture.file("large", &noise(1, 9 << 20)),
        with_extras(fixture.file("pipe", b""), pipe),
    ];
    let root =
        with_extras(fixture.directory("root", &entries), Extras { recorded: true, ..Extras::default() });
    let target = fixture.path("target");
    fs::create_dir(&target).unwrap();
    let attribute = "system.posix_acl_default";
    let handed_down = rustix::fs::setxattr(&target, attribute, &access_control_list(), XattrFlags::empty());
    assert_eq!(handed_down, Ok(()), "the test needs a file system with access control lists");
    let options = RestoreOptions { attributes_of_target: false, ..RestoreOptions::new(&target) };
    fixture.restore_with(&root, &options).unwrap();
    for name in ["sub", "sub/inner", "file", "large", "pipe"] {
        let path = target.join(name);
        for attribute in ["system.posix_acl_access", "system.posix_acl_default"] {
            let found = rustix::fs::lgetxattr(&path, attribute, &mut [0; 256][..]);
            assert!(found.is_err(), "{name} has {attribute}");
        }
        let mode = if name == "sub" { 0o755 } else { 0o644 };
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode, "{name}");
    }
}

#[test]
fn an_attribute_that_does_not_fit_fails_its_file_which_has_everything_else() {
    let fixture = Fixture::new();
    // No file system takes one of more than 64 KiB.
    let value = |length| Base64(vec![7; length]);
    let names = [("user.a", 1), ("user.much", 70_000), ("user.z", 1)];
    let extras = || Extras {
        xattrs: names.map(|(name, length)| (XattrName(name.into()), value(length))).into(),
        ..Extras::default()
    };
    let entries = [
        with_extras(fixture.directory("sub", &[fixture.file("inner", b"content")]), extras()),
        with_extras(fixture.file("file", b"content"), extras()),
        fixture.file("other", b"content"),
    ];
    let target = fixture.path("target");
    let (report, mut paths) =
        crate::fixture::failures(fixture.restore(&fixture.directory("root", &entries), &target));
    paths.sort();
    assert_eq!((paths, report.files), (vec!["file".to_owned(), "sub".to_owned()], 3));
    for failure in report.failures {
        let (error, expected) = (failure.error, "user.much of 70000 bytes does not fit");
        assert!(error.contains(expected), "{error}");
    }
    for (name, mode) in [("file", 0o644), ("sub", 0o755)] {
        let metadata = fs::metadata(target.join(name)).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (mode, entries[0].file_time().seconds));
        for attribute in ["user.a", "user.z"] {
            rustix::fs::lgetxattr(target.join(name), attribute, &mut [0; 8][..]).unwrap();
        }
    }
}

#[test]
fn names_of_one_file_are_one_file_again() {
    let fixture = Fixture::new();
    let group = |inode: u64| Extras {
        hard_link: Some(HardLink { inode, file_system: 0, names: 3, ..HardLink::default() }),
        ..Extras::default()
    };
    let (small, large) = (fixture.file("s", b"small"), fixture.file("l", &noise(1, 9 << 20)));
    let name = |entry: &DirEntry, name: &str, inode: u64| {
        with_extras(DirEntry { name: name.into(), ..entry.clone() }, group(inode))
    };
    let sub = fixture.directory("sub", &[name(&large, "l2", 7), name(&small, "s2", 5)]);
    let root = fixture
        .directory("root", &[sub, name(&large, "l1", 7), name(&small, "s1", 5), name(&small, "s3", 5)]);
    let target = fixture.path("target");
    let inode = |name: &str| fs::metadata(target.join(name)).unwrap().ino();
    for existing_files in [Existing::Replace, Existing::Replace, Existing::Update] {
        let options = RestoreOptions { existing_files, ..RestoreOptions::new(&target) };
        let report = fixture.restore_with(&root, &options).unwrap();
        assert!(existing_files == Existing::Update || report.files == 5, "{report:?}");
        assert_eq!((inode("s1"), inode("s1")), (inode("sub/s2"), inode("s3")));
        assert_eq!(inode("l1"), inode("sub/l2"));
        assert_eq!(fs::read(target.join("s3")).unwrap(), b"small");
        assert!(fs::read(target.join("sub/l2")).unwrap() == noise(1, 9 << 20));
        assert_eq!(fs::metadata(target.join("s1")).unwrap().mtime(), small.file_time().seconds);
    }
    // One name is lost: it is linked to what is there.
    fs::remove_file(target.join("sub/s2")).unwrap();
    let options = RestoreOptions { existing_files: Existing::Update, ..RestoreOptions::new(&target) };
    fixture.restore_with(&root, &options).unwrap();
    assert_eq!(fs::read(target.join("sub/s2")).unwrap(), b"small");
}

/// More lies between the two names than is read ahead, so that the file is whole long before its second name is found.
#[test]
fn a_file_that_is_whole_gets_further_names_and_keeps_its_bytes() {
    let fixture = Fixture::new();
    let extras = Extras {
        hard_link: Some(HardLink { inode: 5, file_system: 0, names: 2, ..HardLink::default() }),
        ..Extras::default()
    };
    let first = with_extras(fixture.file("a", b"bytes"), extras);
    let second = DirEntry { name: "z".into(), ..first.clone() };
    let between = (0..60).map(|number| fixture.file(format!("m{number:02}"), &noise(number, 4 << 20)));
    let entries: Vec<DirEntry> = [first].into_iter().chain(between).chain([second]).collect();
    let root = fixture.directory("root", &entries);
    let target = fixture.path("target");
    let inode = |name: &str| fs::metadata(target.join(name)).unwrap().ino();
    for _ in ["a new target", "the same once more"] {
        fixture.restore(&root, &target).unwrap();
        assert_eq!(fs::read(target.join("a")).unwrap(), b"bytes");
        assert_eq!(inode("a"), inode("z"));
    }
}

#[test]
fn names_of_a_file_that_cannot_be_restored_are_all_missing() {
    let fixture = Fixture::new();
    let extras = Extras {
        hard_link: Some(HardLink { inode: 5, file_system: 0, names: 2, ..HardLink::default() }),
        ..Extras::default()
    };
    let lost = DirEntry { object: "00112233445566778899aabbccddeeff".into(), ..fixture.file("a", b"lost") };
    let first = with_extras(lost.clone(), extras.clone());
    let second = with_extras(DirEntry { name: "b".into(), ..lost }, extras);
    let root = fixture.directory("root", &[first, second]);
    let (_, mut paths) = crate::fixture::failures(fixture.restore(&root, &fixture.path("target")));
    paths.sort();
    assert_eq!(paths, ["a", "b"]);
    assert_eq!(fs::read_dir(fixture.path("target")).unwrap().count(), 0);
}

#[test]
fn pipes_sockets_and_devices_are_made() {
    let fixture = Fixture::new();
    let special = |name: &str, kind: SpecialKind, device: Option<DeviceNumber>| {
        let mode = GoMode::from_unix(0o640);
        let extras = Extras { kind: Some(kind), device, ..Extras::default() };
        with_extras(DirEntry { mode, ..fixture.file(name, b"") }, extras)
    };
    let null = DeviceNumber { major: 1, minor: 3, ..DeviceNumber::default() };
    let disk = DeviceNumber { major: 7, minor: 1000, ..DeviceNumber::default() };
    let root = fixture.directory(
        "root",
        &[
            special("block", SpecialKind::BlockDevice, Some(disk)),
            special("char", SpecialKind::CharDevice, Some(null)),
            special("fifo", SpecialKind::Fifo, None),
            special("socket", SpecialKind::Socket, None),
        ],
    );
    let target = fixture.path("target");
    for _ in 0..2 {
        fixture.restore(&root, &target).unwrap();
        let metadata = |name: &str| fs::symlink_metadata(target.join(name)).unwrap();
        for name in ["fifo", "socket"] {
            assert_eq!(metadata(name).mode() & 0o7777, 0o640, "{name}");
            assert_eq!(metadata(name).mtime_nsec(), 123_456_789, "{name}");
        }
        assert!(metadata("fifo").file_type().is_fifo() && metadata("socket").file_type().is_socket());
        if is_root() {
            assert!(metadata("char").file_type().is_char_device());
            assert_eq!(metadata("char").rdev(), rustix::fs::makedev(1, 3));
            assert_eq!(metadata("block").rdev(), rustix::fs::makedev(7, 1000));
        }
    }
}

#[test]
fn names_and_times_that_kopia_cannot_hold_come_back() {
    let fixture = Fixture::new();
    let raw = b"latin-\xe9\xff";
    let extras = Extras {
        raw_name: Base64(raw.to_vec()),
        mtime: Some(ExactTime { seconds: -5_000_000_000, nanoseconds: 999_999_999 }),
        ..Extras::default()
    };
    let entry = with_extras(fixture.file(listed_name(raw).unwrap(), b"content"), extras);
    let root = fixture.directory("root", &[entry]);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    fixture.restore(&root, folder.path()).unwrap();
    let path = folder.path().join(OsStr::from_bytes(raw));
    assert_eq!(fs::read(&path).unwrap(), b"content");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-5_000_000_000, 999_999_999));
}

#[test]
fn holes_are_left_where_they_were_or_else_where_zeros_are() {
    let fixture = Fixture::new();
    let mut data = noise(1, 24 << 20);
    data[5 << 20..20 << 20].fill(0);
    let plain = fixture.file("plain", &data);
    let hole = Hole { offset: 6 << 20, length: 4 << 20 };
    let extras = Extras { holes: Holes::new(vec![hole]).unwrap(), ..Extras::default() };
    let recorded = with_extras(fixture.file("recorded", &data), extras);
    let empty = fixture.file("zeros", &vec![0; 30 << 20]);
    let root = fixture.directory("root", &[plain, recorded, empty]);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let allocated = |name: &str| fs::metadata(folder.path().join(name)).unwrap().blocks() * 512;
    for existing_files in [Existing::Replace, Existing::Update] {
        let options = RestoreOptions { existing_files, ..RestoreOptions::new(folder.path()) };
        fixture.restore_with(&root, &options).unwrap();
        // A hole in what was written before may keep some blocks: the kernel's are larger than ours.
        let most = if existing_files == Existing::Update { 2 << 20 } else { 0 };
        for (name, expected) in [("plain", 9 << 20), ("recorded", 20 << 20), ("zeros", 0)] {
            let found = allocated(name);
            assert!((expected..=expected + most).contains(&found), "{name} has {found}, {existing_files:?}");
        }
        assert!(fs::read(folder.path().join("plain")).unwrap() == data);
        assert!(fs::read(folder.path().join("recorded")).unwrap() == data);
        // The next round writes into files that are full of something else.
        for name in ["plain", "recorded", "zeros"] {
            fs::write(folder.path().join(name), vec![7; 31 << 20]).unwrap();
        }
    }
    let options = RestoreOptions { sparse: false, ..RestoreOptions::new(folder.path()) };
    fixture.restore_with(&root, &options).unwrap();
    assert_eq!((allocated("plain"), allocated("zeros")), (24 << 20, 30 << 20));
}

#[test]
fn attributes_that_are_not_wanted_are_not_set() {
    let fixture = Fixture::new();
    let entry = DirEntry { uid: 4321, mode: GoMode::from_unix(0o601), ..fixture.file("file", b"x") };
    let root = fixture.directory("root", &[entry]);
    let options = RestoreOptions {
        owner: false,
        permissions: false,
        times: false,
        ..RestoreOptions::new(fixture.path("target"))
    };
    fixture.restore_with(&root, &options).unwrap();
    let metadata = fs::metadata(fixture.path("target/file")).unwrap();
    assert_ne!(metadata.uid(), 4321);
    assert_ne!(metadata.mode() & 0o777, 0o601);
    assert!(metadata.mtime() > 1_700_000_000);
}
