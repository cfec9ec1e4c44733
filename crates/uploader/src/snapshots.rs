//! Snapshots of a source as records of a repository: found, saved, and deleted when their time has come.

use crate::Result;
use jiff::tz::TimeZone;
use lifeboat_kopia::policy::{RetentionPolicy, compute_retention};
use lifeboat_kopia::snapshot::{self, ManifestId, SNAPSHOT_TYPE, SnapshotManifest, SourceInfo, TYPE_LABEL};
use lifeboat_repository::{Id, Manifest, ManifestFilter, Repository};
use std::collections::BTreeMap;
use tracing::warn;

/// The snapshots of `source` that have all of `tags`, the oldest first. One that is not understood is left out.
pub fn find_snapshots(
    repository: &dyn Repository,
    source: &SourceInfo,
    tags: &BTreeMap<String, String>,
) -> Result<Vec<SnapshotManifest>> {
    let mut labels = source.labels(SNAPSHOT_TYPE);
    labels.extend(tags.iter().map(|(name, value)| (name.clone(), value.clone())));
    let mut found = Vec::new();
    for metadata in repository.find_manifests(&ManifestFilter { labels })? {
        match parse(&repository.manifest(&metadata.id)?) {
            Ok(snapshot) => found.push(snapshot),
            Err(error) => warn!(id = %metadata.id, %error, "a snapshot is not understood and is left alone"),
        }
    }
    found.sort_by_key(|snapshot: &SnapshotManifest| (snapshot.start_time, snapshot.end_time));
    Ok(found)
}

/// The snapshot of this id.
pub fn load_snapshot(repository: &dyn Repository, id: &Id) -> Result<SnapshotManifest> {
    parse(&repository.manifest(id)?)
}

/// The snapshots that a new one of the same source is compared with: the latest complete one, and every incomplete
/// one that was begun after it.
pub fn find_parents(repository: &dyn Repository, source: &SourceInfo) -> Result<Vec<SnapshotManifest>> {
    let snapshots = find_snapshots(repository, source, &BTreeMap::new())?;
    Ok(snapshot::previous(&snapshots, None).into_iter().cloned().collect())
}

fn parse(manifest: &Manifest) -> Result<SnapshotManifest> {
    let damaged = |reason: String| lifeboat_kopia::Error::DamagedManifest {
        id: manifest.metadata.id.to_string(),
        reason,
    };
    if manifest.metadata.labels.get(TYPE_LABEL).map(String::as_str) != Some(SNAPSHOT_TYPE) {
        return Err(damaged("it is not a snapshot".to_owned()).into());
    }
    let mut snapshot: SnapshotManifest =
        serde_json::from_slice(&manifest.payload).map_err(|e| damaged(e.to_string()))?;
    if snapshot.root_object().is_none() {
        return Err(damaged("the snapshot has no root".to_owned()).into());
    }
    snapshot.id = ManifestId::from(manifest.metadata.id.as_str());
    Ok(snapshot)
}

/// Saves a snapshot and sets its id. It is durable after the repository's next flush.
pub fn save_snapshot(repository: &dyn Repository, snapshot: &mut SnapshotManifest) -> Result<Id> {
    let payload = lifeboat_kopia::gojson::to_vec(&snapshot.for_storage())
        .map_err(|e| lifeboat_kopia::Error::Invalid(format!("a snapshot cannot be written: {e}")))?;
    let id = repository.put_manifest(snapshot.labels()?, &payload)?;
    snapshot.id = ManifestId::from(id.as_str());
    Ok(id)
}

/// Deletes the snapshots of `source` that `policy` does not keep, incomplete ones that a later one replaces among
/// them; returns what was deleted. It takes effect with the repository's next flush.
pub fn apply_retention(
    repository: &dyn Repository,
    source: &SourceInfo,
    policy: &RetentionPolicy,
) -> Result<Vec<Id>> {
    let snapshots = find_snapshots(repository, source, &BTreeMap::new())?;
    let retained = compute_retention(&snapshots, policy, &TimeZone::system());
    let expired = retained.iter().filter(|retained| retained.is_expired());
    let expired: Vec<Id> = expired.map(|retained| Id::new(retained.id.as_str())).collect();
    expired.iter().try_for_each(|id| repository.delete_manifest(id))?;
    Ok(expired)
}
