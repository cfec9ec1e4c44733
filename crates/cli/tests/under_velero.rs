//! Our node-agent and our movers under a real Velero server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../../../testbed/cluster/tests/common/mod.rs"]
mod common;

use common::{assert_same, fingerprint, workload};
use lifeboat_testbed::testing::{TestNamespace, shared, wait_for_object};
use lifeboat_testbed::{Cluster, HOSTPATH_CLASS, Image, TEST_CLASS};
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const LIFEBOAT: &str = env!("CARGO_BIN_EXE_lifeboat");
const IMAGE: &str = "localhost/lifeboat:test";
/// What a namespace of these tests has: files and a device. Velero makes their operations one after the other.
const VOLUMES: usize = 2;
const PATIENCE: Duration = Duration::from_secs(300);

/// Whose node-agent is at work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    Ours,
    Veleros,
}

/// The cluster with one of the node-agents at work, for one test at a time.
struct Stage {
    cluster: &'static Cluster,
    at_work: MutexGuard<'static, Agent>,
}

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
        cluster
    })
}

fn stage(wanted: Agent) -> Stage {
    static AT_WORK: Mutex<Agent> = Mutex::new(Agent::Veleros);
    let mut stage = Stage {
        cluster: cluster(),
        // A test that failed has left a cluster that others can use.
        at_work: AT_WORK.lock().unwrap_or_else(PoisonError::into_inner),
    };
    stage.switch(wanted);
    stage
}

impl Stage {
    /// Puts the other node-agent to work.
    fn switch(&mut self, wanted: Agent) {
        if *self.at_work == wanted {
            return;
        }
        let kubectl = self.cluster.kubectl();
        match wanted {
            Agent::Ours => {
                let mut install = kubectl.in_network(LIFEBOAT).unwrap();
                let output =
                    install.args(["install", "--node-agent-only", "--image", IMAGE]).output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            Agent::Veleros => {
                kubectl.run(["-n", "velero", "rollout", "undo", "daemonset/node-agent"]).unwrap();
            }
        }
        let status = ["-n", "velero", "rollout", "status", "daemonset/node-agent", "--timeout=290s"];
        kubectl.run_within(PATIENCE, status).unwrap();
        *self.at_work = wanted;
    }
}

/// Backs a namespace up with its volumes' data.
fn back_up(cluster: &Cluster, space: &TestNamespace<'_>, name: &str) {
    let words =
        ["backup", "create", name, "--include-namespaces", space.name(), "--snapshot-move-data", "--wait"];
    cluster.run_velero(PATIENCE, words).unwrap();
}

/// Deletes a namespace and brings it back from a backup.
fn delete_and_restore(cluster: &Cluster, space: &TestNamespace<'_>, backup: &str) -> String {
    cluster.kubectl().run_within(PATIENCE, ["delete", "namespace", space.name(), "--wait=true"]).unwrap();
    let restore = format!("{backup}-r");
    cluster.run_velero(PATIENCE, ["restore", "create", &restore, "--from-backup", backup, "--wait"]).unwrap();
    restore
}

fn assert_completed(cluster: &Cluster, kind: &str, name: &str) {
    let kubectl = cluster.kubectl();
    let object = kubectl.get(["-n", "velero", kind, name]).unwrap();
    let operations = kubectl.text(["-n", "velero", "get", "datauploads,datadownloads", "-o", "yaml"]);
    let status = &object["status"];
    assert_eq!(status["phase"], "Completed", "{kind} {name}: {status:#}\n{}", operations.unwrap_or_default());
}

/// Operations of a backup or a restore.
fn operations(cluster: &Cluster, kind: &str, label: &str) -> Vec<Value> {
    let list = cluster.kubectl().get(["-n", "velero", kind, "-l", label]).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Nothing temporary is left in the cluster: no object of the ledger, no snapshot, no volume of a hosting pod.
fn assert_nothing_left(cluster: &Cluster) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = leftovers(cluster);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind:\n{left}");
        thread::sleep(Duration::from_secs(1));
    }
}

fn leftovers(cluster: &Cluster) -> String {
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
            let listed = item["metadata"]["labels"]["lifeboat.io/hosts"].is_string();
            let hosting = item["spec"]["claimRef"]["namespace"] == "velero";
            if listed || hosting || kind.starts_with("volumesnapshot") {
                left.push_str(&format!("{kind} {}: {:#}\n", item["metadata"]["name"], item["status"]));
            }
        }
    }
    left
}

/// Settings of the node-agent that are in force as long as this lives.
struct Configured(&'static Cluster);

impl Configured {
    fn new(cluster: &'static Cluster, settings: &Value) -> Self {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "node-agent-config", "namespace": "velero" },
            "data": { "settings.json": settings.to_string() },
        });
        cluster.kubectl().apply(&map.to_string()).unwrap();
        Self(cluster)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let _ = self.0.kubectl().run(["-n", "velero", "delete", "configmap", "node-agent-config"]);
    }
}

/// Waits until all operations of a backup are as they are to be.
fn wait_for_uploads(
    cluster: &Cluster,
    backup: &str,
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let label = format!("velero.io/backup-name={backup}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let uploads = operations(cluster, "datauploads", &label);
        if uploads.len() == VOLUMES && uploads.iter().all(&holds) {
            return uploads;
        }
        assert!(Instant::now() < deadline, "{what} did not happen: {uploads:#?}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// A namespace with data, and what is in it.
fn filled<'a>(cluster: &'a Cluster, name: &str, class: &str) -> (TestNamespace<'a>, String) {
    let space = TestNamespace::new(cluster, name).unwrap();
    space.apply(&workload(class, true)).unwrap();
    space.wait_for_pod("writer").unwrap();
    let data = fingerprint(&space, "writer");
    (space, data)
}

/// Brings a namespace back from a backup, with all its data.
fn assert_comes_back(cluster: &Cluster, space: &TestNamespace<'_>, backup: &str, before: &str) {
    let restore = delete_and_restore(cluster, space, backup);
    assert_completed(cluster, "restore.velero.io", &restore);
    space.wait_for_pod("writer").unwrap();
    assert_same(before, &fingerprint(space, "writer"));
}

/// A class that makes volumes at once; and what Velero's command line says of it all is what happened.
#[test]
fn a_namespace_with_files_and_a_device_comes_back_as_it_was() {
    let stage = stage(Agent::Ours);
    let cluster = stage.cluster;
    let (space, before) = filled(cluster, "round", HOSTPATH_CLASS);
    back_up(cluster, &space, "round");
    assert_completed(cluster, "backup.velero.io", "round");
    let uploads = operations(cluster, "datauploads", "velero.io/backup-name=round");
    assert_eq!(uploads.len(), VOLUMES);
    for upload in &uploads {
        let status = &upload["status"];
        assert_eq!(status["phase"], "Completed", "{upload:#}");
        assert_eq!(status["node"], "node1");
        assert_eq!(status["progress"]["totalBytes"], status["progress"]["bytesDone"], "{upload:#}");
    }
    assert_nothing_left(cluster);

    let described = cluster.run_velero(PATIENCE, ["backup", "describe", "round", "--details"]).unwrap();
    assert_eq!(described.matches("Result: succeeded").count(), 2, "{described}");
    assert!(described.contains("Moved data Size (bytes): 33554432"), "{described}");
    let repositories = cluster.run_velero(PATIENCE, ["repo", "get"]).unwrap();
    assert!(repositories.contains(&format!("{}-default-kopia", space.name())), "{repositories}");

    assert_comes_back(cluster, &space, "round", &before);
    let downloads = operations(cluster, "datadownloads", "velero.io/restore-name=round-r");
    assert_eq!(downloads.len(), VOLUMES);
    assert!(downloads.iter().all(|one| one["status"]["phase"] == "Completed"), "{downloads:#?}");
    assert_nothing_left(cluster);

    cluster.run_velero(PATIENCE, ["backup", "delete", "round", "--confirm"]).unwrap();
    let gone = || cluster.kubectl().get(["-n", "velero", "backup.velero.io", "round"]).is_err();
    let deadline = Instant::now() + PATIENCE;
    while !gone() {
        assert!(Instant::now() < deadline, "the backup is not deleted");
        thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn volumes_that_wait_for_their_pod_come_back_as_they_were() {
    let stage = stage(Agent::Ours);
    let (space, before) = filled(stage.cluster, "late", TEST_CLASS);
    back_up(stage.cluster, &space, "late");
    assert_completed(stage.cluster, "backup.velero.io", "late");
    assert_nothing_left(stage.cluster);
    assert_comes_back(stage.cluster, &space, "late", &before);
    assert_nothing_left(stage.cluster);
}

/// In one repository, and each on top of what the other has written.
#[test]
fn either_node_agent_restores_what_the_other_has_backed_up() {
    let mut stage = stage(Agent::Veleros);
    let (space, before) = filled(stage.cluster, "crossed", HOSTPATH_CLASS);
    back_up(stage.cluster, &space, "theirs");
    assert_completed(stage.cluster, "backup.velero.io", "theirs");
    stage.switch(Agent::Ours);
    assert_comes_back(stage.cluster, &space, "theirs", &before);
    back_up(stage.cluster, &space, "ours");
    assert_completed(stage.cluster, "backup.velero.io", "ours");
    assert_nothing_left(stage.cluster);
    stage.switch(Agent::Veleros);
    assert_comes_back(stage.cluster, &space, "ours", &before);
}

/// The class of the copy does not exist, so its claim is never bound. The setting is made while the agent runs.
#[test]
fn an_upload_that_waits_for_its_volume_says_so_and_is_cancelled_without_a_trace() {
    let stage = stage(Agent::Ours);
    let cluster = stage.cluster;
    let settings = json!({ "backupPVC": { HOSTPATH_CLASS: { "storageClass": "nowhere" } } });
    let configured = Configured::new(cluster, &settings);
    let (space, _) = filled(cluster, "stuck", HOSTPATH_CLASS);
    let words = ["backup", "create", "stuck", "--include-namespaces", space.name(), "--snapshot-move-data"];
    cluster.run_velero(PATIENCE, words).unwrap();
    let explained = |upload: &Value| {
        let message = upload["status"]["message"].as_str().unwrap_or_default();
        message.starts_with("waits for") && message.contains("fails at") && message.contains("nowhere")
    };
    let uploads = wait_for_uploads(cluster, "stuck", "an explanation", explained);
    for upload in &uploads {
        assert_eq!(upload["status"]["phase"], "Accepted", "{upload:#}");
        let name = upload["metadata"]["name"].as_str().unwrap();
        let cancel = r#"{"spec":{"cancel":true}}"#;
        cluster
            .kubectl()
            .run(["-n", "velero", "patch", "dataupload", name, "--type=merge", "-p", cancel])
            .unwrap();
    }
    let is_canceled = |upload: &Value| upload["status"]["phase"] == "Canceled";
    wait_for_uploads(cluster, "stuck", "the cancel", is_canceled);
    assert_nothing_left(cluster);

    // The same namespace is backed up as soon as the setting is gone.
    drop(configured);
    back_up(cluster, &space, "unstuck");
    assert_completed(cluster, "backup.velero.io", "unstuck");
    assert_nothing_left(cluster);
}

/// Seed 003: the copy of a volume is of another class, and only to be read.
#[test]
fn the_copy_to_read_from_is_of_the_class_and_mode_that_are_set() {
    let stage = stage(Agent::Ours);
    let cluster = stage.cluster;
    let mut class = cluster.kubectl().get(["storageclass", HOSTPATH_CLASS]).unwrap();
    class["metadata"] = json!({ "name": "for-reading" });
    cluster.kubectl().apply(&class.to_string()).unwrap();
    let settings = json!({ "backupPVC": { HOSTPATH_CLASS: {
        "storageClass": "for-reading", "readOnly": true, "annotations": { "example.org/copy": "yes" },
    } } });
    let _configured = Configured::new(cluster, &settings);
    let (space, before) = filled(cluster, "copied", HOSTPATH_CLASS);
    let words = ["backup", "create", "copied", "--include-namespaces", space.name(), "--snapshot-move-data"];
    cluster.run_velero(PATIENCE, words).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let claims = loop {
        let list = cluster.kubectl().get(["-n", "velero", "pvc", "-l", "lifeboat.io/hosts"]).unwrap();
        let claims = list["items"].as_array().unwrap().clone();
        if !claims.is_empty() {
            break claims;
        }
        assert!(Instant::now() < deadline, "no claim was made");
        thread::sleep(Duration::from_millis(200));
    };
    for claim in &claims {
        assert_eq!(claim["spec"]["storageClassName"], "for-reading", "{claim:#}");
        assert_eq!(claim["spec"]["accessModes"], json!(["ReadOnlyMany"]), "{claim:#}");
        assert_eq!(claim["metadata"]["annotations"]["example.org/copy"], "yes", "{claim:#}");
    }
    let is_completed = |upload: &Value| upload["status"]["phase"] == "Completed";
    wait_for_uploads(cluster, "copied", "the end", is_completed);
    let ended = |backup: &Value| backup["status"]["phase"] == "Completed";
    wait_for_object(&cluster.kubectl(), "velero", PATIENCE, ("backup.velero.io", "copied"), "the end", ended)
        .unwrap();
    assert_nothing_left(cluster);
    assert_comes_back(cluster, &space, "copied", &before);
    assert_nothing_left(cluster);
}
