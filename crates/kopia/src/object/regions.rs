//! Large objects: where they are cut is found out in order, their pieces are written by any number of threads.

use super::indirect::{Indexed, check_size};
use super::runs::{Run, Runs, object_of};
use super::{ObjectId, Objects, WriterOptions};
use crate::{Error, Result};
use lifeboat_budget::Buffer;
use lifeboat_primitives::splitter::{Splitter, SplitterAlgorithm, WINDOW};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// Writes one object that several threads work on; the result is the same as if an
/// [`ObjectWriter`](super::ObjectWriter) had been given all of its bytes in order.
///
/// [`cut`](Self::cut) finds out, in order, where pieces end, which takes a fraction of the time that it takes to
/// [write](Self::write) them. So threads take turns in reading and cutting a region, each from where the one before
/// has left off, and write at the same time. Nothing is kept but the ids.
#[derive(Debug)]
pub struct RegionWriter {
    objects: Objects,
    options: WriterOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// As it is behind the last piece.
    splitter: Splitter,
    /// How many pieces it was cut into so far, and how many bytes they have.
    pieces: u64,
    bytes: u64,
    /// What is written without a gap.
    written: Runs,
    /// How many pieces that is.
    complete: u64,
    /// What is written behind a gap, by the number of its first piece: no more than is written at the same time.
    ahead: BTreeMap<u64, Vec<Run>>,
    /// Whether the end of the object was seen.
    is_cut: bool,
}

/// Pieces of an object that follow each other and can be written.
#[derive(Debug)]
pub struct Pieces {
    /// The number of the first one.
    first: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Where in the region they end.
    Data(Vec<usize>),
    /// So many pieces of so many zeros.
    Zeros { count: u64, length: usize },
}

impl Pieces {
    /// How many bytes they have: what follows them was not cut yet.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Data(ends) => ends.last().map_or(0, |end| *end as u64),
            Kind::Zeros { count, length } => *count * *length as u64,
        }
    }

    fn count(&self) -> u64 {
        match &self.kind {
            Kind::Data(ends) => ends.len() as u64,
            Kind::Zeros { count, .. } => *count,
        }
    }
}

impl RegionWriter {
    pub(super) fn new(objects: Objects, options: WriterOptions) -> Self {
        let splitter = Splitter::new(options.splitter.unwrap_or(objects.splitter));
        let written = Runs::new(&objects);
        let state = State {
            splitter,
            pieces: 0,
            bytes: 0,
            written,
            complete: 0,
            ahead: BTreeMap::new(),
            is_cut: false,
        };
        RegionWriter { objects, options, state: Mutex::new(state) }
    }

    fn splitter(&self) -> SplitterAlgorithm {
        self.options.splitter.unwrap_or(self.objects.splitter)
    }

    /// The longest piece: in a region of this size there always is one.
    pub fn longest_piece(&self) -> usize {
        self.splitter().max_size()
    }

    /// Cuts a region that begins where the pieces that were cut before end. What is left behind its last piece must
    /// begin the next region, unless the object ends with this one.
    pub fn cut(&self, region: &[u8], is_end: bool) -> Result<Pieces> {
        let mut state = self.state.lock();
        let mut splitter = state.splitter.clone();
        let mut ends = Vec::new();
        let mut at = 0;
        while let Some(length) = splitter.next_cut(&region[at..]) {
            at += length;
            ends.push(at);
            state.splitter = splitter.clone();
        }
        // An empty object is one empty piece.
        if is_end && (at < region.len() || ends.is_empty() && state.pieces == 0) {
            ends.push(region.len());
        }
        if ends.is_empty() && !is_end {
            let needed = self.longest_piece();
            let text = format!("a region of {} bytes, where {needed} may be needed to cut it", region.len());
            return Err(Error::Invalid(text));
        }
        state.add(Kind::Data(ends), is_end)
    }

    /// Cuts `length` zeros, such as a hole, as far as they become pieces of their own; which may be none.
    pub fn cut_zeros(&self, length: u64) -> Result<Pieces> {
        // A splitter that sees nothing but zeros cuts as soon as it may.
        let piece = self.splitter().min_size();
        let count = if piece < WINDOW { 0 } else { length / piece as u64 };
        self.state.lock().add(Kind::Zeros { count, length: piece }, false)
    }

    /// Writes the pieces that a region was cut into; the object keeps the region.
    pub fn write(&self, region: Buffer, pieces: &Pieces) -> Result<()> {
        let WriterOptions { prefix, compression, .. } = self.options;
        let runs = match &pieces.kind {
            Kind::Data(ends) => {
                let starts = std::iter::once(0).chain(ends.iter().copied());
                let chunks: Vec<_> = starts.zip(ends).map(|(start, end)| start..*end).collect();
                let ids = self.objects.write_chunks_of(region, &chunks, prefix, compression)?;
                let run = |(chunk, object): (&Range<usize>, _)| Run {
                    count: 1,
                    length: chunk.len() as u64,
                    object,
                };
                chunks.iter().zip(ids).map(run).collect()
            }
            Kind::Zeros { count: 0, .. } => Vec::new(),
            Kind::Zeros { count, length } => {
                let ids = self.objects.write_chunks(&[&vec![0; *length]], prefix, compression)?;
                let run = |object| Run { count: *count, length: *length as u64, object };
                ids.into_iter().map(run).collect()
            }
        };
        self.state.lock().note(pieces.first, runs)
    }

    /// The object as far as it is written without a gap, and its length, so that what was written so far can be found
    /// after a crash; `None` if nothing is. Writing goes on meanwhile.
    pub fn checkpoint(&self) -> Result<Option<(ObjectId, u64)>> {
        Ok(self.object()?.map(|written| (written.object, written.length)))
    }

    /// The object's id. All of it must have been cut and written.
    pub fn finish(&self) -> Result<ObjectId> {
        let (is_whole, complete) = {
            let state = self.state.lock();
            (state.is_cut && state.complete == state.pieces, state.complete)
        };
        let missing = || Error::Invalid(format!("piece {complete} of an object is missing"));
        if !is_whole {
            return Err(missing());
        }
        let written = self.object()?.ok_or_else(missing)?;
        self.state.lock().written.check_all(&written)?;
        Ok(written.object)
    }

    fn object(&self) -> Result<Option<Indexed>> {
        object_of(&self.objects, &self.options, |place| self.state.lock().written.some_from(place))
    }
}

impl State {
    fn add(&mut self, kind: Kind, is_end: bool) -> Result<Pieces> {
        if self.is_cut {
            return Err(Error::Invalid("something follows the end of an object".to_owned()));
        }
        let pieces = Pieces { first: self.pieces, kind };
        let count = self.pieces.saturating_add(pieces.count());
        let bytes = self.bytes.saturating_add(pieces.bytes());
        check_size(count, bytes)?;
        (self.pieces, self.bytes, self.is_cut) = (count, bytes, is_end);
        Ok(pieces)
    }

    /// Notes what the pieces from `first` on were written as, and what was only waiting for them.
    fn note(&mut self, first: u64, runs: Vec<Run>) -> Result<()> {
        if !runs.is_empty() {
            self.ahead.insert(first, runs);
        }
        while let Some(runs) = self.ahead.remove(&self.complete) {
            for run in runs {
                self.written.push(run)?;
                self.complete += run.count;
            }
        }
        Ok(())
    }
}
