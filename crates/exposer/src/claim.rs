//! The claims of a hosting pod: for the snapshot to read, for the volume to fill, and for a cache.

use crate::Operation;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lifeboat_api::config::BackupPvc;
use std::collections::BTreeMap;

/// By this a claim says for which node its volume is to be made.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// What a cache needs beside what it holds, in tenths.
const CACHE_TENTHS: u64 = 12;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What the claim of a backup is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct BackupClaim<'a> {
    /// The snapshot, in Velero's namespace.
    pub snapshot: &'a str,
    /// The storage class of the volume that was snapshotted.
    pub source_class: &'a str,
    /// What people configured for that class.
    pub configured: &'a BackupPvc,
    /// Whether the volume is read as a device.
    pub block: bool,
    /// How large it has to be.
    pub size: &'a Quantity,
}

/// The claim by which a hosting pod reads a snapshot.
#[must_use]
pub fn backup_claim(operation: &Operation, from: &BackupClaim<'_>) -> PersistentVolumeClaim {
    let mut metadata = operation.object(&operation.name);
    metadata.annotations.get_or_insert_default().extend(from.configured.annotations.clone());
    let class = &from.configured.storage_class;
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![
                if from.configured.read_only { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned(),
            ]),
            storage_class_name: Some(if class.is_empty() {
                from.source_class.to_owned()
            } else {
                class.clone()
            }),
            volume_mode: Some(volume_mode(from.block).to_owned()),
            data_source: Some(TypedLocalObjectReference {
                api_group: Some("snapshot.storage.k8s.io".to_owned()),
                kind: "VolumeSnapshot".to_owned(),
                name: from.snapshot.to_owned(),
            }),
            resources: Some(storage(from.size.clone())),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// The claim whose volume a hosting pod fills: like the target's, but empty and not yet the target's.
#[must_use]
pub fn restore_claim(
    operation: &Operation,
    target: &PersistentVolumeClaim,
    node: Option<&str>,
) -> PersistentVolumeClaim {
    let mut metadata = operation.object(&operation.name);
    // The ledger's last: what the target says must not hide them.
    let (labels, annotations) = (metadata.labels.take(), metadata.annotations.take());
    let inherited = match node {
        Some(node) => BTreeMap::from([(SELECTED_NODE.to_owned(), node.to_owned())]),
        None => target.metadata.annotations.clone().unwrap_or_default(),
    };
    metadata.labels = Some(joined(target.metadata.labels.clone().unwrap_or_default(), labels));
    metadata.annotations = Some(joined(inherited, annotations));
    let target = target.spec.clone().unwrap_or_default();
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: target.access_modes,
            storage_class_name: target.storage_class_name,
            volume_mode: target.volume_mode,
            resources: target.resources,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// How large the cache volume of a restore has to be, in bytes; none for a snapshot below the threshold.
#[must_use]
pub fn cache_size(snapshot_size: u64, threshold_mib: u64, limit_mib: u64) -> Option<u64> {
    if snapshot_size != 0 && snapshot_size < threshold_mib.saturating_mul(MIB) {
        return None;
    }
    let needed = limit_mib.saturating_mul(MIB).saturating_mul(CACHE_TENTHS) / 10;
    Some(needed.div_ceil(GIB) * GIB)
}

/// The claim of a cache volume.
#[must_use]
pub fn cache_claim(
    operation: &Operation,
    storage_class: &str,
    size: u64,
    node: Option<&str>,
) -> PersistentVolumeClaim {
    let mut metadata = operation.object(&operation.cache_claim_name());
    let node = node.map(|node| (SELECTED_NODE.to_owned(), node.to_owned()));
    metadata.annotations.get_or_insert_default().extend(node);
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: Some(storage_class.to_owned()),
            volume_mode: Some(volume_mode(false).to_owned()),
            resources: Some(storage(Quantity(size.to_string()))),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

fn joined(
    mut first: BTreeMap<String, String>,
    last: Option<BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    first.extend(last.unwrap_or_default());
    first
}

fn volume_mode(block: bool) -> &'static str {
    if block { "Block" } else { "Filesystem" }
}

fn storage(size: Quantity) -> VolumeResourceRequirements {
    VolumeResourceRequirements {
        requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
        limits: None,
    }
}
