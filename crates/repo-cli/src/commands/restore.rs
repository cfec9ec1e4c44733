//! `restore`: a snapshot back into a directory, a device or an archive.

use crate::archive::{self, Format, Written};
use crate::output::bytes;
use crate::progress::State;
use crate::session::Session;
use crate::tree::{Browser, Trees};
use crate::when::{When, parse_when};
use anyhow::{Context, Result, bail};
use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, ValueEnum};
use lifeboat_kopia::snapshot::DirEntry;
use lifeboat_repository::{Id, Repository};
use lifeboat_uploader::{
    BlockRestoreOptions, Cancel, Error, Existing, PathFilter, Progress, RestoreFailure, RestoreOptions,
    RestoreReport, Shallow, placeholder_target, read_placeholder,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// What to restore, and where.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// What and where to: the id of a snapshot, or of its root object, and optionally a path inside it (`id/some/path`),
    /// and a directory (made if it does not exist), a file if the source is one, or an archive. Or a path of this
    /// machine, which is restored to where it was. Or placeholders of a shallow restore, which are replaced by what
    /// they stand for
    #[arg(required = true, value_name = "SOURCE [TARGET]")]
    pub sources: Vec<String>,
    /// Of a path of this machine, take the latest snapshot that was begun before this time: latest, oldest, yesterday,
    /// last-month, last-year, 1y-2m-3d-ago, or a date such as 2026-01-31 or 2026-01-31 18:30
    #[arg(long, value_name = "TIME", default_value = "latest", value_parser = parse_when)]
    pub snapshot_time: When,
    /// Fail if several snapshots have the root object that is named, and say different things about it
    #[arg(long, env = "KOPIA_RESTORE_CONSISTENT_ATTRIBUTES", value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    pub consistent_attributes: bool,
    /// How.
    #[command(flatten)]
    pub how: HowArgs,
}

/// What the target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// What its name says: .zip, .tar, .tar.gz and .tgz are archives
    Auto,
    /// A directory, or a file
    Local,
    /// A zip archive
    Zip,
    /// A zip archive without compression
    ZipNocompress,
    /// A tar archive
    Tar,
    /// A tar archive, compressed by gzip
    Tgz,
}

/// How to restore.
#[derive(Debug, Args)]
pub struct HowArgs {
    /// What the target is
    #[arg(long, default_value = "auto", conflicts_with = "block")]
    pub mode: Mode,
    /// Go no deeper than this, where 0 is the target itself: below, placeholders stand for files and directories, and
    /// are restored when they are asked for. A backup takes them for what they stand for
    #[arg(long, value_name = "DEPTH", conflicts_with_all = ["block", "include", "exclude", "verify"])]
    pub shallow: Option<u16>,
    /// Files of fewer bytes get no placeholders
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub shallow_minsize: u64,
    /// The snapshot is one of a block volume; the target is a device or an image file. With --update only what differs
    /// is written
    #[arg(long, conflicts_with_all = [
        "include", "exclude", "delete_extra", "skip_existing", "keep_newer", "no_overwrite_files",
        "skip_owners", "skip_permissions", "skip_times", "skip_xattrs", "verify", "no_write_sparse_files",
        "write_files_atomically",
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
    /// Let files appear under their names when they are whole, in the place of those that are there
    #[arg(long, conflicts_with = "update")]
    pub write_files_atomically: bool,
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

/// One thing to be restored.
pub struct Job<'a> {
    /// As the user names it.
    pub name: &'a str,
    pub root: DirEntry,
    pub target: PathBuf,
    pub shallow: Option<Shallow>,
}

impl<'a> Job<'a> {
    pub fn new(name: &'a str, root: DirEntry, target: PathBuf, how: &HowArgs) -> Self {
        Job { name, root, target, shallow: how.shallow.map(|depth| shallow(depth, how)) }
    }
}

fn shallow(depth: u16, how: &HowArgs) -> Shallow {
    Shallow { depth: depth.into(), min_size: how.shallow_minsize }
}

pub fn run(session: &Session, args: &RestoreArgs) -> Result<()> {
    let trees = Trees::open(session)?;
    let cancel = session.cancel_on_signal();
    jobs(&trees, args)?.iter().try_for_each(|job| restore(session, trees.browser(), job, &args.how, &cancel))
}

/// What the command line asks for.
fn jobs<'a>(trees: &Trees, args: &'a RestoreArgs) -> Result<Vec<Job<'a>>> {
    let placeholders: Vec<_> =
        args.sources.iter().filter_map(|text| Some((text, placeholder_target(Path::new(text))?))).collect();
    if !placeholders.is_empty() {
        if placeholders.len() < args.sources.len() {
            bail!("placeholders are restored beside where they are: name nothing else with them");
        }
        return placeholders.into_iter().map(|(name, target)| expand(name, target, &args.how)).collect();
    }
    let (name, target) = match args.sources.as_slice() {
        [source, target] => (source, PathBuf::from(target)),
        [source] if trees.is_id(source)? => bail!("where to? Name a directory behind {source}"),
        [source] => (source, std::path::absolute(source)?),
        _ => bail!("one source is restored to one target; only of placeholders there may be several"),
    };
    if args.consistent_attributes {
        trees.check_consistent(name)?;
    }
    Ok(vec![Job::new(name, trees.entry_at(name, args.snapshot_time)?, target, &args.how)])
}

/// Replaces a placeholder by what it stands for; of a directory, by default one level.
fn expand<'a>(name: &'a str, target: PathBuf, how: &HowArgs) -> Result<Job<'a>> {
    let root = read_placeholder(Path::new(name))?;
    let depth = how.shallow.unwrap_or(0);
    Ok(Job { name, root, target, shallow: Some(shallow(depth, how)) })
}

/// Restores one tree.
pub fn restore(
    session: &Session,
    trees: Browser<'_>,
    job: &Job<'_>,
    how: &HowArgs,
    cancel: &Cancel,
) -> Result<()> {
    let progress = Progress::default();
    let root = &job.root;
    let is_all = how.include.is_empty() && job.shallow.is_none();
    let total = root.summary.as_ref().map_or(root.size, |summary| summary.size.unsigned_abs());
    let total = if is_all { total } else { 0 };
    let failed = || format!("restore of {} into {} failed", job.name, job.target.display());
    let state = || state(&progress, total);
    if how.block {
        let run = || run_block(trees.0, job, how, &progress, cancel);
        return session.display().during(state, run).with_context(failed);
    }
    if let Some(format) = format(how, &job.target) {
        return to_archive(session, trees, job, how, format, total, cancel).with_context(failed);
    }
    let restore = || lifeboat_uploader::restore(trees.0, root, &options(job, how), &progress, cancel);
    let restored = session.display().during(state, restore);
    let (report, is_complete) = match restored {
        Ok(report) => (report, true),
        Err(Error::Unrestored(report)) => (*report, false),
        Err(error) => return Err(error).with_context(failed),
    };
    print_failures(trees, root, &report);
    print(&report, how.verify);
    if !is_complete && !how.ignore_errors {
        bail!("{} entries could not be restored; everything else was", report.failed);
    }
    Ok(())
}

/// The archive that is to be written, if it is one.
fn format(how: &HowArgs, target: &Path) -> Option<Format> {
    match how.mode {
        Mode::Auto => Format::of(target),
        Mode::Local => None,
        Mode::Zip => Some(Format::Zip),
        Mode::ZipNocompress => Some(Format::ZipNocompress),
        Mode::Tar => Some(Format::Tar),
        Mode::Tgz => Some(Format::Tgz),
    }
}

/// An archive is written anew, as a whole, and with everything that it has a place for.
fn refuse_options_of_directories(job: &Job<'_>, how: &HowArgs) -> Result<()> {
    let existing = &how.existing;
    let given = [
        (job.shallow.is_some(), "--shallow"),
        (how.verify, "--verify"),
        (how.skip_owners, "--skip-owners"),
        (how.skip_permissions, "--skip-permissions"),
        (how.skip_times, "--skip-times"),
        (how.skip_xattrs, "--skip-xattrs"),
        (how.flush_files, "--flush-files"),
        (how.write_files_atomically, "--write-files-atomically"),
        (existing.no_overwrite_files, "--no-overwrite-files"),
        (existing.no_overwrite_symlinks, "--no-overwrite-symlinks"),
        (existing.no_overwrite_directories, "--no-overwrite-directories"),
        (existing.skip_existing, "--skip-existing"),
        (existing.keep_newer, "--keep-newer"),
        (existing.update, "--update"),
        (existing.delete_extra, "--delete-extra"),
    ];
    match given.iter().find(|(is_given, _)| *is_given) {
        Some((_, flag)) => bail!(
            "{flag} is for directories, and {} is to be an archive; --mode local makes it a directory",
            job.target.display()
        ),
        None => Ok(()),
    }
}

fn to_archive(
    session: &Session,
    trees: Browser<'_>,
    job: &Job<'_>,
    how: &HowArgs,
    format: Format,
    total: u64,
    cancel: &Cancel,
) -> Result<()> {
    refuse_options_of_directories(job, how)?;
    let written = Written::default();
    let state = || {
        let done = written.bytes.load(Ordering::Relaxed);
        let text = format!("wrote {} files ({})", written.files.load(Ordering::Relaxed), bytes(done));
        State { text, done, total, ..State::default() }
    };
    let filter = PathFilter::new(&how.include, &how.exclude);
    let write = || archive::write(trees, &job.root, format, &job.target, &filter, &written, cancel);
    let contents = session.display().during(state, write)?;
    for (path, error) in contents.failures.iter().take(SHOWN) {
        eprintln!("not restored: {path:?}: {error}");
    }
    print_more(contents.failures.len() as u64);
    // Not on the standard output, which may be the archive.
    eprintln!(
        "Restored {} files, {} directories ({}) into {}.",
        contents.files,
        contents.directories,
        bytes(contents.bytes),
        job.target.display()
    );
    if !contents.left_out.is_empty() {
        eprintln!("The archive has no place for: {}.", contents.left_out.join("; "));
    }
    if !contents.failures.is_empty() && !how.ignore_errors {
        bail!("{} entries could not be restored; everything else was", contents.failures.len());
    }
    Ok(())
}

fn run_block(
    interface: &dyn Repository,
    job: &Job<'_>,
    how: &HowArgs,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<()> {
    let options = BlockRestoreOptions {
        target: job.target.clone(),
        compare: how.existing.update,
        threads: how.parallel,
    };
    let report = lifeboat_uploader::restore_block(interface, &job.root, &options, progress, cancel)?;
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

fn options(job: &Job<'_>, args: &HowArgs) -> RestoreOptions {
    let existing = policy(&args.existing);
    RestoreOptions {
        existing_files: if args.existing.no_overwrite_files { Existing::Fail } else { existing },
        existing_links: if args.existing.no_overwrite_symlinks { Existing::Fail } else { existing },
        overwrite_directories: !args.existing.no_overwrite_directories,
        delete_extra: args.existing.delete_extra,
        filter: PathFilter::new(&args.include, &args.exclude),
        shallow: job.shallow,
        // Only root may give files away; for everybody else they stay their own.
        owner: !args.skip_owners && rustix::process::geteuid().is_root(),
        permissions: !args.skip_permissions,
        times: !args.skip_times,
        extended: !args.skip_xattrs,
        ignore_permission_errors: !args.no_ignore_permission_errors,
        sparse: !args.no_write_sparse_files,
        atomic: args.write_files_atomically,
        verify: args.verify,
        sync: args.flush_files,
        threads: args.parallel,
        ..RestoreOptions::new(&job.target)
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
    State { text, done: totals.bytes, total, ..State::default() }
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
    print_more(report.failed);
}

fn print_more(failed: u64) {
    if failed > SHOWN as u64 {
        eprintln!("… and {} more", failed - SHOWN as u64);
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
        (report.placeholders, "placeholders stand for what is still in the repository"),
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
