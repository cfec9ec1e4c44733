//! Restores by somebody who is not root.

use crate::fixture::{Fixture, failures, noise, with_extras};
use lifeboat_kopia::gojson::Base64;
use lifeboat_kopia::snapshot::{DirEntry, Extras, GoMode, XattrName};
use lifeboat_repository::Repository as _;
use lifeboat_uploader::{Existing, RestoreOptions, RestoreReport, Result};
use rustix::fs::XattrFlags;
use rustix::process::geteuid;
use rustix::thread::{Uid, set_thread_uid};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;

/// Somebody who is not root, who is the one who runs the test if that is not root.
fn somebody() -> u32 {
    if geteuid().is_root() { 65_534 } else { geteuid().as_raw() }
}

/// Restores as somebody into a folder of theirs.
fn restore(fixture: &Fixture, root: &DirEntry, options: &RestoreOptions) -> Result<RestoreReport> {
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    if !options.target.exists() {
        fs::create_dir(&options.target).unwrap();
        own(&options.target);
    }
    // Local files of the repository are not theirs: what it has to write there, it writes before.
    fixture.repository.flush().unwrap();
    thread::scope(|scope| {
        let restoring = scope.spawn(|| {
            if geteuid().is_root() {
                // Of this thread only, and of those that it starts.
                set_thread_uid(Uid::from_raw(somebody())).unwrap();
            }
            fixture.restore_with(root, options)
        });
        restoring.join().unwrap()
    })
}

fn own(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(somebody()), None).unwrap();
    }
}

/// Entries that belong to somebody, with such a mode.
fn owned(entry: DirEntry, mode: u32) -> DirEntry {
    DirEntry { uid: somebody(), mode: GoMode::from_unix(mode), ..entry }
}

#[test]
fn files_whose_mode_protects_them_get_attributes_that_only_who_may_write_can_set() {
    let fixture = Fixture::new();
    let marked = |entry: DirEntry, mode: u32| {
        let value = Base64(b"a value".to_vec());
        let xattrs = [(XattrName(b"user.note".to_vec()), value)].into();
        owned(with_extras(entry, Extras { xattrs, ..Extras::default() }), mode)
    };
    let entries = [
        marked(fixture.directory("folder", &[owned(fixture.file("inner", b"x"), 0o444)]), 0o500),
        marked(fixture.file("large", &noise(1, 9 << 20)), 0o444),
        marked(fixture.file("small", b"content"), 0o400),
    ];
    let root = owned(fixture.directory("root", &entries), 0o700);
    let root = with_extras(root, Extras { recorded: true, ..Extras::default() });
    let target = fixture.path("target");
    let modes = [("folder", 0o500), ("large", 0o444), ("small", 0o400)];
    for existing_files in [Existing::Replace, Existing::Update] {
        let options = RestoreOptions { existing_files, ..RestoreOptions::new(&target) };
        restore(&fixture, &root, &options).unwrap();
        for (name, mode) in modes {
            let path = target.join(name);
            let mut value = [0; 20];
            let length = rustix::fs::getxattr(&path, "user.note", &mut value[..]);
            assert_eq!(length.map(|length| &value[..length]), Ok(&b"a value"[..]), "{name}");
            assert!(rustix::fs::getxattr(&path, "user.other", &mut [0; 8][..]).is_err(), "{name}");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode, "{name}");
            // The next round finds other ones.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            rustix::fs::setxattr(&path, "user.note", b"another", XattrFlags::empty()).unwrap();
            rustix::fs::setxattr(&path, "user.other", b"other", XattrFlags::empty()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    // Modes that are not restored are left alone all the same.
    let options = RestoreOptions {
        existing_files: Existing::Update,
        permissions: false,
        ..RestoreOptions::new(&target)
    };
    restore(&fixture, &root, &options).unwrap();
    for (name, mode) in modes {
        assert_eq!(fs::metadata(target.join(name)).unwrap().mode() & 0o7777, mode, "{name}");
        assert!(rustix::fs::getxattr(target.join(name), "user.other", &mut [0; 8][..]).is_err(), "{name}");
    }
}

#[test]
fn reading_back_changes_nothing_and_says_what_it_may_not_read() {
    let fixture = Fixture::new();
    let secret = owned(fixture.file("secret", b"content"), 0o200);
    let root = owned(fixture.directory("root", &[owned(fixture.file("other", b"x"), 0o400), secret]), 0o700);
    let options = RestoreOptions { verify: true, ..RestoreOptions::new(fixture.path("target")) };
    let (report, paths) = failures(restore(&fixture, &root, &options));
    assert_eq!(paths, ["secret"], "{report:?}");
    assert!(report.failures[0].denied);
    let metadata = fs::metadata(fixture.path("target/secret")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.len()), (0o200, 7));
}

/// The kernel takes the bit from a file whose mode is changed by an owner who is not of its group.
#[test]
fn a_file_that_runs_as_its_group_does_not_lose_that_to_an_update() {
    let fixture = Fixture::new();
    let root =
        owned(fixture.directory("root", &[owned(fixture.file("file", b"what it should be"), 0o2410)]), 0o700);
    let target = fixture.path("target");
    fs::create_dir(&target).unwrap();
    own(&target);
    let file = target.join("file");
    fs::write(&file, "what it is").unwrap();
    let group = if geteuid().is_root() { 12_345 } else { fs::metadata(&file).unwrap().gid() };
    chown(&file, Some(somebody()), Some(group)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o2410)).unwrap();
    let options = RestoreOptions { existing_files: Existing::Update, ..RestoreOptions::new(&target) };
    let (_, paths) = failures(restore(&fixture, &root, &options));
    assert_eq!(paths, ["file"]);
    assert_eq!(fs::read(&file).unwrap(), b"what it is");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o2410);
}
