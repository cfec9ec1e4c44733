//! Volumes of pods: which agent has to see to one and from when on, and where it is on its node.

use crate::Error;
use crate::agent::Agent;
use crate::exposing::{Exposed, Gate, cache, hosted_volume, known_os, surroundings};
use crate::operation::VolumeOperation;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::ResourceExt;
use kube::api::Api;
use lifeboat_api::v1::{PodVolumeBackup, PodVolumeRestore};
use lifeboat_api::{Duration, NodeOs, Phase};
use lifeboat_exposer::pod_volume::{
    self, Details, RESTORE_WAIT, Seen, claim_name, clean, folder, has_given_up, host_path, next,
    possible_drivers, volume, waits_for_volumes,
};
use lifeboat_exposer::{After, Direction, HostedVolume, Next, Placement, Thing, VolumeSource, Waiting};

/// An operation on a volume of a pod.
pub(crate) trait OfPod: VolumeOperation {
    /// The pod.
    fn pod(&self) -> &ObjectReference;
    /// The volume, by its name in the pod.
    fn volume(&self) -> &str;
    /// How much data it is, as far as known.
    fn size(&self) -> i64;
    /// See [`Exposed::home`].
    fn home_of_pod(&self, agent: &Agent) -> Option<String>;
    /// See [`Exposed::gate`].
    fn gate_of_pod(&self, agent: &Agent) -> impl Future<Output = Result<Gate, kube::Error>> + Send;
    /// Whether the pod is held back until it is done.
    const HOLDS_POD: bool;
}

impl OfPod for PodVolumeBackup {
    const HOLDS_POD: bool = false;

    fn pod(&self) -> &ObjectReference {
        &self.spec.pod
    }

    fn volume(&self) -> &str {
        &self.spec.volume
    }

    fn size(&self) -> i64 {
        0
    }

    fn home_of_pod(&self, _: &Agent) -> Option<String> {
        Some(self.spec.node.clone())
    }

    async fn gate_of_pod(&self, agent: &Agent) -> Result<Gate, kube::Error> {
        Ok(Gate { home: self.home_of_pod(agent), ..Gate::default() })
    }
}

impl OfPod for PodVolumeRestore {
    const HOLDS_POD: bool = true;

    fn pod(&self) -> &ObjectReference {
        &self.spec.pod
    }

    fn volume(&self) -> &str {
        &self.spec.volume
    }

    fn size(&self) -> i64 {
        self.spec.snapshot_size
    }

    fn home_of_pod(&self, agent: &Agent) -> Option<String> {
        if self.phase() != Phase::New {
            return Some(self.node().to_owned());
        }
        let here = agent.local_pod(&self.spec.pod).is_some_and(|pod| is_meant(&self.spec.pod, &pod));
        here.then(|| agent.options.node.clone())
    }

    /// It begins when its pod waits for it. The agent of the pod's node sees that by itself; before there is one, the agent
    /// that it falls to says what is waited for.
    async fn gate_of_pod(&self, agent: &Agent) -> Result<Gate, kube::Error> {
        if self.phase() != Phase::New {
            return Ok(Gate { home: self.home_of_pod(agent), ..Gate::default() });
        }
        if let Some(pod) = agent.local_pod(&self.spec.pod).filter(|pod| is_meant(&self.spec.pod, pod)) {
            return Ok(gate(&self.spec.pod, Some(&pod)));
        }
        if agent.is_appointed(&self.uid().unwrap_or_default()) {
            return Ok(gate(&self.spec.pod, pod(agent, &self.spec.pod).await?.as_ref()));
        }
        Ok(Gate { waiting: Some(unscheduled(&self.spec.pod)), ..Gate::default() })
    }
}

fn gate(reference: &ObjectReference, pod: Option<&Pod>) -> Gate {
    let Some(pod) = pod else {
        return Gate { hopeless: Some(gone(reference)), ..Gate::default() };
    };
    let home = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Running" | "Succeeded" | "Failed")) {
        let hopeless = format!(
            "the pod {} does not wait for its volumes any more: delete it and restore again",
            shown(reference)
        );
        return Gate { home, hopeless: Some(hopeless), waiting: None };
    }
    let waiting = match &home {
        None => Some(unscheduled(reference)),
        Some(_) if waits_for_volumes(pod) => None,
        Some(node) => Some(Waiting {
            for_what: format!(
                "the init container {RESTORE_WAIT} of pod {} on node {node} to run",
                shown(reference)
            ),
            advice: "if it does not, the events of that pod say why",
        }),
    };
    Gate { home, waiting, hopeless: None }
}

fn unscheduled(reference: &ObjectReference) -> Waiting {
    Waiting {
        for_what: format!("the pod {} to be given a node", shown(reference)),
        advice: "if it is not, the events of that pod say why",
    }
}

fn gone(reference: &ObjectReference) -> String {
    format!("the pod {} is gone, and with it the place of its volume", shown(reference))
}

fn shown(reference: &ObjectReference) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    format!("{}/{}", text(&reference.namespace), text(&reference.name))
}

/// The very pod that is meant, not another one of its name.
async fn pod(agent: &Agent, reference: &ObjectReference) -> Result<Option<Pod>, kube::Error> {
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(agent.client.clone(), namespace);
    let found = pods.get_opt(reference.name.as_deref().unwrap_or_default()).await?;
    Ok(found.filter(|pod| is_meant(reference, pod)))
}

fn is_meant(reference: &ObjectReference, pod: &Pod) -> bool {
    reference.uid.is_none() || pod.metadata.uid == reference.uid
}

impl<K: OfPod> Exposed for K {
    type Seen = Seen;
    type Details = Details;

    fn home(&self, agent: &Agent) -> Option<String> {
        self.home_of_pod(agent)
    }

    async fn gate(&self, agent: &Agent) -> Result<Gate, kube::Error> {
        self.gate_of_pod(agent).await
    }

    fn take_in(&self, seen: &mut Self::Seen, after: After) {
        seen.take_in(after);
    }

    async fn look(&self, agent: &Agent, _: bool) -> Result<Self::Seen, kube::Error> {
        Seen::look(&agent.client, &self.operation()).await
    }

    async fn details(&self, agent: &Agent, _: &Self::Seen) -> Result<Result<Self::Details, Next>, Error> {
        details(agent, self).await
    }

    fn next(&self, details: &Self::Details, seen: &Self::Seen) -> Next {
        next(&self.operation(), details, seen)
    }

    fn clean(&self, seen: &Self::Seen) -> Next {
        clean(&self.operation(), seen)
    }

    async fn is_awaited(&self, agent: &Agent) -> Result<bool, kube::Error> {
        if !K::HOLDS_POD {
            return Ok(false);
        }
        Ok(pod(agent, self.pod()).await?.is_some_and(|pod| awaits(self.pod(), &pod)))
    }

    async fn tell(&self, agent: &Agent, seen: &Self::Seen, spent: bool) -> Result<Next, Error> {
        tell(agent, self, seen, spent).await
    }

    fn messenger(seen: &Self::Seen) -> Option<&Pod> {
        seen.pod.as_ref()
    }

    fn things(seen: &Self::Seen) -> Vec<Thing<'_>> {
        seen.things()
    }
}

/// Whether a pod waits for its volumes, or will, and has not learnt that one of them does not come.
fn awaits(reference: &ObjectReference, pod: &Pod) -> bool {
    let stays = pod.metadata.deletion_timestamp.is_none();
    stays && gate(reference, Some(pod)).hopeless.is_none() && !has_given_up(pod)
}

/// The next step towards a hosting pod that tells the pod of an operation. Its volume is in its place when it waits.
async fn tell<K: OfPod>(agent: &Agent, object: &K, seen: &Seen, spent: bool) -> Result<Next, Error> {
    let Some(pod) = pod(agent, object.pod()).await? else {
        return Ok(Next::Impossible(gone(object.pod())));
    };
    let Gate { home, waiting, .. } = gate(object.pod(), Some(&pod));
    if let Some(waiting) = waiting {
        return Ok(Next::Wait(waiting));
    }
    if let Some(node) = home
        && agent.is_lost(&node).await?
    {
        // It may come back before it loses its pods, but nobody knows, so nothing is left there meanwhile.
        return Ok(match clean(&object.operation(), seen) {
            Next::Done => Next::Wait(Waiting {
                for_what: format!("the node {node}, which does not answer"),
                advice: "if it does not come back, delete the pod",
            }),
            next => next,
        });
    }
    Ok(match details(agent, object).await? {
        Ok(details) => pod_volume::tell(&object.operation(), &details, seen, spent),
        Err(instead) => instead,
    })
}

/// What the hosting pod beside a pod is made from, or what is to be said instead.
async fn details<K: OfPod>(agent: &Agent, object: &K) -> Result<Result<Details, Next>, Error> {
    let Some(pod) = pod(agent, object.pod()).await? else {
        return Ok(Err(Next::Impossible(gone(object.pod()))));
    };
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    if node.is_empty() {
        return Ok(Err(Next::Wait(unscheduled(object.pod()))));
    }
    let volume = match volume(&pod, object.volume()) {
        Ok(volume) => volume,
        Err(error) => return Ok(Err(Next::Impossible(error.to_string()))),
    };
    let bound = match claim_name(&pod, volume) {
        Some(claim) => match bound_volume(agent, &pod, &claim).await? {
            Some(bound) => Some(bound),
            None => return Ok(Err(Next::Wait(unbound(&pod, &claim)))),
        },
        None => None,
    };
    let folder = match place(agent, &pod, volume, bound.as_ref()).await? {
        Ok(folder) => folder,
        Err(error) => return Ok(Err(Next::Impossible(error))),
    };
    let placement = Placement {
        os: Some(known_os(agent, &node).await?.unwrap_or(NodeOs::Linux)),
        node: Some(node),
        ..Placement::default()
    };
    let (surroundings, program) = surroundings(agent, placement.os).await?;
    let source = VolumeSource::Host {
        path: host_path(&pod, &folder, &placement, &surroundings),
        privileged: agent.settings().config.privileged_fs_backup,
    };
    let cache = match K::KIND.direction() {
        Direction::Restore => cache(agent, object.size()).await?,
        Direction::Backup => None,
    };
    Ok(Ok(Details {
        hosted: HostedVolume {
            cache: cache.is_some(),
            ..hosted_volume(agent, source, Duration::default(), program).await?
        },
        cache,
        placement,
        surroundings,
    }))
}

async fn place(
    agent: &Agent,
    pod: &Pod,
    volume: &Volume,
    bound: Option<&PersistentVolume>,
) -> Result<Result<String, String>, kube::Error> {
    let mut by_driver = false;
    for driver in bound.iter().flat_map(|bound| possible_drivers(bound)) {
        let drivers: Api<CSIDriver> = Api::all(agent.client.clone());
        by_driver |= drivers.get_opt(driver).await?.is_some();
    }
    Ok(folder(pod, volume, bound, by_driver).map_err(|error| error.to_string()))
}

async fn bound_volume(
    agent: &Agent,
    pod: &Pod,
    claim: &str,
) -> Result<Option<PersistentVolume>, kube::Error> {
    let namespace = pod.namespace().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(agent.client.clone(), &namespace);
    let name = claims.get_opt(claim).await?.and_then(|claim| claim.spec?.volume_name);
    match name.filter(|name| !name.is_empty()) {
        Some(name) => agent.known.volumes.get_opt(&Api::all(agent.client.clone()), &name).await,
        None => Ok(None),
    }
}

fn unbound(pod: &Pod, claim: &str) -> Waiting {
    Waiting {
        for_what: format!("the claim {}/{claim} to have a volume", pod.namespace().unwrap_or_default()),
        advice: "if it gets none, the events of that claim say why",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn gate_of(node: Value, status: Value) -> Gate {
        let pod = json!({ "metadata": { "name": "web" }, "spec": { "containers": [], "nodeName": node }, "status": status });
        let reference = ObjectReference { name: Some("web".to_owned()), ..ObjectReference::default() };
        gate(&reference, Some(&serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn a_pod_awaits_its_volumes_from_the_beginning_until_it_runs_or_knows_better_or_is_deleted() {
        let awaits = |metadata: Value, status: Value| {
            let pod = json!({ "metadata": metadata, "spec": { "containers": [] }, "status": status });
            awaits(&ObjectReference::default(), &serde_json::from_value(pod).unwrap())
        };
        let helper = |state: Value| {
            let status = json!([{ "name": RESTORE_WAIT, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }]);
            json!({ "phase": "Pending", "initContainerStatuses": status })
        };
        let there = || json!({ "name": "web" });
        assert!(awaits(there(), json!({ "phase": "Pending" })));
        assert!(awaits(there(), helper(json!({ "running": {} }))));
        let words = json!({ "terminated": { "exitCode": 1, "message": "the volume data was not restored" } });
        assert!(!awaits(there(), helper(words)));
        assert!(!awaits(there(), json!({ "phase": "Running" })));
        let going = json!({ "name": "web", "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert!(!awaits(going, helper(json!({ "running": {} }))));
    }

    #[test]
    fn a_restore_begins_when_its_pod_waits_for_it_and_not_after_it_has_stopped_waiting() {
        let waiting = |gate: &Gate| gate.waiting.as_ref().map(|it| it.for_what.clone()).unwrap_or_default();
        let no_node = gate_of(Value::Null, json!({ "phase": "Pending" }));
        assert!(no_node.home.is_none() && waiting(&no_node).contains("to be given a node"));
        let starting = gate_of(json!("n1"), json!({ "phase": "Pending" }));
        assert!(starting.home.as_deref() == Some("n1") && waiting(&starting).contains(RESTORE_WAIT));
        let runs = json!([{ "name": RESTORE_WAIT, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "running": {} } }]);
        let ready = gate_of(json!("n1"), json!({ "phase": "Pending", "initContainerStatuses": runs }));
        assert_eq!(ready, Gate { home: Some("n1".to_owned()), ..Gate::default() });
        let late = gate_of(json!("n1"), json!({ "phase": "Running" }));
        assert!(late.hopeless.is_some_and(|why| why.contains("does not wait")));
        assert!(gate(&ObjectReference::default(), None).hopeless.is_some_and(|why| why.contains("is gone")));
    }
}
