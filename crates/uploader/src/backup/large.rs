//! Large files, cut into regions that all threads read and write at once.

use super::buffers::RegionBuffer;
use super::directory::{Directory, Part};
use super::schedule::Supply;
use super::{Run, Task};
use crate::source::changed;
use crate::{Error, Result};
use lifeboat_kopia::snapshot::DirEntry;
use lifeboat_repository::{Id, ObjectWriteOptions, RegionWriter};
use parking_lot::Mutex;
use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// The results of a batch in which there are large files: they come when they come, and go into the listing together.
#[derive(Debug)]
pub(super) struct Gathering {
    pub(super) directory: Arc<Directory>,
    slot: u64,
    state: Mutex<Gathered>,
}

#[derive(Debug, Default)]
struct Gathered {
    /// For each large file, what comes before it and what became of it.
    places: Vec<(Part, Option<Part>)>,
    missing: usize,
    /// What comes after the last large file, once that is known.
    rest: Option<Part>,
    files: Vec<Weak<LargeFile>>,
}

impl Gathering {
    pub(super) fn new(directory: Arc<Directory>, slot: u64) -> Self {
        Gathering { directory, slot, state: Mutex::default() }
    }

    /// A place for another large file.
    pub(super) fn expect(&self) -> usize {
        let mut state = self.state.lock();
        state.places.push((Part::default(), None));
        state.missing += 1;
        state.places.len() - 1
    }

    /// Tells which file it is, for checkpoints.
    pub(super) fn note(&self, file: &Arc<LargeFile>) {
        self.state.lock().files.push(Arc::downgrade(file));
    }

    /// The files that are being read.
    pub(super) fn open_files(&self) -> Vec<Arc<LargeFile>> {
        self.state.lock().files.iter().filter_map(Weak::upgrade).collect()
    }

    /// What is known of the batch.
    pub(super) fn so_far(&self) -> Part {
        let state = self.state.lock();
        let mut part = Part::default();
        for (before, result) in &state.places {
            part.append(before);
            result.iter().for_each(|result| part.append(result));
        }
        state.rest.iter().for_each(|rest| part.append(rest));
        part
    }

    /// What comes before the large file in `place`.
    pub(super) fn put_before(&self, place: usize, part: Part) {
        if let Some((before, _)) = self.state.lock().places.get_mut(place) {
            *before = part;
        }
    }

    /// What comes after the last one.
    pub(super) fn close(&self, run: &Run<'_>, rest: Part) -> Result<()> {
        self.state.lock().rest = Some(rest);
        self.complete(run)
    }

    fn put(&self, run: &Run<'_>, place: usize, part: Part) -> Result<()> {
        {
            let mut state = self.state.lock();
            state.missing -= 1;
            if let Some((_, result)) = state.places.get_mut(place) {
                *result = Some(part);
            }
        }
        self.complete(run)
    }

    /// Passes everything on if nothing is missing.
    fn complete(&self, run: &Run<'_>) -> Result<()> {
        let mut state = self.state.lock();
        if state.missing > 0 {
            return Ok(());
        }
        let Some(rest) = state.rest.take() else { return Ok(()) };
        let mut whole = Part::default();
        for (before, result) in state.places.drain(..) {
            whole.append(&before);
            result.iter().for_each(|part| whole.append(part));
        }
        whole.append(&rest);
        drop(state);
        self.directory.complete(run, self.slot, whole)
    }
}

/// What a large file is, and where its entry goes.
#[derive(Debug)]
pub(super) struct LargeSpec {
    pub(super) result: (Arc<Gathering>, usize),
    pub(super) file: OwnedFd,
    pub(super) path: PathBuf,
    /// What it was when it was opened.
    pub(super) stat: Stat,
    /// Its entry without the object.
    pub(super) entry: DirEntry,
    pub(super) options: ObjectWriteOptions,
    /// Larger files are stored as several objects of this size, as Kopia does it, joined at the end.
    pub(super) part_size: Option<u64>,
    pub(super) ignore_errors: bool,
}

/// A large file that is being read.
#[derive(Debug)]
pub(super) struct LargeFile {
    pub(super) spec: LargeSpec,
    supply: Mutex<LargeSupply>,
    state: Mutex<LargeState>,
}

/// Which region is next.
#[derive(Debug, Default)]
struct LargeSupply {
    at: u64,
    /// Up to here there is data; not known behind it.
    data_until: u64,
    /// Where the part that is being handed out ends.
    part_end: u64,
    next_region: u64,
}

#[derive(Default)]
struct LargeState {
    parts: Vec<Arc<FilePart>>,
    /// Regions that are being worked on, and one until all are handed out.
    outstanding: usize,
    /// Where a region turned out to be shorter than it should be: the file ends there now.
    ends_at: Option<u64>,
    /// How far regions had data.
    reached: u64,
    failed: Option<Error>,
}

impl std::fmt::Debug for LargeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LargeState").field("outstanding", &self.outstanding).finish_non_exhaustive()
    }
}

/// A part of a file that is an object of its own.
pub(super) struct FilePart {
    start: u64,
    writer: Box<dyn RegionWriter>,
    state: Mutex<PartState>,
}

#[derive(Debug)]
struct PartState {
    /// Regions that are being worked on, and one until all are handed out.
    outstanding: usize,
    object: Option<Id>,
}

impl FilePart {
    /// An object that holds what was written so far, if anything was.
    pub(super) fn so_far(&self) -> Result<Option<Id>> {
        let complete = self.state.lock().object.clone();
        match complete {
            Some(object) => Ok(Some(object)),
            None => Ok(self.writer.checkpoint()?),
        }
    }

    /// A region is done, or there are no more. Whoever is last completes the object, which frees the memory that it
    /// holds.
    fn settle(&self) -> Result<()> {
        let last = {
            let mut state = self.state.lock();
            state.outstanding -= 1;
            state.outstanding == 0
        };
        if last {
            let object = self.writer.result()?;
            self.state.lock().object = Some(object);
        }
        Ok(())
    }
}

/// A region to be read and written.
pub(super) struct Region {
    file: Arc<LargeFile>,
    part: Arc<FilePart>,
    number: u64,
    offset: u64,
    length: usize,
    buffer: RegionBuffer,
}

impl LargeFile {
    pub(super) fn new(spec: LargeSpec) -> Self {
        let state = LargeState { outstanding: 1, ..LargeState::default() };
        LargeFile { spec, supply: Mutex::default(), state: Mutex::new(state) }
    }

    /// Takes the next region. Holes on the way to it are written at once: that takes no time.
    pub(super) fn pull(self: &Arc<Self>, run: &Run<'_>) -> Result<(Option<Task>, Supply)> {
        match self.next_region(run) {
            Ok(Some(region)) => Ok((Some(Task::Region(region)), Supply::More)),
            Ok(None) => {
                self.settle(run)?;
                Ok((None, Supply::Exhausted))
            }
            Err(error @ Error::File { .. }) => {
                self.state.lock().failed.get_or_insert(error);
                self.settle(run)?;
                Ok((None, Supply::Exhausted))
            }
            Err(error) => Err(error),
        }
    }

    fn next_region(self: &Arc<Self>, run: &Run<'_>) -> Result<Option<Region>> {
        let mut supply = self.supply.lock();
        let size = self.spec.entry.size;
        loop {
            run.check()?;
            if supply.at >= size || self.state.lock().failed.is_some() {
                return Ok(None);
            }
            let part = self.part(run, &mut supply)?;
            let limit = supply.part_end.min(size);
            if supply.at >= supply.data_until {
                let (data, hole) = self.next_data(supply.at)?;
                supply.data_until = hole;
                if data > supply.at {
                    let length = data.min(limit) - supply.at;
                    part.writer.submit_zeros(supply.next_region, length)?;
                    supply.next_region += 1;
                    supply.at += length;
                    supply.data_until = if data < limit { hole } else { supply.at };
                    self.reached(supply.at);
                    run.progress.hashed(length);
                    continue;
                }
            }
            let end = limit.min(supply.data_until);
            let length =
                run.regions.region_bytes().min(usize::try_from(end - supply.at).unwrap_or(usize::MAX));
            let buffer = run.regions.take(run, &*part.writer)?;
            let (number, offset) = (supply.next_region, supply.at);
            let region = Region { file: self.clone(), part, number, offset, length, buffer };
            supply.next_region += 1;
            supply.at += length as u64;
            self.state.lock().outstanding += 1;
            region.part.state.lock().outstanding += 1;
            return Ok(Some(region));
        }
    }

    /// The part that the next region belongs to.
    fn part(&self, run: &Run<'_>, supply: &mut LargeSupply) -> Result<Arc<FilePart>> {
        let current = self.state.lock().parts.last().cloned();
        if let Some(part) = current {
            if supply.at < supply.part_end {
                return Ok(part);
            }
            part.settle()?;
        }
        let writer = run.repository.new_object_by_regions(&self.spec.options)?;
        let state = Mutex::new(PartState { outstanding: 1, object: None });
        let part = Arc::new(FilePart { start: supply.at, writer, state });
        let number = {
            let parts = &mut self.state.lock().parts;
            parts.push(part.clone());
            parts.len() as u64
        };
        // The last part takes what is left, also if that is nothing but a few bytes.
        supply.part_end = match self.spec.part_size {
            Some(size) if number <= self.spec.entry.size / size => supply.at + size,
            _ => u64::MAX,
        };
        supply.next_region = 0;
        Ok(part)
    }

    /// Where the next data begins and ends, from `at` on.
    fn next_data(&self, at: u64) -> Result<(u64, u64)> {
        let size = self.spec.entry.size;
        if !crate::source::is_sparse(&self.spec.stat) {
            return Ok((at, size));
        }
        let seek = |to| match rustix::fs::seek(&self.spec.file, to) {
            Ok(place) => Ok(Some(place)),
            // There is nothing but a hole up to the end.
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        };
        let found = seek(SeekFrom::Data(at)).and_then(|data| match data {
            None => Ok((size, size)),
            Some(data) => Ok((data, seek(SeekFrom::Hole(data))?.unwrap_or(size))),
        });
        match found {
            Ok(found) => Ok(found),
            // The file system does not tell.
            Err(Errno::INVAL | Errno::NOTSUP) => Ok((at, size)),
            Err(error) => Err(Error::file("look for holes in", &self.spec.path, error)),
        }
    }

    /// The objects that it is being written as.
    pub(super) fn parts(&self) -> Vec<Arc<FilePart>> {
        self.state.lock().parts.clone()
    }

    fn reached(&self, end: u64) {
        let mut state = self.state.lock();
        state.reached = state.reached.max(end);
    }

    /// A region is done, or there are no more. Whoever is last writes the entry.
    fn settle(self: &Arc<Self>, run: &Run<'_>) -> Result<()> {
        let last = {
            let mut state = self.state.lock();
            state.outstanding -= 1;
            state.outstanding == 0
        };
        if last { self.finish(run) } else { Ok(()) }
    }

    fn finish(&self, run: &Run<'_>) -> Result<()> {
        let state = std::mem::take(&mut *self.state.lock());
        let (gathering, place) = &self.spec.result;
        let relative = gathering.directory.join(self.spec.entry.name.as_bytes());
        if state.failed.is_none()
            && let Some(part) = state.parts.last()
        {
            part.settle()?;
        }
        let outcome = match state.failed {
            Some(error) => Err(error),
            None if state.ends_at.is_some_and(|end| end < state.reached) => {
                // It was cut and has grown again: there is no state of it that this could be.
                Err(Error::file("read", &self.spec.path, changed()))
            }
            None => self.entry(run, &state),
        };
        let part = match outcome {
            Ok(entry) => {
                self.note_change(run, &relative, state.ends_at.is_some());
                run.progress.file_hashed();
                run.links.remember(&entry);
                let mut part = Part::default();
                part.add(&entry)?;
                part
            }
            Err(error @ Error::File { .. }) => {
                run.entry_failed(&relative, &error, self.spec.ignore_errors)?;
                Part::failed(&relative, &error, self.spec.ignore_errors)
            }
            Err(error) => return Err(error),
        };
        gathering.put(run, *place, part)
    }

    fn entry(&self, run: &Run<'_>, state: &LargeState) -> Result<DirEntry> {
        let objects = state.parts.iter().map(|part| part.state.lock().object.clone());
        let objects = objects.collect::<Option<Vec<Id>>>().ok_or(Error::Worker)?;
        let object = match objects.as_slice() {
            [only] => only.clone(),
            several => run.repository.concatenate(several)?,
        };
        let size = state.ends_at.unwrap_or(self.spec.entry.size);
        Ok(DirEntry { object: object.into_string(), size, ..self.spec.entry.clone() })
    }

    fn note_change(&self, run: &Run<'_>, relative: &str, is_shorter: bool) {
        let was = &self.spec.stat;
        let is_other = |now: &Stat| {
            (now.st_size, now.st_mtime, now.st_mtime_nsec) != (was.st_size, was.st_mtime, was.st_mtime_nsec)
        };
        if is_shorter || rustix::fs::fstat(&self.spec.file).is_ok_and(|now| is_other(&now)) {
            run.changed(relative);
        }
    }
}

impl Region {
    /// Reads and writes the region.
    pub(super) fn back_up(self, run: &Run<'_>) -> Result<()> {
        let (file, part) = (self.file.clone(), self.part.clone());
        match self.read_and_submit(run) {
            Ok(()) => part.settle()?,
            Err(error @ Error::File { .. }) => {
                file.state.lock().failed.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
        file.settle(run)
    }

    fn read_and_submit(self, run: &Run<'_>) -> Result<()> {
        let (spec, writer, mut buffer) = (&self.file.spec, &self.part.writer, self.buffer);
        let before = (self.offset - self.part.start).min(writer.context() as u64);
        let context = before as usize;
        let count = buffer
            .read_at(&spec.file, context + self.length, self.offset - before)
            .map_err(|e| Error::file("read", &spec.path, e))?
            .saturating_sub(context);
        let end = self.offset + count as u64;
        {
            let mut state = self.file.state.lock();
            if count > 0 {
                state.reached = state.reached.max(end);
            }
            if count < self.length {
                state.ends_at = Some(state.ends_at.map_or(end, |known| known.min(end)));
            }
        }
        run.progress.hashed(count as u64);
        if buffer.is_zero(context..context + count) {
            writer.submit_zeros(self.number, count as u64)?;
        } else {
            let preceding = buffer.get(0..context).to_vec();
            writer.submit(self.number, &preceding, buffer.into_bytes(context..context + count))?;
        }
        // What is ready and waits for more of its kind has the buffers that another thread waits for.
        if run.regions.is_awaited() {
            writer.work()?;
        }
        Ok(())
    }
}
