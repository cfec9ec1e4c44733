//! `lifeboat-repo`: backup of directories into Kopia-compatible repositories, for people without a cluster.

#![deny(unsafe_code)]

mod allocator;
mod args;
mod commands;
mod session;
mod storage;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    allocator::be_frugal();
    let cli = args::Cli::parse();
    tracing_subscriber::fmt().with_max_level(cli.global.log_level).with_writer(std::io::stderr).init();
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line with all causes: what failed, then why.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
