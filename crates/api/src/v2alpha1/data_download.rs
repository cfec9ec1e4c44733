//! DataDownload: one volume on its way back from the backup location.

use super::MovementStatus;
use crate::{Duration, NodeOs, is_default};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is to be restored, and where to.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v2alpha1",
    kind = "DataDownload",
    namespaced,
    status = "DataDownloadStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A volume on its way back from the backup location.",
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase","description":"Where it stands"}"#,
    printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTimestamp","description":"When data began to move"}"#,
    printcolumn = r#"{"name":"Bytes Done","type":"integer","format":"int64","jsonPath":".status.progress.bytesDone","description":"Bytes dealt with"}"#,
    printcolumn = r#"{"name":"Total Bytes","type":"integer","format":"int64","jsonPath":".status.progress.totalBytes","description":"Bytes to move"}"#,
    printcolumn = r#"{"name":"Storage Location","type":"string","jsonPath":".spec.backupStorageLocation","description":"Where the data comes from"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Since when it exists"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node","description":"The node that moves the data"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DataDownloadSpec {
    /// The volume that takes the data.
    pub target_volume: TargetVolume,
    /// The location that has the data.
    pub backup_storage_location: String,
    /// Who moves the data: empty or `velero` for the built-in mover.
    #[serde(default, rename = "datamover", skip_serializing_if = "is_default")]
    pub data_mover: String,
    /// The snapshot in the repository.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// The namespace that the data came from; it chooses the repository.
    pub source_namespace: String,
    /// Settings for the mover.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_mover_config: BTreeMap<String, String>,
    /// Set to stop it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancel: bool,
    /// How long to wait for single objects of Kubernetes.
    pub operation_timeout: Duration,
    /// The system that the volume needs.
    #[serde(default, rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NodeOs")]
    pub node_os: Option<NodeOs>,
    /// How much data it is, as far as known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub snapshot_size: i64,
}

/// The volume that takes the data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetVolume {
    /// The claim.
    pub pvc: String,
    /// The volume; empty as long as the claim has none.
    pub pv: String,
    /// The claim's namespace.
    pub namespace: String,
}

/// How far it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataDownloadStatus {
    /// What both directions say.
    #[serde(flatten)]
    pub movement: MovementStatus,
}
