//! Merging index blobs into fewer: what index compaction does, whichever rules it follows.

use super::ContentStore;
use super::load::{FetchError, IndexLoader};
use crate::epoch::EpochIndex;
use crate::epoch::names::{IndexKind, Suffix};
use crate::sealer::{SealedBlob, Sealer};
use crate::worker::blocking;
use crate::{Error, Result};
use lifeboat_blobs::{BlobId, BlobMetadata};
use lifeboat_budget::{Budget, Reservation};
use lifeboat_index::{
    Catalog, CatalogOptions, Deleted, IdRange, IndexBlobName, IndexEntry, IndexVersion, MAX_SHARD_ENTRIES,
    Snapshot, shard_count, shard_of,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What one entry takes in an index besides its key, at most, its share of the pack names included.
const ENTRY_LEN: u64 = 24;
/// However small the budget is, no shard holds fewer entries than this.
const MIN_SHARD_ENTRIES: usize = 50_000;
/// What merging local files takes at most if memory is not waited for: enough for hundreds of millions of entries.
const CATALOG_MEMORY: u64 = 4 << 20;

/// The entries of several index blobs as one index, cut into shards that fit into memory one at a time.
#[derive(Debug)]
pub struct MergedIndex {
    snapshot: Snapshot,
    version: IndexVersion,
    sealer: Arc<Sealer>,
    budget: Budget,
    /// Into how many shards the entries are cut.
    cut: u32,
    /// Those of them that are not empty.
    shards: Vec<u32>,
    /// What one of them takes in memory, sealed and not.
    memory: u64,
}

/// A shard that is ready to be put, and the memory that it takes.
#[derive(Debug)]
pub struct SealedShard {
    /// The sealed bytes.
    pub blob: SealedBlob,
    _memory: Reservation,
}

impl ContentStore {
    /// Fetches an index blob and reads all of it. Fails with [`Error::DamagedBlob`] if it is not sound.
    pub(crate) async fn check_index_blob(&self, blob: &BlobMetadata) -> Result<()> {
        let loader = self.shared.committed.loader();
        let catalog = Arc::new(Catalog::temporary_in(loader.folder(), CatalogOptions::default())?);
        match add(loader, &catalog, blob, IndexBlobName::from(blob.id.as_str())).await {
            // It was replaced since it was listed.
            Err(Error::MissingBlob { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// Replaces index blobs by a new set of `kind`, unless somebody else has just done so. Those in `left_out` cannot be used.
    pub(crate) async fn compact_index(
        &self,
        index: &EpochIndex,
        kind: IndexKind,
        blobs: &[BlobMetadata],
        left_out: &BTreeSet<BlobId>,
    ) -> Result<()> {
        match index.confirm(kind, blobs, left_out).await? {
            true => self.write_index_set(kind, blobs).await,
            false => Ok(()),
        }
    }

    /// The same with the memory that nobody needs right now, for whoever must not wait for those who hold the rest.
    /// `false` if there is not enough of it: then nothing was written.
    pub(super) async fn compact_index_now(
        &self,
        index: &EpochIndex,
        kind: IndexKind,
        blobs: &[BlobMetadata],
    ) -> Result<bool> {
        let budget = self.shared.committed.loader().budget();
        let share = CATALOG_MEMORY.min(budget.total() / 16);
        let Some(memory) = budget.try_reserve(share) else { return Ok(false) };
        if !index.confirm(kind, blobs, &BTreeSet::new()).await? {
            return Ok(true);
        }
        // Nobody else draws on it, so that nobody is waited for.
        let merged = self.merge_index_within(blobs, i64::MIN, Budget::new(share)).await?;
        drop(memory);
        let Some(memory) = budget.try_reserve(merged.memory) else { return Ok(false) };
        self.write_shards(kind, &merged, Some(&memory)).await?;
        Ok(true)
    }

    /// Merges index blobs into a new set of `kind`. A crash on the way leaves a part of a set, which nobody reads.
    pub(crate) async fn write_index_set(&self, kind: IndexKind, blobs: &[BlobMetadata]) -> Result<()> {
        let merged = self.merge_index(blobs, i64::MIN).await?;
        self.write_shards(kind, &merged, None).await
    }

    /// Writes the shards of a set one after another. Without `memory` that is there for them, each waits for its own.
    async fn write_shards(
        &self,
        kind: IndexKind,
        merged: &MergedIndex,
        memory: Option<&Reservation>,
    ) -> Result<()> {
        let suffix = Suffix::of_set(self.shared.environment.random_array()?, merged.shard_count());
        for shard in 0..merged.shard_count() {
            let _own = match memory {
                Some(_) => None,
                None => Some(merged.reserve_shard().await?),
            };
            let sealed = merged.seal(shard, &[]).await?;
            let id = BlobId::new(kind.name(&sealed.hash_hex(), &suffix))?;
            let options = self.shared.format.put_options();
            self.shared.store.put(&id, sealed.bytes().clone().into(), &options).await?;
        }
        Ok(())
    }

    /// Reads `blobs`, which are index blobs of this repository, and merges their entries. Of those that say that a
    /// content was deleted, the ones at or before `watermark` (unix seconds; `i64::MIN` for none) are left out, after
    /// the merge.
    ///
    /// Goes through local files; memory is taken in proportion to the packs. Fails with [`Error::MissingBlob`] if a
    /// blob is not there any more.
    pub async fn merge_index(&self, blobs: &[BlobMetadata], watermark: i64) -> Result<MergedIndex> {
        let budget = self.shared.committed.loader().budget().clone();
        self.merge_index_within(blobs, watermark, budget).await
    }

    /// The same with local files that are merged within a budget of their own.
    async fn merge_index_within(
        &self,
        blobs: &[BlobMetadata],
        watermark: i64,
        budget: Budget,
    ) -> Result<MergedIndex> {
        let loader = self.shared.committed.loader().clone();
        let options = CatalogOptions { budget: Some(budget), ..CatalogOptions::default() };
        let catalog = Arc::new(Catalog::temporary_in(loader.folder(), options)?);
        let mut names = BTreeSet::new();
        for blob in blobs {
            let name = IndexBlobName::from(blob.id.as_str());
            add(&loader, &catalog, blob, name.clone()).await?;
            names.insert(name);
        }
        let version = self.shared.format.index_version;
        let sealer = self.shared.sealer.clone();
        let merge = move || {
            let mut gone = |_: &IndexBlobName| Err("its local file is gone".into());
            let snapshot = catalog.update(&names, watermark, &mut gone)?;
            MergedIndex::new(snapshot, version, sealer, loader.budget().clone())
        };
        blocking(merge).await?
    }
}

async fn add(
    loader: &IndexLoader,
    catalog: &Arc<Catalog>,
    blob: &BlobMetadata,
    name: IndexBlobName,
) -> Result<()> {
    let (source, memory) = loader.fetch(blob).await.map_err(|error| match error {
        FetchError::Failed(error) => error,
        FetchError::Vanished(id) => {
            Error::MissingBlob { blob: id.to_string(), needed_for: "the compaction of the index".into() }
        }
    })?;
    let catalog = catalog.clone();
    blocking(move || catalog.add(&name, &source)).await??;
    drop(memory);
    Ok(())
}

impl MergedIndex {
    fn new(snapshot: Snapshot, version: IndexVersion, sealer: Arc<Sealer>, budget: Budget) -> Result<Self> {
        let mut entries = snapshot.iter(IdRange::all(), Deleted::Include);
        let Some(first) = entries.next().transpose()? else {
            let (cut, shards, memory) = (1, Vec::new(), 0);
            return Ok(MergedIndex { snapshot, version, sealer, budget, cut, shards, memory });
        };
        let entry_len = first.id.key().len() as u64 + ENTRY_LEN;
        let room = (budget.total() / 8 / entry_len) as usize;
        let per_shard = room.clamp(MIN_SHARD_ENTRIES, MAX_SHARD_ENTRIES);
        let total = usize::try_from(snapshot.len_upper_bound()).unwrap_or(usize::MAX);
        let cut = shard_count(total, per_shard);
        // The number of shards is part of their names, so it is known before the first one is written.
        let mut used = vec![false; cut as usize];
        let mut unused = cut;
        let rest = snapshot.iter(IdRange::all(), Deleted::Include);
        for entry in rest {
            let place = &mut used[shard_of(&entry?.id, cut) as usize];
            unused -= u32::from(!std::mem::replace(place, true));
            if unused == 0 {
                break;
            }
        }
        let shards = (0..cut).filter(|shard| used[*shard as usize]).collect();
        let memory =
            (total.div_ceil(cut as usize) as u64).saturating_mul(2 * entry_len).min(budget.total() / 4);
        Ok(MergedIndex { snapshot, version, sealer, budget, cut, shards, memory })
    }

    /// How many shards it has; none if there are no entries.
    pub fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// The entries in ascending order of contents, deletions included. For worker threads only.
    pub fn entries(&self) -> impl Iterator<Item = Result<IndexEntry>> + use<> {
        self.snapshot.iter(IdRange::all(), Deleted::Include).map(|entry| Ok(entry?))
    }

    /// Encodes and seals one shard. `suffix` follows its entries: random bytes where the format asks for them.
    pub async fn seal_shard(&self, place: usize, suffix: &[u8]) -> Result<SealedShard> {
        let memory = self.reserve_shard().await?;
        Ok(SealedShard { blob: self.seal(place, suffix).await?, _memory: memory })
    }

    /// Waits for the memory that a shard takes.
    async fn reserve_shard(&self) -> Result<Reservation> {
        Ok(self.budget.reserve_async(self.memory).await?)
    }

    /// Encodes and seals one shard, whose memory is there.
    async fn seal(&self, place: usize, suffix: &[u8]) -> Result<SealedBlob> {
        let shard =
            *self.shards.get(place).ok_or_else(|| Error::Worker(format!("there is no shard {place}")))?;
        let (snapshot, version, cut) = (self.snapshot.clone(), self.version, self.cut);
        let (sealer, suffix) = (self.sealer.clone(), suffix.to_vec());
        let seal = move || -> Result<SealedBlob> {
            let mut plain = Vec::new();
            snapshot
                .encode_index(version, shard, cut, &mut plain)
                .map_err(|e| Error::Invalid(format!("cannot encode the merged index: {e}")))?;
            plain.extend_from_slice(&suffix);
            sealer.seal_blob(&plain)
        };
        blocking(seal).await?
    }
}
