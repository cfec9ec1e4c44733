//! Which nodes a hosting pod may run on.

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lifeboat_api::NodeOs;
use lifeboat_api::config::LoadAffinity;
use std::collections::BTreeMap;

const HOSTNAME: &str = "kubernetes.io/hostname";
const OS: &str = "kubernetes.io/os";

/// Where a hosting pod may run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// The node, if there is no choice.
    pub node: Option<String>,
    /// Nodes that people allow; any of these, or all if there are none.
    pub allowed: Vec<LabelSelector>,
    /// Nodes that can reach the volume; any of these terms, or all if there are none.
    pub reachable: Vec<NodeSelectorTerm>,
    /// Nodes that must not be used.
    pub excluded: Vec<String>,
    /// The system that the volume needs.
    pub os: Option<NodeOs>,
}

impl Placement {
    /// The selectors that hold for volumes of a storage class: those for just that class, or else those for all.
    #[must_use]
    pub fn allowed_for(load_affinity: &[LoadAffinity], storage_class: &str) -> Vec<LabelSelector> {
        let of = |class: &str| -> Vec<LabelSelector> {
            let rules = load_affinity.iter().filter(|rule| rule.storage_class == class);
            rules.map(|rule| rule.node_selector.clone()).collect()
        };
        let specific = if storage_class.is_empty() { Vec::new() } else { of(storage_class) };
        if specific.is_empty() { of("") } else { specific }
    }

    pub(crate) fn windows(&self) -> bool {
        self.os == Some(NodeOs::Windows)
    }

    /// The same as rules for the scheduler: every way to satisfy both those who allow and those who can reach.
    pub(crate) fn affinity(&self) -> Affinity {
        let operator = if self.windows() { "In" } else { "NotIn" };
        let mut always = vec![requirement(OS, operator, vec!["windows".to_owned()])];
        if !self.excluded.is_empty() {
            always.push(requirement(HOSTNAME, "NotIn", self.excluded.clone()));
        }
        let allowed = any(self.allowed.iter().map(requirements));
        let reachable = if self.reachable.is_empty() {
            vec![NodeSelectorTerm::default()]
        } else {
            self.reachable.clone()
        };
        let terms = reachable.iter().flat_map(|reach| {
            allowed.iter().map(|allow| {
                let expressions = reach.match_expressions.iter().flatten().chain(allow).chain(&always);
                NodeSelectorTerm {
                    match_expressions: Some(expressions.cloned().collect()),
                    match_fields: reach.match_fields.clone(),
                }
            })
        });
        Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                    node_selector_terms: terms.collect(),
                }),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        }
    }

    /// What pins a pod whose volume is on a chosen node.
    pub(crate) fn node_selector(&self) -> Option<BTreeMap<String, String>> {
        self.node.as_ref().map(|node| BTreeMap::from([(HOSTNAME.to_owned(), node.clone())]))
    }
}

/// Asks the scheduler to spread pods of a group over the nodes, without insisting.
pub(crate) fn spread(label: &str, group: &str) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: HOSTNAME.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([(label.to_owned(), group.to_owned())])),
            ..LabelSelector::default()
        }),
        ..TopologySpreadConstraint::default()
    }
}

/// One empty alternative, which everything satisfies, if there are none.
fn any(
    alternatives: impl Iterator<Item = Vec<NodeSelectorRequirement>>,
) -> Vec<Vec<NodeSelectorRequirement>> {
    let alternatives: Vec<_> = alternatives.collect();
    if alternatives.is_empty() { vec![Vec::new()] } else { alternatives }
}

fn requirements(selector: &LabelSelector) -> Vec<NodeSelectorRequirement> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| requirement(key, "In", vec![value.clone()]));
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|expression| NodeSelectorRequirement {
        key: expression.key.clone(),
        operator: expression.operator.clone(),
        values: expression.values.clone(),
    });
    labels.chain(expressions).collect()
}

fn requirement(key: &str, operator: &str, values: Vec<String>) -> NodeSelectorRequirement {
    NodeSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values: Some(values) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn terms(placement: &Placement) -> Value {
        let affinity = serde_json::to_value(placement.affinity()).unwrap();
        affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            .clone()
    }

    fn selector(label: &str) -> LabelSelector {
        serde_json::from_value(json!({ "matchLabels": { "tier": label } })).unwrap()
    }

    #[test]
    fn without_rules_only_the_system_counts() {
        let linux =
            json!([{ "matchExpressions": [{ "key": OS, "operator": "NotIn", "values": ["windows"] }] }]);
        assert_eq!(terms(&Placement::default()), linux);
        let windows = terms(&Placement { os: Some(NodeOs::Windows), ..Placement::default() });
        assert_eq!(
            windows,
            json!([{ "matchExpressions": [{ "key": OS, "operator": "In", "values": ["windows"] }] }])
        );
    }

    #[test]
    fn several_selectors_are_alternatives_and_each_has_to_reach_the_volume() {
        let zone = |name: &str| -> NodeSelectorTerm {
            serde_json::from_value(
                json!({ "matchExpressions": [{ "key": "zone", "operator": "In", "values": [name] }] }),
            )
            .unwrap()
        };
        let placement = Placement {
            allowed: vec![selector("big"), selector("huge")],
            reachable: vec![zone("a"), zone("b")],
            excluded: vec!["n1".into()],
            ..Placement::default()
        };
        let terms = terms(&placement);
        let seen: Vec<(Value, Value)> = terms
            .as_array()
            .unwrap()
            .iter()
            .map(|term| {
                let expressions = term["matchExpressions"].as_array().unwrap();
                assert_eq!(expressions.len(), 4);
                assert_eq!(expressions[3], json!({ "key": HOSTNAME, "operator": "NotIn", "values": ["n1"] }));
                (expressions[0]["values"][0].clone(), expressions[1]["values"][0].clone())
            })
            .collect();
        let expected = [("a", "big"), ("a", "huge"), ("b", "big"), ("b", "huge")]
            .map(|(zone, tier)| (json!(zone), json!(tier)));
        assert_eq!(seen, expected);
    }

    #[test]
    fn rules_for_a_class_go_before_those_for_all() {
        let rule = |class: &str, tier: &str| LoadAffinity {
            node_selector: selector(tier),
            storage_class: class.into(),
        };
        let rules = [rule("", "any"), rule("gold", "big"), rule("gold", "huge")];
        assert_eq!(Placement::allowed_for(&rules, "gold"), [selector("big"), selector("huge")]);
        assert_eq!(Placement::allowed_for(&rules, "silver"), [selector("any")]);
        assert_eq!(Placement::allowed_for(&rules, ""), [selector("any")]);
        assert_eq!(Placement::allowed_for(&rules[1..], "silver"), []);
    }
}
