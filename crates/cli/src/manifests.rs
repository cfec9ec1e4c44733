//! The objects of a node-agent in the cluster: accounts, what they may do, and the DaemonSet.
//!
//! The agent makes pods and volumes; the mover in a hosting pod reads credentials. Neither may do what the other does.

use lifeboat_exposer::MOVER_ACCOUNT;
use serde_json::{Value, json};

/// The agent's account.
const AGENT: &str = "lifeboat-node-agent";
/// The account of hosting pods.
const MOVER: &str = "lifeboat-mover";
/// The DaemonSet and its container; Velero's server finds node-agents by this name.
pub const NODE_AGENT: &str = "node-agent";
/// Variables that name the file with the credentials of a cloud.
const CREDENTIALS: [&str; 3] =
    ["AWS_SHARED_CREDENTIALS_FILE", "AZURE_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS"];
/// The four kinds of volume operations.
const OPERATIONS: [&str; 4] = ["datadownloads", "datauploads", "podvolumebackups", "podvolumerestores"];

/// Where the agent answers for its metrics and its health.
const METRICS_PORT: u16 = 8085;

/// What there is to say about a node-agent.
#[derive(Debug, Clone)]
pub struct NodeAgent {
    /// The namespace of Velero.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The secret with the credentials that locations without any of their own use.
    pub secret: Option<String>,
    /// The words after the program.
    pub args: Vec<String>,
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
            rule("velero.io", &OPERATIONS, &["get", "list", "watch", "patch", "update"]),
            rule("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
            rule("", &["pods/log"], &["get"]),
            rule("", &["persistentvolumeclaims"], &["create", "update", "delete"]),
            rule("", &["configmaps"], &["get", "list", "watch"]),
            rule("", &["events"], &["get", "list", "watch", "create", "patch"]),
            rule("events.k8s.io", &["events"], &["create", "patch"]),
            rule("apps", &["daemonsets"], &["get", "list", "watch"]),
            rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["create"]),
        ])
    }

    /// A mover reads its operation and what leads to the repository; credentials are read by it alone.
    fn mover_rules(&self) -> Value {
        json!([
            rule("velero.io", &OPERATIONS, &["get", "list", "watch"]),
            rule("velero.io", &["backupstoragelocations"], &["get"]),
            rule("velero.io", &["backuprepositories"], &["get", "list", "create"]),
            rule("", &["secrets"], &["get"]),
            rule("", &["events"], &["create", "patch"]),
        ])
    }

    /// Outside of Velero's namespace: volumes belong to no namespace, claims and snapshots to those of their users.
    fn cluster_role(&self) -> Value {
        let snapshots = "snapshot.storage.k8s.io";
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": AGENT, "labels": { "component": "velero" } },
            "rules": [
                rule("", &["nodes", "pods"], &["get", "list", "watch"]),
                rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
                rule("", &["persistentvolumes"], &["get", "list", "watch", "patch", "update", "delete"]),
                rule("storage.k8s.io", &["storageclasses", "volumeattachments"], &["get", "list", "watch"]),
                rule("scheduling.k8s.io", &["priorityclasses"], &["get", "list", "watch"]),
                rule(snapshots, &["volumesnapshots"], &["get", "list", "watch", "patch", "delete"]),
                rule(snapshots, &["volumesnapshotcontents"], &["get", "list", "watch", "create", "patch", "update", "delete"]),
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
        let host = |name: &str, path: &str| json!({ "name": name, "mountPath": path, "mountPropagation": "HostToContainer", "readOnly": true });
        let mut mounts = vec![
            host("host-pods", "/host_pods"),
            host("host-plugins", "/var/lib/kubelet/plugins"),
            json!({ "name": "tmp", "mountPath": "/tmp" }),
        ];
        let mut volumes = vec![
            json!({ "name": "host-pods", "hostPath": { "path": "/var/lib/kubelet/pods" } }),
            json!({ "name": "host-plugins", "hostPath": { "path": "/var/lib/kubelet/plugins" } }),
            json!({ "name": "tmp", "emptyDir": {} }),
        ];
        if let Some(secret) = &self.secret {
            env.extend(CREDENTIALS.map(|name| json!({ "name": name, "value": "/credentials/cloud" })));
            mounts.push(json!({ "name": "cloud-credentials", "mountPath": "/credentials" }));
            volumes.push(json!({ "name": "cloud-credentials", "secret": { "secretName": secret } }));
        }
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": self.metadata(NODE_AGENT),
            "spec": {
                "selector": { "matchLabels": { "name": NODE_AGENT } },
                "template": {
                    "metadata": { "labels": { "component": "velero", "name": NODE_AGENT, "role": NODE_AGENT } },
                    "spec": {
                        "serviceAccountName": AGENT,
                        "affinity": not_on_windows(),
                        // The kubelet's folders are for root only.
                        "securityContext": { "runAsUser": 0, "seccompProfile": { "type": "RuntimeDefault" } },
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

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

fn not_on_windows() -> Value {
    json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
        { "matchExpressions": [{ "key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"] }] },
    ] } } })
}
