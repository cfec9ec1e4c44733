//! Actions: commands of policies that run before and after, set and run by either program.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::Result;
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const PASSWORD: &str = "correct horse battery staple";
const IDENTITY: [&str; 3] = ["--override-username=u", "--override-hostname=h", "--enable-actions"];

struct Place {
    folder: TempDir,
    ours: Ours,
    kopia: Kopia,
}

impl Place {
    fn new() -> Result<Place> {
        let place =
            Place { folder: tempfile::tempdir()?, ours: Ours::new(PASSWORD)?, kopia: Kopia::new(PASSWORD)? };
        fs::create_dir_all(place.path("source/below"))?;
        fs::write(place.path("source/file"), "original")?;
        fs::write(place.path("source/below/deep"), "deep")?;
        place.ours.create_filesystem(&place.path("repository"), &IDENTITY)?;
        place.kopia.connect_filesystem(&place.path("repository"), &IDENTITY)?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn source(&self) -> PathBuf {
        self.path("source")
    }

    /// A program that does what `text` says.
    fn script(&self, name: &str, text: &str) -> Result<String> {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path.to_str().unwrap().to_owned())
    }

    /// A program that writes its variables down, one line for each run.
    fn diary(&self, name: &str) -> Result<String> {
        let variables = "$KOPIA_ACTION $KOPIA_SOURCE_PATH $KOPIA_SNAPSHOT_PATH $1";
        let known = "${#KOPIA_SNAPSHOT_ID} ${KOPIA_VERSION:+version}";
        self.script(name, &format!("echo {variables} {known} >> {}", self.path("diary").display()))
    }

    /// What was written down since the last time.
    fn read_diary(&self) -> Vec<String> {
        let path = self.path("diary");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text.replace(text_of(&self.source()), "SOURCE").lines().map(str::to_owned).collect()
    }

    fn set(&self, target: &Path, flags: &[&str]) -> Result<()> {
        self.ours.run([&["policy", "set", text_of(target)], flags].concat()).map(drop)
    }

    fn refused(&self, words: &[&str]) -> Result<String> {
        let output = self.ours.try_run(words)?;
        assert!(!output.status.success(), "{words:?} succeeded");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn policies_hold_actions_as_kopia_writes_them() -> Result<()> {
    let place = Place::new()?;
    let script = place.script("script", "exit 0")?;
    let command = format!("--before-folder-action={script} \"two words\" plain");
    for flags in [
        vec![command.as_str(), "--action-command-timeout=90s", "--action-command-mode=optional"],
        vec!["--after-folder-action=echo done", "--action-command-mode=async"],
        vec!["--persist-action-script", &format!("--before-snapshot-root-action={script}")],
        vec!["--after-snapshot-root-action=true"],
        vec!["--before-folder-action="],
    ] {
        place.set(&place.source(), &flags)?;
        place.kopia.run([&["policy", "set", text_of(&place.path("source/below"))], &flags[..]].concat())?;
        let listed: Vec<Value> = place.kopia.json(["policy", "list", "--json"])?;
        let actions = |path: PathBuf| {
            let is_meant = |policy: &&Value| policy["target"]["path"] == text_of(&path);
            listed.iter().find(is_meant).unwrap()["actions"].clone()
        };
        assert!(actions(place.source()).as_object().is_some_and(|fields| !fields.is_empty()));
        assert_eq!(actions(place.source()), actions(place.path("source/below")), "{flags:?}");
    }
    place.set(&place.source(), &["--after-snapshot-root-action=none"])?;
    for wrong in [
        vec!["--action-command-mode=async"],
        vec!["--before-folder-action=x", "--action-command-mode=never"],
        vec!["--before-folder-action=an \"open quote"],
        vec!["--before-folder-action=/does/not/exist", "--persist-action-script"],
    ] {
        place.refused(&[&["policy", "set", text_of(&place.source())], &wrong[..]].concat())?;
    }
    Ok(())
}

#[test]
fn actions_run_in_order_and_with_the_variables_of_kopia() -> Result<()> {
    let place = Place::new()?;
    let diary = place.diary("diary.sh")?;
    let flags = ["before-snapshot-root", "after-snapshot-root", "before-folder", "after-folder"]
        .map(|name| format!("--{name}-action={diary} argument"));
    place.set(&place.source(), &flags.each_ref().map(String::as_str))?;
    let below = place.path("source/below");
    place.kopia.run(["policy", "set", text_of(&below), &flags[2], &flags[3]])?;
    place.ours.snapshot(&place.source(), &[])?;
    let ours = place.read_diary();
    assert_eq!(
        ours,
        [
            "before-snapshot-root SOURCE SOURCE argument 16 version",
            "before-folder SOURCE SOURCE argument 16 version",
            "before-folder SOURCE/below SOURCE/below argument 16 version",
            "after-folder SOURCE/below SOURCE/below argument 16 version",
            "after-folder SOURCE SOURCE argument 16 version",
            "after-snapshot-root SOURCE SOURCE argument 16 version",
        ]
    );
    place.kopia.snapshot(&place.source(), &[])?;
    assert_eq!(ours, place.read_diary());

    // Not where the connection does not allow it, unless it is insisted on.
    let careful = Ours::new(PASSWORD)?;
    careful.run(["repository", "connect", "filesystem", "--path", text_of(&place.path("repository"))])?;
    let output = careful.run([
        "snapshot",
        "create",
        "--override-source",
        &format!("u@h:{}", text_of(&place.source())),
        text_of(&place.source()),
    ])?;
    assert_eq!(place.read_diary(), [""; 0]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--enable-actions"));
    place.ours.snapshot(&place.source(), &["--force-disable-actions"])?;
    assert_eq!(place.read_diary(), [""; 0]);
    place.ours.snapshot(&place.source(), &["--force-enable-actions"])?;
    assert_eq!(place.read_diary(), ours);
    Ok(())
}

#[test]
fn an_action_has_another_directory_read() -> Result<()> {
    let place = Place::new()?;
    let frozen = place.path("frozen");
    fs::create_dir_all(frozen.join("below"))?;
    fs::write(frozen.join("file"), "frozen")?;
    let freeze = place.script("freeze", &format!("echo KOPIA_SNAPSHOT_PATH={}", frozen.display()))?;
    let diary = place.diary("diary.sh")?;
    let [before, after] = ["before", "after"];
    let flag = |when: &str, what: &str, script: &str| format!("--{when}-{what}-action={script}");
    place.set(
        &place.source(),
        &[&flag(before, "snapshot-root", &freeze), &flag(after, "snapshot-root", &diary)],
    )?;
    for restored in [place.ours.snapshot(&place.source(), &[])?, place.kopia.snapshot(&place.source(), &[])?]
    {
        let target = place.path(&format!("restored-{}", restored.id));
        place.kopia.restore(&restored.id, &target)?;
        assert_eq!(fs::read(target.join("file"))?, b"frozen");
        assert!(!target.join("below/deep").exists());
    }
    let line = format!("after-snapshot-root SOURCE {} 16 version", frozen.display());
    assert_eq!(place.read_diary(), [line.clone(), line]);

    // And one below, under its own name.
    place
        .set(&place.source(), &["--before-snapshot-root-action=none", "--after-snapshot-root-action=none"])?;
    place.set(&place.path("source/below"), &[&flag(before, "folder", &freeze)])?;
    let snapshot = place.ours.snapshot(&place.source(), &[])?;
    place.kopia.restore(&snapshot.id, &place.path("mixed"))?;
    assert_eq!(fs::read(place.path("mixed/file"))?, b"original");
    assert_eq!(fs::read(place.path("mixed/below/file"))?, b"frozen");
    let gone = place.script("gone", "echo KOPIA_SNAPSHOT_PATH=/does/not/exist")?;
    place.set(&place.path("source/below"), &[&flag(before, "folder", &gone)])?;
    let error = place.refused(&["snapshot", "create", text_of(&place.source())])?;
    assert!(error.contains("/does/not/exist"), "{error}");
    Ok(())
}

#[test]
fn actions_that_fail_or_hang_are_dealt_with_as_their_mode_says() -> Result<()> {
    let place = Place::new()?;
    let (failing, hanging) = (place.script("fail", "exit 7")?, place.script("hang", "sleep 30")?);
    let diary = place.diary("diary.sh")?;
    let after = format!("--after-snapshot-root-action={diary}");
    place.set(&place.source(), &[&after])?;
    let source = place.source();
    let create = ["snapshot", "create", text_of(&source)];
    let before = |script: &str| format!("--before-snapshot-root-action={script}");
    for (script, reason) in [(&failing, "exit status: 7"), (&hanging, "longer than its policy allows")] {
        let timeout = "--action-command-timeout=1s";
        place.set(&place.source(), &[&before(script), timeout])?;
        let error = place.refused(&create)?;
        assert!(error.contains(reason) && error.contains("before-snapshot-root"), "{error}");
        assert_eq!(place.read_diary(), [""; 0], "what did not begin is not ended");
        assert!(place.kopia.snapshots()?.is_empty());
        for mode in ["optional", "async"] {
            place.set(
                &place.source(),
                &[&before(script), timeout, &format!("--action-command-mode={mode}")],
            )?;
            let snapshot = place.ours.snapshot(&place.source(), &[])?;
            assert_eq!(place.read_diary().len(), 1);
            place.ours.run(["snapshot", "delete", &snapshot.id, "--delete"])?;
        }
    }
    // Of a directory below, it is that directory which fails, and the policy may say to go on.
    place
        .set(&place.source(), &["--before-snapshot-root-action=none", "--after-snapshot-root-action=none"])?;
    place.set(&place.path("source/below"), &[&format!("--before-folder-action={failing}")])?;
    let error = place.refused(&create)?;
    assert!(error.contains("before-folder") && error.contains("below"), "{error}");
    // What has begun is ended, also if the backup is given up.
    place.set(&place.source(), &[&after])?;
    place.refused(&[&create[..], &["--fail-fast"]].concat())?;
    assert_eq!(place.read_diary(), ["after-snapshot-root SOURCE SOURCE 16 version"]);
    place.set(&place.path("source/below"), &["--ignore-dir-errors=true"])?;
    place.ours.run(create)?;
    Ok(())
}
