//! Writing one large object with several threads at once.

use super::indirect::{self, Entry};
use super::{ObjectId, Objects, WriterOptions};
use crate::{Error, Result};
use bytes::Bytes;
use lifeboat_primitives::splitter::{Candidates, Splitter, scan_candidates};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};

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
    early: BTreeMap<u64, (Bytes, Candidates)>,
    /// The beginning of the next chunk.
    partial: Vec<Bytes>,
    /// Whole chunks, with their numbers.
    ready: VecDeque<(usize, Vec<Bytes>)>,
    /// How many chunks there are so far, and what became of them.
    written: Vec<Option<(u64, ObjectId)>>,
    /// Threads that are writing chunks.
    working: usize,
    failed: bool,
    length: u64,
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
        let mut state = self.state.lock();
        if number < state.next_region || state.early.contains_key(&number) {
            return Err(Error::Invalid(format!("region {number} of an object was submitted twice")));
        }
        state.early.insert(number, (region, candidates));
        state.cut_regions();
        self.write_ready(state, self.batch)
    }

    /// Writes chunks that wait for others; for a thread that would otherwise have nothing to do.
    pub fn work(&self) -> Result<()> {
        self.write_ready(self.state.lock(), 1)
    }

    /// Writes what is left, waits for the other threads and returns the object's id. All regions must have been
    /// submitted.
    pub fn finish(self) -> Result<ObjectId> {
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
        match entries.as_slice() {
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
            let batch: Vec<_> = state.ready.drain(..count).collect();
            state.working += 1;
            drop(state);
            let written = self.write_batch(batch);
            state = self.state.lock();
            state.working -= 1;
            match written {
                Ok(written) => {
                    for (number, length, object) in written {
                        state.written[number] = Some((length, object));
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

    fn write_batch(&self, batch: Vec<(usize, Vec<Bytes>)>) -> Result<Vec<(usize, u64, ObjectId)>> {
        // Chunks that lie across a seam are put together; the others are used where they are.
        let mut joined: Vec<Vec<u8>> = Vec::new();
        for (_, parts) in batch.iter().filter(|(_, parts)| parts.len() != 1) {
            let mut buffer = self.spare.lock().pop().unwrap_or_default();
            parts.iter().for_each(|part| buffer.extend_from_slice(part));
            joined.push(buffer);
        }
        let mut next = joined.iter();
        let slices: Vec<&[u8]> = batch
            .iter()
            .map(|(_, parts)| match parts.as_slice() {
                [only] => only.as_ref(),
                _ => next.next().map_or(&[][..], Vec::as_slice),
            })
            .collect();
        let ids = self.objects.write_chunks(&slices, self.options.prefix, self.options.compression)?;
        let written = batch.iter().zip(&slices).zip(ids);
        let written = written.map(|(((number, _), data), id)| (*number, data.len() as u64, id)).collect();
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
        while let Some((region, candidates)) = self.early.remove(&self.next_region) {
            self.next_region += 1;
            self.length += region.len() as u64;
            let mut cuts = Vec::new();
            self.splitter.stitch(&region, &candidates, |cut| cuts.push(cut));
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
    }

    fn end_chunk(&mut self) {
        let parts = std::mem::take(&mut self.partial);
        self.ready.push_back((self.written.len(), parts));
        self.written.push(None);
    }

    fn end_of_object(&mut self) {
        if !self.partial.is_empty() || self.length == 0 {
            self.end_chunk();
        }
    }
}
