//! How a cluster fares: its components and the memory it takes.

use crate::{Cluster, Node, ProcessState, Result};
use std::collections::{HashMap, HashSet};
use std::fs;

/// One node: what it runs and what it takes.
#[derive(Debug, Clone)]
pub struct NodeStatus {
    /// The node's name.
    pub name: String,
    /// Its components; pods are not among them.
    pub components: Vec<ProcessState>,
    /// Memory of all its processes, pods included.
    pub memory: Memory,
}

/// Memory of a set of processes, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Resident memory, pages that several processes share counted once altogether.
    pub proportional: u64,
    /// The plain sum of what each process has resident.
    pub resident: u64,
}

impl Cluster {
    /// Looks at every node; a lost one is left out.
    pub fn status(&self) -> Result<Vec<NodeStatus>> {
        let running = self.spec().node_ids().filter_map(|id| self.node(id.number()).ok());
        running.map(|node| status_of(&node)).collect()
    }

    /// Memory of the whole cluster.
    pub fn memory(&self) -> Result<Memory> {
        let nodes = self.status()?;
        Ok(nodes.iter().fold(Memory::default(), |sum, node| Memory {
            proportional: sum.proportional + node.memory.proportional,
            resident: sum.resident + node.memory.resident,
        }))
    }
}

fn status_of(node: &Node) -> Result<NodeStatus> {
    let components = node.processes()?;
    let memory =
        descendants(node.pid().as_raw_nonzero().get()).iter().fold(Memory::default(), |sum, pid| Memory {
            proportional: sum.proportional + kilobytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:") * 1024,
            resident: sum.resident + kilobytes(&format!("/proc/{pid}/status"), "VmRSS:") * 1024,
        });
    Ok(NodeStatus { name: node.id().to_string(), components, memory })
}

/// A process and all below it. Everything in a node descends from its first process: orphans go to it.
fn descendants(first: i32) -> HashSet<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name may hold spaces and brackets; the fields after its last bracket do not.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = HashSet::new();
    let mut pending = vec![first];
    while let Some(pid) = pending.pop() {
        if found.insert(pid) {
            pending.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

/// A field of a process's memory report; a process that has ended takes nothing.
fn kilobytes(path: &str, field: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
