//! Everybody beside the agents: scheduler, kubelets, movers, and the controllers of volumes and snapshots.
//!
//! Each rule looks at one object and does what its owner would do, so that it does not matter how often or in which order
//! objects are looked at.

use super::api::{Api, Change, Place, Selector, now};
use super::objects::{
    CLAIMS, CONTENTS, EVENTS, NODES, PODS, SHOP, SNAPSHOTS, VELERO, VOLUMES, operations, volume,
};
use lifeboat_datapath::wire::{BackupResult, CANCELED, Ending, Reason, RestoreResult, TOLD};
use lifeboat_exposer::{Direction, Kind, ledger};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// On a volume: the operation whose mover has filled it.
pub const FILLED_BY: &str = "model/filled-by";
/// On a pod: its log.
pub const LOG: &str = "model/log";
/// How many bytes every volume has.
pub const BYTES: i64 = 4096;
const WORLD: &str = "world";
/// How long a mover takes to end that is told to.
const TIME_TO_END: Duration = Duration::from_millis(1500);

/// How the world is.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Operations whose pods kubelets do not start.
    pub stalled: HashSet<String>,
    /// Operations whose movers do not come to an end.
    pub busy: HashSet<String>,
    /// How long movers take.
    pub work: Duration,
    /// Movers stop when they are told to.
    pub movers_obey: bool,
    /// Kubelets tell when containers have ended.
    pub ends_are_told: bool,
    /// The object store answers.
    pub store_answers: bool,
    /// The volume controller gives volumes to the claims of applications.
    pub volumes_are_bound: bool,
    /// Nodes that nobody hears from.
    pub lost: HashSet<String>,
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            stalled: HashSet::new(),
            busy: HashSet::new(),
            work: Duration::ZERO,
            movers_obey: true,
            ends_are_told: true,
            store_answers: true,
            volumes_are_bound: true,
            lost: HashSet::new(),
        }
    }
}

/// The world around the agents of one cluster.
pub struct World {
    pub api: Arc<Api>,
    weather: Mutex<Weather>,
    turned: Notify,
    /// How many pods the scheduler has given to a node.
    given: Mutex<HashMap<String, u64>>,
    /// Pods whose movers have begun.
    moving: Mutex<HashSet<String>>,
    /// Pods that have been told to end.
    ending: Mutex<HashSet<String>>,
    /// Pods whose movers have saved how far they were before they ended.
    saved: Mutex<HashSet<String>>,
}

impl World {
    pub fn new(api: Arc<Api>) -> Arc<Self> {
        let world = Arc::new(Self {
            api,
            weather: Mutex::default(),
            turned: Notify::new(),
            given: Mutex::default(),
            moving: Mutex::default(),
            ending: Mutex::default(),
            saved: Mutex::default(),
        });
        tokio::spawn(Arc::clone(&world).run());
        world
    }

    pub fn weather(&self) -> Weather {
        self.weather.lock().clone()
    }

    /// Changes how the world is, and lets it act on it.
    pub fn turn(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather.lock());
        self.turned.notify_one();
    }

    /// A node that nobody hears from any more.
    pub fn lose(&self, node: &str) {
        self.turn(|weather| weather.lost.extend([node.to_owned()]));
        let unknown = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
        self.patch(&Place::new(NODES, "", node), &unknown);
        // Who is on it is to go elsewhere.
        for pod in self.api.list(PODS, &Selector::default()).0 {
            if pod["metadata"]["namespace"] == SHOP && pod["spec"]["nodeName"] == node {
                let place = Place::new(PODS, SHOP, text(&pod["metadata"]["name"]));
                let _ = self.api.delete(WORLD, &place, &json!({ "gracePeriodSeconds": 30 }));
            }
        }
    }

    async fn run(self: Arc<Self>) {
        let mut changes = self.api.observe();
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Some(change) => self.react(&change),
                    None => return,
                },
                () = self.turned.notified() => {
                    for pod in self.hosting_pods() {
                        self.host(text(&pod["metadata"]["name"]));
                    }
                }
            }
        }
    }

    /// All hosting pods.
    pub fn hosting_pods(&self) -> Vec<Arc<Value>> {
        let labels = vec![(ledger::HOSTS.to_owned(), None)];
        self.api.list(PODS, &Selector { labels, ..Selector::default() }).0
    }

    fn react(self: &Arc<Self>, change: &Change) {
        let Some(object) = change.after.as_ref().or(change.before.as_ref()) else { return };
        let gone = change.after.is_none();
        // News may be old: what counts is how the object is now.
        let now =
            self.api.get(&change.place).filter(|now| now["metadata"]["uid"] == object["metadata"]["uid"]);
        match (change.place.kind.as_str(), now) {
            (PODS, _) if !gone => self.host(&change.place.name),
            (CLAIMS, Some(claim)) => {
                self.claim(&claim, false);
                self.host(&change.place.name);
            }
            (CLAIMS, None) if gone => self.claim(object, true),
            (VOLUMES, Some(volume)) => self.volume(&volume),
            (CONTENTS, Some(content)) => self.content(&content),
            (SNAPSHOTS, _) if gone => self.forget_snapshot(object),
            (kind, _) if kind.starts_with("velero.io/") => self.host(&change.place.name),
            _ => {}
        }
    }

    fn patch(&self, place: &Place, patch: &Value) {
        // That it is gone is as good.
        let _ = self.api.patch(WORLD, place, patch);
    }

    /// The pod that hosts the operation of this name.
    pub fn hosting_pod(&self, name: &str) -> Option<Arc<Value>> {
        self.api.get(&Place::new(PODS, VELERO, name))
    }

    /// Scheduler and kubelet: gives a hosting pod a node, starts it, and lets its mover go on.
    fn host(self: &Arc<Self>, name: &str) {
        let Some(pod) = &self.hosting_pod(name) else { return };
        let Some((kind, operation)) = self.operation(pod) else { return };
        let place = Place::new(PODS, VELERO, name);
        let weather = self.weather();
        let Some(node) = pod["spec"]["nodeName"].as_str() else {
            if let Some(node) = self.schedule(pod, &weather) {
                self.patch(&place, &json!({ "spec": { "nodeName": node } }));
            }
            return;
        };
        if weather.lost.contains(node) {
            return;
        }
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            self.end_in_its_time(pod);
            return;
        }
        match pod["status"]["phase"].as_str() {
            None if !weather.stalled.contains(name) && self.has_volume(name) => {
                let running = json!({ "running": { "startedAt": now() } });
                self.patch(&place, &status(pod, "Running", &running));
            }
            Some("Running") => self.drive(kind, &operation, pod, &weather),
            _ => {}
        }
    }

    /// Whether the claim of a hosting pod, if it has one, has its volume: no pod runs before.
    fn has_volume(&self, name: &str) -> bool {
        let claim = self.api.get(&Place::new(CLAIMS, VELERO, name));
        claim.is_none_or(|claim| claim["spec"]["volumeName"].is_string())
    }

    fn schedule(&self, pod: &Value, weather: &Weather) -> Option<String> {
        if let Some(wanted) = pod["spec"]["nodeSelector"]["kubernetes.io/hostname"].as_str() {
            return Some(wanted.to_owned());
        }
        let nodes = self.api.list(NODES, &Selector::default()).0;
        let well = nodes.iter().map(|node| text(&node["metadata"]["name"]));
        let mut given = self.given.lock();
        let least = well
            .filter(|node| !weather.lost.contains(*node))
            .min_by_key(|node| given.get(*node).copied().unwrap_or(0))?;
        *given.entry(least.to_owned()).or_default() += 1;
        Some(least.to_owned())
    }

    /// The operation that a pod hosts.
    fn operation(&self, pod: &Value) -> Option<(Kind, Arc<Value>)> {
        let owner = pod["metadata"]["annotations"][ledger::OWNER].as_str()?;
        let mut parts = owner.split('/');
        let kind = parts.next()?;
        let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
        let operation = self.api.get(&Place::new(&operations(kind), parts.next()?, parts.next()?))?;
        Some((kind, operation)).filter(|(_, it)| it["metadata"]["uid"].as_str() == parts.next())
    }

    /// The mover: begins when it is told to, and ends as the weather wants it.
    fn drive(self: &Arc<Self>, kind: Kind, operation: &Value, pod: &Value, weather: &Weather) {
        let name = text(&operation["metadata"]["name"]);
        let phase = operation["status"]["phase"].as_str();
        if kind == Kind::PodVolumeRestore
            && matches!(phase, Some("Failed" | "Canceled"))
            && weather.movers_obey
        {
            self.end(pod, 1, &format!("data path for {name} stopped; {TOLD}"));
            return;
        }
        if !matches!(phase, Some("InProgress" | "Canceling")) {
            return;
        }
        if operation["spec"]["cancel"] == true && weather.movers_obey {
            self.end(pod, 1, &format!("data path for {name} stopped: {CANCELED}"));
        } else if !weather.store_answers {
            self.end(pod, 1, "cannot open the repository: error sending request");
        } else if !weather.busy.contains(name)
            && self.moving.lock().insert(text(&pod["metadata"]["uid"]).to_owned())
        {
            let time = weather.work;
            let (world, pod, uid) =
                (Arc::clone(self), pod.clone(), text(&operation["metadata"]["uid"]).to_owned());
            tokio::spawn(async move {
                tokio::time::sleep(time).await;
                world.complete(kind, &pod, &uid);
            });
        }
    }

    /// The kubelet tells the mover of a deleted pod to end, which takes its time, and then the pod goes.
    fn end_in_its_time(self: &Arc<Self>, pod: &Value) {
        let uid = text(&pod["metadata"]["uid"]).to_owned();
        if !self.ending.lock().insert(uid.clone()) {
            return;
        }
        let (world, pod) = (Arc::clone(self), pod.clone());
        tokio::spawn(async move {
            tokio::time::sleep(TIME_TO_END).await;
            let place = Place::new(PODS, VELERO, text(&pod["metadata"]["name"]));
            let there = world.api.get(&place).filter(|pod| pod["metadata"]["uid"] == uid.as_str());
            if there.is_some_and(|pod| pod["status"]["phase"] == "Running") {
                let ending = Ending::Interrupted("data path stopped".to_owned());
                world.end(&pod, 1, &ending.termination_message());
                world.saved.lock().insert(uid.clone());
            }
            let this = json!({ "preconditions": { "uid": uid } });
            let _ = world.api.delete(WORLD, &place, &this);
        });
    }

    /// Whether the mover of a pod had the time to save how far it had come.
    pub fn has_saved(&self, pod: &str) -> bool {
        self.saved.lock().contains(pod)
    }

    fn complete(&self, kind: Kind, pod: &Value, operation: &str) {
        let ending = match kind.direction() {
            Direction::Backup => Ending::BackedUp(BackupResult {
                snapshot_id: snapshot_of(operation),
                total_bytes: BYTES,
                ..BackupResult::default()
            }),
            Direction::Restore => {
                Ending::Restored(RestoreResult { total_bytes: BYTES, ..RestoreResult::default() })
            }
        };
        let claim = self.api.get(&Place::new(CLAIMS, VELERO, text(&pod["metadata"]["name"])));
        if let (Kind::DataDownload, Some(claim)) = (kind, claim) {
            let filled = json!({ "metadata": { "annotations": { FILLED_BY: operation } } });
            self.patch(&Place::new(VOLUMES, "", text(&claim["spec"]["volumeName"])), &filled);
        }
        if self.weather().ends_are_told {
            self.end(pod, 0, &ending.termination_message());
        } else {
            self.say_all_moved(kind, pod, operation, &ending);
        }
    }

    /// What a mover does before it ends: the log has the result, and an Event says so.
    fn say_all_moved(&self, kind: Kind, pod: &Value, operation: &str, ending: &Ending) {
        let name = text(&pod["metadata"]["name"]);
        let log = json!({ "metadata": { "annotations": { LOG: ending.log_line() } } });
        self.patch(&Place::new(PODS, VELERO, name), &log);
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "generateName": format!("{name}."), "namespace": VELERO },
            "involvedObject": { "kind": kind.name(), "namespace": VELERO, "name": name, "uid": operation },
            "reason": Reason::Completed.as_str(), "message": ending.termination_message(),
        });
        // There is none of this name.
        let _ = self.api.create(WORLD, EVENTS, event);
    }

    fn end(&self, pod: &Value, exit_code: u8, message: &str) {
        let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
        let terminated = json!({ "terminated": { "exitCode": exit_code, "message": message } });
        self.patch_pod(pod, phase, &terminated);
    }

    /// The kernel ends a mover that uses too much memory.
    pub fn run_out_of_memory(&self, pod: &Value) {
        let killed = json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } });
        self.patch_pod(pod, "Failed", &killed);
    }

    fn patch_pod(&self, pod: &Value, phase: &str, state: &Value) {
        let mut patch = status(pod, phase, state);
        // It must not be another pod of this name by now.
        patch["metadata"]["uid"] = pod["metadata"]["uid"].clone();
        self.patch(&Place::new(PODS, VELERO, text(&pod["metadata"]["name"])), &patch);
    }

    /// The provisioner: a hosting claim gets a volume, and a claim that goes lets go of its own.
    fn claim(&self, claim: &Value, gone: bool) {
        let hosts = claim["metadata"]["labels"].get(ledger::HOSTS).is_some();
        match claim["spec"]["volumeName"].as_str() {
            Some(name) => {
                let volume = self.api.get(&Place::new(VOLUMES, "", name));
                volume.iter().for_each(|volume| self.volume(volume));
            }
            None if hosts && !gone => {
                let name = format!("pv-{}", text(&claim["metadata"]["uid"]));
                // That there is one already is as good.
                let _ = self.api.create(WORLD, VOLUMES, volume(&name, claim));
                let bound = json!({ "spec": { "volumeName": name }, "status": { "phase": "Bound" } });
                self.patch(&Place::new(CLAIMS, VELERO, text(&claim["metadata"]["name"])), &bound);
            }
            None => {}
        }
    }

    /// The volume controller: binds what says of each other that they belong together, and sees to what was let go of.
    fn volume(&self, volume: &Value) {
        let name = text(&volume["metadata"]["name"]);
        let reference = &volume["spec"]["claimRef"];
        let claim = Place::new(CLAIMS, text(&reference["namespace"]), text(&reference["name"]));
        let owner = self.api.get(&claim).filter(|claim| claim["metadata"]["uid"] == reference["uid"]);
        let place = Place::new(VOLUMES, "", name);
        if owner.is_some() && claim.namespace == SHOP && !self.weather().volumes_are_bound {
            return;
        }
        let phase = match &owner {
            Some(owner) if owner["spec"]["volumeName"] == name => "Bound",
            Some(_) => return,
            None if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" => {
                // If it has changed meanwhile, there will be news of it.
                let metadata = &volume["metadata"];
                let as_seen =
                    json!({ "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"] });
                let _ = self.api.delete(WORLD, &place, &json!({ "preconditions": as_seen }));
                return;
            }
            None => "Released",
        };
        self.patch(&place, &json!({ "status": { "phase": phase } }));
        if owner.is_some() {
            self.patch(&claim, &json!({ "status": { "phase": "Bound" } }));
        }
    }

    /// The snapshot controller: a content of a snapshot that the storage has makes that snapshot ready.
    fn content(&self, content: &Value) {
        let Some(handle) = content["spec"]["source"]["snapshotHandle"].as_str() else { return };
        let name = text(&content["metadata"]["name"]);
        self.patch(
            &Place::new(CONTENTS, "", name),
            &json!({ "status": { "snapshotHandle": handle, "readyToUse": true } }),
        );
        let reference = &content["spec"]["volumeSnapshotRef"];
        let ready =
            json!({ "boundVolumeSnapshotContentName": name, "readyToUse": true, "restoreSize": "1Gi" });
        self.patch(
            &Place::new(SNAPSHOTS, text(&reference["namespace"]), text(&reference["name"])),
            &json!({ "status": ready }),
        );
    }

    /// With a snapshot goes its content, if that is to go.
    fn forget_snapshot(&self, snapshot: &Value) {
        let content = Place::new(CONTENTS, "", text(&snapshot["status"]["boundVolumeSnapshotContentName"]));
        let there = self.api.get(&content);
        if there.is_some_and(|content| content["spec"]["deletionPolicy"] == "Delete") {
            let _ = self.api.delete(WORLD, &content, &Value::Null);
        }
    }

    /// What is in the cluster that was made for operations, or is of no use without them.
    pub fn leftovers(&self) -> Vec<String> {
        let labels = vec![(ledger::HOSTS.to_owned(), None)];
        let hosting = Selector { labels, ..Selector::default() };
        let all = Selector::default();
        let kinds =
            [(PODS, &hosting), (CLAIMS, &hosting), (VOLUMES, &hosting), (SNAPSHOTS, &all), (CONTENTS, &all)];
        let found = kinds.into_iter().flat_map(|(kind, which)| {
            let objects = self.api.list(kind, which).0;
            objects.into_iter().map(move |it| format!("{kind} {}", text(&it["metadata"]["name"])))
        });
        // A volume without a claim is one that nobody looks after.
        let lost = self.api.list(VOLUMES, &all).0.into_iter().filter(|it| it["status"]["phase"] != "Bound");
        found.chain(lost.map(|it| format!("volume {} is lost", text(&it["metadata"]["name"])))).collect()
    }

    /// Whether all data of an operation is where it has to be.
    pub fn is_exact(&self, kind: Kind, operation: &Value) -> bool {
        let uid = text(&operation["metadata"]["uid"]);
        let progress = &operation["status"]["progress"];
        let moved = progress["totalBytes"] == BYTES && progress["bytesDone"] == BYTES;
        moved
            && match kind {
                Kind::DataUpload | Kind::PodVolumeBackup => {
                    operation["status"]["snapshotID"] == snapshot_of(uid)
                }
                Kind::DataDownload => {
                    let claim = self.api.get(&Place::new(CLAIMS, SHOP, text(&operation["metadata"]["name"])));
                    let name = claim.map(|claim| text(&claim["spec"]["volumeName"]).to_owned());
                    let volume = name.and_then(|name| self.api.get(&Place::new(VOLUMES, "", &name)));
                    volume.is_some_and(|volume| {
                        volume["metadata"]["annotations"][FILLED_BY] == uid
                            && volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
                    })
                }
                Kind::PodVolumeRestore => true,
            }
    }
}

/// The snapshot that the mover of an operation makes.
fn snapshot_of(operation: &str) -> String {
    format!("snapshot-of-{operation}")
}

/// The status of a hosting pod, whose container is called after the operation.
fn status(pod: &Value, phase: &str, state: &Value) -> Value {
    let container = json!({
        "name": pod["spec"]["containers"][0]["name"], "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": state,
    });
    json!({ "status": { "phase": phase, "containerStatuses": [container] } })
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
