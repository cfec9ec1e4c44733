//! `snapshot estimate`: what a backup would take, and what it would leave out.

use crate::commands::{policy, source_of};
use crate::output::{self, bytes, note};
use crate::progress::{Display, State};
use crate::session::Session;
use anyhow::{Result, bail};
use clap::Args;
use lifeboat_uploader::{Counted, Progress, estimate};
use std::path::PathBuf;

/// What is counted.
#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// The directory
    pub source: PathBuf,
    /// Name files that are included, too
    #[arg(long)]
    pub show_files: bool,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
    /// Assumed speed of an upload in Mbit/s
    #[arg(long, default_value_t = 10.0, value_name = "MBIT/S")]
    pub upload_speed: f64,
    /// How many files of each magnitude are named, and how many directories
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    pub max_examples_per_bucket: usize,
}

pub fn run(session: &Session, args: &EstimateArgs) -> Result<()> {
    let source = source_of(&session.connection()?, &args.source)?;
    let path = PathBuf::from(&source.path);
    if !path.is_dir() {
        bail!("{} is not a directory; only of directories there is something to estimate", path.display());
    }
    let repository = session.open_for_reading()?;
    let policies = policy::tree(session, &repository, &source)?;
    let (progress, cancel) = (Progress::default(), session.cancel_on_signal());
    let state = || {
        let totals = progress.totals();
        let (files, size) = (totals.estimated_files, bytes(totals.estimated_bytes));
        State { text: format!("{files} files, {size} so far"), ..State::default() }
    };
    let most = args.max_examples_per_bucket;
    let (mut included, mut left_out) = (Files::default(), Files::default());
    let (mut directories, mut examples, mut errors) = (0u64, Vec::new(), 0u64);
    let mut told = |counted: Counted<'_>| match counted {
        Counted::File(path, size) => included.add(path, size, most),
        Counted::LeftOutFile(path, size) => left_out.add(path, size, most),
        Counted::LeftOutDirectory(path) => {
            directories += 1;
            if examples.len() < most {
                examples.push(path.to_owned());
            }
        }
        Counted::Unreadable(path, error) => {
            errors += 1;
            note(&format!("cannot be read: {path:?}: {error}"));
        }
    };
    let display = if args.quiet { Display::Off } else { session.display() };
    display.during(state, || estimate(&path, &policies, &progress, &cancel, &mut told));
    if cancel.is_cancelled() {
        bail!("cancelled");
    }

    output::line(&format!(
        "Snapshot includes {} file(s), total size {}",
        included.count(),
        bytes(included.size())
    ))?;
    included.print(args.show_files)?;
    output::line("")?;
    match left_out.count() {
        0 => output::line("Snapshot excludes no files.")?,
        count => {
            output::line(&format!(
                "Snapshot excludes {count} file(s), total size {}",
                bytes(left_out.size())
            ))?;
            left_out.print(true)?;
        }
    }
    match directories {
        0 => output::line("Snapshot excludes no directories.")?,
        _ => {
            output::line(&format!("Snapshot excludes {directories} directories. Examples:"))?;
            examples.iter().try_for_each(|path| output::line(&format!(" - {path}")))?;
        }
    }
    if errors > 0 {
        output::line(&format!("Encountered {errors} error(s)."))?;
    }
    let seconds = included.size() as f64 * 8.0 / (args.upload_speed.max(0.001) * 1e6);
    output::line(&format!(
        "\nEstimated upload time: {} at {} Mbit/s",
        span(seconds as u64),
        args.upload_speed
    ))
}

/// Files by their magnitude: the largest come first.
#[derive(Debug)]
struct Files([Class; CLASSES]);

/// Files below a thousand bytes, and one class for each power of ten up to 10^15.
const CLASSES: usize = 14;

/// Files of about the same size.
#[derive(Debug, Default)]
struct Class {
    count: u64,
    size: u64,
    examples: Vec<String>,
}

impl Default for Files {
    fn default() -> Self {
        Files(std::array::from_fn(|_| Class::default()))
    }
}

/// The smallest size that belongs to a class.
fn smallest(class: usize) -> u64 {
    if class + 1 == CLASSES { 0 } else { 10u64.pow(15 - class as u32) }
}

impl Files {
    fn add(&mut self, path: &str, size: u64, most_examples: usize) {
        let class = (0..CLASSES).find(|class| size >= smallest(*class)).unwrap_or(CLASSES - 1);
        let class = &mut self.0[class];
        class.count += 1;
        class.size += size;
        if class.examples.len() < most_examples {
            class.examples.push(format!("{path} - {}", bytes(size)));
        }
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|class| class.count).sum()
    }

    fn size(&self) -> u64 {
        self.0.iter().map(|class| class.size).sum()
    }

    fn print(&self, with_examples: bool) -> Result<()> {
        for (number, class) in self.0.iter().enumerate().filter(|(_, class)| class.count > 0) {
            let from = bytes(smallest(number));
            let range = match number.checked_sub(1) {
                Some(above) => format!("{from:<6}...{:>6}", bytes(smallest(above))),
                None => format!(">= {from:<6}"),
            };
            output::line(&format!(
                "{range:>18}: {:>7} files, total size {}",
                class.count,
                bytes(class.size)
            ))?;
            if with_examples {
                class.examples.iter().try_for_each(|example| output::line(&format!(" - {example}")))?;
            }
        }
        Ok(())
    }
}

/// A span of time as Kopia prints it.
fn span(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_by_magnitude_and_not_all_are_named() {
        let mut files = Files::default();
        for size in [0, 999, 1000, 5000, 1_000_000, u64::from(u32::MAX), 10u64.pow(15)] {
            files.add("x", size, 1);
        }
        let counts: Vec<u64> = files.0.iter().map(|class| class.count).collect();
        assert_eq!(counts, [1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 2, 2]);
        assert_eq!(files.0[CLASSES - 1].examples, ["x - 0 B"]);
    }

    #[test]
    fn spans_are_written_as_go_does() {
        assert_eq!([0, 59, 60, 2401, 3600].map(span), ["0s", "59s", "1m0s", "40m1s", "1h0m0s"]);
    }
}
