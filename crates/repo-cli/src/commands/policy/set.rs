//! The flags of `policy set`, and what each of them changes.

use super::actions::ActionArgs;
use crate::commands::parse_duration;
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use lifeboat_kopia::policy::{Policy, TimeOfDay};
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::splitter::SplitterAlgorithm;
use std::str::FromStr;
use std::time::Duration;

/// A value for a setting, or that it is inherited from the policy above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting<T> {
    /// Take the one above.
    Inherit,
    /// This one.
    To(T),
}

impl<T: FromStr> FromStr for Setting<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "inherit" | "default" => Ok(Setting::Inherit),
            _ => text
                .parse()
                .map(Setting::To)
                .map_err(|_| format!("{text:?} is neither a value nor `inherit`")),
        }
    }
}

impl<T> Setting<T> {
    fn into_option(self) -> Option<T> {
        match self {
            Setting::Inherit => None,
            Setting::To(value) => Some(value),
        }
    }
}

fn set<T, U: From<T>>(place: &mut Option<U>, setting: &Option<Setting<T>>)
where
    T: Copy,
{
    if let Some(setting) = setting {
        *place = setting.into_option().map(U::from);
    }
}

/// The flags of one list of a policy: what is added to it, what is taken off it, and that it is emptied first.
macro_rules! list_flags {
    ($(#[$doc:meta])* $name:ident, $value:literal, $add:literal, $remove:literal, $clear:literal) => {
        $(#[$doc])*
        #[derive(Debug, Args)]
        pub struct $name {
            $(#[$doc])*
            #[arg(id = $add, long = $add, value_name = $value)]
            add: Vec<String>,
            /// Take them off that list
            #[arg(id = $remove, long = $remove, value_name = $value)]
            remove: Vec<String>,
            /// Empty that list
            #[arg(id = $clear, long = $clear)]
            clear: bool,
        }

        impl $name {
            fn apply(&self, list: &mut Vec<String>) {
                edit(list, self.clear, &self.add, &self.remove);
            }
        }
    };
}

list_flags! {
    /// Compress only files with these extensions, and those before
    OnlyCompress, "EXT", "add-only-compress", "remove-only-compress", "clear-only-compress"
}
list_flags! {
    /// Never compress files with these extensions, and those before
    NeverCompress, "EXT", "add-never-compress", "remove-never-compress", "clear-never-compress"
}
list_flags! {
    /// Leave these out: rules as in `.gitignore`
    Ignore, "PATTERN", "add-ignore", "remove-ignore", "clear-ignore"
}
list_flags! {
    /// Read rules from files of these names
    DotIgnore, "NAME", "add-dot-ignore", "remove-dot-ignore", "clear-dot-ignore"
}

/// How detailed the log of a backup is, 0 (nothing) to 10, or `inherit`. It is written at the level of debugging:
/// `--log-level debug` shows it, `--log-dir` keeps it.
#[derive(Debug, Args)]
pub struct LoggingArgs {
    /// How detailed the log is about a directory that was backed up, 0 to 10, or `inherit`
    #[arg(long, value_name = "N")]
    pub log_dir_snapshotted: Option<Setting<LogDetail>>,
    /// How detailed the log is about a directory that is left out
    #[arg(long, value_name = "N")]
    pub log_dir_ignored: Option<Setting<LogDetail>>,
    /// How detailed the log is about a file or link that was backed up
    #[arg(long, value_name = "N")]
    pub log_entry_snapshotted: Option<Setting<LogDetail>>,
    /// How detailed the log is about a file or link that is left out
    #[arg(long, value_name = "N")]
    pub log_entry_ignored: Option<Setting<LogDetail>>,
    /// How detailed the log is about a file or link that is as it was
    #[arg(long, value_name = "N")]
    pub log_entry_cache_hit: Option<Setting<LogDetail>>,
    /// Whether the log tells (from 5 on) what a file or link was that is not as it was
    #[arg(long, value_name = "N")]
    pub log_entry_cache_miss: Option<Setting<LogDetail>>,
}

impl LoggingArgs {
    fn apply(&self, policy: &mut Policy) {
        let (directories, entries) = (&mut policy.logging.directories, &mut policy.logging.entries);
        set(&mut directories.snapshotted, &self.log_dir_snapshotted);
        set(&mut directories.ignored, &self.log_dir_ignored);
        set(&mut entries.snapshotted, &self.log_entry_snapshotted);
        set(&mut entries.ignored, &self.log_entry_ignored);
        set(&mut entries.cache_hit, &self.log_entry_cache_hit);
        set(&mut entries.cache_miss, &self.log_entry_cache_miss);
    }
}

/// How detailed a log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogDetail(i64);

impl FromStr for LogDetail {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse().ok().filter(|detail| (0..=10).contains(detail)).map(LogDetail).ok_or(())
    }
}

impl From<LogDetail> for i64 {
    fn from(detail: LogDetail) -> i64 {
        detail.0
    }
}

/// When Windows makes a volume shadow copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShadowCopy {
    /// Never
    Never,
    /// Always, or the backup fails
    Always,
    /// When it can
    WhenAvailable,
    /// What the policy above says
    Inherit,
}

/// What is changed. Numbers and yes-or-no settings also take `inherit`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// How many of the latest snapshots are kept
    #[arg(long, value_name = "N")]
    pub keep_latest: Option<Setting<u32>>,
    /// Of how many hours the last snapshot is kept
    #[arg(long, value_name = "N")]
    pub keep_hourly: Option<Setting<u32>>,
    /// Of how many days the last snapshot is kept
    #[arg(long, value_name = "N")]
    pub keep_daily: Option<Setting<u32>>,
    /// Of how many weeks the last snapshot is kept
    #[arg(long, value_name = "N")]
    pub keep_weekly: Option<Setting<u32>>,
    /// Of how many months the last snapshot is kept
    #[arg(long, value_name = "N")]
    pub keep_monthly: Option<Setting<u32>>,
    /// Of how many years the last snapshot is kept
    #[arg(long, value_name = "N")]
    pub keep_annual: Option<Setting<u32>>,
    /// Whether a snapshot that equals the one before is not saved
    #[arg(long, value_name = "BOOL")]
    pub ignore_identical_snapshots: Option<Setting<bool>>,

    /// Compress files like this (`none` not to)
    #[arg(long, value_name = "ALGO")]
    pub compression: Option<String>,
    /// Compress only files of at least so many bytes
    #[arg(long, value_name = "BYTES")]
    pub compression_min_size: Option<i64>,
    /// Compress only files of at most so many bytes
    #[arg(long, value_name = "BYTES")]
    pub compression_max_size: Option<i64>,
    /// Which extensions alone are compressed.
    #[command(flatten)]
    pub only_compress: OnlyCompress,
    /// Which extensions are not.
    #[command(flatten)]
    pub never_compress: NeverCompress,
    /// Compress directories like this
    #[arg(long, value_name = "ALGO")]
    pub metadata_compression: Option<String>,
    /// Cut files like this (`inherit` for the repository's way)
    #[arg(long, value_name = "ALGO")]
    pub splitter: Option<String>,

    /// Rules about what is left out.
    #[command(flatten)]
    pub ignore: Ignore,
    /// Files that have such rules.
    #[command(flatten)]
    pub dot_ignore: DotIgnore,
    /// Leave out files of more than so many bytes (0 for none)
    #[arg(long, value_name = "BYTES")]
    pub max_file_size: Option<i64>,
    /// Whether other file systems that are mounted below are left out
    #[arg(long, value_name = "BOOL")]
    pub one_file_system: Option<Setting<bool>>,
    /// Whether directories with a `CACHEDIR.TAG` are left out
    #[arg(long, value_name = "BOOL")]
    pub ignore_cache_dirs: Option<Setting<bool>>,

    /// Whether files that cannot be read fail no snapshot
    #[arg(long, value_name = "BOOL")]
    pub ignore_file_errors: Option<Setting<bool>>,
    /// Whether directories that cannot be read fail no snapshot
    #[arg(long, value_name = "BOOL")]
    pub ignore_dir_errors: Option<Setting<bool>>,
    /// Whether entries of an unknown type fail no snapshot
    #[arg(long, value_name = "BOOL")]
    pub ignore_unknown_types: Option<Setting<bool>>,

    /// Take a snapshot this often; for programs that follow schedules
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub snapshot_interval: Option<Duration>,
    /// Take snapshots at these times of day (HH:MM,HH:MM), or `inherit`
    #[arg(long, value_name = "TIMES")]
    pub snapshot_time: Option<String>,
    /// Take snapshots by these cron expressions, with semicolons between them, or `inherit`
    #[arg(long, value_name = "CRON")]
    pub snapshot_time_crontab: Option<String>,
    /// Whether a snapshot that was missed is made up for
    #[arg(long, value_name = "BOOL")]
    pub run_missed: Option<Setting<bool>>,
    /// Take snapshots only when asked to
    #[arg(long)]
    pub manual: bool,

    /// Commands before and after.
    #[command(flatten)]
    pub actions: ActionArgs,

    /// How detailed the log is.
    #[command(flatten)]
    pub logging: LoggingArgs,
    /// When a volume shadow copy is read; for Windows, and kopia there: it changes nothing here
    #[arg(long, value_name = "MODE")]
    pub enable_volume_shadow_copy: Option<ShadowCopy>,

    /// How many files are read at once
    #[arg(long, value_name = "N")]
    pub max_parallel_file_reads: Option<Setting<u32>>,
    /// How many snapshots are taken at once; for programs that take several
    #[arg(long, value_name = "N")]
    pub max_parallel_snapshots: Option<Setting<u32>>,
    /// From how many MiB on a file is stored in parts
    #[arg(long, value_name = "MIB")]
    pub parallel_upload_above_size_mib: Option<Setting<u32>>,
    /// Whether nothing is inherited from policies above
    #[arg(long, value_name = "BOOL")]
    pub no_parent: Option<bool>,
    /// Whether settings are inherited from policies above (the opposite of --no-parent)
    #[arg(long, value_name = "BOOL", conflicts_with = "no_parent")]
    pub inherit: Option<bool>,
}

impl SetArgs {
    /// Changes the policy.
    pub fn apply(&self, policy: &mut Policy) -> Result<()> {
        self.apply_retention(policy);
        self.apply_compression(policy)?;
        self.apply_files(policy);
        self.apply_schedule(policy)?;
        self.actions.apply(&mut policy.actions)?;
        self.logging.apply(policy);
        self.apply_shadow_copy(policy);
        set(&mut policy.error_handling.ignore_file_errors, &self.ignore_file_errors);
        set(&mut policy.error_handling.ignore_directory_errors, &self.ignore_dir_errors);
        set(&mut policy.error_handling.ignore_unknown_types, &self.ignore_unknown_types);
        set(&mut policy.upload.max_parallel_file_reads, &self.max_parallel_file_reads);
        set(&mut policy.upload.max_parallel_snapshots, &self.max_parallel_snapshots);
        if let Some(setting) = self.parallel_upload_above_size_mib {
            policy.upload.parallel_upload_above_size = setting.into_option().map(|mib| i64::from(mib) << 20);
        }
        let no_parent = self.no_parent.or(self.inherit.map(|inherits| !inherits));
        policy.no_parent = no_parent.unwrap_or(policy.no_parent);
        Ok(())
    }

    fn apply_shadow_copy(&self, policy: &mut Policy) {
        let Some(mode) = self.enable_volume_shadow_copy else { return };
        policy.os_snapshots.volume_shadow_copy.enable = match mode {
            ShadowCopy::Never => Some(0),
            ShadowCopy::Always => Some(1),
            ShadowCopy::WhenAvailable => Some(2),
            ShadowCopy::Inherit => None,
        };
        eprintln!("Volume shadow copies are made on Windows, by kopia; the setting is kept for it.");
    }

    fn apply_retention(&self, policy: &mut Policy) {
        let retention = &mut policy.retention;
        set(&mut retention.keep_latest, &self.keep_latest);
        set(&mut retention.keep_hourly, &self.keep_hourly);
        set(&mut retention.keep_daily, &self.keep_daily);
        set(&mut retention.keep_weekly, &self.keep_weekly);
        set(&mut retention.keep_monthly, &self.keep_monthly);
        set(&mut retention.keep_annual, &self.keep_annual);
        set(&mut retention.ignore_identical_snapshots, &self.ignore_identical_snapshots);
    }

    fn apply_compression(&self, policy: &mut Policy) -> Result<()> {
        let places = [
            (&self.compression, &mut policy.compression.compressor),
            (&self.metadata_compression, &mut policy.metadata_compression.compressor),
        ];
        for (name, place) in places {
            match name.as_deref() {
                None => {}
                Some("inherit") => place.clear(),
                Some(name) => {
                    if name != "none" {
                        Compressor::from_name(name)?;
                    }
                    name.clone_into(place);
                }
            }
        }
        let compression = &mut policy.compression;
        compression.min_size = self.compression_min_size.unwrap_or(compression.min_size);
        compression.max_size = self.compression_max_size.unwrap_or(compression.max_size);
        self.only_compress.apply(&mut compression.only_compress);
        self.never_compress.apply(&mut compression.never_compress);
        match self.splitter.as_deref() {
            None => {}
            Some("inherit") => policy.splitter.algorithm.clear(),
            Some(name) => {
                SplitterAlgorithm::from_name(name)?;
                name.clone_into(&mut policy.splitter.algorithm);
            }
        }
        Ok(())
    }

    fn apply_files(&self, policy: &mut Policy) {
        let files = &mut policy.files;
        self.ignore.apply(&mut files.ignore);
        self.dot_ignore.apply(&mut files.ignore_dot_files);
        files.max_file_size = self.max_file_size.unwrap_or(files.max_file_size);
        set(&mut files.one_file_system, &self.one_file_system);
        set(&mut files.ignore_cache_dirs, &self.ignore_cache_dirs);
    }

    fn apply_schedule(&self, policy: &mut Policy) -> Result<()> {
        let schedule = &mut policy.scheduling;
        if let Some(interval) = self.snapshot_interval {
            schedule.interval_seconds = i64::try_from(interval.as_secs()).unwrap_or(i64::MAX);
        }
        match self.snapshot_time.as_deref() {
            None => {}
            Some("inherit") => schedule.times_of_day.clear(),
            Some(times) => schedule.times_of_day = times.split(',').map(parse_time).collect::<Result<_>>()?,
        }
        match self.snapshot_time_crontab.as_deref() {
            None => {}
            Some("inherit") => schedule.cron.clear(),
            Some(lines) => schedule.cron = lines.split(';').map(|line| line.trim().to_owned()).collect(),
        }
        set(&mut schedule.run_missed, &self.run_missed);
        schedule.manual |= self.manual;
        Ok(())
    }
}

fn parse_time(text: &str) -> Result<TimeOfDay> {
    let parts = text.trim().split_once(':').map(|(hour, minute)| (hour.parse(), minute.parse()));
    match parts {
        Some((Ok(hour @ 0..24), Ok(minute @ 0..60))) => {
            Ok(TimeOfDay { hour, minute, ..TimeOfDay::default() })
        }
        _ => bail!("{text:?} is not a time of day such as 18:30"),
    }
}

/// Changes a list: each value is in it once, in order.
fn edit(list: &mut Vec<String>, clear: bool, add: &[String], remove: &[String]) {
    if clear {
        list.clear();
    }
    list.extend(add.iter().cloned());
    list.retain(|value| !remove.contains(value));
    if !add.is_empty() {
        list.sort();
        list.dedup();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: SetArgs,
    }

    fn applied(words: &[&str], policy: &Policy) -> Result<Policy> {
        let mut changed = policy.clone();
        Line::try_parse_from(std::iter::once("set").chain(words.iter().copied()))?.set.apply(&mut changed)?;
        Ok(changed)
    }

    #[test]
    fn numbers_are_set_and_inherited_again() {
        let set = applied(&["--keep-latest=5", "--keep-daily=0"], &Policy::default()).unwrap();
        assert_eq!((set.retention.keep_latest, set.retention.keep_daily), (Some(5), Some(0)));
        let inherited = applied(&["--keep-latest=inherit"], &set).unwrap();
        assert_eq!((inherited.retention.keep_latest, inherited.retention.keep_daily), (None, Some(0)));
        assert!(applied(&["--keep-latest=many"], &set).is_err());
    }

    #[test]
    fn lists_grow_and_shrink() {
        let set = applied(&["--add-ignore=*.o", "--add-ignore=*.a"], &Policy::default()).unwrap();
        assert_eq!(set.files.ignore, ["*.a", "*.o"]);
        let fewer = applied(&["--remove-ignore=*.o"], &set).unwrap();
        assert_eq!(fewer.files.ignore, ["*.a"]);
        assert!(applied(&["--clear-ignore"], &set).unwrap().files.ignore.is_empty());
    }

    #[test]
    fn details_of_the_log_are_numbers_up_to_ten() {
        let set = applied(&["--log-dir-ignored=7", "--log-entry-cache-hit=0"], &Policy::default()).unwrap();
        assert_eq!((set.logging.directories.ignored, set.logging.entries.cache_hit), (Some(7), Some(0)));
        let inherited = applied(&["--log-dir-ignored=inherit"], &set).unwrap();
        assert_eq!(inherited.logging.directories.ignored, None);
        assert!(applied(&["--log-dir-ignored=11"], &set).is_err());
        let set = applied(&["--enable-volume-shadow-copy=when-available"], &Policy::default()).unwrap();
        assert_eq!(set.os_snapshots.volume_shadow_copy.enable, Some(2));
    }

    #[test]
    fn what_nobody_understands_is_refused() {
        for wrong in ["--compression=zip", "--splitter=none", "--snapshot-time=25:00", "--snapshot-time=noon"]
        {
            assert!(applied(&[wrong], &Policy::default()).is_err(), "{wrong}");
        }
        let times = applied(&["--snapshot-time=06:00,18:30"], &Policy::default()).unwrap();
        assert_eq!(times.scheduling.times_of_day.len(), 2);
    }
}
