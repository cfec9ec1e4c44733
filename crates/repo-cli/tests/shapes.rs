//! What `--json` prints, field by field beside what real kopia prints about the same repository.
#![allow(clippy::unwrap_used)]

mod common;

use anyhow::Result;
use common::Ours;
use lifeboat_testkit::kopia::Kopia;
use serde_json::Value;
use std::collections::BTreeSet;

const PASSWORD: &str = "correct horse battery staple";

/// The paths and types of all fields; of lists those of all elements together.
fn shape(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| shape(value, &format!("{path}.{name}"), into));
        }
        Value::Array(values) => values.iter().for_each(|value| shape(value, &format!("{path}[]"), into)),
        Value::Null => drop(into.insert(format!("{path}: null"))),
        Value::Bool(_) => drop(into.insert(format!("{path}: bool"))),
        Value::Number(_) => drop(into.insert(format!("{path}: number"))),
        Value::String(_) => drop(into.insert(format!("{path}: string"))),
    }
}

fn shape_of(json: &[u8]) -> BTreeSet<String> {
    let value: Value = serde_json::from_slice(json).unwrap();
    let mut found = BTreeSet::new();
    shape(&value, "", &mut found);
    found
}

#[test]
fn json_has_the_fields_and_types_of_kopia() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [source, repository] = ["source", "repository"].map(|name| folder.path().join(name));
    std::fs::create_dir_all(source.join("below"))?;
    std::fs::write(source.join("file"), "some text\n".repeat(100))?;
    std::fs::write(source.join("below/other"), "x")?;
    std::os::unix::fs::symlink("file", source.join("link"))?;
    let identity = ["--override-username=u", "--override-hostname=h"];
    let (ours, kopia) = (Ours::new(PASSWORD)?, Kopia::new(PASSWORD)?);
    ours.create_filesystem(&repository, &identity)?;
    kopia.connect_filesystem(&repository, &identity)?;
    ours.run(["policy", "set", "--global", "--compression=zstd-fastest"])?;
    ours.snapshot(&source, &["--tags=a:b", "--pin=keep"])?;
    ours.run(["maintenance", "run", "--full"])?;

    // The fields that only one side has, and why.
    let only_ours = [
        // Ours keeps what kopia does not know about files, in a member that kopia ignores.
        (".rootEntry.lifeboat", "snapshot list"),
        ("[].rootEntry.lifeboat", "snapshot list"),
    ];
    for words in [
        "snapshot list --json",
        "repository status --json",
        "manifest list --json",
        "blob list --json",
        "content list --json",
        "index list --json",
        "policy list --json",
        "policy show --global --json",
        "repository throttle get --json",
        "maintenance info --json",
    ] {
        let run = |stdout: Vec<u8>| shape_of(&stdout);
        let by_us = run(ours.run(words.split(' '))?.stdout);
        let by_kopia = run(kopia.run(words.split(' '))?.stdout);
        let is_known = |field: &&&String| only_ours.iter().any(|(known, _)| field.starts_with(known));
        let missing: Vec<_> = by_kopia.difference(&by_us).collect();
        let more: Vec<_> = by_us.difference(&by_kopia).filter(|field| !is_known(&field)).collect();
        assert!(missing.is_empty() && more.is_empty(), "{words}: we lack {missing:#?} and add {more:#?}");
    }
    Ok(())
}

#[test]
fn errors_have_the_fields_and_types_of_kopia() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [source, repository] = ["source", "repository"].map(|name| folder.path().join(name));
    std::fs::create_dir_all(source.join("below"))?;
    std::fs::write(source.join("file"), "text")?;
    let pipe = std::fs::File::open(source.join("below"))?;
    rustix::fs::mknodat(&pipe, "pipe", rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)?;
    let identity = ["--override-username=u", "--override-hostname=h"];
    let (ours, kopia) = (Ours::new(PASSWORD)?, Kopia::new(PASSWORD)?);
    ours.create_filesystem(&repository, &identity)?;
    kopia.connect_filesystem(&repository, &identity)?;
    // A pipe is something that neither keeps now, and both shall complain about.
    ours.run(["policy", "set", "--global", "--ignore-unknown-types=false"])?;
    let source = source.to_str().unwrap();
    let by_us = ours.try_run(["snapshot", "create", "--json", "--no-extras", source])?;
    let by_kopia = kopia.try_run(["snapshot", "create", "--json", "--json-verbose", source])?;
    assert_eq!((by_us.status.code(), by_kopia.status.code()), (Some(1), Some(1)));
    let shapes = [shape_of(&by_us.stdout), shape_of(&by_kopia.stdout)];
    assert!(shapes[0].contains(".rootEntry.summ.errors[].path: string"), "{:#?}", shapes[0]);
    assert_eq!(shapes[0], shapes[1], "snapshot create");
    let listed: Value = serde_json::from_slice(&ours.run(["snapshot", "list", "--json"])?.stdout)?;
    let errors: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["rootEntry"]["summ"]).collect();
    assert_eq!(errors.len(), 2);
    assert_eq!(errors[0]["numFailed"], errors[1]["numFailed"]);
    assert_eq!(errors[0]["errors"][0]["path"], errors[1]["errors"][0]["path"]);

    // A command that fails prints no JSON but its error, on the standard error output, as kopia does.
    let words = ["content", "show", "--json", "00000000000000000000000000000000"];
    for output in [ours.try_run(words)?, kopia.try_run(words)?] {
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{output:?}");
    }

    // Damage is told as text and as JSON.
    for blob in std::fs::read_dir(&repository)?
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes()[0] == b'p')
    {
        std::fs::remove_dir_all(blob.path())?;
    }
    let words = ["snapshot", "verify", "--json", "--verify-files-percent=100"];
    let [by_us, by_kopia] = [ours.try_run(words)?, kopia.try_run(words)?].map(|output| {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        shape_of(&output.stdout)
    });
    assert!(by_us.contains(".errorStrings[]: string") && by_us.contains(".errorCount: number"), "{by_us:?}");
    assert!(by_us.is_subset(&by_kopia), "{by_us:?} is not in {by_kopia:?}");
    Ok(())
}

#[test]
fn failures_end_with_code_1_and_wrong_command_lines_are_refused() -> Result<()> {
    let ours = Ours::new(PASSWORD)?;
    for (words, code) in [
        (vec!["snapshot", "list"], 1),
        (vec!["nonsense"], 2),
        (vec!["snapshot", "create"], 2),
        (vec!["repository", "throttle", "set", "--concurrent-reads=-1"], 2),
        (vec!["--help"], 0),
    ] {
        let output = ours.try_run(&words)?;
        assert_eq!(
            output.status.code(),
            Some(code),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let output = ours.try_run(["snapshot", "list"])?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("error: not connected") && text.contains("repository connect"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour where nobody sees it: {text}");
    Ok(())
}
