//! Whole backups and restores, each as its own process, with time and peak memory, beside peers.

use crate::datasets::Dataset;
use crate::peers::{self, Peer, TIME_LIMIT};
use crate::table::{Table, ratio};
use anyhow::{Context, Result, ensure};
use lifeboat_testkit::cgroup::run_limited;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Far more than anybody needs: the group is there to measure, not to limit.
const NO_LIMIT: u64 = 16 << 30;

/// What is done with each tree, in this order.
const OPERATIONS: [&str; 4] = ["backup", "no change", "1 % changed", "restore"];

/// Measures all rows and prints one table. Source, repository and target are in memory, so that the disk is not what is
/// measured.
pub fn run(datasets: &[Dataset], repeat: usize) -> Result<()> {
    let mut table =
        Table::new(&["run", "lifeboat s (MiB)", "kopia", "restic", "rustic", "× kopia", "× best peer"]);
    for dataset in datasets {
        let mut costs: BTreeMap<(usize, &str), Vec<Cost>> = BTreeMap::new();
        let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
        for _ in 0..repeat.max(1) {
            let folder = tempfile::Builder::new().prefix("lifeboat-bench-").tempdir_in("/dev/shm")?;
            let source = folder.path().join("source");
            dataset.grow(&source)?;
            let peers = peers::all(folder.path())?;
            for (number, what) in OPERATIONS.into_iter().enumerate() {
                if what == "1 % changed" {
                    dataset.change(&source)?;
                }
                for peer in &peers {
                    let cost = operate(what, peer.as_ref(), &source, folder.path())
                        .with_context(|| format!("{}, {what} of {}", peer.name(), dataset.describe()))?;
                    costs.entry((number, peer.name())).or_default().push(cost);
                    if what == "backup" {
                        sizes.insert(peer.name(), folder_bytes(peer.repository())?);
                    }
                }
            }
        }
        for (number, what) in OPERATIONS.into_iter().enumerate() {
            let medians: Vec<Cost> = ["lifeboat", "kopia", "restic", "rustic"]
                .into_iter()
                .filter_map(|name| costs.get(&(number, name)).map(|costs| median(costs)))
                .collect();
            let [ours, kopia, restic, rustic] = medians[..] else { anyhow::bail!("a peer has no figures") };
            let best = kopia.seconds.min(restic.seconds).min(rustic.seconds);
            table.row([
                format!("{what}: {}", dataset.describe()),
                ours.to_string(),
                kopia.to_string(),
                restic.to_string(),
                rustic.to_string(),
                ratio(kopia.seconds, ours.seconds),
                ratio(best, ours.seconds),
            ]);
        }
        let size =
            |name: &str| sizes.get(name).map_or_else(String::new, |bytes| format!("{} MiB", bytes >> 20));
        table.row([
            format!("repository: {}", dataset.describe()),
            size("lifeboat"),
            size("kopia"),
            size("restic"),
            size("rustic"),
            String::new(),
            String::new(),
        ]);
    }
    table.print();
    Ok(())
}

/// What a command took.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// By the clock.
    pub seconds: f64,
    /// The most memory of its own, in bytes.
    pub peak: u64,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({})", self.seconds, self.peak >> 20)
    }
}

fn operate(what: &str, peer: &dyn Peer, source: &Path, folder: &Path) -> Result<Cost> {
    if what != "restore" {
        return finish(peer.back_up(source));
    }
    let target = folder.join(format!("{}-target", peer.name()));
    let cost = finish(peer.restore(source, &target)?)?;
    ensure!(folder_bytes(&target)? > 0, "nothing was restored");
    std::fs::remove_dir_all(&target)?;
    Ok(cost)
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
    Ok(Cost { seconds, peak: limited.peak_own_bytes })
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
