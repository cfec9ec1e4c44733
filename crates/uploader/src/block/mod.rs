//! Raw devices and images of them, as one object each.

mod restore;

pub use restore::{BlockRestoreOptions, BlockRestoreReport, restore_block};
