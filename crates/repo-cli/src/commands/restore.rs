//! `restore`: a snapshot back into a directory.

use super::bytes;
use crate::args::RestoreArgs;
use crate::session::Session;
use anyhow::{Context, Result, bail};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::{DirEntry, EntryType, GoMode};
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_uploader::{Cancel, Progress, RestoreOptions};

pub fn run(session: &Session, args: &RestoreArgs) -> Result<()> {
    let repository = session.open()?;
    let root = find_root(session, &repository, &args.snapshot)?;
    let options = RestoreOptions {
        target: args.target.clone(),
        overwrite: !args.no_overwrite_files,
        // Only root may give files away; for everybody else they stay their own.
        owner: !args.skip_owners && rustix::process::geteuid().is_root(),
        threads: args.parallel,
        budget: session.budget().clone(),
    };
    let progress = Progress::default();
    let interface = KopiaRepository::new(repository);
    let report = lifeboat_uploader::restore(&interface, &root, &options, &progress, &Cancel::default())
        .with_context(|| format!("restore of {} into {} failed", args.snapshot, args.target.display()))?;
    println!(
        "Restored {} files, {} directories ({}).",
        report.files,
        report.directories,
        bytes(report.bytes)
    );
    Ok(())
}

/// The root entry of a snapshot, found by its id or by the id of its root object.
pub fn find_root(session: &Session, repository: &Repository, id: &str) -> Result<DirEntry> {
    let list = session.wait(repository.snapshots())?;
    if let Some(damaged) = list.damaged.iter().find(|damaged| damaged.id.as_str() == id) {
        bail!("snapshot {id} cannot be restored: {}", damaged.error);
    }
    let found = list.snapshots.into_iter().find(|s| s.id.as_str() == id || s.root_object() == Some(id));
    if let Some(snapshot) = found {
        return snapshot.root_entry.with_context(|| format!("snapshot {id} has no root"));
    }
    if id.starts_with('k') || id.starts_with("Ik") {
        let mode = GoMode::from_unix(0o700);
        let entry_type = EntryType::Directory;
        return Ok(DirEntry { object: id.to_owned(), entry_type, mode, ..DirEntry::default() });
    }
    bail!("there is no snapshot {id}; `lifeboat-repo snapshot list --all --manifest-id` shows their ids")
}
