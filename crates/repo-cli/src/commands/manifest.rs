//! `manifest`: list, show, delete.

use crate::args::JsonArgs;
use crate::output;
use crate::session::Session;
use anyhow::{Result, bail};
use clap::Subcommand;
use lifeboat_kopia::manifest::{Labels, Manifest, ManifestId, TYPE_LABEL};
use serde_json::json;

/// Verbs of `manifest`.
#[derive(Debug, Subcommand)]
pub enum ManifestCommand {
    /// List manifests
    #[command(visible_alias = "ls")]
    List {
        /// Only those with this label
        #[arg(long, value_name = "NAME:VALUE", value_parser = parse_label)]
        filter: Vec<(String, String)>,
        /// Sort by these labels
        #[arg(long, value_name = "NAME")]
        sort: Vec<String>,
        /// Output for programs.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Print manifests
    Show {
        /// Their ids
        #[arg(required = true)]
        manifests: Vec<String>,
    },
    /// Delete manifests, whatever they are
    #[command(visible_alias = "rm")]
    Delete {
        /// Their ids
        #[arg(required = true)]
        manifests: Vec<String>,
        /// Say `enabled`: snapshots and policies are manifests
        #[arg(long, value_name = "enabled")]
        dangerous_commands: Option<String>,
    },
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("a label is a name, a colon and a value")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub fn run(session: &Session, command: ManifestCommand) -> Result<()> {
    match command {
        ManifestCommand::List { filter, sort, json } => list(session, filter, &sort, json.json),
        ManifestCommand::Show { manifests } => show(session, &manifests),
        ManifestCommand::Delete { manifests, dangerous_commands } => {
            delete(session, &manifests, dangerous_commands.as_deref())
        }
    }
}

fn list(session: &Session, filter: Vec<(String, String)>, sort: &[String], json: bool) -> Result<()> {
    let repository = session.open_for_reading()?;
    let mut found = session.wait(repository.manifests().find(&filter.into_iter().collect()))?;
    found.sort_by_cached_key(|manifest| {
        let labels = sort.iter().map(|name| manifest.labels().get(name).cloned());
        (labels.collect::<Vec<_>>(), manifest.modified())
    });
    match json {
        true => output::print_json_list(found.iter().map(|manifest| Ok(to_json(manifest)))),
        false => found.iter().try_for_each(|manifest| output::line(&to_line(manifest))),
    }
}

fn to_json(manifest: &Manifest) -> serde_json::Value {
    json!({
        "id": manifest.id().as_str(),
        "length": manifest.data().len(),
        "labels": manifest.labels(),
        "mtime": manifest.modified().to_string(),
    })
}

fn to_line(manifest: &Manifest) -> String {
    let kind = manifest.labels().get(TYPE_LABEL).map_or("", String::as_str);
    let rest: Vec<_> = others(manifest.labels()).map(|(name, value)| format!("{name}:{value}")).collect();
    let (id, length, time) = (manifest.id(), manifest.data().len(), output::time(manifest.modified()));
    format!("{id} {length:>10} {time} type:{kind} {}", rest.join(" "))
}

fn others(labels: &Labels) -> impl Iterator<Item = (&String, &String)> {
    labels.iter().filter(|(name, _)| *name != TYPE_LABEL)
}

fn show(session: &Session, ids: &[String]) -> Result<()> {
    let repository = session.open_for_reading()?;
    for id in ids {
        let manifest = session.wait(repository.manifests().get(&ManifestId::from(id.as_str())))?;
        output::line(&format!("// id: {id}"))?;
        output::line(&format!("// length: {}", manifest.data().len()))?;
        output::line(&format!("// modified: {}", output::time(manifest.modified())))?;
        for (name, value) in manifest.labels() {
            output::line(&format!("// label {name}:{value}"))?;
        }
        let value: serde_json::Value = manifest.parse()?;
        output::line(&serde_json::to_string_pretty(&value)?)?;
    }
    Ok(())
}

fn delete(session: &Session, ids: &[String], permission: Option<&str>) -> Result<()> {
    if permission != Some("enabled") {
        bail!(
            "snapshots and policies are manifests; add --dangerous-commands=enabled if that is what you want"
        );
    }
    let repository = session.open()?;
    for id in ids {
        session.wait(repository.manifests().delete(&ManifestId::from(id.as_str())))?;
        eprintln!("Deleted {id}");
    }
    Ok(session.wait(repository.close())?)
}
