//! BackupStorageLocation and VolumeSnapshotLocation: where backups and snapshots are kept.

use crate::schema::{foreign, string_enum};
use crate::{Duration, is_default};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::SecretKeySelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

string_enum! {
    /// What may be done with a location.
    pub enum AccessMode {
        /// Only restores.
        ReadOnly,
        /// Backups and restores.
        ReadWrite,
    }
}

string_enum! {
    /// Whether a location can be reached.
    pub enum LocationPhase {
        /// It can.
        Available,
        /// It cannot; the message says why.
        Unavailable,
    }
}

/// Where the backups are, and how to get there.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupStorageLocation",
    shortname = "bsl",
    namespaced,
    status = "BackupStorageLocationStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A place for backups in object storage.",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase","description":"Whether it can be reached"}"#,
    printcolumn = r#"{"name":"Last Validated","type":"date","jsonPath":".status.lastValidationTime","description":"When it was last tried"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Default","type":"boolean","jsonPath":".spec.default","description":"Whether backups go here unless they say otherwise"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BackupStorageLocationSpec {
    /// The kind of storage, which is also the plugin that serves it.
    pub provider: String,
    /// Settings of that kind of storage.
    #[serde(default, skip_serializing_if = "is_default")]
    pub config: BTreeMap<String, String>,
    /// The credentials; without it, those of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::secret_key")]
    pub credential: Option<SecretKeySelector>,
    /// The bucket.
    pub object_storage: ObjectStorage,
    /// Whether backups go here unless they say otherwise.
    #[serde(default, skip_serializing_if = "is_default")]
    pub default: bool,
    /// What may be done here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AccessMode")]
    pub access_mode: Option<AccessMode>,
    /// How often the cluster learns of backups that others made here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_sync_period: Option<Duration>,
    /// How often the location is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_frequency: Option<Duration>,
}

/// A bucket, or a folder of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStorage {
    /// The bucket.
    pub bucket: String,
    /// The folder in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prefix: String,
    /// Certificates to trust when talking to it.
    #[serde(default, rename = "caCert", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::bytes")]
    pub ca_cert: Option<ByteString>,
    /// The same, in a secret.
    #[serde(default, rename = "caCertRef", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::secret_key")]
    pub ca_cert_ref: Option<SecretKeySelector>,
}

/// How the location is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupStorageLocationStatus {
    /// Whether it can be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LocationPhase")]
    pub phase: Option<LocationPhase>,
    /// When the cluster last learnt of its backups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_synced_time: Option<Time>,
    /// When it was last tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_validation_time: Option<Time>,
    /// Why it cannot be reached.
    #[serde(skip_serializing_if = "is_default")]
    pub message: String,
    /// Not written any more.
    #[serde(skip_serializing_if = "is_default")]
    pub last_synced_revision: String,
    /// Not written any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "AccessMode")]
    pub access_mode: Option<AccessMode>,
}

/// Where snapshots are, and how to get there.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "VolumeSnapshotLocation",
    shortname = "vsl",
    namespaced,
    status = "VolumeSnapshotLocationStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A place for snapshots that a plugin takes."
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotLocationSpec {
    /// The plugin that takes the snapshots.
    pub provider: String,
    /// Settings for it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub config: BTreeMap<String, String>,
    /// The credentials; without it, those of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::secret_key")]
    pub credential: Option<SecretKeySelector>,
}

/// How the place is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotLocationStatus {
    /// Whether it can be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LocationPhase")]
    pub phase: Option<LocationPhase>,
}
