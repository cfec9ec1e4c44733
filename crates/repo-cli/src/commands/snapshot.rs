//! `snapshot`: create, list, restore, verify, delete.

use super::{bytes, create, restore, source_of};
use crate::args::SnapshotCommand;
use crate::session::Session;
use anyhow::{Result, bail};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::snapshot::{self, SnapshotManifest};
use lifeboat_kopia::verify::{self, VerifySnapshots};
use std::path::Path;

pub fn run(session: &Session, command: SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create(args) => create::run(session, &args),
        SnapshotCommand::List { source, all, manifest_id, json } => {
            list(session, source.as_deref(), all, manifest_id, json.json)
        }
        SnapshotCommand::Restore(args) => restore::run(session, &args),
        SnapshotCommand::Verify { snapshots, verify_files_percent } => {
            check(session, &snapshots, verify_files_percent)
        }
        SnapshotCommand::Delete { snapshots, delete } => remove(session, &snapshots, delete),
    }
}

/// A snapshot as Kopia prints it: with its id, which is empty in storage.
pub(super) fn to_json(manifest: &SnapshotManifest, id: &ManifestId) -> Result<String> {
    let with_id = SnapshotManifest { id: id.clone(), ..manifest.clone() };
    Ok(lifeboat_kopia::gojson::to_string(&with_id)?)
}

fn list(session: &Session, path: Option<&Path>, all: bool, with_ids: bool, json: bool) -> Result<()> {
    let connection = session.connection()?;
    let wanted = path.map(|path| source_of(&connection, path)).transpose()?;
    let repository = session.open()?;
    let mut found = session.wait(repository.snapshots())?;
    found.snapshots.retain(|snapshot| match &wanted {
        Some(source) => snapshot.source == *source,
        None => {
            let own = snapshot.source.host == connection.hostname
                && snapshot.source.user_name == connection.username;
            all || own
        }
    });
    found.snapshots.sort_by_cached_key(|snapshot| (snapshot.source.to_string(), snapshot.start_time));
    if json {
        let lines: Vec<String> = found.snapshots.iter().map(|s| to_json(s, &s.id)).collect::<Result<_>>()?;
        println!("[{}]", lines.join(",\n "));
    } else {
        print_list(&found.snapshots, with_ids);
    }
    for damaged in &found.damaged {
        eprintln!("warning: snapshot {} cannot be read: {}", damaged.id, damaged.error);
    }
    Ok(())
}

fn print_list(snapshots: &[SnapshotManifest], with_ids: bool) {
    for of_source in snapshots.chunk_by(|a, b| a.source == b.source) {
        let Some(first) = of_source.first() else { continue };
        println!("{}", first.source);
        for snapshot in of_source {
            let time = snapshot.start_time.strftime("%Y-%m-%d %H:%M:%S UTC");
            let summary =
                snapshot.root_entry.as_ref().and_then(|root| root.summary.clone()).unwrap_or_default();
            let size = bytes(summary.size.unsigned_abs());
            let root = snapshot.root_object().unwrap_or("-");
            print!("  {time} {root} {size} files:{} dirs:{}", summary.files, summary.dirs);
            if with_ids {
                print!(" manifest:{}", snapshot.id);
            }
            if !snapshot.is_complete() {
                print!(" incomplete:{}", snapshot.incomplete);
            }
            println!();
        }
    }
}

fn check(session: &Session, wanted: &[String], percent: u8) -> Result<()> {
    let repository = session.open()?;
    let wanted: Vec<ManifestId> = wanted.iter().map(|id| ManifestId::from(id.as_str())).collect();
    for id in &wanted {
        session.wait(snapshot::load(repository.manifests(), id))?;
    }
    let options = VerifySnapshots {
        only: (!wanted.is_empty()).then_some(wanted),
        read_percent: percent,
        ..VerifySnapshots::default()
    };
    let mut print = |damage: verify::SnapshotDamage| {
        eprintln!("damaged: snapshot {} path {:?}: {}", damage.snapshot, damage.path, damage.error);
    };
    let report = session.wait(verify::snapshots(&repository, &options, &mut print))?;
    println!(
        "Verified {} snapshots: {} directories, {} files, read {}.",
        report.snapshots,
        report.directories,
        report.files,
        bytes(report.bytes_read)
    );
    if report.damaged > 0 {
        bail!("{} damages found", report.damaged);
    }
    Ok(())
}

fn remove(session: &Session, ids: &[String], confirmed: bool) -> Result<()> {
    let repository = session.open()?;
    for id in ids {
        let id = ManifestId::from(id.as_str());
        let manifest = session.wait(snapshot::load(repository.manifests(), &id))?;
        if !confirmed {
            println!("Would delete snapshot {id} of {}; add --delete to do it", manifest.source);
            continue;
        }
        session.wait(repository.manifests().delete(&id))?;
        println!("Deleted snapshot {id} of {}", manifest.source);
    }
    session.wait(repository.close())?;
    Ok(())
}
