//! `policy`: set, show, list, edit, delete, import, export.

mod actions;
mod set;

use super::source_of;
use crate::args::JsonArgs;
use crate::output;
use crate::session::Session;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lifeboat_kopia::policy::{self, Policy, PolicySet};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::SourceInfo;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Verbs of `policy`.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub enum PolicyCommand {
    /// Change a policy
    Set {
        /// Whose.
        #[command(flatten)]
        target: TargetArgs,
        /// What.
        #[command(flatten)]
        changes: set::SetArgs,
    },
    /// Show the policy that is in force
    #[command(visible_alias = "get")]
    Show {
        /// Whose.
        #[command(flatten)]
        target: TargetArgs,
        /// Output for programs.
        #[command(flatten)]
        json: JsonArgs,
    },
    /// List the policies that are set
    #[command(visible_alias = "ls")]
    List(JsonArgs),
    /// Change a policy with an editor ($VISUAL or $EDITOR)
    Edit(TargetArgs),
    /// Remove policies
    #[command(visible_aliases = ["remove", "rm"])]
    Delete {
        /// Whose.
        #[command(flatten)]
        target: TargetArgs,
        /// Say what would be removed, and change nothing
        #[arg(long, short = 'n')]
        dry_run: bool,
    },
    /// Write policies to a file
    Export {
        /// Whose; all if none is named.
        #[command(flatten)]
        target: TargetArgs,
        /// The file; by default the standard output
        #[arg(long, value_name = "FILE")]
        to_file: Option<PathBuf>,
        /// Replace the file if it exists
        #[arg(long)]
        overwrite: bool,
    },
    /// Read policies from a file
    Import(ImportArgs),
}

/// Which policies are read from where.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Whose; all if none is named.
    #[command(flatten)]
    pub target: TargetArgs,
    /// The file; by default the standard input
    #[arg(long, value_name = "FILE")]
    pub from_file: Option<PathBuf>,
    /// Take fields that this program does not know, too, and keep them
    #[arg(long)]
    pub allow_unknown_fields: bool,
    /// Remove policies that are not in the file
    #[arg(long)]
    pub delete_other_policies: bool,
}

/// What policies are for.
#[derive(Debug, Clone, Args)]
pub struct TargetArgs {
    /// A directory, user@host:/path, user@host, or @host
    pub targets: Vec<String>,
    /// Everything
    #[arg(long)]
    pub global: bool,
}

impl TargetArgs {
    fn is_empty(&self) -> bool {
        self.targets.is_empty() && !self.global
    }

    fn sources(&self, session: &Session) -> Result<Vec<SourceInfo>> {
        let connection = session.connection()?;
        let named = |text: &String| match SourceInfo::parse(text) {
            Some(source) => Ok(source),
            None => source_of(&connection, Path::new(text)),
        };
        let mut sources: Vec<SourceInfo> = self.targets.iter().map(named).collect::<Result<_>>()?;
        if self.global {
            sources.push(SourceInfo::global());
        }
        if sources.is_empty() {
            bail!("which policy? Name a directory, user@host or @host, or use --global");
        }
        Ok(sources)
    }
}

pub fn run(session: &Session, command: PolicyCommand) -> Result<()> {
    match command {
        PolicyCommand::Set { target, changes } => change(session, &target, |policy| changes.apply(policy)),
        PolicyCommand::Edit(target) => change(session, &target, edit),
        PolicyCommand::Show { target, json } => show(session, &target, json.json),
        PolicyCommand::List(json) => list(session, json.json),
        PolicyCommand::Delete { target, dry_run } => delete(session, &target, dry_run),
        PolicyCommand::Export { target, to_file, overwrite } => {
            export(session, &target, to_file.as_deref(), overwrite)
        }
        PolicyCommand::Import(args) => import(session, &args),
    }
}

/// Changes the policies of the targets; a policy that does not exist yet begins empty.
fn change(session: &Session, target: &TargetArgs, change: impl Fn(&mut Policy) -> Result<()>) -> Result<()> {
    let sources = target.sources(session)?;
    let repository = session.open()?;
    let policies = session.wait(PolicySet::load(repository.manifests()))?;
    for source in &sources {
        let defined = policies.defined_for(source);
        let mut policy = defined.map(|defined| defined.policy.clone()).unwrap_or_default();
        let before = policy.clone();
        change(&mut policy)?;
        if policy == before && defined.is_some() {
            eprintln!("The policy for {source} stays as it is.");
            continue;
        }
        session.wait(policy::save(repository.manifests(), source, &policy))?;
        eprintln!("Policy set for {source}.");
    }
    Ok(session.wait(repository.close())?)
}

fn edit(policy: &mut Policy) -> Result<()> {
    let editor =
        ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or("vi".to_owned());
    let mut words = editor.split_whitespace();
    let program = words.next().context("the editor in VISUAL or EDITOR is empty")?;
    let file = tempfile::Builder::new().suffix(".json").tempfile()?;
    std::fs::write(file.path(), serde_json::to_string_pretty(policy)?)?;
    let status = Command::new(program).args(words).arg(file.path()).status();
    let status = status.with_context(|| format!("cannot run the editor {program:?}; set EDITOR"))?;
    if !status.success() {
        bail!("the editor ended with {status}; nothing was changed");
    }
    let text = std::fs::read(file.path())?;
    *policy =
        serde_json::from_slice(&text).context("what was edited is not a policy; nothing was changed")?;
    Ok(())
}

fn show(session: &Session, target: &TargetArgs, json: bool) -> Result<()> {
    let sources = target.sources(session)?;
    let repository = session.open_for_reading()?;
    let policies = session.wait(PolicySet::load(repository.manifests()))?;
    for source in &sources {
        let (effective, _) = policies.effective(source)?;
        if json {
            output::print_json(&effective)?;
            continue;
        }
        let own =
            policies.defined_for(source).map(|defined| serde_json::to_value(&defined.policy)).transpose()?;
        output::line(&format!("Policy for {source}:"))?;
        print_values(&serde_json::to_value(&effective)?, own.as_ref(), "")?;
    }
    Ok(())
}

/// Prints each setting with its path, and whether it was set for the target itself.
fn print_values(value: &Value, own: Option<&Value>, path: &str) -> Result<()> {
    if let Value::Object(fields) = value {
        return fields.iter().try_for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            print_values(value, own.and_then(|own| own.get(name)), &path)
        });
    }
    let origin = if own == Some(value) { "(defined for this target)" } else { "inherited" };
    let value = value.to_string();
    output::line(&format!("  {path:<40} {value:>20}   {origin}"))
}

fn list(session: &Session, json: bool) -> Result<()> {
    let repository = session.open_for_reading()?;
    let mut policies = session.wait(PolicySet::load(repository.manifests()))?;
    policies.defined.sort_by_cached_key(|defined| defined.target.to_string());
    for damaged in &policies.damaged {
        eprintln!(
            "warning: the policy {} for {} is not understood: {}",
            damaged.id, damaged.target, damaged.reason
        );
    }
    if !json {
        let mut lines = policies.defined.iter();
        return lines.try_for_each(|defined| output::line(&format!("{} {}", defined.id, defined.target)));
    }
    output::print_json_list(policies.defined.iter().map(|defined| {
        let mut value = serde_json::Map::new();
        value.insert("id".to_owned(), defined.id.as_str().into());
        value.insert("target".to_owned(), serde_json::to_value(&defined.target)?);
        if let Value::Object(fields) = serde_json::to_value(&defined.policy)? {
            value.extend(fields);
        }
        Ok(value)
    }))
}

fn delete(session: &Session, target: &TargetArgs, dry_run: bool) -> Result<()> {
    let sources = target.sources(session)?;
    let repository = session.open()?;
    for source in &sources {
        if dry_run {
            println!("Would remove the policy for {source}.");
            continue;
        }
        session.wait(policy::remove(repository.manifests(), source))?;
        eprintln!("Removed the policy for {source}.");
    }
    Ok(session.wait(repository.close())?)
}

fn export(session: &Session, target: &TargetArgs, file: Option<&Path>, overwrite: bool) -> Result<()> {
    let repository = session.open_for_reading()?;
    let policies = session.wait(PolicySet::load(repository.manifests()))?;
    let wanted = if target.is_empty() { None } else { Some(target.sources(session)?) };
    let chosen = policies.defined.iter();
    let chosen =
        chosen.filter(|defined| wanted.as_ref().is_none_or(|wanted| wanted.contains(&defined.target)));
    let chosen: BTreeMap<String, &Policy> =
        chosen.map(|defined| (defined.target.to_string(), &defined.policy)).collect();
    let text = lifeboat_kopia::gojson::to_string(&chosen)?;
    let Some(file) = file else { return output::line(&text) };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).truncate(true).create(overwrite).create_new(!overwrite);
    let opened = options.open(file);
    let mut opened =
        opened.with_context(|| format!("cannot write {}; --overwrite replaces a file", file.display()))?;
    Ok(std::io::Write::write_all(&mut opened, text.as_bytes())?)
}

fn import(session: &Session, args: &ImportArgs) -> Result<()> {
    let target = &args.target;
    let text = match &args.from_file {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?
        }
        None => std::io::read_to_string(std::io::stdin())?,
    };
    let found: BTreeMap<String, Policy> =
        serde_json::from_str(&text).context("this is not a list of policies as `policy export` writes it")?;
    if !args.allow_unknown_fields {
        refuse_unknown_fields(&found)?;
    }
    let wanted = if target.is_empty() { None } else { Some(target.sources(session)?) };
    let repository = session.open()?;
    let before = session.wait(PolicySet::load(repository.manifests()))?;
    let mut kept = Vec::new();
    for (name, policy) in &found {
        let source =
            SourceInfo::parse(name).with_context(|| format!("{name:?} is not the target of a policy"))?;
        if wanted.as_ref().is_some_and(|wanted| !wanted.contains(&source)) {
            continue;
        }
        session.wait(policy::save(repository.manifests(), &source, policy))?;
        eprintln!("Policy set for {source}.");
        kept.push(source);
    }
    for other in
        before.defined.iter().filter(|defined| args.delete_other_policies && !kept.contains(&defined.target))
    {
        session.wait(policy::remove(repository.manifests(), &other.target))?;
        eprintln!("Removed the policy for {}.", other.target);
    }
    Ok(session.wait(repository.close())?)
}

/// A field that nobody knows is more often misspelt than new.
fn refuse_unknown_fields(policies: &BTreeMap<String, Policy>) -> Result<()> {
    let unknown = policies.iter().find_map(|(target, policy)| Some((target, policy.unknown_fields().pop()?)));
    match unknown {
        Some((target, field)) => bail!(
            "the policy of {target} has the field {field}, which this program does not know; correct it, or keep \
             it by --allow-unknown-fields"
        ),
        None => Ok(()),
    }
}

/// The policies in force for a source and for what is below it.
pub fn tree(session: &Session, repository: &Repository, source: &SourceInfo) -> Result<policy::PolicyTree> {
    let policies = session.wait(PolicySet::load(repository.manifests()))?;
    Ok(policies.tree(source)?)
}
