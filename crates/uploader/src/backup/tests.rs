use super::*;
use lifeboat_kopia::policy::Policy;

fn options(max_parallel_file_reads: Option<i64>, threads: usize) -> BackupOptions {
    let mut policy = (**PolicyTree::from(Policy::defaults()).policy()).clone();
    policy.upload.max_parallel_file_reads = max_parallel_file_reads;
    BackupOptions {
        path: PathBuf::from("/nowhere"),
        source: SourceInfo::new("u", "h", "/nowhere"),
        policies: policy.into(),
        parents: Vec::new(),
        description: String::new(),
        extras: true,
        placeholders: false,
        checkpoint_interval: None,
        estimate: false,
        fail_fast: false,
        actions: false,
        force_hash: 0.0,
        upload_limit: None,
        log_details: LogDetails::default(),
        threads,
        budget: Budget::new(64 << 20),
    }
}

#[test]
fn as_many_threads_read_as_the_policy_says_unless_the_caller_says_otherwise() {
    let processors = threads(0);
    for (by_policy, by_caller, expected) in [
        (Some(3), 0, 3),
        (Some(100), 0, 100),
        (Some(3), 5, 5),
        (None, 5, 5),
        (None, 0, processors),
        (Some(0), 0, processors),
        (Some(-1), 0, processors),
    ] {
        assert_eq!(options(by_policy, by_caller).threads(), expected, "{by_policy:?} {by_caller}");
    }
}
