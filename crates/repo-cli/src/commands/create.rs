//! `snapshot create`.

use super::snapshot::to_json;
use super::{bytes, policy, source_of};
use crate::args::CreateSnapshotArgs;
use crate::session::Session;
use anyhow::{Context, Result, bail};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_repository::Repository as _;
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_uploader::{
    BackupOptions, Cancel, Progress, apply_retention, back_up, find_parents, save_snapshot,
};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub fn run(session: &Session, args: &CreateSnapshotArgs) -> Result<()> {
    let repository = session.open()?;
    let outcome = args.sources.iter().try_for_each(|source| create(session, &repository, source, args));
    session.wait(repository.close())?;
    outcome
}

fn create(session: &Session, repository: &Repository, path: &Path, args: &CreateSnapshotArgs) -> Result<()> {
    let started = Instant::now();
    let source = source_of(&session.connection()?, path)?;
    let interface = KopiaRepository::new(repository.clone());
    let policies = policy::tree(session, repository, &source)?;
    let retention = policies.policy().retention.clone();
    let options = BackupOptions {
        path: PathBuf::from(&source.path),
        policies,
        parents: find_parents(&interface, &source)?,
        source: source.clone(),
        description: args.description.clone(),
        extras: !args.no_extras,
        checkpoint_interval: Some(args.checkpoint_interval),
        fail_fast: args.fail_fast,
        threads: args.parallel,
        budget: session.budget().clone(),
    };
    eprintln!("Snapshotting {source} ...");
    let progress = Progress::default();
    let before = interface.written();
    let mut manifest = back_up(&interface, &options, &progress, &Cancel::default())
        .with_context(|| format!("snapshot of {} failed", path.display()))?;
    let previous = options.parents.first().and_then(SnapshotManifest::root_object);
    if retention.ignore_identical_snapshots.unwrap_or(false) && previous == manifest.root_object() {
        eprintln!("Not saved: nothing has changed since the previous snapshot");
        return Ok(());
    }
    save_snapshot(&interface, &mut manifest)?;
    apply_retention(&interface, &source, &retention)?;
    interface.flush()?;
    if args.json.json {
        println!("{}", to_json(&manifest, &manifest.id)?);
    } else {
        let (totals, written) = (progress.totals(), interface.written());
        let root = manifest.root_object().unwrap_or_default();
        let seconds = started.elapsed().as_secs();
        eprintln!("Created snapshot with root {root} and ID {} in {seconds}s", manifest.id);
        println!(
            "{} files ({} unchanged), {} directories, {}; {} new, {} stored",
            totals.files,
            totals.cached_files,
            totals.directories,
            bytes(totals.bytes),
            bytes(written.new - before.new),
            bytes(written.stored - before.stored)
        );
    }
    report_failures(&manifest, path)
}

/// The snapshot is kept, but whoever took it has to know that something is missing.
fn report_failures(manifest: &SnapshotManifest, path: &Path) -> Result<()> {
    let summary = manifest.root_entry.as_ref().and_then(|root| root.summary.as_ref());
    let Some(summary) = summary else { return Ok(()) };
    for failed in &summary.errors {
        eprintln!("not backed up: {:?}: {}", failed.path, failed.error);
    }
    if summary.ignored_errors > 0 {
        eprintln!("{} errors were ignored, as the policy says", summary.ignored_errors);
    }
    if summary.failed > 0 {
        bail!(
            "{} entries of {} could not be backed up; the snapshot {} has all others: fix them and take another \
             one, or set the policy to ignore such errors",
            summary.failed,
            path.display(),
            manifest.id
        );
    }
    Ok(())
}
