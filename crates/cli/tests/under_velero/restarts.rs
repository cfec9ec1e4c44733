//! Agents, movers, Velero's server and the API server end while volumes are on their way: every operation goes on where it stood.

use crate::by_hand::{download, message, phase, upload, waiting};
use crate::common::{claim, list, pod, processes_of};
use crate::stage::{
    Agent, Configured, PATIENCE, alone, assert_nothing_left, has_ended, wait_for_agent, wait_for_rollout,
};
use crate::storage::{content, define_class, with_volumes};
use crate::store::{Gate, Location};
use lifeboat_testbed::testing::{TestNamespace, condition, wait_for_object};
use lifeboat_testbed::{Cluster, TEST_CLASS_ANYWHERE};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// What a mover may use here.
const MEMORY_LIMIT: u64 = 128 << 20;
/// Classes of the volumes of this test; there is nothing that a copy of the last one could be of, until the test makes it.
const CLASSES: [&str; 3] = [TEST_CLASS_ANYWHERE, "restarts-next", "restarts-held"];
const MISSING_CLASS: &str = "restarts-copies";

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

/// The phase of each of three operations, and the pods of those that have one: who goes on does not begin anew.
fn standing(cluster: &Cluster, kind: &str) -> Vec<(String, Value)> {
    let of = |number: usize| {
        let name = format!("restarts-{number}");
        let operation = cluster.kubectl().get(["-n", "velero", kind, &name]).unwrap();
        let pod = cluster.kubectl().get(["-n", "velero", "pod", &name]).unwrap_or_default();
        (phase(&operation).to_owned(), pod["metadata"]["uid"].clone())
    };
    (1..=3).map(of).collect()
}

fn end_agent_gracefully(cluster: &Cluster) {
    let agents = ["-n", "velero", "delete", "pod", "-l", "name=node-agent", "--wait=true"];
    cluster.kubectl().run(agents).unwrap();
    wait_for_agent(cluster);
}

/// Kills the agents' processes, and waits until Kubernetes has started them again.
fn kill_agent(cluster: &Cluster) {
    let restarts = || {
        let pods = cluster.kubectl().get(["-n", "velero", "pods", "-l", "name=node-agent"]).unwrap();
        let all = pods["items"].as_array().unwrap().clone();
        let count = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
        (all.iter().map(count).sum::<u64>(), all.iter().all(|pod| condition(pod, "Ready")))
    };
    let (before, _) = restarts();
    let is_agent = |process: &&PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).starts_with("/lifeboat\0node-agent\0server")
    };
    let processes = processes_of(cluster);
    let agents: Vec<_> = processes.iter().filter(is_agent).collect();
    assert!(!agents.is_empty());
    for agent in &agents {
        // As the node sees it; the first part of the path says which.
        let number = agent.file_name().unwrap().to_str().unwrap();
        let node = cluster.spec().node_ids().map(|node| cluster.node(node.number()).unwrap());
        let node = node.into_iter().find(|node| agent.starts_with(format!("/proc/{}", node.pid()))).unwrap();
        let killed = node.command("kill").unwrap().args(["-9", number]).status().unwrap();
        assert!(killed.success());
    }
    let deadline = Instant::now() + PATIENCE;
    while restarts() != (before + agents.len() as u64, true) {
        assert!(Instant::now() < deadline, "the agents do not start again: {:?}", restarts());
        thread::sleep(Duration::from_millis(250));
    }
}

/// Deletes the mover's pod of an operation; another takes its place.
fn lose_mover(cluster: &Cluster, kind: &str, name: &str) {
    let before = cluster.kubectl().get(["-n", "velero", "pod", name]).unwrap()["metadata"]["uid"].clone();
    cluster.kubectl().run(["-n", "velero", "delete", "pod", name, "--wait=false"]).unwrap();
    let noted = |operation: &Value| operation["metadata"]["annotations"]["lifeboat.io/movers-lost"] == "1";
    let seen = wait(cluster, (kind, name), "noticing the loss of its mover", |it| noted(it) || has_ended(it));
    assert!(noted(&seen), "{seen:#}");
    let replaced = |pod: &Value| pod["metadata"]["uid"] != before && pod["status"]["phase"] == "Running";
    wait(cluster, ("pod", name), "being replaced", replaced);
}

/// The most memory that a pod has used so far, as the kernel counts it.
fn peak_memory(cluster: &Cluster, pod: &str) -> u64 {
    let pod = cluster.kubectl().get(["-n", "velero", "pod", pod]).unwrap();
    let group = format!("pod{}", pod["metadata"]["uid"].as_str().unwrap());
    let node = pod["spec"]["nodeName"].as_str().unwrap();
    let name = format!("lifeboat-testbed-{}/{node}/kubepods", cluster.spec().name);
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].map(|root| Path::new(root).join(&name));
    let classes = ["burstable", "besteffort", ""];
    let groups = roots.iter().flat_map(|root| classes.map(|class| root.join(class).join(&group)));
    let files =
        groups.flat_map(|group| ["memory.peak", "memory.max_usage_in_bytes"].map(|it| group.join(it)));
    let found = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).next();
    found.unwrap_or_else(|| panic!("no control group {group} below {roots:?}"))
}

/// An upload of one of the volumes of this test into its location.
fn upload_of(space: &TestNamespace<'_>, number: usize) -> Value {
    let class = CLASSES[number - 1];
    let mut wanted = upload(space, &format!("restarts-{number}"), class);
    wanted["spec"]["csiSnapshot"]["storageClass"] = json!(class);
    wanted["spec"]["backupStorageLocation"] = json!("restarts");
    wanted
}

/// One operation moves data, one waits for a slot, one for its volume; and then the same for restores.
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

    let _configured = Configured::new(cluster, &settings(1));
    apply_and_wait(cluster, &upload_of(&space, 1), "InProgress");
    gate.wait_for_somebody();
    apply_and_wait(cluster, &upload_of(&space, 2), "Prepared");
    apply_and_wait(cluster, &upload_of(&space, 3), "Accepted");
    let stood = standing(cluster, "dataupload");
    kill_agent(cluster);
    assert_eq!(standing(cluster, "dataupload"), stood);
    end_agent_gracefully(cluster);
    assert_eq!(standing(cluster, "dataupload"), stood);

    // How many move at once is a setting, which is honoured while they wait.
    let _configured = Configured::new(cluster, &settings(4));
    let moves = |operation: &Value| phase(operation) == "InProgress";
    wait(cluster, ("dataupload", "restarts-2"), "moving beside the first", moves);
    wait(cluster, ("dataupload", "restarts-1"), "moving still", moves);
    define_class(cluster, MISSING_CLASS, "32768");
    wait(cluster, ("dataupload", "restarts-3"), "moving beside both", moves);

    // Without Velero's server there is nobody to make a repository; that is not waited for longer than the operation says.
    kubectl.run(["-n", "velero", "scale", "deployment/velero", "--replicas=0"]).unwrap();
    let mut short = upload(&foreign, "restarts-4", TEST_CLASS_ANYWHERE);
    short["spec"]["operationTimeout"] = json!("5s");
    apply_and_wait(cluster, &short, "Failed");
    let ended = kubectl.get(["-n", "velero", "dataupload", "restarts-4"]).unwrap();
    assert!(message(&ended).contains("was not ready within 5s"), "{}", message(&ended));

    cluster.restart_api_server().unwrap();
    kubectl.run(["-n", "velero", "scale", "deployment/velero", "--replicas=1"]).unwrap();
    lose_mover(cluster, "dataupload", "restarts-1");
    gate.wait_for_somebody();
    let peak = (1..=3).map(|number| peak_memory(cluster, &format!("restarts-{number}"))).max().unwrap();
    assert!(peak <= MEMORY_LIMIT, "a mover used {peak} bytes");
    eprintln!("movers of three megabytes used at most {} MiB", peak >> 20);
    gate.open();
    let snapshots = [1, 2, 3].map(|number| {
        let name = format!("restarts-{number}");
        let ended = wait(cluster, ("dataupload", &name), "the end", has_ended);
        assert_eq!(phase(&ended), "Completed", "{ended:#}");
        ended["status"]["snapshotID"].as_str().unwrap().to_owned()
    });
    assert_nothing_left(cluster, space.name(), "restarts");

    gate.close();
    let _configured = Configured::new(cluster, &settings(1));
    let targets: Vec<Value> = CLASSES
        .iter()
        .map(|class| waiting(claim(&format!("back-{class}"), class, "Filesystem", "16Mi", None)))
        .collect();
    space.apply(&list(&targets)).unwrap();
    for (number, wanted) in [(1, "InProgress"), (2, "Prepared"), (3, "Prepared")] {
        let target = format!("back-{}", CLASSES[number - 1]);
        let mut wanted_download =
            download(&space, &format!("restarts-{number}"), &target, &snapshots[number - 1]);
        wanted_download["spec"]["backupStorageLocation"] = json!("restarts");
        apply_and_wait(cluster, &wanted_download, wanted);
    }
    gate.wait_for_somebody();
    let stood = standing(cluster, "datadownload");
    kill_agent(cluster);
    assert_eq!(standing(cluster, "datadownload"), stood);
    lose_mover(cluster, "datadownload", "restarts-1");
    gate.open();
    for number in 1..=3 {
        let ended = wait(cluster, ("datadownload", &format!("restarts-{number}")), "the end", has_ended);
        assert_eq!(phase(&ended), "Completed", "{ended:#}");
    }
    for (class, before) in CLASSES.iter().zip(&before) {
        let target = format!("back-{class}");
        space.apply(&pod(&target, "touch /data/.done; sleep 86400", &target, None).to_string()).unwrap();
        space.wait_for_pod(&target).unwrap();
        assert_eq!(content(&space, &target), *before);
    }
    assert_nothing_left(cluster, space.name(), "restarts");
    wait_for_rollout(cluster, "deployment/velero");
}
