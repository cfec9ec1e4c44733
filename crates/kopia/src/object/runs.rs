//! The pieces of one object in a row, of which those that are repeated are kept once.

use super::indirect::{IndexWriter, Indexed, check_size};
use super::table::IdTable;
use super::{ObjectId, Objects, WriterOptions};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// The same piece so many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) count: u64,
    pub(super) length: u64,
    pub(super) object: ObjectId,
}

/// Runs that follow each other. What was added does not change any more.
#[derive(Debug)]
pub(super) struct Runs {
    /// How long a piece of each run is.
    lengths: Vec<u32>,
    /// How many pieces there are in runs of more than one.
    counts: BTreeMap<usize, u64>,
    objects: IdTable,
    pieces: u64,
    bytes: u64,
}

/// So many runs are taken out at once for an index, while others are added.
pub(super) const SOME: usize = 4096;

impl Runs {
    /// No runs.
    pub(super) fn new(objects: &Objects) -> Self {
        let objects = IdTable::new(objects);
        Runs { lengths: Vec::new(), counts: BTreeMap::new(), objects, pieces: 0, bytes: 0 }
    }

    /// Adds a run at the end.
    pub(super) fn push(&mut self, run: Run) -> Result<()> {
        let place = self.lengths.len();
        let (pieces, bytes) = self.with(run.count, run.length)?;
        let length = u32::try_from(run.length)
            .map_err(|_| Error::Invalid(format!("a piece of {} bytes is not possible", run.length)))?;
        self.objects.set(place as u64, run.object)?;
        if run.count != 1 {
            self.counts.insert(place, run.count);
        }
        self.lengths.push(length);
        (self.pieces, self.bytes) = (pieces, bytes);
        Ok(())
    }

    /// How many pieces and bytes there would be with so many more; an error if that is more than an object may have.
    fn with(&self, count: u64, length: u64) -> Result<(u64, u64)> {
        let pieces = self.pieces.saturating_add(count);
        let bytes = self.bytes.saturating_add(count.saturating_mul(length));
        check_size(pieces, bytes)?;
        Ok((pieces, bytes))
    }

    /// Some of the runs from `place` on: not so many that they would take much, and none only if there are none.
    pub(super) fn some_from(&self, place: usize) -> Result<Vec<Run>> {
        let run = |(place, length): (usize, &u32)| {
            let count = self.counts.get(&place).copied().unwrap_or(1);
            let object = self.objects.get(place as u64);
            let object = object.ok_or_else(|| Error::Worker(format!("piece {place} has no id any more")))?;
            Ok(Run { count, length: u64::from(*length), object })
        };
        self.lengths.iter().enumerate().skip(place).take(SOME).map(run).collect()
    }

    /// Makes sure that an object is all of the runs, before anybody relies on it.
    pub(super) fn check_all(&self, written: &Indexed) -> Result<()> {
        match (written.parts, written.length) == (self.pieces, self.bytes) {
            true => Ok(()),
            false => Err(Error::Worker(format!(
                "an object of {} bytes in {} pieces became one of {} bytes in {}",
                self.bytes, self.pieces, written.length, written.parts
            ))),
        }
    }
}

/// The object that is made of runs, as many as `next` has from a place on; `None` if there are none.
pub(super) fn object_of(
    objects: &Objects,
    options: &WriterOptions,
    next: impl Fn(usize) -> Result<Vec<Run>>,
) -> Result<Option<Indexed>> {
    let mut index = IndexWriter::new(objects, options.prefix, options.metadata_compression);
    let mut place = 0;
    loop {
        let runs = next(place)?;
        if runs.is_empty() {
            return index.into_object();
        }
        place += runs.len();
        runs.into_iter().try_for_each(|run| index.push(run))?;
    }
}
