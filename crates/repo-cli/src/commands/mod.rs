//! One module for each noun.

pub mod benchmark;
pub mod blob;
pub mod cache;
pub mod client;
pub mod content;
pub mod diff;
pub mod find;
pub mod index;
pub mod list;
pub mod logs;
pub mod maintenance;
pub mod manifest;
pub mod mount;
pub mod policy;
pub mod provider;
mod quickstart;
pub mod repair;
mod repository;
#[cfg(feature = "restic")]
pub mod restic;
pub mod restore;
pub mod sessions;
pub mod snapshot;
pub mod sync;
pub mod upgrade;

use crate::args::{Cli, Command};
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result};
use clap::CommandFactory;
use lifeboat_kopia::connection::Connection;
use lifeboat_kopia::snapshot::SourceInfo;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Does what the command line says.
pub fn run(cli: Cli) -> Result<()> {
    match &cli.command {
        Command::Quickstart(args) => return quickstart::run(args),
        Command::Benchmark(command) => return benchmark::run(command),
        Command::Completion { shell } => return complete(*shell),
        Command::Man { folder } => return write_manual(folder),
        _ => {}
    }
    let session = Session::new(&cli.global)?;
    match cli.command {
        Command::Repository(command) => repository::run(&session, command),
        Command::Snapshot(command) => snapshot::run(&session, command),
        Command::Restore(args) => restore::run(&session, &args),
        Command::Policy(command) => policy::run(&session, command),
        Command::List(args) => list::run(&session, &args),
        Command::Show { object } => show(&session, &object),
        Command::Find(args) => find::run(&session, &args),
        Command::Mount(args) => mount::run(&session, &args),
        Command::Diff(args) => diff::run(&session, &args),
        Command::Content(command) => content::run(&session, command),
        Command::Blob(command) => blob::run(&session, command),
        Command::Index(command) => index::run(&session, command),
        Command::Manifest(command) => manifest::run(&session, command),
        Command::Maintenance(command) => maintenance::run(&session, command),
        Command::Cache(command) => cache::run(&session, &command),
        Command::Logs(command) => logs::run(&session, &command),
        #[cfg(feature = "restic")]
        Command::Restic(command) => restic::run(&session, cli.global.password, &command),
        Command::Session(command) => sessions::run(&session, &command),
        Command::Quickstart(_) | Command::Benchmark(_) | Command::Completion { .. } | Command::Man { .. } => {
            Ok(())
        }
    }
}

/// Prints the bytes of an object.
fn show(session: &Session, object: &str) -> Result<()> {
    let trees = Trees::open(session)?;
    let entry = trees.entry(object)?;
    std::io::copy(&mut trees.read(&entry)?, &mut std::io::stdout().lock())?;
    Ok(())
}

fn complete(shell: clap_complete::Shell) -> Result<()> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lifeboat-repo", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

fn write_manual(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write manual pages into {}", folder.display()))
}

/// A time span such as `90s`, `1h30m` or `24h`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let time: jiff::SignedDuration = text.parse().map_err(|error| format!("{error}"))?;
    Duration::try_from(time).map_err(|_| "a time span is not negative".to_owned())
}

/// A share in percent.
pub fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("percents are from 0 to 100".to_owned()),
    }
}

/// The source that a path of this machine is.
fn source_of(connection: &Connection, path: &Path) -> Result<SourceInfo> {
    let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    let path = path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))?;
    Ok(SourceInfo::new(&connection.username, &connection.hostname, path))
}
