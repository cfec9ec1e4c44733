//! From contents to packs: compress, seal, append, and send what is full. Runs on the threads of the writers.

use super::session::{Pending, WriteSession};
use super::write::{Job, later_than};
use super::writer::{Writer, WriterState};
use super::{ContentStore, ContentToWrite};
use crate::pack::{PackBuilder, PackKind, PackRecord};
use crate::sealer::seal_id;
use crate::{Error, Result};
use lifeboat_budget::Buffer;
use parking_lot::MutexGuard;
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// Sealed contents below this are copied into the pack's room; larger ones become pieces of their own.
pub(super) const SMALL: usize = 64 << 10;
/// How much room for small contents a pack gets at a time.
const ROOM: usize = 512 << 10;
/// Contents of a batch are sealed into one piece until it has this size.
const GROUP: usize = 1 << 20;

/// A content that is ready to be sealed, or sealed already.
pub(super) struct Prepared<'a> {
    record: PackRecord,
    bytes: PreparedBytes<'a>,
    /// Its length once sealed.
    pub(super) sealed_len: usize,
}

enum PreparedBytes<'a> {
    Plain(Cow<'a, [u8]>),
    Sealed(Vec<u8>),
}

impl ContentStore {
    /// Seals the jobs, small ones of a kind together, and adds them to packs.
    pub(super) fn seal_all(&self, writer: &Writer, jobs: &[Job<&ContentToWrite<'_>>]) -> Result<()> {
        let now = self.shared.environment.clock.now().as_second();
        for kind in PackKind::ALL {
            let mut group = Vec::new();
            let mut group_len = 0;
            for job in jobs.iter().filter(|job| PackKind::of(job.id.prefix()) == kind) {
                let prepared = self.prepare(job, now)?;
                if group_len > 0 && group_len + prepared.sealed_len > GROUP {
                    self.seal_group(writer, kind, std::mem::take(&mut group), group_len)?;
                    group_len = 0;
                }
                group_len += prepared.sealed_len;
                group.push(prepared);
            }
            if !group.is_empty() {
                self.seal_group(writer, kind, group, group_len)?;
            }
        }
        Ok(())
    }

    /// Compresses a content if that was asked for and makes it shorter.
    fn prepare<'a>(&self, job: &Job<&ContentToWrite<'a>>, now: i64) -> Result<Prepared<'a>> {
        let shared = &self.shared;
        let (bytes, compression) = match job.item.compression {
            Some(compressor) if shared.format.supports_compression() => {
                let mut compressed = Vec::with_capacity(job.item.data.len() / 2);
                compressor.compress(job.item.data, &mut compressed)?;
                match compressed.len() < job.item.data.len() {
                    true => (Cow::Owned(compressed), compressor.id()),
                    false => (Cow::Borrowed(job.item.data), 0),
                }
            }
            _ => (Cow::Borrowed(job.item.data), 0),
        };
        self.prepared(self.new_record(job, job.item.data.len(), compression, now), bytes)
    }

    /// The entry of a new content that is not sealed yet.
    pub(super) fn new_record<T>(
        &self,
        job: &Job<T>,
        original_length: usize,
        compression: u32,
        now: i64,
    ) -> PackRecord {
        PackRecord {
            id: job.id,
            offset: 0,
            packed_length: 0,
            original_length: original_length as u32,
            timestamp: later_than(now, job.after),
            compression,
            format_version: self.shared.format.version,
            deleted: false,
        }
    }

    pub(super) fn prepared<'a>(&self, mut record: PackRecord, plain: Cow<'a, [u8]>) -> Result<Prepared<'a>> {
        let sealer = &self.shared.sealer;
        let (bytes, sealed_len) = match sealer.sealed_len(plain.len()) {
            Some(len) => (PreparedBytes::Plain(plain), len),
            None => {
                let sealed = sealer.seal_with_id(seal_id(record.id.hash()), &plain)?;
                let len = sealed.len();
                (PreparedBytes::Sealed(sealed), len)
            }
        };
        record.packed_length = u32::try_from(sealed_len)
            .map_err(|_| Error::Invalid(format!("content {} is too large to be packed", record.id)))?;
        Ok(Prepared { record, bytes, sealed_len })
    }

    pub(super) fn seal_group(
        &self,
        writer: &Writer,
        kind: PackKind,
        group: Vec<Prepared<'_>>,
        len: usize,
    ) -> Result<()> {
        if len < SMALL {
            let mut sealed = vec![0; len];
            let records = self.seal_into(&group, &mut sealed)?;
            return self.append_small(writer, kind, &sealed, &records);
        }
        let mut piece = self.take_memory(writer, len)?;
        let out = piece.extend(len).ok_or_else(|| Error::Worker("a piece is too small".into()))?;
        let records = self.seal_into(&group, out)?;
        let mut state = writer.state.lock();
        let (number, pack) = self.open_pack(&mut state, kind)?;
        let offset = pack.append([piece.into_bytes()]);
        self.add_records(writer, state, kind, number, offset, &records)
    }

    /// Seals the contents of a group one after another; the offsets of the returned records count from `out`.
    fn seal_into(&self, group: &[Prepared<'_>], out: &mut [u8]) -> Result<Vec<PackRecord>> {
        let mut rest = out;
        let mut offset = 0;
        let mut records = Vec::with_capacity(group.len());
        for prepared in group {
            let (place, following) = rest
                .split_at_mut_checked(prepared.sealed_len)
                .ok_or_else(|| Error::Worker("a group is larger than its piece".into()))?;
            match &prepared.bytes {
                PreparedBytes::Plain(plain) => {
                    self.shared.sealer.seal_to(seal_id(prepared.record.id.hash()), plain, place)?;
                }
                PreparedBytes::Sealed(sealed) => place.copy_from_slice(sealed),
            }
            records.push(PackRecord { offset, ..prepared.record });
            offset += prepared.record.packed_length;
            rest = following;
        }
        Ok(records)
    }

    fn append_small(
        &self,
        writer: &Writer,
        kind: PackKind,
        sealed: &[u8],
        records: &[PackRecord],
    ) -> Result<()> {
        let mut spare: Option<Buffer> = None;
        loop {
            let mut state = writer.state.lock();
            let (number, pack) = self.open_pack(&mut state, kind)?;
            if let Some(offset) = pack.append_small(sealed) {
                return self.add_records(writer, state, kind, number, offset, records);
            }
            match spare.take() {
                Some(room) => pack.add_room(room),
                None => {
                    // Memory is waited for without the lock; another thread may have added room meanwhile.
                    drop(state);
                    spare = Some(self.take_memory(writer, ROOM)?);
                }
            }
        }
    }

    pub(super) fn open_pack<'s>(
        &self,
        state: &'s mut MutexGuard<'_, WriterState>,
        kind: PackKind,
    ) -> Result<(u32, &'s mut PackBuilder)> {
        let shared = &self.shared;
        state.session(self)?.open_pack(kind, &shared.format.recovery_block, &shared.environment)
    }

    /// Enters what was appended at `offset`, and sends the pack if it is full.
    pub(super) fn add_records(
        &self,
        writer: &Writer,
        mut state: MutexGuard<'_, WriterState>,
        kind: PackKind,
        number: u32,
        offset: u64,
        records: &[PackRecord],
    ) -> Result<()> {
        let counters = &writer.counters;
        let session = state.session(self)?;
        for record in records {
            let at = u32::try_from(offset + u64::from(record.offset)).ok().filter(|at| *at < 1 << 30);
            let at = at.ok_or_else(|| Error::Invalid("a pack has become too large".into()))?;
            let record = PackRecord { offset: at, ..*record };
            session.entries.insert(record.id, Pending::Entry(number, record));
            if let Some(pack) = session.opened(kind) {
                pack.record(record);
            }
            counters.new_contents.fetch_add(1, Ordering::Relaxed);
            counters.new_bytes.fetch_add(record.original_length.into(), Ordering::Relaxed);
            counters.packed_bytes.fetch_add(record.packed_length.into(), Ordering::Relaxed);
        }
        let full = session.opened(kind).is_some_and(|pack| pack.len() >= self.shared.format.max_pack_size);
        if full {
            self.close_and_send(writer, state, kind);
        }
        Ok(())
    }

    /// Closes the open pack of `kind` and sends it off.
    pub(super) fn close_and_send(
        &self,
        writer: &Writer,
        mut state: MutexGuard<'_, WriterState>,
        kind: PackKind,
    ) {
        let Some(session) = state.current.as_mut() else { return };
        let Some((number, pack)) = session.close_pack(kind) else { return };
        let (id, marker) = (session.id.clone(), session.marker.clone());
        state.sending += 1;
        drop(state);
        self.send_pack(writer, id, marker, number, pack);
    }

    /// A buffer for `len` bytes; see [`Writer`] for what happens when memory is used up.
    pub(super) fn take_memory(&self, writer: &Writer, len: usize) -> Result<Buffer> {
        loop {
            if let Some(buffer) = writer.pool.take(len) {
                return Ok(buffer);
            }
            let mut state = writer.state.lock();
            state.check_failure()?;
            let largest = state.current.as_mut().and_then(WriteSession::largest_open);
            // A pack that is not even half full rather waits, with us, for those on their way.
            let half = self.shared.format.max_pack_size / 2;
            let can_wait = |(_, len): &(PackKind, u64)| *len < half && state.sending > 0;
            if let Some((kind, _)) = largest.filter(|largest| !can_wait(largest)) {
                self.close_and_send(writer, state, kind);
            } else if state.sending > 0 {
                writer.settled.wait(&mut state);
            } else {
                return Ok(writer.pool.take_anyway(len));
            }
        }
    }
}
