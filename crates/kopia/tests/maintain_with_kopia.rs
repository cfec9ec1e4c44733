//! Maintenance crossed with the real kopia: either side maintains what both have written, and the other agrees.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "common/tree.rs"]
mod tree;

use lifeboat_blobs::{FsOptions, FsStore};
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::Password;
use lifeboat_kopia::maintain::{self, Mode, Options, Outcome, Report, Safety};
use lifeboat_kopia::maintenance::{Params, Task};
use lifeboat_kopia::repo::{OpenOptions, Repository};
use lifeboat_kopia::verify::{self, VerifyContents, VerifySnapshots};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::tree::Random;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tree::{Files, back_up, read_folder, read_tree};

const PASSWORD: &str = "correct horse";
/// Kopia is to see at once what we have changed.
const IDENTITY: [&str; 3] =
    ["--override-hostname=h", "--override-username=u", "--max-list-cache-duration=0s"];

struct Place {
    folder: tempfile::TempDir,
    kopia: Kopia,
}

impl Place {
    fn new(version: &str) -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), kopia: Kopia::new(PASSWORD).unwrap() };
        fs::create_dir(place.path("repository")).unwrap();
        let flags = [&IDENTITY[..], &["--format-version", version]].concat();
        place.kopia.create_filesystem(&place.path("repository"), &flags).unwrap();
        place
    }

    /// The same repository once more, with a user of its own.
    fn copy(&self) -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), kopia: Kopia::new(PASSWORD).unwrap() };
        copy_folder(&self.path("repository"), &place.path("repository"));
        place.kopia.connect_filesystem(&place.path("repository"), &IDENTITY).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn open(&self) -> Repository {
        self.open_with(None).await
    }

    async fn open_with(&self, cache_folder: Option<PathBuf>) -> Repository {
        let store = FsStore::open(FsOptions::new(self.path("repository"))).await.unwrap();
        let identity = ClientIdentity { username: "u".into(), hostname: "h".into() };
        let mut options = OpenOptions::new(Arc::new(store), Password::new(PASSWORD), identity);
        (options.budget, options.cache_folder) = (Budget::new(96 << 20), cache_folder);
        Repository::open(options).await.unwrap()
    }

    /// Backs up files of the given seeds from a folder of their own.
    fn snapshot(&self, source: &str, seeds: &[u64]) -> String {
        self.kopia.snapshot(&self.plant(source, seeds), &[]).unwrap().id
    }

    /// A folder with files of the given seeds, and nothing else.
    fn plant(&self, source: &str, seeds: &[u64]) -> PathBuf {
        let folder = self.path(source);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("sub/deep")).unwrap();
        for seed in seeds {
            let place = ["", "sub", "sub/deep"][(*seed % 3) as usize];
            fs::write(folder.join(place).join(format!("f{seed}")), noise(*seed, 150_000)).unwrap();
        }
        folder
    }

    fn delete(&self, snapshot: &str) {
        self.kopia.run(["snapshot", "delete", "--delete", snapshot]).unwrap();
        // The index counts whole seconds: the deletion of a content is at least a second younger than the content,
        // and maintenance forgets only what was deleted before the present second.
        std::thread::sleep(Duration::from_secs(2));
    }

    /// Both sides find every byte of every snapshot.
    async fn assert_sound(&self) {
        self.kopia.verify_contents().unwrap();
        self.kopia.verify_snapshots().unwrap();
        let repository = self.open().await;
        let mut damages = Vec::new();
        let contents = VerifyContents { full: true, ..VerifyContents::default() };
        verify::contents(&repository, &contents, &mut |damage| damages.push(format!("{damage:?}")))
            .await
            .unwrap();
        let snapshots = VerifySnapshots { read_percent: 100, ..VerifySnapshots::default() };
        verify::snapshots(&repository, &snapshots, &mut |damage| damages.push(format!("{damage:?}")))
            .await
            .unwrap();
        assert!(damages.is_empty(), "{damages:#?}");
    }

    /// All contents in the index, and how long each is.
    fn contents(&self) -> BTreeMap<String, u64> {
        let all: Vec<Value> = self.kopia.json(["content", "list", "--json"]).unwrap();
        let content = |value: &Value| {
            (value["contentID"].as_str().unwrap().to_owned(), value["length"].as_u64().unwrap())
        };
        all.iter().map(content).collect()
    }

    fn content_bytes(&self) -> u64 {
        self.contents().values().sum()
    }

    /// Has kopia mark as deleted what is not among `needed`, and forget it, before its maintenance gathers short packs.
    fn forget_all_but(&self, needed: &BTreeMap<String, u64>) {
        let dangerous = "--dangerous-commands=enabled";
        let unneeded = without(self.contents(), needed);
        if !unneeded.is_empty() {
            let delete = ["content", "delete", dangerous].into_iter();
            self.kopia.run(delete.chain(unneeded.keys().map(String::as_str))).unwrap();
        }
        std::thread::sleep(Duration::from_secs(2));
        self.kopia.run(["index", "optimize", "--all", "--drop-deleted-older-than=1s", dangerous]).unwrap();
    }

    /// Bytes in packs.
    fn pack_bytes(&self) -> u64 {
        let all: Vec<Value> = self.kopia.json(["blob", "list", "--json"]).unwrap();
        let is_pack = |blob: &&Value| blob["id"].as_str().is_some_and(|id| id.starts_with(['p', 'q']));
        all.iter().filter(is_pack).map(|blob| blob["length"].as_u64().unwrap()).sum()
    }
}

/// Those contents of `all` that are not among `others`. Manifests are left out: each side gathers them in its own way.
fn without(all: BTreeMap<String, u64>, others: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    all.into_iter().filter(|(id, _)| !others.contains_key(id) && !id.starts_with('m')).collect()
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => {
                fs::copy(entry.path(), &target).unwrap();
                let modified = entry.metadata().unwrap().modified().unwrap();
                fs::File::options().write(true).open(&target).unwrap().set_modified(modified).unwrap();
            }
        }
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Takes maintenance over and runs all of it.
async fn maintain(place: &Place) -> Report {
    maintain_with(place, None).await
}

async fn maintain_with(place: &Place, cache_folder: Option<PathBuf>) -> Report {
    let repository = place.open_with(cache_folder).await;
    let params = Params::load(repository.manifests()).await.unwrap().unwrap();
    if params.owner != "u@h" {
        Params { owner: "u@h".into(), ..params }.save(repository.manifests()).await.unwrap();
        repository.flush().await.unwrap();
    }
    let report = maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await.unwrap();
    assert!(report.is_clean(), "{report}");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn kopia_agrees_with_our_maintenance_and_we_with_its() {
    for version in ["1", "2", "3"] {
        let place = Place::new(version);
        let kept = place.snapshot("one", &[1, 2, 3]);
        let doomed = place.snapshot("two", &[2, 3, 4, 5, 6]);
        place.delete(&doomed);
        let report = maintain(&place).await;
        assert!(report.reclaimed.bytes > 400_000, "version {version}: {report}");
        place.assert_sound().await;

        let doomed = place.snapshot("three", &[3, 7, 8]);
        place.snapshot("four", &[7, 9]);
        place.delete(&doomed);
        place.kopia.full_maintenance().unwrap();
        place.assert_sound().await;

        let doomed = place.snapshot("five", &[10, 11]);
        place.delete(&doomed);
        let report = maintain(&place).await;
        assert!(report.reclaimed.bytes > 250_000, "version {version}: {report}");
        place.assert_sound().await;
        place.kopia.full_maintenance().unwrap();
        place.assert_sound().await;
        let target = place.path("restored");
        place.kopia.restore(&kept, &target).unwrap();
        assert_eq!(fs::read(target.join("sub/f1")).unwrap(), noise(1, 150_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kopia_reads_the_history_that_we_write() {
    let place = Place::new("3");
    place.snapshot("one", &[1, 2]);
    maintain(&place).await;
    let info: Value = place.kopia.json(["maintenance", "info", "--json"]).unwrap();
    assert_eq!(info["owner"], "u@h");
    let runs = &info["schedule"]["runs"];
    for task in [Task::SnapshotGc, Task::FullDeleteBlobs, Task::AdvanceEpoch, Task::CleanupLogs] {
        assert_eq!(runs[task.name()][0]["success"], true, "{}: {info}", task.name());
        assert!(runs[task.name()][0]["extra"][0]["kind"].is_string(), "{}: {info}", task.name());
    }
    // Its own text needs to understand the statistics, too.
    place.kopia.run(["maintenance", "info"]).unwrap();
    place.kopia.run(["maintenance", "run", "--full"]).unwrap();
    let repository = place.open().await;
    let report = maintain::run(&repository, Mode::Auto, &Safety::FULL, &Options::default()).await.unwrap();
    assert!(report.ran.is_none(), "kopia has just done it: {report}");
    let report = maintain::run(&repository, Mode::Full, &Safety::FULL, &Options::default()).await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.task(Task::SnapshotGc).unwrap().outcome, Outcome::Done);
    place.assert_sound().await;
}

/// Maintains one copy of a repository ourselves and lets kopia maintain others: of the same history, within 5 % (or `least` bytes) as
/// much is needed and left by either.
///
/// That holds where nothing is deleted when kopia gathers short packs: it moves deleted contents along to the new packs, where nothing
/// names them once the deletions are dropped (see `what_kopia_leaves_more_are_deleted_contents_that_it_moved_along`). So one
/// copy has them dropped before. What its maintenance leaves otherwise may be more than ours, and never less.
async fn compare_space(ours: &Place, least: u64) {
    std::thread::sleep(Duration::from_secs(2));
    let (theirs, dropped) = (ours.copy(), ours.copy());
    maintain(ours).await;
    let needed = ours.contents();
    theirs.kopia.full_maintenance().unwrap();
    dropped.forget_all_but(&needed);
    dropped.kopia.full_maintenance().unwrap();
    let left = ours.pack_bytes();
    let needed = needed.values().sum::<u64>();
    for (place, what) in [(&theirs, "its maintenance alone"), (&dropped, "deletions dropped before")] {
        let (needed_by_kopia, left_by_kopia) = (place.content_bytes(), place.pack_bytes());
        println!(
            "{what}: needed {needed}, {needed_by_kopia} by kopia; left {left}, {left_by_kopia} by kopia"
        );
        let slack = (needed_by_kopia / 20).max(least);
        assert!(needed.abs_diff(needed_by_kopia) <= slack, "{what}: {needed}, kopia needs {needed_by_kopia}");
        assert!(left <= left_by_kopia + slack, "{what}: {left}, kopia leaves {left_by_kopia}");
    }
    let (left_by_kopia, slack) = (dropped.pack_bytes(), (dropped.content_bytes() / 20).max(least));
    assert!(left + slack >= left_by_kopia, "{left} bytes are left, kopia leaves {left_by_kopia}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kopia_leaves_more_are_deleted_contents_that_it_moved_along() {
    for version in ["1", "3"] {
        let ours = Place::new(version);
        let doomed = [ours.snapshot("one", &[1, 2, 3]), ours.snapshot("two", &[4, 5, 6])];
        ours.snapshot("three", &[2, 5]);
        doomed.iter().for_each(|snapshot| ours.delete(snapshot));
        let (before, theirs) = (ours.contents(), ours.copy());
        maintain(&ours).await;
        theirs.kopia.full_maintenance().unwrap();
        let needed = ours.contents();
        let moved = without(before, &needed);
        let bytes: u64 = moved.values().sum();
        assert!(bytes > 4 * 150_000, "version {version}: {moved:?}");
        assert_eq!(without(theirs.contents(), &needed), BTreeMap::new(), "kopia needs no more than we do");
        let (left, left_by_kopia) = (ours.pack_bytes(), theirs.pack_bytes());
        let excess = left_by_kopia - left;
        assert!(
            excess.abs_diff(bytes) < bytes / 20,
            "version {version}: {excess} bytes more, {bytes} are deleted"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_much_space_is_freed_as_kopia_frees() {
    for version in ["1", "3"] {
        let ours = Place::new(version);
        let mut doomed = Vec::new();
        for number in 0..6u64 {
            let seeds: Vec<u64> = (number * 4..number * 4 + 6).collect();
            doomed.push(ours.snapshot(&format!("source{number}"), &seeds));
        }
        for snapshot in doomed.iter().step_by(2) {
            ours.delete(snapshot);
        }
        compare_space(&ours, 0).await;
        let (left, needed) = (ours.pack_bytes(), ours.content_bytes());
        assert!(
            left <= needed + needed / 20,
            "version {version}: {left} bytes are left, {needed} are needed"
        );
        ours.assert_sound().await;
    }
}

/// Maintains until nothing is left to do and the next run finds it so; returns how many runs looked at everything.
async fn settle(place: &Place) -> usize {
    for number in 0..5 {
        std::thread::sleep(Duration::from_secs(2));
        let report = maintain_with(place, Some(place.path("cache"))).await;
        if report.task(Task::SnapshotGc).unwrap().summary.contains("as the last run left them") {
            return number;
        }
    }
    panic!("there is always something left to do");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_kopia_changes_leads_to_a_full_look() {
    for version in ["1", "3"] {
        let place = Place::new(version);
        let doomed = place.snapshot("one", &[1, 2, 3]);
        place.snapshot("two", &[2, 4]);
        settle(&place).await;
        assert_eq!(settle(&place).await, 0, "nothing has changed");
        place.snapshot("three", &[5]);
        assert!(settle(&place).await > 0, "version {version}: a snapshot is new");
        place.delete(&doomed);
        assert!(settle(&place).await > 0, "version {version}: a snapshot is gone");
        place.kopia.full_maintenance().unwrap();
        let before = settle(&place).await;
        assert!(version == "3" || before > 0, "version {version}: kopia has written the index anew");
        let contents: Vec<Value> = place.kopia.json(["content", "list", "--non-prefixed", "--json"]).unwrap();
        let needed = contents[0]["contentID"].as_str().unwrap();
        place.kopia.run(["content", "delete", needed, "--dangerous-commands=enabled"]).unwrap();
        assert!(settle(&place).await > 0, "version {version}: a content that is needed was deleted");
        place.assert_sound().await;
    }
}

/// A repository that is used at random, by kopia and by us.
struct Rounds {
    place: Place,
    random: Random,
    /// What snapshots hold that were not deleted: their ids, root objects and files.
    alive: Vec<(String, String, Files)>,
    /// How many snapshots were taken and deleted, and how often maintenance ran.
    played: u64,
    maintained: u64,
}

impl Rounds {
    fn new(version: &str, seed: u64) -> Rounds {
        let place = Place::new(version);
        place.kopia.run(["cache", "set", "--max-list-cache-duration=0s"]).unwrap();
        place.kopia.keep_all_snapshots().unwrap();
        println!("version {version}, seed {seed}");
        Rounds { place, random: Random::new(seed), alive: Vec::new(), played: 0, maintained: 0 }
    }

    /// Plays so many rounds, and until maintenance is the last of them. Each is a snapshot that is taken or deleted, or a
    /// maintenance; either side does several in a row. After every so many maintenances, both sides look at every byte.
    async fn play(&mut self, rounds: u64, verify_every: u64) {
        let mut maintained = false;
        while self.played < rounds || !maintained {
            maintained = false;
            match self.random.below(10) {
                0..=4 => self.snapshots().await,
                5..=7 if !self.alive.is_empty() => self.delete().await,
                _ => {
                    self.maintain().await;
                    maintained = true;
                    if self.maintained.is_multiple_of(verify_every) {
                        self.verify().await;
                    }
                }
            }
        }
    }

    async fn snapshots(&mut self) {
        let mut folders = Vec::new();
        for source in 0..1 + self.random.below(3) {
            let seeds: Vec<u64> = (0..1 + self.random.below(5)).map(|_| self.random.below(40)).collect();
            folders.push(self.place.plant(&format!("source{source}"), &seeds));
        }
        let ours = self.random.below(2) == 0;
        let mut taken = Vec::new();
        if ours {
            let repository = self.place.open().await;
            for folder in &folders {
                let snapshot = back_up(&repository, folder, None).await;
                taken.push((snapshot.id.to_string(), snapshot.root_object().unwrap().to_owned()));
            }
        } else {
            let paths = folders.iter().map(|folder| folder.to_str().unwrap());
            let words: Vec<&str> = ["snapshot", "create", "--json"].into_iter().chain(paths).collect();
            let output = self.place.kopia.run(words).unwrap().stdout;
            for snapshot in serde_json::Deserializer::from_slice(&output).into_iter::<Value>() {
                let snapshot = snapshot.unwrap();
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                taken.push((text(&snapshot["id"]), text(&snapshot["rootEntry"]["obj"])));
            }
        }
        assert_eq!(taken.len(), folders.len());
        self.played += taken.len() as u64;
        for ((id, root), folder) in taken.into_iter().zip(folders) {
            println!("snapshot {id} of {}, ours: {ours}", folder.display());
            self.alive.push((id, root, read_folder(&folder)));
        }
    }

    async fn delete(&mut self) {
        let ours = self.random.below(2) == 0;
        let mut doomed = Vec::new();
        for _ in 0..1 + self.random.below(3).min(self.alive.len() as u64 - 1) {
            let place = self.random.below(self.alive.len() as u64) as usize;
            doomed.push(self.alive.swap_remove(place).0);
        }
        self.played += doomed.len() as u64;
        println!("delete {doomed:?}, ours: {ours}");
        if ours {
            let repository = self.place.open().await;
            for id in &doomed {
                repository.manifests().delete(&id.as_str().into()).await.unwrap();
            }
            repository.close().await.unwrap();
        } else {
            let words = ["snapshot", "delete", "--delete"].into_iter();
            self.place.kopia.run(words.chain(doomed.iter().map(String::as_str))).unwrap();
        }
    }

    async fn maintain(&mut self) {
        // The index counts whole seconds, and only what was deleted before the present one is forgotten.
        std::thread::sleep(Duration::from_secs(2));
        let ours = self.random.below(2) == 0;
        println!("maintenance, ours: {ours}");
        match ours {
            true => drop(maintain(&self.place).await),
            false => self.place.kopia.full_maintenance().unwrap(),
        }
        self.played += 1;
        self.maintained += 1;
    }

    async fn verify(&self) {
        let repository = self.place.open().await;
        let listed = repository.snapshots().await.unwrap();
        assert!(listed.damaged.is_empty(), "{:?}", listed.damaged);
        let listed: BTreeSet<&str> = listed.snapshots.iter().map(|snapshot| snapshot.id.as_str()).collect();
        let alive: BTreeSet<&str> = self.alive.iter().map(|(id, ..)| id.as_str()).collect();
        assert_eq!(listed, alive, "a snapshot went that nobody deleted, or one came back");
        for (id, root, files) in &self.alive {
            assert!(read_tree(&repository, root).await == *files, "{id} differs");
        }
        drop(repository);
        self.place.assert_sound().await;
    }

    /// Each side ends the same history once; as much is left by either.
    async fn compare_space(&self) {
        // The size of a few packs with metadata if hardly anything is left.
        compare_space(&self.place, 64_000).await;
        self.verify().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_agree_after_random_rounds_of_either() {
    for (version, seed) in [("1", 1), ("3", 2)] {
        let mut rounds = Rounds::new(version, seed);
        rounds.play(12, 1).await;
        rounds.compare_space().await;
    }
}

/// How many rounds, and how many of them with one repository.
const ROUNDS: u64 = 2000;
const ROUNDS_OF_ONE: u64 = 100;

/// `LIFEBOAT_ROUNDS` says how many rounds. `LIFEBOAT_SEED` repeats what failed, or goes on with other repositories.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes an hour; `cargo xtask test --long` runs it"]
async fn both_agree_after_thousands_of_random_rounds() {
    let number = |name: &str| std::env::var(name).map(|text| text.parse::<u64>().unwrap());
    let mut seed = number("LIFEBOAT_SEED").unwrap_or(100);
    let (wanted, mut played, mut maintained) = (number("LIFEBOAT_ROUNDS").unwrap_or(ROUNDS), 0, 0);
    while played < wanted {
        let mut rounds = Rounds::new(["1", "2", "3"][seed as usize % 3], seed);
        rounds.play(ROUNDS_OF_ONE.min(wanted - played), 5).await;
        rounds.compare_space().await;
        played += rounds.played;
        maintained += rounds.maintained;
        println!("seed {seed}: {played} rounds so far, {maintained} of them maintenance");
        seed += 1;
    }
}
