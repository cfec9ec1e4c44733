//! Writing an object at any offset, on top of a parent object or of zeros.

use super::indirect::{IndexWriter, check_size};
use super::layout::read_part;
use super::runs::{Run, SOME};
use super::table::IdTable;
use super::{ObjectId, ObjectReader, Objects, WriterOptions};
use crate::{Error, Result};
use lifeboat_budget::{Buffer, Reservation};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How an object is written at offsets.
#[derive(Debug, Clone)]
pub struct PositionalOptions {
    /// Prefix and compression. The splitter is not used: chunks have a fixed size.
    pub writer: WriterOptions,
    /// The size of a chunk; 1 MiB suits block devices.
    pub chunk_size: usize,
    /// The object that ranges which are not written are taken from. Its parts are referred to, not copied, where
    /// they are whole.
    pub parent: Option<ObjectId>,
    /// The length of the object; without it, as far as was written or the parent reaches.
    pub length: Option<u64>,
}

/// Writes one object at offsets, from any number of threads. For worker threads: all calls block.
///
/// What is never written is as in the parent, or zeros. Of two writes to the same place the later one counts; if
/// they are concurrent, either.
#[derive(Debug)]
pub struct PositionalWriter {
    objects: Objects,
    options: PositionalOptions,
    parent: Option<ObjectReader>,
    chunks: Mutex<Chunks>,
    extent: Mutex<u64>,
}

#[derive(Debug)]
struct Chunks {
    /// What each chunk was stored as last, whole.
    stored: IdTable,
    /// Chunks of which a part is written, or being written.
    open: BTreeMap<u64, Arc<Mutex<Open>>>,
}

/// What was written of a chunk that is not stored with it. The lock is held while the chunk is being stored.
type Open = Option<PartialChunk>;

#[derive(Debug)]
struct PartialChunk {
    data: Vec<u8>,
    /// What was written, in order, neighbours joined.
    covered: Vec<Range<usize>>,
    /// `None` if the budget had nothing left: then the chunk is completed and stored at once.
    memory: Option<Reservation>,
}

impl Objects {
    /// A writer for an object that is written at offsets.
    pub async fn positional_writer(&self, options: PositionalOptions) -> Result<PositionalWriter> {
        if !(1..=crate::sealer::MAX_CONTENT_LEN).contains(&options.chunk_size) {
            return Err(Error::Invalid(format!("chunks of {} bytes are not possible", options.chunk_size)));
        }
        check_size(options.length.unwrap_or(0) / options.chunk_size as u64, options.length.unwrap_or(0))?;
        let parent = match options.parent {
            Some(parent) => Some(self.open(parent).await?),
            None => None,
        };
        let chunks = Mutex::new(Chunks { stored: IdTable::new(self), open: BTreeMap::new() });
        Ok(PositionalWriter { objects: self.clone(), options, parent, chunks, extent: Mutex::new(0) })
    }
}

impl PositionalWriter {
    /// Writes `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let whole = self.write_edges(offset, data, std::iter::once(0..data.len()))?;
        let chunks: Vec<_> = whole.iter().map(|(_, range)| &data[range.clone()]).collect();
        let WriterOptions { prefix, compression, .. } = self.options.writer;
        self.note(&whole, self.objects.write_chunks(&chunks, prefix, compression)?)
    }

    /// Writes ranges of a buffer that begins at `offset`; they are in order and apart from each other.
    pub fn write_buffer_at(&self, offset: u64, buffer: Buffer, ranges: &[Range<usize>]) -> Result<()> {
        let whole = self.write_edges(offset, buffer.as_ref(), ranges.iter().cloned())?;
        let chunks: Vec<_> = whole.iter().map(|(_, range)| range.clone()).collect();
        let WriterOptions { prefix, compression, .. } = self.options.writer;
        self.note(&whole, self.objects.write_chunks_of(buffer, &chunks, prefix, compression)?)
    }

    /// Writes chunks that only a part is there of; returns the numbers of whole ones, and where they are.
    fn write_edges(
        &self,
        offset: u64,
        data: &[u8],
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> Result<Vec<(u64, Range<usize>)>> {
        let limit = self.options.length.unwrap_or(i64::MAX as u64);
        let size = self.options.chunk_size as u64;
        let mut whole = Vec::new();
        for range in ranges {
            let end =
                offset.checked_add(range.end as u64).filter(|end| *end <= limit && range.end <= data.len());
            let Some(end) = end else {
                let text = format!("cannot write {} bytes at {offset}: beyond the object", range.end);
                return Err(Error::Invalid(text));
            };
            {
                let mut extent = self.extent.lock();
                *extent = end.max(*extent);
            }
            let mut at = offset + range.start as u64;
            while at < end {
                let number = at / size;
                let until = (number + 1).saturating_mul(size).min(end);
                let part = (at - offset) as usize..(until - offset) as usize;
                if part.len() == self.full_len(number) {
                    whole.push((number, part));
                } else {
                    self.write_part(number, (at - number * size) as usize, &data[part])?;
                }
                at = until;
            }
        }
        Ok(whole)
    }

    /// The length of a chunk that nothing is missing of.
    fn full_len(&self, number: u64) -> usize {
        let size = self.options.chunk_size as u64;
        let start = number.saturating_mul(size);
        self.options.length.map_or(size, |length| length.saturating_sub(start).min(size)) as usize
    }

    /// Notes chunks that were stored.
    fn note(&self, chunks: &[(u64, Range<usize>)], ids: Vec<ObjectId>) -> Result<()> {
        for ((number, _), id) in chunks.iter().zip(ids) {
            let open = {
                // Whoever begins to write a part after this look must find the whole.
                let mut chunks = self.chunks.lock();
                match chunks.open.get(number).cloned() {
                    Some(open) => open,
                    None => {
                        chunks.stored.set(*number, id)?;
                        continue;
                    }
                }
            };
            // If somebody is writing a part, either of the two may be the earlier one.
            self.settle(*number, &open, &mut open.lock(), id)?;
        }
        Ok(())
    }

    /// Notes as what an open chunk was stored, while it is locked, and closes it if nobody else waits for it.
    fn settle(&self, number: u64, open: &Arc<Mutex<Open>>, part: &mut Open, id: ObjectId) -> Result<()> {
        *part = None;
        let mut chunks = self.chunks.lock();
        chunks.stored.set(number, id)?;
        // Of the two that are counted one is the map's, from which others take theirs under its lock.
        if Arc::strong_count(open) == 2 {
            chunks.open.remove(&number);
        }
        Ok(())
    }

    fn write_part(&self, number: u64, at: usize, part: &[u8]) -> Result<()> {
        let open = self.chunks.lock().open.entry(number).or_default().clone();
        let mut chunk = open.lock();
        let full = self.full_len(number);
        let mut partial = match chunk.take() {
            Some(partial) => partial,
            None => self.reopen(number, full)?,
        };
        partial.write(at, part);
        if partial.memory.is_none() && !partial.is_whole() {
            self.complete(number, &mut partial)?;
        }
        if partial.is_whole() {
            let id = self.store_one(&partial.data)?;
            return self.settle(number, &open, &mut chunk, id);
        }
        *chunk = Some(partial);
        Ok(())
    }

    /// A chunk as it is before a part of it is written: as it was stored, or untouched.
    fn reopen(&self, number: u64, full: usize) -> Result<PartialChunk> {
        let stored = self.chunks.lock().stored.get(number);
        Ok(match stored {
            None => PartialChunk {
                data: vec![0; full],
                covered: Vec::new(),
                memory: self.objects.budget.try_reserve(full as u64),
            },
            Some(id) => {
                let mut data = self.read_stored(id, full)?;
                data.resize(full, 0);
                PartialChunk { data, covered: std::iter::once(0..full).collect(), memory: None }
            }
        })
    }

    fn read_stored(&self, id: ObjectId, full: usize) -> Result<Vec<u8>> {
        let stored = self.objects.runtime.block_on(self.objects.read_all(id, full as u64))?;
        Ok(stored.to_vec())
    }

    /// Fills what is missing of a chunk from the parent, or with zeros.
    fn complete(&self, number: u64, partial: &mut PartialChunk) -> Result<()> {
        let start = number * self.options.chunk_size as u64;
        if let Some(parent) = &self.parent {
            for gap in partial.gaps() {
                // Beyond the end of the parent the zeros stay.
                let out = &mut partial.data[gap.clone()];
                self.objects.runtime.block_on(parent.read_at(start + gap.start as u64, out))?;
            }
        }
        partial.covered = std::iter::once(0..partial.data.len()).collect();
        Ok(())
    }

    fn store_one(&self, chunk: &[u8]) -> Result<ObjectId> {
        let WriterOptions { prefix, compression, .. } = self.options.writer;
        let ids = self.objects.write_chunks(&[chunk], prefix, compression)?;
        ids.first().copied().ok_or_else(|| Error::Worker("a chunk got no id".into()))
    }

    /// The object as it is stored so far, and its length, so that what was written can be found after a crash: all the
    /// rest is as in the parent, or zeros. `None` if nothing is stored. Writing goes on meanwhile.
    pub fn checkpoint(&self) -> Result<Option<(ObjectId, u64)>> {
        let is_empty = self.chunks.lock().stored.is_empty();
        if is_empty { Ok(None) } else { self.compose().map(Some) }
    }

    /// Completes the object and returns its id.
    pub fn finish(self) -> Result<ObjectId> {
        let open = std::mem::take(&mut self.chunks.lock().open);
        for (number, chunk) in open {
            if let Some(mut partial) = chunk.lock().take() {
                self.complete(number, &mut partial)?;
                let id = self.store_one(&partial.data)?;
                self.chunks.lock().stored.set(number, id)?;
            }
        }
        Ok(self.compose()?.0)
    }

    /// The object of what is stored, and its length.
    fn compose(&self) -> Result<(ObjectId, u64)> {
        let parent_len = self.parent.as_ref().map_or(0, ObjectReader::len);
        let length = self.options.length.unwrap_or_else(|| parent_len.max(*self.extent.lock()));
        let WriterOptions { prefix, metadata_compression, .. } = self.options.writer;
        let index = IndexWriter::new(&self.objects, prefix, metadata_compression);
        let mut composer = Composer { writer: self, index, zeros: None };
        let mut next = 0;
        loop {
            // Whoever writes does not wait for the index.
            let some: Vec<_> = self.chunks.lock().stored.iter_from(next).take(SOME).collect();
            let Some((last, _)) = some.last() else { break };
            next = last + 1;
            for (number, stored) in some {
                composer.add_stored(number, stored, length)?;
            }
        }
        composer.fill(length)?;
        match composer.index.into_object()? {
            None => Ok((self.store_one(&[])?, 0)),
            Some(written) if written.length == length => Ok((written.object, length)),
            Some(written) => {
                let text = format!("an object of {length} bytes became one of {}", written.length);
                Err(Error::Worker(text))
            }
        }
    }
}

impl PartialChunk {
    fn write(&mut self, at: usize, part: &[u8]) {
        let mut range = at..at + part.len();
        self.data[range.clone()].copy_from_slice(part);
        self.covered.retain(|other| {
            let apart = other.end < range.start || range.end < other.start;
            if !apart {
                range = range.start.min(other.start)..range.end.max(other.end);
            }
            apart
        });
        let place = self.covered.partition_point(|other| other.start < range.start);
        self.covered.insert(place, range);
    }

    fn is_whole(&self) -> bool {
        self.covered.first().is_some_and(|range| *range == (0..self.data.len()))
    }

    fn gaps(&self) -> Vec<Range<usize>> {
        let starts = std::iter::once(0).chain(self.covered.iter().map(|range| range.end));
        let ends = self.covered.iter().map(|range| range.start).chain([self.data.len()]);
        starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| start..end).collect()
    }
}

/// Puts the object together, in order.
struct Composer<'a> {
    writer: &'a PositionalWriter,
    index: IndexWriter,
    /// A chunk of zeros that was stored before, and its length.
    zeros: Option<(u64, ObjectId)>,
}

impl Composer<'_> {
    fn push(&mut self, count: u64, length: u64, object: ObjectId) -> Result<()> {
        if length > 0 { self.index.push(Run { count, length, object }) } else { Ok(()) }
    }

    /// Adds a chunk that was stored, and what lies before it.
    fn add_stored(&mut self, number: u64, stored: ObjectId, length: u64) -> Result<()> {
        let start = number * self.writer.options.chunk_size as u64;
        let full = self.writer.full_len(number);
        // Only an object whose length was not known has a last chunk that is longer than what is there of it, or
        // chunks that were written after its length was asked for.
        let wanted = length.saturating_sub(start).min(full as u64) as usize;
        if wanted == 0 {
            return Ok(());
        }
        let object = match wanted < full {
            true => {
                let data = self.writer.read_stored(stored, full)?;
                self.writer.store_one(&data[..wanted.min(data.len())])?
            }
            false => stored,
        };
        self.fill(start)?;
        self.push(1, wanted as u64, object)
    }

    /// Adds what nobody wrote, up to `until`.
    fn fill(&mut self, until: u64) -> Result<()> {
        while self.index.end() < until {
            let parent = self.writer.parent.as_ref();
            match parent.and_then(|parent| Some((parent, parent.layout().find(self.index.end())?))) {
                Some((parent, place)) => self.take_from(parent, place, until)?,
                None => self.add_zeros(until)?,
            }
        }
        Ok(())
    }

    /// Refers to a part of the parent if it is whole, else writes the bytes of it that are wanted.
    fn take_from(&mut self, parent: &ObjectReader, place: usize, until: u64) -> Result<()> {
        let entry = parent.layout().entries()[place];
        let end = self.index.end();
        if entry.start == end && entry.start + entry.length <= until {
            return self.push(1, entry.length, entry.object());
        }
        let objects = &self.writer.objects;
        let data = objects.runtime.block_on(read_part(objects, parent.layout().id(), &entry))?;
        let wanted =
            (end - entry.start) as usize..(until.min(entry.start + entry.length) - entry.start) as usize;
        let object = self.writer.store_one(&data[wanted.clone()])?;
        self.push(1, wanted.len() as u64, object)
    }

    fn add_zeros(&mut self, until: u64) -> Result<()> {
        let size = self.writer.options.chunk_size as u64;
        let to_grid = size - self.index.end() % size;
        let length = to_grid.min(until - self.index.end());
        let object = match self.zeros {
            Some((known, object)) if known == length => object,
            _ => self.writer.store_one(&vec![0; length as usize])?,
        };
        if length == size {
            self.zeros = Some((length, object));
        }
        self.push(1, length, object)
    }
}
