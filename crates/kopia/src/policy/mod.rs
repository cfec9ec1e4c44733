//! Policies: how sources are backed up and how long snapshots are kept, merged from the most specific to the global.

mod merge;
mod retention;
mod sections;
mod set;

pub use merge::{Definitions, merge};
pub use retention::{Retained, compute_retention};
pub use sections::{
    ActionCommand, ActionsPolicy, CompressionPolicy, DirLogging, EntryLogging, ErrorHandlingPolicy,
    FilesPolicy, LoggingPolicy, MetadataCompressionPolicy, OsSnapshotPolicy, Policy, RetentionPolicy,
    SchedulingPolicy, SplitterPolicy, TimeOfDay, UploadPolicy, VolumeShadowCopyPolicy,
};
pub use set::{DamagedPolicy, DefinedPolicy, POLICY_TYPE, PolicySet, PolicyTree, labels, remove, save};

#[cfg(test)]
mod tests;
