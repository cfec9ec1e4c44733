//! `index`: list, inspect, epochs, recover.

use super::blob;
use crate::args::JsonArgs;
use crate::output::{self, bytes};
use crate::session::Session;
use anyhow::{Context, Result, bail};
use clap::{ArgGroup, Args, Subcommand};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use lifeboat_blobs::{BlobId, BlobMetadata};
use lifeboat_index::{ContentId, IndexEntry};
use lifeboat_kopia::content::{IndexBlobs, PackChoice, RecoverOptions};
use lifeboat_kopia::repo::Repository;
use serde_json::Value;

/// Verbs of `index`.
#[derive(Debug, Subcommand)]
pub enum IndexCommand {
    /// List the blobs of the index
    #[command(visible_alias = "ls")]
    List {
        /// Also those that others replace
        #[arg(long)]
        superseded: bool,
        /// Print how many there are
        #[arg(long)]
        summary: bool,
        /// Order of the list
        #[arg(long, default_value = "time", value_parser = ["time", "size", "name"])]
        sort: String,
        /// Output for programs.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// List what the blobs of the index say about contents
    Inspect(InspectArgs),
    /// Look at epochs, the generations of the index
    #[command(subcommand)]
    Epoch(EpochCommand),
    /// Build the index again from what the packs themselves say
    Recover(RecoverArgs),
}

/// Verbs of `index epoch`.
#[derive(Debug, Subcommand)]
pub enum EpochCommand {
    /// List epochs
    #[command(visible_alias = "ls")]
    List,
}

/// Which blobs are inspected, and for what.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub struct InspectArgs {
    /// Names of blobs
    #[arg(value_parser = parse_blob, group = "which")]
    pub blobs: Vec<BlobId>,
    /// All blobs, also those that others replace
    #[arg(long, group = "which")]
    pub all: bool,
    /// All blobs that are in force
    #[arg(long, group = "which")]
    pub active: bool,
    /// Only what is said about these contents
    #[arg(long, value_name = "ID")]
    pub content_id: Vec<ContentId>,
    /// How many blobs are read at once
    #[arg(long, default_value_t = 8)]
    pub parallel: usize,
}

/// How the index is recovered.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Names of packs to recover from; all if none are named
    #[arg(long, value_delimiter = ',', conflicts_with = "blob_prefixes")]
    pub blobs: Vec<String>,
    /// Only packs whose names start with one of these
    #[arg(long, value_delimiter = ',')]
    pub blob_prefixes: Vec<String>,
    /// How many packs are read at once
    #[arg(long, default_value_t = 8)]
    pub parallel: usize,
    /// Succeed although some packs could not be read
    #[arg(long)]
    pub ignore_errors: bool,
    /// Believe no index that is there, and delete it once everything is recovered
    #[arg(long)]
    pub delete_indexes: bool,
    /// Really change the index
    #[arg(long)]
    pub commit: bool,
}

fn parse_blob(text: &str) -> Result<BlobId, String> {
    BlobId::new(text).map_err(|error| error.to_string())
}

pub fn run(session: &Session, command: IndexCommand) -> Result<()> {
    match command {
        IndexCommand::List { superseded, summary, sort, json } => {
            let repository = session.open_for_reading()?;
            let mut blobs = session.wait(index_blobs(&repository, superseded))?;
            match sort.as_str() {
                "size" => blobs.sort_by_key(|blob| blob.size),
                "name" => blobs.sort_by(|a, b| a.id.cmp(&b.id)),
                _ => blobs.sort_by_key(|blob| blob.modified),
            }
            list(&blobs, summary, json.json)
        }
        IndexCommand::Inspect(args) => inspect(session, &args),
        IndexCommand::Epoch(EpochCommand::List) => epochs(session),
        IndexCommand::Recover(args) => recover(session, &args),
    }
}

/// The blobs of the index that are in force, or all of them.
async fn index_blobs(repository: &Repository, all: bool) -> lifeboat_kopia::Result<Vec<BlobMetadata>> {
    match repository.contents().index_blobs() {
        IndexBlobs::Epochs(epochs) => {
            let state = epochs.refresh().await?.state;
            Ok(if all { state.indexes().cloned().collect() } else { state.active() })
        }
        IndexBlobs::Legacy(index) if all => index.all().await,
        IndexBlobs::Legacy(index) => index.active().await,
    }
}

fn list(blobs: &[BlobMetadata], summary: bool, json: bool) -> Result<()> {
    if json {
        return output::print_json_list(blobs.iter().map(|index| {
            let mut value = blob::to_json(index);
            if let Some(fields) = value.as_object_mut() {
                fields.insert("Superseded".to_owned(), Value::Null);
            }
            Ok(value)
        }));
    }
    for blob in blobs {
        output::line(&format!("{:<60} {:>10} {}", blob.id.as_str(), blob.size, output::time(blob.modified)))?;
    }
    match summary {
        true => output::line(&format!("total {} indexes", blobs.len())),
        false => Ok(()),
    }
}

fn inspect(session: &Session, args: &InspectArgs) -> Result<()> {
    let repository = session.open_for_reading()?;
    let blobs = match args.all || args.active {
        true => session.wait(index_blobs(&repository, args.all))?,
        false => {
            let find = |blob| session.wait(repository.store().head(blob));
            args.blobs.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    let contents = repository.contents();
    let read = |blob| async move {
        // One by one, so that nothing is merged.
        let index = contents.merge_index(std::slice::from_ref(blob), i64::MIN).await;
        anyhow::Ok((blob, index.with_context(|| format!("cannot read index blob {}", blob.id))?))
    };
    let mut indexes = stream::iter(blobs.iter().map(read)).buffered(args.parallel.max(1));
    while let Some((blob, index)) = session.wait(indexes.try_next())? {
        for entry in index.entries() {
            let entry = entry?;
            if args.content_id.is_empty() || args.content_id.contains(&entry.id) {
                output::line(&statement(blob, &entry))?;
            }
        }
    }
    Ok(())
}

/// What a blob of the index says about a content, as Kopia prints it.
fn statement(blob: &BlobMetadata, entry: &IndexEntry) -> String {
    let state = if entry.deleted { "deleted" } else { "created" };
    let made = output::precise_time(Timestamp::from_second(entry.timestamp_seconds).unwrap_or_default());
    let (written, name) = (output::precise_time(blob.modified), &blob.id);
    let IndexEntry { id, pack, pack_offset, packed_length, .. } = entry;
    format!("{written} {name} {id} {state} {made} {} {pack_offset} {packed_length}", pack.as_str())
}

fn epochs(session: &Session) -> Result<()> {
    let repository = session.open_for_reading()?;
    let IndexBlobs::Epochs(epochs) = repository.contents().index_blobs() else {
        bail!("this repository was created without epochs; `index list` shows its index");
    };
    let state = session.wait(epochs.refresh())?.state;
    output::line(&format!("Current Epoch: {}", state.write_epoch))?;
    for range in &state.chain {
        let size: u64 = range.blobs.iter().map(|blob| blob.size).sum();
        let (first, last, count) = (range.first, range.last, range.blobs.len());
        output::line(&format!("{first} to {last}: one index of {count} blobs, {}", bytes(size)))?;
    }
    for (kind, sets) in [("compacted, ", &state.singles), ("", &state.uncompacted)] {
        for (epoch, blobs) in sets {
            let size: u64 = blobs.iter().map(|blob| blob.size).sum();
            let times = || blobs.iter().map(|blob| blob.modified);
            let (Some(first), Some(last)) = (times().min(), times().max()) else { continue };
            let (first, last, count) = (output::time(first), output::time(last), blobs.len());
            output::line(&format!("{epoch} {first} ... {last}, {kind}{count} blobs, {}", bytes(size)))?;
        }
    }
    Ok(())
}

fn recover(session: &Session, args: &RecoverArgs) -> Result<()> {
    let repository = session.open()?;
    let options = RecoverOptions {
        packs: choice(args)?,
        parallel: args.parallel,
        commit: args.commit,
        replace_index: args.delete_indexes,
    };
    let mut print = |pack: &BlobId, error: &_| eprintln!("damaged: pack {pack}: {error}");
    let report = session.wait(repository.contents().recover_index(&options, &mut print))?;
    let read = report.packs - report.damaged_packs;
    match args.commit {
        true => println!("Recovered {} of {} entries from {read} packs.", report.missing, report.entries),
        false => println!(
            "Found {} entries to recover among {} from {read} packs; add --commit to recover them.",
            report.missing, report.entries
        ),
    }
    if report.replaced_blobs > 0 {
        match args.commit && report.is_complete() {
            true => println!("Deleted {} index blobs.", report.replaced_blobs),
            false => println!("Kept {} index blobs.", report.replaced_blobs),
        }
    }
    if let Some(unread) = report.unread_pack.filter(|_| !args.ignore_errors) {
        bail!("{unread}");
    }
    if report.damaged_packs > 0 && !args.ignore_errors {
        bail!("{} packs could not be read; everything else was dealt with", report.damaged_packs);
    }
    Ok(())
}

fn choice(args: &RecoverArgs) -> Result<PackChoice> {
    Ok(match (args.blobs.is_empty(), args.blob_prefixes.is_empty()) {
        (false, _) => PackChoice::Named(args.blobs.iter().map(BlobId::new).collect::<Result<_, _>>()?),
        (true, false) => PackChoice::Prefixes(args.blob_prefixes.clone()),
        (true, true) => PackChoice::All,
    })
}
