//! What a mover tells by Events.

use crate::wire::{Progress, Reason};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use lifeboat_exposer::{Kind, Operation};

/// What a mover says of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Data moves.
    Started,
    /// So much has moved.
    Progress(Progress),
    /// The mover ends; the pod's last words say how.
    Stopped,
    /// Something for people: a stop that is under way, or how it ended.
    Remark(Reason, String),
}

/// What an Event says if it is one of the mover of an operation: the operation's name and UID with it. Events of pods and
/// claims, which carry the same name, are nobody's, and so is a progress that is not understood.
#[must_use]
pub fn read_event(kind: Kind, event: &Event) -> Option<(Operation, Said)> {
    let about = &event.involved_object;
    if about.kind.as_deref() != Some(kind.name()) {
        return None;
    }
    let operation = Operation {
        kind,
        namespace: about.namespace.clone()?,
        name: about.name.clone()?,
        uid: about.uid.clone()?,
    };
    let message = event.message.as_deref().unwrap_or_default();
    let said = match Reason::parse(event.reason.as_deref()?)? {
        Reason::Started => Said::Started,
        Reason::Stopped => Said::Stopped,
        Reason::Progress => Said::Progress(serde_json::from_str(message).ok()?),
        reason @ (Reason::Completed | Reason::Failed | Reason::Canceled | Reason::Canceling) => {
            Said::Remark(reason, message.to_owned())
        }
    };
    Some((operation, said))
}

/// What all movers of one kind in `namespace` say, from what they last said on. The stream goes on over failures of the
/// connection, which it returns for the log.
pub fn mover_events(
    client: Client,
    namespace: &str,
    kind: Kind,
) -> impl Stream<Item = Result<(Operation, Said), watcher::Error>> + Send + use<> {
    let only_its_kind = watcher::Config::default().fields(&format!("involvedObject.kind={}", kind.name()));
    watcher(Api::<Event>::namespaced(client, namespace), only_its_kind)
        .default_backoff()
        .applied_objects()
        .filter_map(move |event| async move { event.map(|event| read_event(kind, &event)).transpose() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(kind: &str, reason: &str, message: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": { "name": "dm-lwfz8.18e85a804610678e", "namespace": "velero" },
            "involvedObject": {
                "apiVersion": "velero.io/v2alpha1", "kind": kind, "name": "dm-lwfz8", "namespace": "velero",
                "uid": "8ce385b4-1224-4afc-91ee-1a20474fbc36", "resourceVersion": "778",
            },
            "reason": reason, "message": message, "type": "Normal", "count": 2,
            "source": { "component": "dm-lwfz8", "host": "node1" },
        }))
        .unwrap()
    }

    fn said(reason: &str, message: &str) -> Option<Said> {
        read_event(Kind::DataUpload, &event("DataUpload", reason, message)).map(|(_, said)| said)
    }

    #[test]
    fn a_mover_of_velero_is_understood() {
        let message = r#"{"totalBytes":300030,"doneBytes":65536}"#;
        let progress = Progress { total_bytes: 300_030, done_bytes: 65_536 };
        let (operation, heard) =
            read_event(Kind::DataUpload, &event("DataUpload", "Data-Path-Progress", message)).unwrap();
        assert_eq!(heard, Said::Progress(progress));
        assert_eq!((&*operation.name, &*operation.uid), ("dm-lwfz8", "8ce385b4-1224-4afc-91ee-1a20474fbc36"));
        assert_eq!(said("Data-Path-Started", "Data path for dm-lwfz8 started"), Some(Said::Started));
        assert_eq!(said("Data-Path-Stopped", "Data path for dm-lwfz8 stopped"), Some(Said::Stopped));
        let remark = Said::Remark(Reason::Canceling, "stopping".to_owned());
        assert_eq!(said("Data-Path-Canceling", "stopping"), Some(remark));
    }

    #[test]
    fn what_others_say_about_the_same_name_is_left_alone() {
        assert_eq!(read_event(Kind::DataUpload, &event("Pod", "Data-Path-Started", "")), None);
        assert_eq!(read_event(Kind::DataDownload, &event("DataUpload", "Data-Path-Started", "")), None);
        assert_eq!(said("Pulled", "image"), None);
        assert_eq!(said("Data-Path-Progress", "half of it"), None);
    }
}
