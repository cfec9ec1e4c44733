//! `cargo xtask fuzz`: each parser against libFuzzer, for a bounded time.
//!
//! The parsers are safe Rust, so the sanitizers that need a nightly compiler have nothing to add; coverage guidance
//! works on the pinned stable one.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

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
    let mut failed = Vec::new();
    for (target, result) in run_all(&chosen, args.seconds)? {
        if let Err(error) = result {
            println!("fuzz: {error:#}");
            failed.push(target);
        }
    }
    ensure!(failed.is_empty(), "fuzzing found something in {}", failed.join(", "));
    Ok(())
}

/// Builds all targets at once, then runs these for so many seconds each, as many at a time as there are cores.
pub fn run_all(targets: &[String], seconds: u64) -> Result<Vec<(String, Result<()>)>> {
    let built = cargo_fuzz("build")?.status().context("start cargo-fuzz")?;
    ensure!(built.success(), "the fuzz targets do not build: {built}");
    let waiting = Mutex::new(targets.iter());
    let done = Mutex::new(Vec::new());
    let lanes = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(target) = next(&waiting) {
                    let result = run(target, seconds);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((target.clone(), result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(done)
}

fn next<'t>(waiting: &Mutex<std::slice::Iter<'t, String>>) -> Option<&'t String> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
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
fn run(target: &str, seconds: u64) -> Result<()> {
    let found = fuzz_dir().join("target/corpus").join(target);
    let seeds = fuzz_dir().join("corpus").join(target);
    ensure!(seeds.is_dir(), "the fuzz target {target} has no corpus in {}", seeds.display());
    std::fs::create_dir_all(&found).with_context(|| format!("create {}", found.display()))?;
    println!("fuzz: {target} for {seconds} s");
    let output = cargo_fuzz("run")?
        .arg(target)
        .args([&found, &seeds])
        .arg("--")
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_LIMIT_MB}"))
        .arg(format!("-max_len={MAX_INPUT}"))
        .arg(format!("-timeout={INPUT_SECONDS}"))
        .args(["-verbosity=0", "-print_final_stats=1"])
        .output()
        .context("start cargo-fuzz")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let runs = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    println!("fuzz: {target} ran {} inputs", runs.map_or("no", str::trim));
    let artifacts = fuzz_dir().join("artifacts").join(target);
    ensure!(
        output.status.success(),
        "{target}: {}; a failing input is kept in {}\n{said}",
        output.status,
        artifacts.display()
    );
    Ok(())
}

/// A subcommand of cargo-fuzz on our targets.
fn cargo_fuzz(task: &str) -> Result<Command> {
    let mut command = Command::new(lifeboat_tools::path("cargo-fuzz")?);
    command
        .args(["fuzz", task, "--sanitizer", "none", "--fuzz-dir"])
        .arg(fuzz_dir())
        // Instrumented code shares nothing with the other builds.
        .env_remove("CARGO_TARGET_DIR")
        .current_dir(fuzz_dir());
    Ok(command)
}

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}
