//! `index`: recover.

use crate::session::Session;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use lifeboat_blobs::BlobId;
use lifeboat_kopia::content::{PackChoice, RecoverOptions};

/// Verbs of `index`.
#[derive(Debug, Subcommand)]
pub enum IndexCommand {
    /// Build the index again from what the packs themselves say
    Recover(RecoverArgs),
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

pub fn run(session: &Session, command: IndexCommand) -> Result<()> {
    let IndexCommand::Recover(args) = command;
    let repository = session.open()?;
    let options = RecoverOptions {
        packs: choice(&args)?,
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
        match args.commit && report.damaged_packs == 0 {
            true => println!("Deleted {} index blobs.", report.replaced_blobs),
            false => println!("Kept {} index blobs.", report.replaced_blobs),
        }
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
