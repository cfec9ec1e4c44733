//! restic repositories behind the Unified Repository Interface: listed and restored, never written.
//!
//! The format is read by `rustic_core`; storage is ours, so that a repository may lie wherever ours may, and so is
//! everything above: a snapshot's tree becomes listings as movers know them, and restores go through the same target
//! code as those of any other repository.
//!
//! Objects are named by where the tree has them: `TREE` is the directory whose tree has that id, `TREE/PLACE` the
//! contents of one of its entries. `rustic_core` keeps the whole index in memory, and a directory is in memory as a
//! whole while it is listed; what files are restored through draws on the budget.

#![forbid(unsafe_code)]

mod errors;
mod listing;
pub mod location;
mod reader;
mod repository;
mod scatter;
mod service;
mod snapshots;
mod storage;

pub use repository::ResticRepository;
pub use service::{ResticService, open_store};
pub use snapshots::{DamagedSnapshot, Snapshot, SnapshotList};
