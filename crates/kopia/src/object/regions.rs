//! Writing one large object with several threads at once.

use super::indirect::{self, Entry};
use super::{ObjectId, Objects, WriterOptions};
use crate::{Error, Result};
use bytes::Bytes;
use lifeboat_primitives::splitter::{Candidates, Splitter, WINDOW, scan_candidates};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};

/// What holes are made of.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Writes one object that arrives in regions, in any order and from any number of threads; the result is the same
/// as if an [`ObjectWriter`](super::ObjectWriter) had been given the regions in order.
///
/// Each thread that [`submit`](Self::submit)s a region looks for cuts in it, and then writes chunks that have become
/// whole, its own or others'. So all threads that read also work, and none waits for another.
///
/// Regions are kept until all their chunks are written. To save memory, let the regions' [`Bytes`] own what they
/// were reserved with, read regions roughly in order, and call [`work`](Self::work) before waiting for memory: chunks
/// may be waiting to be hashed side by side with others.
#[derive(Debug)]
pub struct RegionWriter {
    objects: Objects,
    options: WriterOptions,
    batch: usize,
    /// Buffers for chunks that lie across a seam, to be used again.
    spare: Mutex<Vec<Vec<u8>>>,
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Debug)]
struct State {
    splitter: Splitter,
    /// The number of the region that is to be cut next.
    next_region: u64,
    /// Regions that arrived before their turn.
    early: BTreeMap<u64, Region>,
    /// The beginning of the next chunk.
    partial: Vec<Bytes>,
    /// Whole chunks.
    ready: VecDeque<Chunk>,
    /// How many chunks there are so far, and what became of them.
    written: Vec<Option<(u64, ObjectId)>>,
    /// Threads that are writing chunks.
    working: usize,
    failed: bool,
    length: u64,
}

#[derive(Debug)]
enum Region {
    Data(Bytes, Candidates),
    Zeros(u64),
}

/// A whole chunk.
#[derive(Debug)]
struct Chunk {
    number: usize,
    /// How many chunks with the same bytes there are, from `number` on.
    count: usize,
    parts: Vec<Bytes>,
}

/// A chunk that was written.
struct Written {
    number: usize,
    count: usize,
    length: u64,
    object: ObjectId,
}

impl RegionWriter {
    pub(super) fn new(objects: Objects, options: WriterOptions) -> Self {
        let batch = objects.batch();
        let state = State {
            splitter: Splitter::new(options.splitter.unwrap_or(objects.splitter)),
            next_region: 0,
            early: BTreeMap::new(),
            partial: Vec::new(),
            ready: VecDeque::new(),
            written: Vec::new(),
            working: 0,
            failed: false,
            length: 0,
        };
        RegionWriter {
            objects,
            options,
            batch,
            spare: Mutex::default(),
            state: Mutex::new(state),
            idle: Condvar::new(),
        }
    }

    /// Adds region number `number`, counted from 0. `preceding` are the 64 bytes before it; fewer only where the
    /// object starts. Blocks while this thread writes chunks.
    pub fn submit(&self, number: u64, preceding: &[u8], region: Bytes) -> Result<()> {
        let algorithm = self.options.splitter.unwrap_or(self.objects.splitter);
        let candidates = scan_candidates(algorithm, preceding, &region);
        self.add(number, Region::Data(region, candidates))
    }

    /// Adds region number `number` of `length` zeros, such as a hole, as fast as its chunks can be counted.
    pub fn submit_zeros(&self, number: u64, length: u64) -> Result<()> {
        self.add(number, Region::Zeros(length))
    }

    fn add(&self, number: u64, region: Region) -> Result<()> {
        let mut state = self.state.lock();
        if number < state.next_region || state.early.contains_key(&number) {
            return Err(Error::Invalid(format!("region {number} of an object was submitted twice")));
        }
        state.early.insert(number, region);
        state.cut_regions();
        self.write_ready(state, self.batch)
    }

    /// The object as far as it is written without a gap, so that what was written so far can be found after a
    /// crash; `None` if nothing is. Writing goes on meanwhile.
    pub fn checkpoint(&self) -> Result<Option<ObjectId>> {
        let mut entries = Vec::new();
        let mut start = 0;
        for (length, object) in self.state.lock().written.iter().map_while(|written| *written) {
            entries.push(Entry { start, length, object });
            start += length;
        }
        match entries.is_empty() {
            true => Ok(None),
            false => self.id_of(&entries).map(Some),
        }
    }

    /// Writes chunks that wait for others; for a thread that would otherwise have nothing to do.
    pub fn work(&self) -> Result<()> {
        self.write_ready(self.state.lock(), 1)
    }

    /// Writes what is left, waits for the other threads and returns the object's id. All regions must have been
    /// submitted; nothing can be added afterwards.
    pub fn finish(&self) -> Result<ObjectId> {
        {
            let mut state = self.state.lock();
            if !state.early.is_empty() {
                return Err(Error::Invalid(format!("region {} of an object is missing", state.next_region)));
            }
            state.end_of_object();
            self.write_ready(state, 1)?;
        }
        let mut state = self.state.lock();
        while state.working > 0 {
            self.idle.wait(&mut state);
        }
        if state.failed {
            return Err(Error::Invalid("another thread failed to write a part of the object".into()));
        }
        let mut entries = Vec::with_capacity(state.written.len());
        let mut start = 0;
        for written in &state.written {
            let (length, object) = written.ok_or_else(|| Error::Worker("a chunk was not written".into()))?;
            entries.push(Entry { start, length, object });
            start += length;
        }
        drop(state);
        self.id_of(&entries)
    }

    fn id_of(&self, entries: &[Entry]) -> Result<ObjectId> {
        match entries {
            [only] => Ok(only.object),
            entries => indirect::write(
                &self.objects,
                entries,
                self.options.prefix,
                self.options.metadata_compression,
            ),
        }
    }

    /// Writes chunks in batches for as long as `at_least` are ready.
    fn write_ready<'s>(&'s self, mut state: MutexGuard<'s, State>, at_least: usize) -> Result<()> {
        while !state.failed && state.ready.len() >= at_least.max(1) {
            let count = state.ready.len().min(self.batch);
            let batch: Vec<Chunk> = state.ready.drain(..count).collect();
            state.working += 1;
            drop(state);
            let written = self.write_batch(batch);
            state = self.state.lock();
            state.working -= 1;
            match written {
                Ok(written) => {
                    for Written { number, count, length, object } in written {
                        state.written[number..number + count].fill(Some((length, object)));
                    }
                }
                Err(error) => {
                    state.failed = true;
                    self.idle.notify_all();
                    return Err(error);
                }
            }
            self.idle.notify_all();
        }
        Ok(())
    }

    fn write_batch(&self, batch: Vec<Chunk>) -> Result<Vec<Written>> {
        // Chunks that lie across a seam are put together; the others are used where they are.
        let mut joined: Vec<Vec<u8>> = Vec::new();
        for chunk in batch.iter().filter(|chunk| chunk.parts.len() != 1) {
            let mut buffer = self.spare.lock().pop().unwrap_or_default();
            chunk.parts.iter().for_each(|part| buffer.extend_from_slice(part));
            joined.push(buffer);
        }
        let mut next = joined.iter();
        let slices: Vec<&[u8]> = batch
            .iter()
            .map(|chunk| match chunk.parts.as_slice() {
                [only] => only.as_ref(),
                _ => next.next().map_or(&[][..], Vec::as_slice),
            })
            .collect();
        let ids = self.objects.write_chunks(&slices, self.options.prefix, self.options.compression)?;
        let written = batch.iter().zip(&slices).zip(ids).map(|((chunk, data), object)| Written {
            number: chunk.number,
            count: chunk.count,
            length: data.len() as u64,
            object,
        });
        let written = written.collect();
        self.recycle(joined);
        Ok(written)
    }

    fn recycle(&self, buffers: Vec<Vec<u8>>) {
        let mut spare = self.spare.lock();
        for mut buffer in buffers {
            if spare.len() < self.batch {
                buffer.clear();
                spare.push(buffer);
            }
        }
    }
}

impl State {
    /// Cuts all regions whose turn it is.
    fn cut_regions(&mut self) {
        while let Some(region) = self.early.remove(&self.next_region) {
            self.next_region += 1;
            match region {
                Region::Data(region, candidates) => self.cut_data(&region, &candidates),
                Region::Zeros(length) => self.cut_zeros(length),
            }
        }
    }

    fn cut_data(&mut self, region: &Bytes, candidates: &Candidates) {
        self.length += region.len() as u64;
        let mut cuts = Vec::new();
        self.splitter.stitch(region, candidates, |cut| cuts.push(cut));
        let mut at = 0;
        for cut in cuts {
            self.partial.push(region.slice(at..cut));
            self.end_chunk();
            at = cut;
        }
        if at < region.len() {
            self.partial.push(region.slice(at..));
        }
    }

    fn cut_zeros(&mut self, length: u64) {
        self.length += length;
        // After a window of zeros every splitter cuts at its minimum size, so all chunks but the first and the last
        // are equal.
        let min = self.splitter.algorithm().min_size();
        let (mut left, mut seen) = (length, 0);
        while left > 0 {
            if self.splitter.pending() == 0 && seen >= WINDOW && left >= min as u64 {
                let count = (left / min as u64) as usize;
                self.partial = zeros(min);
                self.end_chunks(count);
                left -= (count * min) as u64;
                continue;
            }
            let part = &ZEROS[..left.min(ZEROS.len() as u64) as usize];
            let cut = self.splitter.next_cut(part);
            let taken = cut.unwrap_or(part.len());
            self.partial.push(Bytes::from_static(&part[..taken]));
            if cut.is_some() {
                self.end_chunk();
            }
            left -= taken as u64;
            seen += taken;
        }
    }

    fn end_chunk(&mut self) {
        self.end_chunks(1);
    }

    /// The partial chunk is whole, and `count` chunks in a row are the same.
    fn end_chunks(&mut self, count: usize) {
        let parts = std::mem::take(&mut self.partial);
        let number = self.written.len();
        self.ready.push_back(Chunk { number, count, parts });
        self.written.resize(number + count, None);
    }

    fn end_of_object(&mut self) {
        if !self.partial.is_empty() || self.length == 0 {
            self.end_chunk();
        }
    }
}

/// So many zeros, in parts.
fn zeros(length: usize) -> Vec<Bytes> {
    let whole = std::iter::repeat_n(Bytes::from_static(&ZEROS), length / ZEROS.len());
    let rest = Bytes::from_static(&ZEROS[..length % ZEROS.len()]);
    whole.chain((!rest.is_empty()).then_some(rest)).collect()
}
