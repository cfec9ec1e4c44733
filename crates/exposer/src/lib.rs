//! Making a snapshot or a volume reachable inside a hosting pod.
//!
//! So far the objects themselves: from what an operation needs ([`HostedVolume`], [`Placement`]) and what the node-agent
//! has ([`Surroundings`]) to the pod and the claims, as pure functions. They are named after the operation they serve and
//! owned by it, live in Velero's namespace, and change nothing that is shared.

#![forbid(unsafe_code)]

mod affinity;
mod claim;
mod operation;
mod pod;
mod resources;
mod surroundings;

pub use affinity::Placement;
pub use claim::{BackupClaim, backup_claim, cache_claim, cache_size, restore_claim};
pub use operation::{Direction, Kind, Operation};
pub use pod::{CACHE_PATH, HostedVolume, VolumeSource, hosting_pod};
pub use resources::{ResourceError, pod_resources};
pub use surroundings::{Surroundings, SurroundingsError};
