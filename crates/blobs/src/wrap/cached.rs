//! A cache of immutable blobs in a local folder.
//!
//! Every entry is one file: the bytes, then a hash over what they are (store, blob, range) and the bytes
//! themselves. A file that is cut, damaged or misplaced is a miss and is fetched again. Files appear by rename, so
//! several processes may share the folder; whoever finds it too large removes what was used longest ago.

mod folder;

use crate::{BlobId, BlobMetadata, BlobStore, BlobStream, Payload, PutOptions, Result, Retention};
use async_trait::async_trait;
use bytes::Bytes;
use folder::{Folder, Key};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How blobs with a name prefix are cached. They must be immutable: a name never gets other bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRule {
    /// Names that the rule is for.
    pub prefix: String,
    /// What is fetched when a range is asked for.
    pub unit: CacheUnit,
}

/// What is fetched and kept when a range of a blob is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheUnit {
    /// The range: for large blobs that are read here and there.
    Range,
    /// The whole blob: for blobs of which sooner or later most is read.
    WholeBlob,
}

/// Where and how much to cache.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The folder; made with mode 0700 if it is missing. It may be shared by stores and processes.
    pub folder: PathBuf,
    /// Bytes that the folder may hold. It may exceed them for a moment, by what is being added.
    pub limit: u64,
    /// Sets the blobs of different stores apart; for a repository its unique id.
    pub store_id: String,
    /// What is cached; the first rule that matches a name counts, names without a rule are not cached.
    pub rules: Vec<CacheRule>,
}

/// Hits and misses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Reads answered from the folder.
    pub hits: u64,
    /// Reads of cacheable blobs that went to the store.
    pub misses: u64,
}

/// A store with a cache in front of it.
///
/// A blob that another process deleted may still be read from the cache; for immutable blobs that is harmless.
#[derive(Debug)]
pub struct Cached<S> {
    inner: S,
    folder: Arc<Folder>,
    rules: Vec<CacheRule>,
    /// Counts changes made through this store, so that bytes fetched before a change are not kept after it.
    changes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl<S: BlobStore> Cached<S> {
    /// Puts a cache in front of `inner`. Fails only if the folder cannot be made.
    pub async fn new(inner: S, options: CacheOptions) -> Result<Self> {
        let folder = Folder::open(options.folder, options.limit, options.store_id).await?;
        Ok(Cached {
            inner,
            folder,
            rules: options.rules,
            changes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// Hits and misses so far.
    pub fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
        }
    }

    fn unit(&self, id: &BlobId) -> Option<CacheUnit> {
        let rule = self.rules.iter().find(|rule| id.as_str().starts_with(&rule.prefix));
        rule.map(|rule| rule.unit)
    }

    /// The bytes of `key` from the folder, or by `fetch` and then into the folder.
    async fn through(&self, key: Key, fetch: impl Future<Output = Result<Bytes>>) -> Result<Bytes> {
        if let Some(bytes) = self.folder.read(&key).await {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(bytes);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let before = self.changes.load(Ordering::SeqCst);
        let bytes = fetch.await?;
        if self.changes.load(Ordering::SeqCst) == before {
            self.folder.write(key, bytes.clone()).await;
        }
        Ok(bytes)
    }

    async fn change(&self, id: &BlobId, call: impl Future<Output = Result<()>>) -> Result<()> {
        if self.unit(id).is_none() {
            return call.await;
        }
        let result = call.await;
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.folder.forget(id).await;
        result
    }
}

#[async_trait]
impl<S: BlobStore> BlobStore for Cached<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        self.change(id, self.inner.put(id, payload, options)).await
    }

    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        match self.unit(id) {
            None => self.inner.get(id).await,
            Some(_) => self.through(Key::whole(id), self.inner.get(id)).await,
        }
    }

    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        match self.unit(id) {
            None => self.inner.get_range(id, range).await,
            Some(CacheUnit::Range) => {
                let fetch = self.inner.get_range(id, range.clone());
                self.through(Key::range(id, range), fetch).await
            }
            Some(CacheUnit::WholeBlob) => {
                let whole = self.through(Key::whole(id), self.inner.get(id)).await?;
                crate::store::check_range(&range, whole.len() as u64, id, || self.describe())?;
                Ok(whole.slice(range.start as usize..range.end as usize))
            }
        }
    }

    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        self.inner.head(id).await
    }

    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        self.inner.list(prefix)
    }

    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.change(id, self.inner.delete(id)).await
    }

    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        self.inner.extend_retention(id, retention).await
    }
}

#[cfg(test)]
mod tests;
