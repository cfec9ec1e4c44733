//! One module for each noun.

mod content;
mod create;
pub mod index;
pub mod maintenance;
mod policy;
mod quickstart;
pub mod repair;
mod repository;
mod restore;
mod snapshot;

use crate::args::{Cli, Command};
use crate::session::Session;
use anyhow::{Context, Result};
use lifeboat_kopia::connection::Connection;
use lifeboat_kopia::snapshot::SourceInfo;
use std::path::Path;

/// Does what the command line says.
pub fn run(cli: Cli) -> Result<()> {
    if let Command::Quickstart(args) = &cli.command {
        return quickstart::run(args);
    }
    let session = Session::new(&cli.global)?;
    match cli.command {
        Command::Repository(command) => repository::run(&session, command),
        Command::Snapshot(command) => snapshot::run(&session, command),
        Command::Restore(args) => restore::run(&session, &args),
        Command::Policy(command) => policy::run(&session, command),
        Command::Content(command) => content::run(&session, &command),
        Command::Index(command) => index::run(&session, command),
        Command::Maintenance(command) => maintenance::run(&session, command),
        Command::Quickstart(_) => Ok(()),
    }
}

/// The source that a path of this machine is.
fn source_of(connection: &Connection, path: &Path) -> Result<SourceInfo> {
    let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
    let path = path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))?;
    Ok(SourceInfo::new(&connection.username, &connection.hostname, path))
}

/// A number of bytes for people, in powers of ten as Kopia prints them.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    let mut value = count as f64;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let text = if unit == 0 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}
