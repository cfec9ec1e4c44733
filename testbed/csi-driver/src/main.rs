//! The command line of the test driver.

#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use futures::future::{self, FutureExt};
use lifeboat_testbed_csi::{
    Driver, Knobs, Registrar, Service, Settings, release_all_devices, serve_driver, server,
};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// A CSI driver for tests.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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

#[derive(Debug, Args)]
struct Serve {
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

#[derive(Debug, Args)]
struct Register {
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

#[tokio::main]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let outcome = match Cli::parse().command {
        Command::Serve(options) => serve(options).await,
        Command::Register(options) => register(options).await,
        Command::Cleanup { state_dir } => release_all_devices(&state_dir).map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
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
