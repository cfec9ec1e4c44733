//! Raw devices and images of them, as one object each.

mod backup;
mod restore;

pub use backup::{BlockBackupOptions, back_up_block};
pub use restore::{BlockRestoreOptions, BlockRestoreReport, restore_block};
