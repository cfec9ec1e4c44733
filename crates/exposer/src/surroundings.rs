//! What hosting pods take over from the node-agent that starts them, and what they must not.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, LocalObjectReference, PodDNSConfig, PodSpec, Toleration, Volume,
    VolumeMount,
};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Tolerations that hosting pods take over; the others are the node-agent's own.
const TOLERATIONS: [&str; 2] = ["kubernetes.azure.com/scalesetpriority", "CriticalAddonsOnly"];
/// Labels that hosting pods take over: without it there is no identity on Azure.
const LABELS: [&str; 1] = ["azure.workload.identity/use"];
/// Annotations that hosting pods take over: without it there is no identity on AWS with kube2iam.
const ANNOTATIONS: [&str; 1] = ["iam.amazonaws.com/role"];
/// Flags of the node-agent that also hold for movers, in the order in which they are passed on.
const LOG_FLAGS: [&str; 2] = ["--log-format", "--log-level"];

/// The variable of a node-agent that names the account of hosting pods, which needs other rights than the agent's own.
pub const MOVER_ACCOUNT: &str = "LIFEBOAT_MOVER_SERVICE_ACCOUNT";

/// The variable of a node-agent that names the user of hosting pods, who then have no rights beyond this user's. Without it
/// they are root, who reads every file.
pub const MOVER_USER: &str = "LIFEBOAT_MOVER_USER";

/// The variable of a node-agent that names the folder of the kubelet on its node, if that is not the usual one.
pub const KUBELET_ROOT: &str = "LIFEBOAT_KUBELET_ROOT";

/// The volume of Velero's node-agent that is the folder of all pods on the node. Ours has no use for the folder, only for
/// its name.
pub const HOST_PODS: &str = "host-pods";

/// Where kubelets keep pods unless they are told otherwise.
const USUAL_PODS_FOLDER: &str = "/var/lib/kubelet/pods";

/// What a hosting pod takes over from the node-agent's DaemonSet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Surroundings {
    /// The image.
    pub image: String,
    /// Variables, with credentials' places among them.
    pub env: Vec<EnvVar>,
    /// The same, from elsewhere.
    pub env_from: Vec<EnvFromSource>,
    /// Volumes that are no folders of the host.
    pub volumes: Vec<Volume>,
    /// Their mounts.
    pub volume_mounts: Vec<VolumeMount>,
    /// The account: that of the agent, unless it names another.
    pub service_account: Option<String>,
    /// Whom movers run as, if not as root.
    pub user: Option<NonZeroU32>,
    /// How to get the image.
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// How names are resolved.
    pub dns_policy: Option<String>,
    /// The same, in detail.
    pub dns_config: Option<PodDNSConfig>,
    /// Nodes to be tolerated.
    pub tolerations: Vec<Toleration>,
    /// Labels that identities hang on.
    pub labels: BTreeMap<String, String>,
    /// Annotations that identities hang on.
    pub annotations: BTreeMap<String, String>,
    /// How to log.
    pub log_args: Vec<String>,
    /// Where the kubelet keeps the folders of pods.
    pub pods_folder: String,
}

/// Why a DaemonSet is no node-agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SurroundingsError {
    /// There is not exactly one container.
    #[error(
        "the DaemonSet {name} has {count} containers; hosting pods are made after a node-agent with exactly one"
    )]
    NotOneContainer {
        /// The DaemonSet.
        name: String,
        /// How many it has.
        count: usize,
    },
    /// Nothing says which image it runs.
    #[error("the container of the DaemonSet {name} names no image")]
    NoImage {
        /// The DaemonSet.
        name: String,
    },
    /// The user of movers is none.
    #[error(
        "the DaemonSet {name} sets {MOVER_USER} to {value:?}, which is not the number of a user other than root"
    )]
    NoUser {
        /// The DaemonSet.
        name: String,
        /// What it says.
        value: String,
    },
}

impl Surroundings {
    /// What hosting pods take over from this DaemonSet. Folders of the host stay behind: a mover gets the one volume that
    /// it moves, and nothing else of the node.
    ///
    /// # Errors
    /// If it does not look like a node-agent.
    pub fn of(daemon_set: &DaemonSet) -> Result<Self, SurroundingsError> {
        let name = || daemon_set.metadata.name.clone().unwrap_or_default();
        let template = daemon_set.spec.as_ref().map(|spec| &spec.template);
        let pod = template.and_then(|template| template.spec.as_ref());
        let containers = pod.map_or(&[][..], |pod| pod.containers.as_slice());
        let (Some(pod), [container]) = (pod, containers) else {
            return Err(SurroundingsError::NotOneContainer { name: name(), count: containers.len() });
        };
        let image = container.image.clone().filter(|image| !image.is_empty());
        let volumes: Vec<Volume> =
            pod.volumes.iter().flatten().filter(|volume| volume.host_path.is_none()).cloned().collect();
        let kept = |mount: &&VolumeMount| volumes.iter().any(|volume| volume.name == mount.name);
        let volume_mounts = container.volume_mounts.iter().flatten().filter(kept).cloned().collect();
        let user = value_of(container, MOVER_USER)
            .map(|value| value.parse().map_err(|_| SurroundingsError::NoUser { name: name(), value }))
            .transpose()?;
        let metadata = template.and_then(|template| template.metadata.as_ref());
        let args: Vec<&str> = container.args.iter().flatten().map(String::as_str).collect();
        Ok(Self {
            image: image.ok_or_else(|| SurroundingsError::NoImage { name: name() })?,
            env: container.env.clone().unwrap_or_default(),
            env_from: container.env_from.clone().unwrap_or_default(),
            volumes,
            volume_mounts,
            service_account: value_of(container, MOVER_ACCOUNT).or_else(|| pod.service_account_name.clone()),
            user,
            image_pull_secrets: pod.image_pull_secrets.clone().unwrap_or_default(),
            dns_policy: pod.dns_policy.clone(),
            dns_config: pod.dns_config.clone(),
            tolerations: TOLERATIONS
                .iter()
                .filter_map(|key| {
                    pod.tolerations.iter().flatten().find(|toleration| toleration.key.as_deref() == Some(key))
                })
                .cloned()
                .collect(),
            labels: some_of(metadata.and_then(|metadata| metadata.labels.as_ref()), &LABELS),
            annotations: some_of(metadata.and_then(|metadata| metadata.annotations.as_ref()), &ANNOTATIONS),
            log_args: LOG_FLAGS.iter().flat_map(|flag| occurrences(&args, flag)).collect(),
            pods_folder: pods_folder(pod, container),
        })
    }
}

/// The folder of pods on the node: below the one that the agent is told of, else the one that Velero's node-agent mounts.
fn pods_folder(pod: &PodSpec, container: &Container) -> String {
    let told = value_of(container, KUBELET_ROOT).map(|root| format!("{}/pods", root.trim_end_matches('/')));
    let mounted = || {
        let volume = pod.volumes.iter().flatten().find(|volume| volume.name == HOST_PODS);
        volume.and_then(|volume| Some(volume.host_path.as_ref()?.path.clone()))
    };
    told.or_else(mounted).unwrap_or_else(|| USUAL_PODS_FOLDER.to_owned())
}

fn value_of(container: &Container, variable: &str) -> Option<String> {
    let found = container.env.iter().flatten().find(|env| env.name == variable);
    found.and_then(|env| env.value.clone()).filter(|value| !value.is_empty())
}

fn some_of(all: Option<&BTreeMap<String, String>>, keys: &[&str]) -> BTreeMap<String, String> {
    all.into_iter()
        .flatten()
        .filter(|(key, _)| keys.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

/// Every `--flag=value` and `--flag value`, as they are written.
fn occurrences(args: &[&str], flag: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (position, arg) in args.iter().enumerate() {
        if *arg == flag {
            found.push((*arg).to_owned());
            found.extend(args.get(position + 1).map(|value| (*value).to_owned()));
        } else if arg.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')) {
            found.push((*arg).to_owned());
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn daemon_set(spec: serde_json::Value) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": { "name": "node-agent" },
            "spec": {
                "selector": {},
                "template": {
                    "metadata": {
                        "labels": { "azure.workload.identity/use": "true", "role": "node-agent" },
                        "annotations": { "iam.amazonaws.com/role": "backup", "other": "x" },
                    },
                    "spec": spec,
                },
            },
        }))
        .unwrap()
    }

    #[test]
    fn folders_of_the_host_and_other_peoples_marks_stay_behind() {
        let surroundings = Surroundings::of(&daemon_set(json!({
            "serviceAccountName": "velero",
            "tolerations": [{ "key": "dedicated", "operator": "Exists" }, { "key": "CriticalAddonsOnly", "operator": "Exists" }],
            "volumes": [
                { "name": "host-pods", "hostPath": { "path": "/var/lib/kubelet/pods" } },
                { "name": "host-plugins", "hostPath": { "path": "/var/lib/kubelet/plugins" } },
                { "name": "scratch", "emptyDir": {} },
                { "name": "cloud-credentials", "secret": { "secretName": "cloud-credentials" } },
            ],
            "containers": [{
                "name": "node-agent",
                "image": "lifeboat:1",
                "args": ["node-agent", "server", "--log-level", "debug", "--features=EnableCSI", "--log-format=json", "--log-levels=x"],
                "env": [{ "name": "VELERO_NAMESPACE", "value": "velero" }],
                "volumeMounts": [
                    { "name": "host-pods", "mountPath": "/host_pods" },
                    { "name": "scratch", "mountPath": "/scratch" },
                    { "name": "cloud-credentials", "mountPath": "/credentials" },
                ],
            }],
        })))
        .unwrap();
        let names: Vec<_> = surroundings.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["scratch", "cloud-credentials"]);
        let mounts: Vec<_> =
            surroundings.volume_mounts.iter().map(|mount| mount.mount_path.as_str()).collect();
        assert_eq!(mounts, ["/scratch", "/credentials"]);
        assert_eq!(surroundings.tolerations.len(), 1);
        assert_eq!(surroundings.labels.keys().collect::<Vec<_>>(), ["azure.workload.identity/use"]);
        assert_eq!(surroundings.annotations.keys().collect::<Vec<_>>(), ["iam.amazonaws.com/role"]);
        assert_eq!(surroundings.log_args, ["--log-format=json", "--log-level", "debug"]);
        assert_eq!(surroundings.env[0].name, "VELERO_NAMESPACE");
    }

    #[test]
    fn hosting_pods_have_the_account_that_the_agent_names_for_them_or_its_own() {
        let account = |env: serde_json::Value| {
            let container = json!({ "name": "node-agent", "image": "lifeboat:1", "env": env });
            let pod = json!({ "serviceAccountName": "agent", "containers": [container] });
            Surroundings::of(&daemon_set(pod)).unwrap().service_account.unwrap()
        };
        assert_eq!(account(json!([])), "agent");
        assert_eq!(account(json!([{ "name": MOVER_ACCOUNT, "value": "mover" }])), "mover");
    }

    #[test]
    fn folders_of_pods_are_where_the_agent_is_told_or_mounts_them() {
        let folder = |env: serde_json::Value, volumes: serde_json::Value| {
            let container = json!({ "name": "node-agent", "image": "lifeboat:1", "env": env });
            let pod = json!({ "containers": [container], "volumes": volumes });
            Surroundings::of(&daemon_set(pod)).unwrap().pods_folder
        };
        let told = || json!([{ "name": KUBELET_ROOT, "value": "/data/kubelet/" }]);
        let mounted = || json!([{ "name": HOST_PODS, "hostPath": { "path": "/mnt/pods" } }]);
        assert_eq!(folder(json!([]), json!([])), "/var/lib/kubelet/pods");
        assert_eq!(folder(json!([]), mounted()), "/mnt/pods");
        assert_eq!(folder(told(), mounted()), "/data/kubelet/pods");
    }

    #[test]
    fn movers_are_root_unless_the_agent_names_another_user() {
        let user = |value: &str| {
            let env = json!([{ "name": MOVER_USER, "value": value }]);
            let container = json!({ "name": "node-agent", "image": "lifeboat:1", "env": env });
            Surroundings::of(&daemon_set(json!({ "containers": [container] })))
                .map(|it| it.user.map(u32::from))
        };
        assert_eq!(user(""), Ok(None));
        assert_eq!(user("1000"), Ok(Some(1000)));
        for wrong in ["0", "-1", "root"] {
            assert!(matches!(user(wrong), Err(SurroundingsError::NoUser { .. })), "{wrong}");
        }
    }

    #[test]
    fn something_else_than_a_node_agent_is_refused() {
        let two = json!({ "containers": [{ "name": "a", "image": "i" }, { "name": "b", "image": "i" }] });
        assert_eq!(
            Surroundings::of(&daemon_set(two)),
            Err(SurroundingsError::NotOneContainer { name: "node-agent".into(), count: 2 })
        );
        let no_image = json!({ "containers": [{ "name": "a" }] });
        assert_eq!(
            Surroundings::of(&daemon_set(no_image)),
            Err(SurroundingsError::NoImage { name: "node-agent".into() })
        );
        assert!(Surroundings::of(&DaemonSet::default()).is_err());
    }
}
