//! What tests of all crates share: peers and storage servers as real programs, trees of files, memory limits.
//!
//! Nothing here skips: a program that is missing is an error that names the command which provides it.

#![deny(unsafe_code)]

pub mod cgroup;
pub mod kopia;
pub mod process;
pub mod restic;
pub mod servers;
pub mod tree;

pub use lifeboat_tools as tools;

use std::path::Path;

/// The root of the checkout that this crate was compiled from.
pub fn workspace_root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}
