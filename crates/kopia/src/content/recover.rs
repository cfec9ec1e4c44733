//! Building the index again from what the packs themselves say.

use super::ContentStore;
use super::committed::blocking;
use crate::pack::{self, PackKind};
use crate::{Error, Result};
use futures::TryStreamExt;
use lifeboat_blobs::BlobId;
use lifeboat_index::{IndexEntry, supersedes};

/// How many packs are read at once.
const PARALLEL: usize = 8;

/// What was recovered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoverReport {
    /// Packs that were read.
    pub packs: u64,
    /// Packs that gave nothing.
    pub damaged_packs: u64,
    /// Entries that they hold.
    pub entries: u64,
    /// Entries that the index did not have.
    pub missing: u64,
}

impl ContentStore {
    /// Reads the local index of every pack, and with `commit` adds what the index is missing. Packs that cannot be
    /// read are passed to `damaged` and left out.
    pub async fn recover_index(
        &self,
        commit: bool,
        damaged: &mut (dyn FnMut(&BlobId, Error) + Send),
    ) -> Result<RecoverReport> {
        if commit {
            self.writer("recover the index")?;
        }
        let mut report = RecoverReport::default();
        for kind in PackKind::ALL {
            let shared = &self.shared;
            let mut packs = shared
                .store
                .list(kind.blob_prefix())
                .map_ok(|blob| async move {
                    let entries = pack::recover(&*shared.store, &shared.sealer, &blob).await;
                    Ok((blob.id, entries))
                })
                .try_buffer_unordered(PARALLEL);
            while let Some((id, entries)) = packs.try_next().await? {
                report.packs += 1;
                let entries = match entries {
                    Ok(entries) => entries,
                    Err(error) => {
                        report.damaged_packs += 1;
                        damaged(&id, error);
                        continue;
                    }
                };
                report.entries += entries.len() as u64;
                let store = self.clone();
                report.missing += blocking(move || store.adopt(entries, commit)).await??;
            }
        }
        if commit {
            self.flush().await?;
        }
        Ok(report)
    }

    /// How many of `entries` the index does not have; with `commit` they are added.
    fn adopt(&self, entries: Vec<IndexEntry>, commit: bool) -> Result<u64> {
        let mut missing = 0;
        for entry in entries {
            let known = match self.lookup(&entry.id)? {
                Some(known) => known == entry || supersedes(&known, &entry),
                None => false,
            };
            if known {
                continue;
            }
            missing += 1;
            if commit {
                let writer = self.writer("recover the index")?;
                let _batch = writer.barrier.read();
                self.add_recovered(writer, &entry)?;
            }
        }
        if commit {
            self.flush_if_due(self.writer("recover the index")?)?;
        }
        Ok(missing)
    }
}
