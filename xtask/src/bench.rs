//! `cargo xtask bench`: builds what is measured and runs `lifeboat-bench`.

use crate::cluster::target_folder;
use crate::test::cargo;
use crate::tools;
use anyhow::{Context, Result, ensure};
use lifeboat_tools::Group;
use std::process::Command;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A subcommand of `lifeboat-bench` with its options; `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    arguments: Vec<String>,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<()> {
    tools::install_groups(&[Group::Peers])?;
    tools::install_named(&["restic", "rustic"])?;
    // Whole runs are measured with the program that users run, built beside the benchmark.
    cargo(&["build", "--release", "--package", "lifeboat-repo-cli", "--package", "lifeboat-bench"])?;
    // `cargo run` would build it once more: by itself it needs fewer features of what both depend on.
    let program = target_folder().join("release/lifeboat-bench");
    let status = Command::new(&program)
        .args(&args.arguments)
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(status.success(), "the benchmark failed: {status}");
    Ok(())
}
