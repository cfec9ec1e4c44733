//! The sections of a policy. A field that is not set is inherited.

use crate::gojson::{Unknown, go_object};
use crate::snapshot::SourceInfo;
use crate::{Error, Result};

go_object! {
    /// How many snapshots are kept.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RetentionPolicy {
        /// The latest ones.
        pub keep_latest: Option<i64> => "keepLatest" omitempty,
        /// The last of each of so many hours.
        pub keep_hourly: Option<i64> => "keepHourly" omitempty,
        /// The last of each of so many days.
        pub keep_daily: Option<i64> => "keepDaily" omitempty,
        /// The last of each of so many weeks.
        pub keep_weekly: Option<i64> => "keepWeekly" omitempty,
        /// The last of each of so many months.
        pub keep_monthly: Option<i64> => "keepMonthly" omitempty,
        /// The last of each of so many years.
        pub keep_annual: Option<i64> => "keepAnnual" omitempty,
        /// Whether a snapshot that equals the one before it is not saved.
        pub ignore_identical_snapshots: Option<bool> => "ignoreIdenticalSnapshots" omitempty,
    }
}

go_object! {
    /// Which files are backed up.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct FilesPolicy {
        /// Rules in the syntax of `.gitignore`.
        pub ignore: Vec<String> => "ignore" omitempty,
        /// Whether the rules of the parent do not apply.
        pub no_parent_ignore: bool => "noParentIgnore" omitempty,
        /// Names of files that contain rules.
        pub ignore_dot_files: Vec<String> => "ignoreDotFiles" omitempty,
        /// Whether the parent's names do not apply.
        pub no_parent_dot_files: bool => "noParentDotFiles" omitempty,
        /// Whether directories with a valid `CACHEDIR.TAG` are left out; the default is yes.
        pub ignore_cache_dirs: Option<bool> => "ignoreCacheDirs" omitempty,
        /// Larger files are left out; 0 means none.
        pub max_file_size: i64 => "maxFileSize" omitempty,
        /// Whether other file systems that are mounted below are left out.
        pub one_file_system: Option<bool> => "oneFileSystem" omitempty,
    }
}

go_object! {
    /// Which errors do not fail a snapshot.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ErrorHandlingPolicy {
        /// Files that cannot be read.
        pub ignore_file_errors: Option<bool> => "ignoreFileErrors" omitempty,
        /// Directories that cannot be read.
        pub ignore_directory_errors: Option<bool> => "ignoreDirectoryErrors" omitempty,
        /// Entries that are neither file, directory nor link.
        pub ignore_unknown_types: Option<bool> => "ignoreUnknownTypes" omitempty,
    }
}

go_object! {
    /// A time of day.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct TimeOfDay {
        /// 0 to 23.
        pub hour: i64 => "hour",
        /// 0 to 59.
        pub minute: i64 => "min",
    }
}

go_object! {
    /// When snapshots are taken.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct SchedulingPolicy {
        /// Every so many seconds.
        pub interval_seconds: i64 => "intervalSeconds" omitempty,
        /// At these times of day.
        pub times_of_day: Vec<TimeOfDay> => "timeOfDay" omitempty,
        /// Whether the parent's times do not apply.
        pub no_parent_times_of_day: bool => "noParentTimeOfDay" omitempty,
        /// Only when asked.
        pub manual: bool => "manual" omitempty,
        /// By cron expressions.
        pub cron: Vec<String> => "cron" omitempty,
        /// Whether a missed time is made up for.
        pub run_missed: Option<bool> => "runMissed" omitempty,
    }
}

go_object! {
    /// How file data is compressed.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct CompressionPolicy {
        /// The name of the compressor; `none` for none.
        pub compressor: String => "compressorName" omitempty,
        /// Extensions that are compressed.
        pub only_compress: Vec<String> => "onlyCompress" omitempty,
        /// Whether the parent's do not apply.
        pub no_parent_only_compress: bool => "noParentOnlyCompress" omitempty,
        /// Extensions that are not compressed.
        pub never_compress: Vec<String> => "neverCompress" omitempty,
        /// Whether the parent's do not apply.
        pub no_parent_never_compress: bool => "noParentNeverCompress" omitempty,
        /// Smaller files are not compressed.
        pub min_size: i64 => "minSize" omitempty,
        /// Larger files are not compressed.
        pub max_size: i64 => "maxSize" omitempty,
    }
}

go_object! {
    /// How directories and indirect indexes are compressed.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct MetadataCompressionPolicy {
        /// The name of the compressor; `none` for none.
        pub compressor: String => "compressorName" omitempty,
    }
}

go_object! {
    /// How files are cut into contents.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct SplitterPolicy {
        /// The name of the splitter; empty means the repository's.
        pub algorithm: String => "algorithm" omitempty,
    }
}

go_object! {
    /// A command, or a script, that runs before or after.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ActionCommand {
        /// The program.
        pub command: String => "path" omitempty,
        /// Its arguments.
        pub arguments: Vec<String> => "args" omitempty,
        /// A script instead.
        pub script: String => "script" omitempty,
        /// How many seconds it may take.
        pub timeout_seconds: i64 => "timeout" omitempty,
        /// `essential`, `optional` or `async`.
        pub mode: String => "mode" omitempty,
    }
}

go_object! {
    /// What runs before and after.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ActionsPolicy {
        /// Before the folder that the policy is for; not inherited.
        pub before_folder: Option<ActionCommand> => "beforeFolder" omitempty,
        /// After the folder that the policy is for; not inherited.
        pub after_folder: Option<ActionCommand> => "afterFolder" omitempty,
        /// Before each snapshot.
        pub before_snapshot_root: Option<ActionCommand> => "beforeSnapshotRoot" omitempty,
        /// After each snapshot.
        pub after_snapshot_root: Option<ActionCommand> => "afterSnapshotRoot" omitempty,
    }
}

go_object! {
    /// Volume shadow copies of Windows.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct VolumeShadowCopyPolicy {
        /// 0 never, 1 always, 2 when available.
        pub enable: Option<i64> => "enable" omitempty,
    }
}

go_object! {
    /// Snapshots that the operating system takes.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct OsSnapshotPolicy {
        /// On Windows.
        pub volume_shadow_copy: VolumeShadowCopyPolicy => "volumeShadowCopy",
    }
}

go_object! {
    /// How much is logged about directories, 0 (nothing) to 10.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct DirLogging {
        /// Those in the snapshot.
        pub snapshotted: Option<i64> => "snapshotted" omitempty,
        /// Those left out.
        pub ignored: Option<i64> => "ignored" omitempty,
    }
}

go_object! {
    /// How much is logged about files and links, 0 (nothing) to 10.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct EntryLogging {
        /// Those in the snapshot.
        pub snapshotted: Option<i64> => "snapshotted" omitempty,
        /// Those left out.
        pub ignored: Option<i64> => "ignored" omitempty,
        /// Those taken over from the parent.
        pub cache_hit: Option<i64> => "cacheHit" omitempty,
        /// Those read.
        pub cache_miss: Option<i64> => "cacheMiss" omitempty,
    }
}

go_object! {
    /// How much is logged.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct LoggingPolicy {
        /// About directories.
        pub directories: DirLogging => "directories",
        /// About files and links.
        pub entries: EntryLogging => "entries",
    }
}

go_object! {
    /// How much is done at once.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct UploadPolicy {
        /// Snapshots; not for a path.
        pub max_parallel_snapshots: Option<i64> => "maxParallelSnapshots" omitempty,
        /// Files; the default is the number of CPUs.
        pub max_parallel_file_reads: Option<i64> => "maxParallelFileReads" omitempty,
        /// Larger files are stored in parts of this size.
        pub parallel_upload_above_size: Option<i64> => "parallelUploadAboveSize" omitempty,
    }
}

go_object! {
    /// How a source is backed up, and how long its snapshots are kept. Every section is written, empty or not.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Policy {
        /// How many snapshots are kept.
        pub retention: RetentionPolicy => "retention",
        /// Which files are backed up.
        pub files: FilesPolicy => "files",
        /// Which errors are ignored.
        pub error_handling: ErrorHandlingPolicy => "errorHandling",
        /// When snapshots are taken.
        pub scheduling: SchedulingPolicy => "scheduling",
        /// How file data is compressed.
        pub compression: CompressionPolicy => "compression",
        /// How everything else is compressed.
        pub metadata_compression: MetadataCompressionPolicy => "metadataCompression",
        /// How files are cut.
        pub splitter: SplitterPolicy => "splitter",
        /// What runs before and after.
        pub actions: ActionsPolicy => "actions",
        /// Snapshots that the operating system takes.
        pub os_snapshots: OsSnapshotPolicy => "osSnapshots",
        /// How much is logged.
        pub logging: LoggingPolicy => "logging",
        /// How much is done at once.
        pub upload: UploadPolicy => "upload",
        /// Whether nothing is inherited.
        pub no_parent: bool => "noParent" omitempty,
    }
}

impl Policy {
    /// What applies where nothing else is said; also the global policy of a new repository.
    pub fn defaults() -> Policy {
        let mut policy = Policy::default();
        let retention = &mut policy.retention;
        retention.keep_latest = Some(10);
        retention.keep_hourly = Some(48);
        retention.keep_daily = Some(7);
        retention.keep_weekly = Some(4);
        retention.keep_monthly = Some(24);
        retention.keep_annual = Some(3);
        retention.ignore_identical_snapshots = Some(false);
        policy.files.ignore_dot_files = vec![".kopiaignore".to_owned()];
        policy.error_handling.ignore_file_errors = Some(false);
        policy.error_handling.ignore_directory_errors = Some(false);
        policy.error_handling.ignore_unknown_types = Some(true);
        policy.scheduling.run_missed = Some(true);
        policy.compression.compressor = "none".to_owned();
        policy.metadata_compression.compressor = "zstd-fastest".to_owned();
        policy.os_snapshots.volume_shadow_copy.enable = Some(0);
        policy.logging.directories.snapshotted = Some(5);
        policy.logging.directories.ignored = Some(5);
        policy.logging.entries.snapshotted = Some(0);
        policy.logging.entries.ignored = Some(5);
        policy.logging.entries.cache_hit = Some(0);
        policy.logging.entries.cache_miss = Some(0);
        policy.upload.max_parallel_snapshots = Some(1);
        policy.upload.parallel_upload_above_size = Some(2 << 30);
        policy
    }

    /// The fields, anywhere in it, that this program does not know: `section.name`.
    pub fn unknown_fields(&self) -> Vec<String> {
        let actions = &self.actions;
        let commands = [
            ("actions.beforeFolder.", &actions.before_folder),
            ("actions.afterFolder.", &actions.after_folder),
            ("actions.beforeSnapshotRoot.", &actions.before_snapshot_root),
            ("actions.afterSnapshotRoot.", &actions.after_snapshot_root),
        ];
        let commands =
            commands.iter().filter_map(|(name, command)| Some((*name, &command.as_ref()?.unknown)));
        let times = self.scheduling.times_of_day.iter().map(|time| ("scheduling.timeOfDay.", &time.unknown));
        let sections = [
            ("", &self.unknown),
            ("retention.", &self.retention.unknown),
            ("files.", &self.files.unknown),
            ("errorHandling.", &self.error_handling.unknown),
            ("scheduling.", &self.scheduling.unknown),
            ("compression.", &self.compression.unknown),
            ("metadataCompression.", &self.metadata_compression.unknown),
            ("splitter.", &self.splitter.unknown),
            ("actions.", &actions.unknown),
            ("osSnapshots.", &self.os_snapshots.unknown),
            ("osSnapshots.volumeShadowCopy.", &self.os_snapshots.volume_shadow_copy.unknown),
            ("logging.", &self.logging.unknown),
            ("logging.directories.", &self.logging.directories.unknown),
            ("logging.entries.", &self.logging.entries.unknown),
            ("upload.", &self.upload.unknown),
        ];
        let names = |(section, unknown): (&str, &Unknown)| {
            unknown.iter().map(|(name, _)| format!("{section}{name}")).collect::<Vec<_>>()
        };
        sections.into_iter().chain(times).chain(commands).flat_map(names).collect()
    }

    /// Whether this policy makes sense for `target`.
    pub fn validate(&self, target: &SourceInfo) -> Result<()> {
        let invalid =
            |rule: &str| Err(Error::Invalid(format!("the policy for {target} is not valid: {rule}")));
        let only_manual = SchedulingPolicy { manual: true, ..SchedulingPolicy::default() };
        if self.scheduling.manual && self.scheduling != only_manual {
            return invalid("a manual schedule cannot have times");
        }
        let path = target.path.as_str();
        if !path.is_empty() && self.upload.max_parallel_snapshots.is_some() {
            return invalid("the number of parallel snapshots cannot be set for a path");
        }
        let root = matches!(path.as_bytes(), [b'/'] | [_, b':', b'/' | b'\\']);
        if path.ends_with(['/', '\\']) && !root {
            return invalid("its path must not end with a slash");
        }
        Ok(())
    }
}
