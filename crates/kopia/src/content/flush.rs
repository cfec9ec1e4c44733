//! Getting packs into the store, and publishing them: packs, then the index, then the end of the session.

use super::ContentStore;
use super::session::{Marker, PackState, WriteSession};
use super::writer::Writer;
use crate::pack::{PackBuilder, PackKind};
use crate::session::SessionId;
use crate::worker::blocking;
use crate::{Error, Result};
use jiff::SignedDuration;
use lifeboat_blobs::{BlobId, Operation, Payload};
use lifeboat_index::IndexEntry;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::{debug, warn};

/// A content that is added later than this after the last flush starts one, as in Kopia: garbage collection counts
/// on unreferenced packs becoming referenced soon.
const FLUSH_INTERVAL: SignedDuration = SignedDuration::from_mins(10);
/// So many unpublished entries start a flush: they are kept in memory (about 200 bytes each while being published).
const MAX_PENDING: usize = 100_000;

impl ContentStore {
    /// Publishes everything that was written before the call, by any thread: when it returns, all of it is in the
    /// store and in the index.
    ///
    /// Others may write meanwhile; what they add is published by the next flush. A failure loses nothing: the
    /// next flush tries again. A crash at any point leaves at worst packs that nothing refers to.
    pub async fn flush(&self) -> Result<()> {
        match self.shared.writer.as_ref() {
            Some(writer) => self.unless_interrupted(Operation::Put, "index", self.flush_all(writer)).await,
            None => Ok(()),
        }
    }

    async fn flush_all(&self, writer: &Writer) -> Result<()> {
        let _one = writer.flushing.lock().await;
        let failed_before = writer.state.lock().failed_packs();
        let store = self.clone();
        let cut = tokio::task::spawn_blocking(move || store.cut());
        cut.await.map_err(|e| Error::Worker(e.to_string()))?;
        let mut published = false;
        loop {
            let oldest = writer.state.lock().closing.front().cloned();
            let Some(session) = oldest else { break };
            self.publish(writer, &session, &failed_before).await?;
            published = true;
        }
        if published {
            self.tend_index().await;
        }
        let mut state = writer.state.lock();
        state.last_flush = self.shared.environment.clock.now();
        Ok(())
    }

    /// Decides what the flush is about: sends off the open packs and moves the session over.
    fn cut(&self) {
        let Some(writer) = self.shared.writer.as_ref() else { return };
        let _everybody = writer.barrier.write();
        let mut state = writer.state.lock();
        let Some(mut session) = state.current.take() else { return };
        let packs: Vec<_> = PackKind::ALL.into_iter().filter_map(|kind| session.close_pack(kind)).collect();
        state.sending += packs.len();
        let (id, marker) = (session.id.clone(), session.marker.clone());
        state.closing.push_back(Arc::new(Mutex::new(session)));
        drop(state);
        for (number, pack) in packs {
            self.send_pack(writer, id.clone(), marker.clone(), number, pack);
        }
    }

    async fn publish(
        &self,
        writer: &Writer,
        session: &Arc<Mutex<WriteSession>>,
        failed_before: &[(SessionId, u32)],
    ) -> Result<()> {
        self.settle_packs(writer, session, failed_before).await?;
        let (id, marker) = {
            let session = session.lock();
            (session.id.clone(), session.marker.clone())
        };
        let entries = {
            let session = session.clone();
            let collect = move || {
                let mut entries: Vec<IndexEntry> = session.lock().index_entries().collect();
                entries.sort_unstable_by_key(|entry| entry.id);
                entries
            };
            blocking(collect).await?
        };
        debug!(session = %id, entries = entries.len(), "publishing a session");
        if !entries.is_empty() {
            self.shared.committed.publish(entries, &id).await?;
        }
        // Entries leave memory only now that the published index has them.
        writer.state.lock().closing.retain(|other| !Arc::ptr_eq(other, session));
        if let Err(error) = marker.remove(&*self.shared.store).await {
            warn!(session = %id, %error, "the session marker could not be removed; it expires by itself");
        }
        Ok(())
    }

    /// Waits until every pack of the session is in the store; packs that failed are sent once more, unless one was
    /// tried for all of its time by this flush and had not failed before: a store that is away would have us wait as
    /// long again.
    async fn settle_packs(
        &self,
        writer: &Writer,
        session: &Arc<Mutex<WriteSession>>,
        failed_before: &[(SessionId, u32)],
    ) -> Result<()> {
        let id = session.lock().id.clone();
        let had_failed = |number: u32| failed_before.iter().any(|(of, known)| *of == id && *known == number);
        let mut retried = false;
        loop {
            let settled = writer.settled_async.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let (sending, failed) = session.lock().unsettled();
            let out_of_time =
                failed.iter().any(|(number, _, _, error)| error.is_out_of_time() && !had_failed(*number));
            if sending {
                settled.await;
            } else if failed.is_empty() {
                return Ok(());
            } else if retried || out_of_time {
                return Err(not_written(&failed));
            } else {
                retried = true;
                self.send_again(writer, session, failed);
            }
        }
    }

    fn send_again(&self, writer: &Writer, session: &Arc<Mutex<WriteSession>>, failed: Vec<FailedPack>) {
        let (id, marker) = {
            let session = session.lock();
            (session.id.clone(), session.marker.clone())
        };
        {
            let mut state = writer.state.lock();
            state.failed = None;
            state.sending += failed.len();
            let mut session = session.lock();
            for (number, pack, _, _) in &failed {
                session.set_pack(*number, PackState::Sending(pack.clone()));
            }
        }
        for (number, pack, payload, _) in failed {
            match payload {
                Some(payload) => self.spawn_put(id.clone(), marker.clone(), number, pack, payload),
                None => self.send_pack(writer, id.clone(), marker.clone(), number, pack),
            }
        }
    }

    /// Completes a closed pack and sends it in the background. It counts as being sent already.
    pub(super) fn send_pack(
        &self,
        writer: &Writer,
        session: SessionId,
        marker: Arc<Marker>,
        number: u32,
        pack: Arc<PackBuilder>,
    ) {
        if pack.is_empty() {
            // Deletions alone make no pack; their entries go into the index all the same.
            writer.state.lock().settle_pack(&session, number, PackState::Stored);
            writer.wake_all();
            return;
        }
        let shared = &self.shared;
        match pack.finish(&shared.sealer, shared.format.index_version, &shared.environment) {
            Ok(payload) => self.spawn_put(session, marker, number, pack, payload),
            Err(error) => {
                let error = lifeboat_blobs::Error::new(
                    lifeboat_blobs::ErrorKind::Other,
                    lifeboat_blobs::Operation::Put,
                    pack.id(),
                    shared.store.describe(),
                    error.to_string(),
                );
                self.pack_failed(writer, &session, number, pack, None, error);
            }
        }
    }

    fn spawn_put(
        &self,
        session: SessionId,
        marker: Arc<Marker>,
        number: u32,
        pack: Arc<PackBuilder>,
        payload: Payload,
    ) {
        let store = self.clone();
        self.shared.runtime.spawn(async move {
            let Some(writer) = store.shared.writer.as_ref() else { return };
            match store.put_pack(writer, &marker, pack.id(), payload.clone()).await {
                Ok(()) => {
                    let counters = &writer.counters;
                    counters.uploaded_packs.fetch_add(1, Ordering::Relaxed);
                    counters.uploaded_bytes.fetch_add(payload.len(), Ordering::Relaxed);
                    // The memory returns before those who wait for it are woken.
                    drop((payload, pack));
                    writer.state.lock().settle_pack(&session, number, PackState::Stored);
                    writer.wake_all();
                }
                Err(error) => store.pack_failed(writer, &session, number, pack, Some(payload), error),
            }
        });
    }

    async fn put_pack(
        &self,
        writer: &Writer,
        marker: &Marker,
        id: &BlobId,
        payload: Payload,
    ) -> lifeboat_blobs::Result<()> {
        // The semaphore is never closed.
        let _turn = writer.puts.acquire().await;
        let put = async {
            marker.ensure(&*self.shared.store).await?;
            let options = self.shared.format.put_options();
            self.shared.store.put(id, payload, &options).await
        };
        self.unless_interrupted(Operation::Put, id.as_str(), put).await
    }

    fn pack_failed(
        &self,
        writer: &Writer,
        session: &SessionId,
        number: u32,
        pack: Arc<PackBuilder>,
        payload: Option<Payload>,
        error: lifeboat_blobs::Error,
    ) {
        warn!(pack = %pack.id(), %error, "a pack could not be written");
        let error = Arc::new(error);
        let mut state = writer.state.lock();
        state.failed = Some((pack.id().to_string(), error.clone()));
        state.settle_pack(session, number, PackState::Failed(pack, payload, error));
        drop(state);
        writer.wake_all();
    }

    /// Starts a flush in the background if one is due; waits for it if memory for entries runs short. Tells of a
    /// flush that failed before; what it was about is kept, and the next flush tries again.
    pub(super) fn flush_if_due(&self, writer: &Writer) -> Result<()> {
        let now = self.shared.environment.clock.now();
        let pending = {
            let mut state = writer.state.lock();
            if let Some(error) = state.flush_failed.take() {
                return Err(error);
            }
            let pending = state.current.as_ref().map_or(0, |session| session.entries.len());
            let due = pending >= MAX_PENDING
                || (pending > 0 && now.duration_since(state.last_flush) > FLUSH_INTERVAL);
            if !due {
                return Ok(());
            }
            if !std::mem::replace(&mut state.flush_scheduled, true) {
                let store = self.clone();
                self.shared.runtime.spawn(async move {
                    let failed = store.flush().await.err();
                    if let Some(writer) = store.shared.writer.as_ref() {
                        let mut state = writer.state.lock();
                        state.flush_scheduled = false;
                        state.flush_failed = failed;
                        drop(state);
                        writer.wake_all();
                    }
                });
            }
            pending
        };
        if pending >= 2 * MAX_PENDING {
            let mut state = writer.state.lock();
            while state.flush_scheduled {
                writer.settled.wait(&mut state);
            }
        }
        Ok(())
    }
}

/// Number, pack, its bytes if they were complete, and why it failed.
type FailedPack = (u32, Arc<PackBuilder>, Option<Payload>, Arc<lifeboat_blobs::Error>);

fn not_written(failed: &[FailedPack]) -> Error {
    match failed.first() {
        Some((_, pack, _, error)) => {
            Error::PackNotWritten { blob: pack.id().to_string(), source: error.clone() }
        }
        None => Error::Worker("a failed pack vanished".into()),
    }
}

impl WriteSession {
    /// Whether packs are on their way, and those that failed.
    fn unsettled(&self) -> (bool, Vec<FailedPack>) {
        let mut sending = false;
        let mut failed = Vec::new();
        for (number, pack) in self.packs.iter().enumerate() {
            match &pack.state {
                PackState::Sending(_) | PackState::Open(_) => sending = true,
                PackState::Failed(pack, payload, error) => {
                    failed.push((number as u32, pack.clone(), payload.clone(), error.clone()));
                }
                PackState::Stored => {}
            }
        }
        (sending, failed)
    }

    pub(super) fn set_pack(&mut self, number: u32, state: PackState) {
        if let Some(pack) = self.packs.get_mut(number as usize) {
            pack.state = state;
        }
    }
}
