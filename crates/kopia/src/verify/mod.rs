//! Verification: finding every damage, and what it touches, without stopping at the first one.
//!
//! [`blobs`] looks at everything that is not a content. [`contents`] compares the index with the packs, or reads everything. [`snapshots`] walks the trees of snapshots
//! and names the files that are affected.

mod blobs;
mod contents;
mod packs;
mod snapshots;

pub use blobs::{BlobDamage, BlobKind, BlobsReport, VerifyBlobs, blobs};
pub use contents::{ContentDamage, ContentsReport, VerifyContents, VerifyProgress, contents};
pub use packs::PackList;
pub use snapshots::{SnapshotDamage, SnapshotsReport, VerifySnapshots, snapshots};
