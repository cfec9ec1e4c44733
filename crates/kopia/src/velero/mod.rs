//! Velero's conventions on top of the format: whose repositories they are, and what its snapshots look like.

use crate::format::Format;
use crate::gojson::{self, Base64, go_object};
use crate::policy::{Policy, RetentionPolicy};
use crate::snapshot::{SnapshotManifest, SourceInfo};
use crate::{Error, Result};
use lifeboat_blobs::{BlobId, BlobStore, PutOptions};
use std::collections::BTreeMap;

/// User and host of everything that Velero writes.
pub const IDENTITY: &str = "default";
/// The owner of maintenance in Velero's repositories.
pub const MAINTENANCE_OWNER: &str = "default@default";
/// The blob that says that Velero finished creating a repository.
pub const MARKER_BLOB: &str = "udmrepo.Repository";
/// The pin that keeps Velero's snapshots from being deleted by retention.
pub const PIN: &str = "velero-pin";
/// The description of Velero's snapshots.
pub const DESCRIPTION: &str = "Kopia Uploader";
/// The tag that says which workflow asked for a snapshot.
pub const REQUESTER_TAG: &str = "snapshot-requester";
/// The tag that says which uploader made it.
pub const UPLOADER_TAG: &str = "snapshot-uploader";
/// The value of [`UPLOADER_TAG`].
pub const UPLOADER: &str = "kopia";
/// The requester of volumes that are moved from a CSI snapshot.
pub const DATA_MOVER_REQUESTER: &str = "snapshot-data-upload-download";
/// The requester of volumes that are read in a pod, since Velero 1.17.
pub const POD_VOLUME_REQUESTER: &str = "snapshot-pod-volume";
/// The requester of volumes that were read in a pod, up to Velero 1.16.
pub const LEGACY_POD_VOLUME_REQUESTER: &str = "pod-volume-backup-restore";
/// The password of repositories whose secret Velero made itself.
pub const DEFAULT_PASSWORD: &str = "static-passw0rd";

go_object! {
    /// The content of [`MARKER_BLOB`].
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Marker {
        /// The identity of the repository that it was written for.
        pub unique_id: Base64 => "uniqueID",
    }
}

/// How far Velero got with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// The marker is there and names this repository.
    Ready,
    /// There is no marker: an older Velero made the repository, or making it was interrupted.
    Unmarked,
}

impl Marker {
    /// Whether the repository in `store` carries its marker; an error if the marker is another repository's.
    pub async fn check(store: &dyn BlobStore, format: &Format) -> Result<Readiness> {
        let damaged = |reason: String| Error::DamagedBlob { blob: MARKER_BLOB.to_owned(), reason };
        let bytes = match store.get(&BlobId::new(MARKER_BLOB)?).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(Readiness::Unmarked),
            Err(error) => return Err(error.into()),
        };
        let marker: Marker = serde_json::from_slice(&bytes).map_err(|source| damaged(source.to_string()))?;
        if marker.unique_id.0 != format.unique_id() {
            return Err(damaged("it was written for another repository than the one beside it".to_owned()));
        }
        Ok(Readiness::Ready)
    }

    /// Marks the repository in `store` as complete.
    pub async fn write(store: &dyn BlobStore, format: &Format) -> Result<()> {
        let marker = Marker { unique_id: Base64(format.unique_id().to_vec()), ..Marker::default() };
        let bytes = gojson::to_vec(&marker).map_err(|source| Error::Invalid(source.to_string()))?;
        Ok(store.put(&BlobId::new(MARKER_BLOB)?, bytes.into(), &PutOptions::default()).await?)
    }
}

/// The source of a snapshot that `requester` takes of `real_source` (a name such as `<namespace>/<claim>`).
///
/// Without a `real_source` the path in the pod's host, `host_path`, is the source, as up to Velero 1.16.
pub fn source(requester: &str, real_source: &str, host_path: &str) -> SourceInfo {
    let path = match real_source {
        "" => host_path.to_owned(),
        real_source => clean(&format!("{requester}/{UPLOADER}/{real_source}")),
    };
    SourceInfo::new(IDENTITY, IDENTITY, path)
}

/// The tags of a snapshot that `requester` takes, with the caller's own.
pub fn tags(requester: &str, extra: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut tags = extra.clone();
    tags.insert(REQUESTER_TAG.to_owned(), requester.to_owned());
    tags.insert(UPLOADER_TAG.to_owned(), UPLOADER.to_owned());
    tags
}

/// The policy that Velero stores for a source before each backup: nothing expires, nothing is compressed.
pub fn policy(parallel_file_reads: i64) -> Policy {
    let forever = Some(i64::from(i32::MAX));
    let mut policy = Policy {
        retention: RetentionPolicy {
            keep_latest: forever,
            keep_hourly: forever,
            keep_daily: forever,
            keep_weekly: forever,
            keep_monthly: forever,
            keep_annual: forever,
            ..RetentionPolicy::default()
        },
        ..Policy::default()
    };
    policy.error_handling.ignore_unknown_types = Some(true);
    policy.scheduling.manual = true;
    policy.compression.compressor = "none".to_owned();
    policy.upload.max_parallel_file_reads = Some(parallel_file_reads);
    policy.upload.parallel_upload_above_size = Some(2 << 30);
    policy
}

/// The parent that Velero chooses among the snapshots of one source: the complete one with the latest start that
/// has the same requester and uploader.
pub fn parent<'a>(snapshots: &'a [SnapshotManifest], requester: &str) -> Option<&'a SnapshotManifest> {
    let tagged = |snapshot: &SnapshotManifest, tag: &str, value: &str| {
        snapshot.tags.get(tag).is_some_and(|found| found == value)
    };
    snapshots
        .iter()
        .filter(|s| {
            s.is_complete() && tagged(s, REQUESTER_TAG, requester) && tagged(s, UPLOADER_TAG, UPLOADER)
        })
        .max_by_key(|snapshot| snapshot.start_time)
}

/// A relative path without empty elements, `.` and `..`, as Go's `path.Clean` makes it.
fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

#[cfg(test)]
mod tests;
