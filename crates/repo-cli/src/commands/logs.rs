//! `logs`: the logs that clients keep in the repository.

use super::parse_duration;
use crate::output::{self, bytes};
use crate::session::Session;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use futures::TryStreamExt;
use jiff::Timestamp;
use lifeboat_blobs::{BlobMetadata, BlobStore};
use lifeboat_kopia::maintain::clean_up_logs;
use lifeboat_kopia::maintenance::LogRetention;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::time::Duration;

/// What the names of all logs start with.
const PREFIX: &str = "_log_";

/// Verbs of `logs`.
#[derive(Debug, Subcommand)]
pub enum LogsCommand {
    /// List logs
    #[command(visible_alias = "ls")]
    List(ChoiceArgs),
    /// Print logs; the last one if none is chosen
    #[command(visible_alias = "cat")]
    Show {
        /// Their ids
        sessions: Vec<String>,
        /// Which others.
        #[command(flatten)]
        choice: ChoiceArgs,
    },
    /// Delete old logs, as maintenance does, up to limits of which 0 is none
    Cleanup(CleanupArgs),
}

/// Which logs stay.
#[derive(Debug, Clone, Args)]
pub struct CleanupArgs {
    /// How old they may be
    #[arg(long, value_name = "TIME", default_value = "720h", value_parser = parse_duration)]
    pub max_age: Duration,
    /// How many files of them there may be
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub max_count: u32,
    /// How many MiB they may have together
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub max_total_size_mb: u32,
    /// Only say what would be deleted
    #[arg(long)]
    pub dry_run: bool,
}

/// Which logs.
#[derive(Debug, Clone, Args)]
pub struct ChoiceArgs {
    /// All
    #[arg(long)]
    pub all: bool,
    /// The last so many
    #[arg(long, short = 'n')]
    pub latest: Option<usize>,
    /// Those that began less than this ago
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub younger_than: Option<Duration>,
    /// Those that began more than this ago
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub older_than: Option<Duration>,
}

/// The log of one run of a client.
#[derive(Debug, Clone)]
struct Log {
    id: String,
    start: i64,
    end: i64,
    parts: Vec<BlobMetadata>,
}

pub fn run(session: &Session, command: &LogsCommand) -> Result<()> {
    if let LogsCommand::Cleanup(args) = command {
        return clean_up(session, args);
    }
    let repository = session.open_for_reading()?;
    let all = session.wait(find(&**repository.store()))?;
    let now = Timestamp::now().as_second();
    match command {
        LogsCommand::List(choice) => {
            for log in chosen(all, choice, now) {
                let size: u64 = log.parts.iter().map(|part| part.size).sum();
                let start = Timestamp::from_second(log.start).unwrap_or_default();
                let (seconds, parts) = (log.end - log.start, log.parts.len());
                let time = output::time(start);
                output::line(&format!("{} {time} {seconds}s {} {parts}", log.id, bytes(size)))?;
            }
            Ok(())
        }
        LogsCommand::Show { sessions, choice } => {
            let is_chosen = choice.all
                || choice.latest.is_some()
                || choice.younger_than.is_some()
                || choice.older_than.is_some();
            let shown = if !sessions.is_empty() {
                let named = |id: &String| {
                    let found = all.iter().find(|log| log.id == *id).cloned();
                    found.with_context(|| format!("there is no log {id}; `logs list` shows all"))
                };
                sessions.iter().map(named).collect::<Result<Vec<_>>>()?
            } else if is_chosen {
                chosen(all, choice, now)
            } else {
                all.into_iter().next_back().into_iter().collect()
            };
            let mut out = std::io::stdout().lock();
            for part in shown.iter().flat_map(|log| &log.parts) {
                let sealed = session.wait(repository.store().get(&part.id))?;
                let plain = repository.contents().sealer().open_blob(part.id.as_str(), &sealed)?;
                out.write_all(&unpacked(&plain))?;
            }
            Ok(out.flush()?)
        }
        LogsCommand::Cleanup(_) => Ok(()),
    }
}

fn clean_up(session: &Session, args: &CleanupArgs) -> Result<()> {
    let repository = session.open()?;
    let limits = LogRetention {
        max_total_size: i64::from(args.max_total_size_mb) << 20,
        max_count: i64::from(args.max_count),
        max_age: args.max_age.into(),
        ..LogRetention::default()
    };
    let done = session.wait(clean_up_logs(&repository, &limits, args.dry_run))?;
    match (done.beyond.count, args.dry_run) {
        (0, _) => eprintln!("No logs found to delete."),
        (count, true) => eprintln!("Would delete {count} logs ({}).", bytes(done.beyond.bytes)),
        (_, false) => eprintln!("Deleted {} logs ({}).", done.deleted.count, bytes(done.deleted.bytes)),
    }
    Ok(session.wait(repository.close())?)
}

/// Kopia compresses its logs.
fn unpacked(plain: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    match flate2::read::MultiGzDecoder::new(plain).read_to_end(&mut text) {
        Ok(_) => text,
        Err(_) => plain.to_vec(),
    }
}

/// All logs, the oldest first. A name is `_log_DATE_RANDOM_START_END_NUMBER_HASH`; others are left out.
async fn find(store: &dyn BlobStore) -> Result<Vec<Log>> {
    let mut logs: BTreeMap<String, Log> = BTreeMap::new();
    let mut listing = store.list(PREFIX);
    while let Some(blob) = listing.try_next().await? {
        let Some((id, start, end)) = parse(blob.id.as_str()) else { continue };
        let empty = Log { id: id.clone(), start, end, parts: Vec::new() };
        let log = logs.entry(id).or_insert(empty);
        (log.start, log.end) = (log.start.min(start), log.end.max(end));
        log.parts.push(blob);
    }
    let mut logs: Vec<Log> = logs.into_values().collect();
    for log in &mut logs {
        log.parts.sort_by_key(|part| part.modified);
    }
    logs.sort_by_key(|log| log.start);
    Ok(logs)
}

fn parse(name: &str) -> Option<(String, i64, i64)> {
    let parts: Vec<&str> = name.split('_').collect();
    let [_, _, date, random, start, end, ..] = parts[..] else { return None };
    Some((format!("{date}_{random}"), start.parse().ok()?, end.parse().ok()?))
}

fn chosen(mut logs: Vec<Log>, choice: &ChoiceArgs, now: i64) -> Vec<Log> {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    if !choice.all {
        logs.retain(|log| {
            let age = now.saturating_sub(log.start);
            choice.younger_than.is_none_or(|limit| age < seconds(limit))
                && choice.older_than.is_none_or(|limit| age > seconds(limit))
        });
        if let Some(latest) = choice.latest {
            logs.drain(..logs.len().saturating_sub(latest));
        }
    }
    logs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_logs_tell_their_session_and_times() {
        let name = "_log_20261116101938_956f_1794824378_1794824380_1_68d00e913ce77e34051166f06be173d4";
        assert_eq!(parse(name), Some(("20261116101938_956f".to_owned(), 1_794_824_378, 1_794_824_380)));
        assert_eq!(parse("_log_unrelated"), None);
    }
}
