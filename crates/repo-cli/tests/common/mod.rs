//! One user of `lifeboat-repo`, as `lifeboat_testkit::kopia::Kopia` is one of kopia.
#![allow(dead_code, clippy::unwrap_used)] // not every test crate does everything

pub mod twins;

use anyhow::{Context, Result};
use lifeboat_testkit::kopia::Snapshot;
use lifeboat_testkit::process;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
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
