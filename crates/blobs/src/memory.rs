//! A store in memory: for tests, and the plainest statement of what a store does.

use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Error, ErrorKind, Operation, Payload, PutMode, PutOptions,
    Result, Retention, RetentionMode, arrival,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::Arc;

/// How many blobs a listing takes from the map at a time; small, so that tests cross page boundaries often.
const PAGE: usize = 100;

type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Blobs in a map. Clones share it, so a "restarted" client finds what was there.
#[derive(Clone)]
pub struct MemoryStore {
    blobs: Arc<Mutex<BTreeMap<BlobId, Entry>>>,
    clock: Clock,
}

#[derive(Clone)]
struct Entry {
    bytes: Bytes,
    modified: Timestamp,
    lock: Option<(RetentionMode, Timestamp)>,
}

impl Entry {
    fn metadata(&self, id: &BlobId) -> BlobMetadata {
        BlobMetadata { id: id.clone(), size: self.bytes.len() as u64, modified: self.modified }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::with_clock(Timestamp::now)
    }
}

impl MemoryStore {
    /// An empty store whose server clock is this machine's.
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// An empty store whose server clock is `clock`: it stamps blobs and decides when locks end.
    pub fn with_clock(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        MemoryStore { blobs: Arc::default(), clock: Arc::new(clock) }
    }

    /// Number of blobs and of their bytes.
    pub fn totals(&self) -> (usize, u64) {
        let blobs = self.blobs.lock();
        (blobs.len(), blobs.values().map(|entry| entry.bytes.len() as u64).sum())
    }

    fn fail<T>(&self, kind: ErrorKind, operation: Operation, id: &BlobId, detail: &str) -> Result<T> {
        Err(Error::new(kind, operation, id, self.describe(), detail))
    }

    fn lock_until(&self, retention: &Retention) -> Timestamp {
        (self.clock)().saturating_add(retention.period).unwrap_or(Timestamp::MAX)
    }

    fn is_locked(&self, entry: &Entry) -> bool {
        entry.lock.is_some_and(|(_, until)| until > (self.clock)())
    }

    fn find(&self, operation: Operation, id: &BlobId) -> Result<Entry> {
        let found = self.blobs.lock().get(id).cloned();
        found.ok_or_else(|| Error::not_found(operation, id, self.describe()))
    }

    fn page(&self, prefix: &str, after: Option<&BlobId>) -> Vec<BlobMetadata> {
        let blobs = self.blobs.lock();
        let start = match after {
            Some(id) => Bound::Excluded(id.as_str()),
            None => Bound::Included(prefix),
        };
        let in_order = blobs.range::<str, _>((start, Bound::Unbounded));
        in_order
            .take_while(|(id, _)| id.as_str().starts_with(prefix))
            .take(PAGE)
            .map(|(id, entry)| entry.metadata(id))
            .collect()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (blobs, bytes) = self.totals();
        f.debug_struct("MemoryStore").field("blobs", &blobs).field("bytes", &bytes).finish()
    }
}

#[async_trait]
impl BlobStore for MemoryStore {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        let lock = options.retention.map(|retention| (retention.mode, self.lock_until(&retention)));
        let modified = options.modified.unwrap_or_else(|| (self.clock)());
        let entry = Entry { bytes: payload.into_bytes(), modified, lock };
        let mut blobs = self.blobs.lock();
        if let Some(present) = blobs.get(id) {
            if options.mode == PutMode::CreateOnly {
                drop(blobs);
                return self.fail(ErrorKind::AlreadyExists, Operation::Put, id, "the name is taken");
            }
            if self.is_locked(present) {
                drop(blobs);
                return self.fail(ErrorKind::Locked, Operation::Put, id, "it is under retention");
            }
        }
        blobs.insert(id.clone(), entry);
        Ok(())
    }

    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        Ok(self.find(Operation::Get, id)?.bytes)
    }

    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        // The blob itself is shared, and takes no more memory.
        drop(arrival::admitted().await);
        let bytes = self.find(Operation::Get, id)?.bytes;
        crate::store::check_range(&range, bytes.len() as u64, id, || self.describe())?;
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }

    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        Ok(self.find(Operation::Head, id)?.metadata(id))
    }

    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let prefix = prefix.to_owned();
        let pages = stream::unfold(None, move |after: Option<BlobId>| {
            let page = self.page(&prefix, after.as_ref());
            let last = page.last().map(|blob| blob.id.clone());
            async move { last.map(|last| (stream::iter(page.into_iter().map(Ok)), Some(last))) }
        });
        pages.flatten().boxed()
    }

    async fn delete(&self, id: &BlobId) -> Result<()> {
        let mut blobs = self.blobs.lock();
        if blobs.get(id).is_some_and(|entry| self.is_locked(entry)) {
            drop(blobs);
            return self.fail(ErrorKind::Locked, Operation::Delete, id, "it is under retention");
        }
        blobs.remove(id);
        Ok(())
    }

    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        let until = self.lock_until(retention);
        match self.blobs.lock().get_mut(id) {
            None => Err(Error::not_found(Operation::Retain, id, self.describe())),
            Some(entry) => {
                let present = entry.lock.map_or(Timestamp::MIN, |(_, until)| until);
                entry.lock = Some((retention.mode, until.max(present)));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    #[tokio::test]
    async fn the_injected_clock_stamps_blobs_and_ends_locks() {
        let now = Arc::new(AtomicI64::new(1_700_000_000));
        let clock = now.clone();
        let store =
            MemoryStore::with_clock(move || Timestamp::from_second(clock.load(Ordering::SeqCst)).unwrap());
        let id = BlobId::new("a").unwrap();
        let retention = Retention { mode: RetentionMode::Governance, period: Duration::from_secs(60) };
        let options = PutOptions { retention: Some(retention), ..PutOptions::default() };
        store.put(&id, Payload::from(vec![1]), &options).await.unwrap();
        assert_eq!(store.head(&id).await.unwrap().modified.as_second(), 1_700_000_000);
        assert_eq!(store.delete(&id).await.unwrap_err().kind(), ErrorKind::Locked);
        now.fetch_add(59, Ordering::SeqCst);
        store
            .extend_retention(&id, &Retention { period: Duration::from_secs(10), ..retention })
            .await
            .unwrap();
        now.fetch_add(2, Ordering::SeqCst);
        assert_eq!(store.delete(&id).await.unwrap_err().kind(), ErrorKind::Locked);
        now.fetch_add(9, Ordering::SeqCst);
        store.delete(&id).await.unwrap();
    }
}
