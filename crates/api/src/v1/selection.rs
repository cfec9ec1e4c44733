//! Which objects something is about.

use crate::schema::foreign;
use crate::{Nullable, is_default};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Objects by namespace, resource and labels; part of backups, restores and their hooks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Selection {
    /// Only these namespaces; all if empty.
    #[serde(skip_serializing_if = "is_default")]
    pub included_namespaces: Nullable<Vec<String>>,
    /// Not these namespaces.
    #[serde(skip_serializing_if = "is_default")]
    pub excluded_namespaces: Nullable<Vec<String>>,
    /// Only these resources; all if empty.
    #[serde(skip_serializing_if = "is_default")]
    pub included_resources: Nullable<Vec<String>>,
    /// Not these resources.
    #[serde(skip_serializing_if = "is_default")]
    pub excluded_resources: Nullable<Vec<String>>,
    /// Only what has these labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "foreign::nullable_label_selector")]
    pub label_selector: Option<LabelSelector>,
}
