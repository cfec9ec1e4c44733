//! Making a snapshot or a volume reachable inside a hosting pod, and taking it all away again.
//!
//! An exposer is two pure functions: from everything there is of an operation's hosting to the next step towards a hosting
//! pod ([`upload::next`], [`download::next`], [`pod_volume::next`]), and to the next step towards nothing being left
//! ([`upload::clean`], [`download::clean`], [`pod_volume::clean`]). A step is one write ([`Action`]), done by [`perform`] against exactly the object that was
//! looked at. Nothing waits and nothing is remembered, so whoever looks next goes on.
//!
//! The objects are pure functions too: from what an operation needs ([`HostedVolume`], [`Placement`]) and what the
//! node-agent has ([`Surroundings`]) to the pod and the claims. They are named after the operation they serve and
//! owned by it, live in Velero's namespace, change nothing that is shared, and are in the [`ledger`].

#![forbid(unsafe_code)]

mod affinity;
mod claim;
mod diagnosis;
pub mod download;
pub mod ledger;
mod operation;
mod pod;
pub mod pod_volume;
mod resources;
pub mod snapshot;
mod step;
mod surroundings;
pub mod upload;

pub use affinity::Placement;
pub use claim::{BackupClaim, backup_claim, cache_claim, cache_size, restore_claim};
pub use diagnosis::{Thing, diagnose};
pub use operation::{Direction, Kind, Operation};
pub use pod::{CACHE_PATH, HostedVolume, VolumeSource, hosting_pod};
pub use resources::{ResourceError, pod_resources};
pub use step::{Action, After, Next, Object, ObjectKind, Outcome, Waiting, perform, remove_pod};
pub use surroundings::{HOST_PODS, KUBELET_ROOT, MOVER_ACCOUNT, MOVER_USER, Surroundings, SurroundingsError};
