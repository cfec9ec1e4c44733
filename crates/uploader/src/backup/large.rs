//! Large files, in regions: threads take turns in reading and cutting them, and write them at the same time.

use super::Run;
use super::directory::{Directory, Part};
use super::entry::is_rewritten;
use super::schedule::Supply;
use crate::io::{read_ahead, read_at};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::DirEntry;
use lifeboat_repository::{ErrorKind, Id, ObjectWriteOptions, Pieces, RegionWriter};
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
    /// The schedule sees to it that only one thread at a time takes a region.
    supply: Mutex<LargeSupply>,
    state: Mutex<LargeState>,
}

/// Where the next region begins.
#[derive(Debug)]
struct LargeSupply {
    at: u64,
    /// How long the file is: less than it was when it ends before that.
    size: u64,
    /// Where the part that is being read ends.
    part_end: u64,
}

#[derive(Debug, Default)]
struct LargeState {
    parts: Vec<Arc<FilePart>>,
    /// Regions that are being written.
    outstanding: usize,
    /// Whether there will be no more.
    is_read: bool,
    /// How long the file turned out to be.
    size: u64,
    failed: Option<Error>,
}

/// A part of a file that is an object of its own.
pub(super) struct FilePart {
    writer: Box<dyn RegionWriter>,
    state: Mutex<PartState>,
}

#[derive(Debug, Default)]
struct PartState {
    /// Regions that are being written.
    outstanding: usize,
    /// Whether there will be no more.
    is_read: bool,
    /// How many bytes the regions have.
    bytes: u64,
    object: Option<Id>,
}

impl std::fmt::Debug for FilePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilePart").field("state", &self.state).finish_non_exhaustive()
    }
}

impl FilePart {
    /// An object that holds what was written so far, and its length, if anything was.
    pub(super) fn so_far(&self) -> Result<Option<(Id, u64)>> {
        let complete = {
            let state = self.state.lock();
            state.object.clone().map(|object| (object, state.bytes))
        };
        match complete {
            Some(whole) => Ok(Some(whole)),
            None => Ok(self.writer.checkpoint()?),
        }
    }

    /// A region was written. Whoever writes the last one completes the object.
    fn region_written(&self) -> Result<()> {
        let last = {
            let mut state = self.state.lock();
            state.outstanding -= 1;
            state.outstanding == 0 && state.is_read
        };
        if last {
            let object = self.writer.result()?;
            self.state.lock().object = Some(object);
        }
        Ok(())
    }
}

/// A region that was read and cut.
struct Region {
    pieces: Pieces,
    /// Whether the file ends with it.
    is_last: bool,
}

impl LargeFile {
    pub(super) fn new(spec: LargeSpec) -> Self {
        let size = spec.entry.size;
        let supply = LargeSupply { at: 0, size, part_end: 0 };
        LargeFile { spec, supply: Mutex::new(supply), state: Mutex::default() }
    }

    /// Reads and cuts the next region, lets others go on from there, and writes it.
    pub(super) fn back_up_region(self: &Arc<Self>, run: &Run<'_>) -> Result<()> {
        let part = self.part(run)?;
        let size = (part.writer.longest_piece(), self.left());
        run.rooms.with(run.repository, size, |mut buffer| match self.take(run, &part, buffer.as_mut()) {
            Ok(region) => {
                let supply = if region.is_last { Supply::Exhausted } else { Supply::More };
                run.schedule.put_back_large(self, supply);
                part.writer.write(buffer, &region.pieces)?;
                part.region_written()?;
                run.progress.hashed(region.pieces.bytes());
                self.settle(run, |state| state.outstanding -= 1)
            }
            Err(error @ Error::File { .. }) => {
                run.schedule.put_back_large(self, Supply::Exhausted);
                self.settle(run, |state| {
                    state.is_read = true;
                    state.failed = Some(error);
                })
            }
            Err(error) => Err(error),
        })
    }

    /// How much of the file is left to be read.
    fn left(&self) -> u64 {
        let supply = self.supply.lock();
        supply.size.saturating_sub(supply.at)
    }

    /// The part that the next region belongs to.
    fn part(&self, run: &Run<'_>) -> Result<Arc<FilePart>> {
        let mut supply = self.supply.lock();
        if supply.at < supply.part_end
            && let Some(part) = self.state.lock().parts.last()
        {
            return Ok(part.clone());
        }
        let writer = run.repository.new_object_by_regions(&self.spec.options)?;
        let part = Arc::new(FilePart { writer, state: Mutex::default() });
        self.state.lock().parts.push(part.clone());
        supply.part_end = self.spec.part_size.map_or(u64::MAX, |size| supply.at.saturating_add(size));
        Ok(part)
    }

    /// Reads and cuts the next region.
    fn take(&self, run: &Run<'_>, part: &FilePart, room: &mut [u8]) -> Result<Region> {
        run.check()?;
        let mut supply = self.supply.lock();
        let limit = supply.part_end.min(supply.size);
        let (data, hole) = self.next_data(supply.at)?;
        let zeros = data.min(limit) - supply.at;
        let mut pieces = part.writer.cut_zeros(zeros).map_err(|error| self.refused(error))?;
        let mut is_end = false;
        if pieces.bytes() > 0 {
            if supply.at + pieces.bytes() == limit {
                part.writer.cut(&[], true).map_err(|error| self.refused(error))?;
                is_end = true;
            }
        } else {
            // Of a hole behind the data no more than is needed to find the end of a piece.
            let end = limit.min(hole.saturating_add(part.writer.longest_piece() as u64));
            let wanted = room.len().min(usize::try_from(end - supply.at).unwrap_or(usize::MAX));
            let length = read_at(&self.spec.file, &mut room[..wanted], supply.at)
                .map_err(|e| Error::file("read", &self.spec.path, e))?;
            let read_until = supply.at + length as u64;
            // Not into a hole, which would be memory full of zeros.
            read_ahead(&self.spec.file, read_until..(read_until + room.len() as u64).min(limit).min(hole));
            if length < wanted {
                supply.size = read_until;
            }
            is_end = read_until == limit.min(supply.size);
            pieces = part.writer.cut(&room[..length], is_end).map_err(|error| self.refused(error))?;
        }
        supply.at += pieces.bytes();
        let is_last = is_end && supply.at == supply.size;
        {
            let mut state = part.state.lock();
            state.outstanding += 1;
            state.is_read = is_end;
            state.bytes += pieces.bytes();
        }
        let mut state = self.state.lock();
        state.outstanding += 1;
        state.is_read = is_last;
        state.size = supply.at;
        Ok(Region { pieces, is_last })
    }

    /// An error of the repository. What it cannot take, such as a file of too many pieces, is the file's failure and
    /// not the backup's.
    fn refused(&self, error: lifeboat_repository::Error) -> Error {
        match error.kind() {
            ErrorKind::InvalidInput => Error::file("store", &self.spec.path, std::io::Error::other(error)),
            _ => error.into(),
        }
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

    /// Notes how the work has gone on. Whoever brings it to its end writes the entry.
    fn settle(&self, run: &Run<'_>, note: impl FnOnce(&mut LargeState)) -> Result<()> {
        let mut state = {
            let mut state = self.state.lock();
            note(&mut state);
            if state.outstanding > 0 || !state.is_read {
                return Ok(());
            }
            std::mem::take(&mut *state)
        };
        let (gathering, place) = &self.spec.result;
        let relative = gathering.directory.join(self.spec.entry.name.as_bytes());
        let outcome = match state.failed.take() {
            None => self.entry(run, &state),
            Some(error) => Err(error),
        };
        let part = match outcome {
            Ok(entry) => {
                self.note_change(run, &relative, entry.size);
                run.progress.file_hashed();
                run.links.remember(&entry);
                gathering.directory.details.file_done(|| relative.clone(), &entry);
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
            several => run.repository.concatenate(several).map_err(|error| self.refused(error))?,
        };
        Ok(DirEntry { object: object.into_string(), size: state.size, ..self.spec.entry.clone() })
    }

    fn note_change(&self, run: &Run<'_>, relative: &str, size: u64) {
        let is_shorter = size < self.spec.entry.size;
        let is_rewritten = |now| is_rewritten(&self.spec.stat, &now);
        if is_shorter || rustix::fs::fstat(&self.spec.file).is_ok_and(is_rewritten) {
            run.changed(relative);
        }
    }
}
