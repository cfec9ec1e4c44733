//! The agents that are at work, and which of them a matter falls to.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The nodes whose agents are at work, each with the number that it is weighed by. Every agent looks at every change, so
/// nothing here is worked out twice.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers(BTreeMap<String, u64>);

impl Peers {
    /// Those that are at work now, some of whom are known.
    pub(crate) fn followed_by(&self, nodes: impl IntoIterator<Item = String>) -> Self {
        let weighed = |node: String| {
            let number = self.0.get(&node).copied().unwrap_or_else(|| number(&node));
            (node, number)
        };
        Self(nodes.into_iter().map(weighed).collect())
    }

    pub(crate) fn contains(&self, node: &str) -> bool {
        self.0.contains_key(node)
    }

    /// Whom of them a matter falls to; everybody who knows the same ones comes to the same answer, whatever build it is.
    pub(crate) fn appointed(&self, matter: &str) -> Option<&str> {
        let matter = number(matter);
        let heaviest = self.0.iter().max_by_key(|(node, number)| (mixed(matter ^ **number), *node));
        heaviest.map(|(node, _)| node.as_str())
    }
}

/// The longest value that a label may have.
const LONGEST_VALUE: usize = 63;

/// A node's agent, as what it makes names it: names of nodes may be longer than values of labels.
pub(crate) fn maker(node: &str) -> String {
    if node.len() <= LONGEST_VALUE { node.to_owned() } else { format!("{:016x}", number(node)) }
}

/// A number that stands for a text.
fn number(text: &str) -> u64 {
    let digest = Sha256::digest(text);
    digest.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A number in which each bit of the given one tells on all bits (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(nodes: &[&str]) -> Peers {
        Peers::default().followed_by(nodes.iter().map(|node| (*node).to_owned()))
    }

    /// Agents of different builds work side by side while a DaemonSet is rolled out: they must agree.
    #[test]
    fn everybody_comes_to_the_same_answer_and_nobody_gets_everything() {
        let nodes = ["a", "b", "c"];
        let all = peers(&nodes);
        assert_eq!(all.appointed("ledger"), peers(&["c", "a", "b"]).appointed("ledger"));
        assert_eq!(peers(&[]).appointed("ledger"), None);
        let matters: Vec<String> = (0..60).map(|number| format!("operation-{number}")).collect();
        for node in nodes {
            let count = matters.iter().filter(|matter| all.appointed(matter.as_str()) == Some(node)).count();
            assert!((5..=40).contains(&count), "{node} gets {count}");
        }
        // Written down once: a change of this would be a change of who acts in a cluster that is being upgraded.
        assert_eq!(all.appointed("prepare queue"), Some("c"));
    }

    #[test]
    fn who_goes_leaves_the_others_what_is_theirs() {
        let (before, after) = (peers(&["a", "b", "c"]), peers(&["a", "b"]));
        for matter in (0..60).map(|number| format!("operation-{number}")) {
            let fell_to = before.appointed(&matter);
            assert!(fell_to == Some("c") || fell_to == after.appointed(&matter), "{matter}");
        }
    }
}
