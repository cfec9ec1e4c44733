//! Several agents and several nodes: who takes an operation, who goes on with it, and what becomes of it when its node is lost.

use crate::by_hand::{download, phase, run, upload, waiting};
use crate::common::{claim, pod};
use crate::record::Record;
use crate::stage::{
    Agent, Configured, OTHER_NODE, OtherNode, PATIENCE, alone, assert_nothing_left, cancel, has_ended,
    together,
};
use crate::storage::{content, with_volumes};
use crate::store::{Gate, Location};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use lifeboat_node_agent::Options;
use lifeboat_testbed::testing::wait_for_object;
use lifeboat_testbed::{Cluster, TEST_CLASS_ANYWHERE};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Agents that do not know of each other, so that each takes everything for its own.
const RACERS: usize = 6;
const RACES: usize = 12;
const LABEL: &str = "example.org/race";

fn racers(cluster: &Cluster) -> Runtime {
    let kubeconfig = Kubeconfig::read_from(cluster.layout().kubeconfig()).unwrap();
    cluster
        .in_network(|| {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            for number in 1..=RACERS {
                let kubeconfig = kubeconfig.clone();
                let options = Options {
                    namespace: "velero".to_owned(),
                    node: format!("racer{number}"),
                    daemon_set: "racers".to_owned(),
                    data_mover: "racer".to_owned(),
                    prepare_timeout: Duration::from_secs(60),
                    resource_timeout: lifeboat_api::Duration::from_secs(60),
                    metrics_address: "127.0.0.1:0".parse().unwrap(),
                    node_agent_config_map: String::new(),
                    repository_config_map: String::new(),
                };
                runtime.spawn(async move {
                    let options_of_file = KubeConfigOptions::default();
                    let config = Config::from_custom_kubeconfig(kubeconfig, &options_of_file).await.unwrap();
                    let client = Client::try_from(config).unwrap();
                    lifeboat_node_agent::run(client, options, std::future::pending()).await.unwrap();
                });
            }
            runtime
        })
        .unwrap()
}

/// An operation for the racers that cannot be done: its claim does not exist.
fn race(name: &str, mover: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": { "name": name, "namespace": "velero", "labels": { LABEL: "yes" } },
        "spec": {
            "snapshotType": "CSI", "sourceNamespace": "nowhere", "sourcePVC": "nothing", "datamover": mover,
            "csiSnapshot": { "volumeSnapshot": "nothing", "storageClass": TEST_CLASS_ANYWHERE, "snapshotClass": "" },
            "backupStorageLocation": "default", "operationTimeout": "10m0s", "dataMoverConfig": null,
        },
    })
}

#[test]
fn of_many_agents_that_want_an_operation_exactly_one_gets_it() {
    let stage = together();
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    let record = Record::start(cluster, "datauploads", LABEL);
    // Of a mover that nobody is: it shows that the record has begun.
    kubectl.apply(&race("race-0", "nobody").to_string()).unwrap();
    record.wait("the first operation", |seen| seen.contains_key("race-0"));
    let _racers = racers(cluster);
    let races: Vec<_> = (1..=RACES).map(|number| race(&format!("race-{number}"), "racer")).collect();
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": races }).to_string()).unwrap();
    let ended = |versions: &Vec<Value>| versions.iter().any(has_ended);
    record.wait("the end of all", |seen| seen.values().filter(|it| ended(it)).count() == RACES);

    let mut winners = BTreeSet::new();
    for (name, versions) in record.versions().into_iter().filter(|(name, _)| name != "race-0") {
        let mut phases: Vec<&str> = versions.iter().map(phase).collect();
        phases.dedup();
        assert_eq!(phases, ["", "Accepted", "Failed"], "{name}");
        let by = |version: &Value| version["status"]["acceptedByNode"].as_str().map(str::to_owned);
        let takers: BTreeSet<String> = versions.iter().filter_map(by).collect();
        assert_eq!(takers.len(), 1, "{name} was taken by {takers:?}");
        winners.extend(takers);
    }
    assert!(!winners.is_empty());
    kubectl.run(["-n", "velero", "delete", "datauploads", "-l", LABEL, "--wait=false"]).unwrap();
}

/// Taken by one node's agent, gone on with by that of the node that has the pod, and after its loss by the first again, though
/// somebody has given the pod on the lost node time to end that it will never use up.
#[test]
fn an_upload_goes_on_on_another_node_when_its_own_is_lost() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    let mut other = OtherNode::new(&stage);
    // A lost node does not let go of a volume that only one node may use; a copy that is only read may be used on two.
    let shared = json!({ "backupPVC": { TEST_CLASS_ANYWHERE: { "readOnly": true } } });
    let _shared = Configured::new(cluster, &shared);
    let there = json!({ "loadAffinity": [{ "nodeSelector": { "matchLabels": { "kubernetes.io/hostname": OTHER_NODE } } }] });
    let configured = Configured::new(cluster, &there);
    let gate = Gate::default();
    let _location = Location::new(cluster, "lost", gate.plan());
    let space = with_volumes(cluster, "lost", &[TEST_CLASS_ANYWHERE]);
    let before = content(&space, TEST_CLASS_ANYWHERE);
    let wait = |of: (&str, &str), what: &str, holds: &dyn Fn(&Value) -> bool| {
        wait_for_object(&cluster.kubectl(), "velero", PATIENCE, of, what, holds).unwrap()
    };

    let mut taken = upload(&space, "lost-1", TEST_CLASS_ANYWHERE);
    taken["spec"]["backupStorageLocation"] = json!("lost");
    taken["metadata"]["labels"]["velero.io/expose-on-going"] = json!("true");
    taken["status"] = json!({
        "phase": "Accepted", "acceptedByNode": "node1", "acceptedTimestamp": format!("{:.0}", jiff::Timestamp::now()),
    });
    kubectl.apply(&taken.to_string()).unwrap();
    let moving = wait(("dataupload", "lost-1"), "moving", &|it| phase(it) == "InProgress" || has_ended(it));
    assert_eq!(moving["status"]["acceptedByNode"], "node1", "{moving:#}");
    assert_eq!(moving["status"]["node"], OTHER_NODE, "{moving:#}");
    gate.wait_for_somebody();

    drop(configured);
    other.lose();
    let deleted = ["-n", "velero", "delete", "pod", "lost-1", "--grace-period=3600", "--wait=false"];
    kubectl.run(deleted).unwrap();
    let replaced = |pod: &Value| pod["spec"]["nodeName"] == "node1" && pod["status"]["phase"] == "Running";
    wait(("pod", "lost-1"), "being replaced on the node that is left", &replaced);
    gate.open();
    let ended = wait(("dataupload", "lost-1"), "the end", &has_ended);
    assert_eq!(phase(&ended), "Completed", "{ended:#}");
    assert_eq!(ended["status"]["node"], "node1", "{ended:#}");
    assert_eq!(ended["metadata"]["annotations"]["lifeboat.io/movers-lost"], "1", "{ended:#}");

    let target = waiting(claim("back", TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None));
    space.apply(&target.to_string()).unwrap();
    let mut wanted = download(&space, "lost-1", "back", ended["status"]["snapshotID"].as_str().unwrap());
    wanted["spec"]["backupStorageLocation"] = json!("lost");
    assert_eq!(phase(&run(cluster, &wanted)), "Completed");
    space.apply(&pod("back", "touch /data/.done; sleep 86400", "back", None).to_string()).unwrap();
    space.wait_for_pod("back").unwrap();
    assert_eq!(content(&space, "back"), before);
    // The lost node lets go of the copy when it is back.
    other.bring_back();
    assert_nothing_left(cluster, space.name(), "lost");
}

/// The volume is attached to a node of Windows, so what reads its copy has to run on one too.
#[test]
fn the_mover_is_for_the_system_of_the_node_that_has_the_volume() {
    let stage = together();
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    let space = with_volumes(cluster, "windows", &[TEST_CLASS_ANYWHERE]);
    let volume = space.get("pvc", TEST_CLASS_ANYWHERE).unwrap()["spec"]["volumeName"].clone();
    let mut agent = kubectl.get(["-n", "velero", "daemonset", "node-agent"]).unwrap();
    let labels = json!({ "name": "node-agent-windows" });
    agent["metadata"] = json!({ "name": "node-agent-windows", "namespace": "velero" });
    agent["spec"]["selector"] = json!({ "matchLabels": labels });
    agent["spec"]["template"]["metadata"]["labels"] = labels;
    agent["spec"]["template"]["spec"]["nodeSelector"] = json!({ "example.org/runs": "nowhere" });
    let objects = [
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "windows1", "labels": { "kubernetes.io/os": "windows" } } }),
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": { "name": "windows" },
            "spec": { "attacher": "example.org", "nodeName": "windows1", "source": { "persistentVolumeName": volume } },
        }),
        agent,
        upload(&space, "windows-1", TEST_CLASS_ANYWHERE),
    ];
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string()).unwrap();
    let made = |_: &Value| true;
    let pod =
        wait_for_object(&kubectl, "velero", PATIENCE, ("pod", "windows-1"), "being made", made).unwrap();
    assert_eq!(pod["spec"]["os"]["name"], "windows", "{pod:#}");
    let nodes = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let windows = json!([{ "key": "kubernetes.io/os", "operator": "In", "values": ["windows"] }]);
    assert_eq!(*nodes, json!([{ "matchExpressions": windows }]), "{pod:#}");
    cancel(cluster, "dataupload", "windows-1");
    let of = ("dataupload", "windows-1");
    let ended = wait_for_object(&kubectl, "velero", PATIENCE, of, "the end", has_ended).unwrap();
    assert_eq!(phase(&ended), "Canceled", "{ended:#}");
    kubectl.run(["delete", "node/windows1", "volumeattachment/windows", "--wait=false"]).unwrap();
    kubectl.run(["-n", "velero", "delete", "daemonset", "node-agent-windows", "--wait=false"]).unwrap();
    assert_nothing_left(cluster, space.name(), "windows");
}
