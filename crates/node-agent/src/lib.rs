//! The node-agent: one state machine for DataUpload, DataDownload, PodVolumeBackup and PodVolumeRestore.
//!
//! [`machine::decide`] looks at one operation and says what to do next. [`run`] is the agent around it: it watches
//! operations and what hosts them, looks at each that changes, and does the one thing that the machine says. It waits for
//! nothing and remembers nothing that the cluster does not know too, so it may end at any moment and another goes on.

#![forbid(unsafe_code)]

mod act;
mod agent;
mod exposing;
mod follow;
mod hosting;
mod http;
mod look;
pub mod machine;
mod metrics;
mod operation;
mod peers;
mod pod_volumes;
mod reasons;
mod recent;
mod settings;
mod sweep;
mod telling;
mod waiting;

pub use settings::SettingsError;

use agent::{Agent, Stores};
use exposing::Exposed;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures::{FutureExt, Stream, StreamExt, stream};
use kube::runtime::controller::{Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt};
use lifeboat_api::v1::{PodVolumeBackup, PodVolumeRestore};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload};
use lifeboat_exposer::Kind;
use peers::Peers;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// As many operations of one kind are looked at at once.
const AT_ONCE: u16 = 8;
/// How often operations of others are looked at, which may have fallen to this agent though nothing of them has changed. Shorter
/// than the time after which they fall to another one.
const OTHERS: Duration = Duration::from_secs(15);

/// How an agent is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The namespace of Velero.
    pub namespace: String,
    /// The node of this agent.
    pub node: String,
    /// The DaemonSet that this agent is of.
    pub daemon_set: String,
    /// The mover whose operations are ours; empty for Velero's built-in one.
    pub data_mover: String,
    /// How long making a volume reachable may take.
    pub prepare_timeout: Duration,
    /// How long movers wait for objects of Kubernetes, and a restored volume for its claim, if their operation does not say.
    pub resource_timeout: lifeboat_api::Duration,
    /// Where metrics are served.
    pub metrics_address: SocketAddr,
    /// The config map of the node-agent; if empty, `node-agent-config` is used if it is there.
    pub node_agent_config_map: String,
    /// The config map of the repositories, if there is one.
    pub repository_config_map: String,
}

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster refuses or does not answer.
    #[error("the cluster does not do what is asked of it: {0}")]
    Kubernetes(#[from] kube::Error),
    /// The settings cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The DaemonSet is not that of a node-agent.
    #[error(transparent)]
    Surroundings(#[from] lifeboat_exposer::SurroundingsError),
    /// The DaemonSet is not there.
    #[error(
        "the daemonset {daemon_set}, after which hosting pods are made, is gone: install the node-agent again"
    )]
    Gone {
        /// The DaemonSet.
        daemon_set: String,
    },
    /// An object cannot be written.
    #[error("an object cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Metrics cannot be made.
    #[error("metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The metrics address cannot be used.
    #[error("metrics cannot be served at {address}: {source}; choose another one with --metrics-address")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// A watch has ended, which it does only with the agent.
    #[error("a watch has ended")]
    WatchEnded,
}

/// Runs an agent until `stop` comes. What it was about to do is left to whoever runs next.
///
/// # Errors
/// If it cannot start: the cluster cannot be reached, the settings cannot be used, or the metrics address is taken. What goes
/// wrong later is tried again and logged.
pub async fn run(
    client: Client,
    options: Options,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> Result<(), Error> {
    let stop = stop.shared();
    let metrics = metrics::Metrics::new(&options.node)?;
    let ready = Arc::new(AtomicBool::new(false));
    let address = options.metrics_address;
    let listener = listen(address).await.map_err(|source| Error::Address { address, source })?;
    tokio::spawn(http::serve(listener, metrics.clone(), Arc::clone(&ready)));

    let mut nudges = HashMap::new();
    let mut channel = |kind| {
        let (sender, receiver) = unbounded();
        nudges.insert(kind, sender.clone());
        (sender, receiver)
    };
    let (to_uploads, uploads) = channel(Kind::DataUpload);
    let (to_downloads, downloads) = channel(Kind::DataDownload);
    let (to_pod_backups, pod_backups) = channel(Kind::PodVolumeBackup);
    let (to_pod_restores, pod_restores) = channel(Kind::PodVolumeRestore);
    let namespace = &options.namespace;
    let stores = Stores {
        uploads: follow::operations::<DataUpload>(&client, namespace, to_uploads),
        downloads: follow::operations::<DataDownload>(&client, namespace, to_downloads),
        pod_backups: follow::operations::<PodVolumeBackup>(&client, namespace, to_pod_backups),
        pod_restores: follow::operations::<PodVolumeRestore>(&client, namespace, to_pod_restores),
        nudges,
    };
    let agent = Agent::start(client, options, metrics, stores).await?;
    tracing::info!(node = agent.options.node, slots = agent.settings().slots, "the node-agent is at work");
    tokio::spawn(sweep::sweep(Arc::clone(&agent)));
    ready.store(true, Ordering::Relaxed);
    let stores = &agent.stores;
    futures::future::join4(
        drive(stores.uploads.clone(), uploads, Arc::clone(&agent), stop.clone()),
        drive(stores.downloads.clone(), downloads, Arc::clone(&agent), stop.clone()),
        drive(stores.pod_backups.clone(), pod_backups, Arc::clone(&agent), stop.clone()),
        drive(stores.pod_restores.clone(), pod_restores, Arc::clone(&agent), stop),
    )
    .await;
    Ok(())
}

/// Listens at an address; where there is no IPv6, every address means every one of IPv4.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

/// Looks at every operation of a kind that changes or is nudged, as far as it may be ours. Whoever fills the store nudges too, so
/// the controller itself watches nothing.
async fn drive<K: Exposed>(
    operations: Store<K>,
    nudges: UnboundedReceiver<String>,
    agent: Arc<Agent>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let (ours, known) = (Arc::clone(&agent), operations.clone());
    let nudged = nudges.filter_map(move |name| {
        let reference = ObjectRef::<K>::new(&name).within(&ours.options.namespace);
        let object = known.get(&reference).filter(|object| concerns::<K>(&ours, object));
        std::future::ready(object.map(|_| reference))
    });
    let (ours, known) = (Arc::clone(&agent), operations.clone());
    let fallen = times(agent.peer_changes()).flat_map(move |()| {
        // Looked at when the store is let go of: whoever counts slots holds them before it looks into the store.
        let found = known.state().into_iter().filter(|object| concerns::<K>(&ours, object));
        stream::iter(found.map(|object| ObjectRef::from_obj(&*object)).collect::<Vec<_>>())
    });
    Controller::for_stream(stream::pending(), operations)
        .graceful_shutdown_on(stop)
        .with_config(Config::default().concurrency(AT_ONCE))
        .reconcile_on(stream::select(nudged, fallen))
        .run(act::reconcile::<K>, act::retry::<K>, agent)
        .for_each(|result| async move {
            match result {
                Ok((object, _)) => tracing::trace!(name = object.name, "looked at"),
                Err(error) => tracing::debug!(%error, "a look came to nothing"),
            }
        })
        .await;
}

/// Whether an operation is to be looked at here; what others have brought to its end is forgotten.
fn concerns<K: Exposed>(agent: &Agent, object: &K) -> bool {
    let ours = look::may_be_ours(agent, object);
    if !ours && object.phase().is_final() {
        agent.forget(&object.uid().unwrap_or_default());
    }
    ours
}

/// The moments at which operations of others are looked at: whenever agents come or go, and from time to time.
fn times(peers: watch::Receiver<Arc<Peers>>) -> impl Stream<Item = ()> + Send {
    stream::unfold(peers, |mut peers| async {
        // An end of the changes would be one without end.
        if let Ok(Err(_)) = tokio::time::timeout(OTHERS, peers.changed()).await {
            tokio::time::sleep(OTHERS).await;
        }
        Some(((), peers))
    })
}
