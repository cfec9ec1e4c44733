//! The definitions of all kinds, to be applied to a cluster.

use crate::schema::normalise_root;
use crate::{v1, v2alpha1};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube::CustomResourceExt;
use serde_json::Value;

/// All definitions, each with the label by which Velero finds its own objects.
///
/// # Errors
/// Never for the types as they are; a schema that is none would be one.
pub fn all() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    [
        v1::BackupRepository::crd(),
        v1::Backup::crd(),
        v1::BackupStorageLocation::crd(),
        v1::DeleteBackupRequest::crd(),
        v1::DownloadRequest::crd(),
        v1::PodVolumeBackup::crd(),
        v1::PodVolumeRestore::crd(),
        v1::Restore::crd(),
        v1::Schedule::crd(),
        v1::ServerStatusRequest::crd(),
        v1::VolumeSnapshotLocation::crd(),
        v2alpha1::DataDownload::crd(),
        v2alpha1::DataUpload::crd(),
    ]
    .into_iter()
    .map(finish)
    .collect()
}

fn finish(mut definition: CustomResourceDefinition) -> Result<CustomResourceDefinition, serde_json::Error> {
    definition.metadata.labels.get_or_insert_default().insert("component".into(), "velero".into());
    definition.spec.names.list_kind = Some(format!("{}List", definition.spec.names.kind));
    for version in &mut definition.spec.versions {
        // Velero writes a status together with its object: with a subresource those writes would be lost.
        version.subresources = None;
        let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut())
        else {
            continue;
        };
        let mut value: Value = serde_json::to_value(&*schema)?;
        normalise_root(&mut value);
        *schema = serde_json::from_value::<JSONSchemaProps>(value)?;
    }
    Ok(definition)
}
