//! Ours as another data mover beside a stock Velero with its own node-agent.

use crate::stage::{
    Agent, MOVER, alone, assert_completed, assert_nothing_left, begin_backup, delete_and_restore,
    end_of_backup, enforce, operations, writers,
};
use crate::storage::{content, with_volumes};
use lifeboat_testbed::{Cluster, TEST_CLASS_ANYWHERE};
use serde_json::Value;
use std::collections::BTreeSet;

/// Who has written to the one operation of a backup.
fn writers_of(cluster: &Cluster, kind: &str, label: &str) -> BTreeSet<String> {
    let operations = operations(cluster, kind, label);
    assert_eq!(operations.len(), 1, "{operations:#?}");
    writers(cluster, kind, operations[0]["metadata"]["name"].as_str().unwrap())
}

fn is_ours(operation: &Value) -> bool {
    !operation["metadata"]["annotations"]["lifeboat.io/moved"].is_null()
}

/// At the same time, each in a namespace of its own: a backup that asks for ours and one that does not.
#[test]
fn a_backup_that_asks_for_our_mover_is_ours_and_every_other_is_veleros() {
    let stage = alone(Agent::Beside);
    let cluster = stage.cluster;
    // Velero's own hosting pods want more than the restricted standard admits.
    enforce(cluster, "privileged");
    let asked = [("third", &["--data-mover", MOVER][..]), ("stock", &[])];
    let spaces = asked.map(|(name, _)| with_volumes(cluster, name, &[TEST_CLASS_ANYWHERE]));
    let before = spaces.each_ref().map(|space| content(space, TEST_CLASS_ANYWHERE));
    for ((name, words), space) in asked.iter().zip(&spaces) {
        begin_backup(cluster, space, name, words);
    }
    for (name, _) in asked {
        assert_eq!(end_of_backup(cluster, name), "Completed");
        let label = format!("velero.io/backup-name={name}");
        let uploads = operations(cluster, "datauploads", &label);
        assert_eq!(uploads.len(), 1);
        let status = &uploads[0]["status"];
        assert_eq!(status["phase"], "Completed", "{uploads:#?}");
        assert_eq!(is_ours(&uploads[0]), name == "third", "{uploads:#?}");
        // What the server needs of a mover: where the data is, how much it is, and when it came to be there.
        for field in ["snapshotID", "startTimestamp", "completionTimestamp"] {
            assert!(status[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {uploads:#?}");
        }
        assert_eq!(status["progress"]["totalBytes"], status["progress"]["bytesDone"], "{uploads:#?}");
    }
    let ours = writers_of(cluster, "datauploads", "velero.io/backup-name=third");
    let theirs = writers_of(cluster, "datauploads", "velero.io/backup-name=stock");
    let both: Vec<_> = ours.intersection(&theirs).collect();
    // A plugin of the server makes both.
    assert_eq!(both, ["velero"], "ours: {ours:?}, theirs: {theirs:?}");
    assert!(ours.contains("lifeboat"), "{ours:?}");

    for (((name, _), space), before) in asked.iter().zip(&spaces).zip(&before) {
        let restore = delete_and_restore(cluster, space, name);
        assert_completed(cluster, "restore.velero.io", &restore);
        let downloads = operations(cluster, "datadownloads", &format!("velero.io/restore-name={restore}"));
        assert_eq!(downloads.len(), 1);
        assert_eq!(is_ours(&downloads[0]), *name == "third", "{downloads:#?}");
        space.wait_for_pod(TEST_CLASS_ANYWHERE).unwrap();
        assert_eq!(content(space, TEST_CLASS_ANYWHERE), *before);
        assert_nothing_left(cluster, space.name(), name);
    }
    enforce(cluster, "restricted");
}
