//! Failures on demand: what a network, a store or a power cut can do, at the call where a test wants it.

use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Error, ErrorKind, Operation, Payload, PutOptions, Result,
    Retention,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// It fails and has no effect. Puts are atomic, so this is also a put that was torn half way.
    FailBefore(ErrorKind),
    /// It takes effect, but its answer is lost and it fails.
    FailAfter(ErrorKind),
    /// It is delayed.
    Delay(Duration),
    /// It is carried out twice, and the second answer counts (a proxy that repeated the request).
    Duplicate,
    /// A get, head or listing answers as if the last change of each blob had not happened yet. Changes are
    /// remembered from the moment that a rule with this action was first planned.
    Stale,
    /// A listing fails with [`ErrorKind::Transient`] before its first blob and whenever it has delivered so many
    /// more, and goes on if polled again.
    BreakListing {
        /// Blobs delivered between failures.
        every: usize,
    },
    /// A listing ends after so many blobs, and looks complete.
    CutListing {
        /// Blobs delivered before the end.
        after: usize,
    },
    /// The process dies before the call: it and every later call fail, until [`Control::restart`].
    CrashBefore,
    /// The process dies after the call took effect, but before it saw the answer.
    CrashAfter,
}

/// Which calls an [`Action`] happens to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    operation: Option<Operation>,
    prefix: String,
    skip: u64,
    times: u64,
    action: Action,
}

impl Rule {
    /// The next call of any operation; without an action it does nothing but count.
    pub fn any() -> Self {
        let action = Action::Delay(Duration::ZERO);
        Rule { operation: None, prefix: String::new(), skip: 0, times: 1, action }
    }

    /// The next call of `operation`.
    pub fn on(operation: Operation) -> Self {
        Rule { operation: Some(operation), ..Rule::any() }
    }

    /// Only calls on blobs (or listings) whose name starts with `prefix`.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Rule { prefix: prefix.into(), ..self }
    }

    /// Lets `skip` matching calls pass first.
    #[must_use]
    pub fn skip(self, skip: u64) -> Self {
        Rule { skip, ..self }
    }

    /// Happens to so many matching calls, not just one.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Rule { times, ..self }
    }

    /// What happens.
    #[must_use]
    pub fn action(self, action: Action) -> Self {
        Rule { action, ..self }
    }

    /// Whether it is this call's turn; counts it either way.
    fn applies(&mut self, operation: Operation, blob: &str) -> bool {
        let matches =
            self.operation.is_none_or(|wanted| wanted == operation) && blob.starts_with(&self.prefix);
        if !matches || self.times == 0 {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times = self.times.saturating_sub(u64::from(self.times != u64::MAX));
        true
    }
}

/// One call as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// The operation.
    pub operation: Operation,
    /// Blob name or listing prefix.
    pub blob: String,
    /// What was done to it, if anything.
    pub fault: Option<Action>,
}

/// What a blob was before a change; `None` if it did not exist.
type Before = Option<(BlobMetadata, Bytes)>;

/// Plans faults of a [`Fault`] store and tells what was called.
#[derive(Debug, Clone, Default)]
pub struct Control {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    log: Vec<Logged>,
    crashed: bool,
    /// What each blob was before its last change; `None` if changes are not being remembered.
    before: Option<BTreeMap<BlobId, Before>>,
}

impl Control {
    /// Adds a rule. The first rule that applies to a call decides; the others count it as well.
    pub fn plan(&self, rule: Rule) {
        let mut state = self.state.lock();
        if rule.action == Action::Stale {
            state.before.get_or_insert_default();
        }
        state.rules.push(rule);
    }

    /// Forgets all rules.
    pub fn clear(&self) {
        self.state.lock().rules.clear();
    }

    /// Lets the process die now.
    pub fn crash(&self) {
        self.state.lock().crashed = true;
    }

    /// Whether the process has died.
    pub fn has_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Ends a crash, as if a new process had opened the same store; rules are forgotten, the log is kept.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        state.crashed = false;
        state.rules.clear();
    }

    /// All calls so far, in the order in which they were made.
    pub fn log(&self) -> Vec<Logged> {
        self.state.lock().log.clone()
    }

    /// Number of calls so far.
    pub fn calls(&self) -> usize {
        self.state.lock().log.len()
    }

    /// Logs a call and finds out what is to happen to it.
    fn begin(&self, operation: Operation, blob: &str) -> std::result::Result<Option<Action>, ErrorKind> {
        let mut state = self.state.lock();
        if state.crashed {
            return Err(ErrorKind::Other);
        }
        let mut fault = None;
        for rule in &mut state.rules {
            if rule.applies(operation, blob) && fault.is_none() {
                fault = Some(rule.action.clone());
            }
        }
        state.rules.retain(|rule| rule.times > 0);
        state.crashed = fault == Some(Action::CrashBefore);
        state.log.push(Logged { operation, blob: blob.to_owned(), fault: fault.clone() });
        Ok(fault)
    }
}

/// A store that fails as planned. Clones share the plan.
#[derive(Debug, Clone)]
pub struct Fault<S> {
    inner: S,
    control: Control,
}

impl<S: BlobStore> Fault<S> {
    /// Wraps `inner`; nothing fails until a rule is planned.
    pub fn new(inner: S) -> Self {
        Fault { inner, control: Control::default() }
    }

    /// The handle that plans faults and reads the log.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    fn error(&self, kind: ErrorKind, operation: Operation, blob: &str) -> Error {
        let detail = if self.control.has_crashed() { "the process has crashed" } else { "injected failure" };
        Error::new(kind, operation, blob, self.describe(), detail)
    }

    /// Carries out `call`, or not, or twice, as planned. `stale` is the old answer, if the call can have one.
    async fn around<'a, T: Send>(
        &'a self,
        operation: Operation,
        id: &BlobId,
        call: impl Fn() -> BoxFuture<'a, Result<T>> + Send + Sync,
        stale: impl Fn(&Before) -> Result<T> + Send + Sync,
    ) -> Result<T> {
        let fail = |kind| self.error(kind, operation, id.as_str());
        let fault = self.control.begin(operation, id.as_str()).map_err(fail)?;
        if matches!(operation, Operation::Put | Operation::Delete) {
            self.remember(id).await?;
        }
        match fault {
            Some(Action::FailBefore(kind)) => Err(fail(kind)),
            Some(Action::CrashBefore) => Err(fail(ErrorKind::Other)),
            Some(Action::FailAfter(kind)) => call().await.and_then(|_| Err(fail(kind))),
            Some(Action::CrashAfter) => {
                let _ = call().await;
                self.control.crash();
                Err(fail(ErrorKind::Other))
            }
            Some(Action::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                call().await
            }
            Some(Action::Duplicate) => {
                let _ = call().await;
                call().await
            }
            Some(Action::Stale) => {
                let before = self.control.state.lock().before.as_ref().and_then(|map| map.get(id).cloned());
                match before {
                    Some(before) => stale(&before),
                    None => call().await,
                }
            }
            Some(Action::BreakListing { .. } | Action::CutListing { .. }) | None => call().await,
        }
    }

    /// Keeps what a blob is before it changes, if anybody will ask.
    async fn remember(&self, id: &BlobId) -> Result<()> {
        if self.control.state.lock().before.is_none() {
            return Ok(());
        }
        let present = match self.inner.head(id).await {
            Ok(metadata) => Some((metadata, self.inner.get(id).await?)),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        if let Some(before) = &mut self.control.state.lock().before {
            before.insert(id.clone(), present);
        }
        Ok(())
    }

    /// The listing as it would have been before the last change of each blob.
    fn stale_list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let before = self.control.state.lock().before.clone().unwrap_or_default();
        let old: Vec<_> = before
            .values()
            .flatten()
            .map(|(metadata, _)| metadata.clone())
            .filter(|blob| blob.id.as_str().starts_with(prefix))
            .map(Ok)
            .collect();
        let unchanged = self.inner.list(prefix).filter(move |blob| {
            std::future::ready(blob.as_ref().map_or(true, |blob| !before.contains_key(&blob.id)))
        });
        unchanged.chain(stream::iter(old)).boxed()
    }

    fn planned_list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let fail = |kind| {
            let error = Err(self.error(kind, Operation::List, prefix));
            stream::once(std::future::ready(error))
        };
        let listing = self.inner.list(prefix);
        match self.control.begin(Operation::List, prefix) {
            Err(kind) => fail(kind).boxed(),
            Ok(Some(Action::FailBefore(kind) | Action::FailAfter(kind))) => fail(kind).chain(listing).boxed(),
            Ok(Some(Action::CrashBefore)) => fail(ErrorKind::Other).boxed(),
            Ok(Some(Action::CrashAfter)) => {
                self.control.crash();
                fail(ErrorKind::Other).boxed()
            }
            Ok(Some(Action::Delay(delay))) => {
                let wait = stream::once(tokio::time::sleep(delay)).filter_map(|()| std::future::ready(None));
                wait.chain(listing).boxed()
            }
            Ok(Some(Action::Stale)) => self.stale_list(prefix),
            Ok(Some(Action::BreakListing { every })) => {
                let prefix = prefix.to_owned();
                let blobs = listing.enumerate().flat_map(move |(at, blob)| {
                    let breaks = at % every.max(1) == 0;
                    let error =
                        breaks.then(|| Err(self.error(ErrorKind::Transient, Operation::List, &prefix)));
                    stream::iter(error.into_iter().chain([blob]))
                });
                blobs.boxed()
            }
            Ok(Some(Action::CutListing { after })) => listing.take(after).boxed(),
            Ok(Some(Action::Duplicate) | None) => listing,
        }
    }
}

#[async_trait]
impl<S: BlobStore> BlobStore for Fault<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        let call = || self.inner.put(id, payload.clone(), options);
        self.around(Operation::Put, id, call, |_| Ok(())).await
    }

    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        let stale = |before: &Before| match before {
            Some((_, bytes)) => Ok(bytes.clone()),
            None => Err(Error::not_found(Operation::Get, id, self.describe())),
        };
        self.around(Operation::Get, id, || self.inner.get(id), stale).await
    }

    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        let stale = |before: &Before| match before {
            Some((_, bytes)) => {
                crate::store::check_range(&range, bytes.len() as u64, id, || self.describe())?;
                Ok(bytes.slice(range.start as usize..range.end as usize))
            }
            None => Err(Error::not_found(Operation::Get, id, self.describe())),
        };
        self.around(Operation::Get, id, || self.inner.get_range(id, range.clone()), stale).await
    }

    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        let stale = |before: &Before| match before {
            Some((metadata, _)) => Ok(metadata.clone()),
            None => Err(Error::not_found(Operation::Head, id, self.describe())),
        };
        self.around(Operation::Head, id, || self.inner.head(id), stale).await
    }

    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let asked = prefix.to_owned();
        let blobs = self.planned_list(prefix).map(move |blob| {
            // A listing does not outlive the process that reads it.
            if self.control.has_crashed() {
                return Err(self.error(ErrorKind::Other, Operation::List, &asked));
            }
            blob
        });
        blobs.boxed()
    }

    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.around(Operation::Delete, id, || self.inner.delete(id), |_| Ok(())).await
    }

    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        let call = || self.inner.extend_retention(id, retention);
        self.around(Operation::Retain, id, call, |_| Ok(())).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use futures::TryStreamExt;

    fn id(name: &str) -> BlobId {
        BlobId::new(name).unwrap()
    }

    async fn put(store: &impl BlobStore, name: &str, text: &'static [u8]) -> Result<()> {
        store.put(&id(name), Payload::from(text), &PutOptions::default()).await
    }

    async fn names(store: &impl BlobStore) -> Result<Vec<String>> {
        store.list("").map_ok(|blob| blob.id.to_string()).try_collect().await
    }

    #[tokio::test]
    async fn a_rule_hits_the_nth_matching_call_and_no_other() {
        let store = Fault::new(MemoryStore::new());
        let fail = Action::FailBefore(ErrorKind::Full);
        store.control().plan(Rule::on(Operation::Put).prefix("p").skip(1).action(fail.clone()));
        put(&store, "p1", b"").await.unwrap();
        put(&store, "q1", b"").await.unwrap();
        assert_eq!(put(&store, "p2", b"").await.unwrap_err().kind(), ErrorKind::Full);
        put(&store, "p2", b"").await.unwrap();
        assert_eq!(store.head(&id("p3")).await.unwrap_err().kind(), ErrorKind::NotFound);
        let log = store.control().log();
        let faults: Vec<_> = log.iter().map(|call| (&*call.blob, call.fault.is_some())).collect();
        assert_eq!(faults, [("p1", false), ("q1", false), ("p2", true), ("p2", false), ("p3", false)]);
    }

    #[tokio::test]
    async fn failing_before_leaves_nothing_and_failing_after_leaves_everything() {
        let store = Fault::new(MemoryStore::new());
        store.control().plan(Rule::any().action(Action::FailBefore(ErrorKind::Transient)));
        put(&store, "a", b"1").await.unwrap_err();
        assert!(store.head(&id("a")).await.is_err());
        store.control().plan(Rule::any().action(Action::FailAfter(ErrorKind::Transient)));
        put(&store, "a", b"1").await.unwrap_err();
        assert_eq!(&store.get(&id("a")).await.unwrap()[..], b"1");
    }

    #[tokio::test]
    async fn after_a_crash_every_call_fails_until_the_restart() {
        let store = Fault::new(MemoryStore::new());
        put(&store, "a", b"1").await.unwrap();
        store.control().plan(Rule::on(Operation::Put).action(Action::CrashAfter));
        put(&store, "b", b"2").await.unwrap_err();
        for outcome in [put(&store, "c", b"3").await, store.delete(&id("a")).await] {
            assert!(outcome.unwrap_err().to_string().contains("crashed"));
        }
        assert!(names(&store).await.is_err());
        assert!(store.get(&id("a")).await.is_err());
        store.control().restart();
        assert_eq!(names(&store).await.unwrap(), ["a", "b"]);
    }

    #[tokio::test]
    async fn stale_answers_are_those_before_the_last_change() {
        let store = Fault::new(MemoryStore::new());
        put(&store, "kept", b"").await.unwrap();
        put(&store, "gone", b"old").await.unwrap();
        put(&store, "changed", b"old").await.unwrap();
        store.control().plan(Rule::on(Operation::List).action(Action::Stale));
        store.control().plan(Rule::on(Operation::Get).action(Action::Stale).times(3));
        store.control().plan(Rule::on(Operation::Head).action(Action::Stale));
        put(&store, "changed", b"newer").await.unwrap();
        put(&store, "new", b"").await.unwrap();
        store.delete(&id("gone")).await.unwrap();
        assert_eq!(names(&store).await.unwrap(), ["kept", "changed", "gone"]);
        assert_eq!(&store.get(&id("changed")).await.unwrap()[..], b"old");
        assert_eq!(&store.get(&id("gone")).await.unwrap()[..], b"old");
        assert!(store.get(&id("new")).await.unwrap_err().is_not_found());
        assert!(store.head(&id("new")).await.unwrap_err().is_not_found());
        assert_eq!(names(&store).await.unwrap(), ["changed", "kept", "new"]);
    }
}
