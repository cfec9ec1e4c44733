//! The node-agent's view of a mover: what its pod and its Events say, and its log.
//!
//! Everything that matters is read from the pod, which is there to be read again after a restart; Events only tell of
//! progress, and when it is worth reading the log: that has the result a second or two before the kubelet, which looks
//! for ended containers from time to time, tells of the pod's end.

mod events;
mod log;
mod pod;

pub use events::{Said, mover_events, read_event};
pub use log::{HandOverError, hand_over_log, result_in_log};
pub use pod::{PodReport, Trouble, read_pod};
