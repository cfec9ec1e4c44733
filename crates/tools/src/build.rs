//! Getting a tool into the cache: once, whole or not at all, however many callers ask at the same time.

use crate::{Recipe, Tool, cache};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How much of a failed build's log an error shows.
const LOG_LINES: usize = 40;

/// What [`install`] had to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The tool was there already.
    Present,
    /// The tool was built or installed, in this time.
    Installed(Duration),
}

/// Makes sure that the tool is in the cache. `say` hears when something slow begins.
///
/// A second caller waits for the first and then finds the tool; a caller that was killed leaves nothing that looks
/// like a finished tool.
pub fn install(tool: &Tool, say: &dyn Fn(&str)) -> Result<Outcome> {
    let started = Instant::now();
    let installed = match tool.recipe {
        Recipe::Debian { packages, program } => install_packages(packages, program, say),
        _ => install_into_cache(tool, say),
    };
    let built = installed.with_context(|| format!("cannot install {} {}", tool.name, tool.version))?;
    Ok(if built { Outcome::Installed(started.elapsed()) } else { Outcome::Present })
}

/// Returns whether anything had to be done.
fn install_into_cache(tool: &Tool, say: &dyn Fn(&str)) -> Result<bool> {
    let program = cache::program(tool)?;
    if program.exists() {
        return Ok(false);
    }
    let dir = cache::tools_dir()?;
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let _lock = lock(&dir.join(format!(".lock-{}", tool.name)), tool, say)?;
    if program.exists() {
        return Ok(false);
    }
    say(&format!("building {} {}", tool.name, tool.version));
    // The lock makes this folder ours; what lies in it was left by a build that was killed.
    let partial = dir.join(format!(".partial-{}", tool.name));
    remove_dir(&partial)?;
    fs::create_dir(&partial)?;
    let log = dir.join(format!("{}.log", tool.name));
    for command in commands(tool, &partial)? {
        run_logged(command, &log)?;
    }
    let made = partial.join(cache::program_in_home(tool));
    ensure!(made.exists(), "the build did not produce {}", made.display());
    let home = cache::home(tool)?;
    remove_dir(&home)?;
    fs::rename(&partial, &home).with_context(|| format!("move the finished tool to {}", home.display()))?;
    Ok(true)
}

/// Holds until the returned file is dropped.
fn lock(path: &Path, tool: &Tool, say: &dyn Fn(&str)) -> Result<File> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            say(&format!("waiting for another build of {}", tool.name));
            file.lock().with_context(|| format!("lock {}", path.display()))?;
        }
        Err(fs::TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("lock {}", path.display()));
        }
    }
    Ok(file)
}

/// The commands that fill the folder `into`.
fn commands(tool: &Tool, into: &Path) -> Result<Vec<Command>> {
    let folder = cache::folder(&tool.recipe).unwrap_or_default();
    let program = into.join(tool.name);
    Ok(match tool.recipe {
        Recipe::GoBuild { package, stamps, .. } => vec![go_build(go(&folder), package, stamps, &program)],
        Recipe::OldGoBuild { toolchain, package, stamps, .. } => {
            let mut command = go(&folder);
            // Releases before 1.18 do not know that other flag, and record no state of the checkout.
            command.env("GOTOOLCHAIN", toolchain).env("GOFLAGS", "-mod=readonly");
            vec![go_build(command, package, stamps, &program)]
        }
        Recipe::GoTest { package, .. } => {
            let mut command = go(&folder);
            command.args(["test", "-c", "-o"]).arg(program).arg(package);
            vec![command]
        }
        Recipe::Npm { .. } => {
            for file in ["package.json", "package-lock.json"] {
                fs::copy(folder.join(file), into.join(file)).with_context(|| format!("copy {file}"))?;
            }
            let mut command = Command::new("npm");
            // Install scripts of packages are code that no lock file pins down in effect; none is needed.
            command
                .args(["ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"])
                .current_dir(into);
            vec![command]
        }
        Recipe::Cargo { package, profile } => {
            let mut command = Command::new("cargo");
            command.args(["install", "--locked", "--version", tool.version, "--profile", profile]);
            command.arg("--root").arg(into);
            // Inside the checkout, whose toolchain file picks the compiler, but away from its artifacts and flags.
            command.arg(package).current_dir(env!("CARGO_MANIFEST_DIR"));
            command.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
            // Nobody steps through these programs.
            command.env("CARGO_PROFILE_DEV_DEBUG", "false").env("CARGO_INCREMENTAL", "0");
            vec![command]
        }
        Recipe::Debian { .. } => Vec::new(),
    })
}

/// Completes `go` to the build of one command.
fn go_build(mut go: Command, package: &str, stamps: &[(&str, &str)], program: &Path) -> Command {
    let mut ldflags = String::from("-s -w");
    for (variable, value) in stamps {
        ldflags.push_str(&format!(" -X {variable}={value}"));
    }
    go.args(["build", "-ldflags", &ldflags, "-o"]).arg(program).arg(package);
    go
}

/// Go with nothing but the wrapper module deciding what is built.
fn go(module: &Path) -> Command {
    let mut command = Command::new("go");
    command
        .current_dir(module)
        .env("GOFLAGS", "-mod=readonly -buildvcs=false")
        .env("GOWORK", "off")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", "0")
        // The compiler is a Go program too, and short-lived: collecting its garbage more seldom saves a fifth of the
        // processor time for some hundred MB.
        .env("GOGC", "400");
    command
}

/// Returns whether anything had to be installed.
fn install_packages(packages: &[&str], program: &str, say: &dyn Fn(&str)) -> Result<bool> {
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() && Path::new(program).exists() {
        return Ok(false);
    }
    say(&format!("installing {} from Debian", packages.join(", ")));
    let dir = cache::tools_dir()?;
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let log = dir.join("apt.log");
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(packages);
    // A machine whose package lists are fresh enough is spared the update.
    if run_logged(apt(&install), &log).is_err() {
        run_logged(apt(&["update"]), &log)?;
        run_logged(apt(&install), &log)?;
    }
    ensure!(Path::new(program).exists(), "{} did not bring {program}", packages.join(", "));
    Ok(true)
}

fn is_installed(package: &str) -> bool {
    let query =
        Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]).output();
    query.is_ok_and(|output| output.stdout == b"installed")
}

fn apt(args: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["--quiet", "-o", "DPkg::Lock::Timeout=600"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Packages of daemons start them on installation unless the system is in single-user mode.
        .env("RUNLEVEL", "1");
    command
}

/// Runs the command with its output in `log`, whose last lines go into the error.
fn run_logged(mut command: Command, log: &Path) -> Result<()> {
    let shown = format!("{command:?}");
    let output = File::create(log).with_context(|| format!("create {}", log.display()))?;
    let program = PathBuf::from(command.get_program());
    let status = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .with_context(|| format!("start {}: is it installed and in PATH?", program.display()))?;
    if !status.success() {
        let text = fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        bail!("{shown}: {status}\n{}", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
    }
    Ok(())
}

fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
