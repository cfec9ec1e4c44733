//! Every fault at every phase of every kind of operation: the real agents of two nodes against a model of everything else.
//!
//! Each cell is a cluster of its own, and all are played at once.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cells;
mod model;
mod stage;

use cells::{Cell, Fault, cells, cover};
use lifeboat_api::Phase;
use lifeboat_exposer::Kind;
use model::agents::metrics;
use model::api::{Place, now};
use model::objects::{CLAIMS, EVENTS, PODS, SHOP, VELERO, VOLUMES, operation, operations};
use model::world::{LOG, text};
use serde_json::{Value, json};
use stage::{HOME, IT, OTHER, Stage, phase, with_time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinSet;

async fn play(cell: Cell) -> Result<(), String> {
    let mut stage = Stage::set(cell).await?;
    stage.strike().await?;
    stage.release();
    let result = stage.check().await;
    stage.kill_agents();
    result
}

/// Plays cells at once, all in one way, and says how many there were.
async fn play_all<F>(cells: impl IntoIterator<Item = Cell>, play: impl Fn(Cell) -> F) -> usize
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let mut played = JoinSet::new();
    for cell in cells {
        let playing = play(cell);
        played.spawn(async move { playing.await.map_err(|error| format!("{cell}: {error}")) });
    }
    let count = played.len();
    let mut bad: Vec<String> = played.join_all().await.into_iter().filter_map(Result::err).collect();
    bad.sort();
    assert!(bad.is_empty(), "{} of {count} cells end badly:\n{}", bad.len(), bad.join("\n"));
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_in_whatever_phase_ends_well_and_leaves_nothing_behind() {
    let count = play_all(cells(), play).await;
    assert_eq!(count, 4 * (5 * 8 - 3), "kinds times phases times faults, without the three that cannot be");
}

/// What anybody restores is waited for; beyond that who came first is first.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_gets_free_goes_to_a_restore_and_else_to_who_came_first() {
    let cell = Cell { kind: Kind::PodVolumeBackup, phase: Phase::Prepared, fault: Fault::AgentKill };
    let waiting = [
        (Kind::PodVolumeBackup, "first"),
        (Kind::PodVolumeBackup, "second"),
        (Kind::PodVolumeRestore, "restore"),
    ];
    for (turned, wanted) in [(false, ["restore", "first", "second"]), (true, ["restore", "second", "first"])]
    {
        let mut stage = Stage::open(cell);
        stage.hold().await.unwrap();
        for (kind, name) in waiting {
            let place = operation(&stage.api, kind, name, HOME);
            stage.reach(name, kind, Phase::Prepared).await.unwrap();
            let says = |it: Arc<Value>| text(&it["status"]["message"]).contains("waits for a slot");
            stage.until("it knows that it waits", || stage.api.get(&place).is_some_and(says)).await.unwrap();
        }
        if turned {
            // It is not the order in which they were made, either.
            let first = Place::new(&operations(Kind::PodVolumeBackup), VELERO, "first");
            let later = json!({ "status": { "acceptedTimestamp": now() } });
            stage.api.patch("user", &first, &later).unwrap();
        }
        let mut changes = stage.api.observe();
        stage.release();
        stage.settle().await.unwrap();
        let mut begun = Vec::new();
        while let Ok(change) = changes.try_recv() {
            let is_moving = |it: &Option<Arc<Value>>| {
                it.as_deref().is_some_and(|it| phase(it) == Some(Phase::InProgress))
            };
            if is_moving(&change.after) && !is_moving(&change.before) {
                begun.push(change.place.name);
            }
        }
        assert_eq!(begun, wanted);
        stage.kill_agents();
    }
}

/// An agent that starts is told only that the pod is there, not that it has come up.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_pod_comes_up_while_no_agent_is_there_goes_on_when_there_is_one() {
    let cells = Kind::ALL.map(|kind| Cell { kind, phase: Phase::Accepted, fault: Fault::AgentKill });
    play_all(cells, comes_up_unseen).await;
}

async fn comes_up_unseen(cell: Cell) -> Result<(), String> {
    let mut stage = Stage::set(cell).await?;
    stage.kill_agents();
    stage.release();
    stage.until("its pod runs", || stage.pod_is("Running")).await?;
    assert_eq!(stage.api.get(&stage.it).and_then(|it| phase(&it)), Some(Phase::Accepted));
    stage.start_agents();
    let result = stage.check().await;
    stage.kill_agents();
    result
}

/// Whoever comes later finds an ended pod, reads what its mover said last, and counts it as if it had been there.
#[tokio::test(flavor = "multi_thread")]
async fn a_mover_that_ends_while_no_agent_is_there_is_read_and_counted_once() {
    let ways = [Fault::AgentKill, Fault::StoreAway, Fault::Cancel];
    let cells = ways.map(|fault| Kind::ALL.map(|kind| Cell { kind, phase: Phase::InProgress, fault }));
    play_all(cells.concat(), ends_unseen).await;
}

async fn ends_unseen(cell: Cell) -> Result<(), String> {
    let mut stage = Stage::set(cell).await?;
    stage.kill_agents();
    match cell.fault {
        Fault::StoreAway => stage.world.turn(|weather| weather.store_answers = false),
        Fault::Cancel => stage.cancel(),
        _ => {}
    }
    stage.release();
    let last = if cell.end() == Phase::Completed { "Succeeded" } else { "Failed" };
    stage.until("its mover has ended", || stage.pod_is(last)).await?;
    let pages = stage.start_agents_with_metrics();
    stage.check().await?;
    let mut counts = HashMap::<String, f64>::new();
    for page in pages {
        for (name, value) in metrics(page).await {
            *counts.entry(name).or_default() += value;
        }
    }
    stage.kill_agents();
    for (name, wanted) in counted(cell) {
        let found = counts.get(name).copied();
        assert_eq!(found, Some(wanted), "{cell}: {name}");
    }
    assert_eq!(counts["lifeboat_movers_lost_total"], 0.0, "{cell}: it was not lost");
    Ok(())
}

/// What agents count of a cell whose data had begun to move; Velero counts no restores into pods.
fn counted(cell: Cell) -> Vec<(&'static str, f64)> {
    let ends = [Phase::Completed, Phase::Failed, Phase::Canceled];
    let once = ends.map(|end| f64::from(u8::from(end == cell.end())));
    let names = match cell.kind {
        Kind::DataUpload => [
            "podVolume_data_upload_success_total",
            "podVolume_data_upload_failure_total",
            "podVolume_data_upload_cancel_total",
        ],
        Kind::DataDownload => [
            "podVolume_data_download_success_total",
            "podVolume_data_download_failure_total",
            "podVolume_data_download_cancel_total",
        ],
        Kind::PodVolumeBackup => return vec![("podVolume_pod_volume_backup_dequeue_count", 1.0)],
        Kind::PodVolumeRestore => return Vec::new(),
    };
    names.into_iter().zip(once).collect()
}

/// Somebody else ends an operation in the moment in which an agent, which has seen nothing of that, writes its next phase.
#[tokio::test(flavor = "multi_thread")]
async fn a_phase_is_only_written_over_the_one_that_was_looked_at() {
    let next = [Phase::Accepted, Phase::Prepared, Phase::InProgress, Phase::Completed];
    let cells = next.map(|phase| Kind::ALL.map(|kind| Cell { kind, phase, fault: Fault::Cancel }));
    play_all(cells.concat(), is_outrun).await;
}

async fn is_outrun(cell: Cell) -> Result<(), String> {
    let mut stage = Stage::open(cell);
    let end = json!({ "status": { "phase": "Canceled", "message": "by somebody else" } });
    let ended = Arc::new(AtomicBool::new(false));
    let (it, meddled) = (stage.it.clone(), Arc::clone(&ended));
    stage.api.let_meddle(move |api, place, patch| {
        if *place == it && patch["status"]["phase"] == cell.phase.as_str() {
            meddled.store(true, Ordering::Relaxed);
            api.patch("user", place, &end).unwrap();
        }
    });
    operation(&stage.api, cell.kind, IT, HOME);
    stage.settle().await?;
    let it = stage.ended().ok_or("it is gone")?;
    assert!(ended.load(Ordering::Relaxed), "{cell}: nobody has written that phase");
    assert_eq!(phase(&it), Some(Phase::Canceled), "{cell}: {}", it["status"]);
    assert_eq!(it["status"]["message"], "by somebody else", "{cell}");
    let result = stage.nothing_is_left().await;
    stage.kill_agents();
    result
}

/// While it waits for a slot its pod is deleted, and another is made on the other node: whose slot it needs from then on.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_pod_is_made_again_elsewhere_waits_for_a_slot_there_and_goes_on_there() {
    for kind in [Kind::DataUpload, Kind::DataDownload] {
        let mut stage =
            Stage::set(Cell { kind, phase: Phase::Prepared, fault: Fault::PodDeleted }).await.unwrap();
        let node = || stage.api.get(&stage.it).map(|it| text(&it["status"]["node"]).to_owned());
        let host = || stage.world.hosting_pod(IT).map(|pod| text(&pod["spec"]["nodeName"]).to_owned());
        let (first, second) = match node().as_deref() {
            Some(HOME) => (HOME, OTHER),
            _ => (OTHER, HOME),
        };
        assert_eq!((node().as_deref(), host().as_deref()), (Some(first), Some(first)));
        // The scheduler of the model takes turns.
        let deleted = stage.api.delete("user", &Place::new(PODS, VELERO, IT), &with_time());
        assert!(deleted.is_ok(), "{deleted:?}");
        stage.until("its pod is elsewhere", || host().as_deref() == Some(second)).await.unwrap();
        stage.until("it says so", || node().as_deref() == Some(second)).await.unwrap();
        stage.reach(IT, kind, Phase::Prepared).await.unwrap();
        // A slot of the first node is of no use to it: another one gets it.
        stage.world.turn(|weather| weather.busy.retain(|name| *name != format!("slot-{first}")));
        let next = operation(&stage.api, Kind::PodVolumeBackup, "next", first);
        let is_over = || stage.api.get(&next).is_some_and(|next| phase(&next) == Some(Phase::Completed));
        stage.until("the next one is over", is_over).await.unwrap();
        stage.reach(IT, kind, Phase::Prepared).await.unwrap();
        stage.release();
        stage.check().await.unwrap();
        assert_eq!(node().as_deref(), Some(second));
        stage.kill_agents();
    }
}

/// A kubelet looks for ended containers from time to time only; nobody waits for that. Who comes later learns it, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_mover_that_says_that_all_has_moved_is_believed_if_its_log_has_the_result() {
    for kind in Kind::ALL {
        let cell = Cell { kind, phase: Phase::InProgress, fault: Fault::AgentKill };
        let mut stage = Stage::set(cell).await.unwrap();
        stage.kill_agents();
        stage.world.turn(|weather| weather.ends_are_told = false);
        stage.release();
        let logged =
            || stage.world.hosting_pod(IT).is_some_and(|pod| pod["metadata"]["annotations"][LOG].is_string());
        stage.until("its log has the result", logged).await.unwrap();
        assert_eq!(stage.world.hosting_pod(IT).unwrap()["status"]["phase"], "Running");
        stage.start_agents();
        stage.check().await.unwrap();
        stage.kill_agents();
    }
}

/// Anybody may write an Event.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_says_that_all_has_moved_counts_for_nothing_without_the_log() {
    let cell = Cell { kind: Kind::DataUpload, phase: Phase::InProgress, fault: Fault::AgentKill };
    let mut stage = Stage::set(cell).await.unwrap();
    let uid = stage.api.get(&stage.it).map(|it| it["metadata"]["uid"].clone()).unwrap();
    let result = r#"{"snapshotID":"of-somebody-else","emptySnapshot":false}"#;
    let event = json!({
        "metadata": { "name": "forged", "namespace": VELERO },
        "involvedObject": { "kind": cell.kind.name(), "namespace": VELERO, "name": IT, "uid": uid },
        "reason": "Data-Path-Completed", "message": result,
    });
    stage.api.create("user", EVENTS, event).unwrap();
    let logs = || stage.api.requests().get("get /pods").copied().unwrap_or(0);
    let before = logs();
    stage.until("somebody looks into the log", || logs() > before).await.unwrap();
    stage.reach(IT, cell.kind, Phase::InProgress).await.unwrap();
    stage.release();
    stage.check().await.unwrap();
    stage.kill_agents();
}

/// Somebody deletes the claim of the volume that a restore fills: once it is filled there is nothing to hand over.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_whose_volume_was_taken_away_says_so() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::PodDeleted };
    let mut stage = Stage::set(cell).await.unwrap();
    stage.api.delete("user", &Place::new(CLAIMS, VELERO, IT), &Value::Null).unwrap();
    stage.release();
    stage.reach(IT, cell.kind, Phase::Failed).await.unwrap();
    let it = stage.api.get(&stage.it).unwrap();
    assert!(text(&it["status"]["message"]).contains("is gone"), "{}", it["status"]);
    stage.until("nothing is left", || stage.world.leftovers().is_empty()).await.unwrap();
    stage.kill_agents();
}

/// The volume controller does not bind what was restored, or the cluster does not let the claim have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_volume_that_does_not_reach_its_claim_is_waited_for_with_words_and_kept_in_the_end() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
    for refused in [false, true] {
        let mut stage = Stage::set(cell).await.unwrap();
        let volume = stage.volume();
        let name = &volume.name;
        let wanted = if refused {
            stage.api.forbid(Place::new(CLAIMS, SHOP, IT));
            "waits for the cluster to accept a change that is needed".to_owned()
        } else {
            stage.world.turn(|weather| weather.volumes_are_bound = false);
            format!("waits for the volume {name} to be bound to the claim {SHOP}/{IT}")
        };
        stage.release();
        stage.until("it says what it waits for", || stage.message().contains(&wanted)).await.unwrap();
        let said = stage.api.get(&stage.it).unwrap();
        assert_eq!(phase(&said), Some(Phase::InProgress));
        // It says so once, however often an agent looks at it, and whichever.
        stage.kill_agents();
        stage.start_agents();
        let looks = || stage.api.requests().get("get /persistentvolumes").copied().unwrap_or(0);
        let before = looks();
        stage.until("it is looked at again", || looks() > before + 2).await.unwrap();
        assert_eq!(stage.api.get(&stage.it).unwrap(), said);
        stage.make_impatient();
        stage.reach(IT, cell.kind, Phase::Failed).await.unwrap();
        let message = stage.message();
        for words in [&wanted, "within 1s", &format!("volume {name} has all data and is kept"), "Retain"] {
            assert!(message.contains(words), "{words:?} is not said: {message}");
        }
        let held = || !stage.api.get(&stage.it).is_some_and(|it| it["metadata"]["finalizers"] == json!([]));
        stage.until("nobody holds it", || !held()).await.unwrap();
        stage.check_kept(&volume).await.unwrap();
        stage.kill_agents();
    }
}

/// What happens while no agent is there, and the words with which the operation fails then, if it does.
type Way = (fn(&Stage, &Place), Option<&'static str>);

/// Agents end between marking a volume as kept and failing its operation. Whoever goes on goes by how things are then.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_marked_as_kept_reaches_its_claim_after_all_or_stays_with_words_that_name_it() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
    let nothing = |_: &Stage, _: &Place| {};
    let claim_goes = |stage: &Stage, _: &Place| {
        stage.api.delete("user", &Place::new(CLAIMS, SHOP, IT), &Value::Null).unwrap();
    };
    let binding_gets_on = |stage: &Stage, volume: &Place| {
        stage.world.turn(|weather| weather.volumes_are_bound = true);
        let touched = json!({ "metadata": { "annotations": { "model/touched": "true" } } });
        stage.api.patch("user", volume, &touched).unwrap();
    };
    let ways: [Way; 3] = [
        (nothing, Some("could not be handed over")),
        (claim_goes, Some("was deleted while its data was restored")),
        (binding_gets_on, None),
    ];
    for (meanwhile, fails_with) in ways {
        let mut stage = Stage::set(cell).await.unwrap();
        let volume = stage.volume();
        stage.world.turn(|weather| weather.volumes_are_bound = false);
        stage.release();
        stage.until("all has moved", || stage.has_moved()).await.unwrap();
        stage.api.forbid(stage.it.clone());
        stage.make_impatient();
        stage.until("the volume is marked", || stage.is_kept(&volume)).await.unwrap();
        assert!(stage.ended().is_none());
        stage.kill_agents();
        meanwhile(&stage, &volume);
        stage.start_agents();
        stage.api.allow(&stage.it);
        match fails_with {
            Some(words) => {
                stage.reach(IT, cell.kind, Phase::Failed).await.unwrap();
                let kept = format!("volume {} has all data and is kept", volume.name);
                for words in [words, &kept] {
                    assert!(stage.message().contains(words), "{words:?} is not said: {}", stage.message());
                }
                stage.check_kept(&volume).await.unwrap();
            }
            None => {
                stage.check().await.unwrap();
                assert!(!stage.is_kept(&volume), "what its claim has is not kept for it any more");
            }
        }
        stage.kill_agents();
    }
}

/// A volume that cannot be marked would be removed by whoever cleans up, so nobody is told that it is kept.
#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_volume_cannot_be_marked_as_kept_says_so_and_goes_on_when_it_can() {
    let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
    let mut stage = Stage::set(cell).await.unwrap();
    let volume = stage.volume();
    stage.api.forbid(volume.clone());
    stage.release();
    stage.make_impatient();
    let says = |words: &str| stage.message().contains(words);
    let waits = || says("waits for the cluster to accept a change that is needed") && says("overdue since");
    stage.until("it says what it waits for", waits).await.unwrap();
    stage.reach(IT, cell.kind, Phase::InProgress).await.unwrap();
    // The volume controller takes its time, too.
    stage.make_patient();
    stage.api.allow(&volume);
    stage.check().await.unwrap();
    stage.kill_agents();
}

/// Somebody forces the finalizer off an operation whose volume is kept, or deletes it altogether, before it is cleaned up after.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_kept_outlives_its_operation_and_the_sweeper() {
    let mut played = JoinSet::new();
    for deleted in [false, true] {
        played.spawn(async move {
            let cell = Cell { kind: Kind::DataDownload, phase: Phase::InProgress, fault: Fault::AgentKill };
            let mut stage = Stage::set(cell).await?;
            let (volume, pod) = (stage.volume(), Place::new(PODS, VELERO, IT));
            // As long as its pod does not go, it is not handed over, and not cleaned up after.
            let held_by = |who: Value| json!({ "metadata": { "finalizers": who } });
            stage.api.patch("user", &pod, &held_by(json!(["model/held"]))).unwrap();
            stage.release();
            stage.make_impatient();
            stage.reach(IT, cell.kind, Phase::Failed).await?;
            stage.kill_agents();
            let left = stage.world.leftovers();
            assert!(left.contains(&format!("{VOLUMES} {}", volume.name)), "not in the ledger: {left:?}");
            stage.api.patch("user", &stage.it, &held_by(json!([]))).unwrap();
            if deleted {
                stage.api.delete("user", &stage.it, &Value::Null).unwrap();
            }
            stage.start_agents();
            stage.api.patch("user", &pod, &held_by(json!([]))).unwrap();
            let result = stage.check_kept(&volume).await;
            stage.kill_agents();
            result.map_err(|error| format!("operation deleted: {deleted}: {error}"))
        });
    }
    assert_eq!(played.join_all().await, [Ok(()), Ok(())]);
}

#[test]
fn the_cover_has_every_kind_in_every_phase_and_each_fault_of_one_wherever_it_can_strike() {
    let cover = cover();
    let of_one: Vec<Cell> = cells().filter(|cell| Fault::OF_ONE.contains(&cell.fault)).collect();
    assert_eq!(cover.len(), 4 * 5);
    assert!(cover.iter().all(|cell| of_one.contains(cell)), "{cover:?}");
    for cell in of_one {
        let with =
            |same: &dyn Fn(&Cell) -> bool| cover.iter().any(|one| one.fault == cell.fault && same(one));
        assert!(with(&|one| one.kind == cell.kind), "{cell}: not with this kind");
        assert!(with(&|one| one.phase == cell.phase), "{cell}: not in this phase");
        assert!(
            cover.iter().any(|one| (one.kind, one.phase) == (cell.kind, cell.phase)),
            "{cell}: not at all"
        );
    }
}
