//! One user of `lifeboat-repo`, as `lifeboat_testkit::kopia::Kopia` is one of kopia.
#![allow(dead_code, clippy::unwrap_used)] // not every test crate does everything

pub mod twins;

use anyhow::{Context, Result};
use lifeboat_testkit::kopia::Snapshot;
use lifeboat_testkit::process;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any single command on a test repository may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

/// A program with a configuration of its own.
pub struct Ours {
    home: TempDir,
    password: String,
}

impl Ours {
    pub fn new(password: &str) -> Result<Ours> {
        Ok(Ours { home: tempfile::tempdir()?, password: password.to_owned() })
    }

    /// The file that says which repository this user is connected to.
    pub fn config_file(&self) -> PathBuf {
        self.home.path().join("repository.config")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lifeboat-repo"));
        command
            .env_clear()
            .env("HOME", self.home.path())
            .env("LIFEBOAT_PASSWORD", &self.password)
            .env("LIFEBOAT_CONFIG_PATH", self.config_file())
            .args(args);
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Output> {
        process::run_ok(self.command(args), LIMIT)
    }

    pub fn try_run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Output> {
        process::run(self.command(args), LIMIT)
    }

    pub fn create_filesystem(&self, path: &Path, extra: &[&str]) -> Result<()> {
        let words = ["repository", "create"].map(OsStr::new).into_iter();
        let storage = [OsStr::new("filesystem"), OsStr::new("--path"), path.as_os_str()];
        self.run(words.chain(storage).chain(extra.iter().map(OsStr::new))).map(drop)
    }

    pub fn connect_filesystem(&self, path: &Path) -> Result<()> {
        let words = ["repository", "connect", "filesystem", "--path"].map(OsStr::new);
        self.run(words.into_iter().chain([path.as_os_str()])).map(drop)
    }

    pub fn snapshot(&self, path: &Path, extra: &[&str]) -> Result<Snapshot> {
        let words = ["snapshot", "create", "--json"].map(OsStr::new).into_iter();
        let output = self.run(words.chain([path.as_os_str()]).chain(extra.iter().map(OsStr::new)))?;
        serde_json::from_slice(&output.stdout)
            .context("lifeboat-repo printed something that is not a snapshot")
    }

    pub fn restore(&self, id: &str, target: &Path) -> Result<()> {
        self.run([OsStr::new("restore"), OsStr::new(id), target.as_os_str()]).map(drop)
    }
}

/// Ends a program, whose errors are piped, by a signal, if it is not over already; says whether it was not. One that is asked
/// to end either gets done all the same or says why it did not, unless it had not begun: then the signal ends it at once.
pub fn end_by(mut child: Child, signal: Signal) -> bool {
    let is_running = child.try_wait().unwrap().is_none();
    if is_running {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let until = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "the signal was not heard");
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        _ if signal == Signal::KILL => {}
        Some(0) => {}
        Some(_) => assert!(said.contains("error: ") && said.contains("cancelled"), "{said}"),
        None => assert!(said.is_empty(), "it was at work, and ended by the signal: {said}"),
    }
    is_running
}
