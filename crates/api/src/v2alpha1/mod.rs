//! `velero.io/v2alpha1`: data movement of volume snapshots.

mod data_download;
mod data_upload;

pub use data_download::{DataDownload, DataDownloadSpec, DataDownloadStatus, TargetVolume};
pub use data_upload::{
    CsiSnapshot, DataUpload, DataUploadResult, DataUploadSpec, DataUploadStatus, SNAPSHOT_TYPE_CSI,
};

/// Whether the mover that an object names is the built-in one; all others leave the object alone.
#[must_use]
pub fn is_built_in(data_mover: &str) -> bool {
    matches!(data_mover, "" | "velero")
}
