//! Writing contents from the buffer that they were read into: what is new is sealed where it lies, and the buffer becomes
//! part of the pack.
//!
//! Nothing is copied, and memory that holds data to be written is the same that holds it while it is on its way.

use super::packing::SMALL;
use super::write::{Job, distinct};
use super::writer::Writer;
use super::{ContentStore, ContentToWrite};
use crate::pack::PackKind;
use crate::sealer::seal_id;
use crate::{Error, Result};
use bytes::Bytes;
use lifeboat_budget::{Buffer, Loan, Reservation};
use lifeboat_index::{ContentId, Prefix};
use std::ops::Range;

impl ContentStore {
    /// Memory to read data into that is going to be written. Waits until there is some, and has packs sent for it.
    ///
    /// Blocking. Whoever waits must not hold another such buffer.
    pub fn take_buffer(&self, len: usize) -> Result<Buffer> {
        let writer = self.writer("write contents")?;
        let mut buffer = self.take_memory(writer, len)?;
        buffer.extend(len).ok_or_else(|| Error::Worker("a buffer is too small".into()))?;
        Ok(buffer)
    }

    /// Adds to the memory that buffers and packs are made of, until the loan is dropped.
    pub fn lend(&self, memory: Reservation) -> Result<Loan> {
        Ok(self.writer("write contents")?.pool.lend(memory))
    }

    /// Writes contents as they lie in a buffer, in order and apart from each other, and returns their ids; they are not
    /// compressed, otherwise it is like [`write_batch`](Self::write_batch).
    pub fn write_buffer(
        &self,
        buffer: Buffer,
        contents: &[Range<usize>],
        prefix: Prefix,
    ) -> Result<Vec<ContentId>> {
        let writer = self.writer("write contents")?;
        if !contents.is_sorted_by(|one, next| one.end <= next.start) {
            return Err(Error::Invalid("contents overlap in their buffer".into()));
        }
        self.keep_index_fresh()?;
        let ids = self.name_all(&borrowed(buffer.as_ref(), contents, prefix)?)?;
        {
            let _batch = writer.barrier.read();
            let (claimed, others) = self.claim(writer, distinct(&ids, 0..contents.len()))?;
            let claims: Vec<_> = claimed.iter().map(Job::claim).collect();
            let sealed = self.seal_buffer(writer, buffer, contents, prefix, claimed);
            let buffer = self.settle_claims(writer, &claims, sealed)?;
            let items = borrowed(&buffer, contents, prefix)?;
            let given_up = self.wait_for(writer, others);
            let given_up = given_up.iter().filter_map(|(id, number)| Some((*id, items.get(*number)?)));
            self.write_open(writer, given_up.collect())?;
        }
        self.flush_if_due(writer)?;
        Ok(ids)
    }

    /// Seals what was claimed and adds it to packs; returns the buffer, in which everything else is as it was.
    fn seal_buffer(
        &self,
        writer: &Writer,
        mut buffer: Buffer,
        contents: &[Range<usize>],
        prefix: Prefix,
        claimed: Vec<Job<usize>>,
    ) -> Result<Bytes> {
        let now = self.shared.environment.clock.now().as_second();
        let (in_place, copied) = self.divide(buffer.len(), contents, claimed);
        let mut sealed = Vec::with_capacity(in_place.len());
        for (job, range) in in_place {
            let data = &mut buffer.as_mut()[range.clone()];
            let (nonce, tag) = self.shared.sealer.seal_in_place(seal_id(job.id.hash()), data)?;
            let mut record = self.new_record(&job, range.len(), 0, now);
            record.packed_length = record.original_length + (nonce.len() + tag.len()) as u32;
            sealed.push((record, range, Bytes::copy_from_slice(&nonce), Bytes::copy_from_slice(&tag)));
        }
        let buffer = buffer.into_bytes();
        let kind = PackKind::of(prefix);
        for (record, range, nonce, tag) in sealed {
            let mut state = writer.state.lock();
            let (number, pack) = self.open_pack(&mut state, kind)?;
            let offset = pack.append([nonce, buffer.slice(range.clone()), tag]);
            self.add_records(writer, state, kind, number, offset, &[record])?;
        }
        let items = borrowed(&buffer, contents, prefix)?;
        let with_item = |job: Job<usize>| Some(job.with_item(items.get(job.item)?));
        self.seal_all(writer, &copied.into_iter().filter_map(with_item).collect::<Vec<_>>())?;
        Ok(buffer)
    }

    /// What is sealed in place, and what is copied: small contents, those that error correction makes longer, and all if
    /// there is so little to keep that the pack would hold mostly memory that nobody needs.
    #[allow(clippy::type_complexity)]
    fn divide<'a>(
        &self,
        len: usize,
        contents: &'a [Range<usize>],
        claimed: Vec<Job<usize>>,
    ) -> (Vec<(Job<usize>, &'a Range<usize>)>, Vec<Job<usize>>) {
        let stays = |range: &&Range<usize>| {
            range.len() >= SMALL && self.shared.sealer.sealed_len(range.len()).is_some()
        };
        let staying = |job: &Job<usize>| contents.get(job.item).filter(stays);
        let kept: usize = claimed.iter().filter_map(staying).map(ExactSizeIterator::len).sum();
        if kept < len / 2 {
            return (Vec::new(), claimed);
        }
        let (mut in_place, mut copied) = (Vec::new(), Vec::new());
        for job in claimed {
            match staying(&job) {
                Some(range) => in_place.push((job, range)),
                None => copied.push(job),
            }
        }
        (in_place, copied)
    }
}

/// The contents as they lie in the buffer.
fn borrowed<'a>(
    buffer: &'a [u8],
    contents: &[Range<usize>],
    prefix: Prefix,
) -> Result<Vec<ContentToWrite<'a>>> {
    let outside = || Error::Invalid("a content is not in its buffer".into());
    let borrow = |range: &Range<usize>| {
        let data = buffer.get(range.clone()).ok_or_else(outside)?;
        Ok(ContentToWrite { data, prefix, compression: None })
    };
    contents.iter().map(borrow).collect()
}
