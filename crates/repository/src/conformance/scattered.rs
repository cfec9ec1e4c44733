//! Scenarios of [`Repository::read_scattered`].

use super::{Harness, Object, fresh, noise, write};
use crate::{Destination, Error, ErrorKind, Id, Repository, Result, ScatterOptions, ScatterTotals, Wanted};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

/// Collects an object in memory, and that it comes by the rules.
#[derive(Default)]
struct Collected {
    /// What was here before.
    before: Vec<u8>,
    break_off: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// How often each byte came.
    came: Vec<u8>,
    delivered: u64,
    kept: u64,
    outcome: Option<Result<u64>>,
}

impl Collected {
    fn take(&self, offset: u64, bytes: &[u8], kept: bool) -> ControlFlow<()> {
        let mut state = self.state.lock().unwrap();
        assert!(state.outcome.is_none(), "bytes after the end");
        let range = offset as usize..offset as usize + bytes.len();
        let end = range.end.max(state.bytes.len());
        state.bytes.resize(end, 0);
        state.came.resize(end, 0);
        state.bytes[range.clone()].copy_from_slice(bytes);
        state.came[range].iter_mut().for_each(|count| *count += 1);
        *(if kept { &mut state.kept } else { &mut state.delivered }) += bytes.len() as u64;
        if self.break_off { ControlFlow::Break(()) } else { GO_ON }
    }

    fn assert_is(&self, data: &[u8], what: &str) {
        let state = self.state.lock().unwrap();
        match &state.outcome {
            Some(Ok(length)) => assert_eq!(*length, data.len() as u64, "length of {what}"),
            other => panic!("{what} did not come: {other:?}"),
        }
        assert!(state.bytes == data, "bytes of {what}");
        assert!(state.came.iter().all(|count| *count == 1), "every byte of {what} comes once");
    }
}

impl Destination for Collected {
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()> {
        self.take(offset, bytes, false)
    }

    fn kept(&self, offset: u64, length: u64) -> ControlFlow<()> {
        self.take(offset, &self.before[offset as usize..(offset + length) as usize], true)
    }

    fn read_back(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let there = self.before.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        there.map(|there| buffer.copy_from_slice(there)).is_some()
    }

    fn finished(&self, outcome: Result<u64>) {
        let before = self.state.lock().unwrap().outcome.replace(outcome);
        assert!(before.is_none(), "an object ends once");
    }
}

fn read_all(
    repository: &dyn Repository,
    wanted: impl IntoIterator<Item = (Id, Arc<Collected>)>,
) -> ScatterTotals {
    let wanted = wanted.into_iter();
    let mut wanted = wanted.map(|(id, to)| Wanted { id, compare: !to.before.is_empty(), to });
    repository.read_scattered(&mut wanted, ScatterOptions { threads: 3, stop: &|| false }).unwrap()
}

/// Objects of every awkward kind: empty, small, equal to another, of several chunks, zeros.
fn samples() -> Vec<Vec<u8>> {
    let mut samples: Vec<Vec<u8>> = (0..200).map(|seed| noise(seed, seed as usize * 17)).collect();
    samples.extend([noise(1, 5 << 20), noise(2, 23 << 20), noise(1, 5 << 20), vec![0; 9 << 20], Vec::new()]);
    let mut mixed = noise(3, 12 << 20);
    mixed[3 << 20..9 << 20].fill(0);
    samples.push(mixed);
    samples
}

pub(super) fn many_objects(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let samples = samples();
    let ids: Vec<Id> = samples.iter().map(|data| write(&*repository, data)).collect();
    let objects: Vec<Object> = ids.into_iter().zip(samples).collect();
    come_together(&*repository, &objects, "before the flush");
    repository.flush().unwrap();
    come_together(&*repository, &objects, "after the flush");
    come_together(&*harness.service().open(&options).unwrap(), &objects, "in another handle");
}

/// Reads objects together, each of which has to come.
pub(super) fn come_together(repository: &dyn Repository, objects: &[Object], when: &str) {
    let to: Vec<Arc<Collected>> = objects.iter().map(|_| Arc::default()).collect();
    read_all(repository, objects.iter().map(|(id, _)| id.clone()).zip(to.iter().cloned()));
    for (number, (to, (_, data))) in to.iter().zip(objects).enumerate() {
        to.assert_is(data, &format!("object {number} {when}"));
    }
}

pub(super) fn bad_ones_stop_nobody(harness: &dyn Harness) {
    let (options, repository) = fresh(harness);
    let samples = samples();
    let ids: Vec<Id> = samples.iter().map(|data| write(&*repository, data)).collect();
    repository.flush().unwrap();
    let lost = write(&*repository, b"never flushed");
    drop(repository);
    let repository = harness.service().open(&options).unwrap();
    let (missing, nonsense) = (Arc::<Collected>::default(), Arc::<Collected>::default());
    let to: Vec<Arc<Collected>> = samples.iter().map(|_| Arc::default()).collect();
    let bad = [(lost, missing.clone()), (Id::new("no such id"), nonsense.clone())];
    read_all(&*repository, bad.into_iter().chain(ids.into_iter().zip(to.iter().cloned())));
    let kind = |to: &Collected| {
        let error: Option<Error> = to.state.lock().unwrap().outcome.take().and_then(Result::err);
        error.map(|error| error.kind())
    };
    assert_eq!(kind(&missing), Some(ErrorKind::NotFound));
    assert_eq!(kind(&nonsense), Some(ErrorKind::InvalidInput));
    to.iter().zip(&samples).for_each(|(to, data)| to.assert_is(data, "a good object"));
}

pub(super) fn what_is_there_is_kept(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let data = noise(5, 60 << 20);
    let id = write(&*repository, &data);
    repository.flush().unwrap();
    let kept = keeps_what_is_there(&*repository, &(id, data));
    assert!(kept > 30 << 20, "kept {kept}");
}

/// Reads an object to where its first five sixths are, but for one bit; tells how much of it was kept.
pub(super) fn keeps_what_is_there(repository: &dyn Repository, (id, data): &Object) -> u64 {
    let mut before = data[..data.len() / 6 * 5].to_vec();
    before[data.len() / 3] ^= 1;
    let missing = (data.len() - before.len()) as u64;
    let to = Arc::new(Collected { before, ..Collected::default() });
    read_all(repository, [(id.clone(), to.clone())]);
    to.assert_is(data, "an object of which some was there");
    let state = to.state.lock().unwrap();
    assert!(state.delivered > missing, "delivered {} of {missing} and a bit", state.delivered);
    state.kept
}

pub(super) fn breaking_off(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let (long, short) = (noise(6, 40 << 20), noise(7, 1000));
    let (long_id, short_id) = (write(&*repository, &long), write(&*repository, &short));
    repository.flush().unwrap();
    breaks_off(&*repository, &long_id, &(short_id, short));
}

/// Reads two objects, the first of which is not wanted any more when it begins.
pub(super) fn breaks_off(repository: &dyn Repository, long: &Id, (short_id, short): &Object) {
    let uninterested = Arc::new(Collected { break_off: true, ..Collected::default() });
    let other = Arc::<Collected>::default();
    read_all(repository, [(long.clone(), uninterested.clone()), (short_id.clone(), other.clone())]);
    other.assert_is(short, "the other object");
    assert!(uninterested.state.lock().unwrap().outcome.is_none(), "who broke off hears nothing more");
}

/// Waits at its first bytes until the reader was told to stop.
struct Slow<'a> {
    started: &'a AtomicBool,
    finished: &'a AtomicUsize,
}

impl Destination for Slow<'_> {
    fn deliver(&self, _: u64, _: &[u8]) -> ControlFlow<()> {
        self.started.store(true, Ordering::Relaxed);
        GO_ON
    }

    fn finished(&self, outcome: Result<u64>) {
        outcome.unwrap();
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn stopping(harness: &dyn Harness) {
    let (_, repository) = fresh(harness);
    let id = write(&*repository, &noise(8, 3 << 20));
    repository.flush().unwrap();
    stops(&*repository, &id);
}

/// Reads an object again and again until it is told to stop.
pub(super) fn stops(repository: &dyn Repository, id: &Id) {
    let (started, finished) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut asked = 0u64;
    // It never ends by itself.
    let mut endless = std::iter::repeat_with(|| {
        asked += 1;
        let to = Arc::new(Slow { started: &started, finished: &finished });
        Wanted { id: id.clone(), to, compare: false }
    });
    let stop = || started.load(Ordering::Relaxed);
    repository.read_scattered(&mut endless, ScatterOptions { threads: 2, stop: &stop }).unwrap();
    assert!((finished.load(Ordering::Relaxed) as u64) < asked, "a stop does not wait for everything");
}
