//! Making an empty volume that a hosting pod can fill, handing it to the claim that waits for it, and taking the rest away.
//!
//! From the moment all data is in it until its claim has it, the volume is kept by its reclaim policy: whatever is
//! deleted, refused or killed on the way, the data stays and the next look goes on from there. If the claim does not get it in
//! time, the volume says of itself that it is kept, and whoever cleans up leaves it alone, whatever became of the operation.

use crate::snapshot::{DELETE, RETAIN};
use crate::step::{clean_in_order, forget, pod_at_last, remove, stranger};
use crate::upload::drop_volume;
use crate::{
    Action, After, HostedVolume, Next, Object, ObjectKind, Operation, Placement, Surroundings, cache_claim,
    hosting_pod, ledger, restore_claim,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Client, ResourceExt};
use serde_json::{Map, Value, json};

/// The phase of a volume and a claim that have each other.
const BOUND: &str = "Bound";
/// On a volume that is handed over: what its reclaim policy was.
const FORMER_POLICY: &str = "lifeboat.io/former-reclaim-policy";
/// On a volume that is kept: the claim that did not get it in time. It stays there when the volume leaves the ledger.
const KEPT_FOR: &str = "lifeboat.io/kept-for";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// The claim that waits for its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Everything there is of an operation's hosting.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The claim that waits for its volume.
    pub target: Option<PersistentVolumeClaim>,
    /// The claim of the hosting pod.
    pub claim: Option<PersistentVolumeClaim>,
    /// The volume that is or was filled.
    pub volume: Option<PersistentVolume>,
    /// The claim of the cache.
    pub cache: Option<PersistentVolumeClaim>,
    /// The hosting pod.
    pub pod: Option<Pod>,
}

/// What claims and pod are made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Details {
    /// Whether the target's class waits for a pod before it makes volumes, and that is to be honoured.
    pub late: bool,
    /// The cache volume's class and size, if there is to be one.
    pub cache: Option<(String, u64)>,
    /// The pod.
    pub hosted: HostedVolume,
    /// Where it may run, if the target has not been given a node.
    pub placement: Placement,
    /// What it takes over from the node-agent.
    pub surroundings: Surroundings,
}

impl Seen {
    /// Looks at the cluster; `volume` is the one that was filled, if that is known already. Whoever cleans up after an
    /// operation that is gone does not know its target.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn look(
        client: &Client,
        operation: &Operation,
        target: Option<&Target>,
        volume: Option<&str>,
    ) -> Result<Self, kube::Error> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &operation.namespace);
        let mut seen = Self {
            target: None,
            claim: claims.get_opt(&operation.name).await?,
            cache: claims.get_opt(&operation.cache_claim_name()).await?,
            pod: Api::namespaced(client.clone(), &operation.namespace).get_opt(&operation.name).await?,
            volume: None,
        };
        if let Some(target) = target {
            let targets: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &target.namespace);
            seen.target = targets.get_opt(&target.name).await?;
        }
        let bound = seen.claim.as_ref().and_then(volume_name);
        if let Some(volume) = bound.or(volume) {
            seen.volume = Api::all(client.clone()).get_opt(volume).await?;
        }
        Ok(seen)
    }

    /// The same after a write.
    pub fn take_in(&mut self, operation: &Operation, after: After) {
        match after {
            After::Pod(pod) => self.pod = Some(*pod),
            After::Volume(volume) => self.volume = Some(*volume),
            After::Claim(claim) => {
                let here = claim.namespace().as_ref() == Some(&operation.namespace);
                let slot = match claim.name_any() {
                    name if here && name == operation.name => &mut self.claim,
                    name if here && name == operation.cache_claim_name() => &mut self.cache,
                    _ => &mut self.target,
                };
                *slot = Some(*claim);
            }
            // Restores have none.
            After::Snapshot(_) | After::Content(_) => {}
            After::Gone(gone) => {
                forget(&mut self.pod, &gone);
                forget(&mut self.volume, &gone);
                forget(&mut self.claim, &gone);
                forget(&mut self.cache, &gone);
                forget(&mut self.target, &gone);
            }
        }
    }

    /// All that carries the operation's name.
    fn objects(&self) -> [(ObjectKind, Option<&ObjectMeta>); 3] {
        [
            (ObjectKind::Pod, self.pod.as_ref().map(|object| &object.metadata)),
            (ObjectKind::Claim, self.claim.as_ref().map(|object| &object.metadata)),
            (ObjectKind::Claim, self.cache.as_ref().map(|object| &object.metadata)),
        ]
    }
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// The volume that the hosting pod's claim was given.
#[must_use]
pub fn filled_volume(seen: &Seen) -> Option<&str> {
    seen.claim.as_ref().and_then(volume_name)
}

/// The node for which the target's volume has to be made.
#[must_use]
pub fn selected_node(target: &PersistentVolumeClaim) -> Option<&str> {
    target.annotations().get(crate::claim::SELECTED_NODE).map(String::as_str).filter(|node| !node.is_empty())
}

/// The next step towards a hosting pod that can fill a volume for the target.
#[must_use]
pub fn next(operation: &Operation, target: &Target, details: &Details, seen: &Seen) -> Next {
    if let Some(stranger) = stranger(operation, &seen.objects()) {
        return stranger;
    }
    let name = format!("{}/{}", target.namespace, target.name);
    let Some(claim) = &seen.target else {
        return Next::wait(
            format!("the claim {name} to exist"),
            "the restore makes it; if it is over and the claim was not restored, cancel this DataDownload",
        );
    };
    if let Some(volume) = volume_name(claim) {
        return Next::Impossible(format!(
            "the claim {name} has the volume {volume} already: delete the claim and restore again"
        ));
    }
    let node = if details.late { selected_node(claim) } else { None };
    if details.late && node.is_none() {
        return Next::wait(
            format!(
                "a pod that uses the claim {name} to be given a node, because its storage class asks for that"
            ),
            "start such a pod, or set restorePVC.ignoreDelayBinding in the config map of the node-agent",
        );
    }
    if let (Some((class, size)), None) = (&details.cache, &seen.cache) {
        return Next::Do(Action::CreateClaim(Box::new(cache_claim(operation, class, *size, node))));
    }
    if seen.claim.is_none() {
        return Next::Do(Action::CreateClaim(Box::new(restore_claim(operation, claim, node))));
    }
    pod_at_last(seen.pod.as_ref(), || {
        let placement = match node {
            Some(node) => {
                Placement { node: Some(node.to_owned()), allowed: Vec::new(), ..details.placement.clone() }
            }
            None => details.placement.clone(),
        };
        hosting_pod(operation, &details.hosted, &placement, &details.surroundings)
    })
}

/// Whether the target has the volume for good.
#[must_use]
pub fn handed_over(seen: &Seen) -> bool {
    let (Some(target), Some(volume)) = (&seen.target, &seen.volume) else { return false };
    volume_name(target) == Some(&volume.name_any())
        && claimed_by(volume, target)
        && bound(volume, target)
        && !is_marked(volume)
}

/// Why the volume cannot be handed over any more, if so.
#[must_use]
pub fn unclaimable(target: &Target, seen: &Seen) -> Option<String> {
    let name = format!("{}/{}", target.namespace, target.name);
    let Some(volume) = &seen.volume else {
        return Some(
            "the volume with the restored data is gone: somebody deleted it; restore again".to_owned(),
        );
    };
    let Some(claim) = seen.target.as_ref().filter(|claim| claim.metadata.deletion_timestamp.is_none()) else {
        return Some(format!("the claim {name} was deleted while its data was restored; restore again"));
    };
    volume_name(claim).filter(|other| *other != volume.name_any()).map(|other| {
        format!(
            "the claim {name} was given the volume {other} while its data was restored into {}; \
             delete the claim and restore again",
            volume.name_any()
        )
    })
}

/// The claim that did not get this volume in time, if the volume is kept since.
#[must_use]
pub fn kept_for(volume: &PersistentVolume) -> Option<&str> {
    volume.annotations().get(KEPT_FOR).map(String::as_str)
}

/// The next step towards a volume that says of itself that it is kept, so that nobody who cleans up has to know the operation.
#[must_use]
pub fn keep(operation: &Operation, target: &Target, seen: &Seen) -> Next {
    match &seen.volume {
        None => Next::Impossible("there is no volume to be kept".to_owned()),
        Some(volume) if kept_for(volume).is_some() => Next::Done,
        Some(volume) => {
            let mut kept = held(operation, volume);
            kept["metadata"]["annotations"][KEPT_FOR] =
                format!("{}/{}", target.namespace, target.name).into();
            change(volume, kept)
        }
    }
}

/// The next step towards the target having the volume.
#[must_use]
pub fn hand_over(operation: &Operation, target: &Target, seen: &Seen) -> Next {
    if handed_over(seen) {
        return Next::Done;
    }
    if let Some(reason) = unclaimable(target, seen) {
        return Next::Impossible(reason);
    }
    let (Some(claim), Some(volume)) = (&seen.target, &seen.volume) else {
        return Next::Impossible("neither claim nor volume is there".to_owned());
    };
    if !is_marked(volume) && !claimed_by(volume, claim) {
        return change(volume, held(operation, volume));
    }
    let ours = |metadata: &&ObjectMeta| ledger::serves(metadata, operation);
    if let Some(pod) = seen.pod.as_ref().map(|pod| &pod.metadata).filter(ours) {
        return remove(ObjectKind::Pod, pod);
    }
    if let Some(own) = seen.claim.as_ref().map(|own| &own.metadata).filter(ours) {
        return remove(ObjectKind::Claim, own);
    }
    if !claimed_by(volume, claim) {
        return change(volume, claimed(target, claim, volume));
    }
    if volume_name(claim).is_none() {
        return Next::Do(Action::Patch(
            Object::of(ObjectKind::Claim, &claim.metadata),
            json!({
                "metadata": { "annotations": { BIND_COMPLETED: null, BOUND_BY_CONTROLLER: null } },
                "spec": { "volumeName": volume.name_any() },
            }),
        ));
    }
    if !bound(volume, claim) {
        return Next::wait(
            format!(
                "the volume {} to be bound to the claim {}/{}",
                volume.name_any(),
                target.namespace,
                target.name
            ),
            "if that does not come about, look at the events of both and at the controller manager",
        );
    }
    change(volume, freed(former_policy(volume), None))
}

fn change(volume: &PersistentVolume, change: Value) -> Next {
    Next::Do(Action::Patch(Object::of(ObjectKind::Volume, &volume.metadata), change))
}

/// Whether the volume says that it belongs to this very claim.
fn claimed_by(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| {
        reference.namespace == claim.metadata.namespace
            && reference.name == claim.metadata.name
            && reference.uid == claim.metadata.uid
    })
}

/// Whether the volume controller has bound them to each other. That the volume says so is not enough: it may still speak of the
/// claim of the hosting pod.
fn bound(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let volume = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let claim = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    (volume, claim) == (Some(BOUND), Some(BOUND))
}

fn policy(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.persistent_volume_reclaim_policy.as_deref()
}

fn former_policy(volume: &PersistentVolume) -> Option<&str> {
    volume.annotations().get(FORMER_POLICY).map(String::as_str)
}

/// Keeps the volume by its reclaim policy, notes what that was, and puts the volume into the ledger.
fn held(operation: &Operation, volume: &PersistentVolume) -> Value {
    let former = former_policy(volume).or(policy(volume)).unwrap_or(RETAIN);
    let mut annotations = ledger::annotations(operation);
    annotations.insert(FORMER_POLICY.to_owned(), former.to_owned());
    json!({
        "metadata": { "labels": ledger::labels(operation), "annotations": annotations },
        "spec": { "persistentVolumeReclaimPolicy": RETAIN },
    })
}

/// Makes the volume say that it belongs to the claim, and carry what the claim selects by. With the claim's UID the binding is
/// a fact that the volume controller completes at once instead of at its next round.
fn claimed(target: &Target, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Value {
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let wanted = selector.and_then(|selector| selector.match_labels.clone()).unwrap_or_default();
    let missing: Map<String, Value> = wanted
        .into_iter()
        .filter(|(key, _)| !volume.labels().contains_key(key))
        .map(|(key, value)| (key, value.into()))
        .collect();
    json!({
        "metadata": { "labels": missing, "annotations": { BOUND_BY_CONTROLLER: null } },
        "spec": {
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": target.namespace,
                "name": target.name,
                "uid": claim.metadata.uid,
                "resourceVersion": null,
            },
        },
    })
}

/// Gives the volume its own reclaim policy back and takes our marks off, but for that of one that is kept.
fn freed(former: Option<&str>, kept_for: Option<&str>) -> Value {
    json!({
        "metadata": {
            "labels": { ledger::HOSTS: null },
            "annotations": {
                ledger::OWNER: null, ledger::EXPIRES_AFTER: null, FORMER_POLICY: null, KEPT_FOR: kept_for,
            },
        },
        "spec": { "persistentVolumeReclaimPolicy": former.unwrap_or(RETAIN) },
    })
}

/// The next step towards nothing being left but a volume that its claim has, or that is kept.
#[must_use]
pub fn clean(operation: &Operation, seen: &Seen) -> Next {
    let ours = |metadata: &&ObjectMeta| ledger::serves(metadata, operation);
    let pod = (ObjectKind::Pod, seen.pod.as_ref().map(|pod| &pod.metadata));
    let cache = (ObjectKind::Claim, seen.cache.as_ref().map(|cache| &cache.metadata));
    let step = clean_in_order(operation, &[pod, cache]);
    if step != Next::Done {
        return step;
    }
    let kept = seen.volume.as_ref().and_then(|volume| Some((volume, kept_for(volume)?)));
    if let Some((volume, kept_for)) = kept {
        // Before its claim goes, with which the storage would give it up.
        if is_marked(volume) || policy(volume) != Some(RETAIN) {
            return change(volume, freed(Some(RETAIN), Some(kept_for)));
        }
        let claim = (ObjectKind::Claim, seen.claim.as_ref().map(|claim| &claim.metadata));
        return clean_in_order(operation, &[claim]);
    }
    if let Some(claim) = seen.claim.as_ref().map(|claim| &claim.metadata).filter(ours) {
        return drop_volume(operation, seen.volume.as_ref())
            .unwrap_or_else(|| remove(ObjectKind::Claim, claim));
    }
    match seen.volume.as_ref().filter(|volume| is_marked(volume) && ours(&&volume.metadata)) {
        Some(volume) => {
            let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            let never_left = reference.is_some_and(|reference| {
                reference.namespace.as_ref() == Some(&operation.namespace)
                    && reference.name.as_ref() == Some(&operation.name)
            });
            // A volume that its claim never got is ours to remove; else its class decides.
            let former = if never_left { Some(DELETE) } else { former_policy(volume) };
            change(volume, freed(former, None))
        }
        None => Next::Done,
    }
}

/// Whether the volume is being handed over.
fn is_marked(volume: &PersistentVolume) -> bool {
    former_policy(volume).is_some()
}
