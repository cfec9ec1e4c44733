//! The index under epochs: which of its blobs are in force, and how a client adds one.
//!
//! Clients write index blobs into the current *epoch*. Whoever sees that enough was written advances the epoch and
//! merges the blobs of one that nobody can be writing into any more; maintenance merges, from time to time, all epochs up to
//! then into a *range checkpoint*. There are no locks: the rules rest on storage timestamps, on the order of
//! writes, and on clients never trusting what they know for longer than a fixed time.
//!
//! [`names`], [`sets`] and [`EpochState`] are pure functions of a listing. [`EpochIndex`] lists and writes.

mod manager;
pub mod names;
pub mod sets;
mod state;

pub use manager::{Committed, EpochIndex, Listing};
pub use state::{EpochState, Hole, Superseded};
