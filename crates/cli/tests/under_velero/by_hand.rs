//! Operations that no backup asked for.

use crate::common::{ready_to_use, snapshot};
use crate::stage::{IMAGE, PATIENCE, has_ended};
pub use lifeboat_testbed::objects::{owner_reference, pod_backup, pod_restore, reference, waiting};
use lifeboat_testbed::testing::{TestNamespace, wait_for_object};
use lifeboat_testbed::{Cluster, TEST_SNAPSHOT_CLASS, objects};
use serde_json::{Value, json};

/// An upload of a claim of the test driver, of which a snapshot is taken.
pub fn upload(space: &TestNamespace<'_>, name: &str, claim: &str) -> Value {
    space.apply(&snapshot(name, TEST_SNAPSHOT_CLASS, claim).to_string()).unwrap();
    space.wait("volumesnapshot", name, "being ready", ready_to_use).unwrap();
    objects::upload(space.name(), name, claim)
}

/// A download into a claim that waits for its volume.
pub fn download(space: &TestNamespace<'_>, name: &str, target: &str, snapshot: &str) -> Value {
    objects::download(space.name(), name, target, snapshot)
}

/// A pod that was made, as operations name pods.
pub fn made(space: &TestNamespace<'_>, pod: &str) -> Value {
    reference(&space.get("pod", pod).unwrap())
}

/// A pod whose volume `data` is to be restored by operations of `owner`, as Velero makes it; once it is, it waits for ever.
pub fn waiting_pod(name: &str, owner: &Value) -> Value {
    let helper =
        json!({ "image": IMAGE, "command": ["/velero-restore-helper"], "args": [owner["metadata"]["uid"]] });
    objects::waiting_pod(name, helper)
}

/// What the helper of a restored pod has said as it gave up waiting, if it has.
pub fn given_up(pod: &Value) -> Option<&str> {
    let waiting = &pod["status"]["initContainerStatuses"][0];
    let last = [&waiting["state"], &waiting["lastState"]].map(|state| &state["terminated"]["message"]);
    last.iter().find_map(|words| words.as_str().filter(|words| !words.is_empty()))
}

/// Has an operation done, and gives it as it is in the end.
pub fn run(cluster: &Cluster, operation: &Value) -> Value {
    cluster.kubectl().apply(&operation.to_string()).unwrap();
    let kind = operation["kind"].as_str().unwrap().to_lowercase();
    let of = (&*kind, operation["metadata"]["name"].as_str().unwrap());
    wait_for_object(&cluster.kubectl(), "velero", PATIENCE, of, "the end", has_ended).unwrap()
}

pub fn phase(operation: &Value) -> &str {
    operation["status"]["phase"].as_str().unwrap_or_default()
}

pub fn message(operation: &Value) -> &str {
    operation["status"]["message"].as_str().unwrap_or_default()
}
