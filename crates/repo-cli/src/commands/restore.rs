//! `restore`: a snapshot back into a directory.

use super::bytes;
use crate::args::{ExistingArgs, RestoreArgs};
use crate::session::Session;
use anyhow::{Context, Result, bail};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::{DirEntries, DirEntry, EntryType, GoMode};
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_repository::{Id, Repository as _};
use lifeboat_uploader::{
    BlockRestoreOptions, Cancel, Error, Existing, PathFilter, Progress, RestoreOptions, RestoreReport,
};

/// How many failures are printed; the first few tell the story.
const SHOWN: usize = 20;

pub fn run(session: &Session, args: &RestoreArgs) -> Result<()> {
    let repository = session.open_for_reading()?;
    let interface = KopiaRepository::new(repository.clone());
    let root = find_source(session, &repository, &interface, &args.snapshot)?;
    let progress = Progress::default();
    let cancel = session.cancel_on_signal();
    if args.block {
        return run_block(&interface, &root, args, &progress, &cancel);
    }
    let restored = lifeboat_uploader::restore(&interface, &root, &options(args), &progress, &cancel);
    let (report, is_complete) = match restored {
        Ok(report) => (report, true),
        Err(Error::Unrestored(report)) => (*report, false),
        Err(error) => {
            let text = format!("restore of {} into {} failed", args.snapshot, args.target.display());
            return Err(error).context(text);
        }
    };
    print(&report, args.verify);
    if !is_complete && !args.ignore_errors {
        bail!("{} entries could not be restored; everything else was", report.failed);
    }
    Ok(())
}

fn run_block(
    interface: &KopiaRepository,
    root: &DirEntry,
    args: &RestoreArgs,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<()> {
    let options = BlockRestoreOptions {
        target: args.target.clone(),
        compare: args.existing.update,
        threads: args.parallel,
    };
    let report = lifeboat_uploader::restore_block(interface, root, &options, progress, cancel)
        .with_context(|| format!("restore of {} to {} failed", args.snapshot, args.target.display()))?;
    println!(
        "Restored a volume of {}: {} written, {} zeros, {} were there already; read {} from the repository.",
        bytes(report.size),
        bytes(report.written),
        bytes(report.zeros),
        bytes(report.kept),
        bytes(report.read_bytes)
    );
    Ok(())
}

fn options(args: &RestoreArgs) -> RestoreOptions {
    let existing = policy(&args.existing);
    RestoreOptions {
        existing_files: if args.existing.no_overwrite_files { Existing::Fail } else { existing },
        existing_links: if args.existing.no_overwrite_symlinks { Existing::Fail } else { existing },
        overwrite_directories: !args.existing.no_overwrite_directories,
        delete_extra: args.existing.delete_extra,
        filter: PathFilter::new(&args.include, &args.exclude),
        // Only root may give files away; for everybody else they stay their own.
        owner: !args.skip_owners && rustix::process::geteuid().is_root(),
        permissions: !args.skip_permissions,
        times: !args.skip_times,
        extended: !args.skip_xattrs,
        ignore_permission_errors: !args.no_ignore_permission_errors,
        sparse: !args.no_write_sparse_files,
        verify: args.verify,
        sync: args.flush_files,
        threads: args.parallel,
        ..RestoreOptions::new(&args.target)
    }
}

fn policy(args: &ExistingArgs) -> Existing {
    match args {
        ExistingArgs { skip_existing: true, .. } => Existing::Skip,
        ExistingArgs { keep_newer: true, .. } => Existing::KeepNewer,
        ExistingArgs { update: true, .. } => Existing::Update,
        _ => Existing::Replace,
    }
}

fn print(report: &RestoreReport, verified: bool) {
    for failure in report.failures.iter().take(SHOWN) {
        eprintln!("not restored: {:?}: {}", failure.path, failure.error);
    }
    if report.failed > SHOWN as u64 {
        eprintln!("… and {} more", report.failed - SHOWN as u64);
    }
    println!(
        "Restored {} files, {} directories ({}), read {} from the repository.",
        report.files,
        report.directories,
        bytes(report.bytes),
        bytes(report.read_bytes)
    );
    let counts = [
        (report.skipped, "files were left as they are"),
        (report.deleted, "entries that the snapshot does not have were removed"),
        (report.ignored_errors, "attributes could not be set"),
    ];
    for (count, what) in counts.iter().filter(|(count, _)| *count > 0) {
        println!("{count} {what}.");
    }
    if verified {
        println!("Read {} back and compared.", bytes(report.verified_bytes));
    }
}

/// The entry that `source` names: a snapshot or object, or a path inside it.
fn find_source(
    session: &Session,
    repository: &Repository,
    interface: &KopiaRepository,
    source: &str,
) -> Result<DirEntry> {
    let (id, path) = source.split_once('/').unwrap_or((source, ""));
    let mut entry = find_root(session, repository, id)?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        entry = find_entry(interface, &entry, name)
            .with_context(|| format!("cannot look up {path:?} in {id}"))?
            .with_context(|| format!("there is no {path:?} in {id}: {name:?} is missing"))?;
    }
    Ok(entry)
}

fn find_entry(interface: &KopiaRepository, directory: &DirEntry, name: &str) -> Result<Option<DirEntry>> {
    if !directory.is_dir() {
        return Ok(None);
    }
    let id = Id::new(directory.object.clone());
    let entries = DirEntries::new(id.as_str(), interface.open_object(&id)?);
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == name.as_bytes() {
            return Ok(Some(entry));
        }
    }
    Ok(None)
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
