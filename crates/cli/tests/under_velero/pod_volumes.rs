//! Volumes of live pods are backed up where they are mounted and restored into new pods (fs-backup), by our node-agent and
//! across both. Their movers mount a folder of the node, which only the `privileged` standard admits.

use crate::by_hand::{
    given_up, made, message, owner_reference, phase, pod_backup, pod_restore, reference, run, waiting_pod,
};
use crate::common::{assert_same, claim, list};
use crate::stage::{
    Agent, FoldersAllowed, IMAGE, PATIENCE, alone, assert_completed, assert_nothing_left, cancel, has_ended,
    operations, together,
};
use crate::store::{Location, brings_data};
use lifeboat_testbed::faults::Fault;
use lifeboat_testbed::testing::{TestNamespace, wait_for_object};
use lifeboat_testbed::{BUSYBOX, Cluster, HOSTPATH_CLASS, TEST_CLASS};
use lifeboat_testkit::restic::Restic;
use lifeboat_testkit::tree::TreeSpec;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// How the growing file tells that its pod has begun to write.
const BEGIN: &str = "begin";

/// Files of every kind in three volumes of two drivers and of the node itself; after that, one file grows without end.
const FILL: &str = r#"
if [ ! -f /data/.done ]; then
  mkdir -p /data/small /data/empty
  f=0; while [ $f -lt 60 ]; do echo "$f $RANDOM$RANDOM" > /data/small/$f; f=$((f+1)); done
  head -c 3000000 /dev/urandom > /data/big
  ln -s big /data/link; ln /data/big /data/hard; chmod 600 /data/small/1; chown 1234:4321 /data/small/1 /data/empty
  head -c 200000 /dev/urandom > /more/file; chmod 751 /more/file
  head -c 100000 /dev/urandom > /scratch/file; mkdir /scratch/folder; echo $RANDOM > /scratch/folder/file
  sync; touch /data/.done
fi
echo begin >> /data/live
n=0; while true; do echo "$n $(date)" >> /data/live; n=$((n+1)); sleep 0.1; done"#;

/// A pod with three volumes to be kept, two that Velero does not back up, and an init container of its own.
fn live_pod(annotations: &Value) -> String {
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
    let names = ["data", "more", "scratch", "token", "words"];
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "live", "labels": { "app": "live" }, "annotations": annotations },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "initContainers": [{
                "name": "first", "image": BUSYBOX, "command": ["sh", "-c", "ls /scratch > /scratch/from-init"],
                "volumeMounts": [mount("scratch")],
            }],
            "containers": [{
                "name": "c", "image": BUSYBOX, "command": ["sh", "-c", FILL], "volumeMounts": names.map(mount),
                "readinessProbe": { "exec": { "command": ["test", "-f", "/data/.done"] }, "periodSeconds": 1 },
            }],
            "volumes": [
                { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                { "name": "more", "persistentVolumeClaim": { "claimName": "more" } },
                { "name": "scratch", "emptyDir": {} },
                { "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } },
                { "name": "words", "configMap": { "name": "words" } },
            ],
        },
    });
    let words = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "words" }, "data": { "a": "b" } });
    list(&[
        claim("data", HOSTPATH_CLASS, "Filesystem", "64Mi", None),
        claim("more", TEST_CLASS, "Filesystem", "16Mi", None),
        words,
        pod,
    ])
}

/// Everything in the three volumes that does not change: contents, and mode, owner, type and time of each entry. What only the
/// init container writes is left out, and the marks that Velero's restore may leave.
fn contents(space: &TestNamespace<'_>) -> String {
    let line = r#"f() { find /data /more /scratch -name .velero -prune -o -name live -o -name from-init -o "$@" -print | sort; }
f -type f | xargs sha256sum
f -type f | xargs stat -c "%n %a %u %g %F %Y %s"
f -type d | xargs stat -c "%n %a %u %g"
f -type l | while read l; do echo "$l -> $(readlink $l)"; done"#;
    let text = space.shell("live", "c", line).unwrap();
    assert!(text.lines().count() > 120, "the volumes look empty:\n{text}");
    text
}

fn filled<'a>(cluster: &'a Cluster, name: &str, annotations: &Value) -> (TestNamespace<'a>, String) {
    let space = TestNamespace::new(cluster, name).unwrap();
    space.apply(&live_pod(annotations)).unwrap();
    space.wait_for_pod("live").unwrap();
    let before = contents(&space);
    (space, before)
}

/// Backs a namespace up, and checks that just these volumes were moved.
fn back_up(cluster: &Cluster, space: &TestNamespace<'_>, name: &str, words: &[&str], volumes: &[&str]) {
    let all = [
        "backup",
        "create",
        name,
        "--include-namespaces",
        space.name(),
        "--snapshot-volumes=false",
        "--wait",
    ];
    cluster.run_velero(PATIENCE, [&all, words].concat()).unwrap();
    let backups = operations(cluster, "podvolumebackups", &format!("velero.io/backup-name={name}"));
    let moved: BTreeSet<&str> = backups.iter().map(|one| one["spec"]["volume"].as_str().unwrap()).collect();
    assert_eq!(moved, volumes.iter().copied().collect(), "{backups:#?}");
    for backup in &backups {
        let status = &backup["status"];
        assert_eq!(status["phase"], "Completed", "{backup:#}");
        assert_eq!(status["progress"]["totalBytes"], status["progress"]["bytesDone"], "{backup:#}");
        assert!(status["snapshotID"].is_string() && status["path"].is_string(), "{backup:#}");
        assert!(status["acceptedTimestamp"].is_string(), "{backup:#}");
        assert_told_of(cluster, backup);
    }
    assert_completed(cluster, "backup.velero.io", name);
}

/// The mover of an operation that is complete has told of its beginning, of all that it moved, of its result and of its end.
fn assert_told_of(cluster: &Cluster, operation: &Value) {
    let uid = format!("involvedObject.uid={}", operation["metadata"]["uid"].as_str().unwrap());
    let found = cluster.kubectl().get(["-n", "velero", "events", "--field-selector", &uid]).unwrap();
    let said = |reason: &str| {
        let mut all = found["items"].as_array().unwrap().iter();
        let event = all.find(|event| event["reason"] == reason);
        event.unwrap_or_else(|| panic!("{reason} was not said: {found:#}"))["message"].as_str().unwrap()
    };
    let _ = (said("Data-Path-Started"), said("Data-Path-Stopped"));
    let read = |reason: &str| serde_json::from_str::<Value>(said(reason)).unwrap();
    let progress = &operation["status"]["progress"];
    assert_eq!(read("Data-Path-Progress")["doneBytes"], progress["bytesDone"], "{found:#}");
    let (result, status) = (read("Data-Path-Completed"), &operation["status"]);
    assert_eq!(result["totalBytes"], progress["totalBytes"], "{result:#}");
    assert_eq!(result["snapshotID"], status["snapshotID"], "{result:#}");
}

/// What a file that grew while it was backed up has in a restored pod before that begins to write: lines from its beginning.
fn assert_is_beginning(restored: &str, source: &str) {
    let (before, _) = restored.rsplit_once(&format!("{BEGIN}\n")).unwrap();
    assert!(before.lines().count() > 1, "nothing was restored:\n{restored}");
    for (number, (restored, source)) in before.lines().zip(source.lines()).enumerate() {
        let is_last = number + 1 == before.lines().count();
        assert!(restored == source || is_last && source.starts_with(restored), "line {number}: {restored}");
    }
    assert!(before.len() <= source.len(), "more than there was:\n{restored}");
}

/// Brings a backup back in a new namespace, with all its data.
fn assert_comes_back<'a>(
    cluster: &'a Cluster,
    space: &TestNamespace<'_>,
    backup: &str,
    before: &str,
) -> TestNamespace<'a> {
    let target = TestNamespace::new(cluster, &format!("{backup}-new")).unwrap();
    let restore = format!("{backup}-r");
    let mapping = format!("{}:{}", space.name(), target.name());
    let words =
        ["restore", "create", &restore, "--from-backup", backup, "--namespace-mappings", &mapping, "--wait"];
    cluster.run_velero(PATIENCE, words).unwrap();
    assert_completed(cluster, "restore.velero.io", &restore);
    for one in operations(cluster, "podvolumerestores", &format!("velero.io/restore-name={restore}")) {
        assert_eq!((&one["status"]["phase"], &one["status"]["node"]), (&json!("Completed"), &json!("node1")));
        assert!(one["status"]["acceptedTimestamp"].is_string(), "{one:#}");
        assert_told_of(cluster, &one);
    }
    target.wait_for_pod("live").unwrap();
    assert_same(before, &contents(&target));
    let live = |space: &TestNamespace<'_>| space.shell("live", "c", "cat /data/live").unwrap();
    assert_is_beginning(&live(&target), &live(space));
    // The pod's own init container runs after its volumes have their data, as it ran before they had any.
    let seen = |space: &TestNamespace<'_>| space.shell("live", "c", "cat /scratch/from-init").unwrap();
    let names = |text: String| text.lines().map(str::to_owned).collect::<BTreeSet<String>>();
    assert_eq!(names(seen(space)), names("from-init".to_owned()));
    assert!(names(seen(&target)).is_superset(&names("file\nfolder".to_owned())), "{}", seen(&target));
    target
}

/// Restored pods wait with our helper instead of Velero's as long as this lives.
struct OurHelper(&'static Cluster);

impl OurHelper {
    fn new(cluster: &'static Cluster) -> Self {
        let labels =
            json!({ "velero.io/plugin-config": "", "velero.io/pod-volume-restore": "RestoreItemAction" });
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "restore-wait", "namespace": "velero", "labels": labels },
            // Only who may write to a volume can remove the mark in it.
            "data": { "image": IMAGE, "secCtxRunAsUser": "0" },
        });
        cluster.kubectl().apply(&map.to_string()).unwrap();
        Self(cluster)
    }
}

impl Drop for OurHelper {
    fn drop(&mut self) {
        let _ = self.0.kubectl().run(["-n", "velero", "delete", "configmap", "restore-wait"]);
    }
}

/// Those volumes that the pod names; and while one of them is moved, its mover sees that folder of the node and no other.
#[test]
fn volumes_that_a_live_pod_names_come_back_in_a_new_namespace() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let _allowed = FoldersAllowed::new(&stage);
    let named = json!({ "backup.velero.io/backup-volumes": "data,more,scratch" });
    let (space, before) = filled(cluster, "named", &named);
    back_up(cluster, &space, "named", &[], &["data", "more", "scratch"]);
    assert_nothing_left(cluster, space.name(), "named");
    let described = cluster.run_velero(PATIENCE, ["backup", "describe", "named", "--details"]).unwrap();
    assert!(described.contains("Pod Volume Backups") && described.contains("live: data"), "{described}");

    let helper = OurHelper::new(cluster);
    let target = assert_comes_back(cluster, &space, "named", &before);
    let pod = target.get("pod", "live").unwrap();
    let first = &pod["spec"]["initContainers"][0];
    assert_eq!((&first["name"], &first["image"]), (&json!("restore-wait"), &json!(IMAGE)), "{first:#}");
    let marks = target.shell("live", "c", "ls -d /*/.velero || true").unwrap();
    assert_eq!(marks.trim(), "", "the helper leaves no marks");
    assert_nothing_left(cluster, target.name(), "named");
    drop(helper);
}

/// All volumes but those that Velero never takes and those that the pod leaves out, in one repository, each node-agent on top
/// of what the other has written.
#[test]
fn either_node_agent_restores_pod_volumes_that_the_other_has_backed_up() {
    let mut stage = alone(Agent::Veleros);
    let cluster = stage.cluster;
    let (space, before) = filled(cluster, "swapped", &json!({}));
    let all: [&str; 1] = ["--default-volumes-to-fs-backup"];
    let volumes = ["data", "more", "scratch"];
    back_up(cluster, &space, "fs-theirs", &all, &volumes);
    stage.switch(Agent::Ours);
    {
        let _allowed = FoldersAllowed::new(&stage);
        assert_comes_back(cluster, &space, "fs-theirs", &before);
        back_up(cluster, &space, "fs-ours", &all, &volumes);
        assert_nothing_left(cluster, space.name(), "fs-ours");
        let without = ["annotate", "pod", "live", "backup.velero.io/backup-volumes-excludes=more,scratch"];
        space.kubectl(without).unwrap();
        back_up(cluster, &space, "fs-without", &all, &["data"]);
    }
    stage.switch(Agent::Veleros);
    assert_comes_back(cluster, &space, "fs-ours", &before);
}

/// The store keeps the mover waiting, so that it is canceled while it moves data.
#[test]
fn a_backup_of_a_live_pod_is_cancelled_without_a_trace_and_its_mover_saw_one_folder_only() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let _allowed = FoldersAllowed::new(&stage);
    let plan = |method: &str, path: &str, _| {
        brings_data(method, path).then_some(Fault::Stall(Duration::from_secs(600)))
    };
    let _location = Location::new(cluster, "slow", Box::new(plan));
    let (space, _) = filled(cluster, "slow", &json!({ "backup.velero.io/backup-volumes": "data" }));
    let words =
        ["--snapshot-volumes=false", "--storage-location", "slow", "--include-namespaces", space.name()];
    cluster.run_velero(PATIENCE, [&["backup", "create", "slow"], &words[..]].concat()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let backup = loop {
        let found = operations(cluster, "podvolumebackups", "velero.io/backup-name=slow");
        if let Some(backup) = found.into_iter().find(|one| one["status"]["phase"] == "InProgress") {
            break backup;
        }
        assert!(Instant::now() < deadline, "the backup does not begin");
        thread::sleep(Duration::from_millis(300));
    };
    let name = backup["metadata"]["name"].as_str().unwrap();
    // Nothing but what the pod names, though it has three that could be.
    assert_eq!(operations(cluster, "podvolumebackups", "velero.io/backup-name=slow").len(), 1);

    let pod = cluster.kubectl().get(["-n", "velero", "pod", name]).unwrap();
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let folders: Vec<&Value> = volumes.iter().filter(|volume| !volume["hostPath"].is_null()).collect();
    let live = space.get("pod", "live").unwrap();
    let volume = space.get("pvc", "data").unwrap()["spec"]["volumeName"].as_str().unwrap().to_owned();
    let uid = live["metadata"]["uid"].as_str().unwrap();
    let path = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount");
    assert_eq!(folders.len(), 1, "{pod:#}");
    assert_eq!(folders[0]["hostPath"], json!({ "path": path, "type": "Directory" }));
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["volumeMounts"][0]["readOnly"], true, "{container:#}");
    assert_eq!(container["securityContext"]["privileged"], false, "{container:#}");
    assert_eq!(pod["spec"]["nodeName"], "node1");

    cancel(cluster, "podvolumebackup", name);
    let of = ("podvolumebackup", name);
    let ended = wait_for_object(&cluster.kubectl(), "velero", PATIENCE, of, "the end", has_ended).unwrap();
    assert_eq!(ended["status"]["phase"], "Canceled", "{ended:#}");
    assert_nothing_left(cluster, space.name(), "slow");
}

/// The pod of the node-agent, as operations name pods.
fn agent_pod(cluster: &Cluster) -> Value {
    let agents = cluster.kubectl().get(["-n", "velero", "pods", "-l", "name=node-agent"]).unwrap();
    reference(&agents["items"][0])
}

fn assert_fails(cluster: &Cluster, operation: &Value, words: &str) {
    let ended = run(cluster, operation);
    assert_eq!(phase(&ended), "Failed", "{ended:#}");
    assert!(message(&ended).contains(words), "{}", message(&ended));
}

/// What cannot be done is said at once: data of restic, a pod that is gone, a pod that waits for nothing.
#[test]
fn operations_of_pods_that_cannot_be_done_fail_at_once_and_say_why() {
    let stage = together();
    let running = agent_pod(stage.cluster);
    let gone = json!({ "kind": "Pod", "namespace": "velero", "name": "nobody", "uid": "none" });
    let of_restic = |mut operation: Value| {
        operation["spec"]["uploaderType"] = json!("restic");
        operation
    };
    for (operation, words) in [
        (of_restic(pod_restore("cannot-1", &running, "s")), "spec.repoIdentifier is empty"),
        (of_restic(pod_backup("cannot-2", &running)), "restic repositories are not written"),
        (pod_restore("cannot-3", &gone, "s"), "the pod velero/nobody is gone"),
        (pod_backup("cannot-4", &gone), "the pod velero/nobody is gone"),
        (pod_restore("cannot-5", &running, "s"), "does not wait for its volumes"),
    ] {
        assert_fails(stage.cluster, &operation, words);
    }
}

/// What all files below a folder hold. Not their names, which not all programs print alike.
const SUMS: &str = r#"find . -type f -exec sh -c 'sha256sum < "$1"' _ {} \; | LC_ALL=C sort"#;

/// A repository as earlier releases of Velero had restic make them, and two restores from it: one from where it is, and one
/// from where there is nothing, which the pod that waits learns as well.
#[test]
fn what_restic_backed_up_is_restored_into_a_pod_that_waits_for_it() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let _allowed = FoldersAllowed::new(&stage);
    let kubectl = cluster.kubectl();
    let template = r#"go-template={{index .data "repository-password" | base64decode}}"#;
    let secret = ["-n", "velero", "get", "secret", "velero-repo-credentials", "-o", template];
    let password = kubectl.text(secret).unwrap();
    let folder = tempfile::tempdir().unwrap();
    TreeSpec::small(9).grow(folder.path()).unwrap();
    let here = format!("cd {}; {SUMS}", folder.path().display());
    let before = Command::new("sh").args(["-c", &here]).output().unwrap().stdout;
    cluster.create_bucket("restic", false).unwrap();
    let store = cluster.object_store();
    let name = |folder: &str| format!("s3:{}/restic/velero/{folder}", store.endpoint);
    let restic = Restic::with_keys(name("shop"), &password, &store.access_key, &store.secret_key).unwrap();
    let backed_up = cluster.in_network(|| {
        restic.init(&[]).unwrap();
        restic.backup_contents(folder.path(), &["--host", "velero"]).unwrap()
    });
    let snapshot = &backed_up.unwrap()[..8];

    let space = TestNamespace::new(cluster, "restic").unwrap();
    let owner = kubectl.get(["-n", "velero", "backupstoragelocation", "default"]).unwrap();
    for (number, folder, end) in [(1, "shop", "Completed"), (2, "nowhere", "Failed")] {
        let pod = format!("pod-{number}");
        space.apply(&waiting_pod(&pod, &owner).to_string()).unwrap();
        let mut restore = pod_restore(&format!("restic-{number}"), &made(&space, &pod), snapshot);
        restore["metadata"]["ownerReferences"] = json!([owner_reference(&owner)]);
        restore["spec"]["uploaderType"] = json!("restic");
        restore["spec"]["repoIdentifier"] = json!(name(folder));
        let ended = run(cluster, &restore);
        assert_eq!(phase(&ended), end, "{ended:#}");
        if end == "Failed" {
            assert!(message(&ended).contains("there is no restic repository"), "{}", message(&ended));
        }
    }
    space.wait_for_pod("pod-1").unwrap();
    let after = space.shell("pod-1", "c", &format!("cd /data; {SUMS}")).unwrap();
    assert!(after.lines().count() > 10, "the volume looks empty:\n{after}");
    assert_eq!(String::from_utf8_lossy(&before), after);
    let told = |pod: &Value| given_up(pod).is_some_and(|words| words.contains("no restic repository"));
    space.wait("pod", "pod-2", "learning that its volume does not come", told).unwrap();
    assert_nothing_left(cluster, space.name(), "restic");
}

/// A restored pod whose volume does not come has no mover that could say so: its restore is cancelled before it is taken, and so is
/// one that is taken and whose mover cannot run.
#[test]
fn a_pod_learns_that_its_volume_does_not_come_whatever_became_of_the_mover() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let _allowed = FoldersAllowed::new(&stage);
    let space = TestNamespace::new(cluster, "in-vain").unwrap();
    let owner = cluster.kubectl().get(["-n", "velero", "backupstoragelocation", "default"]).unwrap();
    let operation = |name: &str, change: &Value| {
        let pod = format!("pod-{name}");
        space.apply(&waiting_pod(&pod, &owner).to_string()).unwrap();
        let mut restore = pod_restore(&format!("in-vain-{name}"), &made(&space, &pod), "s");
        restore["metadata"]["ownerReferences"] = json!([owner_reference(&owner)]);
        for (key, value) in change.as_object().unwrap() {
            restore["spec"][key] = value.clone();
        }
        restore
    };
    // Nothing has begun, nothing can begin, and what has begun asks for what cannot be done.
    for (name, change, end) in [
        ("new", json!({ "cancel": true }), "Canceled"),
        ("nothing", json!({ "snapshotID": "" }), "Failed"),
        ("setting", json!({ "uploaderSettings": { "ParallelFilesDownload": "many" } }), "Failed"),
    ] {
        let ended = run(cluster, &operation(name, &change));
        assert_eq!(phase(&ended), end, "{ended:#}");
        let pod = format!("pod-{name}");
        let knows = |pod: &Value| {
            given_up(pod).is_some_and(|words| words.contains("the volume data was not restored"))
        };
        space.wait("pod", &pod, "learning that its volume does not come", knows).unwrap();
    }
    assert_nothing_left(cluster, space.name(), "in-vain");
}
