//! `snapshot create`.

use super::parse_tag;
use crate::args::JsonArgs;
use crate::commands::{policy, source_of};
use crate::output::{self, bytes};
use crate::progress::{Display, State};
use crate::session::Session;
use crate::when::parse_moment;
use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use lifeboat_kopia::policy::{PolicySet, PolicyTree, save as save_policy};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::{IncompleteReason, SnapshotManifest, SourceInfo};
use lifeboat_repository::Repository as _;
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_uploader::{
    BackupOptions, BlockBackupOptions, Cancel, LogDetails, MAX_CHECKPOINT_INTERVAL, Progress,
    StreamBackupOptions, apply_retention, back_up, back_up_block, back_up_stream, find_parents,
    save_snapshot,
};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to back up, and how.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The directories
    #[arg(required_unless_present = "all")]
    pub sources: Vec<PathBuf>,
    /// All directories that were backed up before under this name of user and host, but for those whose policy says that
    /// they are only backed up by hand
    #[arg(long, conflicts_with = "sources")]
    pub all: bool,
    /// Back up what comes in on the standard input, as a file of this name; the directory only names the snapshot
    #[arg(long, value_name = "NAME", value_parser = parse_file_name, conflicts_with = "all")]
    pub stdin_file: Option<String>,
    /// Take the snapshot under another name, as user@host:/path; only of one directory
    #[arg(long, value_name = "SOURCE")]
    pub override_source: Option<String>,
    /// Free text
    #[arg(long, default_value = "")]
    pub description: String,
    /// A tag, as name:value
    #[arg(long, value_name = "NAME:VALUE", value_parser = parse_tag)]
    pub tags: Vec<(String, String)>,
    /// A name under which the snapshot is protected from expiry
    #[arg(long, value_name = "NAME")]
    pub pin: Vec<String>,
    /// How many threads read; 0 is what the policy says, or one for each processor
    #[arg(long, default_value_t = 0)]
    pub parallel: usize,
    /// How often to save what is there so far, such as 10m; at most 45m
    #[arg(long, value_name = "TIME", default_value = "45m", value_parser = parse_interval)]
    pub checkpoint_interval: Duration,
    /// Fail with the first entry that cannot be read
    #[arg(long)]
    pub fail_fast: bool,
    /// Run the commands that policies name although the connection does not allow it
    #[arg(long, conflicts_with = "force_disable_actions")]
    pub force_enable_actions: bool,
    /// Run no commands that policies name
    #[arg(long)]
    pub force_disable_actions: bool,
    /// Read so many percent of the files, chosen by chance, although they look unchanged
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = parse_percent)]
    pub force_hash: f64,
    /// End with an incomplete snapshot, which the next one goes on from, after so many MiB of new data; 0 is no limit
    #[arg(long, value_name = "MIB", default_value_t = 0, conflicts_with = "stdin_file")]
    pub upload_limit_mb: u32,
    /// Note this as the time when the snapshot was begun, as '2026-01-31 18:30:00 UTC'
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub start_time: Option<Timestamp>,
    /// Note this as the time when the snapshot was finished
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub end_time: Option<Timestamp>,
    /// How detailed the log is about directories, 0 to 10, whatever the policy says (see --log-level, --log-dir)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=10))]
    pub log_dir_detail: Option<i64>,
    /// How detailed the log is about files and links, 0 to 10, whatever the policy says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=10))]
    pub log_entry_detail: Option<i64>,
    /// Send no notification, as always
    #[arg(long, hide = true)]
    pub no_send_snapshot_report: bool,
    /// Keep only what kopia keeps: no extended attributes, hard links, devices, pipes, sockets, holes, names that
    /// are not UTF-8
    #[arg(long)]
    pub no_extras: bool,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

fn parse_file_name(text: &str) -> Result<String, String> {
    match text {
        "" | "." | ".." => Err("that is not the name of a file".to_owned()),
        _ if text.contains(['/', '\0']) => Err("it is the name of a file, not a path".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let time: jiff::SignedDuration = text.parse().map_err(|e| format!("{e}"))?;
    match Duration::try_from(time) {
        Ok(interval) if !interval.is_zero() && interval <= MAX_CHECKPOINT_INTERVAL => Ok(interval),
        _ => Err("an interval of more than nothing and at most 45m is possible".to_owned()),
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("a percentage is a number from 0 to 100".to_owned()),
    }
}

/// Notes other times than the real ones. If only one is given, the snapshot took as long as it did.
fn set_times(
    manifest: &mut SnapshotManifest,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
) -> Result<()> {
    let begun = manifest.start_time;
    let took = begun.duration_until(manifest.end_time);
    let (start, end) = match (start, end) {
        (None, None) => return Ok(()),
        (Some(start), None) => (start, start.checked_add(took)?),
        (None, Some(end)) => (end.checked_sub(took)?, end),
        (Some(start), Some(end)) => (start, end),
    };
    (manifest.start_time, manifest.end_time) = (start, end);
    // Whether extended attributes changed since the snapshot goes by the real time.
    if let Some(extras) = manifest.root_entry.as_mut().and_then(|root| root.extras.as_mut()) {
        extras.begun = Some(begun);
    }
    Ok(())
}

pub fn run(session: &Session, args: &CreateArgs) -> Result<()> {
    if let (Some(start), Some(end)) = (args.start_time, args.end_time)
        && start > end
    {
        bail!("--start-time is after --end-time");
    }
    let allowed = session.connection()?.enable_actions;
    let actions = (allowed || args.force_enable_actions) && !args.force_disable_actions;
    let repository = session.open_for_backup()?;
    let cancel = session.cancel_on_signal();
    let creation = Creation { session, repository: &repository, args, actions, cancel };
    let outcome = creation.sources().and_then(|sources| {
        sources.iter().try_for_each(|(path, source)| creation.create(path, source.clone()))
    });
    let closed = session.wait(repository.clone().close());
    // Of a store that does not answer any more, closing says only that.
    outcome?;
    Ok(closed?)
}

struct Creation<'a> {
    session: &'a Session,
    repository: &'a Repository,
    args: &'a CreateArgs,
    /// Whether commands of policies are run.
    actions: bool,
    cancel: Cancel,
}

impl Creation<'_> {
    /// What is backed up, and under which names.
    fn sources(&self) -> Result<Vec<(PathBuf, SourceInfo)>> {
        let connection = self.session.connection()?;
        if self.args.all {
            let policies = self.session.wait(PolicySet::load(self.repository.manifests()))?;
            let mut sources: Vec<(PathBuf, SourceInfo)> = Vec::new();
            for SnapshotManifest { source, .. } in self.session.wait(self.repository.snapshots())?.snapshots {
                let is_ours = source.user_name == connection.username && source.host == connection.hostname;
                if is_ours
                    && !sources.iter().any(|(_, known)| *known == source)
                    && !policies.effective(&source)?.0.scheduling.manual
                {
                    sources.push((PathBuf::from(&source.path), source));
                }
            }
            if sources.is_empty() {
                bail!(
                    "no directory is backed up by --all: none was before under the name {}@{}, or the policies of all \
                     say by hand only; name a directory",
                    connection.username,
                    connection.hostname
                );
            }
            return Ok(sources);
        }
        if self.args.stdin_file.is_some() && self.args.sources.len() != 1 {
            bail!("--stdin-file takes one directory, which names the snapshot");
        }
        match (&self.args.override_source, self.args.sources.as_slice()) {
            (None, [path]) if self.args.stdin_file.is_some() => {
                let absolute = std::path::absolute(path)?;
                let text = absolute.to_str().with_context(|| format!("{path:?} is not valid UTF-8"))?;
                let source = SourceInfo::new(&connection.username, &connection.hostname, text);
                Ok(vec![(path.clone(), source)])
            }
            (None, paths) => {
                paths.iter().map(|path| Ok((path.clone(), source_of(&connection, path)?))).collect()
            }
            (Some(text), [path]) => {
                let source = SourceInfo::parse(text).filter(|source| !source.path.is_empty());
                let source = source.with_context(|| format!("{text:?} is not user@host:/path"))?;
                Ok(vec![(path.clone(), source)])
            }
            (Some(_), _) => bail!("--override-source names one source; back up one directory at a time"),
        }
    }

    fn create(&self, path: &Path, source: SourceInfo) -> Result<()> {
        if self.args.upload_limit_mb > 0 && is_device(path) {
            bail!(
                "--upload-limit-mb is for directories: a volume like {} is whole or not at all",
                path.display()
            );
        }
        let started = Instant::now();
        let interface = KopiaRepository::new(self.repository.clone());
        let policies = policy::tree(self.session, self.repository, &source)?;
        let retention = policies.policy().retention.clone();
        let parents = find_parents(&interface, &source)?;
        let previous = parents.first().map(|it| (it.id.clone(), it.root_object().map(str::to_owned)));
        eprintln!("Snapshotting {source} ...");
        let (progress, before) = (Progress::default(), interface.written());
        let state = || state(&progress, interface.written().stored - before.stored);
        let taken = self
            .session
            .display()
            .during(state, || self.back_up(&interface, path, &source, policies, parents, &progress));
        let mut manifest = taken.with_context(|| format!("snapshot of {} failed", path.display()))?;
        manifest.tags = self.args.tags.iter().cloned().collect();
        manifest.update_pins(self.args.pin.iter().map(String::as_str), []);
        set_times(&mut manifest, self.args.start_time, self.args.end_time)?;
        if let Some((id, root)) = previous
            && retention.ignore_identical_snapshots.unwrap_or(false)
            && manifest.is_complete()
            && root.as_deref() == manifest.root_object()
        {
            eprintln!("Not saved: nothing has changed since the previous snapshot");
            // That what could not be read is the same as the last time makes it no better.
            manifest.id = id;
            report_movement(&progress);
            return report_failures(&manifest, path);
        }
        let mut marked = Ok(());
        let save = || {
            save_snapshot(&interface, &mut manifest)?;
            apply_retention(&interface, &source, &retention)?;
            if self.is_by_hand() {
                marked = self.mark_as_manual(&source);
            }
            Ok(interface.flush()?)
        };
        let saved = self.cancel.interrupting_save(&interface, save);
        saved.with_context(|| format!("the snapshot of {} could not be saved", path.display()))?;
        if self.args.json.json {
            output::print_json(&manifest)?;
        } else {
            let (totals, written) = (progress.totals(), interface.written());
            let partial = if manifest.is_complete() { "" } else { " partial" };
            let root = manifest.root_object().unwrap_or_default();
            let seconds = started.elapsed().as_secs();
            eprintln!("Created{partial} snapshot with root {root} and ID {} in {seconds}s", manifest.id);
            eprintln!(
                "{} files ({} unchanged), {} directories, {}; {} new, {} stored",
                totals.files,
                totals.cached_files,
                totals.directories,
                bytes(totals.bytes),
                bytes(written.new - before.new),
                bytes(written.stored - before.stored)
            );
        }
        report_movement(&progress);
        marked.with_context(|| {
            format!(
                "the snapshot {} is there, but the policy of {source} could not be set to by hand only, which --all goes by",
                manifest.id
            )
        })?;
        report_failures(&manifest, path)
    }

    /// Whether nobody but the caller could take the snapshot again: the path alone does not say what was backed up.
    fn is_by_hand(&self) -> bool {
        self.args.stdin_file.is_some() || self.args.override_source.is_some()
    }

    /// Has `--all` leave a source out, of either program.
    fn mark_as_manual(&self, source: &SourceInfo) -> Result<()> {
        let manifests = self.repository.manifests();
        let policies = self.session.wait(PolicySet::load(manifests))?;
        let mut policy = policies.defined_for(source).map(|own| own.policy.clone()).unwrap_or_default();
        if !std::mem::replace(&mut policy.scheduling.manual, true) {
            self.session.wait(save_policy(manifests, source, &policy))?;
        }
        Ok(())
    }

    fn log_details(&self) -> LogDetails {
        LogDetails { directories: self.args.log_dir_detail, entries: self.args.log_entry_detail }
    }

    fn back_up(
        &self,
        repository: &KopiaRepository,
        path: &Path,
        source: &SourceInfo,
        policies: PolicyTree,
        parents: Vec<SnapshotManifest>,
        progress: &Progress,
    ) -> lifeboat_uploader::Result<SnapshotManifest> {
        if let Some(name) = &self.args.stdin_file {
            let options = StreamBackupOptions {
                name: name.clone(),
                source: source.clone(),
                policy: (**policies.policy()).clone(),
                description: self.args.description.clone(),
            };
            return back_up_stream(repository, &options, &mut std::io::stdin(), progress, &self.cancel);
        }
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let budget = self.session.budget().clone();
        if is_device(&path) {
            let options = BlockBackupOptions {
                path,
                source: source.clone(),
                policy: (**policies.policy()).clone(),
                changes: None,
                actions: self.actions,
                description: self.args.description.clone(),
                checkpoint_interval: Some(self.args.checkpoint_interval),
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
            placeholders: true,
            log_details: self.log_details(),
            checkpoint_interval: Some(self.args.checkpoint_interval),
            estimate: self.session.display() == Display::Bar,
            fail_fast: self.args.fail_fast,
            actions: self.actions,
            force_hash: self.args.force_hash,
            upload_limit: Some(u64::from(self.args.upload_limit_mb) << 20).filter(|limit| *limit > 0),
            threads: self.args.parallel,
            budget,
        };
        back_up(repository, &options, progress, &self.cancel)
    }
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// How far a backup is, in words close to Kopia's.
fn state(progress: &Progress, uploaded: u64) -> State {
    let totals = progress.totals();
    let mut text = format!(
        "hashing: {} hashed ({}), {} cached ({}), uploaded {}",
        totals.hashed_files,
        bytes(totals.hashed_bytes),
        totals.cached_files,
        bytes(totals.cached_bytes),
        bytes(uploaded),
    );
    if totals.errors + totals.ignored_errors > 0 {
        text.push_str(&format!(", {} errors", totals.errors + totals.ignored_errors));
    }
    State { text, done: totals.bytes, total: totals.estimated_bytes, ..State::default() }
}

/// Names what did not hold still while it was backed up.
fn report_movement(progress: &Progress) {
    let totals = progress.totals();
    let kinds = [
        ("vanished before being backed up", totals.vanished, progress.vanished_paths()),
        ("changed while being backed up", totals.changed, progress.changed_paths()),
    ];
    for (what, count, paths) in kinds.into_iter().filter(|(_, count, _)| *count > 0) {
        let more = count.saturating_sub(paths.len() as u64);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        eprintln!("{count} {what}: {}{rest}", quoted(&paths));
    }
}

fn quoted(paths: &[String]) -> String {
    paths.iter().map(|path| format!("{path:?}")).collect::<Vec<_>>().join(", ")
}

/// The snapshot is kept, but whoever took it has to know that something is missing.
fn report_failures(manifest: &SnapshotManifest, path: &Path) -> Result<()> {
    if manifest.incomplete == IncompleteReason::LimitReached.as_str() {
        eprintln!(
            "Ended by --upload-limit-mb; the next snapshot of {} goes on from this one",
            path.display()
        );
    } else if !manifest.is_complete() {
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
