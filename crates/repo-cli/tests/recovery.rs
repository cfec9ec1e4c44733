//! Recovery by the command line: what kopia's users would type, with ours.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::Result;
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::{Compare, TreeSpec, assert_same};
use std::path::{Path, PathBuf};

const PASSWORD: &str = "correct horse battery staple";

/// The files of the blobs whose names start with `prefix`.
fn blobs(repository: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![repository.to_owned()];
    while let Some(folder) = waiting.pop() {
        for child in std::fs::read_dir(folder).unwrap() {
            let path = child.unwrap().path();
            let name = path.strip_prefix(repository).unwrap().to_str().unwrap().replace('/', "");
            match path.is_dir() {
                true => waiting.push(path),
                false if name.starts_with(prefix) => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn index_recover_has_kopias_flags_and_brings_a_lost_index_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [source, repository, target] =
        ["source", "repository", "target"].map(|name| folder.path().join(name));
    TreeSpec::small(1).grow(&source)?;
    std::fs::create_dir(&repository)?;
    let (kopia, ours) = (Kopia::new(PASSWORD)?, Ours::new(PASSWORD)?);
    kopia.create_filesystem(&repository, &["--max-list-cache-duration=0s"])?;
    ours.connect_filesystem(&repository)?;
    let taken = kopia.snapshot(&source, &[])?;
    blobs(&repository, "x").iter().for_each(|path| std::fs::remove_file(path).unwrap());
    kopia.run(["cache", "clear"])?;

    let planned = text(&ours.run(["index", "recover"])?.stdout);
    assert!(planned.starts_with("Found ") && planned.contains("--commit"), "{planned}");
    assert!(blobs(&repository, "x").is_empty());
    let metadata = text(&ours.run(["index", "recover", "--commit", "--blob-prefixes=q"])?.stdout);
    assert!(metadata.starts_with("Recovered "), "{metadata}");
    let packs = blobs(&repository, "p");
    let name = packs[0].strip_prefix(&repository)?.to_str().unwrap().replace('/', "").replace(".f", "");
    ours.run(["index", "recover", "--commit", "--blobs", &name])?;

    // A pack that cannot be read is named; it makes the command fail unless that is asked for.
    let good = std::fs::read(&packs[0])?;
    std::fs::write(&packs[0], &good[..good.len() / 2])?;
    let failed = ours.try_run(["index", "recover", "--commit", "--parallel=2"])?;
    assert!(!failed.status.success() && text(&failed.stderr).contains(&name), "{failed:?}");
    let ignored = ours.run(["index", "recover", "--commit", "--ignore-errors"])?;
    assert!(text(&ignored.stderr).contains(&name));
    std::fs::write(&packs[0], &good)?;

    let replaced = text(&ours.run(["index", "recover", "--delete-indexes", "--commit"])?.stdout);
    assert!(replaced.contains("Deleted "), "{replaced}");
    kopia.run(["cache", "clear"])?;
    kopia.verify_contents()?;
    kopia.verify_snapshots()?;
    kopia.restore(&taken.root.obj, &target)?;
    assert_same(&source, &target, Compare::kept_by_kopia())?;
    Ok(())
}

#[test]
fn verify_names_what_is_damaged_and_repair_makes_kopia_open_it_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [source, repository] = ["source", "repository"].map(|name| folder.path().join(name));
    TreeSpec::small(2).grow(&source)?;
    let (kopia, ours) = (Kopia::new(PASSWORD)?, Ours::new(PASSWORD)?);
    ours.create_filesystem(&repository, &[])?;
    kopia.connect_filesystem(&repository, &["--max-list-cache-duration=0s"])?;
    // What there is by now, kopia may have in its cache.
    let known = blobs(&repository, "xn");
    let taken = ours.snapshot(&source, &[])?;
    let sound = text(&ours.run(["repository", "verify", "--full"])?.stdout);
    assert!(sound.starts_with("Verified "), "{sound}");
    let nothing = text(&ours.run(["repository", "repair", "--full"])?.stdout);
    assert!(nothing.contains("nothing to repair"), "{nothing}");

    // An index blob that nobody can read, and a pack that is gone.
    let index = blobs(&repository, "xn").into_iter().find(|blob| !known.contains(blob)).unwrap();
    let mut bytes = std::fs::read(&index)?;
    bytes[50] ^= 1;
    std::fs::write(&index, bytes)?;
    for path in blobs(&repository, "p") {
        std::fs::remove_file(path)?;
    }
    assert!(!kopia.try_run(["snapshot", "list"])?.status.success());
    let failed = ours.try_run(["repository", "verify"])?;
    assert!(!failed.status.success() && text(&failed.stderr).contains("index blob xn"), "{failed:?}");
    let planned = ours.try_run(["repository", "repair"])?;
    assert!(text(&planned.stdout).contains("planned: ") && index.exists(), "{planned:?}");
    let repaired = ours.try_run(["repository", "repair", "--commit"])?;
    let named = format!("snapshot {} of ", taken.id);
    assert!(!repaired.status.success() && text(&repaired.stderr).contains(&named), "{repaired:?}");
    assert!(!index.exists());

    // The next backup brings the rest back.
    kopia.run(["cache", "clear"])?;
    ours.snapshot(&source, &[])?;
    ours.run(["repository", "verify", "--full"])?;
    kopia.verify_contents()?;
    kopia.verify_snapshots()?;
    Ok(())
}
