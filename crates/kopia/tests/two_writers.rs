//! A real kopia and ours write and maintain one repository at the same time, and our processes are killed at random
//! points: every snapshot that either reported done restores exactly, afterwards and after full maintenance by each.
//!
//! The default run is short. `LIFEBOAT_LONG=1` plays many rounds; `LIFEBOAT_SEED` repeats a run that failed.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;
#[path = "common/tree.rs"]
mod tree;

use jiff::SignedDuration;
use lifeboat_blobs::{BlobStore, StoreConfig};
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::maintain::{self, Mode, Options, Safety};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::verify::{self, VerifyContents};
use lifeboat_primitives::kdf::KeyAlgorithm;
use lifeboat_testkit::kopia::{Kopia, S3Location};
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::Random;
use serde_json::json;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tree::{Files, back_up, read_folder, read_tree};

/// Tells a copy of this test program what to do in a process that can be killed.
const JOB: &str = "LIFEBOAT_SOAK_JOB";
const STORE: &str = "LIFEBOAT_SOAK_STORE";
const SOURCE: &str = "LIFEBOAT_SOAK_SOURCE";
/// What it prints before the id of a snapshot that is safely stored.
const DONE: &str = "snapshot is done: ";
/// Both are the same user on the same host, so that both own maintenance.
const IDENTITY: [&str; 3] =
    ["--override-username=tester", "--override-hostname=testhost", "--max-list-cache-duration=0s"];

/// No process outlives its round, and there is one maintenance in each, so that rounds stand in for hours: whoever
/// began before a maintenance is gone before the next. What is protected by the order of writes alone needs no time.
const SAFETY: Safety = Safety {
    min_content_age_for_gc: SignedDuration::ZERO,
    margin_between_gc_cycles: SignedDuration::ZERO,
    extra_margin_for_drop: SignedDuration::ZERO,
    two_gc_cycles: true,
    min_content_age_for_rewrite: SignedDuration::ZERO,
    rewrite_to_deletion_delay: SignedDuration::from_secs(1),
    min_pack_age: SignedDuration::ZERO,
    session_expiration: SignedDuration::from_hours(24),
    max_clock_skew: SignedDuration::from_mins(5),
    legacy_index_settle_time: SignedDuration::from_secs(1),
};

async fn open_store(config: &str) -> Arc<dyn BlobStore> {
    let config: StoreConfig = serde_json::from_str(config).unwrap();
    config.open(&lifeboat_blobs::OpenOptions::default()).await.unwrap()
}

async fn open(config: &str) -> Repository {
    Repository::open(common::options(open_store(config).await)).await.unwrap()
}

/// Not a test by itself: a process of ours in the tests below, which start this program once more.
#[tokio::test(flavor = "multi_thread")]
async fn process_that_may_be_killed() {
    let Ok(job) = std::env::var(JOB) else { return };
    let repository = open(&std::env::var(STORE).unwrap()).await;
    if job == "backup" {
        let source = PathBuf::from(std::env::var(SOURCE).unwrap());
        let snapshot = back_up(&repository, &source, None).await;
        println!("{DONE}{} {}", snapshot.id, snapshot.root_object().unwrap());
        return;
    }
    match maintain::run(&repository, Mode::Full, &SAFETY, &Options::default()).await {
        // Kopia may be at it at the same time; then ours stops.
        Ok(_) | Err(maintain::Error::Contended) => {}
        Err(error) => panic!("{error}"),
    }
}

/// Where the repository is, and who uses it.
struct Arena {
    kopia: Kopia,
    store: String,
    folder: TempDir,
    random: Random,
    /// What snapshots hold that were reported done and not deleted since, by the id of their root.
    done: BTreeMap<String, (ManifestId, BTreeMap<Vec<u8>, u64>)>,
    killed: usize,
    deleted: usize,
}

fn digest(files: &Files) -> BTreeMap<Vec<u8>, u64> {
    let hash = |data: &Vec<u8>| {
        let mut hasher = DefaultHasher::new();
        data.hash(&mut hasher);
        hasher.finish()
    };
    files.iter().map(|(path, data)| (path.clone(), hash(data))).collect()
}

impl Arena {
    async fn new(kopia: Kopia, store: String) -> Arena {
        let seed =
            std::env::var("LIFEBOAT_SEED").map_or_else(|_| std::process::id().into(), |s| s.parse().unwrap());
        println!("LIFEBOAT_SEED={seed}");
        let config: StoreConfig = serde_json::from_str(&store).unwrap();
        let create = lifeboat_blobs::OpenOptions { create: true, ..Default::default() };
        let options = CreateOptions {
            key_algorithm: KeyAlgorithm::Pbkdf2,
            splitter: "DYNAMIC-128K-BUZHASH".into(),
            ..CreateOptions::default()
        };
        common::create_with(common::options(config.open(&create).await.unwrap()), &options).await;
        let folder = tempfile::tempdir().unwrap();
        let (random, done) = (Random::new(seed), BTreeMap::new());
        Arena { kopia, store, folder, random, done, killed: 0, deleted: 0 }
    }

    fn source(&self, writer: &str) -> PathBuf {
        self.folder.path().join(writer)
    }

    /// Changes a few files of a writer's folder. Both have many files in common.
    fn change(&mut self, writer: &str) {
        let source = self.source(writer);
        for _ in 0..12 {
            let folder = source.join(format!("folder{}", self.random.below(4)));
            std::fs::create_dir_all(&folder).unwrap();
            let (name, seed) = (self.random.below(8), self.random.below(300));
            let len = 1 << (8 + seed % 12);
            std::fs::write(folder.join(format!("file{name}")), common::noise(seed, len)).unwrap();
        }
    }

    fn process(&self, job: &str, source: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process_that_may_be_killed", "--nocapture"]);
        command.env(JOB, job).env(STORE, &self.store).env(SOURCE, source);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// When to kill a process, if at all.
    fn fate(&mut self) -> Option<Duration> {
        (self.random.below(2) == 0).then(|| Duration::from_millis(self.random.below(2500)))
    }

    /// One round: both write, one or both maintain, and some of ours are killed.
    async fn round(&mut self) {
        for writer in ["ours", "theirs"] {
            self.change(writer);
        }
        let backup = (self.process("backup", &self.source("ours")), self.fate());
        let maintenance = (self.process("maintain", Path::new("")), self.fate());
        let theirs = self.random.below(3) == 0;
        let (kopia, source) = (&self.kopia, self.source("theirs"));
        let (ours, _, taken) = std::thread::scope(|scope| {
            let backup = scope.spawn(move || live_or_die(backup.0, backup.1));
            let maintenance = scope.spawn(move || live_or_die(maintenance.0, maintenance.1));
            if theirs {
                scope.spawn(|| kopia.run(["maintenance", "run", "--full"]).unwrap());
            }
            let taken = kopia.snapshot(&source, &[]).unwrap();
            (backup.join().unwrap(), maintenance.join().unwrap(), taken)
        });
        let content = digest(&read_folder(&self.source("theirs")));
        self.done.insert(taken.root.obj, (taken.id.as_str().into(), content));
        match ours.as_deref().map(|done| done.split_once(' ').unwrap()) {
            Some((id, root)) => {
                let content = digest(&read_folder(&self.source("ours")));
                self.done.insert(root.to_owned(), (id.into(), content));
            }
            None => self.killed += 1,
        }
    }

    /// Either deletes a snapshot.
    async fn delete_one(&mut self) {
        let place = self.random.below(self.done.len() as u64) as usize;
        let (root, (id, _)) =
            self.done.iter().nth(place).map(|(root, rest)| (root.clone(), rest.clone())).unwrap();
        // The same tree may be in several snapshots; only this one of them goes.
        if self.random.below(2) == 0 {
            self.kopia.run(["snapshot", "delete", id.as_str(), "--delete"]).unwrap();
        } else {
            let repository = open(&self.store).await;
            repository.manifests().delete(&id).await.unwrap();
            repository.close().await.unwrap();
        }
        self.done.remove(&root);
        self.deleted += 1;
    }

    /// Everything that was reported done is there, bit by bit, for both.
    async fn check(&self, when: &str) {
        let repository = open(&self.store).await;
        for (number, (root, (id, content))) in self.done.iter().enumerate() {
            let found = read_tree(&repository, root).await;
            assert!(digest(&found) == *content, "{when}: snapshot {id} differs");
            // Kopia is slow to start: it restores some, and verifies all below.
            if number % 4 == 0 {
                let target = self.folder.path().join(format!("restored-{number}-{}", when.len()));
                self.kopia.restore(root, &target).unwrap();
                assert!(digest(&read_folder(&target)) == *content, "{when}: snapshot {id} differs for kopia");
            }
        }
        let listed = repository.snapshots().await.unwrap();
        assert!(listed.damaged.is_empty());
        for (id, _) in self.done.values() {
            assert!(listed.snapshots.iter().any(|snapshot| snapshot.id == *id), "{when}: {id} is not listed");
        }
        let full = VerifyContents { full: true, ..VerifyContents::default() };
        let mut damages = Vec::new();
        verify::contents(&repository, &full, &mut |damage| damages.push(damage.to_string())).await.unwrap();
        assert!(damages.is_empty(), "{when}: {damages:#?}");
        self.kopia.verify_contents().unwrap();
        self.kopia.verify_snapshots().unwrap();
    }

    async fn play(&mut self, rounds: u64) {
        self.kopia.keep_all_snapshots().unwrap();
        for round in 0..rounds {
            self.round().await;
            if round % 2 == 1 {
                self.delete_one().await;
            }
        }
        println!(
            "{} snapshots done, {} backups of ours killed, {} deleted",
            self.done.len(),
            self.killed,
            self.deleted
        );
        self.check("afterwards").await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let repository = open(&self.store).await;
        let report =
            maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await.unwrap();
        assert!(report.is_clean(), "{report}");
        repository.close().await.unwrap();
        self.check("after our maintenance").await;
        self.kopia.full_maintenance().unwrap();
        self.check("after kopia's maintenance, too").await;
    }
}

/// Runs a process to its end, or kills it; returns what it reported as done.
fn live_or_die(mut command: Command, fate: Option<Duration>) -> Option<String> {
    let mut child = command.spawn().unwrap();
    if let Some(after) = fate {
        std::thread::sleep(after);
        // It may be through already.
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if fate.is_none() {
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    }
    text.lines().find_map(|line| line.split_once(DONE)).map(|(_, done)| done.to_owned())
}

fn rounds(short: u64) -> u64 {
    if std::env::var_os("LIFEBOAT_LONG").is_some() { 150 } else { short }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_done_is_lost_when_kopia_and_we_use_a_folder_at_the_same_time() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("repository");
    std::fs::create_dir(&path).unwrap();
    let store = json!({ "type": "filesystem", "config": { "path": path } }).to_string();
    let mut arena = Arena::new(Kopia::new("correct horse").unwrap(), store).await;
    arena.kopia.connect_filesystem(&path, &IDENTITY).unwrap();
    arena.play(rounds(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_done_is_lost_when_kopia_and_we_use_a_bucket_at_the_same_time() {
    let server = Minio::start().unwrap();
    server.create_bucket("shared").unwrap();
    let config = json!({
        "bucket": "shared",
        "prefix": "repo/",
        "endpoint": server.address(),
        "doNotUseTLS": true,
        "accessKeyID": server.access_key(),
        "secretAccessKey": server.secret_key(),
    });
    let store = json!({ "type": "s3", "config": config }).to_string();
    let mut arena = Arena::new(Kopia::new("correct horse").unwrap(), store).await;
    let place = S3Location { server: &server, bucket: "shared", prefix: "repo/" };
    arena.kopia.connect_s3(place, &IDENTITY).unwrap();
    arena.play(rounds(3)).await;
}
