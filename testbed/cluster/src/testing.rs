//! What tests on a cluster need: one cluster per run, a namespace per test, waits that explain themselves, and a
//! bundle of everything worth knowing when a test fails.
//!
//! ```no_run
//! use lifeboat_testbed::testing::{TestNamespace, shared};
//!
//! # fn example() -> lifeboat_testbed::Result<()> {
//! let cluster = shared(|_| {})?;
//! let space = TestNamespace::new(cluster, "writes-survive")?;
//! space.apply(r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer"}, "spec": {}}"#)?;
//! space.wait_for_pod("writer")?;
//! # Ok(())
//! # }
//! ```

use crate::guard;
use crate::spec::{ClusterName, Layout, Spec, cache_folder};
use crate::{Cluster, Error, Kubectl, Result, command, files, misbehaviour};
pub use lifeboat_testbed_csi::knobs::{Failure, Lie, Loss, Match, Moment, Rule};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a condition is waited for unless the caller knows better.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The cluster that all tests of this run share.
///
/// `LIFEBOAT_CLUSTER` names one that is up already and stays up. Without it the first caller starts a cluster of this
/// process's own, made as `adjust` says, which goes when the process ends.
pub fn shared(adjust: impl FnOnce(&mut Spec)) -> Result<&'static Cluster> {
    static SHARED: OnceLock<std::result::Result<Cluster, String>> = OnceLock::new();
    let cluster = SHARED.get_or_init(|| match std::env::var("LIFEBOAT_CLUSTER") {
        Ok(name) => ClusterName::new(&name).and_then(|name| Cluster::open(&name)).map_err(|e| e.to_string()),
        Err(_) => own("test", adjust).map_err(|problem| problem.to_string()),
    });
    cluster.as_ref().map_err(|problem| Error::unexpected("the cluster of this test run", problem))
}

/// A cluster of this process's own: its name ends in the process's number, and it goes when the process does.
pub fn own(prefix: &str, adjust: impl FnOnce(&mut Spec)) -> Result<Cluster> {
    let name = ClusterName::new(&format!("{prefix}-{}", std::process::id()))?;
    let mut spec = Spec::new(name);
    adjust(&mut spec);
    // Tied first: a start that is killed half way is cleared away too.
    guard::tie_to_this_process(&spec.name)?;
    Cluster::up(&spec, &|elapsed, step| eprintln!("{:6.1}s {}: {step}", elapsed.as_secs_f32(), spec.name))
}

/// A namespace for one test. Deleted when the test is over; kept, with a debug bundle, if it fails.
#[derive(Debug)]
pub struct TestNamespace<'c> {
    cluster: &'c Cluster,
    kubectl: Kubectl,
    name: String,
}

impl<'c> TestNamespace<'c> {
    /// Creates the namespace; `test` is a short name of the scenario.
    pub fn new(cluster: &'c Cluster, test: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{test}-{}-{number}", std::process::id());
        let kubectl = cluster.kubectl();
        kubectl.run(["create", "namespace", &name])?;
        Ok(Self { cluster, kubectl, name })
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `kubectl` in the namespace.
    pub fn kubectl<'a>(&'a self, args: impl IntoIterator<Item = &'a str>) -> Result<String> {
        self.kubectl.text(["-n", &self.name].into_iter().chain(args))
    }

    /// Creates or changes objects, given as YAML or JSON, in the namespace.
    pub fn apply(&self, objects: &str) -> Result<()> {
        let mut apply = self.kubectl.command(["-n", &self.name, "apply", "-f", "-"])?;
        command::run(&mut apply, objects.as_bytes(), PATIENCE).map(drop)
    }

    /// An object of the namespace.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.kubectl.get(["-n", &self.name, kind, name])
    }

    /// Runs a shell line in a pod's container and returns what it printed.
    pub fn shell(&self, pod: &str, container: &str, line: &str) -> Result<String> {
        let args = ["-n", &self.name, "exec", pod, "-c", container, "--", "sh", "-c", line];
        Ok(String::from_utf8_lossy(&self.kubectl.run_within(PATIENCE, args)?).into_owned())
    }

    /// Waits until a property of an object holds; the failure tells of the object, its events and its pods.
    pub fn wait(&self, kind: &str, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        self.wait_within(PATIENCE, kind, name, what, holds)
    }

    /// As [`Self::wait`], with a limit of its own.
    pub fn wait_within(
        &self,
        limit: Duration,
        kind: &str,
        name: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait_for_object(&self.kubectl, &self.name, limit, (kind, name), what, holds)
    }

    /// Waits until a pod is ready.
    pub fn wait_for_pod(&self, name: &str) -> Result<()> {
        self.wait("pod", name, "being ready", |pod| condition(pod, "Ready")).map(drop)
    }

    /// Waits for an event of this reason whose message contains `text`.
    pub fn wait_for_event(&self, reason: &str, text: &str) -> Result<()> {
        let wanted = |event: &Value| {
            event["reason"] == reason && event["message"].as_str().is_some_and(|said| said.contains(text))
        };
        let waited = command::wait_for(&format!("an event {reason} with {text:?}"), PATIENCE, || {
            let events =
                self.kubectl.get(["-n", &self.name, "events"]).map_err(|problem| problem.to_string())?;
            let found = events["items"].as_array().is_some_and(|all| all.iter().any(wanted));
            if found { Ok(()) } else { Err(String::new()) }
        });
        waited.map_err(|problem| match problem {
            Error::Timeout { what, timeout, .. } => {
                Error::Timeout { what, timeout, detail: circumstances(&self.kubectl, &self.name) }
            }
            other => other,
        })
    }

    /// Makes our own CSI driver treat the volumes and snapshots of this namespace as the rules say, from its next call
    /// on. They take the place of earlier ones; without any, the driver behaves.
    pub fn misbehave(&self, rules: &[Rule]) -> Result<()> {
        misbehave(self.cluster, &self.name, rules)
    }

    /// Writes everything worth knowing about the namespace and the cluster into a folder, and returns it.
    pub fn debug_bundle(&self) -> Result<PathBuf> {
        debug_bundle(self.cluster, &self.name)
    }
}

impl Drop for TestNamespace<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            match self.debug_bundle() {
                Ok(folder) => eprintln!("{}: everything worth knowing is in {}", self.name, folder.display()),
                Err(problem) => eprintln!("{}: no debug bundle: {problem}", self.name),
            }
            return;
        }
        // A driver that goes on misbehaving could keep the namespace's volumes from going.
        let driver = if self.cluster.spec().test_driver { self.misbehave(&[]) } else { Ok(()) };
        let deleted = driver.and_then(|()| {
            self.kubectl.run(["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"])
        });
        if let Err(problem) = deleted {
            eprintln!("{}: {problem}", self.name);
        }
    }
}

/// As [`TestNamespace::misbehave`], for a namespace that is not a test's own.
pub fn misbehave(cluster: &Cluster, namespace: &str, rules: &[Rule]) -> Result<()> {
    misbehaviour::set(cluster.layout(), namespace, rules)
}

/// Whether a condition of an object's status is true.
pub fn condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}

/// Waits until a property of an object holds. An object that is not there yet is waited for too.
pub fn wait_for_object(
    kubectl: &Kubectl,
    namespace: &str,
    limit: Duration,
    (kind, name): (&str, &str),
    what: &str,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let deadline = Instant::now() + limit;
    loop {
        let seen = kubectl.get(["-n", namespace, kind, name]);
        match &seen {
            Ok(object) if holds(object) => return seen,
            _ if Instant::now() < deadline => thread::sleep(Duration::from_millis(250)),
            _ => {
                let last = seen.map_or_else(|problem| problem.to_string(), |object| shown(&object));
                let around = circumstances(kubectl, namespace);
                let detail = format!("--- {kind}/{name}, last seen ---\n{last}\n{around}");
                return Err(Error::Timeout { what: format!("{kind}/{name} {what}"), timeout: limit, detail });
            }
        }
    }
}

/// What matters of an object: its status, or all of it if it has none.
fn shown(object: &Value) -> String {
    let part = object.get("status").unwrap_or(object);
    format!("{part:#}")
}

/// Events and logs of a namespace, newest last.
fn circumstances(kubectl: &Kubectl, namespace: &str) -> String {
    let ask = |args: &[&str]| kubectl.text(args).unwrap_or_else(|problem| problem.to_string());
    let events = ask(&["-n", namespace, "get", "events", "--sort-by=.lastTimestamp"]);
    let pods = ask(&["-n", namespace, "get", "pods", "-o", "wide"]);
    let recent: Vec<&str> = events.lines().rev().take(30).collect();
    let events = recent.into_iter().rev().collect::<Vec<_>>().join("\n");
    let mut text = format!("--- events ---\n{events}\n--- pods ---\n{pods}");
    for pod in names(kubectl, namespace, "pods") {
        let log = ask(&["-n", namespace, "logs", &pod, "--all-containers", "--tail=20"]);
        text.push_str(&format!("--- log of {pod} ---\n{log}"));
    }
    text
}

fn names(kubectl: &Kubectl, namespace: &str, kind: &str) -> Vec<String> {
    let list = kubectl.get(["-n", namespace, kind]).unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|item| Some(item["metadata"]["name"].as_str()?.to_owned())).collect()
}

/// Kinds whose objects go into a bundle; those of Velero are there only if it is installed.
const BUNDLED_KINDS: &str = "pods,pvc,events,jobs,configmaps,volumesnapshots";
const VELERO_KINDS: &str = "backups.velero.io,restores.velero.io,datauploads,datadownloads,podvolumebackups,\
                            podvolumerestores,backuprepositories,backupstoragelocations";

/// Writes objects, events, logs of pods and logs of every component into a folder of the cache, and returns it.
pub fn debug_bundle(cluster: &Cluster, namespace: &str) -> Result<PathBuf> {
    let folder = debug_folder(&cluster.spec().name)?.join(namespace);
    // What an earlier bundle of the same name left would be taken for what is the case now.
    files::remove_folder(&folder)?;
    let kubectl = cluster.kubectl();
    let save = |file: &str, args: &[&str]| -> Result<()> {
        let text = kubectl.text(args).unwrap_or_else(|problem| problem.to_string());
        files::write(&folder.join(file), text)
    };
    save("objects.yaml", &["-n", namespace, "get", BUNDLED_KINDS, "-o", "yaml"])?;
    save("volumes.yaml", &["get", "pv,volumesnapshotcontents,csinodes,nodes", "-o", "yaml"])?;
    save("pods.txt", &["get", "pods", "-A", "-o", "wide"])?;
    files::write(&folder.join("circumstances.txt"), circumstances(&kubectl, namespace))?;
    if cluster.spec().velero {
        save("velero.yaml", &["-n", "velero", "get", VELERO_KINDS, "-o", "yaml"])?;
        files::write(&folder.join("velero.txt"), circumstances(&kubectl, "velero"))?;
    }
    copy_all_logs(cluster.layout(), cluster.spec(), &folder)?;
    Ok(folder)
}

/// Copies the logs of every component to where they outlive the cluster.
pub(crate) fn keep_logs(layout: &Layout, spec: &Spec) -> Result<PathBuf> {
    let folder = debug_folder(&spec.name)?.join("start");
    files::remove_folder(&folder)?;
    copy_all_logs(layout, spec, &folder)?;
    Ok(folder)
}

/// What is kept of a cluster for a look after its end.
fn debug_folder(cluster: &ClusterName) -> Result<PathBuf> {
    Ok(cache_folder()?.join("debug").join(cluster.as_str()))
}

fn copy_all_logs(layout: &Layout, spec: &Spec, folder: &Path) -> Result<()> {
    for id in spec.node_ids() {
        copy_logs(&layout.node(id).logs(), &folder.join(id.to_string()))?;
    }
    Ok(())
}

fn copy_logs(from: &Path, to: &Path) -> Result<()> {
    files::private_folder(to)?;
    let entries = std::fs::read_dir(from).map_err(Error::io("list", from))?;
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        std::fs::copy(entry.path(), &target).map_err(Error::io("copy a log to", &target))?;
    }
    Ok(())
}
