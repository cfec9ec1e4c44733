//! What the kinds of volume operations have in common, and where they differ.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use lifeboat_api::v1::{PodVolumeBackup, PodVolumeRestore};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload, SNAPSHOT_TYPE_CSI};
use lifeboat_api::{Duration, NodeOs, OperationStatus, Phase, Progress, finalizers};
use lifeboat_datapath::legacy::{self, is_restic};
use lifeboat_datapath::wire::{BackupResult, Ending};
use lifeboat_exposer::{Kind, Operation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// What we note on an operation, beside what Velero's API has a place for.
pub(crate) mod notes {
    /// All data was moved. For a restore the value is the volume that has it.
    pub(crate) const MOVED: &str = "lifeboat.io/moved";
    /// When that was noted.
    pub(crate) const MOVED_AT: &str = "lifeboat.io/moved-at";
    /// The volume with the restored data, which could not be handed over and says of itself that it is kept.
    pub(crate) const KEPT: &str = "lifeboat.io/kept-volume";
    /// How many movers were lost; the next one goes by it, too.
    pub(crate) use lifeboat_datapath::wire::MOVERS_LOST;
    /// Since when a lost mover is being replaced.
    pub(crate) const REPLACING_SINCE: &str = "lifeboat.io/replacing-since";
    /// The pod of that mover, by its UID: until it is gone it is not lost a second time.
    pub(crate) const LOST_POD: &str = "lifeboat.io/lost-pod";
    /// What became of telling the pod that waits for the volume that its data does not come: `true`, or why it was given up.
    pub(crate) const TOLD: &str = "lifeboat.io/told";
    /// Since when the mover has been told to stop.
    pub(crate) const CANCELING_SINCE: &str = "lifeboat.io/canceling-since";
}

/// A volume operation as it is in the cluster.
pub(crate) trait VolumeOperation:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + PartialEq
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    const KIND: Kind;
    const FINALIZER: &'static str;

    /// The mover that it names; empty for the built-in one.
    fn data_mover(&self) -> &str {
        ""
    }
    /// How long single steps of the cluster may take, if it says so.
    fn operation_timeout(&self) -> Duration {
        Duration::default()
    }
    fn cancel(&self) -> bool;
    fn request_cancel(&mut self);
    fn status(&self) -> Option<&OperationStatus>;
    fn status_mut(&mut self) -> &mut OperationStatus;
    /// The node whose agent took it.
    fn accepted_by(&self) -> &str;
    /// The node that moves the data.
    fn node(&self) -> &str;
    /// Notes whose agent took it, if there is a place for that.
    fn set_accepted_by(&mut self, node: String);
    /// Notes the node that moves the data, if there is a place for that.
    fn set_node(&mut self, _: String) {}
    /// Notes the system of that node, if there is a place for that.
    fn set_started(&mut self, _: NodeOs) {}
    /// Puts what a mover came to where Velero looks for it.
    fn set_result(&mut self, ending: &Ending);
    /// Why it asks for what cannot be done, if it does.
    fn impossible(&self) -> Option<String>;

    /// Under which names Velero tells how long it took, if it does: operation, backup, and name.
    fn timed_as(&self) -> Option<[String; 3]> {
        None
    }

    fn phase(&self) -> Phase {
        self.status().and_then(|status| status.phase).unwrap_or_default()
    }

    fn operation(&self) -> Operation {
        Operation {
            kind: Self::KIND,
            namespace: self.namespace().unwrap_or_default(),
            name: self.name_any(),
            uid: self.uid().unwrap_or_default(),
        }
    }

    fn note(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn accepted_at(&self) -> Option<&Time> {
        self.status().and_then(|status| status.accepted_timestamp.as_ref())
    }
}

/// What all kinds have at the same place.
macro_rules! stopped_by_spec {
    () => {
        fn cancel(&self) -> bool {
            self.spec.cancel
        }

        fn request_cancel(&mut self) {
            self.spec.cancel = true;
        }
    };
}

/// What DataUpload and DataDownload have at the same place.
macro_rules! with_movement {
    () => {
        const FINALIZER: &'static str = finalizers::DATA_UPLOAD_DOWNLOAD;

        fn data_mover(&self) -> &str {
            &self.spec.data_mover
        }

        fn operation_timeout(&self) -> Duration {
            self.spec.operation_timeout
        }

        fn status(&self) -> Option<&OperationStatus> {
            self.status.as_ref().map(|status| &status.movement.operation)
        }

        fn status_mut(&mut self) -> &mut OperationStatus {
            &mut self.status.get_or_insert_default().movement.operation
        }

        fn accepted_by(&self) -> &str {
            self.status.as_ref().map_or("", |status| &status.movement.accepted_by_node)
        }

        fn node(&self) -> &str {
            self.status.as_ref().map_or("", |status| &status.movement.node)
        }

        fn set_accepted_by(&mut self, node: String) {
            self.status.get_or_insert_default().movement.accepted_by_node = node;
        }

        fn set_node(&mut self, node: String) {
            self.status.get_or_insert_default().movement.node = node;
        }
    };
}

/// What PodVolumeBackup and PodVolumeRestore have at the same place.
macro_rules! of_pod {
    () => {
        const FINALIZER: &'static str = finalizers::POD_VOLUME;

        fn status(&self) -> Option<&OperationStatus> {
            self.status.as_ref().map(|status| &status.operation)
        }

        fn status_mut(&mut self) -> &mut OperationStatus {
            &mut self.status.get_or_insert_default().operation
        }

        fn accepted_by(&self) -> &str {
            self.node()
        }
    };
}

impl VolumeOperation for DataUpload {
    const KIND: Kind = Kind::DataUpload;
    stopped_by_spec!();
    with_movement!();

    fn set_started(&mut self, os: NodeOs) {
        self.status.get_or_insert_default().node_os = Some(os);
    }

    fn set_result(&mut self, ending: &Ending) {
        let Ending::BackedUp(result) = ending else { return };
        let status = self.status.get_or_insert_default();
        status.path = result.source.by_path.clone();
        status.snapshot_id = result.snapshot_id.clone();
        status.incremental_bytes = result.incremental_bytes;
        set_backed_up(&mut status.movement.operation, result);
    }

    fn impossible(&self) -> Option<String> {
        if self.spec.snapshot_type != SNAPSHOT_TYPE_CSI {
            return Some(format!(
                "snapshots of type {:?} cannot be moved, only those of type {SNAPSHOT_TYPE_CSI:?}",
                self.spec.snapshot_type
            ));
        }
        match &self.spec.csi_snapshot {
            None => Some("spec.csiSnapshot is missing: nothing says which snapshot to move".to_owned()),
            Some(snapshot) if snapshot.storage_class.is_empty() => Some(
                "spec.csiSnapshot.storageClass is empty: nothing says of which class the copy has to be"
                    .to_owned(),
            ),
            Some(_) => None,
        }
    }
}

impl VolumeOperation for DataDownload {
    const KIND: Kind = Kind::DataDownload;
    stopped_by_spec!();
    with_movement!();

    fn set_result(&mut self, ending: &Ending) {
        set_restored(self.status_mut(), ending);
    }

    fn impossible(&self) -> Option<String> {
        nothing_to_restore(&self.spec.snapshot_id)
    }
}

impl VolumeOperation for PodVolumeBackup {
    const KIND: Kind = Kind::PodVolumeBackup;
    stopped_by_spec!();
    of_pod!();

    fn node(&self) -> &str {
        &self.spec.node
    }

    fn set_accepted_by(&mut self, _: String) {}

    fn set_result(&mut self, ending: &Ending) {
        let Ending::BackedUp(result) = ending else { return };
        let status = self.status.get_or_insert_default();
        status.path = result.source.by_path.clone();
        status.snapshot_id = result.snapshot_id.clone();
        status.incremental_bytes = result.incremental_bytes;
        set_backed_up(&mut status.operation, result);
    }

    fn impossible(&self) -> Option<String> {
        is_restic(self.spec.uploader_type, &self.spec.repo_identifier).then(|| {
            "restic repositories are not written any more: let the server use kopia (--uploader-type=kopia, which is \
             its default) and back up again"
                .to_owned()
        })
    }

    fn timed_as(&self) -> Option<[String; 3]> {
        let (name, location) = (self.name_any(), &self.spec.backup_storage_location);
        let namespace = self.spec.pod.namespace.as_deref().unwrap_or_default();
        let backup = self.owner_references().first().map(|owner| owner.name.as_str()).unwrap_or_default();
        Some([
            format!("{name}-{location}-{namespace}-{}-backup", self.spec.uploader_type),
            format!("{}/{backup}", self.namespace().unwrap_or_default()),
            name,
        ])
    }
}

impl VolumeOperation for PodVolumeRestore {
    const KIND: Kind = Kind::PodVolumeRestore;
    stopped_by_spec!();
    of_pod!();

    fn node(&self) -> &str {
        self.status.as_ref().map_or("", |status| &status.node)
    }

    fn set_accepted_by(&mut self, node: String) {
        self.status.get_or_insert_default().node = node;
    }

    fn set_result(&mut self, ending: &Ending) {
        set_restored(self.status_mut(), ending);
    }

    fn impossible(&self) -> Option<String> {
        let repository = &self.spec.repo_identifier;
        let unreachable = if is_restic(self.spec.uploader_type, repository) {
            legacy::check(repository).err()
        } else {
            None
        };
        match unreachable {
            Some(error) => Some(format!(
                "the data was backed up by restic and cannot be restored here: {error}; restore it with restic itself"
            )),
            None => nothing_to_restore(&self.spec.snapshot_id),
        }
    }
}

fn nothing_to_restore(snapshot: &str) -> Option<String> {
    let missing = "spec.snapshotID is empty: nothing says what to restore; its backup had failed";
    snapshot.is_empty().then(|| missing.to_owned())
}

fn set_backed_up(status: &mut OperationStatus, result: &BackupResult) {
    status.progress = moved(result.total_bytes);
    if result.empty_snapshot {
        status.message = "volume was empty so no data was upload".to_owned();
    }
}

fn set_restored(status: &mut OperationStatus, ending: &Ending) {
    if let Ending::Restored(result) = ending {
        status.progress = moved(result.total_bytes);
    }
}

/// How far an operation is that has moved everything.
fn moved(bytes: i64) -> Progress {
    Progress { total_bytes: bytes, bytes_done: bytes }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_api::v1::UploaderType;

    #[test]
    fn only_csi_snapshots_can_be_moved_and_they_have_to_be_named() {
        let mut upload = DataUpload::default();
        upload.spec.snapshot_type = "Tape".to_owned();
        assert!(upload.impossible().is_some_and(|why| why.contains("\"Tape\"")));
        upload.spec.snapshot_type = SNAPSHOT_TYPE_CSI.to_owned();
        assert!(upload.impossible().is_some_and(|why| why.contains("spec.csiSnapshot is missing")));
        let snapshot = upload.spec.csi_snapshot.insert(Default::default());
        snapshot.storage_class = "fast".to_owned();
        assert_eq!(upload.impossible(), None);
    }

    #[test]
    fn what_restic_wrote_is_restored_from_where_it_can_be_reached_and_never_added_to() {
        let mut restore = PodVolumeRestore::default();
        restore.spec.snapshot_id = "s".to_owned();
        assert_eq!(restore.impossible(), None);
        restore.spec.repo_identifier = "s3:http://host/bucket/restic/shop".to_owned();
        assert_eq!(restore.impossible(), None);
        restore.spec.repo_identifier = "sftp:host:/restic/shop".to_owned();
        let why = restore.impossible().unwrap_or_default();
        assert!(why.contains("sftp") && why.contains("restore it with restic"), "{why}");
        restore.spec.uploader_type = UploaderType::Kopia;
        assert_eq!(restore.impossible(), None);
        restore.spec.uploader_type = UploaderType::Restic;
        restore.spec.repo_identifier.clear();
        assert!(restore.impossible().is_some_and(|why| why.contains("spec.repoIdentifier is empty")));
        let mut backup = PodVolumeBackup::default();
        backup.spec.uploader_type = UploaderType::Restic;
        assert!(backup.impossible().is_some_and(|why| why.contains("--uploader-type=kopia")));
    }

    #[test]
    fn the_time_of_a_backup_is_told_under_veleros_names() {
        let backup: PodVolumeBackup = serde_json::from_value(serde_json::json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
            "metadata": {
                "name": "daily-x", "namespace": "velero",
                "ownerReferences": [{ "apiVersion": "velero.io/v1", "kind": "Backup", "name": "daily", "uid": "u" }],
            },
            "spec": {
                "node": "n1", "pod": { "namespace": "shop" }, "volume": "v", "backupStorageLocation": "default",
                "repoIdentifier": "", "uploaderType": "kopia",
            },
        }))
        .unwrap();
        let names = ["daily-x-default-shop-kopia-backup", "velero/daily", "daily-x"];
        assert_eq!(backup.timed_as(), Some(names.map(str::to_owned)));
        assert_eq!((backup.node(), backup.accepted_by()), ("n1", "n1"));
    }
}
