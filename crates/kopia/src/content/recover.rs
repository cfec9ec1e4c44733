//! Building the index again from what the packs themselves say.

use super::ContentStore;
use crate::pack::{LocalIndex, PackKind};
use crate::worker::blocking;
use crate::{Error, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use lifeboat_blobs::{BlobId, BlobMetadata, ErrorKind};
use lifeboat_index::Snapshot;
use parking_lot::Mutex;
use std::fmt;

/// Which packs the index is recovered from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PackChoice {
    /// All of them.
    #[default]
    All,
    /// Those whose names start with one of these.
    Prefixes(Vec<String>),
    /// These.
    Named(Vec<BlobId>),
}

/// How the index is recovered.
#[derive(Debug, Clone)]
pub struct RecoverOptions {
    /// From which packs.
    pub packs: PackChoice,
    /// How many of them are read at once.
    pub parallel: usize,
    /// Publish what was found; without it, nothing is changed.
    pub commit: bool,
    /// Start from nothing: believe no index blob, and delete all that were there once everything is published. They
    /// are deleted only if [every pack](RecoverReport::is_complete) was read.
    pub replace_index: bool,
}

impl Default for RecoverOptions {
    fn default() -> Self {
        RecoverOptions { packs: PackChoice::All, parallel: 8, commit: false, replace_index: false }
    }
}

/// What was recovered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoverReport {
    /// Packs that were read.
    pub packs: u64,
    /// Packs that gave nothing.
    pub damaged_packs: u64,
    /// Entries that they hold.
    pub entries: u64,
    /// Entries that the index did not have. With `commit`, it has them now.
    pub missing: u64,
    /// A pack that was not read, if all packs were to be read or the index is to be replaced.
    pub unread_pack: Option<UnreadPack>,
    /// Index blobs that were replaced; without `commit`, or if packs are left to be read, those that would be.
    pub replaced_blobs: u64,
}

/// A pack that is in the store and was not read. As long as there is one, only the old index may know what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadPack {
    /// Its name.
    pub pack: String,
}

impl fmt::Display for UnreadPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pack {} is in the store but was not read: it was not chosen, or not listed, or has just been written. No index blob \
             is deleted; do it again with all packs and while nobody backs up, and if that does not help, check the store: its \
             listings are not complete",
            self.pack
        )
    }
}

impl RecoverReport {
    /// Whether the index has everything that the packs hold, so that what it held before is not needed any more.
    pub fn is_complete(&self) -> bool {
        self.damaged_packs == 0 && self.unread_pack.is_none()
    }
}

impl ContentStore {
    /// Reads the local index of packs, and with [`commit`](RecoverOptions::commit) adds what the index is missing.
    /// Packs that cannot be read are passed to `damaged` and left out.
    ///
    /// Contents whose deletion was dropped from the index long ago come back if their pack is still there;
    /// maintenance deletes them again.
    pub async fn recover_index(
        &self,
        options: &RecoverOptions,
        damaged: &mut (dyn FnMut(&BlobId, &Error) + Send),
    ) -> Result<RecoverReport> {
        if options.commit {
            self.writer("recover the index")?;
        }
        let known = self.snapshot();
        let replaced = match options.replace_index {
            true => self.index_blobs().all().await?,
            false => Vec::new(),
        };
        if !replaced.is_empty() {
            self.shared.committed.replace(replaced.iter().map(|blob| blob.id.clone())).await?;
        }
        let recovered = self.recover_from_packs(options, known, damaged).await;
        let outcome = match recovered {
            Ok(mut report) => {
                report.replaced_blobs = replaced.len() as u64;
                match options.commit && report.is_complete() {
                    true => self.delete_replaced(&replaced).await.map(|()| report),
                    false => Ok(report),
                }
            }
            Err(error) => Err(error),
        };
        if !replaced.is_empty() {
            // Whatever became of it, what is there counts again.
            self.shared.committed.replace([]).await?;
        }
        outcome
    }

    async fn recover_from_packs(
        &self,
        options: &RecoverOptions,
        known: Snapshot,
        damaged: &mut (dyn FnMut(&BlobId, &Error) + Send),
    ) -> Result<RecoverReport> {
        let report = Mutex::new((RecoverReport::default(), damaged));
        let names = Mutex::new(self.scratch().sorter(0));
        let recover = |(id, listed): (BlobId, Option<BlobMetadata>)| {
            let (report, names) = (&report, &names);
            async move {
                names.lock().push(id.as_str().as_bytes(), &[])?;
                let read = self.recover_pack(&id, listed, options.commit).await;
                let (report, damaged) = &mut *report.lock();
                report.packs += 1;
                match read {
                    Ok((entries, missing)) => {
                        report.entries += entries;
                        report.missing += missing;
                    }
                    Err(error) if is_about_the_pack(&error) => {
                        report.damaged_packs += 1;
                        damaged(&id, &error);
                    }
                    Err(error) => return Err(error),
                }
                Ok(())
            }
        };
        self.chosen_packs(&options.packs).try_for_each_concurrent(options.parallel.max(1), recover).await?;
        if options.commit {
            self.flush().await?;
        }
        let mut report = report.into_inner().0;
        if options.packs == PackChoice::All || options.replace_index {
            let read = blocking(move || names.into_inner().finish()).await??;
            report.unread_pack = self.unread_pack(read, known).await?.map(|pack| UnreadPack { pack });
        }
        Ok(report)
    }

    /// The packs to read, with what a listing says of them if there was one.
    fn chosen_packs<'a>(
        &'a self,
        choice: &PackChoice,
    ) -> BoxStream<'a, Result<(BlobId, Option<BlobMetadata>)>> {
        let store = &self.shared.store;
        let listed = |prefixes: Vec<String>| {
            let lists = stream::iter(prefixes).flat_map(|prefix| store.list(&prefix));
            lists.map_ok(|blob| (blob.id.clone(), Some(blob))).err_into().boxed()
        };
        match choice {
            PackChoice::All => listed(PackKind::ALL.map(|kind| kind.blob_prefix().to_owned()).to_vec()),
            PackChoice::Prefixes(prefixes) => listed(prefixes.clone()),
            PackChoice::Named(names) => stream::iter(names.clone()).map(|name| Ok((name, None))).boxed(),
        }
    }

    /// How many entries a pack has and how many of them the index does not have; with `commit` those are added.
    async fn recover_pack(
        &self,
        id: &BlobId,
        listed: Option<BlobMetadata>,
        commit: bool,
    ) -> Result<(u64, u64)> {
        let shared = &self.shared;
        let pack = match listed {
            Some(pack) => pack,
            None => shared.store.head(id).await?,
        };
        let budget = shared.committed.loader().budget();
        let index = LocalIndex::read(&*shared.store, &shared.sealer, budget, &pack).await?;
        let store = self.clone();
        let adopt = move || {
            let missing = store.adopt(&index, commit)?;
            // The memory returns before a flush is waited for, which may need it.
            let entries = index.len();
            drop(index);
            if commit {
                store.flush_if_due(store.writer("recover the index")?)?;
            }
            Ok((entries, missing))
        };
        blocking(adopt).await?
    }

    fn adopt(&self, index: &LocalIndex, commit: bool) -> Result<u64> {
        let watermark = self.shared.committed.snapshot().watermark();
        let mut missing = 0;
        for entry in index.entries() {
            let entry = entry.map_err(|e| Error::Invalid(e.to_string()))?;
            if entry.deleted && entry.timestamp_seconds <= watermark {
                continue;
            }
            let added = match commit {
                true => self.add_recovered(self.writer("recover the index")?, &entry)?,
                false => !self.lookup(&entry.id)?.is_some_and(|known| covers(&known, &entry)),
            };
            missing += u64::from(added);
        }
        Ok(missing)
    }

    /// Passes over these index blobs from now on, as if they were not there, and over no others but those that cannot be
    /// read: for blobs that are known to be damaged in the store, of which there may be a sound copy on this machine.
    pub(crate) async fn distrust(&self, blobs: impl IntoIterator<Item = BlobId>) -> Result<()> {
        self.shared.committed.replace(blobs).await
    }

    /// Deletes index blobs whose entries are all published elsewhere. Those under a lock stay, and do no harm.
    async fn delete_replaced(&self, blobs: &[BlobMetadata]) -> Result<()> {
        for blob in blobs {
            match self.shared.store.delete(&blob.id).await {
                Err(error) if error.kind() == ErrorKind::Locked => {
                    tracing::warn!(blob = %blob.id, %error, "a replaced index blob stays");
                }
                deleted => deleted?,
            }
        }
        Ok(())
    }
}

/// Whether an entry of the index makes another one superfluous.
pub(super) fn covers(known: &lifeboat_index::IndexEntry, entry: &lifeboat_index::IndexEntry) -> bool {
    known == entry || lifeboat_index::supersedes(known, entry)
}

/// Whether the other packs may still be readable.
fn is_about_the_pack(error: &Error) -> bool {
    match error {
        Error::DamagedBlob { .. } | Error::MissingBlob { .. } | Error::Budget(_) => true,
        Error::Storage(error) => matches!(
            error.kind(),
            ErrorKind::NotFound | ErrorKind::InvalidRange | ErrorKind::Corrupt | ErrorKind::PermissionDenied
        ),
        _ => false,
    }
}
