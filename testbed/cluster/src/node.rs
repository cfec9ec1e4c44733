//! One running node: starting its first process, giving it orders, running commands inside it.

use crate::components::{CONTAINERD_SOCKET, Components};
use crate::control::{self, Process, ProcessState, Reply, Request};
use crate::csi::Driver;
use crate::spec::{ClusterName, Layout, NodeId, NodeLayout};
use crate::{Error, Result, command, files, leftovers, supervisor, tools};
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest path a Unix socket can have, less its final zero.
const LONGEST_SOCKET_PATH: usize = 107;

/// A node of a running cluster.
#[derive(Debug, Clone)]
pub struct Node {
    id: NodeId,
    layout: NodeLayout,
    pid: Pid,
}

/// The control group of a whole cluster.
pub(crate) fn control_group(cluster: &ClusterName) -> String {
    format!("lifeboat-testbed-{cluster}")
}

impl Node {
    /// Starts the node's first process in namespaces of its own.
    pub(crate) fn start(cluster: &ClusterName, layout: &Layout, id: NodeId) -> Result<Self> {
        let paths = layout.node(id);
        let socket = paths.control_socket();
        if socket.as_os_str().len() > LONGEST_SOCKET_PATH {
            let path = socket.display();
            return Err(Error::Invalid(format!("{path} is too long for a socket: set LIFEBOAT_CLUSTERS")));
        }
        for folder in [paths.var_lib(), paths.var_log(), paths.logs()] {
            files::private_folder(&folder)?;
        }
        // A stopped node leaves its socket behind.
        let _ = fs::remove_file(&socket);
        for root in leftovers::control_group_roots()? {
            let group = root.join(control_group(cluster)).join(id.to_string());
            fs::create_dir_all(&group).map_err(Error::io("create the control group", &group))?;
        }
        let log = fs::File::create(paths.log(supervisor::ROLE)).map_err(Error::io("create", paths.logs()))?;
        // Forked away from the caller: the node outlives it, and never is its zombie.
        let mut command = Command::new(tools::system("setsid")?);
        command
            .arg("--fork")
            .arg(tools::system("unshare")?)
            .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private", "--"])
            .arg(tools::own("lifeboat-testbed-node")?)
            .arg(supervisor::ROLE)
            .arg(&paths.folder)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(Error::io("share", paths.logs()))?)
            .stderr(log);
        let status = command.status().map_err(Error::io("run", "setsid"))?;
        if !status.success() {
            return Err(Error::unexpected(id.to_string(), status));
        }
        command::wait_for(&format!("the start of {id}"), Duration::from_secs(60), || {
            let ready = control::ask(&socket, &Request::List);
            ready.map_err(|problem| format!("{problem}\n{}", last_lines(&paths.log(supervisor::ROLE))))
        })?;
        Self::find(layout, id)
    }

    /// Finds a node that runs.
    pub(crate) fn find(layout: &Layout, id: NodeId) -> Result<Self> {
        let layout = layout.node(id);
        let pid = leftovers::first_process(&layout.folder)
            .ok_or_else(|| Error::unexpected(id.to_string(), "the node is not running"))?;
        Ok(Self { id, layout, pid })
    }

    /// The node's number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The node's first process as the machine sees it.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Where the machine finds what the node has at this absolute path.
    pub(crate) fn sees(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(self.pid.to_string()).join("root").join(below)
    }

    pub(crate) fn start_process(&self, process: Process) -> Result<()> {
        control::ask(&self.layout.control_socket(), &Request::Start(process)).map(drop)
    }

    /// Sends a signal to a component, for tests of what its loss does.
    pub fn signal(&self, component: &str, signal: Signal) -> Result<()> {
        let request = Request::Signal { name: component.to_owned(), signal: signal.as_raw() };
        control::ask(&self.layout.control_socket(), &request).map(drop)
    }

    /// The components of the node and how they fare.
    pub fn processes(&self) -> Result<Vec<ProcessState>> {
        match control::ask(&self.layout.control_socket(), &Request::List)? {
            Reply::Processes(processes) => Ok(processes),
            other => Err(Error::unexpected(self.id.to_string(), format!("answered {other:?} to a list"))),
        }
    }

    /// Fails, with the end of its log, if a component has ended.
    pub(crate) fn check_processes(&self) -> std::result::Result<(), String> {
        let processes = self.processes().map_err(|problem| problem.to_string())?;
        for process in processes {
            if let Some(how) = process.ended {
                let log = last_lines(&self.layout.log(&process.name));
                return Err(format!("{} on {} ended with {how}:\n{log}", process.name, self.id));
            }
        }
        Ok(())
    }

    /// A command that runs inside the node: its file system, its processes, its network.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = Command::new(tools::system("nsenter")?);
        command.args(["-t", &self.pid.to_string(), "-n", "-m", "-p", "--"]).arg(program);
        Ok(command)
    }

    /// The CSI socket of our own driver on this node, as the machine sees it: its SnapshotMetadata service answers there.
    pub fn test_driver_socket(&self) -> PathBuf {
        // Through the first process, since the way through the cluster's folder can be too long for a socket.
        self.sees(Path::new(&Driver::Test.socket()))
    }

    /// Loads an image archive into the node's container runtime.
    pub fn load_image(&self, archive: &Path) -> Result<()> {
        let mut ctr = self.command(tools::system("ctr")?)?;
        ctr.args(["-a", CONTAINERD_SOCKET, "-n", "k8s.io", "images", "import"]).arg(archive);
        command::run(&mut ctr, b"", Duration::from_secs(300)).map(drop)
    }

    /// Waits until the container runtime answers.
    pub(crate) fn wait_for_runtime(&self) -> Result<()> {
        command::wait_for(&format!("containerd on {}", self.id), Duration::from_secs(120), || {
            self.check_processes()?;
            let mut version = self.command("ctr").map_err(|problem| problem.to_string())?;
            version.args(["-a", CONTAINERD_SOCKET, "version"]);
            command::run(&mut version, b"", Duration::from_secs(20))
                .map(drop)
                .map_err(|problem| problem.to_string())
        })
    }

    pub(crate) fn components<'l>(&self, cluster: &ClusterName, layout: &'l Layout) -> Components<'l> {
        let control_group = format!("{}/{}", control_group(cluster), self.id);
        Components { layout, node: self.id, control_group }
    }
}

/// The end of a log, or why there is none.
pub(crate) fn last_lines(log: &Path) -> String {
    match fs::read(log) {
        Ok(bytes) => command::tail(&bytes),
        Err(problem) => format!("(no log: {problem})"),
    }
}
