//! The cluster that all tests share, with one of the node-agents at work.

use crate::common::{assert_same, fingerprint, workload};
use lifeboat_testbed::testing::{TestNamespace, condition, shared, wait_for_object};
use lifeboat_testbed::{Cluster, Image};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

pub const LIFEBOAT: &str = env!("CARGO_BIN_EXE_lifeboat");
pub const IMAGE: &str = "localhost/lifeboat:test";
/// What a namespace of these tests has: files and a device. Velero makes their operations one after the other.
pub const VOLUMES: usize = 2;
/// Tests beside each other share one node and its slots.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// A node that nothing is placed on unless a test wants it.
pub const OTHER_NODE: &str = "node2";
pub const OTHER_NODE_NUMBER: u8 = 2;
/// All kinds of volume operations.
const OPERATIONS: [&str; 4] = ["datauploads", "datadownloads", "podvolumebackups", "podvolumerestores"];
/// Our node-agent beside Velero's.
const BESIDE: &str = "lifeboat-node-agent";
/// How long making a volume reachable may take, which no test waits for.
pub const PREPARE_TIMEOUT: &str = "30m0s";
/// How long movers try again while their store does not answer: longer than any test keeps it from them.
const STORE_TIMEOUT: &str = "2h0m0s";

/// The data mover that ours is beside Velero's own, and whom its hosting pods run as.
pub const MOVER: &str = "lifeboat";
pub const MOVER_USER: u32 = 1000;

/// Whose node-agent is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    /// Ours, in the place of Velero's.
    Ours,
    Veleros,
    /// Velero's, and ours as another data mover without root, in a namespace where the `restricted` standard is enforced.
    Beside,
}

/// The cluster with ours at work, beside other tests.
pub struct Together {
    pub cluster: &'static Cluster,
    _at_work: RwLockReadGuard<'static, Option<Agent>>,
}

/// The cluster with one of the node-agents at work, for one test alone.
pub struct Alone {
    pub cluster: &'static Cluster,
    at_work: RwLockWriteGuard<'static, Option<Agent>>,
}

/// Nothing while one is being replaced: if that fails, nobody knows who is at work.
static AT_WORK: RwLock<Option<Agent>> = RwLock::new(Some(Agent::Veleros));
/// A test has failed, so that its operations may still be there and hold slots of others.
static FAILED: AtomicBool = AtomicBool::new(false);

impl Drop for Together {
    fn drop(&mut self) {
        FAILED.fetch_or(thread::panicking(), Ordering::SeqCst);
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        FAILED.fetch_or(thread::panicking(), Ordering::SeqCst);
    }
}

fn cluster() -> &'static Cluster {
    static READY: OnceLock<&'static Cluster> = OnceLock::new();
    READY.get_or_init(|| {
        let cluster = shared(|spec| {
            spec.nodes = 2;
            spec.velero = true;
            spec.test_driver = true;
        })
        .unwrap();
        // For tests that need another node.
        cluster.kubectl().run(["cordon", OTHER_NODE]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("lifeboat.tar");
        Image::of_lifeboat(IMAGE, LIFEBOAT.as_ref()).unwrap().write(&archive).unwrap();
        for node in cluster.spec().node_ids() {
            cluster.node(node.number()).unwrap().load_image(&archive).unwrap();
        }
        let more = json!([
            { "op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": { "name": "LIFEBOAT_STORE_TIMEOUT", "value": STORE_TIMEOUT } },
            { "op": "add", "path": "/spec/updateStrategy/rollingUpdate/maxUnavailable", "value": "100%" },
        ]);
        // Velero asks its operations how they are every ten seconds; tests do not want to wait for that.
        let server = json!([
            { "op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--item-operation-sync-frequency=1s" },
        ]);
        for (workload, changes) in [("daemonset/node-agent", more), ("deployment/velero", server)] {
            let patch = ["-n", "velero", "patch", workload, "--type=json", "-p", &changes.to_string()];
            cluster.kubectl().run(patch).unwrap();
            wait_for_rollout(cluster, workload);
        }
        apply_settings(cluster, &Wishes::none());
        cluster
    })
}

/// Velero's own node-agent as it was before ours took its place.
fn veleros_agent(cluster: &Cluster) -> &'static Value {
    static KEPT: OnceLock<Value> = OnceLock::new();
    KEPT.get_or_init(|| {
        let mut kept = cluster.kubectl().get(["-n", "velero", "daemonset", "node-agent"]).unwrap();
        for field in ["resourceVersion", "uid", "creationTimestamp", "generation"] {
            kept["metadata"].as_object_mut().unwrap().remove(field);
        }
        kept
    })
}

pub fn together() -> Together {
    let cluster = cluster();
    loop {
        let at_work = AT_WORK.read().unwrap_or_else(PoisonError::into_inner);
        if *at_work == Some(Agent::Ours) && !FAILED.load(Ordering::SeqCst) {
            return Together { cluster, _at_work: at_work };
        }
        drop(at_work);
        drop(alone(Agent::Ours));
    }
}

pub fn alone(wanted: Agent) -> Alone {
    let at_work = AT_WORK.write().unwrap_or_else(PoisonError::into_inner);
    let mut stage = Alone { cluster: cluster(), at_work };
    if FAILED.load(Ordering::SeqCst) {
        stage.switch(Agent::Ours);
        delete_open(stage.cluster);
        FAILED.store(false, Ordering::SeqCst);
    }
    stage.switch(wanted);
    stage
}

/// Deletes all operations that tests have left which failed: the others are to say of themselves whether they do.
fn delete_open(cluster: &Cluster) {
    let kubectl = cluster.kubectl();
    for kind in OPERATIONS {
        let list = kubectl.get(["-n", "velero", kind]).unwrap();
        let open = list["items"].as_array().unwrap().iter().filter(|it| !has_ended(it));
        let names: Vec<&str> = open.map(|it| it["metadata"]["name"].as_str().unwrap()).collect();
        if !names.is_empty() {
            let delete = ["-n", "velero", "delete", kind, "--wait=true"];
            kubectl.run_within(PATIENCE, delete.into_iter().chain(names)).unwrap();
        }
    }
}

impl Alone {
    /// Puts another node-agent to work. Ours gets by with what the `baseline` standard allows, and without root with what the
    /// `restricted` standard does.
    pub fn switch(&mut self, wanted: Agent) {
        let before = self.at_work.take();
        if before == Some(wanted) {
            *self.at_work = before;
            return;
        }
        let kubectl = self.cluster.kubectl();
        let theirs = veleros_agent(self.cluster);
        if before != Some(Agent::Veleros) {
            enforce(self.cluster, "privileged");
            let besides =
                ["-n", "velero", "delete", "daemonset", BESIDE, "--ignore-not-found", "--wait=true"];
            kubectl.run(besides).unwrap();
        }
        if matches!(before, None | Some(Agent::Ours)) {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), theirs.to_string()).unwrap();
            kubectl.run(["replace", "-f", file.path().to_str().unwrap()]).unwrap();
            wait_for_agent(self.cluster);
        }
        match wanted {
            Agent::Ours => {
                enforce(self.cluster, "baseline");
                install(self.cluster, &[]);
                wait_for_agent(self.cluster);
            }
            Agent::Veleros => {}
            Agent::Beside => {
                enforce(self.cluster, "restricted");
                install(self.cluster, &["--data-mover", MOVER, "--mover-user", &MOVER_USER.to_string()]);
                wait_for_rollout(self.cluster, &format!("daemonset/{BESIDE}"));
            }
        }
        *self.at_work = Some(wanted);
    }
}

/// The other node is used as long as this lives.
pub struct OtherNode {
    cluster: &'static Cluster,
    lost: bool,
}

impl OtherNode {
    pub fn new(stage: &Alone) -> Self {
        stage.cluster.kubectl().run(["uncordon", OTHER_NODE]).unwrap();
        Self { cluster: stage.cluster, lost: false }
    }

    pub fn lose(&mut self) {
        self.lost = true;
        self.cluster.lose_node(OTHER_NODE_NUMBER).unwrap();
    }

    pub fn bring_back(&mut self) {
        self.cluster.return_node(OTHER_NODE_NUMBER).unwrap();
        self.lost = false;
    }
}

impl Drop for OtherNode {
    fn drop(&mut self) {
        // Also after a failure: the tests that follow need both nodes.
        let returned = if self.lost { self.cluster.return_node(OTHER_NODE_NUMBER) } else { Ok(()) };
        let cordoned = self.cluster.kubectl().run(["cordon", OTHER_NODE]);
        if !thread::panicking() {
            returned.unwrap();
            cordoned.unwrap();
            wait_for_agent(self.cluster);
        }
    }
}

/// Which pods are admitted in Velero's namespace from now on.
pub fn enforce(cluster: &Cluster, standard: &str) {
    let label = format!("pod-security.kubernetes.io/enforce={standard}");
    cluster.kubectl().run(["label", "namespace", "velero", "--overwrite", &label]).unwrap();
}

/// Velero's namespace admits pods with folders of their node as long as this lives.
pub struct FoldersAllowed(&'static Cluster);

impl FoldersAllowed {
    pub fn new(stage: &Alone) -> Self {
        enforce(stage.cluster, "privileged");
        Self(stage.cluster)
    }
}

impl Drop for FoldersAllowed {
    fn drop(&mut self) {
        enforce(self.0, "baseline");
    }
}

/// Installs our node-agent.
pub fn install(cluster: &Cluster, words: &[&str]) {
    let mut install = cluster.kubectl().in_network(LIFEBOAT).unwrap();
    let output =
        install.args(["install", "--node-agent-only", "--image", IMAGE]).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until the node-agent runs on all nodes as its DaemonSet says now.
pub fn wait_for_agent(cluster: &Cluster) {
    wait_for_rollout(cluster, "daemonset/node-agent");
    // What the DaemonSet says of its pods may be older than the end of some.
    let deadline = Instant::now() + PATIENCE;
    let at_work = || {
        let pods = cluster.kubectl().get(["-n", "velero", "pods", "-l", "name=node-agent"]).unwrap();
        let is_at_work =
            |pod: &&Value| condition(pod, "Ready") && pod["metadata"]["deletionTimestamp"].is_null();
        pods["items"].as_array().unwrap().iter().filter(is_at_work).count()
    };
    while at_work() != cluster.spec().node_ids().count() {
        assert!(Instant::now() < deadline, "the node-agent is at work on {} nodes only", at_work());
        thread::sleep(Duration::from_millis(250));
    }
}

/// The node-agents are told something else as long as this lives.
pub struct Told(&'static Cluster, Value);

impl Told {
    /// How long movers try again while their store does not answer.
    pub fn store_timeout(stage: &Alone, limit: &str) -> Self {
        let cluster = stage.cluster;
        let agent = cluster.kubectl().get(["-n", "velero", "daemonset", "node-agent"]).unwrap();
        let before = agent["spec"]["template"]["spec"]["containers"][0]["env"].clone();
        let mut after = before.clone();
        for variable in after.as_array_mut().unwrap() {
            if variable["name"] == "LIFEBOAT_STORE_TIMEOUT" {
                variable["value"] = json!(limit);
            }
        }
        assert_ne!(before, after);
        set_variables(cluster, &after).unwrap();
        wait_for_agent(cluster);
        Self(cluster, before)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let changed = set_variables(self.0, &self.1);
        if !thread::panicking() {
            changed.unwrap();
            wait_for_agent(self.0);
        }
    }
}

fn set_variables(cluster: &Cluster, variables: &Value) -> lifeboat_testbed::Result<Vec<u8>> {
    let change =
        json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/env", "value": variables }]);
    let patch =
        ["-n", "velero", "patch", "daemonset", "node-agent", "--type=json", "-p", &change.to_string()];
    cluster.kubectl().run(patch)
}

/// Waits until a workload in Velero's namespace runs as it says now.
pub fn wait_for_rollout(cluster: &Cluster, workload: &str) {
    let status = ["-n", "velero", "rollout", "status", workload, "--timeout=290s"];
    cluster.kubectl().run_within(PATIENCE, status).unwrap();
}

/// What the node-agents have logged.
pub fn agent_log(cluster: &Cluster) -> String {
    cluster.kubectl().text(["-n", "velero", "logs", "-l", "name=node-agent", "--tail=-1"]).unwrap()
}

/// What each of the node-agents says of itself in figures.
pub fn agent_metrics(cluster: &Cluster) -> Vec<String> {
    let agents = cluster.kubectl().get(["-n", "velero", "pods", "-l", "name=node-agent"]).unwrap();
    let page = |agent: &Value| {
        let pod = agent["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/velero/pods/{pod}:8085/proxy/metrics");
        cluster.kubectl().text(["get", "--raw", &path]).unwrap()
    };
    agents["items"].as_array().unwrap().iter().map(page).collect()
}

/// The value of a metric with its labels on a page.
pub fn metric(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
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

/// Who has written to an operation, as the API server has noted it.
pub fn writers(cluster: &Cluster, kind: &str, name: &str) -> BTreeSet<String> {
    let operation = cluster.kubectl().get(["-n", "velero", kind, name, "--show-managed-fields"]).unwrap();
    let fields = operation["metadata"]["managedFields"].as_array().unwrap();
    fields.iter().map(|one| one["manager"].as_str().unwrap().to_owned()).collect()
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

/// Tests beside each other do not wait for each other's movers.
fn usual_settings() -> Value {
    json!({ "loadConcurrency": { "globalConfig": 4 } })
}

fn apply_settings(cluster: &Cluster, all: &Wishes<Value>) {
    let mut settings = usual_settings();
    for wanted in all.iter() {
        merge(&mut settings, wanted);
    }
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "node-agent-config", "namespace": "velero" },
        "data": { "settings.json": settings.to_string() },
    });
    cluster.kubectl().apply(&map.to_string()).unwrap();
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

/// What tests beside each other want of something that there is only one of.
pub struct Wishes<T>(Vec<(u64, T)>, u64);

impl<T> Wishes<T> {
    pub const fn none() -> Self {
        Self(Vec::new(), 0)
    }

    /// The number by which it can be taken back.
    pub fn add(&mut self, wish: T) -> u64 {
        self.1 += 1;
        self.0.push((self.1, wish));
        self.1
    }

    pub fn take_back(&mut self, number: u64) {
        self.0.retain(|(one, _)| *one != number);
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, wish)| wish)
    }
}

static SETTINGS: Mutex<Wishes<Value>> = Mutex::new(Wishes::none());

/// Settings of the node-agent that are in force as long as this lives, beside those of other tests.
pub struct Configured(&'static Cluster, u64);

impl Configured {
    pub fn new(cluster: &'static Cluster, settings: &Value) -> Self {
        let mut all = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.add(settings.clone());
        apply_settings(cluster, &all);
        Self(cluster, number)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let mut all = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
        all.take_back(self.1);
        apply_settings(self.0, &all);
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
    cancel_all(cluster, &[format!("{kind}/{name}")]);
}

/// Stops operations, each named as `kind/name`, all in the same moment.
pub fn cancel_all(cluster: &Cluster, operations: &[String]) {
    patch_all(cluster, operations, &json!({ "spec": { "cancel": true } }));
}

/// Changes operations, each named as `kind/name`, in the same way.
pub fn patch_all(cluster: &Cluster, operations: &[String], change: &Value) {
    let change = change.to_string();
    let words = ["-n", "velero", "patch", "--type=merge", "-p", &change];
    let operations = operations.iter().map(String::as_str);
    cluster.kubectl().run(words.into_iter().chain(operations)).unwrap();
}
