//! What the driver's program can be told to do; other programs offer it as a part of their own command line.

use crate::{Driver, Knobs, Registrar, Service, Settings, release_all_devices, serve_driver, server};
use clap::{Args, Subcommand};
use futures::future::{self, FutureExt};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// A task of the driver's program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the driver of one node.
    Serve(Serve),
    /// Present some driver to the kubelet, as node-driver-registrar does.
    Register(Register),
    /// Detach all loop devices of a state folder, after its drivers and users are gone.
    Cleanup {
        /// The state folder.
        #[arg(long)]
        state_dir: PathBuf,
    },
}

/// How to run the driver of one node.
#[derive(Debug, Args)]
pub struct Serve {
    /// Socket to serve CSI on: a path, or unix://path.
    #[arg(long, env = "CSI_ENDPOINT")]
    endpoint: String,
    /// Name of the node this process serves.
    #[arg(long)]
    node_id: String,
    /// Folder for volumes and snapshots; drivers of several nodes may share it.
    #[arg(long)]
    state_dir: PathBuf,
    /// Name of the driver.
    #[arg(long, default_value = "csi.lifeboat.test")]
    driver_name: String,
    /// Topology key under which node names appear [default: topology.<driver name>/node]
    #[arg(long)]
    topology_key: Option<String>,
    /// JSON file with faults; it is read again for every call.
    #[arg(long)]
    knobs: Option<PathBuf>,
    /// Register with the kubelet on this socket as well.
    #[arg(long)]
    registration_socket: Option<PathBuf>,
    /// Do not offer the SnapshotMetadata service.
    #[arg(long)]
    no_snapshot_metadata: bool,
}

/// Which driver to present to the kubelet.
#[derive(Debug, Args)]
pub struct Register {
    /// Name of the driver.
    #[arg(long)]
    driver_name: String,
    /// Socket of the driver, as the kubelet sees it: a path, or unix://path.
    #[arg(long)]
    csi_address: String,
    /// Socket to make in the kubelet's plugins_registry folder.
    #[arg(long)]
    registration_socket: PathBuf,
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

impl Command {
    /// Does the task to its end, with a log on standard error.
    pub fn run(self) -> ExitCode {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
        let outcome = tokio::runtime::Runtime::new()
            .map_err(Into::into)
            .and_then(|runtime| runtime.block_on(self.carry_out()));
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{error}");
                ExitCode::FAILURE
            }
        }
    }

    async fn carry_out(self) -> Outcome {
        match self {
            Command::Serve(options) => serve(options).await,
            Command::Register(options) => register(options).await,
            Command::Cleanup { state_dir } => release_all_devices(&state_dir).map_err(Into::into),
        }
    }
}

async fn serve(options: Serve) -> Outcome {
    let stop = termination()?;
    let socket = server::socket_path(&options.endpoint);
    let driver = Driver::open(Settings {
        topology_key: options
            .topology_key
            .unwrap_or_else(|| format!("topology.{}/node", options.driver_name)),
        driver_name: options.driver_name.clone(),
        node_id: options.node_id,
        state_dir: options.state_dir,
        snapshot_metadata: !options.no_snapshot_metadata,
    })?;
    let driver = serve_driver(&socket, Service::new(driver, Knobs::new(options.knobs)), stop.clone());
    let Some(registration_socket) = options.registration_socket else { return Ok(driver.await?) };
    let registrar = Registrar { driver_name: options.driver_name, csi_address: socket.clone() };
    future::try_join(driver, registrar.serve(&registration_socket, stop)).await?;
    Ok(())
}

async fn register(options: Register) -> Outcome {
    let csi_address = server::socket_path(&options.csi_address);
    let registrar = Registrar { driver_name: options.driver_name, csi_address };
    Ok(registrar.serve(&options.registration_socket, termination()?).await?)
}

/// Completes, for everybody who waits, when the process is asked to end.
fn termination() -> std::io::Result<future::Shared<impl Future<Output = ()>>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let asked = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    };
    Ok(asked.shared())
}
