//! The config map of the node-agent.

use crate::schema::foreign;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All settings of the node-agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAgentConfig {
    /// How many volumes a node moves at once.
    pub load_concurrency: LoadConcurrency,
    /// Which nodes may move data; an empty list means all.
    pub load_affinity: Vec<LoadAffinity>,
    /// How the claim of a backup is made, by the storage class of the volume.
    #[serde(rename = "backupPVC")]
    pub backup_pvc: BTreeMap<String, BackupPvc>,
    /// How the claim of a restore is made.
    #[serde(rename = "restorePVC")]
    pub restore_pvc: RestorePvc,
    /// What a hosting pod may use.
    pub pod_resources: Option<PodResources>,
    /// The priority of hosting pods.
    pub priority_class_name: String,
    /// Whether hosting pods for volumes of running pods are privileged.
    pub privileged_fs_backup: bool,
    /// A volume for the cache of a restore.
    #[serde(rename = "cachePVC")]
    #[schemars(extend("x-lifeboat-aliases" = ["cacheVolume"]))]
    pub cache_pvc: Option<CachePvc>,
    /// Annotations of hosting pods.
    pub pod_annotations: BTreeMap<String, String>,
    /// Labels of hosting pods.
    pub pod_labels: BTreeMap<String, String>,
}

/// How many volumes a node moves at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadConcurrency {
    /// On nodes that no rule matches; 1 if it is not above 0.
    pub global_config: i64,
    /// Rules for some nodes; of several that match, the smallest number counts.
    pub per_node_config: Vec<NodeRule>,
    /// How many volumes of the cluster may be made reachable at once; no limit if it is not above 0.
    pub prepare_queue_length: i64,
}

/// A number for the nodes that a selector matches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRule {
    /// The nodes.
    #[schemars(schema_with = "foreign::label_selector")]
    pub node_selector: LabelSelector,
    /// How many volumes they move at once.
    pub number: i64,
}

/// Nodes that may move data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadAffinity {
    /// The nodes.
    #[schemars(schema_with = "foreign::label_selector")]
    pub node_selector: LabelSelector,
    /// Only for volumes of this storage class; for all if it is empty.
    pub storage_class: String,
}

/// How the claim of a backup is made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupPvc {
    /// Its storage class; that of the volume if it is empty.
    pub storage_class: String,
    /// Whether it is made and mounted for reading only.
    pub read_only: bool,
    /// Whether SELinux labels are left as they are; needs `readOnly`.
    pub spc_no_relabeling: bool,
    /// Annotations of the claim.
    pub annotations: BTreeMap<String, String>,
}

/// How the claim of a restore is made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestorePvc {
    /// Whether a volume is made before a pod that uses it has been given a node.
    pub ignore_delay_binding: bool,
}

/// What a hosting pod may use, as Kubernetes writes quantities; `"0"` means without a bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct PodResources {
    pub cpu_request: String,
    pub cpu_limit: String,
    pub memory_request: String,
    pub memory_limit: String,
    pub ephemeral_storage_request: String,
    pub ephemeral_storage_limit: String,
}

/// A volume for the cache of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CachePvc {
    /// Its storage class, which has to delete volumes that are released.
    pub storage_class: String,
    /// Smaller snapshots are restored without one.
    #[serde(rename = "residentThresholdInMB")]
    #[schemars(extend("x-lifeboat-aliases" = ["residentThresholdMB"]))]
    pub resident_threshold_in_mb: i64,
}
