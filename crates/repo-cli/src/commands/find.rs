//! `find`: a file in all snapshots, each version of it once.

use crate::args::JsonArgs;
use crate::output;
use crate::session::Session;
use crate::tree::{Browser, Trees};
use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use lifeboat_kopia::snapshot::{DirEntry, SnapshotManifest, SourceInfo};
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

/// A snapshot to look in.
pub struct Place {
    /// What its files are restored by.
    pub id: String,
    /// Whose it is; with the path behind it, the file's own name.
    pub source: String,
    /// The same for programs.
    pub source_info: SourceInfo,
    /// When it was taken.
    pub time: Timestamp,
    /// The top of its tree.
    pub root: DirEntry,
}

/// What differs from one kind of repository to another.
#[derive(Clone, Copy)]
pub struct Manner {
    /// The command that restores.
    pub restore: &'static str,
    /// What tells two versions of a file apart.
    pub version: fn(&DirEntry) -> String,
}

pub fn run(session: &Session, args: &FindArgs) -> Result<()> {
    let trees = Trees::open(session)?;
    let chosen = match &args.snapshot {
        Some(id) => trees.snapshots_called(id)?,
        None => trees.snapshots().to_vec(),
    };
    let place = |snapshot: SnapshotManifest| {
        Some(Place {
            id: snapshot.id.to_string(),
            source: snapshot.source.to_string(),
            source_info: snapshot.source,
            time: snapshot.start_time,
            root: snapshot.root_entry?,
        })
    };
    let places: Vec<Place> = chosen.into_iter().filter_map(place).collect();
    find(trees.browser(), args, &places, Manner { restore: "restore", version: |entry| entry.object.clone() })
}

/// Looks for what `args` ask for in all of `places`, the oldest first.
pub fn find(trees: Browser<'_>, args: &FindArgs, places: &[Place], manner: Manner) -> Result<()> {
    // A name alone is looked for everywhere.
    let pattern = match args.pattern.contains('/') {
        true => args.pattern.clone(),
        false => format!("**/{}", args.pattern),
    };
    let filter = PathFilter::new([pattern], []);
    let mut search = Search { trees, filter, known: HashMap::new() };
    let mut versions = HashSet::new();
    let mut found = Vec::new();
    for place in places {
        for (path, entry) in search.directory(&place.root, Path::new(""))? {
            let version = (place.source.clone(), path.clone(), (manner.version)(&entry));
            if versions.insert(version) || args.all_versions {
                found.push((place, (path, entry)));
            }
        }
    }
    if args.json.json {
        return output::print_json_list(found.iter().map(|(place, found)| Ok(to_json(place, found))));
    }
    if found.is_empty() {
        eprintln!("There is no {} in {} snapshots.", args.pattern, places.len());
    }
    found.iter().try_for_each(|(place, found)| output::line(&to_text(place, found, manner.restore)))
}

fn to_json(place: &Place, (path, entry): &Found) -> serde_json::Value {
    json!({
        "snapshot": place.id,
        "source": place.source_info,
        "startTime": place.time.to_string(),
        "path": path.to_string_lossy(),
        "entry": entry,
    })
}

fn to_text(place: &Place, (path, entry): &Found, restore: &str) -> String {
    let (when, modified) = (output::time(place.time), output::time(entry.mtime));
    let (path, mode, size) = (path.to_string_lossy(), output::mode(entry), output::bytes(entry.size));
    let Place { id, source, .. } = place;
    format!(
        "{when} {source}/{path}\n    {mode} {size} modified {modified}; get it with: lifeboat-repo {restore} {id}/{path} TARGET"
    )
}

/// Looks through directories; one that several snapshots share is looked through once.
struct Search<'a> {
    trees: Browser<'a>,
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
