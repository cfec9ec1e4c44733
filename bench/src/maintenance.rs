//! Full maintenance of a repository with many contents, of whose snapshots every second one was deleted: memory and
//! time, once and again, beside kopia.

use crate::table::{Table, ratio};
use anyhow::{Context, Result, ensure};
use lifeboat_blobs::{FsOptions, FsStore};
use lifeboat_budget::Budget;
use lifeboat_index::Prefix;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::object::{ObjectId, WriterOptions};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_kopia::snapshot::{
    self, DirEntry, DirWriter, EntryType, SnapshotManifest, SourceInfo, SummaryBuilder,
};
use lifeboat_testkit::cgroup::{Limited, run_limited_at_most};
use lifeboat_testkit::kopia::Kopia;
use lifeboat_testkit::process;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const PASSWORD: &str = "spring cleaning";
const IDENTITY: [&str; 2] = ["--override-username=bench", "--override-hostname=bench"];
/// Plain bytes of a content: what matters here is how many there are.
const CONTENT_LEN: usize = 64;
const FILES_PER_FOLDER: u64 = 100;
/// Of the files of a snapshot, one in so many is in the ones around it, too.
const SHARED: u64 = 10;
const NO_LIMIT: u64 = 20 << 30;
const TIME_LIMIT: Duration = Duration::from_secs(2 * 3600);
/// Of what is left, kopia opens at most so many files and reads at most so many contents to verify them, twice: it reads about a
/// thousand in a second, however large the repository is.
const VERIFIED: u64 = 100_000;

/// How large the repository is.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// All contents of files.
    pub contents: u64,
    /// All files; each is in one snapshot, or in a few.
    pub files: u64,
    /// All snapshots, of which half are deleted before maintenance.
    pub snapshots: u64,
}

/// Makes the repository twice over, maintains one of them and lets kopia maintain the other, and prints one table.
///
/// kopia gets `kopia_limit` for each of its two runs, and is stopped when that is over.
pub fn run(size: Size, limit_mib: u64, kopia_limit: Duration, folder: Option<PathBuf>) -> Result<()> {
    let folder = tempfile::tempdir_in(folder.unwrap_or_else(std::env::temp_dir))?;
    let path = |name: &str| folder.path().join(name);
    let mut make = Command::new(std::env::current_exe()?);
    make.arg("make-snapshots").arg(path("ours"));
    make.args([size.contents, size.files, size.snapshots].map(|number| number.to_string()));
    ensure!(make.status()?.success(), "the repository could not be made");
    let mut copy = Command::new("cp");
    copy.arg("-a").args([path("ours"), path("kopia")]);
    process::run_ok(copy, TIME_LIMIT)?;
    let before = bytes_below(&path("ours"))?;

    let mut table = Table::new(&[
        "full maintenance",
        "limit MiB",
        "seconds",
        "processor s",
        "own MiB",
        "with page cache MiB",
        "repository MiB",
        "outcome",
    ]);
    let ours = Ours::connect(&path("ours"), &path("home"))?;
    let kopia = Kopia::new(PASSWORD)?;
    let kopia_path = path("kopia");
    kopia.connect_filesystem(&kopia_path, &IDENTITY)?;
    let run = ["maintenance", "run", "--full", "--safety=none"];
    let mut costs = Vec::new();
    for what in ["ours, first", "ours, again"] {
        let cost = measure(ours.command(run), limit_mib << 20, TIME_LIMIT)?;
        ensure!(cost.limited.ended, "maintenance did not end within {TIME_LIMIT:?}");
        table.row(shown(cost.row(what, Some(limit_mib), &path("ours"))?));
        costs.push(cost);
    }
    let mut theirs = Vec::new();
    for what in ["kopia, first", "kopia, again"] {
        let cost = measure(kopia.command(run), NO_LIMIT, kopia_limit)?;
        table.row(shown(cost.row(what, None, &kopia_path)?));
        let ended = cost.limited.ended;
        theirs.push(cost);
        if !ended {
            break;
        }
    }
    println!("{size:?}; the repository has {} MiB before maintenance", before >> 20);
    table.print();
    for ((cost, ours), what) in theirs.iter().zip(&costs).zip(["first", "again"]) {
        let at_least = if cost.limited.ended { "" } else { "more than " };
        let (wall, processor) =
            (ratio(cost.seconds, ours.seconds), ratio(cost.processor_seconds(), ours.processor_seconds()));
        println!("{what}: kopia's time is {at_least}{wall} ours, its processor time {at_least}{processor}");
    }
    let [first, again] = &costs[..] else { anyhow::bail!("there are two runs") };
    let percent = |again: f64, first: f64| format!("{:.1} %", again / first * 100.0);
    println!(
        "again took {} of the first run, and {} of its processor time",
        percent(again.seconds, first.seconds),
        percent(again.processor_seconds(), first.processor_seconds())
    );
    verify(&path("ours"), size)
}

/// Shows that what our maintenance left is whole, in the eyes of kopia: that every content has its pack and a share of them can be
/// read, and so the trees and a share of the files of some snapshots.
fn verify(repository: &Path, size: Size) -> Result<()> {
    let kopia = Kopia::new(PASSWORD)?;
    kopia.connect_filesystem(repository, &IDENTITY)?;
    let started = Instant::now();
    let percent = share(VERIFIED, size.contents);
    let contents = ["content", "verify", &format!("--download-percent={percent}")];
    process::run_ok(kopia.command(contents), TIME_LIMIT).context("kopia's check of the contents")?;
    println!("kopia found the packs of all contents and read {percent:.1} % of them");

    let left: Vec<String> = kopia.snapshots()?.into_iter().map(|snapshot| snapshot.id).collect();
    ensure!(left.len() as u64 == size.snapshots / 2, "{} snapshots are left", left.len());
    let files = (size.files / size.snapshots).max(1);
    let count = usize::try_from(VERIFIED / files)?.clamp(1, left.len());
    let chosen = (0..count).map(|number| left[number * left.len() / count].as_str());
    let percent = share(VERIFIED, count as u64 * size.contents / size.snapshots);
    let words = ["snapshot", "verify", &format!("--verify-files-percent={percent}")];
    process::run_ok(kopia.command(words.into_iter().chain(chosen)), TIME_LIMIT)
        .context("kopia's check of the snapshots")?;
    println!(
        "kopia verified {count} of the {} snapshots that are left and read {percent:.1} % of their files",
        left.len()
    );
    println!("that took it {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// How many per cent `part` is of `whole`, at most all.
fn share(part: u64, whole: u64) -> f64 {
    (100.0 * part as f64 / whole.max(1) as f64).min(100.0)
}

/// Says a row at once: a run takes long, and the next may fail.
fn shown(row: [String; 8]) -> [String; 8] {
    eprintln!("{}", row.join(" | "));
    row
}

/// What a run took.
struct Cost {
    seconds: f64,
    limited: Limited,
}

fn measure(command: Command, limit: u64, time_limit: Duration) -> Result<Cost> {
    // Only what was deleted before the present second is forgotten.
    std::thread::sleep(Duration::from_secs(2));
    let started = Instant::now();
    let limited = run_limited_at_most(command, limit, time_limit)?;
    let seconds = started.elapsed().as_secs_f64();
    let output = &limited.output;
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    let well = !limited.ended || output.status.success();
    ensure!(well && limited.oom_kills == 0, "maintenance failed: {}", said.join("\n"));
    Ok(Cost { seconds, limited })
}

impl Cost {
    fn row(&self, what: &str, limit: Option<u64>, repository: &Path) -> Result<[String; 8]> {
        Ok([
            what.to_owned(),
            limit.map_or("none".to_owned(), |mib| mib.to_string()),
            format!("{:.1}", self.seconds),
            format!("{:.1}", self.processor_seconds()),
            (self.limited.peak_own_bytes >> 20).to_string(),
            (self.limited.peak_bytes >> 20).to_string(),
            (bytes_below(repository)? >> 20).to_string(),
            match self.limited.ended {
                true => "done".to_owned(),
                false => format!(
                    "not done after {:.0} s wall and {:.0} s of processor time",
                    self.seconds,
                    self.processor_seconds()
                ),
            },
        ])
    }

    fn processor_seconds(&self) -> f64 {
        self.limited.processor_time.as_secs_f64()
    }
}

/// `lifeboat-repo`, built beside this program.
struct Ours {
    program: PathBuf,
    home: PathBuf,
}

impl Ours {
    fn connect(repository: &Path, home: &Path) -> Result<Ours> {
        let program = std::env::current_exe()?.with_file_name("lifeboat-repo");
        ensure!(program.exists(), "{} is missing: run `cargo xtask bench`", program.display());
        std::fs::create_dir(home)?;
        let ours = Ours { program, home: home.to_owned() };
        let mut connect = ours.command(["repository", "connect", "filesystem", "--path"]);
        connect.arg(repository).args(IDENTITY).arg("--cache-directory").arg(home.join("cache"));
        process::run_ok(connect, TIME_LIMIT)?;
        Ok(ours)
    }

    fn command<const N: usize>(&self, words: [&str; N]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("LIFEBOAT_PASSWORD", PASSWORD)
            .env("LIFEBOAT_CONFIG_PATH", self.home.join("config"))
            .args(words);
        command
    }
}

fn bytes_below(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => bytes_below(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}

/// Makes the repository.
pub fn make(path: &Path, size: Size) -> Result<()> {
    let runtime = Runtime::new()?;
    runtime.block_on(async {
        let store = Arc::new(FsStore::create(FsOptions::new(path)).await?);
        let identity = ClientIdentity { username: "bench".to_owned(), hostname: "bench".to_owned() };
        let mut options = OpenOptions::new(store, Password::new(PASSWORD), identity);
        options.budget = Budget::new(512 << 20);
        let repository = Repository::create(options, &CreateOptions::default(), InitialState::Kopia).await?;
        let mut ids = Vec::new();
        for number in 0..size.snapshots {
            let (writer, taken) = (repository.clone(), number);
            let root = tokio::task::spawn_blocking(move || snapshot_tree(&writer, size, taken)).await??;
            let time = repository.environment().clock.now();
            let mut manifest = SnapshotManifest {
                source: SourceInfo::new("bench", "bench", "/data"),
                start_time: time,
                end_time: time,
                root_entry: Some(root),
                ..SnapshotManifest::default()
            };
            ids.push(snapshot::save(repository.manifests(), &mut manifest).await?);
            repository.flush().await?;
        }
        for id in ids.iter().step_by(2) {
            repository.manifests().delete(id).await?;
        }
        Ok(repository.close().await?)
    })
}

/// Writes the tree of a snapshot: folders of its own, and some that it shares with those around it.
fn snapshot_tree(repository: &Repository, size: Size, number: u64) -> Result<DirEntry> {
    let files = size.files / size.snapshots;
    let contents_per_file = (size.contents / size.files.max(1)).max(1);
    let mut folders = Vec::new();
    for place in 0..files.div_ceil(FILES_PER_FOLDER) {
        let is_shared = place % SHARED == 0;
        let generation = if is_shared { number / SHARED * SHARED } else { number };
        let count = FILES_PER_FOLDER.min(files - place * FILES_PER_FOLDER);
        let first = generation * files + place * FILES_PER_FOLDER;
        let entries = write_files(repository, first..first + count, contents_per_file)?;
        folders.push(write_folder(repository, entries, format!("folder{place:06}"))?);
    }
    write_folder(repository, folders, "data".to_owned())
}

/// Writes files of several contents each.
fn write_files(
    repository: &Repository,
    numbers: std::ops::Range<u64>,
    contents: u64,
) -> Result<Vec<DirEntry>> {
    let objects = repository.objects();
    let data: Vec<[u8; CONTENT_LEN]> = numbers
        .clone()
        .flat_map(|file| (0..contents).map(move |part| noise(file * contents + part)))
        .collect();
    let slices: Vec<&[u8]> = data.iter().map(<[u8; CONTENT_LEN]>::as_slice).collect();
    let parts = objects.write_many(&slices, &WriterOptions::default())?;
    let indexes: Vec<Vec<u8>> = parts.chunks(contents as usize).map(object_index).collect::<Result<_>>()?;
    let slices: Vec<&[u8]> = indexes.iter().map(Vec::as_slice).collect();
    let options = WriterOptions { prefix: Prefix::INDIRECT, ..WriterOptions::default() };
    let objects = objects.write_many(&slices, &options)?;
    let entry = |(number, object): (u64, ObjectId)| {
        Ok(DirEntry {
            name: format!("file{number:012}").into_bytes().into(),
            entry_type: EntryType::File,
            size: contents * CONTENT_LEN as u64,
            object: ObjectId::indirect(object).context("objects do not nest so deep")?.to_string(),
            ..DirEntry::default()
        })
    };
    numbers.zip(objects).map(entry).collect()
}

fn object_index(parts: &[ObjectId]) -> Result<Vec<u8>> {
    let entry = |(place, part): (usize, &ObjectId)| json!({ "s": place * CONTENT_LEN, "l": CONTENT_LEN, "o": part.to_string() });
    let entries: Vec<_> = parts.iter().enumerate().map(entry).collect();
    Ok(serde_json::to_vec(&json!({ "stream": "kopia:indirect", "entries": entries }))?)
}

fn write_folder(repository: &Repository, mut entries: Vec<DirEntry>, name: String) -> Result<DirEntry> {
    entries.sort_by(DirEntry::listing_order);
    let (mut writer, mut summary) = (DirWriter::new(), SummaryBuilder::default());
    for entry in &entries {
        writer.push(entry)?;
        summary.add(entry);
    }
    let summary = summary.build(repository.environment().clock.now(), "");
    let listing = writer.finish(&summary)?;
    let options = WriterOptions { prefix: Prefix::DIRECTORY, ..WriterOptions::default() };
    let object = repository.objects().write_many(&[&listing], &options)?;
    Ok(DirEntry {
        name: name.into_bytes().into(),
        entry_type: EntryType::Directory,
        object: object.first().context("one object was written")?.to_string(),
        summary: Some(summary),
        ..DirEntry::default()
    })
}

/// Bytes that no other number has (splitmix64).
fn noise(number: u64) -> [u8; CONTENT_LEN] {
    let mut bytes = [0; CONTENT_LEN];
    for (place, word) in bytes.chunks_exact_mut(8).enumerate() {
        let mut z = (number * 8 + place as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes
}
