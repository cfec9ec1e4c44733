//! `cargo xtask bench`: builds what is measured and runs `lifeboat-bench`.

use crate::test::cargo;
use crate::tools;
use anyhow::Result;
use lifeboat_tools::Group;

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
    let mut run = vec!["run", "--release", "--package", "lifeboat-bench", "--"];
    run.extend(args.arguments.iter().map(String::as_str));
    cargo(&run)
}
