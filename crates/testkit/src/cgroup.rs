//! Running a command under a memory limit of the kernel, and what it needed.

// `pre_exec` is unsafe: see `enter`, the only use.
#![allow(unsafe_code)]

use crate::process;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const V1_ROOT: &str = "/sys/fs/cgroup/memory";
const V2_ROOT: &str = "/sys/fs/cgroup";
/// Our groups begin with this and go on with the process id of the test, so that leftovers can be told.
const PREFIX: &str = "lifeboat-test-";
/// Short beside the life of any buffer worth measuring.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);

/// What a command did under its limit.
#[derive(Debug)]
pub struct Limited {
    /// What it printed and how it ended.
    pub output: Output,
    /// Whether it ended by itself, or was killed when its time was up.
    pub ended: bool,
    /// How long it kept processors busy.
    pub processor_time: Duration,
    /// The most memory it was charged for, page cache included: near the limit for whoever reads big files.
    pub peak_bytes: u64,
    /// The most memory of its own (heap, stacks), without page cache and mapped files; sampled, so a lower bound.
    pub peak_own_bytes: u64,
    /// How often the kernel killed a process for want of memory.
    pub oom_kills: u64,
}

/// Runs a command with at most `limit_bytes` of memory and no swap, at most for `time_limit`. Takes root.
pub fn run_limited(command: Command, limit_bytes: u64, time_limit: Duration) -> Result<Limited> {
    let limited = run_limited_at_most(command, limit_bytes, time_limit)?;
    ensure!(limited.ended, "a command did not end within {time_limit:?}: {limited:?}");
    Ok(limited)
}

/// Like [`run_limited`], but a command whose time was up is killed, and what it took until then is told.
pub fn run_limited_at_most(mut command: Command, limit_bytes: u64, time_limit: Duration) -> Result<Limited> {
    let group = Group::create(limit_bytes).context("make a memory cgroup (this takes root)")?;
    enter(&mut command, File::options().write(true).open(group.path.join("cgroup.procs"))?);
    let done = AtomicBool::new(false);
    let (run, peak_own_bytes) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = 0;
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(group.own_bytes());
                std::thread::sleep(SAMPLE_EVERY);
            }
            peak
        });
        let run = process::run_at_most(command, time_limit);
        done.store(true, Ordering::Relaxed);
        (run, sampler.join().unwrap_or(0))
    });
    let process::Ended { output, by_itself, processor_time } = run?;
    Ok(Limited {
        output,
        ended: by_itself,
        processor_time,
        peak_bytes: group.peak_bytes()?,
        peak_own_bytes,
        oom_kills: group.oom_kills()?,
    })
}

/// Moves the child into the group before it becomes the command, so that not one page is missed.
fn enter(command: &mut Command, procs: File) {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; this is a single `write` to a file
    // that was opened before the fork. It allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            rustix::io::write(&procs, b"0")?;
            Ok(())
        });
    }
}

/// A memory cgroup of our own, of either version; removed when dropped.
struct Group {
    path: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Group {
    fn create(limit_bytes: u64) -> Result<Group> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (root, version) = hierarchy()?;
        remove_leftovers(&root);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        let group = Group { path, version };
        let limit = limit_bytes.to_string();
        match version {
            Version::V1 => {
                group.write("memory.limit_in_bytes", &limit)?;
                group.write_if_there("memory.memsw.limit_in_bytes", &limit)?;
            }
            Version::V2 => {
                group.write("memory.max", &limit)?;
                group.write_if_there("memory.swap.max", "0")?;
            }
        }
        Ok(group)
    }

    fn peak_bytes(&self) -> Result<u64> {
        self.number(match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        })
    }

    fn own_bytes(&self) -> u64 {
        let field = if self.version == Version::V1 { "total_rss" } else { "anon" };
        self.field("memory.stat", field).unwrap_or(0)
    }

    fn oom_kills(&self) -> Result<u64> {
        self.field(
            if self.version == Version::V1 { "memory.oom_control" } else { "memory.events" },
            "oom_kill",
        )
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.path.join(file), value).with_context(|| format!("write {value} to {file}"))
    }

    /// Kernels without swap accounting lack the file; then there is nothing to limit.
    fn write_if_there(&self, file: &str, value: &str) -> Result<()> {
        if self.path.join(file).exists() { self.write(file, value) } else { Ok(()) }
    }

    fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(self.path.join(file)).with_context(|| format!("read {file}"))
    }

    fn number(&self, file: &str) -> Result<u64> {
        self.read(file)?.trim().parse().with_context(|| format!("parse {file}"))
    }

    fn field(&self, file: &str, name: &str) -> Result<u64> {
        let text = self.read(file)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .with_context(|| format!("{file} has no {name}"))?
            .parse()
            .with_context(|| format!("parse {file}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Grandchildren may still be about; the kernel refuses to remove a group with processes in it.
        for _ in 0..100 {
            for pid in self.read("cgroup.procs").unwrap_or_default().lines() {
                kill(pid);
            }
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("cannot remove the cgroup {}", self.path.display());
    }
}

fn kill(pid: &str) {
    let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Where this process can make memory groups.
fn hierarchy() -> Result<(PathBuf, Version)> {
    if Path::new(V1_ROOT).join("memory.limit_in_bytes").exists() {
        return Ok((V1_ROOT.into(), Version::V1));
    }
    let controllers =
        fs::read_to_string(Path::new(V2_ROOT).join("cgroup.subtree_control")).unwrap_or_default();
    if controllers.split_whitespace().any(|name| name == "memory") {
        return Ok((V2_ROOT.into(), Version::V2));
    }
    bail!("no memory controller: neither {V1_ROOT} nor one enabled in {V2_ROOT}/cgroup.subtree_control")
}

/// Removes empty groups of tests that were killed.
fn remove_leftovers(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LIMIT: Duration = Duration::from_secs(60);

    /// `head` and `tail` are everywhere; `tail` keeps the whole of a line that never ends.
    fn hoard(mebibytes: u64) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("head -c {} /dev/zero | tail -n 1 | wc -c", mebibytes * MIB)]);
        command
    }

    #[test]
    fn a_modest_command_passes_and_its_peak_is_told() {
        let run = run_limited(hoard(24), 128 * MIB, LIMIT).unwrap();
        assert!(run.output.status.success());
        assert_eq!(String::from_utf8_lossy(&run.output.stdout).trim(), (24 * MIB).to_string());
        assert!((24 * MIB..=128 * MIB).contains(&run.peak_bytes), "{run:?}");
        assert_eq!(run.oom_kills, 0);
    }

    #[test]
    fn a_greedy_command_is_killed_and_the_group_is_gone() {
        let run = run_limited(hoard(256), 32 * MIB, LIMIT).unwrap();
        assert!(run.oom_kills > 0, "{run:?}");
        assert!(run.peak_bytes <= 32 * MIB);
        let (root, _) = hierarchy().unwrap();
        let mine = format!("{PREFIX}{}-", std::process::id());
        let left = fs::read_dir(root)
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&mine));
        // The other test of this module may be running; it has one group at most.
        assert!(left.count() <= 1);
    }
}
