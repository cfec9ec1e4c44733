//! What a cluster is asked to be, and where its parts live on disk and in its own network.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::env;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// A cluster's name: part of paths, so it is short and plain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterName(String);

impl ClusterName {
    /// Accepts 1 to 24 lower-case letters, digits and inner dashes.
    pub fn new(name: &str) -> Result<Self> {
        let plain =
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if !plain || name.is_empty() || name.len() > 24 || name.starts_with('-') || name.ends_with('-') {
            return Err(Error::Invalid(format!(
                "{name:?} is no cluster name: use 1 to 24 lower-case letters, digits and inner dashes"
            )));
        }
        Ok(Self(name.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ClusterName {
    type Error = Error;
    fn try_from(name: String) -> Result<Self> {
        Self::new(&name)
    }
}

impl From<ClusterName> for String {
    fn from(name: ClusterName) -> String {
        name.0
    }
}

/// What a cluster is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The cluster's name.
    pub name: ClusterName,
    /// How many nodes. The first also runs the control plane, the object store and the hostpath driver.
    pub nodes: u8,
    /// Whether Velero is installed.
    pub velero: bool,
    /// Whether the object store speaks TLS with a certificate of the cluster's own authority.
    pub tls: bool,
    /// Whether our own CSI driver, which can misbehave on demand, runs beside the hostpath driver.
    pub test_driver: bool,
    /// Whether the API server keeps a log of what the pods of Velero's namespace ask it for.
    #[serde(default)]
    pub audit: bool,
    /// Whether the object store keeps its data in memory: where the disk would be what is measured.
    #[serde(default)]
    pub store_in_memory: bool,
}

/// The most nodes a cluster may have: they share one machine.
pub const MOST_NODES: u8 = 9;

impl Spec {
    /// One node, no Velero, plain HTTP object store.
    pub fn new(name: ClusterName) -> Self {
        Self {
            name,
            nodes: 1,
            velero: false,
            tls: false,
            test_driver: false,
            audit: false,
            store_in_memory: false,
        }
    }

    /// Refuses what cannot be started.
    pub fn check(&self) -> Result<()> {
        if self.nodes == 0 || self.nodes > MOST_NODES {
            return Err(Error::Invalid(format!("a cluster has 1 to {MOST_NODES} nodes, not {}", self.nodes)));
        }
        Ok(())
    }

    /// The nodes in order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (1..=self.nodes).map(NodeId)
    }
}

/// A node by its number, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u8);

impl NodeId {
    /// The node that also runs the control plane.
    pub const FIRST: NodeId = NodeId(1);

    /// The node's number, counted from 1.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The address of the node itself.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, 0, self.0)
    }

    /// The range its pods get their addresses from.
    pub fn pod_range(self) -> String {
        format!("10.244.{}.0/24", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

/// Addresses that are the same in every cluster: clusters do not see each other, so they may repeat.
pub mod addresses {
    /// All pods of all nodes.
    pub const POD_RANGE: &str = "10.244.0.0/16";
    /// Cluster addresses of services.
    pub const SERVICE_RANGE: &str = "10.96.0.0/16";
    /// The service `kubernetes.default`: the first address of the range.
    pub const API_SERVICE: &str = "10.96.0.1";
    /// The service `kube-dns.kube-system`, by convention the tenth.
    pub const DNS_SERVICE: &str = "10.96.0.10";
    /// The DNS name every service name ends with.
    pub const DNS_DOMAIN: &str = "cluster.local";
    /// The API server's port on the first node.
    pub const API_PORT: u16 = 6443;
    /// The object store's port on the first node.
    pub const S3_PORT: u16 = 9000;
}

/// Where everything of one cluster lives: one folder, gone after `down`.
#[derive(Debug, Clone)]
pub struct Layout {
    folder: PathBuf,
}

impl Layout {
    /// The folder of the cluster `name` below the state folder.
    pub fn of(name: &ClusterName) -> Result<Self> {
        Ok(Self { folder: state_folder()?.join(name.as_str()) })
    }

    /// The cluster's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The lock that makes `up` and `down` of one name take turns.
    pub(crate) fn lock(&self) -> PathBuf {
        self.folder.with_extension("lock")
    }

    /// What the cluster was asked to be. Written last by `up`, so its presence means a complete cluster.
    pub(crate) fn spec(&self) -> PathBuf {
        self.folder.join("spec.json")
    }

    /// The administrator's kubeconfig; readable by its owner only.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Certificates and keys.
    pub(crate) fn pki(&self, file: &str) -> PathBuf {
        self.folder.join("pki").join(file)
    }

    /// Configuration files of the components.
    pub(crate) fn conf(&self, file: &str) -> PathBuf {
        self.folder.join("conf").join(file)
    }

    /// The object store's data, as its node sees it.
    pub(crate) fn object_store(&self, in_memory: bool) -> PathBuf {
        // Each node has a file system in memory at `/run`, which goes with it.
        let folder = if in_memory { Path::new("/run") } else { self.folder() };
        folder.join("object-store")
    }

    /// What pods of Velero's namespace have asked the API server for, one JSON object in a line, if that is kept.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// The logs of a node's components by name.
    pub fn logs(&self, node: u8) -> Result<Vec<(String, PathBuf)>> {
        let folder = self.node(NodeId(node)).logs();
        let entries = std::fs::read_dir(&folder).map_err(Error::io("list", &folder))?;
        let named = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().to_str()?.strip_suffix(".log")?.to_owned();
            Some((name, entry.path()))
        });
        let mut logs: Vec<(String, PathBuf)> = named.collect();
        logs.sort();
        Ok(logs)
    }

    /// Everything of one node.
    pub(crate) fn node(&self, node: NodeId) -> NodeLayout {
        NodeLayout::at(self.folder.join("nodes").join(node.to_string()))
    }
}

/// Where everything of one node lives.
#[derive(Debug, Clone)]
pub(crate) struct NodeLayout {
    pub(crate) folder: PathBuf,
}

impl NodeLayout {
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Takes the place of `/var/lib` inside the node.
    pub(crate) fn var_lib(&self) -> PathBuf {
        self.folder.join("varlib")
    }

    /// Takes the place of `/var/log` inside the node.
    pub(crate) fn var_log(&self) -> PathBuf {
        self.folder.join("varlog")
    }

    /// Where the node's first process takes orders.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.folder.join("control")
    }

    /// Logs of the components.
    pub(crate) fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub(crate) fn log(&self, component: &str) -> PathBuf {
        self.logs().join(format!("{component}.log"))
    }
}

/// The folder of all clusters: `LIFEBOAT_CLUSTERS`, or below the user's cache folder.
pub(crate) fn state_folder() -> Result<PathBuf> {
    let folder = match env::var_os("LIFEBOAT_CLUSTERS") {
        Some(folder) => PathBuf::from(folder),
        None => cache_folder()?.join("clusters"),
    };
    let covered = ["/run", "/var/lib", "/var/log"].iter().find(|place| folder.starts_with(place));
    if let Some(place) = covered {
        return Err(Error::Invalid(format!(
            "clusters cannot live below {}: {place} is replaced inside a node; set LIFEBOAT_CLUSTERS",
            folder.display()
        )));
    }
    Ok(folder)
}

/// The project's cache folder of this user.
pub(crate) fn cache_folder() -> Result<PathBuf> {
    lifeboat_tools::cache_dir().map_err(|problem| Error::Missing {
        what: "the cache folder".to_owned(),
        remedy: format!("{problem:#}"),
    })
}
