//! Bounds how many calls are in flight.

use super::listing::{in_steps, next_step};
use crate::{BlobId, BlobMetadata, BlobStore, BlobStream, Payload, PutOptions, Result, Retention};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use tokio::sync::{Semaphore, SemaphorePermit};

/// A store with at most so many calls in flight, changes and reads counted apart.
///
/// A listing counts as a read only while it waits for blobs, never while its consumer works on them.
#[derive(Debug)]
pub struct Limit<S> {
    inner: S,
    changes: Semaphore,
    reads: Semaphore,
}

impl<S: BlobStore> Limit<S> {
    /// Lets at most `changes` puts, deletes and locks, and `reads` other calls be in flight (each at least one).
    pub fn new(inner: S, changes: usize, reads: usize) -> Self {
        let semaphore = |permits: usize| Semaphore::new(permits.clamp(1, Semaphore::MAX_PERMITS));
        Limit { inner, changes: semaphore(changes), reads: semaphore(reads) }
    }
}

/// Waits for a turn. The semaphores are never closed, so there always is one.
async fn turn(semaphore: &Semaphore) -> Option<SemaphorePermit<'_>> {
    semaphore.acquire().await.ok()
}

#[async_trait]
impl<S: BlobStore> BlobStore for Limit<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        let _turn = turn(&self.changes).await;
        self.inner.put(id, payload, options).await
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        let _turn = turn(&self.reads).await;
        self.inner.get(id).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        let _turn = turn(&self.reads).await;
        self.inner.get_range(id, range).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        let _turn = turn(&self.reads).await;
        self.inner.head(id).await
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        in_steps(self.inner.list(prefix), |mut listing| async {
            let _turn = turn(&self.reads).await;
            (next_step(&mut listing).await, listing)
        })
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        let _turn = turn(&self.changes).await;
        self.inner.delete(id).await
    }
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        let _turn = turn(&self.changes).await;
        self.inner.extend_retention(id, retention).await
    }
}
