//! Labels, annotations and finalizers by which Velero's parts find each other, and how a name becomes a label value.

use sha2::{Digest, Sha256};

/// Keys of labels.
pub mod labels {
    /// The backup that an object belongs to, as [`super::label_value`].
    pub const BACKUP_NAME: &str = "velero.io/backup-name";
    /// The UID of that backup.
    pub const BACKUP_UID: &str = "velero.io/backup-uid";
    /// The restore that an object belongs to, as [`super::label_value`].
    pub const RESTORE_NAME: &str = "velero.io/restore-name";
    /// The UID of that restore.
    pub const RESTORE_UID: &str = "velero.io/restore-uid";
    /// The claim whose data is moved.
    pub const PVC_UID: &str = "velero.io/pvc-uid";
    /// The pod whose volume is moved.
    pub const POD_UID: &str = "velero.io/pod-uid";
    /// The operation by which a plugin asks how far it is.
    pub const ASYNC_OPERATION_ID: &str = "velero.io/async-operation-id";
    /// Set to `true` while a volume is being made reachable; the prepare queue counts these.
    pub const EXPOSE_ON_GOING: &str = "velero.io/expose-on-going";
    /// On a hosting pod: the DataUpload it works for.
    pub const DATA_UPLOAD: &str = "velero.io/data-upload";
    /// On a hosting pod: the DataDownload it works for.
    pub const DATA_DOWNLOAD: &str = "velero.io/data-download";
    /// On a hosting pod: the PodVolumeBackup it works for.
    pub const POD_VOLUME_BACKUP: &str = "velero.io/pod-volume-backup";
    /// On a hosting pod: the PodVolumeRestore it works for.
    pub const POD_VOLUME_RESTORE: &str = "velero.io/pod-volume-restore";
    /// On a hosting pod: the group over which pods spread.
    pub const EXPOSER_POD_GROUP: &str = "velero.io/exposer-pod-group";
    /// On a restored volume and in its claim's selector: which belongs to which.
    pub const DYNAMIC_PV_RESTORE: &str = "velero.io/dynamic-pv-restore";
    /// On a BackupRepository: the namespace whose volumes it holds.
    pub const VOLUME_NAMESPACE: &str = "velero.io/volume-namespace";
    /// On a BackupRepository: the location that holds it.
    pub const STORAGE_LOCATION: &str = "velero.io/storage-location";
    /// On a BackupRepository: its kind.
    pub const REPOSITORY_TYPE: &str = "velero.io/repository-type";
}

/// Keys of annotations.
pub mod annotations {
    /// On a PodVolumeBackup: the claim behind the volume.
    pub const PVC_NAME: &str = "velero.io/pvc-name";
}

/// Finalizers.
pub mod finalizers {
    /// On DataUpload and DataDownload until they are final and cleaned up after.
    pub const DATA_UPLOAD_DOWNLOAD: &str = "velero.io/data-upload-download-finalizer";
    /// On PodVolumeBackup and PodVolumeRestore, likewise.
    pub const POD_VOLUME: &str = "velero.io/pod-volume-finalizer";
}

/// The longest value that a label may have.
const MAX_LABEL_VALUE: usize = 63;
/// How much of the name's hash ends a shortened value.
const HASH_DIGITS: usize = 6;

/// A name as a label value: itself if it fits, else its beginning and six digits of its SHA-256.
#[must_use]
pub fn label_value(name: &str) -> String {
    if name.len() <= MAX_LABEL_VALUE {
        return name.to_owned();
    }
    let hash = hex::encode(Sha256::digest(name));
    // Names in Kubernetes are ASCII; anything else is cut before the character that does not fit.
    let kept = name.floor_char_boundary(MAX_LABEL_VALUE - HASH_DIGITS);
    format!("{}{}", &name[..kept], &hash[..HASH_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::label_value;

    #[test]
    fn a_name_that_fits_is_kept() {
        let name = "n".repeat(63);
        assert_eq!(label_value(&name), name);
    }

    #[test]
    fn a_longer_name_ends_in_its_hash() {
        let value = label_value(&"n".repeat(64));
        assert_eq!(value.len(), 63);
        assert_eq!(value, format!("{}ce068a", "n".repeat(57)));
    }

    #[test]
    fn characters_of_several_bytes_are_not_torn() {
        assert!(label_value(&"é".repeat(40)).starts_with(&"é".repeat(28)));
    }
}
