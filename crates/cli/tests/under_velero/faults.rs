//! Storage and stores that misbehave: every operation ends, says why, and leaves nothing behind.

use crate::by_hand::{download, message, phase, run, upload, waiting};
use crate::common::{claim, list, pod};
use crate::stage::{
    Agent, PATIENCE, PREPARE_TIMEOUT, agent_log, agent_metrics, alone, assert_completed, assert_nothing_left,
    back_up, begin_backup, end_of_backup, has_ended, metric, operations, together, wait_for_agent,
    wait_for_uploads,
};
use crate::storage::{Misbehaviour, define_class, failing, with_volumes};
use crate::store::{Location, brings_data};
use lifeboat_testbed::faults::Fault;
use lifeboat_testbed::testing::{Rule, TestNamespace};
use lifeboat_testbed::{Cluster, HOSTPATH_CLASS, TEST_CLASS_ANYWHERE};
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

fn upload_of<'a>(uploads: &'a [Value], claim: &str) -> &'a Value {
    uploads.iter().find(|upload| upload["spec"]["sourcePVC"] == claim).unwrap()
}

/// Waits until the operations of a backup have said what they wait for, and lets the time pass that they may wait.
fn let_time_pass(cluster: &Cluster, backup: &str, trouble: &[(&str, &str)]) -> Vec<Value> {
    let explained = |upload: &Value| {
        let words = trouble.iter().find(|(claim, _)| upload["spec"]["sourcePVC"] == *claim);
        message(upload).starts_with("waits for") && words.is_some_and(|(_, it)| message(upload).contains(it))
    };
    let uploads = wait_for_uploads(cluster, backup, trouble.len(), "an explanation", explained);
    let long_ago = jiff::Timestamp::now() - Duration::from_hours(1);
    let status = json!({ "status": { "acceptedTimestamp": format!("{long_ago:.0}") } }).to_string();
    for upload in &uploads {
        assert_eq!(phase(upload), "Accepted", "{upload:#}");
        let name = upload["metadata"]["name"].as_str().unwrap();
        let patch = ["-n", "velero", "patch", "dataupload", name, "--type=merge", "-p", &status];
        cluster.kubectl().run(patch).unwrap();
    }
    wait_for_uploads(cluster, backup, trouble.len(), "the end", has_ended)
}

/// One volume whose snapshot never gets ready, one whose copy is never made, one whose copy cannot be mounted.
#[test]
fn storage_that_does_not_deliver_fails_the_upload_in_time_with_the_drivers_words() {
    let stage = together();
    let cluster = stage.cluster;
    define_class(cluster, "unbound", "8192");
    define_class(cluster, "unmounted", "16384");
    let _misbehaviour = Misbehaviour::new(
        cluster,
        &[
            failing("CreateVolume", "8192", "UNAVAILABLE: the array is busy"),
            failing("NodePublishVolume", "16384", "INTERNAL: the path is gone"),
        ],
    );
    let unready = with_volumes(cluster, "unready", &[TEST_CLASS_ANYWHERE]);
    let not_ready = |method: &str| Rule { method: method.to_owned(), not_ready: true, ..Rule::default() };
    unready.misbehave(&[not_ready("CreateSnapshot"), not_ready("ListSnapshots")]).unwrap();
    let undelivered = with_volumes(cluster, "undelivered", &["unbound", "unmounted"]);
    begin_backup(cluster, &unready, "unready", &[]);
    begin_backup(cluster, &undelivered, "undelivered", &[]);

    let trouble = [("unbound", "the array is busy"), ("unmounted", "the path is gone")];
    let uploads = let_time_pass(cluster, "undelivered", &trouble);
    for (claim, words) in trouble {
        let upload = upload_of(&uploads, claim);
        assert_eq!(phase(upload), "Failed", "{upload:#}");
        let said = message(upload);
        let limit = format!("the volume could not be made reachable within {PREPARE_TIMEOUT}");
        assert!(said.starts_with(&limit) && said.contains(words), "{said}");
        let pod = format!("pod velero/{} is Pending", upload["metadata"]["name"].as_str().unwrap());
        assert_eq!(said.matches(&pod).count(), 1, "the diagnosis is told once: {said}");
    }
    let uploads = let_time_pass(cluster, "unready", &[(TEST_CLASS_ANYWHERE, "ready")]);
    assert_eq!(phase(&uploads[0]), "Failed", "{uploads:#?}");
    assert!(message(&uploads[0]).contains("is not ready"), "{}", message(&uploads[0]));
    // Whoever reads the log of the node-agent learns the same.
    let log = agent_log(cluster);
    for words in ["the array is busy", "the path is gone", "is not ready"] {
        assert!(log.contains(words), "the agent's log has nothing of {words:?}:\n{log}");
    }
    for (space, backup) in [(&undelivered, "undelivered"), (&unready, "unready")] {
        assert_eq!(end_of_backup(cluster, backup), "PartiallyFailed");
        assert_nothing_left(cluster, space.name(), backup);
    }
}

#[test]
fn a_store_that_is_away_for_a_minute_does_not_cost_the_backup() {
    let stage = together();
    let cluster = stage.cluster;
    let away_since: OnceLock<Instant> = OnceLock::new();
    let plan = move |method: &str, path: &str, _| {
        if brings_data(method, path) {
            away_since.get_or_init(Instant::now);
        }
        let away = away_since.get().is_some_and(|since| since.elapsed() < Duration::from_secs(60));
        (away && path.contains("/kopia/")).then_some(Fault::ResetBefore)
    };
    let location = Location::new(cluster, "away", Box::new(plan));
    let space = with_volumes(cluster, "away", &[TEST_CLASS_ANYWHERE]);
    back_up(cluster, &space, "away", &["--storage-location", "away"]);
    assert_completed(cluster, "backup.velero.io", "away");
    assert!(location.proxy.faults() > 1, "the store was never away");
    let uploads = operations(cluster, "datauploads", "velero.io/backup-name=away");
    assert!(uploads[0]["metadata"]["annotations"]["lifeboat.io/movers-lost"].is_null(), "{uploads:#?}");
    assert_nothing_left(cluster, space.name(), "away");
}

#[test]
fn a_full_store_fails_the_upload_and_says_so() {
    let stage = together();
    let cluster = stage.cluster;
    let plan = |method: &str, path: &str, _| brings_data(method, path).then_some(Fault::Full);
    let _location = Location::new(cluster, "full", Box::new(plan));
    let space = with_volumes(cluster, "full", &[TEST_CLASS_ANYWHERE]);
    begin_backup(cluster, &space, "full", &["--storage-location", "full"]);
    let uploads = wait_for_uploads(cluster, "full", 1, "the end", has_ended);
    assert_eq!(phase(&uploads[0]), "Failed", "{uploads:#?}");
    assert!(message(&uploads[0]).contains("XMinioStorageFull"), "{}", message(&uploads[0]));
    assert_eq!(end_of_backup(cluster, "full"), "PartiallyFailed");
    assert_nothing_left(cluster, space.name(), "full");
}

/// The location is one that Velero never got to use; its repository is said to be there.
#[test]
fn wrong_credentials_fail_the_upload_and_are_not_shown() {
    let stage = together();
    let cluster = stage.cluster;
    let space = with_volumes(cluster, "keys", &[TEST_CLASS_ANYWHERE]);
    let kubectl = cluster.kubectl();
    let mut location = kubectl.get(["-n", "velero", "backupstoragelocation", "default"]).unwrap();
    location["metadata"] = json!({ "name": "keys", "namespace": "velero" });
    location["spec"]["default"] = json!(false);
    location["spec"]["credential"] = json!({ "name": "wrong-keys", "key": "cloud" });
    location["status"] = json!({});
    let file = "[default]\naws_access_key_id=nobody\naws_secret_access_key=sesame-open\n";
    let labels = json!({
        "velero.io/volume-namespace": space.name(), "velero.io/storage-location": "keys", "velero.io/repository-type": "kopia",
    });
    let now = format!("{:.0}", jiff::Timestamp::now());
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "wrong-keys", "namespace": "velero" },
            "stringData": { "cloud": file },
        }),
        location,
        json!({
            "apiVersion": "velero.io/v1", "kind": "BackupRepository",
            "metadata": { "name": "keys-kopia", "namespace": "velero", "labels": labels },
            "spec": {
                "volumeNamespace": space.name(), "backupStorageLocation": "keys", "repositoryType": "kopia",
                "maintenanceFrequency": "1h0m0s",
            },
            "status": { "phase": "Ready", "lastMaintenanceTime": now },
        }),
    ];
    kubectl.apply(&list(&objects)).unwrap();
    let mut wrong = upload(&space, "keys-1", TEST_CLASS_ANYWHERE);
    wrong["spec"]["backupStorageLocation"] = json!("keys");
    let ended = run(cluster, &wrong);
    assert_eq!(phase(&ended), "Failed", "{ended:#}");
    let said = message(&ended);
    assert!(said.contains("InvalidAccessKeyId") && !said.contains("sesame"), "{said}");
    assert_nothing_left(cluster, space.name(), "keys");
    let gone = [
        "-n",
        "velero",
        "delete",
        "backupstoragelocation/keys",
        "backuprepository/keys-kopia",
        "secret/wrong-keys",
    ];
    kubectl.run_within(PATIENCE, gone).unwrap();
}

/// A device comes back into a claim of its size, also of another driver, but not into a smaller one.
#[test]
fn a_claim_that_is_too_small_fails_the_download_and_is_left_alone() {
    let stage = together();
    let cluster = stage.cluster;
    let space = TestNamespace::new(cluster, "sizes").unwrap();
    let device = |name: &str, class: &str, size: &str| claim(name, class, "Block", size, None);
    let files = claim("files", TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None);
    let fill = "head -c 16777216 /dev/urandom > /dev/raw; touch /data/.done; sleep 86400";
    space
        .apply(&list(&[
            files,
            device("raw", TEST_CLASS_ANYWHERE, "16Mi"),
            pod("writer", fill, "files", Some("raw")),
        ]))
        .unwrap();
    space.wait_for_pod("writer").unwrap();
    let uploaded = run(cluster, &upload(&space, "sizes-1", "raw"));
    assert_eq!(phase(&uploaded), "Completed", "{uploaded:#}");
    // Whoever asked for it finds it by this label, and it alone.
    let found = operations(cluster, "datauploads", "velero.io/async-operation-id=du-sizes-1");
    assert_eq!(found.len(), 1);
    let snapshot = found[0]["status"]["snapshotID"].as_str().unwrap();

    space
        .apply(&list(&[
            waiting(device("small", TEST_CLASS_ANYWHERE, "8Mi")),
            waiting(device("large", HOSTPATH_CLASS, "16Mi")),
        ]))
        .unwrap();
    let refused = run(cluster, &download(&space, "sizes-2", "small", snapshot));
    assert_eq!(phase(&refused), "Failed", "{refused:#}");
    assert!(message(&refused).contains("use a larger target"), "{}", message(&refused));
    assert!(space.get("pvc", "small").unwrap()["spec"]["volumeName"].is_null());
    let restored = run(cluster, &download(&space, "sizes-3", "large", snapshot));
    assert_eq!(phase(&restored), "Completed", "{restored:#}");
    assert_eq!(space.get("pvc", "large").unwrap()["status"]["phase"], "Bound");
    assert_nothing_left(cluster, space.name(), "sizes");
}

/// What cannot be done is said at once, not after a time-out.
#[test]
fn an_upload_of_another_type_of_snapshot_fails_at_once() {
    let stage = together();
    let space = with_volumes(stage.cluster, "types", &[TEST_CLASS_ANYWHERE]);
    let mut other = upload(&space, "types-1", TEST_CLASS_ANYWHERE);
    other["spec"]["snapshotType"] = json!("Tape");
    let mut without = other.clone();
    without["metadata"]["name"] = json!("types-2");
    without["spec"]["snapshotType"] = json!("CSI");
    without["spec"]["csiSnapshot"] = Value::Null;
    for (wrong, words) in [(other, "\"Tape\""), (without, "spec.csiSnapshot is missing")] {
        let ended = run(stage.cluster, &wrong);
        assert_eq!(phase(&ended), "Failed", "{ended:#}");
        assert!(message(&ended).contains(words), "{}", message(&ended));
    }
}

/// An agent that starts beside more operations than it looks at at once takes on what comes then: their looks once waited for
/// each other without an end.
#[test]
fn an_agent_that_starts_beside_many_operations_takes_on_the_next() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    let hopeless = |number: usize| {
        json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
            "metadata": { "name": format!("many-{number}"), "namespace": "velero" },
            "spec": { "snapshotType": "Tape", "sourceNamespace": "many", "sourcePVC": "many", "backupStorageLocation": "default",
                      "csiSnapshot": null, "operationTimeout": "10m0s", "dataMoverConfig": null },
        })
    };
    // Large ones of the other kind, so that their list is complete last.
    let large = |number: usize| {
        json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload",
            "metadata": { "name": format!("many-{number}"), "namespace": "velero" },
            "spec": { "targetVolume": { "pvc": "many", "pv": "", "namespace": "many" }, "sourceNamespace": "many", "snapshotID": "",
                      "backupStorageLocation": "default", "operationTimeout": "10m0s", "dataMoverConfig": { "padding": "x".repeat(100_000) } },
        })
    };
    let many: Vec<_> = (1..=20).flat_map(|number| [hopeless(number), large(number)]).collect();
    kubectl.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": many }).to_string()).unwrap();
    for round in 0..3 {
        kubectl.run(["-n", "velero", "delete", "pod", "-l", "name=node-agent", "--wait=true"]).unwrap();
        wait_for_agent(cluster);
        assert_eq!(phase(&run(cluster, &hopeless(21 + round))), "Failed");
    }
}

/// The node-agent's image was changed to one that does not exist, and its old pods still run.
#[test]
fn an_image_that_cannot_be_had_fails_the_upload_at_once_and_is_named() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    let space = with_volumes(cluster, "image", &[TEST_CLASS_ANYWHERE]);
    let before = kubectl.get(["-n", "velero", "daemonset", "node-agent"]).unwrap();
    let change = |strategy: &Value, image: &Value| {
        let changes = json!([
            { "op": "replace", "path": "/spec/updateStrategy", "value": strategy },
            { "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image },
        ]);
        let patch =
            ["-n", "velero", "patch", "daemonset", "node-agent", "--type=json", "-p", &changes.to_string()];
        kubectl.run(patch).unwrap();
    };
    change(&json!({ "type": "OnDelete" }), &json!("localhost/nowhere:1"));
    let ended = run(cluster, &upload(&space, "image-1", TEST_CLASS_ANYWHERE));
    let container = &before["spec"]["template"]["spec"]["containers"][0];
    change(&before["spec"]["updateStrategy"], &container["image"]);
    wait_for_agent(cluster);
    assert_eq!(phase(&ended), "Failed", "{ended:#}");
    let said = message(&ended);
    assert!(said.contains("Image") && said.contains("localhost/nowhere:1"), "{said}");
    assert!(!said.contains(PREPARE_TIMEOUT), "it was not waited for: {said}");
    assert_nothing_left(cluster, space.name(), "image");
}

/// Somebody has torn operations away from what was made for them.
#[test]
fn what_operations_leave_behind_that_are_gone_is_counted_and_swept_away() {
    let stage = together();
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    let orphan = |mut object: Value, kind: &str, name: &str| {
        object["metadata"] = json!({
            "name": name, "namespace": "velero", "labels": { "lifeboat.io/hosts": kind },
            "annotations": {
                "lifeboat.io/owner": format!("{kind}/velero/{name}/of-nobody"), "lifeboat.io/expires-after": "24h0m0s",
            },
        });
        object
    };
    let user = pod("torn-1", "sleep 86400", "torn-1", None);
    let orphans = [
        orphan(claim("torn-1", TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None), "DataUpload", "torn-1"),
        orphan(user, "DataUpload", "torn-1"),
        orphan(claim("torn-2", TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None), "DataDownload", "torn-2"),
    ];
    kubectl.apply(&list(&orphans)).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let orphaned = r#"lifeboat_hosting_objects{state="orphaned"}"#;
    while !agent_metrics(cluster).iter().any(|page| metric(page, orphaned).is_some_and(|count| count >= 3.0))
    {
        assert!(Instant::now() < deadline, "they are not counted");
        thread::sleep(Duration::from_secs(1));
    }
    assert_nothing_left(cluster, "", "torn");
}
