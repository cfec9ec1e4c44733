//! `snapshot verify`.

use crate::args::JsonArgs;
use crate::commands::{parse_percent, source_of};
use crate::output::{self, bytes};
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Result, bail};
use clap::Args;
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::snapshot::{DirEntry, SnapshotManifest, SourceInfo};
use lifeboat_kopia::verify::{self, SnapshotsReport, VerifySnapshots};
use serde_json::{Value, json};
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
    /// Only these directories and what is below, by object id, or a path behind one
    #[arg(long, value_name = "OBJECT")]
    pub directory_id: Vec<String>,
    /// Only these files, by object id, or a path behind one
    #[arg(long, value_name = "OBJECT")]
    pub file_id: Vec<String>,
    /// End after so many damages; 0 names all
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub max_errors: u64,
    /// How many directories are read at once
    #[arg(long, default_value_t = 8)]
    pub parallel: usize,
    /// How many files are verified at once
    #[arg(long, default_value_t = 8, value_name = "COUNT")]
    pub file_parallelism: usize,
    /// How many files may wait for that before no directory is read on
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    pub file_queue_length: usize,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

pub fn run(session: &Session, args: &VerifyArgs) -> Result<()> {
    let trees = Trees::of(session, session.open()?)?;
    let options = VerifySnapshots {
        only: chosen(session, &trees, args)?,
        objects: objects(&trees, args)?,
        // A share that is not whole is rounded up: rather too much is read than too little.
        read_percent: args.verify_files_percent.ceil() as u8,
        parallel: args.parallel,
        files_at_once: args.file_parallelism,
        waiting_files: args.file_queue_length,
        max_damages: Some(args.max_errors).filter(|most| *most > 0),
    };
    let mut told = Vec::new();
    let mut print = |damage: verify::SnapshotDamage| {
        let text = match &damage.snapshot {
            Some(id) => format!("snapshot {id} path {:?}: {}", damage.path, damage.error),
            None => format!("object {:?}: {}", damage.path, damage.error),
        };
        eprintln!("damaged: {text}");
        if told.len() < MOST_TOLD {
            told.push(text);
        }
    };
    let report = session.wait(verify::snapshots(&trees.repository, &options, &mut print))?;
    if args.json.json {
        output::print_json(&to_json(&report, &expected(&trees, &options), told))?;
    } else {
        println!(
            "Verified {} snapshots: {} directories, {} files, read {}.",
            report.snapshots,
            report.directories,
            report.files,
            bytes(report.bytes_read)
        );
    }
    match report.damaged {
        0 => Ok(()),
        count if count == args.max_errors => bail!("{count} damages found; there may be more (--max-errors)"),
        count => bail!("{count} damages found"),
    }
}

/// What the snapshots say of themselves: files, entries in all, bytes.
#[derive(Debug, Default)]
struct Expected {
    files: i64,
    entries: i64,
    bytes: i64,
}

fn expected(trees: &Trees, options: &VerifySnapshots) -> Expected {
    let wanted = |s: &&SnapshotManifest| options.only.as_ref().is_none_or(|only| only.contains(&s.id));
    let summaries =
        trees.snapshots().iter().filter(wanted).filter_map(|s| s.root_entry.as_ref()?.summary.as_ref());
    summaries.fold(Expected::default(), |all, summary| Expected {
        files: all.files + summary.files,
        entries: all.entries + summary.files + summary.dirs + summary.symlinks,
        bytes: all.bytes + summary.size,
    })
}

/// The shape that Kopia prints.
fn to_json(report: &SnapshotsReport, expected: &Expected, told: Vec<String>) -> Value {
    let mut value = json!({
        "stats": {
            "processedObjectCount": report.directories + report.files,
            "processedBytes": report.bytes,
            "readFileCount": report.files_read,
            "readBytes": report.bytes_read,
            "expectedTotalObjectCount": expected.entries,
            "expectedTotalFileCount": expected.files,
            "expectedTotalBytes": expected.bytes,
        },
        "errorCount": report.damaged,
    });
    if let (false, Some(fields)) = (told.is_empty(), value.as_object_mut()) {
        fields.insert("errorStrings".to_owned(), json!(told));
    }
    value
}

/// The objects that are named by themselves.
fn objects(trees: &Trees, args: &VerifyArgs) -> Result<Vec<(String, DirEntry)>> {
    let mut objects = Vec::new();
    for name in &args.directory_id {
        let entry = trees.entry(name)?;
        if !entry.is_dir() {
            bail!("{name} is a file, and --directory-id names directories; --file-id verifies it");
        }
        objects.push((name.clone(), entry));
    }
    for name in &args.file_id {
        objects.push((name.clone(), trees.entry(name)?));
    }
    Ok(objects)
}

/// The snapshots that are named, or `None` if all are meant.
fn chosen(session: &Session, trees: &Trees, args: &VerifyArgs) -> Result<Option<Vec<ManifestId>>> {
    let named = [&args.snapshots, &args.sources, &args.directory_id, &args.file_id];
    if named.iter().all(|names| names.is_empty()) {
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
