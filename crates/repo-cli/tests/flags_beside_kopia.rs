//! Flags beside the same ones of the real kopia: what is chosen, what is found, and how it ends.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::{Context, Result};
use common::twins::{Twins, text, write_noise};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::SystemTime;

/// How the same words end with ours and with kopia.
fn ends(twins: &Twins, words: &[&str]) -> Result<[Output; 2]> {
    Ok([twins.ours.try_run(words)?, twins.kopia.try_run(words)?])
}

/// Both end well, or both do not.
fn both_succeed(twins: &Twins, words: &[&str], expected: bool) -> Result<()> {
    for (who, output) in ["ours", "kopia"].iter().zip(ends(twins, words)?) {
        assert_eq!(output.status.success(), expected, "{who}: {words:?}: {output:?}");
    }
    Ok(())
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.sort_unstable();
    lines
}

/// The files of a folder and below, by their paths in it.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(folder)?.to_owned()),
            }
        }
    }
    Ok(found)
}

/// The packs of the repository that hold data of files.
fn data_packs(twins: &Twins) -> Result<Vec<PathBuf>> {
    let repository = twins.path("repository");
    let is_pack = |path: &PathBuf| path.starts_with("p") || text(path).starts_with('p');
    Ok(files(&repository)?.into_iter().filter(is_pack).map(|path| repository.join(path)).collect())
}

#[test]
fn parts_of_snapshots_are_verified_as_kopia_does() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    for number in 0..6 {
        write_noise(&source.join(format!("below/{number}")), number, 2000);
    }
    write_noise(&source.join("file"), 99, 3000);
    std::os::unix::fs::symlink("file", source.join("link"))?;
    let root = twins.ours.snapshot(&source, &[])?.root.obj;
    let below = format!("{root}/below");
    let file = format!("{root}/file");
    let stats =
        |output: &[u8]| -> Result<Value> { Ok(serde_json::from_slice::<Value>(output)?["stats"].clone()) };
    for words in [
        vec![],
        vec!["--directory-id", &root],
        vec!["--directory-id", &below],
        vec!["--file-id", &file],
        vec!["--file-id", &file, "--directory-id", &below, "--verify-files-percent=100"],
        vec!["--file-parallelism=1", "--file-queue-length=1", "--parallel=1", "--verify-files-percent=100"],
    ] {
        let words = [&["snapshot", "verify", "--json"], &words[..]].concat();
        let [ours, kopias] = ends(&twins, &words)?;
        let (ours, kopias) = (stats(&ours.stdout)?, stats(&kopias.stdout)?);
        let known = [
            "processedObjectCount",
            "processedBytes",
            "readFileCount",
            "readBytes",
            "expectedTotalObjectCount",
        ];
        for field in known.iter().chain(&["expectedTotalFileCount", "expectedTotalBytes"]) {
            assert_eq!(ours[field], kopias[field], "{words:?}: {field}: {ours} beside {kopias}");
        }
    }
    both_succeed(
        &twins,
        &["snapshot", "verify", "--directory-id", "k00000000000000000000000000000000"],
        false,
    )?;

    for pack in data_packs(&twins)? {
        fs::remove_file(pack)?;
    }
    let errors = |flags: &[&str]| -> Result<u64> {
        let output = twins.ours.try_run([&["snapshot", "verify", "--json"], flags].concat())?;
        assert!(!output.status.success(), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(
            report["errorStrings"].as_array().map(Vec::len),
            report["errorCount"].as_u64().map(|n| n as usize)
        );
        report["errorCount"].as_u64().context("no count")
    };
    assert_eq!(errors(&[])?, 8, "all damage is named");
    assert_eq!(errors(&["--max-errors=3"])?, 3);
    assert_eq!(errors(&["--max-errors=1", "--directory-id", &below])?, 1);
    assert_eq!(errors(&["--file-id", &file])?, 1);
    both_succeed(&twins, &["snapshot", "verify", "--max-errors=3"], false)?;
    both_succeed(&twins, &["snapshot", "verify", "--file-id", &file], false)
}

#[test]
fn estimates_are_those_of_kopia() -> Result<()> {
    let twins = Twins::new()?;
    let source = twins.path("source");
    for folder in ["skipped", "cache"] {
        fs::create_dir(source.join(folder))?;
        fs::write(source.join(folder).join("inside"), "x")?;
    }
    fs::write(source.join("cache/CACHEDIR.TAG"), "Signature: 8a477f597d28d172789f06886806bc55")?;
    fs::write(source.join(".kopiaignore"), "*.tmp\n/skipped\n")?;
    std::os::unix::fs::symlink("large", source.join("link"))?;
    for (number, length) in [0, 25, 1000, 1500, 3_000_000].into_iter().enumerate() {
        write_noise(&source.join(format!("below/{number}")), number as u64, length);
        write_noise(&source.join(format!("{number}.tmp")), number as u64, length / 2);
    }
    let words = ["snapshot", "estimate", text(&source)];
    for flags in [vec!["--show-files"], vec!["--quiet"], vec!["-q", "--upload-speed=0.01"]] {
        let [ours, kopias] = twins.both(&[&words, &flags[..]].concat())?;
        assert_eq!(sorted(&ours), sorted(&kopias), "{flags:?}");
    }
    let few = twins.both(&[&words[..], &["--show-files", "--max-examples-per-bucket=1"]].concat())?;
    let [ours, kopias] = few.map(|out| out.lines().filter(|line| line.starts_with(" - ")).count());
    assert_eq!(ours, kopias);
    let quiet = twins.ours.run([&words[..], &["--quiet"]].concat())?;
    assert!(quiet.stderr.is_empty(), "{}", String::from_utf8_lossy(&quiet.stderr));
    Ok(())
}

#[test]
fn contents_are_chosen_by_their_ids_and_read_as_kopia_does() -> Result<()> {
    let twins = Twins::new()?;
    for number in 0..40 {
        write_noise(&twins.path(&format!("source/below/{number}")), number, 5000);
    }
    twins.ours.snapshot(&twins.path("source"), &[])?;
    let ids = twins.ours.run(["content", "list"])?.stdout;
    let ids = String::from_utf8(ids)?;
    let data =
        ids.lines().find(|id| id.starts_with(|letter: char| letter.is_ascii_hexdigit())).context("none")?;
    let manifest = ids.lines().find(|id| id.starts_with('m')).context("no manifest")?;
    let start = format!("--prefix={}", &data[..1]);
    let longer = format!("--prefix={}", &manifest[..4]);
    for range in ["--prefix=k", "--prefix=", &start, &longer, "--prefixed", "--non-prefixed"] {
        let [ours, kopias] = twins.both(&["content", "list", range])?;
        assert_eq!(sorted(&ours), sorted(&kopias), "{range}");
        assert!(!ours.is_empty(), "{range}");
        let count = |out: &str| out.lines().next().map(str::to_owned);
        let [our_stats, their_stats] = twins.both(&["content", "stats", range])?;
        assert_eq!(count(&our_stats), count(&their_stats), "{range}");
        let verified = twins.ours.run(["content", "verify", range])?.stdout;
        let expected = format!("Verified {} contents", ours.lines().count());
        assert!(String::from_utf8_lossy(&verified).starts_with(&expected), "{range}: {expected}");
    }
    twins.refused(&["content", "list", "--prefix=K"])?;
    let [ours, kopias] = twins.both(&["content", "show", "--unzip", manifest])?;
    assert_eq!(ours, kopias);
    assert!(ours.starts_with('{'), "{ours}");
    twins.refused(&["content", "show", "-z", data])?;

    // A byte that is not as it was is seen by those who read, and by nobody else.
    for pack in data_packs(&twins)? {
        let pack = fs::File::options().read(true).write(true).open(pack)?;
        let (mut byte, middle) = ([0], pack.metadata()?.len() / 2);
        pack.read_exact_at(&mut byte, middle)?;
        pack.write_all_at(&[!byte[0]], middle)?;
    }
    both_succeed(&twins, &["content", "verify", "--download-percent=0"], true)?;
    both_succeed(&twins, &["content", "verify", "--download-percent=100", "--progress-interval=1s"], false)?;
    both_succeed(&twins, &["content", "verify", "--download-percent=100", "--prefix=k"], true)?;
    twins.refused(&["content", "verify", "--download-percent=101"])?;
    Ok(())
}

#[test]
fn unknown_fields_of_policies_are_refused_or_kept() -> Result<()> {
    let twins = Twins::new()?;
    let file = twins.path("policies.json");
    let import = ["policy", "import", "--from-file", text(&file)];
    for (policy, field) in [
        (r#"{"u@h:/x": {"retention": {"keepLatest": 3, "keepNewest": 4}}}"#, "retention.keepNewest"),
        (
            r#"{"u@h:/x": {"actions": {"beforeFolder": {"path": "x", "wish": 1}}}}"#,
            "actions.beforeFolder.wish",
        ),
        (r#"{"u@h:/x": {"scheduling": {"timeOfDay": [{"hour": 1, "min": 2, "sec": 3}]}}}"#, "timeOfDay.sec"),
        (r#"{"u@h:/x": {"extra": {}}}"#, "extra"),
    ] {
        fs::write(&file, policy)?;
        both_succeed(&twins, &import, false)?;
        assert!(twins.refused(&import)?.contains(field), "{field}");
        both_succeed(&twins, &[&import[..], &["--allow-unknown-fields"]].concat(), true)?;
    }
    twins.ours.run([&import[..], &["--allow-unknown-fields"]].concat())?;
    let kept = twins.ours.run(["policy", "export"])?.stdout;
    assert!(String::from_utf8_lossy(&kept).contains(r#""extra":{}"#));
    Ok(())
}

#[test]
fn copies_have_the_times_of_the_blobs_if_that_is_wanted() -> Result<()> {
    let twins = Twins::new()?;
    write_noise(&twins.path("source/file"), 7, 100_000);
    twins.ours.snapshot(&twins.path("source"), &[])?;
    // By the names of blobs: the programs spread them over folders in ways of their own.
    let times = |folder: &Path| -> Result<BTreeMap<String, SystemTime>> {
        let blobs = files(folder)?.into_iter().filter(|path| path.extension().is_some_and(|end| end == "f"));
        blobs
            .map(|path| Ok((text(&path).replace('/', ""), fs::metadata(folder.join(path))?.modified()?)))
            .collect()
    };
    let own = times(&twins.path("repository"))?;
    let (timed, by_kopia, plain) = (twins.path("timed"), twins.path("by kopia"), twins.path("plain"));
    let sync = |target: &Path, flags: &[&str]| {
        let words = ["repository", "sync-to", "filesystem", "--path", text(target)];
        words.iter().chain(flags).map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let speeds = ["--max-upload-speed=100000000", "--max-download-speed=100000000"];
    twins.ours.run(sync(&timed, &[&speeds[..], &["--times"]].concat()))?;
    // Kopia makes no folder for a copy.
    fs::create_dir(&by_kopia)?;
    twins.kopia.run(sync(&by_kopia, &["--times"]))?;
    twins.ours.run(sync(&plain, &[]))?;
    assert_eq!(times(&timed)?, own);
    // Kopia writes the format blob before it looks at its flags.
    let mut kopias = times(&by_kopia)?;
    kopias.extend(
        own.iter().filter(|(path, _)| path.starts_with("kopia.repository")).map(|(p, t)| (p.clone(), *t)),
    );
    assert_eq!(times(&timed)?, kopias);
    let copied = times(&plain)?;
    assert!(copied.keys().eq(own.keys()) && copied != own, "copies have their own times");
    twins.refused(&["repository", "sync-to", "filesystem", "--path=x", "--max-upload-speed=fast"])?;
    Ok(())
}

#[test]
fn what_is_done_at_once_changes_nothing_but_the_time_that_it_takes() -> Result<()> {
    let twins = Twins::new()?;
    for number in 0..300 {
        write_noise(&twins.path(&format!("source/below/{number}.{}", number % 3)), number, 100);
    }
    for _ in 0..3 {
        twins.ours.snapshot(&twins.path("source"), &["--force-hash=100"])?;
        write_noise(&twins.path("source/more"), 1000, 500);
    }
    let [one, eight] =
        ["1", "8"].map(|count| twins.both(&["index", "inspect", "--all", "--parallel", count]));
    let ([one, _], [eight, kopias]) = (one?, eight?);
    assert_eq!(one, eight, "the order is that of the blobs");
    assert_eq!(sorted(&eight), sorted(&kopias));

    let fix = |verb: &[&str], count: &str| -> Result<String> {
        let output = twins.ours.run([&["snapshot", "fix"], verb, &["--parallel", count]].concat())?;
        Ok(String::from_utf8(output.stdout)?)
    };
    for verb in [vec!["remove-files", "--filename=*.1"], vec!["invalid-files", "--verify-files-percent=100"]]
    {
        let (alone, together) = (fix(&verb, "1")?, fix(&verb, "5")?);
        assert_eq!(sorted(&alone), sorted(&together), "{verb:?}");
    }
    assert!(fix(&["remove-files", "--filename=*.1"], "0")?.contains("snapshots would change"));
    Ok(())
}

#[test]
fn a_storage_is_checked_with_much_going_on() -> Result<()> {
    let twins = Twins::new()?;
    let words = [
        "repository",
        "validate-provider",
        "--concurrency-test-duration=2s",
        "--num-storage-connections=2",
        "--put-blob-workers=2",
        "--get-blob-workers=1",
        "--get-metadata-workers=1",
    ];
    both_succeed(&twins, &words, true)?;
    let left: Vec<Value> = twins.kopia.json(["blob", "list", "--prefix=z", "--json"])?;
    assert!(left.is_empty(), "{left:?}");
    twins.refused(&["repository", "validate-provider", "--num-storage-connections=0"])?;
    Ok(())
}

#[test]
fn benchmarks_measure_what_kopia_measures() -> Result<()> {
    let twins = Twins::new()?;
    let file = twins.path("source/file");
    write_noise(&file, 7, 50_000);
    // What stands behind the number of a line.
    let names = |out: &str, count: usize| -> Vec<String> {
        let numbered = out.lines().filter_map(|line| line.trim_start().split_once(". "));
        let numbered = numbered.filter(|(number, _)| number.parse::<u32>().is_ok());
        let mut names: Vec<String> = numbered
            .map(|(_, rest)| rest.split_whitespace().take(count).collect::<Vec<_>>().join(" "))
            .collect();
        names.sort_unstable();
        names
    };
    let data = text(&file);
    for (words, count) in [
        (vec!["hashing", "--repeat=1", "--block-size=10KB", "--parallel=2", "--print-options"], 1),
        (vec!["encryption", "--repeat=1", "--block-size=10KB", "--print-options"], 1),
        (vec!["crypto", "--repeat=1", "--block-size=1000B", "--parallel=2"], 2),
        (vec!["splitter", "--data-size=100KB", "--block-count=2", "--rand-seed=1", "--parallel=2"], 1),
        (
            vec![
                "compression",
                "--data-file",
                data,
                "--repeat=1",
                "--algorithms=zstd,s2-d",
                "--operations=compress",
            ],
            1,
        ),
        (vec!["compression", "--data-file", data, "--repeat=1", "--operations=both", "--by-size"], 1),
        (
            vec!["compression", "--data-file", data, "--repeat=1", "--deprecated", "--operations=decompress"],
            1,
        ),
    ] {
        let [ours, kopias] = twins.both(&[&["benchmark"], &words[..]].concat())?;
        let (ours, mut kopias) = (names(&ours, count), names(&kopias, count));
        // Kopia measures these under their full names, too.
        kopias.retain(|name| !["DYNAMIC", "FIXED"].contains(&name.as_str()));
        assert!(!ours.is_empty());
        assert_eq!(ours, kopias, "{words:?}");
    }
    let printed =
        twins.ours.run(["benchmark", "hashing", "--repeat=1", "--block-size=1KB", "--print-options"])?.stdout;
    let printed = String::from_utf8(printed)?;
    assert!(
        printed.contains(",   --block-hash=BLAKE3-256")
            && printed.contains("Fastest option for this machine is: --block-hash=")
    );
    let compress = ["benchmark", "compression", "--repeat=2", "--parallel=2", "--data-file", data];
    twins.ours.run([&compress[..], &["--verify-stable", "--algorithms=zstd"]].concat())?;
    twins.refused(&[&compress[..], &["--algorithms=none-such"]].concat())?;
    twins.refused(&["benchmark", "compression", "--data-file", text(&twins.path("none"))])?;
    twins.refused(&["benchmark", "hashing", "--block-size=1TB"])?;
    Ok(())
}
