//! What happens to what is there: policies, filters, extras, updates in place, verification.

use crate::fixture::{Fixture, failures, noise};
use lifeboat_kopia::snapshot::{DirEntry, Extras, GoMode, HardLink};
use lifeboat_testkit::tree::{Compare, TreeSpec, assert_same};
use lifeboat_uploader::{Existing, PathFilter, RestoreOptions};
use rustix::process::geteuid;
use rustix::thread::{Uid, set_thread_uid};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

fn with(target: &Path, existing: Existing) -> RestoreOptions {
    RestoreOptions { existing_files: existing, existing_links: existing, ..RestoreOptions::new(target) }
}

fn set_time(path: &Path, time: SystemTime) {
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// A target with an old and a new file, a link and something extra, and a snapshot with other files of these names.
fn clash(fixture: &Fixture) -> (DirEntry, std::path::PathBuf) {
    let target = fixture.path("target");
    let _ = fs::remove_dir_all(&target);
    fs::create_dir_all(target.join("sub")).unwrap();
    for name in ["old", "newer", "sub/inner"] {
        fs::write(target.join(name), "there before").unwrap();
    }
    set_time(&target.join("old"), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    set_time(&target.join("sub/inner"), SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    symlink("there before", target.join("zlink")).unwrap();
    let sub = fixture.directory("sub", &[fixture.file("inner", b"from the snapshot")]);
    let entries = [
        sub,
        fixture.file("absent", b"from the snapshot"),
        fixture.file("newer", b"from the snapshot"),
        fixture.file("old", b"from the snapshot"),
        fixture.link("zlink", "from the snapshot"),
    ];
    (fixture.directory("root", &entries), target)
}

/// Which files came from the snapshot: the link last.
fn from_snapshot(target: &Path) -> Vec<bool> {
    let mut came: Vec<bool> = ["absent", "newer", "old", "sub/inner"]
        .iter()
        .map(|name| fs::read(target.join(name)).unwrap() == b"from the snapshot")
        .collect();
    came.push(fs::read_link(target.join("zlink")).unwrap() == Path::new("from the snapshot"));
    came
}

#[test]
fn every_policy_does_what_it_says() {
    let fixture = Fixture::new();
    for (policy, expected) in [
        (Existing::Replace, [true, true, true, true, true]),
        (Existing::Update, [true, true, true, true, true]),
        (Existing::Skip, [true, false, false, false, false]),
        (Existing::KeepNewer, [true, false, true, true, false]),
        (Existing::Fail, [true, false, false, false, false]),
    ] {
        let (root, target) = clash(&fixture);
        let outcome = fixture.restore_with(&root, &with(&target, policy));
        if policy == Existing::Fail {
            let (report, mut paths) = failures(outcome);
            paths.sort();
            assert_eq!(paths, ["newer", "old", "sub/inner", "zlink"]);
            assert_eq!(report.files, 1);
        } else {
            let kept = expected.iter().filter(|came| !**came).count() as u64;
            assert_eq!(outcome.unwrap().skipped, kept, "{policy:?}");
        }
        assert_eq!(from_snapshot(&target), expected, "{policy:?}");
    }
    let (root, target) = clash(&fixture);
    let options = RestoreOptions { overwrite_directories: false, ..RestoreOptions::new(&target) };
    let (_, paths) = failures(fixture.restore_with(&root, &options));
    assert_eq!(paths, ["sub"]);
}

#[test]
fn what_is_extra_goes_only_where_it_shall() {
    let fixture = Fixture::new();
    let (root, target) = clash(&fixture);
    fs::create_dir_all(target.join("extra/deep/er")).unwrap();
    fs::write(target.join("extra/deep/er/file"), "x").unwrap();
    fs::write(target.join("sub/extra"), "x").unwrap();
    symlink("/", target.join("extra/root")).unwrap();
    fs::create_dir(target.join("keep")).unwrap();
    fixture.restore(&root, &target).unwrap();
    assert!(target.join("extra/deep/er/file").exists() && target.join("sub/extra").exists());
    let options = RestoreOptions {
        delete_extra: true,
        filter: PathFilter::new(&[][..] as &[&str], &["keep"]),
        ..RestoreOptions::new(&target)
    };
    let report = fixture.restore_with(&root, &options).unwrap();
    assert_eq!(report.deleted, 6);
    assert!(!target.join("extra").exists() && !target.join("sub/extra").exists());
    assert!(target.join("keep").exists() && Path::new("/").exists());
    assert_eq!(from_snapshot(&target), [true; 5]);
}

#[test]
fn what_the_filter_leaves_alone_stays_also_in_a_directory_that_goes() {
    let fixture = Fixture::new();
    let target = fixture.path("target");
    for folder in ["extra/deep", "file"] {
        fs::create_dir_all(target.join(folder)).unwrap();
    }
    for file in ["extra/deep/kept", "extra/deep/other", "extra/other", "file/kept"] {
        fs::write(target.join(file), "there before").unwrap();
    }
    let root = fixture.directory("root", &[fixture.file("file", b"content")]);
    let options = RestoreOptions {
        delete_extra: true,
        filter: PathFilter::new(&[][..] as &[&str], &["**/kept"]),
        ..RestoreOptions::new(&target)
    };
    let (report, paths) = failures(fixture.restore_with(&root, &options));
    assert_eq!((paths, report.deleted), (vec!["file".to_owned()], 2), "a file cannot take the place");
    for (file, stays) in [("deep/kept", true), ("deep/other", false), ("other", false)] {
        assert_eq!(target.join("extra").join(file).exists(), stays, "{file}");
    }
    assert_eq!(fs::read(target.join("file/kept")).unwrap(), b"there before");
}

#[test]
fn files_and_directories_take_each_others_place() {
    let fixture = Fixture::new();
    let target = fixture.path("target");
    fs::create_dir_all(target.join("file/full")).unwrap();
    fs::write(target.join("sub"), "a file").unwrap();
    let sub = fixture.directory("sub", &[fixture.file("inner", b"inner")]);
    let root = fixture.directory("root", &[sub, fixture.file("file", b"content")]);
    let (_, paths) = failures(fixture.restore(&root, &target));
    assert_eq!(paths, ["file"], "a directory goes only if extras may");
    assert_eq!(fs::read(target.join("sub/inner")).unwrap(), b"inner");
    let options = RestoreOptions { delete_extra: true, ..RestoreOptions::new(&target) };
    fixture.restore_with(&root, &options).unwrap();
    assert_eq!(fs::read(target.join("file")).unwrap(), b"content");
}

#[test]
fn only_what_is_wanted_is_restored_and_only_directories_on_the_way() {
    let fixture = Fixture::new();
    let leaf =
        |name: &str| fixture.directory(name, &[fixture.file("a.rs", b"a"), fixture.file("b.txt", b"b")]);
    let deep = fixture.directory("deep", &[leaf("one"), leaf("two")]);
    let root = fixture.directory("root", &[deep, leaf("empty"), leaf("top"), fixture.file("c.rs", b"c")]);
    let list = |include: &[&str], exclude: &[&str]| {
        let target = fixture.path("target");
        let filter = PathFilter::new(include, exclude);
        fixture.restore_with(&root, &RestoreOptions { filter, ..RestoreOptions::new(&target) }).unwrap();
        let mut found = Vec::new();
        let mut pending = vec![target.clone()];
        while let Some(path) = pending.pop() {
            for entry in fs::read_dir(&path).unwrap() {
                let path = entry.unwrap().path();
                found.push(path.strip_prefix(&target).unwrap().to_str().unwrap().to_owned());
                if path.is_dir() {
                    pending.push(path);
                }
            }
        }
        fs::remove_dir_all(&target).unwrap();
        found.sort();
        found
    };
    assert_eq!(list(&["deep/one/a.rs"], &[]), ["deep", "deep/one", "deep/one/a.rs"]);
    assert_eq!(list(&["top"], &["**/*.txt"]), ["top", "top/a.rs"]);
    assert_eq!(
        list(&["**/*.rs"], &["deep/two", "empty"]),
        ["c.rs", "deep", "deep/one", "deep/one/a.rs", "top", "top/a.rs"]
    );
    assert_eq!(list(&[], &["deep", "top/*", "empty/*"]), ["c.rs", "empty", "top"]);
    assert_eq!(list(&["no/such"], &[]), [""; 0]);
}

#[test]
fn an_update_reads_and_writes_only_what_differs_and_keeps_the_file() {
    let fixture = Fixture::new();
    let data = noise(1, 60 << 20);
    let root = fixture.directory("root", &[fixture.file("disk", &data), fixture.file("small", b"small")]);
    let target = fixture.path("target");
    fixture.restore(&root, &target).unwrap();
    let disk = target.join("disk");
    let inode = fs::metadata(&disk).unwrap().ino();
    let same = fixture.restore_with(&root, &with(&target, Existing::Update)).unwrap();
    assert_eq!((same.skipped, same.read_bytes), (2, 0));
    let file = File::options().write(true).open(&disk).unwrap();
    file.write_all_at(b"changed", 30 << 20).unwrap();
    file.set_len(50 << 20).unwrap();
    drop(file);
    let changed = fixture.restore_with(&root, &with(&target, Existing::Update)).unwrap();
    assert!(fs::read(&disk).unwrap() == data);
    assert_eq!(fs::metadata(&disk).unwrap().ino(), inode);
    assert!(changed.kept_bytes > 30 << 20 && changed.read_bytes < 30 << 20, "{changed:?}");
    // Longer than it was, with the right beginning.
    File::options().append(true).open(&disk).unwrap().write_all_at(&[9; 1000], 60 << 20).unwrap();
    let longer = fixture.restore_with(&root, &with(&target, Existing::Update)).unwrap();
    assert!(fs::read(&disk).unwrap() == data && longer.read_bytes == 0, "{longer:?}");
}

#[test]
fn an_update_does_not_write_through_a_further_name() {
    let fixture = Fixture::new();
    let target = fixture.path("target");
    fs::create_dir(&target).unwrap();
    fs::write(fixture.path("precious"), "precious").unwrap();
    fs::hard_link(fixture.path("precious"), target.join("file")).unwrap();
    let root = fixture.directory("root", &[fixture.file("file", b"content")]);
    fixture.restore_with(&root, &with(&target, Existing::Update)).unwrap();
    assert_eq!(fs::read(target.join("file")).unwrap(), b"content");
    assert_eq!(fs::read(fixture.path("precious")).unwrap(), b"precious");
}

/// What has the bytes and the time of the snapshot's file may be somebody else's file all the same, if it has more names.
#[test]
fn an_update_changes_no_attributes_through_a_further_name() {
    let fixture = Fixture::new();
    let target = fixture.path("target");
    let extras = Extras {
        hard_link: Some(HardLink { inode: 5, file_system: 0, names: 2, ..HardLink::default() }),
        ..Extras::default()
    };
    let entry = DirEntry { extras: Some(Box::new(extras)), ..fixture.file("file", b"content") };
    let root = fixture.directory("root", std::slice::from_ref(&entry));
    fixture.restore(&root, &target).unwrap();
    let (file, other) = (target.join("file"), fixture.path("other"));
    fs::hard_link(&file, &other).unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    fixture.restore_with(&root, &with(&target, Existing::Update)).unwrap();
    assert_eq!(inode(&file), inode(&other), "nothing was to be done");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    fixture.restore_with(&root, &with(&target, Existing::Update)).unwrap();
    assert_ne!(inode(&file), inode(&other));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&file), mode(&other)), (0o644, 0o600));
}

/// As many programs leave them: the owner may write to a file only after changing its mode.
#[test]
fn an_update_by_the_owner_writes_to_files_that_their_mode_protects() {
    let fixture = Fixture::new();
    let target = fixture.path("target");
    let somebody = if geteuid().is_root() { 65_534 } else { geteuid().as_raw() };
    let (mode, uid, gid) = (GoMode::from_unix(0o400), somebody, somebody);
    let root =
        fixture.directory("root", &[DirEntry { mode, uid, gid, ..fixture.file("file", &noise(1, 9 << 20)) }]);
    let root = DirEntry { uid, gid, ..root };
    fixture.restore(&root, &target).unwrap();
    let file = target.join("file");
    let inode = fs::metadata(&file).unwrap().ino();
    let changed = File::options().write(true).open(&file);
    match changed {
        Ok(file) => file.write_all_at(b"changed", 1 << 20).unwrap(),
        Err(_) => {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            fs::write(&file, "changed").unwrap();
        }
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            if geteuid().is_root() {
                // Of this thread only, and of those that it starts.
                set_thread_uid(Uid::from_raw(somebody)).unwrap();
            }
            fixture.restore_with(&root, &with(&target, Existing::Update)).unwrap();
        });
    });
    assert!(fs::read(&file).unwrap() == noise(1, 9 << 20));
    let after = fs::metadata(&file).unwrap();
    assert_eq!((after.ino(), after.mode() & 0o7777), (inode, 0o400));
}

#[test]
fn reading_back_finds_what_is_not_the_snapshot() {
    let fixture = Fixture::new();
    let source = fixture.path("source");
    TreeSpec { exact_sizes: vec![9 << 20], ..TreeSpec::small(5) }.grow(&source).unwrap();
    let root = fixture.back_up(&source);
    let target = fixture.path("target");
    let options = RestoreOptions { verify: true, ..RestoreOptions::new(&target) };
    let report = fixture.restore_with(&root, &options).unwrap();
    assert!(report.verified_bytes >= report.bytes, "{report:?}");
    assert_same(&source, &target, Compare { hard_links: false, ..Compare::exact() }).unwrap();
    let mut pending = vec![target.clone()];
    let mut victim = None;
    while let Some(path) = pending.pop() {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                pending.push(path);
            } else if path.file_name().unwrap() == "exact-9437184" {
                victim = Some(path);
            }
        }
    }
    let victim = victim.unwrap();
    File::options().write(true).open(&victim).unwrap().write_all_at(b"!", 5 << 20).unwrap();
    let options = RestoreOptions { verify: true, ..with(&target, Existing::Skip) };
    let (report, paths) = failures(fixture.restore_with(&root, &options));
    assert_eq!(report.failed, 1);
    assert_eq!(target.join(&paths[0]), victim);
}

#[test]
fn a_single_file_is_restored_to_the_path_that_is_named() {
    let fixture = Fixture::new();
    let entry = fixture.file("its name in the snapshot", b"content");
    fixture.directory("root", std::slice::from_ref(&entry));
    fixture.restore(&entry, &fixture.path("new/folder/file")).unwrap();
    assert_eq!(fs::read(fixture.path("new/folder/file")).unwrap(), b"content");
}
