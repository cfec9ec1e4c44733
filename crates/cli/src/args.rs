//! The words and flags of the command line. Those that Velero's objects pass are Velero's.

use crate::data_mover::{DataMover, PodVolume};
use crate::install::Install;
use crate::node_agent::NodeAgent;
use clap::{Args, Parser, Subcommand};

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
}

/// Where in the cluster Velero is.
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// The namespace of Velero.
    #[arg(short, long, env = "VELERO_NAMESPACE", default_value = "velero")]
    pub namespace: String,
}
