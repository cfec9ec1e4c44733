//! The cluster that all tests share, with one of the node-agents at work.

use crate::common::{assert_same, fingerprint, workload};
use lifeboat_testbed::testing::{TestNamespace, shared, wait_for_object};
use lifeboat_testbed::{Cluster, Image};
use serde_json::{Value, json};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

pub const LIFEBOAT: &str = env!("CARGO_BIN_EXE_lifeboat");
pub const IMAGE: &str = "localhost/lifeboat:test";
/// What a namespace of these tests has: files and a device. Velero makes their operations one after the other.
pub const VOLUMES: usize = 2;
/// Tests beside each other share the one slot of the node.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// How long making a volume reachable may take here: long enough for a slow machine, and short enough to be waited for.
pub const PREPARE_TIMEOUT: &str = "2m0s";

/// Whose node-agent is at work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    Ours,
    Veleros,
}

/// The cluster with ours at work, beside other tests.
pub struct Together {
    pub cluster: &'static Cluster,
    _at_work: RwLockReadGuard<'static, Agent>,
}

/// The cluster with one of the node-agents at work, for one test alone.
pub struct Alone {
    pub cluster: &'static Cluster,
    at_work: RwLockWriteGuard<'static, Agent>,
}

static AT_WORK: RwLock<Agent> = RwLock::new(Agent::Veleros);

fn cluster() -> &'static Cluster {
    static READY: OnceLock<&'static Cluster> = OnceLock::new();
    READY.get_or_init(|| {
        let cluster = shared(|spec| {
            spec.velero = true;
            spec.test_driver = true;
        })
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("lifeboat.tar");
        Image::of_lifeboat(IMAGE, LIFEBOAT.as_ref()).unwrap().write(&archive).unwrap();
        cluster.node(1).unwrap().load_image(&archive).unwrap();
        let timeout = format!("--data-mover-prepare-timeout={PREPARE_TIMEOUT}");
        let more =
            json!([{ "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": timeout }]);
        let patch =
            ["-n", "velero", "patch", "daemonset", "node-agent", "--type=json", "-p", &more.to_string()];
        cluster.kubectl().run(patch).unwrap();
        wait_for_agent(cluster);
        cluster
    })
}

pub fn together() -> Together {
    let cluster = cluster();
    loop {
        let at_work = AT_WORK.read().unwrap_or_else(PoisonError::into_inner);
        if *at_work == Agent::Ours {
            return Together { cluster, _at_work: at_work };
        }
        drop(at_work);
        drop(alone(Agent::Ours));
    }
}

pub fn alone(wanted: Agent) -> Alone {
    // A test that failed has left a cluster that others can use.
    let at_work = AT_WORK.write().unwrap_or_else(PoisonError::into_inner);
    let mut stage = Alone { cluster: cluster(), at_work };
    stage.switch(wanted);
    stage
}

impl Alone {
    /// Puts the other node-agent to work. Ours gets by with what the `baseline` standard allows.
    pub fn switch(&mut self, wanted: Agent) {
        if *self.at_work == wanted {
            return;
        }
        match wanted {
            Agent::Ours => {
                enforce(self.cluster, "baseline");
                install(self.cluster, &[]);
            }
            Agent::Veleros => {
                enforce(self.cluster, "privileged");
                let undo = ["-n", "velero", "rollout", "undo", "daemonset/node-agent"];
                self.cluster.kubectl().run(undo).unwrap();
            }
        }
        wait_for_agent(self.cluster);
        *self.at_work = wanted;
    }
}

/// Which pods are admitted in Velero's namespace from now on.
pub fn enforce(cluster: &Cluster, standard: &str) {
    let label = format!("pod-security.kubernetes.io/enforce={standard}");
    cluster.kubectl().run(["label", "namespace", "velero", "--overwrite", &label]).unwrap();
}

/// Installs our node-agent.
pub fn install(cluster: &Cluster, words: &[&str]) {
    let mut install = cluster.kubectl().in_network(LIFEBOAT).unwrap();
    let output =
        install.args(["install", "--node-agent-only", "--image", IMAGE]).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until the node-agent runs as its DaemonSet says now.
pub fn wait_for_agent(cluster: &Cluster) {
    let status = ["-n", "velero", "rollout", "status", "daemonset/node-agent", "--timeout=290s"];
    cluster.kubectl().run_within(PATIENCE, status).unwrap();
}

/// Backs a namespace up with its volumes' data, and waits for the end.
pub fn back_up(cluster: &Cluster, space: &TestNamespace<'_>, name: &str, words: &[&str]) {
    begin_backup(cluster, space, name, &[&["--wait"], words].concat());
}

/// Has a namespace backed up with its volumes' data.
pub fn begin_backup(cluster: &Cluster, space: &TestNamespace<'_>, name: &str, words: &[&str]) {
    let all = ["backup", "create", name, "--include-namespaces", space.name(), "--snapshot-move-data"];
    cluster.run_velero(PATIENCE, [&all, words].concat()).unwrap();
}

/// Deletes a namespace and brings it back from a backup.
pub fn delete_and_restore(cluster: &Cluster, space: &TestNamespace<'_>, backup: &str) -> String {
    cluster.kubectl().run_within(PATIENCE, ["delete", "namespace", space.name(), "--wait=true"]).unwrap();
    let restore = format!("{backup}-r");
    cluster.run_velero(PATIENCE, ["restore", "create", &restore, "--from-backup", backup, "--wait"]).unwrap();
    restore
}

/// Brings a namespace back from a backup, with all its data.
pub fn assert_comes_back(cluster: &Cluster, space: &TestNamespace<'_>, backup: &str, before: &str) {
    let restore = delete_and_restore(cluster, space, backup);
    assert_completed(cluster, "restore.velero.io", &restore);
    space.wait_for_pod("writer").unwrap();
    assert_same(before, &fingerprint(space, "writer"));
}

pub fn assert_completed(cluster: &Cluster, kind: &str, name: &str) {
    let kubectl = cluster.kubectl();
    let object = kubectl.get(["-n", "velero", kind, name]).unwrap();
    let operations = kubectl.text(["-n", "velero", "get", "datauploads,datadownloads", "-o", "yaml"]);
    let status = &object["status"];
    assert_eq!(status["phase"], "Completed", "{kind} {name}: {status:#}\n{}", operations.unwrap_or_default());
}

/// Operations of a backup or a restore.
pub fn operations(cluster: &Cluster, kind: &str, label: &str) -> Vec<Value> {
    let list = cluster.kubectl().get(["-n", "velero", kind, "-l", label]).unwrap();
    list["items"].as_array().unwrap().clone()
}

pub fn has_ended(operation: &Value) -> bool {
    ["Completed", "Failed", "Canceled"].iter().any(|phase| operation["status"]["phase"] == *phase)
}

/// Waits until all `count` operations of a backup are as they are to be.
pub fn wait_for_uploads(
    cluster: &Cluster,
    backup: &str,
    count: usize,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let label = format!("velero.io/backup-name={backup}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let uploads = operations(cluster, "datauploads", &label);
        if uploads.len() == count && uploads.iter().all(&holds) {
            return uploads;
        }
        assert!(Instant::now() < deadline, "{what} did not happen: {uploads:#?}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// Waits until a backup has come to an end, and says which.
pub fn end_of_backup(cluster: &Cluster, backup: &str) -> String {
    let phase = |backup: &Value| backup["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let ended = |backup: &Value| ["Completed", "PartiallyFailed", "Failed"].contains(&&*phase(backup));
    let of = ("backup.velero.io", backup);
    phase(&wait_for_object(&cluster.kubectl(), "velero", PATIENCE, of, "the end", ended).unwrap())
}

/// Nothing temporary is left of operations whose names begin so and of a namespace: no object of the ledger, no snapshot, no
/// volume of a hosting pod.
pub fn assert_nothing_left(cluster: &Cluster, space: &str, operations: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = leftovers(cluster, space, operations);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind:\n{left}");
        thread::sleep(Duration::from_secs(1));
    }
}

fn leftovers(cluster: &Cluster, space: &str, operations: &str) -> String {
    let ours = |text: &Value| text.as_str().is_some_and(|text| text.starts_with(&format!("{operations}-")));
    let mut left = String::new();
    for (kind, scope) in [
        ("pods", "-nvelero"),
        ("pvc", "-nvelero"),
        ("volumesnapshots", "-A"),
        ("volumesnapshotcontents", "-A"),
        ("pv", "-A"),
    ] {
        let list = cluster.kubectl().get([scope, kind]).unwrap();
        for item in list["items"].as_array().unwrap() {
            let (metadata, spec) = (&item["metadata"], &item["spec"]);
            let owner = metadata["annotations"]["lifeboat.io/owner"].as_str().unwrap_or_default();
            let hosting = spec["claimRef"]["namespace"] == "velero" && ours(&spec["claimRef"]["name"]);
            let of_snapshot = &spec["volumeSnapshotRef"]["namespace"];
            let snapshot =
                kind == "volumesnapshots" && metadata["namespace"] == space || of_snapshot == space;
            if owner.contains(&format!("/{operations}-")) || ours(&metadata["name"]) || hosting || snapshot {
                left.push_str(&format!("{kind} {}: {:#}\n", metadata["name"], item["status"]));
            }
        }
    }
    left
}

/// Settings of the node-agent that are in force as long as this lives.
pub struct Configured(&'static Cluster);

impl Configured {
    pub fn new(stage: &Alone, settings: &Value) -> Self {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "node-agent-config", "namespace": "velero" },
            "data": { "settings.json": settings.to_string() },
        });
        stage.cluster.kubectl().apply(&map.to_string()).unwrap();
        Self(stage.cluster)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let _ = self.0.kubectl().run(["-n", "velero", "delete", "configmap", "node-agent-config"]);
    }
}

/// A namespace with data, and what is in it.
pub fn filled<'a>(cluster: &'a Cluster, name: &str, class: &str) -> (TestNamespace<'a>, String) {
    let space = TestNamespace::new(cluster, name).unwrap();
    space.apply(&workload(class, true)).unwrap();
    space.wait_for_pod("writer").unwrap();
    let data = fingerprint(&space, "writer");
    (space, data)
}

/// Stops an operation.
pub fn cancel(cluster: &Cluster, kind: &str, name: &str) {
    let change = r#"{"spec":{"cancel":true}}"#;
    cluster.kubectl().run(["-n", "velero", "patch", kind, name, "--type=merge", "-p", change]).unwrap();
}
