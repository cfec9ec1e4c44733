//! Making a CSI snapshot readable in a hosting pod, and taking it all away again.
//!
//! The snapshot that was made in the application's namespace is taken over: a second content for the same snapshot of the
//! storage is made in Velero's namespace, the first one is told to let go, and only then removed. At every moment at least one
//! content stands for the storage's snapshot, so a crash anywhere loses neither data nor track of it.

use crate::resources::nano;
use crate::snapshot::{
    ContentSource, DELETE, RETAIN, SnapshotSource, VolumeSnapshot, VolumeSnapshotContent,
    VolumeSnapshotContentSpec, VolumeSnapshotSpec,
};
use crate::step::{forget, pod_at_last, remove, stranger};
use crate::{
    Action, After, BackupClaim, HostedVolume, Next, Object, ObjectKind, Operation, Placement, Surroundings,
    backup_claim, hosting_pod, ledger,
};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::Api;
use kube::{Client, ResourceExt};
use lifeboat_api::config::BackupPvc;
use serde_json::json;
use std::collections::BTreeMap;

/// On the content that was taken over: the content that it was taken over from.
const TAKEN_FROM: &str = "lifeboat.io/taken-from";
/// A label of contents that some installations choose their snapshotter by.
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// Where the snapshot comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The namespace of the application.
    pub namespace: String,
    /// The snapshot in it.
    pub snapshot: String,
    /// The storage class of the volume that was snapshotted.
    pub storage_class: String,
}

/// Everything there is of an operation's hosting.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The snapshot in the application's namespace.
    pub source_snapshot: Option<VolumeSnapshot>,
    /// Its content.
    pub source_content: Option<VolumeSnapshotContent>,
    /// The snapshot in Velero's namespace.
    pub snapshot: Option<VolumeSnapshot>,
    /// Its content.
    pub content: Option<VolumeSnapshotContent>,
    /// The claim of the hosting pod.
    pub claim: Option<PersistentVolumeClaim>,
    /// The volume of that claim.
    pub volume: Option<PersistentVolume>,
    /// The hosting pod.
    pub pod: Option<Pod>,
}

/// What claim and pod are made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Details {
    /// What people configured for the storage class.
    pub configured: BackupPvc,
    /// Whether the volume is read as a device.
    pub block: bool,
    /// How large the source is, for drivers that do not say how large its copy has to be.
    pub requested: Quantity,
    /// The pod.
    pub hosted: HostedVolume,
    /// Where it may run.
    pub placement: Placement,
    /// What it takes over from the node-agent.
    pub surroundings: Surroundings,
}

impl Seen {
    /// Looks at the cluster; whoever cleans up after an operation that is gone does not know its source. Once there is a
    /// claim, the snapshots are not needed for going on, only for cleaning up.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn look(
        client: &Client,
        operation: &Operation,
        source: Option<&Source>,
        snapshots_too: bool,
    ) -> Result<Self, kube::Error> {
        let name = &operation.name;
        let mut seen = Self {
            pod: Api::namespaced(client.clone(), &operation.namespace).get_opt(name).await?,
            claim: Api::namespaced(client.clone(), &operation.namespace).get_opt(name).await?,
            ..Self::default()
        };
        if let Some(volume) = seen.claim.as_ref().and_then(volume_name) {
            seen.volume = Api::all(client.clone()).get_opt(volume).await?;
        }
        if seen.claim.is_some() && !snapshots_too {
            return Ok(seen);
        }
        let contents: Api<VolumeSnapshotContent> = Api::all(client.clone());
        seen.snapshot = Api::namespaced(client.clone(), &operation.namespace).get_opt(name).await?;
        seen.content = contents.get_opt(name).await?;
        if let Some(source) = source {
            let snapshots: Api<VolumeSnapshot> = Api::namespaced(client.clone(), &source.namespace);
            seen.source_snapshot = snapshots.get_opt(&source.snapshot).await?;
        }
        let source_content = seen.source_content_name().map(str::to_owned);
        if let Some(source_content) = source_content {
            seen.source_content = contents.get_opt(&source_content).await?;
        }
        Ok(seen)
    }

    /// The same after a write.
    pub fn take_in(&mut self, operation: &Operation, after: After) {
        match after {
            After::Pod(pod) => self.pod = Some(*pod),
            After::Claim(claim) => self.claim = Some(*claim),
            After::Volume(volume) => self.volume = Some(*volume),
            After::Snapshot(snapshot) => {
                let ours = snapshot.name_any() == operation.name
                    && snapshot.namespace().as_ref() == Some(&operation.namespace);
                *if ours { &mut self.snapshot } else { &mut self.source_snapshot } = Some(*snapshot);
            }
            After::Content(content) => {
                let ours = content.name_any() == operation.name;
                *if ours { &mut self.content } else { &mut self.source_content } = Some(*content);
            }
            After::Gone(gone) => {
                forget(&mut self.pod, &gone);
                forget(&mut self.claim, &gone);
                forget(&mut self.volume, &gone);
                forget(&mut self.snapshot, &gone);
                forget(&mut self.content, &gone);
                forget(&mut self.source_snapshot, &gone);
                forget(&mut self.source_content, &gone);
            }
        }
    }

    /// The content that the snapshot was made with: noted when it was taken over, else named by the snapshot.
    #[must_use]
    pub fn source_content_name(&self) -> Option<&str> {
        let noted = self.content.as_ref().and_then(|content| content.annotations().get(TAKEN_FROM));
        let bound = || self.source_snapshot.as_ref().and_then(VolumeSnapshot::content_name);
        noted.map(String::as_str).or_else(bound)
    }

    /// All that carries the operation's name.
    fn objects(&self) -> [(ObjectKind, Option<&ObjectMeta>); 4] {
        [
            (ObjectKind::Pod, self.pod.as_ref().map(|object| &object.metadata)),
            (ObjectKind::Claim, self.claim.as_ref().map(|object| &object.metadata)),
            (ObjectKind::Snapshot, self.snapshot.as_ref().map(|object| &object.metadata)),
            (ObjectKind::Content, self.content.as_ref().map(|object| &object.metadata)),
        ]
    }
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// The next step towards a hosting pod that reads the snapshot.
#[must_use]
pub fn next(operation: &Operation, source: &Source, details: &Details, seen: &Seen) -> Next {
    if let Some(stranger) = stranger(operation, &seen.objects()) {
        return stranger;
    }
    if seen.claim.is_none() {
        if let Some(step) = take_over(operation, source, seen) {
            return step;
        }
        let snapshot = seen.snapshot.as_ref();
        if !snapshot.is_some_and(VolumeSnapshot::ready) {
            let problem = snapshot.and_then(VolumeSnapshot::problem);
            let problem = problem.or_else(|| seen.content.as_ref().and_then(VolumeSnapshotContent::problem));
            return Next::wait(
                explained(format!("the VolumeSnapshot {} to be ready to use", operation.name), problem),
                "if it does not get ready, look at the snapshot controller and at the driver's snapshotter",
            );
        }
        return Next::Do(Action::CreateClaim(Box::new(backup_claim(
            operation,
            &BackupClaim {
                snapshot: &operation.name,
                source_class: &source.storage_class,
                configured: &details.configured,
                block: details.block,
                size: &size(seen, &details.requested),
            },
        ))));
    }
    pod_at_last(seen.pod.as_ref(), || {
        hosting_pod(operation, &details.hosted, &details.placement, &details.surroundings)
    })
}

/// The steps by which the storage's snapshot changes hands; none when that is done.
fn take_over(operation: &Operation, source: &Source, seen: &Seen) -> Option<Next> {
    let name = format!("{}/{}", source.namespace, source.snapshot);
    let Some(_) = &seen.content else {
        let Some(snapshot) = &seen.source_snapshot else {
            return Some(Next::Impossible(format!(
                "the VolumeSnapshot {name} is gone before its data was moved: somebody deleted it; back up again"
            )));
        };
        let ready = snapshot.ready().then_some(seen.source_content.as_ref()).flatten();
        let Some((content, handle)) = ready.and_then(|content| Some((content, content.handle()?))) else {
            let problem = snapshot.problem();
            return Some(Next::wait(
                explained(format!("the VolumeSnapshot {name} to be ready to use"), problem),
                "if it does not get ready, look at the events of the VolumeSnapshot and at the driver's snapshotter",
            ));
        };
        return Some(Next::Do(match &seen.snapshot {
            None => Action::CreateSnapshot(Box::new(our_snapshot(operation, snapshot))),
            Some(ours) => Action::CreateContent(Box::new(our_content(operation, ours, content, handle))),
        }));
    };
    if seen.snapshot.is_none() {
        return Some(Next::Impossible(format!(
            "the VolumeSnapshot {} in {} is gone, and with it what was to be read: somebody deleted it; back up again",
            operation.name, operation.namespace
        )));
    }
    release_source(seen)
}

/// Removes the snapshot in the application's namespace, without what the storage has of it.
fn release_source(seen: &Seen) -> Option<Next> {
    if let Some(content) =
        seen.source_content.as_ref().filter(|content| content.spec.deletion_policy != RETAIN)
    {
        let change = json!({ "spec": { "deletionPolicy": RETAIN } });
        return Some(Next::Do(Action::Patch(Object::of(ObjectKind::Content, &content.metadata), change)));
    }
    if let Some(snapshot) = &seen.source_snapshot {
        return Some(remove(ObjectKind::Snapshot, &snapshot.metadata));
    }
    seen.source_content.as_ref().map(|content| remove(ObjectKind::Content, &content.metadata))
}

fn our_snapshot(operation: &Operation, source: &VolumeSnapshot) -> VolumeSnapshot {
    VolumeSnapshot {
        metadata: ObjectMeta {
            name: Some(operation.name.clone()),
            namespace: Some(operation.namespace.clone()),
            labels: Some(ledger::labels(operation)),
            annotations: Some(with_entry(operation, source.annotations())),
            ..ObjectMeta::default()
        },
        spec: VolumeSnapshotSpec {
            source: SnapshotSource {
                volume_snapshot_content_name: Some(operation.name.clone()),
                ..SnapshotSource::default()
            },
            volume_snapshot_class_name: source.spec.volume_snapshot_class_name.clone(),
        },
        status: None,
    }
}

fn our_content(
    operation: &Operation,
    snapshot: &VolumeSnapshot,
    source: &VolumeSnapshotContent,
    handle: &str,
) -> VolumeSnapshotContent {
    let mut annotations = with_entry(operation, source.annotations());
    annotations.insert(TAKEN_FROM.to_owned(), source.name_any());
    let mut labels = ledger::labels(operation);
    let managed_by = source.labels().get_key_value(MANAGED_BY);
    labels.extend(managed_by.map(|(key, value)| (key.clone(), value.clone())));
    VolumeSnapshotContent {
        metadata: ObjectMeta {
            name: Some(operation.name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: VolumeSnapshotContentSpec {
            volume_snapshot_ref: ObjectReference {
                namespace: Some(operation.namespace.clone()),
                name: Some(operation.name.clone()),
                uid: snapshot.uid(),
                resource_version: snapshot.resource_version(),
                ..ObjectReference::default()
            },
            deletion_policy: DELETE.to_owned(),
            driver: source.spec.driver.clone(),
            volume_snapshot_class_name: source.spec.volume_snapshot_class_name.clone(),
            source: ContentSource { snapshot_handle: Some(handle.to_owned()) },
        },
        status: None,
    }
}

/// Annotations of the source, which some drivers need, and the ledger's.
fn with_entry(operation: &Operation, of_source: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut annotations = of_source.clone();
    // What controllers and kubectl noted there is about the source.
    annotations.retain(|key, _| {
        !key.starts_with("snapshot.storage.kubernetes.io/volumesnapshot-being")
            && key != "kubectl.kubernetes.io/last-applied-configuration"
    });
    annotations.extend(ledger::annotations(operation));
    annotations
}

/// What the snapshot says a copy needs, else what the source has.
fn size(seen: &Seen, requested: &Quantity) -> Quantity {
    let said = seen.snapshot.as_ref().and_then(|snapshot| snapshot.status.as_ref()?.restore_size.clone());
    let said = said.map(|size| match size {
        IntOrString::Int(bytes) => bytes.to_string(),
        IntOrString::String(text) => text,
    });
    said.filter(|text| nano(text).is_some_and(|size| size > 0)).map_or_else(|| requested.clone(), Quantity)
}

/// The next step towards nothing being left.
#[must_use]
pub fn clean(operation: &Operation, seen: &Seen) -> Next {
    let ours = |metadata: &&ObjectMeta| ledger::serves(metadata, operation);
    if let Some(pod) = seen.pod.as_ref().map(|pod| &pod.metadata).filter(ours) {
        return remove(ObjectKind::Pod, pod);
    }
    if let Some(claim) = seen.claim.as_ref().filter(|claim| ours(&&claim.metadata)) {
        return drop_volume(operation, seen.volume.as_ref())
            .unwrap_or_else(|| remove(ObjectKind::Claim, &claim.metadata));
    }
    let content = seen.content.as_ref().filter(|content| ours(&&content.metadata));
    // What was taken over goes with our content; what was not goes with its own.
    if let Some(step) = content.and_then(|_| release_source(seen)) {
        return step;
    }
    if let Some(snapshot) = seen.snapshot.as_ref().map(|snapshot| &snapshot.metadata).filter(ours) {
        return remove(ObjectKind::Snapshot, snapshot);
    }
    if let Some(content) = content {
        return remove(ObjectKind::Content, &content.metadata);
    }
    if let Some(content) =
        seen.source_content.as_ref().filter(|content| content.spec.deletion_policy != DELETE)
    {
        let change = json!({ "spec": { "deletionPolicy": DELETE } });
        return Next::Do(Action::Patch(Object::of(ObjectKind::Content, &content.metadata), change));
    }
    match &seen.source_snapshot {
        Some(snapshot) => remove(ObjectKind::Snapshot, &snapshot.metadata),
        None => Next::Done,
    }
}

/// Sees to it that the storage gives up a volume when its claim goes, whatever the class says: it was a copy.
pub(crate) fn drop_volume(operation: &Operation, volume: Option<&PersistentVolume>) -> Option<Next> {
    let volume = volume?;
    let policy = volume.spec.as_ref()?.persistent_volume_reclaim_policy.as_deref();
    (policy != Some(DELETE)).then(|| {
        let change = json!({
            "metadata": { "labels": ledger::labels(operation), "annotations": ledger::annotations(operation) },
            "spec": { "persistentVolumeReclaimPolicy": DELETE },
        });
        Next::Do(Action::Patch(Object::of(ObjectKind::Volume, &volume.metadata), change))
    })
}

fn explained(what: String, problem: Option<&str>) -> String {
    match problem {
        Some(problem) => format!("{what}; the driver says: {problem}"),
        None => what,
    }
}
