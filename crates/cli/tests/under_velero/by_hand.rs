//! Operations that no backup asked for.

use crate::common::{ready_to_use, snapshot};
use crate::stage::{IMAGE, PATIENCE, has_ended};
use lifeboat_testbed::testing::{TestNamespace, wait_for_object};
use lifeboat_testbed::{BUSYBOX, Cluster, TEST_CLASS_ANYWHERE, TEST_SNAPSHOT_CLASS};
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

/// A backup of the volume `data` of a pod.
pub fn pod_backup(name: &str, pod: &Value) -> Value {
    let mut operation = pod_volume("PodVolumeBackup", name, pod);
    operation["spec"]["node"] = json!("node1");
    operation
}

/// A restore into the volume `data` of a pod.
pub fn pod_restore(name: &str, pod: &Value, snapshot: &str) -> Value {
    let mut operation = pod_volume("PodVolumeRestore", name, pod);
    operation["spec"]["snapshotID"] = json!(snapshot);
    operation["spec"]["sourceNamespace"] = pod["namespace"].clone();
    operation
}

fn pod_volume(kind: &str, name: &str, pod: &Value) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": kind, "metadata": { "name": name, "namespace": "velero" },
        "spec": {
            "pod": pod, "volume": "data", "backupStorageLocation": "default", "repoIdentifier": "", "uploaderType": "kopia",
        },
    })
}

/// A pod, as operations name pods.
pub fn reference(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    json!({ "kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"] })
}

/// A pod that was made, as operations name pods.
pub fn made(space: &TestNamespace<'_>, pod: &str) -> Value {
    reference(&space.get("pod", pod).unwrap())
}

/// What stands for the restore that an operation is part of, as its owner.
pub fn owner_reference(owner: &Value) -> Value {
    let metadata = &owner["metadata"];
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"],
    })
}

/// A pod whose volume `data` is to be restored by operations of `owner`, as Velero makes it; once it is, it waits for ever.
pub fn waiting_pod(name: &str, owner: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "initContainers": [{
                "name": "restore-wait", "image": IMAGE, "command": ["/velero-restore-helper"],
                "args": [owner["metadata"]["uid"]], "securityContext": { "runAsUser": 0 },
                "volumeMounts": [{ "name": "data", "mountPath": "/restores/data" }],
            }],
            "containers": [{
                "name": "c", "image": BUSYBOX, "command": ["sh", "-c", "sleep 86400"],
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "emptyDir": {} }],
        },
    })
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
