//! The counting part: reservations in first-come order, for threads and for futures.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

/// A request that exceeds the whole budget and therefore can never be granted.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error(
    "a buffer of {requested} bytes does not fit the memory budget of {total} bytes; \
     raise the budget (or the container's memory limit) above it"
)]
pub struct TooLarge {
    /// What was asked for.
    pub requested: u64,
    /// The size of the whole budget.
    pub total: u64,
}

/// A bounded number of bytes shared by everything that buffers. Cloning gives another handle to the same bytes.
#[derive(Clone, Debug)]
pub struct Budget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    total: u64,
    state: Mutex<State>,
    peak: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    next_ticket: u64,
    /// Waiters in order of arrival: granting strictly from the front keeps a large request from starving.
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    bytes: u64,
    granted: bool,
    waker: Waker,
}

impl Budget {
    /// A budget of `total` bytes.
    pub fn new(total: u64) -> Self {
        Budget { inner: Arc::new(Inner { total, state: Mutex::default(), peak: AtomicU64::new(0) }) }
    }

    /// The size of the whole budget.
    pub fn total(&self) -> u64 {
        self.inner.total
    }

    /// Bytes reserved now.
    pub fn used(&self) -> u64 {
        self.inner.state.lock().used
    }

    /// The most bytes that were ever reserved at once.
    pub fn peak(&self) -> u64 {
        self.inner.peak.load(Ordering::Relaxed)
    }

    /// Takes `bytes` if they are free and nobody is waiting before us.
    pub fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let mut state = self.inner.state.lock();
        if !state.waiters.is_empty() || bytes > self.inner.total - state.used {
            return None;
        }
        self.grant(&mut state, bytes);
        Some(Reservation { budget: self.clone(), bytes })
    }

    /// Waits for `bytes` without blocking a thread. Dropping the future gives up the place in the queue.
    pub fn reserve_async(
        &self,
        bytes: u64,
    ) -> impl Future<Output = Result<Reservation, TooLarge>> + Send + use<> {
        Acquire { budget: self.clone(), bytes, ticket: None }
    }

    /// Waits for `bytes` on this thread. Never call it from async code.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, TooLarge> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut acquire = Acquire { budget: self.clone(), bytes, ticket: None };
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut acquire).poll(&mut context) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    fn grant(&self, state: &mut State, bytes: u64) {
        state.used += bytes;
        self.inner.peak.fetch_max(state.used, Ordering::Relaxed);
    }

    /// Grants to waiters from the front for as long as the next one fits.
    fn wake_next(&self, state: &mut State) {
        let mut index = 0;
        while let Some(waiter) = state.waiters.get_mut(index) {
            if !waiter.granted {
                if waiter.bytes > self.inner.total - state.used {
                    break;
                }
                waiter.granted = true;
                waiter.waker.wake_by_ref();
                let bytes = waiter.bytes;
                self.grant(state, bytes);
            }
            index += 1;
        }
    }

    fn release(&self, bytes: u64) {
        let mut state = self.inner.state.lock();
        state.used -= bytes;
        self.wake_next(&mut state);
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

struct Acquire {
    budget: Budget,
    bytes: u64,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Result<Reservation, TooLarge>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let total = self.budget.inner.total;
        if self.bytes > total {
            return Poll::Ready(Err(TooLarge { requested: self.bytes, total }));
        }
        let budget = self.budget.clone();
        let mut state = budget.inner.state.lock();
        match self.ticket {
            None => {
                if state.waiters.is_empty() && self.bytes <= total - state.used {
                    budget.grant(&mut state, self.bytes);
                    drop(state);
                    return Poll::Ready(Ok(Reservation { budget, bytes: self.bytes }));
                }
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                let waker = context.waker().clone();
                state.waiters.push_back(Waiter { ticket, bytes: self.bytes, granted: false, waker });
                drop(state);
                self.ticket = Some(ticket);
                Poll::Pending
            }
            Some(ticket) => match state.waiters.iter().position(|w| w.ticket == ticket) {
                Some(place) if state.waiters[place].granted => {
                    state.waiters.remove(place);
                    drop(state);
                    self.ticket = None;
                    Poll::Ready(Ok(Reservation { budget, bytes: self.bytes }))
                }
                Some(place) => {
                    state.waiters[place].waker.clone_from(context.waker());
                    Poll::Pending
                }
                None => Poll::Pending,
            },
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.budget.inner.state.lock();
        if let Some(place) = state.waiters.iter().position(|w| w.ticket == ticket)
            && let Some(waiter) = state.waiters.remove(place)
        {
            if waiter.granted {
                state.used -= waiter.bytes;
            }
            self.budget.wake_next(&mut state);
        }
    }
}

/// Bytes taken from a [`Budget`]; they return when this is dropped.
#[derive(Debug)]
#[must_use = "dropping a reservation returns its bytes at once"]
pub struct Reservation {
    budget: Budget,
    bytes: u64,
}

impl Reservation {
    /// How many bytes this holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back all but `bytes`, once a buffer turned out smaller than what was reserved for it.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.bytes {
            let surplus = self.bytes - bytes;
            self.bytes = bytes;
            self.budget.release(surplus);
        }
    }

    /// Splits `bytes` off into a reservation of their own, for a buffer that is handed on in parts.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Reservation { budget: self.budget.clone(), bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_request_larger_than_the_budget_is_refused_at_once() {
        let budget = Budget::new(10);
        assert_eq!(budget.reserve(11).err(), Some(TooLarge { requested: 11, total: 10 }));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn reservations_return_when_dropped_and_the_peak_is_kept() {
        let budget = Budget::new(10);
        let mut first = budget.reserve(8).ok().filter(|r| r.bytes() == 8);
        assert!(first.is_some() && budget.try_reserve(3).is_none());
        if let Some(reservation) = first.as_mut() {
            reservation.shrink_to(5);
        }
        let second = budget.try_reserve(5);
        assert!(second.is_some());
        drop(first);
        drop(second);
        assert_eq!((budget.used(), budget.peak()), (0, 10));
    }

    #[test]
    fn a_large_request_is_not_starved_by_small_ones() {
        let budget = Budget::new(10);
        let held = budget.try_reserve(6);
        let large = {
            let budget = budget.clone();
            std::thread::spawn(move || budget.reserve(10).map(|r| r.bytes()))
        };
        while budget.inner.state.lock().waiters.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(budget.try_reserve(1).is_none(), "a small request must queue behind the large one");
        drop(held);
        assert_eq!(large.join().ok(), Some(Ok(10)));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn many_threads_never_exceed_the_budget() {
        let budget = Budget::new(1000);
        std::thread::scope(|scope| {
            for seed in 1..9u64 {
                let budget = &budget;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let bytes = (seed * 7919 + round * 104_729) % 400 + 1;
                        let held = budget.reserve(bytes);
                        assert!(held.is_ok() && budget.used() <= 1000);
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
        assert!(budget.peak() <= 1000);
    }

    #[test]
    fn a_dropped_waiter_lets_the_next_one_through() {
        let budget = Budget::new(10);
        let held = budget.try_reserve(10);
        let mut given_up = Box::pin(budget.reserve_async(10));
        let mut context = Context::from_waker(Waker::noop());
        assert!(given_up.as_mut().poll(&mut context).is_pending());
        let mut next = Box::pin(budget.reserve_async(4));
        assert!(next.as_mut().poll(&mut context).is_pending());
        drop(held);
        drop(given_up);
        assert!(matches!(next.as_mut().poll(&mut context), Poll::Ready(Ok(r)) if r.bytes() == 4));
    }
}
