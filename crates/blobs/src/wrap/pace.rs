//! Limits of bandwidth and of calls per second, kept within every fraction of a second, not just on average.
//!
//! Delaying whole calls would let each blob burst at line speed. So [`Pace`] puts a [`Scope`] around the call, and
//! the stores that move bytes ask it before each small quantum. Bytes that a store moved without asking are
//! charged when its call ends.

use crate::{BlobId, BlobMetadata, BlobStore, BlobStream, Payload, PutOptions, Result, Retention};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How much traffic may go out at once: this share of a second's worth.
const QUANTUMS_PER_SECOND: f64 = 50.0;
const SMALLEST_QUANTUM: usize = 4 << 10;
const LARGEST_QUANTUM: usize = 256 << 10;

/// What may pass per second; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Bytes to the store.
    pub up: Option<f64>,
    /// Bytes from the store.
    pub down: Option<f64>,
    /// Calls that change the store.
    pub changes: Option<f64>,
    /// Gets and heads.
    pub reads: Option<f64>,
    /// Listings.
    pub lists: Option<f64>,
}

/// The shared clock of a bandwidth limit. One pacer may serve several stores, which then share the bandwidth.
#[derive(Debug)]
pub struct Pacer {
    up: Lane,
    down: Lane,
    changes: Lane,
    reads: Lane,
    lists: Lane,
}

impl Pacer {
    /// A pacer that starts with these rates.
    pub fn new(rates: Rates) -> Self {
        Pacer {
            up: Lane::new(rates.up),
            down: Lane::new(rates.down),
            changes: Lane::new(rates.changes),
            reads: Lane::new(rates.reads),
            lists: Lane::new(rates.lists),
        }
    }

    /// Changes the rates; traffic in flight follows at its next quantum.
    pub fn set(&self, rates: Rates) {
        let lanes = [
            (&self.up, rates.up),
            (&self.down, rates.down),
            (&self.changes, rates.changes),
            (&self.reads, rates.reads),
            (&self.lists, rates.lists),
        ];
        for (lane, rate) in lanes {
            lane.state.lock().rate = usable(rate);
        }
    }
}

/// A rate that is not a positive number is no limit: pacing must never stop a backup for good.
fn usable(rate: Option<f64>) -> Option<f64> {
    rate.filter(|rate| rate.is_finite() && *rate > 0.0)
}

#[derive(Debug)]
struct Lane {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rate: Option<f64>,
    /// When everything granted so far will have passed at the set rate.
    free_at: Option<Instant>,
}

impl Lane {
    fn new(rate: Option<f64>) -> Self {
        Lane { state: Mutex::new(State { rate: usable(rate), free_at: None }) }
    }

    fn quantum(&self) -> usize {
        match self.state.lock().rate {
            Some(rate) => ((rate / QUANTUMS_PER_SECOND) as usize).clamp(SMALLEST_QUANTUM, LARGEST_QUANTUM),
            None => LARGEST_QUANTUM,
        }
    }

    /// Waits for the turn of one call.
    async fn turn(&self) {
        tokio::time::sleep(self.grant(1, Instant::now())).await;
    }

    /// Grants `amount` and says how long to wait before moving them. Grants queue up in call order.
    fn grant(&self, amount: u64, now: Instant) -> Duration {
        let mut state = self.state.lock();
        let Some(rate) = state.rate else { return Duration::ZERO };
        let start = state.free_at.map_or(now, |free_at| free_at.max(now));
        let takes = Duration::try_from_secs_f64(amount as f64 / rate).unwrap_or(Duration::MAX);
        // A far future that the clock cannot express only arises from absurd rates.
        state.free_at = Some(start.checked_add(takes).unwrap_or(start));
        start - now
    }
}

tokio::task_local! {
    static CURRENT: Scope;
}

/// The pace that the current call has to keep.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pacer: Arc<Pacer>,
    up: Arc<AtomicU64>,
    down: Arc<AtomicU64>,
}

impl Scope {
    /// The scope of the call that is running, if it is paced.
    pub(crate) fn current() -> Option<Scope> {
        CURRENT.try_with(Scope::clone).ok()
    }

    /// Most bytes to send at once.
    pub(crate) fn up_quantum(&self) -> usize {
        self.pacer.up.quantum()
    }

    /// Most bytes to take at once.
    pub(crate) fn down_quantum(&self) -> usize {
        self.pacer.down.quantum()
    }

    /// Waits until `bytes` may be sent.
    pub(crate) async fn upload(&self, bytes: usize) {
        tokio::time::sleep(self.grant_up(bytes)).await;
    }

    /// Waits until `bytes` may be taken.
    pub(crate) async fn download(&self, bytes: usize) {
        tokio::time::sleep(self.grant_down(bytes)).await;
    }

    /// [`upload`](Self::upload) for a thread that may block.
    pub(crate) fn upload_blocking(&self, bytes: usize) {
        std::thread::sleep(self.grant_up(bytes));
    }

    /// [`download`](Self::download) for a thread that may block.
    pub(crate) fn download_blocking(&self, bytes: usize) {
        std::thread::sleep(self.grant_down(bytes));
    }

    fn grant_up(&self, bytes: usize) -> Duration {
        self.up.fetch_add(bytes as u64, Relaxed);
        self.pacer.up.grant(bytes as u64, Instant::now())
    }

    fn grant_down(&self, bytes: usize) -> Duration {
        self.down.fetch_add(bytes as u64, Relaxed);
        self.pacer.down.grant(bytes as u64, Instant::now())
    }
}

/// A store whose traffic keeps to the rates of a [`Pacer`]. Bytes are those of blobs; names and metadata are free.
#[derive(Debug)]
pub struct Pace<S> {
    inner: S,
    pacer: Arc<Pacer>,
}

impl<S: BlobStore> Pace<S> {
    /// Paces `inner` by `pacer`.
    pub fn new(inner: S, pacer: Arc<Pacer>) -> Self {
        Pace { inner, pacer }
    }

    fn scope(&self) -> Scope {
        Scope { pacer: self.pacer.clone(), up: Arc::default(), down: Arc::default() }
    }

    async fn read(&self, call: impl Future<Output = Result<Bytes>>) -> Result<Bytes> {
        self.pacer.reads.turn().await;
        let scope = self.scope();
        let bytes = CURRENT.scope(scope.clone(), call).await?;
        let uncharged = (bytes.len() as u64).saturating_sub(scope.down.load(Relaxed));
        tokio::time::sleep(self.pacer.down.grant(uncharged, Instant::now())).await;
        Ok(bytes)
    }
}

#[async_trait]
impl<S: BlobStore> BlobStore for Pace<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        self.pacer.changes.turn().await;
        let (scope, bytes) = (self.scope(), payload.len());
        CURRENT.scope(scope.clone(), self.inner.put(id, payload, options)).await?;
        let uncharged = bytes.saturating_sub(scope.up.load(Relaxed));
        tokio::time::sleep(self.pacer.up.grant(uncharged, Instant::now())).await;
        Ok(())
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        self.read(self.inner.get(id)).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        self.read(self.inner.get_range(id, range)).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        self.pacer.reads.turn().await;
        self.inner.head(id).await
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let turn = stream::once(self.pacer.lists.turn()).filter_map(|()| std::future::ready(None));
        turn.chain(self.inner.list(prefix)).boxed()
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.pacer.changes.turn().await;
        self.inner.delete(id).await
    }
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        self.pacer.changes.turn().await;
        self.inner.extend_retention(id, retention).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_queue_up_at_the_set_rate_and_idle_time_is_not_saved_up() {
        let lane = Lane::new(Some(1000.0));
        let start = Instant::now();
        assert_eq!(lane.grant(100, start), Duration::ZERO);
        assert_eq!(lane.grant(100, start), Duration::from_millis(100));
        assert_eq!(lane.grant(500, start), Duration::from_millis(200));
        // A second of silence later nothing but the present counts.
        let later = start + Duration::from_secs(10);
        assert_eq!(lane.grant(100, later), Duration::ZERO);
        assert_eq!(lane.grant(100, later), Duration::from_millis(100));
    }

    #[test]
    fn senseless_rates_do_not_stop_traffic() {
        for rate in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            let lane = Lane::new(rate);
            let now = Instant::now();
            assert_eq!(lane.grant(u64::MAX, now), Duration::ZERO);
            assert_eq!(lane.grant(1, now), Duration::ZERO);
        }
    }

    #[test]
    fn the_quantum_follows_the_rate_within_bounds() {
        assert_eq!(Lane::new(Some(1.0)).quantum(), SMALLEST_QUANTUM);
        assert_eq!(Lane::new(Some(5_000_000.0)).quantum(), 100_000);
        assert_eq!(Lane::new(None).quantum(), LARGEST_QUANTUM);
    }
}
