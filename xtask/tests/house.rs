//! The house rules of ARCHITECTURE.md: which crate may know which.
#![allow(clippy::unwrap_used, clippy::panic)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What each crate may use, bottom to top. Programs of their own (tests, benches, set-up) may use what they like.
const MAY_USE: &[(&str, &[&str])] = &[
    ("lifeboat-budget", &[]),
    ("lifeboat-primitives", &[]),
    ("lifeboat-blobs", &["lifeboat-budget"]),
    ("lifeboat-index", &["lifeboat-budget"]),
    ("lifeboat-kopia", &["lifeboat-blobs", "lifeboat-budget", "lifeboat-index", "lifeboat-primitives"]),
    (
        "lifeboat-repository",
        &["lifeboat-blobs", "lifeboat-budget", "lifeboat-index", "lifeboat-kopia", "lifeboat-primitives"],
    ),
    ("lifeboat-restic", &["lifeboat-blobs", "lifeboat-budget", "lifeboat-kopia", "lifeboat-repository"]),
    ("lifeboat-uploader", &["lifeboat-budget", "lifeboat-kopia", "lifeboat-repository"]),
    ("lifeboat-restore-helper", &[]),
    ("lifeboat-api", &[]),
    ("lifeboat-exposer", &["lifeboat-api"]),
    (
        "lifeboat-datapath",
        &[
            "lifeboat-api",
            "lifeboat-blobs",
            "lifeboat-budget",
            "lifeboat-exposer",
            "lifeboat-kopia",
            "lifeboat-repository",
            "lifeboat-restic",
            "lifeboat-restore-helper",
            "lifeboat-uploader",
        ],
    ),
    ("lifeboat-node-agent", &["lifeboat-api", "lifeboat-datapath", "lifeboat-exposer"]),
    (
        "lifeboat-cli",
        &[
            "lifeboat-api",
            "lifeboat-budget",
            "lifeboat-datapath",
            "lifeboat-exposer",
            "lifeboat-node-agent",
            "lifeboat-restore-helper",
        ],
    ),
    (
        "lifeboat-repo-cli",
        &[
            "lifeboat-blobs",
            "lifeboat-budget",
            "lifeboat-index",
            "lifeboat-kopia",
            "lifeboat-primitives",
            "lifeboat-repository",
            "lifeboat-restic",
            "lifeboat-uploader",
        ],
    ),
];
/// Crates that no product crate may use other than in its tests.
const BESIDE: &[&str] = &[
    "lifeboat-bench",
    "lifeboat-testbed",
    "lifeboat-testbed-csi",
    "lifeboat-testkit",
    "lifeboat-tools",
    "xtask",
];

#[test]
fn crates_use_only_the_rooms_below_them() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    let packages = metadata["packages"].as_array().unwrap();
    let names: Vec<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let Some(allowed) = rules.get(name) else {
            assert!(BESIDE.contains(&name), "{name} has no rule: add it to this test and to ARCHITECTURE.md");
            continue;
        };
        let used = package["dependencies"].as_array().unwrap();
        for dependency in used.iter().filter(|dependency| dependency["kind"].is_null()) {
            let dependency = dependency["name"].as_str().unwrap();
            let ours = names.contains(&dependency);
            assert!(!ours || allowed.contains(&dependency), "{name} must not know {dependency}");
        }
    }
    for name in rules.keys() {
        assert!(names.contains(name), "{name} is gone: take its rule out");
    }
}

/// The uploader stands on the Unified Repository Interface; of the Kopia format it may know what trees and
/// policies look like, with their encoding and errors.
#[test]
fn the_uploader_knows_only_the_model_of_the_format() {
    let allowed = ["snapshot", "policy", "gojson", "Error"].map(|module| format!("lifeboat_kopia::{module}"));
    for (path, text) in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/uploader/src")) {
        for (number, line) in text.lines().enumerate() {
            let mut rest = line;
            while let Some(at) = rest.find("lifeboat_kopia::") {
                rest = &rest[at..];
                assert!(
                    allowed.iter().any(|module| rest.starts_with(module.as_str())),
                    "{path}:{}: {line}",
                    number + 1
                );
                rest = &rest["lifeboat_kopia::".len()..];
            }
        }
    }
}

fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}
