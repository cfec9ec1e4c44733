//! Objects that tests and benches make: volumes and their users, and operations on volumes that no backup asked for.

use crate::{BUSYBOX, TEST_CLASS_ANYWHERE, TEST_SNAPSHOT_CLASS};
use serde_json::{Value, json};

/// Objects to be applied together.
pub fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// A snapshot of a claim.
pub fn snapshot(name: &str, class: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
        "spec": {"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": claim}},
    })
}

/// Whether a snapshot can be used.
pub fn ready_to_use(snapshot: &Value) -> bool {
    snapshot["status"]["readyToUse"] == true
}

/// A volume claim, from a snapshot or another claim if one is named.
pub fn claim(name: &str, class: &str, mode: &str, size: &str, source: Option<(&str, &str)>) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "volumeMode": mode,
                 "resources": {"requests": {"storage": size}}},
    });
    match source {
        Some(("VolumeSnapshot", source)) => {
            claim["spec"]["dataSource"] =
                json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": source});
        }
        Some((kind, source)) => {
            claim["spec"]["dataSource"] = json!({"kind": kind, "name": source});
        }
        None => {}
    }
    claim
}

/// The claim, made so that nobody gives it a volume but a restore, as Velero makes it.
pub fn waiting(mut claim: Value) -> Value {
    let name = claim["metadata"]["name"].clone();
    claim["spec"]["selector"] = json!({ "matchLabels": { "velero.io/dynamic-pv-restore": name } });
    claim
}

/// A busybox pod with a file system volume at /data and perhaps a block volume at /dev/raw.
pub fn pod(name: &str, line: &str, data: &str, raw: Option<&str>) -> Value {
    let mut volumes = vec![json!({"name": "data", "persistentVolumeClaim": {"claimName": data}})];
    let mut container = json!({
        "name": "c", "image": BUSYBOX, "command": ["sh", "-c", line],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"exec": {"command": ["test", "-f", "/data/.done"]}, "periodSeconds": 1},
    });
    if let Some(raw) = raw {
        volumes.push(json!({"name": "raw", "persistentVolumeClaim": {"claimName": raw}}));
        container["volumeDevices"] = json!([{"name": "raw", "devicePath": "/dev/raw"}]);
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes},
    })
}

/// A pod whose volume `data` is to be restored, as Velero makes it: this container waits for that, and after it the pod for
/// ever.
pub fn waiting_pod(name: &str, mut restore_wait: Value) -> Value {
    restore_wait["name"] = json!("restore-wait");
    restore_wait["securityContext"] = json!({ "runAsUser": 0 });
    restore_wait["volumeMounts"] = json!([{ "name": "data", "mountPath": "/restores/data" }]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "initContainers": [restore_wait],
            "containers": [{
                "name": "c", "image": BUSYBOX, "command": ["sh", "-c", "sleep 86400"],
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "emptyDir": {} }],
        },
    })
}

/// An upload of a claim of the test driver, of which a snapshot of this upload's name was taken.
pub fn upload(namespace: &str, name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": { "name": name, "namespace": "velero", "labels": { "velero.io/async-operation-id": format!("du-{name}") } },
        "spec": {
            "snapshotType": "CSI", "sourceNamespace": namespace, "sourcePVC": claim,
            "csiSnapshot": { "volumeSnapshot": name, "storageClass": TEST_CLASS_ANYWHERE, "snapshotClass": TEST_SNAPSHOT_CLASS },
            "backupStorageLocation": "default", "operationTimeout": "10m0s", "dataMoverConfig": null,
        },
    })
}

/// A download into a claim that waits for its volume.
pub fn download(namespace: &str, name: &str, target: &str, snapshot: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload",
        "metadata": { "name": name, "namespace": "velero" },
        "spec": {
            "targetVolume": { "pvc": target, "pv": "", "namespace": namespace }, "sourceNamespace": namespace,
            "snapshotID": snapshot, "backupStorageLocation": "default", "operationTimeout": "10m0s",
        },
    })
}

/// A backup of the volume `data` of a pod on the first node.
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

/// What stands for the restore that an operation is part of, as its owner.
pub fn owner_reference(owner: &Value) -> Value {
    let metadata = &owner["metadata"];
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"],
        "controller": true,
    })
}
