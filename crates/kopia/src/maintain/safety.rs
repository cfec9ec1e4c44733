//! The margins that make maintenance safe beside other clients, which take no locks.

use jiff::SignedDuration;

/// How long maintenance waits, and for what, before it takes away something that another client may still need.
///
/// There are no locks in a repository. What keeps clients from hurting each other is that every one of them relies
/// on what it knows for a limited time only (the index for 20 minutes, plus as much for a flush), and that nothing is
/// taken away before all of these times have passed. Kopia uses the same values, and has since 0.17.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Safety {
    /// `snapshot-gc` marks a content that no snapshot needs only if it is older than this: younger ones may belong
    /// to a backup whose snapshot is not saved yet.
    pub min_content_age_for_gc: SignedDuration,
    /// Two runs of `snapshot-gc` count as two only if so much time lies between them: every backup that was under
    /// way in the first has saved a snapshot or a checkpoint (at least every 45 minutes) that the second one sees.
    pub margin_between_gc_cycles: SignedDuration,
    /// Deletions are dropped from the index only if they are older than the cycle that confirmed them by this.
    pub extra_margin_for_drop: SignedDuration,
    /// Whether a deletion is dropped only after a second run of `snapshot-gc` could have taken it back.
    pub two_gc_cycles: bool,
    /// Contents that are younger are not rewritten into other packs.
    pub min_content_age_for_rewrite: SignedDuration,
    /// From the end of a rewrite to the deletion of the packs that it emptied: clients whose index is older still
    /// read from them.
    pub rewrite_to_deletion_delay: SignedDuration,
    /// Packs that no index names are left alone until they are this old: their index may be on its way.
    pub min_pack_age: SignedDuration,
    /// Packs of a session are left alone for so long after the last sign of life of its writer.
    pub session_expiration: SignedDuration,
    /// The most that the clocks of this machine and of the store may differ.
    pub max_clock_skew: SignedDuration,
    /// How long replaced blobs of the legacy index stay, and then the logs that say what replaced them.
    pub legacy_index_settle_time: SignedDuration,
}

impl Safety {
    /// The margins for everyday use, with other clients active.
    pub const FULL: Safety = Safety {
        min_content_age_for_gc: SignedDuration::from_hours(24),
        margin_between_gc_cycles: SignedDuration::from_hours(4),
        extra_margin_for_drop: SignedDuration::from_hours(1),
        two_gc_cycles: true,
        min_content_age_for_rewrite: SignedDuration::from_hours(2),
        rewrite_to_deletion_delay: SignedDuration::from_hours(1),
        min_pack_age: SignedDuration::from_hours(24),
        session_expiration: SignedDuration::from_hours(96),
        max_clock_skew: SignedDuration::from_mins(5),
        legacy_index_settle_time: SignedDuration::from_hours(1),
    };

    /// No margins: everything that nothing needs goes at once. **Only if no other client is active**, not even one
    /// that reads. The clocks must still agree: they decide what is older than what.
    pub const NONE: Safety = Safety {
        min_content_age_for_gc: SignedDuration::ZERO,
        margin_between_gc_cycles: SignedDuration::ZERO,
        extra_margin_for_drop: SignedDuration::ZERO,
        two_gc_cycles: false,
        min_content_age_for_rewrite: SignedDuration::ZERO,
        rewrite_to_deletion_delay: SignedDuration::ZERO,
        min_pack_age: SignedDuration::ZERO,
        session_expiration: SignedDuration::ZERO,
        max_clock_skew: SignedDuration::from_mins(5),
        legacy_index_settle_time: SignedDuration::ZERO,
    };
}
