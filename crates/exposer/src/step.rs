//! One step of an exposer: what it wants done next, and how that is done without stepping on anybody's toes.

use crate::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use crate::{Operation, ledger};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

/// What an exposer wants next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// This, and then another look.
    Do(Action),
    /// Nothing until something changes.
    Wait(Waiting),
    /// Nothing any more.
    Done,
    /// It cannot be done, for this reason.
    Impossible(String),
}

/// What is waited for, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// What has to come about.
    pub for_what: String,
    /// What to look at if it does not.
    pub advice: &'static str,
}

impl Next {
    pub(crate) fn wait(for_what: impl Into<String>, advice: &'static str) -> Self {
        Self::Wait(Waiting { for_what: for_what.into(), advice })
    }
}

/// One write. Each is idempotent, and refused if the object is not the one that was looked at.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make a snapshot.
    CreateSnapshot(Box<VolumeSnapshot>),
    /// Make the content of a snapshot.
    CreateContent(Box<VolumeSnapshotContent>),
    /// Make a claim.
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Make a pod.
    CreatePod(Box<Pod>),
    /// Change an object, if it still is as it was seen.
    Patch(Object, Value),
    /// Delete an object, if it still is as it was seen: a claim that has got a volume since must be looked at first.
    Delete(Object),
}

impl Action {
    /// The same; an object that it makes says who made it, who can then ask to be told of it and of no other.
    #[must_use]
    pub fn made_by(mut self, maker: &str) -> Self {
        let metadata = match &mut self {
            Self::CreateSnapshot(object) => &mut object.metadata,
            Self::CreateContent(object) => &mut object.metadata,
            Self::CreateClaim(object) => &mut object.metadata,
            Self::CreatePod(object) => &mut object.metadata,
            Self::Patch(..) | Self::Delete(_) => return self,
        };
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(ledger::MADE_BY.to_owned(), maker.to_owned());
        self
    }
}

/// An object that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Object {
    /// What it is.
    pub kind: ObjectKind,
    /// Where it is; empty if it is in no namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of all objects of that name it is.
    pub uid: String,
    /// As what it was seen.
    pub version: String,
}

/// The kinds of objects that exposers touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ObjectKind {
    Pod,
    Claim,
    Volume,
    Snapshot,
    Content,
}

impl ObjectKind {
    /// The kind's name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::Claim => "PersistentVolumeClaim",
            Self::Volume => "PersistentVolume",
            Self::Snapshot => "VolumeSnapshot",
            Self::Content => "VolumeSnapshotContent",
        }
    }
}

impl Object {
    pub(crate) fn of(kind: ObjectKind, metadata: &ObjectMeta) -> Self {
        Self {
            kind,
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: metadata.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// Deletes an object and, once that is under way, waits for its end. A pod that somebody else has given time to end gets none:
/// on a node that is lost it would take for ever.
pub(crate) fn remove(kind: ObjectKind, metadata: &ObjectMeta) -> Next {
    let ending =
        kind == ObjectKind::Pod && metadata.deletion_grace_period_seconds.is_some_and(|time| time > 0);
    if metadata.deletion_timestamp.is_none() || ending {
        return Next::Do(Action::Delete(Object::of(kind, metadata)));
    }
    let name = metadata.name.as_deref().unwrap_or_default();
    Next::wait(
        format!("the end of the {} {name}, which is being deleted", kind.name()),
        "if it does not go, look at its finalizers and at the controller that has to take them off",
    )
}

/// The end of every plan: the pod, once all that it needs is there; one that is being deleted has to go first.
pub(crate) fn pod_at_last(pod: Option<&Pod>, made: impl FnOnce() -> Pod) -> Next {
    match pod {
        None => Next::Do(Action::CreatePod(Box::new(made()))),
        Some(pod) if pod.metadata.deletion_timestamp.is_some() => remove(ObjectKind::Pod, &pod.metadata),
        Some(_) => Next::Done,
    }
}

/// Removes the first of these that is there and serves the operation.
pub(crate) fn clean_in_order(operation: &Operation, all: &[(ObjectKind, Option<&ObjectMeta>)]) -> Next {
    let there = all.iter().find_map(|(kind, metadata)| {
        metadata
            .filter(|metadata| ledger::serves(metadata, operation))
            .map(|metadata| remove(*kind, metadata))
    });
    there.unwrap_or(Next::Done)
}

/// Waits for the end of an object of the operation's name that serves somebody else.
pub(crate) fn stranger(operation: &Operation, all: &[(ObjectKind, Option<&ObjectMeta>)]) -> Option<Next> {
    let (kind, metadata) = all.iter().find_map(|(kind, metadata)| {
        metadata.filter(|metadata| !ledger::serves(metadata, operation)).map(|metadata| (kind, metadata))
    })?;
    let name = metadata.name.as_deref().unwrap_or_default();
    Some(Next::wait(
        format!("the end of the {} {name} of an earlier operation of this name", kind.name()),
        "if nobody needs it, delete it",
    ))
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It was done, and this is what the cluster has now.
    Done(After),
    /// The object is not what it was when it was looked at: look again.
    Stale,
}

/// An object after a write.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum After {
    Pod(Box<Pod>),
    Claim(Box<PersistentVolumeClaim>),
    Volume(Box<PersistentVolume>),
    Snapshot(Box<VolumeSnapshot>),
    Content(Box<VolumeSnapshotContent>),
    /// Nothing is left of it.
    Gone(Object),
}

macro_rules! after {
    ($($kind:ident => $name:ident),*) => {
        $(impl From<$kind> for After {
            fn from(object: $kind) -> Self {
                Self::$name(Box::new(object))
            }
        })*
    };
}

after!(
    Pod => Pod, PersistentVolumeClaim => Claim, PersistentVolume => Volume, VolumeSnapshot => Snapshot,
    VolumeSnapshotContent => Content
);

/// Forgets an object that is gone.
pub(crate) fn forget<K: Resource>(slot: &mut Option<K>, gone: &Object) {
    slot.take_if(|object| object.meta().uid.as_ref() == Some(&gone.uid));
}

/// Does what a step asks for.
///
/// # Errors
/// If the cluster refuses, for another reason than that the object has changed.
pub async fn perform(client: &Client, action: &Action) -> Result<Outcome, kube::Error> {
    match action {
        Action::CreateSnapshot(object) => {
            create(&namespaced(client, &object.metadata), object.as_ref()).await
        }
        Action::CreateContent(object) => create(&Api::all(client.clone()), object.as_ref()).await,
        Action::CreateClaim(object) => create(&namespaced(client, &object.metadata), object.as_ref()).await,
        Action::CreatePod(object) => create(&namespaced(client, &object.metadata), object.as_ref()).await,
        Action::Patch(object, change) => match object.kind {
            ObjectKind::Pod => patch::<Pod>(&within(client, object), object, change).await,
            ObjectKind::Claim => {
                patch::<PersistentVolumeClaim>(&within(client, object), object, change).await
            }
            ObjectKind::Snapshot => patch::<VolumeSnapshot>(&within(client, object), object, change).await,
            ObjectKind::Volume => patch::<PersistentVolume>(&Api::all(client.clone()), object, change).await,
            ObjectKind::Content => {
                patch::<VolumeSnapshotContent>(&Api::all(client.clone()), object, change).await
            }
        },
        Action::Delete(object) => match object.kind {
            ObjectKind::Pod => delete::<Pod>(&within(client, object), object).await,
            ObjectKind::Claim => delete::<PersistentVolumeClaim>(&within(client, object), object).await,
            ObjectKind::Snapshot => delete::<VolumeSnapshot>(&within(client, object), object).await,
            ObjectKind::Volume => delete::<PersistentVolume>(&Api::all(client.clone()), object).await,
            ObjectKind::Content => delete::<VolumeSnapshotContent>(&Api::all(client.clone()), object).await,
        },
    }
}

fn namespaced<K>(client: &Client, metadata: &ObjectMeta) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), metadata.namespace.as_deref().unwrap_or_default())
}

fn within<K>(client: &Client, object: &Object) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    Api::namespaced(client.clone(), &object.namespace)
}

async fn create<K>(api: &Api<K>, object: &K) -> Result<Outcome, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Into<After>,
{
    tracing::debug!(kind = %K::kind(&()), name = %object.name_any(), "create");
    settle(api.create(&PostParams::default(), object).await.map(Into::into))
}

async fn patch<K>(api: &Api<K>, object: &Object, change: &Value) -> Result<Outcome, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Into<After>,
{
    tracing::debug!(kind = object.kind.name(), name = %object.name, "patch");
    let mut change = change.clone();
    let guard = json!({ "uid": object.uid, "resourceVersion": object.version });
    match change.get_mut("metadata").and_then(Value::as_object_mut) {
        Some(metadata) => metadata.extend(guard.as_object().cloned().unwrap_or_default()),
        None => change["metadata"] = guard,
    }
    settle(api.patch(&object.name, &PatchParams::default(), &Patch::Merge(change)).await.map(Into::into))
}

async fn delete<K>(api: &Api<K>, object: &Object) -> Result<Outcome, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Into<After>,
{
    tracing::debug!(kind = object.kind.name(), name = %object.name, "delete");
    let parameters = DeleteParams::background().grace_period(0).preconditions(Preconditions {
        uid: Some(object.uid.clone()),
        resource_version: Some(object.version.clone()),
    });
    let answer = api.delete(&object.name, &parameters).await;
    // What nobody holds goes at once, also if the answer shows it once more.
    let held = |left: &K| !left.finalizers().is_empty();
    settle(
        answer
            .map(|answer| answer.left().filter(held).map_or_else(|| After::Gone(object.clone()), Into::into)),
    )
}

/// That an object has changed, is there already or is gone means that there is a newer picture to look at.
fn settle(result: Result<After, kube::Error>) -> Result<Outcome, kube::Error> {
    match result {
        Ok(after) => Ok(Outcome::Done(after)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Outcome::Stale),
        Err(other) => Err(other),
    }
}

/// Removes a hosting pod that is of no use any more.
#[must_use]
pub fn remove_pod(pod: &Pod) -> Next {
    remove(ObjectKind::Pod, &pod.metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn a_pod_that_somebody_has_given_time_to_end_is_not_waited_for() {
        let mut metadata = ObjectMeta {
            deletion_timestamp: Some(Time(Default::default())),
            deletion_grace_period_seconds: Some(3600),
            ..ObjectMeta::default()
        };
        assert!(matches!(remove(ObjectKind::Pod, &metadata), Next::Do(Action::Delete(_))));
        assert!(matches!(remove(ObjectKind::Claim, &metadata), Next::Wait(_)));
        metadata.deletion_grace_period_seconds = Some(0);
        assert!(matches!(remove(ObjectKind::Pod, &metadata), Next::Wait(_)));
    }
}
