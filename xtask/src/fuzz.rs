//! `cargo xtask fuzz`: each parser against libFuzzer, for a bounded time.
//!
//! The parsers are safe Rust, so the sanitizers that need a nightly compiler have nothing to add; coverage guidance
//! works on the pinned stable one.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to fuzz.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this target; all if none is given.
    target: Option<String>,
}

/// More than any parser may need for an input of the size below; a parser that believes a declared length fails here.
const MEMORY_LIMIT_MB: u32 = 1024;
/// Inputs up to here reach every branch, and more would only be slower.
const MAX_INPUT: u32 = 64 << 10;
/// An input that takes longer than this has found a loop.
const INPUT_SECONDS: u32 = 20;

/// Runs the command.
pub fn main(args: &Args) -> Result<()> {
    let all = targets()?;
    let chosen = match &args.target {
        None => all,
        Some(target) if all.contains(target) => vec![target.clone()],
        Some(target) => bail!("there is no fuzz target {target}; there are {}", all.join(", ")),
    };
    for target in chosen {
        run(&target, args.seconds)?;
    }
    Ok(())
}

/// The names of all targets: one file each in `fuzz/src/bin`.
pub fn targets() -> Result<Vec<String>> {
    let dir = fuzz_dir().join("src/bin");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Runs one target for so many seconds, from its committed corpus. What it finds on the way is kept outside git.
pub fn run(target: &str, seconds: u64) -> Result<()> {
    let program = lifeboat_tools::path("cargo-fuzz")?;
    let found = fuzz_dir().join("target/corpus").join(target);
    let seeds = fuzz_dir().join("corpus").join(target);
    ensure!(seeds.is_dir(), "the fuzz target {target} has no corpus in {}", seeds.display());
    std::fs::create_dir_all(&found).with_context(|| format!("create {}", found.display()))?;
    println!("fuzz: {target} for {seconds} s");
    let status = Command::new(program)
        .args(["fuzz", "run", "--sanitizer", "none", "--fuzz-dir"])
        .arg(fuzz_dir())
        .arg(target)
        .args([&found, &seeds])
        .arg("--")
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_LIMIT_MB}"))
        .arg(format!("-max_len={MAX_INPUT}"))
        .arg(format!("-timeout={INPUT_SECONDS}"))
        .args(["-verbosity=0", "-print_final_stats=1"])
        // Instrumented code shares nothing with the other builds.
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(fuzz_dir())
        .status()
        .context("start cargo-fuzz")?;
    let artifacts = fuzz_dir().join("artifacts").join(target);
    ensure!(status.success(), "{target}: {status}; a failing input is kept in {}", artifacts.display());
    Ok(())
}

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}
