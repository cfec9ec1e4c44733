//! The Kopia repository format: what is in the blobs of a repository, and how to read and write it byte for byte.
//!
//! From the top: a [`Repository`](repo::Repository) opens a store with a password. [`snapshot`]s and policies are
//! [`manifest`]s; files and directories are [`object`]s; objects are chunks called [`content`]s; contents lie in
//! [`pack`]s and are found through the index, whose active blobs the [`epoch`] rules (or the legacy ones) select.
//!
//! This crate knows nothing of Kubernetes and nothing of the files that are being backed up.

#![forbid(unsafe_code)]

pub mod connection;
pub mod content;
pub mod env;
pub mod epoch;
pub mod error;
pub mod format;
pub mod gojson;
pub mod legacy;
pub mod maintain;
pub mod maintenance;
pub mod manifest;
pub mod object;
pub mod pack;
pub mod policy;
pub mod repair;
pub mod repo;
pub mod sealer;
pub mod session;
pub mod snapshot;
mod sort;
pub mod upgrade;
pub mod velero;
pub mod verify;
mod worker;

pub use env::{Clock, Environment, Random};
pub use error::{Error, Result};
