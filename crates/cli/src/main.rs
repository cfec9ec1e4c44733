//! `lifeboat`: every program of Lifeboat in a cluster, and the command line to it.
//!
//! The image also has it as `/velero` and `/velero-restore-helper`, the names under which Velero's own objects start their
//! programs.

#![forbid(unsafe_code)]

mod args;
mod client;
mod data_mover;
mod install;
mod log;
mod manifests;
mod node_agent;
mod restore_helper;
mod signals;
mod version;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    lifeboat_budget::be_frugal();
    let cli = Cli::try_parse_from(args::words(std::env::args_os())).unwrap_or_else(|refusal| {
        if refusal.use_stderr() {
            data_mover::leave_in_container(&refusal.to_string());
        }
        refusal.exit()
    });
    // Several parts speak TLS; one of them must say by which library, and only the first to say so is heard.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let outcome = match cli.command {
        Command::Version => {
            version::run();
            Ok(ExitCode::SUCCESS)
        }
        Command::Install(args) => install::run(&args).map(|()| ExitCode::SUCCESS),
        Command::NodeAgent(args) => node_agent::run(args),
        Command::DataMover(args) => data_mover::run(args),
        Command::PodVolume(args) => data_mover::run_pod_volume(args),
        Command::RestoreHelper(args) => restore_helper::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        // One line with all causes: what failed, then why.
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
