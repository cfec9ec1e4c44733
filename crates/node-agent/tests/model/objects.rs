//! The objects that are there before an agent does anything.

use super::api::{Api, Place, now};
use lifeboat_exposer::Kind;
use serde_json::{Value, json};

pub const VELERO: &str = "velero";
pub const SHOP: &str = "shop";
pub const DAEMON_SET: &str = "node-agent";
pub const NODES: &str = "/nodes";
pub const PODS: &str = "/pods";
pub const EVENTS: &str = "/events";
pub const CLAIMS: &str = "/persistentvolumeclaims";
pub const VOLUMES: &str = "/persistentvolumes";
pub const CONFIG_MAPS: &str = "/configmaps";
pub const SNAPSHOTS: &str = "snapshot.storage.k8s.io/volumesnapshots";
pub const CONTENTS: &str = "snapshot.storage.k8s.io/volumesnapshotcontents";
const DRIVER: &str = "csi.model";
const CLASS: &str = "fast";
/// Who made it all.
const ADMIN: &str = "admin";

/// The kind of an operation, as the API's paths name it.
pub fn operations(kind: Kind) -> String {
    format!("velero.io/{}s", kind.name().to_lowercase())
}

pub fn create(api: &Api, kind: &str, object: Value) -> Value {
    let name = object["metadata"]["name"].clone();
    match api.create(ADMIN, kind, object) {
        Ok(made) => (*made).clone(),
        Err(refused) => panic!("{kind} {name} cannot be made: {refused:?}"),
    }
}

/// What every cluster has: the DaemonSet, a class, a claim with its volume, and how many volumes a node moves at once and
/// how many are prepared at once, with 0 for as many as there are.
pub fn foundations(api: &Api, slots: usize, queue: usize) {
    let concurrency = json!({ "globalConfig": slots, "prepareQueueLength": queue });
    let concurrency = json!({ "loadConcurrency": concurrency }).to_string();
    create(
        api,
        CONFIG_MAPS,
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "node-agent-config", "namespace": VELERO },
            "data": { "config": concurrency },
        }),
    );
    let container = json!({ "name": "node-agent", "image": "lifeboat", "command": ["/lifeboat"] });
    create(
        api,
        "apps/daemonsets",
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": DAEMON_SET, "namespace": VELERO },
            "spec": { "selector": {}, "template": { "spec": { "containers": [container] } } },
        }),
    );
    create(
        api,
        "storage.k8s.io/storageclasses",
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": CLASS },
            "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
        }),
    );
    let claim = create(api, CLAIMS, claim("data", Some("pv-data")));
    create(api, VOLUMES, volume("pv-data", &claim));
}

/// A claim of the application, with this volume or waiting for one.
fn claim(name: &str, volume: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": SHOP },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, "volumeName": volume,
            "resources": { "requests": { "storage": "1Gi" } },
        },
        "status": { "phase": if volume.is_some() { "Bound" } else { "Pending" } },
    })
}

/// A volume that a claim has.
pub fn volume(name: &str, claim: &Value) -> Value {
    let of = &claim["metadata"];
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Delete", "csi": { "driver": DRIVER, "volumeHandle": name },
            "claimRef": { "namespace": of["namespace"], "name": of["name"], "uid": of["uid"] },
        },
        "status": { "phase": "Bound" },
    })
}

/// A node that is well.
pub fn node(api: &Api, name: &str) {
    create(
        api,
        NODES,
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux", "kubernetes.io/hostname": name } },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
}

/// The pod of a node's agent, which is not at work yet.
pub fn agent_pod(api: &Api, node: &str) -> Place {
    let name = format!("{DAEMON_SET}-{node}");
    create(
        api,
        PODS,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": VELERO, "labels": { "name": DAEMON_SET } },
            "spec": { "nodeName": node, "containers": [] },
            "status": { "conditions": [{ "type": "Ready", "status": "False" }] },
        }),
    );
    Place::new(PODS, VELERO, &name)
}

/// An operation with what it works on; that of a pod's volume is on this node.
pub fn operation(api: &Api, kind: Kind, name: &str, node: &str) -> Place {
    let mut spec = match kind {
        Kind::DataUpload => upload(api, name),
        Kind::DataDownload => {
            create(api, CLAIMS, claim(name, None));
            json!({ "targetVolume": { "pvc": name, "pv": "", "namespace": SHOP }, "operationTimeout": "10m0s" })
        }
        Kind::PodVolumeBackup | Kind::PodVolumeRestore => of_pod(api, kind, name, node),
    };
    spec["backupStorageLocation"] = "default".into();
    spec["sourceNamespace"] = SHOP.into();
    spec["snapshotID"] = "snapshot".into();
    create(
        api,
        &operations(kind),
        json!({
            "apiVersion": kind.api_version(), "kind": kind.name(),
            "metadata": { "name": name, "namespace": VELERO }, "spec": spec,
        }),
    );
    Place::new(&operations(kind), VELERO, name)
}

/// What a DataUpload asks for, and the snapshot in the application's namespace.
fn upload(api: &Api, name: &str) -> Value {
    let content = format!("content-{name}");
    let snapshot = create(
        api,
        SNAPSHOTS,
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": { "name": name, "namespace": SHOP },
            "spec": { "source": { "persistentVolumeClaimName": "data" } },
            "status": { "boundVolumeSnapshotContentName": content, "readyToUse": true, "restoreSize": "1Gi" },
        }),
    );
    create(
        api,
        CONTENTS,
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": { "name": content },
            "spec": {
                "volumeSnapshotRef": { "namespace": SHOP, "name": name, "uid": snapshot["metadata"]["uid"] },
                "deletionPolicy": "Delete", "driver": DRIVER, "source": {},
            },
            "status": { "snapshotHandle": format!("handle-{name}"), "readyToUse": true },
        }),
    );
    json!({
        "snapshotType": "CSI", "sourcePVC": "data", "operationTimeout": "10m0s",
        "csiSnapshot": { "volumeSnapshot": name, "storageClass": CLASS, "driver": DRIVER },
    })
}

/// What an operation on a pod's volume asks for, and that pod: one that runs, or one that waits for its volume.
fn of_pod(api: &Api, kind: Kind, name: &str, node: &str) -> Value {
    let waits = json!([{
        "name": "restore-wait", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "running": { "startedAt": now() } },
    }]);
    let status = match kind {
        Kind::PodVolumeRestore => json!({ "phase": "Pending", "initContainerStatuses": waits }),
        _ => json!({ "phase": "Running" }),
    };
    let pod = create(
        api,
        PODS,
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": SHOP },
            "spec": { "nodeName": node, "containers": [], "volumes": [{ "name": "data", "emptyDir": {} }] },
            "status": status,
        }),
    );
    let reference = json!({ "kind": "Pod", "namespace": SHOP, "name": name, "uid": pod["metadata"]["uid"] });
    json!({ "node": node, "pod": reference, "volume": "data", "repoIdentifier": "", "uploaderType": "kopia" })
}
