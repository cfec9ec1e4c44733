//! Backup locations whose store misbehaves.

use crate::stage::PATIENCE;
use lifeboat_testbed::Cluster;
use lifeboat_testbed::faults::{Fault, FaultProxy, Mode, Plan};
use lifeboat_testkit::kopia::Kopia;
use std::fs::File;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// A location in the cluster's object store with a proxy before it; gone when this is dropped.
pub struct Location {
    cluster: &'static Cluster,
    name: &'static str,
    pub proxy: FaultProxy,
    /// The proxy lives in it.
    _runtime: Runtime,
}

impl Location {
    pub fn new(cluster: &'static Cluster, name: &'static str, plan: Plan) -> Self {
        let store =
            cluster.object_store().endpoint.strip_prefix("http://").unwrap().parse::<SocketAddr>().unwrap();
        let (runtime, proxy) = cluster
            .in_network(|| {
                let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
                let start = FaultProxy::start(SocketAddr::new(store.ip(), 0), store, Mode::Http);
                let proxy = runtime.block_on(start).unwrap();
                (runtime, proxy)
            })
            .unwrap();
        proxy.plan(plan).unwrap();
        cluster.add_location(name, &format!("http://{}", proxy.address())).unwrap();
        Self { cluster, name, proxy, _runtime: runtime }
    }
}

impl Drop for Location {
    fn drop(&mut self) {
        let kubectl = self.cluster.kubectl();
        let _ = kubectl.run(["-n", "velero", "delete", "backupstoragelocation", self.name, "--wait=false"]);
    }
}

/// Stock kopia, connected to the repository that a location has of a namespace.
pub fn connected_kopia(cluster: &Cluster, location: &str, namespace: &str) -> Kopia {
    let template = r#"go-template={{index .data "repository-password" | base64decode}}"#;
    let secret = ["-n", "velero", "get", "secret", "velero-repo-credentials", "-o", template];
    let store = cluster.object_store();
    let mut kopia = Kopia::new(&cluster.kubectl().text(secret).unwrap()).unwrap();
    kopia.set_env("AWS_ACCESS_KEY_ID", &store.access_key);
    kopia.set_env("AWS_SECRET_ACCESS_KEY", &store.secret_key);
    let endpoint = store.endpoint.strip_prefix("http://").unwrap();
    let prefix = format!("kopia/{namespace}/");
    let words = ["repository", "connect", "s3", "--readonly", "--disable-tls", "--endpoint", endpoint];
    let place = ["--bucket", location, "--prefix", &prefix];
    cluster.in_network(|| kopia.run([&words[..], &place].concat())).unwrap().unwrap();
    kopia
}

/// What is in a snapshot of a volume, in the words of [`content`](crate::storage::content).
pub fn content_of_snapshot(cluster: &Cluster, kopia: &Kopia, snapshot: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    cluster.in_network(|| kopia.restore(snapshot, folder.path())).unwrap().unwrap();
    let file = File::open(folder.path().join("file")).unwrap();
    let sum = Command::new("sha256sum").stdin(file).output().unwrap().stdout;
    String::from_utf8(sum).unwrap().trim().to_owned()
}

/// Whether a request brings data into a repository: only movers do.
pub fn brings_data(method: &str, path: &str) -> bool {
    method == "PUT" && is_data(path)
}

fn is_data(path: &str) -> bool {
    path.contains("/kopia/") && path.rsplit('/').next().is_some_and(|blob| blob.starts_with('p'))
}

/// Keeps data from moving into a store or out of it as long as it is closed. What else a mover asks for gets through.
#[derive(Clone, Default)]
pub struct Gate(Arc<State>);

#[derive(Default)]
struct State {
    open: AtomicBool,
    away: AtomicBool,
    kept: AtomicU64,
}

impl Gate {
    pub fn plan(&self) -> Plan {
        let state = Arc::clone(&self.0);
        Box::new(move |method, path, _| {
            let closed =
                !state.open.load(Ordering::SeqCst) && is_data(path) && ["GET", "PUT"].contains(&method);
            let kept = closed || state.away.load(Ordering::SeqCst);
            state.kept.fetch_add(u64::from(kept), Ordering::SeqCst);
            kept.then_some(Fault::ResetBefore)
        })
    }

    pub fn open(&self) {
        self.0.open.store(true, Ordering::SeqCst);
    }

    pub fn close(&self) {
        self.0.open.store(false, Ordering::SeqCst);
    }

    /// From now on the store is away: nobody gets anything through, whoever asks for whatever.
    pub fn take_away(&self) {
        self.0.away.store(true, Ordering::SeqCst);
    }

    /// Waits until somebody who has not tried before now tries to get data through.
    pub fn wait_for_somebody(&self) {
        let before = self.0.kept.load(Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        while self.0.kept.load(Ordering::SeqCst) == before {
            assert!(Instant::now() < deadline, "no data is on its way");
            thread::sleep(Duration::from_millis(100));
        }
    }
}
