//! Where hosting pods go and what they get: what is set for them, and what nodes have room for.

use crate::by_hand::{download, message, phase, upload, waiting};
use crate::common::{claim, pod};
use crate::stage::{Agent, Configured, PATIENCE, alone, assert_nothing_left, has_ended};
use crate::storage::{content, with_volumes};
use crate::store::{Gate, Location};
use lifeboat_testbed::testing::wait_for_object;
use lifeboat_testbed::{Cluster, TEST_CLASS, TEST_CLASS_ANYWHERE, TEST_DRIVER};
use serde_json::{Value, json};
use std::process::Command;

/// A node may have no more volumes of the test driver than this as long as it lives.
struct Room {
    cluster: &'static Cluster,
    node: &'static str,
    before: Value,
}

impl Room {
    fn new(cluster: &'static Cluster, node: &'static str, volumes: u32) -> Self {
        let before = cluster.kubectl().get(["csinode", node]).unwrap()["spec"]["drivers"].clone();
        let mut after = before.clone();
        for driver in after.as_array_mut().unwrap() {
            if driver["name"] == TEST_DRIVER {
                driver["allocatable"] = json!({ "count": volumes });
            }
        }
        assert_ne!(before, after);
        let room = Self { cluster, node, before };
        room.set(&after).unwrap();
        room
    }

    /// What a node says of a driver cannot be changed, but be said anew.
    fn set(&self, drivers: &Value) -> lifeboat_testbed::Result<()> {
        let others = drivers.as_array().unwrap().iter().filter(|driver| driver["name"] != TEST_DRIVER);
        for drivers in [&Value::Array(others.cloned().collect()), drivers] {
            let change = json!([{ "op": "replace", "path": "/spec/drivers", "value": drivers }]).to_string();
            self.cluster.kubectl().run(["patch", "csinode", self.node, "--type=json", "-p", &change])?;
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.set(&self.before);
    }
}

/// The node of an upload has no room for another volume until a pod that has one goes. The restore is of a class that makes
/// volumes for pods, and nobody starts one; its mover has a priority, and a volume for what need not be read twice.
#[test]
fn hosting_pods_wait_for_room_and_get_the_place_the_priority_and_the_cache_that_are_set() {
    let stage = alone(Agent::Ours);
    let cluster = stage.cluster;
    let kubectl = cluster.kubectl();
    let gate = Gate::default();
    gate.open();
    let _location = Location::new(cluster, "hosting", gate.plan());
    let space = with_volumes(cluster, "hosting", &[TEST_CLASS_ANYWHERE]);
    let before = content(&space, TEST_CLASS_ANYWHERE);
    let wait = |of: (&str, &str), what: &str, holds: &dyn Fn(&Value) -> bool| {
        wait_for_object(&kubectl, "velero", PATIENCE, of, what, holds).unwrap()
    };
    let here = |mut operation: Value| {
        operation["spec"]["backupStorageLocation"] = json!("hosting");
        kubectl.apply(&operation.to_string()).unwrap();
    };

    let room = Room::new(cluster, "node1", 1);
    let of = ("dataupload", "hosting-1");
    here(upload(&space, of.1, TEST_CLASS_ANYWHERE));
    let told = |it: &Value| message(it).contains("exceed max volume count") || has_ended(it);
    let waits = wait(of, "an explanation", &told);
    assert_eq!(phase(&waits), "Accepted", "{waits:#}");
    space.kubectl(["delete", "pod", TEST_CLASS_ANYWHERE, "--wait=false"]).unwrap();
    let uploaded = wait(of, "the end", &has_ended);
    assert_eq!(phase(&uploaded), "Completed", "{uploaded:#}");
    drop(room);

    gate.close();
    space.apply(&waiting(claim("back", TEST_CLASS, "Filesystem", "16Mi", None)).to_string()).unwrap();
    let of = ("datadownload", "hosting-2");
    here(download(&space, of.1, "back", uploaded["status"]["snapshotID"].as_str().unwrap()));
    let told = |it: &Value| message(it).contains("ignoreDelayBinding") || has_ended(it);
    let waits = wait(of, "an explanation", &told);
    assert_eq!(phase(&waits), "Accepted", "{waits:#}");
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": "movers" }, "value": 1234,
    });
    kubectl.apply(&class.to_string()).unwrap();
    let settings = json!({
        "restorePVC": { "ignoreDelayBinding": true }, "priorityClassName": "movers",
        "cachePVC": { "storageClass": TEST_CLASS_ANYWHERE },
    });
    let _configured = Configured::new(cluster, &settings);
    let moves = wait(of, "moving", &|it| phase(it) == "InProgress" || has_ended(it));
    assert_eq!(phase(&moves), "InProgress", "{moves:#}");
    gate.wait_for_somebody();

    let mover = kubectl.get(["-n", "velero", "pod", of.1]).unwrap();
    let spec = &mover["spec"];
    assert_eq!((&spec["priorityClassName"], &spec["priority"]), (&json!("movers"), &json!(1234)), "{spec:#}");
    let volumes = spec["volumes"].as_array().unwrap();
    let cache = volumes.iter().find(|volume| volume["name"] == "cachedir").expect("a volume for the cache");
    let cache = cache["persistentVolumeClaim"]["claimName"].as_str().unwrap();
    let volume = kubectl.get(["-n", "velero", "pvc", cache]).unwrap()["spec"]["volumeName"].clone();
    let (node, uid) = (cluster.node(1).unwrap().pid(), mover["metadata"]["uid"].as_str().unwrap());
    let pods = format!("/proc/{node}/root/var/lib/kubelet/pods");
    let folder = format!("{pods}/{uid}/volumes/kubernetes.io~csi/{}/mount", volume.as_str().unwrap());
    let kept = Command::new("find").args([folder.as_str(), "-type", "f"]).output().unwrap().stdout;
    assert!(!kept.is_empty(), "the mover keeps nothing in {folder}");

    gate.open();
    let restored = wait(of, "the end", &has_ended);
    assert_eq!(phase(&restored), "Completed", "{restored:#}");
    assert_nothing_left(cluster, space.name(), "hosting");
    space.apply(&pod("back", "touch /data/.done; sleep 86400", "back", None).to_string()).unwrap();
    space.wait_for_pod("back").unwrap();
    assert_eq!(content(&space, "back"), before);
    kubectl.run(["delete", "priorityclass", "movers"]).unwrap();
}
