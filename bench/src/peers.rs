//! The programs that are measured side by side: each with a repository of its own in a folder.

use anyhow::{Context, Result, ensure};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::process;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Of all repositories that are measured.
pub const PASSWORD: &str = "benchmark";
/// Longer than any run on settable sizes should take.
pub const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// A backup program with an empty repository.
pub trait Peer {
    /// Its name in tables.
    fn name(&self) -> &'static str;
    /// The command that backs a directory up.
    fn back_up(&self, source: &Path) -> Command;
    /// The command that restores the newest snapshot of `source` into an empty directory.
    fn restore(&self, source: &Path, target: &Path) -> Result<Command>;
    /// Where its repository is.
    fn repository(&self) -> &Path;
}

/// All of them, ours first, with repositories below `folder`. None of them compresses, so that all do the same work.
pub fn all(folder: &Path) -> Result<Vec<Box<dyn Peer>>> {
    Ok(vec![
        Box::new(Ours::new(folder)?),
        Box::new(TheirKopia::new(folder)?),
        Box::new(Restic::new(folder)?),
        Box::new(Rustic::new(folder)?),
    ])
}

/// `lifeboat-repo`, built beside this program.
struct Ours {
    program: PathBuf,
    folder: PathBuf,
    repository: PathBuf,
}

impl Ours {
    fn new(folder: &Path) -> Result<Ours> {
        let program = std::env::current_exe()?.with_file_name("lifeboat-repo");
        ensure!(program.exists(), "{} is missing: run `cargo xtask bench`", program.display());
        let ours =
            Ours { program, folder: new_folder(folder, "ours-home")?, repository: folder.join("ours") };
        let mut create = ours.command(["repository", "create", "filesystem", "--path"]);
        create.arg(&ours.repository);
        process::run_ok(create, TIME_LIMIT)?;
        Ok(ours)
    }

    fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("LIFEBOAT_PASSWORD", PASSWORD)
            .env("LIFEBOAT_CONFIG_PATH", self.folder.join("config"))
            .args(words);
        command
    }
}

impl Peer for Ours {
    fn name(&self) -> &'static str {
        "lifeboat"
    }

    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.command(["snapshot", "create"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path) -> Result<Command> {
        let mut list = self.command(["snapshot", "list", "--json"]);
        list.arg(source);
        let output = process::run_ok(list, TIME_LIMIT)?;
        let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let last = list.as_array().and_then(|list| list.last()).and_then(|snapshot| snapshot["id"].as_str());
        let mut command = self.command(["restore", last.context("we made no snapshot")?]);
        command.arg(target);
        Ok(command)
    }

    fn repository(&self) -> &Path {
        &self.repository
    }
}

struct TheirKopia {
    kopia: Kopia,
    repository: PathBuf,
}

impl TheirKopia {
    fn new(folder: &Path) -> Result<TheirKopia> {
        let (kopia, repository) = (Kopia::new(PASSWORD)?, new_folder(folder, "kopia")?);
        kopia.create_filesystem(&repository, &[])?;
        Ok(TheirKopia { kopia, repository })
    }
}

impl Peer for TheirKopia {
    fn name(&self) -> &'static str {
        "kopia"
    }

    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.kopia.command(["snapshot", "create", "--no-progress"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path) -> Result<Command> {
        let mut of_source =
            self.kopia.snapshots()?.into_iter().filter(|snapshot| Path::new(&snapshot.source.path) == source);
        let id = of_source.next_back().context("kopia made no snapshot")?.id;
        let mut command = self.kopia.command(["snapshot", "restore", "--no-progress"]);
        command.arg(id).arg(target);
        Ok(command)
    }

    fn repository(&self) -> &Path {
        &self.repository
    }
}

struct Restic {
    program: PathBuf,
    folder: PathBuf,
    repository: PathBuf,
}

impl Restic {
    fn new(folder: &Path) -> Result<Restic> {
        let program = lifeboat_tools::path("restic")?;
        let restic =
            Restic { program, folder: new_folder(folder, "restic-home")?, repository: folder.join("restic") };
        process::run_ok(restic.command(["init"]), TIME_LIMIT)?;
        Ok(restic)
    }

    fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("RESTIC_PASSWORD", PASSWORD)
            .env("RESTIC_REPOSITORY", &self.repository)
            .env("RESTIC_CACHE_DIR", self.folder.join("cache"))
            .env("RESTIC_COMPRESSION", "off")
            .arg("--quiet")
            .args(words);
        command
    }
}

impl Peer for Restic {
    fn name(&self) -> &'static str {
        "restic"
    }

    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.command(["backup"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path) -> Result<Command> {
        let mut command = self.command(["restore", "latest", "--path"]);
        command.arg(source).arg("--target").arg(target);
        Ok(command)
    }

    fn repository(&self) -> &Path {
        &self.repository
    }
}

struct Rustic {
    program: PathBuf,
    folder: PathBuf,
    repository: PathBuf,
}

impl Rustic {
    fn new(folder: &Path) -> Result<Rustic> {
        let program = lifeboat_tools::path("rustic")?;
        let rustic =
            Rustic { program, folder: new_folder(folder, "rustic-home")?, repository: folder.join("rustic") };
        process::run_ok(rustic.command(["init", "--set-compression", "0"]), TIME_LIMIT)?;
        Ok(rustic)
    }

    fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", &self.folder)
            .env("RUSTIC_PASSWORD", PASSWORD)
            .env("RUSTIC_REPOSITORY", &self.repository)
            .env("RUSTIC_CACHE_DIR", self.folder.join("cache"))
            .args(["--no-progress", "--log-level", "error"])
            .args(words);
        command
    }
}

impl Peer for Rustic {
    fn name(&self) -> &'static str {
        "rustic"
    }

    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.command(["backup"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path) -> Result<Command> {
        let path = source.to_str().context("the source's path is not valid UTF-8")?;
        let mut command = self.command(["restore"]);
        command.arg(format!("latest:{path}")).arg(target);
        Ok(command)
    }

    fn repository(&self) -> &Path {
        &self.repository
    }
}

fn new_folder(parent: &Path, name: &str) -> Result<PathBuf> {
    let path = parent.join(name);
    std::fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    Ok(path)
}
