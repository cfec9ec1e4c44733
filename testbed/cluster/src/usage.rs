//! What pods and processes use of the machine, as the kernel counts it.

use crate::node::control_group;
use crate::{Cluster, Error, Result, files, object_store};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folders of the kubelet's classes of service; pods of the best class are in none.
const CLASSES: [&str; 3] = ["burstable", "besteffort", ""];

/// In which the kernel tells programs of times, on all processors that the testbed knows.
const MILLISECONDS_PER_TICK: u64 = 10;

/// The control groups of a pod: one for all, or one for each controller where these have hierarchies of their own. They go
/// with the pod.
#[derive(Debug, Clone)]
pub struct PodGroups {
    memory: PathBuf,
    processor: PathBuf,
}

impl Cluster {
    /// The control groups of a pod that has a node.
    pub fn pod_groups(&self, pod: &Value) -> Result<PodGroups> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (node, uid) = (text(&pod["spec"]["nodeName"]), text(&pod["metadata"]["uid"]));
        let pods = format!("{}/{node}/kubepods", control_group(&self.spec().name));
        let found = |roots: [&str; 2]| {
            let places = roots.into_iter().flat_map(|root| {
                CLASSES.map(|class| Path::new(root).join(&pods).join(class).join(format!("pod{uid}")))
            });
            let missing = || Error::unexpected(text(&pod["metadata"]["name"]), "it has no control group");
            places.into_iter().find(|place| place.is_dir()).ok_or_else(missing)
        };
        Ok(PodGroups {
            memory: found(["/sys/fs/cgroup/memory", "/sys/fs/cgroup"])?,
            processor: found(["/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup"])?,
        })
    }

    /// The time of processors that the object store has used so far.
    pub fn object_store_time(&self) -> Result<Duration> {
        let processes = self.first().processes()?;
        let store = processes.iter().find(|it| it.name == object_store::PROCESS);
        let store = store.ok_or_else(|| Error::unexpected("object store", "it does not run"))?;
        processor_time(&self.first().sees(&Path::new("/proc").join(store.pid.to_string())))
    }
}

/// The time of processors that a process with this folder in a `/proc` has used so far.
pub fn processor_time(process: &Path) -> Result<Duration> {
    let path = process.join("stat");
    let stat = files::read(&path)?;
    // The name of the program, in parentheses, may hold anything; counted behind it, these are the 12th and the 13th.
    let numbers = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let ticks = numbers.take(2).map(|number| number.parse::<u64>().ok()).sum::<Option<u64>>();
    let ticks = ticks.ok_or_else(|| Error::unexpected(path.display().to_string(), "it says no times"))?;
    Ok(Duration::from_millis(ticks * MILLISECONDS_PER_TICK))
}

impl PodGroups {
    /// The folder of the group that counts memory; in it are those of the pod's containers.
    pub fn memory(&self) -> &Path {
        &self.memory
    }

    /// The most memory that the pod was charged for so far, in bytes: also for pages of files that it has read or written.
    pub fn peak_memory(&self) -> Result<u64> {
        let files = ["memory.peak", "memory.max_usage_in_bytes"];
        self.known(files.iter().find_map(|file| number(&self.memory.join(file))))
    }

    /// The memory of the pod's own, in bytes: without pages of files.
    pub fn own_memory(&self) -> Result<u64> {
        let report = self.memory.join("memory.stat");
        self.known(field(&report, "total_rss").or_else(|| field(&report, "anon")))
    }

    /// The time of processors that the pod has used so far.
    pub fn processor_time(&self) -> Result<Duration> {
        let nanoseconds = number(&self.processor.join("cpuacct.usage")).map(Duration::from_nanos);
        let microseconds =
            || field(&self.processor.join("cpu.stat"), "usage_usec").map(Duration::from_micros);
        self.known(nanoseconds.or_else(microseconds))
    }

    fn known<T>(&self, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| Error::unexpected(self.memory.display().to_string(), "the group is gone"))
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.parse().ok()
}
