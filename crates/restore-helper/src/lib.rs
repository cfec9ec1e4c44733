//! Holding a restored pod back until its volumes are complete: the marks that a restore leaves in a volume, and the helper in
//! the pod's init container that waits for them.
//!
//! It runs in pods of any operating system, Windows too, so it knows nothing of Unix and of the rest of the house.

#![forbid(unsafe_code)]

pub mod marks;
mod wait;

pub use wait::{INTERVAL, Problem, VOLUMES, wait};

/// Where a container leaves the words that Kubernetes shows as the reason of its end.
pub const TERMINATION_LOG: &str =
    if cfg!(windows) { r"C:\dev\termination-log" } else { "/dev/termination-log" };
