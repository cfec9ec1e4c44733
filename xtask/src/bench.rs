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

/// What is measured in a cluster.
const IN_CLUSTER: [&str; 2] = ["movers", "load"];

/// Runs the command.
pub fn main(args: &Args) -> Result<()> {
    let in_cluster = args.arguments.first().is_some_and(|what| IN_CLUSTER.contains(&what.as_str()));
    if in_cluster {
        tools::install_named(&["cluster", "minio"])?;
    } else {
        tools::install_groups(&[Group::Peers])?;
        tools::install_named(&["restic", "rustic"])?;
    }
    // Measured is the program that users run, built beside the benchmark, as is what a cluster is made of.
    let measured: &[&str] =
        if in_cluster { &["lifeboat-cli", "lifeboat-testbed"] } else { &["lifeboat-repo-cli"] };
    let packages = measured.iter().chain(&["lifeboat-bench"]).flat_map(|name| ["--package", name]);
    cargo(&["build", "--release", "--bins"].into_iter().chain(packages).collect::<Vec<_>>())?;
    // `cargo run` would build it once more: by itself it needs fewer features of what both depend on.
    let program = target_folder().join("release/lifeboat-bench");
    let status = Command::new(&program)
        .args(&args.arguments)
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(status.success(), "the benchmark failed: {status}");
    Ok(())
}
