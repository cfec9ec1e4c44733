//! What the four volume operations share: their phases, their progress, and the system of the node that runs them.

use crate::is_default;
use crate::schema::string_enum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

string_enum! {
    /// Where a volume operation stands; an object without a phase is [`Phase::New`].
    #[derive(Default)]
    pub enum Phase {
        /// Nobody has taken it yet.
        #[default]
        New,
        /// A node-agent has taken it and makes the volume reachable.
        Accepted,
        /// The volume is reachable in a hosting pod, which waits for its turn.
        Prepared,
        /// Data is moving.
        InProgress,
        /// The hosting pod was told to stop.
        Canceling,
        /// It was stopped before it was done.
        Canceled,
        /// All data was moved.
        Completed,
        /// It could not be done; the message says why.
        Failed,
    }
}

impl Phase {
    /// Whether nothing can follow.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Canceled | Self::Completed | Self::Failed)
    }
}

string_enum! {
    /// The operating system that a volume operation needs.
    pub enum NodeOs {
        /// Whatever fits.
        Auto = "auto",
        /// Linux.
        Linux = "linux",
        /// Windows.
        Windows = "windows",
    }
}

/// How far a volume operation has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    /// Bytes to move, as far as known.
    #[serde(skip_serializing_if = "is_default")]
    pub total_bytes: i64,
    /// Bytes dealt with.
    #[serde(skip_serializing_if = "is_default")]
    pub bytes_done: i64,
}

/// What the four kinds of volume operations all say of themselves; part of the status of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperationStatus {
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Phase")]
    pub phase: Option<Phase>,
    /// What is to be said about it.
    #[serde(skip_serializing_if = "is_default")]
    pub message: String,
    /// When data began to move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    /// How far the data is.
    pub progress: Progress,
    /// When it was taken; the time for preparing runs from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,
}
