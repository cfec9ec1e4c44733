//! Our node-agent and our movers under a real Velero server. Tests that leave node-agent and settings alone run beside each
//! other: most of what they do is to wait.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../../../../testbed/cluster/tests/common/mod.rs"]
mod common;

mod by_hand;
mod faults;
mod nodes;
mod pod_volumes;
mod restarts;
mod restricted;
mod round_trips;
mod settings;
mod stage;
mod storage;
mod store;
mod third_party;
