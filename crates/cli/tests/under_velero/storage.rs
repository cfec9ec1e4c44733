//! Namespaces with small volumes, and storage of our own driver that misbehaves.

use crate::common::{claim, list, pod};
use crate::stage::Wishes;
use lifeboat_testbed::testing::{Failure, Match, Rule, TestNamespace, misbehave};
use lifeboat_testbed::{Cluster, TEST_CLASS_ANYWHERE};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Writes a little and waits.
pub const FILL: &str =
    "[ -f /data/.done ] || head -c 3000000 /dev/urandom > /data/file; touch /data/.done; sleep 86400";
/// A parameter of the test driver's classes that makes no difference to files; here it tells classes apart.
const MARK: &str = "changedBlockSize";

/// A namespace with a small volume of each class, named after it.
pub fn with_volumes<'a>(cluster: &'a Cluster, name: &str, classes: &[&str]) -> TestNamespace<'a> {
    let space = TestNamespace::new(cluster, name).unwrap();
    for class in classes {
        let wanted = claim(class, class, "Filesystem", "16Mi", None);
        space.apply(&list(&[wanted, pod(class, FILL, class, None)])).unwrap();
    }
    for class in classes {
        space.wait_for_pod(class).unwrap();
    }
    space
}

/// What is in the volume of a pod of such a namespace.
pub fn content(space: &TestNamespace<'_>, pod: &str) -> String {
    space.shell(pod, "c", "sha256sum < /data/file").unwrap().trim().to_owned()
}

/// A class of the test driver with a mark by which rules find its volumes.
pub fn define_class(cluster: &Cluster, name: &str, mark: &str) {
    let mut class = class_like(cluster, TEST_CLASS_ANYWHERE, name);
    class["parameters"][MARK] = json!(mark);
    cluster.kubectl().apply(&class.to_string()).unwrap();
}

/// A class like another one under a name of its own, so that settings for it concern nobody else.
pub fn copy_class(cluster: &Cluster, class: &str, name: &str) {
    cluster.kubectl().apply(&class_like(cluster, class, name).to_string()).unwrap();
}

fn class_like(cluster: &Cluster, class: &str, name: &str) -> Value {
    let mut class = cluster.kubectl().get(["storageclass", class]).unwrap();
    class["metadata"] = json!({ "name": name });
    class
}

/// Calls about volumes of a marked class fail.
pub fn failing(method: &str, mark: &str, failure: &str) -> Rule {
    let parameters = BTreeMap::from([(MARK.to_owned(), mark.to_owned())]);
    Rule {
        method: method.to_owned(),
        only: Match { parameters, ..Match::default() },
        fail: Some(Failure::try_from(failure.to_owned()).unwrap()),
        ..Rule::default()
    }
}

/// The driver's faults with copies of volumes, until this is dropped.
pub struct Misbehaviour(&'static Cluster, u64);

static RULES: Mutex<Wishes<Vec<Rule>>> = Mutex::new(Wishes::none());

impl Misbehaviour {
    pub fn new(cluster: &'static Cluster, rules: &[Rule]) -> Self {
        let mut all = RULES.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.add(rules.to_vec());
        apply_rules(cluster, &all).unwrap();
        Self(cluster, number)
    }
}

impl Drop for Misbehaviour {
    fn drop(&mut self) {
        let mut all = RULES.lock().unwrap_or_else(PoisonError::into_inner);
        all.take_back(self.1);
        let _ = apply_rules(self.0, &all);
    }
}

fn apply_rules(cluster: &Cluster, all: &Wishes<Vec<Rule>>) -> lifeboat_testbed::Result<()> {
    misbehave(cluster, "velero", &all.iter().flatten().cloned().collect::<Vec<_>>())
}
