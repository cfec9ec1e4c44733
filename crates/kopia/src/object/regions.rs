//! Large objects: where they are cut is found out in order, their pieces are written by any number of threads.

use super::indirect::{self, Entry};
use super::{ObjectId, Objects, WriterOptions};
use crate::{Error, Result};
use lifeboat_budget::Buffer;
use lifeboat_primitives::splitter::{Splitter, SplitterAlgorithm, WINDOW};
use parking_lot::Mutex;

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
    /// For each piece, once it is written, its length and object.
    pieces: Vec<Option<(u64, ObjectId)>>,
    /// Whether the end of the object was seen.
    is_cut: bool,
}

/// Pieces of an object that follow each other and can be written.
#[derive(Debug)]
pub struct Pieces {
    /// The number of the first one.
    first: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Where in the region they end.
    Data(Vec<usize>),
    /// So many pieces of so many zeros.
    Zeros { count: usize, length: usize },
}

impl Pieces {
    /// How many bytes they have: what follows them was not cut yet.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Data(ends) => ends.last().map_or(0, |end| *end as u64),
            Kind::Zeros { count, length } => *count as u64 * *length as u64,
        }
    }

    fn count(&self) -> usize {
        match &self.kind {
            Kind::Data(ends) => ends.len(),
            Kind::Zeros { count, .. } => *count,
        }
    }
}

impl RegionWriter {
    pub(super) fn new(objects: Objects, options: WriterOptions) -> Self {
        let splitter = Splitter::new(options.splitter.unwrap_or(objects.splitter));
        let state = State { splitter, pieces: Vec::new(), is_cut: false };
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
        if is_end && (at < region.len() || ends.is_empty() && state.pieces.is_empty()) {
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
        let count = if piece < WINDOW { 0 } else { (length / piece as u64) as usize };
        self.state.lock().add(Kind::Zeros { count, length: piece }, false)
    }

    /// Writes the pieces that a region was cut into; the object keeps the region.
    pub fn write(&self, region: Buffer, pieces: &Pieces) -> Result<()> {
        let WriterOptions { prefix, compression, .. } = self.options;
        match &pieces.kind {
            Kind::Data(ends) => {
                let starts = std::iter::once(0).chain(ends.iter().copied());
                let chunks: Vec<_> = starts.zip(ends).map(|(start, end)| start..*end).collect();
                let ids = self.objects.write_chunks_of(region, &chunks, prefix, compression)?;
                let mut state = self.state.lock();
                let places = state.pieces.iter_mut().skip(pieces.first);
                for ((place, chunk), id) in places.zip(chunks).zip(ids) {
                    *place = Some((chunk.len() as u64, id));
                }
            }
            Kind::Zeros { count: 0, .. } => {}
            Kind::Zeros { count, length } => {
                let ids = self.objects.write_chunks(&[&vec![0; *length]], prefix, compression)?;
                let zeros = ids.first().map(|id| (*length as u64, *id));
                self.state
                    .lock()
                    .pieces
                    .iter_mut()
                    .skip(pieces.first)
                    .take(*count)
                    .for_each(|place| *place = zeros);
            }
        }
        Ok(())
    }

    /// The object as far as it is written without a gap, so that what was written so far can be found after a
    /// crash; `None` if nothing is. Writing goes on meanwhile.
    pub fn checkpoint(&self) -> Result<Option<ObjectId>> {
        let entries = entries(self.state.lock().pieces.iter().map_while(|written| *written));
        match entries.is_empty() {
            true => Ok(None),
            false => self.id_of(&entries).map(Some),
        }
    }

    /// The object's id. All of it must have been cut and written.
    pub fn finish(&self) -> Result<ObjectId> {
        let entries = {
            let state = self.state.lock();
            let written: Vec<_> = state.pieces.iter().map_while(|written| *written).collect();
            if !state.is_cut || written.len() < state.pieces.len() {
                return Err(Error::Invalid(format!("piece {} of an object is missing", written.len())));
            }
            entries(written)
        };
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
}

impl State {
    fn add(&mut self, kind: Kind, is_end: bool) -> Result<Pieces> {
        if self.is_cut {
            return Err(Error::Invalid("something follows the end of an object".to_owned()));
        }
        let pieces = Pieces { first: self.pieces.len(), kind };
        self.pieces.resize(self.pieces.len() + pieces.count(), None);
        self.is_cut = is_end;
        Ok(pieces)
    }
}

/// An index of pieces that follow each other.
fn entries(pieces: impl IntoIterator<Item = (u64, ObjectId)>) -> Vec<Entry> {
    let mut start = 0;
    let place = |(length, object)| {
        let entry = Entry { start, length, object };
        start += length;
        entry
    };
    pieces.into_iter().map(place).collect()
}
