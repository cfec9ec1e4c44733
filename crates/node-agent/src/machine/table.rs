//! The table of transitions.

use super::Condition::{self, *};
use super::{Action, Observation};
use lifeboat_api::Phase::{self, *};
use std::fmt::Write;

/// One rule.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The phases in which it applies.
    pub phases: &'static [Phase],
    /// What else has to be so.
    pub when: &'static [Condition],
    /// What is done.
    pub then: Action,
    /// Why.
    pub why: &'static str,
}

impl Row {
    /// Whether the rule applies.
    #[must_use]
    pub fn fits(&self, seen: &Observation) -> bool {
        self.phases.contains(&seen.phase) && self.when.iter().all(|condition| condition.holds(seen))
    }
}

const ALL: &[Phase] = Phase::ALL;
const FINAL: &[Phase] = &[Completed, Failed, Canceled];
const IN_VAIN: &[Phase] = &[Failed, Canceled];
const PENDING: &[Phase] = &[New, Accepted, Prepared, InProgress, Canceling];
const BEFORE_START: &[Phase] = &[Accepted, Prepared];
const MOVING: &[Phase] = &[InProgress, Canceling];

const fn row(phases: &'static [Phase], when: &'static [Condition], then: Action, why: &'static str) -> Row {
    Row { phases, when, then, why }
}

/// All rules; the first that fits counts.
pub static TABLE: &[Row] = &[
    row(ALL, &[Foreign], Action::Leave, "its mover looks after it"),
    row(ALL, &[OthersTurn], Action::Leave, "one agent acts at a time"),
    // Nobody waits for ever, whatever became of the mover.
    row(IN_VAIN, &[Untold], Action::Tell, "a restored pod must not wait for what does not come"),
    // Over: what is left is removed, and then nothing holds the object any more.
    row(FINAL, &[Leftovers], Action::CleanUp, "nothing of an operation stays in the cluster"),
    row(FINAL, &[Finalizer], Action::RemoveFinalizer, "it is over and nothing is left"),
    row(FINAL, &[], Action::Leave, "over"),
    row(
        PENDING,
        &[NoFinalizer],
        Action::AddFinalizer,
        "deleting the object must not leave its hosting objects behind",
    ),
    row(PENDING, &[DeletedButNotCanceled], Action::RequestCancel, "who deletes it wants it stopped"),
    // Data that was moved is never given up, whatever happens to pod and agent or is asked for afterwards.
    row(
        MOVING,
        &[Moved, NotHandedOver, Unclaimable],
        Action::Finish(Failed),
        "nobody waits for the volume any more",
    ),
    row(
        MOVING,
        &[Moved, NotHandedOver, HandOverOverdue, NotKept],
        Action::Keep,
        "the volume itself has to say so, or who cleans up after a lost operation would remove it",
    ),
    row(
        MOVING,
        &[Moved, NotHandedOver, HandOverOverdue],
        Action::Finish(Failed),
        "its claim does not get the volume, which is kept",
    ),
    row(MOVING, &[Moved, NotHandedOver], Action::HandOver, "the data is there: the claim gets its volume"),
    row(MOVING, &[Moved], Action::Finish(Completed), "all is done"),
    row(MOVING, &[PodSucceeded], Action::RecordResult, "the result must outlive the pod"),
    row(&[New], &[CancelRequested], Action::Finish(Canceled), "nothing has begun"),
    row(&[New], &[Impossible], Action::Finish(Failed), "waiting would not help"),
    row(&[New], &[NotYet], Action::Wait, "a restore into a pod begins when that pod waits for it"),
    row(&[New], &[QueueFull], Action::Wait, "others are being prepared"),
    row(&[New], &[], Action::Accept, "the first agent to write this has it"),
    row(BEFORE_START, &[CancelRequested], Action::Finish(Canceled), "no data has moved"),
    row(BEFORE_START, &[PodBroken], Action::Finish(Failed), "waiting would not help"),
    row(
        BEFORE_START,
        &[PodEnded],
        Action::Finish(Failed),
        "a mover must not end before it was told to begin",
    ),
    row(&[Accepted], &[PodRunning], Action::MarkPrepared, "the volume is reachable"),
    row(
        &[Prepared],
        &[PodRunning, PodElsewhere],
        Action::MarkPrepared,
        "its pod was made again, and the agent of its new node goes on",
    ),
    row(&[Prepared], &[PodRunning, SlotsFull], Action::Wait, "the node moves as many volumes as it may"),
    row(&[Prepared], &[PodRunning], Action::Start, "its turn has come"),
    row(BEFORE_START, &[PrepareOverdue], Action::Finish(Failed), "the diagnosis goes into the message"),
    row(BEFORE_START, &[], Action::Expose, "one object after the other, without waiting inside"),
    row(MOVING, &[PodCanceled], Action::Finish(Canceled), "the mover has stopped"),
    row(&[Canceling], &[PodRunning, CancelOverdue], Action::Finish(Canceled), "removing the pod stops it"),
    row(&[Canceling], &[PodRunning], Action::Wait, "the mover is stopping"),
    row(&[Canceling], &[], Action::Finish(Canceled), "nothing runs any more"),
    row(
        &[InProgress],
        &[CancelRequested, PodRunning],
        Action::MarkCanceling,
        "the mover sees the request too",
    ),
    row(&[InProgress], &[CancelRequested], Action::Finish(Canceled), "nothing runs"),
    row(&[InProgress], &[PodFailed], Action::Finish(Failed), "the mover's own words go into the message"),
    row(&[InProgress], &[PodRunning], Action::Wait, "data is moving"),
    row(&[InProgress], &[PodBroken, AttemptsExhausted], Action::Finish(Failed), "it was lost too often"),
    row(&[InProgress], &[PodAbsent, AttemptsExhausted], Action::Finish(Failed), "it was lost too often"),
    row(
        &[InProgress],
        &[PodPreparing, PrepareOverdue],
        Action::Finish(Failed),
        "the replacement does not come up",
    ),
    row(&[InProgress], &[PodPreparing], Action::Expose, "the replacement is being made"),
    row(
        &[InProgress],
        &[PodEnding, PrepareOverdue],
        Action::Finish(Failed),
        "its pod does not end, so there cannot be another",
    ),
    row(&[InProgress], &[PodEnding], Action::Wait, "the mover has its time to save how far it has come"),
    row(&[InProgress], &[], Action::Replace, "a lost mover is replaced and goes on from the last checkpoint"),
];

/// The table for the documentation.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("| # | Phase | When | Then | Why |\n|---|---|---|---|---|\n");
    for (number, row) in TABLE.iter().enumerate() {
        let phases = match row.phases {
            phases if phases == ALL => "any".to_owned(),
            phases if phases == FINAL => "final".to_owned(),
            phases if phases == PENDING => "not final".to_owned(),
            phases => phases.iter().map(|phase| phase.as_str()).collect::<Vec<_>>().join(", "),
        };
        let when = match row.when {
            [] => "otherwise".to_owned(),
            when => when.iter().map(|condition| condition.words()).collect::<Vec<_>>().join("; "),
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {} | {phases} | {when} | {} | {} |", number + 1, action(row.then), row.why);
    }
    text
}

fn action(action: Action) -> String {
    match action {
        Action::Leave => "leave alone".into(),
        Action::Wait => "wait".into(),
        Action::AddFinalizer => "add finalizer".into(),
        Action::RequestCancel => "request cancel".into(),
        Action::Accept => "→ **Accepted**".into(),
        Action::Expose => "next step of the exposer".into(),
        Action::MarkPrepared => "→ **Prepared**".into(),
        Action::Start => "take a slot, → **InProgress**".into(),
        Action::Replace => "replace the mover".into(),
        Action::MarkCanceling => "→ **Canceling**".into(),
        Action::RecordResult => "record the result".into(),
        Action::HandOver => "hand the volume over".into(),
        Action::Keep => "mark the volume as kept".into(),
        Action::Finish(phase) => format!("→ **{phase}**"),
        Action::Tell => "have a hosting pod tell it".into(),
        Action::CleanUp => "remove hosting objects".into(),
        Action::RemoveFinalizer => "remove finalizer".into(),
    }
}
