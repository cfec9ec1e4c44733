//! What is said of an operation that failed.

use crate::agent::Agent;
use crate::exposing::{Exposed, resource_timeout};
use crate::look::Look;
use crate::machine::Hosting;
use crate::operation::notes;
use kube::ResourceExt;
use lifeboat_api::Phase;
use lifeboat_exposer::diagnose;

/// How the message of an operation begins that is not stuck but waits.
pub(crate) const WAITS: &str = "waits for";

/// What an operation waits for whose hosting pod is made.
pub(crate) fn running_pod<K: Exposed>(object: &K) -> String {
    format!("the pod {} to run", object.name_any())
}

/// Why an operation failed.
pub(crate) async fn why<K: Exposed>(agent: &Agent, object: &K, seen: &Look<K>) -> String {
    if let Some(reason) = &seen.hopeless {
        return if seen.observation.kept {
            format!("{reason}. {}; delete it when nobody needs it any more", is_kept(object))
        } else {
            reason.clone()
        };
    }
    if let Some(waited_for) = &seen.halted {
        return with_diagnosis(agent, object, not_handed_over(agent, object, waited_for)).await;
    }
    let words = seen.hosted.words.as_deref();
    if matches!(object.phase(), Phase::InProgress | Phase::Canceling) && seen.hosted.ending.is_some() {
        return format!("data path failed: {}", words.unwrap_or("the mover left no words"));
    }
    let overdue = seen.observation.prepare_overdue;
    // What a pod in the making waits for is part of the diagnosis.
    let in_the_making = overdue && matches!(seen.observation.hosting, Hosting::Preparing | Hosting::Ending);
    let first = match words.filter(|_| !in_the_making) {
        Some(words) => format!("the volume could not be made reachable: {words}"),
        None if overdue => {
            let limit = lifeboat_api::Duration::from_secs(agent.options.prepare_timeout.as_secs());
            let said = object.status().map(|status| status.message.as_str()).unwrap_or_default();
            format!(
                "the volume could not be made reachable within {limit}{}",
                still(said, &running_pod(object))
            )
        }
        None => "the mover was lost too often".to_owned(),
    };
    with_diagnosis(agent, object, first).await
}

/// What became of a volume that its claim did not get in time.
fn not_handed_over<K: Exposed>(agent: &Agent, object: &K, waited_for: &str) -> String {
    let limit = resource_timeout(agent, object.operation_timeout());
    format!(
        "all data was restored, but its volume could not be handed over within {limit}: it still {WAITS} {waited_for}. \
         {}: see to what was waited for, and if the claim gets the volume then, nothing is missing; otherwise delete the \
         claim and restore again, and delete the volume when nobody needs it any more",
        is_kept(object)
    )
}

fn is_kept<K: Exposed>(object: &K) -> String {
    let volume = object.note(notes::MOVED).unwrap_or_default();
    format!("The volume {volume} has all data and is kept, with the reclaim policy Retain")
}

/// This, and what the hosting tells.
async fn with_diagnosis<K: Exposed>(agent: &Agent, object: &K, first: String) -> String {
    match object.look(agent, true).await {
        Ok(hosting) => {
            let diagnosis = diagnose(&agent.client, &K::things(&hosting)).await;
            if diagnosis.is_empty() { first } else { format!("{first}. {diagnosis}") }
        }
        Err(_) => first,
    }
}

/// What an operation that has said this still waits for. What it said of its pod is left to the diagnosis, which follows.
fn still(said: &str, running_pod: &str) -> String {
    match said.strip_prefix(WAITS).map(str::trim_start) {
        Some(rest) if rest.starts_with(running_pod) => format!("; it {WAITS} {running_pod}"),
        Some(_) => format!("; it {said}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_pod_that_does_not_run_is_said_once() {
        let pod = "the pod p to run";
        let said =
            format!("{WAITS} {pod}: pod velero/p is Pending; FailedMount: gone (since now, fails at 5): x");
        assert_eq!(still(&said, pod), "; it waits for the pod p to run");
        let other = "waits for the snapshot s to be ready (since now, fails at 5): x";
        assert_eq!(still(other, pod), format!("; it {other}"));
        assert_eq!(still("", pod), "");
    }
}
