//! PodVolumeRestore: one volume of a restored pod on its way back from the backup location.

use super::UploaderType;
use crate::schema::foreign;
use crate::{Nullable, OperationStatus, is_default};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is to be restored, and where to.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeRestore",
    namespaced,
    status = "PodVolumeRestoreStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A volume of a restored pod on its way back from the backup location.",
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase","description":"Where it stands"}"#,
    printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTimestamp","description":"When data began to move"}"#,
    printcolumn = r#"{"name":"Bytes Done","type":"integer","format":"int64","jsonPath":".status.progress.bytesDone","description":"Bytes dealt with"}"#,
    printcolumn = r#"{"name":"Total Bytes","type":"integer","format":"int64","jsonPath":".status.progress.totalBytes","description":"Bytes to move"}"#,
    printcolumn = r#"{"name":"Storage Location","type":"string","jsonPath":".spec.backupStorageLocation","description":"Where the data comes from"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Since when it exists"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node","description":"The node that moves the data"}"#,
    printcolumn = r#"{"name":"Uploader Type","type":"string","jsonPath":".spec.uploaderType","description":"Who moves the data"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PodVolumeRestoreSpec {
    /// The restored pod.
    #[schemars(schema_with = "foreign::object_reference")]
    pub pod: ObjectReference,
    /// The volume, by its name in the pod.
    pub volume: String,
    /// The location that has the data.
    pub backup_storage_location: String,
    /// The repository as restic names it; empty for all others.
    pub repo_identifier: String,
    /// Who moves the data.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uploader_type: UploaderType,
    /// The snapshot in the repository.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// The namespace that the data came from; it chooses the repository.
    pub source_namespace: String,
    /// Settings for the mover.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uploader_settings: Nullable<BTreeMap<String, String>>,
    /// Set to stop it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancel: bool,
    /// How much data it is, as far as known.
    #[serde(default, skip_serializing_if = "is_default")]
    pub snapshot_size: i64,
}

/// How far it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolumeRestoreStatus {
    /// What all kinds of volume operations say.
    #[serde(flatten)]
    pub operation: OperationStatus,
    /// The node of the pod, whose agent does the work.
    #[serde(skip_serializing_if = "is_default")]
    pub node: String,
}
