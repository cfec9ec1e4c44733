//! Faults of our own CSI driver, each limited to the volumes and snapshots of one namespace, so that tests that share
//! a cluster do not disturb each other.

use crate::spec::Layout;
use crate::{Error, Result, csi, files};
use lifeboat_testbed_csi::knobs::{Rule, Rules};
use std::fs::File;
use std::io::ErrorKind;

/// What the sidecars tell the driver about each object it makes.
const NAMESPACE_OF_CLAIM: &str = "csi.storage.k8s.io/pvc/namespace";
const NAMESPACE_OF_SNAPSHOT: &str = "csi.storage.k8s.io/volumesnapshot/namespace";

/// Replaces the rules of a namespace; those of others stay.
pub(crate) fn set(layout: &Layout, namespace: &str, rules: &[Rule]) -> Result<()> {
    let path = csi::test_knobs(layout);
    let lock = path.with_extension("lock");
    // Test programs may share a cluster: they read and write in turns.
    let held = File::create(&lock).map_err(Error::io("create", &lock))?;
    held.lock().map_err(Error::io("lock", &lock))?;
    let mut all = match std::fs::read(&path) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => Rules::default(),
        text => serde_json::from_slice(&text.map_err(Error::io("read", &path))?)
            .map_err(|problem| Error::unexpected("knobs of the CSI driver", problem))?,
    };
    let elsewhere = |rule: &Rule| rule.only.parameters.get(key(rule)).is_none_or(|other| other != namespace);
    all.rules.retain(elsewhere);
    all.rules.extend(rules.iter().map(|rule| limited(rule, namespace)));
    let text = serde_json::to_vec_pretty(&all)
        .map_err(|problem| Error::unexpected("knobs of the CSI driver", problem))?;
    files::write(&path, text)
}

fn limited(rule: &Rule, namespace: &str) -> Rule {
    let mut rule = rule.clone();
    let key = key(&rule).to_owned();
    rule.only.parameters.insert(key, namespace.to_owned());
    rule
}

/// The parameter that tells the namespace of what a call is about.
fn key(rule: &Rule) -> &'static str {
    if rule.method.contains("Snapshot") || rule.method.starts_with("GetMetadata") {
        NAMESPACE_OF_SNAPSHOT
    } else {
        NAMESPACE_OF_CLAIM
    }
}
