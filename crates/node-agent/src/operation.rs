//! What the kinds of volume operations have in common, and where they differ.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload, MovementStatus, SNAPSHOT_TYPE_CSI};
use lifeboat_api::{NodeOs, OperationStatus, Phase, Progress, finalizers};
use lifeboat_datapath::wire::Ending;
use lifeboat_exposer::{Kind, Operation};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::fmt::Debug;

/// What we note on an operation, beside what Velero's API has a place for.
pub(crate) mod notes {
    /// All data was moved. For a restore the value is the volume that has it.
    pub(crate) const MOVED: &str = "lifeboat.io/moved";
    /// How many movers were lost.
    pub(crate) const MOVERS_LOST: &str = "lifeboat.io/movers-lost";
    /// Since when a lost mover is being replaced.
    pub(crate) const REPLACING_SINCE: &str = "lifeboat.io/replacing-since";
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

    fn data_mover(&self) -> &str;
    fn cancel(&self) -> bool;
    fn request_cancel(&mut self);
    /// What is said of it, and where.
    fn movement(&self) -> Option<&MovementStatus>;
    fn movement_mut(&mut self) -> &mut MovementStatus;
    fn set_started(&mut self, os: NodeOs);
    /// Puts what a mover came to where Velero looks for it.
    fn set_result(&mut self, ending: &Ending);
    /// Why it asks for what cannot be done, if it does.
    fn impossible(&self) -> Option<String>;

    fn status(&self) -> Option<&OperationStatus> {
        self.movement().map(|movement| &movement.operation)
    }

    fn status_mut(&mut self) -> &mut OperationStatus {
        &mut self.movement_mut().operation
    }

    /// The node whose agent took it.
    fn accepted_by(&self) -> &str {
        self.movement().map_or("", |movement| &movement.accepted_by_node)
    }

    /// The node that moves the data.
    fn node(&self) -> &str {
        self.movement().map_or("", |movement| &movement.node)
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

impl VolumeOperation for DataUpload {
    const KIND: Kind = Kind::DataUpload;
    const FINALIZER: &'static str = finalizers::DATA_UPLOAD_DOWNLOAD;

    fn data_mover(&self) -> &str {
        &self.spec.data_mover
    }

    fn cancel(&self) -> bool {
        self.spec.cancel
    }

    fn request_cancel(&mut self) {
        self.spec.cancel = true;
    }

    fn movement(&self) -> Option<&MovementStatus> {
        self.status.as_ref().map(|status| &status.movement)
    }

    fn movement_mut(&mut self) -> &mut MovementStatus {
        &mut self.status.get_or_insert_default().movement
    }

    fn set_started(&mut self, os: NodeOs) {
        self.status.get_or_insert_default().node_os = Some(os);
    }

    fn set_result(&mut self, ending: &Ending) {
        let Ending::BackedUp(result) = ending else { return };
        let status = self.status.get_or_insert_default();
        status.path = result.source.by_path.clone();
        status.snapshot_id = result.snapshot_id.clone();
        status.incremental_bytes = result.incremental_bytes;
        let operation = &mut status.movement.operation;
        operation.progress = moved(result.total_bytes);
        if result.empty_snapshot {
            operation.message = "volume was empty so no data was upload".to_owned();
        }
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
    const FINALIZER: &'static str = finalizers::DATA_UPLOAD_DOWNLOAD;

    fn data_mover(&self) -> &str {
        &self.spec.data_mover
    }

    fn cancel(&self) -> bool {
        self.spec.cancel
    }

    fn request_cancel(&mut self) {
        self.spec.cancel = true;
    }

    fn movement(&self) -> Option<&MovementStatus> {
        self.status.as_ref().map(|status| &status.movement)
    }

    fn movement_mut(&mut self) -> &mut MovementStatus {
        &mut self.status.get_or_insert_default().movement
    }

    fn set_started(&mut self, _: NodeOs) {}

    fn set_result(&mut self, ending: &Ending) {
        let Ending::Restored(result) = ending else { return };
        self.status_mut().progress = moved(result.total_bytes);
    }

    fn impossible(&self) -> Option<String> {
        self.spec.snapshot_id.is_empty().then(|| {
            "spec.snapshotID is empty: nothing says what to restore; its backup had failed".to_owned()
        })
    }
}

/// How far an operation is that has moved everything.
fn moved(bytes: i64) -> Progress {
    Progress { total_bytes: bytes, bytes_done: bytes }
}

/// Whom of these a matter falls to; everybody who knows the same candidates comes to the same answer, whatever build it is.
pub(crate) fn appointed<'a>(matter: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let weight = |candidate: &str| Sha256::digest(format!("{matter}\n{candidate}"));
    candidates.into_iter().max_by_key(|candidate| (weight(candidate), *candidate))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Agents of different builds work side by side while a DaemonSet is rolled out: they must agree.
    #[test]
    fn everybody_comes_to_the_same_answer_and_nobody_gets_everything() {
        let nodes = ["a", "b", "c"];
        let falls_to = |matter: &str| appointed(matter, nodes);
        assert_eq!(falls_to("ledger"), appointed("ledger", ["c", "a", "b"]));
        let matters: Vec<String> = (0..60).map(|number| format!("operation-{number}")).collect();
        for node in nodes {
            let count = matters.iter().filter(|matter| falls_to(matter.as_str()) == Some(node)).count();
            assert!((5..=40).contains(&count), "{node} gets {count}");
        }
        // Written down once: a change of this would be a change of who acts in a cluster that is being upgraded.
        assert_eq!(falls_to("prepare queue"), Some("b"));
    }
}
