//! Side by side against peers in one run, with ratios; `cargo xtask bench` calls this.

#![forbid(unsafe_code)]

mod datasets;
mod index;
mod kernels;
mod peers;
mod pipeline;
mod runs;
mod table;

use anyhow::Result;
use clap::{Parser, Subcommand};
use datasets::Dataset;
use std::path::PathBuf;

/// Measure Lifeboat beside kopia.
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
    Runs {
        /// Size of the single large file in MiB; 0 leaves it out
        #[arg(long, default_value_t = 2048)]
        large_mib: u64,
        /// How many files of 1 MiB
        #[arg(long, default_value_t = 2000)]
        medium_files: u64,
        /// How many files of 100 bytes to 4 KiB
        #[arg(long, default_value_t = 200_000)]
        small_files: u64,
        /// Length of a sparse image in MiB; one in 32 MiB is data
        #[arg(long, default_value_t = 8192)]
        sparse_mib: u64,
        /// How often each run is repeated; the median counts
        #[arg(long, default_value_t = 3)]
        repeat: usize,
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

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Kernels => kernels::run(),
        Command::Pipeline { mib } => pipeline::run(mib),
        Command::Runs { large_mib, medium_files, small_files, sparse_mib, repeat } => {
            let wanted = [
                (large_mib, Dataset::LargeFile { mebibytes: large_mib }),
                (medium_files, Dataset::MediumFiles { count: medium_files }),
                (small_files, Dataset::SmallFiles { count: small_files }),
                (sparse_mib, Dataset::SparseImage { mebibytes: sparse_mib, data: sparse_mib.div_ceil(32) }),
            ];
            let datasets: Vec<_> =
                wanted.into_iter().filter(|(size, _)| *size > 0).map(|(_, set)| set).collect();
            runs::run(&datasets, repeat)
        }
        Command::Index { contents, limit_mib } => index::run(contents, limit_mib),
        Command::MakeIndex { path, contents } => index::make(&path, contents),
        Command::LookUp { path, cache, contents, count } => index::look_up(&path, &cache, contents, count),
    }
}
