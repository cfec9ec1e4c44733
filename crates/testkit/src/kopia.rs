//! The real kopia, as a peer to cross with.

use crate::process;
use crate::servers::Minio;
use crate::tools;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any single command on a test repository may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

/// One user of kopia: a program with its own configuration, cache and logs, connected to at most one repository.
///
/// Nothing of the machine's own kopia set-up is read or written, and the password only travels by the environment.
#[derive(Debug)]
pub struct Kopia {
    program: PathBuf,
    home: TempDir,
    env: Vec<(OsString, OsString)>,
}

/// A snapshot as kopia reports it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The id of the snapshot's manifest.
    pub id: String,
    /// What was backed up, by whom.
    pub source: Source,
    /// The top directory.
    #[serde(rename = "rootEntry")]
    pub root: RootEntry,
}

/// The source of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// The machine.
    pub host: String,
    /// The user.
    pub user_name: String,
    /// The path of the top directory.
    pub path: String,
}

/// The top directory of a snapshot.
#[derive(Debug, Clone, Deserialize)]
pub struct RootEntry {
    /// Its object id.
    pub obj: String,
}

/// A place in a bucket of a test server.
#[derive(Debug, Clone, Copy)]
pub struct S3Location<'a> {
    /// The server.
    pub server: &'a Minio,
    /// The bucket, which must exist.
    pub bucket: &'a str,
    /// Where in the bucket; empty or ending in a slash.
    pub prefix: &'a str,
}

impl Kopia {
    /// A user of the release that every test run crosses with.
    pub fn new(password: &str) -> Result<Kopia> {
        Kopia::with_tool("kopia", password)
    }

    /// A user of another release, by its name in the list of tools.
    pub fn with_tool(tool: &str, password: &str) -> Result<Kopia> {
        let home = tempfile::Builder::new().prefix("lifeboat-kopia-").tempdir()?;
        let mut env: Vec<(OsString, OsString)> = vec![
            ("HOME".into(), home.path().into()),
            ("KOPIA_PASSWORD".into(), password.into()),
            ("KOPIA_CONFIG_PATH".into(), home.path().join("repository.config").into()),
            ("KOPIA_CACHE_DIRECTORY".into(), home.path().join("cache").into()),
            ("KOPIA_LOG_DIR".into(), home.path().join("logs").into()),
            ("KOPIA_CHECK_FOR_UPDATES".into(), "false".into()),
            // Without a keyring the password would land in a file beside the configuration.
            ("KOPIA_PERSIST_CREDENTIALS_ON_CONNECT".into(), "false".into()),
        ];
        env.push(("PATH".into(), std::env::var_os("PATH").unwrap_or_default()));
        Ok(Kopia { program: tools::path(tool)?, home, env })
    }

    /// Sets a variable for all commands from here on; the password of the repository is `KOPIA_PASSWORD`.
    pub fn set_env(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.as_ref().into()));
    }

    /// The file that says which repository this user is connected to.
    pub fn config_file(&self) -> PathBuf {
        self.home.path().join("repository.config")
    }

    /// Makes a repository in a folder and connects to it. `extra` are further flags, such as the format.
    pub fn create_filesystem(&self, path: &Path, extra: &[&str]) -> Result<()> {
        self.run(args(&["repository", "create", "filesystem", "--path"], [path], extra)).map(drop)
    }

    /// Connects to the repository in a folder.
    pub fn connect_filesystem(&self, path: &Path, extra: &[&str]) -> Result<()> {
        let verb = ["repository", "connect", "filesystem", "--no-check-for-updates", "--path"];
        self.run(args(&verb, [path], extra)).map(drop)
    }

    /// Makes a repository in a bucket and connects to it.
    pub fn create_s3(&mut self, location: S3Location<'_>, extra: &[&str]) -> Result<()> {
        self.s3("create", location, extra)
    }

    /// Connects to the repository in a bucket.
    pub fn connect_s3(&mut self, location: S3Location<'_>, extra: &[&str]) -> Result<()> {
        self.s3("connect", location, extra)
    }

    fn s3(&mut self, verb: &str, location: S3Location<'_>, extra: &[&str]) -> Result<()> {
        let server = location.server;
        self.set_env("AWS_ACCESS_KEY_ID", server.access_key());
        self.set_env("AWS_SECRET_ACCESS_KEY", server.secret_key());
        let address = server.address();
        let mut flags =
            vec!["--bucket", location.bucket, "--prefix", location.prefix, "--endpoint", &address];
        flags.extend(["--region", server.region()]);
        let ca = server.ca_file().map(|path| path.display().to_string());
        match &ca {
            Some(path) => flags.extend(["--root-ca-pem-path", path]),
            None => flags.push("--disable-tls"),
        }
        flags.extend(extra);
        self.run(args(&["repository", verb, "s3"], [] as [&Path; 0], &flags)).map(drop)
    }

    /// Backs a folder up.
    pub fn snapshot(&self, path: &Path, extra: &[&str]) -> Result<Snapshot> {
        let command = args(&["snapshot", "create", "--json", "--no-progress"], [path], extra);
        self.json(command)
    }

    /// All snapshots of all users and machines, without those that retention folded away.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        self.json(["snapshot", "list", "--all", "--json", "--show-identical", "--incomplete"])
    }

    /// Restores a snapshot, directory or file, by its id, into `target`.
    pub fn restore(&self, id: &str, target: &Path) -> Result<()> {
        self.run(args(&["snapshot", "restore", "--no-progress", id], [target], &[])).map(drop)
    }

    /// Reads every file of every snapshot back.
    pub fn verify_snapshots(&self) -> Result<()> {
        self.run(["snapshot", "verify", "--verify-files-percent=100"]).map(drop)
    }

    /// Reads and decrypts every content.
    pub fn verify_contents(&self) -> Result<()> {
        self.run(["content", "verify", "--full"]).map(drop)
    }

    /// Full maintenance with nothing kept back for other clients, so that whatever is wrongly unreferenced is gone.
    pub fn full_maintenance(&self) -> Result<()> {
        // Maintenance only runs for its owner; take the post first.
        self.run(["maintenance", "set", "--owner", "me"])?;
        self.run(["maintenance", "run", "--full", "--safety=none"]).map(drop)
    }

    /// Sets policies, for instance `["--global", "--compression=zstd"]`.
    pub fn set_policy(&self, flags: &[&str]) -> Result<()> {
        self.run(args(&["policy", "set"], [] as [&Path; 0], flags)).map(drop)
    }

    /// Has every snapshot kept. Otherwise each `snapshot create` deletes those of its source, whoever took them, that are not
    /// among the ten latest and not the last of an hour, day, week, month or year.
    pub fn keep_all_snapshots(&self) -> Result<()> {
        self.set_policy(&["--global", "--keep-latest=1000000"])
    }

    /// Runs a command that must succeed.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Output> {
        process::run_ok(self.command(args), LIMIT)
    }

    /// Runs a command that may fail.
    pub fn try_run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Output> {
        process::run(self.command(args), LIMIT)
    }

    /// Runs a command that must succeed and print JSON.
    pub fn json<T: serde::de::DeserializeOwned, S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Result<T> {
        let output = self.run(args)?;
        ensure!(
            !output.stdout.is_empty(),
            "kopia printed no JSON: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("unexpected JSON of kopia: {}", String::from_utf8_lossy(&output.stdout)))
    }

    /// The command, for callers that run it their own way (under a memory limit, in the background).
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(self.env.iter().map(|(name, value)| (name, value))).args(args);
        command.current_dir(self.home.path());
        command
    }
}

/// A command line of fixed words, paths and further flags.
fn args<P: AsRef<Path>>(words: &[&str], paths: impl IntoIterator<Item = P>, flags: &[&str]) -> Vec<OsString> {
    let words = words.iter().map(OsString::from);
    let paths = paths.into_iter().map(|path| path.as_ref().as_os_str().to_owned());
    words.chain(paths).chain(flags.iter().map(OsString::from)).collect()
}
