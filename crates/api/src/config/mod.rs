//! The config maps that steer the node-agent and the repositories: their schemas, and how they are read.
//!
//! Keys match without regard to case, as Go matches them. A value of the wrong type is an error that names its place; a
//! key that nobody knows is a warning, because a setting that does nothing without a word is a trap.

mod fit;
mod maintenance_job;
mod node_agent;
mod repository;

pub use maintenance_job::MaintenanceJobConfig;
pub use node_agent::{
    BackupPvc, CachePvc, LoadAffinity, LoadConcurrency, NodeAgentConfig, NodeRule, PodResources, RestorePvc,
};
pub use repository::{DEFAULT_CACHE_LIMIT_MB, FullMaintenanceInterval, RepositoryConfig};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// Settings, and what is to be said about how they were written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings<T> {
    /// The settings.
    pub value: T,
    /// One sentence for each key that has no effect or should be written otherwise.
    pub warnings: Vec<String>,
}

/// Why a config map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON.
    #[error("the value of key {key:?} is not JSON: {source}; correct it and restart")]
    NotJson {
        /// The key in the config map.
        key: String,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A setting has a value that it cannot have.
    #[error("in key {key:?}, {path}: {reason}")]
    WrongValue {
        /// The key in the config map.
        key: String,
        /// The setting.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The config map of the node-agent has no key, or more than one.
    #[error("expected exactly one key in the config map, found {found:?}: keep the one with the settings")]
    NotOneKey {
        /// The keys.
        found: Vec<String>,
    },
}

/// The settings of a config map whose only key holds them, whatever it is called.
///
/// # Errors
/// If there is not exactly one key, or its value cannot be used.
pub fn read_single<T: DeserializeOwned + JsonSchema>(
    data: &BTreeMap<String, String>,
) -> Result<Settings<T>, ConfigError> {
    let mut entries = data.iter();
    match (entries.next(), entries.next()) {
        (Some((key, text)), None) => read(key, text),
        _ => Err(ConfigError::NotOneKey { found: data.keys().cloned().collect() }),
    }
}

/// The settings in `text`, the value of `key`.
///
/// # Errors
/// If the text is not JSON or a setting has a value that it cannot have.
pub fn read<T: DeserializeOwned + JsonSchema>(key: &str, text: &str) -> Result<Settings<T>, ConfigError> {
    let mut value: Value =
        serde_json::from_str(text).map_err(|source| ConfigError::NotJson { key: key.to_owned(), source })?;
    let schema = SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<T>();
    let mut warnings = Vec::new();
    fit::fit(&mut value, schema.as_value(), "", &mut warnings);
    let value = serde_path_to_error::deserialize(value).map_err(|error| ConfigError::WrongValue {
        key: key.to_owned(),
        path: error.path().to_string(),
        reason: error.inner().to_string(),
    })?;
    Ok(Settings { value, warnings })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
