//! Side by side against peers in one run, with ratios; `cargo xtask bench` calls this.

#![forbid(unsafe_code)]

mod datasets;
mod digest;
mod floor;
mod index;
mod kernels;
mod latency;
mod load;
mod maintenance;
mod memory;
mod movers;
mod peers;
mod pipeline;
mod place;
mod plot;
mod runs;
mod stage;
mod table;
mod watch;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use datasets::Dataset;
use maintenance::Size;
use movers::Volume;
use place::Place;
use std::path::PathBuf;

/// Measure Lifeboat beside kopia and Velero.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Splitter, hash and cipher on one core, beside `kopia benchmark`
    Kernels,
    /// From bytes in memory to packs on one core, beside the sum of the kernels and beside kopia
    Pipeline {
        /// How much data, in MiB
        #[arg(long, default_value_t = 1024)]
        mib: usize,
    },
    /// Whole backups and restores in memory file systems, beside kopia, restic and rustic
    Runs(RunsArgs),
    /// Volumes moved in a cluster, beside Velero's node-agent
    Movers(MoversArgs),
    /// Many uploads of small volumes on one node of a cluster, beside Velero's node-agent
    Load {
        /// How many uploads
        #[arg(long, default_value_t = 200)]
        uploads: usize,
        /// How many of them move at once
        #[arg(long, default_value_t = 4)]
        at_once: usize,
        /// The folder that gets the table (load.md)
        #[arg(long, default_value = "bench")]
        output: PathBuf,
    },
    /// Opening a repository with millions of contents under a memory limit, beside kopia
    Index {
        /// How many contents
        #[arg(long, default_value_t = 10_000_000)]
        contents: u64,
        /// The memory limit of our process in MiB
        #[arg(long, default_value_t = 128)]
        limit_mib: u64,
    },
    /// Full maintenance after every second snapshot was deleted, under a memory limit, beside kopia
    Maintenance {
        /// How many contents; ten million take half an hour and 5 GB
        #[arg(long, default_value_t = 1_000_000)]
        contents: u64,
        /// How many files they belong to
        #[arg(long, default_value_t = 100_000)]
        files: u64,
        /// How many snapshots these are in
        #[arg(long, default_value_t = 200)]
        snapshots: u64,
        /// The memory limit of our process in MiB
        #[arg(long, default_value_t = 256)]
        limit_mib: u64,
        /// How long kopia may take for each of its runs
        #[arg(long, default_value_t = 120)]
        kopia_minutes: u64,
        /// Where to put the repositories
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Used by `maintenance`: make the repository
    #[command(hide = true)]
    MakeSnapshots {
        /// The folder of the repository
        path: PathBuf,
        /// How many contents
        contents: u64,
        /// How many files
        files: u64,
        /// How many snapshots
        snapshots: u64,
    },
    /// Used by `runs`: copy a folder into packs, or what changed of it since
    #[command(hide = true)]
    CopyToPacks {
        /// The folder
        source: PathBuf,
        /// Where the packs go
        packs: PathBuf,
    },
    /// Used by `runs`: copy what is in packs into a folder
    #[command(hide = true)]
    CopyFromPacks {
        /// Where the packs are
        packs: PathBuf,
        /// The folder
        target: PathBuf,
    },
    /// Used by `index`: make the repository
    #[command(hide = true)]
    MakeIndex {
        /// The folder of the repository
        path: PathBuf,
        /// How many contents
        contents: u64,
    },
    /// Used by `index`: open the repository and look contents up
    #[command(hide = true)]
    LookUp {
        /// The folder of the repository
        path: PathBuf,
        /// The folder for local files
        cache: PathBuf,
        /// How many contents it has
        contents: u64,
        /// How many look-ups
        count: u64,
    },
}

#[derive(Debug, Args)]
struct RunsArgs {
    /// Size of the single large file in MiB; a size of 0 leaves a row out
    #[arg(long, default_value_t = 2048)]
    large_mib: u64,
    /// How many files of 1 MiB
    #[arg(long, default_value_t = 2000)]
    medium_files: u64,
    /// How many files of 100 bytes to 4 KiB
    #[arg(long, default_value_t = 200_000)]
    small_files: u64,
    /// How many files of a tree like the sources of a kernel
    #[arg(long, default_value_t = 40_000)]
    tree_files: u64,
    /// Length of a sparse image in MiB
    #[arg(long, default_value_t = 8192)]
    sparse_mib: u64,
    /// How much of the image is data, in MiB; one in 32 if it is not said
    #[arg(long)]
    sparse_data_mib: Option<u64>,
    /// Milliseconds that each round trip to an S3 server takes; several, with commas between; 0 leaves S3 out
    #[arg(long, value_delimiter = ',', default_value = "20")]
    s3_ms: Vec<u64>,
    /// Only S3, no repositories in folders
    #[arg(long)]
    only_s3: bool,
    /// How often each run is repeated; the median counts
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// The folder that gets the table (runs.md) and the plot (runs.svg)
    #[arg(long, default_value = "bench")]
    output: PathBuf,
}

#[derive(Debug, Args)]
struct MoversArgs {
    /// Size of the file in the first volume in MiB; a size of 0 leaves a volume out
    #[arg(long, default_value_t = 4096)]
    large_mib: u64,
    /// How many files of 100 bytes to 4 KiB are in the second
    #[arg(long, default_value_t = 200_000)]
    small_files: u64,
    /// Size of the device in MiB
    #[arg(long, default_value_t = 4096)]
    device_mib: u64,
    /// The folder that gets the table (movers.md) and the plot (movers.svg)
    #[arg(long, default_value = "bench")]
    output: PathBuf,
}

impl MoversArgs {
    fn run(&self) -> Result<()> {
        let wanted = [
            (self.large_mib, Volume::Files("large", Dataset::LargeFile { mebibytes: self.large_mib })),
            (self.small_files, Volume::Files("small", Dataset::SmallFiles { count: self.small_files })),
            (self.device_mib, Volume::Device { mebibytes: self.device_mib }),
        ];
        let volumes = wanted.into_iter().filter(|(size, _)| *size > 0).map(|(_, volume)| volume);
        movers::run(&volumes.collect::<Vec<_>>(), &self.output)
    }
}

impl RunsArgs {
    fn run(&self) -> Result<()> {
        let data = self.sparse_data_mib.unwrap_or(self.sparse_mib.div_ceil(32)).min(self.sparse_mib);
        let sparse = Dataset::SparseImage { mebibytes: self.sparse_mib, data };
        let wanted = [
            (self.large_mib, Dataset::LargeFile { mebibytes: self.large_mib }),
            (self.medium_files, Dataset::MediumFiles { count: self.medium_files }),
            (self.small_files, Dataset::SmallFiles { count: self.small_files }),
            (self.tree_files, Dataset::SourceTree { count: self.tree_files }),
            (self.sparse_mib, sparse),
        ];
        let datasets: Vec<_> = wanted.into_iter().filter(|(size, _)| *size > 0).map(|(_, set)| set).collect();
        let far = self.s3_ms.iter().filter(|ms| **ms > 0).map(|ms| Place::S3 { round_trip: *ms });
        let near = (!self.only_s3).then_some(Place::Folder);
        let places: Vec<_> = near.into_iter().chain(far).collect();
        runs::run(&datasets, &places, self.repeat, &self.output)
    }
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Kernels => kernels::run(),
        Command::Pipeline { mib } => pipeline::run(mib),
        Command::Runs(args) => args.run(),
        Command::Movers(args) => args.run(),
        Command::Load { uploads, at_once, output } => load::run(uploads, at_once, &output),
        Command::Index { contents, limit_mib } => index::run(contents, limit_mib),
        Command::Maintenance { contents, files, snapshots, limit_mib, kopia_minutes, folder } => {
            let kopia_limit = std::time::Duration::from_secs(60 * kopia_minutes);
            maintenance::run(Size { contents, files, snapshots }, limit_mib, kopia_limit, folder)
        }
        Command::MakeSnapshots { path, contents, files, snapshots } => {
            maintenance::make(&path, Size { contents, files, snapshots })
        }
        Command::CopyToPacks { source, packs } => floor::back_up(&source, &packs),
        Command::CopyFromPacks { packs, target } => floor::restore(&packs, &target),
        Command::MakeIndex { path, contents } => index::make(&path, contents),
        Command::LookUp { path, cache, contents, count } => index::look_up(&path, &cache, contents, count),
    }
}
