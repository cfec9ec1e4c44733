//! `snapshot list`.

use super::parse_tag;
use super::usage::{Meter, StorageStats};
use crate::args::JsonArgs;
use crate::commands::source_of;
use crate::output;
use crate::session::Session;
use crate::tree::Trees;
use anyhow::{Context, Result};
use clap::Args;
use jiff::tz::TimeZone;
use lifeboat_kopia::policy::{PolicySet, compute_retention};
use lifeboat_kopia::snapshot::{SnapshotManifest, SourceInfo};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// Which snapshots are listed, and what of them.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only of this directory, or of user@host:/path
    pub source: Option<String>,
    /// Also of other users and hosts
    #[arg(long, short)]
    pub all: bool,
    /// Also incomplete ones
    #[arg(long, short)]
    pub incomplete: bool,
    /// Show manifest ids
    #[arg(long, short)]
    pub manifest_id: bool,
    /// Show each one, also if it equals the one before
    #[arg(long, short = 'l')]
    pub show_identical: bool,
    /// Show how much larger each one is than the one before
    #[arg(long, short)]
    pub delta: bool,
    /// Show when the top directory was modified
    #[arg(long)]
    pub mtime: bool,
    /// Show the owner of the top directory
    #[arg(long)]
    pub owner: bool,
    /// Do not show why each one is kept
    #[arg(long)]
    pub no_retention: bool,
    /// Count what each one takes in the repository beyond those listed before it; reads all directories
    #[arg(long)]
    pub storage_stats: bool,
    /// Show sizes in bytes
    #[arg(long)]
    pub no_human_readable: bool,
    /// Newest first
    #[arg(long)]
    pub reverse: bool,
    /// At most so many of each source, the newest ones
    #[arg(long, short = 'n')]
    pub max_results: Option<usize>,
    /// Only those with this tag
    #[arg(long, value_name = "NAME:VALUE", value_parser = parse_tag)]
    pub tags: Vec<(String, String)>,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

/// A snapshot, why it is kept, and what it takes if that is asked for.
struct Kept {
    snapshot: SnapshotManifest,
    reasons: Vec<String>,
    storage: Option<StorageStats>,
}

pub fn run(session: &Session, args: &ListArgs) -> Result<()> {
    let connection = session.connection()?;
    let wanted = match args.source.as_deref() {
        Some(text) => match SourceInfo::parse(text) {
            Some(source) => Some(source),
            None => Some(source_of(&connection, Path::new(text))?),
        },
        None => None,
    };
    let repository = session.open_for_reading()?;
    let mut found = session.wait(repository.snapshots())?;
    found.snapshots.retain(|snapshot| {
        let is_wanted = match &wanted {
            Some(wanted) => matches(wanted, &snapshot.source),
            None => {
                let SourceInfo { host, user_name, .. } = &snapshot.source;
                args.all || (*host == connection.hostname && *user_name == connection.username)
            }
        };
        is_wanted && args.tags.iter().all(|(name, value)| snapshot.tags.get(name) == Some(value))
    });
    let policies = session.wait(PolicySet::load(repository.manifests()))?;
    let mut groups = by_source(found.snapshots, &policies, args);
    if args.storage_stats {
        let trees = Trees::of(session, repository)?;
        groups.iter_mut().try_for_each(|group| measure(session, &trees, group))?;
    }
    if args.json.json {
        let all = groups.iter().flatten();
        output::print_json_list(all.map(to_json))?;
    } else {
        for (at, group) in groups.iter().enumerate() {
            if at > 0 {
                output::line("")?;
            }
            print_source(group, args)?;
        }
    }
    for damaged in &found.damaged {
        eprintln!("warning: snapshot {} cannot be read: {}", damaged.id, damaged.error);
    }
    Ok(())
}

/// Whether `source` is what `wanted` asks for; parts that are not given are anything.
fn matches(wanted: &SourceInfo, source: &SourceInfo) -> bool {
    [(&wanted.host, &source.host), (&wanted.user_name, &source.user_name), (&wanted.path, &source.path)]
        .iter()
        .all(|(wanted, found)| wanted.is_empty() || wanted == found)
}

/// The snapshots of each source, the oldest first, with the reasons why the source's policy keeps them.
fn by_source(snapshots: Vec<SnapshotManifest>, policies: &PolicySet, args: &ListArgs) -> Vec<Vec<Kept>> {
    let mut groups: HashMap<String, Vec<SnapshotManifest>> = HashMap::new();
    for snapshot in snapshots {
        groups.entry(snapshot.source.to_string()).or_default().push(snapshot);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| a.0.cmp(&b.0));
    let keep = |(_, mut group): (String, Vec<SnapshotManifest>)| {
        group.sort_by_key(|snapshot| (snapshot.start_time, snapshot.end_time));
        let source = group.first().map(|first| first.source.clone()).unwrap_or_default();
        // A policy that is not understood keeps nobody from seeing the snapshots.
        let retention = policies.effective(&source).map(|(policy, _)| policy.retention).unwrap_or_default();
        let kept = compute_retention(&group, &retention, &TimeZone::system());
        let kept = kept.into_iter().map(|kept| kept.reasons);
        let mut group: Vec<Kept> = group
            .into_iter()
            .zip(kept)
            .map(|(snapshot, reasons)| Kept { snapshot, reasons, storage: None })
            .collect();
        // Programs get all of them, as from kopia; they see which ones are incomplete.
        group.retain(|kept| args.incomplete || args.json.json || kept.snapshot.is_complete());
        group.drain(..group.len().saturating_sub(args.max_results.unwrap_or(usize::MAX)));
        if args.reverse {
            group.reverse();
        }
        group
    };
    groups.into_iter().map(keep).filter(|group| !group.is_empty()).collect()
}

/// Counts what each snapshot of a source adds to those before it.
fn measure(session: &Session, trees: &Trees, group: &mut [Kept]) -> Result<()> {
    let mut meter = Meter::new(session, trees);
    for Kept { snapshot, storage, .. } in group {
        let root = snapshot.root_entry.as_ref().context("the snapshot has no root")?;
        let measured = meter.measure(root);
        *storage = Some(measured.with_context(|| format!("cannot measure snapshot {}", snapshot.id))?);
    }
    Ok(())
}

/// A snapshot as Kopia prints it: with its id, which is empty in storage, and why it is kept.
fn to_json(kept: &Kept) -> Result<Value> {
    let mut value = serde_json::to_value(&kept.snapshot)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("retentionReason".to_owned(), serde_json::to_value(&kept.reasons)?);
        if let Some(storage) = &kept.storage {
            fields.insert("storageStats".to_owned(), serde_json::to_value(storage)?);
        }
    }
    Ok(value)
}

/// One line of the list: several snapshots with the same root are one.
struct Row {
    text: String,
    root: String,
    reasons: Vec<String>,
    pins: Vec<String>,
    more: usize,
    until: String,
}

fn print_source(group: &[Kept], args: &ListArgs) -> Result<()> {
    let Some(first) = group.first() else { return Ok(()) };
    output::line(&first.snapshot.source.to_string())?;
    let mut rows: Vec<Row> = Vec::new();
    let mut size_before = 0;
    for kept in group {
        let snapshot = &kept.snapshot;
        let root = snapshot.root_object().unwrap_or("-").to_owned();
        let until = output::time(snapshot.start_time);
        match rows.last_mut().filter(|last| !args.show_identical && last.root == root) {
            Some(last) => {
                last.more += 1;
                last.until = until;
                last.reasons.extend(
                    kept.reasons.iter().filter(|r| !last.reasons.contains(r)).cloned().collect::<Vec<_>>(),
                );
                last.pins.extend(snapshot.pins.iter().cloned());
            }
            None => rows.push(Row {
                text: describe(kept, args, size_before),
                root,
                reasons: kept.reasons.clone(),
                pins: snapshot.pins.clone(),
                more: 0,
                until,
            }),
        }
        size_before = size(snapshot);
    }
    rows.iter().try_for_each(|row| print_row(row, args))
}

fn print_row(row: &Row, args: &ListArgs) -> Result<()> {
    let mut line = format!("  {}", row.text);
    if !args.no_retention && !row.reasons.is_empty() {
        line.push_str(&format!(" ({})", row.reasons.join(",")));
    }
    if !row.pins.is_empty() {
        line.push_str(&format!(" pins:{}", row.pins.join(",")));
    }
    output::line(&line)?;
    match row.more {
        0 => Ok(()),
        more => output::line(&format!("  + {more} identical snapshots until {}", row.until)),
    }
}

fn size(snapshot: &SnapshotManifest) -> i64 {
    let root = snapshot.root_entry.as_ref();
    let summary = root.and_then(|root| root.summary.as_ref()).map(|summary| summary.size);
    summary.or(root.map(|root| i64::try_from(root.size).unwrap_or(i64::MAX))).unwrap_or(0)
}

fn describe(kept: &Kept, args: &ListArgs, size_before: i64) -> String {
    let snapshot = &kept.snapshot;
    let root = snapshot.root_entry.clone().unwrap_or_default();
    let mut bits = vec![output::time(snapshot.start_time), snapshot.root_object().unwrap_or("-").to_owned()];
    if !snapshot.is_complete() {
        bits.push(format!("incomplete:{}", snapshot.incomplete));
    }
    let now = size(snapshot);
    bits.push(match args.no_human_readable {
        true => now.to_string(),
        false => output::bytes(now.unsigned_abs()),
    });
    bits.push(output::mode(&root));
    if args.owner {
        bits.push(format!("uid:{} gid:{}", root.uid, root.gid));
    }
    if args.mtime {
        bits.push(format!("modified:{}", output::time(root.mtime)));
    }
    if args.manifest_id {
        bits.push(format!("manifest:{}", snapshot.id));
    }
    if args.delta && now > size_before {
        bits.push(format!("(+{})", output::bytes((now - size_before).unsigned_abs())));
    }
    if let Some(summary) = &root.summary {
        bits.push(format!("files:{} dirs:{}", summary.files, summary.dirs));
        if summary.failed > 0 {
            bits.push(format!("errors:{}", summary.failed));
        }
    }
    if let Some(StorageStats { new_data, .. }) = &kept.storage {
        let size = output::bytes(new_data.packed_content_bytes);
        bits.push(format!("new-data:{size} new-files:{}", new_data.file_objects));
        bits.push(format!("new-dirs:{} compression:{:.1}%", new_data.dir_objects, new_data.saved()));
    }
    bits.join(" ")
}
