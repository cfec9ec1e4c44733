//! Commands and containers that run around the backup or restore of a pod.

use super::Selection;
use crate::schema::{foreign, string_enum};
use crate::{Duration, Nullable, is_default};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

string_enum! {
    /// What a hook that failed means for the rest.
    pub enum HookErrorMode {
        /// Go on.
        Continue,
        /// The item has failed.
        Fail,
    }
}

/// Hooks of a backup.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BackupHooks {
    /// Hooks by the pods that they are for.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: Nullable<Vec<BackupResourceHookSpec>>,
}

/// Hooks for the pods that are selected.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupResourceHookSpec {
    /// The name of the hooks.
    pub name: String,
    /// Which objects it is about.
    #[serde(flatten)]
    pub selection: Selection,
    /// Before the pod is backed up.
    #[serde(default, rename = "pre", skip_serializing_if = "is_default")]
    pub pre_hooks: Vec<BackupResourceHook>,
    /// After it.
    #[serde(default, rename = "post", skip_serializing_if = "is_default")]
    pub post_hooks: Vec<BackupResourceHook>,
}

/// One hook of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackupResourceHook {
    /// The command to run.
    pub exec: ExecHook,
}

/// A command in a container of a pod that is backed up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecHook {
    /// The container; the first one if it is not named.
    #[serde(default, skip_serializing_if = "is_default")]
    pub container: String,
    /// The command and its arguments.
    #[schemars(schema_with = "foreign::command")]
    pub command: Vec<String>,
    /// What a failure means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HookErrorMode")]
    pub on_error: Option<HookErrorMode>,
    /// How long it may take.
    #[serde(default)]
    pub timeout: Duration,
}

/// Hooks of a restore.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RestoreHooks {
    /// Hooks by the pods that they are for.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: Vec<RestoreResourceHookSpec>,
}

/// Hooks for the pods that are selected.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreResourceHookSpec {
    /// The name of the hooks.
    pub name: String,
    /// Which objects it is about.
    #[serde(flatten)]
    pub selection: Selection,
    /// After the pod is restored.
    #[serde(default, skip_serializing_if = "is_default")]
    pub post_hooks: Vec<RestoreResourceHook>,
}

/// One hook of a restore: a command or init containers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RestoreResourceHook {
    /// The command to run in the restored pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ExecRestoreHook")]
    pub exec: Option<ExecRestoreHook>,
    /// Containers to put before the pod's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "InitRestoreHook")]
    pub init: Option<InitRestoreHook>,
}

/// A command in a container of a restored pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecRestoreHook {
    /// The container; the first one if it is not named.
    #[serde(default, skip_serializing_if = "is_default")]
    pub container: String,
    /// The command and its arguments.
    #[schemars(schema_with = "foreign::command")]
    pub command: Vec<String>,
    /// What a failure means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HookErrorMode")]
    pub on_error: Option<HookErrorMode>,
    /// How long it may take.
    #[serde(default)]
    pub exec_timeout: Duration,
    /// How long to wait for the container.
    #[serde(default)]
    pub wait_timeout: Duration,
    /// Whether to wait until the container is ready, and not only running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for_ready: Option<bool>,
}

/// Init containers for a restored pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InitRestoreHook {
    /// The containers, as they stand in a pod.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(schema_with = "foreign::containers")]
    pub init_containers: Vec<Value>,
    /// How long to wait for them.
    pub timeout: Duration,
}
