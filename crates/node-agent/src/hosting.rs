//! What a hosting pod does, in the words of the machine.

use crate::machine::Hosting;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use lifeboat_datapath::observe::{PodReport, read_pod};
use lifeboat_datapath::wire::{Ending, INTERRUPTED};
use lifeboat_exposer::Operation;

/// What a hosting pod does, and what is to be said about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hosted {
    pub(crate) state: Hosting,
    /// What keeps it from running, or how it ended.
    pub(crate) words: Option<String>,
    /// How the mover ended, if it did.
    pub(crate) ending: Option<Ending>,
}

impl Hosted {
    /// All data was moved, with this result.
    pub(crate) fn succeeded(ending: Ending) -> Self {
        Self { state: Hosting::Succeeded, words: None, ending: Some(ending) }
    }

    /// The same on a node that nobody hears from: whatever is there does not get any further.
    pub(crate) fn on_lost_node(mut self, node: &str) -> Self {
        self.state = Hosting::Broken;
        self.words = Some(format!("its node {node} does not answer"));
        self
    }
}

/// What the hosting pod of an operation does. `wanted` says whether one that is not there is being made, `known_lost` whether it
/// is one whose loss is noted.
pub(crate) fn hosted(operation: &Operation, pod: Option<&Pod>, wanted: bool, known_lost: bool) -> Hosted {
    let said = |state, words: Option<String>| Hosted { state, words, ending: None };
    let Some(pod) = pod else {
        return said(if wanted { Hosting::Preparing } else { Hosting::Absent }, None);
    };
    let going = known_lost || pod.metadata.deletion_timestamp.is_some();
    let on_its_way_out = || {
        let state = if wanted { Hosting::Preparing } else { Hosting::Ending };
        said(state, Some("its pod is being deleted".to_owned()))
    };
    match read_pod(operation, pod) {
        PodReport::Ended(ending) => {
            let hosted = ended(operation, pod, ending);
            // It was lost once: until it is gone, its replacement is what is waited for.
            let known = wanted && going && hosted.state == Hosting::Broken;
            if known { on_its_way_out() } else { hosted }
        }
        _ if going => on_its_way_out(),
        PodReport::Running => said(Hosting::Running, None),
        PodReport::Waiting(Some(trouble)) if trouble.hopeless => {
            said(Hosting::Broken, Some(trouble.to_string()))
        }
        PodReport::Waiting(trouble) => said(Hosting::Preparing, trouble.map(|trouble| trouble.to_string())),
    }
}

fn ended(operation: &Operation, pod: &Pod, ending: Ending) -> Hosted {
    let (state, words) = match &ending {
        Ending::BackedUp(_) | Ending::Restored(_) => (Hosting::Succeeded, None),
        Ending::Canceled(words) => (Hosting::Canceled, Some(words.clone())),
        Ending::Interrupted(words) => (Hosting::Broken, Some(format!("{words}: {INTERRUPTED}"))),
        Ending::Failed(words) if was_lost(operation, pod) => (Hosting::Broken, Some(words.clone())),
        Ending::Failed(words) => (Hosting::Failed, Some(words.clone())),
    };
    Hosted { state, words, ending: Some(ending) }
}

/// Whether the mover was ended from outside and had no time for last words, so that another one may get through. One that was
/// killed for its memory would be killed again.
fn was_lost(operation: &Operation, pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let own = status.container_statuses.iter().flatten().find(|it| it.name == operation.uid);
    let last = own.and_then(|own| own.state.as_ref()).and_then(|state| state.terminated.as_ref());
    let silent = |last: &ContainerStateTerminated| {
        last.message.as_deref().is_none_or(|words| words.trim().is_empty())
            && last.reason.as_deref() != Some("OOMKilled")
    };
    status.phase.as_deref() == Some("Failed") && last.is_none_or(silent)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_exposer::Kind;
    use serde_json::{Value, json};

    fn state(status: Value) -> Hosting {
        state_of(json!({ "name": "dm-1" }), status, false, false)
    }

    fn state_of(metadata: Value, status: Value, wanted: bool, known_lost: bool) -> Hosting {
        let operation = Operation {
            kind: Kind::DataUpload,
            namespace: "velero".into(),
            name: "dm-1".into(),
            uid: "u-1".into(),
        };
        let pod = json!({ "metadata": metadata, "spec": { "containers": [] }, "status": status });
        hosted(&operation, Some(&serde_json::from_value(pod).unwrap()), wanted, known_lost).state
    }

    fn ended(terminated: Value) -> Value {
        json!({
            "phase": "Failed",
            "containerStatuses": [{
                "name": "u-1", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": terminated },
            }],
        })
    }

    #[test]
    fn a_mover_without_last_words_was_lost_unless_it_would_be_again() {
        assert_eq!(state(ended(json!({ "exitCode": 1, "message": "no bucket" }))), Hosting::Failed);
        assert_eq!(state(ended(json!({ "exitCode": 137, "reason": "Error" }))), Hosting::Broken);
        let interrupted = Ending::Interrupted("data path for dm-1 stopped".to_owned());
        assert_eq!(
            state(ended(json!({ "exitCode": 1, "message": interrupted.termination_message() }))),
            Hosting::Broken
        );
        assert_eq!(state(ended(json!({ "exitCode": 137, "reason": "OOMKilled" }))), Hosting::Failed);
        assert_eq!(state(json!({ "phase": "Failed", "reason": "Evicted" })), Hosting::Broken);
        assert_eq!(
            state(ended(json!({ "exitCode": 1, "message": "x: data path is canceled" }))),
            Hosting::Canceled
        );
    }

    #[test]
    fn a_lost_mover_is_lost_once_however_long_its_pod_takes_to_go() {
        let going = json!({ "name": "dm-1", "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let lost = ended(json!({ "exitCode": 137, "reason": "Error" }));
        assert_eq!(state_of(going.clone(), lost.clone(), false, false), Hosting::Broken);
        assert_eq!(state_of(going.clone(), lost.clone(), true, false), Hosting::Preparing);
        let failed = ended(json!({ "exitCode": 1, "message": "no bucket" }));
        assert_eq!(state_of(going.clone(), failed, true, false), Hosting::Failed);
        let told = Ending::Interrupted("data path for dm-1 stopped".to_owned()).termination_message();
        let told = ended(json!({ "exitCode": 1, "message": told }));
        assert_eq!(state_of(going, told, true, false), Hosting::Preparing);
        // It is noted before the pod is deleted, and that may fail.
        let still_there = json!({ "name": "dm-1" });
        assert_eq!(state_of(still_there.clone(), lost.clone(), true, false), Hosting::Broken);
        assert_eq!(state_of(still_there.clone(), lost, true, true), Hosting::Preparing);
        let running = json!({ "phase": "Running" });
        assert_eq!(state_of(still_there, running, true, true), Hosting::Preparing);
    }

    #[test]
    fn a_mover_whose_pod_is_deleted_has_its_time_unless_there_is_nothing_to_lose() {
        let going = json!({ "name": "dm-1", "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let running = json!({ "phase": "Running" });
        assert_eq!(state_of(going.clone(), running.clone(), false, false), Hosting::Ending);
        assert_eq!(state_of(going, running, true, false), Hosting::Preparing);
    }

    #[test]
    fn what_is_on_a_lost_node_gets_no_further_whatever_it_last_said() {
        let running = Hosted { state: Hosting::Running, words: None, ending: None };
        let lost = running.on_lost_node("node2");
        assert_eq!(lost.state, Hosting::Broken);
        assert_eq!(lost.words.as_deref(), Some("its node node2 does not answer"));
    }

    #[test]
    fn a_pod_on_its_way_is_in_the_making() {
        assert_eq!(state(json!({ "phase": "Pending" })), Hosting::Preparing);
        assert_eq!(state(json!({ "phase": "Running" })), Hosting::Running);
        assert_eq!(state(json!({ "phase": "Succeeded" })), Hosting::Failed);
    }
}
