//! The command line of the test driver.

#![forbid(unsafe_code)]

use clap::Parser;
use lifeboat_testbed_csi::Command;
use std::process::ExitCode;

/// A CSI driver for tests.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    Cli::parse().command.run()
}
