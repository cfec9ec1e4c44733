//! Writing and deleting contents: name them, look them up, and have those packed that are not there.

use super::recover::covers;
use super::session::Pending;
use super::writer::{Writer, WriterState};
use super::{ContentStore, ContentToWrite};
use crate::pack::{PackKind, PackRecord};
use crate::sealer::{MAX_CONTENT_LEN, seal_id};
use crate::{Error, Result};
use lifeboat_index::{ContentId, IndexEntry, Since};
use lifeboat_primitives::hash::Digest;
use parking_lot::MutexGuard;
use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// A content that this thread has claimed and must write.
pub(super) struct Job<T> {
    pub(super) id: ContentId,
    /// Which content it is.
    pub(super) item: T,
    /// The time of an entry that the new one must be later than.
    pub(super) after: Option<i64>,
    /// What the session had in the place of the claim.
    before: Option<Pending>,
}

/// What the published index says about a content.
enum Published {
    Live,
    Absent,
}

impl<T> Job<T> {
    /// What it takes to give the claim up.
    pub(super) fn claim(&self) -> (ContentId, Option<Pending>) {
        (self.id, self.before)
    }

    /// The same work for the content as something else names it.
    pub(super) fn with_item<U>(&self, item: U) -> Job<U> {
        Job { id: self.id, item, after: self.after, before: self.before }
    }
}

impl ContentStore {
    /// Writes one content; see [`write_batch`](Self::write_batch).
    pub fn write(&self, item: &ContentToWrite<'_>) -> Result<ContentId> {
        let ids = self.write_batch(std::slice::from_ref(item))?;
        ids.first().copied().ok_or_else(|| Error::Worker("a batch of one gave no id".into()))
    }

    /// Writes contents and returns their ids, in order. What the repository holds already is not written again.
    ///
    /// Blocking, and heavy on the processor: call it from worker threads, any number of them at once, never from
    /// async code. Several contents in one call are hashed side by side, which is about twice as fast for the
    /// default hash. Contents are durable and visible to others after the next [`flush`](Self::flush).
    ///
    /// Fails with [`Error::PackNotWritten`] if a pack written earlier could not be stored; a flush tries it again.
    pub fn write_batch(&self, items: &[ContentToWrite<'_>]) -> Result<Vec<ContentId>> {
        let writer = self.writer("write contents")?;
        self.keep_index_fresh()?;
        let ids = self.name_all(items)?;
        {
            let _batch = writer.barrier.read();
            self.write_named(writer, items, &ids)?;
        }
        self.flush_if_due(writer)?;
        Ok(ids)
    }

    /// Writes a content and deletes others, all published by the same flush.
    pub fn write_and_delete(&self, item: &ContentToWrite<'_>, delete: &[ContentId]) -> Result<ContentId> {
        let writer = self.writer("write contents")?;
        self.keep_index_fresh()?;
        let ids = self.name_all(std::slice::from_ref(item))?;
        let _batch = writer.barrier.read();
        self.write_named(writer, std::slice::from_ref(item), &ids)?;
        let written =
            ids.first().copied().ok_or_else(|| Error::Worker("a batch of one gave no id".into()))?;
        for id in delete.iter().filter(|id| **id != written) {
            self.delete_in_batch(writer, id)?;
        }
        Ok(written)
    }

    /// Marks a content as deleted; a content that is not there or deleted already is left alone. It stays readable
    /// until maintenance drops it.
    pub fn delete(&self, id: &ContentId) -> Result<()> {
        let writer = self.writer("delete contents")?;
        let _batch = writer.barrier.read();
        self.delete_in_batch(writer, id)
    }

    pub(super) fn name_all(&self, items: &[ContentToWrite<'_>]) -> Result<Vec<ContentId>> {
        if let Some(item) = items.iter().find(|item| item.data.len() > MAX_CONTENT_LEN) {
            return Err(Error::Invalid(format!("a content of {} bytes is too large", item.data.len())));
        }
        let sealer = &self.shared.sealer;
        let inputs: Vec<&[u8]> = items.iter().map(|item| item.data).collect();
        let mut digests = vec![Digest::default(); inputs.len()];
        sealer.hasher().hash_many(&inputs, &mut digests);
        if let Some(writer) = &self.shared.writer {
            let bytes = inputs.iter().map(|input| input.len() as u64).sum();
            writer.counters.hashed_contents.fetch_add(inputs.len() as u64, Ordering::Relaxed);
            writer.counters.hashed_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        items.iter().zip(&digests).map(|(item, digest)| sealer.content_id(item.prefix, digest)).collect()
    }

    fn write_named(&self, writer: &Writer, items: &[ContentToWrite<'_>], ids: &[ContentId]) -> Result<()> {
        self.write_open(writer, distinct(ids, items))
    }

    /// Writes contents that are named and counted.
    pub(super) fn write_open(
        &self,
        writer: &Writer,
        mut open: Vec<(ContentId, &ContentToWrite<'_>)>,
    ) -> Result<()> {
        // Each round writes what this thread could claim. What another thread had claimed is waited for, and
        // claimed in the next round if that thread gave it up; own claims are settled by then, so no two threads
        // wait for each other.
        while !open.is_empty() {
            let (claimed, others) = self.claim(writer, open)?;
            self.write_claimed(writer, claimed)?;
            open = self.wait_for(writer, others);
        }
        Ok(())
    }

    /// Claims the contents that are not there; returns them and those that other threads are writing.
    #[allow(clippy::type_complexity)]
    pub(super) fn claim<T>(
        &self,
        writer: &Writer,
        wanted: Vec<(ContentId, T)>,
    ) -> Result<(Vec<Job<T>>, Vec<(ContentId, T)>)> {
        let (mut jobs, mut others) = (Vec::new(), Vec::new());
        {
            let mut state = writer.state.lock();
            state.check_failure()?;
            for (id, item) in wanted {
                let after = match state.pending(&id) {
                    Some(Pending::Claimed) => {
                        others.push((id, item));
                        continue;
                    }
                    Some(Pending::Entry(_, record)) if !record.deleted => continue,
                    Some(Pending::Entry(_, record)) => Some(record.timestamp),
                    None => None,
                };
                let before = state.session(self)?.entries.insert(id, Pending::Claimed);
                jobs.push(Job { id, item, after, before });
            }
        }
        // The published index is asked after the claim: a session that was published in between is found here.
        let mut published = Vec::new();
        let mut asked = Ok(());
        jobs.retain_mut(|job| match self.ask_published(job) {
            Ok(Published::Live) => {
                published.push(job.claim());
                false
            }
            Ok(Published::Absent) => true,
            Err(error) => {
                asked = Err(error);
                true
            }
        });
        if asked.is_err() {
            published.extend(jobs.iter().map(Job::claim));
        }
        self.give_up(writer, &published);
        asked.map(|()| (jobs, others))
    }

    /// Whether the published index has a claimed content; if only as deleted, the new entry must be later. A deletion that
    /// the watermark hides counts as well: it would outrank an entry by a clock that is behind, and hide that, too.
    fn ask_published<T>(&self, job: &mut Job<T>) -> Result<Published> {
        let committed = &self.shared.committed;
        // What this session deleted is written again, whatever the published index says, and so is what is lost.
        if job.after.is_none()
            && committed.ask(|index| index.contains_live(&job.id))?
            && !self.has_lost(&job.id)?
        {
            return Ok(Published::Live);
        }
        let entry = committed.ask(|index| index.with_watermark(i64::MIN).get(&job.id))?;
        job.after = job.after.max(entry.map(|entry| entry.timestamp_seconds));
        Ok(Published::Absent)
    }

    /// Takes back claims of this thread.
    pub(super) fn give_up(&self, writer: &Writer, claims: &[(ContentId, Option<Pending>)]) {
        if claims.is_empty() {
            return;
        }
        let mut state = writer.state.lock();
        if let Some(session) = &mut state.current {
            for (id, before) in claims {
                if matches!(session.entries.get(id), Some(Pending::Claimed)) {
                    match before {
                        Some(before) => session.entries.insert(*id, *before),
                        None => session.entries.remove(id),
                    };
                }
            }
        }
        drop(state);
        writer.wake_all();
    }

    /// Waits until no content of `claimed` is being written by another thread; returns those that were given up.
    pub(super) fn wait_for<T>(
        &self,
        writer: &Writer,
        mut claimed: Vec<(ContentId, T)>,
    ) -> Vec<(ContentId, T)> {
        let mut state = writer.state.lock();
        while claimed.iter().any(|(id, _)| matches!(state.pending(id), Some(Pending::Claimed))) {
            writer.settled.wait(&mut state);
        }
        claimed.retain(|(id, _)| match state.pending(id) {
            Some(Pending::Entry(_, record)) => record.deleted,
            _ => true,
        });
        claimed
    }

    fn write_claimed(&self, writer: &Writer, jobs: Vec<Job<&ContentToWrite<'_>>>) -> Result<()> {
        let claims: Vec<_> = jobs.iter().map(Job::claim).collect();
        self.settle_claims(writer, &claims, self.seal_all(writer, &jobs))
    }

    /// Tells others that the work on claimed contents has ended; if it failed, the claims are taken back.
    pub(super) fn settle_claims<T>(
        &self,
        writer: &Writer,
        claims: &[(ContentId, Option<Pending>)],
        outcome: Result<T>,
    ) -> Result<T> {
        match &outcome {
            Ok(_) => writer.wake_all(),
            Err(_) => self.give_up(writer, claims),
        }
        outcome
    }

    fn delete_in_batch(&self, writer: &Writer, id: &ContentId) -> Result<()> {
        let now = self.shared.environment.clock.now().as_second();
        let mut state = writer.state.lock();
        let known = self.known(writer, &mut state, id)?;
        let Some(entry) = known.filter(|entry| !entry.deleted) else { return Ok(()) };
        let timestamp_seconds = later_than(now, Some(entry.timestamp_seconds));
        self.add_entry(&mut state, IndexEntry { deleted: true, timestamp_seconds, ..entry })
    }

    /// Adds an entry for bytes that are in the store already, unless what is known makes it superfluous; returns
    /// whether it was added.
    pub(super) fn add_recovered(&self, writer: &Writer, entry: &IndexEntry) -> Result<bool> {
        let _batch = writer.barrier.read();
        let mut state = writer.state.lock();
        let known = self.known(writer, &mut state, &entry.id)?;
        let added = !known.is_some_and(|known| covers(&known, entry));
        if added {
            state.session(self)?.add_foreign(entry);
        }
        Ok(added)
    }

    /// Marks a content as deleted because what `pack` holds of it is lost, unless it is known to be elsewhere by now.
    ///
    /// The deletion is just later than the entry that it makes void: whoever has written the content again meanwhile,
    /// with an entry that we do not know yet, is not overruled.
    pub(crate) fn forget(&self, id: &ContentId, pack: &str) -> Result<()> {
        let writer = self.writer("delete contents")?;
        let _batch = writer.barrier.read();
        let mut state = writer.state.lock();
        let known = self.known(writer, &mut state, id)?;
        let Some(entry) = known.filter(|entry| !entry.deleted && entry.pack.as_str() == pack) else {
            return Ok(());
        };
        let timestamp_seconds = later_than(0, Some(entry.timestamp_seconds));
        self.add_entry(&mut state, IndexEntry { deleted: true, timestamp_seconds, ..entry })
    }

    /// What is known of a content, once no other thread is writing it.
    fn known(
        &self,
        writer: &Writer,
        state: &mut MutexGuard<'_, WriterState>,
        id: &ContentId,
    ) -> Result<Option<IndexEntry>> {
        while matches!(state.pending(id), Some(Pending::Claimed)) {
            writer.settled.wait(state);
        }
        state.check_failure()?;
        match state.find(id) {
            Some((entry, _)) => Ok(Some(entry)),
            None => self.shared.committed.ask(|index| index.get(id)),
        }
    }

    /// Adds an entry that brings no bytes of its own.
    fn add_entry(&self, state: &mut MutexGuard<'_, WriterState>, entry: IndexEntry) -> Result<()> {
        let session = state.session(self)?;
        session.update(&entry);
        if let Some(pack) = session.opened(PackKind::of(entry.id.prefix())) {
            pack.record_deletion(entry);
        }
        Ok(())
    }

    /// Writes a content again into a new pack, from its sealed bytes: same data, same compression, a later entry. It lives,
    /// also if it was deleted before.
    ///
    /// `false` if the content is not as `entry` says any more: then there is nothing to move. `since` is what the index
    /// says that it did not when `entry` was read.
    pub fn rewrite(&self, entry: &IndexEntry, sealed: &[u8], since: &Since) -> Result<bool> {
        let writer = self.writer("rewrite contents")?;
        let plain = self
            .shared
            .sealer
            .open_with_id(seal_id(entry.id.hash()), sealed)
            .map_err(|e| damaged(entry, e.to_string()))?;
        let _batch = writer.barrier.read();
        let Some(before) = self.claim_to_rewrite(writer, entry, since)? else { return Ok(false) };
        let now = self.shared.environment.clock.now().as_second();
        let record = PackRecord {
            id: entry.id,
            offset: 0,
            packed_length: 0,
            original_length: entry.original_length,
            timestamp: later_than(now, Some(entry.timestamp_seconds)),
            compression: entry.compression,
            format_version: self.shared.format.version,
            deleted: false,
        };
        let written = self.prepared(record, Cow::Owned(plain)).and_then(|prepared| {
            let len = prepared.sealed_len;
            self.seal_group(writer, PackKind::of(entry.id.prefix()), vec![prepared], len)
        });
        self.settle_claims(writer, &[(entry.id, before)], written).map(|()| true)
    }

    /// Claims a content that is to be moved; returns what the session had in its place. `None` if the content is not as
    /// `entry` says any more.
    fn claim_to_rewrite(
        &self,
        writer: &Writer,
        entry: &IndexEntry,
        since: &Since,
    ) -> Result<Option<Option<Pending>>> {
        let mut state = writer.state.lock();
        while matches!(state.pending(&entry.id), Some(Pending::Claimed)) {
            writer.settled.wait(&mut state);
        }
        state.check_failure()?;
        let is_current = match state.find(&entry.id) {
            Some((found, _)) => found == *entry,
            None => self.shared.committed.ask(|index| index.still_has(entry, since))?,
        };
        match is_current {
            true => Ok(Some(state.session(self)?.entries.insert(entry.id, Pending::Claimed))),
            false => Ok(None),
        }
    }
}

/// Contents with their ids, each id once.
pub(super) fn distinct<T>(ids: &[ContentId], items: impl IntoIterator<Item = T>) -> Vec<(ContentId, T)> {
    let mut seen = HashSet::with_capacity(ids.len());
    ids.iter().copied().zip(items).filter(|(id, _)| seen.insert(*id)).collect()
}

/// The time of a new entry: now, or just after the entry that it replaces.
pub(super) fn later_than(now: i64, earlier: Option<i64>) -> i64 {
    earlier.map_or(now, |earlier| now.max(earlier.saturating_add(1)))
}

pub(super) fn damaged(entry: &IndexEntry, reason: String) -> Error {
    Error::DamagedContent { id: entry.id, blob: entry.pack.to_string(), reason }
}
