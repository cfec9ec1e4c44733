//! Measures a catalogue of ten million contents: building it, opening it again, look-ups, and a full scan, each in a
//! process of its own.
//!
//! ```text
//! cargo run --release -p lifeboat-index --example ten_million -- [options]
//!   --dir DIR        work below this folder (default: the system's folder for temporary files; use a real disk)
//!   --limit-mib N    run each phase in a memory cgroup of this size (needs root and cgroup v1 or v2; default: none)
//!   --small N        how many index blobs of 250,000 entries (default 20)
//!   --large N        how many entries in one large index blob (default 5,000,000)
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use lifeboat_index::{
    Catalog, CatalogOptions, ContentId, Deleted, IdRange, IndexBlobName, IndexEntry, IndexSource,
    IndexVersion, Prefix,
};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SMALL_ENTRIES: u64 = 250_000;
const CONTENTS_PER_PACK: u64 = 200;
const LOOKUPS: u64 = 200_000;
/// Which phases there are, in order.
const PHASES: [&str; 4] = ["build", "open", "lookups", "scan"];

#[derive(Debug, Clone)]
struct Setup {
    dir: PathBuf,
    limit_mib: Option<u64>,
    small: u64,
    large: u64,
    phase: Option<String>,
}

fn main() -> ExitCode {
    let mut setup =
        Setup { dir: std::env::temp_dir(), limit_mib: None, small: 20, large: 5_000_000, phase: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_else(|| panic!("{option} needs a value"));
        let number = || value.parse().unwrap_or_else(|_| panic!("{option} needs a number, not {value:?}"));
        match option.as_str() {
            "--dir" => setup.dir = value.into(),
            "--limit-mib" => setup.limit_mib = Some(number()),
            "--small" => setup.small = number(),
            "--large" => setup.large = number(),
            "--phase" => setup.phase = Some(value),
            _ => panic!("unknown option {option}"),
        }
    }
    match setup.phase.clone() {
        Some(phase) => run_phase(&setup, &phase),
        None => run_all(&setup),
    }
}

/// Generates the blobs, then runs each phase in a child.
fn run_all(setup: &Setup) -> ExitCode {
    let work = tempfile::Builder::new().prefix("ten-million-").tempdir_in(&setup.dir).unwrap();
    let setup = Setup { dir: work.path().to_path_buf(), ..setup.clone() };
    let started = Instant::now();
    let bytes = generate(&setup);
    println!(
        "generated {} index blobs, {} entries, {} MiB in {:.1} s",
        blobs(&setup).len(),
        total(&setup),
        bytes >> 20,
        started.elapsed().as_secs_f64()
    );
    for phase in PHASES {
        // What is cached already would be charged to nobody: every phase starts cold.
        drop_from_page_cache(&setup.dir);
        let group = setup.limit_mib.map(Cgroup::create);
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.arg("--dir").arg(&setup.dir).args(["--phase", phase]);
        child.args(["--small", &setup.small.to_string(), "--large", &setup.large.to_string()]);
        if let Some(group) = &group {
            child.env("TEN_MILLION_CGROUP", &group.path);
        }
        let status = child.status().unwrap();
        if let Some(group) = &group {
            println!(
                "           cgroup peak {} MiB of {} MiB",
                group.peak() >> 20,
                setup.limit_mib.unwrap_or(0)
            );
        }
        if !status.success() {
            println!("phase {phase} failed: {status}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run_phase(setup: &Setup, phase: &str) -> ExitCode {
    if let Some(group) = std::env::var_os("TEN_MILLION_CGROUP") {
        fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    let peak = HeapPeak::start();
    let started = Instant::now();
    let report = match phase {
        "build" => build(setup),
        "open" => open(setup),
        "lookups" => lookups(setup),
        "scan" => scan(setup),
        _ => panic!("unknown phase {phase}"),
    };
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds());
    let (heap, rss) = (peak.stop(), status_field("VmHWM") >> 10);
    println!(
        "{phase:>9}: {seconds:7.2} s ({cpu:.2} of CPU), heap peak {} MiB, resident peak {rss} MiB; {report}",
        heap >> 10
    );
    ExitCode::SUCCESS
}

fn build(setup: &Setup) -> String {
    let mut loads = 0;
    let snapshot = update(setup, &mut |blob| {
        loads += 1;
        File::open(setup.dir.join(blob.as_str()))
    });
    format!("loaded {loads} blobs, up to {} contents", snapshot.len_upper_bound())
}

fn open(setup: &Setup) -> String {
    let snapshot = update(setup, &mut |blob| panic!("{blob} was loaded again"));
    assert!(snapshot.contains_live(&content_id(0, 0, SMALL_ENTRIES)).unwrap());
    "nothing loaded, one look-up".into()
}

fn lookups(setup: &Setup) -> String {
    let snapshot = update(setup, &mut |blob| panic!("{blob} was loaded again"));
    let sizes = blob_sizes(setup);
    let mut random = Random(42);
    let mut timed = |hit: bool| {
        let started = cpu_seconds();
        for _ in 0..LOOKUPS {
            let blob = random.below(sizes.len() as u64);
            let entries = sizes[blob as usize];
            // A blob number that does not exist gives ids that nobody has.
            let id = content_id(if hit { blob } else { blob + 1000 }, random.below(entries), entries);
            assert_eq!(snapshot.get(&id).unwrap().is_some(), hit);
        }
        (cpu_seconds() - started) * 1e6 / LOOKUPS as f64
    };
    let (miss, hit, miss_again, hit_again) = (timed(false), timed(true), timed(false), timed(true));
    format!(
        "CPU for each of {LOOKUPS}: miss {miss:.2} µs, hit {hit:.2}, miss again {miss_again:.2}, hit {hit_again:.2}"
    )
}

fn scan(setup: &Setup) -> String {
    let snapshot = update(setup, &mut |blob| panic!("{blob} was loaded again"));
    let started = Instant::now();
    let mut out = BufWriter::new(tempfile::tempfile_in(&setup.dir).unwrap());
    let written = snapshot.encode_index(IndexVersion::V2, 0, 1, &mut out).unwrap().unwrap();
    let encoded = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let contents = snapshot.iter(IdRange::all(), Deleted::Include).map(Result::unwrap).count() as u64;
    assert_eq!(contents, total(setup));
    let scanned = started.elapsed().as_secs_f64();
    let packs =
        snapshot.pack_usage().unwrap().map(Result::unwrap).filter(|pack| pack.live_contents > 0).count();
    format!(
        "compacted to {} MiB in {encoded:.1} s, listed in {scanned:.1} s, {packs} packs in use",
        written >> 20
    )
}

fn update(
    setup: &Setup,
    load: &mut dyn FnMut(&IndexBlobName) -> std::io::Result<File>,
) -> lifeboat_index::Snapshot {
    let catalog = Catalog::open(setup.dir.join("catalogue"), CatalogOptions::default()).unwrap();
    let active: BTreeSet<IndexBlobName> = blobs(setup).into_iter().collect();
    catalog.update(&active, i64::MIN, &mut |blob| Ok(IndexSource::File(load(blob)?))).unwrap()
}

fn blob_sizes(setup: &Setup) -> Vec<u64> {
    let mut sizes = vec![SMALL_ENTRIES; setup.small as usize];
    if setup.large > 0 {
        sizes.push(setup.large);
    }
    sizes
}

fn blobs(setup: &Setup) -> Vec<IndexBlobName> {
    (0..blob_sizes(setup).len()).map(|blob| IndexBlobName::from(format!("xn0_{blob:04}"))).collect()
}

fn total(setup: &Setup) -> u64 {
    blob_sizes(setup).iter().sum()
}

/// The id of an entry: ascending within its blob, evenly spread, different in each blob, and computable.
fn content_id(blob: u64, entry: u64, entries: u64) -> ContentId {
    let mut random = Random(blob << 40 | entry);
    let spacing = u64::MAX / entries;
    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&(entry * spacing + random.below(spacing)).to_be_bytes());
    hash[8..].copy_from_slice(&random.next().to_be_bytes());
    ContentId::new(Prefix::NONE, &hash).unwrap()
}

fn generate(setup: &Setup) -> u64 {
    let mut bytes = 0;
    for (blob, entries) in blob_sizes(setup).into_iter().enumerate() {
        let blob = blob as u64;
        let index = (0..entries).map(move |entry| {
            let mut random = Random(entry);
            let packs = entries / CONTENTS_PER_PACK;
            let original_length = 1000 + random.below(100_000) as u32;
            IndexEntry {
                id: content_id(blob, entry, entries),
                pack: format!("p{:032x}-s0123456789abcdef122", blob << 32 | random.below(packs)).into(),
                pack_offset: random.below(20 << 20) as u32,
                packed_length: original_length + 28,
                original_length,
                timestamp_seconds: 1_700_000_000 + blob as i64,
                format_version: 3,
                compression: 0,
                encryption_key_id: 0,
                deleted: false,
            }
        });
        let file = File::create(setup.dir.join(blobs(setup)[blob as usize].as_str())).unwrap();
        let mut out = BufWriter::with_capacity(1 << 20, file);
        bytes += lifeboat_index::codec::encode(IndexVersion::V2, index, &mut out).unwrap();
        out.flush().unwrap();
    }
    bytes
}

fn drop_from_page_cache(directory: &Path) {
    for file in fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()) {
        if file.is_dir() {
            drop_from_page_cache(&file);
        } else {
            let file = File::open(file).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
}

/// SplitMix64: good enough to scatter test data, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Watches the memory of this process that no file backs.
struct HeapPeak {
    peak: &'static AtomicU64,
    stop: &'static AtomicBool,
    thread: std::thread::JoinHandle<()>,
}

impl HeapPeak {
    fn start() -> Self {
        static PEAK: AtomicU64 = AtomicU64::new(0);
        static STOP: AtomicBool = AtomicBool::new(false);
        let thread = std::thread::spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                PEAK.fetch_max(status_field("RssAnon"), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        HeapPeak { peak: &PEAK, stop: &STOP, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.peak.load(Ordering::Relaxed)
    }
}

/// The processor time that this process has taken.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A line of `/proc/self/status`, in KiB.
fn status_field(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A memory cgroup for one phase, gone when dropped.
struct Cgroup {
    path: PathBuf,
    peak_file: &'static str,
}

impl Cgroup {
    fn create(limit_mib: u64) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists();
        let (parent, limit_file, peak_file) = if v1 {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        } else {
            ("/sys/fs/cgroup", "memory.max", "memory.peak")
        };
        let path = Path::new(parent).join(format!("lifeboat-ten-million-{}", std::process::id()));
        fs::create_dir(&path).expect("--limit-mib needs root and a writable cgroup file system");
        let group = Cgroup { path, peak_file };
        fs::write(group.path.join(limit_file), (limit_mib << 20).to_string()).unwrap();
        group
    }

    fn peak(&self) -> u64 {
        fs::read_to_string(self.path.join(self.peak_file)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process has ended, but the kernel may take a moment to notice.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("cannot remove {}", self.path.display());
    }
}
