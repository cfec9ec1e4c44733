//! The config map of maintenance jobs.

use super::{LoadAffinity, PodResources};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Settings of the maintenance jobs of one repository, or of all under the key `global`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MaintenanceJobConfig {
    /// Which nodes may run them.
    pub load_affinity: Vec<LoadAffinity>,
    /// What a job may use.
    pub pod_resources: Option<PodResources>,
    /// How many ended jobs are kept.
    pub keep_latest_maintenance_jobs: Option<u32>,
    /// The priority of jobs; only under `global`.
    pub priority_class_name: String,
    /// Annotations of jobs' pods; only under `global`.
    pub pod_annotations: BTreeMap<String, String>,
    /// Labels of jobs' pods; only under `global`.
    pub pod_labels: BTreeMap<String, String>,
}
