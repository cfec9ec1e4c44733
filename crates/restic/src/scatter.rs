//! Reading many files at once, in the order of the packs.
//!
//! Files are taken in windows. The blobs of a window are sorted by where they lie, neighbours are joined into long
//! reads that are under way at the same time, and each blob is decrypted once and handed to every place that wants it.

use crate::errors::CHECK;
use crate::reader::Contents;
use crate::repository::{Place, Shared, is_hash_of};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use lifeboat_budget::Reservation;
use lifeboat_repository::{Destination, Error, ErrorKind, Result, ScatterOptions, ScatterTotals, Wanted};
use parking_lot::Mutex;
use rustic_core::{DataId, Id};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Pieces of files in a window. Each is some hundred bytes here; the more there are, the longer the reads.
const WINDOW: usize = 1 << 15;
/// The longest read of several blobs.
const LONGEST_READ: u64 = 8 << 20;
/// What lies between two blobs is read along if it is no longer than this: a read of its own takes longer.
const LONGEST_GAP: u64 = 256 << 10;
/// Reads that are under way at the same time, as far as there is memory for them.
const READS: usize = 8;
/// How often somebody asks whether to stop while the storage is silent.
const PATIENCE: Duration = Duration::from_millis(50);
/// Longer blobs are not compared with what is there: restic makes none that are longer than 8 MiB.
const LONGEST_COMPARED: u32 = 64 << 20;

/// A file of a window.
struct Job<'a> {
    to: Arc<dyn Destination + 'a>,
    length: u64,
    state: Mutex<State>,
}

struct State {
    /// Pieces that have not come.
    left: usize,
    course: Course,
}

enum Course {
    Going,
    /// Somebody has to be told why, when nobody delivers to it any more.
    Failed(Error),
    /// It does not want to hear anything more.
    BrokenOff,
}

impl Job<'_> {
    fn is_going(&self) -> bool {
        matches!(self.state.lock().course, Course::Going)
    }

    /// One piece less is to come.
    fn piece_done(&self, outcome: Result<ControlFlow<()>>) {
        let course = {
            let mut state = self.state.lock();
            if matches!(state.course, Course::Going) {
                match outcome {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => state.course = Course::BrokenOff,
                    Err(error) => state.course = Course::Failed(error),
                }
            }
            state.left -= 1;
            if state.left > 0 {
                return;
            }
            std::mem::replace(&mut state.course, Course::BrokenOff)
        };
        match course {
            Course::Going => self.to.finished(Ok(self.length)),
            Course::Failed(error) => self.to.finished(Err(error)),
            Course::BrokenOff => {}
        }
    }
}

/// A blob, and the files that want it with the offsets at which they do.
struct Blob {
    id: DataId,
    place: Place,
    wanted_by: Vec<(usize, u64)>,
}

/// Blobs that are read together.
struct Run {
    pack: Id,
    range: Range<u64>,
    blobs: Vec<Blob>,
}

#[derive(Default)]
struct Window<'a> {
    jobs: Vec<Job<'a>>,
    /// By pack and offset.
    blobs: BTreeMap<(Id, u32), Blob>,
    /// How many pieces of files they are.
    pieces: usize,
}

pub(crate) fn read<'a>(
    shared: &Shared,
    wanted: &mut dyn Iterator<Item = Wanted<'a>>,
    options: ScatterOptions<'_>,
) -> Result<ScatterTotals> {
    let mut totals = ScatterTotals::default();
    let mut is_end = false;
    while !is_end && !(options.stop)() {
        let mut window = Window::default();
        is_end = window.fill(shared, wanted, options)?;
        let Window { jobs, blobs, .. } = window;
        let read = Reading { shared, jobs: &jobs, options, outage: Mutex::default() }.run(runs(blobs))?;
        totals.reads += read.reads;
        totals.bytes += read.bytes;
    }
    Ok(totals)
}

impl<'a> Window<'a> {
    /// Takes files until there are enough; `true` if there are no more.
    fn fill(
        &mut self,
        shared: &Shared,
        wanted: &mut dyn Iterator<Item = Wanted<'a>>,
        options: ScatterOptions<'_>,
    ) -> Result<bool> {
        while self.pieces < WINDOW && !(options.stop)() {
            let Some(Wanted { id, to, compare }) = wanted.next() else { return Ok(true) };
            let added = match shared.contents(&id) {
                Ok(Contents::Held(bytes)) => {
                    if to.deliver(0, &bytes).is_continue() {
                        to.finished(Ok(bytes.len() as u64));
                    }
                    Ok(())
                }
                Ok(Contents::Blobs(content)) => self.add(shared, &content, &to, compare),
                Err(error) => Err(error),
            };
            match added {
                Ok(()) => {}
                Err(error) if concerns_everything(&error) => return Err(error),
                Err(error) => to.finished(Err(error)),
            }
        }
        Ok(false)
    }

    /// Adds a file. If one of its blobs is unknown, nothing of it is read.
    fn add(
        &mut self,
        shared: &Shared,
        content: &[DataId],
        to: &Arc<dyn Destination + 'a>,
        compare: bool,
    ) -> Result<()> {
        let places = content.iter().map(|id| shared.place(id)).collect::<Result<Vec<_>>>()?;
        let length = places.iter().map(|place| u64::from(place.plain)).sum();
        let mut offset = 0;
        let mut there = Vec::new();
        let at = self.jobs.len();
        let mut pieces = Vec::with_capacity(content.len());
        for (id, place) in content.iter().zip(places) {
            if compare && place.plain <= LONGEST_COMPARED {
                there.resize(place.plain as usize, 0);
                if to.read_back(offset, &mut there) && is_hash_of(&(*id).into(), &there) {
                    if to.kept(offset, u64::from(place.plain)).is_break() {
                        return Ok(());
                    }
                    offset += u64::from(place.plain);
                    continue;
                }
            }
            pieces.push((*id, place, offset));
            offset += u64::from(place.plain);
        }
        if pieces.is_empty() {
            to.finished(Ok(length));
            return Ok(());
        }
        let left = pieces.len();
        self.pieces += left;
        for (id, place, offset) in pieces {
            let blob = || Blob { id, place, wanted_by: Vec::new() };
            let blob = self.blobs.entry((place.pack, place.offset)).or_insert_with(blob);
            blob.wanted_by.push((at, offset));
        }
        let state = Mutex::new(State { left, course: Course::Going });
        self.jobs.push(Job { to: to.clone(), length, state });
        Ok(())
    }
}

/// Whether a failure meets everything else, too.
fn concerns_everything(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Storage | ErrorKind::Interrupted)
}

/// Joins neighbours.
fn runs(blobs: BTreeMap<(Id, u32), Blob>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for ((pack, offset), blob) in blobs {
        let range = u64::from(offset)..u64::from(offset) + u64::from(blob.place.length);
        let last = runs.last_mut().filter(|run| {
            run.pack == pack
                && range.start.saturating_sub(run.range.end) <= LONGEST_GAP
                && range.end.max(run.range.end) - run.range.start <= LONGEST_READ
        });
        match last {
            Some(run) => {
                run.range.end = run.range.end.max(range.end);
                run.blobs.push(blob);
            }
            None => runs.push(Run { pack, range, blobs: vec![blob] }),
        }
    }
    runs
}

/// A run with its bytes, or why they did not come. They are held for as long as their memory is reserved.
struct Fetched {
    run: Run,
    bytes: Result<(Bytes, Reservation)>,
}

/// What threads share while the runs of a window are read.
struct Reading<'w, 'a> {
    shared: &'w Shared,
    jobs: &'w [Job<'a>],
    options: ScatterOptions<'w>,
    /// What stops everything.
    outage: Mutex<Option<Error>>,
}

impl Reading<'_, '_> {
    fn run(&self, runs: Vec<Run>) -> Result<ScatterTotals> {
        let threads = match self.options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let (to_workers, fetched) = mpsc::channel(1);
        let fetched = Mutex::new(fetched);
        let totals = std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(&fetched));
            }
            let fetches = stream::iter(runs).map(|run| self.fetch(run)).buffer_unordered(READS);
            self.shared.storage().runtime().block_on(self.hand_out(fetches, to_workers))
        });
        match self.outage.lock().take() {
            Some(error) => Err(error),
            None => Ok(totals),
        }
    }

    fn is_over(&self) -> bool {
        self.outage.lock().is_some() || (self.options.stop)()
    }

    async fn fetch(&self, run: Run) -> Fetched {
        let largest = run.blobs.iter().map(|blob| u64::from(blob.place.plain)).max().unwrap_or_default();
        let memory = run.range.end - run.range.start + largest;
        let bytes = match self.shared.budget().reserve_async(memory).await {
            Ok(reserved) => {
                let read = self.shared.storage().read_pack(&run.pack, run.range.clone()).await;
                read.map(|bytes| (bytes, reserved))
            }
            Err(error) => Err(Error::from_source(ErrorKind::Other, error)),
        };
        Fetched { run, bytes }
    }

    async fn hand_out(
        &self,
        fetches: impl Stream<Item = Fetched>,
        to_workers: mpsc::Sender<Fetched>,
    ) -> ScatterTotals {
        let mut fetches = std::pin::pin!(fetches);
        let mut totals = ScatterTotals::default();
        while !self.is_over() {
            tokio::select! {
                fetched = fetches.next() => {
                    let Some(fetched) = fetched else { break };
                    totals.reads += 1;
                    totals.bytes += fetched.bytes.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64);
                    if to_workers.send(fetched).await.is_err() {
                        break;
                    }
                }
                () = tokio::time::sleep(PATIENCE) => {}
            }
        }
        totals
    }

    fn work(&self, fetched: &Mutex<mpsc::Receiver<Fetched>>) {
        loop {
            let next = fetched.lock().blocking_recv();
            let Some(Fetched { run, bytes }) = next else { return };
            match bytes {
                // Whoever hands out is waiting for room: take the rest, so that it sees that all is over.
                _ if self.is_over() => {}
                Ok((bytes, _reserved)) => self.deliver_run(&run, Some(&bytes)),
                // Some of the blobs may still be there: each is tried by itself.
                Err(error) if error.kind() == ErrorKind::Damaged => self.deliver_run(&run, None),
                Err(error) if concerns_everything(&error) => self.stop_with(error),
                Err(error) => {
                    for (job, _) in run.blobs.iter().flat_map(|blob| &blob.wanted_by) {
                        self.jobs[*job].piece_done(Err(Error::new(error.kind(), error.to_string())));
                    }
                }
            }
        }
    }

    fn stop_with(&self, error: Error) {
        self.outage.lock().get_or_insert(error);
    }

    fn deliver_run(&self, run: &Run, bytes: Option<&Bytes>) {
        for blob in &run.blobs {
            if self.is_over() {
                return;
            }
            let jobs = || blob.wanted_by.iter().map(|(job, offset)| (&self.jobs[*job], *offset));
            if !jobs().any(|(job, _)| job.is_going()) {
                jobs().for_each(|(job, _)| job.piece_done(Ok(ControlFlow::Continue(()))));
                continue;
            }
            match self.decrypt(run, blob, bytes) {
                Ok(data) => {
                    let is_zero = data.iter().all(|byte| *byte == 0);
                    for (job, offset) in jobs() {
                        if self.is_over() {
                            return;
                        }
                        let outcome = match job.is_going() {
                            true if is_zero => job.to.zeros(offset, data.len() as u64),
                            true => job.to.deliver(offset, &data),
                            false => ControlFlow::Continue(()),
                        };
                        job.piece_done(Ok(outcome));
                    }
                }
                Err(error) if concerns_everything(&error) => return self.stop_with(error),
                Err(error) => {
                    for (job, _) in jobs() {
                        job.piece_done(Err(Error::new(error.kind(), error.to_string())));
                    }
                }
            }
        }
    }

    fn decrypt(&self, run: &Run, blob: &Blob, bytes: Option<&Bytes>) -> Result<Bytes> {
        let Place { offset, length, plain, .. } = blob.place;
        let _staged = bytes.map(|bytes| {
            let start = (u64::from(offset) - run.range.start) as usize;
            self.shared.storage().stage(run.pack, offset, bytes.slice(start..start + length as usize))
        });
        let data = self.shared.blob(blob.id)?;
        match data.len() == plain as usize {
            true => Ok(data),
            false => {
                let text = format!(
                    "data blob {} has {} bytes instead of the {plain} that the index says; {CHECK}",
                    blob.id.to_hex().as_str(),
                    data.len()
                );
                Err(Error::new(ErrorKind::Damaged, text))
            }
        }
    }
}
