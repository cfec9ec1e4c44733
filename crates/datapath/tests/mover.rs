//! Whole movers on an API server whose watches say nothing, or break: what they do before they begin, and before they say
//! that they are done.
#![allow(clippy::unwrap_used, clippy::panic)]

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use k8s_openapi::ByteString;
use kube::Client;
use kube::client::Body;
use lifeboat_api::Phase;
use lifeboat_api::v1::BackupStorageLocationSpec;
use lifeboat_budget::Budget;
use lifeboat_datapath::location::{Access as LocationAccess, store_config};
use lifeboat_datapath::mover::{self, Options};
use lifeboat_datapath::transfer::{Format, Opened, Vault};
use lifeboat_datapath::wire::{Ending, VolumeMode};
use lifeboat_exposer::Kind;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::repo::{Access, InitialState, OpenOptions, Repository};
use lifeboat_kopia::velero;
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_restore_helper::marks::{self, Mark};
use lifeboat_uploader::find_snapshots;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

const NAMESPACE: &str = "shop";
/// How long a mover waits for an API server that will answer.
const PATIENT: Duration = Duration::from_mins(10);
/// That of the restore to which the operations of restores belong.
const RESTORE_UID: &str = "r-1";

/// How the API server answers who asks for the operation again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// So many times not at all, then with the operation, which was cancelled meanwhile or was not.
    After { refusals: usize, cancelled: bool },
    /// Never: it takes the question and stays silent.
    Silent,
    /// It has become something else meanwhile.
    Became(Became),
}

/// What has become of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Became {
    /// It is in progress.
    Begun,
    /// It is in progress and to be cancelled, both at once.
    BegunAndCancelled,
    /// It is over.
    Over(Phase),
    /// It is deleted, and there is another one of its name, in progress.
    Another,
    /// It is deleted.
    Gone,
}

impl Became {
    fn of(self, operation: &Value) -> Option<Value> {
        let mut operation = operation.clone();
        operation["status"]["phase"] = Phase::InProgress.as_str().into();
        match self {
            Self::Begun => {}
            Self::BegunAndCancelled => operation["spec"]["cancel"] = true.into(),
            Self::Over(phase) => operation["status"]["phase"] = phase.as_str().into(),
            Self::Another => operation["metadata"]["uid"] = "u-2".into(),
            Self::Gone => return None,
        }
        Some(operation)
    }
}

/// An API server with one operation, of which its watches tell nothing. If it is not in progress yet, they break, so that the
/// mover lists it again.
struct Server {
    operation: Value,
    location: Value,
    again: Again,
    /// How often it was asked for the operation.
    asked: Mutex<usize>,
    asked_again: Arc<Notify>,
    events: Mutex<Vec<String>>,
}

impl Server {
    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.map_err(io::Error::other)?;
                let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let query = head.uri.query().unwrap_or_default();
                let answer = server.answer(&head.method, head.uri.path(), query, body).await?;
                let response = Response::builder().status(StatusCode::OK);
                response.body(Full::from(answer.to_string())).map_err(io::Error::other)
            }
        });
        Client::new(service, "velero")
    }

    async fn answer(&self, method: &Method, path: &str, query: &str, body: Value) -> io::Result<Value> {
        let list_of = |items: Option<Value>| json!({ "metadata": { "resourceVersion": "7" }, "items": Vec::from_iter(items) });
        let list = |item: &Value| list_of(Some(item.clone()));
        let wanted = path.split("/namespaces/velero/").nth(1).unwrap();
        match (method, wanted) {
            (&Method::GET, "datauploads" | "podvolumerestores") => {
                assert!(
                    query.contains("metadata.name%3Ddm-1"),
                    "a mover looks at its own operation: {query}"
                );
                match query.contains("watch=true") {
                    true if self.operation["status"]["phase"] == "InProgress" => pending().await,
                    true => Ok(json!({ "type": "ERROR", "object": {
                        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
                        "reason": "Expired", "message": "the version is too old", "code": 410,
                    } })),
                    false => Ok(list_of(self.look().await?)),
                }
            }
            (&Method::GET, "backupstoragelocations/default") => Ok(self.location.clone()),
            (&Method::GET, "backuprepositories") => Ok(list(&json!({
                "apiVersion": "velero.io/v1", "kind": "BackupRepository", "metadata": { "name": "shop-default-kopia" },
                "spec": {
                    "volumeNamespace": NAMESPACE, "backupStorageLocation": "default", "repositoryType": "kopia",
                    "resticIdentifier": "", "maintenanceFrequency": "1h0m0s",
                },
                "status": { "phase": "Ready" },
            }))),
            (&Method::GET, "secrets/velero-repo-credentials") => Ok(json!({
                "metadata": { "name": "velero-repo-credentials" },
                "data": { "repository-password": ByteString(velero::DEFAULT_PASSWORD.into()) },
            })),
            (&Method::POST, "events") => {
                self.events.lock().unwrap().push(body["reason"].as_str().unwrap().to_owned());
                Ok(body)
            }
            (&Method::PATCH, event) if event.starts_with("events/") => {
                Ok(json!({ "metadata": {}, "involvedObject": {} }))
            }
            _ => panic!("a mover may not {method} {path}"),
        }
    }

    async fn look(&self) -> io::Result<Option<Value>> {
        let before = {
            let mut asked = self.asked.lock().unwrap();
            *asked += 1;
            *asked - 1
        };
        if before == 0 {
            return Ok(Some(self.operation.clone()));
        }
        self.asked_again.notify_one();
        match self.again {
            Again::Silent => pending().await,
            Again::After { refusals, .. } if before <= refusals => {
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody answers"))
            }
            Again::After { cancelled, .. } => {
                let mut operation = self.operation.clone();
                operation["spec"]["cancel"] = cancelled.into();
                Ok(Some(operation))
            }
            Again::Became(became) => Ok(became.of(&self.operation)),
        }
    }
}

/// How a mover ended, and what its API server has seen of that.
struct Ended {
    ending: Ending,
    asked: usize,
    events: Vec<String>,
}

impl Ended {
    fn has_said(&self, reason: &str) -> bool {
        self.events.iter().any(|event| event == reason)
    }
}

/// A volume with data, and a location with a repository for it.
struct Place {
    runtime: Runtime,
    folder: TempDir,
    location: Value,
    vault: Vault,
}

impl Place {
    fn new() -> Self {
        let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(folder.path().join("volume")).unwrap();
        fs::create_dir_all(folder.path().join("store/kopia").join(NAMESPACE)).unwrap();
        fs::write(folder.path().join("volume/file"), [7; 5000]).unwrap();
        let location = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": { "name": "default" },
            "spec": {
                "provider": "fs", "objectStorage": { "bucket": "b" }, "config": { "fspath": folder.path().join("store") },
            },
        });
        let spec: BackupStorageLocationSpec = serde_json::from_value(location["spec"].clone()).unwrap();
        let vault = Vault {
            format: Format::Kopia,
            store: store_config(&spec, NAMESPACE, &LocationAccess::default()).unwrap(),
            password: Password::new(velero::DEFAULT_PASSWORD),
            cache_folder: folder.path().join("cache"),
            cache_limit: 100 << 20,
            patience: Duration::from_mins(5),
        };
        runtime.block_on(async {
            let store = vault.store.open(&lifeboat_blobs::OpenOptions::default()).await.unwrap();
            let identity =
                ClientIdentity { username: velero::IDENTITY.into(), hostname: velero::IDENTITY.into() };
            let options = OpenOptions::new(store, vault.password.clone(), identity);
            Repository::create(options, &CreateOptions::default(), InitialState::Velero).await.unwrap();
        });
        Self { runtime, folder, location, vault }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a mover, which may be told to end as soon as it asks for its operation again.
    fn run(
        &self,
        operation: Value,
        volume: &Path,
        again: Again,
        resource_timeout: Duration,
        told_when_it_asks: bool,
    ) -> Ended {
        let kind = match operation["kind"].as_str().unwrap() {
            "DataUpload" => Kind::DataUpload,
            _ => Kind::PodVolumeRestore,
        };
        let server = Arc::new(Server {
            operation,
            location: self.location.clone(),
            again,
            asked: Mutex::default(),
            asked_again: Arc::default(),
            events: Mutex::default(),
        });
        let options = Options {
            kind,
            name: "dm-1".to_owned(),
            namespace: "velero".to_owned(),
            node: "n1".to_owned(),
            volume_path: volume.to_owned(),
            volume_mode: VolumeMode::Filesystem,
            resource_timeout,
            store_timeout: Duration::from_mins(1),
            cache_path: None,
        };
        let asked_again = Arc::clone(&server.asked_again);
        let told =
            async move { if told_when_it_asks { asked_again.notified().await } else { pending().await } };
        let mut logged = None;
        let log = |line: &str| {
            let told = server.events.lock().unwrap().iter().any(|reason| reason == "Data-Path-Completed");
            assert!(!told, "who is told looks into the log");
            logged = Some(line.to_owned());
        };
        let run = async { mover::run(server.client(), &options, told, log).await };
        let ending = self.runtime.block_on(run);
        let result = logged.and_then(|line| Ending::in_log(kind.direction(), &line));
        let moved = matches!(ending, Ending::BackedUp(_) | Ending::Restored(_));
        assert_eq!(result.as_ref(), Some(&ending).filter(|_| moved), "what the log says");
        let (asked, events) = (*server.asked.lock().unwrap(), server.events.lock().unwrap().clone());
        Ended { ending, asked, events }
    }

    fn back_up(&self, again: Again, resource_timeout: Duration) -> Ended {
        self.run(upload(), &self.path("volume"), again, resource_timeout, false)
    }

    /// Runs a mover that is not to begin: whatever becomes of its operation, and both kinds of work.
    fn begins_nothing(&self, first: impl Fn(&mut Value), again: Again) -> Ending {
        let target = self.path("target");
        fs::create_dir(&target).unwrap();
        let mut endings = Vec::new();
        for (mut operation, volume) in [(upload(), self.path("volume")), (pod_restore("s-1"), target.clone())]
        {
            first(&mut operation);
            let ended = self.run(operation, &volume, again, PATIENT, false);
            let begun = ["Data-Path-Started", "Data-Path-Completed"];
            assert!(!begun.iter().any(|reason| ended.has_said(reason)), "{again:?}: {:?}", ended.events);
            endings.push(ended.ending);
        }
        assert_eq!(self.snapshots(), 0);
        let restored = endings.pop().unwrap();
        // What is complete has been told as that.
        let completed = matches!(&restored, Ending::Failed(why) if why.contains("is Completed already"));
        let told = matches!(marks::read(&target, RESTORE_UID), Mark::Failed(_));
        assert_eq!(told, !completed, "what the restored pod finds");
        fs::remove_dir_all(target).unwrap();
        let same = std::mem::discriminant(&endings[0]) == std::mem::discriminant(&restored);
        assert!(same, "{:?} and {restored:?}", endings[0]);
        restored
    }

    fn snapshots(&self) -> usize {
        let opened = self.runtime.block_on(self.vault.open(&Budget::new(64 << 20), Access::ReadOnly));
        let Opened::Kopia(repository) = opened.unwrap() else { panic!("not a repository of kopia") };
        let source = velero::source(velero::DATA_MOVER_REQUESTER, &format!("{NAMESPACE}/data"), "");
        find_snapshots(&KopiaRepository::new(repository), &source, &BTreeMap::new()).unwrap().len()
    }
}

fn upload() -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": { "name": "dm-1", "namespace": "velero", "uid": "u-1", "resourceVersion": "5" },
        "spec": {
            "snapshotType": "CSI", "sourcePVC": "data", "sourceNamespace": NAMESPACE,
            "backupStorageLocation": "default", "operationTimeout": "10m0s",
        },
        "status": { "phase": "InProgress" },
    })
}

fn pod_restore(snapshot: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeRestore",
        "metadata": {
            "name": "dm-1", "namespace": "velero", "uid": "u-1", "resourceVersion": "5",
            "ownerReferences": [{ "apiVersion": "velero.io/v1", "kind": "Restore", "name": "r", "uid": RESTORE_UID }],
        },
        "spec": {
            "pod": { "kind": "Pod", "namespace": NAMESPACE, "name": "web" }, "volume": "data",
            "backupStorageLocation": "default", "repoIdentifier": "", "uploaderType": "kopia",
            "snapshotID": snapshot, "sourceNamespace": NAMESPACE,
        },
        "status": { "phase": "InProgress" },
    })
}

fn set_phase(phase: Phase) -> impl Fn(&mut Value) {
    move |operation: &mut Value| operation["status"]["phase"] = phase.as_str().into()
}

/// It may be over, or not wanted any more, before its mover has looked at it for the first time.
#[test]
fn what_is_over_or_cancelled_at_the_first_look_is_not_begun() {
    let place = Place::new();
    let unasked = Again::Became(Became::Begun);
    let canceled = place.begins_nothing(|operation| operation["spec"]["cancel"] = true.into(), unasked);
    assert!(matches!(canceled, Ending::Canceled(_)), "{canceled:?}");
    for phase in [Phase::Completed, Phase::Failed, Phase::Canceled] {
        let Ending::Failed(why) = place.begins_nothing(set_phase(phase), unasked) else { panic!("{phase}") };
        assert!(why.contains(&format!("is {phase} already")), "{why}");
    }
}

/// A mover waits for its turn without a limit, but not for what does not come.
#[test]
fn a_mover_that_waits_for_its_turn_ends_when_that_does_not_come() {
    let ways = [
        (Became::BegunAndCancelled, None),
        (Became::Over(Phase::Completed), Some("is Completed already")),
        (Became::Over(Phase::Canceled), Some("is Canceled already")),
        (Became::Another, Some("there is no such PodVolumeRestore any more")),
        (Became::Gone, Some("there is no such PodVolumeRestore any more")),
    ];
    for (became, wanted) in ways {
        let ending = Place::new().begins_nothing(set_phase(Phase::Prepared), Again::Became(became));
        match (&ending, wanted) {
            (Ending::Canceled(_), None) => {}
            (Ending::Failed(why), Some(wanted)) if why.contains(wanted) => {}
            _ => panic!("{became:?}: {ending:?}"),
        }
    }
    // It does begin when its turn comes.
    let place = Place::new();
    let mut waiting = upload();
    set_phase(Phase::Prepared)(&mut waiting);
    let ended = place.run(waiting, &place.path("volume"), Again::Became(Became::Begun), PATIENT, false);
    assert!(matches!(ended.ending, Ending::BackedUp(_)), "{:?}", ended.ending);
}

/// Somebody deletes the operation and makes another one of its name while data moves: that has a mover of its own.
#[test]
fn a_backup_whose_operation_was_replaced_by_another_one_leaves_nothing() {
    for became in [Became::Another, Became::Gone] {
        let place = Place::new();
        let ended = place.back_up(Again::Became(became), PATIENT);
        let Ending::Failed(why) = &ended.ending else { panic!("{became:?}: {:?}", ended.ending) };
        assert!(why.contains("there is no such DataUpload any more"), "{why}");
        assert!(!ended.has_said("Data-Path-Completed"), "{:?}", ended.events);
        assert_eq!(place.snapshots(), 0, "nobody would ever remove its snapshot");
    }
}

/// The restored pod would wait for ever for a mark that is not there.
#[test]
fn a_restore_whose_volume_cannot_be_marked_as_complete_fails_and_says_so() {
    let place = Place::new();
    let stays = Again::After { refusals: 0, cancelled: false };
    let Ending::BackedUp(backup) = place.back_up(stays, PATIENT).ending else { panic!("nothing to restore") };
    let volume = place.path("restored");
    fs::create_dir(&volume).unwrap();
    let mut restore = pod_restore(&backup.snapshot_id);
    // No file can have this name, whoever wants to make it.
    let too_long = "r".repeat(300);
    restore["metadata"]["ownerReferences"][0]["uid"] = too_long.as_str().into();
    let ended = place.run(restore, &volume, stays, PATIENT, false);
    let Ending::Failed(why) = &ended.ending else { panic!("{:?}", ended.ending) };
    assert!(why.contains(&*marks::complete_path(&volume, &too_long).to_string_lossy()), "{why}");
    assert!(ended.has_said("Data-Path-Failed") && !ended.has_said("Data-Path-Completed"));
    assert_eq!(fs::read(volume.join("file")).unwrap(), [7; 5000], "all data had moved");
}

#[test]
fn a_backup_whose_cancel_the_watch_has_missed_is_cancelled() {
    // Also if the API server is not back at once.
    for refusals in [0, 2] {
        let place = Place::new();
        let ended = place.back_up(Again::After { refusals, cancelled: true }, PATIENT);
        assert!(matches!(ended.ending, Ending::Canceled(_)), "{refusals} refusals: {:?}", ended.ending);
        assert!(ended.has_said("Data-Path-Canceling") && ended.has_said("Data-Path-Canceled"));
        assert!(!ended.has_said("Data-Path-Completed"), "{:?}", ended.events);
        assert_eq!(place.snapshots(), 0, "nobody would ever remove its snapshot");
    }
}

#[test]
fn a_backup_asks_once_before_it_is_done() {
    let place = Place::new();
    let ended = place.back_up(Again::After { refusals: 0, cancelled: false }, PATIENT);
    assert!(matches!(ended.ending, Ending::BackedUp(_)), "{:?}", ended.ending);
    assert!(ended.has_said("Data-Path-Completed") && !ended.has_said("Data-Path-Canceling"));
    assert_eq!((ended.asked, place.snapshots()), (2, 1), "once to begin and once to end");
}

#[test]
fn a_backup_is_done_though_nobody_says_whether_it_was_cancelled() {
    for again in [Again::Silent, Again::After { refusals: usize::MAX, cancelled: true }] {
        let place = Place::new();
        let ended = place.back_up(again, Duration::from_secs(4));
        assert!(matches!(ended.ending, Ending::BackedUp(_)), "{again:?}: {:?}", ended.ending);
        assert_eq!(place.snapshots(), 1);
    }
}

#[test]
fn a_mover_that_is_told_to_end_asks_no_longer() {
    let place = Place::new();
    let ended = place.run(upload(), &place.path("volume"), Again::Silent, PATIENT, true);
    // What was complete when it was told counts.
    assert!(matches!(ended.ending, Ending::BackedUp(_)), "{:?}", ended.ending);
    assert_eq!((ended.asked, place.snapshots()), (2, 1));
}

#[test]
fn a_restore_whose_cancel_the_watch_has_missed_leaves_no_volume_that_looks_complete() {
    let place = Place::new();
    let stays = Again::After { refusals: 0, cancelled: false };
    let Ending::BackedUp(backup) = place.back_up(stays, PATIENT).ending else { panic!("nothing to restore") };
    let restore = |name: &str, again: Again| {
        let volume = place.path(name);
        fs::create_dir(&volume).unwrap();
        let ended = place.run(pod_restore(&backup.snapshot_id), &volume, again, PATIENT, false);
        (ended, marks::read(&volume, RESTORE_UID))
    };
    let (ended, mark) = restore("unwanted", Again::After { refusals: 0, cancelled: true });
    assert!(matches!(ended.ending, Ending::Canceled(_)), "{:?}", ended.ending);
    assert!(ended.has_said("Data-Path-Canceling") && !ended.has_said("Data-Path-Completed"));
    assert!(matches!(mark, Mark::Failed(_)), "{mark:?}");

    let (ended, mark) = restore("wanted", stays);
    assert!(matches!(ended.ending, Ending::Restored(_)), "{:?}", ended.ending);
    assert_eq!((ended.asked, mark), (2, Mark::Complete));
}
