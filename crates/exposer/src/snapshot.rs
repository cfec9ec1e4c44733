//! Snapshots of CSI volumes as the snapshot controller knows them, as far as movers need them.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// A snapshot in a namespace.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    namespaced,
    schema = "disabled",
    status = "VolumeSnapshotStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// What it is a snapshot of.
    #[serde(default)]
    pub source: SnapshotSource,
    /// Its class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// What a snapshot is a snapshot of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// A claim, whose volume is snapshotted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
    /// A content that exists already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_content_name: Option<String>,
}

/// How far a snapshot is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// Its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    /// Whether a volume can be made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// How large such a volume has to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<IntOrString>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

/// What went wrong with a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotError {
    /// In words of the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What the storage has of a snapshot.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshotContent",
    schema = "disabled",
    status = "VolumeSnapshotContentStatus",
    derive = "PartialEq",
    derive = "Default"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentSpec {
    /// The snapshot that it belongs to.
    pub volume_snapshot_ref: ObjectReference,
    /// What becomes of the storage's snapshot when this goes.
    pub deletion_policy: String,
    /// The driver.
    pub driver: String,
    /// The class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    /// Where it comes from.
    #[serde(default)]
    pub source: ContentSource,
}

/// Where a content comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContentSource {
    /// A snapshot that the storage has already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
}

/// How far a content is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotContentStatus {
    /// The snapshot, as the storage calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    /// Whether a volume can be made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    /// How large such a volume has to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotError>,
}

/// The policy by which the storage's snapshot goes with its content.
pub const DELETE: &str = "Delete";
/// The policy by which it stays.
pub const RETAIN: &str = "Retain";

impl VolumeSnapshot {
    pub(crate) fn ready(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.ready_to_use == Some(true))
    }

    pub(crate) fn content_name(&self) -> Option<&str> {
        self.status.as_ref()?.bound_volume_snapshot_content_name.as_deref()
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        self.status.as_ref()?.error.as_ref()?.message.as_deref()
    }
}

impl VolumeSnapshotContent {
    pub(crate) fn handle(&self) -> Option<&str> {
        let of_status = || self.status.as_ref()?.snapshot_handle.as_deref();
        self.spec.source.snapshot_handle.as_deref().or_else(of_status)
    }

    pub(crate) fn problem(&self) -> Option<&str> {
        self.status.as_ref()?.error.as_ref()?.message.as_deref()
    }
}
