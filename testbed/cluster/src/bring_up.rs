//! From nothing to a complete cluster: what is started when, and what each step waits for.

use crate::cluster::Cluster;
use crate::components::KUBELET;
use crate::control::ProcessState;
use crate::csi::{self, Driver};
use crate::node::Node;
use crate::object_store::ObjectStore;
use crate::spec::{Layout, NodeId, Spec, addresses};
use crate::{Error, Result, catalogue, command, files, network, pki, velero};
use rustix::process::Signal;
use serde_json::json;
use std::ffi::OsStr;
use std::thread;
use std::time::Duration;

/// How long any one part of a cluster may take to get ready on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// The bucket every cluster has; Velero's default backup location.
pub const BUCKET: &str = "velero";
/// A bucket with object lock, which every cluster has too.
pub const LOCKED_BUCKET: &str = "locked";

impl Cluster {
    /// Starts every part of a cluster on clean ground.
    pub(crate) fn start(spec: &Spec, layout: &Layout, report: &(dyn Fn(&str) + Sync)) -> Result<Self> {
        files::private_folder(layout.folder())?;
        pki::create(layout, spec)?;
        let authority = spec.tls.then(|| layout.pki("ca.crt"));
        let object_store = ObjectStore::create(authority)?;
        object_store.save(&layout.conf("object-store.json"))?;
        let first = Node::start(&spec.name, layout, NodeId::FIRST)?;
        network::set_up_first(first.pid())?;
        let cluster = Self::assemble(spec.clone(), layout.clone(), first, object_store);
        let further = cluster.start_nodes()?;
        report("namespaces and certificates");
        cluster.start_control_plane()?;
        let nodes: Vec<&Node> = std::iter::once(cluster.first()).chain(&further).collect();
        thread::scope(|scope| {
            let images = scope.spawn(|| cluster.load_images(&nodes, report));
            let storage = scope.spawn(|| cluster.prepare_buckets(report));
            cluster.start_kubernetes(&nodes, report)?;
            for side in [images, storage] {
                side.join().map_err(|_| Error::unexpected("cluster start", "a step panicked"))??;
            }
            Ok::<(), Error>(())
        })?;
        if spec.velero {
            velero::install(&cluster)?;
            report("Velero");
        }
        let record =
            serde_json::to_vec(spec).map_err(|problem| Error::unexpected("cluster record", problem))?;
        files::write(&layout.spec(), record)?;
        Ok(cluster)
    }

    fn start_nodes(&self) -> Result<Vec<Node>> {
        let further = self.spec().node_ids().filter(|id| *id != NodeId::FIRST);
        let nodes = further
            .map(|id| Node::start(&self.spec().name, self.layout(), id))
            .collect::<Result<Vec<_>>>()?;
        for node in &nodes {
            network::plug_in(self.first().pid(), node.id(), node.pid(), self.spec())?;
        }
        Ok(nodes)
    }

    /// What needs nothing else: the store of the API, the API itself, the object store.
    fn start_control_plane(&self) -> Result<()> {
        let etcd_data = self.layout().node(NodeId::FIRST).var_lib().join("etcd");
        files::private_folder(&etcd_data)?;
        let data = self.layout().object_store(self.spec().store_in_memory);
        files::private_folder(&self.first().sees(&data))?;
        files::private_folder(&self.layout().conf("no-certificates"))?;
        let on = self.first().components(&self.spec().name, self.layout());
        for process in
            [on.etcd()?, on.apiserver(self.spec().audit)?, self.object_store().process(&on, &data)?]
        {
            self.first().start_process(process)?;
        }
        Ok(())
    }

    /// Ends the API server at once, as a crash would, and starts it again; returns when it answers.
    pub fn restart_api_server(&self) -> Result<()> {
        let process =
            self.first().components(&self.spec().name, self.layout()).apiserver(self.spec().audit)?;
        let name = process.name.clone();
        self.first().signal(&name, Signal::KILL)?;
        command::wait_for(&format!("the end of {name}"), PATIENCE, || {
            let processes = self.first().processes().map_err(|problem| problem.to_string())?;
            let ended = processes.iter().any(|it| it.name == name && it.ended.is_some());
            if ended { Ok(()) } else { Err("it runs".to_owned()) }
        })?;
        self.first().start_process(process)?;
        self.wait_for_api_server()
    }

    fn wait_for_api_server(&self) -> Result<()> {
        let kubectl = self.kubectl();
        self.wait("the API server", || {
            kubectl.run(["get", "--raw", "/readyz"]).map(drop).map_err(|problem| problem.to_string())
        })
    }

    fn load_images(&self, nodes: &[&Node], report: &(dyn Fn(&str) + Sync)) -> Result<()> {
        let wanted = if self.spec().velero { &catalogue::NAMES[..] } else { &["pause", "busybox"] };
        for node in nodes {
            let on = node.components(&self.spec().name, self.layout());
            node.start_process(on.containerd()?)?;
        }
        let archives = wanted.iter().map(|name| catalogue::archive(name)).collect::<Result<Vec<_>>>()?;
        for node in nodes {
            node.wait_for_runtime()?;
            for archive in &archives {
                node.load_image(&archive.path)?;
            }
        }
        report("images loaded");
        Ok(())
    }

    fn prepare_buckets(&self, report: &(dyn Fn(&str) + Sync)) -> Result<()> {
        for (bucket, object_lock) in [(BUCKET, false), (LOCKED_BUCKET, true)] {
            command::wait_for(&format!("the bucket {bucket}"), PATIENCE, || {
                self.create_bucket(bucket, object_lock).map_err(|problem| problem.to_string())
            })?;
        }
        report("buckets");
        Ok(())
    }

    fn start_kubernetes(&self, nodes: &[&Node], report: &(dyn Fn(&str) + Sync)) -> Result<()> {
        let kubectl = self.kubectl();
        self.wait_for_api_server()?;
        report("API server");
        let on = self.first().components(&self.spec().name, self.layout());
        for process in [on.controller_manager()?, on.scheduler()?, on.dns()?] {
            self.first().start_process(process)?;
        }
        for node in nodes {
            self.start_kubelet(node)?;
        }
        let definitions = csi::snapshot_definitions()?;
        self.wait("the definition of the snapshot API", || {
            let files = definitions.iter().flat_map(|file| [OsStr::new("-f"), file.as_os_str()]);
            let applied = kubectl.run([OsStr::new("apply")].into_iter().chain(files));
            applied.map(drop).map_err(|problem| problem.to_string())
        })?;
        kubectl.run(["wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"])?;
        self.define("the service of DNS", &self.dns_objects())?;
        self.start_drivers(nodes)?;
        for node in nodes {
            self.wait_for_node(node)?;
        }
        report("nodes ready");
        self.finish_drivers(nodes)?;
        self.wait("the default service account", || {
            kubectl
                .run(["-n", "default", "get", "serviceaccount", "default"])
                .map(drop)
                .map_err(|e| e.to_string())
        })?;
        report("CSI drivers registered");
        Ok(())
    }

    /// What every node runs besides its container runtime.
    fn start_kubelet(&self, node: &Node) -> Result<()> {
        let on = node.components(&self.spec().name, self.layout());
        node.start_process(on.kubelet()?)?;
        node.start_process(on.proxy()?)
    }

    /// Starts a kubelet that has ended, as the service manager of a real node would, and tells whether there was one. The
    /// kubelet gives up if the container runtime answers without being done with its start, which takes longer if there are
    /// pods of before.
    fn start_kubelet_again(&self, node: &Node) -> bool {
        let ended = |process: &ProcessState| process.name == KUBELET && process.ended.is_some();
        let is_down = node.processes().is_ok_and(|processes| processes.iter().any(ended));
        let on = node.components(&self.spec().name, self.layout());
        // If it cannot be started either, the next look says so.
        is_down && on.kubelet().and_then(|kubelet| node.start_process(kubelet)).is_ok()
    }

    /// Starts everything on a node that has come back.
    pub(crate) fn start_further_node(&self, node: &Node) -> Result<()> {
        network::plug_in(self.first().pid(), node.id(), node.pid(), self.spec())?;
        let on = node.components(&self.spec().name, self.layout());
        node.start_process(on.containerd()?)?;
        node.wait_for_runtime()?;
        self.start_kubelet(node)?;
        if self.spec().test_driver { self.start_driver(Driver::Test, node) } else { Ok(()) }
    }

    pub(crate) fn wait_for_node(&self, node: &Node) -> Result<()> {
        let name = node.id().to_string();
        self.wait(&format!("{name} ready"), || {
            if let Err(ended) = node.check_processes() {
                self.start_kubelet_again(node);
                return Err(ended);
            }
            let found = self.kubectl().get(["node", &name]).map_err(|problem| problem.to_string())?;
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            match ready {
                Some(condition) if condition["status"] == "True" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    }

    /// The drivers of this cluster and the nodes that each runs on.
    fn drivers<'n>(&self, nodes: &[&'n Node]) -> Vec<(Driver, Vec<&'n Node>)> {
        let mut drivers = vec![(Driver::Hostpath, nodes[..1].to_vec())];
        if self.spec().test_driver {
            drivers.push((Driver::Test, nodes.to_vec()));
        }
        drivers
    }

    fn start_drivers(&self, nodes: &[&Node]) -> Result<()> {
        for (driver, nodes) in self.drivers(nodes) {
            self.define(&format!("the classes of {}", driver.name()), &driver.objects())?;
            for node in nodes {
                self.start_driver(driver, node)?;
            }
        }
        let on = self.first().components(&self.spec().name, self.layout());
        self.first().start_process(csi::snapshot_controller(&on)?)
    }

    fn start_driver(&self, driver: Driver, node: &Node) -> Result<()> {
        let on = node.components(&self.spec().name, self.layout());
        for folder in driver.folders(&on, &self.spec().name) {
            files::private_folder(&folder)?;
        }
        for process in driver.on_node(&on, &self.spec().name)? {
            node.start_process(process)?;
        }
        Ok(())
    }

    /// The sidecars want the driver known to its nodes.
    fn finish_drivers(&self, nodes: &[&Node]) -> Result<()> {
        for (driver, nodes) in self.drivers(nodes) {
            for node in nodes {
                self.wait_for_driver(driver, node)?;
            }
            let on = self.first().components(&self.spec().name, self.layout());
            for process in driver.sidecars(&on)? {
                self.first().start_process(process)?;
            }
        }
        Ok(())
    }

    fn wait_for_driver(&self, driver: Driver, node: &Node) -> Result<()> {
        let name = node.id().to_string();
        self.wait(&format!("the registration of {} on {name}", driver.name()), || {
            let node = self.kubectl().get(["csinode", &name]).map_err(|problem| problem.to_string())?;
            let drivers = node["spec"]["drivers"].as_array().cloned().unwrap_or_default();
            let known = drivers.iter().any(|known| known["name"] == driver.name());
            if known { Ok(()) } else { Err(format!("known drivers: {drivers:?}")) }
        })
    }

    /// The service by which pods find DNS; the server itself is a process of the first node.
    fn dns_objects(&self) -> String {
        let ports = |with_target: bool| {
            let port = |name: &str, protocol: &str| {
                let mut port = json!({"name": name, "port": 53, "protocol": protocol});
                if with_target {
                    port["targetPort"] = json!(53);
                }
                port
            };
            json!([port("dns", "UDP"), port("dns-tcp", "TCP")])
        };
        json!({"apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "kube-dns", "namespace": "kube-system"},
                "spec": {"clusterIP": addresses::DNS_SERVICE, "ports": ports(true)},
            },
            {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": "kube-dns-testbed", "namespace": "kube-system",
                             "labels": {"kubernetes.io/service-name": "kube-dns"}},
                "addressType": "IPv4",
                "ports": ports(false),
                "endpoints": [{"addresses": [NodeId::FIRST.address().to_string()], "conditions": {"ready": true}}],
            },
        ]})
        .to_string()
    }

    /// Creates objects of the cluster itself; an API server that has just started may answer too late at first.
    fn define(&self, what: &str, objects: &str) -> Result<()> {
        let kubectl = self.kubectl();
        self.wait(what, || kubectl.apply(objects).map_err(|problem| problem.to_string()))
    }

    /// Waits for a part of the cluster, and gives up at once when a process of the first node has ended that is not to be
    /// started again.
    fn wait(&self, what: &str, mut probe: impl FnMut() -> std::result::Result<(), String>) -> Result<()> {
        let ended = command::wait_for(what, PATIENCE, || match self.first().check_processes() {
            Err(ended) if self.start_kubelet_again(self.first()) => Err(ended),
            Err(ended) => Ok(Some(ended)),
            Ok(()) => probe().map(|()| None),
        })?;
        match ended {
            Some(ended) => Err(Error::unexpected(what, ended)),
            None => Ok(()),
        }
    }
}
