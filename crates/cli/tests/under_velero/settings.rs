//! Settings of the node-agent, made while it runs.

use crate::by_hand::waiting;
use crate::common::claim;
use crate::record::Record;
use crate::stage::{
    Configured, VOLUMES, assert_comes_back, assert_completed, assert_nothing_left, back_up, begin_backup,
    cancel, end_of_backup, filled, together, wait_for_uploads,
};
use crate::storage::{Misbehaviour, copy_class, define_class, failing, with_volumes};
use lifeboat_testbed::HOSTPATH_CLASS;
use serde_json::{Value, json};

/// The class of the copy does not exist, so its claim is never bound. The setting is made while the agent runs.
#[test]
fn an_upload_that_waits_for_its_volume_says_so_and_is_cancelled_without_a_trace() {
    let stage = together();
    let cluster = stage.cluster;
    let settings = json!({ "backupPVC": {
        "stuck": { "storageClass": "nowhere" }, "unshared": { "readOnly": true },
    } });
    let configured = Configured::new(cluster, &settings);
    copy_class(cluster, HOSTPATH_CLASS, "stuck");
    // A class whose driver makes no volumes that are only to be read.
    define_class(cluster, "unshared", "65536");
    let words = "INVALID_ARGUMENT: no volume can be had with MULTI_NODE_READER_ONLY";
    let _misbehaviour = Misbehaviour::new(cluster, &[failing("CreateVolume", "65536", words)]);
    let unshared = with_volumes(cluster, "unshared", &["unshared"]);
    let (space, _) = filled(cluster, "stuck", "stuck");
    begin_backup(cluster, &unshared, "unshared", &[]);
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
    let refused = |upload: &Value| {
        let message = upload["status"]["message"].as_str().unwrap_or_default();
        message.starts_with("waits for") && message.contains("MULTI_NODE_READER_ONLY")
    };
    let waits = wait_for_uploads(cluster, "unshared", 1, "an explanation", refused);
    assert_eq!(waits[0]["status"]["phase"], "Accepted", "{waits:#?}");
    cancel(cluster, "dataupload", waits[0]["metadata"]["name"].as_str().unwrap());
    let is_canceled = |upload: &Value| upload["status"]["phase"] == "Canceled";
    wait_for_uploads(cluster, "unshared", 1, "the cancel", is_canceled);
    assert_nothing_left(cluster, unshared.name(), "unshared");
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
    let stage = together();
    let cluster = stage.cluster;
    for class in ["copied", "for-reading"] {
        copy_class(cluster, HOSTPATH_CLASS, class);
    }
    let settings = json!({ "backupPVC": { "copied": {
        "storageClass": "for-reading", "readOnly": true, "annotations": { "example.org/copy": "yes" },
    } } });
    let _configured = Configured::new(cluster, &settings);
    let (space, before) = filled(cluster, "copied", "copied");
    // A claim that nobody gives a volume: it shows that the record has begun.
    let mut first = waiting(claim("first", HOSTPATH_CLASS, "Filesystem", "16Mi", None));
    first["metadata"]["namespace"] = json!("velero");
    let record = Record::start(cluster, "pvc", "");
    cluster.kubectl().apply(&first.to_string()).unwrap();
    record.wait("the first claim", |seen| seen.contains_key("first"));
    cluster.kubectl().run(["-n", "velero", "delete", "pvc", "first", "--wait=false"]).unwrap();
    begin_backup(cluster, &space, "copied", &[]);
    let ours = |claim: &str| claim.starts_with("copied-");
    record.wait("a claim of each", |seen| seen.keys().filter(|name| ours(name)).count() == VOLUMES);
    for (_, versions) in record.versions().into_iter().filter(|(name, _)| ours(name)) {
        let claim = &versions[0];
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
