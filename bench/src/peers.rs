//! The programs that are measured side by side: each with a repository of its own.

use crate::place::{Location, Storage};
use anyhow::{Context, Result, bail, ensure};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::process;
use std::ffi::OsStr;
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Of all repositories that are measured.
pub const PASSWORD: &str = "benchmark";
/// Longer than any run on settable sizes should take.
pub const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// How many programs there are.
pub const COUNT: usize = 5;
/// The names of all programs: ours first, then the peers, then the one that does no more than it has to.
pub const NAMES: [&str; COUNT] = ["lifeboat", "kopia", "restic", "rustic", FLOOR];
/// Which of them are peers.
pub const PEERS: Range<usize> = 1..4;
/// No backup program, but a copy by all processors ([`crate::floor`]): in folders only, and of no change but the first.
pub const FLOOR: &str = "copy";

/// A backup program with an empty repository.
pub trait Peer {
    /// The command that backs a directory up.
    fn back_up(&self, source: &Path) -> Command;
    /// The command that restores the newest snapshot of `source` into an empty directory. Where `sparse`, zeros must
    /// become holes.
    fn restore(&self, source: &Path, target: &Path, sparse: bool) -> Result<Command>;
    /// Where its repository is.
    fn location(&self) -> &Location;
}

/// The command that installs a program, if it is not installed.
pub fn missing(name: &str) -> Option<String> {
    let tool = |name: &str| lifeboat_tools::path(name).err().map(|error| error.to_string());
    if ["lifeboat", FLOOR].contains(&name) { None } else { tool(name) }
}

/// Makes a repository of the program `name`, whose own files go to `folder`. None of the programs compresses, so that
/// all do the same work.
pub fn start(name: &str, folder: &Path, storage: &Storage) -> Result<Box<dyn Peer>> {
    let home = folder.join(format!("{name}-home"));
    std::fs::create_dir_all(&home).with_context(|| format!("create {}", home.display()))?;
    let location = storage.location(name)?;
    Ok(match name {
        "lifeboat" => Box::new(Ours::new(home, location)?),
        "kopia" => Box::new(TheirKopia::new(location)?),
        "restic" => Box::new(Restic::new(home, location)?),
        FLOOR => Box::new(Floor::new(location)?),
        _ => Box::new(Rustic::new(home, location)?),
    })
}

/// `lifeboat-repo`, built beside this program.
struct Ours {
    program: PathBuf,
    home: PathBuf,
    location: Location,
}

impl Ours {
    fn new(home: PathBuf, location: Location) -> Result<Ours> {
        let program = std::env::current_exe()?.with_file_name("lifeboat-repo");
        ensure!(program.exists(), "{} is missing: run `cargo xtask bench`", program.display());
        let ours = Ours { program, home, location };
        let mut create = ours.command(["repository", "create"]);
        create.args(ours.location.words());
        process::run_ok(create, TIME_LIMIT)?;
        Ok(ours)
    }

    fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", &self.home)
            .env("LIFEBOAT_PASSWORD", PASSWORD)
            .env("LIFEBOAT_CONFIG_PATH", self.home.join("config"))
            .args(words);
        self.location.sign_in(&mut command);
        command
    }
}

impl Peer for Ours {
    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.command(["snapshot", "create"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path, _: bool) -> Result<Command> {
        let mut list = self.command(["snapshot", "list", "--json"]);
        list.arg(source);
        let output = process::run_ok(list, TIME_LIMIT)?;
        let list: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let last = list.as_array().and_then(|list| list.last()).and_then(|snapshot| snapshot["id"].as_str());
        let mut command = self.command(["restore", last.context("we made no snapshot")?]);
        command.arg(target);
        Ok(command)
    }

    fn location(&self) -> &Location {
        &self.location
    }
}

struct TheirKopia {
    kopia: Kopia,
    location: Location,
}

impl TheirKopia {
    fn new(location: Location) -> Result<TheirKopia> {
        let mut kopia = Kopia::new(PASSWORD)?;
        if let Location::Bucket { access_key, secret_key, .. } = &location {
            kopia.set_env("AWS_ACCESS_KEY_ID", access_key);
            kopia.set_env("AWS_SECRET_ACCESS_KEY", secret_key);
        }
        let words = ["repository", "create"].map(str::to_owned).into_iter();
        kopia.run(words.chain(location.words()))?;
        Ok(TheirKopia { kopia, location })
    }
}

impl Peer for TheirKopia {
    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.kopia.command(["snapshot", "create", "--no-progress"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path, sparse: bool) -> Result<Command> {
        let mut of_source =
            self.kopia.snapshots()?.into_iter().filter(|snapshot| Path::new(&snapshot.source.path) == source);
        let id = of_source.next_back().context("kopia made no snapshot")?.id;
        let mut command = self.kopia.command(["snapshot", "restore", "--no-progress"]);
        if sparse {
            command.arg("--write-sparse-files");
        }
        command.arg(id).arg(target);
        Ok(command)
    }

    fn location(&self) -> &Location {
        &self.location
    }
}

struct Restic {
    program: PathBuf,
    home: PathBuf,
    location: Location,
}

impl Restic {
    fn new(home: PathBuf, location: Location) -> Result<Restic> {
        let restic = Restic { program: lifeboat_tools::path("restic")?, home, location };
        process::run_ok(restic.command(["init"]), TIME_LIMIT)?;
        Ok(restic)
    }

    fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        match &self.location {
            Location::Folder(path) => command.env("RESTIC_REPOSITORY", path),
            Location::Bucket { endpoint, bucket, .. } => {
                command.env("RESTIC_REPOSITORY", format!("s3:http://{endpoint}/{bucket}"))
            }
        };
        self.location.sign_in(&mut command);
        command
            .env("RESTIC_PASSWORD", PASSWORD)
            .env("RESTIC_CACHE_DIR", self.home.join("cache"))
            .env("RESTIC_COMPRESSION", "off")
            .arg("--quiet")
            .args(words);
        command
    }
}

impl Peer for Restic {
    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.command(["backup"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path, sparse: bool) -> Result<Command> {
        let path = source.to_str().context("the source's path is not valid UTF-8")?;
        let mut command = self.command(["restore", &format!("latest:{path}"), "--target"]);
        command.arg(target);
        if sparse {
            command.arg("--sparse");
        }
        Ok(command)
    }

    fn location(&self) -> &Location {
        &self.location
    }
}

struct Rustic {
    program: PathBuf,
    home: PathBuf,
    location: Location,
}

impl Rustic {
    fn new(home: PathBuf, location: Location) -> Result<Rustic> {
        let rustic = Rustic { program: lifeboat_tools::path("rustic")?, home, location };
        rustic.write_profile()?;
        process::run_ok(rustic.command(["init", "--set-compression", "0"]), TIME_LIMIT)?;
        Ok(rustic)
    }

    /// Options of a bucket go by the profile only.
    fn write_profile(&self) -> Result<()> {
        let mut profile = "[repository]\n".to_owned();
        match &self.location {
            Location::Folder(path) => writeln!(profile, "repository = {:?}", path.display().to_string())?,
            Location::Bucket { endpoint, bucket, region, access_key, secret_key } => {
                writeln!(profile, "repository = \"opendal:s3\"\n[repository.options]")?;
                writeln!(profile, "endpoint = \"http://{endpoint}\"\nbucket = \"{bucket}\"\nroot = \"/\"")?;
                writeln!(profile, "region = \"{region}\"\naccess_key_id = \"{access_key}\"")?;
                writeln!(profile, "secret_access_key = \"{secret_key}\"")?;
            }
        }
        let folder = self.home.join(".config/rustic");
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join("rustic.toml"), profile)?)
    }

    fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", &self.home)
            .env("XDG_CONFIG_HOME", self.home.join(".config"))
            .env("RUSTIC_PASSWORD", PASSWORD)
            .env("RUSTIC_CACHE_DIR", self.home.join("cache"))
            .args(["--no-progress", "--log-level", "error"])
            .args(words);
        command
    }
}

impl Peer for Rustic {
    fn back_up(&self, source: &Path) -> Command {
        let mut command = self.command(["backup"]);
        command.arg(source);
        command
    }

    fn restore(&self, source: &Path, target: &Path, _: bool) -> Result<Command> {
        let path = source.to_str().context("the source's path is not valid UTF-8")?;
        let mut command = self.command(["restore"]);
        command.arg(format!("latest:{path}")).arg(target);
        Ok(command)
    }

    fn location(&self) -> &Location {
        &self.location
    }
}

/// This program, which copies.
struct Floor {
    program: PathBuf,
    packs: PathBuf,
    location: Location,
}

impl Floor {
    fn new(location: Location) -> Result<Floor> {
        let Location::Folder(path) = &location else { bail!("copies are made of folders only") };
        Ok(Floor { program: std::env::current_exe()?, packs: path.clone(), location })
    }

    fn command(&self, words: [&OsStr; 3]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words);
        command
    }
}

impl Peer for Floor {
    fn back_up(&self, source: &Path) -> Command {
        self.command(["copy-to-packs".as_ref(), source.as_ref(), self.packs.as_ref()])
    }

    fn restore(&self, _: &Path, target: &Path, _: bool) -> Result<Command> {
        Ok(self.command(["copy-from-packs".as_ref(), self.packs.as_ref(), target.as_ref()]))
    }

    fn location(&self) -> &Location {
        &self.location
    }
}
