//! Counts calls, errors, bytes and time, per operation.

use super::listing::{in_steps, next_step};
use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, ErrorKind, Operation, Payload, PutOptions, Result, Retention,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tracing::Instrument;

/// The operations that are counted; a listing counts once per step (page) that it waited for.
const COUNTED: [Operation; 6] =
    [Operation::Put, Operation::Get, Operation::Head, Operation::List, Operation::Delete, Operation::Retain];

/// Running totals, shared with whoever reports them.
#[derive(Debug, Default)]
pub struct Metrics {
    per_operation: [Counters; COUNTED.len()],
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    errors: AtomicU64,
    transient_errors: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    slowest_nanos: AtomicU64,
}

/// Totals of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationMetrics {
    /// Calls that ended.
    pub calls: u64,
    /// Calls that failed; a missing blob counts, too.
    pub errors: u64,
    /// Calls that failed with [`ErrorKind::Transient`].
    pub transient_errors: u64,
    /// Bytes of blobs written or read by calls that succeeded; for listings the number of blobs delivered.
    pub bytes: u64,
    /// Time that calls took, summed up.
    pub total_time: Duration,
    /// The longest call.
    pub slowest: Duration,
}

/// All totals at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Snapshot {
    pub put: OperationMetrics,
    pub get: OperationMetrics,
    pub head: OperationMetrics,
    pub list: OperationMetrics,
    pub delete: OperationMetrics,
    pub retain: OperationMetrics,
}

impl Metrics {
    /// The totals now.
    pub fn snapshot(&self) -> Snapshot {
        let [put, get, head, list, delete, retain] = self.per_operation.each_ref().map(Counters::read);
        Snapshot { put, get, head, list, delete, retain }
    }

    fn record(&self, operation: Operation, started: Instant, outcome: std::result::Result<u64, ErrorKind>) {
        let Some(at) = COUNTED.iter().position(|&counted| counted == operation) else { return };
        let counters = &self.per_operation[at];
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counters.calls.fetch_add(1, Relaxed);
        counters.nanos.fetch_add(nanos, Relaxed);
        counters.slowest_nanos.fetch_max(nanos, Relaxed);
        match outcome {
            Ok(bytes) => {
                counters.bytes.fetch_add(bytes, Relaxed);
            }
            Err(kind) => {
                counters.errors.fetch_add(1, Relaxed);
                counters.transient_errors.fetch_add(u64::from(kind.is_transient()), Relaxed);
            }
        }
    }
}

impl Counters {
    fn read(&self) -> OperationMetrics {
        OperationMetrics {
            calls: self.calls.load(Relaxed),
            errors: self.errors.load(Relaxed),
            transient_errors: self.transient_errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            total_time: Duration::from_nanos(self.nanos.load(Relaxed)),
            slowest: Duration::from_nanos(self.slowest_nanos.load(Relaxed)),
        }
    }
}

/// A store whose calls are counted and traced (spans `blob`, target of this module, level debug).
#[derive(Debug)]
pub struct Metered<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S: BlobStore> Metered<S> {
    /// Counts the calls to `inner` in `metrics`, which may be shared by several stores.
    pub fn new(inner: S, metrics: Arc<Metrics>) -> Self {
        Metered { inner, metrics }
    }

    async fn count<T>(
        &self,
        operation: Operation,
        id: &BlobId,
        bytes: impl FnOnce(&T) -> u64,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let started = Instant::now();
        let span = tracing::debug_span!("blob", ?operation, blob = %id);
        let result = call.instrument(span).await;
        self.metrics.record(operation, started, result.as_ref().map(bytes).map_err(crate::Error::kind));
        result
    }
}

#[async_trait]
impl<S: BlobStore> BlobStore for Metered<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        let bytes = payload.len();
        self.count(Operation::Put, id, |()| bytes, self.inner.put(id, payload, options)).await
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        self.count(Operation::Get, id, |bytes| bytes.len() as u64, self.inner.get(id)).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        self.count(Operation::Get, id, |bytes| bytes.len() as u64, self.inner.get_range(id, range)).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        self.count(Operation::Head, id, |_| 0, self.inner.head(id)).await
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let span = tracing::debug_span!("blob", operation = ?Operation::List, prefix);
        in_steps(self.inner.list(prefix), move |mut listing| {
            let span = span.clone();
            async move {
                let started = Instant::now();
                let step = next_step(&mut listing).instrument(span).await;
                let failed = step.iter().find_map(|blob| blob.as_ref().err()).map(crate::Error::kind);
                let outcome = failed.map_or(Ok(step.len() as u64), Err);
                self.metrics.record(Operation::List, started, outcome);
                (step, listing)
            }
        })
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.count(Operation::Delete, id, |()| 0, self.inner.delete(id)).await
    }
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        self.count(Operation::Retain, id, |()| 0, self.inner.extend_retention(id, retention)).await
    }
}
