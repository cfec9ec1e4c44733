//! `snapshot verify`.

use crate::args::JsonArgs;
use crate::commands::source_of;
use crate::output::{self, bytes};
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Result, bail};
use clap::Args;
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::snapshot::SourceInfo;
use lifeboat_kopia::verify::{self, VerifySnapshots};
use serde_json::json;
use std::path::Path;

/// So many damages are told to programs; people are told all of them.
const MOST_TOLD: usize = 10_000;

/// What is verified, and how thoroughly.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Only these; all if none are named
    pub snapshots: Vec<String>,
    /// Only those of these sources: directories, or user@host:/path
    #[arg(long)]
    pub sources: Vec<String>,
    /// How many percent of the files are read and decrypted
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = parse_percent)]
    pub verify_files_percent: f64,
    /// How many directories are read at once
    #[arg(long, default_value_t = 8)]
    pub parallel: usize,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("percents are from 0 to 100".to_owned()),
    }
}

pub fn run(session: &Session, args: &VerifyArgs) -> Result<()> {
    let trees = Trees::of(session, session.open()?)?;
    let options = VerifySnapshots {
        only: chosen(session, &trees, args)?,
        // A share that is not whole is rounded up: rather too much is read than too little.
        read_percent: args.verify_files_percent.ceil() as u8,
        parallel: args.parallel,
    };
    let mut told = Vec::new();
    let mut print = |damage: verify::SnapshotDamage| {
        let text = format!("snapshot {} path {:?}: {}", damage.snapshot, damage.path, damage.error);
        eprintln!("damaged: {text}");
        if told.len() < MOST_TOLD {
            told.push(text);
        }
    };
    let report = session.wait(verify::snapshots(&trees.repository, &options, &mut print))?;
    if args.json.json {
        output::print_json(&json!({
            "stats": {
                "processedObjectCount": report.directories + report.files,
                "readBytes": report.bytes_read,
            },
            "errorCount": report.damaged,
            "errorStrings": told,
        }))?;
    } else {
        println!(
            "Verified {} snapshots: {} directories, {} files, read {}.",
            report.snapshots,
            report.directories,
            report.files,
            bytes(report.bytes_read)
        );
    }
    if report.damaged > 0 {
        bail!("{} damages found", report.damaged);
    }
    Ok(())
}

/// The snapshots that are named, or none if all are meant.
fn chosen(session: &Session, trees: &Trees, args: &VerifyArgs) -> Result<Option<Vec<ManifestId>>> {
    if args.snapshots.is_empty() && args.sources.is_empty() {
        return Ok(None);
    }
    let mut chosen = Vec::new();
    for name in &args.snapshots {
        chosen.extend(trees.snapshots_called(name)?.into_iter().map(|snapshot| snapshot.id));
    }
    for name in &args.sources {
        let source = match SourceInfo::parse(name) {
            Some(source) => source,
            None => source_of(&session.connection()?, Path::new(name))?,
        };
        chosen.extend(trees.snapshots().iter().filter(|s| s.source == source).map(|s| s.id.clone()));
    }
    Ok(Some(chosen))
}
