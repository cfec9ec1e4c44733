//! Moving data: a directory into a repository as a snapshot, and a snapshot back into a directory.
//!
//! Everything goes through the Unified Repository Interface; of the Kopia format only the model of snapshots and
//! directories is used, which is what trees look like in every repository of ours. All calls block: run them on
//! threads that may.

#![forbid(unsafe_code)]

mod actions;
mod backup;
mod block;
mod compression;
mod error;
mod io;
mod placeholder;
mod progress;
mod restore;
mod single;
mod snapshots;
mod source;
mod stream;

pub use backup::{BackupOptions, Counted, LogDetails, MAX_CHECKPOINT_INTERVAL, back_up, estimate};
pub use block::{BlockBackupOptions, BlockRestoreOptions, BlockRestoreReport, back_up_block, restore_block};
pub use error::{Error, Result};
pub use placeholder::{placeholder_target, read_placeholder};
pub use progress::{Cancel, Progress, Totals};
pub use restore::{Existing, PathFilter, RestoreFailure, RestoreOptions, RestoreReport, Shallow, restore};
pub use snapshots::{apply_retention, find_parents, find_snapshots, load_snapshot, save_snapshot};
pub use source::{Ignore, cache_tag, is_cache_tag, rules_in};
pub use stream::{StreamBackupOptions, back_up_stream};
