//! The policies of a repository, and which of them apply to a source.

use super::{Definitions, Policy, merge};
use crate::manifest::{Labels, ManifestId, ManifestStore, TYPE_LABEL};
use crate::snapshot::{HOSTNAME_LABEL, PATH_LABEL, SourceInfo, USERNAME_LABEL};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of the label `type` of policies.
pub const POLICY_TYPE: &str = "policy";
const POLICY_TYPE_LABEL: &str = "policyType";

/// A policy and what it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefinedPolicy {
    /// Its manifest.
    pub id: ManifestId,
    /// What it is for.
    pub target: SourceInfo,
    /// The policy.
    pub policy: Policy,
}

/// A policy that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedPolicy {
    /// Its manifest.
    pub id: ManifestId,
    /// What it is for.
    pub target: SourceInfo,
    /// What is wrong with it.
    pub reason: String,
}

/// All policies of a repository.
#[derive(Debug, Clone, Default)]
pub struct PolicySet {
    /// Those that are understood; of several for one target the latest.
    pub defined: Vec<DefinedPolicy>,
    /// Those that are not. Nobody may guess what they say: a source that they apply to has no effective policy.
    pub damaged: Vec<DamagedPolicy>,
}

/// The labels of the policy for `target`.
pub fn labels(target: &SourceInfo) -> Labels {
    let mut labels = Labels::from([(TYPE_LABEL.to_owned(), POLICY_TYPE.to_owned())]);
    let mut set = |name: &str, value: &str| drop(labels.insert(name.to_owned(), value.to_owned()));
    if !target.path.is_empty() {
        set(POLICY_TYPE_LABEL, "path");
        set(USERNAME_LABEL, &target.user_name);
        set(HOSTNAME_LABEL, &target.host);
        set(PATH_LABEL, &target.path);
    } else if !target.user_name.is_empty() {
        set(POLICY_TYPE_LABEL, "user");
        set(USERNAME_LABEL, &target.user_name);
        set(HOSTNAME_LABEL, &target.host);
    } else if !target.host.is_empty() {
        set(POLICY_TYPE_LABEL, "host");
        set(HOSTNAME_LABEL, &target.host);
    } else {
        set(POLICY_TYPE_LABEL, "global");
    }
    labels
}

/// Sets the policy for `target`, replacing the one before.
pub async fn save(manifests: &ManifestStore, target: &SourceInfo, policy: &Policy) -> Result<ManifestId> {
    policy.validate(target)?;
    manifests.replace(labels(target), policy).await
}

/// Removes the policy for `target`.
pub async fn remove(manifests: &ManifestStore, target: &SourceInfo) -> Result<()> {
    for manifest in manifests.find(&labels(target)).await? {
        manifests.delete(manifest.id()).await?;
    }
    Ok(())
}

impl PolicySet {
    /// Reads all policies.
    pub async fn load(manifests: &ManifestStore) -> Result<PolicySet> {
        let wanted = Labels::from([(TYPE_LABEL.to_owned(), POLICY_TYPE.to_owned())]);
        let mut set = PolicySet::default();
        for manifest in manifests.find(&wanted).await? {
            let (id, target) = (manifest.id().clone(), SourceInfo::from_labels(manifest.labels()));
            match manifest.parse() {
                Ok(policy) => set.add(DefinedPolicy { id, target, policy }),
                Err(error) => set.damaged.push(DamagedPolicy { id, target, reason: error.to_string() }),
            }
        }
        Ok(set)
    }

    /// Adds a policy in place of an earlier one for the same target.
    fn add(&mut self, policy: DefinedPolicy) {
        self.defined.retain(|known| known.target != policy.target);
        self.defined.push(policy);
    }

    /// The policy that was set for exactly this target.
    pub fn defined_for(&self, target: &SourceInfo) -> Option<&DefinedPolicy> {
        self.defined.iter().find(|defined| defined.target == *target)
    }

    /// The policies that apply to `source`, the most specific first: its path, each path above, the user, the
    /// host, the global one.
    pub fn hierarchy(&self, source: &SourceInfo) -> Result<Vec<&DefinedPolicy>> {
        let targets = targets(source);
        if let Some(damaged) = self.damaged.iter().find(|damaged| targets.contains(&damaged.target)) {
            let reason = format!("the policy for {} is not understood: {}", damaged.target, damaged.reason);
            return Err(Error::DamagedManifest { id: damaged.id.to_string(), reason });
        }
        Ok(targets.iter().filter_map(|target| self.defined_for(target)).collect())
    }

    /// The policy in force for `source`, and where each field comes from.
    pub fn effective(&self, source: &SourceInfo) -> Result<(Policy, Definitions)> {
        let hierarchy = self.hierarchy(source)?;
        let own = hierarchy.first().is_some_and(|first| first.target == *source);
        // What belongs to a folder is not inherited: without a policy of its own a source has nothing of it.
        let blank =
            DefinedPolicy { id: ManifestId::default(), target: source.clone(), policy: Policy::default() };
        Ok(merge((!own).then_some(&blank).into_iter().chain(hierarchy)))
    }

    /// The policies in force in the directories of `source`: the effective one, replaced below a directory that has
    /// a policy of its own by that one as it stands, without merging.
    pub fn tree(&self, source: &SourceInfo) -> Result<PolicyTree> {
        let (mut root, _) = self.effective(source)?;
        // The merge leaves them out of a policy that inherits nothing.
        if let Some(own) = self.defined_for(source) {
            root.actions.before_folder.clone_from(&own.policy.actions.before_folder);
            root.actions.after_folder.clone_from(&own.policy.actions.after_folder);
        }
        let mut node = Node { policy: Arc::new(root), defined: true, children: BTreeMap::new() };
        let same_user =
            |target: &SourceInfo| target.host == source.host && target.user_name == source.user_name;
        let below = |target: &SourceInfo| {
            if same_user(target) { path_below(&source.path, &target.path) } else { None }
        };
        if let Some(damaged) = self.damaged.iter().find(|damaged| below(&damaged.target).is_some()) {
            let reason = format!("the policy for {} is not understood: {}", damaged.target, damaged.reason);
            return Err(Error::DamagedManifest { id: damaged.id.to_string(), reason });
        }
        let mut nested: Vec<_> =
            self.defined.iter().filter_map(|d| Some((below(&d.target)?, &d.policy))).collect();
        // Parents before children, so that each new node inherits from the right one.
        nested.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (path, policy) in nested {
            node.insert(&path, Arc::new(policy.clone()));
        }
        Ok(PolicyTree(Arc::new(node)))
    }
}

/// The targets whose policies apply to `source`, the most specific first.
fn targets(source: &SourceInfo) -> Vec<SourceInfo> {
    let mut targets = Vec::new();
    let mut path = Some(source.path.as_str()).filter(|path| !path.is_empty());
    while let Some(current) = path {
        targets.push(SourceInfo::new(&source.user_name, &source.host, current));
        path = parent_path(current);
    }
    targets.push(SourceInfo::new(&source.user_name, &source.host, ""));
    targets.push(SourceInfo::new("", &source.host, ""));
    targets.push(SourceInfo::global());
    targets.dedup();
    targets
}

/// The parent of a Unix or Windows path; none of a root or of a single name.
fn parent_path(path: &str) -> Option<&str> {
    let volume = match path.as_bytes() {
        [_, b':', b'/' | b'\\', ..] => 2,
        _ => 0,
    };
    let trimmed = path[volume..].trim_end_matches(['/', '\\']);
    let last = trimmed.rfind(['/', '\\'])?;
    Some(&path[..volume + last.max(1)])
}

/// The elements of `child` below `parent`, if it is below.
fn path_below(parent: &str, child: &str) -> Option<Vec<String>> {
    let rest = child.strip_prefix(parent.trim_end_matches(['/', '\\']))?;
    let rest = rest.strip_prefix(['/', '\\'])?;
    let windows = matches!(parent.as_bytes(), [_, b':', b'/' | b'\\', ..]);
    let separator = |c: char| c == '/' || windows && c == '\\';
    (!rest.is_empty()).then(|| rest.split(separator).map(str::to_owned).collect())
}

/// The policies of a directory and what is below it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PolicyTree(Arc<Node>);

#[derive(Debug, Clone)]
struct Node {
    policy: Arc<Policy>,
    defined: bool,
    children: BTreeMap<String, Arc<Node>>,
}

impl Node {
    /// A directory without a policy of its own.
    fn inheriting(policy: &Arc<Policy>) -> Arc<Node> {
        Arc::new(Node { policy: policy.clone(), defined: false, children: BTreeMap::new() })
    }

    fn insert(&mut self, path: &[String], policy: Arc<Policy>) {
        match path.split_first() {
            None => (self.policy, self.defined) = (policy, true),
            Some((name, rest)) => {
                let child =
                    self.children.entry(name.clone()).or_insert_with(|| Node::inheriting(&self.policy));
                Arc::make_mut(child).insert(rest, policy);
            }
        }
    }
}

impl From<Policy> for PolicyTree {
    /// The same policy everywhere.
    fn from(policy: Policy) -> Self {
        PolicyTree(Arc::new(Node { policy: Arc::new(policy), defined: true, children: BTreeMap::new() }))
    }
}

impl PolicyTree {
    /// The policy in force here.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.0.policy
    }

    /// Whether it was set for this directory, and not inherited.
    pub fn is_defined(&self) -> bool {
        self.0.defined
    }

    /// Whether nothing below has a policy of its own: then all that is in here has the policy of any one child.
    pub fn is_leaf(&self) -> bool {
        self.0.children.is_empty()
    }

    /// The entry `name` in this directory.
    pub fn child(&self, name: &str) -> PolicyTree {
        let child = self.0.children.get(name).cloned();
        PolicyTree(child.unwrap_or_else(|| Node::inheriting(&self.0.policy)))
    }
}
