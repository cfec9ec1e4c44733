//! One run of the data path: the mover inside the hosting pod, and what the node-agent reads of it from outside.
//!
//! [`wire`] is all that the two sides know of each other: events, results and the last words of the pod, as Velero's
//! own movers and node-agents exchange them, so that either side may be Velero's. [`mover`] is the side of
//! the pod, with [`transfer`] as its core that knows nothing of Kubernetes; [`observe`] is the side of the node-agent.

#![forbid(unsafe_code)]

pub mod legacy;
pub mod location;
pub mod mover;
pub mod observe;
mod resume;
pub mod transfer;
pub mod wire;
