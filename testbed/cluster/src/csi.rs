//! The CSI drivers and their sidecars: how they are started, and the classes through which they are used.

use crate::components::Components;
use crate::control::Process;
use crate::spec::{ClusterName, Layout};
use crate::{Result, tools};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The upstream hostpath driver's name; it runs on the first node only, as its volumes are folders of one node.
pub const HOSTPATH_DRIVER: &str = "hostpath.csi.k8s.io";
/// Its default storage class; binds at once. There are also `hostpath-late` (binds when a pod comes) and
/// `hostpath-retain` (keeps the volume when its claim is deleted).
pub const HOSTPATH_CLASS: &str = "hostpath";
/// Its snapshot class, the one Velero uses. There is also `hostpath-retain`.
pub const HOSTPATH_SNAPSHOT_CLASS: &str = "hostpath";
/// The name of our own driver, which can misbehave on demand; it runs on every node.
pub const TEST_DRIVER: &str = "csi.lifeboat.test";
/// The storage class of our own driver; binds when a pod comes, to that pod's node. There are also `lifeboat-test-now`
/// (binds at once), `lifeboat-test-image` (file systems in images, with a size of their own) and [`TEST_CLASS_ANYWHERE`].
pub const TEST_CLASS: &str = "lifeboat-test";
/// The storage class of our own driver for volumes that all nodes can use.
pub const TEST_CLASS_ANYWHERE: &str = "lifeboat-test-anywhere";
/// The snapshot class of our own driver.
pub const TEST_SNAPSHOT_CLASS: &str = "lifeboat-test";

/// How often sidecars and snapshot controller may ask the API server. By themselves they ask five times a second, with
/// which 200 snapshots take a quarter of an hour.
const REQUESTS: [&str; 2] = ["--kube-api-qps=200", "--kube-api-burst=400"];

/// The two drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Driver {
    Hostpath,
    Test,
}

/// The part of every volume file's path that tells whose cluster it belongs to; see [`crate::leftovers`].
pub(crate) fn volume_folder(cluster: &ClusterName) -> String {
    format!("/testbed-{cluster}-volumes/")
}

/// Where our own driver keeps its volumes: outside the nodes, so that all of them see the same ones.
fn test_volumes(layout: &Layout, cluster: &ClusterName) -> String {
    format!("{}{}{TEST_DRIVER}", layout.folder().display(), volume_folder(cluster))
}

/// The file of faults that our own driver reads again for every call.
pub(crate) fn test_knobs(layout: &Layout) -> PathBuf {
    layout.folder().join("knobs.json")
}

impl Driver {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Driver::Hostpath => HOSTPATH_DRIVER,
            Driver::Test => TEST_DRIVER,
        }
    }

    /// What its processes are called.
    fn component(self, part: &str) -> String {
        match self {
            Driver::Hostpath => format!("hostpath-{part}"),
            Driver::Test => format!("test-{part}"),
        }
    }

    /// The socket on which the driver serves, inside a node.
    pub(crate) fn socket(self) -> String {
        format!("/var/lib/kubelet/plugins/{}/csi.sock", self.name())
    }

    /// The socket at which the kubelet asks about the driver.
    ///
    /// The kubelet sends the socket's path, percent-encoded, as the authority of its request. Such a host would be
    /// refused by a strict HTTP/2 server; with an `@` in the name the path is the user of a proper host.
    fn registration_socket(self) -> String {
        format!("/var/lib/kubelet/plugins_registry/{}@registration.sock", self.name())
    }

    /// Folders that must exist before the driver starts on a node whose `/var/lib` is at `var_lib`.
    pub(crate) fn folders(self, on: &Components<'_>, cluster: &ClusterName) -> Vec<PathBuf> {
        let var_lib = on.layout.node(on.node).var_lib();
        let volumes = match self {
            Driver::Hostpath => {
                var_lib.join(volume_folder(cluster).trim_start_matches('/')).join(HOSTPATH_DRIVER)
            }
            Driver::Test => test_volumes(on.layout, cluster).into(),
        };
        vec![
            var_lib.join("kubelet/plugins").join(self.name()),
            var_lib.join("kubelet/plugins_registry"),
            volumes,
        ]
    }

    /// The processes that make the driver known on a node.
    pub(crate) fn on_node(self, on: &Components<'_>, cluster: &ClusterName) -> Result<Vec<Process>> {
        match self {
            Driver::Hostpath => {
                let driver = on
                    .built("hostpathplugin", &self.component("driver"))?
                    .arg(format!("--drivername={HOSTPATH_DRIVER}"))
                    .arg(format!("--endpoint=unix://{}", self.socket()))
                    .arg(format!("--nodeid={}", on.node))
                    .arg(format!("--statedir=/var/lib{}{HOSTPATH_DRIVER}", volume_folder(cluster)))
                    .args(["-v=3", "-logtostderr"]);
                // Upstream's registrar cannot be had as a module.
                let registrar = on
                    .own("lifeboat-testbed-node", &self.component("registrar"))?
                    .args(["csi", "register", "--driver-name", HOSTPATH_DRIVER])
                    .arg(format!("--csi-address={}", self.socket()))
                    .arg(format!("--registration-socket={}", self.registration_socket()));
                Ok(vec![driver, registrar])
            }
            Driver::Test => Ok(vec![
                on.own("lifeboat-testbed-node", &self.component("driver"))?
                    .args(["csi", "serve"])
                    .arg(format!("--endpoint={}", self.socket()))
                    .arg(format!("--node-id={}", on.node))
                    .arg(format!("--state-dir={}", test_volumes(on.layout, cluster)))
                    .arg(format!("--driver-name={TEST_DRIVER}"))
                    .path("--knobs", test_knobs(on.layout))
                    .arg(format!("--registration-socket={}", self.registration_socket())),
            ]),
        }
    }

    /// The processes that turn claims into volumes and snapshots, once for the cluster.
    pub(crate) fn sidecars(self, on: &Components<'_>) -> Result<Vec<Process>> {
        let sidecar = |program: &str, part: &str| -> Result<Process> {
            Ok(on
                .built(program, &self.component(part))?
                .arg(format!("--csi-address={}", self.socket()))
                .path("--kubeconfig", on.layout.kubeconfig())
                .args(REQUESTS)
                // The driver learns which claim or snapshot each call is about.
                .arg("--extra-create-metadata")
                .env("POD_NAMESPACE", "kube-system")
                .env("NODE_NAME", on.node.to_string()))
        };
        Ok(vec![sidecar("csi-provisioner", "provisioner")?, sidecar("csi-snapshotter", "snapshotter")?])
    }

    /// The driver and its classes as API objects.
    pub(crate) fn objects(self) -> String {
        let driver = self.name();
        let mut items = vec![json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": driver},
            "spec": {"attachRequired": false, "podInfoOnMount": true,
                     "volumeLifecycleModes": ["Persistent"], "fsGroupPolicy": "File"},
        })];
        items.extend(match self {
            Driver::Hostpath => vec![
                storage_class(driver, HOSTPATH_CLASS, "Immediate", "Delete", true),
                storage_class(driver, "hostpath-late", "WaitForFirstConsumer", "Delete", false),
                storage_class(driver, "hostpath-retain", "Immediate", "Retain", false),
                snapshot_class(driver, HOSTPATH_SNAPSHOT_CLASS, "Delete", true),
                snapshot_class(driver, "hostpath-retain", "Retain", false),
            ],
            Driver::Test => vec![
                storage_class(driver, TEST_CLASS, "WaitForFirstConsumer", "Delete", false),
                storage_class(driver, "lifeboat-test-now", "Immediate", "Delete", false),
                with_parameter(
                    storage_class(driver, TEST_CLASS_ANYWHERE, "Immediate", "Delete", false),
                    "placement",
                    "anywhere",
                ),
                with_parameter(
                    storage_class(driver, "lifeboat-test-image", "WaitForFirstConsumer", "Delete", false),
                    "backing",
                    "image",
                ),
                snapshot_class(driver, TEST_SNAPSHOT_CLASS, "Delete", true),
                snapshot_class(driver, "lifeboat-test-retain", "Retain", false),
            ],
        });
        json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
    }
}

fn storage_class(driver: &str, name: &str, binding: &str, reclaim: &str, default: bool) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()}},
        "provisioner": driver, "volumeBindingMode": binding, "reclaimPolicy": reclaim,
    })
}

/// See the documentation of `lifeboat-testbed-csi` for the parameters of our own driver.
fn with_parameter(mut class: Value, name: &str, value: &str) -> Value {
    class["parameters"] = json!({name: value});
    class
}

/// Velero uses the one snapshot class of a driver that bears its label.
fn snapshot_class(driver: &str, name: &str, deletion: &str, for_velero: bool) -> Value {
    let labels = if for_velero { json!({"velero.io/csi-volumesnapshot-class": "true"}) } else { json!({}) };
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": name, "labels": labels},
        "driver": driver, "deletionPolicy": deletion,
    })
}

/// Looks after snapshots of all drivers.
pub(crate) fn snapshot_controller(on: &Components<'_>) -> Result<Process> {
    Ok(on
        .built("snapshot-controller", "snapshot-controller")?
        .path("--kubeconfig", on.layout.kubeconfig())
        .args(REQUESTS))
}

/// The definitions of the snapshot API, which come with the module of its client.
pub(crate) fn snapshot_definitions() -> Result<Vec<PathBuf>> {
    let module = tools::module_source("k8s", "github.com/kubernetes-csi/external-snapshotter/client/v8")?;
    let kinds = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];
    Ok(kinds
        .iter()
        .map(|kind| module.join(format!("config/crd/snapshot.storage.k8s.io_{kind}.yaml")))
        .collect())
}
