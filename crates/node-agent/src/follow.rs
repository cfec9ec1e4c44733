//! Following the cluster: what changes, and which operation is looked at again for it.

use crate::Options;
use crate::agent::Agent;
use crate::operation::VolumeOperation;
use crate::peers::Peers;
use crate::settings::{Settings, Sources, USUAL_NAME};
use futures::channel::mpsc::UnboundedSender;
use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use lifeboat_api::Phase;
use lifeboat_api::v1::PodVolumeRestore;
use lifeboat_datapath::observe::read_event;
use lifeboat_datapath::wire::Reason;
use lifeboat_exposer::{Kind, ledger};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often settings are read again though nobody has said that they changed: the node's labels are not watched.
const SETTINGS_AGE: Duration = Duration::from_secs(60);

/// All operations of a kind, kept up to date. Has each looked at that changes.
pub(crate) fn operations<K: VolumeOperation>(
    client: &Client,
    namespace: &str,
    nudge: UnboundedSender<String>,
) -> Store<K> {
    let (store, writer) = reflector::store();
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let changes = watcher(api, watcher::Config::default()).default_backoff();
    let open = changes.try_filter_map(|event| std::future::ready(Ok(without_what_is_over(event))));
    let open = open.modify(|it: &mut K| it.meta_mut().managed_fields = None).reflect(writer);
    tokio::spawn(open.touched_objects().for_each(move |change| {
        match &change {
            Ok(object) if is_over(object) => {}
            // The receiver goes only when the agent ends.
            Ok(object) => drop(nudge.unbounded_send(object.name_any())),
            Err(_) => log_failure(&change),
        }
        std::future::ready(())
    }));
    store
}

/// What is over and has nothing left to clean up is not kept: clusters have the operations of all their backups, of months.
fn without_what_is_over<K: VolumeOperation>(event: watcher::Event<K>) -> Option<watcher::Event<K>> {
    match event {
        watcher::Event::Apply(object) if is_over(&object) => Some(watcher::Event::Delete(object)),
        watcher::Event::InitApply(object) if is_over(&object) => None,
        other => Some(other),
    }
}

fn is_over<K: VolumeOperation>(object: &K) -> bool {
    object.phase().is_final() && !object.finalizers().iter().any(|one| one == K::FINALIZER)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = |all: &Vec<_>| {
        all.iter().any(|one: &k8s_openapi::api::core::v1::PodCondition| {
            one.type_ == "Ready" && one.status == "True"
        })
    };
    pod.metadata.deletion_timestamp.is_none() && conditions.is_some_and(ready)
}

/// Keeps up with which agents are at work.
pub(crate) fn follow_peers(pods: Api<Pod>, options: &Options, announce: watch::Sender<Arc<Peers>>) {
    let of_agents = watcher::Config::default().labels(&format!("name={}", options.daemon_set));
    let (agents, writer) = reflector::store();
    let changes = watcher(pods, of_agents).default_backoff().modify(keep_what_matters).reflect(writer);
    let own = options.node.clone();
    let mut first = true;
    tokio::spawn(changes.for_each(move |event| {
        match &event {
            // The list is not complete.
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => {}
            Ok(_) => {
                let ready = agents.state_filter(is_ready);
                let nodes = ready.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
                let first = std::mem::take(&mut first);
                announce.send_if_modified(|known| {
                    let now = Arc::new(known.followed_by(nodes.chain([own.clone()])));
                    let changed = first || *known != now;
                    *known = now;
                    changed
                });
            }
            Err(_) => log_failure(&event),
        }
        std::future::ready(())
    }));
}

/// Has another look at the operation of every hosting object that changes.
pub(crate) fn follow<K>(
    agent: &Arc<Agent>,
    changes: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
) where
    K: Resource + Debug + Send + 'static,
{
    let agent = Arc::clone(agent);
    tokio::spawn(async move {
        let mut changes = std::pin::pin!(changes);
        while let Some(change) = changes.next().await {
            match &change {
                Ok(object) => nudge_owner(&agent, object.meta()),
                Err(_) => log_failure(&change),
            }
        }
    });
}

/// Has another look at what a pod of this node hosts, or what is to be restored into it, whenever that pod changes.
pub(crate) fn follow_pods(
    agent: &Arc<Agent>,
    changes: impl Stream<Item = Result<Pod, watcher::Error>> + Send + 'static,
) {
    let agent = Arc::clone(agent);
    tokio::spawn(changes.for_each(move |change| {
        match &change {
            Ok(pod) => {
                nudge_owner(&agent, &pod.metadata);
                let waits =
                    |it: &PodVolumeRestore| it.phase() == Phase::New && it.spec.pod.uid == pod.metadata.uid;
                for restore in agent.stores.pod_restores.state_filter(waits) {
                    agent.nudge(Kind::PodVolumeRestore, &restore.name_any());
                }
            }
            Err(_) => log_failure(&change),
        }
        std::future::ready(())
    }));
}

/// Most of a pod that hosts nothing is of no interest here, and there are many.
pub(crate) fn keep_what_matters(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if pod.labels().contains_key(ledger::HOSTS) {
        return;
    }
    pod.metadata.annotations = None;
    pod.metadata.labels = None;
    if let Some(spec) = &mut pod.spec {
        *spec = PodSpec { node_name: spec.node_name.take(), ..PodSpec::default() };
    }
    if let Some(status) = &mut pod.status {
        *status = PodStatus {
            phase: status.phase.take(),
            conditions: status.conditions.take(),
            init_container_statuses: status.init_container_statuses.take(),
            ..PodStatus::default()
        };
    }
}

fn nudge_owner(agent: &Agent, metadata: &ObjectMeta) {
    if let Some(entry) = ledger::entry(metadata) {
        agent.nudge(entry.kind, &entry.name);
    }
}

fn log_failure<T>(event: &Result<T, watcher::Error>) {
    if let Err(error) = event {
        tracing::warn!(%error, "a watch failed and starts again");
    }
}

/// Takes down what movers say for one reason: how far they are, or that all has moved.
pub(crate) fn listen(agent: &Arc<Agent>, reason: Reason) {
    let agent = Arc::clone(agent);
    let events: Api<Event> = Api::namespaced(agent.client.clone(), &agent.options.namespace);
    let for_this = watcher::Config::default().fields(&format!("reason={reason}"));
    tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher(events, for_this).default_backoff().applied_objects());
        while let Some(event) = events.next().await {
            let Ok(event) = event.as_ref().inspect_err(|error| {
                tracing::warn!(%error, "a watch failed and starts again");
            }) else {
                continue;
            };
            for (operation, said) in Kind::ALL.into_iter().filter_map(|kind| read_event(kind, event)) {
                if agent.moves(&operation) {
                    agent.take_down(&operation, &said);
                }
            }
        }
    });
}

/// Reads the settings again when a config map changes, and from time to time. Settings that cannot be used leave those in
/// force that can.
pub(crate) fn reread(agent: &Arc<Agent>, sources: Sources, announce: watch::Sender<Arc<Settings>>) {
    let client = agent.client.clone();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &sources.namespace);
    let name = if sources.node_agent.is_empty() { USUAL_NAME } else { &sources.node_agent };
    let ours = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let agent = Arc::downgrade(agent);
    tokio::spawn(async move {
        let mut changes =
            std::pin::pin!(watcher(maps, ours).default_backoff().touched_objects().map_ok(drop));
        loop {
            let _ = tokio::time::timeout(SETTINGS_AGE, changes.next()).await;
            let Some(agent) = agent.upgrade() else { return };
            match sources.read(&client).await {
                Ok(settings) => {
                    let changed = announce.send_if_modified(|current| {
                        let changed = **current != settings;
                        if changed {
                            *current = Arc::new(settings);
                        }
                        changed
                    });
                    if changed {
                        tracing::info!("settings have changed");
                        agent.slot_is_free();
                    }
                }
                Err(error) => tracing::error!(%error, "the settings in force stay"),
            }
        }
    });
}
