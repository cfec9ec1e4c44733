//! What the four volume operations share: their phases, their progress, and the system of the node that runs them.

use crate::is_default;
use crate::schema::string_enum;
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
