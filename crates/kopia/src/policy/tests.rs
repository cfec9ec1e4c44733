#![allow(clippy::unwrap_used)]

use super::*;
use crate::gojson;
use crate::manifest::ManifestId;
use crate::snapshot::{SnapshotManifest, SourceInfo};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

/// The global policy that Kopia 0.22.3 stores in a new repository.
const KOPIA_GLOBAL: &str = r#"{"retention":{"keepLatest":10,"keepHourly":48,"keepDaily":7,"keepWeekly":4,"keepMonthly":24,"keepAnnual":3,"ignoreIdenticalSnapshots":false},"files":{"ignoreDotFiles":[".kopiaignore"]},"errorHandling":{"ignoreFileErrors":false,"ignoreDirectoryErrors":false,"ignoreUnknownTypes":true},"scheduling":{"runMissed":true},"compression":{"compressorName":"none"},"metadataCompression":{"compressorName":"zstd-fastest"},"splitter":{},"actions":{},"osSnapshots":{"volumeShadowCopy":{"enable":0}},"logging":{"directories":{"snapshotted":5,"ignored":5},"entries":{"snapshotted":0,"ignored":5,"cacheHit":0,"cacheMiss":0}},"upload":{"maxParallelSnapshots":1,"parallelUploadAboveSize":2147483648}}"#;

fn parse(json: &str) -> Policy {
    serde_json::from_str(json).unwrap()
}

fn defined(target: &str, json: &str) -> DefinedPolicy {
    let target = SourceInfo::parse(target).unwrap();
    DefinedPolicy { id: ManifestId::from(target.to_string()), target, policy: parse(json) }
}

fn source(text: &str) -> SourceInfo {
    SourceInfo::parse(text).unwrap()
}

#[test]
fn the_defaults_are_what_kopia_stores() {
    assert_eq!(gojson::to_string(&Policy::defaults()).unwrap(), KOPIA_GLOBAL);
    assert_eq!(parse(KOPIA_GLOBAL), Policy::defaults());
}

#[test]
fn every_section_is_written_even_if_empty_and_every_field_survives() {
    assert_eq!(
        gojson::to_string(&Policy::default()).unwrap(),
        r#"{"retention":{},"files":{},"errorHandling":{},"scheduling":{},"compression":{},"metadataCompression":{},"splitter":{},"actions":{},"osSnapshots":{"volumeShadowCopy":{}},"logging":{"directories":{},"entries":{}},"upload":{}}"#
    );
    // Kopia 0.22.0 left empty sections out.
    assert_eq!(parse("{}"), Policy::default());
    let full = r#"{"retention":{"keepLatest":0},"files":{"ignore":["*.tmp"],"noParentIgnore":true,"ignoreDotFiles":["x"],"noParentDotFiles":true,"ignoreCacheDirs":false,"maxFileSize":5,"oneFileSystem":true},"errorHandling":{},"scheduling":{"intervalSeconds":60,"timeOfDay":[{"hour":1,"min":2}],"noParentTimeOfDay":true,"cron":["* * * * *"]},"compression":{"compressorName":"zstd","onlyCompress":[".a"],"noParentOnlyCompress":true,"neverCompress":[".b"],"noParentNeverCompress":true,"minSize":1,"maxSize":2},"metadataCompression":{},"splitter":{"algorithm":"FIXED"},"actions":{"beforeFolder":{"path":"/bin/x","args":["y"],"timeout":5,"mode":"optional"},"afterSnapshotRoot":{"script":"z"}},"osSnapshots":{"volumeShadowCopy":{"enable":2}},"logging":{"directories":{},"entries":{}},"upload":{"maxParallelFileReads":3},"noParent":true,"future":{"a":1}}"#;
    assert_eq!(gojson::to_string(&parse(full)).unwrap(), full);
}

#[test]
fn labels_say_what_a_policy_is_for() {
    let text = |target: &str| gojson::to_string(&labels(&source(target))).unwrap();
    assert_eq!(text("(global)"), r#"{"policyType":"global","type":"policy"}"#);
    assert_eq!(text("@h"), r#"{"hostname":"h","policyType":"host","type":"policy"}"#);
    assert_eq!(text("u@h"), r#"{"hostname":"h","policyType":"user","type":"policy","username":"u"}"#);
    assert_eq!(
        text("u@h:/p"),
        r#"{"hostname":"h","path":"/p","policyType":"path","type":"policy","username":"u"}"#
    );
}

fn set() -> PolicySet {
    PolicySet {
        defined: vec![
            defined(
                "(global)",
                r#"{"retention":{"keepLatest":1,"keepDaily":1},"compression":{"neverCompress":[".zip"]},"actions":{"beforeSnapshotRoot":{"path":"g"},"beforeFolder":{"path":"g"}}}"#,
            ),
            defined("@h", r#"{"retention":{"keepLatest":2,"keepWeekly":2}}"#),
            defined(
                "u@h",
                r#"{"retention":{"keepLatest":3},"scheduling":{"timeOfDay":[{"hour":9,"min":0}]}}"#,
            ),
            defined("u@h:/", r#"{"files":{"ignore":["root"]}}"#),
            defined(
                "u@h:/data",
                r#"{"files":{"maxFileSize":7},"compression":{"neverCompress":[".gz",".aa"]},"scheduling":{"timeOfDay":[{"hour":8,"min":30},{"hour":9,"min":0}]}}"#,
            ),
            defined("u@h:/data/sub/deep", r#"{"files":{"ignore":["deep"]}}"#),
            defined("other@h:/data", r#"{"retention":{"keepLatest":99}}"#),
            defined("u@h:/database", r#"{"retention":{"keepLatest":98}}"#),
        ],
        damaged: vec![],
    }
}

#[test]
fn the_effective_policy_takes_each_field_from_the_most_specific_that_sets_it() {
    let (policy, definitions) = set().effective(&source("u@h:/data")).unwrap();
    assert_eq!(policy.retention.keep_latest, Some(3));
    assert_eq!(policy.retention.keep_weekly, Some(2));
    assert_eq!(policy.retention.keep_daily, Some(1));
    assert_eq!(policy.retention.keep_monthly, Some(24), "built-in");
    assert_eq!(policy.files.ignore, ["root"]);
    assert_eq!(policy.files.max_file_size, 7);
    assert_eq!(policy.compression.never_compress, [".aa", ".gz", ".zip"], "lists of extensions are joined");
    let times: Vec<_> = policy.scheduling.times_of_day.iter().map(|time| (time.hour, time.minute)).collect();
    assert_eq!(times, [(8, 30), (9, 0)]);
    assert_eq!(policy.actions.before_snapshot_root.unwrap().command, "g");
    assert_eq!(policy.actions.before_folder, None, "what belongs to a folder is not inherited");
    for (field, from) in [
        ("retention.keepLatest", "u@h"),
        ("retention.keepWeekly", "@h"),
        ("retention.keepDaily", "(global)"),
        ("files.ignore", "u@h:/"),
        ("files.maxFileSize", "u@h:/data"),
        ("retention.keepMonthly", "(global)"),
    ] {
        assert_eq!(definitions[field].to_string(), from, "{field}");
    }
}

#[test]
fn a_source_without_policies_has_the_defaults() {
    let (policy, _) = PolicySet::default().effective(&source("x@y:/z")).unwrap();
    assert_eq!(policy, Policy::defaults());
}

#[test]
fn no_parent_ends_the_merge_defaults_included() {
    let mut set = set();
    set.defined[4].policy.no_parent = true;
    let (policy, _) = set.effective(&source("u@h:/data")).unwrap();
    assert_eq!((policy.retention, policy.files.ignore.len()), (RetentionPolicy::default(), 0));
    let closed = [
        defined(
            "u@h:/a/b",
            r#"{"compression":{"onlyCompress":[".x"],"noParentOnlyCompress":true},"scheduling":{"noParentTimeOfDay":true}}"#,
        ),
        defined(
            "u@h:/a",
            r#"{"compression":{"onlyCompress":[".y"]},"scheduling":{"timeOfDay":[{"hour":1,"min":1}]}}"#,
        ),
    ];
    let (policy, _) = merge(&closed);
    assert_eq!(policy.compression.only_compress, [".x"]);
    assert!(policy.scheduling.times_of_day.is_empty());
}

#[test]
fn policies_of_all_ancestors_apply_on_unix_and_windows_and_to_relative_paths() {
    let names = |text: &str, targets: &[&str]| {
        let set = PolicySet {
            defined: targets.iter().map(|target| defined(target, "{}")).collect(),
            damaged: vec![],
        };
        let found = set.hierarchy(&source(text)).unwrap();
        found.iter().map(|policy| policy.target.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        names("u@h:/a/b", &["u@h:/", "u@h:/a", "u@h:/a/b", "u@h:/a/b/c", "u@h:/ab"]),
        ["/a/b", "/a", "/"]
    );
    assert_eq!(names(r"u@h:C:\a\b", &[r"u@h:C:\", r"u@h:C:\a", r"u@h:C:\a\b"]), [r"C:\a\b", r"C:\a", r"C:\"]);
    assert_eq!(names("u@h:r/kopia/ns", &["u@h:r", "u@h:r/kopia", "u@h:/"]), ["r/kopia", "r"]);
}

#[test]
fn directories_below_have_their_own_policy_as_it_stands() {
    let tree = set().tree(&source("u@h:/data")).unwrap();
    assert!(tree.is_defined());
    assert_eq!(tree.policy().retention.keep_latest, Some(3));
    let sub = tree.child("sub");
    assert!(!sub.is_defined());
    assert_eq!(sub.policy(), tree.policy());
    let deep = sub.child("deep").child("er");
    assert_eq!(deep.policy().files.ignore, ["deep"]);
    assert_eq!(deep.policy().retention.keep_latest, None, "not merged");
    assert_eq!(sub.child("other").policy(), tree.policy());
    assert_eq!(
        set().tree(&source("u@h:/")).unwrap().child("data").child("x").policy().files.max_file_size,
        7
    );
}

#[test]
fn nobody_guesses_what_a_damaged_policy_says() {
    let mut set = set();
    let target = source("u@h");
    set.damaged.push(DamagedPolicy { id: "d".into(), target, reason: "broken".into() });
    assert!(set.effective(&source("u@h:/data")).is_err());
    assert!(set.effective(&source("x@h:/data")).is_ok());
    set.damaged[0].target = source("u@h:/data/sub");
    assert!(set.effective(&source("u@h:/data")).is_ok());
    assert!(set.tree(&source("u@h:/data")).is_err());
}

#[test]
fn policies_that_make_no_sense_are_refused() {
    let valid = |target: &str, json: &str| parse(json).validate(&source(target)).is_ok();
    assert!(valid("u@h:/p", r#"{"scheduling":{"manual":true}}"#));
    assert!(!valid("u@h:/p", r#"{"scheduling":{"manual":true,"intervalSeconds":1}}"#));
    assert!(valid("u@h", r#"{"upload":{"maxParallelSnapshots":2}}"#));
    assert!(!valid("u@h:/p", r#"{"upload":{"maxParallelSnapshots":2}}"#));
    assert!(valid("u@h:/", "{}") && valid(r"u@h:C:\", "{}"));
    assert!(!valid("u@h:/p/", "{}"));
}

fn snapshots(starts: &[&str]) -> Vec<SnapshotManifest> {
    let snapshot = |text: &&str| {
        let (start, incomplete) = text.split_once(' ').unwrap_or((text, ""));
        SnapshotManifest {
            id: start.into(),
            start_time: start.parse().unwrap(),
            incomplete: incomplete.to_owned(),
            ..SnapshotManifest::default()
        }
    };
    starts.iter().map(snapshot).collect()
}

fn reasons(starts: &[&str], policy: &RetentionPolicy) -> Vec<String> {
    compute_retention(&snapshots(starts), policy, &TimeZone::UTC)
        .iter()
        .map(|kept| kept.reasons.join(","))
        .collect()
}

#[test]
fn snapshots_fill_the_slots_of_each_period() {
    let policy = RetentionPolicy {
        keep_latest: Some(3),
        keep_hourly: Some(5),
        keep_daily: Some(3),
        keep_weekly: Some(2),
        keep_monthly: Some(2),
        keep_annual: Some(1),
        ..Default::default()
    };
    let starts = [
        "2020-08-01T12:00:00Z",
        "2020-08-01T12:01:00Z",
        "2020-08-01T12:02:00Z",
        "2020-08-02T12:00:00Z",
        "2020-08-02T12:01:00Z",
        "2020-08-03T11:30:00Z",
        "2020-08-03T12:00:00Z",
    ];
    assert_eq!(
        reasons(&starts, &policy),
        [
            "",
            "",
            "daily-3",
            "",
            "latest-3,daily-2,weekly-2",
            "latest-2,hourly-2",
            "latest-1,hourly-1,daily-1,weekly-1,monthly-1,annual-1",
        ]
    );
}

#[test]
fn a_week_and_a_month_of_equal_number_are_one_period_as_with_kopia() {
    let policy = RetentionPolicy { keep_weekly: Some(4), keep_monthly: Some(4), ..Default::default() };
    // The first week of the year, in its first month.
    assert_eq!(reasons(&["2020-01-03T12:00:00Z"], &policy), ["monthly-1"]);
}

#[test]
fn counters_that_are_all_zero_keep_everything() {
    let zero = RetentionPolicy { keep_latest: Some(0), keep_annual: Some(0), ..Default::default() };
    for policy in [zero, RetentionPolicy::default()] {
        let kept =
            reasons(&["2020-01-01T12:00:00Z", "2020-01-01T12:00:01Z", "2020-01-01T12:00:02Z"], &policy);
        assert_eq!(kept, ["latest-3", "latest-2", "latest-1"]);
    }
}

#[test]
fn incomplete_snapshots_stay_while_their_upload_may_go_on() {
    let policy = RetentionPolicy { keep_latest: Some(1), ..Default::default() };
    let starts = [
        "2020-01-01T00:00:00Z c",
        "2020-01-02T00:00:00Z",
        "2020-01-03T00:00:00Z c",
        "2020-01-03T05:00:00Z c",
        "2020-01-03T06:00:00Z c",
        "2020-01-03T07:00:00Z c",
        "2020-01-03T08:00:00Z c",
        "2020-01-03T09:00:00Z c",
    ];
    let incomplete = "incomplete";
    assert_eq!(
        reasons(&starts, &policy),
        ["", "latest-1", "", "", incomplete, incomplete, incomplete, incomplete]
    );
    assert_eq!(
        reasons(&["2020-01-01T00:00:00Z c", "2020-02-01T00:00:00Z c"], &policy),
        [incomplete, incomplete]
    );
}

#[test]
fn pins_keep_a_snapshot_whatever_the_policy_says() {
    let mut all = snapshots(&["2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z", "2020-01-03T00:00:00Z"]);
    all[0].pins.push("velero-pin".into());
    let policy = RetentionPolicy { keep_latest: Some(1), ..Default::default() };
    let expired: Vec<_> =
        compute_retention(&all, &policy, &TimeZone::UTC).iter().map(Retained::is_expired).collect();
    assert_eq!(expired, [false, true, false]);
}

#[test]
fn months_count_as_go_counts_them() {
    // One month before the 31st of March is "the 31st of February": the 2nd of March in a leap year.
    let policy = RetentionPolicy { keep_monthly: Some(1), ..Default::default() };
    let kept = reasons(&["2020-03-01T23:59:59Z", "2020-03-02T00:00:01Z"], &policy);
    assert_eq!(kept, ["", "monthly-1"]);
    let both = RetentionPolicy { keep_monthly: Some(1), keep_latest: Some(1), ..Default::default() };
    assert_eq!(reasons(&["2020-03-01T00:00:00Z", "2020-03-31T00:00:00Z"], &both), ["", "latest-1,monthly-1"]);
}

#[test]
fn counts_beyond_all_calendars_keep_everything() {
    let forever = Some(i64::from(i32::MAX));
    let policy = RetentionPolicy {
        keep_latest: forever,
        keep_hourly: forever,
        keep_daily: forever,
        keep_weekly: Some(i64::MAX),
        keep_monthly: Some(i64::MAX),
        keep_annual: Some(i64::MAX),
        ..Default::default()
    };
    let kept = reasons(&["1970-01-01T00:00:00Z", "2026-01-01T00:00:00Z"], &policy);
    assert!(kept.iter().all(|reasons| reasons.contains("annual") && reasons.contains("hourly")), "{kept:?}");
}

#[test]
fn no_snapshots_need_no_decision() {
    assert!(compute_retention(&[], &Policy::defaults().retention, &TimeZone::UTC).is_empty());
}

proptest! {
    #[test]
    fn the_newest_complete_snapshot_is_always_kept(
        offsets in proptest::collection::vec((0i64..200_000, any::<bool>()), 1..60),
        keeps in proptest::array::uniform6(proptest::option::of(-2i64..5)),
    ) {
        let [keep_latest, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_annual] = keeps;
        let policy = RetentionPolicy { keep_latest, keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_annual, ..Default::default() };
        let begin: Timestamp = "2020-01-01T00:00:00Z".parse().unwrap();
        let all: Vec<_> = offsets.iter().map(|(minutes, complete)| SnapshotManifest {
            start_time: begin + SignedDuration::from_mins(*minutes),
            incomplete: if *complete { String::new() } else { "checkpoint".into() },
            ..Default::default()
        }).collect();
        let kept = compute_retention(&all, &policy, &TimeZone::UTC);
        prop_assert_eq!(kept.len(), all.len());
        let newest = all.iter().filter(|s| s.is_complete()).map(|s| s.start_time).max();
        if keeps.iter().flatten().any(|count| *count > 0) && newest.is_some() {
            let positive = [keep_hourly, keep_daily, keep_weekly, keep_monthly, keep_annual, keep_latest];
            if positive.iter().flatten().all(|count| *count >= 0) {
                let survives = all.iter().zip(&kept).any(|(s, kept)| Some(s.start_time) == newest && !kept.is_expired());
                prop_assert!(survives);
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_a_policy_but_never_a_panic(bytes: Vec<u8>) {
        let _ = serde_json::from_slice::<Policy>(&bytes);
    }
}
