//! `snapshot`: one module for each verb, or for several that belong together.

mod change;
mod create;
mod estimate;
mod fix;
mod history;
mod list;
mod migrate;
mod rewrite;
mod usage;
mod verify;

use super::restore::{self, RestoreArgs};
use crate::session::Session;
use anyhow::Result;
use clap::Subcommand;

/// Verbs of `snapshot`.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub enum SnapshotCommand {
    /// Back up directories
    Create(create::CreateArgs),
    /// List snapshots
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Restore a snapshot
    Restore(RestoreArgs),
    /// Check that snapshots can be restored
    Verify(verify::VerifyArgs),
    /// Delete snapshots
    #[command(visible_aliases = ["remove", "rm"])]
    Delete(change::DeleteArgs),
    /// Delete snapshots that their policies do not keep
    Expire(change::ExpireArgs),
    /// Protect snapshots from expiry, or no longer
    Pin(change::PinArgs),
    /// Count what a snapshot would take
    Estimate(estimate::EstimateArgs),
    /// Copy snapshots to another user, host or path
    CopyHistory(history::HistoryArgs),
    /// Move snapshots to another user, host or path
    MoveHistory(history::HistoryArgs),
    /// Take what is lost out of snapshots, so that the rest can be used
    #[command(subcommand)]
    Fix(fix::FixCommand),
    /// Copy snapshots from another repository into this one
    Migrate(migrate::MigrateArgs),
}

pub fn run(session: &Session, command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create(args) => create::run(session, &args),
        SnapshotCommand::List(args) => list::run(session, &args),
        SnapshotCommand::Restore(args) => restore::run(session, &args),
        SnapshotCommand::Verify(args) => verify::run(session, &args),
        SnapshotCommand::Delete(args) => change::delete(session, &args),
        SnapshotCommand::Expire(args) => change::expire(session, &args),
        SnapshotCommand::Pin(args) => change::pin(session, &args),
        SnapshotCommand::Estimate(args) => estimate::run(session, &args),
        SnapshotCommand::CopyHistory(args) => history::run(session, &args, false),
        SnapshotCommand::MoveHistory(args) => history::run(session, &args, true),
        SnapshotCommand::Fix(command) => fix::run(session, &command),
        SnapshotCommand::Migrate(args) => migrate::run(session, &args),
    }
}

/// A tag of a user; the prefix tells it from labels of others, as in kopia.
fn parse_tag(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.is_empty() => Ok((format!("tag:{name}"), value.to_owned())),
        _ => Err("a tag is a name, a colon and a value".to_owned()),
    }
}
