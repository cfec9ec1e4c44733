//! A repository in a folder that we and a real kopia use.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use super::common::{create_with, options};
use super::tree::read_folder;
use lifeboat_blobs::{FsOptions, FsStore};
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::verify::{self, VerifyContents, VerifySnapshots};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::TreeSpec;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// A repository in a folder, something to back up, and a kopia that uses the repository too.
pub struct Place {
    pub folder: TempDir,
    pub kopia: Kopia,
}

/// Kopia would otherwise rely on listings that are half a minute old, and not see what we just wrote.
pub const FLAGS: [&str; 3] =
    ["--override-username=tester", "--override-hostname=testhost", "--max-list-cache-duration=0s"];

impl Place {
    pub fn new(spec: &TreeSpec) -> Place {
        let place =
            Place { folder: tempfile::tempdir().unwrap(), kopia: Kopia::new("correct horse").unwrap() };
        spec.grow(&place.source()).unwrap();
        place
    }

    pub fn repository(&self) -> PathBuf {
        self.folder.path().join("repository")
    }

    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    pub fn target(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub async fn create(&self, create: &CreateOptions) -> Repository {
        let store = FsStore::create(FsOptions::new(self.repository())).await.unwrap();
        let repository = create_with(options(Arc::new(store)), create).await;
        self.connect();
        repository
    }

    pub fn connect(&self) {
        self.kopia.connect_filesystem(&self.repository(), &FLAGS).unwrap();
    }

    pub async fn store(&self) -> FsStore {
        FsStore::open(FsOptions::new(self.repository())).await.unwrap()
    }

    pub async fn open(&self) -> Repository {
        Repository::open(options(Arc::new(self.store().await))).await.unwrap()
    }

    /// Has kopia create the repository.
    pub fn create_by_kopia(&self, flags: &[&str]) {
        std::fs::create_dir(self.repository()).unwrap();
        self.kopia.create_filesystem(&self.repository(), &[&FLAGS[..], flags].concat()).unwrap();
    }

    /// All of kopia's checks, and a restore of the object `root`. (By the id of a snapshot, kopia restores only
    /// from repositories with 128-bit hashes.)
    pub fn kopia_agrees(&self, root: &str, restored: &str) {
        self.kopia.verify_contents().unwrap();
        self.kopia.verify_snapshots().unwrap();
        self.kopia.restore(root, &self.target(restored)).unwrap();
        assert!(read_folder(&self.source()) == read_folder(&self.target(restored)), "{restored} differs");
    }
}

pub async fn verify_all(repository: &Repository) {
    let options = VerifyContents { full: true, include_deleted: true, ..VerifyContents::default() };
    let mut damages = Vec::new();
    let report = verify::contents(repository, &options, &mut |damage| damages.push(damage)).await.unwrap();
    assert!(damages.is_empty() && report.contents > 0 && report.bytes_read > 0, "{report:?} {damages:?}");
    let options = VerifySnapshots { read_percent: 100, ..VerifySnapshots::default() };
    let mut damages = Vec::new();
    let report = verify::snapshots(repository, &options, &mut |damage| damages.push(damage)).await.unwrap();
    assert!(damages.is_empty() && report.files > 0 && report.bytes_read > 0, "{report:?} {damages:?}");
}

/// The files of the blobs whose names start with `prefix`.
pub fn blobs(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(next) = waiting.pop() {
        for child in std::fs::read_dir(next).unwrap() {
            let path = child.unwrap().path();
            let relative = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('/', "");
            if path.is_dir() {
                waiting.push(path);
            } else if relative.starts_with(prefix) {
                found.push(path);
            }
        }
    }
    found
}
