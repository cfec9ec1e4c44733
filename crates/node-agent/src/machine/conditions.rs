//! The conditions of the table.

use super::{Hosting, Observation, Responsible, Suitable};
use lifeboat_exposer::Kind;

/// Something that is or is not so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// It names another mover.
    Foreign,
    /// It asks for what cannot be done.
    Impossible,
    /// Another agent is responsible and alive.
    OthersTurn,
    /// Our finalizer is not on it.
    NoFinalizer,
    /// Our finalizer is on it.
    Finalizer,
    /// Somebody wants it stopped.
    CancelRequested,
    /// It was deleted, and nobody has asked for it to be stopped.
    DeletedButNotCanceled,
    /// A pod waits for what it did not bring and will not bring, and nobody has told that pod.
    Untold,
    /// Hosting objects exist.
    Leftovers,
    /// It is recorded that all data was moved.
    Moved,
    /// A restored volume has not reached its claim.
    NotHandedOver,
    /// The claim of a restored volume is gone, or has another volume.
    Unclaimable,
    /// A restored volume does not reach its claim in time.
    HandOverOverdue,
    /// A restored volume does not say that it is kept.
    NotKept,
    /// What it works on is not there yet.
    NotYet,
    /// Enough operations are being prepared.
    QueueFull,
    /// The node moves as many volumes as it may.
    SlotsFull,
    /// Preparing takes too long.
    PrepareOverdue,
    /// Stopping takes too long.
    CancelOverdue,
    /// There were enough movers.
    AttemptsExhausted,
    /// There is no hosting pod.
    PodAbsent,
    /// The hosting pod is being made.
    PodPreparing,
    /// The hosting pod runs.
    PodRunning,
    /// The hosting pod is being deleted.
    PodEnding,
    /// The hosting pod is on another node than before.
    PodElsewhere,
    /// The mover has moved everything.
    PodSucceeded,
    /// The mover has stopped as it was told.
    PodCanceled,
    /// The mover has ended in an error.
    PodFailed,
    /// The hosting pod cannot run.
    PodBroken,
    /// The hosting pod has ended, in whatever way.
    PodEnded,
}

impl Condition {
    /// Whether it is so.
    #[must_use]
    pub fn holds(self, seen: &Observation) -> bool {
        let pod = |state| seen.hosting == state;
        match self {
            Self::Foreign => seen.suitable == Suitable::Foreign,
            Self::Impossible => seen.suitable == Suitable::Impossible,
            Self::OthersTurn => seen.responsible == Responsible::Other,
            Self::NoFinalizer => !seen.finalizer,
            Self::Finalizer => seen.finalizer,
            Self::CancelRequested => seen.cancel,
            Self::DeletedButNotCanceled => seen.deleting && !seen.cancel,
            Self::Untold => seen.untold,
            Self::Leftovers => seen.leftovers,
            Self::Moved => seen.moved,
            Self::NotHandedOver => seen.kind == Kind::DataDownload && !seen.handed_over,
            Self::Unclaimable => seen.unclaimable,
            Self::HandOverOverdue => seen.hand_over_overdue,
            Self::NotKept => !seen.kept,
            Self::NotYet => seen.not_yet,
            Self::QueueFull => seen.queue_full,
            Self::SlotsFull => seen.slots_full,
            Self::PrepareOverdue => seen.prepare_overdue,
            Self::CancelOverdue => seen.cancel_overdue,
            Self::AttemptsExhausted => seen.attempts_exhausted,
            Self::PodAbsent => pod(Hosting::Absent),
            Self::PodPreparing => pod(Hosting::Preparing),
            Self::PodRunning => pod(Hosting::Running),
            Self::PodEnding => pod(Hosting::Ending),
            Self::PodElsewhere => seen.elsewhere,
            Self::PodSucceeded => pod(Hosting::Succeeded),
            Self::PodCanceled => pod(Hosting::Canceled),
            Self::PodFailed => pod(Hosting::Failed),
            Self::PodBroken => pod(Hosting::Broken),
            Self::PodEnded => {
                matches!(seen.hosting, Hosting::Succeeded | Hosting::Canceled | Hosting::Failed)
            }
        }
    }

    /// The condition in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Foreign => "names another mover",
            Self::Impossible => "asks for what cannot be done",
            Self::OthersTurn => "another live agent is responsible",
            Self::NoFinalizer => "no finalizer",
            Self::Finalizer => "finalizer",
            Self::CancelRequested => "cancel requested",
            Self::DeletedButNotCanceled => "deleted, cancel not requested",
            Self::Untold => "a pod waits for it and was not told",
            Self::Leftovers => "hosting objects exist",
            Self::Moved => "all data recorded as moved",
            Self::NotHandedOver => "DataDownload, volume not with its claim",
            Self::Unclaimable => "its claim is gone or has another volume",
            Self::HandOverOverdue => "it gets no further, resource timeout passed",
            Self::NotKept => "volume does not say that it is kept",
            Self::NotYet => "what it works on is not there yet",
            Self::QueueFull => "prepare queue full",
            Self::SlotsFull => "no free slot",
            Self::PrepareOverdue => "prepare timeout passed",
            Self::CancelOverdue => "mover does not stop",
            Self::AttemptsExhausted => "enough movers were lost",
            Self::PodAbsent => "no hosting pod",
            Self::PodPreparing => "hosting pod in the making",
            Self::PodRunning => "hosting pod runs",
            Self::PodEnding => "hosting pod is being deleted",
            Self::PodElsewhere => "on another node than before",
            Self::PodSucceeded => "mover succeeded",
            Self::PodCanceled => "mover stopped as told",
            Self::PodFailed => "mover failed",
            Self::PodBroken => "hosting pod cannot run",
            Self::PodEnded => "hosting pod ended",
        }
    }
}
