//! `cargo xtask test`: everything that must hold before a change goes in, as one table of steps.
//!
//! Every step runs, whatever became of the ones before, so that one run tells all there is to mend.

use crate::{deny, fuzz, tools};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What to test.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also the exhaustive matrices and the further releases of peers; takes hours.
    #[arg(long)]
    long: bool,
    /// Only the tests whose names contain this, without the other checks.
    filter: Option<String>,
}

/// One line of the summary.
struct Step {
    name: &'static str,
    /// Whether a run for some tests only needs it too.
    with_filter: bool,
    run: fn(&Args, &mut dyn Write) -> Result<Count>,
}

/// What all other steps need.
const FIRST: &[Step] = &[Step { name: "tools", with_filter: true, run: |args, _| install_tools(args) }];

/// To add a step, add a line.
const STEPS: &[Step] = &[
    Step { name: "fmt", with_filter: false, run: |_, _| one(cargo(&["fmt", "--all", "--check"])) },
    Step { name: "clippy", with_filter: false, run: |_, _| one(clippy()) },
    Step { name: "deny", with_filter: false, run: |_, _| one(deny::check()) },
    Step { name: "tests", with_filter: true, run: computing_tests },
    Step { name: "fuzz", with_filter: false, run: |args, _| fuzz_all(args) },
];

/// The steps that run beside those, since they wait more than they compute.
const BESIDE: &[Step] = &[Step { name: "cluster", with_filter: true, run: waiting_tests }];

/// How long each parser is fuzzed in a test run: enough for the corpus and what is near it.
const FUZZ_SECONDS: u64 = 10;
/// The same with `--long`.
const LONG_FUZZ_SECONDS: u64 = 300;

/// How many things held and how many did not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Runs the steps; the last line it prints has the totals.
pub fn main(args: &Args) -> Result<()> {
    let started = Instant::now();
    let mut results = run_steps(FIRST, args, &mut std::io::stdout());
    std::thread::scope(|scope| {
        // What runs beside is shown at its end, so that no two test programs talk at the same time.
        let beside = scope.spawn(|| {
            let mut output = Vec::new();
            let results = run_steps(BESIDE, args, &mut output);
            (results, output)
        });
        results.extend(run_steps(STEPS, args, &mut std::io::stdout()));
        let Ok((more, output)) = beside.join() else { bail!("the steps beside the others panicked") };
        results.extend(more);
        Ok(std::io::stdout().write_all(&output)?)
    })?;
    println!("\n==> summary");
    let mut total = Count::default();
    for (name, count, took) in results {
        total += count;
        println!("{}", summary(name, count, took));
    }
    println!("all steps took {}", minutes(started.elapsed()));
    println!("{} passed, {} failed", total.passed, total.failed);
    std::io::stdout().flush()?;
    if total.failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

/// What became of each step, and how long it took.
fn run_steps(steps: &[Step], args: &Args, out: &mut dyn Write) -> Vec<(&'static str, Count, Duration)> {
    let wanted = steps.iter().filter(|step| args.filter.is_none() || step.with_filter);
    let run = |step: &Step| {
        let began = Instant::now();
        let count = writeln!(out, "==> {}", step.name).map_err(anyhow::Error::from);
        let count = count.and_then(|()| (step.run)(args, out)).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", step.name);
            Count { passed: 0, failed: 1 }
        });
        (step.name, count, began.elapsed())
    };
    wanted.map(run).collect()
}

fn summary(name: &str, count: Count, took: Duration) -> String {
    let verdict = if count.failed == 0 { "ok" } else { "FAILED" };
    format!("{name:8} {verdict:7} {:5} passed {:3} failed {:>9}", count.passed, count.failed, minutes(took))
}

fn minutes(took: Duration) -> String {
    format!("{} m {:02} s", took.as_secs() / 60, took.as_secs() % 60)
}

/// A step that is one check.
fn one(result: Result<()>) -> Result<Count> {
    result.map(|()| Count { passed: 1, failed: 0 })
}

fn install_tools(args: &Args) -> Result<Count> {
    one(tools::install_groups(if args.long { tools::FOR_LONG_TESTS } else { tools::FOR_TESTS }))
}

fn clippy() -> Result<()> {
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])
}

/// Runs cargo, which must succeed.
pub fn cargo(args: &[&str]) -> Result<()> {
    let status = Command::new("cargo").args(args).status().context("start cargo")?;
    ensure!(status.success(), "`cargo {}`: {status}", args.join(" "));
    Ok(())
}

fn fuzz_all(args: &Args) -> Result<Count> {
    let seconds = if args.long { LONG_FUZZ_SECONDS } else { FUZZ_SECONDS };
    let mut count = Count::default();
    for (_, result) in fuzz::run_all(&fuzz::targets()?, seconds)? {
        match result {
            Ok(()) => count.passed += 1,
            Err(error) => {
                println!("fuzz: {error:#}");
                count.failed += 1;
            }
        }
    }
    Ok(count)
}

/// The packages whose tests wait for clusters and devices.
const WAITING: &[&str] = &["lifeboat-cli", "lifeboat-testbed", "lifeboat-testbed-csi"];

/// Runs all tests that need no cluster.
fn computing_tests(args: &Args, out: &mut dyn Write) -> Result<Count> {
    let (_, computing) = test_targets()?;
    let computing = computing.iter().flat_map(|name| ["--test", name]);
    let targets: Vec<&str> = ["--lib", "--bins", "--examples"].into_iter().chain(computing).collect();
    let mut count = cargo_test(args, &targets, out)?;
    count += cargo_test(args, &["--doc"], out)?;
    Ok(count)
}

/// Runs the tests of [`WAITING`] packages. If others are compiling what both need, Cargo waits for them.
fn waiting_tests(args: &Args, out: &mut dyn Write) -> Result<Count> {
    let (waiting, _) = test_targets()?;
    let targets: Vec<&str> = waiting.iter().flat_map(|name| ["--test", name]).collect();
    cargo_test(args, &targets, out)
}

/// The names of the test programs of the workspace: those that wait, and all others.
fn test_targets() -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo metadata")?;
    ensure!(output.status.success(), "`cargo metadata`: {}", output.status);
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("read cargo's metadata")?;
    Ok(split_targets(metadata.packages))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Cargo selects by name only, so programs of the same name run together, wherever one of them waits.
fn split_targets(packages: Vec<Package>) -> (BTreeSet<String>, BTreeSet<String>) {
    let tests = |package: Package| {
        let is_test = |target: &Target| target.kind.iter().any(|kind| kind == "test");
        package.targets.into_iter().filter(is_test).map(|target| target.name)
    };
    let (waiting, others): (Vec<_>, Vec<_>) =
        packages.into_iter().partition(|package| WAITING.contains(&package.name.as_str()));
    let waiting: BTreeSet<String> = waiting.into_iter().flat_map(tests).collect();
    let others = others.into_iter().flat_map(tests).filter(|name| !waiting.contains(name)).collect();
    (waiting, others)
}

/// Runs the tests of some targets, passing their output on.
fn cargo_test(args: &Args, targets: &[&str], out: &mut dyn Write) -> Result<Count> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-fail-fast"]).args(targets).stdout(Stdio::piped());
    if args.long {
        command.env("LIFEBOAT_LONG", "1");
    }
    command.args(args.filter.iter());
    if args.long {
        // What only a long run can do is marked as ignored, with the reason.
        command.args(["--", "--include-ignored"]);
    }
    let mut child = command.spawn().context("start cargo test")?;
    let mut count = Count::default();
    if let Some(stdout) = child.stdout.take() {
        // Tests may print anything, not only UTF-8.
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            out.write_all(&line)?;
            out.write_all(b"\n")?;
            if let Some(part) = libtest_result(&String::from_utf8_lossy(&line)) {
                count += part;
            }
        }
    }
    let status = child.wait()?;
    if !status.success() && count.failed == 0 {
        bail!("cargo test: {status} (it did not compile, or a test ended the process)");
    }
    Ok(count)
}

/// The counts of a line like `test result: ok. 3 passed; 0 failed; 0 ignored; …`.
fn libtest_result(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        let part = counts.split("; ").find_map(|part| part.strip_suffix(word))?;
        part.trim().parse::<u64>().ok()
    };
    Some(Count { passed: number("passed")?, failed: number("failed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_libtest_are_counted_and_other_lines_are_not() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s";
        assert_eq!(libtest_result(line), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(libtest_result("test result: ok. nothing"), None);
        assert_eq!(libtest_result("test tests::passed ... ok"), None);
    }

    #[test]
    fn every_test_program_is_run_once_and_those_of_clusters_beside_the_others() {
        let package = |name: &str, tests: &[&str]| Package {
            name: name.to_owned(),
            targets: tests
                .iter()
                .map(|test| Target { name: (*test).to_owned(), kind: vec!["test".to_owned()] })
                .chain([Target { name: name.to_owned(), kind: vec!["lib".to_owned()] }])
                .collect(),
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let packages = vec![
            package("lifeboat-cli", &["under_velero"]),
            package("lifeboat-testbed", &["faults"]),
            package("lifeboat-uploader", &["block", "faults"]),
        ];
        let (waiting, others) = split_targets(packages);
        assert_eq!(waiting, names(&["faults", "under_velero"]));
        assert_eq!(others, names(&["block"]));
    }

    #[test]
    fn a_line_of_the_summary_tells_verdict_counts_and_time() {
        let line = summary("tests", Count { passed: 7, failed: 1 }, Duration::from_secs(61));
        assert_eq!(line, "tests    FAILED      7 passed   1 failed  1 m 01 s");
    }
}
