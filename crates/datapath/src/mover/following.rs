//! What is known of the operation: as the watch tells it, and as it is when the API server is asked.

use super::assignment::{Assignment, Assigns};
use super::{Options, Stop};
use futures::StreamExt;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use lifeboat_api::v1::{PodVolumeBackup, PodVolumeRestore};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload};
use lifeboat_exposer::Kind;
use tokio::sync::watch;
use tracing::{info, warn};

/// What is known of the operation at the moment.
#[derive(Debug, Clone)]
pub(super) enum Seen {
    NotYet,
    Here(Box<Assignment>),
    Gone,
    Denied(String),
}

impl Seen {
    /// What was found under the name of the operation whose UID is `own`. Another object of the same name is not the one that
    /// this pod was made for.
    pub(super) fn of(found: Option<Assignment>, own: &str) -> Self {
        match found.filter(|assignment| assignment.operation.uid == own) {
            Some(assignment) => Self::Here(Box::new(assignment)),
            None => Self::Gone,
        }
    }

    /// Why to end, if there is a reason.
    pub(super) fn stop(&self) -> Option<Stop> {
        match self {
            Self::Here(assignment) if assignment.phase.is_final() => Some(Stop::Final(assignment.phase)),
            Self::Here(assignment) if assignment.cancel => Some(Stop::Canceled),
            Self::Here(_) | Self::NotYet => None,
            Self::Gone => Some(Stop::Gone),
            Self::Denied(why) => Some(Stop::Denied(why.clone())),
        }
    }
}

/// Follows the operation until the receiver is dropped, over failures of the connection.
pub(super) fn follow(client: Client, options: &Options) -> watch::Receiver<Seen> {
    match options.kind {
        Kind::DataUpload => follow_kind::<DataUpload>(client, options),
        Kind::DataDownload => follow_kind::<DataDownload>(client, options),
        Kind::PodVolumeBackup => follow_kind::<PodVolumeBackup>(client, options),
        Kind::PodVolumeRestore => follow_kind::<PodVolumeRestore>(client, options),
    }
}

fn follow_kind<K: Assigns>(client: Client, options: &Options) -> watch::Receiver<Seen> {
    let (sender, receiver) = watch::channel(Seen::NotYet);
    let objects = Api::<K>::namespaced(client, &options.namespace);
    let mut stream = Box::pin(watcher::watch_object(objects, &options.name).default_backoff());
    let (path, mode) = (options.volume_path.clone(), options.volume_mode);
    tokio::spawn(async move {
        let mut uid: Option<String> = None;
        while let Some(change) = stream.next().await {
            let seen = match change {
                Ok(found) => {
                    let found = found.map(|object| object.assignment(path.clone(), mode));
                    if let (None, Some(assignment)) = (&uid, &found) {
                        info!(phase = %assignment.phase, "operation found");
                        uid = Some(assignment.operation.uid.clone());
                    }
                    // Until it was found, it may not have reached this API server yet.
                    uid.as_ref().map_or(Seen::NotYet, |own| Seen::of(found, own))
                }
                Err(problem) if uid.is_none() && is_denied(&problem) => Seen::Denied(problem.to_string()),
                Err(problem) => {
                    warn!(%problem, "cannot watch the operation; trying again");
                    continue;
                }
            };
            if sender.send(seen).is_err() {
                return;
            }
        }
    });
    receiver
}

fn is_denied(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))) = error
    else {
        return false;
    };
    matches!(status.code, 401 | 403)
}

/// Asks the API server for the operation as it is now.
pub(super) async fn look(client: &Client, options: &Options) -> kube::Result<Option<Assignment>> {
    match options.kind {
        Kind::DataUpload => look_for::<DataUpload>(client, options).await,
        Kind::DataDownload => look_for::<DataDownload>(client, options).await,
        Kind::PodVolumeBackup => look_for::<PodVolumeBackup>(client, options).await,
        Kind::PodVolumeRestore => look_for::<PodVolumeRestore>(client, options).await,
    }
}

async fn look_for<K: Assigns>(client: &Client, options: &Options) -> kube::Result<Option<Assignment>> {
    let objects = Api::<K>::namespaced(client.clone(), &options.namespace);
    // A list of the one object, as the watch begins with: movers may not get operations. It also tells an object that is gone
    // from a definition that a starting API server does not serve yet.
    let itself = ListParams::default().fields(&format!("metadata.name={}", options.name));
    let found = objects.list(&itself).await?.items.pop();
    Ok(found.map(|object| object.assignment(options.volume_path.clone(), options.volume_mode)))
}
