//! Movers and the installation in a real cluster with a real Velero.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use lifeboat_testbed::testing::{PATIENCE, shared, wait_for_object};
use lifeboat_testbed::{BUSYBOX, Cluster, Image};
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const LIFEBOAT: &str = env!("CARGO_BIN_EXE_lifeboat");
const IMAGE: &str = "localhost/lifeboat:test";
const VELERO: &str = "velero";
/// Operations of a mover of this name are nobody's but ours: Velero's own node-agent leaves them alone.
const MOVER: &str = "lifeboat";

/// The cluster, with our image and our accounts.
fn cluster() -> &'static Cluster {
    static READY: OnceLock<&'static Cluster> = OnceLock::new();
    READY.get_or_init(|| {
        let cluster = shared(|spec| spec.velero = true).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("lifeboat.tar");
        Image::of_lifeboat(IMAGE, LIFEBOAT.as_ref()).unwrap().write(&archive).unwrap();
        cluster.node(1).unwrap().load_image(&archive).unwrap();
        let accounts: Vec<Value> = install(cluster, &["--dry-run", "-o", "json"])["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|object| object["kind"] != "DaemonSet")
            .cloned()
            .collect();
        apply(cluster, &json!({ "apiVersion": "v1", "kind": "List", "items": accounts }));
        cluster
    })
}

fn lifeboat(cluster: &Cluster, words: &[&str]) -> Output {
    let mut command: Command = cluster.kubectl().in_network(LIFEBOAT).unwrap();
    command.args(words).output().unwrap()
}

/// Installs, and gives what was printed if it is JSON.
fn install(cluster: &Cluster, words: &[&str]) -> Value {
    let output = lifeboat(cluster, &[&["install", "--node-agent-only", "--image", IMAGE], words].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn apply(cluster: &Cluster, object: &Value) {
    cluster.kubectl().apply(&object.to_string()).unwrap();
}

fn wait(cluster: &Cluster, of: (&str, &str), what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    wait_for_object(&cluster.kubectl(), VELERO, PATIENCE, of, what, holds).unwrap()
}

fn upload(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": {
            "name": name, "namespace": VELERO, "labels": { "velero.io/async-operation-id": format!("du-{name}") },
        },
        "spec": {
            "snapshotType": "CSI", "sourceNamespace": "shop", "sourcePVC": name, "datamover": MOVER,
            "backupStorageLocation": "default", "operationTimeout": "10m0s", "dataMoverConfig": null,
        },
        "status": { "phase": phase, "progress": {} },
    })
}

fn download(name: &str, snapshot: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload",
        "metadata": { "name": name, "namespace": VELERO },
        "spec": {
            "targetVolume": { "pvc": "p", "pv": "", "namespace": "shop" }, "sourceNamespace": "shop",
            "snapshotID": snapshot, "datamover": MOVER, "backupStorageLocation": "default",
            "operationTimeout": "10m0s", "dataMoverConfig": { "WriteSparseFiles": "false" },
        },
        "status": { "phase": "InProgress", "progress": {} },
    })
}

/// The mover's container, as a node-agent of Velero starts it.
fn mover(words: &[&str]) -> Value {
    json!({
        "name": "mover", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/velero", "data-mover"], "args": words,
        "env": [
            { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            { "name": "VELERO_NAMESPACE", "value": VELERO },
            { "name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/credentials/cloud" },
        ],
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"] },
        },
        "volumeMounts": [
            { "name": "volume", "mountPath": "/volume" },
            { "name": "credentials", "mountPath": "/credentials" },
            { "name": "tmp", "mountPath": "/tmp" },
        ],
    })
}

fn shell(line: &str) -> Value {
    json!({
        "name": "shell", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/busybox", "sh", "-c", line],
        "volumeMounts": [{ "name": "volume", "mountPath": "/volume" }],
    })
}

/// A pod that runs one container after the other.
fn pod(name: &str, account: &str, first: &Value, then: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": VELERO },
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "serviceAccountName": account,
            "securityContext": { "runAsUser": 0, "seccompProfile": { "type": "RuntimeDefault" } },
            "initContainers": [first], "containers": [then],
            "volumes": [
                { "name": "volume", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} },
                { "name": "credentials", "secret": { "secretName": "cloud-credentials" } },
            ],
        },
    })
}

fn backup_pod(name: &str, account: &str, fill: &str) -> Value {
    let own = format!("--data-upload={name}");
    let words =
        ["backup", "--volume-path=/volume", "--volume-mode=Filesystem", &own, "--resource-timeout=2m0s"];
    pod(name, account, &shell(fill), &mover(&words))
}

fn has_ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

/// How the mover's container ended: its exit code and its last words.
fn last_words(pod: &Value) -> (i64, String) {
    let status = &pod["status"];
    let all = [&status["initContainerStatuses"], &status["containerStatuses"]];
    let found =
        all.iter().flat_map(|list| list.as_array().into_iter().flatten()).find(|one| one["name"] == "mover");
    let ended = &found.unwrap()["state"]["terminated"];
    (ended["exitCode"].as_i64().unwrap(), ended["message"].as_str().unwrap_or_default().to_owned())
}

/// The mover's events about an operation, as `reason: message`, in the order in which they were first said.
fn events(cluster: &Cluster, kind: &str, name: &str) -> Vec<(String, String)> {
    let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let list = cluster.kubectl().get(["-n", VELERO, "events", "--field-selector", &selector]).unwrap();
    let mut events: Vec<&Value> = list["items"].as_array().unwrap().iter().collect();
    events.sort_by_key(|event| event["metadata"]["name"].as_str().unwrap().to_owned());
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    events.iter().map(|event| (text(event, "reason"), text(event, "message"))).collect()
}

#[test]
fn a_volume_goes_in_and_comes_back_through_pods_made_by_hand() {
    let cluster = cluster();
    apply(cluster, &upload("by-hand", "InProgress"));
    let fill = "cd /volume && mkdir -p a/b && echo hello > a/b/file && chown 1234:4321 a/b/file && chmod 640 a/b/file && \
                dd if=/dev/urandom of=big bs=1M count=5 && touch -d '2020-01-02 03:04:05' big && sha256sum big > sum && ln -s a link";
    apply(cluster, &backup_pod("by-hand", "lifeboat-mover", fill));
    let pod = wait(cluster, ("pod", "by-hand"), "having ended", has_ended);
    let (code, message) = last_words(&pod);
    assert_eq!(
        code,
        0,
        "{message}\n{}",
        cluster.kubectl().text(["-n", VELERO, "logs", "by-hand", "-c", "mover"]).unwrap()
    );
    let result: Value = serde_json::from_str(&message).unwrap();
    assert_eq!(result["source"], json!({ "byPath": "/volume", "volumeMode": "Filesystem" }));
    assert_eq!(result["totalBytes"], result["incrementalBytes"]);

    let said = events(cluster, "DataUpload", "by-hand");
    let reasons: Vec<&str> = said.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(
        reasons,
        ["Data-Path-Started", "Data-Path-Progress", "Data-Path-Completed", "Data-Path-Stopped"]
    );
    let total = &result["totalBytes"];
    assert_eq!(said[1].1, format!(r#"{{"totalBytes":{total},"doneBytes":{total}}}"#));
    assert_eq!(said[2].1, message, "the last words are the message of the event");
    assert_eq!(said[0].1, "Data path for by-hand started");

    // The mover asked for the repository and Velero's server made it.
    let repository = wait(cluster, ("backuprepository", "shop-default-kopia"), "existing", |_| true);
    assert_eq!(repository["status"]["phase"], "Ready");
    assert_eq!(repository["metadata"]["labels"]["velero.io/volume-namespace"], "shop");

    apply(cluster, &download("back", result["snapshotID"].as_str().unwrap()));
    let words = [
        "restore",
        "--volume-path=/volume",
        "--volume-mode=Filesystem",
        "--data-download=back",
        "--resource-timeout=2m0s",
        "--cache-volume-path=",
    ];
    let look = "cd /volume && sha256sum -c sum && stat -c '%u:%g %a' a/b/file && stat -c %y big && cat a/b/file && readlink link";
    apply(cluster, &self::pod("back", "lifeboat-mover", &mover(&words), &shell(look)));
    let pod = wait(cluster, ("pod", "back"), "having ended", has_ended);
    let (code, message) = last_words(&pod);
    assert_eq!(code, 0, "{message}");
    let restored: Value = serde_json::from_str(&message).unwrap();
    assert!(restored["totalBytes"].as_i64().unwrap() > 5 << 20, "{restored}");
    let seen = cluster.kubectl().text(["-n", VELERO, "logs", "back", "-c", "shell"]).unwrap();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], "big: OK", "{seen}");
    assert_eq!(lines[1], "1234:4321 640");
    assert!(lines[2].starts_with("2020-01-02 03:04:05"), "{seen}");
    assert_eq!(lines[3..], ["hello", "a"]);
}

/// A mover that waits for its turn ends as soon as its operation is cancelled.
#[test]
fn a_mover_that_waits_is_cancelled() {
    let cluster = cluster();
    apply(cluster, &upload("waiting", "Prepared"));
    apply(cluster, &backup_pod("waiting", "lifeboat-mover", "true"));
    wait(cluster, ("pod", "waiting"), "running", |pod| pod["status"]["phase"] == "Running");
    let cancel = r#"{"spec":{"cancel":true}}"#;
    cluster
        .kubectl()
        .run(["-n", VELERO, "patch", "dataupload", "waiting", "--type=merge", "-p", cancel])
        .unwrap();
    let pod = wait(cluster, ("pod", "waiting"), "having ended", has_ended);
    let (code, message) = last_words(&pod);
    assert_eq!(code, 1);
    assert!(message.ends_with("data path is canceled"), "{message}");
    let said = events(cluster, "DataUpload", "waiting");
    assert_eq!(
        said.iter().map(|(reason, _)| reason.as_str()).collect::<Vec<_>>(),
        ["Data-Path-Canceled", "Data-Path-Stopped"]
    );
}

/// A mover does not outlive its operation.
#[test]
fn a_mover_ends_when_its_operation_is_gone() {
    let cluster = cluster();
    apply(cluster, &upload("orphan", "Prepared"));
    apply(cluster, &backup_pod("orphan", "lifeboat-mover", "true"));
    wait(cluster, ("pod", "orphan"), "running", |pod| pod["status"]["phase"] == "Running");
    // Once the mover has seen it; before that it would wait for it to appear.
    let deadline = Instant::now() + PATIENCE;
    let log = || cluster.kubectl().text(["-n", VELERO, "logs", "orphan", "-c", "mover"]).unwrap_or_default();
    while !log().contains("operation found") {
        assert!(Instant::now() < deadline, "the mover does not see its operation: {}", log());
        std::thread::sleep(Duration::from_millis(250));
    }
    cluster.kubectl().run(["-n", VELERO, "delete", "dataupload", "orphan"]).unwrap();
    let pod = wait(cluster, ("pod", "orphan"), "having ended", has_ended);
    let (code, message) = last_words(&pod);
    assert_eq!(code, 1);
    assert!(message.contains("no such DataUpload"), "{message}");
}

/// The first connection, which is never answered.
fn first_connection(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((connection, _)) => return connection,
            Err(problem) => assert!(Instant::now() < deadline, "nobody came: {problem}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A store that takes connections and never answers does not keep a mover that is to stop.
#[test]
fn a_mover_is_cancelled_while_the_store_hangs() {
    let cluster = cluster();
    let silent = cluster.in_network(|| TcpListener::bind(("10.200.0.1", 0)).unwrap()).unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    apply(
        cluster,
        &json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": { "name": "silent", "namespace": VELERO },
            "spec": {
                "provider": "aws", "objectStorage": { "bucket": "b" }, "validationFrequency": "0s",
                "config": { "region": "r", "s3ForcePathStyle": "true", "s3Url": address },
            },
        }),
    );
    let labels = json!({
        "velero.io/volume-namespace": "shop", "velero.io/storage-location": "silent", "velero.io/repository-type": "kopia",
    });
    let now = format!("{:.0}", jiff::Timestamp::now());
    apply(
        cluster,
        &json!({
            "apiVersion": "velero.io/v1", "kind": "BackupRepository",
            "metadata": { "name": "shop-silent-kopia", "namespace": VELERO, "labels": labels },
            "spec": {
                "volumeNamespace": "shop", "backupStorageLocation": "silent", "repositoryType": "kopia",
                "maintenanceFrequency": "1h0m0s",
            },
            "status": { "phase": "Ready", "lastMaintenanceTime": now },
        }),
    );
    let mut hanging = upload("hanging", "InProgress");
    hanging["spec"]["backupStorageLocation"] = json!("silent");
    apply(cluster, &hanging);
    apply(cluster, &backup_pod("hanging", "lifeboat-mover", "true"));
    let _connection = first_connection(&silent);
    let cancel = r#"{"spec":{"cancel":true}}"#;
    cluster
        .kubectl()
        .run(["-n", VELERO, "patch", "dataupload", "hanging", "--type=merge", "-p", cancel])
        .unwrap();
    let pod = wait(cluster, ("pod", "hanging"), "having ended", has_ended);
    let (code, message) = last_words(&pod);
    assert_eq!(code, 1);
    assert!(message.ends_with("data path is canceled"), "{message}");
}

/// Without the rights of a mover it says so instead of waiting forever.
#[test]
fn a_mover_without_rights_says_so() {
    let cluster = cluster();
    apply(cluster, &upload("denied", "InProgress"));
    apply(cluster, &backup_pod("denied", "default", "true"));
    let pod = wait(cluster, ("pod", "denied"), "having ended", has_ended);
    let (code, message) = last_words(&pod);
    assert_eq!(code, 1);
    assert!(message.contains("cannot watch the DataUpload"), "{message}");
}

/// Velero's node-agent is replaced, what people set on it stays, and one command brings it back.
#[test]
fn the_installation_takes_the_place_of_veleros_node_agent_and_gives_it_back() {
    let cluster = cluster();
    let agent = ("daemonset", "node-agent");
    let before = wait(cluster, agent, "existing", |_| true);
    let template = |daemon_set: &Value| daemon_set["spec"]["template"]["spec"].clone();
    let theirs = template(&before);
    install(cluster, &[]);
    let ours = template(&wait(cluster, agent, "having changed", |object| {
        object["metadata"]["generation"] != before["metadata"]["generation"]
    }));
    assert_eq!(ours["containers"][0]["image"], IMAGE);
    assert_eq!(ours["containers"][0]["command"], json!(["/lifeboat"]));
    assert_eq!(ours["containers"][0]["args"], theirs["containers"][0]["args"]);
    assert_eq!(ours["containers"][0]["securityContext"]["privileged"], false);
    assert_eq!(ours["serviceAccountName"], "lifeboat-node-agent");
    let credentials = |spec: &Value| {
        spec["volumes"].as_array().unwrap().iter().any(|volume| volume["name"] == "cloud-credentials")
    };
    assert!(credentials(&theirs) && credentials(&ours), "{ours:#}");

    let kubectl = cluster.kubectl();
    kubectl.run(["-n", VELERO, "rollout", "undo", "daemonset/node-agent"]).unwrap();
    kubectl
        .run_within(PATIENCE, ["-n", VELERO, "rollout", "status", "daemonset/node-agent", "--timeout=290s"])
        .unwrap();
    let after = wait(cluster, agent, "existing", |_| true);
    assert_eq!(template(&after), theirs);

    let nowhere =
        lifeboat(cluster, &["install", "--node-agent-only", "--image", IMAGE, "--namespace", "nowhere"]);
    let problem = String::from_utf8_lossy(&nowhere.stderr);
    assert!(!nowhere.status.success() && problem.contains("install Velero first"), "{problem}");
}
