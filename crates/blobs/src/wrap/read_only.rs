//! Refuses everything that changes the store.

use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Error, ErrorKind, Operation, Payload, PutOptions, Result,
    Retention,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;

/// A store that can only be read: every change fails with [`ErrorKind::ReadOnly`] before it reaches the store.
#[derive(Debug, Clone)]
pub struct ReadOnly<S> {
    inner: S,
}

impl<S: BlobStore> ReadOnly<S> {
    /// Makes `inner` read only.
    pub fn new(inner: S) -> Self {
        ReadOnly { inner }
    }

    fn refuse(&self, operation: Operation, id: &BlobId) -> Result<()> {
        let detail = "it was opened read only";
        Err(Error::new(ErrorKind::ReadOnly, operation, id, self.describe(), detail))
    }
}

#[async_trait]
impl<S: BlobStore> BlobStore for ReadOnly<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    async fn put(&self, id: &BlobId, _: Payload, _: &PutOptions) -> Result<()> {
        self.refuse(Operation::Put, id)
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        self.inner.get(id).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        self.inner.get_range(id, range).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        self.inner.head(id).await
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        self.inner.list(prefix)
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.refuse(Operation::Delete, id)
    }
    async fn extend_retention(&self, id: &BlobId, _: &Retention) -> Result<()> {
        self.refuse(Operation::Retain, id)
    }
}
