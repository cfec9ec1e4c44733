//! Several names of one file, link or special file.

use crate::fixture::{Fixture, failures, is_root, noise, with_extras};
use lifeboat_kopia::snapshot::{DeviceNumber, DirEntry, Extras, HardLink, SpecialKind};
use lifeboat_uploader::{Existing, PathFilter, RestoreOptions};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The entry with another name and as one of so many names of a file.
fn named(entry: &DirEntry, name: &str, inode: u64, names: u64) -> DirEntry {
    let extras = Extras {
        hard_link: Some(HardLink { inode, names, ..HardLink::default() }),
        ..entry.extras.as_deref().cloned().unwrap_or_default()
    };
    with_extras(DirEntry { name: name.into(), ..entry.clone() }, extras)
}

fn special(fixture: &Fixture, kind: SpecialKind, device: Option<DeviceNumber>) -> DirEntry {
    with_extras(fixture.file("special", b""), Extras { kind: Some(kind), device, ..Extras::default() })
}

#[test]
fn names_of_one_link_or_special_file_are_one_again() {
    let fixture = Fixture::new();
    let null = DeviceNumber { major: 1, minor: 3, ..DeviceNumber::default() };
    let mut kinds = vec![
        ("fifo", special(&fixture, SpecialKind::Fifo, None)),
        ("link", fixture.link("link", "some/where")),
        ("socket", special(&fixture, SpecialKind::Socket, None)),
    ];
    if is_root() {
        kinds.push(("null", special(&fixture, SpecialKind::CharDevice, Some(null))));
    }
    let list = |number: usize| {
        let entries = kinds.iter().enumerate();
        let entries = entries
            .map(|(inode, (name, entry))| named(entry, &format!("{name}{number}"), inode as u64 + 1, 3));
        let mut entries = entries.collect::<Vec<_>>();
        entries.sort_by(DirEntry::listing_order);
        entries
    };
    let sub = fixture.directory("sub", &list(1));
    let mut others = [list(2), list(3)].concat();
    others.sort_by(DirEntry::listing_order);
    let root = fixture.directory("root", &[vec![sub], others].concat());
    let target = fixture.path("target");
    let stat = |name: &str| fs::symlink_metadata(target.join(name)).unwrap();
    for (atomic, existing_files) in
        [(false, Existing::Replace), (true, Existing::Replace), (false, Existing::Update)]
    {
        let options = RestoreOptions { atomic, existing_files, ..RestoreOptions::new(&target) };
        let report = fixture.restore_with(&root, &options).unwrap();
        assert_eq!(report.files, 3 * kinds.len() as u64, "{report:?}");
        for (name, _) in &kinds {
            let one = stat(&format!("sub/{name}1"));
            assert_eq!((one.nlink(), one.mtime_nsec()), (3, 123_456_789), "{name}");
            for other in 2..4 {
                assert_eq!(one.ino(), stat(&format!("{name}{other}")).ino(), "{name}");
            }
        }
        assert!(stat("fifo2").file_type().is_fifo() && stat("socket2").file_type().is_socket());
        assert_eq!(fs::read_link(target.join("link3")).unwrap(), Path::new("some/where"));
    }
}

#[test]
fn another_name_of_a_link_that_cannot_be_made_is_missing_too() {
    let fixture = Fixture::new();
    let lost =
        DirEntry { object: "00112233445566778899aabbccddeeff".into(), ..fixture.link("link", "anywhere") };
    let root = fixture.directory("root", &[named(&lost, "a", 1, 2), named(&lost, "b", 1, 2)]);
    let (_, mut paths) = failures(fixture.restore(&root, &fixture.path("target")));
    paths.sort();
    assert_eq!(paths, ["a", "b"]);
}

/// A number that the file system gave to another file in the middle of a backup.
#[test]
fn what_is_of_another_kind_is_another_file() {
    let fixture = Fixture::new();
    let pipe = named(&special(&fixture, SpecialKind::Fifo, None), "a pipe", 1, 2);
    let file = named(&fixture.file("file", b"content"), "file", 1, 2);
    let root = fixture.directory("root", &[pipe, file]);
    let target = fixture.path("target");
    fixture.restore(&root, &target).unwrap();
    assert_eq!(fs::read(target.join("file")).unwrap(), b"content");
}

/// More than are kept in memory; of half of them the second name is not restored and never comes.
#[test]
fn thousands_of_files_whose_other_names_come_late_or_never_are_one_again() {
    const FILES: u64 = 30_000;
    let fixture = Fixture::new();
    let content = fixture.file("x", b"content");
    let folder = |prefix: &str, first: u64| {
        let entries = (first..first + 1000).map(|n| named(&content, &format!("{prefix}{n:05}"), n + 1, 2));
        fixture.directory(&format!("folder {first:05}"), &entries.collect::<Vec<_>>())
    };
    let folders = |name: &str, first: u64| {
        let folders: Vec<_> = (first..first + FILES / 2).step_by(1000).map(|n| folder(name, n)).collect();
        folders
    };
    let all = [folders("first", 0), folders("first", FILES / 2)].concat();
    let root = fixture.directory(
        "root",
        &[
            fixture.directory("a", &all),
            fixture.directory("b", &folders("second", 0)),
            fixture.directory("c", &folders("second", FILES / 2)),
        ],
    );
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let target = folder.path().join("target");
    let filter = PathFilter::new(&[][..] as &[&str], &["c"]);
    let options = RestoreOptions { filter, ..RestoreOptions::new(&target) };
    let report = fixture.restore_with(&root, &options).unwrap();
    assert_eq!(report.files, FILES / 2 * 3);
    for number in 0..FILES {
        let folder = number / 1000 * 1000;
        let first = fs::metadata(target.join(format!("a/folder {folder:05}/first{number:05}"))).unwrap();
        let second = fs::metadata(target.join(format!("b/folder {folder:05}/second{number:05}")));
        match number < FILES / 2 {
            true => assert_eq!((first.ino(), first.nlink()), (second.unwrap().ino(), 2), "{number}"),
            false => assert!(second.is_err() && first.nlink() == 1, "{number}"),
        }
    }
    assert_eq!(fs::read_dir(&target).unwrap().count(), 2, "nothing else is left");
}

/// What it was decided by is not what it is when it is written to.
#[test]
fn an_update_does_not_write_through_a_name_that_a_file_got_since_it_was_looked_at() {
    let fixture = Fixture::new();
    let target = fixture.path("target");
    let there = fixture.file("file", b"as it was");
    let first = fixture.directory("root", std::slice::from_ref(&there));
    fixture.restore(&first, &target).unwrap();
    // The file is found to be there; it is found to be another one, and will be written to; it gets another name.
    let entries = [
        named(&there, "file", 1, 3),
        fixture.file("file", &noise(1, 9 << 20)),
        named(&there, "precious", 1, 3),
    ];
    let root = fixture.directory("root", &entries);
    let options = RestoreOptions { existing_files: Existing::Update, ..RestoreOptions::new(&target) };
    let (_, paths) = failures(fixture.restore_with(&root, &options));
    assert_eq!(paths, ["file"]);
    for name in ["file", "precious"] {
        assert_eq!(fs::read(target.join(name)).unwrap(), b"as it was", "{name}");
    }
}

#[test]
fn an_update_that_fails_leaves_a_file_with_several_names_as_it_was() {
    let fixture = Fixture::new();
    let target = fixture.path("target");
    let root = fixture.directory("root", &[fixture.file("file", b"as it was")]);
    fixture.restore(&root, &target).unwrap();
    fs::hard_link(target.join("file"), fixture.path("other")).unwrap();
    let lost = DirEntry {
        object: "00112233445566778899aabbccddeeff".into(),
        ..fixture.file("file", &noise(1, 10_000))
    };
    let root = fixture.directory("root", &[lost]);
    let options = RestoreOptions { existing_files: Existing::Update, ..RestoreOptions::new(&target) };
    let (_, paths) = failures(fixture.restore_with(&root, &options));
    assert_eq!(paths, ["file"]);
    assert_eq!(fs::read(target.join("file")).unwrap(), b"as it was");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 1, "nothing else is left");
}
