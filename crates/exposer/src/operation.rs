//! The operation that hosting objects serve.

use crate::ledger;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lifeboat_api::labels;

/// The four kinds of volume operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A volume snapshot goes into the backup location.
    DataUpload,
    /// A volume comes back from the backup location.
    DataDownload,
    /// A volume of a running pod goes into the backup location.
    PodVolumeBackup,
    /// A volume of a restored pod comes back from the backup location.
    PodVolumeRestore,
}

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Into the backup location.
    Backup,
    /// Back from it.
    Restore,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] =
        [Self::DataUpload, Self::DataDownload, Self::PodVolumeBackup, Self::PodVolumeRestore];

    /// The name of the kind in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DataUpload => "DataUpload",
            Self::DataDownload => "DataDownload",
            Self::PodVolumeBackup => "PodVolumeBackup",
            Self::PodVolumeRestore => "PodVolumeRestore",
        }
    }

    /// Its group and version.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::DataUpload | Self::DataDownload => "velero.io/v2alpha1",
            Self::PodVolumeBackup | Self::PodVolumeRestore => "velero.io/v1",
        }
    }

    /// Which way data goes.
    #[must_use]
    pub fn direction(self) -> Direction {
        match self {
            Self::DataUpload | Self::PodVolumeBackup => Direction::Backup,
            Self::DataDownload | Self::PodVolumeRestore => Direction::Restore,
        }
    }

    /// Whether the volume is that of a pod on a known node, mounted from the host.
    #[must_use]
    pub fn is_pod_volume(self) -> bool {
        matches!(self, Self::PodVolumeBackup | Self::PodVolumeRestore)
    }

    /// The label by which a hosting pod names its operation to Velero.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::DataUpload => labels::DATA_UPLOAD,
            Self::DataDownload => labels::DATA_DOWNLOAD,
            Self::PodVolumeBackup => labels::POD_VOLUME_BACKUP,
            Self::PodVolumeRestore => labels::POD_VOLUME_RESTORE,
        }
    }

    /// The group over which hosting pods spread; those of pods' volumes have no choice of node.
    #[must_use]
    pub fn pod_group(self) -> Option<&'static str> {
        match self {
            Self::DataUpload => Some("snapshot-exposer"),
            Self::DataDownload => Some("generic-restore-exposer"),
            Self::PodVolumeBackup | Self::PodVolumeRestore => None,
        }
    }

    /// The words of the command that runs in the hosting pod, and the flag by which it learns of its operation.
    pub(crate) fn command(self) -> ([&'static str; 2], &'static str) {
        match self {
            Self::DataUpload => (["data-mover", "backup"], "--data-upload"),
            Self::DataDownload => (["data-mover", "restore"], "--data-download"),
            Self::PodVolumeBackup => (["pod-volume", "backup"], "--pod-volume-backup"),
            Self::PodVolumeRestore => (["pod-volume", "restore"], "--pod-volume-restore"),
        }
    }
}

/// One operation, as far as its hosting objects need to know it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Its kind.
    pub kind: Kind,
    /// The namespace of Velero, in which it lives.
    pub namespace: String,
    /// Its name, which all hosting objects share.
    pub name: String,
    /// Its UID, after which container and volume are called.
    pub uid: String,
}

impl Operation {
    /// The metadata of a hosting object: named after the operation, gone with it, and in the ledger.
    pub(crate) fn object(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            owner_references: Some(vec![self.reference()]),
            labels: Some(ledger::labels(self)),
            annotations: Some(ledger::annotations(self)),
            ..ObjectMeta::default()
        }
    }

    fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.kind.api_version().to_owned(),
            kind: self.kind.name().to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// Where the volume is in the hosting pod.
    #[must_use]
    pub fn volume_path(&self) -> String {
        format!("/{}", self.uid)
    }

    /// The claim of the cache volume.
    #[must_use]
    pub fn cache_claim_name(&self) -> String {
        format!("{}-cache", self.name)
    }
}
