//! Movers without root and without capabilities, where nothing else than the `restricted` standard allows is admitted.

use crate::by_hand::{message, phase};
use crate::common::{assert_same, claim, list, pod};
use crate::record::Record;
use crate::stage::{
    Agent, MOVER, MOVER_USER, alone, assert_completed, assert_nothing_left, begin_backup, delete_and_restore,
    end_of_backup, has_ended, operations, wait_for_uploads,
};
use lifeboat_testbed::testing::TestNamespace;
use lifeboat_testbed::{BUSYBOX, Cluster, HOSTPATH_CLASS, TEST_CLASS_ANYWHERE};
use serde_json::{Value, json};

/// A pod that writes files, and a device if it has one, as the user of the movers; the volume is given to that user first.
fn writer(line: &str, raw: Option<&str>) -> Value {
    let mut writer = pod("writer", line, "data", raw);
    writer["spec"]["containers"][0]["securityContext"] =
        json!({ "runAsUser": MOVER_USER, "runAsGroup": MOVER_USER });
    writer["spec"]["initContainers"] = json!([{
        "name": "owner", "image": BUSYBOX, "command": ["chown", format!("{MOVER_USER}:{MOVER_USER}"), "/data"],
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
    }]);
    writer
}

fn with_writer<'a>(cluster: &'a Cluster, name: &str, claims: &[Value], writer: Value) -> TestNamespace<'a> {
    let space = TestNamespace::new(cluster, name).unwrap();
    space.apply(&list(&[claims, &[writer]].concat())).unwrap();
    space.wait_for_pod("writer").unwrap();
    space
}

/// Contents, modes, owners and times of everything below the volume's root.
fn all_of(space: &TestNamespace<'_>) -> String {
    let line = r#"cd /data; find . -type f | sort | xargs sha256sum
find . -type f | sort | xargs stat -c "%n %a %u %g %Y %s"; find . -mindepth 1 -type d | sort | xargs stat -c "%n %a %u %g"
find . -type l | sort | while read l; do echo "$l -> $(readlink $l)"; done; sha256sum < /dev/raw"#;
    space.shell("writer", "c", line).unwrap()
}

/// The hosting pods of some backups: they were admitted, and this is what they may do.
fn hosting_pods(record: &Record, backups: &[&str], count: usize) -> Vec<Value> {
    let wanted = |pod: &str| backups.iter().any(|backup| pod.starts_with(&format!("{backup}-")));
    record.wait("a pod of each", |seen| seen.keys().filter(|pod| wanted(pod)).count() == count);
    let pods = record.versions().into_iter().filter(|(pod, _)| wanted(pod));
    pods.filter_map(|(_, versions)| versions.into_iter().next()).collect()
}

/// Files and a device that the movers' user can read come back; a file that it cannot read fails the backup, which says so.
#[test]
fn volumes_are_moved_without_root_where_only_the_restricted_standard_is_admitted() {
    let stage = alone(Agent::Beside);
    let cluster = stage.cluster;
    let fill = r#"if [ ! -f /data/.done ]; then mkdir -p /data/d/e; head -c 3000000 /dev/urandom > /data/d/large
echo a > /data/d/e/a; echo b > /data/d/b; chmod 600 /data/d/b; chmod 750 /data/d/e/a /data/d/e; ln -s d/b /data/link
head -c 16777216 /dev/urandom > /dev/raw; sync; touch /data/.done; fi; sleep 86400"#;
    let claims = [
        claim("data", HOSTPATH_CLASS, "Filesystem", "16Mi", None),
        claim("raw", HOSTPATH_CLASS, "Block", "16Mi", None),
    ];
    let space = with_writer(cluster, "limited", &claims, writer(fill, Some("raw")));
    let before = all_of(&space);
    let mut root = pod(
        "writer",
        "echo x > /data/secret; chmod 600 /data/secret; touch /data/.done; sleep 86400",
        "data",
        None,
    );
    root["spec"]["containers"][0]["securityContext"] = json!({ "runAsUser": 0 });
    let claims = [claim("data", TEST_CLASS_ANYWHERE, "Filesystem", "16Mi", None)];
    let unreadable = with_writer(cluster, "unreadable", &claims, root);

    let record = Record::start(cluster, "pods", "");
    record.wait("a pod of somebody", |seen| !seen.is_empty());
    begin_backup(cluster, &space, "limited", &["--data-mover", MOVER]);
    begin_backup(cluster, &unreadable, "unreadable", &["--data-mover", MOVER]);
    for pod in hosting_pods(&record, &["limited", "unreadable"], 3) {
        assert_eq!(pod["spec"]["securityContext"]["runAsUser"], MOVER_USER, "{pod:#}");
        assert_eq!(
            pod["spec"]["containers"][0]["securityContext"]["capabilities"],
            json!({ "drop": ["ALL"] }),
            "{pod:#}"
        );
    }
    let uploads = wait_for_uploads(cluster, "unreadable", 1, "the end", has_ended);
    assert_eq!(phase(&uploads[0]), "Failed", "{uploads:#?}");
    let said = message(&uploads[0]);
    for words in ["secret", "Permission denied", "runs as user 1000", "--mover-user"] {
        assert!(said.contains(words), "{words:?} is missing: {said}");
    }
    assert_eq!(end_of_backup(cluster, "unreadable"), "PartiallyFailed");
    assert_eq!(end_of_backup(cluster, "limited"), "Completed");
    let uploads = operations(cluster, "datauploads", "velero.io/backup-name=limited");
    assert_eq!(uploads.len(), 2);
    assert_nothing_left(cluster, unreadable.name(), "unreadable");

    let restore = delete_and_restore(cluster, &space, "limited");
    assert_completed(cluster, "restore.velero.io", &restore);
    space.wait_for_pod("writer").unwrap();
    assert_same(&before, &all_of(&space));
    assert_nothing_left(cluster, space.name(), "limited");
}
