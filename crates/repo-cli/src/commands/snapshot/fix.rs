//! `snapshot fix`: snapshots without what is lost.

use super::rewrite::{Judge, Rewriter, Verdict};
use crate::commands::policy;
use crate::output;
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use lifeboat_kopia::snapshot::{self, DirEntry, SnapshotManifest, SourceInfo};
use lifeboat_primitives::compress::Compressor;
use lifeboat_repository::{Id, Repository as _};
use lifeboat_uploader::PathFilter;
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Verbs of `snapshot fix`.
#[derive(Debug, Subcommand)]
pub enum FixCommand {
    /// Take files out that cannot be read
    InvalidFiles {
        /// Which snapshots.
        #[command(flatten)]
        common: CommonArgs,
        /// What becomes of such files
        #[arg(long, value_name = "HOW", default_value = "stub")]
        invalid_file_handling: Handling,
        /// How many percent of the files are read to the end, not only looked up
        #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
        verify_files_percent: u8,
    },
    /// Take files out by their object ids or names
    RemoveFiles {
        /// Which snapshots.
        #[command(flatten)]
        common: CommonArgs,
        /// The object of a file
        #[arg(long, value_name = "ID", required_unless_present = "filename")]
        object_id: Vec<String>,
        /// The name of files; `*` and `?` are wildcards
        #[arg(long, value_name = "PATTERN")]
        filename: Vec<String>,
    },
}

/// Which snapshots are fixed, and how.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// Only these snapshots
    #[arg(long, value_name = "ID")]
    pub manifest_id: Vec<String>,
    /// Only the snapshots of these sources, as user@host:/path
    #[arg(long)]
    pub source: Vec<String>,
    /// What becomes of directories that cannot be read
    #[arg(long, value_name = "HOW", default_value = "stub")]
    pub invalid_directory_handling: Handling,
    /// Really change the snapshots
    #[arg(long)]
    pub commit: bool,
    /// How many files are looked at at once; 0 is one for each processor
    #[arg(long, default_value_t = 0)]
    pub parallel: usize,
}

/// What becomes of something that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Handling {
    /// It is left out
    Remove,
    /// A small file takes its place that says what was there
    Stub,
    /// It stays
    Keep,
    /// The command fails
    Fail,
}

impl Handling {
    fn verdict(self, path: &Path, reason: String) -> Result<Verdict> {
        Ok(match self {
            Handling::Remove => Verdict::Remove,
            Handling::Stub => Verdict::Stub(reason),
            Handling::Keep => Verdict::Keep,
            Handling::Fail => bail!("{} cannot be read: {reason}", path.display()),
        })
    }
}

pub fn run(session: &Session, command: &FixCommand) -> Result<()> {
    let trees = Trees::of(session, session.open()?)?;
    match command {
        FixCommand::InvalidFiles { common, invalid_file_handling, verify_files_percent } => {
            let judge = || Unreadable {
                trees: &trees,
                files: *invalid_file_handling,
                directories: common.invalid_directory_handling,
                percent: *verify_files_percent,
                asked: AtomicU64::new(0),
            };
            fix(session, &trees, common, judge)?;
        }
        FixCommand::RemoveFiles { common, object_id, filename } => {
            let judge = || Named {
                objects: object_id,
                names: PathFilter::new(filename, []),
                by_name: !filename.is_empty(),
                directories: common.invalid_directory_handling,
            };
            fix(session, &trees, common, judge)?;
        }
    }
    Ok(session.wait(trees.repository.close())?)
}

fn fix<J: Judge>(session: &Session, trees: &Trees, args: &CommonArgs, judge: impl Fn() -> J) -> Result<()> {
    let chosen = chosen(trees, args)?;
    let mut fixed = 0;
    for source in distinct_sources(&chosen) {
        let policies = policy::tree(session, &trees.repository, &source)?;
        let name = policies.policy().metadata_compression.compressor.clone();
        let compression =
            (!matches!(name.as_str(), "" | "none")).then(|| Compressor::from_name(&name)).transpose()?;
        let threads = match args.parallel {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            count => count,
        };
        let mut rewriter = Rewriter::new(trees, judge(), compression, threads);
        for snapshot in chosen.iter().filter(|snapshot| snapshot.source == source) {
            let time = output::time(snapshot.start_time);
            let root = snapshot.root_entry.as_ref().context("a snapshot has no root")?;
            let Some(after) = rewriter.root(root).with_context(|| format!("cannot fix {}", snapshot.id))?
            else {
                println!("  {time} unchanged ({})", snapshot.id);
                continue;
            };
            fixed += 1;
            let mut changed = SnapshotManifest { root_entry: Some(after), ..snapshot.clone() };
            if args.commit {
                session.wait(snapshot::update(trees.repository.manifests(), &mut changed))?;
            }
            println!("  {time} {} replaced by {}", snapshot.id, changed.id);
            let (before, now) = (snapshot.root_object().unwrap_or("-"), changed.root_object().unwrap_or("-"));
            println!("    diff {before} {now}");
        }
    }
    match (fixed, args.commit) {
        (0, _) => println!("There is nothing to fix."),
        (_, true) => println!("Fixed {fixed} snapshots."),
        (_, false) => println!("{fixed} snapshots would change; add --commit to do it."),
    }
    Ok(())
}

fn chosen(trees: &Trees, args: &CommonArgs) -> Result<Vec<SnapshotManifest>> {
    if args.manifest_id.is_empty() && args.source.is_empty() {
        return Ok(trees.snapshots().to_vec());
    }
    let mut chosen = Vec::new();
    for id in &args.manifest_id {
        chosen.extend(trees.snapshots_called(id)?);
    }
    for text in &args.source {
        let source = SourceInfo::parse(text).with_context(|| format!("{text:?} is not user@host:/path"))?;
        chosen.extend(trees.snapshots().iter().filter(|snapshot| snapshot.source == source).cloned());
    }
    Ok(chosen)
}

fn distinct_sources(snapshots: &[SnapshotManifest]) -> Vec<SourceInfo> {
    let mut sources: Vec<SourceInfo> = Vec::new();
    for snapshot in snapshots {
        if !sources.contains(&snapshot.source) {
            sources.push(snapshot.source.clone());
        }
    }
    sources
}

/// Takes out what is named.
struct Named<'a> {
    objects: &'a [String],
    names: PathFilter,
    by_name: bool,
    directories: Handling,
}

impl Judge for Named<'_> {
    fn entry(&self, path: &Path, entry: &DirEntry) -> Result<Verdict> {
        let name = entry.name.to_string();
        let is_named = self.objects.contains(&entry.object)
            || self.by_name && !name.is_empty() && self.names.takes(Path::new(&name));
        if is_named && path.components().next().is_some() {
            output::line(&format!("  will remove {}", path.display()))?;
            return Ok(Verdict::Remove);
        }
        Ok(Verdict::Keep)
    }

    fn unreadable(&self, path: &Path, error: &anyhow::Error) -> Result<Verdict> {
        self.directories.verdict(path, format!("{error:#}"))
    }
}

/// Takes out what cannot be read.
struct Unreadable<'a> {
    trees: &'a Trees,
    files: Handling,
    directories: Handling,
    percent: u8,
    asked: AtomicU64,
}

impl Unreadable<'_> {
    /// Looks an object up, and reads a share of them to the end.
    fn check(&self, entry: &DirEntry) -> Result<()> {
        if !self.trees.interface.is_whole(&Id::new(entry.object.clone()))? {
            bail!("a part of object {} is missing from the repository", entry.object);
        }
        // Evenly spread: of 100 files in a row, as many are read as there are percents.
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let share = |asked: u64| asked * u64::from(self.percent) / 100;
        if share(asked + 1) > share(asked) {
            std::io::copy(&mut self.trees.read(entry)?, &mut std::io::sink())?;
        }
        Ok(())
    }
}

impl Judge for Unreadable<'_> {
    fn entry(&self, path: &Path, entry: &DirEntry) -> Result<Verdict> {
        if entry.is_dir() {
            return Ok(Verdict::Keep);
        }
        match self.check(entry) {
            Ok(()) => Ok(Verdict::Keep),
            Err(error) => {
                eprintln!("  {} is not valid: {error:#}", path.display());
                self.files.verdict(path, format!("{error:#}"))
            }
        }
    }

    fn unreadable(&self, path: &Path, error: &anyhow::Error) -> Result<Verdict> {
        eprintln!("  directory {} cannot be read: {error:#}", path.display());
        self.directories.verdict(path, format!("{error:#}"))
    }
}
