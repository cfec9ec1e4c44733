//! `maintenance`: run it or see what it would do, look at its schedule, and say who does it.

use super::parse_duration;
use crate::args::JsonArgs;
use crate::output::{self, bytes};
use crate::session::Session;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use jiff::SignedDuration;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::gojson::{GoTime, Nanos};
use lifeboat_kopia::maintain::{self, Mode, Options, Safety};
use lifeboat_kopia::maintenance::{Params, Schedule};
use lifeboat_kopia::repo::{OpenOptions, Repository};
use std::fs::{File, TryLockError};
use std::time::Duration;

/// Verbs of `maintenance`.
#[derive(Debug, Subcommand)]
pub enum MaintenanceCommand {
    /// Free the space of what no snapshot needs, and keep the index small
    Run(RunArgs),
    /// Show who maintains the repository, when, and what was done
    Info(JsonArgs),
    /// Say who maintains the repository, and when
    Set(SetArgs),
}

/// Who maintains the repository, and when.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SetArgs {
    /// The user and host who does it, as user@host; `me` for this client
    #[arg(long)]
    pub owner: Option<String>,
    /// Whether quick maintenance runs when it is due
    #[arg(long, value_name = "BOOL")]
    pub enable_quick: Option<bool>,
    /// Whether full maintenance runs when it is due
    #[arg(long, value_name = "BOOL")]
    pub enable_full: Option<bool>,
    /// How often quick maintenance runs
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub quick_interval: Option<Duration>,
    /// How often full maintenance runs
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub full_interval: Option<Duration>,
    /// No quick maintenance for this long from now on
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub pause_quick: Option<Duration>,
    /// No full maintenance for this long from now on
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub pause_full: Option<Duration>,
    /// How many logs are kept
    #[arg(long, value_name = "COUNT")]
    pub max_retained_log_count: Option<u32>,
    /// How long logs are kept
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub max_retained_log_age: Option<Duration>,
    /// How many MiB of logs are kept
    #[arg(long, value_name = "MIB")]
    pub max_retained_log_size_mb: Option<u32>,
    /// Whether full maintenance extends object locks
    #[arg(long, value_name = "BOOL")]
    pub extend_object_locks: Option<bool>,
    /// How many prefixes of names are listed at once; 0 is the default
    #[arg(long, value_name = "N")]
    pub list_parallelism: Option<u32>,
}

/// How maintenance is run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Do everything, also what is not due
    #[arg(long)]
    pub full: bool,
    /// Run it although somebody else is to do it (make sure that they do not), and succeed although packs are lost
    /// from the storage
    #[arg(long)]
    pub force: bool,
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
        MaintenanceCommand::Info(json) => info(session, json.json),
        MaintenanceCommand::Set(args) => set(session, &args),
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
    let repository = if args.force { open_as_owner(session)? } else { session.open()? };
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
    let is_enough = if args.force { report.lacks_only_lost_data() } else { report.is_clean() };
    if !is_enough {
        bail!("not everything could be done; see what failed or is in the way above");
    }
    Ok(())
}

/// Opens the repository in the name of whoever is to maintain it: the runs that they find recorded are their own.
fn open_as_owner(session: &Session) -> Result<Repository> {
    let repository = session.open()?;
    let params = session.wait(Params::load(repository.manifests()))?.unwrap_or_default();
    let Some((username, hostname)) = params.owner.split_once('@') else { return Ok(repository) };
    let owner = ClientIdentity { username: username.to_owned(), hostname: hostname.to_owned() };
    if *repository.identity() == owner {
        return Ok(repository);
    }
    drop(repository);
    eprintln!("Running maintenance in the place of {}.", params.owner);
    let options = session.open_options(&session.connection()?, false)?;
    session.open_with(OpenOptions { identity: owner, ..options })
}

fn info(session: &Session, json: bool) -> Result<()> {
    let repository = session.open_for_reading()?;
    let (params, schedule) = session.wait(load(&repository))?;
    if json {
        // The parameters as they are stored, and beside them the schedule.
        let mut value = serde_json::to_value(&params)?;
        if let Some(fields) = value.as_object_mut() {
            fields.insert("schedule".to_owned(), serde_json::to_value(&schedule)?);
        }
        return output::print_json(&value);
    }
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

fn set(session: &Session, args: &SetArgs) -> Result<()> {
    let repository = session.open()?;
    let before = session.wait(Params::load(repository.manifests()))?.unwrap_or_default();
    let after = changed(&before, args, repository.identity());
    if after != before {
        session.wait(after.save(repository.manifests()))?;
    }
    if after.owner != before.owner {
        println!("Maintained by {} from now on.", after.owner);
    }
    session.wait(repository.flush())?;
    if args.pause_quick.is_some() || args.pause_full.is_some() {
        pause(session, &repository, args)?;
    }
    Ok(session.wait(repository.close())?)
}

fn changed(before: &Params, args: &SetArgs, us: &ClientIdentity) -> Params {
    let mut params = before.clone();
    match args.owner.as_deref() {
        Some("me") => params.owner = format!("{}@{}", us.username, us.hostname),
        Some(owner) => owner.clone_into(&mut params.owner),
        None => {}
    }
    let cycles = [
        (&mut params.quick, args.enable_quick, args.quick_interval),
        (&mut params.full, args.enable_full, args.full_interval),
    ];
    for (cycle, enabled, interval) in cycles {
        cycle.enabled = enabled.unwrap_or(cycle.enabled);
        cycle.interval = interval.map_or(cycle.interval, Nanos::from);
    }
    let logs = &mut params.log_retention;
    logs.max_count = args.max_retained_log_count.map_or(logs.max_count, i64::from);
    logs.max_age = args.max_retained_log_age.map_or(logs.max_age, Nanos::from);
    logs.max_total_size =
        args.max_retained_log_size_mb.map_or(logs.max_total_size, |mib| i64::from(mib) << 20);
    params.extend_object_locks = args.extend_object_locks.unwrap_or(params.extend_object_locks);
    params.list_parallelism = args.list_parallelism.map_or(params.list_parallelism, i64::from);
    params
}

fn pause(session: &Session, repository: &Repository, args: &SetArgs) -> Result<()> {
    let (store, environment) = (repository.store().clone(), repository.environment().clone());
    let format = session.wait(repository.format());
    let mut schedule = session.wait(Schedule::load(&*store, &format))?;
    let now = environment.clock.now();
    if let Some(time) = args.pause_quick {
        schedule.next_quick = GoTime(now.checked_add(time)?);
    }
    if let Some(time) = args.pause_full {
        schedule.next_full = GoTime(now.checked_add(time)?);
    }
    Ok(session.wait(schedule.save(&*store, &format, &environment))?)
}
