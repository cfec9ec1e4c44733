//! Merging policies from the most specific to the most general: a field that is set wins over those after it.

use super::{ActionsPolicy, DefinedPolicy, Policy, SchedulingPolicy};
use crate::gojson::OmitEmpty;
use crate::snapshot::SourceInfo;
use std::collections::BTreeMap;

/// Where each field of a merged policy comes from: `retention.keepLatest` → the target of the policy that set it.
pub type Definitions = BTreeMap<&'static str, SourceInfo>;

/// The merge of `policies` (most specific first) and the built-in defaults, and where each field comes from.
///
/// A policy with `noParent` ends the merge: what it leaves open stays open, defaults included.
pub fn merge<'a>(policies: impl IntoIterator<Item = &'a DefinedPolicy>) -> (Policy, Definitions) {
    let mut merged = Merged::default();
    let mut folder_actions = None;
    for defined in policies {
        merged.add(&defined.policy, &defined.target);
        folder_actions.get_or_insert(&defined.policy.actions);
        if defined.policy.no_parent {
            return (merged.policy, merged.definitions);
        }
    }
    merged.add(&Policy::defaults(), &SourceInfo::global());
    if let Some(ActionsPolicy { before_folder, after_folder, .. }) = folder_actions {
        merged.policy.actions.before_folder = before_folder.clone();
        merged.policy.actions.after_folder = after_folder.clone();
    }
    (merged.policy, merged.definitions)
}

#[derive(Default)]
struct Merged {
    policy: Policy,
    definitions: Definitions,
}

/// Takes each named field over if it is not set yet.
macro_rules! inherit {
    ($definitions:expr, $from:expr, $into:expr, $other:expr, $($field:ident => $name:literal),* $(,)?) => {
        $(if $into.$field.is_empty_value() && !$other.$field.is_empty_value() {
            $into.$field = $other.$field.clone();
            $definitions.insert($name, $from.clone());
        })*
    };
}

impl Merged {
    fn add(&mut self, other: &Policy, from: &SourceInfo) {
        let Merged { policy: into, definitions } = self;
        inherit!(definitions, from, into.retention, other.retention,
            keep_latest => "retention.keepLatest", keep_hourly => "retention.keepHourly",
            keep_daily => "retention.keepDaily", keep_weekly => "retention.keepWeekly",
            keep_monthly => "retention.keepMonthly", keep_annual => "retention.keepAnnual",
            ignore_identical_snapshots => "retention.ignoreIdenticalSnapshots");
        inherit!(definitions, from, into.files, other.files,
            ignore => "files.ignore", no_parent_ignore => "files.noParentIgnore",
            ignore_dot_files => "files.ignoreDotFiles", no_parent_dot_files => "files.noParentDotFiles",
            ignore_cache_dirs => "files.ignoreCacheDirs", max_file_size => "files.maxFileSize",
            one_file_system => "files.oneFileSystem");
        inherit!(definitions, from, into.error_handling, other.error_handling,
            ignore_file_errors => "errorHandling.ignoreFileErrors",
            ignore_directory_errors => "errorHandling.ignoreDirectoryErrors",
            ignore_unknown_types => "errorHandling.ignoreUnknownTypes");
        inherit!(definitions, from, into.scheduling, other.scheduling,
            interval_seconds => "scheduling.intervalSeconds", cron => "scheduling.cron",
            manual => "scheduling.manual", run_missed => "scheduling.runMissed");
        inherit!(definitions, from, into.compression, other.compression,
            compressor => "compression.compressorName", min_size => "compression.minSize",
            max_size => "compression.maxSize");
        inherit!(definitions, from, into.metadata_compression, other.metadata_compression,
            compressor => "metadataCompression.compressorName");
        inherit!(definitions, from, into.splitter, other.splitter, algorithm => "splitter.algorithm");
        inherit!(definitions, from, into.actions, other.actions,
            before_snapshot_root => "actions.beforeSnapshotRoot", after_snapshot_root => "actions.afterSnapshotRoot");
        inherit!(definitions, from, into.os_snapshots.volume_shadow_copy, other.os_snapshots.volume_shadow_copy,
            enable => "osSnapshots.volumeShadowCopy.enable");
        inherit!(definitions, from, into.logging.directories, other.logging.directories,
            snapshotted => "logging.directories.snapshotted", ignored => "logging.directories.ignored");
        inherit!(definitions, from, into.logging.entries, other.logging.entries,
            snapshotted => "logging.entries.snapshotted", ignored => "logging.entries.ignored",
            cache_hit => "logging.entries.cacheHit", cache_miss => "logging.entries.cacheMiss");
        inherit!(definitions, from, into.upload, other.upload,
            max_parallel_snapshots => "upload.maxParallelSnapshots",
            max_parallel_file_reads => "upload.maxParallelFileReads",
            parallel_upload_above_size => "upload.parallelUploadAboveSize");
        self.join_lists(other, from);
    }

    /// The lists that are joined with the parent's unless told not to.
    fn join_lists(&mut self, other: &Policy, from: &SourceInfo) {
        let Merged { policy, definitions } = self;
        let (into, compression) = (&mut policy.compression, &other.compression);
        if join(&mut into.only_compress, &mut into.no_parent_only_compress, &compression.only_compress) {
            definitions.insert("compression.onlyCompress", from.clone());
        }
        into.no_parent_only_compress |= compression.no_parent_only_compress;
        if join(&mut into.never_compress, &mut into.no_parent_never_compress, &compression.never_compress) {
            definitions.insert("compression.neverCompress", from.clone());
        }
        into.no_parent_never_compress |= compression.no_parent_never_compress;
        if join_times(&mut policy.scheduling, &other.scheduling) {
            definitions.insert("scheduling.timeOfDay", from.clone());
        }
    }
}

/// Adds `other` to a sorted list, unless the list is closed to parents; returns whether there was something to add.
fn join(into: &mut Vec<String>, closed: &mut bool, other: &[String]) -> bool {
    if *closed || other.is_empty() {
        return false;
    }
    into.extend_from_slice(other);
    into.sort();
    into.dedup();
    true
}

fn join_times(into: &mut SchedulingPolicy, other: &SchedulingPolicy) -> bool {
    let added = !into.no_parent_times_of_day && !other.times_of_day.is_empty();
    if added {
        into.times_of_day.extend_from_slice(&other.times_of_day);
        into.times_of_day.sort_by_key(|time| (time.hour, time.minute));
        into.times_of_day.dedup();
    }
    into.no_parent_times_of_day |= other.no_parent_times_of_day;
    added
}
