//! Real Velero in the cluster, installed by its own command line: the oracle for everything that wants to behave like it.

use crate::bring_up::BUCKET;
use crate::object_store::REGION;
use crate::{Cluster, Result, catalogue, command, files, tools};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

/// How long Velero may take to get ready: its server waits for its API before it looks at the backup location.
const PATIENCE: Duration = Duration::from_secs(300);

impl Cluster {
    /// A command of Velero's own command line, run in the cluster's network.
    pub fn velero<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Result<Command> {
        let mut command = self.kubectl().in_network(tools::built("velero")?)?;
        command.args(args);
        Ok(command)
    }

    /// Runs Velero's command line to its end and returns what it printed.
    pub fn run_velero<'a>(&self, limit: Duration, args: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let output = command::run(&mut self.velero(args)?, b"", limit)?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

impl Cluster {
    /// Makes a backup location of this name, with a bucket of the same name that is reached at `endpoint`, and waits until
    /// Velero can use it.
    pub fn add_location(&self, name: &str, endpoint: &str) -> Result<()> {
        self.create_bucket(name, false)?;
        let kubectl = self.kubectl();
        let mut location = kubectl.get(["-n", "velero", "backupstoragelocation", "default"])?;
        location["metadata"] = json!({ "name": name, "namespace": "velero" });
        location["spec"]["default"] = json!(false);
        // A bucket of its own: Velero takes folders that it does not know for somebody else's.
        location["spec"]["objectStorage"]["bucket"] = json!(name);
        location["spec"]["config"]["s3Url"] = json!(endpoint);
        location["status"] = json!({});
        kubectl.apply(&location.to_string())?;
        wait_for_location(self, name)
    }

    /// Removes a backup location with all that its bucket has: in memory, there may be no room for another one beside it.
    pub fn remove_location(&self, name: &str) -> Result<()> {
        let kubectl = self.kubectl();
        kubectl.run(["-n", "velero", "delete", "backupstoragelocation", name, "--wait=true"])?;
        let of_it = format!("velero.io/storage-location={name}");
        kubectl.run(["-n", "velero", "delete", "backuprepositories", "-l", &of_it, "--wait=true"])?;
        let data = self.first().sees(&self.layout().object_store(self.spec().store_in_memory));
        files::remove_folder(&data.join(name))
    }
}

/// Installs Velero with CSI snapshots, data movement and fs-backup, and waits until its backup location is available.
pub(crate) fn install(cluster: &Cluster) -> Result<()> {
    let store = cluster.object_store();
    let credentials = cluster.layout().conf("s3-credentials");
    files::write_secret(&credentials, store.credentials_file())?;
    let location = format!("region={REGION},s3ForcePathStyle=true,s3Url={}", store.endpoint);
    let mut install = cluster.velero(["install", "--provider", "aws", "--bucket", BUCKET])?;
    install
        .args(["--image", catalogue::VELERO, "--plugins", catalogue::VELERO_AWS_PLUGIN])
        .arg("--secret-file")
        .arg(&credentials)
        .args(["--backup-location-config", &location, "--use-volume-snapshots=false", "--features=EnableCSI"])
        .args(["--use-node-agent", "--privileged-node-agent"])
        // The default request of half a core is too much for several pods on a small machine.
        .args(["--velero-pod-cpu-request", "10m", "--velero-pod-cpu-limit", "0"])
        .args(["--velero-pod-mem-request", "0", "--velero-pod-mem-limit", "0"]);
    if let Some(authority) = &store.authority {
        install.arg("--cacert").arg(authority);
    }
    command::run(&mut install, b"", PATIENCE)?;
    let kubectl = cluster.kubectl();
    for workload in ["deployment/velero", "daemonset/node-agent"] {
        kubectl.run_within(PATIENCE, ["-n", "velero", "rollout", "status", workload, "--timeout=290s"])?;
    }
    wait_for_location(cluster, "default")
}

fn wait_for_location(cluster: &Cluster, name: &str) -> Result<()> {
    command::wait_for(&format!("Velero's backup location {name}"), PATIENCE, || {
        let location = cluster.kubectl().get(["-n", "velero", "backupstoragelocation", name]);
        let location = location.map_err(|problem| problem.to_string())?;
        if location["status"]["phase"] == "Available" { Ok(()) } else { Err(location["status"].to_string()) }
    })
}
