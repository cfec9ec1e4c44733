//! Restoring: exactly, by every policy, from hostile and damaged snapshots, through faults, and to block devices.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod block;
mod faults;
mod fidelity;
mod fixture;
mod hostile;
mod names;
mod owner;
mod policies;
