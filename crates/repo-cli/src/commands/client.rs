//! `repository set-client`, `set-parameters` and `throttle`: what can be changed about a connection and a repository.

use super::parse_duration;
use crate::args::JsonArgs;
use crate::output;
use crate::session::Session;
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use lifeboat_blobs::config::Limits;
use lifeboat_blobs::{Retention, RetentionMode};
use lifeboat_kopia::format::BlobConfig;
use lifeboat_kopia::repo::OpenOptions;
use lifeboat_kopia::upgrade;
use std::time::Duration;

/// How this machine uses the repository.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SetClientArgs {
    /// Never write to the repository
    #[arg(long, conflicts_with = "read_write")]
    pub read_only: bool,
    /// Write to the repository again
    #[arg(long)]
    pub read_write: bool,
    /// Free text about the repository
    #[arg(long)]
    pub description: Option<String>,
    /// Take snapshots under this user name
    #[arg(long)]
    pub username: Option<String>,
    /// Take snapshots under this host name
    #[arg(long)]
    pub hostname: Option<String>,
}

/// What can be changed about a repository itself.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SetParametersArgs {
    /// At which size packs are closed, in MiB: 10 to 120
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(10..=120))]
    pub max_pack_size_mb: Option<u32>,
    /// Version of the index encoding: 1 or 2
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub index_version: Option<u8>,
    /// Upgrade to an index with epochs at once, without a lock: only if no other client is at work
    #[arg(long)]
    pub upgrade: bool,
    /// Lock objects in the storage: governance, compliance or none
    #[arg(long, value_parser = ["governance", "compliance", "none"])]
    pub retention_mode: Option<String>,
    /// How long objects are locked
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub retention_period: Option<Duration>,
    /// How often the list of epochs is read again
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub epoch_refresh_frequency: Option<Duration>,
    /// How long an epoch lasts at least
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub epoch_min_duration: Option<Duration>,
    /// How long index blobs stay that are not needed any more
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub epoch_cleanup_safety_margin: Option<Duration>,
    /// At how many index blobs a new epoch begins
    #[arg(long)]
    pub epoch_advance_on_count: Option<u32>,
    /// At how many MiB of index blobs a new epoch begins
    #[arg(long, value_name = "MIB")]
    pub epoch_advance_on_size_mb: Option<u32>,
    /// How many epochs are made into one index at a time
    #[arg(long)]
    pub epoch_checkpoint_frequency: Option<u32>,
    /// How many blobs of old epochs are deleted at once
    #[arg(long)]
    pub epoch_delete_parallelism: Option<u32>,
}

/// Verbs of `repository throttle`.
#[derive(Debug, Subcommand)]
pub enum ThrottleCommand {
    /// Show the limits
    Get(JsonArgs),
    /// Set limits; 0 or `unlimited` removes one
    Set(ThrottleArgs),
}

/// Limits of the storage.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct ThrottleArgs {
    /// Bytes per second from the storage
    #[arg(long, value_parser = parse_limit)]
    pub download_bytes_per_second: Option<f64>,
    /// Bytes per second to the storage
    #[arg(long, value_parser = parse_limit)]
    pub upload_bytes_per_second: Option<f64>,
    /// Reads per second
    #[arg(long, value_parser = parse_limit)]
    pub read_requests_per_second: Option<f64>,
    /// Writes per second
    #[arg(long, value_parser = parse_limit)]
    pub write_requests_per_second: Option<f64>,
    /// Listings per second
    #[arg(long, value_parser = parse_limit)]
    pub list_requests_per_second: Option<f64>,
    /// Reads at once
    #[arg(long, value_parser = parse_limit)]
    pub concurrent_reads: Option<f64>,
    /// Writes at once
    #[arg(long, value_parser = parse_limit)]
    pub concurrent_writes: Option<f64>,
}

pub fn parse_limit(text: &str) -> Result<f64, String> {
    match text {
        "unlimited" | "-" => Ok(0.0),
        _ => match text.parse() {
            Ok(limit) if (0.0..=1e15).contains(&limit) => Ok(limit),
            _ => Err("a limit is a number that is not negative, or `unlimited`".to_owned()),
        },
    }
}

pub fn set_client(session: &Session, args: &SetClientArgs) -> Result<()> {
    let mut connection = session.connection()?;
    connection.readonly = args.read_only || connection.readonly && !args.read_write;
    let texts = [
        (&args.description, &mut connection.description),
        (&args.username, &mut connection.username),
        (&args.hostname, &mut connection.hostname),
    ];
    for (new, place) in texts {
        if let Some(new) = new {
            place.clone_from(new);
        }
    }
    Ok(connection.save(session.config_file())?)
}

pub fn set_parameters(session: &Session, args: &SetParametersArgs) -> Result<()> {
    let options = session.open_options(&session.connection()?, false)?;
    let OpenOptions { store, environment, .. } = &options;
    let mut format = session.open_format(&options)?;
    let config = changed_config(format.config(), args)?;
    if args.index_version.is_some_and(|version| version < format.repository().index_version()) {
        bail!("the version of the index cannot be lowered: the older encoding has no room for all it holds");
    }
    let change = |repository: &mut lifeboat_kopia::format::RepositoryFormat, blobs: &mut BlobConfig| {
        *blobs = config;
        if let Some(size) = args.max_pack_size_mb {
            repository.max_pack_size_field = i64::from(size) << 20;
        }
        if let Some(version) = args.index_version {
            repository.index_version_field = i64::from(version);
        }
        if let Some(epochs) = &mut repository.epoch_parameters {
            let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
            let values = [
                (&mut epochs.epoch_refresh_frequency, args.epoch_refresh_frequency.map(nanos)),
                (&mut epochs.min_epoch_duration, args.epoch_min_duration.map(nanos)),
                (&mut epochs.cleanup_safety_margin, args.epoch_cleanup_safety_margin.map(nanos)),
                (&mut epochs.epoch_advance_on_count_threshold, args.epoch_advance_on_count.map(i64::from)),
                (
                    &mut epochs.epoch_advance_on_total_size_bytes_threshold,
                    args.epoch_advance_on_size_mb.map(|mib| i64::from(mib) << 20),
                ),
                (&mut epochs.full_checkpoint_frequency, args.epoch_checkpoint_frequency.map(i64::from)),
                (&mut epochs.delete_parallelism, args.epoch_delete_parallelism.map(i64::from)),
            ];
            for (place, value) in values {
                *place = value.unwrap_or(*place);
            }
        }
    };
    match args.upgrade {
        true => session.wait(upgrade::migrate(&session.open()?, change))?,
        false => session.wait(format.set_parameters(&**store, environment, change))?,
    }
    eprintln!("The repository is changed. Clients that are connected notice it within 15 minutes.");
    Ok(())
}

fn changed_config(old: &BlobConfig, args: &SetParametersArgs) -> Result<BlobConfig> {
    if args.retention_mode.as_deref() == Some("none") {
        return Ok(BlobConfig::new(None));
    }
    let before = old.retention()?;
    let mode = args.retention_mode.as_deref().map(lock_mode).transpose()?;
    let mode = mode.or(before.map(|retention| retention.mode));
    let period = args.retention_period.or(before.map(|retention| retention.period));
    Ok(BlobConfig::new(lock(mode, period)?))
}

/// The object lock of a new repository.
pub fn retention(mode: Option<&str>, period: Option<Duration>) -> Result<Option<Retention>> {
    lock(mode.map(lock_mode).transpose()?, period)
}

fn lock_mode(name: &str) -> Result<RetentionMode> {
    match name {
        "governance" => Ok(RetentionMode::Governance),
        "compliance" => Ok(RetentionMode::Compliance),
        _ => bail!("{name:?} is not a mode of object locks"),
    }
}

fn lock(mode: Option<RetentionMode>, period: Option<Duration>) -> Result<Option<Retention>> {
    match (mode, period) {
        (Some(mode), Some(period)) => Ok(Some(Retention { mode, period })),
        (None, None) => Ok(None),
        _ => bail!("an object lock has a mode and a period: use --retention-mode and --retention-period"),
    }
}

pub fn throttle(session: &Session, command: &ThrottleCommand) -> Result<()> {
    let mut connection = session.connection()?;
    let limits = connection.throttling.unwrap_or_default();
    match command {
        ThrottleCommand::Get(json) => print_limits(&limits, json.json),
        ThrottleCommand::Set(args) => {
            let whole = |limit: f64| limit as usize;
            connection.throttling = Some(Limits {
                reads_per_second: args.read_requests_per_second.unwrap_or(limits.reads_per_second),
                writes_per_second: args.write_requests_per_second.unwrap_or(limits.writes_per_second),
                lists_per_second: args.list_requests_per_second.unwrap_or(limits.lists_per_second),
                max_upload_speed_bytes_per_second: args
                    .upload_bytes_per_second
                    .unwrap_or(limits.max_upload_speed_bytes_per_second),
                max_download_speed_bytes_per_second: args
                    .download_bytes_per_second
                    .unwrap_or(limits.max_download_speed_bytes_per_second),
                concurrent_reads: args.concurrent_reads.map_or(limits.concurrent_reads, whole),
                concurrent_writes: args.concurrent_writes.map_or(limits.concurrent_writes, whole),
            });
            Ok(connection.save(session.config_file())?)
        }
    }
}

fn print_limits(limits: &Limits, json: bool) -> Result<()> {
    if json {
        return output::print_json(limits);
    }
    let lines = [
        ("Max Download Speed:", limits.max_download_speed_bytes_per_second),
        ("Max Upload Speed:", limits.max_upload_speed_bytes_per_second),
        ("Max Read Requests Per Second:", limits.reads_per_second),
        ("Max Write Requests Per Second:", limits.writes_per_second),
        ("Max List Requests Per Second:", limits.lists_per_second),
        ("Max Concurrent Reads:", limits.concurrent_reads as f64),
        ("Max Concurrent Writes:", limits.concurrent_writes as f64),
    ];
    lines.iter().try_for_each(|(name, limit)| {
        let limit = if *limit == 0.0 { "(unlimited)".to_owned() } else { limit.to_string() };
        output::line(&format!("{name:<30} {limit}"))
    })
}
