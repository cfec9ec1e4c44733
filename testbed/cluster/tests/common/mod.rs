//! What the tests of the testbed share: a workload whose data can be compared, and a look at what the machine holds.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub use lifeboat_testbed::objects::{claim, list, pod, ready_to_use, snapshot};
use lifeboat_testbed::testing::TestNamespace;
use lifeboat_testbed::{Cluster, ClusterName, Layout};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A pod that fills a file system volume, and a block volume if asked, with everything that is easily lost, then waits.
pub fn workload(class: &str, block: bool) -> String {
    let fill = r#"
if [ ! -f /data/.done ]; then
  mkdir -p /data/big /data/small /data/empty
  for i in 1 2 3; do dd if=/dev/urandom of=/data/big/$i bs=1M count=8 2>/dev/null; done
  d=0; while [ $d -lt 10 ]; do mkdir -p /data/small/$d; f=0
    while [ $f -lt 50 ]; do echo "$d $f $RANDOM$RANDOM" > /data/small/$d/$f; f=$((f+1)); done; d=$((d+1)); done
  ln -s big/1 /data/link; ln /data/big/2 /data/hard; mkfifo /data/fifo
  chmod 600 /data/big/3; chown 1234:4321 /data/big/3
  truncate -s 64M /data/sparse; echo tail >> /data/sparse
  [ -e /dev/raw ] && dd if=/dev/urandom of=/dev/raw bs=1M count=24 2>/dev/null
  sync; touch /data/.done
fi
sleep 86400"#;
    let mut items = vec![claim("data", class, "Filesystem", "256Mi", None)];
    items.extend(block.then(|| claim("raw", class, "Block", "32Mi", None)));
    items.push(pod("writer", fill, "data", block.then_some("raw")));
    list(&items)
}

/// Clones of both volumes of the workload, from snapshots and from the volumes themselves, hold the same data.
pub fn snapshot_and_clone(space: &TestNamespace<'_>, (class, snapshot_class): (&str, &str), before: &str) {
    space
        .apply(&list(&[snapshot("s-data", snapshot_class, "data"), snapshot("s-raw", snapshot_class, "raw")]))
        .unwrap();
    for name in ["s-data", "s-raw"] {
        space.wait("volumesnapshot", name, "being ready", ready_to_use).unwrap();
    }
    let clones = [
        ("of-snapshot", "VolumeSnapshot", ["s-data", "s-raw"]),
        ("of-volume", "PersistentVolumeClaim", ["data", "raw"]),
    ];
    // Both at the same time: most of it is waiting.
    for (pod_name, kind, [data_source, raw_source]) in clones {
        let (data, raw) = (format!("data-{pod_name}"), format!("raw-{pod_name}"));
        space
            .apply(&list(&[
                claim(&data, class, "Filesystem", "256Mi", Some((kind, data_source))),
                claim(&raw, class, "Block", "32Mi", Some((kind, raw_source))),
                pod(pod_name, "sleep 86400", &data, Some(&raw)),
            ]))
            .unwrap();
    }
    for (pod_name, ..) in clones {
        space.wait_for_pod(pod_name).unwrap();
        assert_same(before, &fingerprint(space, pod_name));
    }
    space.kubectl(["delete", "pod", "of-snapshot", "of-volume", "--wait=true"]).unwrap();
    space
        .kubectl(["delete", "pvc", "data-of-snapshot", "raw-of-snapshot", "data-of-volume", "raw-of-volume"])
        .unwrap();
    space.kubectl(["delete", "volumesnapshot", "s-data", "s-raw"]).unwrap();
}

/// Everything about the volumes that a backup must keep: contents, and name, mode, owner, type and time of each entry.
///
/// Left out is what kopia does not keep: fifos, link counts, the times of folders (it reports the newest time below
/// one as its own) and Velero's own folder.
pub fn fingerprint(space: &TestNamespace<'_>, pod: &str) -> String {
    let line = r#"cd /data; f() { find . -path ./.velero -prune -o "$@" -print | sort; }
f -type f | xargs sha256sum
f ! -type l ! -type p ! -type d | xargs stat -c "%n %a %u %g %F %Y %s"
f -type d | xargs stat -c "%n %a %u %g"
f -type l | while read l; do echo "$l -> $(readlink $l)"; done
if [ -e /dev/raw ]; then sha256sum < /dev/raw; fi"#;
    let text = space.shell(pod, "c", line).unwrap();
    assert!(text.lines().count() > 1000, "the volume looks empty:\n{text}");
    text
}

/// Fails with the lines that differ, not with two long texts.
pub fn assert_same(before: &str, after: &str) {
    let (before, after): (BTreeSet<_>, BTreeSet<_>) = (before.lines().collect(), after.lines().collect());
    let lost: Vec<_> = before.difference(&after).take(20).collect();
    let new: Vec<_> = after.difference(&before).take(20).collect();
    assert!(lost.is_empty() && new.is_empty(), "data differs\nlost: {lost:#?}\nnew: {new:#?}");
}

/// What a running cluster holds of the machine, for a look after its end.
pub struct Holdings {
    name: ClusterName,
    folder: PathBuf,
    namespaces: BTreeSet<String>,
    loops: usize,
}

/// The namespaces of a process.
pub fn namespaces_of(process: &Path) -> impl Iterator<Item = String> + use<> {
    let links = ["net", "mnt", "pid", "ipc", "uts"].map(|kind| process.join("ns").join(kind));
    links.into_iter().filter_map(|link| Some(fs::read_link(link).ok()?.to_str()?.to_owned()))
}

fn command_line(process: &Path) -> String {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn processes_in(view: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(view).unwrap().flatten().map(|entry| entry.path());
    entries
        .filter(|path| path.file_name().unwrap().to_str().unwrap().bytes().all(|b| b.is_ascii_digit()))
        .collect()
}

/// Every process of a cluster, pods included: the `/proc` of a node shows what is in pid namespaces below its own too.
pub fn processes_of(cluster: &Cluster) -> Vec<PathBuf> {
    let nodes = cluster.spec().node_ids().map(|node| cluster.node(node.number()).unwrap().pid());
    nodes.flat_map(|pid| processes_in(Path::new(&format!("/proc/{pid}/root/proc")))).collect()
}

/// How many processes of a cluster have ended without anybody having taken note.
pub fn zombies(cluster: &Cluster) -> usize {
    let is_zombie = |process: &PathBuf| {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
    };
    processes_of(cluster).iter().filter(|process| is_zombie(process)).count()
}

impl Holdings {
    /// Notes every namespace that exists because of the cluster: those of its nodes and of everything below them.
    pub fn of(cluster: &Cluster) -> Self {
        Self::of_processes(&cluster.spec().name, &processes_of(cluster))
    }

    /// The same for a cluster that is not complete: its processes are told by the cluster's folder.
    pub fn of_half(name: &ClusterName) -> Self {
        let folder = folder_of(name);
        let of_cluster = |process: &PathBuf| command_line(process).contains(folder.to_str().unwrap());
        let processes: Vec<PathBuf> =
            processes_in(Path::new("/proc")).into_iter().filter(of_cluster).collect();
        Self::of_processes(name, &processes)
    }

    fn of_processes(name: &ClusterName, processes: &[PathBuf]) -> Self {
        let own: BTreeSet<String> = namespaces_of(Path::new("/proc/self")).collect();
        let inside: BTreeSet<String> = processes.iter().flat_map(|process| namespaces_of(process)).collect();
        let namespaces: BTreeSet<String> = inside.difference(&own).cloned().collect();
        assert!(namespaces.len() >= 3, "a cluster has at least three namespaces: {namespaces:?}");
        Self { folder: folder_of(name), name: name.clone(), namespaces, loops: loops_of(name).len() }
    }

    /// How many loop devices the cluster's volumes had.
    pub fn loops(&self) -> usize {
        self.loops
    }

    /// Fails if anything of the cluster is left: process, namespace, mount, loop device, control group or file.
    pub fn assert_gone(&self) {
        let folder = self.folder.to_str().unwrap();
        for process in processes_in(Path::new("/proc")) {
            let line = command_line(&process);
            let own = process.ends_with(std::process::id().to_string());
            assert!(own || !line.contains(folder), "left: process {} {line}", process.display());
            for namespace in namespaces_of(&process) {
                assert!(
                    !self.namespaces.contains(&namespace),
                    "left: {namespace} of {} {line}",
                    process.display()
                );
            }
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let left = mounts.lines().find(|line| line.contains(folder));
        assert!(left.is_none(), "left: mount {left:?}");
        for namespace in &self.namespaces {
            assert!(!mounts.contains(namespace.as_str()), "left: {namespace} is mounted somewhere");
        }
        assert_eq!(loops_of(&self.name), Vec::<String>::new(), "left: loop devices");
        let group = format!("lifeboat-testbed-{}", self.name);
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/pids"] {
            assert!(!Path::new(root).join(&group).exists(), "left: control group {group} in {root}");
        }
        assert!(!self.folder.exists(), "left: {folder}");
        assert!(!self.folder.with_extension("lock").exists(), "left: the lock of {folder}");
    }
}

/// Loop devices whose file belongs to a cluster, as the kernel tells it.
fn loops_of(name: &ClusterName) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let backing =
        devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    backing.filter(|file| file.contains(&format!("testbed-{name}-volumes"))).collect()
}

/// Places of the machine that a cluster must not touch although its parts use these very paths.
pub struct Machine(Vec<(String, Vec<String>)>);

impl Machine {
    pub fn look() -> Self {
        let places = [
            "/run/containerd",
            "/run/netns",
            "/var/lib/cni",
            "/var/lib/kubelet",
            "/var/lib/etcd",
            "/etc/cni",
            "/var/log/pods",
            "/var/log/containers",
            "/sys/class/net",
        ];
        let listing = |place: &str| {
            let mut names: Vec<String> = fs::read_dir(place)
                .map(|entries| {
                    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
                })
                .unwrap_or_else(|_| vec!["(absent)".to_owned()]);
            names.sort();
            names
        };
        let settings = [
            "vm/overcommit_memory",
            "vm/panic_on_oom",
            "kernel/panic",
            "kernel/panic_on_oops",
            "net/ipv4/ip_forward",
        ];
        let setting = |name: &str| vec![fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default()];
        let mut seen: Vec<_> = places.iter().map(|place| (place.to_string(), listing(place))).collect();
        seen.extend(settings.iter().map(|name| (name.to_string(), setting(name))));
        Self(seen)
    }

    pub fn assert_unchanged(&self) {
        for (before, now) in self.0.iter().zip(Self::look().0) {
            assert_eq!(*before, now, "the machine itself was changed");
        }
    }
}

/// The folder a cluster of that name would have.
pub fn folder_of(name: &ClusterName) -> PathBuf {
    Layout::of(name).unwrap().folder().to_owned()
}
