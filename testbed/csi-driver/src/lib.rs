//! A small CSI driver for tests: volumes in image files or directories on one machine, with snapshots, clones,
//! changed blocks, topology, all access modes, and faults on demand.
//!
//! It runs as root next to a kubelet and needs `losetup` (util-linux), `mke2fs`, `e2fsck`, `resize2fs` (e2fsprogs)
//! and `cp` (coreutils):
//!
//! ```text
//! lifeboat-testbed-csi serve --node-id node1 --state-dir /var/lib/csi-testbed \
//!     --endpoint unix:///var/lib/kubelet/plugins/csi.lifeboat.test/csi.sock \
//!     --registration-socket /var/lib/kubelet/plugins_registry/csi.lifeboat.test-reg.sock --knobs /run/knobs.json
//! lifeboat-testbed-csi register --driver-name hostpath.csi.k8s.io --csi-address … --registration-socket …
//! lifeboat-testbed-csi cleanup --state-dir …
//! ```
//!
//! On a machine with several kubelets, one process for each shares the state folder; the sidecars talk to any one.
//!
//! # Storage class parameters
//!
//! | parameter | values | meaning |
//! |---|---|---|
//! | `backing` | `directory` (default), `image` | filesystem volumes are plain directories, or ext4 in a sparse image |
//! | `changedBlocks` | `fixed` (default), `variable`, `none` | form of changed-block answers; `none`: not tracked |
//! | `changedBlockSize` | a power of two, 4096 to 1048576 (default 65536) | granularity of those answers |
//! | `placement` | `node` (default), `anywhere` | usable on one node (`accessible_topology`), or on all |
//!
//! Block volumes are always images. A volume made from a snapshot or volume has the backing of its source. Only
//! `image` volumes know the filesystem type `ext4`; only they have a size limit and a snapshot as of one moment,
//! because the filesystem is frozen. Directories and block devices are copied as they stand. A volume from a snapshot
//! that asks for read-only access modes alone is not a copy: it shows the snapshot, which cannot be deleted meanwhile.
//! A snapshot of a block or `image` volume answers which blocks were written and which differ from an earlier
//! snapshot of the same volume; differences are found by comparing bytes. An `image` volume that is in use grows at
//! once only where root has CAP_SYS_RESOURCE; elsewhere it grows when it is staged the next time.
//!
//! # Knobs
//!
//! `--knobs FILE` names a JSON file that is read again for every call; see [`knobs::Rule`] for all fields.
//!
//! ```json
//! {"rules": [
//!   {"method": "CreateSnapshot", "match": {"name": "snapshot-"}, "delay_ms": 500, "times": 2,
//!    "fail": "UNAVAILABLE: the array is busy"},
//!   {"method": "DeleteVolume", "fail": "DEADLINE_EXCEEDED: no answer", "when": "after", "times": 1},
//!   {"method": "ListSnapshots", "not_ready": true},
//!   {"method": "CreateVolume", "match": {"parameters": {"csi.storage.k8s.io/pvc/name": "data"}}, "lose": "content"},
//!   {"method": "GetMetadataDelta", "blocks": "missing"}
//! ]}
//! ```
//!
//! - `match`: `name` (prefix), `id`, `source`, `parameters`; without it all calls of the method match. A call that
//!   names its object by id only is matched by the name and parameters the object was created with.
//! - `times`: how often the rule applies before the next one is looked at; for ever if absent.
//! - `delay_ms`, then `fail` with `when` `before` (default, nothing is done) or `after` (all is done).
//! - `not_ready`: snapshots are reported as not ready, by `CreateSnapshot` or `ListSnapshots`.
//! - `lose`: `content` or `snapshot` of the snapshot that is named, or that a volume is made from, disappears first.
//! - `blocks`: `missing`, `extra`, `truncated`, `broken`, `capacity`, `unordered`.

#![deny(unsafe_code)]

mod blocks;
mod command;
mod content;
mod controller;
mod driver;
mod error;
mod freeze;
pub mod knobs;
mod loops;
mod metadata;
mod mounts;
mod node;
mod registration;
mod request;
pub mod server;
mod service;
mod store;
mod tool;

/// The Container Storage Interface: messages, clients and servers.
#[allow(missing_docs, clippy::all, clippy::semicolon_if_nothing_returned)]
pub mod proto {
    tonic::include_proto!("csi.v1");
}

/// The kubelet's plugin registration: messages, clients and servers.
#[allow(missing_docs, clippy::all)]
pub mod registration_proto {
    tonic::include_proto!("pluginregistration");
}

pub use command::Command;
pub use driver::{Driver, Settings, release_all_devices};
pub use error::{Error, Result};
pub use knobs::Knobs;
pub use registration::Registrar;
pub use service::Service;

use proto::controller_server::ControllerServer;
use proto::identity_server::IdentityServer;
use proto::node_server::NodeServer;
use proto::snapshot_metadata_server::SnapshotMetadataServer;
use std::path::Path;

/// Serves a driver on a socket until `stop` completes.
pub async fn serve_driver<S>(
    socket: &Path,
    service: Service,
    stop: S,
) -> std::result::Result<(), server::ServeError>
where
    S: Future<Output = ()> + Clone,
{
    let metadata = service.offers_snapshot_metadata().then(|| SnapshotMetadataServer::new(service.clone()));
    let router = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(service.clone()))
        .add_service(ControllerServer::new(service.clone()))
        .add_service(NodeServer::new(service))
        .add_optional_service(metadata);
    server::serve(socket, router, stop).await
}
