//! Which exposer serves which kind, and what it has to know of cluster and settings.

use crate::Error;
use crate::agent::Agent;
use crate::operation::{VolumeOperation, notes};
use crate::recent::Attachments;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Node, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim, Pod, ResourceRequirements,
};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use lifeboat_api::config::BackupPvc;
use lifeboat_api::v2alpha1::{DataDownload, DataUpload};
use lifeboat_api::{Duration, NodeOs};
use lifeboat_exposer::{
    After, HostedVolume, Next, Placement, Surroundings, Thing, VolumeSource, Waiting, cache_size, download,
    pod_resources, upload,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Storage classes that wait for a pod before they make volumes say this.
const LATE: &str = "WaitForFirstConsumer";
/// On a claim: the node for which its volume was made.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// With this annotation the copy must not be on a node that has the original.
const FAST_CLONE: &str = "csi.vsphere.volume/fast-provisioning";
const OS_LABEL: &str = "kubernetes.io/os";
/// The program in the image, if the DaemonSet does not say.
const PROGRAM: &str = "/velero";

/// What has to be so before an operation can be taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Gate {
    /// The node whose agent has to act, if there is no choice.
    pub(crate) home: Option<String>,
    /// What has to come about first.
    pub(crate) waiting: Option<Waiting>,
    /// Why it never will.
    pub(crate) hopeless: Option<String>,
}

/// An operation with its exposer.
pub(crate) trait Exposed: VolumeOperation {
    /// All that is there of its hosting.
    type Seen: Send + Sync;
    /// What hosting objects are made from.
    type Details: Send + Sync;
    /// Whether something of the hosting is for somebody else when the data was moved.
    const HANDS_OVER: bool = false;

    /// The node whose agent has to see to it, as far as that is known without asking.
    fn home(&self, _: &Agent) -> Option<String> {
        None
    }
    /// What has to be so before it can be taken.
    fn gate(&self, _: &Agent) -> impl Future<Output = Result<Gate, kube::Error>> + Send {
        std::future::ready(Ok(Gate::default()))
    }
    /// Looks at the cluster; `all` also at what is needed only for cleaning up.
    fn look(&self, agent: &Agent, all: bool) -> impl Future<Output = Result<Self::Seen, kube::Error>> + Send;
    /// The same hosting after a write.
    fn take_in(&self, seen: &mut Self::Seen, after: After);
    /// What hosting objects are made from, or what is to be said instead.
    fn details(
        &self,
        agent: &Agent,
        seen: &Self::Seen,
    ) -> impl Future<Output = Result<Result<Self::Details, Next>, Error>> + Send;
    /// The next step towards a hosting pod.
    fn next(&self, details: &Self::Details, seen: &Self::Seen) -> Next;
    /// The next step towards nothing being left.
    fn clean(&self, seen: &Self::Seen) -> Next;
    /// The next step towards a volume with its claim, if it is to be handed over.
    fn hand_over(&self, _: &Self::Seen) -> Next {
        Next::Done
    }
    /// The next step towards a volume that says that it is kept, if it does not reach its claim in time.
    fn keep(&self, _: &Self::Seen) -> Next {
        Next::Done
    }
    /// Why there is nobody to hand the volume to, if so.
    fn unclaimable(&self, _: &Self::Seen) -> Option<String> {
        None
    }
    /// Whether a pod waits for it that does not know how it has ended.
    fn is_awaited(&self, _: &Agent) -> impl Future<Output = Result<bool, kube::Error>> + Send {
        std::future::ready(Ok(false))
    }
    /// The next step towards a hosting pod that tells such a pod; `spent` says that the one that is there does not.
    fn tell(
        &self,
        _: &Agent,
        _: &Self::Seen,
        _spent: bool,
    ) -> impl Future<Output = Result<Next, Error>> + Send {
        std::future::ready(Ok(Next::Done))
    }
    /// The hosting pod, if who is told by it has to be looked after.
    fn messenger(_: &Self::Seen) -> Option<&Pod> {
        None
    }
    /// What has to be known of the hosting, if something of it is to be handed over, when the data was moved; `None` if it
    /// cannot be told yet.
    fn moved(&self, _: Option<&Self::Seen>) -> Option<String> {
        Some("true".to_owned())
    }
    /// What may know why it does not come up.
    fn things(seen: &Self::Seen) -> Vec<Thing<'_>>;
}

impl Exposed for DataUpload {
    type Seen = upload::Seen;
    type Details = (upload::Source, upload::Details);

    async fn look(&self, agent: &Agent, all: bool) -> Result<Self::Seen, kube::Error> {
        upload::Seen::look(&agent.client, &self.operation(), source(self).as_ref(), all).await
    }

    fn take_in(&self, seen: &mut Self::Seen, after: After) {
        seen.take_in(&self.operation(), after);
    }

    async fn details(&self, agent: &Agent, _: &Self::Seen) -> Result<Result<Self::Details, Next>, Error> {
        let Some(source) = source(self) else {
            return Ok(Err(Next::Impossible("spec.csiSnapshot is missing".to_owned())));
        };
        let details = upload_details(agent, self, &source).await?;
        Ok(details.map(|details| (source, details)))
    }

    fn next(&self, (source, details): &Self::Details, seen: &Self::Seen) -> Next {
        upload::next(&self.operation(), source, details, seen)
    }

    fn clean(&self, seen: &Self::Seen) -> Next {
        upload::clean(&self.operation(), seen)
    }

    fn things(seen: &Self::Seen) -> Vec<Thing<'_>> {
        seen.things()
    }
}

impl Exposed for DataDownload {
    type Seen = download::Seen;
    type Details = download::Details;
    const HANDS_OVER: bool = true;

    async fn look(&self, agent: &Agent, _: bool) -> Result<Self::Seen, kube::Error> {
        // There is none if somebody had taken the hosting claim away before.
        let volume = self.note(notes::MOVED).filter(|name| !name.is_empty());
        download::Seen::look(&agent.client, &self.operation(), Some(&target(self)), volume).await
    }

    fn take_in(&self, seen: &mut Self::Seen, after: After) {
        seen.take_in(&self.operation(), after);
    }

    async fn details(&self, agent: &Agent, seen: &Self::Seen) -> Result<Result<Self::Details, Next>, Error> {
        download_details(agent, self, seen.target.as_ref()).await.map(Ok)
    }

    fn next(&self, details: &Self::Details, seen: &Self::Seen) -> Next {
        download::next(&self.operation(), &target(self), details, seen)
    }

    fn clean(&self, seen: &Self::Seen) -> Next {
        download::clean(&self.operation(), seen)
    }

    fn hand_over(&self, seen: &Self::Seen) -> Next {
        download::hand_over(&self.operation(), &target(self), seen)
    }

    fn keep(&self, seen: &Self::Seen) -> Next {
        download::keep(&self.operation(), &target(self), seen)
    }

    fn unclaimable(&self, seen: &Self::Seen) -> Option<String> {
        download::unclaimable(&target(self), seen)
    }

    fn moved(&self, seen: Option<&Self::Seen>) -> Option<String> {
        let seen = seen?;
        let volume = download::filled_volume(seen).unwrap_or_default();
        // Without its name the volume could not be found any more once its claim has let go of it.
        (seen.claim.is_none() || !volume.is_empty()).then(|| volume.to_owned())
    }

    fn things(seen: &Self::Seen) -> Vec<Thing<'_>> {
        seen.things()
    }
}

fn source(upload: &DataUpload) -> Option<upload::Source> {
    let snapshot = upload.spec.csi_snapshot.as_ref()?;
    Some(upload::Source {
        namespace: upload.spec.source_namespace.clone(),
        snapshot: snapshot.volume_snapshot.clone(),
        storage_class: snapshot.storage_class.clone(),
    })
}

fn target(download: &DataDownload) -> download::Target {
    let volume = &download.spec.target_volume;
    download::Target { namespace: volume.namespace.clone(), name: volume.pvc.clone() }
}

/// What the pod of a snapshot is made from, or what is to be said instead.
async fn upload_details(
    agent: &Agent,
    object: &DataUpload,
    source: &upload::Source,
) -> Result<Result<upload::Details, Next>, Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(agent.client.clone(), &source.namespace);
    let name = &object.spec.source_pvc;
    let Some(claim) = claims.get_opt(name).await? else {
        return Ok(Err(Next::Impossible(format!(
            "the claim {}/{name} is gone, and with it what is known of its volume; back up again",
            source.namespace
        ))));
    };
    let settings = agent.settings();
    let mut configured = settings.config.backup_pvc.get(&source.storage_class).cloned().unwrap_or_default();
    let source_class = storage_class(agent, &source.storage_class).await?;
    let (class, storage_class) = match configured.storage_class.as_str() {
        "" => (source.storage_class.clone(), source_class.clone()),
        other => (other.to_owned(), storage_class(agent, other).await?),
    };
    let Some(storage_class) = storage_class else {
        return Ok(Err(Next::Wait(Waiting {
            for_what: format!("the storage class {class} to exist"),
            advice: "make it, or name another one under backupPVC in the config map of the node-agent",
        })));
    };
    let driver = object.spec.csi_snapshot.as_ref().map_or("", |snapshot| snapshot.driver.as_str());
    if !driver.is_empty() && storage_class.provisioner != driver {
        return Ok(Err(Next::Impossible(format!(
            "the storage class {class} is of the driver {}, but the snapshot is of {driver}, and a driver can read \
             only its own snapshots: name a class of {driver} under backupPVC in the config map of the node-agent",
            storage_class.provisioner
        ))));
    }
    let spec = claim.spec.clone().unwrap_or_default();
    let block = spec.volume_mode.as_deref() == Some("Block");
    let volume = match spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => agent.known.volumes.get_opt(&Api::all(agent.client.clone()), name).await?,
        None => None,
    };
    let excluded = excluded_nodes(agent, volume.as_ref(), &mut configured).await;
    let placement = Placement {
        node: None,
        allowed: Placement::allowed_for(&settings.config.load_affinity, &class),
        reachable: reachable(source_class.as_ref(), volume.as_ref()),
        excluded,
        os: Some(source_os(agent, &claim, volume.as_ref(), &storage_class, block).await?),
    };
    let no_relabeling = configured.spc_no_relabeling && configured.read_only;
    if configured.spc_no_relabeling && !configured.read_only {
        tracing::warn!(class, "spcNoRelabeling has no effect without readOnly");
    }
    let volume_source = VolumeSource::Claim { block, read_only: configured.read_only };
    let (surroundings, program) = surroundings(agent, placement.os).await?;
    Ok(Ok(upload::Details {
        hosted: HostedVolume {
            no_relabeling,
            ..hosted_volume(agent, volume_source, object.operation_timeout(), program).await?
        },
        configured,
        block,
        requested: requested(&claim),
        placement,
        surroundings,
    }))
}

/// What the pod of a restore is made from.
async fn download_details(
    agent: &Agent,
    object: &DataDownload,
    target: Option<&PersistentVolumeClaim>,
) -> Result<download::Details, Error> {
    let settings = agent.settings();
    let spec = target.and_then(|target| target.spec.clone()).unwrap_or_default();
    let class_name = spec.storage_class_name.clone().unwrap_or_default();
    let class = storage_class(agent, &class_name).await?;
    let late = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some(LATE))
        && !settings.config.restore_pvc.ignore_delay_binding;
    let os = object.spec.node_os.filter(|os| *os != NodeOs::Auto).unwrap_or(NodeOs::Linux);
    let block = spec.volume_mode.as_deref() == Some("Block");
    let cache = cache(agent, object.spec.snapshot_size).await?;
    let (surroundings, program) = surroundings(agent, Some(os)).await?;
    let volume_source = VolumeSource::Claim { block, read_only: false };
    Ok(download::Details {
        late,
        hosted: HostedVolume {
            cache: cache.is_some(),
            ..hosted_volume(agent, volume_source, object.operation_timeout(), program).await?
        },
        cache,
        placement: Placement {
            allowed: Placement::allowed_for(&settings.config.load_affinity, &class_name),
            os: Some(os),
            ..Placement::default()
        },
        surroundings,
    })
}

pub(crate) async fn hosted_volume(
    agent: &Agent,
    source: VolumeSource,
    timeout: Duration,
    program: String,
) -> Result<HostedVolume, Error> {
    let settings = agent.settings();
    let config = &settings.config;
    let resources = match config.pod_resources.as_ref().map(pod_resources) {
        Some(Ok(resources)) => resources,
        Some(Err(error)) => {
            tracing::warn!(%error, "podResources have no effect");
            ResourceRequirements::default()
        }
        None => ResourceRequirements::default(),
    };
    Ok(HostedVolume {
        source,
        cache: false,
        resource_timeout: resource_timeout(agent, timeout),
        no_relabeling: false,
        program,
        labels: config.pod_labels.clone(),
        annotations: config.pod_annotations.clone(),
        resources,
        priority_class: priority_class(agent, &config.priority_class_name).await?,
        beside_velero: !agent.options.data_mover.is_empty(),
    })
}

/// How long single steps of the cluster may take, for an operation that says this.
pub(crate) fn resource_timeout(agent: &Agent, said: Duration) -> Duration {
    if said.is_zero() { agent.options.resource_timeout } else { said }
}

async fn priority_class(agent: &Agent, name: &str) -> Result<Option<String>, Error> {
    if name.is_empty() {
        return Ok(None);
    }
    let found = Api::<PriorityClass>::all(agent.client.clone()).get_opt(name).await?;
    if found.is_none() {
        tracing::warn!(name, "the priority class does not exist; hosting pods get none");
    }
    Ok(found.map(|class| class.name_any()))
}

/// The DaemonSet that hosting pods are made after, and the program in its image.
pub(crate) async fn surroundings(agent: &Agent, os: Option<NodeOs>) -> Result<(Surroundings, String), Error> {
    let suffix = if os == Some(NodeOs::Windows) { "-windows" } else { "" };
    let name = format!("{}{suffix}", agent.options.daemon_set);
    let sets: Api<DaemonSet> = Api::namespaced(agent.client.clone(), &agent.options.namespace);
    let set = agent.known.daemon_sets.get_opt(&sets, &name).await?;
    let set = set.ok_or_else(|| Error::Gone { daemon_set: name })?;
    let containers = set.spec.as_ref().and_then(|spec| Some(&spec.template.spec.as_ref()?.containers));
    let command = containers.and_then(|all| all.first()?.command.as_ref()?.first().cloned());
    Ok((Surroundings::of(&set)?, command.unwrap_or_else(|| PROGRAM.to_owned())))
}

async fn storage_class(agent: &Agent, name: &str) -> Result<Option<StorageClass>, kube::Error> {
    if name.is_empty() {
        return Ok(None);
    }
    agent.known.storage_classes.get_opt(&Api::all(agent.client.clone()), name).await
}

/// Nodes that can reach the copy, if the class makes volumes near their users: those that reach the original.
fn reachable(class: Option<&StorageClass>, volume: Option<&PersistentVolume>) -> Vec<NodeSelectorTerm> {
    if class.is_none_or(|class| class.volume_binding_mode.as_deref() != Some(LATE)) {
        return Vec::new();
    }
    let affinity = volume.and_then(|volume| volume.spec.as_ref()?.node_affinity.clone());
    affinity.and_then(|affinity| affinity.required).map_or_else(Vec::new, |terms| terms.node_selector_terms)
}

/// The system that the volume needs, as far as can be told: that of a node that uses it, of the node for which it was made,
/// or that of its file system.
async fn source_os(
    agent: &Agent,
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
    class: &StorageClass,
    block: bool,
) -> Result<NodeOs, kube::Error> {
    if block {
        return Ok(NodeOs::Linux);
    }
    let selected = claim.annotations().get(SELECTED_NODE).cloned();
    // A node does not change its system: who used the volume a moment ago tells as much as who uses it now.
    let known = agent.known.attachments.or_ask("", async { Ok(attachments(agent).await) }).await?;
    let attached = known.map_or_else(Vec::new, |known| nodes_of(volume, &known));
    for name in attached.into_iter().chain(selected) {
        if let Some(os) = known_os(agent, &name).await? {
            return Ok(os);
        }
    }
    let parameters = class.parameters.as_ref();
    let file_system = parameters.and_then(|parameters| parameters.get("csi.storage.k8s.io/fstype"));
    Ok(if file_system.is_some_and(|name| name == "ntfs") { NodeOs::Windows } else { NodeOs::Linux })
}

/// The system of a node, if it says so.
pub(crate) async fn known_os(agent: &Agent, node: &str) -> Result<Option<NodeOs>, kube::Error> {
    let ask = async {
        let node = Api::<Node>::all(agent.client.clone()).get_opt(node).await?;
        let os = node.and_then(|node| node.labels().get(OS_LABEL).cloned());
        Ok(os.map(|os| if os == "windows" { NodeOs::Windows } else { NodeOs::Linux }))
    };
    agent.known.systems.or_ask(node, ask).await
}

/// All that are attached, if they can be told. There is no way to ask for those of one volume.
async fn attachments(agent: &Agent) -> Option<Attachments> {
    match Api::<VolumeAttachment>::all(agent.client.clone()).list(&ListParams::default()).await {
        Ok(all) => {
            let specs = all.items.into_iter().map(|it| it.spec);
            let attached = specs.filter_map(|it| Some((it.source.persistent_volume_name?, it.node_name)));
            Some(Arc::new(attached.collect()))
        }
        Err(error) => {
            tracing::warn!(%error, "attachments cannot be listed");
            None
        }
    }
}

/// Those nodes of all that have this volume.
fn nodes_of(volume: Option<&PersistentVolume>, attached: &Attachments) -> Vec<String> {
    let name = volume.map(ResourceExt::name_any).unwrap_or_default();
    attached.iter().filter(|(volume, _)| *volume == name).map(|(_, node)| node.clone()).collect()
}

/// Nodes where a fast clone must not be: those that have the original. Without knowing them there is no fast clone.
async fn excluded_nodes(
    agent: &Agent,
    volume: Option<&PersistentVolume>,
    configured: &mut BackupPvc,
) -> Vec<String> {
    if !configured.annotations.contains_key(FAST_CLONE) {
        return Vec::new();
    }
    let attached = attachments(agent).await;
    if attached.is_none() {
        tracing::warn!("the copy is not made as a fast clone: nobody knows where it must not be");
        configured.annotations.remove(FAST_CLONE);
    }
    attached.map_or_else(Vec::new, |attached| nodes_of(volume, &attached))
}

/// The class and size of the cache volume, if there is to be one.
pub(crate) async fn cache(agent: &Agent, snapshot_size: i64) -> Result<Option<(String, u64)>, Error> {
    let settings = agent.settings();
    let Some(configured) = &settings.config.cache_pvc else { return Ok(None) };
    let size = cache_size(
        u64::try_from(snapshot_size).unwrap_or(0),
        u64::try_from(configured.resident_threshold_in_mb).unwrap_or(0),
        u64::from(settings.cache_limit_mib),
    );
    let class = storage_class(agent, &configured.storage_class).await?;
    let usable = class.is_some_and(|class| class.reclaim_policy.as_deref().unwrap_or("Delete") == "Delete");
    if !usable {
        tracing::warn!(
            class = configured.storage_class,
            "cachePVC has no effect: its storage class has to exist and to delete volumes that are released"
        );
    }
    Ok(size.filter(|_| usable).map(|size| (configured.storage_class.clone(), size)))
}

fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let none = BTreeMap::new();
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.unwrap_or(&none).get("storage").cloned().unwrap_or_default()
}
