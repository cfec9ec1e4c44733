//! `cargo xtask cluster` and `cargo xtask image`: install and build what the testbed needs, then hand over to it.
//!
//! The testbed's command line is a program of its own, so that `cargo xtask` itself stays quick to compile.

use anyhow::{Context, Result, ensure};
use lifeboat_tools::{self as tools, Group, TOOLS};
use std::process::{Command, ExitStatus};

/// Everything after the task's name goes to the testbed's own command line, `--help` too.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs a task of the testbed: `cluster` or `image`.
pub fn main(task: &str, args: &Args) -> Result<()> {
    // Only these run what has to be built from source first, which can take long.
    if task == "image" || args.words.first().is_some_and(|word| word == "up") {
        install()?;
    }
    let build = cargo(&["build", "--quiet", "--package", "lifeboat-testbed", "--bins"])?;
    ensure!(build.success(), "the testbed does not build");
    let mut words =
        vec!["run", "--quiet", "--package", "lifeboat-testbed", "--bin", "lifeboat-testbed", "--", task];
    words.extend(args.words.iter().map(String::as_str));
    let status = cargo(&words)?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Installs what a cluster is made of; what is there already costs no time.
pub fn install() -> Result<()> {
    for tool in TOOLS.iter().filter(|tool| tool.group == Group::Cluster || tool.name == "minio") {
        tools::install(tool, &|news| eprintln!("tools: {news}"))?;
    }
    Ok(())
}

fn cargo(words: &[&str]) -> Result<ExitStatus> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Command::new(cargo).args(words).status().context("cargo did not start")
}
