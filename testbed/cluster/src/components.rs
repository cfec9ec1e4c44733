//! The programs a node runs and the settings that matter: each function describes one process.

use crate::control::Process;
use crate::spec::{Layout, NodeId, addresses};
use crate::{Result, catalogue, files, tools};
use std::fmt::Display;

/// Describes processes of one node.
pub(crate) struct Components<'l> {
    pub(crate) layout: &'l Layout,
    pub(crate) node: NodeId,
    /// The control group that the node's pods live in.
    pub(crate) control_group: String,
}

/// The name of the kubelet among the processes of its node.
pub(crate) const KUBELET: &str = "kubelet";
/// Where the node's containerd listens.
pub(crate) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

impl Components<'_> {
    fn process(&self, name: &str, program: std::path::PathBuf) -> Process {
        Process::new(name, program, self.layout.node(self.node).log(name))
    }

    /// A program built from module source, under a name that says what it is here.
    pub(crate) fn built(&self, program: &str, name: &str) -> Result<Process> {
        Ok(self.process(name, tools::built(program)?))
    }

    /// A program of this workspace under a name that says what it is here.
    pub(crate) fn own(&self, program: &str, name: &str) -> Result<Process> {
        Ok(self.process(name, tools::own(program)?))
    }

    pub(crate) fn etcd(&self) -> Result<Process> {
        let clients = "http://127.0.0.1:2379";
        let peers = "http://127.0.0.1:2380";
        Ok(self
            .process("etcd", tools::system("etcd")?)
            .args(["--name=testbed", "--data-dir=/var/lib/etcd", "--log-level=warn"])
            .arg(format!("--listen-client-urls={clients}"))
            .arg(format!("--advertise-client-urls={clients}"))
            .arg(format!("--listen-peer-urls={peers}"))
            .arg(format!("--initial-advertise-peer-urls={peers}"))
            .arg(format!("--initial-cluster=testbed={peers}")))
    }

    pub(crate) fn apiserver(&self, audit: bool) -> Result<Process> {
        let pki = |file: &str| self.layout.pki(file);
        let mut process = self
            .built("kube-apiserver", "kube-apiserver")?
            .arg("--etcd-servers=http://127.0.0.1:2379")
            .arg(format!("--service-cluster-ip-range={}", addresses::SERVICE_RANGE))
            .arg(format!("--secure-port={}", addresses::API_PORT))
            .arg(format!("--advertise-address={}", self.node.address()))
            .path("--tls-cert-file", pki("apiserver.crt"))
            .path("--tls-private-key-file", pki("apiserver.key"))
            .path("--client-ca-file", pki("ca.crt"))
            .path("--service-account-key-file", pki("accounts.pub"))
            .path("--service-account-signing-key-file", pki("accounts.key"))
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .path("--kubelet-client-certificate", pki("admin.crt"))
            .path("--kubelet-client-key", pki("admin.key"))
            .args(["--authorization-mode=Node,RBAC", "--allow-privileged=true"])
            .arg("--kubelet-preferred-address-types=InternalIP");
        if audit {
            let policy = self.layout.conf("audit.yaml");
            files::write(&policy, audit_policy())?;
            process =
                process.path("--audit-policy-file", policy).path("--audit-log-path", self.layout.audit_log());
        }
        Ok(process)
    }

    pub(crate) fn controller_manager(&self) -> Result<Process> {
        Ok(self
            .built("kube-controller-manager", "kube-controller-manager")?
            .path("--kubeconfig", self.layout.kubeconfig())
            .path("--service-account-private-key-file", self.layout.pki("accounts.key"))
            .path("--root-ca-file", self.layout.pki("ca.crt"))
            .args(["--use-service-account-credentials=true", "--leader-elect=false"])
            // A lost node is noticed in half the usual time, yet six missed reports of a busy machine are forgiven.
            .arg("--node-monitor-grace-period=30s"))
    }

    pub(crate) fn scheduler(&self) -> Result<Process> {
        Ok(self
            .built("kube-scheduler", "kube-scheduler")?
            .path("--kubeconfig", self.layout.kubeconfig())
            .arg("--leader-elect=false")
            // A pod whose claim was bound while it was looked at is not heard of again; the usual five minutes are longer than
            // tests allow an operation to get ready.
            .arg("--pod-max-in-unschedulable-pods-duration=15s"))
    }

    pub(crate) fn dns(&self) -> Result<Process> {
        let corefile = self.layout.conf("Corefile");
        files::write(&corefile, self.corefile())?;
        Ok(self.built("coredns", "coredns")?.path("-conf", corefile))
    }

    fn corefile(&self) -> String {
        format!(
            ".:53 {{\n    bind {}\n    errors\n    ready\n    kubernetes {} in-addr.arpa {{\n        kubeconfig {}\n        \
             pods insecure\n    }}\n    cache 5\n}}\n",
            self.node.address(),
            addresses::DNS_DOMAIN,
            self.layout.kubeconfig().display()
        )
    }

    pub(crate) fn containerd(&self) -> Result<Process> {
        let config = self.own_conf("containerd.toml");
        let cni = self.own_conf("cni");
        files::write(&config, containerd_config(&cni.display()))?;
        files::write(&cni.join("10-pods.conflist"), cni_config(&self.node.pod_range()))?;
        Ok(self.process("containerd", tools::system("containerd")?).path("--config", config))
    }

    pub(crate) fn kubelet(&self) -> Result<Process> {
        let config = self.own_conf("kubelet.yaml");
        // An empty resolver file keeps the machine's resolvers out of the pods.
        let resolver = self.layout.conf("no-resolver");
        files::write(&resolver, "")?;
        files::write(&config, self.kubelet_config(&resolver.display()))?;
        Ok(self
            .built("kubelet", KUBELET)?
            .path("--kubeconfig", self.layout.conf(&format!("kubelet-{}.kubeconfig", self.node)))
            .path("--config", config)
            .arg(format!("--hostname-override={}", self.node))
            .arg(format!("--node-ip={}", self.node.address()))
            .args(["--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki"]))
    }

    fn kubelet_config(&self, resolver: &impl Display) -> String {
        let authority = self.layout.pki("ca.crt");
        serde_json::json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "x509": {"clientCAFile": authority},
                "webhook": {"enabled": true},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}", self.control_group),
            "clusterDNS": [addresses::DNS_SERVICE],
            "clusterDomain": addresses::DNS_DOMAIN,
            // The machine's disk is shared: a nearly full one must not evict pods or collect images.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "resolvConf": resolver.to_string(),
            "volumePluginDir": "/var/lib/kubelet/volumeplugins",
            "maxPods": 200,
            // A node tells that it lives every quarter of this time.
            "nodeLeaseDurationSeconds": 20,
        })
        .to_string()
    }

    pub(crate) fn proxy(&self) -> Result<Process> {
        Ok(self
            .built("kube-proxy", "kube-proxy")?
            .path("--kubeconfig", self.layout.kubeconfig())
            .arg(format!("--hostname-override={}", self.node))
            .arg(format!("--cluster-cidr={}", addresses::POD_RANGE))
            .arg("--proxy-mode=iptables")
            // Zero leaves the machine's connection tracking settings alone.
            .args(["--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0"])
            .arg("--conntrack-tcp-timeout-close-wait=0"))
    }

    fn own_conf(&self, file: &str) -> std::path::PathBuf {
        self.layout.conf(&self.node.to_string()).join(file)
    }
}

/// One line for each request of a pod of Velero's namespace; a watch is told when it begins.
fn audit_policy() -> String {
    serde_json::json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "userGroups": ["system:serviceaccounts:velero"], "omitManagedFields": true},
            {"level": "None"},
        ],
    })
    .to_string()
}

/// `restrict_oom_score_adj`: without the capability to lower scores every sandbox would fail to start.
/// `device_ownership_from_security_context`: a pod of another user than root can use the devices that it is given.
fn containerd_config(cni: &impl Display) -> String {
    let pause = catalogue::PAUSE;
    let plugins = tools::CNI_FOLDER;
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
device_ownership_from_security_context = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{cni}"
"#
    )
}

/// Each pod is routed on its own link rather than bridged: traffic between two pods of a node then passes the
/// service address translation both ways without depending on bridge filtering in the kernel.
fn cni_config(range: &str) -> String {
    serde_json::json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": "/var/lib/cni/networks",
                "ranges": [[{"subnet": range}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
    .to_string()
}
