//! The objects of a node-agent in the cluster: accounts, what they may do, and the DaemonSet.
//!
//! The agent makes pods and volumes; the mover in a hosting pod reads credentials. Neither may do what the other does.

use crate::node_agent::METRICS_PORT;
use k8s_openapi::api::apps::v1::DaemonSet;
use lifeboat_exposer::{HOST_PODS, KUBELET_ROOT, MOVER_ACCOUNT, MOVER_USER};
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// The agent's account.
const AGENT: &str = "lifeboat-node-agent";
/// The account of hosting pods.
const MOVER: &str = "lifeboat-mover";
/// The DaemonSet in the place of Velero's, and the container of either; Velero's server finds node-agents by this name.
pub const NODE_AGENT: &str = "node-agent";
/// The DaemonSet beside Velero's.
const BESIDE: &str = AGENT;
/// Whom the agent runs as: it reads and writes nothing on its node.
const USER: u32 = 65532;
/// Variables that name the file with the credentials of a cloud.
const CREDENTIALS: [&str; 3] =
    ["AWS_SHARED_CREDENTIALS_FILE", "AZURE_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS"];
/// The volume operations that are ours to drive.
const OPERATIONS: [&str; 4] = ["datadownloads", "datauploads", "podvolumebackups", "podvolumerestores"];
/// Volumes of Velero's node-agent that ours has no use for: folders of the node.
const HOST_FOLDERS: [&str; 2] = [HOST_PODS, "host-plugins"];

/// What there is to say about a node-agent.
#[derive(Debug, Clone)]
pub struct NodeAgent {
    /// The namespace of Velero.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The secret with the credentials that locations without any of their own use.
    pub secret: Option<String>,
    /// Whom hosting pods run as; none for root, who reads every file.
    pub mover_user: Option<NonZeroU32>,
    /// The folder of the kubelet on every node, if it is not the usual one.
    pub kubelet_root: Option<String>,
    /// Whether it runs beside Velero's node-agent, for operations that name another mover.
    pub beside: bool,
    /// The words after the program.
    pub args: Vec<String>,
}

/// The name of the DaemonSet.
pub fn daemon_set_name(beside: bool) -> &'static str {
    if beside { BESIDE } else { NODE_AGENT }
}

impl NodeAgent {
    /// All objects, in the order in which they are made.
    pub fn objects(&self) -> Vec<Value> {
        vec![
            self.account(AGENT),
            self.account(MOVER),
            self.role(AGENT, &self.agent_rules()),
            self.role(MOVER, &self.mover_rules()),
            self.binding(AGENT),
            self.binding(MOVER),
            self.cluster_role(),
            self.cluster_binding(),
            self.daemon_set(),
        ]
    }

    fn metadata(&self, name: &str) -> Value {
        json!({ "name": name, "namespace": self.namespace, "labels": { "component": "velero" } })
    }

    fn account(&self, name: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": self.metadata(name) })
    }

    fn role(&self, name: &str, rules: &Value) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": self.metadata(name), "rules": rules,
        })
    }

    fn binding(&self, name: &str) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": self.metadata(name),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": self.namespace }],
        })
    }

    /// In Velero's namespace the agent makes and removes what hosts an operation, and writes operations.
    fn agent_rules(&self) -> Value {
        json!([
            rule("velero.io", &OPERATIONS, &["get", "list", "watch", "patch"]),
            rule("", &["pods"], &["create", "delete"]),
            rule("", &["pods/log"], &["get"]),
            rule("", &["persistentvolumeclaims"], &["list", "watch", "create", "delete"]),
            rule("", &["configmaps"], &["get", "list", "watch"]),
            rule("", &["events"], &["list", "watch"]),
            rule("events.k8s.io", &["events"], &["create", "patch"]),
            rule("apps", &["daemonsets"], &["get"]),
            rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["list", "watch", "create"]),
        ])
    }

    /// A mover reads its operation and what leads to the repository; credentials are read by it alone.
    fn mover_rules(&self) -> Value {
        json!([
            rule("velero.io", &OPERATIONS, &["list", "watch"]),
            rule("velero.io", &["backupstoragelocations"], &["get"]),
            rule("velero.io", &["backuprepositories"], &["list", "create"]),
            rule("", &["secrets"], &["get"]),
            rule("", &["events"], &["create", "patch"]),
        ])
    }

    /// Outside of Velero's namespace: volumes belong to no namespace, claims, snapshots and pods to those of their users. Of
    /// pods the agent has to know where their volumes are and whether they wait for them.
    fn cluster_role(&self) -> Value {
        let snapshots = "snapshot.storage.k8s.io";
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": AGENT, "labels": { "component": "velero" } },
            "rules": [
                rule("", &["nodes"], &["get"]),
                rule("", &["pods"], &["get", "list", "watch"]),
                rule("", &["persistentvolumeclaims"], &["get", "patch"]),
                rule("", &["persistentvolumes"], &["get", "list", "patch"]),
                rule("storage.k8s.io", &["csidrivers", "storageclasses"], &["get"]),
                rule("storage.k8s.io", &["volumeattachments"], &["list"]),
                rule("scheduling.k8s.io", &["priorityclasses"], &["get"]),
                rule(snapshots, &["volumesnapshots"], &["get", "delete"]),
                rule(snapshots, &["volumesnapshotcontents"], &["get", "list", "create", "patch", "delete"]),
            ],
        })
    }

    fn cluster_binding(&self) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": AGENT, "labels": { "component": "velero" } },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AGENT },
            "subjects": [{ "kind": "ServiceAccount", "name": AGENT, "namespace": self.namespace }],
        })
    }

    fn daemon_set(&self) -> Value {
        let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
        let mut env = vec![
            field("NODE_NAME", "spec.nodeName"),
            field("VELERO_NAMESPACE", "metadata.namespace"),
            json!({ "name": MOVER_ACCOUNT, "value": MOVER }),
        ];
        env.extend(self.mover_user.map(|user| json!({ "name": MOVER_USER, "value": user.to_string() })));
        env.extend(self.kubelet_root.as_ref().map(|root| json!({ "name": KUBELET_ROOT, "value": root })));
        let mut mounts = vec![json!({ "name": "tmp", "mountPath": "/tmp" })];
        let mut volumes = vec![json!({ "name": "tmp", "emptyDir": {} })];
        if let Some(secret) = &self.secret {
            env.extend(CREDENTIALS.map(|name| json!({ "name": name, "value": "/credentials/cloud" })));
            mounts.push(json!({ "name": "cloud-credentials", "mountPath": "/credentials" }));
            volumes.push(json!({ "name": "cloud-credentials", "secret": { "secretName": secret } }));
        }
        let name = daemon_set_name(self.beside);
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": self.metadata(name),
            "spec": {
                "selector": { "matchLabels": { "name": name } },
                "template": {
                    "metadata": { "labels": { "component": "velero", "name": name, "role": name } },
                    "spec": {
                        "serviceAccountName": AGENT,
                        "affinity": not_on_windows(),
                        "securityContext": {
                            "runAsNonRoot": true,
                            "runAsUser": USER,
                            "runAsGroup": USER,
                            "seccompProfile": { "type": "RuntimeDefault" },
                        },
                        "containers": [{
                            "name": NODE_AGENT,
                            "image": self.image,
                            "imagePullPolicy": "IfNotPresent",
                            "command": ["/lifeboat"],
                            "args": self.args,
                            "env": env,
                            "ports": [{ "name": "metrics", "containerPort": METRICS_PORT }],
                            "livenessProbe": { "httpGet": { "path": "/healthz", "port": METRICS_PORT } },
                            "readinessProbe": { "httpGet": { "path": "/readyz", "port": METRICS_PORT } },
                            "securityContext": {
                                "privileged": false,
                                "allowPrivilegeEscalation": false,
                                "readOnlyRootFilesystem": true,
                                "capabilities": { "drop": ["ALL"] },
                            },
                            "volumeMounts": mounts,
                        }],
                        "volumes": volumes,
                    },
                },
            },
        })
    }
}

/// The folder of the kubelet, as a node-agent that is there names it.
pub fn kubelet_root(existing: &DaemonSet) -> Option<String> {
    let pod = existing.spec.as_ref()?.template.spec.as_ref()?;
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == HOST_PODS)?;
    volume.host_path.as_ref()?.path.trim_end_matches('/').strip_suffix("/pods").map(str::to_owned)
}

/// What is to be changed on a node-agent that is there so that ours takes its place: everything that ours says, and the
/// folders of the node go. What people have set beside that stays.
pub fn replacement(mut ours: Value, existing: &DaemonSet) -> Value {
    let pod = existing.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let is_host_folder = |name: &str| HOST_FOLDERS.contains(&name);
    let volumes = pod.iter().flat_map(|pod| pod.volumes.iter().flatten());
    let volumes = volumes
        .filter(|volume| is_host_folder(&volume.name))
        .map(|volume| json!({ "name": volume.name, "$patch": "delete" }));
    let containers = pod.iter().flat_map(|pod| pod.containers.iter());
    let mounts = containers
        .filter(|container| container.name == NODE_AGENT)
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .filter(|mount| is_host_folder(&mount.name))
        .map(|mount| json!({ "mountPath": mount.mount_path, "$patch": "delete" }));
    let spec = &mut ours["spec"]["template"]["spec"];
    if let Some(all) = spec["volumes"].as_array_mut() {
        all.extend(volumes);
    }
    if let Some(all) = spec["containers"][0]["volumeMounts"].as_array_mut() {
        all.extend(mounts);
    }
    ours
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

fn not_on_windows() -> Value {
    json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"] }] },
    ] } } })
}
