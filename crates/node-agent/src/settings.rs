//! The settings in force: the config maps and the node's labels, read again whenever they change.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::Api;
use kube::core::{Selector, SelectorExt};
use kube::{Client, ResourceExt};
use lifeboat_api::config::{
    ConfigError, DEFAULT_CACHE_LIMIT_MB, NodeAgentConfig, NodeRule, RepositoryConfig, read, read_single,
};
use std::collections::BTreeMap;

/// The config map that is used if none is named and this one is there.
pub(crate) const USUAL_NAME: &str = "node-agent-config";

/// Settings in force.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) config: NodeAgentConfig,
    /// How many volumes this node moves at once.
    pub(crate) slots: usize,
    /// How much the cache of a repository client may hold.
    pub(crate) cache_limit_mib: u32,
}

/// Why settings cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The cluster does not answer.
    #[error("cannot read the config map {name}: {source}")]
    Unreadable {
        /// The config map.
        name: String,
        /// What the cluster says.
        source: kube::Error,
    },
    /// It was named, but is not there.
    #[error("the config map {name} is not there; make it, or start without naming it")]
    Missing {
        /// The config map.
        name: String,
    },
    /// It is there, but cannot be used.
    #[error("the config map {name} cannot be used: {source}")]
    Wrong {
        /// The config map.
        name: String,
        /// What is wrong with it.
        source: ConfigError,
    },
}

/// Where settings come from.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) namespace: String,
    pub(crate) node: String,
    /// The config map of the node-agent; empty for the usual one, if that is there.
    pub(crate) node_agent: String,
    /// The config map of the repositories; empty for none.
    pub(crate) repositories: String,
}

impl Sources {
    pub(crate) async fn read(&self, client: &Client) -> Result<Settings, SettingsError> {
        let config = match self.config_map(client, &self.node_agent, USUAL_NAME).await? {
            Some((name, data)) => {
                let settings = read_single::<NodeAgentConfig>(&data)
                    .map_err(|source| SettingsError::Wrong { name: name.clone(), source })?;
                for warning in &settings.warnings {
                    tracing::warn!(config_map = name, "{warning}");
                }
                settings.value
            }
            None => NodeAgentConfig::default(),
        };
        let labels = match Api::<Node>::all(client.clone()).get_opt(&self.node).await {
            Ok(node) => node.map(|node| node.labels().clone()).unwrap_or_default(),
            Err(error) => {
                tracing::warn!(node = self.node, %error, "the node's labels cannot be read: the global setting counts");
                BTreeMap::new()
            }
        };
        let slots = slots(&config, &labels);
        Ok(Settings { config, slots, cache_limit_mib: self.cache_limit(client).await? })
    }

    async fn cache_limit(&self, client: &Client) -> Result<u32, SettingsError> {
        if self.repositories.is_empty() {
            return Ok(DEFAULT_CACHE_LIMIT_MB);
        }
        let found = self.config_map(client, &self.repositories, "").await?;
        let Some((name, text)) = found.and_then(|(name, mut data)| Some((name, data.remove("kopia")?)))
        else {
            return Ok(DEFAULT_CACHE_LIMIT_MB);
        };
        let settings = read::<RepositoryConfig>("kopia", &text)
            .map_err(|source| SettingsError::Wrong { name, source })?;
        Ok(settings.value.cache_limit_mb.filter(|limit| *limit > 0).unwrap_or(DEFAULT_CACHE_LIMIT_MB))
    }

    async fn config_map(
        &self,
        client: &Client,
        named: &str,
        usual: &str,
    ) -> Result<Option<(String, BTreeMap<String, String>)>, SettingsError> {
        let name = if named.is_empty() { usual } else { named };
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &self.namespace);
        let found = maps.get_opt(name).await;
        match found.map_err(|source| SettingsError::Unreadable { name: name.to_owned(), source })? {
            Some(map) => Ok(Some((name.to_owned(), map.data.unwrap_or_default()))),
            None if named.is_empty() => Ok(None),
            None => Err(SettingsError::Missing { name: name.to_owned() }),
        }
    }
}

/// How many volumes a node with these labels moves at once: the smallest number of the rules that match, else the global one.
fn slots(config: &NodeAgentConfig, labels: &BTreeMap<String, String>) -> usize {
    let concurrency = &config.load_concurrency;
    let matching = |rule: &&NodeRule| rule.number > 0 && matches(&rule.node_selector, labels);
    let number = concurrency.per_node_config.iter().filter(matching).map(|rule| rule.number).min();
    let number = number.unwrap_or(concurrency.global_config.max(1));
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    match Selector::try_from(selector.clone()) {
        Ok(selector) => selector.matches(labels),
        Err(error) => {
            tracing::warn!(%error, "a nodeSelector in perNodeConfig cannot be used and is left out");
            false
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn config(text: &str) -> NodeAgentConfig {
        read::<NodeAgentConfig>("key", text).unwrap().value
    }

    #[test]
    fn of_several_rules_the_smallest_number_counts() {
        let config = config(
            r#"{"loadConcurrency":{"globalConfig":3,"perNodeConfig":[
                {"nodeSelector":{"matchLabels":{"tier":"big"}},"number":8},
                {"nodeSelector":{"matchExpressions":[{"key":"tier","operator":"In","values":["big","small"]}]},"number":5},
                {"nodeSelector":{"matchLabels":{"tier":"small"}},"number":0}]}}"#,
        );
        let of = |tier: &str| slots(&config, &BTreeMap::from([("tier".to_owned(), tier.to_owned())]));
        assert_eq!((of("big"), of("small"), of("other")), (5, 5, 3));
        assert_eq!(slots(&NodeAgentConfig::default(), &BTreeMap::new()), 1);
    }
}
