//! The machine against every world that can come about: each state is visited, not a sample.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cells;

use cells::{Cell, Fault, cells};
use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use lifeboat_node_agent::machine::{
    Action, Condition, Hosting, Observation, Responsible, Row, Suitable, TABLE, decide, markdown, row,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::LazyLock;

fn new(kind: Kind, suitable: Suitable) -> Observation {
    Observation {
        kind,
        phase: Phase::New,
        suitable,
        responsible: Responsible::Us,
        finalizer: false,
        cancel: false,
        deleting: false,
        hosting: Hosting::Absent,
        elsewhere: false,
        untold: false,
        leftovers: false,
        moved: false,
        handed_over: false,
        unclaimable: false,
        hand_over_overdue: false,
        kept: false,
        not_yet: false,
        queue_full: false,
        slots_full: false,
        prepare_overdue: false,
        cancel_overdue: false,
        attempts_exhausted: false,
    }
}

/// What the agent's action makes of the world.
fn act(seen: Observation, action: Action) -> Observation {
    let mut after = seen;
    match action {
        Action::Leave | Action::Wait => {}
        Action::AddFinalizer => after.finalizer = true,
        Action::RequestCancel => after.cancel = true,
        Action::Accept => after.phase = Phase::Accepted,
        Action::Expose | Action::Replace => {
            after.leftovers = true;
            if matches!(after.hosting, Hosting::Absent | Hosting::Broken) {
                after.hosting = Hosting::Preparing;
            }
        }
        Action::MarkPrepared => {
            after.phase = Phase::Prepared;
            after.elsewhere = false;
        }
        Action::Start => after.phase = Phase::InProgress,
        Action::MarkCanceling => after.phase = Phase::Canceling,
        Action::RecordResult => after.moved = true,
        Action::Keep => after.kept = true,
        Action::HandOver => {
            after.handed_over = true;
            after.kept = false;
            after.hosting = Hosting::Absent;
        }
        Action::Finish(phase) => {
            after.phase = phase;
            after.untold = seen.kind == Kind::PodVolumeRestore && phase != Phase::Completed;
        }
        Action::Tell => {
            after.leftovers = true;
            after.hosting = Hosting::Running;
        }
        Action::CleanUp => {
            after.hosting = Hosting::Absent;
            after.leftovers = false;
        }
        Action::RemoveFinalizer => after.finalizer = false,
    }
    after.elsewhere &= after.phase == Phase::Prepared;
    after
}

/// What may happen to the world beside the agent, good or bad.
fn happenings(seen: Observation) -> Vec<Observation> {
    let mut next = vec![
        Observation { cancel: true, ..seen },
        Observation { deleting: true, ..seen },
        Observation { unclaimable: true, ..seen },
        Observation { hand_over_overdue: true, ..seen },
        Observation { not_yet: !seen.not_yet, ..seen },
        Observation { queue_full: !seen.queue_full, ..seen },
        Observation { untold: false, ..seen },
        Observation { slots_full: !seen.slots_full, ..seen },
        Observation { prepare_overdue: true, ..seen },
        Observation { cancel_overdue: true, ..seen },
        Observation { attempts_exhausted: true, ..seen },
        Observation { elsewhere: seen.phase == Phase::Prepared, ..seen },
        Observation { responsible: Responsible::Us, ..seen },
        Observation { responsible: Responsible::Other, ..seen },
        Observation { responsible: Responsible::Nobody, ..seen },
    ];
    let told = matches!(seen.phase, Phase::InProgress | Phase::Canceling);
    let pods: &[Hosting] = match seen.hosting {
        Hosting::Absent => &[],
        Hosting::Preparing => &[Hosting::Running, Hosting::Broken, Hosting::Failed, Hosting::Absent],
        // A mover that was not told to begin can only fail.
        Hosting::Running if !told => &[Hosting::Failed, Hosting::Broken, Hosting::Absent],
        Hosting::Running => &[
            Hosting::Ending,
            Hosting::Succeeded,
            Hosting::Failed,
            Hosting::Canceled,
            Hosting::Broken,
            Hosting::Absent,
        ],
        Hosting::Ending => {
            &[Hosting::Succeeded, Hosting::Failed, Hosting::Canceled, Hosting::Broken, Hosting::Absent]
        }
        Hosting::Succeeded | Hosting::Canceled | Hosting::Failed | Hosting::Broken => &[Hosting::Absent],
    };
    next.extend(pods.iter().map(|hosting| Observation { hosting: *hosting, ..seen }));
    next.retain(|after| *after != seen);
    next
}

/// Every state that can come about from a new operation.
fn reachable(kind: Kind) -> impl Iterator<Item = Observation> {
    static STATES: LazyLock<HashMap<Kind, HashSet<Observation>>> =
        LazyLock::new(|| Kind::ALL.into_iter().map(|kind| (kind, explore(kind))).collect());
    STATES[&kind].iter().copied()
}

fn explore(kind: Kind) -> HashSet<Observation> {
    let starts = [Suitable::Yes, Suitable::Foreign, Suitable::Impossible].map(|suitable| new(kind, suitable));
    let mut seen: HashSet<Observation> = starts.into_iter().collect();
    let mut queue: VecDeque<Observation> = starts.into_iter().collect();
    while let Some(state) = queue.pop_front() {
        for next in happenings(state).into_iter().chain([act(state, decide(&state))]) {
            if seen.insert(next) {
                queue.push_back(next);
            }
        }
    }
    seen
}

/// What a calm world does next while the agent waits or exposes: time passes, pods come up and end, others get out of the way.
fn calm(seen: Observation) -> Observation {
    let mut after = seen;
    match (seen.phase, seen.hosting) {
        (_, Hosting::Preparing) => after.hosting = Hosting::Running,
        (Phase::InProgress, Hosting::Running) => after.hosting = Hosting::Succeeded,
        (Phase::InProgress, Hosting::Ending) => after.hosting = Hosting::Absent,
        (Phase::Canceling, Hosting::Running) => after.cancel_overdue = true,
        _ => {}
    }
    after.not_yet = false;
    after.queue_full = false;
    after.slots_full = false;
    after.untold = false;
    after
}

fn settled(state: &Observation) -> bool {
    state.phase.is_final() && !state.leftovers && !state.finalizer
}

/// Lets agent and calm world take turns until nothing is left to do.
fn run(mut state: Observation) -> Result<Observation, Observation> {
    for _ in 0..40 {
        if settled(&state) {
            return Ok(state);
        }
        let after = act(state, decide(&state));
        state = if after == state { calm(state) } else { after };
    }
    Err(state)
}

#[test]
fn from_every_state_a_calm_world_leads_to_an_end_with_nothing_left() {
    for kind in Kind::ALL {
        let count = reachable(kind).count();
        assert!(count > 1000, "{kind:?}: only {count} states");
        for state in reachable(kind) {
            if state.suitable == Suitable::Foreign || state.responsible == Responsible::Other {
                continue;
            }
            if let Err(stuck) = run(state) {
                panic!("{state:#?}\nnever ends; it hangs in\n{stuck:#?}");
            }
        }
    }
}

#[test]
fn what_was_moved_is_given_up_only_if_nobody_waits_for_it_or_it_does_not_get_there() {
    for kind in Kind::ALL {
        for state in reachable(kind).filter(|state| state.moved) {
            let hopeless = state.unclaimable || state.hand_over_overdue;
            let given_up = state.phase == Phase::Failed && hopeless && !state.handed_over;
            assert!(!given_up || state.unclaimable || state.kept, "whoever cleans up removes it: {state:#?}");
            assert!(
                given_up || matches!(state.phase, Phase::InProgress | Phase::Canceling | Phase::Completed),
                "{state:#?}"
            );
            if state.responsible != Responsible::Other && !given_up {
                let end = run(state).unwrap();
                let fails = hopeless && kind == Kind::DataDownload && !state.handed_over;
                assert_eq!(end.phase, if fails { Phase::Failed } else { Phase::Completed });
                assert!(fails || kind != Kind::DataDownload || end.handed_over, "{state:#?}");
            }
        }
    }
}

#[test]
fn completed_always_means_that_all_data_was_moved() {
    for kind in Kind::ALL {
        for state in reachable(kind).filter(|state| state.phase == Phase::Completed) {
            assert!(state.moved && (kind != Kind::DataDownload || state.handed_over), "{state:#?}");
        }
    }
}

#[test]
fn a_cancel_ends_everything_that_has_not_moved_all_data() {
    for kind in Kind::ALL {
        for state in reachable(kind) {
            let ours = state.suitable != Suitable::Foreign && state.responsible != Responsible::Other;
            let open = !state.phase.is_final() && !state.moved && state.hosting != Hosting::Succeeded;
            if !ours || !open {
                continue;
            }
            // Not one step of the world is needed but the one that says that the mover does not stop by itself.
            let mut state = Observation { cancel: true, cancel_overdue: true, ..state };
            for _ in 0..4 {
                state = act(state, decide(&state));
            }
            assert_eq!(state.phase, Phase::Canceled, "{state:#?}");
        }
    }
}

/// Slots are a node's own, so nobody takes one for a pod that is elsewhere.
#[test]
fn data_moves_only_where_the_operation_says() {
    for kind in Kind::ALL {
        for state in reachable(kind).filter(|state| decide(state) == Action::Start) {
            assert!(!state.elsewhere, "{state:#?}");
        }
    }
}

#[test]
fn an_end_is_an_end() {
    for kind in Kind::ALL {
        for state in reachable(kind).filter(|state| state.phase.is_final()) {
            let action = decide(&state);
            assert!(
                matches!(action, Action::Leave | Action::Tell | Action::CleanUp | Action::RemoveFinalizer),
                "{state:#?} {action:?}"
            );
            assert!(action != Action::RemoveFinalizer || !state.leftovers, "{state:#?}");
        }
    }
}

/// Also if it was never given a mover, or that was lost.
#[test]
fn a_pod_that_waits_in_vain_is_told_before_anything_is_removed() {
    let untold = reachable(Kind::PodVolumeRestore).filter(|state| state.untold);
    let mut ours = 0;
    for state in untold.filter(|state| state.responsible != Responsible::Other) {
        assert!(state.suitable != Suitable::Foreign && state.finalizer, "{state:#?}");
        assert_eq!(decide(&state), Action::Tell, "{state:#?}");
        ours += 1;
    }
    assert!(ours > 100, "only {ours} states");
}

#[test]
fn hosting_objects_exist_only_under_a_finalizer() {
    for kind in Kind::ALL {
        for state in reachable(kind).filter(|state| state.leftovers) {
            assert!(state.finalizer, "{state:#?}");
        }
    }
}

#[test]
fn an_operation_of_another_mover_is_never_touched() {
    for kind in Kind::ALL {
        for state in reachable(kind).filter(|state| state.suitable == Suitable::Foreign) {
            assert_eq!(decide(&state), Action::Leave, "{state:#?}");
        }
    }
}

#[test]
fn every_row_of_the_table_is_needed_and_every_state_has_one() {
    let mut used: HashMap<*const _, u64> = HashMap::new();
    for kind in Kind::ALL {
        for state in reachable(kind) {
            let row = row(&state).unwrap_or_else(|| panic!("no row for {state:#?}"));
            *used.entry(std::ptr::from_ref(row)).or_default() += 1;
        }
    }
    for row in TABLE {
        assert!(used.contains_key(&std::ptr::from_ref(row)), "no state needs {row:?}");
    }
}

/// An operation of a cell, brought to its phase by table and calm world, and seen as it is once the fault has struck.
fn struck(cell: Cell, used: &mut HashSet<*const Row>) -> Observation {
    let mut state = new(cell.kind, Suitable::Yes);
    for _ in 0..40 {
        // In phase New it has been looked at, too.
        if state.phase == cell.phase && state.finalizer {
            break;
        }
        if cell.phase == Phase::Canceling && state.phase == Phase::InProgress {
            state.cancel = true;
        }
        state = turn(state, calm, used);
    }
    assert_eq!(state.phase, cell.phase, "{cell}: the table does not lead there");
    let moving = matches!(cell.phase, Phase::InProgress | Phase::Canceling);
    match cell.fault {
        Fault::Cancel => state.cancel = true,
        // Agents remember nothing: those that come later see the same.
        Fault::AgentRestart | Fault::ApiRestart => {}
        Fault::AgentKill => state.responsible = Responsible::Nobody,
        Fault::PodDeleted => state.hosting = if moving { Hosting::Ending } else { Hosting::Preparing },
        Fault::OutOfMemory => state.hosting = Hosting::Failed,
        Fault::NodeLost => {
            state.responsible = Responsible::Nobody;
            match cell.phase {
                Phase::New if cell.kind.is_pod_volume() => state.suitable = Suitable::Impossible,
                // There is no pod to be lost.
                Phase::New => {}
                _ => state.hosting = Hosting::Broken,
            }
        }
        // Nobody but its mover sees that.
        Fault::StoreAway => {}
    }
    state
}

/// What the world does after a fault.
fn aftermath(cell: Cell) -> impl Fn(Observation) -> Observation {
    move |seen: Observation| {
        let runs = seen.hosting == Hosting::Running;
        match (cell.fault, seen.phase) {
            // Its mover cannot do anything, and stops all the same when it is told to.
            (Fault::StoreAway, Phase::InProgress) if runs => Observation { hosting: Hosting::Failed, ..seen },
            (_, Phase::Canceling) if runs => Observation { hosting: Hosting::Canceled, ..seen },
            // Its volume is on the node that is lost, so the replacement does not come up.
            (Fault::NodeLost, Phase::InProgress)
                if cell.kind.is_pod_volume() && seen.hosting == Hosting::Preparing =>
            {
                Observation { hosting: Hosting::Broken, attempts_exhausted: true, ..seen }
            }
            _ => calm(seen),
        }
    }
}

/// One turn of the agent, or of the world if the agent has nothing to do.
fn turn(
    state: Observation,
    world: impl Fn(Observation) -> Observation,
    used: &mut HashSet<*const Row>,
) -> Observation {
    used.insert(std::ptr::from_ref(row(&state).unwrap()));
    let after = act(state, decide(&state));
    if after == state { world(state) } else { after }
}

/// Conditions that no fault of the matrix brings about; `tests/matrix.rs` and the tests of the crate `cli` have them beside it.
const BESIDE_THE_MATRIX: &[Condition] = &[
    Condition::Foreign,
    Condition::OthersTurn,
    Condition::Impossible,
    Condition::NotYet,
    Condition::QueueFull,
    Condition::SlotsFull,
    Condition::DeletedButNotCanceled,
    Condition::Unclaimable,
    Condition::HandOverOverdue,
    Condition::PrepareOverdue,
    Condition::CancelOverdue,
    Condition::AttemptsExhausted,
    Condition::PodElsewhere,
];

#[test]
fn the_table_leads_every_cell_of_the_matrix_to_its_end_and_the_matrix_has_all_of_the_table() {
    let mut used = HashSet::new();
    for cell in cells() {
        let mut state = struck(cell, &mut used);
        for _ in 0..40 {
            state = turn(state, aftermath(cell), &mut used);
        }
        assert!(settled(&state), "{cell} hangs in {state:#?}");
        assert_eq!(state.phase, cell.end(), "{cell}: {state:#?}");
    }
    for row in TABLE {
        for phase in row.phases.iter().filter(|phase| !phase.is_final()) {
            for kind in Kind::ALL {
                let has = |cell: Cell| (cell.kind, cell.phase) == (kind, *phase);
                assert!(cells().any(has), "no cell has a {} in {phase}, of {row:?}", kind.name());
            }
        }
        let beside = row.when.iter().any(|condition| BESIDE_THE_MATRIX.contains(condition));
        let plays = used.contains(&std::ptr::from_ref(row));
        // A cancel while a lost mover is replaced is two faults at once.
        let two = row.phases == [Phase::InProgress] && row.when == [Condition::CancelRequested];
        assert!(plays || beside || two, "no cell plays {row:?}");
    }
}

/// The documentation shows the table as it is; `LIFEBOAT_WRITE_DOCS=1` writes it.
#[test]
fn the_documentation_shows_this_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/node-agent-states.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once("<!-- table -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end of table -->").unwrap();
    let wanted = format!("{before}<!-- table -->\n{}<!-- end of table -->{after}", markdown());
    if std::env::var_os("LIFEBOAT_WRITE_DOCS").is_some() {
        std::fs::write(path, wanted).unwrap();
    } else {
        assert!(
            text == wanted,
            "docs/node-agent-states.md is not up to date: run this test with LIFEBOAT_WRITE_DOCS=1"
        );
    }
}
