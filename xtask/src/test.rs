//! `cargo xtask test`: everything that must hold before a change goes in, as one table of steps.
//!
//! Every step runs, whatever became of the ones before, so that one run tells all there is to mend.

use crate::{deny, fuzz, tools};
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Write};
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
    run: fn(&Args) -> Result<Count>,
}

/// To add a step, add a line.
const STEPS: &[Step] = &[
    Step { name: "tools", with_filter: true, run: install_tools },
    Step { name: "fmt", with_filter: false, run: |_| one(cargo(&["fmt", "--all", "--check"])) },
    Step { name: "clippy", with_filter: false, run: |_| one(clippy()) },
    Step { name: "deny", with_filter: false, run: |_| one(deny::check()) },
    Step { name: "tests", with_filter: true, run: cargo_test },
    Step { name: "fuzz", with_filter: false, run: |args| fuzz_all(args) },
];

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

/// Runs the steps; the last line it prints has the totals.
pub fn main(args: &Args) -> Result<()> {
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut total = Count::default();
    for step in STEPS.iter().filter(|step| args.filter.is_none() || step.with_filter) {
        println!("==> {}", step.name);
        let began = Instant::now();
        let count = (step.run)(args).unwrap_or_else(|error| {
            println!("{}: {error:#}", step.name);
            Count { passed: 0, failed: 1 }
        });
        total.passed += count.passed;
        total.failed += count.failed;
        lines.push(summary(step.name, count, began.elapsed()));
    }
    println!("\n==> summary");
    for line in lines {
        println!("{line}");
    }
    println!("all steps took {}", minutes(started.elapsed()));
    println!("{} passed, {} failed", total.passed, total.failed);
    std::io::stdout().flush()?;
    if total.failed > 0 {
        std::process::exit(1);
    }
    Ok(())
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

/// Runs all tests of the workspace, passing their output on and counting results on the way.
fn cargo_test(args: &Args) -> Result<Count> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-fail-fast"]).stdout(Stdio::piped());
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
            std::io::stdout().write_all(&line)?;
            println!();
            if let Some(part) = libtest_result(&String::from_utf8_lossy(&line)) {
                count.passed += part.passed;
                count.failed += part.failed;
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
    fn a_line_of_the_summary_tells_verdict_counts_and_time() {
        let line = summary("tests", Count { passed: 7, failed: 1 }, Duration::from_secs(61));
        assert_eq!(line, "tests    FAILED      7 passed   1 failed  1 m 01 s");
    }
}
