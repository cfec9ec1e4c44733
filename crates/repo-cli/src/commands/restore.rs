//! `restore`: a snapshot back into a directory.

use crate::output::bytes;
use crate::progress::State;
use crate::session::Session;
use crate::tree::{Browser, Trees};
use anyhow::{Context, Result, bail};
use clap::Args;
use lifeboat_kopia::snapshot::DirEntry;
use lifeboat_repository::{Id, Repository};
use lifeboat_uploader::{
    BlockRestoreOptions, Cancel, Error, Existing, PathFilter, Progress, RestoreFailure, RestoreOptions,
    RestoreReport,
};
use std::path::PathBuf;

/// What to restore, and where.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The id of a snapshot, or of its root object, and optionally a path inside it: `id/some/path`
    pub snapshot: String,
    /// The directory, made if it does not exist; or the file, if the source is one
    pub target: PathBuf,
    /// The snapshot is one of a block volume; the target is a device or an image file. With --update only what differs
    /// is written
    #[arg(long, conflicts_with_all = [
        "include", "exclude", "delete_extra", "skip_existing", "keep_newer", "no_overwrite_files",
        "skip_owners", "skip_permissions", "skip_times", "skip_xattrs", "verify", "no_write_sparse_files",
    ])]
    pub block: bool,
    /// What to do with what is there.
    #[command(flatten)]
    pub existing: ExistingArgs,
    /// Restore only these paths of the source and what is below; `*`, `?` and `**` are wildcards
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<String>,
    /// Do not restore these paths of the source
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Do not set owners
    #[arg(long)]
    pub skip_owners: bool,
    /// Do not set permissions
    #[arg(long)]
    pub skip_permissions: bool,
    /// Do not set times
    #[arg(long)]
    pub skip_times: bool,
    /// Do not set extended attributes, access control lists and capabilities
    #[arg(long)]
    pub skip_xattrs: bool,
    /// Go on where attributes must not be set (the default)
    #[arg(long, hide = true, overrides_with = "no_ignore_permission_errors")]
    pub ignore_permission_errors: bool,
    /// Fail where attributes must not be set
    #[arg(long)]
    pub no_ignore_permission_errors: bool,
    /// Leave holes in files for long runs of zeros (the default)
    #[arg(long, hide = true, overrides_with = "no_write_sparse_files")]
    pub write_sparse_files: bool,
    /// Write zeros instead of leaving holes
    #[arg(long)]
    pub no_write_sparse_files: bool,
    /// Succeed even if entries could not be restored
    #[arg(long)]
    pub ignore_errors: bool,
    /// Read the target back at the end and compare it with the snapshot
    #[arg(long, conflicts_with_all = ["skip_existing", "keep_newer"])]
    pub verify: bool,
    /// Wait at the end until everything is on disk
    #[arg(long)]
    pub flush_files: bool,
    /// How many threads write; 0 is one for each processor
    #[arg(long, default_value_t = 0)]
    pub parallel: usize,
}

/// What to do with what is there.
#[derive(Debug, Args)]
pub struct ExistingArgs {
    /// Replace files that are there (the default)
    #[arg(long, hide = true, overrides_with = "no_overwrite_files")]
    pub overwrite_files: bool,
    /// Fail for files that are there
    #[arg(long, conflicts_with_all = ["skip_existing", "keep_newer", "update"])]
    pub no_overwrite_files: bool,
    /// Replace symbolic links that are there (the default)
    #[arg(long, hide = true, overrides_with = "no_overwrite_symlinks")]
    pub overwrite_symlinks: bool,
    /// Fail for symbolic links that are there
    #[arg(long)]
    pub no_overwrite_symlinks: bool,
    /// Restore into directories that are there (the default)
    #[arg(long, hide = true, overrides_with = "no_overwrite_directories")]
    pub overwrite_directories: bool,
    /// Fail for directories that are there
    #[arg(long)]
    pub no_overwrite_directories: bool,
    /// Leave files and symbolic links that are there as they are
    #[arg(long, conflicts_with_all = ["keep_newer", "update"])]
    pub skip_existing: bool,
    /// Leave files and symbolic links that were modified later than those in the snapshot
    #[arg(long, conflicts_with = "update")]
    pub keep_newer: bool,
    /// Leave files of the same size and time, and write into others only what differs; also goes on with a restore
    /// that was interrupted
    #[arg(long, visible_alias = "resume")]
    pub update: bool,
    /// Remove what is there and not in the snapshot
    #[arg(long)]
    pub delete_extra: bool,
}

/// How many failures are printed; the first few tell the story.
const SHOWN: usize = 20;

pub fn run(session: &Session, args: &RestoreArgs) -> Result<()> {
    let trees = Trees::open(session)?;
    restore(session, trees.browser(), &trees.entry(&args.snapshot)?, args)
}

/// Restores the tree below `root`.
pub fn restore(session: &Session, trees: Browser<'_>, root: &DirEntry, args: &RestoreArgs) -> Result<()> {
    let progress = Progress::default();
    let cancel = session.cancel_on_signal();
    let total = root.summary.as_ref().map_or(root.size, |summary| summary.size.unsigned_abs());
    let state = || state(&progress, if args.include.is_empty() { total } else { 0 });
    if args.block {
        return session.display().during(state, || run_block(trees.0, root, args, &progress, &cancel));
    }
    let restore = || lifeboat_uploader::restore(trees.0, root, &options(args), &progress, &cancel);
    let restored = session.display().during(state, restore);
    let (report, is_complete) = match restored {
        Ok(report) => (report, true),
        Err(Error::Unrestored(report)) => (*report, false),
        Err(error) => {
            let text = format!("restore of {} into {} failed", args.snapshot, args.target.display());
            return Err(error).context(text);
        }
    };
    print_failures(trees, root, &report);
    print(&report, args.verify);
    if !is_complete && !args.ignore_errors {
        bail!("{} entries could not be restored; everything else was", report.failed);
    }
    Ok(())
}

fn run_block(
    interface: &dyn Repository,
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

/// How far a restore is.
fn state(progress: &Progress, total: u64) -> State {
    let totals = progress.totals();
    let mut text = format!("restored {} files ({})", totals.files, bytes(totals.bytes));
    if totals.errors > 0 {
        text.push_str(&format!(", {} errors", totals.errors));
    }
    State { text, done: totals.bytes, total }
}

/// Names what could not be restored; where its data is lost, also its object: `snapshot fix remove-files` takes that
/// out of snapshots.
fn print_failures(trees: Browser<'_>, root: &DirEntry, report: &RestoreReport) {
    for RestoreFailure { path, error, .. } in report.failures.iter().take(SHOWN) {
        match trees.below(root, path) {
            Ok(Some(DirEntry { object, .. })) if is_lost(trees, &object) => {
                eprintln!("not restored: {path:?}: unable to open object: {object}: {error}");
            }
            _ => eprintln!("not restored: {path:?}: {error}"),
        }
    }
    if report.failed > SHOWN as u64 {
        eprintln!("… and {} more", report.failed - SHOWN as u64);
    }
}

fn is_lost(trees: Browser<'_>, object: &str) -> bool {
    trees.0.is_whole(&Id::new(object)).is_ok_and(|is_whole| !is_whole)
}

fn print(report: &RestoreReport, verified: bool) {
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
