//! Backup: objects and volumes of a cluster, kept in a backup location.

use super::{BackupHooks, Selection};
use crate::schema::{foreign, string_enum};
use crate::{Duration, Nullable, is_default};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What to back up, and how.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Backup",
    namespaced,
    status = "BackupStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Objects and volumes of the cluster, kept in a backup location."
)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupSpec {
    /// What backups of a schedule carry.
    pub metadata: BackupMetadata,
    /// Which objects it is about.
    #[serde(flatten)]
    pub selection: Selection,
    /// Only these resources outside namespaces.
    #[serde(skip_serializing_if = "is_default")]
    pub included_cluster_scoped_resources: Nullable<Vec<String>>,
    /// Not these resources outside namespaces.
    #[serde(skip_serializing_if = "is_default")]
    pub excluded_cluster_scoped_resources: Nullable<Vec<String>>,
    /// Only these resources inside namespaces.
    #[serde(skip_serializing_if = "is_default")]
    pub included_namespace_scoped_resources: Nullable<Vec<String>>,
    /// Not these resources inside namespaces.
    #[serde(skip_serializing_if = "is_default")]
    pub excluded_namespace_scoped_resources: Nullable<Vec<String>>,
    /// Only what one of these selects.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "foreign::nullable_label_selectors")]
    pub or_label_selectors: Nullable<Vec<LabelSelector>>,
    /// Whether plugins take snapshots of volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_volumes: Option<bool>,
    /// How long the backup is kept.
    pub ttl: Duration,
    /// Whether objects outside namespaces belong to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_cluster_resources: Option<bool>,
    /// What runs around the backup of a pod.
    pub hooks: BackupHooks,
    /// The location that takes it.
    #[serde(skip_serializing_if = "is_default")]
    pub storage_location: String,
    /// The places for snapshots that plugins take.
    #[serde(skip_serializing_if = "is_default")]
    pub volume_snapshot_locations: Vec<String>,
    /// The older name of `defaultVolumesToFsBackup`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_restic: Option<bool>,
    /// Whether all volumes of pods are backed up as files unless they say otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_fs_backup: Option<bool>,
    /// Objects that go first, by their resource.
    #[serde(skip_serializing_if = "is_default")]
    pub ordered_resources: Nullable<BTreeMap<String, String>>,
    /// How long to wait for a snapshot of a CSI driver to exist.
    pub csi_snapshot_timeout: Duration,
    /// How long to wait for what plugins do beside the backup.
    pub item_operation_timeout: Duration,
    /// Rules for volumes, in a config map.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::local_reference")]
    pub resource_policy: Option<TypedLocalObjectReference>,
    /// Whether the data of snapshots is moved into the location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_move_data: Option<bool>,
    /// Who moves the data.
    #[serde(rename = "datamover", skip_serializing_if = "is_default")]
    pub data_mover: String,
    /// Settings for whoever moves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_config: Option<UploaderConfigForBackup>,
    /// The label by which volumes are snapshotted together.
    #[serde(skip_serializing_if = "is_default")]
    pub volume_group_snapshot_label_key: String,
}

/// What backups of a schedule carry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BackupMetadata {
    /// Labels.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,
}

/// Settings for whoever moves data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UploaderConfigForBackup {
    /// How many files are read at once.
    #[serde(skip_serializing_if = "is_default")]
    pub parallel_files_upload: i32,
}

string_enum! {
    /// How far a backup is.
    pub enum BackupPhase {
        /// Not looked at yet.
        New,
        /// Others go first.
        Queued,
        /// Its turn has come.
        ReadyToStart,
        /// What it says makes no sense.
        FailedValidation,
        /// Under way.
        InProgress,
        /// All objects are stored; plugins are still at work.
        WaitingForPluginOperations,
        /// The same, and something has failed.
        WaitingForPluginOperationsPartiallyFailed,
        /// Objects that plugins changed are stored again.
        Finalizing,
        /// The same, and something has failed.
        FinalizingPartiallyFailed,
        /// All was backed up.
        Completed,
        /// Some was not; the log says what and why.
        PartiallyFailed,
        /// Nothing that could be restored came of it.
        Failed,
        /// It is being deleted.
        Deleting,
    }
}

/// How far the backup is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupStatus {
    /// The format's major version; superseded by `formatVersion`.
    #[serde(skip_serializing_if = "is_default")]
    pub version: i32,
    /// The format of the backup's files.
    #[serde(skip_serializing_if = "is_default")]
    pub format_version: String,
    /// When it may be deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Time>,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackupPhase")]
    pub phase: Option<BackupPhase>,
    /// Its place in the queue, from 1.
    #[serde(skip_serializing_if = "is_default")]
    pub queue_position: i32,
    /// What is wrong with what it says.
    #[serde(skip_serializing_if = "is_default")]
    pub validation_errors: Nullable<Vec<String>>,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    /// Snapshots that plugins were asked for.
    #[serde(skip_serializing_if = "is_default")]
    pub volume_snapshots_attempted: i32,
    /// Snapshots that plugins took.
    #[serde(skip_serializing_if = "is_default")]
    pub volume_snapshots_completed: i32,
    /// Why it failed.
    #[serde(skip_serializing_if = "is_default")]
    pub failure_reason: String,
    /// How many warnings there were.
    #[serde(skip_serializing_if = "is_default")]
    pub warnings: i32,
    /// How many errors there were.
    #[serde(skip_serializing_if = "is_default")]
    pub errors: i32,
    /// How many objects are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<BackupProgress>,
    /// Snapshots that CSI drivers were asked for.
    #[serde(skip_serializing_if = "is_default")]
    pub csi_volume_snapshots_attempted: i32,
    /// Snapshots that CSI drivers took.
    #[serde(skip_serializing_if = "is_default")]
    pub csi_volume_snapshots_completed: i32,
    /// Operations that plugins began.
    #[serde(skip_serializing_if = "is_default")]
    pub backup_item_operations_attempted: i32,
    /// Operations of plugins that ended well.
    #[serde(skip_serializing_if = "is_default")]
    pub backup_item_operations_completed: i32,
    /// Operations of plugins that did not.
    #[serde(skip_serializing_if = "is_default")]
    pub backup_item_operations_failed: i32,
    /// How the hooks went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_status: Option<HookStatus>,
}

/// How many objects are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupProgress {
    /// All that are to be stored.
    #[serde(skip_serializing_if = "is_default")]
    pub total_items: i32,
    /// Those that are.
    #[serde(skip_serializing_if = "is_default")]
    pub items_backed_up: i32,
}

/// How the hooks went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HookStatus {
    /// Hooks that were run.
    #[serde(skip_serializing_if = "is_default")]
    pub hooks_attempted: i32,
    /// Hooks that failed.
    #[serde(skip_serializing_if = "is_default")]
    pub hooks_failed: i32,
}
