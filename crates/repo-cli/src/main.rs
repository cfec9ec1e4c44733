//! `lifeboat-repo`: backup of directories into Kopia-compatible repositories, for people without a cluster.

#![forbid(unsafe_code)]

mod args;
mod commands;
mod mount;
mod output;
mod progress;
mod session;
mod storage;
mod tree;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    lifeboat_budget::be_frugal();
    let cli = args::Cli::parse();
    tracing_subscriber::fmt().with_max_level(cli.global.log_level).with_writer(std::io::stderr).init();
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(&error);
            ExitCode::FAILURE
        }
    }
}
