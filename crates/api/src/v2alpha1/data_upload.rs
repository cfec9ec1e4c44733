//! DataUpload: one volume snapshot on its way into the backup location.

use super::MovementStatus;
use crate::{Duration, NodeOs, Nullable, is_default};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is to be moved, and where to.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v2alpha1",
    kind = "DataUpload",
    namespaced,
    status = "DataUploadStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A volume snapshot on its way into the backup location.",
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase","description":"Where it stands"}"#,
    printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTimestamp","description":"When data began to move"}"#,
    printcolumn = r#"{"name":"Bytes Done","type":"integer","format":"int64","jsonPath":".status.progress.bytesDone","description":"Bytes dealt with"}"#,
    printcolumn = r#"{"name":"Total Bytes","type":"integer","format":"int64","jsonPath":".status.progress.totalBytes","description":"Bytes to move"}"#,
    printcolumn = r#"{"name":"Incremental Bytes","type":"integer","format":"int64","jsonPath":".status.incrementalBytes","description":"Bytes that the parent did not have","priority":10}"#,
    printcolumn = r#"{"name":"Storage Location","type":"string","jsonPath":".spec.backupStorageLocation","description":"Where the data goes"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Since when it exists"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node","description":"The node that moves the data"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DataUploadSpec {
    /// What kind of snapshot it is; only [`SNAPSHOT_TYPE_CSI`] is known.
    pub snapshot_type: String,
    /// The snapshot, if it is one of a CSI driver.
    #[serde(default, rename = "csiSnapshot", skip_serializing_if = "Option::is_none")]
    pub csi_snapshot: Option<CsiSnapshot>,
    /// The claim that was snapshotted.
    #[serde(rename = "sourcePVC")]
    pub source_pvc: String,
    /// Who moves the data: empty or `velero` for the built-in mover.
    #[serde(default, rename = "datamover", skip_serializing_if = "is_default")]
    pub data_mover: String,
    /// The location that takes the data.
    pub backup_storage_location: String,
    /// The namespace of claim and snapshot; it also chooses the repository.
    pub source_namespace: String,
    /// Settings for the mover.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_mover_config: Nullable<BTreeMap<String, String>>,
    /// Set to stop it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancel: bool,
    /// How long to wait for single objects of Kubernetes.
    pub operation_timeout: Duration,
}

/// The only kind of snapshot that is known: a VolumeSnapshot of a CSI driver.
pub const SNAPSHOT_TYPE_CSI: &str = "CSI";

/// A snapshot that a CSI driver made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CsiSnapshot {
    /// The VolumeSnapshot.
    pub volume_snapshot: String,
    /// The storage class of the claim that was snapshotted.
    pub storage_class: String,
    /// The VolumeSnapshotClass.
    #[serde(default, skip_serializing_if = "is_default")]
    pub snapshot_class: String,
    /// The driver.
    #[serde(default, skip_serializing_if = "is_default")]
    pub driver: String,
}

/// How far it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DataUploadStatus {
    /// What both directions say.
    #[serde(flatten)]
    pub movement: MovementStatus,
    /// The path inside the hosting pod that was read.
    #[serde(skip_serializing_if = "is_default")]
    pub path: String,
    /// The snapshot in the repository.
    #[serde(rename = "snapshotID", skip_serializing_if = "is_default")]
    pub snapshot_id: String,
    /// What another mover wants to hand to its restore.
    #[serde(skip_serializing_if = "is_default")]
    pub data_mover_result: Nullable<BTreeMap<String, String>>,
    /// Bytes that the parent snapshot did not have.
    #[serde(skip_serializing_if = "is_default")]
    pub incremental_bytes: i64,
    /// The system of that node.
    #[serde(rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "NodeOs")]
    pub node_os: Option<NodeOs>,
}

/// What a restore needs to know about a finished DataUpload; travels as JSON in a config map.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataUploadResult {
    /// The location that has the data.
    pub backup_storage_location: String,
    /// Who moved the data.
    #[serde(default, rename = "datamover", skip_serializing_if = "is_default")]
    pub data_mover: String,
    /// The snapshot in the repository.
    #[serde(default, rename = "snapshotID", skip_serializing_if = "is_default")]
    pub snapshot_id: String,
    /// The namespace that chooses the repository.
    pub source_namespace: String,
    /// What the mover left for its restore.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_mover_result: Nullable<BTreeMap<String, String>>,
    /// The system that the volume needs.
    #[serde(default, rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    pub node_os: Option<NodeOs>,
    /// How much data it is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub snapshot_size: i64,
}
