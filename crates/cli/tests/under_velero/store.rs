//! Backup locations whose store misbehaves.

use crate::stage::PATIENCE;
use lifeboat_testbed::Cluster;
use lifeboat_testbed::faults::{Fault, FaultProxy, Mode, Plan};
use std::net::SocketAddr;
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
    kept: AtomicU64,
}

impl Gate {
    pub fn plan(&self) -> Plan {
        let state = Arc::clone(&self.0);
        Box::new(move |method, path, _| {
            let kept =
                !state.open.load(Ordering::SeqCst) && is_data(path) && ["GET", "PUT"].contains(&method);
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
