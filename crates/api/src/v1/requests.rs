//! Requests to the server: deleting a backup, downloading a file of one, and asking how the server is.

use crate::schema::string_enum;
use crate::{Nullable, is_default};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

string_enum! {
    /// How far a deletion is.
    pub enum DeleteBackupRequestPhase {
        /// Not taken up yet.
        New,
        /// Under way.
        InProgress,
        /// Over, with or without errors.
        Processed,
    }
}

string_enum! {
    /// How far a request is.
    pub enum RequestPhase {
        /// Not taken up yet.
        New,
        /// Answered.
        Processed,
    }
}

/// Which backup to delete.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "DeleteBackupRequest",
    namespaced,
    status = "DeleteBackupRequestStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A request to delete a backup and all that belongs to it.",
    printcolumn = r#"{"name":"BackupName","type":"string","jsonPath":".spec.backupName","description":"The backup to delete"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase","description":"How far it is"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DeleteBackupRequestSpec {
    /// The backup to delete.
    pub backup_name: String,
}

/// How far the deletion is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteBackupRequestStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DeleteBackupRequestPhase")]
    pub phase: Option<DeleteBackupRequestPhase>,
    /// What could not be deleted, and why.
    #[serde(skip_serializing_if = "is_default")]
    pub errors: Nullable<Vec<String>>,
}

string_enum! {
    /// Files of a backup or restore that can be downloaded.
    #[allow(missing_docs)]
    #[derive(Default)]
    pub enum DownloadTargetKind {
        #[default]
        BackupLog,
        BackupContents,
        BackupVolumeSnapshots,
        BackupItemOperations,
        BackupResourceList,
        BackupResults,
        RestoreLog,
        RestoreResults,
        RestoreResourceList,
        RestoreItemOperations,
        CsiBackupVolumeSnapshots = "CSIBackupVolumeSnapshots",
        CsiBackupVolumeSnapshotContents = "CSIBackupVolumeSnapshotContents",
        BackupVolumeInfos,
        RestoreVolumeInfo,
    }
}

/// Which file to download.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "DownloadRequest",
    namespaced,
    status = "DownloadRequestStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A request for a link to a file of a backup or restore."
)]
pub struct DownloadRequestSpec {
    /// The file.
    pub target: DownloadTarget,
}

/// A file of a backup or restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DownloadTarget {
    /// Which file.
    pub kind: DownloadTargetKind,
    /// The backup or restore.
    pub name: String,
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownloadRequestStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RequestPhase")]
    pub phase: Option<RequestPhase>,
    /// The link; whoever has it can read the file.
    #[serde(rename = "downloadURL", skip_serializing_if = "is_default")]
    pub download_url: String,
    /// When the link ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Time>,
}

/// Nothing to say: the question is always the same.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "ServerStatusRequest",
    shortname = "ssr",
    namespaced,
    status = "ServerStatusRequestStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A question about the server."
)]
pub struct ServerStatusRequestSpec {}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerStatusRequestStatus {
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RequestPhase")]
    pub phase: Option<RequestPhase>,
    /// When it was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processed_timestamp: Option<Time>,
    /// The server's version.
    #[serde(skip_serializing_if = "is_default")]
    pub server_version: String,
    /// The plugins it has.
    #[serde(skip_serializing_if = "is_default")]
    pub plugins: Nullable<Vec<PluginInfo>>,
}

/// One plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginInfo {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: String,
}
