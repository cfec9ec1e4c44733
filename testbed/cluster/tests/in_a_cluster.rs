//! What a pod and an operator can count on inside a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::processes_of;
use lifeboat_testbed::faults::{Fault, FaultProxy, Mode};
use lifeboat_testbed::testing::{TestNamespace, shared};
use lifeboat_testbed::{BUSYBOX, Cluster, Image, LOCKED_BUCKET, addresses, small_runtime};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn cluster() -> &'static Cluster {
    shared(|spec| spec.tls = true).unwrap()
}

fn idle_pod(name: &str, line: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [
            {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", line]}]},
    })
    .to_string()
}

#[test]
fn a_pod_reaches_the_api_by_service_address_and_by_name() {
    let space = TestNamespace::new(cluster(), "api").unwrap();
    space.apply(&idle_pod("client", "echo started; sleep 86400")).unwrap();
    space.wait_for_pod("client").unwrap();
    // A machine that is busy may let an answer come too late.
    let patiently = |line: &str| {
        let line = format!("i=0; until {line}; do i=$((i+1)); [ $i -lt 20 ] || exit 1; sleep 1; done");
        space.shell("client", "c", &line).unwrap()
    };
    patiently(&format!("nc -w 10 {} 443 < /dev/null", addresses::API_SERVICE));
    patiently("nc -w 10 kubernetes.default.svc 443 < /dev/null");
    let full = patiently("nslookup kubernetes.default.svc.cluster.local");
    assert!(full.contains(addresses::API_SERVICE), "{full}");
    assert_eq!(space.kubectl(["logs", "client"]).unwrap().trim(), "started");
}

#[test]
fn nothing_leads_out_of_the_cluster() {
    let space = TestNamespace::new(cluster(), "no-way-out").unwrap();
    space.apply(&idle_pod("client", "sleep 86400")).unwrap();
    space.wait_for_pod("client").unwrap();
    // An address of the documentation range, which any route out would carry away.
    let outside = "nc -w 3 192.0.2.1 80 < /dev/null && echo open || echo closed";
    assert_eq!(space.shell("client", "c", outside).unwrap().trim(), "closed");
    // Nothing of the cluster is in the machine's network, so nothing of it can listen or call there.
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    let processes = processes_of(cluster());
    assert!(processes.len() > 10, "{processes:?}");
    for process in processes {
        let network = std::fs::read_link(process.join("ns/net"));
        assert!(network.map_or(true, |network| network != ours), "{}", process.display());
    }
}

#[test]
fn port_forward_carries_a_request() {
    let cluster = cluster();
    let space = TestNamespace::new(cluster, "forward").unwrap();
    space
        .apply(&idle_pod("web", "mkdir /www; echo hello > /www/index.html; httpd -f -p 80 -h /www"))
        .unwrap();
    space.wait_for_pod("web").unwrap();
    let args = ["-n", space.name(), "port-forward", "pod/web", "18080:80"];
    let mut forward = cluster.kubectl().command(args).unwrap();
    let mut forward = forward.stdout(Stdio::null()).spawn().unwrap();
    let answer = cluster.in_network(|| {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut stream = loop {
            match TcpStream::connect("127.0.0.1:18080") {
                Ok(stream) => break stream,
                Err(problem) => assert!(Instant::now() < deadline, "{problem}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    forward.kill().unwrap();
    forward.wait().unwrap();
    assert!(answer.unwrap().ends_with("hello\n"));
}

#[test]
fn an_image_of_our_own_static_program_runs_and_has_the_same_digest_twice() {
    let cluster = cluster();
    let folder = tempfile::tempdir().unwrap();
    let busybox = lifeboat_tools::path("busybox").unwrap();
    let image = Image::of_program("localhost/own:1", &busybox).unwrap();
    let first = image.write(&folder.path().join("one.tar")).unwrap();
    let second = image.write(&folder.path().join("two.tar")).unwrap();
    assert_eq!(first, second);
    assert_eq!(
        std::fs::read(folder.path().join("one.tar")).unwrap(),
        std::fs::read(folder.path().join("two.tar")).unwrap()
    );
    cluster.node(1).unwrap().load_image(&folder.path().join("one.tar")).unwrap();
    let space = TestNamespace::new(cluster, "own-image").unwrap();
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"},
        "spec": {"restartPolicy": "Never", "securityContext": {"runAsNonRoot": true}, "containers": [
            {"name": "c", "image": "localhost/own:1", "imagePullPolicy": "Never", "args": ["id", "-u"]}]},
    });
    space.apply(&pod.to_string()).unwrap();
    space.wait("pod", "own", "having ended", |pod| pod["status"]["phase"] == "Succeeded").unwrap();
    assert_eq!(space.kubectl(["logs", "own"]).unwrap().trim(), "65532");
}

#[test]
fn the_object_store_speaks_tls_keeps_locked_buckets_and_can_be_reached_through_a_bad_network() {
    let cluster = cluster();
    assert!(cluster.object_store().endpoint.starts_with("https://"));
    cluster.create_bucket("another", false).unwrap();
    // Made by every start; a second creation is no error.
    cluster.create_bucket(LOCKED_BUCKET, true).unwrap();
    // A proxy of this very process, in front of the store, in the cluster's network.
    let done = cluster.in_network(|| {
        small_runtime().unwrap().block_on(async {
            let upstream = format!("10.200.0.1:{}", addresses::S3_PORT).parse().unwrap();
            let proxy =
                FaultProxy::start("10.200.0.1:0".parse().unwrap(), upstream, Mode::Tcp).await.unwrap();
            let mut store = cluster.object_store().clone();
            store.endpoint = format!("https://{}", proxy.address());
            store.create_bucket("through-proxy", false).await.unwrap();
            assert!(proxy.plan(Box::new(|_, _, _| Some(Fault::Unavailable))).is_err(), "TLS hides requests");
        });
    });
    done.unwrap();
}

#[test]
fn a_wait_that_fails_tells_why() {
    let space = TestNamespace::new(cluster(), "telling").unwrap();
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "failing"},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": BUSYBOX, "command": ["sh", "-c", "echo last words; exit 3"]}]},
    });
    space.apply(&pod.to_string()).unwrap();
    space.wait("pod", "failing", "having failed", |pod| pod["status"]["phase"] == "Failed").unwrap();
    let ready = |pod: &serde_json::Value| lifeboat_testbed::testing::condition(pod, "Ready");
    let told = space.wait_within(Duration::from_secs(1), "pod", "failing", "being ready", ready).unwrap_err();
    let told = told.to_string();
    for part in ["pod/failing being ready", "last words", "Scheduled", "exitCode"] {
        assert!(told.contains(part), "{part:?} is missing in:\n{told}");
    }
    let bundle = space.debug_bundle().unwrap();
    for file in ["objects.yaml", "volumes.yaml", "circumstances.txt", "node1/kubelet.log"] {
        let length = std::fs::metadata(bundle.join(file)).unwrap().len();
        assert!(length > 0, "{file} is empty");
    }
    std::fs::remove_dir_all(&bundle).unwrap();
    // Another test's bundle may be beside it.
    let _ = std::fs::remove_dir(bundle.parent().unwrap());
}

#[test]
fn csi_sanity_passes_on_the_hostpath_driver() {
    let cluster = cluster();
    // A driver of its own, so that the suite's volumes do not mix with the cluster's.
    let line = r#"
mkdir -p "$volumes"
"$driver" --drivername=sanity.csi.k8s.io --nodeid=node1 --endpoint=unix:///run/sanity/csi.sock --statedir="$volumes" \
  > /run/sanity/driver.log 2>&1 &
pid=$!
"$suite" --csi.endpoint=unix:///run/sanity/csi.sock --csi.mountdir=/run/sanity/mount \
  --csi.stagingdir=/run/sanity/staging --ginkgo.no-color
code=$?
kill $pid
[ $code = 0 ] || tail -50 /run/sanity/driver.log
exit $code"#;
    let node = cluster.node(1).unwrap();
    assert!(node.command("mkdir").unwrap().arg("/run/sanity").status().unwrap().success());
    let volumes = format!("/var/lib/testbed-{}-volumes/sanity", cluster.spec().name);
    let mut sanity = node.command("sh").unwrap();
    let output = sanity
        .args(["-c", line])
        .env("volumes", volumes)
        .env("driver", lifeboat_tools::path("hostpathplugin").unwrap())
        .env("suite", lifeboat_tools::path("csi-sanity").unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(" 0 Failed"), "{text}");
}
