//! Talking to the cluster's API through `kubectl`, the client that every reader knows.

use crate::{Error, Result, command, tools};
use rustix::process::Pid;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How long one command may take unless it says otherwise: far more than any takes, unless the machine is choked.
const PATIENCE: Duration = Duration::from_secs(180);

/// Runs `kubectl` as the cluster's administrator, inside the cluster's network and the caller's file system.
#[derive(Debug, Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    network: Pid,
}

impl Kubectl {
    pub(crate) fn new(kubeconfig: PathBuf, network: Pid) -> Self {
        Self { kubeconfig, network }
    }

    /// A command that runs `program` inside the cluster's network with `KUBECONFIG` set.
    pub fn in_network(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = Command::new(tools::system("nsenter")?);
        command.args(["-t", &self.network.to_string(), "-n", "--"]).arg(program);
        command.env("KUBECONFIG", &self.kubeconfig);
        Ok(command)
    }

    /// A `kubectl` command to run as the caller likes.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Command> {
        let mut command = self.in_network(tools::built("kubectl")?)?;
        command.args(args);
        Ok(command)
    }

    /// Runs `kubectl` and returns what it printed.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Vec<u8>> {
        command::run(&mut self.command(args)?, b"", PATIENCE)
    }

    /// Runs `kubectl` with its own limit of time.
    pub fn run_within<S: AsRef<OsStr>>(
        &self,
        limit: Duration,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Vec<u8>> {
        command::run(&mut self.command(args)?, b"", limit)
    }

    /// Runs `kubectl` and returns what it printed as text.
    pub fn text<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.run(args)?).into_owned())
    }

    /// Runs a `kubectl get` and returns the objects as JSON.
    pub fn get<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Value> {
        let mut command = self.command(["get", "-o", "json"])?;
        let json = command::run(command.args(args), b"", PATIENCE)?;
        serde_json::from_slice(&json).map_err(|problem| Error::unexpected("kubectl get", problem))
    }

    /// Creates or changes objects given as YAML or JSON.
    pub fn apply(&self, objects: &str) -> Result<()> {
        command::run(&mut self.command(["apply", "-f", "-"])?, objects.as_bytes(), PATIENCE).map(drop)
    }
}
