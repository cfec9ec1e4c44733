//! `repository upgrade`: to the newest format version, while everybody else keeps away.

use super::parse_duration;
use crate::session::Session;
use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use lifeboat_kopia::format::FORMAT_BLOB_VALIDITY;
use lifeboat_kopia::repo::OpenOptions;
use lifeboat_kopia::upgrade::{self, Comparison, Extent, Step, UpgradeOptions};
use std::time::Duration;

/// Verbs of `repository upgrade`.
#[derive(Debug, Subcommand)]
pub enum UpgradeCommand {
    /// Upgrade, or go on with an upgrade that was interrupted; needs --upgrade-owner-id
    Begin(BeginArgs),
    /// Make the repository again what it was before the upgrade began; needs --upgrade-owner-id
    Rollback {
        /// Do it, although what the owner has written since may be lost
        #[arg(long)]
        force: bool,
    },
    /// Compare the index from before the upgrade with the one after it
    Validate,
}

/// How long to wait for others, and how far to go.
#[derive(Debug, Args)]
pub struct BeginArgs {
    /// How long other clients may take to notice the upgrade and to end what they do
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "15m")]
    pub io_drain_timeout: Duration,
    /// Allow a shorter --io-drain-timeout than 15 minutes: only if no other client is at work
    #[arg(long)]
    pub allow_unsafe_upgrade: bool,
    /// How often those who wait look again
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "60s")]
    pub status_poll_interval: Duration,
    /// How far the clocks of clients may be apart
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "5m")]
    pub max_permitted_clock_drift: Duration,
    /// Only lock the repository
    #[arg(long)]
    pub lock_only: bool,
    /// Finish the upgrade even if the indexes differ, or never; if not given, when they are equal
    #[arg(long)]
    pub commit_mode: Option<CommitMode>,
}

/// Whether the upgrade is finished.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum CommitMode {
    /// In any case
    Always,
    /// Not yet: it can still be rolled back
    Never,
}

pub fn run(session: &Session, command: &UpgradeCommand) -> Result<()> {
    match command {
        UpgradeCommand::Begin(args) => begin(session, args),
        UpgradeCommand::Rollback { force } => roll_back(session, *force),
        UpgradeCommand::Validate => validate(session),
    }
}

fn begin(session: &Session, args: &BeginArgs) -> Result<()> {
    if args.io_drain_timeout < FORMAT_BLOB_VALIDITY && !args.allow_unsafe_upgrade {
        bail!(
            "other clients may take {} minutes to notice the upgrade: --io-drain-timeout must not be shorter",
            FORMAT_BLOB_VALIDITY.as_secs() / 60
        );
    }
    let options = options_of_owner(session)?;
    let upgrade = UpgradeOptions {
        io_drain_timeout: args.io_drain_timeout,
        status_poll_interval: args.status_poll_interval,
        max_permitted_clock_drift: args.max_permitted_clock_drift,
        extent: match args.commit_mode {
            _ if args.lock_only => Extent::LockOnly,
            Some(CommitMode::Always) => Extent::Always,
            Some(CommitMode::Never) => Extent::UpToCommit,
            None => Extent::IfEqual,
        },
    };
    // Whoever else uses the repository has to wait for the end of it, also while the lock is being waited for.
    session.when_unlocked(async || upgrade::begin(&options, &upgrade, &mut say).await)
}

fn options_of_owner(session: &Session) -> Result<OpenOptions> {
    let options = session.open_options(&session.connection()?, false)?;
    if options.upgrade_owner.is_none() {
        bail!("give the upgrade a name that nobody else uses: --upgrade-owner-id");
    }
    if options.access == lifeboat_kopia::repo::Access::ReadOnly {
        bail!("the connection is read only; see `repository set-client --read-write`");
    }
    Ok(options)
}

fn say(step: Step) {
    match step {
        Step::UpToDate => println!("The repository has the newest format version already."),
        Step::LockPlaced => println!("The repository is locked for the upgrade."),
        Step::Announced(time) => println!("The upgrade is announced; come back and begin it at {time}."),
        Step::Draining(left) => {
            println!("Waiting {} seconds for other clients to end what they do.", left.as_secs() + 1);
        }
        Step::Drained => println!("Nobody else is at work."),
        Step::Migrated => println!("The index has epochs now."),
        Step::Compared(comparison) => print_comparison(&comparison),
        Step::Committed => println!("The repository is upgraded."),
    }
}

fn print_comparison(found: &Comparison) {
    for difference in &found.described {
        eprintln!("{difference}");
    }
    match found {
        Comparison { contents: 0, differences: 0, .. } => println!("There is no old index to compare with."),
        Comparison { contents, differences: 0, .. } => {
            println!("The old and the new index are equal: {contents} contents.");
        }
        Comparison { differences, .. } => {
            println!("The old and the new index differ in {differences} contents.");
        }
    }
}

fn roll_back(session: &Session, force: bool) -> Result<()> {
    if !force {
        bail!(
            "what was written since the upgrade began, by its owner, may be lost: use --force if that is nothing"
        );
    }
    let options = options_of_owner(session)?;
    let OpenOptions { store, environment, .. } = &options;
    let mut format = session.open_format(&options)?;
    session.wait(format.roll_back_upgrade(&**store, environment))?;
    println!("The upgrade is rolled back.");
    Ok(())
}

fn validate(session: &Session) -> Result<()> {
    let comparison = session.wait(upgrade::compare(&session.open_for_reading()?))?;
    print_comparison(&comparison);
    if comparison.differences > 0 {
        bail!("the indexes differ, as they do once a repository is written to after its upgrade");
    }
    Ok(())
}
