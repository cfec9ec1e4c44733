//! The `velero.io` API as types: custom resources, their names and phases, and the schemas of the config maps; no behaviour.
//!
//! Objects are read as leniently as Velero reads them and written as it writes them: the same field names, the same
//! empty values left out, durations as Go prints them. The definitions in [`crds`] accept exactly what Velero's accept.

#![forbid(unsafe_code)]

pub mod config;
pub mod crds;
mod duration;
mod names;
mod phase;
mod schema;
pub mod v1;
pub mod v2alpha1;

pub use duration::{Duration, ParseDurationError};
pub use names::{annotations, finalizers, label_value, labels};
pub use phase::{NodeOs, OperationStatus, Phase, Progress};
pub use schema::Nullable;

/// The API group of every kind here.
pub const GROUP: &str = "velero.io";

/// Whether a field has the value that Go leaves out when it writes JSON.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
