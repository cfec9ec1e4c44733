//! Agents, movers, Velero's server and the API server end while volumes are on their way: every operation goes on where it stood.

use crate::by_hand::{made, message, phase, pod_backup, upload};
use crate::stage::{
    Agent, Configured, FoldersAllowed, PATIENCE, agent_metrics, alone, assert_nothing_left, has_ended,
    metric, wait_for_rollout, writers,
};
use crate::storage::{content, define_class, with_volumes};
use crate::store::{Gate, Location, connected_kopia, content_of_snapshot};
use crate::strikes::{end_agent_gracefully, kill_agent, peak_memory};
use lifeboat_testbed::testing::{TestNamespace, wait_for_object};
use lifeboat_testbed::{Cluster, TEST_CLASS_ANYWHERE};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// What a mover may use here.
const MEMORY_LIMIT: u64 = 128 << 20;
/// Classes of the volumes of this test; there is nothing that a copy of the last one could be of, until the test makes it.
const CLASSES: [&str; 3] = [TEST_CLASS_ANYWHERE, "restarts-next", "restarts-held"];
const MISSING_CLASS: &str = "restarts-copies";
/// Operations of this test, of the volumes of its classes in turn.
const UPLOADS: [(&str, &str); 6] = [
    ("dataupload", "restarts-1"),
    ("dataupload", "restarts-2"),
    ("dataupload", "restarts-3"),
    ("podvolumebackup", "restarts-pod-1"),
    ("podvolumebackup", "restarts-pod-2"),
    ("podvolumebackup", "restarts-pod-3"),
];
fn settings(slots: usize) -> Value {
    json!({
        "loadConcurrency": { "globalConfig": slots },
        "backupPVC": { CLASSES[2]: { "storageClass": MISSING_CLASS } },
        "podResources": { "memoryLimit": MEMORY_LIMIT.to_string() },
    })
}

fn wait(cluster: &Cluster, of: (&str, &str), what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    wait_for_object(&cluster.kubectl(), "velero", PATIENCE, of, what, holds).unwrap()
}

fn apply_and_wait(cluster: &Cluster, operation: &Value, wanted: &str) {
    cluster.kubectl().apply(&operation.to_string()).unwrap();
    let kind = operation["kind"].as_str().unwrap().to_lowercase();
    let of = (&*kind, operation["metadata"]["name"].as_str().unwrap());
    let seen = wait(cluster, of, wanted, |it| phase(it) == wanted || has_ended(it));
    assert_eq!(phase(&seen), wanted, "{seen:#}");
}

/// The phases of operations, and the pods of those that have one: who goes on does not begin anew.
fn standing(cluster: &Cluster, operations: &[(&str, &str)]) -> Vec<(String, Value)> {
    let of = |(kind, name): &(&str, &str)| {
        let operation = cluster.kubectl().get(["-n", "velero", kind, name]).unwrap();
        let pod = cluster.kubectl().get(["-n", "velero", "pod", name]).unwrap_or_default();
        (phase(&operation).to_owned(), pod["metadata"]["uid"].clone())
    };
    operations.iter().map(of).collect()
}

/// Has a pod evicted, as whoever drains a node does.
fn evict(cluster: &Cluster, pod: &str) {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": "velero" },
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), eviction.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/velero/pods/{pod}/eviction");
    cluster.kubectl().run(["create", "--raw", &path, "-f", file.path().to_str().unwrap()]).unwrap();
}

/// Takes the movers' pods of operations away, by deleting the first and evicting the others; others take their places.
fn lose_movers(cluster: &Cluster, operations: &[(&str, &str)]) {
    let uid =
        |pod: &str| cluster.kubectl().get(["-n", "velero", "pod", pod]).unwrap()["metadata"]["uid"].clone();
    let before: Vec<Value> = operations.iter().map(|(_, name)| uid(name)).collect();
    let (deleted, evicted) = operations.split_first().unwrap();
    cluster.kubectl().run(["-n", "velero", "delete", "pod", deleted.1, "--wait=false"]).unwrap();
    evicted.iter().for_each(|(_, name)| evict(cluster, name));
    for ((kind, name), before) in operations.iter().zip(before) {
        let noted =
            |operation: &Value| operation["metadata"]["annotations"]["lifeboat.io/movers-lost"] == "1";
        let or_ended = |it: &Value| noted(it) || has_ended(it);
        let seen = wait(cluster, (kind, name), "noticing the loss of its mover", or_ended);
        assert!(noted(&seen), "{seen:#}");
        let replaced = |pod: &Value| pod["metadata"]["uid"] != before && pod["status"]["phase"] == "Running";
        wait(cluster, ("pod", name), "being replaced", replaced);
    }
}

/// Ends Velero's server, and waits until nothing of it runs any more.
fn end_server(cluster: &Cluster) {
    let kubectl = cluster.kubectl();
    kubectl.run(["-n", "velero", "scale", "deployment/velero", "--replicas=0"]).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let runs = || {
        let pods = kubectl.get(["-n", "velero", "pods"]).unwrap();
        let is_server = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().starts_with("velero-");
        pods["items"].as_array().unwrap().iter().any(is_server)
    };
    while runs() {
        assert!(Instant::now() < deadline, "Velero's server does not end");
        thread::sleep(Duration::from_millis(250));
    }
}

/// Waits until the agent has said that admission refuses the pod of an operation.
fn wait_for_refusal(cluster: &Cluster, of: (&str, &str)) {
    let said = |operation: &Value| {
        let words = message(operation);
        words.starts_with("waits for the cluster to accept")
            && words.contains("violates PodSecurity")
            && words.contains("fails at")
    };
    let refused = wait(cluster, of, "an explanation", said);
    assert_eq!(phase(&refused), "Accepted", "{refused:#}");
}

/// Waits until an operation has said that it waits for a slot, which others have.
fn wait_for_slot(cluster: &Cluster, of: (&str, &str)) {
    let said = |operation: &Value| message(operation).starts_with("waits for a slot of node node1");
    let waits = wait(cluster, of, "an explanation", said);
    assert_eq!(phase(&waits), "Prepared", "{waits:#}");
}

/// An upload of one of the volumes of this test into its location.
fn upload_of(space: &TestNamespace<'_>, number: usize) -> Value {
    let class = CLASSES[number - 1];
    let mut wanted = upload(space, &format!("restarts-{number}"), class);
    wanted["spec"]["csiSnapshot"]["storageClass"] = json!(class);
    in_location(wanted)
}

/// An operation, in the location of this test.
fn in_location(mut operation: Value) -> Value {
    operation["spec"]["backupStorageLocation"] = json!("restarts");
    operation
}

/// Of both kinds of backups: two operations move data, two wait for a slot, two for their volume.
#[test]
fn operations_go_on_where_they_stood_when_agents_movers_and_servers_end() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    for (class, mark) in [(CLASSES[1], "4096"), (CLASSES[2], "32768")] {
        define_class(cluster, class, mark);
    }
    let gate = Gate::default();
    let _location = Location::new(cluster, "restarts", gate.plan());
    let space = with_volumes(cluster, "restarts", &CLASSES);
    let foreign = with_volumes(cluster, "restarts-other", &[TEST_CLASS_ANYWHERE]);
    let before = CLASSES.map(|class| content(&space, class));

    let _configured = Configured::new(cluster, &settings(2));
    let pod_volume = |number: usize| {
        in_location(pod_backup(&format!("restarts-pod-{number}"), &made(&space, CLASSES[number - 1])))
    };
    apply_and_wait(cluster, &upload_of(&space, 1), "InProgress");
    gate.wait_for_somebody();
    let allowed = FoldersAllowed::new(&stage);
    apply_and_wait(cluster, &pod_volume(1), "InProgress");
    apply_and_wait(cluster, &pod_volume(2), "Prepared");
    apply_and_wait(cluster, &upload_of(&space, 2), "Prepared");
    wait_for_slot(cluster, UPLOADS[4]);
    drop(allowed);
    apply_and_wait(cluster, &pod_volume(3), "Accepted");
    apply_and_wait(cluster, &upload_of(&space, 3), "Accepted");
    wait_for_refusal(cluster, UPLOADS[5]);
    let stood = standing(cluster, &UPLOADS);
    kill_agent(cluster);
    assert_eq!(standing(cluster, &UPLOADS), stood);
    end_agent_gracefully(cluster);
    assert_eq!(standing(cluster, &UPLOADS), stood);

    // How many move at once is a setting, which is honoured while they wait.
    let _allowed = FoldersAllowed::new(&stage);
    let _configured = Configured::new(cluster, &settings(8));
    let moves = |operation: &Value| phase(operation) == "InProgress";
    define_class(cluster, MISSING_CLASS, "32768");
    for of in UPLOADS {
        wait(cluster, of, "moving beside the others", moves);
    }

    // Without Velero's server there is nobody to make a repository; that is not waited for longer than the operation says.
    end_server(cluster);
    let mut short = upload(&foreign, "restarts-4", TEST_CLASS_ANYWHERE);
    short["spec"]["operationTimeout"] = json!("5s");
    apply_and_wait(cluster, &short, "Failed");
    let ended = kubectl.get(["-n", "velero", "dataupload", "restarts-4"]).unwrap();
    assert!(message(&ended).contains("was not ready within 5s"), "{}", message(&ended));

    cluster.restart_api_server().unwrap();
    kubectl.run(["-n", "velero", "scale", "deployment/velero", "--replicas=1"]).unwrap();
    lose_movers(cluster, &[UPLOADS[0], UPLOADS[3]]);
    let lost = agent_metrics(cluster)
        .iter()
        .map(|page| metric(page, "lifeboat_movers_lost_total").unwrap())
        .sum::<f64>();
    assert_eq!(lost, 2.0);
    gate.wait_for_somebody();
    let peak = UPLOADS.iter().map(|(_, name)| peak_memory(cluster, name)).max().unwrap();
    assert!(peak <= MEMORY_LIMIT, "a mover used {peak} bytes");
    eprintln!("movers of three megabytes used at most {} MiB", peak >> 20);
    gate.open();
    let snapshots = UPLOADS.map(|of| {
        let ended = wait(cluster, of, "the end", has_ended);
        assert_eq!(phase(&ended), "Completed", "{ended:#}");
        ended["status"]["snapshotID"].as_str().unwrap().to_owned()
    });
    for (kind, name) in UPLOADS {
        let writers = writers(cluster, kind, name);
        assert!(writers.contains("lifeboat") && !writers.contains("unknown"), "{writers:?}");
    }
    let kopia = connected_kopia(cluster, "restarts", space.name());
    for (number, snapshot) in snapshots.iter().enumerate() {
        assert_eq!(content_of_snapshot(cluster, &kopia, snapshot), before[number % CLASSES.len()]);
    }
    assert_nothing_left(cluster, space.name(), "restarts");
    wait_for_rollout(cluster, "deployment/velero");
}
