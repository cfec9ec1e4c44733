//! Schedule: backups at regular times.

use super::BackupSpec;
use crate::is_default;
use crate::schema::string_enum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When backups are made, and which.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "Schedule",
    namespaced,
    status = "ScheduleStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Backups at regular times.",
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase","description":"Whether it is followed"}"#,
    printcolumn = r#"{"name":"Schedule","type":"string","jsonPath":".spec.schedule","description":"When backups are made"}"#,
    printcolumn = r#"{"name":"LastBackup","type":"date","jsonPath":".status.lastBackup","description":"When the last one was made"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Paused","type":"boolean","jsonPath":".spec.paused"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSpec {
    /// The backup to make.
    pub template: BackupSpec,
    /// When, as a cron expression.
    pub schedule: String,
    /// Whether backups belong to the schedule and go with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_owner_references_in_backup: Option<bool>,
    /// Whether it rests.
    #[serde(default, skip_serializing_if = "is_default")]
    pub paused: bool,
    /// Whether a backup that is due at once is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub skip_immediately: Option<bool>,
}

string_enum! {
    /// Whether a schedule is followed.
    pub enum SchedulePhase {
        /// Not looked at yet.
        New,
        /// It is.
        Enabled,
        /// It is not: what it says makes no sense.
        FailedValidation,
    }
}

/// How the schedule is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleStatus {
    /// Whether it is followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SchedulePhase")]
    pub phase: Option<SchedulePhase>,
    /// When the last backup was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<Time>,
    /// When a backup was last left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Time>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "is_default")]
    pub validation_errors: Vec<String>,
}
