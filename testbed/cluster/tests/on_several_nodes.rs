//! What needs several nodes or storage that misbehaves: placement, access modes, faults on demand, changed blocks, and
//! the loss of a node.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{claim, fingerprint, list, pod, ready_to_use, snapshot, snapshot_and_clone, workload};
use lifeboat_testbed::testing::{Failure, Loss, Rule, TestNamespace, condition, shared};
use lifeboat_testbed::{
    BUSYBOX, Cluster, Error, TEST_CLASS, TEST_CLASS_ANYWHERE, TEST_SNAPSHOT_CLASS, small_runtime,
};
use lifeboat_testbed_csi::proto::GetMetadataDeltaRequest;
use lifeboat_testbed_csi::proto::snapshot_metadata_client::SnapshotMetadataClient;
use serde_json::{Value, json};
use tonic::transport::Endpoint;

/// The third node is there to be lost; the others are for everybody.
fn cluster() -> &'static Cluster {
    let cluster = shared(|spec| {
        spec.nodes = 3;
        spec.test_driver = true;
    })
    .unwrap();
    cluster.kubectl().run(["cordon", "node3"]).unwrap();
    cluster
}

/// The object with a wish about its node, which the scheduler honours.
fn on_node(node: &str, mut pod: Value) -> Value {
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    pod
}

fn with_modes(modes: &[&str], mut claim: Value) -> Value {
    claim["spec"]["accessModes"] = json!(modes);
    claim
}

fn node_of(space: &TestNamespace<'_>, pod: &str) -> String {
    space.get("pod", pod).unwrap()["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

fn failing(method: &str, times: Option<u64>, failure: &str) -> Rule {
    let fail = Failure::try_from(failure.to_owned()).unwrap();
    Rule { method: method.to_owned(), times, fail: Some(fail), ..Rule::default() }
}

#[test]
fn a_volume_stays_where_its_first_pod_was_and_clones_hold_its_data() {
    let space = TestNamespace::new(cluster(), "placed").unwrap();
    let mut objects: Value = serde_json::from_str(&workload(TEST_CLASS, true)).unwrap();
    let writer = objects["items"].as_array_mut().unwrap().pop().unwrap();
    space.apply(&objects.to_string()).unwrap();
    space.apply(&on_node("node2", writer).to_string()).unwrap();
    space.wait_for_pod("writer").unwrap();
    let before = fingerprint(&space, "writer");
    // Free to go anywhere, but for its volume.
    space.apply(&pod("follower", "sleep 86400", "data", None).to_string()).unwrap();
    space.wait_for_pod("follower").unwrap();
    assert_eq!(node_of(&space, "follower"), "node2");
    snapshot_and_clone(&space, (TEST_CLASS, TEST_SNAPSHOT_CLASS), &before);
}

#[test]
fn a_volume_for_one_pod_is_kept_from_a_second_and_a_read_only_one_is_shared_by_nodes() {
    let space = TestNamespace::new(cluster(), "modes").unwrap();
    let alone =
        with_modes(&["ReadWriteOncePod"], claim("alone", TEST_CLASS_ANYWHERE, "Filesystem", "8Mi", None));
    let fill = "echo kept > /data/file; touch /data/.done; sleep 86400";
    space.apply(&list(&[alone, pod("one", fill, "alone", None)])).unwrap();
    space.wait_for_pod("one").unwrap();
    space.apply(&pod("two", fill, "alone", None).to_string()).unwrap();
    space.wait_for_event("FailedScheduling", "ReadWriteOncePod").unwrap();

    space.apply(&snapshot("taken", TEST_SNAPSHOT_CLASS, "alone").to_string()).unwrap();
    space.wait("volumesnapshot", "taken", "being ready", ready_to_use).unwrap();
    let source = Some(("VolumeSnapshot", "taken"));
    let shown =
        with_modes(&["ReadOnlyMany"], claim("shown", TEST_CLASS_ANYWHERE, "Filesystem", "8Mi", source));
    let readers = ["node1", "node2"].map(|node| on_node(node, pod(node, "sleep 86400", "shown", None)));
    space.apply(&list(&[vec![shown], readers.to_vec()].concat())).unwrap();
    for reader in ["node1", "node2"] {
        space.wait_for_pod(reader).unwrap();
        assert_eq!(node_of(&space, reader), reader);
        assert_eq!(space.shell(reader, "c", "cat /data/file").unwrap().trim(), "kept");
        let refused = space.shell(reader, "c", "echo x > /data/new").unwrap_err().to_string();
        assert!(refused.contains("Read-only file system"), "{refused}");
    }
}

#[test]
fn volumes_that_fail_to_come_or_to_mount_are_there_once_the_driver_behaves() {
    let space = TestNamespace::new(cluster(), "failing").unwrap();
    space
        .misbehave(&[
            failing("CreateVolume", Some(2), "UNAVAILABLE: the array is busy"),
            failing("NodePublishVolume", Some(2), "INTERNAL: the path is gone"),
        ])
        .unwrap();
    let wanted = claim("data", TEST_CLASS_ANYWHERE, "Filesystem", "8Mi", None);
    space.apply(&list(&[wanted, pod("user", "touch /data/.done; sleep 86400", "data", None)])).unwrap();
    space.wait_for_event("ProvisioningFailed", "the array is busy").unwrap();
    space.wait_for_event("FailedMount", "the path is gone").unwrap();
    space.wait_for_pod("user").unwrap();
}

#[test]
fn a_snapshot_gets_ready_late_and_one_that_is_lost_gives_no_volume() {
    let space = TestNamespace::new(cluster(), "snapshots").unwrap();
    let not_ready = |method: &str| Rule { method: method.to_owned(), not_ready: true, ..Rule::default() };
    space.misbehave(&[not_ready("CreateSnapshot"), not_ready("ListSnapshots")]).unwrap();
    let fill = "echo kept > /data/file; touch /data/.done; sleep 86400";
    space
        .apply(&list(&[
            claim("data", TEST_CLASS_ANYWHERE, "Filesystem", "8Mi", None),
            pod("user", fill, "data", None),
        ]))
        .unwrap();
    space.wait_for_pod("user").unwrap();
    space.apply(&snapshot("late", TEST_SNAPSHOT_CLASS, "data").to_string()).unwrap();
    let taken = |snapshot: &Value| snapshot["status"]["readyToUse"] == false;
    space.wait("volumesnapshot", "late", "being taken but not ready", taken).unwrap();

    let lost = Rule { method: "CreateVolume".to_owned(), lose: Some(Loss::Content), ..Rule::default() };
    space.misbehave(&[lost]).unwrap();
    space.wait("volumesnapshot", "late", "being ready", ready_to_use).unwrap();
    let source = Some(("VolumeSnapshot", "late"));
    space.apply(&claim("clone", TEST_CLASS_ANYWHERE, "Filesystem", "8Mi", source).to_string()).unwrap();
    space.wait_for_event("ProvisioningFailed", "lost").unwrap();
    assert_eq!(space.get("pvc", "clone").unwrap()["status"]["phase"], "Pending");
}

#[test]
fn changed_blocks_between_two_snapshots_are_those_that_a_pod_wrote() {
    const BLOCK: i64 = 65536;
    let space = TestNamespace::new(cluster(), "blocks").unwrap();
    let mut writer = pod("writer", "touch /data/.done; sleep 86400", "data", Some("raw"));
    writer["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node2"});
    space
        .apply(&list(&[
            claim("data", TEST_CLASS, "Filesystem", "8Mi", None),
            claim("raw", TEST_CLASS, "Block", "8Mi", None),
            writer,
        ]))
        .unwrap();
    space.wait_for_pod("writer").unwrap();
    let write = |offset: i64, blocks: i64| {
        let line = format!("dd if=/dev/urandom of=/dev/raw bs=64k seek={offset} count={blocks} conv=fsync");
        space.shell("writer", "c", &line).unwrap();
    };
    let take = |name: &str| {
        space.apply(&snapshot(name, TEST_SNAPSHOT_CLASS, "raw").to_string()).unwrap();
        let taken = space.wait("volumesnapshot", name, "being ready", ready_to_use).unwrap();
        let content = taken["status"]["boundVolumeSnapshotContentName"].as_str().unwrap().to_owned();
        let content = space.get("volumesnapshotcontent", &content).unwrap();
        content["status"]["snapshotHandle"].as_str().unwrap().to_owned()
    };
    write(0, 10);
    let base_snapshot_id = take("base");
    write(3, 2);
    write(100, 1);
    let target_snapshot_id = take("target");
    let socket = cluster().node(1).unwrap().test_driver_socket();
    let request =
        GetMetadataDeltaRequest { base_snapshot_id, target_snapshot_id, starting_offset: 0, max_results: 0 };
    let changed = small_runtime().unwrap().block_on(async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let mut client = SnapshotMetadataClient::new(endpoint.connect().await.unwrap());
        let mut answer = client.get_metadata_delta(request).await.unwrap().into_inner();
        let mut changed = Vec::new();
        while let Some(message) = answer.message().await.unwrap() {
            changed
                .extend(message.block_metadata.iter().map(|one| (one.byte_offset / BLOCK, one.size_bytes)));
        }
        changed
    });
    assert_eq!(changed, [(3, BLOCK), (4, BLOCK), (100, BLOCK)]);
}

#[test]
fn pods_talk_across_nodes_and_a_lost_node_comes_back() {
    let cluster = cluster();
    let space = TestNamespace::new(cluster, "lost").unwrap();
    let plain = |name: &str, line: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", line]}]},
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "greeter"},
        "spec": {"selector": {"app": "greeter"}, "ports": [{"port": 80}]},
    });
    let serve = "mkdir /www; echo hello from the other node > /www/index.html; httpd -f -p 80 -h /www";
    let mut greeter = plain("greeter", serve);
    // Not by the scheduler, which is told to leave the third node alone.
    greeter["spec"]["nodeName"] = json!("node3");
    space.apply(&list(&[greeter, on_node("node1", plain("caller", "sleep 86400")), service])).unwrap();
    for name in ["greeter", "caller"] {
        space.wait_for_pod(name).unwrap();
    }
    // The address translation follows the pod a moment later.
    let ask = "i=0; until timeout 5 wget -qO- http://greeter; do i=$((i+1)); [ $i -lt 20 ] || exit 1; sleep 1; done";
    assert_eq!(space.shell("caller", "c", ask).unwrap().trim(), "hello from the other node");

    cluster.lose_node(3).unwrap();
    space.wait("node", "node3", "not being ready", |node| !condition(node, "Ready")).unwrap();
    assert!(matches!(cluster.lose_node(1), Err(Error::Invalid(_))), "the control plane is not to be lost");
    cluster.return_node(3).unwrap();
    space.wait("node", "node3", "being ready again", |node| condition(node, "Ready")).unwrap();
}
