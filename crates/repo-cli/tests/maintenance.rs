//! Maintenance by the command line.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::Result;
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::{Compare, TreeSpec, assert_same};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

const PASSWORD: &str = "correct horse battery staple";
const IDENTITY: [&str; 2] = ["--override-username=u", "--override-hostname=h"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn bytes_below(folder: &Path) -> u64 {
    let children = std::fs::read_dir(folder).unwrap().map(|child| child.unwrap());
    let size = |child: std::fs::DirEntry| match child.path().is_dir() {
        true => bytes_below(&child.path()),
        false => child.metadata().unwrap().len(),
    };
    children.map(size).sum()
}

#[test]
fn the_plan_is_shown_first_and_what_is_not_needed_is_freed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [kept, doomed, repository, target] =
        ["kept", "doomed", "repository", "target"].map(|name| folder.path().join(name));
    TreeSpec::small(1).grow(&kept)?;
    std::fs::create_dir(&doomed)?;
    std::fs::write(doomed.join("large"), vec![7; 3 << 20])?;
    let ours = Ours::new(PASSWORD)?;
    ours.create_filesystem(&repository, &IDENTITY)?;
    let stays = ours.snapshot(&kept, &[])?;
    let goes = ours.snapshot(&doomed, &[])?;
    ours.run(["snapshot", "delete", &goes.id, "--delete"])?;
    // The index counts whole seconds, and only what was deleted before the present one is forgotten.
    std::thread::sleep(Duration::from_secs(2));

    let before = bytes_below(&repository);
    let plan = text(&ours.run(["maintenance", "run", "--full", "--safety=none", "--dry-run"])?.stdout);
    assert!(plan.starts_with("plan of full maintenance") && plan.contains("snapshot-gc: planned"), "{plan}");
    assert_eq!(bytes_below(&repository), before, "a plan changes nothing");
    let careful = text(&ours.run(["maintenance", "run", "--full"])?.stdout);
    assert!(careful.contains("later: ") && bytes_below(&repository) + 500 > before, "{careful}");
    let done = text(&ours.run(["maintenance", "run", "--full", "--safety=none", "--rewrite-mb=500"])?.stdout);
    assert!(done.contains("blobs deleted: ") && bytes_below(&repository) < before, "{done}");
    let auto = text(&ours.run(["maintenance", "run"])?.stdout);
    assert!(auto.contains("not due before"), "{auto}");
    let info = text(&ours.run(["maintenance", "info"])?.stdout);
    assert!(info.contains("Owner: u@h") && info.contains("snapshot-gc: 2 runs"), "{info}");

    // Two runs on one machine are kept apart, whoever they are by.
    let mut lock = ours.config_file().into_os_string();
    lock.push(".mlock");
    let lock = File::options().append(true).create(true).open(lock)?;
    lock.lock()?;
    let refused = ours.try_run(["maintenance", "run", "--full"])?;
    assert!(!refused.status.success() && text(&refused.stderr).contains("running already"), "{refused:?}");
    drop(lock);

    // Only the owner runs it.
    ours.run(["maintenance", "set", "--owner=alice@elsewhere"])?;
    let refused = ours.try_run(["maintenance", "run", "--full"])?;
    assert!(!refused.status.success() && text(&refused.stderr).contains("alice@elsewhere"), "{refused:?}");
    ours.run(["maintenance", "set", "--owner=me"])?;
    ours.run(["maintenance", "run", "--quick"])?;

    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(&repository, &IDENTITY)?;
    kopia.run(["maintenance", "info"])?;
    kopia.verify_contents()?;
    kopia.verify_snapshots()?;
    kopia.restore(&stays.root.obj, &target)?;
    assert_same(&kept, &target, Compare::kept_by_kopia())?;
    Ok(())
}

#[test]
fn force_tolerates_lost_packs_and_no_other_failure() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [source, repository] = ["source", "repository"].map(|name| folder.path().join(name));
    TreeSpec::small(1).grow(&source)?;
    let ours = Ours::new(PASSWORD)?;
    ours.create_filesystem(&repository, &["--flat", IDENTITY[0], IDENTITY[1]])?;
    ours.snapshot(&source, &[])?;
    let blobs = || -> Vec<_> {
        let files = std::fs::read_dir(&repository).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files
    };
    let first = |prefix: &str| {
        let starts =
            |path: &&std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
        blobs().iter().find(starts).unwrap().clone()
    };
    let run = ["maintenance", "run", "--full", "--safety=none", "--force"];

    // A pack with data is lost: kopia does not notice, and scripts that it runs in go on.
    std::fs::remove_file(first("p"))?;
    assert!(!ours.try_run(&run[..4])?.status.success());
    let said = text(&ours.run(run)?.stdout);
    assert!(said.contains("in the way: pack p"), "{said}");

    // A part of the index cannot be read: nobody knows what it holds, except whoever has read it before.
    ours.run(["cache", "clear"])?;
    let index = first("xn");
    let sound = std::fs::read(&index)?;
    std::fs::write(&index, b"garbage that is long enough to be an index blob, and is none at all")?;
    let failed = ours.try_run(run)?;
    assert!(!failed.status.success() && text(&failed.stdout).contains("in the way"), "{failed:?}");
    std::fs::write(&index, sound)?;

    // The storage fails.
    let schedule = first("kopia.maintenance");
    std::fs::remove_file(&schedule)?;
    std::fs::create_dir(&schedule)?;
    assert!(!ours.try_run(run)?.status.success());
    Ok(())
}
