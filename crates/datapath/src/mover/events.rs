//! The mover's Events: one object for each reason, rewritten as often as there is something new to say.
//!
//! kube's own recorder makes a new object for every new text, and Velero's node-agents want the reason's object changed.

use super::assignment::Assignment;
use crate::wire::Reason;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::warn;

/// How long the last Events may take to reach the API server. What matters is in the termination message.
const FLUSH: Duration = Duration::from_secs(15);

/// Tells of a run by Events, in order, without ever keeping the run waiting.
pub(super) struct Recorder {
    queue: mpsc::UnboundedSender<(Reason, String)>,
    writer: JoinHandle<()>,
}

impl Recorder {
    /// A recorder for one operation; `node` is where it runs, `manager` who writes.
    pub(super) fn new(client: Client, assignment: &Assignment, node: &str, manager: &'static str) -> Self {
        let (queue, mut waiting) = mpsc::unbounded_channel::<(Reason, String)>();
        let mut writer = Writer {
            events: Api::namespaced(client, &assignment.operation.namespace),
            about: reference(assignment),
            node: node.to_owned(),
            manager,
            known: BTreeMap::new(),
        };
        let writer = tokio::spawn(async move {
            while let Some((reason, message)) = waiting.recv().await {
                if let Err(error) = writer.write(reason, &message).await {
                    warn!(%reason, %error, "an event was not recorded");
                }
            }
        });
        Self { queue, writer }
    }

    /// Says something.
    pub(super) fn say(&self, reason: Reason, message: impl Into<String>) {
        // The writer lives as long as the recorder.
        let _ = self.queue.send((reason, message.into()));
    }

    /// Waits, within reason, until everything that was said is with the API server.
    pub(super) async fn close(self) {
        drop(self.queue);
        if tokio::time::timeout(FLUSH, self.writer).await.is_err() {
            warn!("the API server does not take the last events");
        }
    }
}

fn reference(assignment: &Assignment) -> ObjectReference {
    let operation = &assignment.operation;
    ObjectReference {
        api_version: Some(operation.kind.api_version().to_owned()),
        kind: Some(operation.kind.name().to_owned()),
        namespace: Some(operation.namespace.clone()),
        name: Some(operation.name.clone()),
        uid: Some(operation.uid.clone()),
        resource_version: Some(assignment.resource_version.clone()),
        ..ObjectReference::default()
    }
}

struct Writer {
    events: Api<Event>,
    about: ObjectReference,
    node: String,
    manager: &'static str,
    /// The object of each reason, and how often it was said.
    known: BTreeMap<Reason, (String, i32)>,
}

impl Writer {
    async fn write(&mut self, reason: Reason, message: &str) -> kube::Result<()> {
        let now = Timestamp::now();
        if let Some((name, count)) = self.known.get(&reason) {
            let (name, count) = (name.clone(), count.saturating_add(1));
            let patch = serde_json::json!({ "message": message, "count": count, "lastTimestamp": Time(now) });
            let params =
                PatchParams { field_manager: Some(self.manager.to_owned()), ..PatchParams::default() };
            self.events.patch(&name, &params, &Patch::Strategic(patch)).await?;
            self.known.insert(reason, (name, count));
            return Ok(());
        }
        let event = self.event(reason, message, now);
        let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
        let created = self.events.create(&params, &event).await?;
        self.known.insert(reason, (created.metadata.name.unwrap_or_default(), 1));
        Ok(())
    }

    fn event(&self, reason: Reason, message: &str, now: Timestamp) -> Event {
        let about = self.about.name.clone().unwrap_or_default();
        Event {
            metadata: ObjectMeta {
                // As client-go names events: the object and the moment.
                name: Some(format!("{about}.{:x}", now.as_nanosecond())),
                namespace: self.about.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: self.about.clone(),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message.to_owned()),
            source: Some(EventSource { component: Some(about), host: Some(self.node.clone()) }),
            type_: Some("Normal".to_owned()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            ..Event::default()
        }
    }
}
