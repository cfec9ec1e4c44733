//! The index without epochs (format version 1): index blobs `n`, and logs `m` that say which of them a compaction
//! has replaced.

use crate::sealer::{SealedBlob, Sealer};
use crate::session::SessionId;
use crate::{Error, Result};
use futures::TryStreamExt;
use futures::future::try_join_all;
use jiff::Timestamp;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, PutOptions};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Prefix of index blobs.
pub const INDEX: &str = "n";
/// Prefix of compaction logs.
pub const COMPACTION_LOG: &str = "m";
/// Prefix of clean-up logs.
pub const CLEANUP_LOG: &str = "l";
/// A blob that is no index: it keeps clients away which do not know that the repository has epochs now.
pub const POISON: &str =
    "n00000000000000000000000000000000-repository_unreadable_by_this_kopia_version_upgrade_required";
/// What [`POISON`] holds, for whoever looks at it.
pub const POISON_CONTENT: &[u8] =
    b"The format of this repository has been upgraded and cannot be read by old clients";

/// Whether an index blob is only there to keep clients away. What follows in its name differs between releases.
pub fn is_poison(name: &str) -> bool {
    name.contains("repository_unreadable_by_this_kopia_version")
}

/// One blob as a log names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedBlob {
    /// Its name.
    pub id: String,
    /// Its size.
    pub length: u64,
    /// Its time in the storage.
    pub timestamp: Timestamp,
}

/// What a compaction did: the outputs hold everything that the inputs held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionLog {
    /// The blobs that were merged.
    #[serde(rename = "inputMetadata", default, deserialize_with = "null_as_empty")]
    pub inputs: Vec<LoggedBlob>,
    /// What they became.
    #[serde(rename = "outputMetadata", default, deserialize_with = "null_as_empty")]
    pub outputs: Vec<LoggedBlob>,
}

/// Compaction logs that are to be deleted, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanupLog {
    /// The names of the logs.
    #[serde(rename = "blobIDs", default, deserialize_with = "null_as_empty")]
    pub blob_ids: Vec<String>,
    /// When their deletion was scheduled.
    #[serde(rename = "cleanupScheduleTime")]
    pub cleanup_schedule_time: Timestamp,
}

/// Go writes an empty list as `null`.
fn null_as_empty<'de, D, T>(deserializer: D) -> std::result::Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

/// The blobs in force: all of `indexes` except the inputs of logs whose outputs are all there.
pub fn active<'a>(
    indexes: &[BlobMetadata],
    logs: impl IntoIterator<Item = &'a CompactionLog>,
) -> Vec<BlobMetadata> {
    let present: HashSet<&str> = indexes.iter().map(|blob| blob.id.as_str()).collect();
    let mut replaced: HashSet<&str> = HashSet::new();
    for log in logs {
        if log.outputs.iter().all(|output| present.contains(output.id.as_str())) {
            replaced.extend(log.inputs.iter().map(|input| input.id.as_str()));
        }
    }
    indexes.iter().filter(|blob| !replaced.contains(blob.id.as_str())).cloned().collect()
}

/// The index blobs of a repository without epochs.
#[derive(Debug)]
pub struct LegacyIndex {
    store: Arc<dyn BlobStore>,
    sealer: Arc<Sealer>,
    /// Logs read before: they never change.
    logs: Mutex<BTreeMap<BlobId, Arc<CompactionLog>>>,
}

impl LegacyIndex {
    /// The index blobs in `store`; nothing is read yet.
    pub fn new(store: Arc<dyn BlobStore>, sealer: Arc<Sealer>) -> Self {
        LegacyIndex { store, sealer, logs: Mutex::default() }
    }

    /// The blobs in force now.
    pub async fn active(&self) -> Result<Vec<BlobMetadata>> {
        self.active_without(&BTreeSet::new()).await
    }

    /// The blobs in force now, as if those in `left_out` (index blobs or logs) did not exist: what an index blob among
    /// them had replaced is in force again, as far as it is still there.
    pub async fn active_without(&self, left_out: &BTreeSet<BlobId>) -> Result<Vec<BlobMetadata>> {
        self.active_in(&[INDEX.to_owned()], left_out).await
    }

    /// The same by a second listing, which is taken in other portions than the first: what was left out of one of them is
    /// hardly left out of the other.
    pub async fn look_again(&self, left_out: &BTreeSet<BlobId>) -> Result<Vec<BlobMetadata>> {
        let digits = (0..16).map(|digit| format!("{INDEX}{digit:x}"));
        self.active_in(&digits.collect::<Vec<_>>(), left_out).await
    }

    async fn active_in(&self, portions: &[String], left_out: &BTreeSet<BlobId>) -> Result<Vec<BlobMetadata>> {
        let usable = |blob: &BlobMetadata| !left_out.contains(&blob.id);
        // Logs first: a log that appears after this listing only means that inputs are read once more, while a
        // log seen without its outputs would be ignored anyway.
        let listed: Vec<BlobMetadata> = self.store.list(COMPACTION_LOG).try_collect().await?;
        let mut logs = BTreeMap::new();
        for blob in listed.into_iter().filter(usable) {
            let known = self.logs.lock().get(&blob.id).cloned();
            let log = match known {
                Some(log) => log,
                None => match self.read_log(&blob.id).await? {
                    Some(log) => Arc::new(log),
                    None => continue,
                },
            };
            logs.insert(blob.id, log);
        }
        let listings = portions.iter().map(|portion| self.store.list(portion).try_collect::<Vec<_>>());
        let mut indexes: Vec<BlobMetadata> = try_join_all(listings).await?.concat();
        indexes.retain(usable);
        let active = active(&indexes, logs.values().map(AsRef::as_ref));
        *self.logs.lock() = logs;
        Ok(active)
    }

    /// All index blobs and compaction logs, in force or not.
    pub async fn all(&self) -> Result<Vec<BlobMetadata>> {
        let mut all: Vec<BlobMetadata> = self.store.list(COMPACTION_LOG).try_collect().await?;
        let indexes: Vec<BlobMetadata> = self.store.list(INDEX).try_collect().await?;
        all.extend(indexes);
        Ok(all)
    }

    /// Reads a log; `None` if it was cleaned up since it was listed.
    pub(crate) async fn read_log(&self, id: &BlobId) -> Result<Option<CompactionLog>> {
        let sealed = match self.store.get(id).await {
            Ok(sealed) => sealed,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let plain = self.sealer.open_blob(id.as_str(), &sealed)?;
        let log = serde_json::from_slice(&plain).map_err(|e| Error::DamagedBlob {
            blob: id.to_string(),
            reason: format!("not a compaction log: {e}"),
        })?;
        Ok(Some(log))
    }

    /// Writes the shards of one index.
    pub async fn write(
        &self,
        shards: &[SealedBlob],
        session: &SessionId,
        options: &PutOptions,
    ) -> Result<Vec<BlobId>> {
        let mut written = Vec::with_capacity(shards.len());
        for shard in shards {
            let id = BlobId::new(format!("{INDEX}{}-{session}", shard.hash_hex()))?;
            self.store.put(&id, shard.bytes().clone().into(), options).await?;
            written.push(id);
        }
        Ok(written)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn blob(name: &str) -> BlobMetadata {
        BlobMetadata { id: BlobId::new(name).unwrap(), size: 1, modified: Timestamp::UNIX_EPOCH }
    }

    fn log(inputs: &[&str], outputs: &[&str]) -> CompactionLog {
        let logged = |names: &[&str]| {
            names
                .iter()
                .map(|n| LoggedBlob { id: (*n).into(), length: 1, timestamp: Timestamp::UNIX_EPOCH })
                .collect()
        };
        CompactionLog { inputs: logged(inputs), outputs: logged(outputs) }
    }

    #[test]
    fn a_compaction_counts_only_when_its_outputs_are_there() {
        let indexes: Vec<_> = ["n1", "n2", "n3", "n4"].map(blob).to_vec();
        let names = |logs: &[CompactionLog]| {
            active(&indexes, logs).iter().map(|b| b.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["n1", "n2", "n3", "n4"]);
        assert_eq!(names(&[log(&["n1", "n2"], &["n4"])]), ["n3", "n4"]);
        assert_eq!(names(&[log(&["n1", "n2"], &["n4", "n9"])]), ["n1", "n2", "n3", "n4"]);
    }

    #[test]
    fn logs_are_read_as_kopia_writes_them() {
        let json = r#"{"inputMetadata":[{"id":"n1","length":7,"timestamp":"2026-01-02T03:04:05.5Z"}],"outputMetadata":null}"#;
        let log: CompactionLog = serde_json::from_str(json).unwrap();
        assert_eq!((log.inputs.len(), log.inputs[0].length, log.outputs.len()), (1, 7, 0));
    }
}
