//! Telling a restored pod that a volume that it waits for does not come.
//!
//! Its node-agent cannot reach the volume, and its init container asks nobody. So this is done by a hosting pod: every mover
//! that finds its restore over writes that into the volume. Usually the one that did the work has done so as its last act; if
//! that was killed, or there was none, another one is made for it.

use crate::Error;
use crate::act::{STEPS, Turn, change, note, warn_of};
use crate::agent::Agent;
use crate::exposing::{Exposed, resource_timeout};
use crate::look::{CANCEL_GRACE, Look};
use crate::operation::notes;
use crate::peers::maker;
use crate::waiting::{LATER, SOON};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lifeboat_api::Duration;
use lifeboat_datapath::observe::{PodReport, read_pod};
use lifeboat_exposer::{Next, Operation, Outcome, perform};

/// So long it is likely to be a matter of moments.
const AT_FIRST: SignedDuration = SignedDuration::from_secs(20);

/// What is to be expected of a hosting pod.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Message {
    /// It will tell, if it runs.
    Coming,
    /// It has told.
    Told,
    /// It could not tell, for this reason, and another one could not either.
    NotTold(String),
    /// It does not tell any more.
    Spent,
}

/// What a hosting pod has told or will, of an operation that has been over since `end`.
fn message(operation: &Operation, pod: &Pod, end: Timestamp, now: Timestamp) -> Message {
    match read_pod(operation, pod) {
        PodReport::Ended(ending) => match ending.told() {
            Some(true) => Message::Told,
            Some(false) => Message::NotTold(ending.termination_message()),
            None => Message::Spent,
        },
        PodReport::Running => {
            // A mover that runs sees the end by itself, unless it hangs.
            let older = pod.creation_timestamp().is_some_and(|made| made.0 < end);
            let hangs = older && now.duration_since(end) >= CANCEL_GRACE;
            if hangs { Message::Spent } else { Message::Coming }
        }
        PodReport::Waiting(_) => Message::Coming,
    }
}

/// How far it is with a pod that is to be told.
enum Progress {
    Told,
    GivenUp(String),
    Open,
}

/// Has a hosting pod tell, and notes that it has. Others have to get on with it: after some time it is given up.
pub(crate) async fn tell<K: Exposed>(agent: &Agent, object: K, seen: Look<K>) -> Result<Turn<K>, Error> {
    // What is in memory may be older than our own last write: nothing is made for what nobody cleans up after any more.
    let current = agent.api::<K>().get_opt(&object.name_any()).await?;
    let Some(current) = current.filter(|it| it.uid() == object.uid()) else { return Ok(Turn::Never) };
    if current.resource_version() != object.resource_version() {
        return Ok(Turn::Again(current));
    }
    let now = agent.now();
    let end = object.status().and_then(|status| status.completion_timestamp.as_ref()).map_or(now, |it| it.0);
    let limit = resource_timeout(agent, object.operation_timeout());
    match attempt(agent, &object, seen, end, limit).await? {
        Progress::Told => change(agent, object, |it| note(it, notes::TOLD, "true".to_owned())).await,
        Progress::GivenUp(why) => {
            let words = format!(
                "the pod that waits for this volume could not be told that its data does not come: {why}; delete that pod"
            );
            tracing::warn!(kind = K::KIND.name(), name = object.name_any(), "{words}");
            warn_of(agent, &object.object_ref(&()), "PodNotTold", &words).await;
            change(agent, object, |it| note(it, notes::TOLD, why)).await
        }
        Progress::Open => Ok(Turn::Later(if now.duration_since(end) < AT_FIRST { SOON } else { LATER })),
    }
}

async fn attempt<K: Exposed>(
    agent: &Agent,
    object: &K,
    seen: Look<K>,
    end: Timestamp,
    limit: Duration,
) -> Result<Progress, Error> {
    let Some(mut hosting) = seen.seen else { return Ok(Progress::Open) };
    let operation = object.operation();
    for _ in 0..STEPS {
        let message = K::messenger(&hosting).map(|pod| message(&operation, pod, end, agent.now()));
        let spent = match message {
            Some(Message::Told) => return Ok(Progress::Told),
            Some(Message::NotTold(why)) => return Ok(Progress::GivenUp(why)),
            Some(Message::Spent) => true,
            Some(Message::Coming) | None => false,
        };
        let open = match object.tell(agent, &hosting, spent).await? {
            Next::Do(step) => match perform(&agent.client, &step.made_by(&maker(&agent.options.node))).await?
            {
                Outcome::Done(after) => {
                    object.take_in(&mut hosting, after);
                    continue;
                }
                Outcome::Stale => return Ok(Progress::Open),
            },
            Next::Impossible(why) => return Ok(Progress::GivenUp(why)),
            Next::Wait(waiting) => waiting.for_what,
            Next::Done => format!("the pod {} to run", object.name_any()),
        };
        tracing::debug!(name = object.name_any(), "who waits is told as soon as there is {open}");
        let overdue = SignedDuration::try_from(limit.to_std()).unwrap_or(SignedDuration::MAX);
        if agent.now().duration_since(end) >= overdue {
            return Ok(Progress::GivenUp(format!("within {limit} there was not {open}")));
        }
        return Ok(Progress::Open);
    }
    Ok(Progress::Open)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_datapath::wire::{Ending, NOT_TOLD, TOLD};
    use lifeboat_exposer::Kind;
    use serde_json::{Value, json};

    const END: &str = "2026-01-01T00:01:00Z";

    fn heard(made: &str, status: Value, seconds_after: i64) -> Message {
        let operation = Operation {
            kind: Kind::PodVolumeRestore,
            namespace: "velero".into(),
            name: "r-1".into(),
            uid: "u-1".into(),
        };
        let pod = json!({
            "metadata": { "name": "r-1", "creationTimestamp": made }, "spec": { "containers": [] }, "status": status,
        });
        let end: Timestamp = END.parse().unwrap();
        let now = end.checked_add(SignedDuration::from_secs(seconds_after)).unwrap();
        message(&operation, &serde_json::from_value(pod).unwrap(), end, now)
    }

    fn ended(message: &str) -> Value {
        let state = json!({ "terminated": { "exitCode": 1, "message": message } });
        let container = json!({ "name": "u-1", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        json!({ "phase": "Failed", "containerStatuses": [container] })
    }

    #[test]
    fn a_pod_tells_with_its_last_words_or_not_at_all() {
        let before = "2026-01-01T00:00:00Z";
        let words = |ending: Ending| heard(before, ended(&ending.termination_message()), 0);
        assert_eq!(words(Ending::Canceled("stopped".to_owned()).and(TOLD)), Message::Told);
        assert_eq!(words(Ending::Failed("no bucket".to_owned()).and(TOLD)), Message::Told);
        let full = words(Ending::Failed("no bucket".to_owned()).and(&format!("no room: {NOT_TOLD}")));
        assert!(matches!(full, Message::NotTold(why) if why.contains("no room")));
        assert_eq!(heard(before, ended(""), 0), Message::Spent, "killed");
        assert_eq!(heard(before, json!({ "phase": "Pending" }), 100), Message::Coming);
    }

    #[test]
    fn a_mover_that_has_outlived_its_operation_for_long_is_not_waited_for() {
        let running = || json!({ "phase": "Running" });
        assert_eq!(heard("2026-01-01T00:00:00Z", running(), 1), Message::Coming);
        assert_eq!(heard("2026-01-01T00:00:00Z", running(), 11), Message::Spent);
        assert_eq!(heard("2026-01-01T00:01:05Z", running(), 11), Message::Coming, "made to tell");
    }
}
