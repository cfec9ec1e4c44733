//! BackupRepository: the repository of one namespace's volumes in one backup location.

use super::UploaderType;
use crate::schema::string_enum;
use crate::{Duration, Nullable, is_default};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which repository it is, and how it is kept.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupRepository",
    plural = "backuprepositories",
    namespaced,
    status = "BackupRepositoryStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "The repository of one namespace's volumes in one backup location.",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Repository Type","type":"string","jsonPath":".spec.repositoryType"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BackupRepositorySpec {
    /// The namespace whose volumes it holds.
    pub volume_namespace: String,
    /// The location that holds it.
    pub backup_storage_location: String,
    /// What kind of repository it is.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repository_type: UploaderType,
    /// The repository as restic names it; empty for all others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub restic_identifier: String,
    /// How often maintenance runs.
    pub maintenance_frequency: Duration,
    /// Settings of the repository.
    #[serde(default, skip_serializing_if = "is_default")]
    pub repository_config: Nullable<BTreeMap<String, String>>,
}

string_enum! {
    /// Whether a repository can be used.
    pub enum BackupRepositoryPhase {
        /// Not looked at yet.
        New,
        /// It can.
        Ready,
        /// It cannot; the message says why.
        NotReady,
    }
}

string_enum! {
    /// How a maintenance ended.
    pub enum MaintenanceResult {
        /// All was done.
        Succeeded,
        /// It was not; the message says why.
        Failed,
    }
}

/// How the repository is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupRepositoryStatus {
    /// Whether it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BackupRepositoryPhase")]
    pub phase: Option<BackupRepositoryPhase>,
    /// Why it cannot.
    #[serde(skip_serializing_if = "is_default")]
    pub message: String,
    /// When maintenance last ended well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_maintenance_time: Option<Time>,
    /// The latest maintenance runs, oldest first.
    #[serde(skip_serializing_if = "is_default")]
    pub recent_maintenance: Vec<RecentMaintenance>,
}

/// One maintenance run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RecentMaintenance {
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MaintenanceResult")]
    pub result: Option<MaintenanceResult>,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete_timestamp: Option<Time>,
    /// Why it failed.
    #[serde(skip_serializing_if = "is_default")]
    pub message: String,
}
