//! Clusters come and go: side by side, after a killed start, with the process that owns them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Holdings, Machine, folder_of, zombies};
use lifeboat_testbed::guard::tie_to_this_process;
use lifeboat_testbed::testing::own;
use lifeboat_testbed::{Cluster, ClusterName, Error, Signal, Spec};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn two_clusters_at_the_same_time_do_not_see_each_other_and_leave_nothing() {
    let machine = Machine::look();
    let [left, right] = thread::scope(|scope| {
        let start = |name| scope.spawn(move || own(name, |_| {}).unwrap());
        [start("left"), start("right")].map(|starting| starting.join().unwrap())
    });
    left.kubectl().run(["create", "namespace", "only-left"]).unwrap();
    assert!(left.kubectl().run(["get", "namespace", "only-left"]).is_ok());
    let other = right.kubectl().run(["get", "namespace", "only-left"]).unwrap_err();
    assert!(other.to_string().contains("not found"), "{other}");
    assert_ne!(left.object_store().secret_key, right.object_store().secret_key);
    // The kubeconfig opens everything.
    let mode = fs::metadata(left.layout().kubeconfig()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let holdings = [Holdings::of(&left), Holdings::of(&right)];
    Cluster::down(&left.spec().name).unwrap();
    holdings[0].assert_gone();
    assert!(right.kubectl().run(["get", "--raw", "/readyz"]).is_ok(), "the other one goes on");
    Cluster::down(&right.spec().name).unwrap();
    holdings[1].assert_gone();
    machine.assert_unchanged();
}

/// Starts a cluster and kills the process that does so once the log of `component` is there; the rest stays behind.
fn kill_start_at(name: &ClusterName, component: &str) {
    let mut start = Command::new(env!("CARGO_BIN_EXE_lifeboat-testbed"))
        .args(["cluster", "up", "--name", name.as_str()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let log = folder_of(name).join(format!("nodes/node1/log/{component}.log"));
    let deadline = Instant::now() + Duration::from_secs(600);
    while !log.exists() {
        assert!(Instant::now() < deadline, "the start got nowhere");
        thread::sleep(Duration::from_millis(10));
    }
    start.kill().unwrap();
    start.wait().unwrap();
    assert!(Cluster::open(name).is_err(), "half a cluster is no cluster");
}

#[test]
fn a_start_whose_process_was_killed_half_way_is_cleared_away() {
    let name = ClusterName::new(&format!("killed-{}", std::process::id())).unwrap();
    tie_to_this_process(&name).unwrap();
    kill_start_at(&name, "etcd");
    let half = Holdings::of_half(&name);
    Cluster::down(&name).unwrap();
    half.assert_gone();

    kill_start_at(&name, "kubelet");
    let spec = Spec::new(name.clone());
    let cluster = Cluster::up(&spec, &|_, _| {}).unwrap();
    assert!(cluster.kubectl().run(["get", "--raw", "/readyz"]).is_ok());
    let first = cluster.node(1).unwrap().pid();
    let again = Cluster::up(&spec, &|_, _| {}).unwrap();
    assert_eq!(again.node(1).unwrap().pid(), first, "a complete cluster is found, not started anew");
    let other = Spec { nodes: 2, ..spec };
    assert!(matches!(Cluster::up(&other, &|_, _| {}), Err(Error::Invalid(_))), "other settings are refused");
    let holdings = Holdings::of(&cluster);
    Cluster::down(&name).unwrap();
    holdings.assert_gone();
    Cluster::down(&name).unwrap();
}

#[test]
fn the_end_of_a_component_is_noticed_and_leaves_no_zombie_and_a_kubelet_is_started_again() {
    let cluster = own("ending", |_| {}).unwrap();
    let node = cluster.node(1).unwrap();
    let ended = |name: &str| {
        let processes = node.processes().unwrap();
        processes.into_iter().find(|process| process.name == name).unwrap().ended
    };
    let kill = |name: &str| {
        assert_eq!(ended(name), None);
        node.signal(name, Signal::KILL).unwrap();
        let deadline = Instant::now() + Duration::from_secs(300);
        while ended(name).is_none() || zombies(&cluster) > 0 {
            assert!(Instant::now() < deadline, "{:?}, {} zombies", ended(name), zombies(&cluster));
            thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(ended(name).as_deref(), Some("signal 9"));
    };
    // A kubelet may end in a start that takes its time: whatever is waited for then, it is started again.
    kill("kubelet");
    cluster.restart_api_server().unwrap();
    assert_eq!(ended("kubelet"), None);
    // Of everything else the end is the end of the wait.
    kill("coredns");
    let problem = cluster.restart_api_server().unwrap_err().to_string();
    assert!(problem.contains("coredns on node1 ended with signal 9"), "{problem}");
    Cluster::down(&cluster.spec().name).unwrap();
}

#[test]
fn a_cluster_goes_with_the_process_that_owns_it() {
    let name = ClusterName::new(&format!("owned-{}", std::process::id())).unwrap();
    tie_to_this_process(&name).unwrap();
    let spec = Spec::new(name.clone());
    let cluster = Cluster::up(&spec, &|_, _| {}).unwrap();
    let holdings = Holdings::of(&cluster);
    let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut guard = Command::new(env!("CARGO_BIN_EXE_lifeboat-testbed-node"))
        .args(["guard", &owner.id().to_string(), name.as_str()])
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(Cluster::open(&name).is_ok(), "the owner lives");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(guard.wait().unwrap().success());
    holdings.assert_gone();
}
