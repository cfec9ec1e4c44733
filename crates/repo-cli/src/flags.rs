//! Kopia's commands and flags beside ours: each is here, or in a table with the reason, and in the manual.
#![allow(clippy::unwrap_used)]

use crate::args::Cli;
use clap::CommandFactory;
use lifeboat_testkit::kopia::Kopia;
use std::collections::{BTreeMap, BTreeSet};

/// What `docs/repo/commands.md` says.
const MANUAL: &str = include_str!("../../../docs/repo/commands.md");

/// Commands of Kopia that are not here: how they begin, and why.
const NO_COMMANDS: [(&str, &str); 8] = [
    ("server", "a daemon with users of its own"),
    ("notification", "whoever runs it by a timer has mails already"),
    ("b2", "storage"),
    ("gdrive", "storage"),
    ("rclone", "storage"),
    ("sftp", "storage"),
    ("webdav", "storage"),
    ("cache prefetch", "only the index is cached"),
];

/// Flags of Kopia that are not here: how their commands begin, and which.
const NO_FLAGS: [(&str, &[&str]); 13] = [
    // Only the index is cached, and all of it.
    ("cache clear", &["partial"]),
    ("cache sync", &["parallel"]),
    ("cache set", CACHE_LIMITS),
    ("repository connect", CACHE_LIMITS),
    ("repository create", CACHE_LIMITS),
    // The past of a bucket.
    ("repository", &["point-in-time"]),
    ("repository connect azure", &["client-cert"]),
    ("repository create azure", &["client-cert"]),
    ("repository sync-to azure", &["client-cert"]),
    ("repository set-client", &["disable-repository-format-cache", "repository-format-cache-duration"]),
    ("mount", &["browse", "trace-fs", "webdav", "max-cached-dirs", "max-cached-entries"]),
    // There is no such cipher, and allocations are not counted.
    ("benchmark", &["deprecated"]),
    ("benchmark compression", &["by-alloc"]),
];

const CACHE_LIMITS: &[&str] = &[
    "content-cache-size-limit-mb",
    "content-min-sweep-age",
    "index-min-sweep-age",
    "max-list-cache-duration",
    "metadata-cache-size-limit-mb",
    "metadata-min-sweep-age",
];

/// The commands that kopia has, and the flags of each, also those that it takes everywhere.
fn kopias() -> BTreeMap<String, BTreeSet<String>> {
    let kopia = Kopia::new("unused").unwrap();
    let help = |words: &[&str]| {
        let output = kopia.run(words).unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let all = help(&["--help-long"]);
    let commands = all.lines().filter(|line| line.starts_with(|letter: char| letter.is_ascii_lowercase()));
    let names = commands.filter(|line| !line.starts_with("usage:")).map(|line| {
        line.split(' ').take_while(|word| word.starts_with(char::is_alphabetic)).collect::<Vec<_>>()
    });
    let flags = |words: &[&str]| help(words).lines().filter_map(flag).collect();
    names.map(|words| (words.join(" "), flags(&[&words[..], &["--help"]].concat()))).collect()
}

/// The flag that a line of help is about.
fn flag(line: &str) -> Option<String> {
    // Further in there is what flags are about.
    let text = line.trim_start();
    if !(1..=8).contains(&(line.len() - text.len())) {
        return None;
    }
    let line = if text.starts_with("--") { text } else { text.split_once(", ")?.1 };
    let name = line.strip_prefix("--")?;
    let name = name.strip_prefix("[no-]").unwrap_or(name);
    let end = name.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-'));
    let name = &name[..end.unwrap_or(name.len())];
    name.starts_with(|letter: char| letter.is_ascii_lowercase()).then(|| name.to_owned())
}

/// Whether we have a flag, or its opposite: which of the two does nothing depends on the default.
fn has(command: &clap::Command, flag: &str) -> bool {
    let positive = flag.strip_prefix("no-").unwrap_or(flag);
    let names = [flag.to_owned(), positive.to_owned(), format!("no-{positive}")];
    command.get_arguments().any(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        aliases.into_iter().chain(argument.get_long()).any(|long| names.iter().any(|name| name == long))
    })
}

fn find<'a>(root: &'a clap::Command, path: &str) -> Option<&'a clap::Command> {
    path.split(' ').try_fold(root, |command, name| command.find_subcommand(name))
}

#[test]
fn every_command_and_flag_of_kopia_is_here_or_said_to_be_missing() {
    let mut ours = Cli::command();
    ours.build();
    let kopias = kopias();
    assert!(kopias.len() > 100, "the help of kopia is not understood: {:?}", kopias.keys());
    let everywhere = kopias["help"].clone();
    let (mut unknown, mut used) = (Vec::new(), BTreeSet::new());
    for (command, flags) in kopias.iter().filter(|(command, _)| *command != "help") {
        let is_named = |start: &str| command.starts_with(start) || command.ends_with(&format!(" {start}"));
        if let Some((start, _)) = NO_COMMANDS.iter().find(|(start, _)| is_named(start)) {
            used.insert((*start).to_owned());
            continue;
        }
        let Some(found) = find(&ours, command) else {
            unknown.push(command.clone());
            continue;
        };
        for flag in flags.difference(&everywhere).filter(|flag| !has(found, flag)) {
            let is_absent = |(start, absent): &&(&str, &[&str])| {
                command.starts_with(start) && absent.contains(&flag.as_str())
            };
            match NO_FLAGS.iter().find(is_absent) {
                Some((start, _)) => drop(used.insert(format!("{start} --{flag}"))),
                None => unknown.push(format!("{command} --{flag}")),
            }
        }
    }
    for flag in &everywhere {
        // Kopia takes it everywhere, and minds it where something is connected.
        let place =
            if flag == "persist-credentials" { find(&ours, "repository connect s3") } else { Some(&ours) };
        if !["help", "help-full", "version"].contains(&flag.as_str())
            && !place.is_some_and(|place| has(place, flag))
        {
            unknown.push(format!("--{flag}"));
        }
    }
    assert!(unknown.is_empty(), "kopia has, and neither we nor the tables here have: {unknown:#?}");

    let listed: BTreeSet<String> = NO_COMMANDS
        .iter()
        .map(|(start, _)| (*start).to_owned())
        .chain(
            NO_FLAGS
                .iter()
                .flat_map(|(start, flags)| flags.iter().map(move |flag| format!("{start} --{flag}"))),
        )
        .collect();
    let stale: Vec<_> = listed.difference(&used).collect();
    assert!(stale.is_empty(), "these are said to be missing, and are not: {stale:#?}");
    let flags = NO_FLAGS.iter().flat_map(|(_, flags)| flags.iter().map(|flag| format!("--{flag}`")));
    let commands = NO_COMMANDS.iter().filter_map(|(start, _)| start.split(' ').next_back());
    let unsaid: BTreeSet<_> = commands
        .map(|word| format!("{word}`"))
        .chain(flags)
        .filter(|name| !MANUAL.contains(name.as_str()))
        .collect();
    assert!(unsaid.is_empty(), "the manual does not say that these are missing: {unsaid:#?}");
}
