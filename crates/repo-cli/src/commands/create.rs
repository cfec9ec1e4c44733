//! `snapshot create`.

use super::snapshot::to_json;
use super::{bytes, policy, source_of};
use crate::args::CreateSnapshotArgs;
use crate::session::Session;
use anyhow::{Context, Result, bail};
use lifeboat_kopia::policy::PolicyTree;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::{SnapshotManifest, SourceInfo};
use lifeboat_repository::Repository as _;
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_uploader::{
    BackupOptions, BlockBackupOptions, Cancel, Progress, apply_retention, back_up, back_up_block,
    find_parents, save_snapshot,
};
use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(500);

pub fn run(session: &Session, args: &CreateSnapshotArgs) -> Result<()> {
    let repository = session.open()?;
    let cancel = session.cancel_on_signal();
    let creation = Creation { session, repository: &repository, args, cancel };
    let outcome = args.sources.iter().try_for_each(|source| creation.create(source));
    session.wait(repository.clone().close())?;
    outcome
}

struct Creation<'a> {
    session: &'a Session,
    repository: &'a Repository,
    args: &'a CreateSnapshotArgs,
    cancel: Cancel,
}

impl Creation<'_> {
    fn create(&self, path: &Path) -> Result<()> {
        let started = Instant::now();
        let source = source_of(&self.session.connection()?, path)?;
        let interface = KopiaRepository::new(self.repository.clone());
        let policies = policy::tree(self.session, self.repository, &source)?;
        let retention = policies.policy().retention.clone();
        let parents = find_parents(&interface, &source)?;
        let previous = parents.first().and_then(SnapshotManifest::root_object).map(str::to_owned);
        eprintln!("Snapshotting {source} ...");
        let (progress, before) = (Progress::default(), interface.written());
        let taken = self.show_progress(&progress, &interface, || {
            self.back_up(&interface, &source, policies, parents, &progress)
        });
        let mut manifest = taken.with_context(|| format!("snapshot of {} failed", path.display()))?;
        manifest.tags = self.args.tags.iter().cloned().collect();
        manifest.update_pins(self.args.pin.iter().map(String::as_str), []);
        let is_identical = previous.as_deref() == manifest.root_object();
        if retention.ignore_identical_snapshots.unwrap_or(false) && is_identical {
            eprintln!("Not saved: nothing has changed since the previous snapshot");
            return Ok(());
        }
        save_snapshot(&interface, &mut manifest)?;
        apply_retention(&interface, &source, &retention)?;
        interface.flush()?;
        if self.args.json.json {
            println!("{}", to_json(&manifest, &manifest.id)?);
        } else {
            let (totals, written) = (progress.totals(), interface.written());
            let partial = if manifest.is_complete() { "" } else { " partial" };
            let root = manifest.root_object().unwrap_or_default();
            let seconds = started.elapsed().as_secs();
            eprintln!("Created{partial} snapshot with root {root} and ID {} in {seconds}s", manifest.id);
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

    fn back_up(
        &self,
        repository: &KopiaRepository,
        source: &SourceInfo,
        policies: PolicyTree,
        parents: Vec<SnapshotManifest>,
        progress: &Progress,
    ) -> lifeboat_uploader::Result<SnapshotManifest> {
        let path = PathBuf::from(&source.path);
        let budget = self.session.budget().clone();
        let is_device = std::fs::metadata(&path).is_ok_and(|found| found.file_type().is_block_device());
        if is_device {
            let options = BlockBackupOptions {
                path,
                source: source.clone(),
                policy: (**policies.policy()).clone(),
                changes: None,
                description: self.args.description.clone(),
                threads: self.args.parallel,
                budget,
            };
            return back_up_block(repository, &options, progress, &self.cancel);
        }
        let options = BackupOptions {
            path,
            policies,
            parents,
            source: source.clone(),
            description: self.args.description.clone(),
            extras: !self.args.no_extras,
            checkpoint_interval: Some(self.args.checkpoint_interval),
            estimate: shows_progress(),
            fail_fast: self.args.fail_fast,
            threads: self.args.parallel,
            budget,
        };
        back_up(repository, &options, progress, &self.cancel)
    }

    /// Shows the progress of `work` while it runs.
    fn show_progress<T>(
        &self,
        progress: &Progress,
        repository: &KopiaRepository,
        work: impl FnOnce() -> T,
    ) -> T {
        if !shows_progress() {
            return work();
        }
        std::thread::scope(|scope| {
            let (done, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                while ended.recv_timeout(SHOWN_EVERY) == Err(RecvTimeoutError::Timeout) {
                    eprint!("\r{}\u{1b}[K", progress_line(progress, repository));
                }
                eprint!("\r\u{1b}[K");
            });
            let outcome = work();
            drop(done);
            outcome
        })
    }
}

/// A line that is overwritten again and again is for people only.
fn shows_progress() -> bool {
    std::io::stderr().is_terminal()
}

fn progress_line(progress: &Progress, repository: &KopiaRepository) -> String {
    let totals = progress.totals();
    let mut line = format!(
        " {} hashed ({}), {} unchanged ({}), {} uploaded",
        totals.hashed_files,
        bytes(totals.hashed_bytes),
        totals.cached_files,
        bytes(totals.cached_bytes),
        bytes(repository.written().stored),
    );
    if totals.estimated_bytes > 0 {
        let percent = totals.bytes.saturating_mul(100) / totals.estimated_bytes.max(totals.bytes);
        line.push_str(&format!(", {percent}% of {}", bytes(totals.estimated_bytes.max(totals.bytes))));
    }
    if totals.errors + totals.ignored_errors > 0 {
        line.push_str(&format!(", {} errors", totals.errors + totals.ignored_errors));
    }
    line
}

/// The snapshot is kept, but whoever took it has to know that something is missing.
fn report_failures(manifest: &SnapshotManifest, path: &Path) -> Result<()> {
    if !manifest.is_complete() {
        bail!(
            "the backup of {} was cancelled; the next one goes on from the incomplete snapshot {}",
            path.display(),
            manifest.id
        );
    }
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
