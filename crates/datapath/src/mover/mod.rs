//! The mover: the program of a hosting pod, from its start to its last words.
//!
//! It waits until its operation is in progress, moves the volume and tells of it by Events. Whatever happens, also
//! before it began and while the storage hangs, it ends soon after its operation was cancelled, ended or is gone. Before it
//! says that it is done it asks once more, since its watch may have missed that. A restored pod that waits for a volume learns
//! from the mover that its data does not come, also from one that begins only after the operation has ended.

mod assignment;
mod cluster;
mod events;
mod following;

pub use assignment::AssignmentError;
pub use cluster::PrepareError;

use crate::transfer::{CHECKPOINT_INTERVAL, Meter, Transfer, TransferError};
use crate::wire::{Ending, NOT_TOLD, Progress, Reason, TOLD, VolumeMode, json};
use assignment::{Assignment, Awaited, CompletionMark, Work};
use cluster::Cluster;
use events::Recorder;
use following::{Seen, follow, look};
use futures::FutureExt;
use futures::future::{BoxFuture, Fuse, pending};
use kube::Client;
use lifeboat_api::Phase;
use lifeboat_budget::Budget;
use lifeboat_exposer::{Direction, Kind};
use lifeboat_kopia::repo::Access;
use lifeboat_restore_helper::marks;
use lifeboat_uploader::Cancel;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};
use tracing::{error, info, warn};

/// The least time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a transfer may take to stop by itself; after that its pod ends without it.
const STOP_PATIENCE: Duration = Duration::from_secs(8);
/// How long the API server may take to say whether what has moved is still wanted: an API server that is restarted is back
/// within it, and if it is not, what has moved must not be lost for a question.
const LAST_LOOK_PATIENCE: Duration = Duration::from_secs(30);
/// How long one answer to that may take: a connection from before a restart may stay silent for good.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before asking again.
const LAST_LOOK_PAUSE: Duration = Duration::from_secs(1);

/// What a mover is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The kind of its operation.
    pub kind: Kind,
    /// The operation's name.
    pub name: String,
    /// The namespace of Velero.
    pub namespace: String,
    /// The node it runs on, for its Events.
    pub node: String,
    /// Where the volume is.
    pub volume_path: PathBuf,
    /// What it is.
    pub volume_mode: VolumeMode,
    /// How long to wait for objects of Kubernetes.
    pub resource_timeout: Duration,
    /// How long to try again while the store does not answer.
    pub store_timeout: Duration,
    /// A volume for what need not be read twice.
    pub cache_path: Option<PathBuf>,
}

/// Comes when the container is told to end.
type Told = BoxFuture<'static, ()>;

/// Keeps a transfer that has moved everything from letting it count, until it is dropped.
type Held = oneshot::Sender<()>;

/// Why a mover ends before its work is done.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Stop {
    Canceled,
    Gone,
    Final(Phase),
    Denied(String),
    Signal,
}

impl Stop {
    /// Whether no other mover is to go on, so that what the operation was to bring does not come.
    fn is_for_good(&self) -> bool {
        match self {
            Self::Canceled | Self::Gone => true,
            Self::Final(phase) => *phase != Phase::Completed,
            Self::Denied(_) | Self::Signal => false,
        }
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Assignment(#[from] AssignmentError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("cannot open the repository: {0}")]
    Open(#[source] TransferError),
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("the data is restored, but the mark that the restored pod waits for cannot be written to {}: {source}", path.display())]
    Mark { path: PathBuf, source: std::io::Error },
    #[error("the transfer ended unexpectedly; its log says more")]
    Lost,
    #[error("cannot start: {0}")]
    Start(std::io::Error),
}

impl RunError {
    /// Whether it is that the mover may not do something to the volume.
    fn is_denied(&self) -> bool {
        match self {
            Self::Transfer(error) => error.is_denied(),
            Self::Mark { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}

/// Runs a mover to its end, which comes early if it is `told_to_stop`. The caller leaves the ending as the container's last
/// words and exits; `log` gets the line of the log that has the result, before anybody is told that there is one.
pub async fn run(
    client: Client,
    options: &Options,
    told_to_stop: impl Future<Output = ()> + Send + 'static,
    log: impl FnOnce(&str),
) -> Ending {
    let mut told: Told = told_to_stop.boxed();
    let mut seen = follow(client.clone(), options);
    let (assignment, stop) = turn(&mut seen, &mut told).await;
    let Some(assignment) = assignment else {
        return stopped(options, &stop.unwrap_or(Stop::Gone));
    };
    let manager = manager(options.kind);
    let recorder = Recorder::new(client.clone(), &assignment, &options.node, manager);
    let ending = match stop {
        Some(stop) if stop.is_for_good() => let_the_pod_know(&assignment, stopped(options, &stop)),
        Some(stop) => stopped(options, &stop),
        None => {
            let cluster = Cluster {
                client,
                namespace: options.namespace.clone(),
                patience: options.resource_timeout,
                store_patience: options.store_timeout,
                manager,
            };
            let run = Run { options, assignment: &assignment, cluster: &cluster, recorder: &recorder };
            run.supervise(&mut seen, &mut told).await
        }
    };
    if let Some(line) = ending.log_line() {
        log(&line);
    }
    tell(&recorder, options, &ending);
    recorder.close().await;
    ending
}

fn tell(recorder: &Recorder, options: &Options, ending: &Ending) {
    let all = |bytes: i64| json(&Progress { total_bytes: bytes, done_bytes: bytes });
    match ending {
        Ending::BackedUp(result) => {
            recorder.say(Reason::Progress, all(result.total_bytes));
            recorder.say(Reason::Completed, ending.termination_message());
        }
        Ending::Restored(result) => {
            recorder.say(Reason::Progress, all(result.total_bytes));
            recorder.say(Reason::Completed, ending.termination_message());
        }
        Ending::Canceled(_) => recorder.say(Reason::Canceled, ending.termination_message()),
        Ending::Interrupted(_) | Ending::Failed(_) => {
            recorder.say(Reason::Failed, ending.termination_message());
        }
    }
    recorder.say(Reason::Stopped, format!("Data path for {} stopped", options.name));
}

/// Who writes in the name of a kind of mover, as Velero's movers call themselves.
fn manager(kind: Kind) -> &'static str {
    match kind {
        Kind::DataUpload => "data-mover-backup",
        Kind::DataDownload => "data-mover-restore",
        Kind::PodVolumeBackup => "pod-volume-backup",
        Kind::PodVolumeRestore => "pod-volume-restore",
    }
}

fn stopped(options: &Options, stop: &Stop) -> Ending {
    let (kind, name) = (options.kind.name(), &options.name);
    match stop {
        Stop::Canceled => Ending::Canceled(format!("data path for {name} stopped")),
        Stop::Gone => {
            Ending::Failed(format!("data path for {name} stopped: there is no such {kind} any more"))
        }
        Stop::Final(phase) => {
            Ending::Failed(format!("data path for {name} stopped: the {kind} is {phase} already"))
        }
        Stop::Denied(why) => {
            Ending::Failed(format!("data path for {name} cannot start: cannot watch the {kind}: {why}"))
        }
        Stop::Signal => Ending::Interrupted(format!("data path for {name} stopped")),
    }
}

/// Waits until the operation is in progress, or is none any more. There is no limit: turns can take long to come.
async fn turn(seen: &mut watch::Receiver<Seen>, told: &mut Told) -> (Option<Assignment>, Option<Stop>) {
    info!("waiting for the operation to be in progress");
    // What it was is known also when it is gone: there may be somebody to be told.
    let mut known = None;
    loop {
        let now = seen.borrow_and_update().clone();
        let stop = now.stop();
        let mut ready = false;
        if let Seen::Here(assignment) = now {
            ready = assignment.phase == Phase::InProgress;
            known = Some(*assignment);
        }
        if ready || stop.is_some() {
            return (known, stop);
        }
        tokio::select! {
            changed = seen.changed() => {
                if changed.is_err() {
                    return (known, Some(Stop::Gone));
                }
            }
            () = &mut *told => return (known, Some(Stop::Signal)),
        }
    }
}

/// One run, of which a transfer is the longest part.
struct Run<'a> {
    options: &'a Options,
    assignment: &'a Assignment,
    cluster: &'a Cluster,
    recorder: &'a Recorder,
}

/// What the run and its transfer share.
#[derive(Default)]
struct Shared {
    cancel: Cancel,
    /// Whether another mover is to go on with what this one leaves.
    to_be_continued: Arc<AtomicBool>,
    meter: Arc<Meter>,
    /// Whether data moves: before that, there is nothing that must stop in order.
    moving: AtomicBool,
}

impl Run<'_> {
    /// Works, reports, and watches for reasons to end.
    async fn supervise(&self, seen: &mut watch::Receiver<Seen>, told: &mut Told) -> Ending {
        let shared = Shared::default();
        let mut reports = interval_at(Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reported = Progress::default();
        let mut stop: Option<(Stop, Instant)> = None;
        let (hold, all_moved) = oneshot::channel();
        let mut last_look = pin!(self.last_look(all_moved).fuse());
        let mut work = Box::pin(self.work(&shared, hold));
        let outcome = loop {
            let deadline = stop.as_ref().map(|(_, deadline)| *deadline);
            let (why, held) = tokio::select! {
                outcome = &mut work => break Some(outcome),
                _ = reports.tick(), if shared.moving.load(Ordering::Relaxed) => {
                    let progress = shared.meter.read();
                    if progress != reported {
                        self.recorder.say(Reason::Progress, json(&progress));
                        reported = progress;
                    }
                    continue;
                }
                why = reason_to_stop(seen, told), if stop.is_none() => (why, None),
                (found, held) = &mut last_look => match found {
                    Some(why) => (why, Some(held)),
                    None => continue,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    warn!("the transfer does not stop by itself");
                    break None;
                }
            };
            info!(?why, "stopping");
            if why == Stop::Canceled {
                let message = format!("Data path for {} is canceling", self.options.name);
                self.recorder.say(Reason::Canceling, message);
            }
            shared.to_be_continued.store(why == Stop::Signal, Ordering::Relaxed);
            shared.cancel.cancel();
            let moving = shared.moving.load(Ordering::Relaxed);
            let patience = if moving { STOP_PATIENCE } else { Duration::ZERO };
            stop = Some((why, Instant::now() + patience));
            // There is nothing more to ask, and a transfer that waits for an answer goes on to find that it is stopped.
            last_look.set(Fuse::terminated());
            drop(held);
        };
        let (ending, for_good) = match (outcome, stop) {
            // What was complete before the stop took effect counts.
            (Some(Ok(ending)), _) => (ending, false),
            // Whoever ends the container may start another mover.
            (_, Some((why, _))) => (stopped(self.options, &why), why.is_for_good()),
            (Some(Err(problem)), None) => (self.failed(&problem), true),
            (None, None) => (self.failed(&RunError::Lost), true),
        };
        if for_good { let_the_pod_know(self.assignment, ending) } else { ending }
    }

    /// Once everything has moved, whether there is a reason for it not to count. The watch may be broken, and a transfer be
    /// done before it has heard of a cancel.
    async fn last_look(&self, all_moved: oneshot::Receiver<Held>) -> (Option<Stop>, Held) {
        let Ok(held) = all_moved.await else { return pending().await };
        (self.ask_once_more().await, held)
    }

    async fn ask_once_more(&self) -> Option<Stop> {
        let patience = LAST_LOOK_PATIENCE.min(self.options.resource_timeout);
        let answer = async {
            loop {
                match timeout(ANSWER_PATIENCE, look(&self.cluster.client, self.options)).await {
                    Ok(Ok(found)) => break found,
                    Ok(Err(problem)) => warn!(%problem, "cannot ask for the operation; trying again"),
                    Err(_) => warn!("no answer when asked for the operation; trying again"),
                }
                sleep(LAST_LOOK_PAUSE).await;
            }
        };
        let Ok(found) = timeout(patience, answer).await else {
            warn!(?patience, "nobody says whether the operation was cancelled; what has moved counts");
            return None;
        };
        Seen::of(found, &self.assignment.operation.uid).stop()
    }

    fn failed(&self, problem: &RunError) -> Ending {
        error!(%problem, "failed");
        let advice = advice(problem.is_denied(), own_user());
        Ending::Failed(format!("data path for {} failed: {problem}{advice}", self.options.name))
    }

    /// Opens the repository and moves the volume; `hold` gets what holds the transfer before that counts.
    async fn work(&self, shared: &Shared, hold: oneshot::Sender<Held>) -> Result<Ending, RunError> {
        let work = self.assignment.work.clone()?;
        for name in &self.assignment.unknown_settings {
            warn!(name, "a setting of the mover is not known and has no effect");
        }
        let prepared = self.cluster.prepare(self.assignment, self.options.cache_path.as_deref()).await?;
        let budget = Budget::new(lifeboat_budget::default_bytes());
        let access = match self.options.kind.direction() {
            Direction::Backup => Access::ReadWrite,
            Direction::Restore => Access::ReadOnly,
        };
        let repository = prepared.vault.open(&budget, access).await.map_err(RunError::Open)?;
        let transfer = Transfer {
            repository,
            runtime: Handle::current(),
            budget,
            meter: shared.meter.clone(),
            cancel: shared.cancel.clone(),
            to_be_continued: Arc::clone(&shared.to_be_continued),
            checkpoint_interval: CHECKPOINT_INTERVAL,
        };
        self.recorder.say(Reason::Started, format!("Data path for {} started", self.options.name));
        self.recorder.say(Reason::Progress, json(&shared.meter.read()));
        shared.moving.store(true, Ordering::Relaxed);
        let (sender, outcome) = oneshot::channel();
        // A thread of its own, which the runtime does not wait for: a store that hangs must not keep the pod.
        std::thread::Builder::new()
            .name("transfer".to_owned())
            .spawn(move || drop(sender.send(transferred(&transfer, &work, hold))))
            .map_err(RunError::Start)?;
        let outcome = outcome.await.map_err(|_| RunError::Lost)?;
        drop(prepared);
        outcome
    }
}

/// A restored pod that waits for its volume must not wait for ever. The ending says what became of that.
fn let_the_pod_know(assignment: &Assignment, ending: Ending) -> Ending {
    let Some(Awaited { volume, mark }) = &assignment.awaited else { return ending };
    let phase = assignment.phase;
    let reason = match assignment.message.as_str() {
        _ if !phase.is_final() => ending.termination_message(),
        "" => format!("the {} is {phase}", assignment.operation.kind.name()),
        message => format!("the {} is {phase}: {message}", assignment.operation.kind.name()),
    };
    let told = match mark {
        Some(mark) => {
            marks::mark_failed(volume, &mark.restore_uid, &reason).map_err(|error| error.to_string())
        }
        None => Err("the operation has no owner, whose UID would be the mark".to_owned()),
    };
    match told {
        Ok(()) => ending.and(TOLD),
        Err(problem) => {
            warn!(problem, "the restored pod cannot be told that its volume does not come");
            ending.and(&format!("{problem}: {NOT_TOLD}"))
        }
    }
}

/// Who this process is; nobody knows where there is no `/proc`.
fn own_user() -> Option<u32> {
    std::fs::metadata("/proc/self").ok().map(|own| own.uid())
}

/// What to do about what another user than root may not do.
fn advice(denied: bool, user: Option<u32>) -> String {
    match user.filter(|user| *user != 0 && denied) {
        Some(user) => format!(
            "; the mover runs as user {user} and does what that user may: let it, or install without --mover-user"
        ),
        None => String::new(),
    }
}

fn transferred(transfer: &Transfer, work: &Work, hold: oneshot::Sender<Held>) -> Result<Ending, RunError> {
    let all_moved = || {
        let (held, let_go) = oneshot::channel();
        // Nobody takes it, and it is let go at once, if the transfer is being stopped.
        drop(hold.send(held));
        drop(let_go.blocking_recv());
    };
    match work {
        Work::Backup(backup) => Ok(Ending::BackedUp(transfer.back_up(backup, all_moved)?)),
        Work::Restore { restore, mark } => {
            let result = transfer.restore(restore, all_moved)?;
            if let Some(CompletionMark { restore_uid }) = mark {
                let path = || marks::complete_path(&restore.path, restore_uid);
                marks::mark_complete(&restore.path, restore_uid)
                    .map_err(|source| RunError::Mark { path: path(), source })?;
            }
            Ok(Ending::Restored(result))
        }
    }
}

async fn reason_to_stop(seen: &mut watch::Receiver<Seen>, told: &mut Told) -> Stop {
    loop {
        if let Some(stop) = seen.borrow_and_update().stop() {
            return stop;
        }
        tokio::select! {
            changed = seen.changed() => {
                if changed.is_err() {
                    return Stop::Gone;
                }
            }
            () = &mut *told => return Stop::Signal,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::assignment::Assigns;
    use super::*;
    use lifeboat_api::v1::PodVolumeRestore;
    use marks::Mark;
    use serde_json::{Value, json};
    use std::path::Path;

    fn restore(volume: &Path, owners: &Value, settings: &Value, status: &Value) -> Assignment {
        let restore: PodVolumeRestore = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeRestore",
            "metadata": { "name": "r-1", "namespace": "velero", "uid": "u-1", "ownerReferences": owners },
            "spec": {
                "pod": { "kind": "Pod", "namespace": "shop", "name": "web" }, "volume": "data",
                "backupStorageLocation": "default", "repoIdentifier": "", "uploaderType": "kopia", "snapshotID": "s",
                "sourceNamespace": "shop", "uploaderSettings": settings,
            },
            "status": status,
        }))
        .unwrap();
        restore.assignment(volume.to_owned(), VolumeMode::Filesystem)
    }

    #[test]
    fn a_pod_that_waits_learns_how_its_restore_has_ended_whatever_that_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let owner = json!([{ "apiVersion": "velero.io/v1", "kind": "Restore", "name": "r", "uid": "o-1" }]);
        let over = json!({ "phase": "Failed", "message": "needed more than its memory limit" });
        let stopped = || Ending::Failed("stopped".to_owned());
        for settings in [json!({}), json!({ "ParallelFilesDownload": "many" })] {
            marks::clear(folder.path()).unwrap();
            let ended = let_the_pod_know(&restore(folder.path(), &owner, &settings, &over), stopped());
            assert_eq!(ended.told(), Some(true));
            let Mark::Failed(why) = marks::read(folder.path(), "o-1") else { unreachable!() };
            assert_eq!(why, "the PodVolumeRestore is Failed: needed more than its memory limit");
        }
        let canceled = json!({ "phase": "Prepared" });
        let told = let_the_pod_know(
            &restore(folder.path(), &owner, &json!({}), &canceled),
            Ending::Canceled("stopped".to_owned()),
        );
        assert_eq!(told.told(), Some(true));
        assert!(
            matches!(marks::read(folder.path(), "o-1"), Mark::Failed(why) if why.contains("data path is canceled"))
        );
        let nobodys = restore(folder.path(), &json!([]), &json!({}), &over);
        assert_eq!(let_the_pod_know(&nobodys, stopped()).told(), Some(false));
        let gone = restore(&folder.path().join("gone"), &owner, &json!({}), &over);
        assert_eq!(let_the_pod_know(&gone, stopped()).told(), Some(false));
    }

    #[test]
    fn a_pod_learns_of_every_end_but_that_of_a_mover_whose_work_is_done_or_goes_on() {
        for stop in [Stop::Canceled, Stop::Gone, Stop::Final(Phase::Failed), Stop::Final(Phase::Canceled)] {
            assert!(stop.is_for_good(), "{stop:?}");
        }
        for stop in [Stop::Final(Phase::Completed), Stop::Signal, Stop::Denied("no".to_owned())] {
            assert!(!stop.is_for_good(), "{stop:?}");
        }
    }

    #[test]
    fn who_may_not_read_something_learns_whom_the_mover_runs_as() {
        let failed = |code: i32| {
            let source = std::io::Error::from_raw_os_error(code);
            let file = lifeboat_uploader::Error::File { action: "open", path: "/v/secret".into(), source };
            RunError::from(TransferError::from(file))
        };
        let (eperm, eacces, enospc) = (1, 13, 28);
        for denied in [eperm, eacces].map(failed) {
            assert!(advice(denied.is_denied(), Some(1000)).contains("runs as user 1000"), "{denied}");
            assert_eq!(advice(denied.is_denied(), Some(0)), "");
        }
        assert_eq!(advice(failed(enospc).is_denied(), Some(1000)), "");
        assert!(own_user().is_some());
    }
}
