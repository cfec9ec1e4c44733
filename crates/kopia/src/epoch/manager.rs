//! Loading the state of the index and writing into it, with the time limits that make it safe without locks.

use super::names::{self, Epoch, IndexKind, Suffix};
use super::state::EpochState;
use crate::format::EpochParameters;
use crate::sealer::SealedBlob;
use crate::session::SessionId;
use crate::{Clock, Error, Result};
use futures::TryStreamExt;
use futures::future::try_join_all;
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, PutOptions};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Mutex;

/// How often a load or a write that was overtaken by time is tried again before giving up.
const ATTEMPTS: usize = 5;

/// What is known about the index, and until when it may be relied on.
#[derive(Debug, Clone)]
pub struct Committed {
    /// What the listing said.
    pub state: Arc<EpochState>,
    /// When the listing began.
    pub listed_at: Timestamp,
    /// After this moment the state must be loaded again before anything is decided by it.
    pub valid_until: Timestamp,
}

/// All index blobs, and when somebody began to list them: what happened since may or may not be in it.
#[derive(Debug)]
pub struct Listing {
    began: Timestamp,
    blobs: Vec<BlobMetadata>,
}

impl Listing {
    /// Lists the index blobs of a repository with epochs.
    pub async fn take(store: &dyn BlobStore, clock: &dyn Clock) -> Result<Listing> {
        let began = clock.now();
        Ok(Listing { began, blobs: store.list(names::ALL).try_collect().await? })
    }
}

/// The index blobs of a repository with epochs.
#[derive(Debug)]
pub struct EpochIndex {
    store: Arc<dyn BlobStore>,
    clock: Arc<dyn Clock>,
    parameters: EpochParameters,
    committed: Mutex<Option<Committed>>,
}

impl EpochIndex {
    /// The index blobs in `store`. Nothing is read yet; `listing` serves as the first one for as long as it is valid.
    pub fn new(
        store: Arc<dyn BlobStore>,
        clock: Arc<dyn Clock>,
        parameters: EpochParameters,
        listing: Option<Listing>,
    ) -> Self {
        let mut index = EpochIndex { store, clock, parameters, committed: Mutex::new(None) };
        let committed = listing.map(|listing| index.committed_by(listing));
        index.committed = Mutex::new(committed);
        index
    }

    /// Validity counts from the start of the listing.
    fn committed_by(&self, listing: Listing) -> Committed {
        let valid_until = listing.began.saturating_add(self.validity()).unwrap_or(Timestamp::MAX);
        let state = Arc::new(EpochState::from_listing(listing.blobs));
        Committed { state, listed_at: listing.began, valid_until }
    }

    /// How long a listing may be relied on.
    fn validity(&self) -> SignedDuration {
        SignedDuration::from_nanos(self.parameters.epoch_refresh_frequency)
    }

    /// The parameters of the repository's format.
    pub fn parameters(&self) -> &EpochParameters {
        &self.parameters
    }

    /// The state as last loaded, or loaded now if that is too long ago.
    pub async fn current(&self) -> Result<Committed> {
        self.valid_for(SignedDuration::ZERO).await
    }

    /// The state as of now.
    pub async fn refresh(&self) -> Result<Committed> {
        let mut committed = self.committed.lock().await;
        self.load_into(&mut committed).await
    }

    /// The state by a second listing, which is taken in other portions than the first: what was left out of one of them is
    /// hardly left out of the other.
    pub async fn look_again(&self) -> Result<EpochState> {
        let kinds = [names::UNCOMPACTED, names::SINGLE, names::RANGE, names::MARKER, names::WATERMARK];
        let listings = kinds.map(|kind| self.store.list(kind).try_collect::<Vec<BlobMetadata>>());
        Ok(EpochState::from_listing(try_join_all(listings).await?.concat()))
    }

    /// Whether a new set of `kind` is still wanted, by a second listing. Fails unless `blobs` are all that it replaces: what
    /// the first listing has not shown would be lost under it. Blobs in `left_out` do not count.
    pub async fn confirm(
        &self,
        kind: IndexKind,
        blobs: &[BlobMetadata],
        left_out: &BTreeSet<BlobId>,
    ) -> Result<bool> {
        let state = self.look_again().await?.without(left_out);
        let replaced = match kind {
            IndexKind::Single(epoch) => {
                state.uncompacted.get(&epoch).filter(|_| !state.is_compacted(epoch)).cloned()
            }
            IndexKind::Range(first, last) if first == state.first_unchained() => {
                Some(state.active_between(first, last))
            }
            _ => None,
        };
        let Some(replaced) = replaced else { return Ok(false) };
        let known: BTreeSet<&BlobId> = blobs.iter().map(|blob| &blob.id).collect();
        match replaced.into_iter().find(|blob| !known.contains(&blob.id)) {
            Some(blob) => Err(Error::IncompleteListing { blob: blob.id.to_string() }),
            None => Ok(true),
        }
    }

    /// A state that will stay valid for at least `remaining`.
    async fn valid_for(&self, remaining: SignedDuration) -> Result<Committed> {
        let mut committed = self.committed.lock().await;
        match committed.as_ref() {
            Some(known) if known.valid_until.duration_since(self.clock.now()) > remaining => {
                Ok(known.clone())
            }
            _ => self.load_into(&mut committed).await,
        }
    }

    async fn load_into(&self, committed: &mut Option<Committed>) -> Result<Committed> {
        for _ in 0..ATTEMPTS {
            let loaded = self.committed_by(Listing::take(&*self.store, &*self.clock).await?);
            if self.clock.now() < loaded.valid_until {
                *committed = Some(loaded.clone());
                return Ok(loaded);
            }
        }
        Err(Error::Invalid(format!(
            "listing the index blobs of {} takes longer than {:#}, so the result cannot be trusted; check the \
             connection to the store",
            self.store.describe(),
            self.validity()
        )))
    }

    /// Writes the shards of one index into the current epoch and returns their metadata as far as known.
    ///
    /// If the epoch advances during the write, what was written goes into the new one instead. If it advances
    /// twice, the compaction of the epoch may have begun without these blobs: they are taken back and the call
    /// fails with [`Error::IndexWriteTooSlow`]; the caller may try again.
    pub async fn write(
        &self,
        shards: &[SealedBlob],
        session: &SessionId,
        options: &PutOptions,
    ) -> Result<Vec<BlobId>> {
        let suffix = Suffix::of_session(session, shards.len());
        let enough = self.validity() * 3 / 4;
        let mut written: Vec<BlobId> = Vec::new();
        let mut epoch: Option<Epoch> = None;
        for _ in 0..ATTEMPTS {
            let committed = self.valid_for(enough).await?;
            let current = committed.state.write_epoch;
            if epoch.is_some_and(|epoch| epoch != current) {
                self.take_back(&mut written).await;
            }
            epoch = Some(current);
            if !self.put_missing(shards, current, &suffix, &committed, &mut written, options).await? {
                continue;
            }
            let after = self.refresh().await?;
            if after.state.write_epoch >= current + 2 {
                self.take_back(&mut written).await;
                return Err(Error::IndexWriteTooSlow);
            }
            return Ok(written);
        }
        self.take_back(&mut written).await;
        Err(Error::IndexWriteTooSlow)
    }

    /// Puts the shards that are not written yet; `false` if the state expired on the way.
    async fn put_missing(
        &self,
        shards: &[SealedBlob],
        epoch: Epoch,
        suffix: &Suffix,
        committed: &Committed,
        written: &mut Vec<BlobId>,
        options: &PutOptions,
    ) -> Result<bool> {
        for shard in shards.iter().skip(written.len()) {
            if self.clock.now() >= committed.valid_until {
                return Ok(false);
            }
            let id = BlobId::new(IndexKind::Uncompacted(epoch).name(&shard.hash_hex(), suffix))?;
            self.store.put(&id, shard.bytes().clone().into(), options).await?;
            written.push(id);
        }
        Ok(true)
    }

    /// Deletes what was written into an epoch that has passed. A blob that stays there (under an object lock, say)
    /// does no harm: all its entries are written again.
    async fn take_back(&self, written: &mut Vec<BlobId>) {
        for id in written.drain(..) {
            if let Err(error) = self.store.delete(&id).await {
                tracing::warn!(blob = %id, %error, "an index blob of a past epoch could not be taken back");
            }
        }
    }
}
