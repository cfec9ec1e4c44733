//! Backups crossed with the real kopia: without extras, both write the same bytes for the same tree.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Place, root_object, write};
use lifeboat_repository::{Id, Repository as _};
use lifeboat_testkit::tree::TreeSpec;
use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// Both sides back the source up; the root objects, and with them the whole trees, must be the same.
fn assert_same_tree(place: &Place, what: &str) -> String {
    let theirs = place.kopia.snapshot(&place.source(), &["--force-hash=100"]).unwrap();
    let opened = place.open();
    let (ours, _) = opened.back_up(|options| {
        options.parents.clear();
        options.extras = false;
    });
    if root_object(&ours) != theirs.root.obj {
        let summary = ours.root_entry.as_ref().unwrap().summary.clone();
        let our_names: Vec<_> = opened.entries(root_object(&ours)).into_iter().map(|e| e.name).collect();
        let their_names: Vec<_> = opened.entries(&theirs.root.obj).into_iter().map(|e| e.name).collect();
        panic!(
            "{what}: our tree is not kopia's: {summary:?}\nours:   {our_names:?}\ntheirs: {their_names:?}"
        );
    }
    theirs.root.obj
}

#[test]
fn trees_of_all_kinds_become_the_same_objects() {
    let place = Place::new();
    TreeSpec::medium(1).grow(&place.source()).unwrap();
    fs::create_dir(place.source().join("empty directory")).unwrap();
    assert_same_tree(&place, "medium tree");
    place.kopia.verify_snapshots().unwrap();
}

#[test]
fn large_files_become_the_same_objects_also_in_parts_and_with_small_chunks() {
    for splitter in ["DYNAMIC-4M-BUZHASH", "DYNAMIC-128K-RABINKARP", "FIXED-1M"] {
        let place = Place::with(&["--object-splitter", splitter]);
        TreeSpec {
            exact_sizes: vec![40_000_003, (8 << 20) + 1],
            files: 0,
            sparse_sizes: vec![90 << 20],
            ..TreeSpec::small(3)
        }
        .grow(&place.source())
        .unwrap();
        assert_same_tree(&place, splitter);
        place.kopia.set_policy(&["--global", "--parallel-upload-above-size-mib=4"]).unwrap();
        assert_same_tree(&place, "in parts");
    }
}

#[test]
fn a_file_that_kopia_ends_with_an_empty_part_can_be_read() {
    let place = Place::new();
    place.kopia.set_policy(&["--global", "--parallel-upload-above-size-mib=4"]).unwrap();
    let data = lifeboat_testkit::tree::Random::new(1).bytes(8 << 20);
    write(place.source().join("file"), &data);
    let theirs = place.kopia.snapshot(&place.source(), &[]).unwrap();
    let opened = place.open();
    let file = opened.entries(&theirs.root.obj).remove(0);
    let mut reader = opened.interface.open_object(&Id::new(file.object.clone())).unwrap();
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert!(read == data, "the file is not the same");
    let (again, totals) = opened.back_up(|options| options.extras = false);
    assert_eq!((root_object(&again), totals.hashed_files), (&*theirs.root.obj, 0));
}

#[test]
fn policies_leave_out_what_kopia_leaves_out() {
    let place = Place::new();
    let top = place.source();
    for folder in ["logs/old", "cache/deep", "keep/logs", "keep/sub/deeper", "a b"] {
        fs::create_dir_all(top.join(folder)).unwrap();
        for file in ["a.log", "b.txt", "important.log", "big.bin", ".hidden", "x1", "x2"] {
            write(top.join(folder).join(file), [7; 3000]);
        }
    }
    write(top.join("big.bin"), vec![1; 200_000]);
    write(top.join("cache/CACHEDIR.TAG"), b"Signature: 8a477f597d28d172789f06886806bc55\n# comment");
    write(top.join("a b/CACHEDIR.TAG"), b"Signature: of something else, and long enough to be one");
    write(top.join(".kopiaignore"), "# rules\n\n*.log\n!important.log\n/logs/old/\n");
    write(top.join("keep/.kopiaignore"), "x?\n!x2\nsub/*/b.txt\r\n[ab].txt\n");
    symlink("../.kopiaignore", top.join("keep/logs/.kopiaignore")).unwrap();
    write(top.join("keep/sub/deeper/.kopiaignore"), "**/.hid*\n");
    assert_same_tree(&place, "rules in files");

    place.kopia.set_policy(&["--global", "--add-ignore=*.txt", "--ignore-cache-dirs=false"]).unwrap();
    assert_same_tree(&place, "rules of the global policy, caches kept");
    let keep = top.join("keep");
    let flags = [keep.to_str().unwrap(), "--add-ignore=/logs", "--max-file-size=2999"];
    place.kopia.set_policy(&flags).unwrap();
    assert_same_tree(&place, "a policy below the source");
    place.kopia.set_policy(&["--global", "--max-file-size=100000", "--one-file-system=true"]).unwrap();
    assert_same_tree(&place, "large files left out");
}

/// Something mounted below a source, gone when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(words: &[&str], point: PathBuf) -> Mounted {
        let status = Command::new("mount").args(words).arg(&point).status().unwrap();
        assert!(status.success(), "mounting takes root: run the test as root");
        Mounted(point)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn other_file_systems_are_left_out_as_kopia_leaves_them_out() {
    let place = Place::new();
    let top = place.source();
    fs::create_dir_all(top.join("folder/other")).unwrap();
    fs::create_dir(place.path("elsewhere")).unwrap();
    write(top.join("folder/file"), b"here");
    write(top.join("bound"), b"below the other one");
    let _other = Mounted::new(&["-t", "tmpfs", "tmpfs"], top.join("folder/other"));
    write(top.join("folder/other/file"), b"there");
    let _elsewhere = Mounted::new(&["-t", "tmpfs", "tmpfs"], place.path("elsewhere"));
    let bound = place.path("elsewhere/bound");
    write(&bound, b"from elsewhere");
    let _bound = Mounted::new(&["--bind", bound.to_str().unwrap()], top.join("bound"));

    let names = |root: &str| -> Vec<String> {
        let opened = place.open();
        let mut names = Vec::new();
        for entry in opened.entries(root) {
            names.push(entry.name.to_string());
            if entry.name.to_string() == "folder" {
                names.extend(opened.entries(&entry.object).iter().map(|below| below.name.to_string()));
            }
        }
        names
    };
    let root = assert_same_tree(&place, "all file systems");
    assert_eq!(names(&root), ["folder", "other", "file", "bound"]);
    place.kopia.set_policy(&["--global", "--one-file-system=true"]).unwrap();
    let root = assert_same_tree(&place, "one file system");
    assert_eq!(names(&root), ["folder", "file"]);
    // For the estimate, too.
    let (_, totals) = place.open().back_up(|options| {
        options.parents.clear();
        options.estimate = true;
    });
    assert_eq!((totals.files, totals.excluded_files, totals.excluded_directories), (1, 1, 1));
}

#[test]
fn compression_rules_give_what_kopia_reads() {
    let place = Place::new();
    TreeSpec::small(5).grow(&place.source()).unwrap();
    let names = ["text.txt", "text.dat", "large.txt"];
    let plant = |round: u8| {
        // Other bytes each time: those that the repository has are not written again.
        for (number, name) in names.iter().enumerate() {
            let length = if *name == "large.txt" { 40_000 } else { 10_000 };
            write(place.source().join(name), format!("all the same {round} {number} ").repeat(length));
        }
    };
    let compressed = || -> Vec<bool> {
        let opened = place.open();
        let (snapshot, _) = opened.back_up(|_| {});
        let of = |name: &&str| opened.compressions(&opened.entry(&snapshot, name).object);
        let all_alike = |contents: Vec<u32>| {
            assert!(!contents.is_empty() && contents.iter().all(|it| (*it == 0) == (contents[0] == 0)));
            contents[0] != 0
        };
        names.iter().map(of).map(all_alike).collect()
    };
    let rules: [(&[&str], [bool; 3]); 5] = [
        (&["--compression=zstd"], [true, true, true]),
        (&["--add-never-compress=.dat"], [true, false, true]),
        (&["--compression-max-size=400000"], [true, false, false]),
        (&["--compression-max-size=0", "--compression-min-size=400000"], [false, false, true]),
        (
            &["--compression-min-size=0", "--clear-never-compress", "--add-only-compress=.dat"],
            [false, true, false],
        ),
    ];
    for (round, (flags, expected)) in rules.into_iter().enumerate() {
        place.kopia.set_policy(&[&["--global"], flags].concat()).unwrap();
        plant(round as u8);
        assert_eq!(compressed(), expected, "{flags:?}");
    }
    place.kopia.verify_snapshots().unwrap();
    place.kopia.verify_contents().unwrap();
    assert_same_tree(&place, "compressed");
}

#[test]
fn each_side_takes_unchanged_files_over_from_the_other() {
    let place = Place::new();
    let grown = TreeSpec::small(7).grow(&place.source()).unwrap();
    let theirs = place.kopia.snapshot(&place.source(), &[]).unwrap();
    let opened = place.open();
    let (ours, totals) = opened.back_up(|options| options.extras = false);
    let entries = (grown.files + grown.symlinks) as u64;
    assert_eq!((totals.cached_files, totals.hashed_files), (entries, 0));
    assert_eq!(root_object(&ours), theirs.root.obj);

    write(place.source().join("new file"), b"new");
    let (ours, totals) = opened.back_up(|_| {});
    assert_eq!((totals.cached_files, totals.hashed_files), (entries, 1));
    drop(opened);
    place.kopia.snapshot(&place.source(), &[]).unwrap();
    let listed: serde_json::Value = place.kopia.json(["snapshot", "list", "--json", "--all"]).unwrap();
    let theirs = listed.as_array().unwrap().last().unwrap();
    assert_eq!(theirs["stats"]["cachedFiles"], entries + 1);
    assert_ne!(theirs["rootEntry"]["obj"], root_object(&ours), "the extras make a difference");
}
