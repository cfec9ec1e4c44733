//! What an operation asks of its mover, the same for all four kinds.

use crate::legacy::is_restic;
use crate::transfer::{Backup, Restore};
use crate::wire::{MOVERS_LOST, VolumeMode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use lifeboat_api::v1::{PodVolumeBackup, PodVolumeRestore};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload};
use lifeboat_api::{OperationStatus, Phase, annotations, labels};
use lifeboat_exposer::{Kind, Operation};
use lifeboat_kopia::velero;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

/// Keys of the settings that movers know.
mod settings {
    pub(super) const PARALLEL_UPLOAD: &str = "ParallelFilesUpload";
    pub(super) const PARALLEL_DOWNLOAD: &str = "ParallelFilesDownload";
    pub(super) const SPARSE: &str = "WriteSparseFiles";
    /// What Velero's own movers tell themselves; ours cut large files up by the policy, as Velero stores it.
    pub(super) const MULTIPART: &str = "uploader-multipart";
    pub(super) const ALL: [&str; 4] = [PARALLEL_UPLOAD, PARALLEL_DOWNLOAD, SPARSE, MULTIPART];
}

/// An operation that asks for nothing that can be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    /// A setting is not understood.
    #[error("the mover's setting {name} is {value:?}, which is not {expected}")]
    Setting {
        /// Which one.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The data is to go into a repository of restic.
    #[error("repositories of restic are only read: back up with kopia")]
    Restic,
    /// A field that every such object has is not there.
    #[error("the operation has no {0}")]
    Missing(&'static str),
}

/// What is to be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    Backup(Backup),
    Restore { restore: Restore, mark: Option<CompletionMark> },
}

/// The file that tells the init container of a restored pod that its volume is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CompletionMark {
    pub(super) restore_uid: String,
}

/// The volume of a pod that waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) volume: PathBuf,
    /// As whose mark the pod knows the end; `None` if the operation does not say.
    pub(super) mark: Option<CompletionMark>,
}

/// An operation as its mover sees it.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) operation: Operation,
    pub(super) resource_version: String,
    pub(super) phase: Phase,
    /// What its status says.
    pub(super) message: String,
    /// Whether it is to be stopped, for whatever reason.
    pub(super) cancel: bool,
    pub(super) location: String,
    /// The namespace whose repository it is about.
    pub(super) source_namespace: String,
    /// The repository of restic that it is about instead, by restic's name for it.
    pub(super) restic: Option<String>,
    pub(super) work: Result<Work, AssignmentError>,
    /// Who waits for the volume, also if it asks for what cannot be done.
    pub(super) awaited: Option<Awaited>,
    /// Settings that nobody here understands.
    pub(super) unknown_settings: Vec<String>,
}

/// A kind of operation that a mover can work for.
pub(super) trait Assigns:
    Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
    + Clone
    + DeserializeOwned
    + Debug
    + Send
    + 'static
{
    /// What it asks for; the volume is at `path` and is a `mode`.
    fn assignment(&self, path: PathBuf, mode: VolumeMode) -> Assignment;
}

impl Assigns for DataUpload {
    fn assignment(&self, path: PathBuf, mode: VolumeMode) -> Assignment {
        let operation_id =
            self.metadata.labels.iter().flatten().find(|(key, _)| *key == labels::ASYNC_OPERATION_ID);
        let work = number(&self.spec.data_mover_config, settings::PARALLEL_UPLOAD).map(|parallel_files| {
            Work::Backup(Backup {
                path,
                mode,
                requester: velero::DATA_MOVER_REQUESTER,
                real_source: format!("{}/{}", self.spec.source_namespace, self.spec.source_pvc),
                tags: operation_id.map(|(key, value)| (key.clone(), value.clone())).into_iter().collect(),
                parallel_files,
            })
        });
        let status = self.status.as_ref().map(|status| &status.movement.operation);
        let common = Common {
            kind: Kind::DataUpload,
            metadata: &self.metadata,
            status,
            settings: &self.spec.data_mover_config,
            cancel: self.spec.cancel,
        };
        common.assignment(&self.spec.backup_storage_location, &self.spec.source_namespace, work)
    }
}

impl Assigns for DataDownload {
    fn assignment(&self, path: PathBuf, mode: VolumeMode) -> Assignment {
        let work = restore(&self.metadata, &self.spec.data_mover_config, path, mode, &self.spec.snapshot_id)
            .map(|restore| Work::Restore { restore, mark: None });
        let status = self.status.as_ref().map(|status| &status.movement.operation);
        let common = Common {
            kind: Kind::DataDownload,
            metadata: &self.metadata,
            status,
            settings: &self.spec.data_mover_config,
            cancel: self.spec.cancel,
        };
        common.assignment(&self.spec.backup_storage_location, &self.spec.source_namespace, work)
    }
}

impl Assigns for PodVolumeBackup {
    fn assignment(&self, path: PathBuf, mode: VolumeMode) -> Assignment {
        let claim = self.metadata.annotations.iter().flatten().find(|(key, _)| *key == annotations::PVC_NAME);
        let volume = claim.map_or(self.spec.volume.as_str(), |(_, claim)| claim.as_str());
        let namespace = self.spec.pod.namespace.as_deref().unwrap_or_default();
        let pod = self.spec.pod.name.as_deref().unwrap_or_default();
        let parallel_files = match is_restic(self.spec.uploader_type, &self.spec.repo_identifier) {
            true => Err(AssignmentError::Restic),
            false => number(&self.spec.uploader_settings, settings::PARALLEL_UPLOAD),
        };
        let work = parallel_files.map(|parallel_files| {
            Work::Backup(Backup {
                path,
                mode,
                requester: velero::POD_VOLUME_REQUESTER,
                real_source: format!("{namespace}/{pod}/{volume}"),
                tags: self.spec.tags.clone(),
                parallel_files,
            })
        });
        let status = self.status.as_ref().map(|status| &status.operation);
        let common = Common {
            kind: Kind::PodVolumeBackup,
            metadata: &self.metadata,
            status,
            settings: &self.spec.uploader_settings,
            cancel: self.spec.cancel,
        };
        common.assignment(&self.spec.backup_storage_location, namespace, work)
    }
}

impl Assigns for PodVolumeRestore {
    fn assignment(&self, path: PathBuf, mode: VolumeMode) -> Assignment {
        let owner = self.metadata.owner_references.iter().flatten().next();
        let mark = owner.map(|owner| CompletionMark { restore_uid: owner.uid.clone() });
        let awaited = Awaited { volume: path.clone(), mark: mark.clone() };
        let missing = AssignmentError::Missing("owner, whose UID is the mark of the completed restore");
        let work = mark.ok_or(missing).and_then(|mark| {
            let restore =
                restore(&self.metadata, &self.spec.uploader_settings, path, mode, &self.spec.snapshot_id)?;
            Ok(Work::Restore { restore, mark: Some(mark) })
        });
        let status = self.status.as_ref().map(|status| &status.operation);
        let common = Common {
            kind: Kind::PodVolumeRestore,
            metadata: &self.metadata,
            status,
            settings: &self.spec.uploader_settings,
            cancel: self.spec.cancel,
        };
        let repository = &self.spec.repo_identifier;
        Assignment {
            restic: is_restic(self.spec.uploader_type, repository).then(|| repository.clone()),
            awaited: Some(awaited),
            ..common.assignment(&self.spec.backup_storage_location, &self.spec.source_namespace, work)
        }
    }
}

/// What all kinds have at the same place.
struct Common<'a> {
    kind: Kind,
    metadata: &'a ObjectMeta,
    status: Option<&'a OperationStatus>,
    settings: &'a BTreeMap<String, String>,
    cancel: bool,
}

impl Common<'_> {
    fn assignment(
        self,
        location: &str,
        source_namespace: &str,
        work: Result<Work, AssignmentError>,
    ) -> Assignment {
        let phase = self.status.and_then(|status| status.phase).unwrap_or_default();
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        Assignment {
            operation: Operation {
                kind: self.kind,
                namespace: text(&self.metadata.namespace),
                name: text(&self.metadata.name),
                uid: text(&self.metadata.uid),
            },
            resource_version: text(&self.metadata.resource_version),
            phase,
            message: self.status.map(|status| status.message.clone()).unwrap_or_default(),
            cancel: self.cancel || phase == Phase::Canceling,
            location: location.to_owned(),
            source_namespace: source_namespace.to_owned(),
            restic: None,
            work,
            awaited: None,
            unknown_settings: self
                .settings
                .keys()
                .filter(|name| !settings::ALL.contains(&name.as_str()))
                .cloned()
                .collect(),
        }
    }
}

fn restore(
    metadata: &ObjectMeta,
    given: &BTreeMap<String, String>,
    path: PathBuf,
    mode: VolumeMode,
    snapshot_id: &str,
) -> Result<Restore, AssignmentError> {
    Ok(Restore {
        path,
        mode,
        snapshot_id: snapshot_id.to_owned(),
        sparse: flag(given, settings::SPARSE)?,
        parallel_files: number(given, settings::PARALLEL_DOWNLOAD)?,
        goes_on: metadata.annotations.as_ref().is_some_and(|notes| notes.contains_key(MOVERS_LOST)),
    })
}

/// A count of threads; none, and whatever is not positive, leaves it to the mover.
fn number(given: &BTreeMap<String, String>, name: &'static str) -> Result<usize, AssignmentError> {
    let Some(value) = given.get(name) else { return Ok(0) };
    let parsed = value.parse::<i64>().map_err(|_| wrong(name, value, "a whole number"))?;
    Ok(usize::try_from(parsed).unwrap_or(0))
}

fn flag(given: &BTreeMap<String, String>, name: &'static str) -> Result<bool, AssignmentError> {
    let Some(value) = given.get(name) else { return Ok(false) };
    value.parse().map_err(|_| wrong(name, value, "true or false"))
}

fn wrong(name: &'static str, value: &str, expected: &'static str) -> AssignmentError {
    AssignmentError::Setting { name, value: value.to_owned(), expected }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tags_of_a_pod_volume_reach_its_snapshot() {
        let backup: PodVolumeBackup = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup", "metadata": { "name": "b-1", "namespace": "velero" },
            "spec": {
                "node": "n1", "pod": { "kind": "Pod", "namespace": "shop", "name": "web" }, "volume": "data",
                "backupStorageLocation": "default", "repoIdentifier": "", "uploaderType": "kopia",
                "tags": { "backup": "daily", "volume": "data" },
            },
        }))
        .unwrap();
        let assignment = backup.assignment(PathBuf::from("/volume"), VolumeMode::Filesystem);
        let Ok(Work::Backup(work)) = assignment.work else { panic!("no backup") };
        assert_eq!(work.real_source, "shop/web/data");
        assert_eq!(
            work.tags,
            BTreeMap::from(
                [("backup", "daily"), ("volume", "data")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
            )
        );
    }
}
