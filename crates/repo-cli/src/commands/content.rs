//! `content`: list, show, stats, verify.

use super::{parse_duration, parse_percent};
use crate::args::JsonArgs;
use crate::output::{self, bytes, note};
use crate::progress::{Display, State, Unit};
use crate::session::Session;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use flate2::read::GzDecoder;
use lifeboat_index::{ContentId, Deleted, IndexEntry, Prefix};
use lifeboat_kopia::content::ContentRange;
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::verify::{self, VerifyContents};
use lifeboat_primitives::compress::Compressor;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Verbs of `content`.
#[derive(Debug, Subcommand)]
pub enum ContentCommand {
    /// List contents
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Print contents
    #[command(visible_alias = "cat")]
    Show {
        /// Their ids
        #[arg(required = true)]
        contents: Vec<ContentId>,
        /// Lay out JSON for people
        #[arg(long, short)]
        json: bool,
        /// Decompress what is inside, such as a manifest, which is gzip
        #[arg(long, short = 'z')]
        unzip: bool,
    },
    /// Count contents by size and compressor
    Stats {
        /// Print plain numbers
        #[arg(long, short)]
        raw: bool,
        /// Which ones.
        #[command(flatten)]
        range: RangeArgs,
    },
    /// Check that every content is where the index says
    Verify(VerifyArgs),
}

/// Which contents are verified, and how thoroughly.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Read and decrypt all of them
    #[arg(long)]
    pub full: bool,
    /// Read and decrypt so many percent of them
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = parse_percent)]
    pub download_percent: f64,
    /// Also those that are deleted
    #[arg(long)]
    pub include_deleted: bool,
    /// How many are read at once
    #[arg(long, default_value_t = 16)]
    pub parallel: usize,
    /// Time between lines of progress, where it is no terminal
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = parse_duration)]
    pub progress_interval: Duration,
    /// Which ones.
    #[command(flatten)]
    pub range: RangeArgs,
}

/// Which contents.
#[derive(Debug, Clone, Args)]
pub struct RangeArgs {
    /// Only those whose ids begin so, such as `k` for directories
    #[arg(long, conflicts_with_all = ["prefixed", "non_prefixed"], value_parser = parse_prefix)]
    pub prefix: Option<String>,
    /// Only those with a letter in front: directories, manifests and object indexes
    #[arg(long, conflicts_with = "non_prefixed")]
    pub prefixed: bool,
    /// Only those without: data of files
    #[arg(long)]
    pub non_prefixed: bool,
}

/// What is listed of which contents.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Say where each one is
    #[arg(long, short)]
    pub long: bool,
    /// Say how each one is compressed
    #[arg(long, short)]
    pub compression: bool,
    /// Also those that are deleted
    #[arg(long)]
    pub deleted: bool,
    /// Only those that are deleted
    #[arg(long)]
    pub deleted_only: bool,
    /// Print totals at the end
    #[arg(long, short)]
    pub summary: bool,
    /// Which ones.
    #[command(flatten)]
    pub range: RangeArgs,
    /// Print sizes for people
    #[arg(long)]
    pub human: bool,
    /// Output for programs.
    #[command(flatten)]
    pub json: JsonArgs,
}

/// How an id begins: with a letter from g to z or not, and hexadecimal digits.
fn parse_prefix(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix(|letter: char| ('g'..='z').contains(&letter)).unwrap_or(text);
    match digits.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')) {
        true => Ok(text.to_owned()),
        false => {
            Err("ids begin with a letter from g to z or none, and go on with digits and a to f".to_owned())
        }
    }
}

impl RangeArgs {
    fn range(&self) -> ContentRange {
        match &self.prefix {
            Some(text) => ContentRange::StartingWith(text.clone()),
            None if self.prefixed => ContentRange::Prefixed,
            None if self.non_prefixed => ContentRange::Prefix(Prefix::NONE),
            None => ContentRange::All,
        }
    }

    fn entries(&self, repository: &Repository, deleted: Deleted) -> impl Iterator<Item = Result<IndexEntry>> {
        repository.contents().iterate(self.range(), deleted).map(|entry| Ok(entry?))
    }
}

pub fn run(session: &Session, command: ContentCommand) -> Result<()> {
    match command {
        ContentCommand::List(args) => list(session, &args),
        ContentCommand::Show { contents, json, unzip } => show(session, &contents, json, unzip),
        ContentCommand::Stats { raw, range } => stats(session, &range, raw),
        ContentCommand::Verify(args) => check(session, &args),
    }
}

fn list(session: &Session, args: &ListArgs) -> Result<()> {
    let repository = session.open_for_reading()?;
    let deleted = if args.deleted || args.deleted_only { Deleted::Include } else { Deleted::Skip };
    let wanted =
        |entry: &Result<IndexEntry>| !args.deleted_only || entry.as_ref().is_ok_and(|entry| entry.deleted);
    let mut entries = args.range.entries(&repository, deleted).filter(wanted);
    if args.json.json {
        return output::print_json_list(entries.map(|entry| entry.map(|entry| to_json(&entry))));
    }
    let (mut count, mut total) = (0u64, 0u64);
    entries.try_for_each(|entry| {
        let entry = entry?;
        count += 1;
        total += u64::from(entry.packed_length);
        output::line(&to_line(&entry, args))
    })?;
    if args.summary {
        output::line(&format!("Total: {count} contents, {} total size", bytes(total)))?;
    }
    Ok(())
}

fn to_json(entry: &IndexEntry) -> Value {
    let mut value = json!({
        "packFile": entry.pack.as_str(),
        "time": entry.timestamp_seconds,
        "originalLength": entry.original_length,
        "length": entry.packed_length,
        "packOffset": entry.pack_offset,
        "contentID": entry.id.to_string(),
        "deleted": entry.deleted,
        "formatVersion": entry.format_version,
    });
    if let (true, Some(fields)) = (entry.compression != 0, value.as_object_mut()) {
        fields.insert("compression".to_owned(), json!(entry.compression));
    }
    value
}

fn to_line(entry: &IndexEntry, args: &ListArgs) -> String {
    let deleted = if entry.deleted { " (deleted)" } else { "" };
    let time = jiff::Timestamp::from_second(entry.timestamp_seconds).unwrap_or_default();
    let size = |size: u32| if args.human { bytes(size.into()) } else { size.to_string() };
    if args.long {
        let (id, pack) = (entry.id, entry.pack.as_str());
        let (original, offset, length) =
            (size(entry.original_length), entry.pack_offset, size(entry.packed_length));
        return format!(
            "{id} {original} {} {pack} {offset}+{length}{deleted} {}",
            output::time(time),
            compressor(entry.compression)
        );
    }
    if args.compression {
        let (original, packed) = (size(entry.original_length), size(entry.packed_length));
        let method = compressor(entry.compression);
        return format!("{} length {original} packed {packed} {method}{deleted}", entry.id);
    }
    format!("{}{deleted}", entry.id)
}

fn compressor(id: u32) -> String {
    match id {
        0 => "-".to_owned(),
        _ => Compressor::from_id(id).map_or_else(|_| format!("compression-{id:x}"), |c| c.name().to_owned()),
    }
}

fn show(session: &Session, ids: &[ContentId], lay_out: bool, unzip: bool) -> Result<()> {
    let repository = session.open_for_reading()?;
    let mut out = std::io::stdout().lock();
    for id in ids {
        let data = session.wait(repository.contents().read(id))?;
        let mut inside: Box<dyn Read + '_> = match unzip {
            true => Box::new(GzDecoder::new(&data[..])),
            false => Box::new(&data[..]),
        };
        if lay_out {
            let value: Value =
                serde_json::from_reader(inside).with_context(|| format!("{id} is not JSON"))?;
            writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        } else {
            std::io::copy(&mut inside, &mut out).with_context(|| format!("cannot show {id}"))?;
        }
    }
    Ok(out.flush()?)
}

/// How many things there are of each magnitude, in powers of ten.
#[derive(Debug, Default)]
pub struct Histogram {
    count: u64,
    total: u64,
    classes: [(u64, u64); CLASSES],
}

const CLASSES: usize = 8;

impl Histogram {
    pub fn add(&mut self, size: u64) {
        self.count += 1;
        self.total += size;
        let class = (1..CLASSES as u32).find(|power| size < 10u64.pow(*power)).unwrap_or(CLASSES as u32);
        let class = &mut self.classes[class as usize - 1];
        (class.0, class.1) = (class.0 + 1, class.1 + size);
    }

    pub fn print(&self, total: &str, raw: bool) -> Result<()> {
        let size = |count: u64| if raw { count.to_string() } else { bytes(count) };
        output::line(&format!("Count: {}\n{total}: {}", self.count, size(self.total)))?;
        if self.count == 0 {
            return Ok(());
        }
        output::line(&format!("Average: {}\nHistogram:\n", size(self.total / self.count)))?;
        for (class, (count, sum)) in self.classes.iter().enumerate() {
            let low = if class == 0 { 0 } else { 10u64.pow(class as u32) };
            let high = 10u64.pow(class as u32 + 1);
            let (low, high) = (size(low), size(high));
            output::line(&format!("{count:>9} between {low} and {high} (total {})", size(*sum)))?;
        }
        Ok(())
    }
}

fn stats(session: &Session, range: &RangeArgs, raw: bool) -> Result<()> {
    let repository = session.open_for_reading()?;
    let mut histogram = Histogram::default();
    // Compressor: how many, how long before and after.
    let mut methods: BTreeMap<u32, (u64, u64, u64)> = BTreeMap::new();
    for entry in range.entries(&repository, Deleted::Skip) {
        let entry = entry?;
        histogram.add(u64::from(entry.packed_length));
        let method = methods.entry(entry.compression).or_default();
        method.0 += 1;
        method.1 += u64::from(entry.original_length);
        method.2 += u64::from(entry.packed_length);
    }
    let size = |count: u64| if raw { count.to_string() } else { bytes(count) };
    histogram.print("Total Packed", raw)?;
    output::line("\nBy Method:")?;
    for (id, (count, original, packed)) in methods {
        let name = if id == 0 { "(uncompressed)".to_owned() } else { compressor(id) };
        let (original, packed) = (size(original), size(packed));
        output::line(&format!("  {name:<22} count: {count} size: {original} packed: {packed}"))?;
    }
    Ok(())
}

fn check(session: &Session, args: &VerifyArgs) -> Result<()> {
    let repository = session.open()?;
    let options = VerifyContents {
        full: args.full,
        read_percent: args.download_percent,
        range: args.range.range(),
        include_deleted: args.include_deleted,
        parallel: args.parallel,
        progress: Arc::default(),
    };
    let deleted = if args.include_deleted { Deleted::Include } else { Deleted::Skip };
    // Nobody is to wait for a number that nobody sees.
    let total = match session.display() {
        Display::Off => 0,
        _ => args.range.entries(&repository, deleted).count() as u64,
    };
    let state = || {
        let done = options.progress.verified.load(Ordering::Relaxed);
        let damaged = options.progress.damaged.load(Ordering::Relaxed);
        let text = format!("Verified {done} of {total} contents, {damaged} errors");
        State { text, unit: Unit::Things, done, total }
    };
    let mut print = |damage: verify::ContentDamage| note(&format!("damaged: {damage}"));
    let work = || session.wait(verify::contents(&repository, &options, &mut print));
    let report = session.display().during_every(args.progress_interval, state, work)?;
    println!("Verified {} contents, read {}.", report.contents, bytes(report.bytes_read));
    if report.damaged > 0 {
        bail!("{} contents are damaged; `snapshot verify` tells which snapshots need them", report.damaged);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_counted_by_magnitude() {
        let mut histogram = Histogram::default();
        for size in [0, 9, 10, 99, 100, 9_999_999_999] {
            histogram.add(size);
        }
        assert_eq!(histogram.classes[..3], [(2, 9), (2, 109), (1, 100)]);
        assert_eq!(histogram.classes[CLASSES - 1], (1, 9_999_999_999));
        assert_eq!(histogram.count, 6);
    }
}
