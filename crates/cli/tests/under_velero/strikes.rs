//! Ways in which agents and movers end, or stop for a while.

use crate::common::processes_of;
use crate::stage::{PATIENCE, wait_for_agent};
use lifeboat_testbed::testing::condition;
use lifeboat_testbed::{Cluster, PodGroups};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Ends the agents as a rollout does, and waits until others are in their places.
pub fn end_agent_gracefully(cluster: &Cluster) {
    let agents = ["-n", "velero", "delete", "pod", "-l", "name=node-agent", "--wait=true"];
    cluster.kubectl().run_within(PATIENCE, agents).unwrap();
    wait_for_agent(cluster);
}

/// Kills the agents' processes, and waits until Kubernetes has started them again.
pub fn kill_agent(cluster: &Cluster) {
    let restarts = || {
        let pods = cluster.kubectl().get(["-n", "velero", "pods", "-l", "name=node-agent"]).unwrap();
        let all = pods["items"].as_array().unwrap().clone();
        let count = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
        (all.iter().map(count).sum::<u64>(), all.iter().all(|pod| condition(pod, "Ready")))
    };
    let (before, _) = restarts();
    let is_agent = |process: &&PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).starts_with("/lifeboat\0node-agent\0server")
    };
    let processes = processes_of(cluster);
    let agents: Vec<_> = processes.iter().filter(is_agent).collect();
    assert!(!agents.is_empty());
    for agent in &agents {
        // As the node sees it; the first part of the path says which.
        let number = agent.file_name().unwrap().to_str().unwrap();
        let node = cluster.spec().node_ids().map(|node| cluster.node(node.number()).unwrap());
        let node = node.into_iter().find(|node| agent.starts_with(format!("/proc/{}", node.pid()))).unwrap();
        let killed = node.command("kill").unwrap().args(["-9", number]).status().unwrap();
        assert!(killed.success());
    }
    let deadline = Instant::now() + PATIENCE;
    let all_again = |(count, ready): (u64, bool)| count >= before + agents.len() as u64 && ready;
    while !all_again(restarts()) {
        assert!(Instant::now() < deadline, "the agents do not start again: {:?}", restarts());
        thread::sleep(Duration::from_millis(250));
    }
}

fn groups(cluster: &Cluster, pod: &str) -> PodGroups {
    let pod = cluster.kubectl().get(["-n", "velero", "pod", pod]).unwrap();
    cluster.pod_groups(&pod).unwrap()
}

/// The most memory that a pod has used so far.
pub fn peak_memory(cluster: &Cluster, pod: &str) -> u64 {
    groups(cluster, pod).peak_memory().unwrap()
}

/// The process of a mover, as the machine sees it.
pub struct Mover {
    process: String,
    /// The control group of its container.
    group: PathBuf,
}

impl Mover {
    /// The one in a hosting pod, which runs.
    pub fn of(cluster: &Cluster, pod: &str) -> Self {
        let containers =
            fs::read_dir(groups(cluster, pod).memory()).unwrap().flatten().map(|entry| entry.path());
        let processes = containers.flat_map(|group| {
            let all = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            let processes: Vec<String> = all.lines().map(str::to_owned).collect();
            processes.into_iter().map(move |process| Self { process, group: group.clone() })
        });
        let is_mover = |it: &Self| {
            let line = fs::read(format!("/proc/{}/cmdline", it.process)).unwrap_or_default();
            let second = line.split(|byte| *byte == 0).nth(1).unwrap_or_default().to_owned();
            second == b"data-mover" || second == b"pod-volume"
        };
        processes.into_iter().find(is_mover).unwrap_or_else(|| panic!("no mover runs in {pod}"))
    }

    /// Stops it, so that it does nothing that it is told to.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on, if it is still there.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let _ = Command::new("kill").args([signal, &self.process]).stderr(Stdio::null()).status();
    }

    /// Has the kernel end it because its container has used up its memory. Somebody else in the container uses it; the mover is
    /// the one that is picked first.
    pub fn run_out_of_memory(&self) {
        fs::write(format!("/proc/{}/oom_score_adj", self.process), "1000").unwrap();
        // It keeps all that it reads, within a bound of its own, should the container have none.
        let line = r#"echo $$ > "$0/cgroup.procs" && ulimit -v 1000000 && exec tail /dev/zero"#;
        let mut hog = Command::new("sh");
        hog.args(["-c", line]).arg(&self.group).stdout(Stdio::null()).stderr(Stdio::null());
        let ended = hog.status().unwrap();
        assert_eq!(ended.signal(), Some(9), "{}: the memory does not run out", self.group.display());
    }
}
