//! `velero.io/v2alpha1`: data movement of volume snapshots.

mod data_download;
mod data_upload;

pub use data_download::{DataDownload, DataDownloadSpec, DataDownloadStatus, TargetVolume};
pub use data_upload::{
    CsiSnapshot, DataUpload, DataUploadResult, DataUploadSpec, DataUploadStatus, SNAPSHOT_TYPE_CSI,
};

use crate::{OperationStatus, is_default};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What DataUpload and DataDownload both say of themselves; part of the status of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MovementStatus {
    /// What all kinds of volume operations say.
    #[serde(flatten)]
    pub operation: OperationStatus,
    /// The node of the hosting pod.
    #[serde(skip_serializing_if = "is_default")]
    pub node: String,
    /// The node whose agent took it.
    #[serde(skip_serializing_if = "is_default")]
    pub accepted_by_node: String,
}

/// Whether the mover that an object names is the built-in one; all others leave the object alone.
#[must_use]
pub fn is_built_in(data_mover: &str) -> bool {
    matches!(data_mover, "" | "velero")
}
