//! Where the default comes from: the memory limit that the container (or the machine) sets.

use std::fs;
use std::path::{Path, PathBuf};

/// Share of the limit that buffers may take; the rest is for code, stacks, the allocator and the kernel's page
/// cache, which a cgroup counts too.
const SHARE_PERCENT: u64 = 40;
/// Below this not even one pack (20 MiB by default) and its neighbours can be in flight.
const FLOOR: u64 = 48 << 20;
/// What one processor can make use of, and each further one: a buffer of its own to read and hash in, and its part of
/// the packs. Together with the program itself this keeps a machine with two processors below 96 MiB.
const FIRST_PROCESSOR: u64 = 56 << 20;
const EACH_PROCESSOR: u64 = 20 << 20;
/// Above this nothing gets faster: it covers bandwidth × delay of a 10 Gbit/s store at 200 ms.
const CEILING: u64 = 256 << 20;

/// A memory limit and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// The file that said so, for logs.
    pub source: PathBuf,
}

/// The tightest memory limit of this process: of its cgroup (v2 or v1) or any ancestor, or `None` if unlimited.
pub fn memory_limit() -> Option<CgroupLimit> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    memory_limit_below(Path::new("/sys/fs/cgroup"), &groups)
}

/// The budget to use when the user set none: a share of the memory limit, within fixed bounds.
pub fn default_bytes() -> u64 {
    let physical = {
        let info = rustix::system::sysinfo();
        // `totalram` and `mem_unit` are C integers whose width depends on the platform.
        #[allow(clippy::unnecessary_cast)]
        (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
    };
    let limit = memory_limit().map_or(physical, |limit| limit.bytes.min(physical));
    share_of(limit, std::thread::available_parallelism().map_or(1, |count| count.get() as u64))
}

fn share_of(limit: u64, processors: u64) -> u64 {
    let further = EACH_PROCESSOR.saturating_mul(processors.saturating_sub(1));
    (limit / 100 * SHARE_PERCENT).clamp(FLOOR, FIRST_PROCESSOR.saturating_add(further).min(CEILING))
}

fn memory_limit_below(root: &Path, groups: &str) -> Option<CgroupLimit> {
    let mut tightest: Option<CgroupLimit> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            c if c.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        // Inside a container the path may name a directory of the host: walking up ends at the mount's root.
        let relative = Path::new(path.trim_start_matches('/'));
        for directory in relative.ancestors() {
            let source = mount.join(directory).join(file);
            let Ok(text) = fs::read_to_string(&source) else { continue };
            // cgroup v2 says "max", v1 a number near 2^63, for "no limit".
            let Ok(bytes) = text.trim().parse::<u64>() else { continue };
            if bytes < 1 << 60 && tightest.as_ref().is_none_or(|t| bytes < t.bytes) {
                tightest = Some(CgroupLimit { bytes, source });
            }
        }
    }
    tightest
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_tightest_ancestor_wins_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        write(root.path().join("a/memory.max"), "300000000\n");
        write(root.path().join("a/b/memory.max"), "max\n");
        write(root.path().join("memory/pod/memory.limit_in_bytes"), "200000000\n");
        write(root.path().join("memory/memory.limit_in_bytes"), "9223372036854771712\n");
        let v2 = memory_limit_below(root.path(), "0::/a/b\n").unwrap();
        assert_eq!((v2.bytes, v2.source.ends_with("a/memory.max")), (300_000_000, true));
        let v1 = memory_limit_below(root.path(), "5:cpu,cpuacct:/x\n4:memory:/pod/c\n").unwrap();
        assert_eq!(v1.bytes, 200_000_000);
        assert_eq!(memory_limit_below(root.path(), "0::/none\n"), None);
    }

    #[test]
    fn the_default_stays_within_its_bounds() {
        assert_eq!(share_of(10 << 20, 8), FLOOR);
        assert_eq!(share_of(1 << 40, 2), 76 << 20);
        assert_eq!(share_of(1 << 40, 64), CEILING);
        assert_eq!(share_of(256 << 20, 8), (256 << 20) / 100 * 40);
        assert!((FLOOR..=CEILING).contains(&default_bytes()));
    }
}
