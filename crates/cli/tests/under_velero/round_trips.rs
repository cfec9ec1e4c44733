//! Namespaces with files and a device are backed up, deleted and brought back, by our node-agent and across both.

use crate::stage::{
    Agent, PATIENCE, VOLUMES, alone, assert_comes_back, assert_completed, assert_nothing_left, back_up,
    filled, operations, together,
};
use crate::store::connected_kopia;
use lifeboat_testbed::{HOSTPATH_CLASS, TEST_CLASS};
use std::thread;
use std::time::{Duration, Instant};

/// A class that makes volumes at once; and what Velero's command line says of it all is what happened.
#[test]
fn a_namespace_with_files_and_a_device_comes_back_as_it_was() {
    let stage = together();
    let cluster = stage.cluster;
    let (space, before) = filled(cluster, "round", HOSTPATH_CLASS);
    back_up(cluster, &space, "round", &[]);
    assert_completed(cluster, "backup.velero.io", "round");
    let uploads = operations(cluster, "datauploads", "velero.io/backup-name=round");
    assert_eq!(uploads.len(), VOLUMES);
    for upload in &uploads {
        let status = &upload["status"];
        assert_eq!(status["phase"], "Completed", "{upload:#}");
        assert_eq!(status["node"], "node1");
        assert_eq!(status["progress"]["totalBytes"], status["progress"]["bytesDone"], "{upload:#}");
    }
    assert_nothing_left(cluster, space.name(), "round");

    let described = cluster.run_velero(PATIENCE, ["backup", "describe", "round", "--details"]).unwrap();
    assert_eq!(described.matches("Result: succeeded").count(), 2, "{described}");
    assert!(described.contains("Moved data Size (bytes): 33554432"), "{described}");
    let repositories = cluster.run_velero(PATIENCE, ["repo", "get"]).unwrap();
    assert!(repositories.contains(&format!("{}-default-kopia", space.name())), "{repositories}");

    // The backup has all that a restore needs: what moved the data is not needed any more.
    let uploads = ["-n", "velero", "delete", "datauploads", "-l", "velero.io/backup-name=round"];
    cluster.kubectl().run_within(PATIENCE, uploads).unwrap();
    assert_comes_back(cluster, &space, "round", &before);
    let downloads = operations(cluster, "datadownloads", "velero.io/restore-name=round-r");
    assert_eq!(downloads.len(), VOLUMES);
    assert!(downloads.iter().all(|one| one["status"]["phase"] == "Completed"), "{downloads:#?}");
    assert_nothing_left(cluster, space.name(), "round");

    cluster.run_velero(PATIENCE, ["backup", "delete", "round", "--confirm"]).unwrap();
    let gone = || cluster.kubectl().get(["-n", "velero", "backup.velero.io", "round"]).is_err();
    let deadline = Instant::now() + PATIENCE;
    while !gone() {
        assert!(Instant::now() < deadline, "the backup is not deleted");
        thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn volumes_that_wait_for_their_pod_come_back_as_they_were() {
    let stage = together();
    let (space, before) = filled(stage.cluster, "late", TEST_CLASS);
    back_up(stage.cluster, &space, "late", &[]);
    assert_completed(stage.cluster, "backup.velero.io", "late");
    assert_nothing_left(stage.cluster, space.name(), "late");
    assert_comes_back(stage.cluster, &space, "late", &before);
    assert_nothing_left(stage.cluster, space.name(), "late");
}

/// In one repository, and each on top of what the other has written; stock kopia lists it all.
#[test]
fn either_node_agent_restores_what_the_other_has_backed_up() {
    let mut stage = alone(Agent::Veleros);
    let (space, before) = filled(stage.cluster, "crossed", HOSTPATH_CLASS);
    back_up(stage.cluster, &space, "theirs", &[]);
    assert_completed(stage.cluster, "backup.velero.io", "theirs");
    stage.switch(Agent::Ours);
    assert_comes_back(stage.cluster, &space, "theirs", &before);
    back_up(stage.cluster, &space, "ours", &[]);
    assert_completed(stage.cluster, "backup.velero.io", "ours");
    assert_nothing_left(stage.cluster, space.name(), "ours");
    let kopia = connected_kopia(stage.cluster, "velero", space.name());
    let listed = stage.cluster.in_network(|| kopia.snapshots()).unwrap().unwrap();
    for backup in ["theirs", "ours"] {
        let uploads = operations(stage.cluster, "datauploads", &format!("velero.io/backup-name={backup}"));
        assert_eq!(uploads.len(), VOLUMES);
        for upload in &uploads {
            let id = &upload["status"]["snapshotID"];
            assert!(
                listed.iter().any(|one| *id == *one.id),
                "kopia does not list {id} of {backup}: {listed:#?}"
            );
        }
    }
    stage.switch(Agent::Veleros);
    assert_comes_back(stage.cluster, &space, "ours", &before);
}
