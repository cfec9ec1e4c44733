//! The byte budget of a process: one number that bounds every buffer in flight.
//!
//! A [`Budget`] is a semaphore of bytes. Code that is about to hold a buffer first takes a [`Reservation`] of its
//! size and keeps it for as long as the buffer lives; when the budget is spent, the taker waits. Whoever holds a
//! reservation must be able to finish without taking another one from the same budget, or must use
//! [`Budget::try_reserve`] for it: that rule is what makes the wait free of deadlocks.
//!
//! What the budget bounds must not pile up elsewhere: [`be_frugal`] sees to that.
//!
//! Large buffers that come and go come from a [`BufferPool`], which draws on the budget once.
//!
//! Threads wait with [`Budget::reserve`]; async code waits with [`Budget::reserve_async`].

#![deny(unsafe_code)]

mod allocator;
mod cgroup;
mod pool;
mod semaphore;

pub use allocator::be_frugal;
pub use cgroup::{CgroupLimit, default_bytes, memory_limit};
pub use pool::{Buffer, BufferPool, Loan};
pub use semaphore::{Budget, Reservation, TooLarge};
