//! The config map of backup repositories.

use crate::schema::string_enum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

string_enum! {
    /// How soon space of deleted snapshots is freed.
    pub enum FullMaintenanceInterval {
        /// Every 24 hours.
        Normal = "normalGC",
        /// Every 12 hours.
        Fast = "fastGC",
        /// Every 6 hours.
        Eager = "eagerGC",
    }
}

/// How large a client's cache may grow if nothing is configured.
pub const DEFAULT_CACHE_LIMIT_MB: u32 = 5000;

/// Settings of the repositories of one type.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RepositoryConfig {
    /// How large a client's cache may grow.
    #[serde(rename = "cacheLimitMB")]
    pub cache_limit_mb: Option<u32>,
    /// How soon space of deleted snapshots is freed.
    pub full_maintenance_interval: Option<FullMaintenanceInterval>,
}
