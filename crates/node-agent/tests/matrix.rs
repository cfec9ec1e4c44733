//! Every fault at every phase of every kind of operation: the real agents of two nodes against a model of everything else.
//!
//! Each cell is a cluster of its own, and all are played at once.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cells;
mod model;

use cells::{CANCEL_LIMIT, Cell, Fault, cells, cover};
use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use model::agents::Agent;
use model::api::{Api, Place, Selector};
use model::objects::{CLAIMS, EVENTS, PODS, SHOP, VELERO, VOLUMES, foundations, node, operation, operations};
use model::world::{FILLED_BY, LOG, World, text};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The operation that is struck.
const IT: &str = "it";
/// The node of pods whose volumes are moved.
const HOME: &str = "node-a";
const OTHER: &str = "node-b";
/// On a volume that is kept: the claim that did not get it.
const KEPT_FOR: &str = "lifeboat.io/kept-for";
/// Every wait ends by then.
const PATIENCE: Duration = Duration::from_secs(150);

/// The cluster of a cell.
struct Stage {
    cell: Cell,
    api: Arc<Api>,
    world: Arc<World>,
    agents: Vec<(&'static str, Agent)>,
    it: Place,
    /// The pod that was there when the fault struck.
    struck: String,
}

impl Stage {
    /// A cluster in which the operation has come to its phase, and will not get any further by itself.
    async fn set(cell: Cell) -> Result<Self, String> {
        let api = Api::new(|_| {});
        let world = World::new(Arc::clone(&api));
        foundations(&api, 1, usize::from(cell.phase == Phase::New));
        let mut agents = Vec::new();
        for name in [HOME, OTHER] {
            node(&api, name);
            let mut agent = Agent::new(&api, name);
            agent.start();
            agents.push((name, agent));
        }
        let it = Place::new(&operations(cell.kind), VELERO, IT);
        let stage = Self { cell, api, world, agents, it, struck: String::new() };
        stage.hold().await?;
        operation(&stage.api, cell.kind, IT, HOME);
        if cell.phase == Phase::Canceling {
            stage.reach(IT, cell.kind, Phase::InProgress).await?;
            stage.cancel();
        }
        stage.reach(IT, cell.kind, cell.phase).await?;
        if cell.phase != Phase::New {
            let placed = |pod: Arc<Value>| pod["spec"]["nodeName"].is_string();
            stage.until("its pod has a node", || stage.world.hosting_pod(IT).is_some_and(placed)).await?;
        }
        Ok(stage)
    }

    /// Sees to it that the operation stays in its phase.
    async fn hold(&self) -> Result<(), String> {
        let it = || IT.to_owned();
        match self.cell.phase {
            // Somebody else is being prepared. It is of the same kind: who hears of the operation has heard of that before.
            Phase::New => {
                self.world.turn(|weather| weather.stalled.extend(["queue".to_owned()]));
                operation(&self.api, self.cell.kind, "queue", HOME);
                self.reach("queue", self.cell.kind, Phase::Accepted).await
            }
            Phase::Accepted => {
                self.world.turn(|weather| weather.stalled.extend([it()]));
                Ok(())
            }
            // All slots are taken.
            Phase::Prepared => {
                for name in [HOME, OTHER] {
                    let slot = format!("slot-{name}");
                    self.world.turn(|weather| weather.busy.extend([slot.clone()]));
                    operation(&self.api, Kind::PodVolumeBackup, &slot, name);
                    self.reach(&slot, Kind::PodVolumeBackup, Phase::InProgress).await?;
                }
                Ok(())
            }
            _ => {
                let obey = self.cell.phase != Phase::Canceling;
                self.world.turn(|weather| {
                    weather.busy.insert(it());
                    weather.movers_obey = obey;
                });
                Ok(())
            }
        }
    }

    /// Lets everything go on.
    fn release(&self) {
        self.world.turn(|weather| {
            weather.stalled.clear();
            weather.busy.clear();
            weather.movers_obey = true;
        });
    }

    fn cancel(&self) {
        let stop = json!({ "spec": { "cancel": true } });
        assert!(self.api.patch("user", &self.it, &stop).is_ok(), "{}", self.cell);
    }

    fn kill_agents(&mut self) {
        self.agents.iter_mut().for_each(|(_, agent)| agent.kill());
    }

    fn start_agents(&mut self) {
        self.agents.iter_mut().for_each(|(_, agent)| agent.start());
    }

    /// The time that a restored volume has to reach its claim is a second from now on.
    fn make_impatient(&self) {
        let soon = json!({ "spec": { "operationTimeout": "1s" } });
        assert!(self.api.patch("user", &self.it, &soon).is_ok(), "{}", self.cell);
    }

    /// The volume that a restore fills.
    fn volume(&self) -> Place {
        let claim = self.api.get(&Place::new(CLAIMS, VELERO, IT)).unwrap();
        Place::new(VOLUMES, "", text(&claim["spec"]["volumeName"]))
    }

    /// Whether a volume says that it is kept for the claim that waits for it.
    fn is_kept(&self, volume: &Place) -> bool {
        let found = self.api.get(volume);
        found.is_some_and(|it| it["metadata"]["annotations"][KEPT_FOR] == format!("{SHOP}/{IT}"))
    }

    fn has_moved(&self) -> bool {
        let it = self.api.get(&self.it);
        it.is_some_and(|it| it["metadata"]["annotations"]["lifeboat.io/moved"].is_string())
    }

    fn message(&self) -> String {
        self.api.get(&self.it).map(|it| text(&it["status"]["message"]).to_owned()).unwrap_or_default()
    }

    async fn reach(&self, name: &str, kind: Kind, phase: Phase) -> Result<(), String> {
        let place = Place::new(&operations(kind), VELERO, name);
        let phase = if phase == Phase::New { Value::Null } else { phase.as_str().into() };
        self.until(&format!("{name} is in {phase}"), || {
            self.api.get(&place).is_some_and(|object| {
                let begun = object["metadata"]["finalizers"].is_array() || object["spec"]["cancel"] == true;
                object["status"]["phase"] == phase && begun
            })
        })
        .await
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) -> Result<(), String> {
        let began = Instant::now();
        while !is_so() {
            if began.elapsed() > PATIENCE {
                let it = self.api.get(&self.it).map(|it| it["status"].to_string());
                return Err(format!("it does not come about that {what}: {it:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn strike(&mut self) -> Result<(), String> {
        let pod = self.world.hosting_pod(IT);
        self.struck = pod.as_ref().map(|pod| text(&pod["metadata"]["uid"]).to_owned()).unwrap_or_default();
        match self.cell.fault {
            Fault::Cancel => {
                self.cancel();
                // In phase Canceling it is the mover that has to be let go.
                if self.cell.phase == Phase::Canceling {
                    self.release();
                }
                let began = Instant::now();
                self.until("it is over", || self.ended().is_some()).await?;
                if began.elapsed() > CANCEL_LIMIT {
                    return Err(format!("the cancel took {:?}", began.elapsed()));
                }
            }
            Fault::AgentRestart => {
                for (_, agent) in &mut self.agents {
                    agent.stop().await;
                    agent.start();
                }
            }
            Fault::AgentKill => {
                for (_, agent) in &mut self.agents {
                    agent.kill();
                    agent.start();
                }
            }
            Fault::PodDeleted => {
                let deleted = self.api.delete("user", &Place::new(PODS, VELERO, IT), &with_time());
                deleted.map_err(|refused| format!("the pod cannot be deleted: {refused:?}"))?;
            }
            Fault::OutOfMemory => self.world.run_out_of_memory(pod.as_deref().ok_or("there is no pod")?),
            Fault::NodeLost => {
                let node = pod.as_ref().and_then(|pod| pod["spec"]["nodeName"].as_str()).unwrap_or(HOME);
                // The last that is heard of it comes in the moment in which its pod is removed.
                self.api.change_before_deletes(1);
                self.world.lose(node);
                let lost = self.agents.iter_mut().filter(|(name, _)| *name == node);
                lost.for_each(|(_, agent)| agent.kill());
            }
            Fault::ApiRestart => {
                self.api.go_down();
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.api.come_up();
            }
            Fault::StoreAway => self.world.turn(|weather| weather.store_answers = false),
        }
        Ok(())
    }

    /// The operation, once it is over.
    fn ended(&self) -> Option<Arc<Value>> {
        self.api.get(&self.it).filter(|it| phase(it).is_some_and(Phase::is_final))
    }

    /// Waits until nothing is left of a restore but its volume, which has to have all data and to stay.
    async fn check_kept(&self, volume: &Place) -> Result<(), String> {
        let lost = format!("volume {} is lost", volume.name);
        let alone = || self.world.leftovers().iter().all(|left| *left == lost);
        self.until("nothing else is left", alone).await?;
        let found = self.api.get(volume).ok_or("the volume was removed")?;
        let filled = found["metadata"]["annotations"][FILLED_BY].is_string();
        let stays = found["spec"]["persistentVolumeReclaimPolicy"] == "Retain" && self.is_kept(volume);
        if filled && stays { Ok(()) } else { Err(format!("it is not kept with its data: {found}")) }
    }

    async fn check(&self) -> Result<(), String> {
        self.until("all are over and held by nobody", || {
            Kind::ALL
                .into_iter()
                .flat_map(|kind| self.api.list(&operations(kind), &Selector::default()).0)
                .all(|object| {
                    let free = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
                    phase(&object).is_some_and(Phase::is_final) && free
                })
        })
        .await?;
        let it = self.ended().ok_or("it is gone")?;
        let message = text(&it["status"]["message"]);
        if phase(&it) != Some(self.cell.end()) {
            return Err(format!("ends in {}, not in {}: {message}", it["status"]["phase"], self.cell.end()));
        }
        if self.cell.end() == Phase::Failed && !message.contains(self.cell.reason()) {
            return Err(format!("does not speak of {:?}: {message}", self.cell.reason()));
        }
        let in_vain = self.cell.kind == Kind::PodVolumeRestore && self.cell.end() != Phase::Completed;
        let told = it["metadata"]["annotations"]["lifeboat.io/told"].as_str();
        // Who is on a lost node is told that by others.
        if in_vain && self.cell.fault != Fault::NodeLost && told != Some("true") {
            return Err(format!("the pod that waits for it was not told: {told:?}"));
        }
        let lost = it["metadata"]["annotations"]["lifeboat.io/movers-lost"].as_str();
        let once = matches!(self.cell.fault, Fault::PodDeleted | Fault::NodeLost)
            && self.cell.phase == Phase::InProgress
            && self.cell.end() == Phase::Completed;
        if once && lost != Some("1") {
            return Err(format!("its mover was lost once, not {lost:?} times"));
        }
        if once && self.cell.fault == Fault::PodDeleted && !self.world.has_saved(&self.struck) {
            return Err("its mover had no time to save how far it had come".to_owned());
        }
        if self.cell.end() == Phase::Completed && !self.world.is_exact(self.cell.kind, &it) {
            return Err(format!("has not what its mover moved: {it}"));
        }
        // The volume controller may still be at it.
        self.until("nothing is left", || self.world.leftovers().is_empty())
            .await
            .map_err(|error| format!("{error}; {:?}", self.world.leftovers()))
    }
}

/// How users delete a pod that has time to end.
fn with_time() -> Value {
    json!({ "gracePeriodSeconds": 30 })
}

fn phase(operation: &Value) -> Option<Phase> {
    Phase::ALL.iter().copied().find(|phase| operation["status"]["phase"] == phase.as_str())
}

async fn play(cell: Cell) -> Result<(), String> {
    let mut stage = Stage::set(cell).await?;
    stage.strike().await?;
    stage.release();
    let result = stage.check().await;
    stage.kill_agents();
    result
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_in_whatever_phase_ends_well_and_leaves_nothing_behind() {
    let mut played = JoinSet::new();
    let mut count = 0;
    for cell in cells() {
        count += 1;
        played.spawn(async move { play(cell).await.map_err(|error| format!("{cell}: {error}")) });
    }
    assert_eq!(count, 4 * (5 * 8 - 3), "kinds times phases times faults, without the three that cannot be");
    let mut bad: Vec<String> = played.join_all().await.into_iter().filter_map(Result::err).collect();
    bad.sort();
    assert!(bad.is_empty(), "{} of {count} cells end badly:\n{}", bad.len(), bad.join("\n"));
}

/// While it waits for a slot its pod is deleted, and another is made on the other node: whose slot it needs from then on.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_pod_is_made_again_elsewhere_waits_for_a_slot_there_and_goes_on_there() {
    for kind in [Kind::DataUpload, Kind::DataDownload] {
        let mut stage =
            Stage::set(Cell { kind, phase: Phase::Prepared, fault: Fault::PodDeleted }).await.unwrap();
        let node = || stage.api.get(&stage.it).map(|it| text(&it["status"]["node"]).to_owned());
        let host = || stage.world.hosting_pod(IT).map(|pod| text(&pod["spec"]["nodeName"]).to_owned());
        let (first, second) = match node().as_deref() {
            Some(HOME) => (HOME, OTHER),
            _ => (OTHER, HOME),
        };
        assert_eq!((node().as_deref(), host().as_deref()), (Some(first), Some(first)));
        // The scheduler of the model takes turns.
        let deleted = stage.api.delete("user", &Place::new(PODS, VELERO, IT), &with_time());
        assert!(deleted.is_ok(), "{deleted:?}");
        stage.until("its pod is elsewhere", || host().as_deref() == Some(second)).await.unwrap();
        stage.until("it says so", || node().as_deref() == Some(second)).await.unwrap();
        stage.reach(IT, kind, Phase::Prepared).await.unwrap();
        // A slot of the first node is of no use to it: another one gets it.
        stage.world.turn(|weather| weather.busy.retain(|name| *name != format!("slot-{first}")));
        let next = operation(&stage.api, Kind::PodVolumeBackup, "next", first);
        let is_over = || stage.api.get(&next).is_some_and(|next| phase(&next) == Some(Phase::Completed));
        stage.until("the next one is over", is_over).await.unwrap();
        stage.reach(IT, kind, Phase::Prepared).await.unwrap();
        stage.release();
        stage.check().await.unwrap();
        assert_eq!(node().as_deref(), Some(second));
        stage.kill_agents();
    }
}

/// A kubelet looks for ended containers from time to time only; nobody waits for that. Who comes later learns it, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_mover_that_says_that_all_has_moved_is_believed_if_its_log_has_the_result() {
    for kind in Kind::ALL {
        let cell = Cell { kind, phase: Phase::InProgress, fault: Fault::AgentKill };
        let mut stage = Stage::set(cell).await.unwrap();
        stage.kill_agents();
        stage.world.turn(|weather| weather.ends_are_told = false);
        stage.release();
        let logged =
            || stage.world.hosting_pod(IT).is_some_and(|pod| pod["metadata"]["annotations"][LOG].is_string());
        stage.until("its log has the result", logged).await.unwrap();
        assert_eq!(stage.world.hosting_pod(IT).unwrap()["status"]["phase"], "Running");
        stage.start_agents();
        stage.check().await.unwrap();
        stage.kill_agents();
    }
}

/// Anybody may write an Event.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_says_that_all_has_moved_counts_for_nothing_without_the_log() {
    let cell = Cell { kind: Kind::DataUpload, phase: Phase::InProgress, fault: Fault::AgentKill };
    let mut stage = Stage::set(cell).await.unwrap();
    let uid = stage.api.get(&stage.it).map(|it| it["metadata"]["uid"].clone()).unwrap();
    let result = r#"{"snapshotID":"of-somebody-else","emptySnapshot":false}"#;
    let event = json!({
        "metadata": { "name": "forged", "namespace": VELERO },
        "involvedObject": { "kind": cell.kind.name(), "namespace": VELERO, "name": IT, "uid": uid },
        "reason": "Data-Path-Completed", "message": result,
    });
    stage.api.create("user", EVENTS, event).unwrap();
    let logs = || stage.api.requests().get("get /pods").copied().unwrap_or(0);
    let before = logs();
    stage.until("somebody looks into the log", || logs() > before).await.unwrap();
    stage.reach(IT, cell.kind, Phase::InProgress).await.unwrap();
    stage.release();
    stage.check().await.unwrap();
    stage.kill_agents();
}

/// Somebody deletes the claim of the volume that a restore fills: once it is filled there is nothing to hand over.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_whose_volume_was_taken_away_says_so() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::PodDeleted };
    let mut stage = Stage::set(cell).await.unwrap();
    stage.api.delete("user", &Place::new(CLAIMS, VELERO, IT), &Value::Null).unwrap();
    stage.release();
    stage.reach(IT, cell.kind, Phase::Failed).await.unwrap();
    let it = stage.api.get(&stage.it).unwrap();
    assert!(text(&it["status"]["message"]).contains("is gone"), "{}", it["status"]);
    stage.until("nothing is left", || stage.world.leftovers().is_empty()).await.unwrap();
    stage.kill_agents();
}

/// The volume controller does not bind what was restored, or the cluster does not let the claim have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_volume_that_does_not_reach_its_claim_is_waited_for_with_words_and_kept_in_the_end() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
    for refused in [false, true] {
        let mut stage = Stage::set(cell).await.unwrap();
        let volume = stage.volume();
        let name = &volume.name;
        let wanted = if refused {
            stage.api.forbid(Place::new(CLAIMS, SHOP, IT));
            "waits for the cluster to accept a change that is needed".to_owned()
        } else {
            stage.world.turn(|weather| weather.volumes_are_bound = false);
            format!("waits for the volume {name} to be bound to the claim {SHOP}/{IT}")
        };
        stage.release();
        stage.until("it says what it waits for", || stage.message().contains(&wanted)).await.unwrap();
        let said = stage.api.get(&stage.it).unwrap();
        assert_eq!(phase(&said), Some(Phase::InProgress));
        // It says so once, however often an agent looks at it, and whichever.
        stage.kill_agents();
        stage.start_agents();
        let looks = || stage.api.requests().get("get /persistentvolumes").copied().unwrap_or(0);
        let before = looks();
        stage.until("it is looked at again", || looks() > before + 2).await.unwrap();
        assert_eq!(stage.api.get(&stage.it).unwrap(), said);
        stage.make_impatient();
        stage.reach(IT, cell.kind, Phase::Failed).await.unwrap();
        let message = stage.message();
        for words in [&wanted, "within 1s", &format!("volume {name} has all data and is kept"), "Retain"] {
            assert!(message.contains(words), "{words:?} is not said: {message}");
        }
        let held = || !stage.api.get(&stage.it).is_some_and(|it| it["metadata"]["finalizers"] == json!([]));
        stage.until("nobody holds it", || !held()).await.unwrap();
        stage.check_kept(&volume).await.unwrap();
        stage.kill_agents();
    }
}

/// What happens while no agent is there, and the words with which the operation fails then, if it does.
type Way = (fn(&Stage, &Place), Option<&'static str>);

/// Agents end between marking a volume as kept and failing its operation. Whoever goes on goes by how things are then.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_marked_as_kept_reaches_its_claim_after_all_or_stays_with_words_that_name_it() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
    let nothing = |_: &Stage, _: &Place| {};
    let claim_goes = |stage: &Stage, _: &Place| {
        stage.api.delete("user", &Place::new(CLAIMS, SHOP, IT), &Value::Null).unwrap();
    };
    let binding_gets_on = |stage: &Stage, volume: &Place| {
        stage.world.turn(|weather| weather.volumes_are_bound = true);
        let touched = json!({ "metadata": { "annotations": { "model/touched": "true" } } });
        stage.api.patch("user", volume, &touched).unwrap();
    };
    let ways: [Way; 3] = [
        (nothing, Some("could not be handed over")),
        (claim_goes, Some("was deleted while its data was restored")),
        (binding_gets_on, None),
    ];
    for (meanwhile, fails_with) in ways {
        let mut stage = Stage::set(cell).await.unwrap();
        let volume = stage.volume();
        stage.world.turn(|weather| weather.volumes_are_bound = false);
        stage.release();
        stage.until("all has moved", || stage.has_moved()).await.unwrap();
        stage.api.forbid(stage.it.clone());
        stage.make_impatient();
        stage.until("the volume is marked", || stage.is_kept(&volume)).await.unwrap();
        assert!(stage.ended().is_none());
        stage.kill_agents();
        meanwhile(&stage, &volume);
        stage.start_agents();
        stage.api.allow(&stage.it);
        match fails_with {
            Some(words) => {
                stage.reach(IT, cell.kind, Phase::Failed).await.unwrap();
                let kept = format!("volume {} has all data and is kept", volume.name);
                for words in [words, &kept] {
                    assert!(stage.message().contains(words), "{words:?} is not said: {}", stage.message());
                }
                stage.check_kept(&volume).await.unwrap();
            }
            None => {
                stage.check().await.unwrap();
                assert!(!stage.is_kept(&volume), "what its claim has is not kept for it any more");
            }
        }
        stage.kill_agents();
    }
}

/// A volume that cannot be marked would be removed by whoever cleans up, so nobody is told that it is kept.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_volume_cannot_be_marked_as_kept_says_so_and_goes_on_when_it_can() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
    let mut stage = Stage::set(cell).await.unwrap();
    let volume = stage.volume();
    stage.api.forbid(volume.clone());
    stage.release();
    stage.make_impatient();
    let says = |words: &str| stage.message().contains(words);
    let waits = || says("waits for the cluster to accept a change that is needed") && says("overdue since");
    stage.until("it says what it waits for", waits).await.unwrap();
    stage.reach(IT, cell.kind, Phase::InProgress).await.unwrap();
    stage.api.allow(&volume);
    stage.check().await.unwrap();
    stage.kill_agents();
}

/// Somebody forces the finalizer off an operation whose volume is kept, or deletes it altogether, before it is cleaned up after.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_kept_outlives_its_operation_and_the_sweeper() {
    let mut played = JoinSet::new();
    for deleted in [false, true] {
        played.spawn(async move {
            let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
            let mut stage = Stage::set(cell).await?;
            let (volume, pod) = (stage.volume(), Place::new(PODS, VELERO, IT));
            // As long as its pod does not go, it is not handed over, and not cleaned up after.
            let held_by = |who: Value| json!({ "metadata": { "finalizers": who } });
            stage.api.patch("user", &pod, &held_by(json!(["model/held"]))).unwrap();
            stage.release();
            stage.make_impatient();
            stage.reach(IT, cell.kind, Phase::Failed).await?;
            stage.kill_agents();
            let left = stage.world.leftovers();
            assert!(left.contains(&format!("{VOLUMES} {}", volume.name)), "not in the ledger: {left:?}");
            stage.api.patch("user", &stage.it, &held_by(json!([]))).unwrap();
            if deleted {
                stage.api.delete("user", &stage.it, &Value::Null).unwrap();
            }
            stage.start_agents();
            stage.api.patch("user", &pod, &held_by(json!([]))).unwrap();
            let result = stage.check_kept(&volume).await;
            stage.kill_agents();
            result.map_err(|error| format!("operation deleted: {deleted}: {error}"))
        });
    }
    assert_eq!(played.join_all().await, [Ok(()), Ok(())]);
}

#[test]
fn the_cover_has_every_kind_in_every_phase_and_each_fault_of_one_wherever_it_can_strike() {
    let cover = cover();
    let of_one: Vec<Cell> = cells().filter(|cell| Fault::OF_ONE.contains(&cell.fault)).collect();
    assert_eq!(cover.len(), 4 * 5);
    assert!(cover.iter().all(|cell| of_one.contains(cell)), "{cover:?}");
    for cell in of_one {
        let with =
            |same: &dyn Fn(&Cell) -> bool| cover.iter().any(|one| one.fault == cell.fault && same(one));
        assert!(with(&|one| one.kind == cell.kind), "{cell}: not with this kind");
        assert!(with(&|one| one.phase == cell.phase), "{cell}: not in this phase");
        assert!(
            cover.iter().any(|one| (one.kind, one.phase) == (cell.kind, cell.phase)),
            "{cell}: not at all"
        );
    }
}
