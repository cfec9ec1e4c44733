//! A queue of jobs for a fixed number of threads, bounded so that whoever finds work cannot run far ahead.

use crate::Error;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;

/// Runs `producer` on this thread and `work` on `threads` others until all jobs are done. The first error of either
/// side ends both; jobs that were not started by then are dropped.
pub(crate) fn run<J: Send>(
    threads: usize,
    work: impl Fn(J) -> crate::Result<()> + Sync,
    producer: impl FnOnce(&Queue<J>) -> crate::Result<()>,
) -> crate::Result<()> {
    let queue = &Queue::new(threads * JOBS_PER_THREAD);
    let work = &work;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|_| {
                scope.spawn(move || {
                    // A worker that panics must not leave the producer waiting for room.
                    let _stop = StopOnPanic(queue);
                    while let Some(job) = queue.take() {
                        if let Err(error) = work(job) {
                            queue.fail(error);
                        }
                    }
                })
            })
            .collect();
        let produced = producer(queue);
        queue.close();
        let died = workers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join)
            .filter(std::result::Result::is_err)
            .count();
        match queue.state.lock().error.take() {
            Some(error) => Err(error),
            None if died > 0 => Err(Error::Worker),
            None => produced,
        }
    })
}

/// Enough that a thread that ends a job finds the next one.
const JOBS_PER_THREAD: usize = 4;

pub(crate) struct Queue<J> {
    capacity: usize,
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    closed: bool,
    error: Option<Error>,
}

impl<J> Queue<J> {
    fn new(capacity: usize) -> Self {
        let state = State { jobs: VecDeque::new(), closed: false, error: None };
        Queue { capacity, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds a job, waiting for room. Fails if the run has failed.
    pub(crate) fn push(&self, job: J) -> crate::Result<()> {
        let mut state = self.state.lock();
        while state.jobs.len() >= self.capacity && !state.closed {
            self.changed.wait(&mut state);
        }
        if state.closed {
            // The error that closed it is what `run` returns.
            return Err(Error::Cancelled);
        }
        state.jobs.push_back(job);
        self.changed.notify_all();
        Ok(())
    }

    fn take(&self) -> Option<J> {
        let mut state = self.state.lock();
        loop {
            if state.error.is_some() {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                self.changed.notify_all();
                return Some(job);
            }
            if state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    fn fail(&self, error: Error) {
        let mut state = self.state.lock();
        state.error.get_or_insert(error);
        state.closed = true;
        drop(state);
        self.changed.notify_all();
    }
}

struct StopOnPanic<'a, J>(&'a Queue<J>);

impl<J> Drop for StopOnPanic<'_, J> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::Worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn every_job_is_done_once() {
        let sum = AtomicU64::new(0);
        let work = |job: u64| {
            sum.fetch_add(job, Ordering::Relaxed);
            Ok(())
        };
        let outcome = run(3, work, |queue| (1..=1000).try_for_each(|job| queue.push(job)));
        assert!(outcome.is_ok());
        assert_eq!(sum.into_inner(), 500_500);
    }

    #[test]
    fn the_first_error_ends_producer_and_workers() {
        let work = |job: u64| if job == 7 { Err(Error::Worker) } else { Ok(()) };
        let outcome = run(2, work, |queue| (1..).try_for_each(|job| queue.push(job)));
        assert!(matches!(outcome, Err(Error::Worker)));
    }
}
