//! Options and commands beside the same ones of the real kopia, on one repository that both use.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::{Context, Result};
use common::Ours;
use common::twins::{IDENTITY, PASSWORD, Twins, text, write_noise};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::process;
use lifeboat_testkit::tree::{Compare, assert_same};
use rustix::fs::XattrFlags;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

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
fn what_is_backed_up_by_hand_only_is_left_out_of_all() -> Result<()> {
    let twins = Twins::new()?;
    let (source, other) = (twins.path("source"), twins.path("other"));
    fs::create_dir(&other)?;
    for folder in [&source, &other] {
        fs::write(folder.join("file"), "text")?;
        twins.ours.snapshot(folder, &[])?;
    }
    let count = || -> Result<BTreeMap<String, usize>> {
        let mut found = BTreeMap::new();
        for snapshot in twins.listed()? {
            *found.entry(snapshot["source"]["path"].as_str().context("no path")?.to_owned()).or_default() +=
                1;
        }
        Ok(found)
    };
    let all = ["snapshot", "create", "--all"];
    // Which sources each program takes another snapshot of.
    let taken = || -> Result<[Vec<String>; 2]> {
        let before = count()?;
        twins.ours.run(all)?;
        let between = count()?;
        twins.kopia.run(all)?;
        let grown = |from: &BTreeMap<String, usize>, to: BTreeMap<String, usize>| {
            to.into_iter()
                .filter(|(path, count)| from.get(path) != Some(count))
                .map(|(path, _)| path)
                .collect()
        };
        let ours = grown(&before, between.clone());
        Ok([ours, grown(&between, count()?)])
    };
    let [ours, kopia] = taken()?;
    assert_eq!((&ours, ours.len()), (&kopia, 2));

    // Of these there is nothing under their path: `--all` would fail.
    twins.ours.snapshot(&source, &["--override-source=u@h:/by-us"])?;
    twins.kopia.snapshot(&source, &["--override-source=u@h:/by-kopia"])?;
    let mut stream = twins.ours.command(["snapshot", "create", "--stdin-file=dump", "/streams"]);
    assert!(stream.stdin(Stdio::null()).stdout(Stdio::null()).status()?.success());
    let policy =
        |path: &str| -> Result<Value> { twins.kopia.json(["policy", "export", &format!("u@h:{path}")]) };
    for path in ["/by-us", "/by-kopia", "/streams"] {
        assert_eq!(policy(path)?[format!("u@h:{path}")]["scheduling"]["manual"], true, "{path}");
    }
    twins.ours.run(["policy", "set", "--manual", text(&other)])?;
    let [ours, kopia] = taken()?;
    assert_eq!((&*ours, &*kopia), (&[text(&source).to_owned()][..], &[text(&source).to_owned()][..]));

    // A source with times keeps them: both take the snapshot and say what is wrong.
    twins.ours.run(["policy", "set", "--snapshot-interval=1h", "u@h:/in-time"])?;
    let words = ["snapshot", "create", text(&source), "--override-source=u@h:/in-time"];
    let said = twins.refused(&words)?;
    assert!(said.contains("by hand only") && said.contains("a manual schedule cannot have times"), "{said}");
    assert!(!twins.kopia.try_run(words)?.status.success());
    assert_eq!(count()?.get("/in-time"), Some(&2));

    twins.ours.run(["policy", "set", "--manual", text(&source)])?;
    twins.ours.run(["policy", "delete", "u@h:/in-time"])?;
    twins.ours.run(["policy", "set", "--manual", "u@h:/in-time"])?;
    assert!(twins.refused(&all)?.contains("no directory is backed up by --all"));
    assert!(!twins.kopia.try_run(all)?.status.success());
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

#[test]
fn snapshots_are_copied_without_what_policies_leave_out() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    for name in ["keep", "drop.tmp", "below/keep", "below/secret", "below/drop.tmp", "large"] {
        fs::write(source.join(name), name.repeat(20))?;
    }
    fs::write(source.join("below/.kopiaignore"), "# by name\nsecret\n")?;
    fs::create_dir(source.join("cache"))?;
    fs::write(source.join("cache/CACHEDIR.TAG"), "Signature: 8a477f597d28d172789f06886806bc55\n")?;
    fs::write(source.join("cache/rest"), "rest")?;
    write_noise(&source.join("large"), 4, 100_000);
    // Everything is in the snapshot; what is left out is for the new repository to say.
    let everything = ["policy", "set", "--global", "--clear-dot-ignore", "--ignore-cache-dirs=false"];
    twins.ours.run(everything)?;
    twins.ours.snapshot(&source, &["--no-extras"])?;
    let config = twins.kopia.config_file();
    let words = ["snapshot", "migrate", "--all", "--no-policies", "--source-config", text(&config)];
    let mut listed = Vec::new();
    for (name, flags) in [("all", &[][..]), ("some", &["--apply-ignore-rules"])] {
        let (ours, kopia) = (Ours::new(PASSWORD)?, Kopia::new(PASSWORD)?);
        for (program, repository) in [
            ("ours", twins.path(&format!("{name}-by-us"))),
            ("kopia", twins.path(&format!("{name}-by-kopia"))),
        ] {
            let set = ["policy", "set", "--global", "--add-ignore=*.tmp", "--max-file-size=50000"];
            let words = [&words[..], flags].concat();
            let run = |words: &[&str]| if program == "ours" { ours.run(words) } else { kopia.run(words) };
            match program {
                "ours" => ours.create_filesystem(&repository, &IDENTITY)?,
                _ => kopia.create_filesystem(&repository, &IDENTITY)?,
            }
            run(&set)?;
            match program {
                "ours" => drop(ours.run(&words)?),
                _ => {
                    // With the variable kopia would have one cache for both repositories.
                    let mut command = kopia.command(&words);
                    command.env_remove("KOPIA_CACHE_DIRECTORY");
                    process::run_ok(command, Duration::from_mins(5))?;
                }
            }
            let snapshots: Vec<Value> =
                serde_json::from_slice(&run(&["snapshot", "list", "--json"])?.stdout)?;
            let root = snapshots[0]["rootEntry"]["obj"].as_str().context("no root")?.to_owned();
            let found =
                String::from_utf8_lossy(&run(&["ls", "-r", &root])?.stdout).replace(&format!("{root}/"), "");
            let mut found: Vec<String> =
                found.lines().map(|line| line.trim_end_matches('/').to_owned()).collect();
            found.sort();
            listed.push((found, snapshots[0]["rootEntry"]["summ"].clone()));
        }
    }
    assert_eq!(listed[0], listed[1], "all of it");
    assert_eq!(listed[2], listed[3], "without what is left out");
    let kept = ["below", "below/.kopiaignore", "below/keep", "cache", "keep"];
    assert_eq!(listed[2].0, kept);
    Ok(())
}

#[test]
fn a_path_is_restored_as_it_was_at_another_time() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    for (day, text) in [(1, "first"), (2, "second"), (3, "third")] {
        fs::write(source.join("file"), text)?;
        twins.ours.snapshot(&source, &[&format!("--start-time=2026-02-0{day} 12:00:00 UTC")])?;
    }
    for (number, (time, expected)) in [
        ("latest", "third"),
        ("oldest", "first"),
        ("2026-02-02T12:00:00Z", "second"),
        ("2026-02-02T11:59:58Z", "first"),
        ("2026-02", "third"),
        ("2026-02-01", "first"),
        ("yesterday", "third"),
    ]
    .into_iter()
    .enumerate()
    {
        let flag = format!("--snapshot-time={time}");
        let targets = ["ours", "kopias"].map(|who| twins.path(&format!("{who}-{number}")));
        twins.ours.run(["restore", text(&source), text(&targets[0]), &flag])?;
        twins.kopia.run(["restore", text(&source), text(&targets[1]), &flag])?;
        for target in targets {
            assert_eq!(fs::read_to_string(target.join("file"))?, expected, "{time}");
        }
    }
    twins.refused(&["restore", text(&source), "x", "--snapshot-time=2026-01-01"])?;
    twins.refused(&["restore", text(&source), "x", "--snapshot-time=soon"])?;
    // Without a target it goes to where it was.
    fs::write(source.join("file"), "spoilt")?;
    twins.ours.run(["restore", text(&source)])?;
    assert_eq!(fs::read_to_string(source.join("file"))?, "third");
    let root = twins.ours.snapshot(&source, &[])?.root.obj;
    twins.refused(&["restore", &root])?;
    Ok(())
}

#[test]
fn one_root_of_snapshots_that_say_different_things_is_refused_if_that_matters() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    fs::write(source.join("file"), "text")?;
    let root = twins.ours.snapshot(&source, &[])?.root.obj;
    let words = ["restore", "--consistent-attributes", &root];
    twins.ours.run([&words[..], &[text(&twins.path("a"))]].concat())?;
    fs::set_permissions(&source, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    assert_eq!(twins.ours.snapshot(&source, &[])?.root.obj, root, "only the root itself has changed");
    let target = twins.path("b");
    let error = twins.refused(&[&words[..], &[text(&target)]].concat())?;
    assert!(error.contains("different attributes"), "{error}");
    assert!(!twins.kopia.try_run([&words[..], &[text(&target)]].concat())?.status.success());
    twins.ours.run(["restore", &root, text(&target)])?;
    Ok(())
}

/// The lines of a log about entries: what became of each, its path, and the other fields that the line has.
fn logged(log: &str) -> Vec<(&'static str, String, Vec<&'static str>)> {
    const MESSAGES: [&str; 6] = [
        "snapshotted directory",
        "snapshotted file",
        "snapshotted symlink",
        "ignored directory",
        "ignored",
        "cached",
    ];
    const FIELDS: [&str; 7] = ["dur", "size", "files", "dirs", "errors", "mtime", "oid"];
    let mut lines = Vec::new();
    for line in log.lines() {
        // Kopia's fields are JSON behind a tab.
        let begins = |message: &&&str| {
            let found = [format!(" {message} path=\""), format!(" {message}\t{{\"path\":\"")];
            found.iter().any(|begin| line.contains(begin.as_str()))
        };
        let Some(message) = MESSAGES.iter().find(begins) else { continue };
        let fields = line.split_once(*message).map_or("", |(_, fields)| fields);
        let has = |field: &&str| {
            let names = [format!(" {field}="), format!("\"{field}\":")];
            names.iter().any(|name| fields.contains(name.as_str()))
        };
        let path = fields.split(['=', ':']).nth(1).and_then(|value| value.split('"').nth(1));
        let path = path.unwrap_or_default().to_owned();
        lines.push((*message, path, FIELDS.into_iter().filter(has).collect()));
    }
    lines.sort();
    lines
}

#[test]
fn the_log_is_as_detailed_as_policies_say() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    for name in ["same", "changed", "left-out", "below/deep"] {
        fs::write(source.join(name), name)?;
    }
    fs::create_dir(source.join("left-out-too"))?;
    std::os::unix::fs::symlink("same", source.join("link"))?;
    let set = [
        "--add-ignore=left-out*",
        "--log-dir-snapshotted=10",
        "--log-dir-ignored=3",
        "--log-entry-snapshotted=5",
        "--log-entry-ignored=1",
        "--log-entry-cache-hit=7",
        "--log-entry-cache-miss=5",
        "--enable-volume-shadow-copy=always",
    ];
    twins.ours.run([&["policy", "set", "--global"], &set[..]].concat())?;
    let [by_us, by_kopia] = twins.both(&["policy", "show", "--global", "--json"])?;
    let [by_us, by_kopia]: [Value; 2] = [serde_json::from_str(&by_us)?, serde_json::from_str(&by_kopia)?];
    assert_eq!(by_us["logging"], by_kopia["logging"], "kopia reads what we have set");
    assert_eq!(by_us["osSnapshots"], by_kopia["osSnapshots"]);
    twins.kopia.run(["policy", "set", "--global", "--enable-volume-shadow-copy=inherit"])?;
    let create = |round: &str, flags: &[&str]| -> Result<String> {
        let file = twins.path(&format!("{round}.log"));
        let flag = format!("--log-file={}", file.display());
        twins.ours.run([&["snapshot", "create", "--no-extras", text(&source), &flag], flags].concat())?;
        Ok(fs::read_to_string(file)?)
    };
    let ours = create("first", &[])?;
    // Kopia's first snapshot, too, in a repository of its own.
    twins.kopia.create_filesystem(&twins.path("elsewhere"), &IDENTITY)?;
    twins.kopia.run([&["policy", "set", "--global"], &set[..]].concat())?;
    let folder = twins.path("logs");
    twins.kopia.run(["snapshot", "create", text(&source), &format!("--log-dir={}", folder.display())])?;
    let theirs = fs::read_to_string(folder.join("cli-logs/latest.log"))?;
    let mut theirs = logged(&theirs);
    // Files are read many at a time: how long each has taken is not known.
    for (_, _, fields) in theirs.iter_mut().filter(|line| line.0 != "snapshotted directory") {
        fields.retain(|field| *field != "dur");
    }
    // Its estimate walks beside the backup, and if it is quick it says once more what is left out.
    theirs.dedup();
    assert_eq!(logged(&ours), theirs);
    assert_eq!(theirs.len(), 8, "{theirs:?}");

    fs::write(source.join("changed"), "changed by now")?;
    let ours = create("second", &[])?;
    let found = logged(&ours);
    let cached: Vec<_> = found.iter().filter(|line| line.0 == "cached").map(|line| &*line.1).collect();
    assert_eq!(cached, ["below/deep", "link", "same"]);
    assert!(ours.contains("cache miss path=\"changed\""), "{ours}");
    let found = logged(&create("third", &["--log-dir-detail=0", "--log-entry-detail=1"])?);
    assert!(found.iter().all(|line| line.0 != "snapshotted directory") && found.len() == 6, "{found:?}");
    Ok(())
}
