//! The driver as a whole: its settings, its state, and what happens when it starts.

use crate::content::{self, Content};
use crate::error::Result;
use crate::proto::Topology;
use crate::store::{Backing, Id, Snapshot, Store, Volume};
use crate::{loops, mounts};
use std::path::{Path, PathBuf};

/// The settings of one driver process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name storage classes refer to.
    pub driver_name: String,
    /// The node this process serves.
    pub node_id: String,
    /// The node label that tells where a volume can be used.
    pub topology_key: String,
    /// Where volumes and snapshots are kept.
    pub state_dir: PathBuf,
    /// Whether changed blocks are offered.
    pub snapshot_metadata: bool,
}

/// The operations of the driver, which block and know nothing of gRPC transport.
#[derive(Debug)]
pub struct Driver {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
}

impl Driver {
    /// Opens the state folder and clears up after a driver that was killed or a machine that was restarted.
    pub fn open(settings: Settings) -> Result<Driver> {
        let store = Store::open(&settings.state_dir, &settings.node_id)?;
        content::sweep(store.work())?;
        let driver = Driver { settings, store };
        driver.forget_lost_publications()?;
        Ok(driver)
    }

    /// Drops the publications of this node whose mounts no longer exist, and the devices nobody uses.
    ///
    /// The kubelet publishes again what its pods still need, which attaches the devices anew.
    fn forget_lost_publications(&self) -> Result<()> {
        for (id, volume) in self.store.list::<Volume>()? {
            let _locks = self.store.lock_mounts(&id, volume.content_owner(&id))?;
            for lost in self.store.publications(&id)? {
                if lost.node == self.settings.node_id && !mounts::is_mount_point(&lost.target)? {
                    self.store.remove_publication(&id, &lost.node, &lost.target)?;
                }
            }
            self.release_devices(&id, &volume)?;
        }
        Ok(())
    }

    /// Detaches the devices of a volume unless it, or another volume with the same content, is published somewhere.
    ///
    /// Devices of mounted filesystems are not affected: those detach on the last unmount.
    pub(crate) fn release_devices(&self, id: &Id, volume: &Volume) -> Result<()> {
        let owner = volume.content_owner(id);
        for (other, record) in self.store.list::<Volume>()? {
            if record.content_owner(&other) == owner && !self.store.publications(&other)?.is_empty() {
                return Ok(());
            }
        }
        match volume.backing {
            Backing::Directory => Ok(()),
            Backing::Image => loops::detach_all(&self.content_of(id, volume).path()).map(drop),
        }
    }

    /// The content of a volume, which may be that of a snapshot.
    pub(crate) fn content_of(&self, id: &Id, volume: &Volume) -> Content {
        let folder = match volume.shows_snapshot() {
            Some(snapshot) => self.store.folder::<Snapshot>(snapshot),
            None => self.store.folder::<Volume>(id),
        };
        Content { folder, backing: volume.backing, access_type: volume.access_type }
    }

    /// The content of a snapshot.
    pub(crate) fn content_of_snapshot(&self, id: &Id, snapshot: &Snapshot) -> Content {
        Content {
            folder: self.store.folder::<Snapshot>(id),
            backing: snapshot.backing,
            access_type: snapshot.access_type,
        }
    }

    /// Where a filesystem may be mounted to freeze it while the content of object `id` is made.
    pub(crate) fn freezer(&self, id: &Id) -> PathBuf {
        self.store.work().join(format!("{id}.frozen"))
    }

    /// The topology of a node.
    pub(crate) fn topology(&self, node: &str) -> Topology {
        Topology { segments: [(self.settings.topology_key.clone(), node.to_owned())].into() }
    }
}

/// Detaches every loop device of the images in a state folder, for use after its users are gone.
pub fn release_all_devices(state_dir: &Path) -> Result<()> {
    let store = Store::open(state_dir, "")?;
    let volumes = store.list::<Volume>()?.into_iter().map(|(id, _)| store.folder::<Volume>(&id));
    let snapshots = store.list::<Snapshot>()?.into_iter().map(|(id, _)| store.folder::<Snapshot>(&id));
    for folder in volumes.chain(snapshots) {
        loops::detach_all(&content::path_in(&folder, Backing::Image))?;
    }
    Ok(())
}
