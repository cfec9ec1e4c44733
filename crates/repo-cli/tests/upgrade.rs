//! `repository upgrade`, with kopia on the other side: either begins, the other keeps out, goes on or goes back.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::{Result, ensure};
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::process;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

const PASSWORD: &str = "correct horse battery staple";
const IDENTITY: [&str; 2] = ["--override-username=u", "--override-hostname=h"];
const OWNER: &str = "--upgrade-owner-id=the-owner";
/// Nobody else is at work in these tests.
const QUICK: [&str; 4] = [
    "--io-drain-timeout=1s",
    "--allow-unsafe-upgrade",
    "--status-poll-interval=1s",
    "--max-permitted-clock-drift=1s",
];
const LIMIT: Duration = Duration::from_secs(300);

/// A repository of an old version in which both sides have taken a snapshot.
struct Place {
    folder: TempDir,
    ours: Ours,
    kopia: Kopia,
}

impl Place {
    fn new(version: &str) -> Result<Place> {
        let place =
            Place { folder: tempfile::tempdir()?, ours: Ours::new(PASSWORD)?, kopia: Kopia::new(PASSWORD)? };
        let source = place.path("source");
        std::fs::create_dir_all(source.join("below"))?;
        std::fs::write(source.join("file"), vec![7; 300_000])?;
        std::fs::write(source.join("below/deep.txt"), "deep\n")?;
        let version = format!("--format-version={version}");
        // Otherwise it would go by its own copies of the format blob for a quarter of an hour, and of listings for half
        // a minute: that is what a real upgrade waits for.
        let no_caches = ["--disable-repository-format-cache", "--max-list-cache-duration=0s"];
        let flags = [&version, no_caches[0], no_caches[1], IDENTITY[0], IDENTITY[1]];
        place.kopia.create_filesystem(&place.path("repository"), &flags)?;
        place.kopia.snapshot(&source, &[])?;
        place.connect_ours()?;
        std::fs::write(source.join("ours"), "ours\n")?;
        place.ours.snapshot(&source, &[])?;
        Ok(place)
    }

    fn connect_ours(&self) -> Result<()> {
        let path = self.path("repository");
        let path = path.to_str().unwrap();
        self.ours.run(["repository", "connect", "filesystem", "--path", path, IDENTITY[0], IDENTITY[1]])?;
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn kopia(&self, words: &[&str]) -> Result<Output> {
        let mut command: Command = self.kopia.command(words);
        command.env("KOPIA_UPGRADE_LOCK_ENABLED", "1");
        process::run(command, LIMIT)
    }

    fn kopia_ok(&self, words: &[&str]) -> Result<String> {
        let output = self.kopia(words)?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(output.status.success(), "kopia {words:?}: {said}");
        Ok(said)
    }

    fn ours(&self, words: &[&str]) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.ours.run(words)?.stdout).into_owned())
    }

    /// What it says when it refuses.
    fn ours_refused(&self, words: &[&str]) -> Result<String> {
        let output = self.ours.try_run(words)?;
        ensure!(!output.status.success(), "{words:?} succeeded");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn version(&self) -> Result<i64> {
        let status: Value = serde_json::from_str(&self.ours(&["repository", "status", "--json"])?)?;
        Ok(status["contentFormat"]["version"].as_i64().unwrap())
    }

    /// Both sides read everything, write, maintain, and read each other's.
    fn both_go_on(&self, snapshots: usize) -> Result<()> {
        let source = self.path("source");
        std::fs::write(source.join("after"), format!("{snapshots}\n"))?;
        self.ours.snapshot(&source, &[])?;
        self.kopia_ok(&["snapshot", "create", source.to_str().unwrap()])?;
        self.kopia_ok(&["maintenance", "run", "--full", "--safety=none"])?;
        self.kopia_ok(&["snapshot", "verify", "--verify-files-percent=100"])?;
        self.kopia_ok(&["content", "verify", "--full"])?;
        self.ours(&["repository", "verify"])?;
        self.ours(&["maintenance", "run", "--full", "--safety=none", "--force"])?;
        self.kopia_ok(&["snapshot", "verify", "--verify-files-percent=100"])?;
        let list: Value = serde_json::from_str(&self.ours(&["snapshot", "list", "--json", "--all"])?)?;
        assert_eq!(list.as_array().unwrap().len(), snapshots + 2);
        Ok(())
    }

    /// Fails while somebody else upgrades, on both sides.
    fn both_keep_out(&self) -> Result<()> {
        let said = self.ours_refused(&["snapshot", "list", "--upgrade-no-block"])?;
        assert!(said.contains("locked for an upgrade by \"the-owner\""), "{said}");
        let refused = self.kopia(&["snapshot", "list", "--upgrade-no-block"])?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("upgrade"), "{said}");
        Ok(())
    }
}

fn words<'a>(verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [["repository", "upgrade", verb, OWNER].as_slice(), more].concat()
}

fn begin<'a>(more: &[&'a str]) -> Vec<&'a str> {
    words("begin", &[QUICK.as_slice(), more].concat())
}

#[test]
fn what_ours_upgrades_kopia_opens_verifies_and_maintains() -> Result<()> {
    let place = Place::new("1")?;
    let refused = place.ours_refused(&["repository", "upgrade", "begin", "--io-drain-timeout=1s", OWNER])?;
    assert!(refused.contains("15 minutes"), "{refused}");
    let refused = place.ours_refused(&["repository", "upgrade", "begin"])?;
    assert!(refused.contains("--upgrade-owner-id"), "{refused}");
    let said = place.ours(&begin(&[]))?;
    assert!(said.contains("index are equal") && said.ends_with("The repository is upgraded.\n"), "{said}");
    assert_eq!(place.version()?, 3);
    let said = place.kopia_ok(&["repository", "upgrade", "validate"])?;
    assert!(said.contains("index validation succeeded"), "{said}");
    place.both_go_on(2)?;
    assert!(place.ours(&begin(&[]))?.contains("newest format version already"));
    assert!(place.kopia_ok(&begin(&[]))?.contains("already upto date"));
    Ok(())
}

#[test]
fn what_kopia_upgrades_ours_opens_verifies_and_maintains() -> Result<()> {
    let place = Place::new("1")?;
    place.kopia_ok(&begin(&[]))?;
    assert_eq!(place.version()?, 3);
    assert!(place.ours(&["repository", "upgrade", "validate"])?.contains("index are equal"));
    place.both_go_on(2)
}

#[test]
fn either_goes_on_with_what_the_other_began() -> Result<()> {
    for version in ["1", "2"] {
        let place = Place::new(version)?;
        place.ours(&begin(&["--lock-only"]))?;
        place.both_keep_out()?;
        place.kopia_ok(&begin(&[]))?;
        assert_eq!(place.version()?, 3);
        place.both_go_on(2)?;
    }
    for stop in ["--lock-only", "--commit-mode=never"] {
        let place = Place::new("1")?;
        place.kopia_ok(&begin(&[stop]))?;
        place.both_keep_out()?;
        // Whoever waits goes on when the upgrade is over.
        let waiting = place.ours.command(["snapshot", "list", "--json"]);
        let waiting = std::thread::spawn(move || process::run_ok(waiting, LIMIT));
        place.ours(&begin(&[]))?;
        assert!(!waiting.join().unwrap()?.stdout.is_empty());
        assert_eq!(place.version()?, 3);
        place.both_go_on(2)?;
    }
    Ok(())
}

#[test]
fn either_rolls_back_what_the_other_began() -> Result<()> {
    for stop in ["--lock-only", "--commit-mode=never"] {
        let place = Place::new("1")?;
        place.kopia_ok(&begin(&[stop]))?;
        assert!(place.ours_refused(&words("rollback", &[]))?.contains("--force"));
        place.ours(&words("rollback", &["--force"]))?;
        assert_eq!(place.version()?, 1);
        place.ours(&begin(&[stop]))?;
        place.kopia_ok(&words("rollback", &["--force"]))?;
        assert_eq!(place.version()?, 1);
        place.both_go_on(2)?;
        place.ours(&begin(&[]))?;
        place.kopia_ok(&["content", "verify", "--full"])?;
        place.ours(&["repository", "verify"])?;
    }
    Ok(())
}

#[test]
fn set_parameters_upgrades_at_once_on_either_side() -> Result<()> {
    let place = Place::new("1")?;
    place.ours(&["repository", "set-parameters", "--upgrade", "--max-pack-size-mb=30"])?;
    assert_eq!(place.version()?, 2);
    place.both_go_on(2)?;
    let place = Place::new("1")?;
    place.kopia_ok(&["repository", "set-parameters", "--upgrade"])?;
    assert_eq!(place.version()?, 2);
    place.both_go_on(2)?;
    assert!(place.ours_refused(&["repository", "set-parameters", "--index-version=1"])?.contains("lowered"));
    Ok(())
}
