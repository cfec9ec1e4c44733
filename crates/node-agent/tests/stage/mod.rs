//! A cluster of its own for one operation, which is brought to a phase and held there until it is let go.

use crate::cells::{CANCEL_LIMIT, Cell, Fault};
use crate::model::agents::Agent;
use crate::model::api::{Api, Place, Selector};
use crate::model::objects::{CLAIMS, PODS, SHOP, VELERO, VOLUMES, foundations, node, operation, operations};
use crate::model::world::{FILLED_BY, World, text};
use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The operation that is struck.
pub const IT: &str = "it";
/// The node of pods whose volumes are moved.
pub const HOME: &str = "node-a";
pub const OTHER: &str = "node-b";
/// On a volume that is kept: the claim that did not get it.
const KEPT_FOR: &str = "lifeboat.io/kept-for";
/// Every wait ends by then.
const PATIENCE: Duration = Duration::from_secs(150);

/// The cluster of a cell.
pub struct Stage {
    pub cell: Cell,
    pub api: Arc<Api>,
    pub world: Arc<World>,
    pub agents: Vec<(&'static str, Agent)>,
    pub it: Place,
    /// The pod that was there when the fault struck.
    struck: String,
}

impl Stage {
    /// A cluster in which the operation has come to its phase, and will not get any further by itself.
    pub async fn set(cell: Cell) -> Result<Self, String> {
        let stage = Self::open(cell);
        stage.hold().await?;
        stage.begin().await?;
        Ok(stage)
    }

    /// A cluster with its agents, and nothing to do for them yet.
    pub fn open(cell: Cell) -> Self {
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
        Self { cell, api, world, agents, it, struck: String::new() }
    }

    /// Makes the operation, and waits until it is in its phase.
    async fn begin(&self) -> Result<(), String> {
        let Cell { kind, phase, .. } = self.cell;
        operation(&self.api, kind, IT, HOME);
        if phase == Phase::Canceling {
            self.reach(IT, kind, Phase::InProgress).await?;
            self.cancel();
        }
        self.reach(IT, kind, phase).await?;
        if phase == Phase::New {
            return Ok(());
        }
        let placed = |pod: Arc<Value>| pod["spec"]["nodeName"].is_string();
        self.until("its pod has a node", || self.world.hosting_pod(IT).is_some_and(placed)).await
    }

    /// Sees to it that the operation stays in its phase.
    pub async fn hold(&self) -> Result<(), String> {
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
    pub fn release(&self) {
        self.world.turn(|weather| {
            weather.stalled.clear();
            weather.busy.clear();
            weather.movers_obey = true;
        });
    }

    pub fn cancel(&self) {
        let stop = json!({ "spec": { "cancel": true } });
        assert!(self.api.patch("user", &self.it, &stop).is_ok(), "{}", self.cell);
    }

    pub fn kill_agents(&mut self) {
        self.agents.iter_mut().for_each(|(_, agent)| agent.kill());
    }

    pub fn start_agents(&mut self) {
        self.agents.iter_mut().for_each(|(_, agent)| agent.start());
    }

    /// Starts them, and tells where the metrics of each are.
    pub fn start_agents_with_metrics(&mut self) -> Vec<SocketAddr> {
        self.agents.iter_mut().map(|(_, agent)| agent.start_with_metrics()).collect()
    }

    /// The time that a restored volume has to reach its claim is a second from now on.
    pub fn make_impatient(&self) {
        self.set_timeout("1s");
    }

    /// That time is as long as it usually is.
    pub fn make_patient(&self) {
        self.set_timeout("10m0s");
    }

    fn set_timeout(&self, timeout: &str) {
        let timeout = json!({ "spec": { "operationTimeout": timeout } });
        assert!(self.api.patch("user", &self.it, &timeout).is_ok(), "{}", self.cell);
    }

    /// The volume that a restore fills.
    pub fn volume(&self) -> Place {
        let claim = self.api.get(&Place::new(CLAIMS, VELERO, IT)).unwrap();
        Place::new(VOLUMES, "", text(&claim["spec"]["volumeName"]))
    }

    /// Whether a volume says that it is kept for the claim that waits for it.
    pub fn is_kept(&self, volume: &Place) -> bool {
        let found = self.api.get(volume);
        found.is_some_and(|it| it["metadata"]["annotations"][KEPT_FOR] == format!("{SHOP}/{IT}"))
    }

    pub fn has_moved(&self) -> bool {
        let it = self.api.get(&self.it);
        it.is_some_and(|it| it["metadata"]["annotations"]["lifeboat.io/moved"].is_string())
    }

    pub fn message(&self) -> String {
        self.api.get(&self.it).map(|it| text(&it["status"]["message"]).to_owned()).unwrap_or_default()
    }

    pub async fn reach(&self, name: &str, kind: Kind, phase: Phase) -> Result<(), String> {
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

    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool) -> Result<(), String> {
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

    pub async fn strike(&mut self) -> Result<(), String> {
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

    /// Whether its hosting pod is in this phase.
    pub fn pod_is(&self, phase: &str) -> bool {
        self.world.hosting_pod(IT).is_some_and(|pod| pod["status"]["phase"] == phase)
    }

    /// The operation, once it is over.
    pub fn ended(&self) -> Option<Arc<Value>> {
        self.api.get(&self.it).filter(|it| phase(it).is_some_and(Phase::is_final))
    }

    /// Waits until nothing is left of a restore but its volume, which has to have all data and to stay.
    pub async fn check_kept(&self, volume: &Place) -> Result<(), String> {
        let lost = format!("volume {} is lost", volume.name);
        let alone = || self.world.leftovers().iter().all(|left| *left == lost);
        self.until("nothing else is left", alone).await?;
        let found = self.api.get(volume).ok_or("the volume was removed")?;
        let filled = found["metadata"]["annotations"][FILLED_BY].is_string();
        let stays = found["spec"]["persistentVolumeReclaimPolicy"] == "Retain" && self.is_kept(volume);
        if filled && stays { Ok(()) } else { Err(format!("it is not kept with its data: {found}")) }
    }

    /// Waits until no operation is open and nobody holds any.
    pub async fn settle(&self) -> Result<(), String> {
        self.until("all are over and held by nobody", || {
            Kind::ALL
                .into_iter()
                .flat_map(|kind| self.api.list(&operations(kind), &Selector::default()).0)
                .all(|object| {
                    let free = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
                    phase(&object).is_some_and(Phase::is_final) && free
                })
        })
        .await
    }

    /// Whether it ends as it has to, with nothing left.
    pub async fn check(&self) -> Result<(), String> {
        self.settle().await?;
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
        self.nothing_is_left().await
    }

    pub async fn nothing_is_left(&self) -> Result<(), String> {
        // The volume controller may still be at it.
        self.until("nothing is left", || self.world.leftovers().is_empty())
            .await
            .map_err(|error| format!("{error}; {:?}", self.world.leftovers()))
    }
}

/// How users delete a pod that has time to end.
pub fn with_time() -> Value {
    json!({ "gracePeriodSeconds": 30 })
}

pub fn phase(operation: &Value) -> Option<Phase> {
    Phase::ALL.iter().copied().find(|phase| operation["status"]["phase"] == phase.as_str())
}
