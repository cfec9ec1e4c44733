//! `cargo xtask tools`: get what tests need, or show what there is.

use anyhow::{Context, Result, bail, ensure};
use lifeboat_tools::{Group, Outcome, TOOLS, Tool};
use std::process::Command;

/// What a plain `cargo xtask tools` and `cargo xtask test` install.
pub const FOR_TESTS: &[Group] = &[Group::Peers, Group::Lint, Group::Cluster];
/// What `cargo xtask test --long` installs.
pub const FOR_LONG_TESTS: &[Group] = &[Group::Peers, Group::Lint, Group::Cluster, Group::Long];

/// The systems beside this one for which a part of the house is compiled.
const RUST_TARGETS: &[&str] = &["x86_64-pc-windows-gnu"];

/// Which tools.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of tools or groups (peers, lint, long, cluster); what `cargo xtask test` needs if none is given.
    names: Vec<String>,
    /// Only list the tools, and where each one is.
    #[arg(long)]
    list: bool,
}

/// Runs the command.
pub fn main(args: &Args) -> Result<()> {
    let chosen = if !args.names.is_empty() {
        lifeboat_tools::select(&args.names)?
    } else if args.list {
        TOOLS.iter().collect()
    } else {
        of_groups(FOR_TESTS)
    };
    if args.list {
        list(&chosen);
        return Ok(());
    }
    if args.names.is_empty() {
        return install_groups(FOR_TESTS);
    }
    install_all(&chosen)
}

/// Installs every tool of these groups, and what the compiler needs for other systems.
pub fn install_groups(groups: &[Group]) -> Result<()> {
    let mut rustup = Command::new("rustup");
    let status = rustup.args(["target", "add"]).args(RUST_TARGETS).status();
    let status = status.context("start rustup: is it installed and in PATH?")?;
    ensure!(status.success(), "rustup has no compiler for {}: {status}", RUST_TARGETS.join(", "));
    install_all(&of_groups(groups))
}

/// Installs these tools.
pub fn install_named(names: &[&str]) -> Result<()> {
    install_all(&lifeboat_tools::select(names)?)
}

fn of_groups(groups: &[Group]) -> Vec<&'static Tool> {
    TOOLS.iter().filter(|tool| groups.contains(&tool.group)).collect()
}

/// What became of some tools.
#[derive(Default)]
struct Tally {
    present: usize,
    failed: Vec<&'static str>,
}

/// Installs what a cluster is made of beside everything else: a build that links, downloads or unpacks leaves a core
/// idle for the other. Within either, one after another: the programs share sources, which are to be compiled once.
fn install_all(chosen: &[&'static Tool]) -> Result<()> {
    let (cluster, others): (Vec<&Tool>, Vec<&Tool>) =
        chosen.iter().partition(|tool| tool.group == Group::Cluster);
    let (cluster, others) = std::thread::scope(|scope| {
        let cluster = scope.spawn(|| install_in_turn(&cluster));
        let others = install_in_turn(&others);
        (cluster.join(), others)
    });
    let Ok(cluster) = cluster else { bail!("the installation of the cluster's programs panicked") };
    let failed = [cluster.failed, others.failed].concat();
    if !failed.is_empty() {
        bail!("could not install {}", failed.join(", "));
    }
    let present = cluster.present + others.present;
    eprintln!("tools: {} ready, {present} of them were already", chosen.len());
    Ok(())
}

/// A failure does not keep the others back.
fn install_in_turn(chosen: &[&'static Tool]) -> Tally {
    let mut tally = Tally::default();
    for tool in chosen {
        match lifeboat_tools::install(tool, &|news| eprintln!("tools: {news}")) {
            Ok(Outcome::Present) => tally.present += 1,
            Ok(Outcome::Installed(took)) => {
                eprintln!("tools: {} {} is ready after {} s", tool.name, tool.version, took.as_secs());
            }
            Err(error) => {
                eprintln!("tools: {error:#}");
                tally.failed.push(tool.name);
            }
        }
    }
    tally
}

fn list(chosen: &[&Tool]) {
    for group in Group::ALL {
        for tool in chosen.iter().filter(|tool| tool.group == group) {
            let place = lifeboat_tools::path(tool.name)
                .map_or_else(|error| format!("{error:#}"), |path| path.display().to_string());
            println!("{:8} {:24} {:22} {place}", group.name(), tool.name, tool.version);
        }
    }
}
