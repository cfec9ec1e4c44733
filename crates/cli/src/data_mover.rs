//! `lifeboat data-mover` and `lifeboat pod-volume`: the programs of hosting pods.

use crate::args::Place;
use crate::client::client;
use crate::log::LogArgs;
use crate::signals::told_to_stop;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use kube::Client;
use lifeboat_api::Duration;
use lifeboat_datapath::mover::{self, Options};
use lifeboat_datapath::wire::{Ending, TERMINATION_LOG, VolumeMode};
use lifeboat_exposer::Kind;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::runtime::Runtime;
use tracing::{info, warn};

/// How often a client of the API server is made before that is given up.
const CLIENT_ATTEMPTS: u32 = 10;

#[derive(Debug, Args)]
pub struct DataMover {
    #[command(subcommand)]
    direction: DataMoverDirection,
}

#[derive(Debug, Subcommand)]
enum DataMoverDirection {
    /// Back a volume up.
    Backup {
        /// The operation.
        #[arg(long)]
        data_upload: String,
        #[command(flatten)]
        volume: Volume,
    },
    /// Restore a volume.
    Restore {
        /// The operation.
        #[arg(long)]
        data_download: String,
        #[command(flatten)]
        volume: Volume,
        #[command(flatten)]
        cache: Cache,
    },
}

#[derive(Debug, Args)]
pub struct PodVolume {
    #[command(subcommand)]
    direction: PodVolumeDirection,
}

#[derive(Debug, Subcommand)]
enum PodVolumeDirection {
    /// Back a volume up.
    Backup {
        /// The operation.
        #[arg(long)]
        pod_volume_backup: String,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Restore a volume.
    Restore {
        /// The operation.
        #[arg(long)]
        pod_volume_restore: String,
        #[command(flatten)]
        run: RunArgs,
        #[command(flatten)]
        cache: Cache,
    },
}

#[derive(Debug, Args)]
struct Volume {
    /// What the volume is.
    #[arg(long)]
    volume_mode: VolumeMode,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Args)]
struct Cache {
    /// A volume for what need not be read twice; empty for none.
    #[arg(long, default_value = "")]
    cache_volume_path: String,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Where the volume is.
    #[arg(long)]
    volume_path: PathBuf,
    /// How long to wait for objects of Kubernetes.
    #[arg(long)]
    resource_timeout: Duration,
    /// How long to try again while the store does not answer.
    #[arg(long, env = "LIFEBOAT_STORE_TIMEOUT", default_value = "5m")]
    store_timeout: Duration,
    /// The node that it runs on.
    #[arg(long, env = "NODE_NAME", default_value = "", hide = true)]
    node: String,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    log: LogArgs,
}

/// Moves a volume snapshot.
pub fn run(args: DataMover) -> Result<ExitCode> {
    let (options, log) = args.options();
    move_volume(&options, &log)
}

/// Moves a volume of a pod.
pub fn run_pod_volume(args: PodVolume) -> Result<ExitCode> {
    let (options, log) = args.options();
    move_volume(&options, &log)
}

impl DataMover {
    fn options(self) -> (Options, LogArgs) {
        match self.direction {
            DataMoverDirection::Backup { data_upload, volume } => {
                volume.run.options(Kind::DataUpload, data_upload, volume.volume_mode, None)
            }
            DataMoverDirection::Restore { data_download, volume, cache } => {
                volume.run.options(Kind::DataDownload, data_download, volume.volume_mode, cache.path())
            }
        }
    }
}

impl PodVolume {
    fn options(self) -> (Options, LogArgs) {
        // A device in a pod is not backed up from within it.
        let mode = VolumeMode::Filesystem;
        match self.direction {
            PodVolumeDirection::Backup { pod_volume_backup, run } => {
                run.options(Kind::PodVolumeBackup, pod_volume_backup, mode, None)
            }
            PodVolumeDirection::Restore { pod_volume_restore, run, cache } => {
                run.options(Kind::PodVolumeRestore, pod_volume_restore, mode, cache.path())
            }
        }
    }
}

impl Cache {
    fn path(self) -> Option<PathBuf> {
        Some(self.cache_volume_path).filter(|path| !path.is_empty()).map(PathBuf::from)
    }
}

impl RunArgs {
    fn options(
        self,
        kind: Kind,
        name: String,
        volume_mode: VolumeMode,
        cache_path: Option<PathBuf>,
    ) -> (Options, LogArgs) {
        let options = Options {
            kind,
            name,
            namespace: self.place.namespace,
            node: self.node,
            volume_path: self.volume_path,
            volume_mode,
            resource_timeout: self.resource_timeout.to_std(),
            store_timeout: self.store_timeout.to_std(),
            cache_path,
        };
        (options, self.log)
    }
}

/// Runs the mover, leaves its last words and ends the process: a transfer that hangs is not waited for.
fn move_volume(options: &Options, log: &LogArgs) -> Result<ExitCode> {
    log.start();
    info!(kind = options.kind.name(), name = options.name, "starting");
    let runtime = Runtime::new().context("cannot start")?;
    let ending = runtime.block_on(async {
        match patient_client().await {
            Ok(client) => mover::run(client, options, told_to_stop(), log_result).await,
            Err(error) => Ending::Failed(format!("data path for {} cannot start: {error:#}", options.name)),
        }
    });
    let message = ending.termination_message();
    info!(message, "ended");
    leave(Path::new(TERMINATION_LOG), &message)?;
    std::process::exit(i32::from(ending.exit_code()));
}

/// Logs a line whatever the level and the format of the log are: the node-agent looks for it. It reads the result later from
/// what the container leaves, if there is no log.
fn log_result(line: &str) {
    let mut log = std::io::stdout().lock();
    let _ = writeln!(log, "{line}").and_then(|()| log.flush());
}

/// Leaves the last words of a container.
pub fn leave(path: &Path, message: &str) -> Result<()> {
    std::fs::write(path, message).with_context(|| format!("cannot leave the result in {}", path.display()))
}

/// Leaves the last words of a container whose command line or variables are not understood, so that they are told of its
/// operation too. Elsewhere there is no file for them.
pub fn leave_in_container(message: &str) {
    let file = std::fs::OpenOptions::new().write(true).truncate(true).open(TERMINATION_LOG);
    let _ = file.and_then(|mut file| file.write_all(message.as_bytes()));
}

/// A client of the API server. The account's token may be a moment late in a fresh pod.
async fn patient_client() -> Result<Client> {
    for _ in 1..CLIENT_ATTEMPTS {
        match client().await {
            Ok(client) => return Ok(client),
            Err(problem) => warn!(%problem, "no way to the API server yet"),
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    client().await.context("no way to the API server")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use lifeboat_exposer::{HostedVolume, Operation, Placement, Surroundings, VolumeSource, hosting_pod};

    fn parsed(words: &[&str]) -> Options {
        match Cli::try_parse_from(words).unwrap().command {
            Command::DataMover(args) => args.options().0,
            Command::PodVolume(args) => args.options().0,
            other => panic!("{other:?}"),
        }
    }

    /// What the hosting pod of our own node-agent starts must be understood, flag by flag.
    #[test]
    fn the_commands_of_our_hosting_pods_are_understood() {
        for kind in Kind::ALL {
            let operation = Operation {
                kind,
                namespace: "velero".to_owned(),
                name: "dm-1".to_owned(),
                uid: "u-1".to_owned(),
            };
            let source = if kind.is_pod_volume() {
                VolumeSource::Host {
                    path: "/var/lib/kubelet/pods/p/volumes/x/y".to_owned(),
                    privileged: false,
                }
            } else {
                VolumeSource::Claim { block: true, read_only: false }
            };
            let volume = HostedVolume {
                source,
                cache: true,
                resource_timeout: "10m0s".parse().unwrap(),
                no_relabeling: false,
                program: "/velero".to_owned(),
                labels: Default::default(),
                annotations: Default::default(),
                resources: Default::default(),
                priority_class: None,
                beside_velero: false,
            };
            let log_args = vec!["--log-format=json".to_owned(), "--log-level".to_owned(), "debug".to_owned()];
            let surroundings = Surroundings { image: "i".to_owned(), log_args, ..Surroundings::default() };
            let pod = hosting_pod(&operation, &volume, &Placement::default(), &surroundings);
            let container = &pod.spec.as_ref().unwrap().containers[0];
            let words: Vec<&str> =
                container.command.iter().chain(&container.args).flatten().map(String::as_str).collect();
            let options = parsed(&words);
            assert_eq!((options.kind, &*options.name), (kind, "dm-1"));
            assert_eq!(options.volume_path, Path::new("/u-1"));
            assert_eq!(options.resource_timeout.as_secs(), 600);
            assert_eq!(options.store_timeout.as_secs(), 300);
            let mode = if kind.is_pod_volume() { VolumeMode::Filesystem } else { VolumeMode::Block };
            assert_eq!(options.volume_mode, mode);
        }
    }

    /// The commands of Velero 1.18.3's hosting pods.
    #[test]
    fn the_commands_of_veleros_hosting_pods_are_understood() {
        let backup = parsed(&[
            "/velero",
            "data-mover",
            "backup",
            "--volume-path=/8ce385b4-1224-4afc-91ee-1a20474fbc36",
            "--volume-mode=Filesystem",
            "--data-upload=dm-lwfz8",
            "--resource-timeout=10m0s",
            "--log-format=text",
            "--log-level=info",
        ]);
        assert_eq!((backup.kind, &*backup.name, backup.cache_path), (Kind::DataUpload, "dm-lwfz8", None));
        let restore = parsed(&[
            "/velero",
            "pod-volume",
            "restore",
            "--volume-path=/607eebc2-8a90-4e43-9773-54c27917f37c",
            "--resource-timeout=10m0s",
            "--pod-volume-restore=fsb-r-knjzw",
            "--cache-volume-path=",
            "--log-format=text",
            "--log-level=info",
        ]);
        assert_eq!((restore.kind, restore.cache_path), (Kind::PodVolumeRestore, None));
    }

    #[test]
    fn what_is_missing_or_unknown_is_refused() {
        let wrong: [&[&str]; 4] = [
            &[
                "lifeboat",
                "data-mover",
                "backup",
                "--volume-path=/v",
                "--volume-mode=Block",
                "--resource-timeout=1m",
            ],
            &[
                "lifeboat",
                "data-mover",
                "backup",
                "--data-upload=d",
                "--volume-path=/v",
                "--volume-mode=Tape",
                "--resource-timeout=1m",
            ],
            &[
                "lifeboat",
                "data-mover",
                "backup",
                "--data-upload=d",
                "--volume-path=/v",
                "--volume-mode=Block",
                "--resource-timeout=soon",
            ],
            &[
                "lifeboat",
                "pod-volume",
                "backup",
                "--pod-volume-backup=b",
                "--volume-path=/v",
                "--resource-timeout=1m",
                "--store-timeout=soon",
            ],
        ];
        for words in wrong {
            assert!(Cli::try_parse_from(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn the_last_words_replace_what_was_there() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "something longer than that").unwrap();
        leave(file.path(), "{}").unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "{}");
        assert!(leave(Path::new("/nowhere/log"), "{}").is_err());
    }
}
