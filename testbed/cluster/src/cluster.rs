//! The life of a cluster: up, found again, down; and the way into its network.

use crate::csi;
use crate::kubectl::Kubectl;
use crate::node::{Node, control_group};
use crate::object_store::ObjectStore;
use crate::spec::{ClusterName, Layout, NodeId, Spec, state_folder};
use crate::{Error, Result, files, leftovers, testing, tools};
use rustix::fs::{FlockOperation, flock};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// A complete, running cluster.
#[derive(Debug, Clone)]
pub struct Cluster {
    spec: Spec,
    layout: Layout,
    first: Node,
    object_store: ObjectStore,
}

impl Cluster {
    /// Brings the cluster up, or finds it up already with the same settings.
    ///
    /// Whatever an earlier, interrupted `up` left behind is cleared away first. `report` hears of each step with
    /// the time since the start.
    pub fn up(spec: &Spec, report: &(dyn Fn(Duration, &str) + Sync)) -> Result<Self> {
        spec.check()?;
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Invalid(
                "a cluster needs namespaces, mounts and control groups: run as root".to_owned(),
            ));
        }
        tools::check_system()?;
        let layout = Layout::of(&spec.name)?;
        let _lock = Lock::take(&layout)?;
        match Self::find(&layout) {
            Ok(found) if found.spec == *spec => return Ok(found),
            Ok(found) => {
                let name = &found.spec.name;
                return Err(Error::Invalid(format!("{name} is up with other settings: take it down first")));
            }
            Err(_) => clear_away(&spec.name, &layout)?,
        }
        let start = Instant::now();
        Self::start(spec, &layout, &|step| report(start.elapsed(), step)).inspect_err(|_| {
            // The half-started cluster may be cleared away before anybody looks.
            if let Ok(folder) = testing::keep_logs(&layout, spec) {
                report(start.elapsed(), &format!("failed; the logs are in {}", folder.display()));
            }
        })
    }

    /// Finds a running cluster by name.
    pub fn open(name: &ClusterName) -> Result<Self> {
        let layout = Layout::of(name)?;
        Self::find(&layout).map_err(|problem| Error::Missing {
            what: format!("the cluster {name} ({problem})"),
            remedy: format!("run `cargo xtask cluster up --name {name}`"),
        })
    }

    /// Ends the cluster and gives everything back: processes, mounts, loop devices, namespaces, control groups, files.
    ///
    /// Works on any state, also on a cluster that never came up, and is no error if there is nothing.
    pub fn down(name: &ClusterName) -> Result<()> {
        let layout = Layout::of(name)?;
        let _lock = Lock::take(&layout)?;
        clear_away(name, &layout)
    }

    /// The names of all clusters that left a trace, running or not.
    pub fn names() -> Result<Vec<ClusterName>> {
        let folder = state_folder()?;
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(problem) => return Err(Error::io("list", &folder)(problem)),
        };
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        let mut names: Vec<ClusterName> =
            folders.filter_map(|entry| ClusterName::new(entry.file_name().to_str()?).ok()).collect();
        names.sort();
        Ok(names)
    }

    fn find(layout: &Layout) -> Result<Self> {
        let spec: Spec = serde_json::from_str(&files::read(&layout.spec())?)
            .map_err(|problem| Error::unexpected("cluster record", problem))?;
        let object_store = ObjectStore::load(&layout.conf("object-store.json"))?;
        let first = Node::find(layout, NodeId::FIRST)?;
        Ok(Self { spec, layout: layout.clone(), first, object_store })
    }

    pub(crate) fn assemble(spec: Spec, layout: Layout, first: Node, object_store: ObjectStore) -> Self {
        Self { spec, layout, first, object_store }
    }

    pub(crate) fn first(&self) -> &Node {
        &self.first
    }

    /// What the cluster was asked to be.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Where its files are.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its object store.
    pub fn object_store(&self) -> &ObjectStore {
        &self.object_store
    }

    /// A client for its API.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.layout.kubeconfig(), self.first.pid())
    }

    /// A running node by number.
    pub fn node(&self, number: u8) -> Result<Node> {
        Node::find(&self.layout, NodeId(number))
    }

    /// Runs `action` on a thread inside the cluster's network; threads that it starts are inside too.
    ///
    /// The way for clients in the calling process (S3, Kubernetes, HTTP) to reach the cluster, and for servers in it
    /// to be reached by pods.
    pub fn in_network<T: Send>(&self, action: impl FnOnce() -> T + Send) -> Result<T> {
        let path = format!("/proc/{}/ns/net", self.first.pid());
        let network = File::open(&path).map_err(Error::io("open", &path))?;
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|errno| Error::io("join the network", &path)(errno.into()))?;
                Ok(action())
            });
            // A panic of the caller's own code stays a panic.
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Creates a bucket in the object store.
    pub fn create_bucket(&self, bucket: &str, object_lock: bool) -> Result<()> {
        self.in_network(|| {
            crate::small_runtime()?.block_on(self.object_store.create_bucket(bucket, object_lock))
        })?
    }

    /// The file by which our own CSI driver is told to misbehave; it is read again for every call.
    pub fn knobs(&self) -> std::path::PathBuf {
        csi::test_knobs(&self.layout)
    }

    /// Takes a node other than the first off the cluster at once, as a loss of power would.
    pub fn lose_node(&self, number: u8) -> Result<()> {
        if number == NodeId::FIRST.number() {
            return Err(Error::Invalid(
                "the first node runs the control plane: take the cluster down instead".to_owned(),
            ));
        }
        leftovers::end_node(&self.layout.node(NodeId(number)).folder)
    }

    /// Brings a lost node back with the files it had.
    pub fn return_node(&self, number: u8) -> Result<()> {
        let node = Node::start(&self.spec.name, &self.layout, NodeId(number))?;
        self.start_further_node(&node)?;
        self.wait_for_node(&node)
    }
}

/// Gives back everything a cluster of this name can hold, in the order in which one thing lets go of the next.
fn clear_away(name: &ClusterName, layout: &Layout) -> Result<()> {
    leftovers::end_processes(layout)?;
    leftovers::detach_loops(&csi::volume_folder(name))?;
    leftovers::remove_control_groups(&control_group(name))?;
    leftovers::remove_folder(layout)
}

/// Makes `up` and `down` of one cluster take turns; its file goes with it.
struct Lock {
    file: File,
    path: std::path::PathBuf,
}

impl Lock {
    fn take(layout: &Layout) -> Result<Self> {
        let path = layout.lock();
        files::private_folder(path.parent().unwrap_or(Path::new("/")))?;
        loop {
            let file = File::create(&path).map_err(Error::io("create", &path))?;
            flock(&file, FlockOperation::LockExclusive)
                .map_err(|errno| Error::io("lock", &path)(errno.into()))?;
            // The holder before us may have removed the file that we waited on.
            let held = file.metadata().map_err(Error::io("look at", &path))?;
            if fs::metadata(&path).is_ok_and(|there| there.ino() == held.ino() && there.dev() == held.dev()) {
                return Ok(Self { file, path });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while held: whoever waits on it sees that it is gone and takes a new one.
        let _ = fs::remove_file(&self.path);
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
