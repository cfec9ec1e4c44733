//! Reading many objects at once, planned by pack instead of by object.
//!
//! A **planner** turns objects into pieces (a content, and the place in the object that it belongs to) and hands them
//! on by the window. A **launcher** sorts a window by pack, joins neighbours into regions and fetches several of
//! them at a time. **Workers** open each content once and deliver it to every place that wants it. So the storage
//! sees a few long reads, each byte is decrypted once, and nothing waits for the order of an object.

mod compare;
mod launch;
mod open;
mod plan;
mod room;
mod window;

use super::{ObjectId, Objects};
use crate::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use plan::Planner;
use room::Room;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use window::{Piece, Region};

/// How long anything waits before it asks again whether the call is to end.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where the bytes of an object go. Called from several threads at once, in no order.
///
/// Every byte of the object comes exactly once, by one of the first three; then [`finished`](Self::finished) is called
/// once, after all other calls have returned. Whoever breaks off hears nothing more.
pub trait Destination: Send + Sync {
    /// Takes bytes of the object.
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()>;

    /// Takes a range that is all zeros.
    fn zeros(&self, offset: u64, length: u64) -> ControlFlow<()>;

    /// Hears that a range is there already: [`read_back`](Self::read_back) gave the right bytes.
    fn kept(&self, offset: u64, length: u64) -> ControlFlow<()>;

    /// Fills `buffer` with what the destination has at `offset`; `false` if it does not have as much. Asked only where
    /// [`Wanted::compare`] is set.
    fn read_back(&self, offset: u64, buffer: &mut [u8]) -> bool;

    /// Hears that all of the object has come, and how long it is, or why it cannot.
    fn finished(&self, outcome: Result<u64>);
}

/// An object that is wanted.
#[derive(Debug)]
pub struct Wanted<D> {
    /// The object.
    pub object: ObjectId,
    /// Where it goes.
    pub to: D,
    /// Whether the destination may have some of it already, which is then not read from the repository.
    pub compare: bool,
}

/// How objects are read.
#[derive(Clone, Copy)]
pub struct ScatterOptions<'a> {
    /// How many threads decrypt and deliver; 0 = as many as there are processors.
    pub threads: usize,
    /// Asked from time to time whether to end early.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl std::fmt::Debug for ScatterOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScatterOptions").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// What reading cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScatterTotals {
    /// Reads of packs.
    pub reads: u64,
    /// Bytes that came from the storage.
    pub bytes: u64,
}

impl Objects {
    /// Reads all of `wanted`. For a thread that may block: `wanted` is asked on it, everything else has threads of
    /// its own.
    ///
    /// What is wrong with a single object is told to its destination and stops no other. A failure of the storage
    /// as a whole is returned; then, and after a stop, destinations that were not finished hear nothing more.
    ///
    /// Destinations must not wait for memory of the repository's budget: it may all be in use for what comes to
    /// them.
    pub fn read_scattered<D: Destination>(
        &self,
        wanted: impl IntoIterator<Item = Wanted<D>>,
        options: ScatterOptions<'_>,
    ) -> Result<ScatterTotals> {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let Some(room) = Room::new(self, options.stop)? else { return Ok(ScatterTotals::default()) };
        let run = Run {
            objects: self,
            stop: options.stop,
            room,
            work: Mutex::default(),
            numbers: AtomicU64::new(0),
            halted: AtomicBool::new(false),
            failure: Mutex::default(),
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        let run = &run;
        // While one window is launched the next is planned, and no more.
        let (window_out, window_in) = mpsc::sync_channel(0);
        let (ready_out, ready_in) = mpsc::channel();
        let ready_in = Mutex::new(ready_in);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| guarded(run, || open::work(run, &ready_in)));
            }
            scope.spawn(move || guarded(run, || launch::launch(run, &window_in, &ready_out)));
            guarded(run, || Planner::new(run, window_out).plan(wanted));
        });
        match run.failure.lock().take() {
            Some(error) => Err(error),
            None => Ok(ScatterTotals {
                reads: run.reads.load(Ordering::Relaxed),
                bytes: run.bytes.load(Ordering::Relaxed),
            }),
        }
    }
}

/// Runs one of the threads. If it panics the others end, and the panic goes on to the caller.
fn guarded<D: Destination>(run: &Run<'_, D>, part: impl FnOnce() -> Result<()>) {
    struct HaltOnPanic<'a>(&'a AtomicBool);
    impl Drop for HaltOnPanic<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    let _guard = HaltOnPanic(&run.halted);
    if let Err(error) = part() {
        run.fail(error);
    }
}

/// What the threads of one call share.
struct Run<'a, D: Destination> {
    objects: &'a Objects,
    stop: &'a (dyn Fn() -> bool + Sync),
    room: Room,
    work: Mutex<HashMap<u64, Work<D>>>,
    numbers: AtomicU64,
    halted: AtomicBool,
    failure: Mutex<Option<Error>>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl<D: Destination> Run<'_, D> {
    /// Whether everything is to end.
    fn is_over(&self) -> bool {
        self.halted.load(Ordering::Relaxed) || (self.stop)()
    }

    /// Waits for the storage, or for the end of the call (then `None`).
    fn wait<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        wait_unless(&self.objects.runtime, call, || self.is_over())
    }

    /// Puts work aside and gives its number.
    fn put(&self, work: Work<D>) -> u64 {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.work.lock().insert(number, work);
        number
    }

    /// Ends everything.
    fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.halted.store(true, Ordering::Relaxed);
    }
}

/// Waits for something, or until it is to end (then `None`).
fn wait_unless<T>(runtime: &Handle, call: impl Future<Output = T>, is_over: impl Fn() -> bool) -> Option<T> {
    runtime.block_on(async {
        let mut call = std::pin::pin!(call);
        loop {
            match tokio::time::timeout(PATIENCE, &mut call).await {
                Ok(value) => return Some(value),
                Err(_) if is_over() => return None,
                Err(_) => {}
            }
        }
    })
}

/// Something for a worker to do. It waits under a number: tasks of the runtime carry that only, because what the
/// pieces point to may live no longer than the call.
enum Work<D> {
    /// A region that is being fetched, and the room that its pieces take.
    Region(Region<D>, Option<OwnedSemaphorePermit>),
    /// Contents that are still in this process's memory, and the room that their pieces take.
    Here(Vec<Piece<D>>, Option<OwnedSemaphorePermit>),
    /// Pieces whose destinations may have them already; those that do not are sent back.
    Compare(Vec<Piece<D>>, mpsc::Sender<Vec<Piece<D>>>),
}

/// The number of what can be done now and, if it is a region, its bytes.
type Ready = (u64, Option<Fetched>);

/// The bytes of a region, and the room that they take.
struct Fetched {
    bytes: lifeboat_blobs::Result<Bytes>,
    room: Option<OwnedSemaphorePermit>,
}

/// An object that is under way.
struct Object<D> {
    id: ObjectId,
    to: D,
    compare: bool,
    /// Pieces that are not delivered yet, and the planner while it may find more.
    outstanding: AtomicU64,
    /// How long the object is, as far as it is known.
    length: AtomicU64,
    broken_off: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl<D: Destination> Object<D> {
    fn new(wanted: Wanted<D>) -> Arc<Self> {
        Arc::new(Object {
            id: wanted.object,
            to: wanted.to,
            compare: wanted.compare,
            outstanding: AtomicU64::new(1),
            length: AtomicU64::new(0),
            broken_off: AtomicBool::new(false),
            error: Mutex::new(None),
        })
    }

    /// Whether more bytes are of any use.
    fn is_wanted(&self) -> bool {
        !self.broken_off.load(Ordering::Relaxed)
    }

    fn heard(&self, answer: ControlFlow<()>) {
        if answer.is_break() {
            self.broken_off.store(true, Ordering::Relaxed);
        }
    }

    /// The first failure counts.
    fn failed(&self, error: Error) {
        self.error.lock().get_or_insert(error);
    }

    /// A piece, or the planner, is done with it.
    fn release(&self) {
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 && self.is_wanted() {
            let length = self.length.load(Ordering::Relaxed);
            self.to.finished(self.error.lock().take().map_or(Ok(length), Err));
        }
    }
}
