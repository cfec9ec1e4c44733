//! The state of the writing half: sessions, packs on their way, memory.

use super::ContentStore;
use super::session::{PackState, Pending, WriteSession};
use crate::session::SessionId;
use crate::{Error, Result};
use bytes::Bytes;
use jiff::Timestamp;
use lifeboat_budget::BufferPool;
use lifeboat_index::{ContentId, IndexEntry};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::{Notify, Semaphore};

/// The writing half of a [`ContentStore`].
///
/// Memory: data lives in buffers of `pool`, from before it is read or sealed until its pack is in the store. When
/// the pool is used up, the largest open pack is sent early, and the thread waits for packs on their way. A thread
/// that finds neither takes its buffer beyond the pool: then only what threads work on is in memory, so the excess is at
/// most one buffer for each thread, and nothing ever waits for itself.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) pool: BufferPool,
    /// Held for reading while a batch is written; a flush takes it for writing for the moment in which it decides
    /// what belongs to it. So a batch is never torn between two flushes.
    pub(super) barrier: RwLock<()>,
    pub(super) state: Mutex<WriterState>,
    /// Woken when a pack is stored or failed, and when a claimed content is settled.
    pub(super) settled: Condvar,
    /// The same for async waiters.
    pub(super) settled_async: Notify,
    /// Bounds how many packs are put at once.
    pub(super) puts: Arc<Semaphore>,
    /// One flush at a time.
    pub(super) flushing: tokio::sync::Mutex<()>,
    pub(super) counters: Counters,
}

#[derive(Debug)]
pub(super) struct WriterState {
    pub(super) current: Option<WriteSession>,
    /// Sessions whose index is being written, oldest first.
    pub(super) closing: VecDeque<Arc<Mutex<WriteSession>>>,
    /// Packs on their way.
    pub(super) sending: usize,
    /// The last pack that failed and has not been written since.
    pub(super) failed: Option<(String, Arc<lifeboat_blobs::Error>)>,
    pub(super) last_flush: Timestamp,
    /// Whether a flush that nobody waits for is on its way.
    pub(super) flush_scheduled: bool,
    /// Why it failed, until somebody was told.
    pub(super) flush_failed: Option<Error>,
}

/// Running totals, for progress reports.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hashed_bytes: AtomicU64,
    pub(super) hashed_contents: AtomicU64,
    pub(super) new_bytes: AtomicU64,
    pub(super) new_contents: AtomicU64,
    pub(super) packed_bytes: AtomicU64,
    pub(super) uploaded_bytes: AtomicU64,
    pub(super) uploaded_packs: AtomicU64,
}

impl Writer {
    pub(super) fn new(pool: BufferPool, parallel_puts: usize, now: Timestamp) -> Self {
        let state = WriterState {
            current: None,
            closing: VecDeque::new(),
            sending: 0,
            failed: None,
            last_flush: now,
            flush_scheduled: false,
            flush_failed: None,
        };
        Writer {
            pool,
            barrier: RwLock::new(()),
            state: Mutex::new(state),
            settled: Condvar::new(),
            settled_async: Notify::new(),
            puts: Arc::new(Semaphore::new(parallel_puts.max(1))),
            flushing: tokio::sync::Mutex::new(()),
            counters: Counters::default(),
        }
    }

    pub(super) fn wake_all(&self) {
        self.settled.notify_all();
        self.settled_async.notify_waiters();
    }
}

impl WriterState {
    /// What is known of a content that is not published yet.
    pub(super) fn pending(&self, id: &ContentId) -> Option<Pending> {
        if let Some(pending) = self.current.as_ref().and_then(|session| session.entries.get(id)) {
            return Some(*pending);
        }
        self.closing.iter().rev().find_map(|session| session.lock().entries.get(id).copied())
    }

    pub(super) fn check_failure(&self) -> Result<()> {
        match &self.failed {
            Some((blob, source)) => Err(Error::PackNotWritten { blob: blob.clone(), source: source.clone() }),
            None => Ok(()),
        }
    }

    /// The packs that could not be written so far.
    pub(super) fn failed_packs(&self) -> Vec<(SessionId, u32)> {
        let of = |session: &WriteSession| {
            let failed = session.packs.iter().enumerate();
            let failed = failed.filter(|(_, pack)| matches!(pack.state, PackState::Failed(..)));
            failed.map(|(number, _)| (session.id.clone(), number as u32)).collect::<Vec<_>>()
        };
        let closing = self.closing.iter().flat_map(|session| of(&session.lock()));
        self.current.iter().flat_map(of).chain(closing).collect()
    }

    /// The session that is being written, started if there is none.
    pub(super) fn session(&mut self, store: &ContentStore) -> Result<&mut WriteSession> {
        let shared = &store.shared;
        match &mut self.current {
            Some(session) => Ok(session),
            none => {
                Ok(none.insert(WriteSession::start(&shared.sealer, &shared.environment, &shared.identity)?))
            }
        }
    }

    /// The entry of a content that is not published yet, and its bytes if its pack is still in memory.
    pub(super) fn find(&self, id: &ContentId) -> Option<(IndexEntry, Option<Bytes>)> {
        let earlier = || self.closing.iter().rev().find_map(|session| session.lock().find(id));
        match self.current.as_ref().and_then(|session| session.find(id)) {
            // A deletion of what an earlier session wrote: the bytes are with that one.
            Some((entry, None)) => Some((entry, earlier().and_then(|(_, bytes)| bytes))),
            Some(found) => Some(found),
            None => earlier(),
        }
    }

    /// Marks the pack `number` of a session, and counts it as settled.
    pub(super) fn settle_pack(&mut self, session: &SessionId, number: u32, settled: PackState) {
        self.sending = self.sending.saturating_sub(1);
        let place = |session: &mut WriteSession, settled: PackState| {
            if let Some(pack) = session.packs.get_mut(number as usize) {
                pack.state = settled;
            }
        };
        match self.current.as_mut().filter(|current| current.id == *session) {
            Some(current) => place(current, settled),
            None => {
                if let Some(closing) = self.closing.iter().find(|closing| closing.lock().id == *session) {
                    place(&mut closing.lock(), settled);
                }
            }
        }
    }
}
