//! What repair found, what it did, and what is left.

use crate::content::UnreadPack;
use crate::verify::{BlobDamage, ContentDamage, SnapshotDamage};
use std::fmt;

/// Something that is not as it should be.
#[derive(Debug)]
pub enum Finding {
    /// A blob.
    Blob(BlobDamage),
    /// A content that cannot be read.
    Content(ContentDamage),
    /// A file or directory of a snapshot that cannot be restored.
    Snapshot(Box<SnapshotDamage>),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Blob(damage) => damage.fmt(f),
            Finding::Content(damage) => damage.fmt(f),
            Finding::Snapshot(damage) => damage.fmt(f),
        }
    }
}

/// Something that was done, or in a dry run would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// The schedule of maintenance begins anew.
    ScheduleReset,
    /// A marker or watermark was written again.
    MarkerWritten {
        /// The blob.
        blob: String,
    },
    /// The index was recovered from the packs.
    IndexRecovered {
        /// Entries that were not in the index.
        entries: u64,
        /// Packs that were read.
        packs: u64,
        /// Packs that could not be.
        unreadable_packs: u64,
    },
    /// All of the index was merged into one set for epochs of which nothing was left.
    EpochsFilled {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// An index blob that nobody can read was removed.
    IndexBlobRemoved {
        /// The blob.
        blob: String,
    },
    /// Contents that cannot be read were marked as deleted, so that the next backup of their data writes them again.
    ContentsForgotten {
        /// How many.
        count: u64,
    },
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::ScheduleReset => write!(f, "the maintenance schedule begins anew"),
            Remedy::MarkerWritten { blob } => write!(f, "{blob} is written again"),
            Remedy::IndexRecovered { entries, packs, unreadable_packs: 0 } => {
                write!(f, "{entries} index entries are recovered from {packs} packs")
            }
            Remedy::IndexRecovered { entries, packs, unreadable_packs } => write!(
                f,
                "{entries} index entries are recovered from {packs} packs; {unreadable_packs} packs cannot be read, what \
                 only they know is lost"
            ),
            Remedy::EpochsFilled { first, last } => {
                write!(f, "the index is merged into one set for epochs {first} to {last}")
            }
            Remedy::IndexBlobRemoved { blob } => write!(f, "{blob} is removed"),
            Remedy::ContentsForgotten { count } => write!(
                f,
                "{count} contents that cannot be read are marked as deleted: back up their sources again and they come back"
            ),
        }
    }
}

/// What was done, and what is left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What was done, in order.
    pub remedies: Vec<Remedy>,
    /// Blobs that were not as they should be.
    pub blobs: u64,
    /// A pack that was not read when the index was recovered. What is damaged of the index then stays as it is, until a repair
    /// has read every pack.
    pub unread_pack: Option<UnreadPack>,
    /// Contents that are lost for now.
    pub lost_contents: u64,
    /// Those of them that hold manifests: snapshots and policies in them are lost for good.
    pub lost_manifests: u64,
    /// Files and directories of snapshots that cannot be restored for now.
    pub damaged_files: u64,
}

impl RepairReport {
    pub(super) fn done(&mut self, remedy: Remedy) {
        tracing::info!(%remedy, "repair");
        self.remedies.push(remedy);
    }

    /// Whether nothing is left that a backup or a person has to see to.
    pub fn is_whole(&self) -> bool {
        self.lost_contents == 0 && self.damaged_files == 0 && self.unread_pack.is_none()
    }
}
