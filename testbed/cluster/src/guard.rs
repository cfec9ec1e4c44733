//! A cluster that belongs to one process goes when that process goes, even if it is killed.

use crate::spec::ClusterName;
use crate::{Cluster, Error, Result, tools};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Waits for the end of a process, then takes the cluster down.
pub fn watch(pid: i32, cluster: &str) -> Result<()> {
    let name = ClusterName::new(cluster)?;
    // A process that cannot be watched has ended already.
    if let Some(pid) = Pid::from_raw(pid)
        && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
    {
        let mut watched = [PollFd::new(&process, PollFlags::IN)];
        loop {
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(Error::io("watch", "the process")(errno.into())),
                Ok(_) => break,
            }
        }
    }
    Cluster::down(&name)
}

/// Ties a cluster to the running process, whether it is up already or not.
pub fn tie_to_this_process(name: &ClusterName) -> Result<()> {
    let mut guard = Command::new(tools::own("lifeboat-testbed-node")?);
    guard.args(["guard", &std::process::id().to_string(), name.as_str()]).current_dir("/").process_group(0);
    guard.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    guard.spawn().map(drop).map_err(Error::io("run", "lifeboat-testbed-node guard"))
}
