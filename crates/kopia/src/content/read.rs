//! The read path of contents: find, fetch, open.

use super::write::damaged;
use super::{ContentLocation, ContentStore};
use crate::worker::blocking;
use crate::{Error, Result};
use bytes::Bytes;
use lifeboat_blobs::{BlobId, ErrorKind};
use lifeboat_index::{ContentId, IndexEntry, Prefix};

impl ContentStore {
    /// What the index says about a content: own entries that are not published yet first, then the published
    /// index. Deleted contents are found, with [`deleted`](IndexEntry::deleted) set, until maintenance drops them.
    pub fn lookup(&self, id: &ContentId) -> Result<Option<IndexEntry>> {
        Ok(self.find(id)?.map(|(entry, _)| entry))
    }

    fn find(&self, id: &ContentId) -> Result<Option<(IndexEntry, Option<Bytes>)>> {
        if let Some(writer) = self.shared.writer.as_ref()
            && let Some(found) = writer.state.lock().find(id)
        {
            return Ok(Some(found));
        }
        Ok(self.shared.committed.snapshot().get(id)?.map(|entry| (entry, None)))
    }

    /// Where a content is, for callers that fetch regions of packs themselves.
    pub fn resolve(&self, id: &ContentId) -> Result<ContentLocation> {
        match self.find(id)? {
            Some((entry, here)) => Ok(ContentLocation { entry, here }),
            None => Err(Error::ContentNotFound { id: *id }),
        }
    }

    /// Opens the sealed bytes of a content, as they lie in its pack at the place that `location` gives.
    ///
    /// Heavy on the processor for large contents: call it from worker threads.
    pub fn open_raw(&self, location: &ContentLocation, sealed: &[u8]) -> Result<Bytes> {
        let entry = &location.entry;
        self.shared
            .sealer
            .open_content(&entry.id, entry.compression, entry.original_length, sealed)
            .map_err(|reason| damaged(entry, reason))
    }

    /// Opens the sealed bytes of a content only to see whether they are sound; a text says what is wrong.
    pub(crate) fn check_sealed(&self, entry: &IndexEntry, sealed: &[u8]) -> std::result::Result<(), String> {
        let data =
            self.shared.sealer.open_content(&entry.id, entry.compression, entry.original_length, sealed)?;
        // Whoever holds the keys could have sealed other bytes under this id.
        match self.shared.sealer.hash(&data).as_slice() == entry.id.hash() {
            true => Ok(()),
            false => Err("its bytes do not have the hash that is its name".into()),
        }
    }

    /// The bytes of a content.
    ///
    /// If the content or its pack is not there, the index is loaded once more: maintenance may have moved it.
    pub async fn read(&self, id: &ContentId) -> Result<Bytes> {
        if let Some(cached) = self.shared.cache.get(id) {
            return Ok(cached);
        }
        let location = match self.resolve(id) {
            Err(error) if is_worth_a_refresh(&error) => {
                self.shared.committed.refresh().await?;
                self.resolve(id)?
            }
            found => found?,
        };
        let (location, sealed) = self.fetch(location).await?;
        let data = self.open_off_thread(location, sealed).await?;
        self.shared.cache.put(id, &data);
        Ok(data)
    }

    /// The sealed bytes of a content, and where they were found in the end.
    pub async fn fetch(&self, location: ContentLocation) -> Result<(ContentLocation, Bytes)> {
        let error = match self.fetch_once(&location).await {
            Ok(sealed) => return Ok((location, sealed)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidRange) => error,
            Err(error) => return Err(error.into()),
        };
        self.shared.committed.refresh().await?;
        let again = self.resolve(&location.entry.id)?;
        let entry = &again.entry;
        if (&entry.pack, entry.pack_offset) == (&location.entry.pack, location.entry.pack_offset)
            && again.here.is_none()
        {
            return Err(unavailable(entry, &error));
        }
        match self.fetch_once(&again).await {
            Ok(sealed) => Ok((again, sealed)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidRange) => {
                Err(unavailable(&again.entry, &error))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn fetch_once(&self, location: &ContentLocation) -> lifeboat_blobs::Result<Bytes> {
        if let Some(here) = &location.here {
            return Ok(here.clone());
        }
        let pack = BlobId::new(location.entry.pack.as_str())?;
        match location.entry.id.prefix() {
            // All manifests are read at once, each from a pack of its own more often than not.
            Prefix::NONE | Prefix::MANIFEST => self.shared.store.get_range(&pack, location.range()).await,
            _ => self.shared.nearby.read(&*self.shared.store, &pack, location.range()).await,
        }
    }

    /// Opens on a worker thread what would hold up the async ones.
    async fn open_off_thread(&self, location: ContentLocation, sealed: Bytes) -> Result<Bytes> {
        /// A few hundred microseconds of decryption.
        const INLINE: usize = 256 << 10;
        if location.entry.original_length as usize <= INLINE {
            return self.open_raw(&location, &sealed);
        }
        let store = self.clone();
        let open = move || store.open_raw(&location, &sealed);
        blocking(open).await?
    }
}

/// Whether another look at the index may help: the content is new, or a local file turned out to be damaged.
fn is_worth_a_refresh(error: &Error) -> bool {
    match error {
        Error::ContentNotFound { .. } => true,
        Error::IndexCache(error) => error.is_damaged_cache(),
        _ => false,
    }
}

/// The pack of `entry` is not there, or too short.
fn unavailable(entry: &IndexEntry, error: &lifeboat_blobs::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => {
            Error::MissingBlob { blob: entry.pack.to_string(), needed_for: format!("content {}", entry.id) }
        }
        _ => damaged(
            entry,
            format!(
                "the pack ends before the content does (bytes {} to {})",
                entry.pack_offset,
                u64::from(entry.pack_offset) + u64::from(entry.packed_length)
            ),
        ),
    }
}
