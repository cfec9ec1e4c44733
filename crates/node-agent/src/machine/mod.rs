//! What to do next with a volume operation, from what can be seen of it.
//!
//! The rules are one table ([`TABLE`]): the first row whose phase and conditions fit gives the action. An agent does that
//! one thing and looks again. Two orders make this safe. A phase is written before what it means is relied on, and
//! always against the version that was looked at, so that of two agents only one gets through. And what was moved is
//! recorded before the pod that moved it is removed, who waits in vain is told before that, a volume says that it is kept before its operation fails, an operation is
//! final before its objects are removed, and its finalizer goes last.

mod conditions;
mod table;

pub use conditions::Condition;
pub use table::{Row, TABLE, markdown};

use lifeboat_api::Phase;
use lifeboat_exposer::Kind;

/// All that decides about the next step of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Observation {
    /// What kind of operation it is.
    pub kind: Kind,
    /// Where it stands.
    pub phase: Phase,
    /// Whether it is for us at all.
    pub suitable: Suitable,
    /// Who has to act.
    pub responsible: Responsible,
    /// Whether our finalizer is on it.
    pub finalizer: bool,
    /// Whether somebody wants it stopped.
    pub cancel: bool,
    /// Whether somebody has deleted it.
    pub deleting: bool,
    /// What its hosting pod does.
    pub hosting: Hosting,
    /// Whether that pod is on another node than the operation says.
    pub elsewhere: bool,
    /// Whether a pod waits for what it did not bring, and was not told that it does not come.
    pub untold: bool,
    /// Whether any hosting object exists.
    pub leftovers: bool,
    /// Whether it is recorded that all data was moved.
    pub moved: bool,
    /// Whether a restored volume has reached the claim that waits for it.
    pub handed_over: bool,
    /// Whether the claim that waited for a restored volume is gone or has another one.
    pub unclaimable: bool,
    /// Whether a restored volume does not get on its way to its claim, and the time for that is up.
    pub hand_over_overdue: bool,
    /// Whether a restored volume says of itself that it is kept, whatever becomes of the operation.
    pub kept: bool,
    /// Whether what it works on is not there yet.
    pub not_yet: bool,
    /// Whether so many operations are being prepared that this one has to wait.
    pub queue_full: bool,
    /// Whether the node moves as many volumes as it may.
    pub slots_full: bool,
    /// Whether preparing takes too long.
    pub prepare_overdue: bool,
    /// Whether a mover that was told to stop takes too long.
    pub cancel_overdue: bool,
    /// Whether its mover was lost so often that there is no point in another.
    pub attempts_exhausted: bool,
}

/// Whether an operation is for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suitable {
    /// It is.
    Yes,
    /// It names another mover, who may be at work on it.
    Foreign,
    /// It is for us, but what it asks for cannot be done.
    Impossible,
}

/// Who has to act on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Responsible {
    /// This agent.
    Us,
    /// Another agent, which is alive.
    Other,
    /// An agent that is gone, so that anybody may.
    Nobody,
}

/// What a hosting pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hosting {
    /// There is none.
    Absent,
    /// It, or what it needs, is being made.
    Preparing,
    /// Its mover runs: it waits for phase InProgress, or moves data.
    Running,
    /// Its mover runs, but somebody has deleted it: it has its time to save how far it has come.
    Ending,
    /// It ended, and all data was moved.
    Succeeded,
    /// It ended because it was told to stop.
    Canceled,
    /// It ended in an error.
    Failed,
    /// It cannot run, and waiting would not help.
    Broken,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing, now or later, until the object changes.
    Leave,
    /// Nothing for now; the status says what is waited for.
    Wait,
    /// Put our finalizer on it.
    AddFinalizer,
    /// Ask for it to be stopped, because it is being deleted.
    RequestCancel,
    /// Take it: phase Accepted.
    Accept,
    /// Make the next hosting object, or see why that takes so long.
    Expose,
    /// The volume is reachable: phase Prepared.
    MarkPrepared,
    /// Take a slot and let the mover begin: phase InProgress.
    Start,
    /// Replace a mover that was lost; it goes on from the last checkpoint.
    Replace,
    /// The mover has been told to stop: phase Canceling.
    MarkCanceling,
    /// Record what was moved.
    RecordResult,
    /// Give the restored volume to the claim that waits for it.
    HandOver,
    /// Have the restored volume, which does not reach its claim in time, say that it is kept.
    Keep,
    /// End it in this phase; the message says why.
    Finish(Phase),
    /// Have a hosting pod tell the pod that waits for the volume that its data does not come.
    Tell,
    /// Remove the hosting objects.
    CleanUp,
    /// Take our finalizer off: nothing is left of it.
    RemoveFinalizer,
}

/// The next step. There is always one.
#[must_use]
pub fn decide(observation: &Observation) -> Action {
    row(observation).map_or(Action::Wait, |row| row.then)
}

/// The row of the table that decides.
#[must_use]
pub fn row(observation: &Observation) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.fits(observation))
}
