//! `policy`: set and show.

use super::source_of;
use crate::args::PolicyCommand;
use crate::session::Session;
use anyhow::{Result, bail};
use lifeboat_kopia::policy::{self, PolicySet};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::snapshot::SourceInfo;
use lifeboat_primitives::compress::Compressor;
use std::path::Path;

pub fn run(session: &Session, command: PolicyCommand) -> Result<()> {
    let repository = session.open()?;
    match command {
        PolicyCommand::Set { target, global, compression, metadata_compression } => {
            let target = policy_target(session, target.as_deref(), global)?;
            for name in
                [&compression, &metadata_compression].into_iter().flatten().filter(|name| *name != "none")
            {
                Compressor::from_name(name)?;
            }
            let policies = session.wait(PolicySet::load(repository.manifests()))?;
            let mut changed =
                policies.defined_for(&target).map(|defined| defined.policy.clone()).unwrap_or_default();
            if let Some(name) = compression {
                changed.compression.compressor = name;
            }
            if let Some(name) = metadata_compression {
                changed.metadata_compression.compressor = name;
            }
            session.wait(policy::save(repository.manifests(), &target, &changed))?;
            session.wait(repository.close())?;
            Ok(())
        }
        PolicyCommand::Show { target, global } => {
            let target = policy_target(session, target.as_deref(), global)?;
            let effective = effective(session, &repository, &target)?;
            println!("{}", serde_json::to_string_pretty(&effective)?);
            Ok(())
        }
    }
}

/// The policy in force for a source.
pub fn effective(session: &Session, repository: &Repository, source: &SourceInfo) -> Result<policy::Policy> {
    let policies = session.wait(PolicySet::load(repository.manifests()))?;
    Ok(policies.effective(source)?.0)
}

/// The policies in force for a source and for what is below it.
pub fn tree(session: &Session, repository: &Repository, source: &SourceInfo) -> Result<policy::PolicyTree> {
    let policies = session.wait(PolicySet::load(repository.manifests()))?;
    Ok(policies.tree(source)?)
}

fn policy_target(session: &Session, target: Option<&Path>, global: bool) -> Result<SourceInfo> {
    match target {
        Some(path) => source_of(&session.connection()?, path),
        None if global => Ok(SourceInfo::global()),
        None => bail!("which policy? Name a directory or use --global"),
    }
}
