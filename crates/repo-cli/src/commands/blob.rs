//! `blob`: list, show, stats, delete.

use super::content::Histogram;
use crate::args::JsonArgs;
use crate::output;
use crate::session::Session;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use futures::TryStreamExt;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore};
use serde_json::json;
use std::io::Write;

/// Verbs of `blob`.
#[derive(Debug, Subcommand)]
pub enum BlobCommand {
    /// List blobs
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Print blobs
    #[command(visible_alias = "cat")]
    Show {
        /// Their names
        #[arg(required = true)]
        blobs: Vec<String>,
        /// Decrypt what is encrypted as a whole: logs, sessions and indexes
        #[arg(long)]
        decrypt: bool,
    },
    /// Count blobs by size
    Stats {
        /// Only those whose names start with this
        #[arg(long, default_value = "")]
        prefix: String,
        /// Print plain numbers
        #[arg(long, short)]
        raw: bool,
    },
    /// Delete blobs, whatever needs them
    #[command(visible_alias = "rm")]
    Delete {
        /// Their names
        #[arg(required = true)]
        blobs: Vec<String>,
        /// Say `enabled`: what needs the blobs is lost
        #[arg(long, value_name = "enabled")]
        dangerous_commands: Option<String>,
    },
}

/// Which blobs are listed.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only those whose names start with this
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Not those whose names start with one of these
    #[arg(long)]
    pub exclude_prefix: Vec<String>,
    /// Only those of at least so many bytes
    #[arg(long, default_value_t = 0)]
    pub min_size: u64,
    /// Only those of at most so many bytes
    #[arg(long)]
    pub max_size: Option<u64>,
    /// Only packs with data of files
    #[arg(long)]
    pub data_only: bool,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

pub fn run(session: &Session, command: BlobCommand) -> Result<()> {
    match command {
        BlobCommand::List(args) => list(session, &args),
        BlobCommand::Show { blobs, decrypt } => show(session, &blobs, decrypt),
        BlobCommand::Stats { prefix, raw } => stats(session, &prefix, raw),
        BlobCommand::Delete { blobs, dangerous_commands } => {
            delete(session, &blobs, dangerous_commands.as_deref())
        }
    }
}

/// The store of this connection, without looking into the repository.
fn store(session: &Session) -> Result<std::sync::Arc<dyn BlobStore>> {
    let connection = session.connection()?;
    session.store(connection.storage()?, connection.throttling, false)
}

fn list(session: &Session, args: &ListArgs) -> Result<()> {
    let store = store(session)?;
    let prefix = if args.data_only && args.prefix.is_empty() { "p" } else { &args.prefix };
    let wanted = |blob: &BlobMetadata| {
        let is_excluded = args.exclude_prefix.iter().any(|prefix| blob.id.as_str().starts_with(prefix));
        let fits = blob.size >= args.min_size && args.max_size.is_none_or(|most| blob.size <= most);
        fits && !is_excluded && (!args.data_only || blob.id.as_str().starts_with('p'))
    };
    let all: Vec<BlobMetadata> = session.wait(store.list(prefix).try_collect())?;
    let mut chosen = all.into_iter().filter(wanted);
    match args.json.json {
        true => output::print_json_list(chosen.map(|blob| Ok(to_json(&blob)))),
        false => chosen.try_for_each(|blob| {
            output::line(&format!(
                "{:<70} {:>10} {}",
                blob.id.as_str(),
                blob.size,
                output::time(blob.modified)
            ))
        }),
    }
}

/// A blob as Kopia prints it.
pub fn to_json(blob: &BlobMetadata) -> serde_json::Value {
    json!({ "id": blob.id.as_str(), "length": blob.size, "timestamp": blob.modified.to_string() })
}

fn show(session: &Session, names: &[String], decrypt: bool) -> Result<()> {
    let repository = session.open_for_reading()?;
    let mut out = std::io::stdout().lock();
    for name in names {
        let sealed = session.wait(repository.store().get(&BlobId::new(name)?))?;
        let is_sealed = ["_", "n", "m", "l", "x", "s"].iter().any(|kind| name.starts_with(kind));
        match decrypt && is_sealed {
            true => out.write_all(&repository.contents().sealer().open_blob(name, &sealed)?)?,
            false => out.write_all(&sealed)?,
        }
    }
    Ok(out.flush()?)
}

fn stats(session: &Session, prefix: &str, raw: bool) -> Result<()> {
    let store = store(session)?;
    let mut histogram = Histogram::default();
    session.wait(store.list(prefix).try_for_each(|blob| {
        histogram.add(blob.size);
        std::future::ready(Ok(()))
    }))?;
    histogram.print("Total", raw)
}

fn delete(session: &Session, names: &[String], permission: Option<&str>) -> Result<()> {
    if permission != Some("enabled") {
        bail!(
            "deleting blobs loses what is in them; add --dangerous-commands=enabled if that is what you want"
        );
    }
    let store = store(session)?;
    for name in names {
        let id = BlobId::new(name)?;
        session.wait(store.delete(&id)).with_context(|| format!("cannot delete {name}"))?;
        eprintln!("Deleted {name}");
    }
    Ok(())
}
