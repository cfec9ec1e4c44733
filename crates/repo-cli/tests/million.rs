//! Very many files within the memory of a small container.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::Ours;
use lifeboat_testkit::cgroup::run_limited;
use lifeboat_testkit::tree::Random;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

const PASSWORD: &str = "correct horse battery staple";
const MIB: u64 = 1 << 20;
/// What the container has, and what the program may need for itself: the rest is page cache.
const LIMIT: u64 = 256 * MIB;
const OWN: u64 = 96 * MIB;
/// As many files are in each directory, on average, as in the tree that the benchmark measures.
const FILES_PER_DIRECTORY: usize = 20;

/// A million in the long run, else enough to see memory grow if it did.
fn file_count() -> usize {
    if std::env::var_os("LIFEBOAT_LONG").is_some() { 1_000_000 } else { 30_000 }
}

/// Files of 100 bytes to 4 KiB, a hundred directories in each directory.
fn plant(top: &Path, files: usize) {
    let mut random = Random::new(4);
    let data = random.bytes(8192);
    for directory in 0..files.div_ceil(FILES_PER_DIRECTORY) {
        let folder = top.join(format!("{:04}", directory / 100)).join(format!("{directory:06}"));
        std::fs::create_dir_all(&folder).unwrap();
        for file in 0..FILES_PER_DIRECTORY.min(files - directory * FILES_PER_DIRECTORY) {
            let (start, len) = (random.below(4096) as usize, 100 + random.below(3997) as usize);
            // Not two of them are equal.
            let mut content = format!("{directory}-{file}").into_bytes();
            content.extend_from_slice(&data[start..start + len - content.len()]);
            std::fs::write(folder.join(format!("file-{file:02}")), content).unwrap();
        }
    }
}

#[test]
fn very_many_files_are_backed_up_and_found_unchanged_in_a_small_container() {
    let files = file_count();
    let folder = tempfile::tempdir().unwrap();
    let (source, repository) = (folder.path().join("source"), folder.path().join("repository"));
    plant(&source, files);
    let ours = Ours::new(PASSWORD).unwrap();
    ours.create_filesystem(&repository, &[]).unwrap();
    for cached in [0, files] {
        let command = ours.command(["snapshot", "create", "--json", source.to_str().unwrap()]);
        let run = run_limited(command, LIMIT, Duration::from_secs(3600)).unwrap();
        let errors = String::from_utf8_lossy(&run.output.stderr);
        assert!(run.output.status.success(), "{} OOM kills: {errors}", run.oom_kills);
        let snapshot: Value = serde_json::from_slice(&run.output.stdout).unwrap();
        assert_eq!(snapshot["rootEntry"]["summ"]["files"], files);
        assert_eq!(snapshot["stats"]["cachedFiles"].as_u64().unwrap_or(0), cached as u64);
        assert!(run.peak_own_bytes <= OWN, "{} MiB of its own", run.peak_own_bytes / MIB);
    }
}
