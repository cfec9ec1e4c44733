//! One repository that both programs use.

use super::Ours;
use anyhow::Result;
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::Random;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const PASSWORD: &str = "correct horse battery staple";
pub const IDENTITY: [&str; 2] = ["--override-username=u", "--override-hostname=h"];

/// A repository, and a user of each program.
pub struct Twins {
    pub folder: TempDir,
    pub ours: Ours,
    pub kopia: Kopia,
}

impl Twins {
    pub fn new() -> Result<Twins> {
        let twins =
            Twins { folder: tempfile::tempdir()?, ours: Ours::new(PASSWORD)?, kopia: Kopia::new(PASSWORD)? };
        fs::create_dir_all(twins.path("source/below"))?;
        twins.ours.create_filesystem(&twins.path("repository"), &IDENTITY)?;
        twins.kopia.connect_filesystem(&twins.path("repository"), &IDENTITY)?;
        Ok(twins)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What ours and kopia print for the same words.
    pub fn both(&self, words: &[&str]) -> Result<[String; 2]> {
        let outputs = [self.ours.run(words)?, self.kopia.run(words)?];
        Ok(outputs.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    pub fn refused(&self, words: &[&str]) -> Result<String> {
        let output = self.ours.try_run(words)?;
        assert!(!output.status.success(), "{words:?} succeeded");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The snapshots that kopia lists, incomplete ones too.
    pub fn listed(&self) -> Result<Vec<Value>> {
        let words = ["snapshot", "list", "--incomplete", "--show-identical", "--json"];
        self.kopia.json(words)
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A file that no two seeds share.
pub fn write_noise(path: &Path, seed: u64, length: usize) {
    let mut noise = vec![0; length];
    Random::new(seed).fill(&mut noise);
    fs::write(path, noise).unwrap();
}
