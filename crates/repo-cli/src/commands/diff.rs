//! `diff`: what differs between two directories of snapshots.

use crate::output;
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result, bail};
use clap::Args;
use lifeboat_kopia::snapshot::DirEntry;
use serde::Serialize;
use std::cmp::Ordering;
use std::io::Write;
use std::process::Command;

/// What is compared, and how.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The first one: a snapshot or object by its id, and optionally a path inside it
    pub first: String,
    /// The second one
    pub second: String,
    /// Compare files that differ by a command
    #[arg(long, short)]
    pub files: bool,
    /// The command, which gets the names of two files
    #[arg(long, default_value = "diff -u", env = "KOPIA_DIFF")]
    pub diff_command: String,
    /// Print only totals
    #[arg(long)]
    pub stats_only: bool,
}

/// How entries of one kind differ, in Kopia's words.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    added: u64,
    removed: u64,
    modified: u64,
    same_content_but_different_metadata: u64,
    same_content_but_different_mode: u64,
    same_content_but_different_modification_time: u64,
    same_content_but_different_user_owner: u64,
    same_content_but_different_group_owner: u64,
}

/// All totals.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    file_entries: Counts,
    directory_entries: Counts,
}

impl Stats {
    fn of(&mut self, entry: &DirEntry) -> &mut Counts {
        if entry.is_dir() { &mut self.directory_entries } else { &mut self.file_entries }
    }
}

struct Comparison<'a> {
    trees: &'a Trees,
    args: &'a DiffArgs,
    stats: Stats,
}

pub fn run(session: &Session, args: &DiffArgs) -> Result<()> {
    let trees = Trees::open(session)?;
    let (first, second) = (trees.entry(&args.first)?, trees.entry(&args.second)?);
    if !first.is_dir() || !second.is_dir() {
        bail!("only directories are compared; `show` prints files");
    }
    let mut comparison = Comparison { trees: &trees, args, stats: Stats::default() };
    comparison.directories(&first, &second, ".")?;
    output::print_json(&comparison.stats)
}

impl Comparison<'_> {
    /// Both listings are in the same order, so that they are compared as they come.
    fn directories(&mut self, old: &DirEntry, new: &DirEntry, path: &str) -> Result<()> {
        if old.object == new.object {
            return Ok(());
        }
        let context = || format!("cannot list {path}");
        let mut old = self.trees.children(old).with_context(context)?.peekable();
        let mut new = self.trees.children(new).with_context(context)?.peekable();
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(Ok(a)), Some(Ok(b))) => a.listing_order(b),
                (Some(Err(_)), _) => Ordering::Less,
                (_, Some(Err(_))) => Ordering::Greater,
            };
            let a = if order.is_le() { old.next().transpose()? } else { None };
            let b = if order.is_ge() { new.next().transpose()? } else { None };
            match (a, b) {
                (Some(a), Some(b)) => self.both(&a, &b, path)?,
                (Some(gone), None) => self.one(&gone, path, false)?,
                (None, Some(added)) => self.one(&added, path, true)?,
                (None, None) => return Ok(()),
            }
        }
    }

    fn say(&self, text: &str) -> Result<()> {
        if self.args.stats_only { Ok(()) } else { output::line(text) }
    }

    /// An entry that only one side has.
    fn one(&mut self, entry: &DirEntry, path: &str, is_added: bool) -> Result<()> {
        let path = format!("{path}/{}", entry.name);
        let kind = if entry.is_dir() { "directory" } else { "file" };
        let counts = self.stats.of(entry);
        let (verb, count) =
            if is_added { ("added", &mut counts.added) } else { ("removed", &mut counts.removed) };
        *count += 1;
        self.say(&format!("{verb} {kind} {path} ({})", output::bytes(entry.size)))?;
        if entry.is_dir() {
            for child in self.trees.children(entry)? {
                self.one(&child?, &path, is_added)?;
            }
        }
        Ok(())
    }

    fn both(&mut self, old: &DirEntry, new: &DirEntry, path: &str) -> Result<()> {
        let path = format!("{path}/{}", new.name);
        let is_same = old.object == new.object && old.size == new.size;
        let differences = [
            (old.mode != new.mode, "modes", output::mode(old), output::mode(new)),
            (old.size != new.size, "sizes", old.size.to_string(), new.size.to_string()),
            (old.mtime != new.mtime, "modification times", old.mtime.to_string(), new.mtime.to_string()),
            (old.uid != new.uid, "owner users", old.uid.to_string(), new.uid.to_string()),
            (old.gid != new.gid, "owner groups", old.gid.to_string(), new.gid.to_string()),
        ];
        for (_, what, before, after) in differences.iter().filter(|(differs, ..)| *differs) {
            self.say(&format!("{path} {what} differ: {before} {after}"))?;
        }
        let counts = self.stats.of(new);
        if is_same {
            let [mode, _, time, user, group] = differences.map(|(differs, ..)| u64::from(differs));
            counts.same_content_but_different_mode += mode;
            counts.same_content_but_different_modification_time += time;
            counts.same_content_but_different_user_owner += user;
            counts.same_content_but_different_group_owner += group;
            counts.same_content_but_different_metadata += (mode + time + user + group).min(1);
            return Ok(());
        }
        counts.modified += 1;
        match (old.is_dir(), new.is_dir()) {
            (true, true) => self.directories(old, new, &path),
            _ => {
                self.say(&format!("changed {path} (size {} -> {})", old.size, new.size))?;
                if self.args.files && !self.args.stats_only { self.files(old, new, &path) } else { Ok(()) }
            }
        }
    }

    /// Lets the command compare two versions of a file.
    fn files(&self, old: &DirEntry, new: &DirEntry, path: &str) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut words = self.args.diff_command.split_whitespace();
        let program = words.next().context("the command that compares files is empty")?;
        let mut command = Command::new(program);
        command.args(words).current_dir(folder.path());
        for (side, entry) in [("old", old), ("new", new)] {
            let name = std::path::Path::new(side).join(path.trim_start_matches("./"));
            let file = folder.path().join(&name);
            std::fs::create_dir_all(file.parent().unwrap_or(folder.path()))?;
            std::io::copy(&mut self.trees.read(entry)?, &mut std::fs::File::create(&file)?)?;
            command.arg(name);
        }
        let output = command.output().with_context(|| format!("cannot run {program}"))?;
        std::io::stdout().lock().write_all(&output.stdout)?;
        Ok(std::io::stderr().lock().write_all(&output.stderr)?)
    }
}
