//! Which piece of work is next, for any number of threads.
//!
//! Directories are a stack, so that the threads together walk depth first: what is open at any moment is about one
//! path for each thread, however wide the tree. Large files come before everything else.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Whether a source of work has more of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Supply {
    /// There may be more.
    More,
    /// Not before something that is being worked on is done.
    Later,
    /// There is no more.
    Exhausted,
}

/// Something that pieces of work are taken from.
#[derive(Debug)]
pub(super) enum Source<D, L> {
    Directory(Arc<D>),
    Large(Arc<L>),
}

/// The sources of work.
#[derive(Debug)]
pub(super) struct Schedule<D, L> {
    state: Mutex<State<D, L>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<D, L> {
    stack: Vec<Waiting<D>>,
    large: VecDeque<Waiting<L>>,
    /// Threads that have taken something and are not done with it.
    busy: usize,
    stopped: bool,
}

#[derive(Debug)]
struct Waiting<T> {
    source: Arc<T>,
    /// Some thread is taking a piece of work from it.
    taken: bool,
    /// It has nothing to give before something else is done.
    later: bool,
}

impl<T> Waiting<T> {
    fn new(source: Arc<T>) -> Self {
        Waiting { source, taken: false, later: false }
    }

    fn take(&mut self) -> Option<Arc<T>> {
        if self.taken || self.later {
            return None;
        }
        self.taken = true;
        Some(self.source.clone())
    }
}

impl<D, L> Default for Schedule<D, L> {
    fn default() -> Self {
        let state = State { stack: Vec::new(), large: VecDeque::new(), busy: 0, stopped: false };
        Schedule { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<D, L> Schedule<D, L> {
    /// Adds a directory, to be walked before those that are there.
    pub(super) fn push(&self, directory: Arc<D>) {
        self.state.lock().stack.push(Waiting::new(directory));
        self.changed.notify_all();
    }

    /// Adds a large file, to be read after those that are there.
    pub(super) fn push_large(&self, file: Arc<L>) {
        self.state.lock().large.push_back(Waiting::new(file));
        self.changed.notify_all();
    }

    /// The source to take the next piece of work from; `None` when all is done, or stopped. Until it is
    /// [put back](Self::put_back) nobody else gets it, and until the piece is [done](Self::done) the work goes on.
    pub(super) fn take(&self) -> Option<Source<D, L>> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(source) = state.next() {
                state.busy += 1;
                return Some(source);
            }
            if state.busy == 0 && state.stack.is_empty() && state.large.is_empty() {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// The large file to help with while more than `limit` of them wait, for a thread that is in the middle of
    /// something; `None` when there are no more than that.
    pub(super) fn take_large(&self, limit: usize) -> Option<Arc<L>> {
        let mut state = self.state.lock();
        while state.large.len() > limit && !state.stopped {
            if let Some(file) = state.large.iter_mut().find_map(Waiting::take) {
                state.busy += 1;
                return Some(file);
            }
            self.changed.wait(&mut state);
        }
        None
    }

    /// Returns a directory that was taken.
    pub(super) fn put_back(&self, directory: &Arc<D>, supply: Supply) {
        let mut state = self.state.lock();
        let place = state.stack.iter().rposition(|waiting| Arc::ptr_eq(&waiting.source, directory));
        if let Some(place) = place {
            match supply {
                Supply::Exhausted => drop(state.stack.remove(place)),
                more => state.stack[place].put_back(more),
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Returns a large file that was taken.
    pub(super) fn put_back_large(&self, file: &Arc<L>, supply: Supply) {
        let mut state = self.state.lock();
        let place = state.large.iter().position(|waiting| Arc::ptr_eq(&waiting.source, file));
        if let Some(place) = place {
            match supply {
                Supply::Exhausted => drop(state.large.remove(place)),
                more => state.large[place].put_back(more),
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A piece of work is done.
    pub(super) fn done(&self) {
        let mut state = self.state.lock();
        state.busy -= 1;
        state.stack.iter_mut().for_each(|waiting| waiting.later = false);
        drop(state);
        self.changed.notify_all();
    }

    /// Ends it: nobody gets anything any more.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl<T> Waiting<T> {
    fn put_back(&mut self, supply: Supply) {
        self.taken = false;
        self.later = supply == Supply::Later;
    }
}

impl<D, L> State<D, L> {
    fn next(&mut self) -> Option<Source<D, L>> {
        if let Some(file) = self.large.iter_mut().find_map(Waiting::take) {
            return Some(Source::Large(file));
        }
        self.stack.iter_mut().rev().find_map(Waiting::take).map(Source::Directory)
    }
}
