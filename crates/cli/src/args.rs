//! The words and flags of the command line. Those that Velero's objects pass are Velero's.

use crate::data_mover::{DataMover, PodVolume};
use crate::install::Install;
use crate::node_agent::NodeAgent;
use crate::restore_helper::{self, RestoreHelper};
use clap::{Args, Parser, Subcommand};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Backup, restore and migration of Kubernetes volumes.
#[derive(Debug, Parser)]
#[command(name = "lifeboat", disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the version.
    Version,
    /// Put our node-agent in the place of Velero's.
    Install(Install),
    /// Run the agent of a node.
    #[command(hide = true)]
    NodeAgent(NodeAgent),
    /// Move a volume snapshot; runs in hosting pods only.
    #[command(hide = true)]
    DataMover(DataMover),
    /// Move a volume of a pod; runs in hosting pods only.
    #[command(hide = true)]
    PodVolume(PodVolume),
    /// Hold a restored pod back until its volumes are complete; runs in its init container.
    #[command(hide = true)]
    RestoreHelper(RestoreHelper),
}

/// The words of the command line; a name under which Velero's objects start a program stands for the words that it takes.
pub fn words(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = given.collect();
    let name = words.first().and_then(|program| Path::new(program).file_name());
    if name == Some(OsStr::new(restore_helper::PROGRAM)) {
        words.insert(1, "restore-helper".into());
    }
    words
}

/// Where in the cluster Velero is.
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// The namespace of Velero.
    #[arg(short, long, env = "VELERO_NAMESPACE", default_value = "velero")]
    pub namespace: String,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_is_known_by_veleros_name_for_it() {
        let parsed = |given: &[&str]| Cli::try_parse_from(words(given.iter().map(OsString::from)));
        for given in [&["/velero-restore-helper", "uid-1"][..], &["/lifeboat", "restore-helper", "uid-1"]] {
            assert!(matches!(parsed(given).unwrap().command, Command::RestoreHelper(_)), "{given:?}");
        }
        assert!(parsed(&["/velero-restore-helper"]).is_err());
        assert!(parsed(&["/velero-restore-helper", "a", "b"]).is_err());
    }
}
