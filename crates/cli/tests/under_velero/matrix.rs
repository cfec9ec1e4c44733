//! The matrix of kinds, phases and faults on the real cluster; `node-agent/tests/matrix.rs` plays the same cells on a model.
//!
//! A round has all its operations stand in their phases at the same time, on one node. Then it strikes, lets everything go on
//! and looks at every end. The store lets no data through, so that data is on its way; the slots are taken by those; nothing
//! is placed on the node any more and the folders of pods are not where they were, so that others wait for their volumes; and
//! the last ones wait for those to be prepared.

use crate::by_hand::{
    download, given_up, made, message, owner_reference, phase, pod_backup, pod_restore, run, upload, waiting,
    waiting_pod,
};
use crate::cells::{CANCEL_LIMIT, Cell, Fault, cells, cover};
use crate::common::{claim, list, pod};
use crate::stage::{
    Agent, Configured, FoldersAllowed, OTHER_NODE, OTHER_NODE_NUMBER, OtherNode, PATIENCE, Told, agent_log,
    alone, assert_nothing_left, cancel_all, has_ended, patch_all, wait_for_agent,
};
use crate::storage::{FILL, content};
use crate::store::{Gate, Location, connected_kopia, content_of_snapshot};
use crate::strikes::{Mover, end_agent_gracefully, kill_agent};
use jiff::Timestamp;
use lifeboat_api::Phase;
use lifeboat_exposer::{Direction, Kind};
use lifeboat_testbed::testing::{TestNamespace, wait_for_object};
use lifeboat_testbed::{Cluster, TEST_CLASS_ANYWHERE};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// What a mover may use here; it is taken from some.
const MEMORY_LIMIT: &str = "128Mi";
/// Pods with volumes: two with a claim, whose data goes into the repository, or is there already; and one with its own.
const NEW: &str = "new";
const OLD: &str = "old";
const LIVE: &str = "live";

/// An operation that stands in the phase of its cell.
struct Standing {
    cell: Cell,
    name: String,
    /// What it is made from.
    wanted: Value,
    /// Its mover, if that was stopped.
    frozen: Option<Mover>,
    /// When it was cancelled, if that is its fault.
    cancelled: Option<Timestamp>,
}

impl Standing {
    /// Where it is, for who asks the cluster for it.
    fn place(&self) -> String {
        format!("{}/{}", self.cell.kind.name().to_lowercase(), self.name)
    }

    fn is(&self, object: &Value) -> bool {
        object["kind"] == self.cell.kind.name() && object["metadata"]["name"] == *self.name
    }
}

/// All operations of a round and what they work on.
struct Round {
    cluster: &'static Cluster,
    /// The node that everything is on.
    other: OtherNode,
    title: &'static str,
    /// Whether cancels have to end in time, whatever else the machine does.
    timed: bool,
    space: TestNamespace<'static>,
    gate: Gate,
    operations: Vec<Standing>,
    /// What is in the volumes.
    data: BTreeMap<&'static str, String>,
    /// Folders of pods that are not where they were.
    hidden: Vec<PathBuf>,
    /// Keeps volumes on the node, as long as there is a choice.
    placed: Option<Configured>,
    /// Has the last operations wait for others.
    queue: Option<Configured>,
}

fn slots(count: usize) -> Value {
    json!({
        "loadConcurrency": { "globalConfig": count },
        "podResources": { "memoryLimit": MEMORY_LIMIT },
        // What is only read, or may be written to from anywhere, can be had on another node when this one is lost.
        "backupPVC": { TEST_CLASS_ANYWHERE: { "readOnly": true } },
    })
}

/// Whether an operation holds a slot before it is struck.
fn takes_slot(cell: &Cell) -> bool {
    matches!(cell.phase, Phase::InProgress | Phase::Canceling)
}

/// Plays cells at the same time: first faults that leave all others where they are, and while some are being cancelled the last.
/// A round of nothing but cancels is held to the time that they may take.
fn play(title: &'static str, cells: impl IntoIterator<Item = Cell>, first: &[Fault], last: &[Fault]) {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let _allowed = FoldersAllowed::new(&stage);
    let other = OtherNode::new(&stage);
    // Longer than it takes to set the operations, and shorter than their ends are waited for.
    let _hurried = last.contains(&Fault::StoreAway).then(|| Told::store_timeout(&stage, "8m0s"));
    let gate = Gate::default();
    let _location = Location::new(cluster, title, gate.plan());
    let name = |cell: &Cell| format!("{title}-{}-{}", cell.kind.name(), cell.phase).to_lowercase();
    let standing =
        |cell: Cell| Standing { name: name(&cell), cell, wanted: Value::Null, frozen: None, cancelled: None };
    let operations: Vec<Standing> = cells.into_iter().map(standing).collect();
    let taken = operations.iter().filter(|it| takes_slot(&it.cell)).count();
    let _settings = Configured::new(cluster, &slots(taken));
    let there = json!({ "loadAffinity": [{ "nodeSelector": { "matchLabels": { "kubernetes.io/hostname": OTHER_NODE } } }] });
    let mut round = Round {
        cluster,
        other,
        title,
        timed: *last == [Fault::Cancel],
        space: TestNamespace::new(cluster, title).unwrap(),
        gate,
        operations,
        data: BTreeMap::new(),
        hidden: Vec::new(),
        placed: Some(Configured::new(cluster, &there)),
        queue: None,
    };
    round.fill();
    round.set();
    for fault in first {
        let stood = round.standing();
        round.strike(*fault);
        assert_eq!(round.standing(), stood, "{fault:?}");
    }
    round.begin_cancelling();
    for fault in last {
        round.strike(*fault);
    }
    round.gate.open();
    round.release();
    let _settings = Configured::new(cluster, &slots(100));
    if last.contains(&Fault::NodeLost) {
        round.wait("the end", &round.operations.iter().collect::<Vec<_>>(), has_ended);
        // It lets go of what it had when it is back.
        round.other.bring_back();
        wait_for_agent(cluster);
    }
    round.check();
    assert_nothing_left(cluster, round.space.name(), title);
}

impl Round {
    /// Makes volumes with data, a snapshot in the repository, what restores go into, and whatever else operations need.
    fn fill(&mut self) {
        let sources = [NEW, OLD, LIVE];
        let mut objects: Vec<Value> =
            [NEW, OLD].map(|name| claim(name, TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None)).into();
        objects.extend(sources.map(|name| {
            let mut writer = pod(name, FILL, name, None);
            writer["spec"]["nodeName"] = json!(OTHER_NODE);
            if name == LIVE {
                writer["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
            }
            writer
        }));
        // What the restored pods wait for is a part of something.
        let owner =
            self.cluster.kubectl().get(["-n", "velero", "backupstoragelocation", self.title]).unwrap();
        let target = |it: &Standing| match it.cell.kind {
            Kind::DataDownload => {
                let mut target = waiting(claim(&it.name, TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None));
                target["spec"]["accessModes"] = json!(["ReadWriteMany"]);
                Some(target)
            }
            Kind::PodVolumeRestore => {
                let mut target = waiting_pod(&it.name, &owner);
                target["spec"]["nodeName"] = json!(OTHER_NODE);
                Some(target)
            }
            _ => None,
        };
        objects.extend(self.operations.iter().filter_map(target));
        self.space.apply(&list(&objects)).unwrap();
        for name in sources {
            self.space.wait_for_pod(name).unwrap();
            self.data.insert(name, content(&self.space, name));
        }
        self.gate.open();
        let stored = run(self.cluster, &self.here(upload(&self.space, &format!("{}-old", self.title), OLD)));
        assert_eq!(phase(&stored), "Completed", "{stored:#}");
        self.gate.close();
        let snapshot = stored["status"]["snapshotID"].as_str().unwrap();
        let wanted: Vec<Value> =
            self.operations.iter().map(|it| self.operation(it, &owner, snapshot)).collect();
        self.operations.iter_mut().zip(wanted).for_each(|(it, wanted)| it.wanted = wanted);
    }

    /// An operation, in the location of this round.
    fn here(&self, mut operation: Value) -> Value {
        operation["spec"]["backupStorageLocation"] = json!(self.title);
        operation
    }

    fn operation(&self, it: &Standing, owner: &Value, snapshot: &str) -> Value {
        let name = &it.name;
        self.here(match it.cell.kind {
            Kind::DataUpload => upload(&self.space, name, NEW),
            Kind::DataDownload => download(&self.space, name, name, snapshot),
            Kind::PodVolumeBackup => {
                let mut wanted = pod_backup(name, &made(&self.space, LIVE));
                wanted["spec"]["node"] = json!(OTHER_NODE);
                wanted
            }
            Kind::PodVolumeRestore => {
                let mut wanted = pod_restore(name, &made(&self.space, name), snapshot);
                wanted["metadata"]["ownerReferences"] = json!([owner_reference(owner)]);
                wanted
            }
        })
    }

    /// Brings every operation into its phase, and those that are to be cancelled into the one before.
    fn set(&mut self) {
        self.begin("moving data", takes_slot, |it| phase(it) == "InProgress");
        self.gate.wait_for_somebody();
        self.begin("waiting for a slot", |cell| cell.phase == Phase::Prepared, |it| phase(it) == "Prepared");
        self.cluster.kubectl().run(["cordon", OTHER_NODE]).unwrap();
        self.hide();
        self.begin(
            "waiting for its volume",
            |cell| cell.phase == Phase::Accepted,
            |it| {
                let of_pod = it["kind"].as_str().unwrap().starts_with("PodVolume");
                let trouble = if of_pod { "to run" } else { "were unschedulable" };
                phase(it) == "Accepted" && message(it).contains(trouble)
            },
        );
        self.take_queue();
        self.begin(
            "waiting for others",
            |cell| cell.phase == Phase::New,
            |it| phase(it).is_empty() && message(it).starts_with("waits for its turn to be prepared"),
        );
    }

    /// Takes the folders away that pods have their own volumes in; who uses one already has it.
    fn hide(&mut self) {
        let node = self.cluster.node(OTHER_NODE_NUMBER).unwrap().pid();
        let held = self.operations.iter().filter(|it| it.cell.phase == Phase::Accepted);
        let pods = held.filter_map(|it| match it.cell.kind {
            Kind::PodVolumeBackup => Some(LIVE),
            Kind::PodVolumeRestore => Some(it.name.as_str()),
            _ => None,
        });
        for pod in pods {
            let uid = self.space.get("pod", pod).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
            let pods = format!("/proc/{node}/root/var/lib/kubelet/pods");
            let folder = PathBuf::from(format!("{pods}/{uid}/volumes/kubernetes.io~empty-dir/data"));
            fs::rename(&folder, folder.with_extension("hidden")).unwrap();
            self.hidden.push(folder);
        }
    }

    fn begin(&self, what: &str, which: impl Fn(&Cell) -> bool, holds: impl Fn(&Value) -> bool) {
        let chosen: Vec<&Standing> = self.operations.iter().filter(|it| which(&it.cell)).collect();
        let objects: Vec<Value> = chosen.iter().map(|it| it.wanted.clone()).collect();
        if !objects.is_empty() {
            self.cluster.kubectl().apply(&list(&objects)).unwrap();
            self.wait(what, &chosen, holds);
        }
    }

    /// No more operations are taken, and the agents know that.
    fn take_queue(&mut self) {
        let known = || agent_log(self.cluster).matches("settings have changed").count();
        let before = known();
        let full = json!({ "loadConcurrency": { "prepareQueueLength": 1 } });
        self.queue = Some(Configured::new(self.cluster, &full));
        let deadline = Instant::now() + PATIENCE;
        while known() < before + self.cluster.spec().node_ids().count() {
            assert!(Instant::now() < deadline, "the agents do not notice the setting");
            thread::sleep(Duration::from_millis(250));
        }
    }

    /// Operations are being cancelled, but their movers do not hear of it. The agents wait for them, for ten seconds usually; here
    /// it is written that they began to wait later than now, so that there is time to strike.
    fn begin_cancelling(&mut self) {
        let cluster = self.cluster;
        let is_chosen = |it: &&mut Standing| it.cell.phase == Phase::Canceling;
        for it in self.operations.iter_mut().filter(is_chosen) {
            let mover = Mover::of(cluster, &it.name);
            mover.freeze();
            it.frozen = Some(mover);
        }
        let chosen: Vec<&Standing> =
            self.operations.iter().filter(|it| it.cell.phase == Phase::Canceling).collect();
        let later = Timestamp::now() + PATIENCE;
        let canceling = json!({
            "metadata": { "annotations": { "lifeboat.io/canceling-since": later.to_string() } },
            "spec": { "cancel": true }, "status": { "phase": "Canceling" },
        });
        patch_all(cluster, &chosen.iter().map(|it| it.place()).collect::<Vec<_>>(), &canceling);
        self.wait("being cancelled", &chosen, |it| phase(it) == "Canceling");
    }

    /// All operations of this round as they are now.
    fn objects(&self) -> Vec<Value> {
        let kinds = "datauploads,datadownloads,podvolumebackups,podvolumerestores";
        let list = self.cluster.kubectl().get(["-n", "velero", kinds]).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    fn wait(&self, what: &str, chosen: &[&Standing], holds: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let objects = self.objects();
            let seen = |it: &&Standing| objects.iter().find(|object| it.is(object));
            let open: Vec<&Standing> =
                chosen.iter().copied().filter(|it| !seen(it).is_some_and(&holds)).collect();
            if open.is_empty() {
                return;
            }
            let shown =
                || open.iter().map(|it| format!("{}: {:#}\n", it.cell, seen(it).unwrap_or(&Value::Null)));
            let over = open.iter().any(|it| seen(it).is_some_and(has_ended));
            assert!(
                Instant::now() < deadline && !over,
                "{what} does not come about:\n{}",
                shown().collect::<String>()
            );
            thread::sleep(Duration::from_millis(250));
        }
    }

    /// The phases of operations, and the pods of those that have one: who goes on does not begin anew.
    fn standing(&self) -> Vec<(String, String, Value)> {
        let pods = self.cluster.kubectl().get(["-n", "velero", "pods"]).unwrap();
        let objects = self.objects();
        let of = |it: &Standing| {
            let object = objects.iter().find(|object| it.is(object)).unwrap();
            let pod =
                pods["items"].as_array().unwrap().iter().find(|pod| pod["metadata"]["name"] == *it.name);
            let uid = pod.map(|pod| pod["metadata"]["uid"].clone()).unwrap_or_default();
            (it.name.clone(), phase(object).to_owned(), uid)
        };
        self.operations.iter().map(of).collect()
    }

    fn strike(&mut self, fault: Fault) {
        let cluster = self.cluster;
        match fault {
            Fault::Cancel => {
                let now = Timestamp::now();
                let struck = self.operations.iter_mut().filter(|it| it.cell.fault == fault);
                let places = struck.map(|it| {
                    it.cancelled = Some(now);
                    // One that was told before is let go now.
                    it.frozen.iter().for_each(Mover::thaw);
                    it.place()
                });
                cancel_all(cluster, &places.collect::<Vec<_>>());
                // Before anything else goes on: what has moved all its data is not cancelled any more.
                let struck: Vec<&Standing> =
                    self.operations.iter().filter(|it| it.cell.fault == fault).collect();
                self.wait("the end", &struck, has_ended);
            }
            Fault::PodDeleted => {
                let struck = self.operations.iter().filter(|it| it.cell.fault == fault);
                let pods: Vec<&str> = struck.map(|it| it.name.as_str()).collect();
                let words = ["-n", "velero", "delete", "pod", "--wait=false"];
                cluster.kubectl().run([&words, &pods[..]].concat()).unwrap();
            }
            Fault::OutOfMemory => {
                let struck = self.operations.iter().filter(|it| it.cell.fault == fault);
                // At the same time: what is being cancelled does not last.
                thread::scope(|scope| {
                    for it in struck {
                        scope.spawn(move || match &it.frozen {
                            Some(mover) => mover.run_out_of_memory(),
                            None => Mover::of(cluster, &it.name).run_out_of_memory(),
                        });
                    }
                });
            }
            Fault::AgentRestart => end_agent_gracefully(cluster),
            Fault::AgentKill => kill_agent(cluster),
            Fault::ApiRestart => cluster.restart_api_server().unwrap(),
            Fault::StoreAway => self.gate.take_away(),
            Fault::NodeLost => self.lose_node(),
        }
    }

    /// The scheduler has just given the node to all who wait for one when it is lost, and all others may go elsewhere.
    fn lose_node(&mut self) {
        let kubectl = self.cluster.kubectl();
        self.placed = None;
        self.other.lose();
        kubectl.run(["uncordon", OTHER_NODE]).unwrap();
        for it in self.operations.iter().filter(|it| it.cell.phase == Phase::Accepted) {
            let has_node = |pod: &Value| pod["spec"]["nodeName"] == OTHER_NODE;
            wait_for_object(&kubectl, "velero", PATIENCE, ("pod", &it.name), "having a node", has_node)
                .unwrap();
        }
        let is_lost = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "Unknown")
        };
        wait_for_object(&kubectl, "", PATIENCE, ("node", OTHER_NODE), "being lost", is_lost).unwrap();
    }

    /// Lets everything go on.
    fn release(&mut self) {
        self.cluster.kubectl().run(["uncordon", OTHER_NODE]).unwrap();
        self.queue = None;
        for folder in self.hidden.drain(..) {
            // Unless it is gone with its node.
            let _ = fs::rename(folder.with_extension("hidden"), folder);
        }
        self.operations.iter().filter_map(|it| it.frozen.as_ref()).for_each(Mover::thaw);
    }

    /// Looks at every end.
    fn check(&self) {
        let all: Vec<&Standing> = self.operations.iter().collect();
        let deadline = Instant::now() + PATIENCE;
        let is_over = |object: &Value| {
            has_ended(object) && object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
        };
        let objects = loop {
            let objects = self.objects();
            let over = |it: &&Standing| objects.iter().any(|object| it.is(object) && is_over(object));
            if all.iter().all(over) || Instant::now() > deadline {
                break objects;
            }
            thread::sleep(Duration::from_millis(500));
        };
        let mut bad = Vec::new();
        let mut completed = Vec::new();
        for it in all {
            let object = objects.iter().find(|object| it.is(object)).unwrap();
            if !is_over(object) || phase(object) != it.cell.end().as_str() {
                bad.push(format!("{}: is not over in {}: {object:#}", it.cell, it.cell.end()));
            } else if it.cell.end() == Phase::Failed && !message(object).contains(it.cell.reason()) {
                bad.push(format!("{}: does not speak of {:?}: {object:#}", it.cell, it.cell.reason()));
            } else if let Some(since) = it.cancelled.filter(|_| self.timed) {
                let end: Timestamp =
                    object["status"]["completionTimestamp"].as_str().unwrap().parse().unwrap();
                if end.duration_since(since).as_secs_f64() > CANCEL_LIMIT.as_secs_f64() {
                    bad.push(format!("{}: was cancelled at {since}: {object:#}", it.cell));
                }
            }
            if it.cell.end() == Phase::Completed {
                completed.push((it, object));
            } else if it.cell.kind == Kind::PodVolumeRestore && is_over(object) && self.waits(&it.name) {
                bad.push(format!("{}: its pod still waits: {object:#}", it.cell));
            }
        }
        assert!(
            bad.is_empty(),
            "{} cells of {} end badly:\n{}",
            bad.len(),
            self.operations.len(),
            bad.join("\n")
        );
        eprintln!("{}: {} cells end as they have to", self.title, self.operations.len());
        self.check_data(&completed);
    }

    /// Whether the pod of a restore still waits, and has not learnt soon after it was over that there is nothing to wait for.
    fn waits(&self, name: &str) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            // One whose node is lost is removed after some time.
            let pod = self.space.get("pod", name).ok();
            let knows = |pod: &Value| {
                given_up(pod).is_some_and(|words| words.contains("was not restored"))
                    || !pod["metadata"]["deletionTimestamp"].is_null()
            };
            if pod.as_ref().is_none_or(knows) {
                return false;
            }
            if Instant::now() > deadline {
                return true;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// What completed has all its data, where it was to go.
    fn check_data(&self, completed: &[(&Standing, &Value)]) {
        let (backups, restores): (Vec<_>, Vec<_>) =
            completed.iter().partition(|(it, _)| it.cell.kind.direction() == Direction::Backup);
        if !backups.is_empty() {
            let kopia = connected_kopia(self.cluster, self.title, self.space.name());
            for (it, object) in backups {
                let snapshot = object["status"]["snapshotID"].as_str().unwrap();
                let moved = content_of_snapshot(self.cluster, &kopia, snapshot);
                let source = if it.cell.kind == Kind::DataUpload { NEW } else { LIVE };
                assert_eq!(moved, self.data[source], "{}", it.cell);
            }
        }
        let looker = |name: &str| pod(name, "touch /data/.done; sleep 86400", name, None);
        let claims = restores.iter().filter(|(it, _)| it.cell.kind == Kind::DataDownload);
        let lookers: Vec<Value> = claims.map(|(it, _)| looker(&it.name)).collect();
        if !lookers.is_empty() {
            self.space.apply(&list(&lookers)).unwrap();
        }
        for (it, _) in restores {
            self.space.wait_for_pod(&it.name).unwrap();
            assert_eq!(content(&self.space, &it.name), self.data[OLD], "{}", it.cell);
        }
    }
}

/// Every kind in every phase, while agents and API server end; then each meets what strikes it alone.
#[test]
fn every_kind_in_every_phase_outlives_agents_and_servers_and_ends_as_it_has_to() {
    let disturbing = [Fault::AgentRestart, Fault::AgentKill, Fault::ApiRestart];
    play("cover", cover(), &disturbing, &[Fault::PodDeleted, Fault::OutOfMemory, Fault::Cancel]);
}

/// All cells of a fault.
fn play_all(title: &'static str, fault: Fault) {
    play(title, cells().filter(|cell| cell.fault == fault), &[], &[fault]);
}

macro_rules! rounds {
    ($($name:ident: $title:literal, $fault:ident;)*) => { $(
        #[test]
        #[ignore = "takes minutes: part of `cargo xtask test --long`"]
        fn $name() {
            play_all($title, Fault::$fault);
        }
    )* };
}

rounds! {
    whatever_is_cancelled_ends_in_seconds: "matrix-cancel", Cancel;
    whatever_is_on_its_way_goes_on_when_agents_are_restarted: "matrix-restart", AgentRestart;
    whatever_is_on_its_way_goes_on_when_agents_are_killed: "matrix-kill", AgentKill;
    whatever_is_on_its_way_goes_on_when_its_pod_is_deleted: "matrix-deleted", PodDeleted;
    whatever_runs_out_of_memory_says_so: "matrix-memory", OutOfMemory;
    whatever_can_goes_on_elsewhere_when_its_node_is_lost: "matrix-node", NodeLost;
    whatever_is_on_its_way_goes_on_when_the_api_server_is_restarted: "matrix-api", ApiRestart;
    whatever_finds_its_store_away_says_so: "matrix-store", StoreAway;
}
