//! What maintenance did, what it would do, what stands in its way, and when space will be free.

use crate::maintenance::Task;
use crate::manifest::ManifestId;
use jiff::Timestamp;
use lifeboat_index::ContentId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// So many obstacles are named; the rest is counted.
const MAX_NAMED: usize = 100;

/// How much of a repository is maintained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The cheap part, which keeps the index small.
    Quick,
    /// All of it.
    Full,
}

/// A number of things and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// How many.
    pub count: u64,
    /// Bytes in all of them.
    pub bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.count, self.bytes)
    }
}

/// What became of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It would be done: this was a dry run.
    Planned,
    /// There was a reason not to.
    Skipped,
    /// Something was in the way, which the report names; the other tasks went on as far as they do not depend on it.
    Obstructed,
    /// It failed; the other tasks went on in the same way.
    Failed,
}

/// One task of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReport {
    /// Which.
    pub task: Task,
    /// What became of it.
    pub outcome: Outcome,
    /// What it did, or why it did not, in one sentence.
    pub summary: String,
}

/// Something that makes it unsafe to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// A snapshot cannot be read to its end, so nobody knows what it needs.
    Snapshot {
        /// The snapshot; others may be affected as well.
        id: ManifestId,
        /// The object that cannot be read; empty if it is the manifest.
        object: String,
        /// Why.
        reason: String,
    },
    /// A content with manifests cannot be read: there may be snapshots that nobody knows of.
    Manifests {
        /// The content.
        content: ContentId,
        /// Why.
        reason: String,
    },
    /// A snapshot needs a content that the index does not have.
    MissingContent {
        /// The snapshot; others may be affected as well.
        snapshot: ManifestId,
        /// The content.
        content: ContentId,
    },
    /// The pack of a living content is not in the store.
    MissingPack {
        /// The pack.
        pack: String,
    },
    /// A blob of the index cannot be used: nobody knows what only it names.
    DamagedIndex {
        /// The blob.
        blob: String,
        /// Why.
        reason: String,
    },
    /// A listing left out a blob that is there, so no listing of this store can be trusted.
    IncompleteListing {
        /// The blob.
        blob: String,
    },
}

impl Obstacle {
    /// Whether data is gone from the store, as opposed to being there and not understood.
    fn is_lost_data(&self) -> bool {
        matches!(self, Obstacle::MissingPack { .. } | Obstacle::MissingContent { .. })
    }

    /// The snapshot that is in the way, if it is one.
    pub fn snapshot(&self) -> Option<&ManifestId> {
        match self {
            Obstacle::Snapshot { id, .. } => Some(id),
            Obstacle::MissingContent { snapshot, .. } => Some(snapshot),
            _ => None,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Snapshot { id, object, reason } if object.is_empty() => {
                write!(f, "snapshot {id} is not understood ({reason}); delete it, or use a newer program")
            }
            Obstacle::Snapshot { id, object, reason } => write!(
                f,
                "snapshot {id} cannot be read: object {object}: {reason}; repair or delete the snapshots that need \
                 it (`verify` names them all)"
            ),
            Obstacle::Manifests { content, reason } => {
                write!(f, "manifests in content {content} cannot be read ({reason}); repair the repository")
            }
            Obstacle::MissingContent { snapshot, content } => write!(
                f,
                "snapshot {snapshot} needs content {content}, which is not in the index; repair or delete the \
                 snapshots that need it (`verify` names them all)"
            ),
            Obstacle::MissingPack { pack } => write!(
                f,
                "pack {pack} is missing from the store; back up again what was in it, or repair the repository \
                 (`verify` names what is affected)"
            ),
            Obstacle::DamagedIndex { blob, reason } => write!(
                f,
                "index blob {blob} cannot be used ({reason}); repair the repository, which recovers what it held \
                 from the packs"
            ),
            Obstacle::IncompleteListing { blob } => {
                write!(
                    f,
                    "blob {blob} is in the store but was not listed; check the store, its listings are not complete"
                )
            }
        }
    }
}

/// Obstacles as they are found: the first ones by name, all of them by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Obstacles {
    pub(super) named: Vec<Obstacle>,
    pub(super) count: u64,
}

impl Obstacles {
    pub(super) fn add(&mut self, obstacle: Obstacle) {
        self.count += 1;
        if self.named.len() < MAX_NAMED {
            self.named.push(obstacle);
        }
    }

    pub(super) fn extend(&mut self, others: Obstacles) {
        let unnamed = others.count - others.named.len() as u64;
        others.named.into_iter().for_each(|obstacle| self.add(obstacle));
        self.count += unnamed;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them as one sentence.
    pub(super) fn summary(&self) -> String {
        match self.named.first() {
            None => "nothing is in the way".to_owned(),
            Some(first) if self.count == 1 => format!("nothing is deleted: {first}"),
            Some(first) => format!("nothing is deleted: {first}; and {} more", self.count - 1),
        }
    }
}

/// What space that is not free yet is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Contents that nothing needs, but too young to be sure of that.
    YoungContents,
    /// Contents that are marked as deleted, until later runs have confirmed that nothing needs them.
    DeletedContents,
    /// Packs and session markers that nothing names: they are young, belong to somebody who is still writing, or
    /// were only just emptied.
    UnreferencedBlobs,
    /// Packs that are under an object lock.
    LockedBlobs,
}

/// Space that will be free later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// What it waits for.
    pub waiting: Waiting,
    /// How much it is.
    pub amount: Amount,
    /// When it will be free at the earliest, given that full maintenance runs as scheduled.
    pub not_before: Timestamp,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (amount, when) = (self.amount, self.not_before);
        match self.waiting {
            Waiting::YoungContents => write!(f, "{amount} contents are unused but young: free after {when}"),
            Waiting::DeletedContents => {
                write!(f, "{amount} contents are marked as deleted: free after {when}")
            }
            Waiting::UnreferencedBlobs => write!(f, "{amount} unused blobs are kept back: free after {when}"),
            Waiting::LockedBlobs => {
                write!(f, "{amount} unused blobs are locked by the store: free after {when}")
            }
        }
    }
}

/// What a run of maintenance did, or what it would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// How much was maintained; `None` if nothing was due.
    pub ran: Option<Extent>,
    /// Whether this is only a plan.
    pub dry_run: bool,
    /// The tasks in order.
    pub tasks: Vec<TaskReport>,
    /// What makes it unsafe to delete; the first hundred of them.
    pub obstacles: Vec<Obstacle>,
    /// How many obstacles there are.
    pub obstacle_count: u64,
    /// What was deleted from the store (or would be).
    pub reclaimed: Amount,
    /// Space that will be free later.
    pub pending: Vec<Pending>,
    /// When quick maintenance is due again.
    pub next_quick: Option<Timestamp>,
    /// When full maintenance is due again.
    pub next_full: Option<Timestamp>,
}

impl Report {
    pub(super) fn new(dry_run: bool) -> Self {
        Report {
            ran: None,
            dry_run,
            tasks: Vec::new(),
            obstacles: Vec::new(),
            obstacle_count: 0,
            reclaimed: Amount::default(),
            pending: Vec::new(),
            next_quick: None,
            next_full: None,
        }
    }

    /// Whether no task failed and nothing was in the way.
    pub fn is_clean(&self) -> bool {
        self.obstacle_count == 0 && !self.has_failed()
    }

    /// Whether no task failed, and nothing but data that the store has lost was in the way, all of which is named.
    pub fn lacks_only_lost_data(&self) -> bool {
        let all_named = self.obstacle_count == self.obstacles.len() as u64;
        all_named && self.obstacles.iter().all(Obstacle::is_lost_data) && !self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.tasks.iter().any(|task| task.outcome == Outcome::Failed)
    }

    /// What became of a task, if it came up.
    pub fn task(&self, task: Task) -> Option<&TaskReport> {
        self.tasks.iter().find(|report| report.task == task)
    }

    pub(super) fn obstruct(&mut self, obstacles: Obstacles) {
        let known = obstacles.named.iter().filter(|obstacle| self.obstacles.contains(obstacle)).count();
        self.obstacle_count += obstacles.count - known as u64;
        for obstacle in obstacles.named {
            if self.obstacles.len() < MAX_NAMED && !self.obstacles.contains(&obstacle) {
                self.obstacles.push(obstacle);
            }
        }
    }

    pub(super) fn wait(&mut self, waiting: Waiting, amount: Amount, not_before: Timestamp) {
        if amount.count > 0 {
            self.pending.push(Pending { waiting, amount, not_before });
        }
    }
}

impl fmt::Display for Report {
    /// One line for each task, obstacle and amount of space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(ran) = self.ran else {
            return match self.next_full.into_iter().chain(self.next_quick).min() {
                Some(next) => writeln!(f, "maintenance is not due before {next}"),
                None => writeln!(f, "maintenance is not due"),
            };
        };
        let extent = if ran == Extent::Full { "full" } else { "quick" };
        writeln!(f, "{}{extent} maintenance", if self.dry_run { "plan of " } else { "" })?;
        for TaskReport { task, outcome, summary } in &self.tasks {
            let outcome = match outcome {
                Outcome::Done => "done",
                Outcome::Planned => "planned",
                Outcome::Skipped => "skipped",
                Outcome::Obstructed | Outcome::Failed => "FAILED",
            };
            writeln!(f, "  {}: {outcome}: {summary}", task.name())?;
        }
        for obstacle in &self.obstacles {
            writeln!(f, "  in the way: {obstacle}")?;
        }
        let deleted = if self.dry_run { "would be deleted" } else { "deleted" };
        writeln!(f, "  blobs {deleted}: {}", self.reclaimed)?;
        self.pending.iter().try_for_each(|pending| writeln!(f, "  later: {pending}"))
    }
}
