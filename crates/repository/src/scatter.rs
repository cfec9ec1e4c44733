//! Reading many objects at once, in whatever order suits the engine.

use crate::{Id, Repository, Result};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How much the plain way reads at a time.
const STEP: usize = 1 << 20;

/// Where the bytes of an object go. Called from several threads at once, in no order.
///
/// Every byte of the object comes exactly once, by one of the first three; then [`finished`](Self::finished) is called
/// once, after all other calls have returned. Whoever breaks off hears nothing more. A destination must not wait for
/// memory of the engine's budget: it may all be in use for what comes to it.
pub trait Destination: Send + Sync {
    /// Takes bytes of the object.
    fn deliver(&self, offset: u64, bytes: &[u8]) -> ControlFlow<()>;

    /// Takes a range that is all zeros.
    fn zeros(&self, offset: u64, length: u64) -> ControlFlow<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut done = 0;
        while done < length {
            let step = (length - done).min(ZEROS.len() as u64);
            self.deliver(offset + done, &ZEROS[..step as usize])?;
            done += step;
        }
        ControlFlow::Continue(())
    }

    /// Hears that a range is there already: [`read_back`](Self::read_back) gave the right bytes.
    fn kept(&self, offset: u64, length: u64) -> ControlFlow<()> {
        let _ = (offset, length);
        ControlFlow::Continue(())
    }

    /// Fills `buffer` with what the destination has at `offset`; `false` if it does not have as much. Asked only where
    /// [`Wanted::compare`] is set.
    fn read_back(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let _ = (offset, buffer);
        false
    }

    /// Hears that all of the object has come, and how long it is, or why it cannot.
    fn finished(&self, outcome: Result<u64>);
}

/// An object that is wanted.
#[derive(Clone)]
pub struct Wanted<'a> {
    /// The object.
    pub id: Id,
    /// Where it goes.
    pub to: Arc<dyn Destination + 'a>,
    /// Whether the destination may have some of it already: engines that can tell so do not read that.
    pub compare: bool,
}

impl fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wanted").field("id", &self.id).field("compare", &self.compare).finish_non_exhaustive()
    }
}

/// How objects are read.
#[derive(Clone, Copy)]
pub struct ScatterOptions<'a> {
    /// How many threads decrypt and deliver; 0 = as many as there are processors.
    pub threads: usize,
    /// Asked from time to time whether to end early.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

impl fmt::Debug for ScatterOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScatterOptions").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// What reading cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScatterTotals {
    /// Reads from the storage, as far as the engine counts them.
    pub reads: u64,
    /// Bytes that came from the storage.
    pub bytes: u64,
}

/// Reads one object after another: what every engine can do.
pub(crate) fn one_by_one<'a, R: Repository + ?Sized>(
    repository: &R,
    wanted: &mut dyn Iterator<Item = Wanted<'a>>,
    options: ScatterOptions<'_>,
) -> Result<ScatterTotals> {
    let (mut data, mut there) = (vec![0; STEP], vec![0; STEP]);
    let mut totals = ScatterTotals::default();
    for Wanted { id, to, compare } in wanted {
        if (options.stop)() {
            break;
        }
        totals.reads += 1;
        let mut read_one = || -> Result<ControlFlow<(), u64>> {
            let reader = repository.open_object(&id)?;
            let mut offset = 0;
            loop {
                let count = reader.read_at(offset, &mut data)?;
                let part = &data[..count];
                totals.bytes += count as u64;
                let answer = if count == 0 {
                    return Ok(ControlFlow::Continue(offset));
                } else if compare && to.read_back(offset, &mut there[..count]) && there[..count] == *part {
                    to.kept(offset, count as u64)
                } else if part.iter().all(|byte| *byte == 0) {
                    to.zeros(offset, count as u64)
                } else {
                    to.deliver(offset, part)
                };
                if answer.is_break() || (options.stop)() {
                    return Ok(ControlFlow::Break(()));
                }
                offset += count as u64;
            }
        };
        match read_one() {
            Ok(ControlFlow::Continue(length)) => to.finished(Ok(length)),
            Ok(ControlFlow::Break(())) => {}
            Err(error) if error.kind() == crate::ErrorKind::Storage => return Err(error),
            Err(error) => to.finished(Err(error)),
        }
    }
    Ok(totals)
}
