//! `cargo xtask cluster` and `cargo xtask image`: install and build what the testbed needs, then hand over to it.
//!
//! The testbed's command line is a program of its own, so that `cargo xtask` itself stays quick to compile.

use crate::tools;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Everything after `cluster` goes to the testbed's own command line, `--help` too.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Which image; everything but `--bin` goes to the testbed's own command line, `--help` too.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct ImageArgs {
    /// Build this program of the workspace without a dynamic loader, and make an image of it.
    #[arg(long)]
    bin: Option<String>,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// The target whose C library can be linked statically with the toolchain alone.
const STATIC_TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs a task on clusters.
pub fn main(args: &Args) -> Result<()> {
    // Only this runs what has to be built from source first, which can take long.
    if args.words.first().is_some_and(|word| word == "up") {
        install()?;
    }
    hand_over("cluster", &args.words)
}

/// Makes images.
pub fn image(args: &ImageArgs) -> Result<()> {
    let mut words = args.words.clone();
    match &args.bin {
        Some(name) => {
            let program = build_static(name)?.into_os_string();
            words.push("--program".to_owned());
            words.push(program.into_string().ok().context("the target folder's name is not plain text")?);
        }
        // An image of a program that is there needs no other.
        None if words.iter().any(|word| word.starts_with("--program")) => {}
        None => install()?,
    }
    hand_over("image", &words)
}

/// Installs what a cluster is made of; what is there already costs no time.
fn install() -> Result<()> {
    tools::install_named(&["cluster", "minio"])
}

/// Builds one program of the workspace for an image: optimised, and without a dynamic loader.
fn build_static(name: &str) -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--release", "--target", STATIC_TARGET, "--bin", name]);
    build.env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    ensure!(run(build)?.success(), "{name} does not build");
    Ok(target_folder().join(STATIC_TARGET).join("release").join(name))
}

/// Where Cargo puts what it builds.
pub fn target_folder() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn hand_over(task: &str, words: &[String]) -> Result<()> {
    let mut build = cargo();
    build.args(["build", "--quiet", "--bins", "--package", "lifeboat-testbed"]);
    ensure!(run(build)?.success(), "the testbed does not build");
    let mut testbed = cargo();
    testbed.args([
        "run",
        "--quiet",
        "--package",
        "lifeboat-testbed",
        "--bin",
        "lifeboat-testbed",
        "--",
        task,
    ]);
    testbed.args(words);
    std::process::exit(run(testbed)?.code().unwrap_or(1));
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run(mut command: Command) -> Result<ExitStatus> {
    command.status().context("cargo did not start")
}
