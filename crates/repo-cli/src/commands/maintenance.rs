//! `maintenance`: run it or see what it would do, look at its schedule, and say who does it.

use super::bytes;
use crate::session::Session;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use jiff::SignedDuration;
use lifeboat_kopia::maintain::{self, Mode, Options, Safety};
use lifeboat_kopia::maintenance::{Params, Schedule};
use lifeboat_kopia::repo::Repository;
use std::fs::{File, TryLockError};

/// Verbs of `maintenance`.
#[derive(Debug, Subcommand)]
pub enum MaintenanceCommand {
    /// Free the space of what no snapshot needs, and keep the index small
    Run(RunArgs),
    /// Show who maintains the repository, when, and what was done
    Info,
    /// Say who maintains the repository
    Set {
        /// The user and host who does it, as user@host; `me` for this client
        #[arg(long)]
        owner: String,
    },
}

/// How maintenance is run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Do everything, also what is not due
    #[arg(long)]
    pub full: bool,
    /// Keep up the index only, due or not
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// How long deletions wait: `full` is safe beside other clients, `none` only if there are none
    #[arg(long, default_value = "full", value_parser = ["full", "none"])]
    pub safety: String,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// For a full bucket: free what can be freed before anything is written
    #[arg(long, conflicts_with = "dry_run")]
    pub free_first: bool,
    /// Move at most so many MiB of each kind of pack together; the rest is left to the next run
    #[arg(long, value_name = "MIB")]
    pub rewrite_mb: Option<u64>,
    /// Move contents for at most so many minutes; the rest is left to the next run
    #[arg(long, value_name = "MINUTES")]
    pub rewrite_minutes: Option<u32>,
    /// How many reads are under way at once
    #[arg(long, default_value_t = 8)]
    pub parallel: usize,
}

pub fn run(session: &Session, command: MaintenanceCommand) -> Result<()> {
    match command {
        MaintenanceCommand::Run(args) => maintain(session, &args),
        MaintenanceCommand::Info => info(session),
        MaintenanceCommand::Set { owner } => set_owner(session, owner),
    }
}

/// Keeps two runs on one machine apart, of ours and of Kopia's: both lock this file.
fn lock(session: &Session) -> Result<File> {
    let mut path = session.config_file().clone().into_os_string();
    path.push(".mlock");
    let opened = File::options().create(true).append(true).open(&path);
    let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("maintenance is running already on this machine ({} is locked)", path.display())
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

fn maintain(session: &Session, args: &RunArgs) -> Result<()> {
    let _one = lock(session)?;
    let repository = session.open()?;
    let mode = match (args.full, args.quick) {
        (true, _) => Mode::Full,
        (_, true) => Mode::Quick,
        _ => Mode::Auto,
    };
    let safety = if args.safety == "none" { Safety::NONE } else { Safety::FULL };
    let options = Options {
        dry_run: args.dry_run,
        free_first: args.free_first,
        parallel: args.parallel,
        rewrite_bytes: args.rewrite_mb.map_or(u64::MAX, |mib| mib.saturating_mul(1 << 20)),
        rewrite_time: args.rewrite_minutes.map(|minutes| SignedDuration::from_mins(minutes.into())),
        ..Options::default()
    };
    let report = session.wait(maintain::run(&repository, mode, &safety, &options))?;
    session.wait(repository.close())?;
    print!("{report}");
    if !report.is_clean() {
        bail!("not everything could be done; see what failed or is in the way above");
    }
    Ok(())
}

fn info(session: &Session) -> Result<()> {
    let repository = session.open_for_reading()?;
    let (params, schedule) = session.wait(load(&repository))?;
    println!("Owner: {}", params.owner);
    let cycles = [("Quick", &params.quick, schedule.next_quick), ("Full", &params.full, schedule.next_full)];
    for (name, cycle, next) in cycles {
        let state = if cycle.enabled { "" } else { " (disabled)" };
        let interval = SignedDuration::from_nanos(cycle.interval.0);
        match next.get() {
            Some(next) => println!("{name} maintenance: every {interval:#}, next at {next}{state}"),
            None => println!("{name} maintenance: every {interval:#}, not run yet{state}"),
        }
    }
    let logs = params.log_retention.or_default();
    println!("Logs kept: {} at most, {}", logs.max_count, bytes(logs.max_total_size.unsigned_abs()));
    println!("Object locks extended: {}", params.extend_object_locks);
    for (task, runs) in schedule.runs.iter().flatten() {
        let Some(last) = runs.first() else { continue };
        let outcome = if last.success { "done".to_owned() } else { format!("FAILED: {}", last.error) };
        println!("  {task}: {} runs, the last one at {}: {outcome}", runs.len(), last.end.0);
    }
    Ok(())
}

async fn load(repository: &Repository) -> lifeboat_kopia::Result<(Params, Schedule)> {
    let params = Params::load(repository.manifests()).await?.unwrap_or_default();
    let schedule = Schedule::load(&**repository.store(), &*repository.format().await).await?;
    Ok((params, schedule))
}

fn set_owner(session: &Session, owner: String) -> Result<()> {
    let repository = session.open()?;
    let identity = repository.identity();
    let owner = match owner.as_str() {
        "me" => format!("{}@{}", identity.username, identity.hostname),
        _ => owner,
    };
    let params = session.wait(Params::load(repository.manifests()))?.unwrap_or_default();
    session.wait(Params { owner: owner.clone(), ..params }.save(repository.manifests()))?;
    session.wait(repository.close())?;
    println!("Maintained by {owner} from now on.");
    Ok(())
}
