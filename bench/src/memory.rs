//! Memory that is at hand when a measured run wants it.
//!
//! A virtual machine gives memory back to its host soon after it became free, and gets it again page by page, which can take
//! ten times as long as writing to it. That would be what is measured, and it depends on what came before. So what a run will
//! want is held before it, and given up during it as fast as it is used.

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A file system in memory that every machine has.
pub const MEMORY: &str = "/dev/shm";
/// Beside its data, a run wants so much.
const BESIDE: u64 = 1 << 30;
/// So much stays free while memory is held: the rest of the machine goes on.
const LEAST: u64 = 2 << 30;
/// So much is ahead of what a run has used: more would be given back to the host before it is used.
const AHEAD: u64 = 256 << 20;
/// So much is taken or given up at once.
const PORTION: u64 = 32 << 20;
/// How often it is looked what is free.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The memory that is held.
#[derive(Debug)]
pub struct Supply {
    ballast: File,
    held: u64,
}

impl Supply {
    /// Holds nothing yet; `memory` is a file system in memory.
    pub fn new(memory: &Path) -> Result<Self> {
        let ballast = tempfile::tempfile_in(memory).context("make a file in memory")?;
        Ok(Self { ballast, held: 0 })
    }

    /// Holds what a run wants that writes `bytes` of data, as far as there is so much.
    pub fn hold(&mut self, bytes: u64) -> Result<()> {
        let portion = vec![0xA5; PORTION as usize];
        while self.held < bytes + BESIDE && known("MemFree")? > LEAST + PORTION {
            self.ballast.write_all_at(&portion, self.held).context("hold memory")?;
            self.held += PORTION;
        }
        Ok(())
    }

    /// Does a run, which gets what is held. What it leaves of that is held on.
    pub fn during<T>(&mut self, run: impl FnOnce() -> T) -> Result<T> {
        let enough = known("MemFree")? + AHEAD;
        let (run_goes_on, over) = channel::<()>();
        thread::scope(|scope| {
            let giving = scope.spawn(move || self.give(enough, &over));
            let result = run();
            drop(run_goes_on);
            let given = giving.join();
            given.map_err(|_| anyhow::anyhow!("memory could not be given up"))??;
            Ok(result)
        })
    }

    fn give(&mut self, enough: u64, over: &Receiver<()>) -> Result<()> {
        loop {
            while self.held > 0 && known("MemFree")? < enough {
                self.held -= PORTION;
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.ballast, punch, self.held, PORTION).context("give up memory")?;
            }
            if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
        }
    }
}

/// Mounts a file system in memory, in which files have large pages as far as they are long enough: with small ones most of
/// a measured run would be the kernel's looking for them. It takes all memory if it has to.
pub fn mount_at(folder: &Path) -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mount = |options| mount("lifeboat-bench", folder, "tmpfs", flags, options);
    let mut result = mount(c"size=100%,huge=within_size");
    if result == Err(Errno::INVAL) {
        eprintln!("this kernel has no large pages for files in memory: small ones are used");
        result = mount(c"size=100%");
    }
    result.with_context(|| format!("mount a file system in memory at {} (this takes root)", folder.display()))
}

/// Whether the machine has so much memory.
pub fn is_enough_for(bytes: u64) -> Result<bool> {
    Ok(bytes + LEAST <= known("MemTotal")?)
}

/// What the system says about its memory, in bytes.
fn known(what: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read about memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kibibytes.with_context(|| format!("the system does not say {what}"))? << 10)
}
