//! A real Kubernetes cluster for tests, on one machine, without a container engine or an image registry.
//!
//! [`Cluster::up`] starts one or more nodes in network, mount and pid namespaces of their own: nothing in them
//! reaches the outside or is reached from it, and several clusters run side by side. [`Cluster::down`] leaves
//! nothing behind. [`testing`] gives each test a namespace and failures that explain themselves.
#![forbid(unsafe_code)]

mod bring_up;
mod catalogue;
mod cluster;
mod command;
mod components;
mod control;
mod csi;
mod error;
pub mod faults;
mod files;
pub mod guard;
mod image;
mod kubectl;
mod leftovers;
mod misbehaviour;
mod network;
mod node;
mod object_store;
pub mod objects;
mod pki;
mod spec;
mod status;
pub mod supervisor;
pub mod testing;
mod tools;
mod usage;
mod velero;

pub use bring_up::{BUCKET, LOCKED_BUCKET};
pub use catalogue::{Archive, BUSYBOX, NAMES as IMAGE_NAMES, archive as image_archive};
pub use cluster::Cluster;
pub use control::ProcessState;
pub use csi::{
    HOSTPATH_CLASS, HOSTPATH_DRIVER, HOSTPATH_SNAPSHOT_CLASS, TEST_CLASS, TEST_CLASS_ANYWHERE, TEST_DRIVER,
    TEST_SNAPSHOT_CLASS,
};
pub use error::{Error, Result};
pub use image::Image;
pub use kubectl::Kubectl;
pub use node::Node;
pub use object_store::{ObjectStore, REGION};
pub use rustix::process::Signal;
pub use spec::{ClusterName, Layout, MOST_NODES, NodeId, Spec, addresses};
pub use status::{Memory, NodeStatus};
pub use usage::{PodGroups, processor_time};

/// A runtime for one caller: everything on the calling thread, and so in the network that the thread is in.
pub fn small_runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(Error::io("start", "the runtime"))
}
