//! Operations that no backup asked for.

use crate::common::{ready_to_use, snapshot};
use crate::stage::{PATIENCE, has_ended};
use lifeboat_testbed::testing::{TestNamespace, wait_for_object};
use lifeboat_testbed::{Cluster, TEST_CLASS_ANYWHERE, TEST_SNAPSHOT_CLASS};
use serde_json::{Value, json};

/// An upload of a claim of the test driver, of which a snapshot is taken.
pub fn upload(space: &TestNamespace<'_>, name: &str, claim: &str) -> Value {
    space.apply(&snapshot(name, TEST_SNAPSHOT_CLASS, claim).to_string()).unwrap();
    space.wait("volumesnapshot", name, "being ready", ready_to_use).unwrap();
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": { "name": name, "namespace": "velero", "labels": { "velero.io/async-operation-id": format!("du-{name}") } },
        "spec": {
            "snapshotType": "CSI", "sourceNamespace": space.name(), "sourcePVC": claim,
            "csiSnapshot": { "volumeSnapshot": name, "storageClass": TEST_CLASS_ANYWHERE, "snapshotClass": TEST_SNAPSHOT_CLASS },
            "backupStorageLocation": "default", "operationTimeout": "10m0s", "dataMoverConfig": null,
        },
    })
}

/// A download into a claim that waits for its volume.
pub fn download(space: &TestNamespace<'_>, name: &str, target: &str, snapshot: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload",
        "metadata": { "name": name, "namespace": "velero" },
        "spec": {
            "targetVolume": { "pvc": target, "pv": "", "namespace": space.name() }, "sourceNamespace": space.name(),
            "snapshotID": snapshot, "backupStorageLocation": "default", "operationTimeout": "10m0s",
        },
    })
}

/// The claim, made so that nobody gives it a volume but a restore, as Velero makes it.
pub fn waiting(mut claim: Value) -> Value {
    let name = claim["metadata"]["name"].as_str().unwrap().to_owned();
    claim["spec"]["selector"] = json!({ "matchLabels": { "velero.io/dynamic-pv-restore": name } });
    claim
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
