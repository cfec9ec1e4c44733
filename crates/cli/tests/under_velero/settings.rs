//! Settings of the node-agent, made while it runs.

use crate::stage::{
    Agent, Configured, PATIENCE, VOLUMES, alone, assert_comes_back, assert_completed, assert_nothing_left,
    back_up, begin_backup, cancel, end_of_backup, filled, wait_for_uploads,
};
use lifeboat_testbed::HOSTPATH_CLASS;
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// The class of the copy does not exist, so its claim is never bound. The setting is made while the agent runs.
#[test]
fn an_upload_that_waits_for_its_volume_says_so_and_is_cancelled_without_a_trace() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let settings = json!({ "backupPVC": { HOSTPATH_CLASS: { "storageClass": "nowhere" } } });
    let configured = Configured::new(&stage, &settings);
    let (space, _) = filled(cluster, "stuck", HOSTPATH_CLASS);
    begin_backup(cluster, &space, "stuck", &[]);
    let explained = |upload: &Value| {
        let message = upload["status"]["message"].as_str().unwrap_or_default();
        message.starts_with("waits for") && message.contains("fails at") && message.contains("nowhere")
    };
    let uploads = wait_for_uploads(cluster, "stuck", VOLUMES, "an explanation", explained);
    for upload in &uploads {
        assert_eq!(upload["status"]["phase"], "Accepted", "{upload:#}");
        let name = upload["metadata"]["name"].as_str().unwrap();
        cancel(cluster, "dataupload", name);
    }
    let is_canceled = |upload: &Value| upload["status"]["phase"] == "Canceled";
    wait_for_uploads(cluster, "stuck", VOLUMES, "the cancel", is_canceled);
    assert_nothing_left(cluster, space.name(), "stuck");

    // The same namespace is backed up as soon as the setting is gone.
    drop(configured);
    back_up(cluster, &space, "unstuck", &[]);
    assert_completed(cluster, "backup.velero.io", "unstuck");
    assert_nothing_left(cluster, space.name(), "unstuck");
}

/// Seed 003: the copy of a volume is of another class, and only to be read.
#[test]
fn the_copy_to_read_from_is_of_the_class_and_mode_that_are_set() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let mut class = cluster.kubectl().get(["storageclass", HOSTPATH_CLASS]).unwrap();
    class["metadata"] = json!({ "name": "for-reading" });
    cluster.kubectl().apply(&class.to_string()).unwrap();
    let settings = json!({ "backupPVC": { HOSTPATH_CLASS: {
        "storageClass": "for-reading", "readOnly": true, "annotations": { "example.org/copy": "yes" },
    } } });
    let _configured = Configured::new(&stage, &settings);
    let (space, before) = filled(cluster, "copied", HOSTPATH_CLASS);
    begin_backup(cluster, &space, "copied", &[]);
    let deadline = Instant::now() + PATIENCE;
    let claims = loop {
        let list = cluster.kubectl().get(["-n", "velero", "pvc", "-l", "lifeboat.io/hosts"]).unwrap();
        let claims = list["items"].as_array().unwrap().clone();
        if !claims.is_empty() {
            break claims;
        }
        assert!(Instant::now() < deadline, "no claim was made");
        thread::sleep(Duration::from_millis(200));
    };
    for claim in &claims {
        assert_eq!(claim["spec"]["storageClassName"], "for-reading", "{claim:#}");
        assert_eq!(claim["spec"]["accessModes"], json!(["ReadOnlyMany"]), "{claim:#}");
        assert_eq!(claim["metadata"]["annotations"]["example.org/copy"], "yes", "{claim:#}");
    }
    let is_completed = |upload: &Value| upload["status"]["phase"] == "Completed";
    wait_for_uploads(cluster, "copied", VOLUMES, "the end", is_completed);
    assert_eq!(end_of_backup(cluster, "copied"), "Completed");
    assert_nothing_left(cluster, space.name(), "copied");
    assert_comes_back(cluster, &space, "copied", &before);
    assert_nothing_left(cluster, space.name(), "copied");
}
