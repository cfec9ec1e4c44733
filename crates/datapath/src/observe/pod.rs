//! What a hosting pod says about its run, and what to do about it.

use crate::wire::Ending;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use lifeboat_exposer::{Kind, Operation};
use std::fmt;

/// Reasons of a waiting container that no time heals: the image or its settings are wrong.
const HOPELESS: [&str; 5] = [
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerError",
    "RunContainerError",
];
/// Reasons that are not worth a word: a pod has them on its way.
const USUAL: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Where a hosting pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodReport {
    /// It does not run yet; the trouble, if there is any, is what it waits for.
    Waiting(Option<Trouble>),
    /// The mover runs, or waits for its turn.
    Running,
    /// It is over.
    Ended(Ending),
}

/// What keeps a pod from running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What Kubernetes calls it, such as `Unschedulable` or `ImagePullBackOff`.
    pub reason: String,
    /// What it says about it.
    pub message: String,
    /// Whether waiting is of no use.
    pub hopeless: bool,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message.as_str() {
            "" => f.write_str(&self.reason),
            message => write!(f, "{}: {message}", self.reason),
        }
    }
}

/// Reads the hosting pod of `operation`. A pod that is gone is for the caller to notice.
#[must_use]
pub fn read_pod(operation: &Operation, pod: &Pod) -> PodReport {
    let Some(status) = &pod.status else { return PodReport::Waiting(None) };
    let container =
        status.container_statuses.iter().flatten().find(|container| container.name == operation.uid);
    match status.phase.as_deref() {
        Some("Succeeded") => PodReport::Ended(succeeded(operation, container)),
        Some("Failed") => PodReport::Ended(failed(operation, pod, status, container)),
        // The kubelet lets the phase follow the end of the container by a second or more. A success is told by the container
        // alone; why something failed the pod may have to say, and says with its phase, unless the mover has said it.
        Some("Running") if terminated(container).is_some_and(|state| state.exit_code == 0) => {
            PodReport::Ended(succeeded(operation, container))
        }
        // Whose pod goes on, for a container that somebody has added, has ended all the same, if it says why.
        Some("Running") if terminated(container).is_some_and(has_words) => {
            PodReport::Ended(failed(operation, pod, status, container))
        }
        Some("Running") => PodReport::Running,
        Some("Unknown") => PodReport::Waiting(Some(Trouble {
            reason: "Unknown".to_owned(),
            message: "the node of the pod does not answer".to_owned(),
            hopeless: false,
        })),
        _ => PodReport::Waiting(trouble(status, container)),
    }
}

fn succeeded(operation: &Operation, container: Option<&ContainerStatus>) -> Ending {
    let message = terminated(container).and_then(|state| state.message.as_deref()).unwrap_or_default();
    Ending::read(operation.kind.direction(), true, message)
        .unwrap_or_else(|unreadable| Ending::Failed(unreadable.to_string()))
}

fn failed(
    operation: &Operation,
    pod: &Pod,
    status: &PodStatus,
    container: Option<&ContainerStatus>,
) -> Ending {
    let state = terminated(container);
    let message = state.and_then(|state| state.message.as_deref()).map(str::trim).unwrap_or_default();
    if !message.is_empty() {
        // A pod that failed leaves no result, so there is nothing to misread.
        return Ending::read(operation.kind.direction(), false, message)
            .unwrap_or_else(|_| Ending::Failed(message.to_owned()));
    }
    Ending::Failed(match (state, status.reason.as_deref()) {
        (Some(state), _) if state.reason.as_deref() == Some("OOMKilled") => {
            out_of_memory(operation.kind, pod)
        }
        (_, Some(reason)) => {
            let said = status.message.as_deref().unwrap_or("without a message");
            format!("the pod of the mover was ended by Kubernetes ({reason}): {said}")
        }
        (Some(state), None) => format!(
            "the mover ended with status {} ({}) and left no message; the node-agent's log has the mover's",
            state.exit_code,
            state.reason.as_deref().unwrap_or("no reason given")
        ),
        (None, None) => format!(
            "the pod of the mover failed before the mover ran: {}",
            status.message.as_deref().unwrap_or("without a message")
        ),
    })
}

/// The limit that was too small, and where it is set.
fn out_of_memory(kind: Kind, pod: &Pod) -> String {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let limit = container
        .and_then(|container| container.resources.as_ref())
        .and_then(|resources| resources.limits.as_ref())
        .and_then(|limits| limits.get("memory"));
    match limit {
        Some(limit) => format!(
            "the mover of this {} needed more than its memory limit of {}; set podResources.memoryLimit in the \
             node-agent's config map to twice that or more",
            kind.name(),
            limit.0
        ),
        None => format!(
            "the node ran out of memory while the mover of this {} ran; set podResources.memoryRequest in the \
             node-agent's config map so that the pod is placed where there is enough",
            kind.name()
        ),
    }
}

fn terminated(container: Option<&ContainerStatus>) -> Option<&ContainerStateTerminated> {
    container.and_then(|container| container.state.as_ref()).and_then(|state| state.terminated.as_ref())
}

fn has_words(state: &ContainerStateTerminated) -> bool {
    state.message.as_deref().is_some_and(|words| !words.trim().is_empty())
}

/// What a pending pod waits for. What a container says counts before what the scheduler said earlier.
fn trouble(status: &PodStatus, container: Option<&ContainerStatus>) -> Option<Trouble> {
    let waiting =
        container.and_then(|container| container.state.as_ref()).and_then(|state| state.waiting.as_ref());
    if let Some(waiting) = waiting {
        let reason = waiting.reason.clone().unwrap_or_default();
        if !reason.is_empty() && !USUAL.contains(&reason.as_str()) {
            let hopeless = HOPELESS.contains(&reason.as_str());
            return Some(Trouble { reason, message: waiting.message.clone().unwrap_or_default(), hopeless });
        }
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unscheduled =
        conditions.iter().find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    unscheduled.map(|condition| Trouble {
        reason: condition.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned()),
        message: condition.message.clone().unwrap_or_default(),
        hopeless: false,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::wire::{BackupResult, CANCELED};
    use serde_json::{Value, json};

    fn operation() -> Operation {
        Operation {
            kind: Kind::DataUpload,
            namespace: "velero".to_owned(),
            name: "dm-1".to_owned(),
            uid: "u-1".to_owned(),
        }
    }

    fn report(status: Value) -> PodReport {
        let pod = json!({
            "metadata": { "name": "dm-1" },
            "spec": { "containers": [{ "name": "u-1", "resources": { "limits": { "memory": "128Mi" } } }] },
            "status": status,
        });
        read_pod(&operation(), &serde_json::from_value(pod).unwrap())
    }

    fn container(state: Value) -> Value {
        json!([
            { "name": "sidecar", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
              "state": { "terminated": { "exitCode": 0, "message": "of no interest" } } },
            { "name": "u-1", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state },
        ])
    }

    fn failure(status: Value) -> String {
        match report(status) {
            PodReport::Ended(Ending::Failed(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_words_of_the_movers_own_container_are_the_result() {
        let message = r#"{"snapshotID":"s","emptySnapshot":false,"source":{"byPath":"/u-1","volumeMode":"Filesystem"}}"#;
        let ended = container(json!({ "terminated": { "exitCode": 0, "message": message } }));
        // The container ends a moment before the pod does.
        for phase in ["Running", "Succeeded"] {
            let PodReport::Ended(Ending::BackedUp(BackupResult { snapshot_id, .. })) =
                report(json!({ "phase": phase, "containerStatuses": ended.clone() }))
            else {
                panic!("{phase}")
            };
            assert_eq!(snapshot_id, "s");
        }
        // It may never do so, if it has another container.
        let failed = container(json!({ "terminated": { "exitCode": 1, "message": "no bucket" } }));
        let ended = PodReport::Ended(Ending::Failed("no bucket".to_owned()));
        assert_eq!(report(json!({ "phase": "Running", "containerStatuses": failed })), ended);
        let silent = container(json!({ "terminated": { "exitCode": 137, "reason": "Error" } }));
        assert_eq!(report(json!({ "phase": "Running", "containerStatuses": silent })), PodReport::Running);
    }

    #[test]
    fn a_success_without_a_result_is_a_failure() {
        assert!(failure(json!({ "phase": "Succeeded" })).contains("instead of a result"));
    }

    #[test]
    fn a_stop_is_told_from_a_failure() {
        let words = |message: &str| {
            let state = json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": message } });
            report(json!({ "phase": "Failed", "containerStatuses": container(state) }))
        };
        assert_eq!(
            words(&format!("Data path for dm-1 canceled: {CANCELED}")),
            PodReport::Ended(Ending::Canceled("Data path for dm-1 canceled".to_owned()))
        );
        assert_eq!(words("no bucket"), PodReport::Ended(Ending::Failed("no bucket".to_owned())));
    }

    #[test]
    fn a_pod_that_was_killed_says_by_what_and_what_to_do() {
        let killed = container(json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } }));
        let text = failure(json!({ "phase": "Failed", "containerStatuses": killed }));
        assert!(text.contains("128Mi") && text.contains("podResources.memoryLimit"), "{text}");
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." });
        let text = failure(evicted);
        assert!(text.contains("Evicted") && text.contains("low on resource"), "{text}");
        let text = failure(json!({
            "phase": "Failed",
            "containerStatuses": container(json!({ "terminated": { "exitCode": 139, "reason": "Error" } })),
        }));
        assert!(text.contains("139"), "{text}");
        assert!(failure(json!({ "phase": "Failed" })).contains("before the mover ran"));
    }

    #[test]
    fn a_pod_that_cannot_start_says_why() {
        let waiting = |reason: &str| {
            let state = json!({ "waiting": { "reason": reason, "message": "m" } });
            report(json!({ "phase": "Pending", "containerStatuses": container(state) }))
        };
        let PodReport::Waiting(Some(trouble)) = waiting("ImagePullBackOff") else { panic!() };
        assert!(trouble.hopeless);
        assert_eq!(trouble.to_string(), "ImagePullBackOff: m");
        let PodReport::Waiting(Some(trouble)) = waiting("ErrImagePull") else { panic!() };
        assert!(!trouble.hopeless, "the next attempt may succeed");
        assert_eq!(waiting("ContainerCreating"), PodReport::Waiting(None));

        // As the scheduler says it of nodes to which no more volumes can be attached; one may be detached.
        let full = "0/2 nodes are available: 2 node(s) exceed max volume count.";
        let PodReport::Waiting(Some(trouble)) = report(json!({
            "phase": "Pending",
            "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": full }],
        })) else {
            panic!()
        };
        assert_eq!((trouble.to_string(), trouble.hopeless), (format!("Unschedulable: {full}"), false));
        assert_eq!(report(json!({})), PodReport::Waiting(None));
        assert!(matches!(report(json!({ "phase": "Unknown" })), PodReport::Waiting(Some(_))));
    }
}
