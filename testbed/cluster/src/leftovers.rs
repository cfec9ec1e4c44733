//! What a cluster takes from the machine, found and given back without relying on records: whatever point a crash
//! hit, the next `up` or `down` finds the processes, loop devices, control groups and files again.

use crate::spec::Layout;
use crate::{Error, Result, command, supervisor, tools};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde::Deserialize;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// How long ended processes may take to let go of mounts, devices and groups.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first process of the node whose folder this is, if it runs.
pub(crate) fn first_process(node_folder: &Path) -> Option<Pid> {
    processes().into_iter().find(|pid| is_first_process(*pid, |folder| folder == node_folder))
}

/// Ends every process of the cluster and waits until the kernel has put the last one away.
pub(crate) fn end_processes(layout: &Layout) -> Result<()> {
    let nodes = layout.folder().join("nodes");
    end(|folder| folder.starts_with(&nodes))
}

/// Ends every process of one node.
pub(crate) fn end_node(node_folder: &Path) -> Result<()> {
    end(|folder| folder == node_folder)
}

/// Looks again and again: a start that was interrupted may still be on its way to its first process.
fn end(wanted: impl Fn(&Path) -> bool) -> Result<()> {
    let mut networks = HashSet::new();
    let mut seen = HashSet::new();
    command::wait_for("the end of the cluster's processes", PATIENCE, || {
        let all = processes();
        let firsts: Vec<Pid> = all.iter().copied().filter(|pid| is_first_process(*pid, &wanted)).collect();
        networks.extend(firsts.iter().filter_map(|pid| network_of(*pid)));
        // Whatever happened, the machine's own network is not the cluster's.
        networks.retain(|network| Some(*network) != network_of(getpid()));
        // Starters are in the network too; they end by themselves once they have reaped the first process.
        let starters: Vec<Pid> = all.iter().copied().filter(|pid| is_starter(*pid, &wanted)).collect();
        // Command-line clients that joined the network would keep it alive.
        let inside = |pid: &Pid| network_of(*pid).is_some_and(|network| networks.contains(&network));
        let clients = all.iter().filter(|pid| inside(pid) && !starters.contains(pid));
        for pid in firsts.iter().chain(clients) {
            kill(*pid);
        }
        seen.extend(firsts.into_iter().chain(starters));
        seen.retain(|pid| !has_ended(*pid));
        if seen.is_empty() { Ok(()) } else { Err(format!("still there: {seen:?}")) }
    })
}

/// Whether nothing of a process is left but its exit code. The first process of a pid namespace gets there after all
/// others of the namespace, and its starter after it.
fn has_ended(pid: Pid) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let state = status.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    matches!(state, None | Some('Z' | 'X'))
}

fn kill(pid: Pid) {
    // It may have ended between the look and the signal.
    let _ = kill_process(pid, Signal::KILL);
}

fn processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(Pid::from_raw).collect()
}

/// Recognises a node's first process by its command line, which names the node's folder.
fn is_first_process(pid: Pid, wanted: impl Fn(&Path) -> bool) -> bool {
    place_in_command_line(pid, wanted) == Some(0)
}

/// Recognises the process that made the namespaces of a node: it waits for the first process and reaps it.
fn is_starter(pid: Pid, wanted: impl Fn(&Path) -> bool) -> bool {
    place_in_command_line(pid, wanted).is_some_and(|place| place > 0)
}

/// Which word of a process's command line begins the command of a node's first process.
fn place_in_command_line(pid: Pid, wanted: impl Fn(&Path) -> bool) -> Option<usize> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    words.windows(3).position(|three| {
        three[0].ends_with(b"lifeboat-testbed-node")
            && three[1] == supervisor::ROLE.as_bytes()
            && str::from_utf8(three[2]).is_ok_and(|folder| wanted(Path::new(folder)))
    })
}

/// The network namespace of a process, as the kernel numbers it.
fn network_of(pid: Pid) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|namespace| namespace.ino())
}

#[derive(Deserialize)]
struct LoopList {
    loopdevices: Vec<LoopDevice>,
}

#[derive(Deserialize)]
struct LoopDevice {
    name: PathBuf,
    #[serde(rename = "back-file")]
    backing: Option<String>,
    #[serde(rename = "back-ino")]
    inode: u64,
}

/// Detaches the loop devices of the cluster's volumes: they stay bound when their users are killed.
///
/// Volume files lie in a folder that bears the cluster's name, so the kernel's record of the file tells whose it
/// is, even after the file is gone. The kubelet puts loop devices of its own on top of the drivers' ones.
pub(crate) fn detach_loops(marker: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = loop_devices()?;
        let of_volumes: Vec<&LoopDevice> = all
            .iter()
            .filter(|device| device.backing.as_ref().is_some_and(|file| file.contains(marker)))
            .collect();
        let inodes: Vec<u64> = of_volumes.iter().filter_map(|device| inode_of(&device.name)).collect();
        let stacked = all.iter().filter(|device| {
            inodes.contains(&device.inode) && !of_volumes.iter().any(|volume| volume.name == device.name)
        });
        let ours: Vec<&LoopDevice> = stacked.chain(of_volumes.iter().copied()).collect();
        if ours.is_empty() {
            return Ok(());
        }
        for device in &ours {
            let mut detach = Command::new(tools::system("losetup")?);
            let result = command::run(detach.arg("-d").arg(&device.name), b"", PATIENCE);
            if Instant::now() > deadline {
                result?;
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|file| file.ino())
}

fn loop_devices() -> Result<Vec<LoopDevice>> {
    let mut list = Command::new(tools::system("losetup")?);
    let json =
        command::run(list.args(["--json", "--list", "--output", "NAME,BACK-FILE,BACK-INO"]), b"", PATIENCE)?;
    if json.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let list: LoopList =
        serde_json::from_slice(&json).map_err(|problem| Error::unexpected("losetup", problem))?;
    Ok(list.loopdevices)
}

/// Every mounted control group hierarchy (several with version 1, one with version 2).
pub(crate) fn control_group_roots() -> Result<Vec<PathBuf>> {
    let mounts = Path::new("/proc/self/mounts");
    let text = fs::read_to_string(mounts).map_err(Error::io("read", mounts))?;
    let groups = text.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(place))
    });
    Ok(groups.collect())
}

/// Removes the control group `name` and all below it in every hierarchy.
pub(crate) fn remove_control_groups(name: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for root in control_group_roots()? {
        let group = root.join(name);
        while group.exists() {
            let removed = remove_group(&group);
            if removed.is_ok() {
                break;
            }
            if Instant::now() > deadline {
                removed.map_err(Error::io("remove the control group", &group))?;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn remove_group(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_group(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

/// Removes the cluster's folder.
pub(crate) fn remove_folder(layout: &Layout) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir_all(layout.folder()) {
            Ok(()) => return Ok(()),
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(problem) if Instant::now() > deadline => {
                return Err(Error::io("remove", layout.folder())(problem));
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
