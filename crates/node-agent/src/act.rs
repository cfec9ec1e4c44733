//! Doing what the machine decides: one write at a time, each against the version that was looked at.

use crate::Error;
use crate::agent::{Agent, Pledge};
use crate::exposing::Exposed;
use crate::look::{Look, host, look, movers_lost};
use crate::machine::{Action, Hosting, decide};
use crate::operation::notes;
use crate::peers::maker;
use crate::reasons::{WAITS, running_pod, why};
use crate::telling::tell;
use crate::waiting::{LATER, SOON, explain, pace, refused, waited};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller;
use kube::runtime::events::{Event, EventType};
use lifeboat_api::{NodeOs, Phase, labels};
use lifeboat_datapath::observe::hand_over_log;
use lifeboat_exposer::{Next, Outcome, Waiting, diagnose, perform, remove_pod};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// As many steps are taken in one go before others get their turn.
pub(crate) const STEPS: usize = 24;
/// Until the next look when somebody will tell us.
const MUCH_LATER: Duration = Duration::from_secs(30);
/// A wait that is longer deserves a diagnosis.
const DOUBT: i64 = 15;
/// The longest note that an Event may carry.
const LONGEST_NOTE: usize = 1000;

/// What comes after a step.
pub(crate) enum Turn<K> {
    /// Another look at once, at this.
    Again(K),
    /// Another look after this time, unless something changes before.
    Later(Duration),
    /// Nothing until it changes.
    Never,
}

/// Looks at an operation and does what is to be done, until there is nothing more to do for now.
pub(crate) async fn reconcile<K: Exposed>(
    object: Arc<K>,
    agent: Arc<Agent>,
) -> Result<controller::Action, Error> {
    let mut current = (*object).clone();
    for _ in 0..STEPS {
        let seen = look(&agent, &current).await?;
        let action = decide(&seen.observation);
        agent.metrics.requests.with_label_values(&[K::KIND.name(), action_name(action)]).inc();
        match act(&agent, current, seen, action).await? {
            Turn::Again(next) => current = next,
            Turn::Later(time) => return Ok(controller::Action::requeue(time)),
            Turn::Never => return Ok(controller::Action::await_change()),
        }
    }
    Ok(controller::Action::requeue(SOON))
}

/// What follows a look that failed: another one, soon.
pub(crate) fn retry<K: Exposed>(object: Arc<K>, error: &Error, _: Arc<Agent>) -> controller::Action {
    tracing::warn!(kind = K::KIND.name(), name = object.name_any(), %error, "will be tried again");
    controller::Action::requeue(LATER)
}

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Leave => "leave",
        Action::Wait => "wait",
        Action::AddFinalizer => "add finalizer",
        Action::RequestCancel => "request cancel",
        Action::Accept => "accept",
        Action::Expose => "expose",
        Action::MarkPrepared => "prepared",
        Action::Start => "start",
        Action::Replace => "replace",
        Action::MarkCanceling => "canceling",
        Action::RecordResult => "record",
        Action::HandOver => "hand over",
        Action::Keep => "keep",
        Action::Finish(_) => "finish",
        Action::Tell => "tell",
        Action::CleanUp => "clean up",
        Action::RemoveFinalizer => "remove finalizer",
    }
}

async fn act<K: Exposed>(
    agent: &Agent,
    object: K,
    mut seen: Look<K>,
    action: Action,
) -> Result<Turn<K>, Error> {
    match action {
        Action::Leave if object.phase().is_final() => {
            agent.forget(&object.uid().unwrap_or_default());
            Ok(Turn::Never)
        }
        // Should it fall to us, we look again.
        Action::Leave => Ok(Turn::Never),
        Action::Wait => wait(agent, object, &seen).await,
        Action::AddFinalizer => {
            change(agent, object, |it| it.finalizers_mut().push(K::FINALIZER.to_owned())).await
        }
        Action::RemoveFinalizer => {
            agent.forget(&object.uid().unwrap_or_default());
            change(agent, object, |it| it.finalizers_mut().retain(|one| one != K::FINALIZER)).await
        }
        Action::RequestCancel => {
            change(agent, object, |it| {
                it.request_cancel();
                it.status_mut().message = format!("{} is being deleted, so it is stopped", K::KIND.name());
            })
            .await
        }
        Action::Accept => accept(agent, object, &seen).await,
        Action::Expose => expose(agent, object, seen).await,
        Action::MarkPrepared => {
            let node = seen.pod.as_deref().and_then(host).unwrap_or(&agent.options.node).to_owned();
            change(agent, object, |it| {
                set_phase(it, Phase::Prepared);
                it.set_node(node);
                it.status_mut().message.clear();
            })
            .await
        }
        Action::Start => start(agent, object, &seen).await,
        Action::Replace => replace(agent, object, &seen).await,
        Action::MarkCanceling => {
            let now = agent.now();
            change(agent, object, |it| {
                set_phase(it, Phase::Canceling);
                note(it, notes::CANCELING_SINCE, now.to_string());
            })
            .await
        }
        Action::RecordResult => record(agent, object, &seen).await,
        Action::HandOver => hand_over(agent, object, seen).await,
        Action::Keep => keep(agent, object, seen).await,
        Action::Finish(phase) => finish(agent, object, seen, phase).await,
        Action::Tell => tell(agent, object, seen).await,
        Action::CleanUp => match steps(agent, &object, &mut seen.seen, K::clean).await? {
            Ok(turn) => Ok(turn),
            Err(waiting) => {
                tracing::debug!(name = object.name_any(), "waits for {}", waiting.for_what);
                Ok(Turn::Later(SOON))
            }
        },
    }
}

async fn accept<K: Exposed>(agent: &Agent, object: K, seen: &Look<K>) -> Result<Turn<K>, Error> {
    let now = agent.now();
    let node = seen.gate.home.clone().unwrap_or_else(|| agent.options.node.clone());
    take(agent, object, Pledge::Accepting, |it| {
        set_phase(it, Phase::Accepted);
        it.set_accepted_by(node);
        it.status_mut().message.clear();
        it.status_mut().accepted_timestamp = Some(Time(now));
        it.labels_mut().insert(labels::EXPOSE_ON_GOING.to_owned(), "true".to_owned());
    })
    .await
}

async fn start<K: Exposed>(agent: &Agent, object: K, seen: &Look<K>) -> Result<Turn<K>, Error> {
    let now = agent.now();
    let os = seen.pod.as_ref().and_then(|pod| pod.spec.as_ref()?.os.as_ref());
    let windows = os.is_some_and(|os| os.name == "windows");
    take(agent, object, Pledge::Starting, |it| {
        set_phase(it, Phase::InProgress);
        it.status_mut().start_timestamp = Some(Time(now));
        it.status_mut().message.clear();
        it.set_started(if windows { NodeOs::Windows } else { NodeOs::Linux });
        it.labels_mut().remove(labels::EXPOSE_ON_GOING);
    })
    .await
}

/// Changes an operation so that it takes a place in a queue. From here on the place is taken, whatever the watch still shows;
/// it is free again if somebody else was faster.
async fn take<K: Exposed>(
    agent: &Agent,
    object: K,
    place: Pledge,
    mutate: impl FnOnce(&mut K),
) -> Result<Turn<K>, Error> {
    let uid = object.uid().unwrap_or_default();
    if !agent.pledge(place, &uid) {
        return Ok(Turn::Later(SOON));
    }
    let turn = change(agent, object, mutate).await;
    if !matches!(turn, Ok(Turn::Again(_))) {
        agent.withdraw(place, &uid);
    } else if place == Pledge::Starting {
        agent.metrics.started(K::KIND);
    }
    turn
}

/// Takes the next steps of the exposer, as far as they go without waiting.
async fn expose<K: Exposed>(agent: &Agent, object: K, seen: Look<K>) -> Result<Turn<K>, Error> {
    if let Some(pod) = seen.pod.as_deref().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        if !seen.known_lost {
            return wait_for_pod(agent, &object, &seen).await;
        }
        if let Next::Do(step) = remove_pod(pod) {
            perform(&agent.client, &step).await?;
        }
        return Ok(Turn::Later(SOON));
    }
    // What is in memory may be older than our own last write: nothing is made for an operation that is over by now.
    let current = agent.api::<K>().get_opt(&object.name_any()).await?;
    let Some(current) = current.filter(|it| it.uid() == object.uid()) else { return Ok(Turn::Never) };
    if current.resource_version() != object.resource_version() {
        return Ok(Turn::Again(current));
    }
    let mut hosting = object.look(agent, false).await?;
    let details = object.details(agent, &hosting).await?;
    for _ in 0..STEPS {
        let next = match &details {
            Ok(details) => object.next(details, &hosting),
            Err(instead) => instead.clone(),
        };
        match next {
            Next::Do(step) => {
                match perform(&agent.client, &step.made_by(&maker(&agent.options.node))).await {
                    Ok(Outcome::Done(after)) => object.take_in(&mut hosting, after),
                    Ok(Outcome::Stale) => return Ok(Turn::Later(SOON)),
                    Err(error) => {
                        explain(agent, &object, &refused(&error)).await?;
                        return Ok(Turn::Later(LATER));
                    }
                }
            }
            Next::Wait(waiting) => return wait_for(agent, &object, &waiting).await,
            Next::Done => return wait_for_pod(agent, &object, &seen).await,
            Next::Impossible(reason) => {
                let seen = seen.broken(reason);
                return match decide(&seen.observation) {
                    Action::Finish(phase) => finish(agent, object, seen, phase).await,
                    _ => Ok(Turn::Later(LATER)),
                };
            }
        }
    }
    Ok(Turn::Later(SOON))
}

/// Everything is made; says what the hosting pod waits for.
async fn wait_for_pod<K: Exposed>(agent: &Agent, object: &K, seen: &Look<K>) -> Result<Turn<K>, Error> {
    let mut for_what = running_pod(object);
    if waited(agent, object) > DOUBT {
        let hosting = object.look(agent, false).await?;
        let diagnosis = diagnose(&agent.client, &K::things(&hosting)).await;
        for_what.push_str(&format!(": {diagnosis}"));
    } else if let Some(words) = &seen.hosted.words {
        for_what.push_str(&format!(": {words}"));
    }
    let advice = "if it does not, the events of the pod and of its claim say why";
    explain(agent, object, &Waiting { for_what, advice }).await?;
    Ok(Turn::Later(LATER))
}

/// Nothing to do for now: passes on how far it is, and says what is waited for.
async fn wait<K: Exposed>(agent: &Agent, object: K, seen: &Look<K>) -> Result<Turn<K>, Error> {
    match object.phase() {
        Phase::New => {
            let others = Waiting {
                for_what: "its turn to be prepared: as many others as may be are being prepared".to_owned(),
                advice: "more at once are set by prepareQueueLength under loadConcurrency in the config map of the node-agent",
            };
            explain(agent, &object, seen.gate.waiting.as_ref().unwrap_or(&others)).await?;
            Ok(Turn::Later(LATER))
        }
        Phase::Prepared => {
            let node = object.node().to_owned();
            let waiting = if agent.peers().contains(&node) {
                Waiting {
                    for_what: format!("a slot of node {node}, which moves as many volumes as it may"),
                    advice: "more at once are set by loadConcurrency in the config map of the node-agent",
                }
            } else {
                Waiting {
                    for_what: format!("the node-agent of node {node}, which is not at work"),
                    advice: "see why its pod does not run",
                }
            };
            explain(agent, &object, &waiting).await?;
            Ok(Turn::Later(LATER))
        }
        Phase::Canceling => Ok(Turn::Later(Duration::from_secs(2))),
        _ if seen.observation.hosting == Hosting::Ending => {
            let waiting = Waiting {
                for_what: format!("the end of the pod {}, whose place another takes", object.name_any()),
                advice: "if it does not end, look at its finalizers and at the kubelet of its node",
            };
            explain(agent, &object, &waiting).await?;
            Ok(Turn::Later(SOON))
        }
        _ => {
            let progress = agent.progress_of(&object.uid().unwrap_or_default());
            let news =
                progress.filter(|progress| object.status().is_none_or(|status| status.progress != *progress));
            let replaced = object.note(notes::REPLACING_SINCE).is_some() && seen.pod.is_some();
            if news.is_none() && !replaced {
                return Ok(Turn::Later(MUCH_LATER));
            }
            // The replacement may be on another node, which is then the one that moves the data.
            let node = seen.pod.as_deref().filter(|_| replaced).and_then(host).map(str::to_owned);
            change(agent, object, |it| {
                if let Some(progress) = news {
                    it.status_mut().progress = progress;
                }
                if let Some(node) = node {
                    it.set_node(node);
                }
                forget_lost_pod(it);
            })
            .await
        }
    }
}

/// Notes that a mover is lost, and which. What follows is the exposer's: what is left of its pod goes, and another is made.
async fn replace<K: Exposed>(agent: &Agent, object: K, seen: &Look<K>) -> Result<Turn<K>, Error> {
    let lost = movers_lost(&object) + 1;
    let now = agent.now();
    let reason = seen.hosted.words.as_deref().unwrap_or("its pod is gone");
    tracing::warn!(kind = K::KIND.name(), name = object.name_any(), lost, reason, "the mover was lost");
    let pod = seen.pod.as_ref().and_then(|pod| pod.uid());
    let turn = change(agent, object, |it| {
        forget_lost_pod(it);
        note(it, notes::MOVERS_LOST, lost.to_string());
        note(it, notes::REPLACING_SINCE, now.to_string());
        if let Some(pod) = pod {
            note(it, notes::LOST_POD, pod);
        }
        it.status_mut().message =
            format!("the mover was lost ({reason}) and is replaced, for the {lost}. time");
    })
    .await?;
    if let Turn::Again(replaced) = &turn {
        agent.metrics.movers_lost.inc();
        agent.forget_mover(&replaced.uid().unwrap_or_default());
        pass_log_on(agent, seen).await;
    }
    Ok(turn)
}

/// There is another mover, or none is needed any more.
fn forget_lost_pod<K: Exposed>(object: &mut K) {
    object.annotations_mut().remove(notes::REPLACING_SINCE);
    object.annotations_mut().remove(notes::LOST_POD);
}

/// Notes that all data was moved, and where it is, before anything of the hosting goes.
async fn record<K: Exposed>(agent: &Agent, object: K, seen: &Look<K>) -> Result<Turn<K>, Error> {
    let Some(ending) = &seen.hosted.ending else { return Ok(Turn::Later(SOON)) };
    pass_log_on(agent, seen).await;
    let hosting = if K::HANDS_OVER { Some(object.look(agent, false).await?) } else { None };
    let Some(moved) = object.moved(hosting.as_ref()) else { return Ok(Turn::Later(SOON)) };
    let now = agent.now();
    let turn = change(agent, object, |it| {
        it.status_mut().message.clear();
        it.set_result(ending);
        note(it, notes::MOVED, moved);
        note(it, notes::MOVED_AT, now.to_string());
        forget_lost_pod(it);
    })
    .await;
    agent.slot_is_free();
    turn
}

/// Gives a restored volume to its claim, as far as that gets on; if it does not, says so until its time is up.
async fn hand_over<K: Exposed>(agent: &Agent, object: K, mut seen: Look<K>) -> Result<Turn<K>, Error> {
    let uid = object.uid().unwrap_or_default();
    let waiting = match steps_if_accepted(agent, &object, &mut seen.seen, K::hand_over).await? {
        Ok(turn) => {
            agent.gets_on(&uid);
            return Ok(turn);
        }
        Err(waiting) => waiting,
    };
    let seen = seen.halted(&waiting, agent.halted_for(&uid));
    match decide(&seen.observation) {
        Action::Keep => keep(agent, object, seen).await,
        Action::Finish(phase) => finish(agent, object, seen, phase).await,
        _ => wait_for(agent, &object, &waiting).await,
    }
}

/// Has a volume say that it is kept. The operation does not end before, or its message would promise what nobody sees to.
async fn keep<K: Exposed>(agent: &Agent, object: K, mut seen: Look<K>) -> Result<Turn<K>, Error> {
    match steps_if_accepted(agent, &object, &mut seen.seen, K::keep).await? {
        Ok(turn) => Ok(turn),
        Err(waiting) => wait_for(agent, &object, &waiting).await,
    }
}

/// Says what is waited for; another look comes soon if it is likely to come about soon.
async fn wait_for<K: Exposed>(agent: &Agent, object: &K, waiting: &Waiting) -> Result<Turn<K>, Error> {
    explain(agent, object, waiting).await?;
    Ok(Turn::Later(pace(agent, object)))
}

/// The same as [`steps`]; that the cluster refuses one is something to wait for, too.
async fn steps_if_accepted<K: Exposed>(
    agent: &Agent,
    object: &K,
    hosting: &mut Option<K::Seen>,
    next: impl Fn(&K, &K::Seen) -> Next,
) -> Result<Result<Turn<K>, Waiting>, Error> {
    match steps(agent, object, hosting, next).await {
        Err(kube::Error::Api(refusal)) => Ok(Err(refused(&refusal))),
        other => Ok(other?),
    }
}

/// Takes the steps of the exposer after the data was moved, as far as they go; if not to their end, says what they wait for.
async fn steps<K: Exposed>(
    agent: &Agent,
    object: &K,
    hosting: &mut Option<K::Seen>,
    next: impl Fn(&K, &K::Seen) -> Next,
) -> Result<Result<Turn<K>, Waiting>, kube::Error> {
    let Some(hosting) = hosting else { return Ok(Ok(Turn::Later(SOON))) };
    for _ in 0..STEPS {
        match next(object, hosting) {
            Next::Do(step) => match perform(&agent.client, &step).await? {
                Outcome::Done(after) => object.take_in(hosting, after),
                Outcome::Stale => return Ok(Ok(Turn::Again(object.clone()))),
            },
            Next::Wait(waiting) => return Ok(Err(waiting)),
            Next::Done | Next::Impossible(_) => return Ok(Ok(Turn::Again(object.clone()))),
        }
    }
    Ok(Ok(Turn::Later(SOON)))
}

/// Writes the end, with what is to be said about it.
async fn finish<K: Exposed>(agent: &Agent, object: K, seen: Look<K>, phase: Phase) -> Result<Turn<K>, Error> {
    let message = match phase {
        Phase::Failed => Some(why(agent, &object, &seen).await),
        _ => None,
    };
    if seen.hosted.ending.is_some() && !seen.observation.moved {
        pass_log_on(agent, &seen).await;
    }
    let now = agent.now();
    let reference = object.object_ref(&());
    let canceled = phase == Phase::Canceled && !object.cancel();
    let kept = seen.observation.kept.then(|| object.note(notes::MOVED).map(str::to_owned)).flatten();
    let had_begun = object.status().is_some_and(|status| status.start_timestamp.is_some());
    let turn = change(agent, object, |it| {
        set_phase(it, phase);
        it.labels_mut().remove(labels::EXPOSE_ON_GOING);
        forget_lost_pod(it);
        it.annotations_mut().remove(notes::CANCELING_SINCE);
        if let Some(volume) = kept {
            note(it, notes::KEPT, volume);
        }
        let status = it.status_mut();
        status.start_timestamp.get_or_insert(Time(now));
        status.completion_timestamp = Some(Time(now));
        match &message {
            Some(message) => status.message = message.clone(),
            None if canceled => status.message = "the mover was stopped from outside".to_owned(),
            None if status.message.starts_with(WAITS) => status.message.clear(),
            None => {}
        }
    })
    .await?;
    if matches!(turn, Turn::Again(_)) {
        agent.metrics.ended(K::KIND, phase, had_begun);
        if let Turn::Again(ended) = &turn {
            tell_time(agent, ended);
        }
        agent.slot_is_free();
        if let Some(message) = message {
            tracing::error!(kind = K::KIND.name(), name = reference.name, "{message}");
            warn_of(agent, &reference, "Failed", &message).await;
        }
    }
    Ok(turn)
}

/// Has an Event of an operation say what has gone wrong.
pub(crate) async fn warn_of(agent: &Agent, reference: &ObjectReference, reason: &str, message: &str) {
    let note = message[..message.floor_char_boundary(LONGEST_NOTE)].to_owned();
    let event = Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note),
        action: "MoveData".to_owned(),
        secondary: None,
    };
    if let Err(error) = agent.recorder.publish(&event, reference).await {
        tracing::warn!(%error, "an event could not be made");
    }
}

/// Counts how long an operation took that has moved everything, if that is told of its kind.
fn tell_time<K: Exposed>(agent: &Agent, ended: &K) {
    let Some(status) = ended.status().filter(|status| status.phase == Some(Phase::Completed)) else { return };
    let (Some(start), Some(end)) = (&status.start_timestamp, &status.completion_timestamp) else { return };
    if let Some(names) = ended.timed_as() {
        agent.metrics.took(names, end.0.duration_since(start.0).as_secs_f64());
    }
}

/// Puts the mover's log into ours, where people look for it when the pod is gone.
async fn pass_log_on<K: Exposed>(agent: &Agent, seen: &Look<K>) {
    let Some(pod) = seen.pod.as_ref().filter(|_| seen.hosted.ending.is_some()) else { return };
    let operation = lifeboat_exposer::Operation {
        kind: K::KIND,
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.owner_references().first().map(|owner| owner.uid.clone()).unwrap_or_default(),
    };
    if let Err(error) = hand_over_log(agent.client.clone(), &operation, &mut std::io::stdout()).await {
        tracing::warn!(%error, "a mover's log is lost");
    }
}

fn set_phase<K: Exposed>(object: &mut K, phase: Phase) {
    tracing::info!(kind = K::KIND.name(), name = object.name_any(), %phase, "next phase");
    object.status_mut().phase = Some(phase);
}

pub(crate) fn note<K: Exposed>(object: &mut K, key: &str, value: String) {
    object.annotations_mut().insert(key.to_owned(), value);
}

/// Changes an operation, if it still is as it was looked at; if not, the watch brings the newer one.
pub(crate) async fn change<K: Exposed>(
    agent: &Agent,
    object: K,
    mutate: impl FnOnce(&mut K),
) -> Result<Turn<K>, Error> {
    let mut after = object.clone();
    mutate(&mut after);
    let Value::Object(mut patch) =
        difference(&serde_json::to_value(&object)?, &serde_json::to_value(&after)?)
    else {
        return Ok(Turn::Later(LATER));
    };
    let metadata = patch.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    metadata["resourceVersion"] = object.resource_version().into();
    metadata["uid"] = object.uid().into();
    let patched =
        agent.api::<K>().patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    match patched {
        Ok(object) => Ok(Turn::Again(object)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(Turn::Later(SOON)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Turn::Never),
        Err(error) => Err(error.into()),
    }
}

/// The merge patch that makes `after` of `before`; null if they are the same.
fn difference(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return if before == after { Value::Null } else { after.clone() };
    };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(former) if former == value => {}
            Some(former) => {
                patch.insert(key.clone(), difference(former, value));
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    if patch.is_empty() { Value::Null } else { Value::Object(patch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_patch_says_what_changed_and_nothing_else() {
        let before = json!({ "a": { "x": 1, "y": 2 }, "list": [1], "gone": true, "same": { "z": 3 } });
        let after = json!({ "a": { "x": 1, "y": 3, "n": {} }, "list": [1, 2], "same": { "z": 3 } });
        assert_eq!(
            difference(&before, &after),
            json!({ "a": { "y": 3, "n": {} }, "list": [1, 2], "gone": null })
        );
        assert_eq!(difference(&before, &before), Value::Null);
    }
}
