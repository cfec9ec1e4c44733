//! Whole backups and restores, each as its own process, with time and peak memory, beside peers.

use crate::datasets::Dataset;
use crate::digest;
use crate::memory::{self, Supply};
use crate::peers::{self, COUNT, FLOOR, NAMES, PEERS, Peer, TIME_LIMIT};
use crate::place::{Location, Place, Storage};
use crate::plot::{self, Bars};
use crate::table::{Table, ratio};
use anyhow::{Context, Result, ensure};
use lifeboat_testkit::cgroup::run_limited;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Far more than anybody needs: the group is there to measure, not to limit.
const NO_LIMIT: u64 = 16 << 30;
/// Names the folder in memory to the process that measures.
const FOLDER: &str = "LIFEBOAT_BENCH_FOLDER";

/// What is done with each tree, in this order.
const OPERATIONS: [&str; 4] = ["backup", "no change", "1 % changed", "restore"];

/// Measures all rows, and writes and prints one table, and a plot.
///
/// Sources, repositories, caches and targets are in memory. Programs take turns: each does all operations on a tree,
/// then its repository goes, so that the memory has to hold only one.
pub fn run(datasets: &[Dataset], places: &[Place], repeat: usize, output: &Path) -> Result<()> {
    let Some(folder) = std::env::var_os(FOLDER) else { return run_in_memory() };
    memory::mount_at(folder.as_ref())?;
    let mut rows = Vec::new();
    let mut supply = Supply::new(folder.as_ref())?;
    let missing: Vec<String> = NAMES.into_iter().filter_map(peers::missing).collect();
    for dataset in datasets {
        let source = Path::new(&folder).join("source");
        dataset.grow(&source)?;
        let supply = &mut supply;
        let mut bench =
            Bench { dataset: *dataset, source: &source, folder: folder.as_ref(), rounds: 0, supply };
        for place in places {
            rows.extend(bench.measure(*place, repeat.max(1))?);
        }
        std::fs::remove_dir_all(&source)?;
        write(&rows, &missing, output)?;
    }
    print!("{}", table(&rows));
    missing.iter().for_each(|hint| println!("{hint}"));
    Ok(())
}

/// Runs this program again with everything that is temporary in memory, where nobody else sees it, so that it is gone with
/// the last of its processes.
fn run_in_memory() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("lifeboat-bench-").tempdir()?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env("TMPDIR", folder.path()).env(FOLDER, folder.path());
    let status = command.status()?;
    ensure!(status.success(), "the measurement ended with {status}");
    Ok(())
}

/// One tree that is measured.
struct Bench<'a> {
    dataset: Dataset,
    source: &'a Path,
    folder: &'a Path,
    /// How often the tree was changed.
    rounds: u64,
    supply: &'a mut Supply,
}

/// What all programs took for one thing.
pub struct Row {
    /// What was done.
    pub what: String,
    /// What it took, in the order of [`NAMES`]; nothing if a program is not installed, or cannot do it.
    pub figures: [Option<Figure>; COUNT],
}

/// A figure of a row.
#[derive(Debug, Clone, Copy)]
pub enum Figure {
    /// Of a command.
    Cost(Cost),
    /// Of a repository, in bytes.
    Size(u64),
}

/// What a command took.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// By the clock.
    pub seconds: f64,
    /// The most memory of its own, in bytes.
    pub peak: u64,
    /// What the server and the way to it took of the same processors meanwhile, in seconds.
    pub server: Option<f64>,
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Figure::Cost(cost) => {
                write!(f, "{:.2} ({})", cost.seconds, cost.peak >> 20)?;
                cost.server.map_or(Ok(()), |seconds| write!(f, " + {seconds:.1}"))
            }
            Figure::Size(bytes) => write!(f, "{} MiB", bytes >> 20),
        }
    }
}

impl Row {
    /// The seconds of a program.
    pub fn seconds(&self, number: usize) -> Option<f64> {
        match self.figures.get(number).copied().flatten()? {
            Figure::Cost(cost) => Some(cost.seconds),
            Figure::Size(_) => None,
        }
    }
}

/// The figures of one program on one tree.
#[derive(Default)]
struct Figures {
    costs: [Vec<Cost>; 4],
    size: Option<u64>,
}

impl Bench<'_> {
    /// All operations of all programs on one kind of storage.
    fn measure(&mut self, place: Place, repeat: usize) -> Result<Vec<Row>> {
        let takes_part = |name| peers::missing(name).is_none() && (name != FLOOR || place == Place::Folder);
        let mut all: [Option<Figures>; COUNT] = NAMES.map(|name| takes_part(name).then(Figures::default));
        for _ in 0..repeat {
            for (name, figures) in NAMES.into_iter().zip(&mut all) {
                let Some(figures) = figures else { continue };
                self.measure_program(name, place, figures)?;
            }
        }
        let describe = |what: &str| format!("{what}: {}{}", self.dataset.describe(), place.describe());
        let mut rows: Vec<Row> = OPERATIONS
            .into_iter()
            .enumerate()
            .map(|(number, what)| {
                let cost = |figures: &Option<Figures>| {
                    figures.as_ref().map(|figures| Figure::Cost(median(&figures.costs[number])))
                };
                Row { what: describe(what), figures: all.each_ref().map(cost) }
            })
            .collect();
        if place == Place::Folder {
            let size = |figures: &Option<Figures>| figures.as_ref().and_then(|f| f.size).map(Figure::Size);
            rows.push(Row { what: describe("repository"), figures: all.each_ref().map(size) });
        }
        Ok(rows)
    }

    fn measure_program(&mut self, name: &str, place: Place, figures: &mut Figures) -> Result<()> {
        let folder = tempfile::tempdir_in(self.folder)?;
        let storage = place.open(folder.path())?;
        let peer = peers::start(name, folder.path(), &storage)?;
        for (number, what) in OPERATIONS.into_iter().enumerate() {
            if what == "1 % changed" {
                self.dataset.change(self.source, self.rounds)?;
                self.rounds += 1;
            }
            let context = format!("{name}, {what} of {}{}", self.dataset.describe(), place.describe());
            let cost = match what {
                "restore" => self.restore(name, peer.as_ref(), &storage, &folder.path().join("target")),
                _ => self.measure_command(peer.back_up(self.source), &storage),
            };
            let cost = cost.with_context(|| context.clone())?;
            eprintln!("{context}: {}", Figure::Cost(cost));
            figures.costs[number].push(cost);
            if let (0, Location::Folder(path)) = (number, peer.location()) {
                figures.size = Some(folder_bytes(path)?);
            }
        }
        Ok(())
    }

    fn restore(&mut self, name: &str, peer: &dyn Peer, storage: &Storage, target: &Path) -> Result<Cost> {
        let command = peer.restore(self.source, target, self.dataset.is_sparse())?;
        let expected = digest::of_tree(self.source)?;
        // Where memory does not hold source, repository and target, the source goes meanwhile.
        let has_room = memory::is_enough_for(3 * self.dataset.bytes())?;
        if !has_room {
            std::fs::remove_dir_all(self.source)?;
        }
        let cost = self.measure_command(command, storage)?;
        // The copy is of what was there first.
        let is_same = name == FLOOR || digest::of_tree(target)? == expected;
        ensure!(is_same, "what was restored is not what was backed up");
        std::fs::remove_dir_all(target)?;
        if !has_room {
            self.dataset.grow(self.source)?;
        }
        Ok(cost)
    }

    fn measure_command(&mut self, command: Command, storage: &Storage) -> Result<Cost> {
        self.supply.hold(self.dataset.bytes())?;
        let before = storage.processor_time()?;
        let cost = self.supply.during(|| finish(command))??;
        let server = storage.processor_time()?.zip(before).map(|(after, before)| after - before);
        Ok(Cost { server: server.map(|time| time.as_secs_f64()), ..cost })
    }
}

fn table(rows: &[Row]) -> Table {
    let heads = [
        "run: s (peak MiB) + processor s of the server",
        "lifeboat",
        "kopia",
        "restic",
        "rustic",
        FLOOR,
        "× kopia",
        "× restic",
        "× best peer",
        "× copy",
    ];
    let mut table = Table::new(&heads);
    for row in rows {
        let figure =
            |figure: &Option<Figure>| figure.map_or_else(|| "–".to_owned(), |figure| figure.to_string());
        let beside = |peer: Option<f64>| {
            row.seconds(0).zip(peer).map_or_else(String::new, |(ours, theirs)| ratio(theirs, ours))
        };
        let best = PEERS.filter_map(|number| row.seconds(number)).min_by(f64::total_cmp);
        let ratios = [row.seconds(1), row.seconds(2), best, row.seconds(COUNT - 1)].map(beside);
        let cells = [row.what.clone()].into_iter().chain(row.figures.iter().map(figure));
        table.row(cells.chain(ratios));
    }
    table
}

/// Writes what is known so far.
fn write(rows: &[Row], missing: &[String], output: &Path) -> Result<()> {
    std::fs::create_dir_all(output).with_context(|| format!("create {}", output.display()))?;
    let path = |name: &str| -> PathBuf { output.join(name) };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut text = format!("`cargo xtask bench {}`\n\n{}", words.join(" "), table(rows));
    missing.iter().for_each(|hint| text.push_str(&format!("\n{hint}\n")));
    std::fs::write(path("runs.md"), text).context("write the table")?;
    let bars = rows.iter().filter(|row| row.seconds(0).is_some()).map(|row| Bars {
        what: row.what.clone(),
        seconds: (0..NAMES.len()).map(|number| row.seconds(number)).collect(),
    });
    plot::draw(&NAMES, &bars.collect::<Vec<_>>(), &path("runs.svg"))
}

fn median(costs: &[Cost]) -> Cost {
    let mut costs = costs.to_vec();
    costs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    costs[costs.len() / 2]
}

/// Runs a command that must succeed.
pub fn finish(command: Command) -> Result<Cost> {
    let started = Instant::now();
    let limited = run_limited(command, NO_LIMIT, TIME_LIMIT)?;
    let seconds = started.elapsed().as_secs_f64();
    let errors = String::from_utf8_lossy(&limited.output.stderr);
    ensure!(limited.output.status.success(), "a measured command failed: {errors}");
    Ok(Cost { seconds, peak: limited.peak_own_bytes, server: None })
}

fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => folder_bytes(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
