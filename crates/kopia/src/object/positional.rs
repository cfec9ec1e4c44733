//! Writing an object at any offset, on top of a parent object or of zeros.

use super::indirect::{self, Entry};
use super::layout::read_part;
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
    chunks: Mutex<BTreeMap<u64, Arc<Mutex<Chunk>>>>,
    extent: Mutex<u64>,
}

/// What was written of a chunk. The lock is held while the chunk is being stored.
#[derive(Debug, Default)]
struct Chunk {
    state: ChunkState,
}

#[derive(Debug, Default)]
enum ChunkState {
    #[default]
    Untouched,
    Partial(PartialChunk),
    Stored(ObjectId),
}

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
        let parent = match options.parent {
            Some(parent) => Some(self.open(parent).await?),
            None => None,
        };
        let (objects, chunks, extent) = (self.clone(), Mutex::default(), Mutex::new(0));
        Ok(PositionalWriter { objects, options, parent, chunks, extent })
    }
}

impl PositionalWriter {
    /// Writes `data` at `offset`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let whole = self.write_edges(offset, data, std::iter::once(0..data.len()))?;
        let chunks: Vec<_> = whole.iter().map(|(_, range)| &data[range.clone()]).collect();
        let WriterOptions { prefix, compression, .. } = self.options.writer;
        self.note(&whole, self.objects.write_chunks(&chunks, prefix, compression)?);
        Ok(())
    }

    /// Writes ranges of a buffer that begins at `offset`; they are in order and apart from each other.
    pub fn write_buffer_at(&self, offset: u64, buffer: Buffer, ranges: &[Range<usize>]) -> Result<()> {
        let whole = self.write_edges(offset, buffer.as_ref(), ranges.iter().cloned())?;
        let chunks: Vec<_> = whole.iter().map(|(_, range)| range.clone()).collect();
        let WriterOptions { prefix, compression, .. } = self.options.writer;
        self.note(&whole, self.objects.write_chunks_of(buffer, &chunks, prefix, compression)?);
        Ok(())
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

    fn chunk(&self, number: u64) -> Arc<Mutex<Chunk>> {
        self.chunks.lock().entry(number).or_default().clone()
    }

    /// Notes chunks that were stored.
    fn note(&self, chunks: &[(u64, Range<usize>)], ids: Vec<ObjectId>) {
        for ((number, _), id) in chunks.iter().zip(ids) {
            self.chunk(*number).lock().state = ChunkState::Stored(id);
        }
    }

    fn write_part(&self, number: u64, at: usize, part: &[u8]) -> Result<()> {
        let chunk = self.chunk(number);
        let mut chunk = chunk.lock();
        let full = self.full_len(number);
        let mut partial = match std::mem::take(&mut chunk.state) {
            ChunkState::Partial(partial) => partial,
            ChunkState::Untouched => PartialChunk {
                data: vec![0; full],
                covered: Vec::new(),
                memory: self.objects.budget.try_reserve(full as u64),
            },
            ChunkState::Stored(id) => {
                chunk.state = ChunkState::Stored(id);
                let stored = self.objects.runtime.block_on(self.objects.read_all(id, full as u64))?;
                let mut data = stored.to_vec();
                data.resize(full, 0);
                PartialChunk { data, covered: std::iter::once(0..full).collect(), memory: None }
            }
        };
        partial.write(at, part);
        if partial.memory.is_none() && !partial.is_whole() {
            self.complete(number, &mut partial)?;
        }
        chunk.state = match partial.is_whole() {
            true => ChunkState::Stored(self.store_one(&partial.data)?),
            false => ChunkState::Partial(partial),
        };
        Ok(())
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

    /// Completes the object and returns its id.
    pub fn finish(self) -> Result<ObjectId> {
        let chunks = std::mem::take(&mut *self.chunks.lock());
        let parent_len = self.parent.as_ref().map_or(0, ObjectReader::len);
        let length = self.options.length.unwrap_or_else(|| parent_len.max(*self.extent.lock()));
        let mut composer = Composer { writer: &self, entries: Vec::new(), end: 0, zeros: None };
        for (number, chunk) in chunks {
            let start = number * self.options.chunk_size as u64;
            let state = std::mem::take(&mut chunk.lock().state);
            let end = (start + self.options.chunk_size as u64).min(length);
            let object = match state {
                ChunkState::Untouched => continue,
                ChunkState::Stored(object) => object,
                ChunkState::Partial(mut partial) => {
                    self.complete(number, &mut partial)?;
                    partial.data.truncate((end - start) as usize);
                    self.store_one(&partial.data)?
                }
            };
            composer.fill(start)?;
            composer.push(end - start, object);
        }
        composer.fill(length)?;
        match composer.entries.as_slice() {
            [] => self.store_one(&[]),
            [only] => Ok(only.object),
            entries => {
                let options = &self.options.writer;
                indirect::write(&self.objects, entries, options.prefix, options.metadata_compression)
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

/// Puts the entries of the object together, in order.
struct Composer<'a> {
    writer: &'a PositionalWriter,
    entries: Vec<Entry>,
    end: u64,
    /// A chunk of zeros that was stored before, and its length.
    zeros: Option<(u64, ObjectId)>,
}

impl Composer<'_> {
    fn push(&mut self, length: u64, object: ObjectId) {
        if length > 0 {
            self.entries.push(Entry { start: self.end, length, object });
            self.end += length;
        }
    }

    /// Adds what nobody wrote, up to `until`.
    fn fill(&mut self, until: u64) -> Result<()> {
        while self.end < until {
            let parent = self.writer.parent.as_ref();
            match parent.and_then(|parent| parent.layout().find(self.end).map(|place| (parent, place))) {
                Some((parent, place)) => self.take_from(parent, place, until)?,
                None => self.add_zeros(until)?,
            }
        }
        Ok(())
    }

    /// Refers to a part of the parent if it is whole, else writes the bytes of it that are wanted.
    fn take_from(&mut self, parent: &ObjectReader, place: usize, until: u64) -> Result<()> {
        let entry = parent.layout().entries()[place];
        if entry.start == self.end && entry.start + entry.length <= until {
            self.push(entry.length, entry.object());
            return Ok(());
        }
        let objects = &self.writer.objects;
        let data = objects.runtime.block_on(read_part(objects, parent.layout().id(), &entry))?;
        let wanted =
            (self.end - entry.start) as usize..(until.min(entry.start + entry.length) - entry.start) as usize;
        let object = self.writer.store_one(&data[wanted.clone()])?;
        self.push(wanted.len() as u64, object);
        Ok(())
    }

    fn add_zeros(&mut self, until: u64) -> Result<()> {
        let size = self.writer.options.chunk_size as u64;
        let to_grid = size - self.end % size;
        let length = to_grid.min(until - self.end);
        let object = match self.zeros {
            Some((known, object)) if known == length => object,
            _ => self.writer.store_one(&vec![0; length as usize])?,
        };
        if length == size {
            self.zeros = Some((length, object));
        }
        self.push(length, object);
        Ok(())
    }
}
