//! `find`: a file in all snapshots, each version of it once.

use crate::args::JsonArgs;
use crate::output;
use crate::session::Session;
use crate::tree::Trees;
use anyhow::Result;
use clap::Args;
use lifeboat_kopia::snapshot::{DirEntry, SnapshotManifest};
use lifeboat_uploader::PathFilter;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What is looked for, and where.
#[derive(Debug, Args)]
pub struct FindArgs {
    /// A name or a path below the top of a snapshot; `*`, `?` and `**` are wildcards
    pub pattern: String,
    /// Only in this snapshot
    #[arg(long, value_name = "ID")]
    pub snapshot: Option<String>,
    /// Show every snapshot that has the file, not only the oldest one with each version of it
    #[arg(long)]
    pub all_versions: bool,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

/// What was found: its path below the top of the snapshot, and the entry.
type Found = (PathBuf, DirEntry);

pub fn run(session: &Session, args: &FindArgs) -> Result<()> {
    let trees = Trees::open(session)?;
    let chosen = match &args.snapshot {
        Some(id) => trees.snapshots_called(id)?,
        None => trees.snapshots().to_vec(),
    };
    // A name alone is looked for everywhere.
    let pattern = match args.pattern.contains('/') {
        true => args.pattern.clone(),
        false => format!("**/{}", args.pattern),
    };
    let filter = PathFilter::new([pattern], []);
    let mut search = Search { trees: &trees, filter, known: HashMap::new() };
    let mut versions = HashSet::new();
    let mut found = Vec::new();
    for snapshot in &chosen {
        let Some(root) = &snapshot.root_entry else { continue };
        for (path, entry) in search.directory(root, Path::new(""))? {
            let version = (snapshot.source.to_string(), path.clone(), entry.object.clone());
            if versions.insert(version) || args.all_versions {
                found.push((snapshot, (path, entry)));
            }
        }
    }
    if args.json.json {
        return output::print_json_list(found.iter().map(|(snapshot, found)| Ok(to_json(snapshot, found))));
    }
    if found.is_empty() {
        eprintln!("There is no {} in {} snapshots.", args.pattern, chosen.len());
    }
    found.iter().try_for_each(|(snapshot, found)| output::line(&to_text(snapshot, found)))
}

fn to_json(snapshot: &SnapshotManifest, (path, entry): &Found) -> serde_json::Value {
    json!({
        "snapshot": snapshot.id.as_str(),
        "source": snapshot.source,
        "startTime": snapshot.start_time.to_string(),
        "path": path.to_string_lossy(),
        "entry": entry,
    })
}

fn to_text(snapshot: &SnapshotManifest, (path, entry): &Found) -> String {
    let (when, modified) = (output::time(snapshot.start_time), output::time(entry.mtime));
    let (path, mode, size) = (path.to_string_lossy(), output::mode(entry), output::bytes(entry.size));
    let SnapshotManifest { id, source, .. } = snapshot;
    format!(
        "{when} {source}/{path}\n    {mode} {size} modified {modified}; get it with: lifeboat-repo restore {id}/{path} TARGET"
    )
}

/// Looks through directories; one that several snapshots share is looked through once.
struct Search<'a> {
    trees: &'a Trees,
    filter: PathFilter,
    /// What was found in a directory before: the same object may lie at several paths.
    known: HashMap<(String, PathBuf), Vec<Found>>,
}

impl Search<'_> {
    fn directory(&mut self, directory: &DirEntry, path: &Path) -> Result<Vec<Found>> {
        let key = (directory.object.clone(), path.to_owned());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let mut found = Vec::new();
        if !directory.is_dir() {
            return Ok(found);
        }
        for entry in self.trees.children(directory)? {
            let entry = entry?;
            let below = path.join(OsStr::from_bytes(entry.file_name()));
            if self.filter.takes(&below) {
                found.push((below, entry));
            } else if entry.is_dir() && self.filter.descends(&below) {
                found.extend(self.directory(&entry, &below)?);
            }
        }
        self.known.insert(key, found.clone());
        Ok(found)
    }
}
