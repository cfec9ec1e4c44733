//! One agent: what it knows of the cluster, and how it learns that something has changed.

use crate::follow::{follow, follow_peers, follow_pods, keep_what_matters, listen, reread};
use crate::metrics::Metrics;
use crate::operation::{VolumeOperation, notes};
use crate::peers::{Peers, maker};
use crate::recent::Known;
use crate::settings::{Settings, Sources};
use crate::{Error, Options};
use futures::channel::mpsc::UnboundedSender;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolumeClaim, Pod};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use lifeboat_api::v1::{PodVolumeBackup, PodVolumeRestore};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload};
use lifeboat_api::{Phase, Progress, labels};
use lifeboat_datapath::observe::Said;
use lifeboat_datapath::wire::Reason;
use lifeboat_exposer::snapshot::VolumeSnapshot;
use lifeboat_exposer::{Direction, Kind, Operation, ledger};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;
use tokio::sync::watch;

/// What one agent knows.
pub(crate) struct Agent {
    pub(crate) client: Client,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) recorder: Recorder,
    pub(crate) stores: Stores,
    pub(crate) known: Known,
    settings: watch::Receiver<Arc<Settings>>,
    /// Hosting pods that this agent made, whatever node they are on.
    made_pods: Store<Pod>,
    /// The agents at work, this one among them.
    peers: watch::Receiver<Arc<Peers>>,
    /// All pods of this node: hosting pods, and the others as far as they matter to what is restored into them.
    local_pods: Store<Pod>,
    /// What movers last said of their progress, by the operation's UID.
    progress: Mutex<HashMap<String, Progress>>,
    /// Operations whose movers say that all has moved, by UID. Their pods know more.
    all_moved: Mutex<HashSet<String>>,
    /// Since when this agent has seen a hand-over not get on, by the operation's UID.
    halted: Mutex<HashMap<String, Timestamp>>,
    /// What was just accepted or started here, for as long as the watch may not show it.
    pledged: Mutex<Pledges>,
}

type Pledges = HashMap<Pledge, HashSet<String>>;

/// What an agent has begun with an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pledge {
    Accepting,
    Starting,
}

/// All operations, and how to have one looked at.
pub(crate) struct Stores {
    pub(crate) uploads: Store<DataUpload>,
    pub(crate) downloads: Store<DataDownload>,
    pub(crate) pod_backups: Store<PodVolumeBackup>,
    pub(crate) pod_restores: Store<PodVolumeRestore>,
    pub(crate) nudges: HashMap<Kind, UnboundedSender<String>>,
}

impl Agent {
    /// An agent whose watches run as long as it is there. Returns when its own lists are complete.
    pub(crate) async fn start(
        client: Client,
        options: Options,
        metrics: Metrics,
        stores: Stores,
    ) -> Result<Arc<Self>, Error> {
        let sources = Sources {
            namespace: options.namespace.clone(),
            node: options.node.clone(),
            node_agent: options.node_agent_config_map.clone(),
            repositories: options.repository_config_map.clone(),
        };
        let first = Arc::new(sources.read(&client).await?);
        let (announce, settings) = watch::channel(first);
        let (made_pods, made_pods_writer) = reflector::store();
        let (announce_peers, peers) = watch::channel(Arc::default());
        let (local_pods, local_pods_writer) = reflector::store();
        let reporter =
            Reporter { controller: "node-agent-server".to_owned(), instance: Some(options.node.clone()) };
        let agent = Arc::new(Self {
            recorder: Recorder::new(client.clone(), reporter),
            client: client.clone(),
            metrics,
            stores,
            known: Known::default(),
            settings,
            made_pods: made_pods.clone(),
            peers: peers.clone(),
            local_pods: local_pods.clone(),
            progress: Mutex::default(),
            all_moved: Mutex::default(),
            halted: Mutex::default(),
            pledged: Mutex::default(),
            options,
        });
        let namespace = &agent.options.namespace;
        // What others make is theirs to see to until it is on this node.
        let made_here = format!("{}={}", ledger::MADE_BY, maker(&agent.options.node));
        let made_here = watcher::Config::default().labels(&made_here);
        let pods_api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let hosting_pods = watcher(pods_api.clone(), made_here.clone()).default_backoff();
        let hosting_pods = hosting_pods.modify(keep_what_matters).reflect(made_pods_writer);
        follow(&agent, hosting_pods.touched_objects());
        follow_peers(pods_api, &agent.options, announce_peers);
        let on_this_node =
            watcher::Config::default().fields(&format!("spec.nodeName={}", agent.options.node));
        let on_this_node = watcher(Api::<Pod>::all(client.clone()), on_this_node).default_backoff();
        follow_pods(
            &agent,
            on_this_node.modify(keep_what_matters).reflect(local_pods_writer).touched_objects(),
        );
        let claims: Api<PartialObjectMeta<PersistentVolumeClaim>> =
            Api::namespaced(client.clone(), namespace);
        follow(&agent, watcher(claims, made_here.clone()).default_backoff().touched_objects());
        let snapshots: Api<PartialObjectMeta<VolumeSnapshot>> = Api::namespaced(client.clone(), namespace);
        follow(&agent, watcher(snapshots, made_here).default_backoff().touched_objects());
        reread(&agent, sources, announce);
        // Slots and queues are counted over all kinds, so nothing is done before all lists are complete. Nobody else may wait
        // for these: of several that do, a store wakes the last one only.
        made_pods.wait_until_ready().await.map_err(|_| Error::WatchEnded)?;
        let mut peers = peers;
        peers.changed().await.map_err(|_| Error::WatchEnded)?;
        local_pods.wait_until_ready().await.map_err(|_| Error::WatchEnded)?;
        agent.stores.uploads.wait_until_ready().await.map_err(|_| Error::WatchEnded)?;
        agent.stores.downloads.wait_until_ready().await.map_err(|_| Error::WatchEnded)?;
        agent.stores.pod_backups.wait_until_ready().await.map_err(|_| Error::WatchEnded)?;
        agent.stores.pod_restores.wait_until_ready().await.map_err(|_| Error::WatchEnded)?;
        // What movers have said of an operation that is not known yet would be dropped for good.
        listen(&agent, Reason::Progress);
        listen(&agent, Reason::Completed);
        Ok(agent)
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.borrow())
    }

    pub(crate) fn api<K: VolumeOperation>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.options.namespace)
    }

    /// The hosting pod of this name, as it was last seen, if it is on this node or was made by this agent.
    pub(crate) fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        let name = ObjectRef::new(name).within(&self.options.namespace);
        self.local_pods.get(&name).or_else(|| self.made_pods.get(&name))
    }

    /// A pod of this node, of any namespace.
    pub(crate) fn local_pod(&self, reference: &ObjectReference) -> Option<Arc<Pod>> {
        let name = ObjectRef::new(reference.name.as_deref()?);
        self.local_pods.get(&name.within(reference.namespace.as_deref()?))
    }

    /// Has another look at an operation as soon as possible.
    pub(crate) fn nudge(&self, kind: Kind, name: &str) {
        if let Some(sender) = self.stores.nudges.get(&kind) {
            // The receiver goes only when the agent ends.
            let _ = sender.unbounded_send(name.to_owned());
        }
    }

    /// The agents at work; this one is.
    pub(crate) fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.peers.borrow())
    }

    /// Tells when agents come or go.
    pub(crate) fn peer_changes(&self) -> watch::Receiver<Arc<Peers>> {
        self.peers.clone()
    }

    /// Whether a node is lost: it has stopped renewing its lease, or is no part of the cluster any more. Only nodes whose agent is
    /// not at work are asked about, so this costs nothing as long as all is well.
    pub(crate) async fn is_lost(&self, node: &str) -> Result<bool, kube::Error> {
        if node.is_empty() || self.peers().contains(node) {
            return Ok(false);
        }
        let found = Api::<Node>::all(self.client.clone()).get_opt(node).await?;
        Ok(found.is_none_or(|node| does_not_answer(&node)))
    }

    /// Whether a matter falls to this agent, out of all that are at work.
    pub(crate) fn is_appointed(&self, matter: &str) -> bool {
        self.peers().appointed(matter) == Some(&self.options.node)
    }

    /// Whether it is this node that moves the data of an operation.
    pub(crate) fn moves(&self, operation: &Operation) -> bool {
        match operation.kind {
            Kind::DataUpload => self.moves_of(&self.stores.uploads, operation),
            Kind::DataDownload => self.moves_of(&self.stores.downloads, operation),
            Kind::PodVolumeBackup => self.moves_of(&self.stores.pod_backups, operation),
            Kind::PodVolumeRestore => self.moves_of(&self.stores.pod_restores, operation),
        }
    }

    fn moves_of<K: VolumeOperation>(&self, operations: &Store<K>, operation: &Operation) -> bool {
        let found = operations.get(&ObjectRef::new(&operation.name).within(&operation.namespace));
        found.is_some_and(|it| {
            it.meta().uid.as_ref() == Some(&operation.uid)
                && it.node() == self.options.node
                && !it.phase().is_final()
        })
    }

    pub(crate) fn progress_of(&self, uid: &str) -> Option<Progress> {
        self.progress.lock().get(uid).copied()
    }

    /// Takes down what a mover says, and has another look at its operation.
    pub(crate) fn take_down(&self, operation: &Operation, said: &Said) {
        match said {
            Said::Progress(said) => {
                let progress = Progress { total_bytes: said.total_bytes, bytes_done: said.done_bytes };
                self.progress.lock().insert(operation.uid.clone(), progress);
            }
            Said::Remark(Reason::Completed, _) => {
                self.all_moved.lock().insert(operation.uid.clone());
            }
            Said::Started | Said::Stopped | Said::Remark(..) => return,
        }
        self.nudge(operation.kind, &operation.name);
    }

    /// Whether the mover of an operation says that all has moved.
    pub(crate) fn says_all_moved(&self, uid: &str) -> bool {
        self.all_moved.lock().contains(uid)
    }

    /// What the mover of an operation has said is not what the next one says.
    pub(crate) fn forget_mover(&self, uid: &str) {
        self.all_moved.lock().remove(uid);
    }

    /// For how long this agent has seen a hand-over not get on. Nobody may have been there to see to it before.
    pub(crate) fn halted_for(&self, uid: &str) -> SignedDuration {
        let now = self.now();
        now.duration_since(*self.halted.lock().entry(uid.to_owned()).or_insert(now))
    }

    /// A hand-over has got on.
    pub(crate) fn gets_on(&self, uid: &str) {
        self.halted.lock().remove(uid);
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.progress.lock().remove(uid);
        self.gets_on(uid);
        self.all_moved.lock().remove(uid);
        for of in self.pledged.lock().values_mut() {
            of.remove(uid);
        }
    }

    /// Takes a place in a queue for an operation, if there is one. Looking and taking are one, so that of several that look at
    /// the same time not more get a place than there are.
    pub(crate) fn pledge(&self, what: Pledge, uid: &str) -> bool {
        let mut pledged = self.pledged.lock();
        let full = match what {
            Pledge::Accepting => self.has_full_queue(&pledged),
            Pledge::Starting => self.busy(&pledged) >= self.settings().slots,
        };
        !full && pledged.entry(what).or_default().insert(uid.to_owned())
    }

    pub(crate) fn withdraw(&self, what: Pledge, uid: &str) {
        self.pledged.lock().entry(what).or_default().remove(uid);
    }

    /// Whether so many operations are being prepared that another has to wait.
    pub(crate) fn queue_full(&self) -> bool {
        self.has_full_queue(&self.pledged.lock())
    }

    fn has_full_queue(&self, pledged: &Pledges) -> bool {
        let length = self.settings().config.load_concurrency.prepare_queue_length;
        let Ok(length) = usize::try_from(length) else { return false };
        length > 0
            && self.count(pledged, |seen| seen.preparing || seen.accepting && seen.phase == Phase::New)
                >= length
    }

    /// Whether this node cannot take on a prepared operation: those that move, and those whose turn is before it, take all
    /// slots. Restores go before backups, because somebody waits for them; else who came first.
    pub(crate) fn slots_full<K: VolumeOperation>(&self, object: &K) -> bool {
        let settings = self.settings();
        let pledged = self.pledged.lock();
        let busy = self.busy(&pledged);
        let rank = |direction: Direction, accepted: Option<Timestamp>, uid: &str| {
            (direction != Direction::Restore, accepted, uid.to_owned())
        };
        let uid = object.uid().unwrap_or_default();
        let own = rank(K::KIND.direction(), object.accepted_at().map(|time| time.0), &uid);
        let before = self.count(&pledged, |seen| {
            seen.phase == Phase::Prepared
                && seen.here
                && !seen.starting
                && seen.uid != uid
                && rank(seen.direction, seen.accepted, seen.uid) < own
        });
        self.metrics.slots.set(i64::try_from(settings.slots).unwrap_or(i64::MAX));
        self.metrics.slots_busy.set(i64::try_from(busy).unwrap_or(i64::MAX));
        busy + before >= settings.slots
    }

    /// How many volumes this node moves: from the cluster, so a restart forgets none. What was just started here may be shown
    /// as it was before, even before it was given this node.
    fn busy(&self, pledged: &Pledges) -> usize {
        self.count(pledged, |seen| match seen.phase {
            Phase::New | Phase::Accepted | Phase::Prepared => seen.starting,
            Phase::InProgress | Phase::Canceling => seen.here && !seen.moved,
            _ => false,
        })
    }

    /// Lets those have another look that wait for a slot of this node.
    pub(crate) fn slot_is_free(&self) {
        self.nudge_prepared(&self.stores.downloads);
        self.nudge_prepared(&self.stores.pod_restores);
        self.nudge_prepared(&self.stores.uploads);
        self.nudge_prepared(&self.stores.pod_backups);
    }

    fn nudge_prepared<K: VolumeOperation>(&self, operations: &Store<K>) {
        let waits = |it: &K| it.phase() == Phase::Prepared && it.node() == self.options.node;
        for waiting in operations.state_filter(waits) {
            self.nudge(K::KIND, &waiting.name_any());
        }
    }

    fn count(&self, pledged: &Pledges, counts: impl Fn(&Standing<'_>) -> bool) -> usize {
        self.count_of(&self.stores.uploads, pledged, &counts)
            + self.count_of(&self.stores.downloads, pledged, &counts)
            + self.count_of(&self.stores.pod_backups, pledged, &counts)
            + self.count_of(&self.stores.pod_restores, pledged, &counts)
    }

    fn count_of<K: VolumeOperation>(
        &self,
        operations: &Store<K>,
        pledged: &Pledges,
        counts: &impl Fn(&Standing<'_>) -> bool,
    ) -> usize {
        operations.state_filter(|it| counts(&self.standing(it, pledged))).len()
    }

    fn standing<'a, K: VolumeOperation>(&self, object: &'a K, pledged: &Pledges) -> Standing<'a> {
        let uid = object.meta().uid.as_deref().unwrap_or_default();
        let has = |what| pledged.get(&what).is_some_and(|of| of.contains(uid));
        Standing {
            uid,
            direction: K::KIND.direction(),
            phase: object.phase(),
            here: object.node() == self.options.node,
            preparing: object.labels().get(labels::EXPOSE_ON_GOING).is_some_and(|value| value == "true"),
            moved: object.note(notes::MOVED).is_some(),
            accepted: object.accepted_at().map(|time| time.0),
            accepting: has(Pledge::Accepting),
            starting: has(Pledge::Starting),
        }
    }
}

/// Where an operation stands in the queues.
struct Standing<'a> {
    uid: &'a str,
    direction: Direction,
    phase: Phase,
    here: bool,
    preparing: bool,
    moved: bool,
    accepted: Option<Timestamp>,
    accepting: bool,
    starting: bool,
}

/// Whether the control plane has given up on hearing from a node: that is what it makes of a lease that has run out.
fn does_not_answer(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "Unknown")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_is_lost_when_nobody_hears_from_it_and_not_when_it_says_that_it_is_not_ready() {
        let with = |status: &str| {
            let conditions = json!([{ "type": "MemoryPressure", "status": "Unknown" }, { "type": "Ready", "status": status }]);
            does_not_answer(
                &serde_json::from_value(json!({ "status": { "conditions": conditions } })).unwrap(),
            )
        };
        assert!(with("Unknown"));
        assert!(!with("False") && !with("True"));
        assert!(!does_not_answer(&Node::default()));
    }
}
