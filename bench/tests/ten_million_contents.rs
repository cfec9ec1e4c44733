//! The memory promise of the index: ten million contents within a limit that the kernel enforces.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::process::Command;

/// The program itself fails if ours is killed, fails or answers one of 200,000 look-ups wrongly.
#[test]
fn a_repository_of_ten_million_contents_opens_and_answers_within_128_mib() {
    let output = Command::new(env!("CARGO_BIN_EXE_lifeboat-bench"))
        .args(["index", "--limit-mib", "128"])
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    println!("{table}");
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    let ours: Vec<&str> =
        table.lines().filter(|line| line.contains("200000 look-ups, 100000 found")).collect();
    assert_eq!(ours.len(), 2, "a first opening and one that reuses local files: {table}");
}
