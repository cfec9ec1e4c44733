//! The program that runs inside a node of a test cluster: its first process, and the registration of CSI drivers.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use lifeboat_testbed::Error;
use lifeboat_testbed_csi::Registrar;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Be the first process of a node; the folder comes first so that the node can be told from its command line.
    Init {
        /// The node's folder.
        folder: PathBuf,
    },
    /// Tell the kubelet about a CSI driver.
    Register {
        /// The driver's name.
        #[arg(long)]
        driver: String,
        /// The driver's CSI socket.
        #[arg(long)]
        endpoint: PathBuf,
        /// The registration socket, in the folder that the kubelet watches.
        #[arg(long)]
        socket: PathBuf,
    },
    /// Take a cluster down as soon as the process that started it has ended, however it ended.
    Guard {
        /// The process to watch.
        pid: i32,
        /// The cluster to take down.
        cluster: String,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().role {
        Role::Init { folder } => lifeboat_testbed::supervisor::run(&folder),
        Role::Register { driver, endpoint, socket } => register(&driver, &endpoint, &socket),
        Role::Guard { pid, cluster } => lifeboat_testbed::guard::watch(pid, &cluster),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn register(driver: &str, endpoint: &Path, socket: &Path) -> lifeboat_testbed::Result<()> {
    let registrar = Registrar { driver_name: driver.to_owned(), csi_address: endpoint.to_owned() };
    let served = lifeboat_testbed::small_runtime()?.block_on(registrar.serve(socket, std::future::pending()));
    served.map_err(|problem| Error::Unexpected {
        part: "registration".to_owned(),
        problem: problem.to_string(),
    })
}
