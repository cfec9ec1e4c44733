//! The node-agent's view of a mover: what its pod and its Events say, and its log.
//!
//! Everything that matters is read from the pod, which is there to be read again after a restart; Events only tell of
//! progress.

mod events;
mod log;
mod pod;

pub use events::{Said, mover_events, read_event};
pub use log::{HandOverError, hand_over_log};
pub use pod::{PodReport, Trouble, read_pod};
