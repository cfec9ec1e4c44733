//! Makes a call again when its failure was a passing one.

use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Error, ErrorKind, Payload, PutMode, PutOptions, Result,
    Retention,
};
use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Whoever waits so long for the next try of a call has somebody wonder.
const LONG_DELAY: Duration = Duration::from_secs(5);

/// When to try again and when to give up.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// Tries of one call, the first included.
    pub attempts: usize,
    /// Wait before the second try; jitter adds up to as much again.
    pub first_delay: Duration,
    /// How the wait grows from try to try.
    pub factor: f32,
    /// The longest wait.
    pub longest_delay: Duration,
    /// Time after which a call is not tried again.
    pub deadline: Duration,
    /// Retries that all calls of the store together may spend in advance; each success earns one back. It keeps
    /// many callers from hammering a store that is down.
    pub budget: u32,
}

impl Default for RetryPolicy {
    /// Kopia's back-off with a deadline and a budget.
    fn default() -> Self {
        RetryPolicy {
            attempts: 10,
            first_delay: Duration::from_millis(100),
            factor: 1.5,
            longest_delay: Duration::from_secs(32),
            deadline: Duration::from_secs(15 * 60),
            budget: 500,
        }
    }
}

/// A store whose calls are repeated on [`ErrorKind::Transient`] failures.
///
/// Every call of a store is idempotent but one: a create-only put that failed may have landed. If a later try then
/// finds the name taken, the blob is compared with the payload: if it is ours, the put has succeeded.
#[derive(Debug)]
pub struct Retry<S> {
    inner: S,
    policy: RetryPolicy,
    budget: AtomicU32,
}

/// The tries of one call.
struct Tries<'a> {
    delays: ExponentialBackoff,
    give_up_at: Instant,
    /// Whether the first try is still to come or under way.
    fresh: bool,
    policy: &'a RetryPolicy,
    budget: &'a AtomicU32,
}

impl Tries<'_> {
    /// Waits before the next try and hands `error` back as `Ok`, or as `Err` if there is to be none.
    async fn after(&mut self, error: Error) -> Result<Error> {
        if !error.kind().is_transient() {
            return Err(error);
        }
        let Some(delay) = self.delays.next() else { return Err(error) };
        if Instant::now() + delay >= self.give_up_at {
            return Err(error.after_all_its_time());
        }
        if self.budget.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
            return Err(error);
        }
        if delay < LONG_DELAY {
            tracing::debug!(%error, ?delay, "a storage call failed and will be repeated");
        } else {
            tracing::warn!(%error, ?delay, "a storage call fails again and again and will be repeated");
        }
        tokio::time::sleep(delay).await;
        self.fresh = false;
        Ok(error)
    }

    fn succeeded(&self) {
        let _ =
            self.budget.fetch_update(Relaxed, Relaxed, |left| (left < self.policy.budget).then(|| left + 1));
    }
}

impl<S: BlobStore> Retry<S> {
    /// Repeats failed calls of `inner` by `policy`.
    pub fn new(inner: S, policy: RetryPolicy) -> Self {
        Retry { inner, budget: AtomicU32::new(policy.budget), policy }
    }

    fn tries(&self) -> Tries<'_> {
        let delays = ExponentialBuilder::default()
            .with_jitter()
            .with_factor(self.policy.factor)
            .with_min_delay(self.policy.first_delay)
            .with_max_delay(self.policy.longest_delay)
            .with_max_times(self.policy.attempts.saturating_sub(1))
            .build();
        let give_up_at = Instant::now() + self.policy.deadline;
        Tries { delays, give_up_at, fresh: true, policy: &self.policy, budget: &self.budget }
    }

    async fn repeat<'a, T>(&'a self, call: impl Fn() -> BoxCall<'a, T>) -> Result<T> {
        let mut tries = self.tries();
        loop {
            match call().await {
                Ok(value) => {
                    tries.succeeded();
                    return Ok(value);
                }
                Err(error) => drop(tries.after(error).await?),
            }
        }
    }

    async fn create(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        let mut tries = self.tries();
        let mut may_have_landed = false;
        loop {
            match self.inner.put(id, payload.clone(), options).await {
                Ok(()) => {
                    tries.succeeded();
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists && may_have_landed => {
                    return if self.holds(id, &payload).await? { Ok(()) } else { Err(error) };
                }
                Err(error) => {
                    may_have_landed = true;
                    tries.after(error).await?;
                }
            }
        }
    }

    async fn holds(&self, id: &BlobId, payload: &Payload) -> Result<bool> {
        if self.head(id).await?.size != payload.len() {
            return Ok(false);
        }
        let found = self.get(id).await?;
        let mut rest = &found[..];
        for piece in payload.pieces() {
            match rest.strip_prefix(&piece[..]) {
                Some(tail) => rest = tail,
                None => return Ok(false),
            }
        }
        Ok(rest.is_empty())
    }
}

struct Listing<'a> {
    prefix: String,
    blobs: BlobStream<'a>,
    delivered: bool,
}

type BoxCall<'a, T> = futures::future::BoxFuture<'a, Result<T>>;

#[async_trait]
impl<S: BlobStore> BlobStore for Retry<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        match options.mode {
            PutMode::Overwrite => self.repeat(|| self.inner.put(id, payload.clone(), options)).await,
            PutMode::CreateOnly => self.create(id, payload, options).await,
        }
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        self.repeat(|| self.inner.get(id)).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        self.repeat(|| self.inner.get_range(id, range.clone())).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        self.repeat(|| self.inner.head(id)).await
    }

    /// A listing that broke is polled again, or started again if it had delivered nothing; the tries count anew
    /// after every blob that arrived.
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let first = Listing { prefix: prefix.to_owned(), blobs: self.inner.list(prefix), delivered: false };
        let blobs = stream::unfold(Some((first, self.tries())), move |state| async move {
            let (mut listing, mut tries) = state?;
            let mut broke: Option<Error> = None;
            loop {
                match (listing.blobs.next().await, broke.take()) {
                    (Some(Ok(blob)), _) => {
                        listing.delivered = true;
                        let tries = if tries.fresh { tries } else { self.tries() };
                        return Some((Ok(blob), Some((listing, tries))));
                    }
                    (Some(Err(error)), _) => match tries.after(error).await {
                        Ok(error) => broke = Some(error),
                        Err(error) => return Some((Err(error), None)),
                    },
                    (None, Some(_)) if !listing.delivered => {
                        listing.blobs = self.inner.list(&listing.prefix);
                    }
                    // It cannot go on, and starting again would deliver blobs twice.
                    (None, Some(error)) => return Some((Err(error), None)),
                    (None, None) => return None,
                }
            }
        });
        blobs.boxed()
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.repeat(|| self.inner.delete(id)).await
    }
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        self.repeat(|| self.inner.extend_retention(id, retention)).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::wrap::fault::{Action, Fault, Rule};
    use crate::{MemoryStore, Operation};
    use futures::TryStreamExt;

    fn patient() -> RetryPolicy {
        RetryPolicy { first_delay: Duration::from_millis(1), ..RetryPolicy::default() }
    }

    fn id(name: &str) -> BlobId {
        BlobId::new(name).unwrap()
    }

    fn create_only() -> PutOptions {
        PutOptions { mode: PutMode::CreateOnly, ..PutOptions::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn passing_failures_are_repeated_up_to_the_set_number_of_tries() {
        let fault = Fault::new(MemoryStore::new());
        let control = fault.control();
        let store = Retry::new(fault, RetryPolicy::default());
        let put = || Rule::on(Operation::Put).action(Action::FailBefore(ErrorKind::Transient));
        control.plan(put().times(9));
        store.put(&id("a"), Payload::default(), &PutOptions::default()).await.unwrap();
        assert_eq!(control.calls(), 10);
        control.plan(put().times(10));
        let error = store.put(&id("a"), Payload::default(), &PutOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert_eq!(control.calls(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn lasting_failures_are_not_repeated() {
        let fault = Fault::new(MemoryStore::new());
        let control = fault.control();
        let store = Retry::new(fault, patient());
        assert_eq!(store.get(&id("none")).await.unwrap_err().kind(), ErrorKind::NotFound);
        control.plan(Rule::on(Operation::Get).action(Action::FailBefore(ErrorKind::PermissionDenied)));
        assert_eq!(store.get(&id("none")).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(control.calls(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_create_that_landed_although_it_failed_is_recognised_as_ours() {
        let fault = Fault::new(MemoryStore::new());
        let control = fault.control();
        let store = Retry::new(fault, patient());
        let lost_answer = || Rule::on(Operation::Put).action(Action::FailAfter(ErrorKind::Transient));
        control.plan(lost_answer());
        let mut ours = Payload::from(b"ou".as_slice());
        ours.push(Bytes::from_static(b"rs"));
        store.put(&id("a"), ours, &create_only()).await.unwrap();

        // The same answer when somebody else has the name is not a success.
        let theirs = Payload::from(b"them".as_slice());
        control.plan(Rule::on(Operation::Put).action(Action::FailBefore(ErrorKind::Transient)));
        let error = store.put(&id("a"), theirs, &create_only()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(&store.get(&id("a")).await.unwrap()[..], b"ours");
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_and_the_shared_budget_end_the_tries() {
        let fault = Fault::new(MemoryStore::new());
        let control = fault.control();
        control.plan(Rule::any().action(Action::FailBefore(ErrorKind::Transient)).times(u64::MAX));
        let hurried = RetryPolicy { deadline: Duration::from_millis(50), ..RetryPolicy::default() };
        let store = Retry::new(fault.clone(), hurried);
        assert!(store.head(&id("a")).await.unwrap_err().is_out_of_time());
        assert_eq!(control.calls(), 1);
        let store = Retry::new(fault, RetryPolicy { budget: 4, ..patient() });
        assert!(!store.head(&id("a")).await.unwrap_err().is_out_of_time());
        assert!(store.head(&id("a")).await.is_err());
        assert_eq!(control.calls(), 1 + 5 + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_without_a_bound_lets_time_alone_end_the_tries() {
        let fault = Fault::new(MemoryStore::new());
        let control = fault.control();
        let unbound = RetryPolicy { attempts: usize::MAX, budget: u32::MAX, ..patient() };
        let store = Retry::new(fault, unbound);
        control.plan(Rule::on(Operation::Put).action(Action::FailBefore(ErrorKind::Transient)).times(30));
        for name in ["a", "b"] {
            store.put(&id(name), Payload::default(), &PutOptions::default()).await.unwrap();
        }
        assert_eq!(control.calls(), 32);
        control
            .plan(Rule::on(Operation::Head).action(Action::FailBefore(ErrorKind::Transient)).times(u64::MAX));
        assert!(store.head(&id("a")).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_that_breaks_goes_on_without_loss_or_repetition() {
        let memory = MemoryStore::new();
        for n in 0..2500 {
            let options = PutOptions::default();
            memory.put(&id(&format!("b{n:05}")), Payload::default(), &options).await.unwrap();
        }
        let fault = Fault::new(memory);
        let control = fault.control();
        let store = Retry::new(fault, patient());
        control.plan(Rule::on(Operation::List).action(Action::BreakListing { every: 7 }));
        let listed: Vec<_> = store.list("b").try_collect().await.unwrap();
        assert_eq!(listed.len(), 2500);
        assert!(listed.windows(2).all(|pair| pair[0].id < pair[1].id));
    }
}
