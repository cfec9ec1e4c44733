//! A user of the real `restic`.

use crate::process;
use crate::servers::Minio;
use crate::tools;
use anyhow::{Context, Result};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

/// Longer than any single command on a test repository may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// One repository and the password that opens it. Nothing is cached between commands.
#[derive(Debug)]
pub struct Restic {
    program: PathBuf,
    home: TempDir,
    env: Vec<(OsString, OsString)>,
}

impl Restic {
    /// A user of the repository that restic knows by this name, which is a folder or such as `s3:http://host/bucket`.
    pub fn new(repository: impl AsRef<OsStr>, password: &str) -> Result<Restic> {
        let home = tempfile::Builder::new().prefix("lifeboat-restic-").tempdir()?;
        let env = vec![
            ("HOME".into(), home.path().into()),
            ("RESTIC_REPOSITORY".into(), repository.as_ref().into()),
            ("RESTIC_PASSWORD".into(), password.into()),
        ];
        Ok(Restic { program: tools::path("restic")?, home, env })
    }

    /// A user of the repository below `prefix` of a bucket, which must exist.
    pub fn in_bucket(server: &Minio, bucket: &str, prefix: &str, password: &str) -> Result<Restic> {
        let name = format!("s3:{}/{bucket}/{prefix}", server.endpoint());
        let mut restic = Restic::with_keys(name, password, server.access_key(), server.secret_key())?;
        if let Some(authority) = server.ca_pem() {
            let path = restic.home.path().join("authority.pem");
            std::fs::write(&path, authority)?;
            restic.env.push(("RESTIC_CACERT".into(), path.into()));
        }
        Ok(restic)
    }

    /// A user of a repository in S3, with the keys that open the store.
    pub fn with_keys(
        repository: impl AsRef<OsStr>,
        password: &str,
        key: &str,
        secret: &str,
    ) -> Result<Restic> {
        let mut restic = Restic::new(repository, password)?;
        let keys = [("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)];
        restic.env.extend(keys.map(|(name, value)| (name.into(), value.into())));
        Ok(restic)
    }

    /// The variables that say where the repository is and how it is opened.
    pub fn env(&self) -> &[(OsString, OsString)] {
        &self.env
    }

    /// Makes the repository; `flags` may say of which version.
    pub fn init(&self, flags: &[&str]) -> Result<()> {
        self.run(["init"].iter().chain(flags)).map(drop)
    }

    /// Backs a directory up; the id of the snapshot.
    pub fn backup(&self, path: &Path, flags: &[&str]) -> Result<String> {
        self.back_up(self.home.path(), path, flags)
    }

    /// Backs up what is in a directory, as Velero did, so that the directory is the root of the snapshot; the id of that.
    pub fn backup_contents(&self, path: &Path, flags: &[&str]) -> Result<String> {
        self.back_up(path, Path::new("."), flags)
    }

    fn back_up(&self, from: &Path, path: &Path, flags: &[&str]) -> Result<String> {
        let words = ["backup", "--json", "--quiet"].map(OsStr::new).into_iter();
        let output =
            self.run_in(from, words.chain([path.as_os_str()]).chain(flags.iter().map(OsStr::new)))?;
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(serde_json::from_slice::<Value>).collect::<Result<Vec<_>, _>>()?;
        let id = lines.iter().find_map(|line| line["snapshot_id"].as_str());
        id.map(str::to_owned).context("restic named no snapshot")
    }

    /// Restores what a snapshot has below a path.
    pub fn restore(&self, snapshot: &str, below: &Path, target: &Path) -> Result<()> {
        let what = format!("{snapshot}:{}", below.display());
        let words = ["restore", &what, "--sparse", "--target"].map(OsStr::new).into_iter();
        self.run(words.chain([target.as_os_str()])).map(drop)
    }

    /// Runs a command that must succeed and print JSON.
    pub fn json<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Value> {
        Ok(serde_json::from_slice(&self.run(args)?.stdout)?)
    }

    /// Runs a command that must succeed.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Output> {
        self.run_in(self.home.path(), args)
    }

    fn run_in<S: AsRef<OsStr>>(&self, folder: &Path, args: impl IntoIterator<Item = S>) -> Result<Output> {
        let mut command = Command::new(&self.program);
        let env = self.env.iter().map(|(name, value)| (name, value));
        command.env_clear().envs(env).current_dir(folder).arg("--no-cache").args(args);
        process::run_ok(command, LIMIT)
    }
}
