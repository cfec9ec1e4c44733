//! The one entry for everything a developer or CI does with this checkout beside compiling it.

#![forbid(unsafe_code)]

mod bench;
mod cluster;
mod deny;
mod fuzz;
mod test;
mod tools;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Set-up, tests and checks of Lifeboat.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Install the programs that tests need into a cache outside the checkout.
    Tools(tools::Args),
    /// Run all checks and tests; sets up everything they need.
    Test(test::Args),
    /// Run the fuzz targets for a bounded time.
    Fuzz(fuzz::Args),
    /// Measure Lifeboat beside its peers; prints tables for bench/RESULTS.md.
    Bench(bench::Args),
    /// Start, use and end real Kubernetes clusters for tests.
    Cluster(cluster::Args),
    /// Make container images without a registry, and load them into a cluster.
    Image(cluster::ImageArgs),
}

fn main() -> Result<()> {
    match Cli::parse().task {
        Task::Tools(args) => tools::main(&args),
        Task::Test(args) => test::main(&args),
        Task::Fuzz(args) => fuzz::main(&args),
        Task::Bench(args) => bench::main(&args),
        Task::Cluster(args) => cluster::main(&args),
        Task::Image(args) => cluster::image(&args),
    }
}
