//! The sweeper of the leak ledger: temporary objects whose operation is gone are removed, and all are counted.

use crate::Error;
use crate::agent::Agent;
use crate::operation::VolumeOperation;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};
use lifeboat_api::v1::{PodVolumeBackup, PodVolumeRestore};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload};
use lifeboat_exposer::ledger::{Entry, HOSTS, entry};
use lifeboat_exposer::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use lifeboat_exposer::{After, Kind, Next, Operation, Outcome, download, perform, pod_volume, upload};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// How often the ledger is gone through.
const INTERVAL: Duration = Duration::from_secs(60);
/// As many steps are taken for one operation in one go.
const STEPS: usize = 16;

/// Goes through the ledger from time to time, if that falls to this agent.
pub(crate) async fn sweep(agent: Arc<Agent>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        if !agent.is_appointed("ledger") {
            continue;
        }
        if let Err(error) = go_through(&agent).await {
            tracing::warn!(%error, "the ledger could not be gone through");
        }
    }
}

/// One object of the ledger.
struct Item {
    entry: Entry,
    /// The volume, if it is one.
    volume: Option<String>,
}

async fn go_through(agent: &Agent) -> Result<(), Error> {
    let namespace = &agent.options.namespace;
    let mut items = Vec::new();
    list(&Api::<Pod>::namespaced(agent.client.clone(), namespace), &mut items).await?;
    list(&Api::<PersistentVolumeClaim>::namespaced(agent.client.clone(), namespace), &mut items).await?;
    list(&Api::<PersistentVolume>::all(agent.client.clone()), &mut items).await?;
    // Where there are no snapshots there are none to forget.
    let snapshots =
        list(&Api::<VolumeSnapshot>::namespaced(agent.client.clone(), namespace), &mut items).await;
    let contents = list(&Api::<VolumeSnapshotContent>::all(agent.client.clone()), &mut items).await;
    for listed in [snapshots, contents] {
        if let Err(error) = listed {
            tracing::debug!(%error, "snapshots cannot be listed");
        }
    }
    let now = agent.now();
    let (mut owned, mut orphans, mut overdue) = (0, 0, 0);
    let mut forgotten: HashMap<String, Item> = HashMap::new();
    let mut known: HashMap<String, bool> = HashMap::new();
    for item in items.into_iter().filter(|item| item.entry.namespace == *namespace) {
        let uid = item.entry.uid.clone();
        let lives = match known.get(&uid) {
            Some(lives) => *lives,
            None => lives(agent, &item.entry).await?,
        };
        known.insert(uid.clone(), lives);
        if lives {
            owned += 1;
            overdue += i64::from(item.entry.expires.is_some_and(|expires| expires < now));
        } else {
            orphans += 1;
            let volume = item.volume.clone();
            let kept = forgotten.entry(uid).or_insert(item);
            kept.volume = kept.volume.take().or(volume);
        }
    }
    for (state, count) in [("owned", owned), ("orphaned", orphans), ("overdue", overdue)] {
        agent.metrics.hosting_objects.with_label_values(&[state]).set(count);
    }
    for item in forgotten.into_values() {
        remove(agent, item).await?;
    }
    Ok(())
}

async fn list<K>(api: &Api<K>, items: &mut Vec<Item>) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + Debug,
{
    let is_volume = K::kind(&()) == "PersistentVolume";
    let found = api.list_metadata(&ListParams::default().labels(HOSTS)).await?;
    items.extend(found.items.iter().filter_map(|object| {
        let metadata: &ObjectMeta = &object.metadata;
        let volume = is_volume.then(|| metadata.name.clone()).flatten();
        Some(Item { entry: entry(metadata)?, volume })
    }));
    Ok(())
}

/// Whether the operation is still there and sees to its objects itself.
async fn lives(agent: &Agent, entry: &Entry) -> Result<bool, kube::Error> {
    match entry.kind {
        Kind::DataUpload => holds::<DataUpload>(agent, entry).await,
        Kind::DataDownload => holds::<DataDownload>(agent, entry).await,
        Kind::PodVolumeBackup => holds::<PodVolumeBackup>(agent, entry).await,
        Kind::PodVolumeRestore => holds::<PodVolumeRestore>(agent, entry).await,
    }
}

async fn holds<K: VolumeOperation>(agent: &Agent, entry: &Entry) -> Result<bool, kube::Error> {
    let found = agent.api::<K>().get_opt(&entry.name).await?;
    Ok(found.is_some_and(|object| {
        object.uid().as_deref() == Some(&entry.uid)
            && (!object.phase().is_final() || object.finalizers().iter().any(|one| one == K::FINALIZER))
    }))
}

async fn remove(agent: &Agent, item: Item) -> Result<(), Error> {
    let Entry { kind, namespace, name, uid, .. } = item.entry;
    tracing::warn!(kind = kind.name(), name, uid, "objects of an operation that is gone are removed");
    let operation = Operation { kind, namespace, name, uid };
    for _ in 0..STEPS {
        let next = match kind {
            Kind::DataUpload => {
                let seen = upload::Seen::look(&agent.client, &operation, None, true).await?;
                upload::clean(&operation, &seen)
            }
            Kind::DataDownload => {
                let volume = item.volume.as_deref();
                let seen = download::Seen::look(&agent.client, &operation, None, volume).await?;
                download::clean(&operation, &seen)
            }
            Kind::PodVolumeBackup | Kind::PodVolumeRestore => {
                let seen = pod_volume::Seen::look(&agent.client, &operation).await?;
                pod_volume::clean(&operation, &seen)
            }
        };
        match next {
            Next::Do(step) => {
                // The only change of a volume that is kept takes it out of the ledger, so this is said once.
                if let Outcome::Done(After::Volume(volume)) = perform(&agent.client, &step).await?
                    && let Some(claim) = download::kept_for(&volume)
                {
                    let volume = volume.name_any();
                    tracing::warn!(
                        volume,
                        claim,
                        "a restored volume that its claim did not get in time is kept"
                    );
                }
            }
            Next::Wait(_) | Next::Done | Next::Impossible(_) => return Ok(()),
        }
    }
    Ok(())
}
