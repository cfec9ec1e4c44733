//! `snapshot delete`, `expire` and `pin`: what is done with snapshots that exist.

use crate::commands::source_of;
use crate::output;
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Result, bail};
use clap::Args;
use jiff::tz::TimeZone;
use lifeboat_kopia::policy::{PolicySet, compute_retention};
use lifeboat_kopia::snapshot::{self, SnapshotManifest, SourceInfo};
use std::path::PathBuf;

/// Which snapshots are deleted.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// Their ids, or the ids of their root objects
    #[arg(required = true)]
    pub snapshots: Vec<String>,
    /// All snapshots of the sources that are named, as user@host:/path
    #[arg(long)]
    pub all_snapshots_for_source: bool,
    /// Really delete them
    #[arg(long)]
    pub delete: bool,
}

/// Which snapshots are expired.
#[derive(Debug, Args)]
pub struct ExpireArgs {
    /// Only of these directories
    pub paths: Vec<PathBuf>,
    /// Of all sources
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
    /// Really delete them
    #[arg(long)]
    pub delete: bool,
}

/// Which snapshots are pinned.
#[derive(Debug, Args)]
pub struct PinArgs {
    /// Their ids, or the ids of their root objects
    #[arg(required = true)]
    pub snapshots: Vec<String>,
    /// A name to protect them by
    #[arg(long, value_name = "NAME", required_unless_present = "remove")]
    pub add: Vec<String>,
    /// A name that protects them no longer
    #[arg(long, value_name = "NAME")]
    pub remove: Vec<String>,
}

fn describe(snapshot: &SnapshotManifest) -> String {
    format!("snapshot {} of {} at {}", snapshot.id, snapshot.source, output::time(snapshot.start_time))
}

pub fn delete(session: &Session, args: &DeleteArgs) -> Result<()> {
    let trees = Trees::of(session, session.open()?)?;
    let mut chosen = Vec::new();
    for name in &args.snapshots {
        match args.all_snapshots_for_source {
            false => chosen.extend(trees.snapshots_called(name)?),
            true => {
                let source = SourceInfo::parse(name).filter(|source| !source.path.is_empty());
                let source = match source {
                    Some(source) => source,
                    None => source_of(&session.connection()?, std::path::Path::new(name))?,
                };
                let before = chosen.len();
                chosen.extend(trees.snapshots().iter().filter(|s| s.source == source).cloned());
                if chosen.len() == before {
                    bail!("there is no snapshot of {source}; `snapshot list --all` shows all");
                }
            }
        }
    }
    for snapshot in &chosen {
        remove(session, &trees, snapshot, args.delete)?;
    }
    Ok(session.wait(trees.repository.close())?)
}

fn remove(session: &Session, trees: &Trees, snapshot: &SnapshotManifest, confirmed: bool) -> Result<()> {
    let text = describe(snapshot);
    if !confirmed {
        println!("Would delete {text}; add --delete to do it");
        return Ok(());
    }
    session.wait(trees.repository.manifests().delete(&snapshot.id))?;
    println!("Deleted {text}");
    Ok(())
}

pub fn expire(session: &Session, args: &ExpireArgs) -> Result<()> {
    let connection = session.connection()?;
    let trees = Trees::of(session, session.open()?)?;
    let policies = session.wait(PolicySet::load(trees.repository.manifests()))?;
    let named: Vec<SourceInfo> =
        args.paths.iter().map(|path| source_of(&connection, path)).collect::<Result<_>>()?;
    let is_wanted = |source: &SourceInfo| match named.is_empty() {
        false => named.contains(source),
        true => args.all || (source.host == connection.hostname && source.user_name == connection.username),
    };
    let mut sources: Vec<SourceInfo> = Vec::new();
    for snapshot in trees.snapshots().iter().filter(|s| is_wanted(&s.source)) {
        if !sources.contains(&snapshot.source) {
            sources.push(snapshot.source.clone());
        }
    }
    for source in &sources {
        let of_source: Vec<_> = trees.snapshots().iter().filter(|s| s.source == *source).cloned().collect();
        let (policy, _) = policies.effective(source)?;
        let kept = compute_retention(&of_source, &policy.retention, &TimeZone::system());
        let expired: Vec<_> =
            of_source.iter().zip(&kept).filter(|(_, kept)| kept.is_expired()).map(|(s, _)| s).collect();
        if expired.is_empty() {
            println!("Nothing to delete for {source}.");
        }
        for snapshot in expired {
            remove(session, &trees, snapshot, args.delete)?;
        }
    }
    Ok(session.wait(trees.repository.close())?)
}

pub fn pin(session: &Session, args: &PinArgs) -> Result<()> {
    let trees = Trees::of(session, session.open()?)?;
    for name in &args.snapshots {
        for mut pinned in trees.snapshots_called(name)? {
            let texts = |names: &'_ [String]| names.to_vec();
            let (add, remove) = (texts(&args.add), texts(&args.remove));
            let changed =
                pinned.update_pins(add.iter().map(String::as_str), remove.iter().map(String::as_str));
            if !changed {
                println!("The pins of {} stay as they are", describe(&pinned));
                continue;
            }
            let before = describe(&pinned);
            let id = session.wait(snapshot::update(trees.repository.manifests(), &mut pinned))?;
            println!("Changed the pins of {before}; its id is {id} from now on");
        }
    }
    Ok(session.wait(trees.repository.close())?)
}
