//! `lifeboat node-agent server`: the agent of one node, with the flags of Velero's.

use crate::args::Place;
use crate::client::client;
use crate::log::LogArgs;
use crate::signals::told_to_stop;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use lifeboat_api::Duration;
use lifeboat_node_agent::Options;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Where the agent answers for its metrics and its health unless another address is given.
pub const METRICS_PORT: u16 = 8085;
/// What operations call Velero's built-in mover, if they name it at all.
const BUILT_IN: &str = "velero";

/// Runs on every node and has volumes moved.
#[derive(Debug, Args)]
pub struct NodeAgent {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent of this node.
    Server(Server),
}

#[derive(Debug, Args)]
struct Server {
    /// The node of this agent.
    #[arg(long, env = "NODE_NAME", hide = true)]
    node_name: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    log: LogArgs,
    /// The DaemonSet that this agent is of: hosting pods are made after it, and its pods are known as agents.
    #[arg(long, default_value = "node-agent")]
    daemonset: String,
    /// Serve the operations of this third-party mover instead of those of Velero's built-in one.
    #[arg(long, default_value = "")]
    data_mover: String,
    /// How long making a volume reachable may take.
    #[arg(long, default_value = "30m")]
    data_mover_prepare_timeout: Duration,
    /// How long movers wait for objects of Kubernetes if their operation does not say.
    #[arg(long, default_value = "10m")]
    resource_timeout: Duration,
    /// Where metrics are served.
    #[arg(long, default_value_t = format!(":{METRICS_PORT}"))]
    metrics_address: String,
    /// The config map of the node-agent; without it, node-agent-config is used if it is there.
    #[arg(long, default_value = "")]
    node_agent_configmap: String,
    /// The config map of the repositories.
    #[arg(long, default_value = "")]
    backup_repository_configmap: String,
    /// Features of Velero; those that concern a node-agent are always on.
    #[arg(long, value_delimiter = ',')]
    features: Vec<String>,
}

/// Runs the agent until it is told to stop.
pub fn run(args: NodeAgent) -> Result<ExitCode> {
    let Command::Server(server) = args.command;
    server.log.start();
    for feature in server.features.iter().filter(|feature| !matches!(feature.as_str(), "" | "EnableCSI")) {
        tracing::warn!(feature, "a feature that the node-agent does not know has no effect");
    }
    let options = server.options()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("the runtime cannot be started")?.block_on(async {
        let client = client().await.context("the cluster cannot be reached")?;
        lifeboat_node_agent::run(client, options, told_to_stop()).await.context("the node-agent ended")
    })?;
    Ok(ExitCode::SUCCESS)
}

impl Server {
    fn options(self) -> Result<Options> {
        Ok(Options {
            namespace: self.place.namespace,
            node: self.node_name,
            daemon_set: self.daemonset,
            data_mover: if self.data_mover == BUILT_IN { String::new() } else { self.data_mover },
            prepare_timeout: self.data_mover_prepare_timeout.to_std(),
            resource_timeout: self.resource_timeout,
            metrics_address: address(&self.metrics_address)?,
            node_agent_config_map: self.node_agent_configmap,
            repository_config_map: self.backup_repository_configmap,
        })
    }
}

/// An address as Go takes it: without a host it is every one.
fn address(text: &str) -> Result<SocketAddr> {
    let whole = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
    whole
        .parse()
        .with_context(|| format!("{text:?} is not an address: write for example \":{METRICS_PORT}\""))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        agent: NodeAgent,
    }

    fn options(words: &[&str]) -> Options {
        let words = ["node-agent", "server", "--node-name=n1"].into_iter().chain(words.iter().copied());
        let Command::Server(server) = Line::parse_from(words).agent.command;
        server.options().unwrap()
    }

    #[test]
    fn what_velero_installs_is_understood() {
        let plain = options(&["--features=EnableCSI"]);
        assert_eq!(plain.metrics_address, "[::]:8085".parse().unwrap());
        assert_eq!(plain.resource_timeout, Duration::from_secs(600));
        assert_eq!(plain.prepare_timeout, std::time::Duration::from_secs(1800));
        assert_eq!((plain.node.as_str(), plain.daemon_set.as_str()), ("n1", "node-agent"));
        let other = options(&[
            "--node-agent-configmap=mine",
            "--data-mover-prepare-timeout=90s",
            "--metrics-address",
            "127.0.0.1:9",
            "--data-mover=velero",
            "--log-level=debug",
            "--log-format=json",
        ]);
        assert_eq!(other.node_agent_config_map, "mine");
        assert_eq!(other.prepare_timeout, std::time::Duration::from_secs(90));
        assert_eq!(other.metrics_address, "127.0.0.1:9".parse().unwrap());
        assert_eq!(other.data_mover, "");
    }
}
