//! The conformance suite of the Kubernetes storage group, run against every kind of volume.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Testbed;
use std::path::PathBuf;
use std::process::{Command, Output};

fn csi_sanity() -> PathBuf {
    lifeboat_tools::path("csi-sanity").unwrap_or_else(|error| panic!("{error}"))
}

/// The suite waits for its connection to change, and for ever if it was made before it looked. It gives up after a minute, and
/// says this before its first call. How often it may begin anew.
const NO_CONNECTION: &str = "Connection timed out";
const ATTEMPTS: usize = 3;

/// Runs the suite until it has got a connection; `parameters` is what a storage class would say.
fn run(access_type: &str, parameters: &str) {
    // The suite is older than the SnapshotMetadata service and takes its announcement for an error.
    let mut testbed = Testbed::start(&["--no-snapshot-metadata"]);
    std::fs::write(testbed.path("parameters.yaml"), parameters).unwrap();
    let mut output = attempt(&testbed, access_type);
    for _ in 1..ATTEMPTS {
        if String::from_utf8_lossy(&output.stdout).contains(NO_CONNECTION) {
            output = attempt(&testbed, access_type);
        }
    }
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "csi-sanity {access_type} {parameters}: {}\n{said}", output.status);
    // A suite that skips everything succeeds as well.
    let passed = said.lines().rev().find_map(|line| {
        let (before, _) = line.split_once(" Passed")?;
        before.rsplit(' ').next()?.parse::<u32>().ok()
    });
    assert!(passed.is_some_and(|passed| passed >= 60), "only {passed:?} specs passed\n{said}");
    assert!(testbed.terminate());
    testbed.assert_nothing_left();
}

fn attempt(testbed: &Testbed, access_type: &str) -> Output {
    Command::new("timeout")
        .arg("300")
        .arg(csi_sanity())
        .arg("--ginkgo.no-color")
        .arg("--csi.endpoint")
        .arg(testbed.endpoint())
        .arg("--csi.testvolumeaccesstype")
        .arg(access_type)
        .arg("--csi.testvolumeparameters")
        .arg(testbed.path("parameters.yaml"))
        .arg("--csi.mountdir")
        .arg(testbed.path("mount"))
        .arg("--csi.stagingdir")
        .arg(testbed.path("staging"))
        .args(["--csi.testvolumesize", "67108864", "--csi.testvolumeexpandsize", "134217728"])
        .output()
        .unwrap()
}

#[test]
fn filesystem_volumes_in_directories_conform() {
    run("mount", "backing: directory\n");
}

#[test]
fn filesystem_volumes_in_images_conform() {
    run("mount", "backing: image\n");
}

#[test]
fn block_volumes_conform() {
    run("block", "changedBlocks: variable\n");
}
