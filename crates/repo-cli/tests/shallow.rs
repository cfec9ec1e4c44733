//! Shallow restores: placeholders that either program writes, replaces and backs up.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::Result;
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::{Compare, Random, assert_same};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const PASSWORD: &str = "correct horse battery staple";
const IDENTITY: [&str; 2] = ["--override-username=u", "--override-hostname=h"];
/// Kopia gives the placeholder of a directory the newest time found below it, as it does with directories.
const BESIDE_KOPIA: Compare = Compare {
    modes: true,
    owners: true,
    file_times: false,
    link_times: false,
    directory_times: false,
    top: false,
    hard_links: false,
};

/// A repository with a snapshot of `source`, and a user of each program.
struct Place {
    folder: TempDir,
    ours: Ours,
    kopia: Kopia,
    id: String,
    root: String,
}

impl Place {
    fn new() -> Result<Place> {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("source");
        fs::create_dir_all(source.join("below/deep/deeper"))?;
        fs::create_dir(source.join("empty"))?;
        let mut random = Random::new(7);
        for (name, length) in [
            ("file", 5000),
            ("none", 0),
            ("below/large", 9 << 20),
            ("below/deep/x", 10),
            ("below/deep/deeper/y", 3000),
        ] {
            fs::write(source.join(name), random.bytes(length))?;
        }
        fs::set_permissions(source.join("file"), fs::Permissions::from_mode(0o750))?;
        fs::set_permissions(source.join("below"), fs::Permissions::from_mode(0o711))?;
        std::os::unix::fs::symlink("nowhere", source.join("link"))?;
        // Kopia rounds the times of links.
        let time = Timespec { tv_sec: 1_700_000_000, tv_nsec: 123_000_000 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, source.join("link"), &times, AtFlags::SYMLINK_NOFOLLOW)?;
        // Kopia takes the newest time below a directory for its own: here they are the same.
        for name in [
            "file",
            "none",
            "below/large",
            "below/deep/x",
            "below/deep/deeper/y",
            "below/deep/deeper",
            "below/deep",
            "below",
            "empty",
            "",
        ] {
            File::open(source.join(name))?
                .set_modified(SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123))?;
        }
        let (ours, kopia) = (Ours::new(PASSWORD)?, Kopia::new(PASSWORD)?);
        ours.create_filesystem(&folder.path().join("repository"), &IDENTITY)?;
        kopia.connect_filesystem(&folder.path().join("repository"), &IDENTITY)?;
        let taken = ours.snapshot(&source, &["--no-extras"])?;
        Ok(Place { folder, ours, kopia, id: taken.id, root: taken.root.obj })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.path("source")
    }

    /// A shallow restore by ours.
    fn shallow(&self, name: &str, flags: &[&str]) -> Result<PathBuf> {
        let path = self.path(name);
        self.ours.run([&["restore", &self.id, text(&path)], flags].concat())?;
        Ok(path)
    }

    /// The same by kopia.
    fn kopias(&self, name: &str, flags: &[&str]) -> Result<PathBuf> {
        let path = self.path(name);
        self.kopia.run([&["restore", &self.id, text(&path)], flags].concat())?;
        Ok(path)
    }

    /// What a backup of `path` by ours fails with.
    fn refused(&self, path: &Path) -> Result<String> {
        let output = self.ours.try_run(["snapshot", "create", text(path)])?;
        assert!(!output.status.success(), "the backup of {} succeeded", path.display());
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// All placeholders below a directory.
fn placeholders(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(top).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "kopia-entry") {
            found.push(path);
        } else if path.is_dir() && !path.is_symlink() {
            found.extend(placeholders(&path));
        }
    }
    found.sort();
    found
}

/// Takes out of the placeholders of directories how many bytes are below, which only kopia notes.
fn forget_sizes(top: &Path) -> Result<()> {
    for path in
        placeholders(top).into_iter().map(|path| path.join(".kopia-entry")).filter(|path| path.exists())
    {
        let mut entry: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&fs::read(&path)?)?;
        entry.remove("size");
        fs::write(path, serde_json::to_vec(&entry)?)?;
    }
    Ok(())
}

#[test]
fn both_leave_the_same_placeholders() -> Result<()> {
    let place = Place::new()?;
    for (number, flags) in [
        vec!["--shallow=0"],
        vec!["--shallow=1"],
        vec!["--shallow=2", "--shallow-minsize=100"],
        vec!["--shallow=0", "--shallow-minsize=5001"],
        vec!["--shallow=9"],
    ]
    .into_iter()
    .enumerate()
    {
        let ours = place.shallow(&format!("ours-{number}"), &flags)?;
        let kopias = place.kopias(&format!("kopias-{number}"), &flags)?;
        [&ours, &kopias].into_iter().try_for_each(|tree| forget_sizes(tree))?;
        assert_same(&ours, &kopias, BESIDE_KOPIA)?;
        assert_eq!(placeholders(&ours).is_empty(), number == 4, "{flags:?}");
    }
    let (placeholder, real) = (place.path("ours-0/file.kopia-entry"), place.source().join("file"));
    assert_eq!(fs::metadata(&placeholder)?.mode() & 0o7777, 0o550, "nobody writes to it");
    assert_eq!(fs::metadata(&placeholder)?.modified()?, fs::metadata(real)?.modified()?);
    assert_eq!(fs::metadata(place.path("ours-0/below.kopia-entry"))?.mode() & 0o7777, 0o700);
    Ok(())
}

#[test]
fn either_replaces_the_placeholders_of_the_other() -> Result<()> {
    let place = Place::new()?;
    let trees = [place.shallow("ours", &["--shallow=0"])?, place.kopias("kopias", &["--shallow=0"])?];
    // By default one level of a directory, and files as a whole.
    let below = trees.each_ref().map(|tree| tree.join("below.kopia-entry"));
    place.kopia.run(["restore", text(&below[0])])?;
    place.ours.run(["restore", text(&below[1])])?;
    let left = |tree: &PathBuf| -> Vec<PathBuf> {
        placeholders(tree).iter().map(|path| path.strip_prefix(tree).unwrap().to_owned()).collect()
    };
    assert_eq!(left(&trees[0]), left(&trees[1]));
    assert!(trees[1].join("below/deep.kopia-entry/.kopia-entry").is_file());
    assert!(!trees[1].join("below.kopia-entry").exists(), "it was replaced");
    let mut rounds = 0;
    while !placeholders(&trees[0]).is_empty() {
        for (tree, ours) in [(&trees[0], false), (&trees[1], true)] {
            let found = placeholders(tree);
            let words = ["restore", "--shallow=1"].into_iter().chain(found.iter().map(|path| text(path)));
            match ours {
                true => place.ours.run(words)?,
                false => place.kopia.run(words)?,
            };
        }
        rounds += 1;
        assert!(rounds < 5, "every round gets further down");
    }
    assert_same(&place.source(), &trees[0], BESIDE_KOPIA)?;
    // A directory changes when something in it is replaced, and the link is as kopia made it.
    let replaced = Compare { directory_times: false, link_times: false, top: false, ..Compare::exact() };
    assert_same(&place.source(), &trees[1], replaced)?;
    Ok(())
}

#[test]
fn a_backup_takes_placeholders_for_what_they_stand_for() -> Result<()> {
    let place = Place::new()?;
    let ours = place.shallow("ours", &["--shallow=0"])?;
    let kopias = place.kopias("kopias", &["--shallow=0"])?;
    assert_eq!(place.kopia.snapshot(&ours, &[])?.root.obj, place.root, "kopia, of what we left");
    assert_eq!(
        place.ours.snapshot(&kopias, &["--no-extras"])?.root.obj,
        place.root,
        "we, of what kopia left"
    );
    let deeper = place.shallow("deeper", &["--shallow=1"])?;
    for round in ["the first", "with a parent"] {
        assert_eq!(place.ours.snapshot(&deeper, &["--no-extras"])?.root.obj, place.root, "{round}");
    }

    // The tree and what it stands for are changed alike.
    let expected = place.path("expected");
    place.ours.restore(&place.id, &expected)?;
    for (tree, suffix) in [(&ours, ".kopia-entry"), (&expected, "")] {
        fs::create_dir(tree.join("new"))?;
        fs::rename(tree.join(format!("file{suffix}")), tree.join(format!("new/other name{suffix}")))?;
        fs::rename(tree.join(format!("below{suffix}")), tree.join(format!("new/moved{suffix}")))?;
        let _ = fs::remove_file(tree.join(format!("none{suffix}")));
        fs::write(tree.join("added"), "added")?;
    }
    let mixed = place.ours.snapshot(&ours, &[])?;
    place.ours.restore(&mixed.id, &place.path("full"))?;
    let changed = Compare { file_times: false, directory_times: false, top: false, ..Compare::exact() };
    assert_same(&expected, &place.path("full"), changed)?;
    place.kopia.restore(&mixed.id, &place.path("full by kopia"))?;
    assert_same(&expected, &place.path("full by kopia"), BESIDE_KOPIA)?;
    place.kopia.verify_snapshots()?;
    // A full restore into a shallow tree leaves no placeholder behind.
    place.ours.restore(&place.id, &kopias)?;
    assert_same(&place.source(), &kopias, Compare::exact())?;
    Ok(())
}

#[test]
fn placeholders_that_stand_for_nothing_are_errors_and_lose_nothing() -> Result<()> {
    let place = Place::new()?;
    let tree = place.shallow("tree", &["--shallow=0"])?;
    let whole = place.ours.snapshot(&tree, &[])?;

    fs::write(tree.join("file"), "real")?;
    let error = place.refused(&tree)?;
    assert!(error.contains("file.kopia-entry") && error.contains("is there, too"), "{error}");
    fs::remove_file(tree.join("file"))?;

    fs::write(tree.join("mine.kopia-entry"), "not an entry")?;
    let error = place.refused(&tree)?;
    assert!(error.contains("mine.kopia-entry") && error.contains("does not hold an entry"), "{error}");
    let json = fs::read_to_string(tree.join("file.kopia-entry"))?;
    let (start, object) = json.split_once("\"obj\":\"").unwrap();
    let foreign = format!("{start}\"obj\":\"{}{}", "f".repeat(32), &object[32..]);
    fs::write(tree.join("mine.kopia-entry"), foreign)?;
    let error = place.refused(&tree)?;
    assert!(error.contains("does not have its object"), "{error}");
    fs::remove_file(tree.join("mine.kopia-entry"))?;

    fs::create_dir(tree.join("mine.kopia-entry"))?;
    let error = place.refused(&tree)?;
    assert!(error.contains("mine.kopia-entry"), "{error}");
    fs::remove_dir(tree.join("mine.kopia-entry"))?;
    assert_eq!(place.ours.snapshot(&tree, &[])?.root.obj, whole.root.obj, "all is as before");

    // What is there is not covered up by a placeholder.
    let expanded = place.path("expanded");
    place.ours.restore(&place.id, &expanded)?;
    let output = place.ours.try_run(["restore", "--shallow=0", &place.id, text(&expanded)])?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("what it would stand for is there"), "{error}");
    assert_same(&place.source(), &expanded, Compare::exact())?;
    for wrong in [
        vec!["restore", text(&tree.join("file.kopia-entry")), &place.id],
        vec!["restore", text(&tree.join("gone.kopia-entry"))],
        vec!["restore", "--shallow=0", "--verify", &place.id, "x"],
        vec!["restore", "--shallow=0", &place.id, text(&place.path("x.tar"))],
    ] {
        assert!(!place.ours.try_run(&wrong)?.status.success(), "{wrong:?} succeeded");
    }
    Ok(())
}

#[test]
fn names_that_leave_no_room_for_a_placeholder_are_restored() -> Result<()> {
    let place = Place::new()?;
    let long = "n".repeat(250);
    fs::create_dir(place.source().join(&long))?;
    fs::write(place.source().join(&long).join("within"), "within")?;
    fs::write(place.source().join("f".repeat(250)), "file")?;
    let id = place.ours.snapshot(&place.source(), &[])?.id;
    let tree = place.path("tree");
    place.ours.run(["restore", "--shallow=0", &id, text(&tree)])?;
    assert!(tree.join(&long).join("within.kopia-entry").is_file(), "what is in it has one");
    assert_eq!(fs::read(tree.join("f".repeat(250)))?, b"file");
    let again = place.ours.snapshot(&tree, &[])?.id;
    place.ours.restore(&again, &place.path("full"))?;
    assert_same(&place.source(), &place.path("full"), Compare { top: false, ..Compare::exact() })?;
    Ok(())
}
