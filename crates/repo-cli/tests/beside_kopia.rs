//! Options and commands beside the same ones of the real kopia, on one repository that both use.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::{Context, Result};
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::process;
use lifeboat_testkit::tree::{Compare, Random, assert_same};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const PASSWORD: &str = "correct horse battery staple";
const IDENTITY: [&str; 2] = ["--override-username=u", "--override-hostname=h"];

/// A repository, and a user of each program.
struct Twins {
    folder: TempDir,
    ours: Ours,
    kopia: Kopia,
}

impl Twins {
    fn new() -> Result<Twins> {
        let twins =
            Twins { folder: tempfile::tempdir()?, ours: Ours::new(PASSWORD)?, kopia: Kopia::new(PASSWORD)? };
        fs::create_dir_all(twins.path("source/below"))?;
        twins.ours.create_filesystem(&twins.path("repository"), &IDENTITY)?;
        twins.kopia.connect_filesystem(&twins.path("repository"), &IDENTITY)?;
        Ok(twins)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What ours and kopia print for the same words.
    fn both(&self, words: &[&str]) -> Result<[String; 2]> {
        let outputs = [self.ours.run(words)?, self.kopia.run(words)?];
        Ok(outputs.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn refused(&self, words: &[&str]) -> Result<String> {
        let output = self.ours.try_run(words)?;
        assert!(!output.status.success(), "{words:?} succeeded");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The snapshots that kopia lists, incomplete ones too.
    fn listed(&self) -> Result<Vec<Value>> {
        let words = ["snapshot", "list", "--incomplete", "--show-identical", "--json"];
        self.kopia.json(words)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file that no two seeds share.
fn write_noise(path: &Path, seed: u64, length: usize) {
    let mut noise = vec![0; length];
    Random::new(seed).fill(&mut noise);
    fs::write(path, noise).unwrap();
}

#[test]
fn files_that_look_unchanged_are_read_if_the_lot_falls_on_them() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    let file = source.join("file");
    fs::write(&file, "before")?;
    let times = FileTimes::new().set_modified(fs::metadata(&file)?.modified()?);
    let first = twins.ours.snapshot(&source, &[])?;
    fs::write(&file, "behind")?;
    File::options().write(true).open(&file)?.set_times(times)?;
    let same = twins.ours.snapshot(&source, &["--force-hash=0"])?;
    assert_eq!(same.root.obj, first.root.obj, "its size and time are as they were");
    let read = twins.ours.snapshot(&source, &["--force-hash=100"])?;
    assert_ne!(read.root.obj, first.root.obj);
    twins.kopia.restore(&read.id, &twins.path("restored"))?;
    assert_eq!(fs::read(twins.path("restored/file"))?, b"behind");
    for wrong in ["-1", "101", "all"] {
        twins.refused(&["snapshot", "create", text(&source), &format!("--force-hash={wrong}")])?;
    }
    Ok(())
}

#[test]
fn a_limit_ends_a_snapshot_that_the_next_one_goes_on_from() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    for number in 0..40 {
        write_noise(&source.join(format!("below/{number}")), number, 1 << 20);
    }
    write_noise(&source.join("large"), 99, 40 << 20);
    let limited = ["--upload-limit-mb=8", "--memory-budget-mb=64"];
    twins.ours.snapshot(&source, &limited)?;
    let partial = twins.listed()?.pop().context("no snapshot")?;
    assert_eq!(partial["incomplete"], "limit reached");
    let mut rounds = 1;
    while twins.listed()?.pop().context("no snapshot")?.get("incomplete").is_some() {
        twins.ours.snapshot(&source, &limited)?;
        rounds += 1;
        assert!(rounds < 15, "every round has to get further");
    }
    assert!(rounds > 2, "8 MiB at a time are not 80 in {rounds} rounds");
    let complete = twins.ours.snapshot(&source, &limited)?;
    twins.kopia.restore(&complete.id, &twins.path("restored"))?;
    assert_same(&source, &twins.path("restored"), Compare::kept_by_kopia())?;
    twins.refused(&["snapshot", "create", "--stdin-file=x", "--upload-limit-mb=1", "somewhere"])?;
    Ok(())
}

#[test]
fn other_times_are_noted_as_kopia_notes_them() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    fs::write(source.join("file"), "text")?;
    let (start, end) = ("--start-time=2020-01-31 18:30:00 UTC", "--end-time=2020-01-31 18:45:00 UTC");
    for (flags, expected) in [
        (vec![start], (Some("2020-01-31T18:30:00Z"), None)),
        (vec![end], (None, Some("2020-01-31T18:45:00Z"))),
        (vec![start, end], (Some("2020-01-31T18:30:00Z"), Some("2020-01-31T18:45:00Z"))),
    ] {
        let words = ["snapshot", "create", "--json", text(&source)];
        for output in twins.both(&[&words[..], &flags].concat())? {
            let noted: Value = serde_json::from_str(&output)?;
            let [began, ended] = ["startTime", "endTime"].map(|name| noted[name].as_str().unwrap());
            expected.0.iter().for_each(|time| assert_eq!(began, *time));
            expected.1.iter().for_each(|time| assert_eq!(ended, *time));
            // As long as it really took, which is not long.
            let (began, ended) = (began.parse::<jiff::Timestamp>()?, ended.parse::<jiff::Timestamp>()?);
            let took = began.duration_until(ended);
            assert!((0..=900).contains(&took.as_secs()), "{flags:?}: {took}");
        }
    }
    let swapped = ["--start-time=2020-01-31 18:45:00 UTC", "--end-time=2020-01-31 18:30:00 UTC"];
    let error = twins.refused(&[&["snapshot", "create", text(&source)][..], &swapped].concat())?;
    assert!(error.contains("--start-time is after --end-time"), "{error}");
    twins.refused(&["snapshot", "create", text(&source), "--start-time=noon"])?;

    // A time to come must not make the next snapshot believe that nothing has changed until then.
    twins.ours.snapshot(&source, &["--start-time=2100-01-01 00:00:00 UTC"])?;
    rustix::fs::setxattr(source.join("file"), "user.note", b"new", XattrFlags::empty())?;
    let next = twins.ours.snapshot(&source, &["--start-time=2100-01-02 00:00:00 UTC"])?;
    twins.ours.restore(&next.id, &twins.path("restored"))?;
    let mut note = [0; 8];
    let length = rustix::fs::getxattr(twins.path("restored/file"), "user.note", &mut note)?;
    assert_eq!(&note[..length], b"new");
    Ok(())
}

#[test]
fn what_snapshots_take_is_counted_as_kopia_counts_it() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    twins.ours.run(["policy", "set", "--global", "--compression=zstd-fastest"])?;
    // One of several contents, one that compresses, one that is there twice, and one without bytes.
    write_noise(&source.join("large"), 1, 20 << 20);
    fs::write(source.join("text"), "again and ".repeat(50_000))?;
    fs::write(source.join("below/copy"), "again and ".repeat(50_000))?;
    fs::write(source.join("empty"), "")?;
    std::os::unix::fs::symlink("text", source.join("link"))?;
    twins.ours.snapshot(&source, &[])?;
    write_noise(&source.join("below/late"), 2, 1 << 20);
    twins.kopia.snapshot(&source, &[])?;
    twins.ours.snapshot(&source, &[])?;
    let [ours, kopia] = twins.both(&["snapshot", "list", "--storage-stats", "--json"])?;
    let stats = |text: &str| -> Result<Vec<Value>> {
        let listed: Vec<Value> = serde_json::from_str(text)?;
        Ok(listed.into_iter().map(|snapshot| snapshot["storageStats"].clone()).collect())
    };
    let (ours, kopia) = (stats(&ours)?, stats(&kopia)?);
    assert_eq!(ours.len(), 3);
    assert!(ours[0]["newData"]["contents"].as_u64().unwrap() > 5, "{ours:?}");
    assert_eq!(ours, kopia);
    let shown = twins.ours.run(["snapshot", "list", "--storage-stats", "-l"])?.stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains(" new-files:4 new-dirs:2 compression:"), "{shown}");
    assert!(shown.contains("new-data:0 B new-files:0"), "{shown}");
    Ok(())
}

#[test]
fn blobs_of_the_index_say_the_same_to_both() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    for round in 0..3 {
        fs::write(source.join("file"), format!("round {round}"))?;
        twins.ours.snapshot(&source, &[])?;
    }
    let contents: Vec<Value> = twins.kopia.json(["content", "list", "--json"])?;
    twins.kopia.run([
        "content",
        "delete",
        "--dangerous-commands=enabled",
        contents[0]["contentID"].as_str().unwrap(),
    ])?;
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    for choice in ["--active", "--all"] {
        let [ours, kopia] = twins.both(&["index", "inspect", choice])?;
        assert!(ours.contains(" created ") && ours.contains(" deleted "), "{ours}");
        assert_eq!(sorted(&ours), sorted(&kopia), "{choice}");
    }
    let [all, _] = twins.both(&["index", "inspect", "--active"])?;
    let line: Vec<&str> = all.lines().next().unwrap().split(' ').collect();
    let (blob, content) = (line[3], line[4]);
    for words in
        [vec!["index", "inspect", blob], vec!["index", "inspect", "--active", "--content-id", content]]
    {
        let [ours, kopia] = twins.both(&words)?;
        assert!(!ours.is_empty());
        assert_eq!(sorted(&ours), sorted(&kopia), "{words:?}");
    }
    twins.refused(&["index", "inspect"])?;
    let gone = twins.refused(&["index", "inspect", "xn0_00000000000000000000000000000000-s1-c1"])?;
    assert!(gone.contains("xn0_0000"), "{gone}");
    Ok(())
}

#[test]
fn old_logs_go_and_new_ones_stay() -> Result<()> {
    let twins = Twins::new()?;
    let logs = || -> Result<usize> {
        let listed: Vec<Value> = twins.kopia.json(["blob", "list", "--prefix=_log_", "--json"])?;
        Ok(listed.len())
    };
    fs::write(twins.path("source/file"), "text")?;
    for _ in 0..3 {
        twins.kopia.snapshot(&twins.path("source"), &[])?;
    }
    let before = logs()?;
    assert!(before >= 3, "kopia logs what writes, but there are {before}");
    let run = |flags: &[&str]| -> Result<String> {
        let output = twins.ours.run([&["logs", "cleanup"], flags].concat())?;
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(run(&[])?.contains("No logs found to delete"));
    let said = run(&["--max-count=1", "--dry-run"])?;
    assert!(said.contains(&format!("Would delete {} logs", before - 1)), "{said}");
    assert_eq!(logs()?, before);
    let said = run(&["--max-count=1"])?;
    assert!(said.contains(&format!("Deleted {} logs", before - 1)), "{said}");
    assert_eq!(logs()?, 1);
    twins.ours.run(["repository", "set-client", "--read-only"])?;
    twins.refused(&["logs", "cleanup", "--max-age=1ns"])?;
    assert_eq!(logs()?, 1);
    Ok(())
}

/// The token in what `repository status` prints.
fn token(printed: &[u8]) -> String {
    let printed = String::from_utf8_lossy(printed);
    let (_, token) = printed.split_once("from-config --token ").unwrap();
    token.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn tokens_of_either_connect_the_other() -> Result<()> {
    let twins = Twins::new()?;
    fs::write(twins.path("source/file"), "text")?;
    let id = twins.ours.snapshot(&twins.path("source"), &[])?.id;
    let words = ["repository", "status", "-t", "-s"];
    let (ours, kopia) = (token(&twins.ours.run(words)?.stdout), token(&twins.kopia.run(words)?.stdout));
    let without = token(&twins.ours.run(["repository", "status", "--reconnect-token"])?.stdout);
    assert!(without.len() < ours.len(), "the password is in it only if asked for");

    let mut stranger = Kopia::new("")?;
    stranger.run(["repository", "connect", "from-config", "--token", &ours])?;
    stranger.set_env("KOPIA_PASSWORD", PASSWORD);
    stranger.restore(&id, &twins.path("by-kopia"))?;
    Kopia::new(PASSWORD)?.run(["repository", "connect", "from-config", "--token", &without])?;

    let file = twins.path("token");
    fs::write(&file, format!("{kopia}\n"))?;
    let connect = ["repository", "connect", "from-config"];
    for flags in [["--token-file", text(&file)], ["--token", &kopia]] {
        // No password but that of the token, which is stored.
        let stranger = Ours::new("")?;
        stranger.run(connect.iter().chain(&flags))?;
        stranger.run(["ls", &id])?;
    }
    let stranger = Ours::new("")?;
    let command = stranger.command(connect.iter().chain(&["--token-stdin"]));
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" < \"$0\""]).arg(&file).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    process::run_ok(shell, Duration::from_secs(600))?;
    stranger.run(["ls", &id])?;

    // A token without a password asks for one, and so does a connection file.
    let other = Ours::new("wrong")?;
    let refused = other.try_run(connect.iter().chain(&["--token", &without]))?;
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("password"));
    let other = Ours::new(PASSWORD)?;
    other.run(connect.iter().chain(&["--file", text(&twins.kopia.config_file())]))?;
    other.run(["ls", &id])?;
    for wrong in [vec!["--token", "hush"], vec!["--token-file", text(&file), "--token", &kopia], vec![]] {
        let output = other.try_run(connect.iter().chain(&wrong))?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.contains("hush") && !said.contains(&kopia), "{said}");
    }
    Ok(())
}

#[test]
fn sources_are_copied_side_by_side() -> Result<()> {
    let twins = Twins::new()?;
    let names: Vec<String> = (0..6).map(|number| format!("source/{number}")).collect();
    for (seed, name) in names.iter().enumerate() {
        fs::create_dir(twins.path(name))?;
        write_noise(&twins.path(name).join("file"), seed as u64, 300_000);
        twins.kopia.snapshot(&twins.path(name), &[])?;
    }
    let other = Ours::new(PASSWORD)?;
    other.create_filesystem(&twins.path("other"), &IDENTITY)?;
    let config = twins.ours.config_file();
    other.run(["snapshot", "migrate", "--all", "--parallel=4", "--source-config", text(&config)])?;
    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(&twins.path("other"), &IDENTITY)?;
    kopia.verify_snapshots()?;
    let copied = kopia.snapshots()?;
    assert_eq!(copied.len(), names.len());
    for snapshot in copied {
        let target = twins.path(&format!("restored-{}", snapshot.id));
        kopia.restore(&snapshot.id, &target)?;
        assert_same(Path::new(&snapshot.source.path), &target, Compare::kept_by_kopia())?;
    }

    // A source that is lost keeps no other from being copied.
    let packs: Vec<Value> = twins.kopia.json(["blob", "list", "--prefix=p", "--json"])?;
    let lost = packs[0]["id"].as_str().unwrap();
    twins.ours.run(["blob", "delete", lost, "--dangerous-commands=enabled"])?;
    let third = Ours::new(PASSWORD)?;
    third.create_filesystem(&twins.path("third"), &IDENTITY)?;
    let words = ["snapshot", "migrate", "--all", "--parallel=2", "--source-config", text(&config)];
    let output = third.try_run(words)?;
    assert!(!output.status.success());
    let listed: Vec<Value> = serde_json::from_slice(&third.run(["snapshot", "list", "--json"])?.stdout)?;
    assert_eq!(listed.len(), names.len() - 1, "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
