//! Objects as they change, written down: nothing passes by between two looks.

use crate::stage::PATIENCE;
use lifeboat_testbed::Cluster;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// Writes down every version of objects in Velero's namespace, as long as this lives.
pub struct Record {
    watch: Child,
    file: NamedTempFile,
}

impl Record {
    /// Of the objects of a kind that have a label, or of all with "". They are written down from the first one on that is seen.
    pub fn start(cluster: &Cluster, kind: &str, label: &str) -> Self {
        let file = NamedTempFile::new().unwrap();
        let watch = ["-n", "velero", "get", kind, "-l", label, "--watch", "-o", "json"];
        let mut command = cluster.kubectl().command(watch).unwrap();
        let output = file.reopen().unwrap();
        Self { watch: command.stdin(Stdio::null()).stdout(output).spawn().unwrap(), file }
    }

    /// All versions that were written down, by name.
    pub fn versions(&self) -> BTreeMap<String, Vec<Value>> {
        let text = std::fs::read_to_string(self.file.path()).unwrap();
        let mut versions: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        // The last one may not be complete.
        for version in serde_json::Deserializer::from_str(&text).into_iter::<Value>().map_while(Result::ok) {
            let name = version["metadata"]["name"].as_str().unwrap().to_owned();
            versions.entry(name).or_default().push(version);
        }
        versions
    }

    /// Waits until what was written down is as it is to be.
    pub fn wait(&self, what: &str, holds: impl Fn(&BTreeMap<String, Vec<Value>>) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(&self.versions()) {
            assert!(Instant::now() < deadline, "{what} was not seen: {:#?}", self.versions());
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}
