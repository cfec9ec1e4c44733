//! The matrix: what may happen to a volume operation of every kind in every phase, and how it has to end.
//!
//! `tests/matrix.rs` plays it on a model of the cluster, and `under_velero` of the crate `cli` on a real one.

#![allow(dead_code)] // each test uses a part of it

use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use std::fmt;
use std::time::Duration;

/// Who cancels has waited long enough then; Velero's users are told so.
pub const CANCEL_LIMIT: Duration = Duration::from_secs(15);

/// What may happen to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Cancel,
    AgentRestart,
    AgentKill,
    PodDeleted,
    OutOfMemory,
    NodeLost,
    ApiRestart,
    StoreAway,
}

impl Fault {
    pub const ALL: [Self; 8] = [
        Self::Cancel,
        Self::AgentRestart,
        Self::AgentKill,
        Self::PodDeleted,
        Self::OutOfMemory,
        Self::NodeLost,
        Self::ApiRestart,
        Self::StoreAway,
    ];

    /// Those that strike one operation and leave all others alone.
    pub const OF_ONE: [Self; 3] = [Self::Cancel, Self::PodDeleted, Self::OutOfMemory];

    /// A pod that is not there cannot be deleted, and one that does not run needs no memory.
    fn can_strike_in(self, phase: Phase) -> bool {
        match self {
            Self::PodDeleted => phase != Phase::New,
            Self::OutOfMemory => !matches!(phase, Phase::New | Phase::Accepted),
            _ => true,
        }
    }
}

/// One fault at one phase of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub kind: Kind,
    pub phase: Phase,
    pub fault: Fault,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}, {:?}", self.kind.name(), self.phase, self.fault)
    }
}

/// The phases in which something can still happen.
fn open_phases() -> impl Iterator<Item = Phase> {
    Phase::ALL.iter().copied().filter(|phase| !phase.is_final())
}

/// All cells that there can be.
pub fn cells() -> impl Iterator<Item = Cell> {
    open_phases().flat_map(|phase| Kind::ALL.map(|kind| (phase, kind))).flat_map(|(phase, kind)| {
        let possible = Fault::ALL.into_iter().filter(move |fault| fault.can_strike_in(phase));
        possible.map(move |fault| Cell { kind, phase, fault })
    })
}

/// Every kind in every phase once, each with a fault that strikes it alone, so that each of these faults meets every kind and
/// every phase that it can strike in.
pub fn cover() -> Vec<Cell> {
    let cell = |(row, phase): (usize, Phase), (column, kind): (usize, Kind)| {
        let possible: Vec<Fault> =
            Fault::OF_ONE.into_iter().filter(|fault| fault.can_strike_in(phase)).collect();
        Cell { kind, phase, fault: possible[(row + column) % possible.len()] }
    };
    let rows = open_phases().enumerate();
    rows.flat_map(|row| Kind::ALL.into_iter().enumerate().map(move |column| cell(row, column))).collect()
}

impl Cell {
    /// How it has to end.
    pub fn end(self) -> Phase {
        let tied = self.kind.is_pod_volume();
        match self.fault {
            _ if self.phase == Phase::Canceling => Phase::Canceled,
            Fault::Cancel => Phase::Canceled,
            Fault::AgentRestart | Fault::AgentKill | Fault::ApiRestart | Fault::PodDeleted => {
                Phase::Completed
            }
            Fault::OutOfMemory | Fault::StoreAway => Phase::Failed,
            // What has not begun fails with its node; what has begun goes on elsewhere, if its volume can be reached there.
            Fault::NodeLost if matches!(self.phase, Phase::Accepted | Phase::Prepared) || tied => {
                Phase::Failed
            }
            Fault::NodeLost => Phase::Completed,
        }
    }

    /// What the message of a failure has to speak of.
    pub fn reason(self) -> &'static str {
        match self.fault {
            Fault::OutOfMemory => "memory",
            Fault::NodeLost => "does not answer",
            _ => "error sending request",
        }
    }
}
