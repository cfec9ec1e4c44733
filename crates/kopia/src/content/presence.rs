//! Packs that the index names and that are not in the store: their contents count as unknown, so that whoever has the
//! data writes it again.

use super::ContentStore;
use crate::pack::PackKind;
use crate::sort::{Scratch, Sorted};
use crate::worker::blocking;
use crate::{Error, Result};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use lifeboat_blobs::BlobId;
use lifeboat_budget::Reservation;
use lifeboat_index::{ContentId, PackName, Snapshot};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;

/// How many listings and look-ups are under way at once.
const PARALLEL: usize = 32;
/// How long what was found is relied on. Packs do not vanish by themselves: once per backup is enough.
const VALID_FOR: SignedDuration = SignedDuration::from_hours(6);
/// How long until a listing that failed is tried again. Without it backups go on, they only heal nothing.
const RETRY_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// So many packs are looked up singly before they count as missing; with more of them the listing is believed.
const MAX_LOOKED_UP: usize = 10_000;
/// What a missing pack takes in memory.
const PER_PACK: u64 = 160;

/// The packs that are missing; usually none.
#[derive(Debug, Default)]
pub struct MissingPacks {
    names: HashSet<PackName>,
    _memory: Option<Reservation>,
}

impl MissingPacks {
    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether this one is.
    pub fn contains(&self, pack: &PackName) -> bool {
        self.names.contains(pack)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &PackName> {
        self.names.iter()
    }
}

/// What is known about missing packs, and until when.
#[derive(Debug, Default)]
pub(super) struct Presence {
    known: Mutex<Option<(Arc<MissingPacks>, Timestamp)>>,
    /// One look at a time.
    looking: tokio::sync::Mutex<()>,
}

impl Presence {
    fn known(&self, now: Timestamp) -> Option<Arc<MissingPacks>> {
        self.known.lock().as_ref().filter(|(_, until)| now < *until).map(|(missing, _)| missing.clone())
    }
}

impl ContentStore {
    /// The packs of living contents of the published index that are not in the store. Found by one listing of the packs, at
    /// the first question and then every few hours; a listing that fails finds nothing.
    pub async fn missing_packs(&self) -> Arc<MissingPacks> {
        let presence = &self.shared.presence;
        let now = || self.shared.environment.clock.now();
        if let Some(missing) = presence.known(now()) {
            return missing;
        }
        let _one = presence.looking.lock().await;
        if let Some(missing) = presence.known(now()) {
            return missing;
        }
        let (missing, valid_for) = match self.find_missing_packs().await {
            Ok(missing) => (missing, VALID_FOR),
            Err(error) => {
                tracing::warn!(%error, "packs could not be listed; what is missing is not noticed for now");
                (MissingPacks::default(), RETRY_AFTER)
            }
        };
        if !missing.is_empty() {
            let packs = missing.names.len();
            tracing::warn!(packs, "packs are missing; their contents are written again if they come up");
        }
        let missing = Arc::new(missing);
        let until = now().saturating_add(valid_for).unwrap_or(Timestamp::MAX);
        *presence.known.lock() = Some((missing.clone(), until));
        missing
    }

    /// Whether a content is in the index and its pack, as far as one listing tells, in the store. Says nothing about
    /// whether its bytes are sound.
    pub async fn is_available(&self, id: &ContentId) -> Result<bool> {
        let missing = self.missing_packs().await;
        Ok(self.lookup(id)?.is_some_and(|entry| !missing.contains(&entry.pack)))
    }

    /// The same for worker threads, of the published index.
    pub fn has(&self, id: &ContentId) -> Result<bool> {
        Ok(self.shared.committed.ask(|index| index.contains_live(id))? && !self.has_lost(id)?)
    }

    /// Whether everything in the index can be relied on, as far as it takes no reading to tell.
    pub async fn is_whole(&self) -> bool {
        self.missing_packs().await.is_empty() && self.damaged_index().is_empty()
    }

    /// Whether the pack of a content that the published index has is missing. For worker threads.
    pub(super) fn has_lost(&self, id: &ContentId) -> Result<bool> {
        let missing = match self.shared.presence.known(self.shared.environment.clock.now()) {
            Some(missing) => missing,
            None => self.shared.runtime.block_on(self.missing_packs()),
        };
        if missing.is_empty() {
            return Ok(false);
        }
        let entry = self.shared.committed.ask(|index| index.get(id))?;
        Ok(entry.is_some_and(|entry| missing.contains(&entry.pack)))
    }

    async fn find_missing_packs(&self) -> Result<MissingPacks> {
        // The index first: whatever it names was in the store before it was written.
        let index = self.snapshot();
        let scratch = self.scratch();
        let listed = self.list_packs(&scratch).await?;
        let unlisted = blocking(move || unlisted(&index, &listed)).await??;
        let names = match unlisted.len() <= MAX_LOOKED_UP {
            true => self.confirm(unlisted).await?,
            false => unlisted.into_iter().collect(),
        };
        let memory = scratch.budget.try_reserve(names.len() as u64 * PER_PACK);
        Ok(MissingPacks { names, _memory: memory })
    }

    /// A pack that is in the store and not among those that were `read` because a listing by kind has shown them. Found by a
    /// listing in other portions, and by what `index` names; `None` confirms that listing.
    pub(super) async fn unread_pack(&self, read: Sorted, index: Snapshot) -> Result<Option<String>> {
        let listed = self.list_packs(&self.scratch()).await?;
        let compare = move || -> Result<(Option<String>, Vec<PackName>)> {
            let unlisted = unlisted(&index, &read)?;
            let (mut listed, mut read) = (listed.read()?, read.probe()?);
            while listed.advance()? {
                if !read.contains(listed.key())? {
                    return Ok((Some(String::from_utf8_lossy(listed.key()).into_owned()), unlisted));
                }
            }
            Ok((None, unlisted))
        };
        let (unread, unlisted) = blocking(compare).await??;
        if unread.is_some() || unlisted.is_empty() {
            return Ok(unread);
        }
        let missing = self.confirm(unlisted.clone()).await?;
        Ok(unlisted.into_iter().find(|pack| !missing.contains(pack)).map(|pack| pack.to_string()))
    }

    /// Where lists that may be long are sorted.
    pub(super) fn scratch(&self) -> Scratch {
        let loader = self.shared.committed.loader();
        Scratch { folder: loader.folder().to_owned(), budget: loader.budget().clone() }
    }

    /// The names of all packs, in order. Listed side by side by their first digit.
    async fn list_packs(&self, scratch: &Scratch) -> Result<Sorted> {
        let sorter = Mutex::new(scratch.sorter(0));
        let store = &self.shared.store;
        let prefixes = PackKind::ALL
            .into_iter()
            .flat_map(|kind| (0..16).map(move |digit| format!("{}{digit:x}", kind.blob_prefix())));
        stream::iter(prefixes)
            .map(Ok::<_, Error>)
            .try_for_each_concurrent(PARALLEL, |prefix| {
                let sorter = &sorter;
                async move {
                    let mut blobs = store.list(&prefix);
                    while let Some(blob) = blobs.try_next().await? {
                        sorter.lock().push(blob.id.as_str().as_bytes(), &[])?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await?;
        blocking(move || sorter.into_inner().finish()).await?
    }

    /// Those of `packs` that cannot be found by their names either.
    async fn confirm(&self, packs: Vec<PackName>) -> Result<HashSet<PackName>> {
        let store = &self.shared.store;
        stream::iter(packs)
            .map(|pack| {
                async move {
                    match store.head(&BlobId::new(pack.as_str())?).await {
                        Ok(_) => Ok(None),
                        Err(error) if error.is_not_found() => Ok(Some(pack)),
                        Err(error) => Err(Error::from(error)),
                    }
                }
                .boxed()
            })
            .buffer_unordered(PARALLEL)
            .try_filter_map(|pack| async move { Ok(pack) })
            .try_collect()
            .await
    }
}

/// The packs of living contents that the listing does not have. Packs that only deletions or superseded entries name are
/// none of them: maintenance has removed those.
fn unlisted(index: &Snapshot, listed: &Sorted) -> Result<Vec<PackName>> {
    let mut listed = listed.probe()?;
    index.living_packs(|pack| listed.contains(pack.as_bytes()).map(|is_listed| !is_listed))
}
