//! How long operations wait, and what they say meanwhile.

use crate::Error;
use crate::act::change;
use crate::agent::Agent;
use crate::exposing::{Exposed, resource_timeout};
use crate::look::time;
use crate::operation::notes;
use crate::reasons::WAITS;
use jiff::Timestamp;
use kube::ResourceExt;
use lifeboat_api::Phase;
use lifeboat_exposer::Waiting;
use std::fmt::Display;
use std::time::Duration;

/// Until the next look when something is about to happen that nobody tells us of.
pub(crate) const SOON: Duration = Duration::from_millis(500);
/// Until the next look when something may take its time.
pub(crate) const LATER: Duration = Duration::from_secs(5);
/// A wait that is shorter is not worth a word in the status.
const PATIENCE: i64 = 3;

/// Soon after an operation was taken or its data was moved a step is likely to be a matter of moments.
pub(crate) fn pace<K: Exposed>(agent: &Agent, object: &K) -> Duration {
    if waited(agent, object) < 10 { SOON } else { LATER }
}

/// When its data was moved, before that when it was taken, and before that when it was made.
fn since<K: Exposed>(object: &K) -> Option<Timestamp> {
    let taken = || object.accepted_at().cloned().or_else(|| object.creation_timestamp());
    time(object.note(notes::MOVED_AT)).or_else(|| taken().map(|time| time.0))
}

/// When it fails if it still waits then.
fn until<K: Exposed>(agent: &Agent, object: &K) -> Option<Timestamp> {
    let limit = match object.phase() {
        Phase::Accepted => agent.options.prepare_timeout,
        _ if object.note(notes::MOVED_AT).is_some() => {
            resource_timeout(agent, object.operation_timeout()).to_std()
        }
        // Who waits for a turn waits as long as it takes.
        _ => return None,
    };
    since(object)?.checked_add(limit).ok()
}

pub(crate) fn waited<K: Exposed>(agent: &Agent, object: &K) -> i64 {
    let since = since(object).unwrap_or_else(|| agent.now());
    agent.now().duration_since(since).as_secs()
}

/// Says in the status what is waited for, since when, until when, and what to do; only after a moment, and only if it is news.
pub(crate) async fn explain<K: Exposed>(agent: &Agent, object: &K, waiting: &Waiting) -> Result<(), Error> {
    if waited(agent, object) < PATIENCE {
        return Ok(());
    }
    let shown = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let since = since(object).map_or_else(|| "now".to_owned(), shown);
    let until = match until(agent, object) {
        Some(until) if until > agent.now() => format!("fails at {}", shown(until)),
        // Before it fails, its volume has to say that it is kept.
        Some(until) => format!("overdue since {}", shown(until)),
        None => "until it is canceled".to_owned(),
    };
    let text = format!("{WAITS} {} (since {since}, {until}): {}", waiting.for_what, waiting.advice);
    say(agent, object, text).await
}

/// What an operation waits for whose next step the cluster does not allow.
pub(crate) fn refused(error: &impl Display) -> Waiting {
    Waiting {
        for_what: format!("the cluster to accept a change that is needed: {error}"),
        advice: "see to it that quotas, policies and permissions allow it",
    }
}

async fn say<K: Exposed>(agent: &Agent, object: &K, text: String) -> Result<(), Error> {
    if object.status().is_some_and(|status| status.message == text) {
        return Ok(());
    }
    tracing::info!(kind = K::KIND.name(), name = object.name_any(), "{text}");
    // Whether it gets through does not matter: the next look says it again.
    change(agent, object.clone(), |it| it.status_mut().message = text).await.map(drop)
}
