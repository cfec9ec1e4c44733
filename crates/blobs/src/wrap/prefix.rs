//! A store inside a store: every name gets a prefix.

use crate::{BlobId, BlobMetadata, BlobStore, BlobStream, Payload, PutOptions, Result, Retention};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::StreamExt;
use std::future::ready;
use std::ops::Range;

/// The part of `inner` whose names start with a prefix, seen without it. The prefix is used literally.
#[derive(Debug, Clone)]
pub struct Prefix<S> {
    inner: S,
    prefix: String,
}

impl<S: BlobStore> Prefix<S> {
    /// The blobs of `inner` whose names start with `prefix`.
    pub fn new(inner: S, prefix: impl Into<String>) -> Self {
        Prefix { inner, prefix: prefix.into() }
    }

    fn inner_id(&self, id: &BlobId) -> Result<BlobId> {
        BlobId::new(format!("{}{id}", self.prefix))
    }

    /// The name seen from outside, or `None` for the blob whose name is the prefix itself.
    fn outer(&self, blob: BlobMetadata) -> Option<BlobMetadata> {
        let id = BlobId::new(blob.id.as_str().strip_prefix(&self.prefix)?).ok()?;
        Some(BlobMetadata { id, ..blob })
    }
}

#[async_trait]
impl<S: BlobStore> BlobStore for Prefix<S> {
    fn describe(&self) -> String {
        format!("{} below {:?}", self.inner.describe(), self.prefix)
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        self.inner.put(&self.inner_id(id)?, payload, options).await
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        self.inner.get(&self.inner_id(id)?).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(&self.inner_id(id)?, range).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        let found = self.inner.head(&self.inner_id(id)?).await?;
        Ok(BlobMetadata { id: id.clone(), ..found })
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let blobs = self.inner.list(&format!("{}{prefix}", self.prefix));
        blobs.filter_map(|blob| ready(blob.map(|blob| self.outer(blob)).transpose())).boxed()
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.inner.delete(&self.inner_id(id)?).await
    }
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        self.inner.extend_retention(&self.inner_id(id)?, retention).await
    }
}
