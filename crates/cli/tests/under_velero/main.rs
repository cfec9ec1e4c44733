//! Our node-agent and our movers under a real Velero server. Tests that leave node-agent and settings alone run beside each
//! other: most of what they do is to wait.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../../../../testbed/cluster/tests/common/mod.rs"]
mod common;

#[path = "../../../node-agent/tests/cells/mod.rs"]
mod cells;

mod by_hand;
mod faults;
mod hosting;
mod matrix;
mod nodes;
mod pod_volumes;
mod record;
mod restarts;
mod restricted;
mod round_trips;
mod settings;
mod stage;
mod storage;
mod store;
mod strikes;
mod third_party;
