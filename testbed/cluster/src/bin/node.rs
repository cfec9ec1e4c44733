//! The program that runs inside a node of a test cluster: its first process, our own CSI driver, and the registration
//! of others.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use std::path::PathBuf;
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
    /// Be our own CSI driver, or tell the kubelet about another one.
    #[command(subcommand)]
    Csi(lifeboat_testbed_csi::Command),
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
        Role::Guard { pid, cluster } => lifeboat_testbed::guard::watch(pid, &cluster),
        Role::Csi(command) => return command.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
