//! Restore: objects and volumes of a backup on their way back into a cluster.

use super::{HookStatus, RestoreHooks, Selection};
use crate::schema::{foreign, string_enum};
use crate::{Duration, Nullable, is_default};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What to restore, and how.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Restore",
    namespaced,
    status = "RestoreStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Objects and volumes of a backup on their way back into the cluster."
)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreSpec {
    /// The backup.
    #[serde(skip_serializing_if = "is_default")]
    pub backup_name: String,
    /// The schedule whose latest backup it is, if none is named.
    #[serde(skip_serializing_if = "is_default")]
    pub schedule_name: String,
    /// Which objects it is about.
    #[serde(flatten)]
    pub selection: Selection,
    /// Namespaces that get another name.
    #[serde(skip_serializing_if = "is_default")]
    pub namespace_mapping: BTreeMap<String, String>,
    /// Only what one of these selects.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "foreign::nullable_label_selectors")]
    pub or_label_selectors: Nullable<Vec<LabelSelector>>,
    /// Whether volumes are restored.
    #[serde(rename = "restorePVs", skip_serializing_if = "Option::is_none")]
    pub restore_pvs: Option<bool>,
    /// Whose status is restored too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_status: Option<RestoreStatusSpec>,
    /// Whether services keep their node ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preserve_node_ports: Option<bool>,
    /// Whether objects outside namespaces belong to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_cluster_resources: Option<bool>,
    /// What runs after the restore of a pod.
    pub hooks: RestoreHooks,
    /// What becomes of objects that exist already: `none` or `update`.
    #[serde(skip_serializing_if = "is_default")]
    pub existing_resource_policy: Nullable<String>,
    /// How long to wait for what plugins do beside the restore.
    pub item_operation_timeout: Duration,
    /// Changes to objects on the way, in a config map.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::nullable_local_reference")]
    pub resource_modifier: Option<TypedLocalObjectReference>,
    /// Rules for volumes, in a config map.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::nullable_local_reference")]
    pub resource_policy: Option<TypedLocalObjectReference>,
    /// Settings for whoever moves data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_config: Option<UploaderConfigForRestore>,
}

/// Whose status is restored too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreStatusSpec {
    /// Only that of these resources.
    #[serde(skip_serializing_if = "is_default")]
    pub included_resources: Nullable<Vec<String>>,
    /// Not that of these resources.
    #[serde(skip_serializing_if = "is_default")]
    pub excluded_resources: Nullable<Vec<String>>,
}

/// Settings for whoever moves data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UploaderConfigForRestore {
    /// Whether runs of zeros become holes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_sparse_files: Option<bool>,
    /// How many files are written at once.
    #[serde(skip_serializing_if = "is_default")]
    pub parallel_files_download: i32,
}

string_enum! {
    /// How far a restore is.
    pub enum RestorePhase {
        /// Not looked at yet.
        New,
        /// What it says makes no sense.
        FailedValidation,
        /// Under way.
        InProgress,
        /// All objects are there; plugins are still at work.
        WaitingForPluginOperations,
        /// The same, and something has failed.
        WaitingForPluginOperationsPartiallyFailed,
        /// All was restored.
        Completed,
        /// Some was not; the results say what and why.
        PartiallyFailed,
        /// Nothing was restored.
        Failed,
        /// What has to wait for the data is done.
        Finalizing,
        /// The same, and something has failed.
        FinalizingPartiallyFailed,
    }
}

/// How far the restore is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RestorePhase")]
    pub phase: Option<RestorePhase>,
    /// What is wrong with what it says.
    #[serde(skip_serializing_if = "is_default")]
    pub validation_errors: Nullable<Vec<String>>,
    /// How many warnings there were.
    #[serde(skip_serializing_if = "is_default")]
    pub warnings: i32,
    /// How many errors there were.
    #[serde(skip_serializing_if = "is_default")]
    pub errors: i32,
    /// Why it failed.
    #[serde(skip_serializing_if = "is_default")]
    pub failure_reason: String,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    /// How many objects are restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<RestoreProgress>,
    /// Operations that plugins began.
    #[serde(skip_serializing_if = "is_default")]
    pub restore_item_operations_attempted: i32,
    /// Operations of plugins that ended well.
    #[serde(skip_serializing_if = "is_default")]
    pub restore_item_operations_completed: i32,
    /// Operations of plugins that did not.
    #[serde(skip_serializing_if = "is_default")]
    pub restore_item_operations_failed: i32,
    /// How the hooks went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_status: Option<HookStatus>,
}

/// How many objects are restored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestoreProgress {
    /// All that are to be restored.
    #[serde(skip_serializing_if = "is_default")]
    pub total_items: i32,
    /// Those that are.
    #[serde(skip_serializing_if = "is_default")]
    pub items_restored: i32,
}
