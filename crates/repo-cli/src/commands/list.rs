//! `list`: the entries of a directory of a snapshot.

use crate::output;
use crate::session::Session;
use crate::tree::{Browser, Trees};
use anyhow::{Context, Result, bail};
use clap::Args;
use lifeboat_kopia::snapshot::DirEntry;

/// What is listed, and how.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The directory: a snapshot or object by its id, and optionally a path inside it
    pub object: String,
    /// Show permissions, sizes, times and object ids
    #[arg(long, short)]
    pub long: bool,
    /// Show sizes for people
    #[arg(long, requires = "long")]
    pub human_readable: bool,
    /// Also what is below
    #[arg(long, short)]
    pub recursive: bool,
    /// Show object ids
    #[arg(long, short = 'o')]
    pub show_object_id: bool,
    /// Do not say what failed when the snapshot was taken
    #[arg(long)]
    pub no_error_summary: bool,
    /// Say what failed when the snapshot was taken (the default)
    #[arg(long, short, hide = true, overrides_with = "no_error_summary")]
    pub error_summary: bool,
}

pub fn run(session: &Session, args: &ListArgs) -> Result<()> {
    let trees = Trees::open(session)?;
    list(trees.browser(), args, &trees.entry(&args.object)?)
}

/// Lists what is below `root`.
pub fn list(trees: Browser<'_>, args: &ListArgs, root: &DirEntry) -> Result<()> {
    if !root.is_dir() {
        bail!("{} is not a directory; `show` prints files", args.object);
    }
    print(trees, args, root, "")?;
    if let Some(summary) = root.summary.as_ref().filter(|all| all.failed > 0 && !args.no_error_summary) {
        eprintln!("\nNOTE: Encountered {} errors while snapshotting this directory:\n", summary.failed);
        for failed in &summary.errors {
            eprintln!("- Error in {:?}: {}", failed.path, failed.error);
        }
    }
    Ok(())
}

fn print(trees: Browser<'_>, args: &ListArgs, directory: &DirEntry, path: &str) -> Result<()> {
    for entry in trees.children(directory)? {
        let entry = entry.with_context(|| format!("cannot list {:?} of {}", path, args.object))?;
        let name = String::from_utf8_lossy(entry.file_name());
        let name = format!("{path}{name}");
        output::line(&to_line(args, &entry, &name))?;
        if args.recursive && entry.is_dir() {
            print(trees, args, &entry, &format!("{name}/"))?;
        }
    }
    Ok(())
}

fn to_line(args: &ListArgs, entry: &DirEntry, name: &str) -> String {
    let slash = if entry.is_dir() && args.long { "/" } else { "" };
    if args.long {
        let size = entry.summary.as_ref().map_or(entry.size, |summary| summary.size.unsigned_abs());
        let size = if args.human_readable { output::bytes(size) } else { size.to_string() };
        let time = output::time(entry.mtime);
        return format!("{} {size:>12} {time} {:<34} {name}{slash}", output::mode(entry), entry.object);
    }
    match args.show_object_id {
        true => format!("{:<34} {name}", entry.object),
        false => name.to_owned(),
    }
}
