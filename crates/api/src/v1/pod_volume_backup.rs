//! PodVolumeBackup: one volume of a running pod on its way into the backup location.

use crate::schema::{foreign, string_enum};
use crate::{Nullable, OperationStatus, is_default};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

string_enum! {
    /// Who moves the data of a pod's volume.
    #[derive(Default)]
    pub enum UploaderType {
        /// A Kopia repository.
        Kopia = "kopia",
        /// A restic repository, of old backups.
        Restic = "restic",
        /// Left open.
        #[default]
        Unset = "",
    }
}

/// What is to be backed up, and where to.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeBackup",
    namespaced,
    status = "PodVolumeBackupStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A volume of a running pod on its way into the backup location.",
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase","description":"Where it stands"}"#,
    printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTimestamp","description":"When data began to move"}"#,
    printcolumn = r#"{"name":"Bytes Done","type":"integer","format":"int64","jsonPath":".status.progress.bytesDone","description":"Bytes dealt with"}"#,
    printcolumn = r#"{"name":"Total Bytes","type":"integer","format":"int64","jsonPath":".status.progress.totalBytes","description":"Bytes to move"}"#,
    printcolumn = r#"{"name":"Incremental Bytes","type":"integer","format":"int64","jsonPath":".status.incrementalBytes","description":"Bytes that the parent did not have","priority":10}"#,
    printcolumn = r#"{"name":"Storage Location","type":"string","jsonPath":".spec.backupStorageLocation","description":"Where the data goes"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp","description":"Since when it exists"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node","description":"The node that moves the data"}"#,
    printcolumn = r#"{"name":"Uploader","type":"string","jsonPath":".spec.uploaderType","description":"Who moves the data"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PodVolumeBackupSpec {
    /// The node of the pod; its agent does the work.
    pub node: String,
    /// The pod.
    #[schemars(schema_with = "foreign::object_reference")]
    pub pod: ObjectReference,
    /// The volume, by its name in the pod.
    pub volume: String,
    /// The location that takes the data.
    pub backup_storage_location: String,
    /// The repository as restic names it; empty for all others.
    pub repo_identifier: String,
    /// Who moves the data.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uploader_type: UploaderType,
    /// What the server noted about the volume.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tags: BTreeMap<String, String>,
    /// Settings for the mover.
    #[serde(default, skip_serializing_if = "is_default")]
    pub uploader_settings: Nullable<BTreeMap<String, String>>,
    /// Set to stop it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cancel: bool,
}

/// How far it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolumeBackupStatus {
    /// What all kinds of volume operations say.
    #[serde(flatten)]
    pub operation: OperationStatus,
    /// The path inside the hosting pod that was read.
    #[serde(skip_serializing_if = "is_default")]
    pub path: String,
    /// The snapshot in the repository.
    #[serde(rename = "snapshotID", skip_serializing_if = "is_default")]
    pub snapshot_id: String,
    /// Bytes that the parent snapshot did not have.
    #[serde(skip_serializing_if = "is_default")]
    pub incremental_bytes: i64,
}
