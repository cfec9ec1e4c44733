//! `restic`: what restic backed up, listed, found and restored.

use super::{find, list, restore};
use crate::args::{JsonArgs, Storage};
use crate::output;
use crate::session::{Session, text_variable};
use crate::storage;
use crate::tree::Browser;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lifeboat_blobs::config::Secret as StorageSecret;
use lifeboat_blobs::{OpenOptions, StoreConfig};
use lifeboat_kopia::snapshot::{DirEntry, SourceInfo};
use lifeboat_repository::Secret;
use lifeboat_restic::{DamagedSnapshot, ResticRepository, Snapshot, location, open_store};
use std::path::PathBuf;

/// Verbs of `restic`. The repository is where the flags say, or else where RESTIC_REPOSITORY says; the password is in
/// RESTIC_PASSWORD, or in the file that RESTIC_PASSWORD_FILE names
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub enum ResticCommand {
    /// List snapshots
    Snapshots(SnapshotsArgs),
    /// List a directory of a snapshot
    #[command(name = "list", visible_alias = "ls")]
    List(ResticListArgs),
    /// Find a file in all snapshots
    Find(ResticFindArgs),
    /// Print a file of a snapshot
    #[command(visible_alias = "dump")]
    Show(ShowArgs),
    /// Restore a snapshot: `latest` or an id, and optionally a path inside it, as `latest/home/me`
    Restore(ResticRestoreArgs),
}

/// Which snapshots are listed.
#[derive(Debug, Args)]
pub struct SnapshotsArgs {
    /// Only of this host
    #[arg(long, short = 'H')]
    pub host: Option<String>,
    /// Only those with this tag
    #[arg(long)]
    pub tag: Option<String>,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
    /// Where.
    #[command(subcommand)]
    pub storage: Option<Storage>,
}

/// What is listed.
#[derive(Debug, Args)]
pub struct ResticListArgs {
    /// What, and how.
    #[command(flatten)]
    pub list: list::ListArgs,
    /// Where.
    #[command(subcommand)]
    pub storage: Option<Storage>,
}

/// What is looked for.
#[derive(Debug, Args)]
pub struct ResticFindArgs {
    /// What, and in which snapshots.
    #[command(flatten)]
    pub find: find::FindArgs,
    /// Where.
    #[command(subcommand)]
    pub storage: Option<Storage>,
}

/// What is printed.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// A file, as `latest/some/path`
    pub object: String,
    /// Where.
    #[command(subcommand)]
    pub storage: Option<Storage>,
}

/// What is restored.
#[derive(Debug, Args)]
pub struct ResticRestoreArgs {
    /// `latest` or the id of a snapshot, and optionally a path inside it
    pub snapshot: String,
    /// The directory, made if it does not exist; the file, if the source is one; or an archive
    pub target: PathBuf,
    /// How.
    #[command(flatten)]
    pub how: restore::HowArgs,
    /// Where.
    #[command(subcommand)]
    pub storage: Option<Storage>,
}

pub fn run(session: &Session, password: Option<String>, command: &ResticCommand) -> Result<()> {
    let (ResticCommand::Snapshots(SnapshotsArgs { storage, .. })
    | ResticCommand::List(ResticListArgs { storage, .. })
    | ResticCommand::Find(ResticFindArgs { storage, .. })
    | ResticCommand::Show(ShowArgs { storage, .. })
    | ResticCommand::Restore(ResticRestoreArgs { storage, .. })) = command;
    let config = match storage {
        Some(storage) => by_flags(storage)?,
        None => by_environment()?,
    };
    let password = self::password(password)?;
    let store = session.wait(open_store(&config, OpenOptions::default()))?;
    let (runtime, budget) = (session.runtime().clone(), session.budget().clone());
    let repository = ResticRepository::open(store, &password, runtime, budget)?;
    let trees = Browser(&repository);
    match command {
        ResticCommand::Snapshots(args) => snapshots(&repository, args),
        ResticCommand::List(args) => list::list(trees, &args.list, &entry(&repository, &args.list.object)?),
        ResticCommand::Find(args) => find(&repository, &args.find),
        ResticCommand::Show(args) => {
            let mut reader = trees.read(&entry(&repository, &args.object)?)?;
            std::io::copy(&mut reader, &mut std::io::stdout().lock())?;
            Ok(())
        }
        ResticCommand::Restore(args) => {
            if args.how.shallow.is_some() {
                bail!("--shallow is for repositories of Kopia: placeholders are Kopia's");
            }
            let root = entry(&repository, &args.snapshot)?;
            let job = restore::Job::new(&args.snapshot, root, args.target.clone(), &args.how);
            restore::restore(session, trees, &job, &args.how, &session.cancel_on_signal())
        }
    }
}

fn by_flags(storage: &Storage) -> Result<StoreConfig> {
    if matches!(storage, Storage::Filesystem { flat: true, .. }) {
        bail!("--flat is for repositories of Kopia; restic has one way to lay out a folder");
    }
    Ok(storage::describe(storage, None)?.0.store_config()?)
}

/// The repository that restic would use, with its variables for credentials.
fn by_environment() -> Result<StoreConfig> {
    let name = text_variable(&["RESTIC_REPOSITORY"]).context(
        "which restic repository? Add `filesystem --path …`, `s3 --bucket …`, `gcs …` or `azure …`, or set \
         RESTIC_REPOSITORY",
    )?;
    let mut config = location::parse(&name)?;
    if let StoreConfig::Azure(azure) = &mut config {
        let variable = |name| text_variable(&[name]).unwrap_or_default();
        azure.storage_account = variable("AZURE_ACCOUNT_NAME");
        azure.storage_key = StorageSecret::from(variable("AZURE_ACCOUNT_KEY"));
        azure.sas_token = StorageSecret::from(variable("AZURE_ACCOUNT_SAS"));
    }
    Ok(config)
}

/// As restic finds it: what is said on the command line goes before the file, and that before the variable.
fn password(given: Option<String>) -> Result<Secret> {
    if let Some(password) = given {
        return Ok(Secret::new(password));
    }
    if let Some(file) = text_variable(&["RESTIC_PASSWORD_FILE"]) {
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read the password file {file}"))?;
        return Ok(Secret::new(text.trim()));
    }
    let password = text_variable(&["RESTIC_PASSWORD"]);
    let password =
        password.context("no password: set RESTIC_PASSWORD or RESTIC_PASSWORD_FILE, or use --password")?;
    Ok(Secret::new(password))
}

/// The entry that `text` names: `snapshot`, `snapshot/some/path`, or, as restic writes it, `snapshot:some/path`.
fn entry(repository: &ResticRepository, text: &str) -> Result<DirEntry> {
    let (id, path) = text.split_once(['/', ':']).unwrap_or((text, ""));
    let root = repository.snapshots()?.find(id)?.root();
    Browser(repository).lookup(root, id, path)
}

fn find(repository: &ResticRepository, args: &find::FindArgs) -> Result<()> {
    let all = repository.snapshots()?;
    let chosen = match &args.snapshot {
        Some(id) => std::slice::from_ref(all.find(id)?),
        None => &all.snapshots[..],
    };
    let place = |snapshot: &Snapshot| find::Place {
        id: snapshot.short_id.clone(),
        // A tree of restic begins at the root of the machine.
        source: format!("{}@{}:", snapshot.username, snapshot.hostname),
        source_info: SourceInfo::new(&snapshot.username, &snapshot.hostname, snapshot.paths.join(",")),
        time: snapshot.time,
        root: snapshot.root(),
    };
    let places: Vec<_> = chosen.iter().map(place).collect();
    // Objects are named by where they lie, not by what is in them.
    let version = |entry: &DirEntry| format!("{:?} {} {}", entry.entry_type, entry.size, entry.mtime);
    find::find(Browser(repository), args, &places, find::Manner { restore: "restic restore", version })?;
    all.damaged.iter().for_each(warn);
    Ok(())
}

fn warn(damaged: &DamagedSnapshot) {
    eprintln!("warning: snapshot {} cannot be read: {}", damaged.id, damaged.error);
}

fn snapshots(repository: &ResticRepository, args: &SnapshotsArgs) -> Result<()> {
    let mut found = repository.snapshots()?;
    found.snapshots.retain(|snapshot| {
        args.host.as_ref().is_none_or(|host| snapshot.hostname == *host)
            && args.tag.as_ref().is_none_or(|tag| snapshot.tags.contains(tag))
    });
    match args.json.json {
        true => output::print_json_list(found.snapshots.iter().map(Ok))?,
        false => found.snapshots.iter().try_for_each(|snapshot| output::line(&to_line(snapshot)))?,
    }
    found.damaged.iter().for_each(warn);
    Ok(())
}

fn to_line(snapshot: &Snapshot) -> String {
    let Snapshot { short_id, time, hostname, paths, tags, bytes, .. } = snapshot;
    let mut line = format!("{short_id} {} {hostname} {}", output::time(*time), paths.join(" "));
    if let Some(bytes) = bytes {
        line.push_str(&format!(" {}", output::bytes(*bytes)));
    }
    if !tags.is_empty() {
        line.push_str(&format!(" tags:{}", tags.join(",")));
    }
    line
}
