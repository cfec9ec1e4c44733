//! A cluster with Velero, on which Velero's node-agent and then ours are at work.

use anyhow::{Context, Result, ensure};
use lifeboat_testbed::testing::own;
use lifeboat_testbed::{Cluster, Image};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

const IMAGE: &str = "localhost/lifeboat:bench";
/// The config map that both node-agents read.
const SETTINGS: &str = "node-agent-config";
/// How long a node-agent may take to start.
const ROLLOUT: Duration = Duration::from_secs(300);

/// How often it is looked how far something is.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After so long without getting on it is stuck.
const STUCK: Duration = Duration::from_secs(600);

/// Whose node-agent is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// Velero's own.
    Veleros,
    /// Ours, in its place.
    Ours,
}

impl Agent {
    /// Both, in the order in which they are measured.
    pub const ALL: [Agent; 2] = [Agent::Veleros, Agent::Ours];

    /// For tables, and for the names of what is made for it.
    pub fn name(self) -> &'static str {
        match self {
            Agent::Veleros => "velero",
            Agent::Ours => "lifeboat",
        }
    }
}

/// The cluster; it goes with this process.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
}

impl Stage {
    /// A cluster of one node with Velero's node-agent at work, by these settings. Backups go to memory: volumes and movers
    /// share a disk already.
    pub fn new(settings: &Value) -> Result<Self> {
        let cluster = own("bench", |spec| {
            spec.velero = true;
            spec.test_driver = true;
            spec.audit = true;
            spec.store_in_memory = true;
        })?;
        let folder = tempfile::tempdir()?;
        let archive = folder.path().join("lifeboat.tar");
        Image::of_lifeboat(IMAGE, &lifeboat()?)?.write(&archive)?;
        cluster.node(1)?.load_image(&archive)?;
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": SETTINGS, "namespace": "velero" },
            "data": { "settings.json": settings.to_string() },
        });
        cluster.kubectl().apply(&map.to_string())?;
        let named = json!([{
            "op": "add", "path": "/spec/template/spec/containers/0/args/-",
            "value": format!("--node-agent-configmap={SETTINGS}"),
        }]);
        let patch =
            ["-n", "velero", "patch", "daemonset/node-agent", "--type=json", "-p", &named.to_string()];
        cluster.kubectl().run(patch)?;
        let stage = Self { cluster };
        stage.wait_for_agent()?;
        Ok(stage)
    }

    /// Puts a node-agent to work, and gives it a backup location of its own, so that it finds nothing of what the other
    /// one has written.
    pub fn put_to_work(&self, agent: Agent) -> Result<()> {
        if agent == Agent::Ours {
            let mut install = self.cluster.kubectl().in_network(lifeboat()?)?;
            let output = install.args(["install", "--node-agent-only", "--image", IMAGE]).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "our node-agent cannot be installed: {said}");
            self.wait_for_agent()?;
        }
        Ok(self.cluster.add_location(agent.name(), &self.cluster.object_store().endpoint)?)
    }

    fn wait_for_agent(&self) -> Result<()> {
        let status = ["-n", "velero", "rollout", "status", "daemonset/node-agent", "--timeout=290s"];
        self.cluster.kubectl().run_within(ROLLOUT, status)?;
        Ok(())
    }

    /// The pod of the node-agent that is at work.
    pub fn agent_pod(&self) -> Result<Value> {
        let pods = self.cluster.kubectl().get(["-n", "velero", "pods", "-l", "name=node-agent"])?;
        let all = pods["items"].as_array().into_iter().flatten();
        let mut alive = all.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        alive.next().cloned().context("no node-agent is at work")
    }
}

/// The program as it is released, built beside this one.
fn lifeboat() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("lifeboat");
    ensure!(program.is_file(), "{} is missing: run this by `cargo xtask bench`", program.display());
    Ok(program)
}

/// Waits until a count has come to what is wanted, as long as it gets on.
pub fn wait(what: &str, mut count: impl FnMut() -> Result<usize>, wanted: usize) -> Result<()> {
    let mut best = (0, Instant::now());
    loop {
        let now = count()?;
        if now >= wanted {
            return Ok(());
        }
        if now > best.0 {
            best = (now, Instant::now());
        }
        ensure!(best.1.elapsed() < STUCK, "it does not come about that {what}: {now} of {wanted}");
        thread::sleep(LOOK_EVERY);
    }
}
