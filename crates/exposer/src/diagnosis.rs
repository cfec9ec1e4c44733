//! Why a hosting does not come up: everything that its objects and their events say, short enough for a status message.

use crate::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use crate::{download, pod_volume, upload};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

/// The longest diagnosis.
const LONGEST: usize = 3000;
/// As many events of one object are told.
const EVENTS: usize = 4;

/// An object that may know why.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Thing<'a> {
    Pod(&'a Pod),
    Claim(&'a PersistentVolumeClaim),
    Volume(&'a PersistentVolume),
    Snapshot(&'a VolumeSnapshot),
    Content(&'a VolumeSnapshotContent),
}

impl upload::Seen {
    /// What may know why it does not come up.
    #[must_use]
    pub fn things(&self) -> Vec<Thing<'_>> {
        let snapshots = [&self.source_snapshot, &self.snapshot].into_iter().flatten().map(Thing::Snapshot);
        let contents = [&self.source_content, &self.content].into_iter().flatten().map(Thing::Content);
        let claim = self.claim.iter().map(Thing::Claim);
        let volume = self.volume.iter().map(Thing::Volume);
        self.pod.iter().map(Thing::Pod).chain(claim).chain(volume).chain(snapshots).chain(contents).collect()
    }
}

impl download::Seen {
    /// What may know why it does not come up.
    #[must_use]
    pub fn things(&self) -> Vec<Thing<'_>> {
        let claims = [&self.claim, &self.cache, &self.target].into_iter().flatten().map(Thing::Claim);
        self.pod.iter().map(Thing::Pod).chain(claims).chain(self.volume.iter().map(Thing::Volume)).collect()
    }
}

impl pod_volume::Seen {
    /// What may know why it does not come up.
    #[must_use]
    pub fn things(&self) -> Vec<Thing<'_>> {
        self.pod.iter().map(Thing::Pod).chain(self.cache.iter().map(Thing::Claim)).collect()
    }
}

/// What the objects and their warnings say, object by object. What cannot be asked is left out.
pub async fn diagnose(client: &Client, things: &[Thing<'_>]) -> String {
    let mut parts = Vec::new();
    for thing in things {
        let mut part = thing.words();
        for warning in warnings(client, thing.metadata()).await {
            part.push_str(&format!("; {warning}"));
        }
        parts.push(part);
    }
    let mut text = parts.join(". ");
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push('…');
    }
    text
}

async fn warnings(client: &Client, metadata: &ObjectMeta) -> Vec<String> {
    let (Some(namespace), Some(uid)) = (&metadata.namespace, &metadata.uid) else { return Vec::new() };
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let warnings = ListParams::default().fields(&format!("involvedObject.uid={uid},type=Warning"));
    let Ok(found) = events.list(&warnings).await else { return Vec::new() };
    let mut found = found.items;
    found.sort_by_key(|event| std::cmp::Reverse(event.last_timestamp.clone().map(|time| time.0)));
    let words = |event: &Event| {
        format!(
            "{}: {}",
            event.reason.as_deref().unwrap_or_default(),
            event.message.as_deref().unwrap_or_default().trim()
        )
    };
    found.iter().take(EVENTS).map(words).collect()
}

impl Thing<'_> {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Pod(object) => &object.metadata,
            Self::Claim(object) => &object.metadata,
            Self::Volume(object) => &object.metadata,
            Self::Snapshot(object) => &object.metadata,
            Self::Content(object) => &object.metadata,
        }
    }

    /// What the object says of itself.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Pod(pod) => pod_words(pod),
            Self::Claim(claim) => {
                let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
                format!(
                    "claim {}/{} is {}",
                    claim.namespace().unwrap_or_default(),
                    claim.name_any(),
                    phase.unwrap_or("new")
                )
            }
            Self::Volume(volume) => {
                let status = volume.status.clone().unwrap_or_default();
                let told = [status.reason, status.message].into_iter().flatten();
                let told: String = told.map(|text| format!("; {text}")).collect();
                format!("volume {} is {}{told}", volume.name_any(), status.phase.as_deref().unwrap_or("new"))
            }
            Self::Snapshot(snapshot) => format!(
                "VolumeSnapshot {}/{} is {}{}",
                snapshot.namespace().unwrap_or_default(),
                snapshot.name_any(),
                if snapshot.ready() { "ready" } else { "not ready" },
                snapshot.problem().map(|problem| format!("; {problem}")).unwrap_or_default()
            ),
            Self::Content(content) => {
                let problem = content.problem().map(|problem| format!("; {problem}")).unwrap_or_default();
                let handle = content.handle().map_or("no handle yet".to_owned(), |it| format!("handle {it}"));
                format!("VolumeSnapshotContent {} has {handle}{problem}", content.name_any())
            }
        }
    }
}

fn pod_words(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let mut text = format!(
        "pod {}/{} is {} on {}",
        pod.namespace().unwrap_or_default(),
        pod.name_any(),
        status.phase.as_deref().unwrap_or("new"),
        node.map_or("no node yet".to_owned(), |node| format!("node {node}"))
    );
    for said in [status.reason, status.message].into_iter().flatten() {
        text.push_str(&format!("; {said}"));
    }
    for condition in status.conditions.unwrap_or_default() {
        let open = condition.status != "True";
        if let Some(message) = condition.message.filter(|message| open && !message.is_empty()) {
            let reason = condition.reason.unwrap_or_default();
            text.push_str(&format!("; {} {reason}: {message}", condition.type_));
        }
    }
    for container in status.container_statuses.unwrap_or_default() {
        let state = container.state.unwrap_or_default();
        if let Some(waiting) = state.waiting {
            let message = waiting.message.unwrap_or_default();
            text.push_str(&format!("; container waits: {} {message}", waiting.reason.unwrap_or_default()));
        }
        if let Some(ended) = state.terminated {
            let message = ended.message.unwrap_or_default();
            let reason = ended.reason.unwrap_or_default();
            text.push_str(&format!("; container ended with {}: {reason} {message}", ended.exit_code));
        }
    }
    text
}
