//! The whole way with real Velero: a cluster from nothing, volumes, snapshots, clones, backups and restores by both of
//! Velero's ways, and nothing left of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Holdings, Machine, assert_same, fingerprint, snapshot_and_clone, workload};
use lifeboat_testbed::testing::{PATIENCE, TestNamespace, own};
use lifeboat_testbed::{Cluster, HOSTPATH_CLASS, HOSTPATH_SNAPSHOT_CLASS};
use std::sync::LazyLock;
use std::thread;
use std::time::Instant;

/// The goal for an idle cluster with Velero.
const MOST_IDLE_MEMORY: u64 = 2560 << 20;

#[test]
fn a_workload_survives_snapshot_clone_and_both_ways_of_velero_and_down_leaves_nothing() {
    report("start");
    let machine = Machine::look();
    let cluster = own("round", |spec| spec.velero = true).unwrap();
    let memory = cluster.memory().unwrap();
    println!("idle memory: {} MiB ({} MiB as a plain sum)", memory.proportional >> 20, memory.resident >> 20);
    assert!(memory.proportional < MOST_IDLE_MEMORY, "{} MiB", memory.proportional >> 20);
    // At the same time, as most of it is waiting.
    thread::scope(|scope| {
        scope.spawn(|| moved_data(&cluster));
        scope.spawn(|| data_by_files(&cluster));
    });
    // A block volume in use when the cluster ends.
    let space = TestNamespace::new(&cluster, "left-running").unwrap();
    space.apply(&workload(HOSTPATH_CLASS, true)).unwrap();
    space.wait_for_pod("writer").unwrap();
    report("going down");
    let holdings = Holdings::of(&cluster);
    assert!(holdings.loops() >= 1, "the block volume has a loop device");
    // Not to be deleted by the test: its API goes with the cluster.
    std::mem::forget(space);
    Cluster::down(&cluster.spec().name).unwrap();
    holdings.assert_gone();
    machine.assert_unchanged();
}

/// A file system volume and a block volume through snapshots, clones and Velero's data movement.
fn moved_data(cluster: &Cluster) {
    let space = TestNamespace::new(cluster, "moved").unwrap();
    space.apply(&workload(HOSTPATH_CLASS, true)).unwrap();
    space.wait_for_pod("writer").unwrap();
    let before = fingerprint(&space, "writer");
    report("moved: workload is there");
    snapshot_and_clone(&space, (HOSTPATH_CLASS, HOSTPATH_SNAPSHOT_CLASS), &before);
    report("moved: clones are equal");
    velero_round_trip(cluster, &space, "moved", "--snapshot-move-data", &before);
    assert_completed(cluster, "datauploads", 2);
    assert_completed(cluster, "datadownloads", 2);
    changed_data_is_noticed(&space, &before);
}

/// A file system volume through Velero's fs-backup.
fn data_by_files(cluster: &Cluster) {
    let space = TestNamespace::new(cluster, "by-files").unwrap();
    space.apply(&workload(HOSTPATH_CLASS, false)).unwrap();
    space.wait_for_pod("writer").unwrap();
    let before = fingerprint(&space, "writer");
    velero_round_trip(cluster, &space, "by-files", "--default-volumes-to-fs-backup", &before);
    assert_completed(cluster, "podvolumebackups", 1);
    assert_completed(cluster, "podvolumerestores", 1);
}

/// Says how far the way has gone: it is long, and this tells where its time goes.
fn report(step: &str) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    eprintln!("{:6.1}s {step}", START.elapsed().as_secs_f32());
}

/// Backs the namespace up, deletes it, restores it, and finds everything as it was.
fn velero_round_trip(cluster: &Cluster, space: &TestNamespace<'_>, name: &str, how: &str, before: &str) {
    let kubectl = cluster.kubectl();
    let backup = ["backup", "create", name, "--include-namespaces", space.name(), how, "--wait"];
    cluster.run_velero(PATIENCE, backup).unwrap();
    assert_phase(cluster, "backup.velero.io", name);
    report(&format!("{name}: backed up"));
    kubectl.run_within(PATIENCE, ["delete", "namespace", space.name(), "--wait=true"]).unwrap();
    report(&format!("{name}: deleted"));
    let restore = format!("{name}-restored");
    cluster.run_velero(PATIENCE, ["restore", "create", &restore, "--from-backup", name, "--wait"]).unwrap();
    assert_phase(cluster, "restore.velero.io", &restore);
    report(&format!("{name}: restored"));
    space.wait_for_pod("writer").unwrap();
    assert_same(before, &fingerprint(space, "writer"));
}

fn assert_phase(cluster: &Cluster, kind: &str, name: &str) {
    let object = cluster.kubectl().get(["-n", "velero", kind, name]).unwrap();
    assert_eq!(object["status"]["phase"], "Completed", "{kind} {name}: {:#}", object["status"]);
}

/// The data went the way that was asked for.
fn assert_completed(cluster: &Cluster, kind: &str, count: usize) {
    let list = cluster.kubectl().get(["-n", "velero", kind]).unwrap();
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), count, "{kind}: {list:#}");
    assert!(items.iter().all(|item| item["status"]["phase"] == "Completed"), "{kind}: {list:#}");
}

/// The control of the comparison: it sees a changed byte and a changed mode.
fn changed_data_is_noticed(space: &TestNamespace<'_>, before: &str) {
    space.shell("writer", "c", "echo x >> /data/small/0/0").unwrap();
    let changed = fingerprint(space, "writer");
    assert_ne!(before, changed);
    space.shell("writer", "c", "chmod 711 /data/empty").unwrap();
    assert_ne!(changed, fingerprint(space, "writer"));
}
