//! The node's operations: volumes are mounted for pods and unmounted again.
//!
//! Staging mounts the filesystem of an image; publishing shows it, a directory or a block device at the path of a
//! pod. The device under a mounted filesystem is told to detach on its own with the last unmount; the device of a
//! published block volume is detached when its last publication goes.

use crate::content;
use crate::controller::signed;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::proto::volume_capability::access_mode::Mode;
use crate::proto::{self, volume_usage::Unit};
use crate::request::{Usage, required};
use crate::store::{AccessType, Backing, Id, Publication, Volume};
use crate::{loops, mounts};
use rustix::mount::MountFlags;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

impl Driver {
    pub(crate) fn stage(
        &self,
        request: &proto::NodeStageVolumeRequest,
    ) -> Result<proto::NodeStageVolumeResponse> {
        required(&request.volume_id, "volume id")?;
        let staging = Path::new(required(&request.staging_target_path, "staging target path")?);
        let usage = Usage::of(request.volume_capability.as_ref())?;
        let (id, volume) = self.usable_volume(&request.volume_id, &usage)?;
        let _locks = self.store.lock_mounts(&id, volume.content_owner(&id))?;
        if volume.backing == Backing::Image && volume.access_type == AccessType::Mount {
            fs::create_dir_all(staging).map_err(Error::io("create", staging))?;
            self.mount_image(&id, &volume, staging)?;
        }
        Ok(proto::NodeStageVolumeResponse {})
    }

    fn mount_image(&self, id: &Id, volume: &Volume, staging: &Path) -> Result<()> {
        let image = self.existing_content(id, volume)?;
        if mounts::is_mount_point(staging)? {
            return Ok(());
        }
        if !volume.read_only {
            // The volume may have grown since, or be a larger copy of a smaller one.
            content::grow_unused_filesystem(&image)?;
        }
        let device = loops::attach(&image, volume.read_only)?;
        // A device that can only be read cannot replay its journal; snapshots are taken with an empty one.
        let (flags, data) =
            if volume.read_only { (MountFlags::RDONLY, Some("noload")) } else { (MountFlags::empty(), None) };
        let mounted = mounts::mount_ext4(&device, staging, flags, data);
        loops::detach(&device)?;
        mounted
    }

    pub(crate) fn unstage(
        &self,
        request: &proto::NodeUnstageVolumeRequest,
    ) -> Result<proto::NodeUnstageVolumeResponse> {
        required(&request.volume_id, "volume id")?;
        let staging = Path::new(required(&request.staging_target_path, "staging target path")?);
        let volume = self.volume_if_known(&request.volume_id)?;
        let locks = volume.as_ref().map(|(id, volume)| self.store.lock_mounts(id, volume.content_owner(id)));
        let _locks = locks.transpose()?;
        mounts::unmount(staging)?;
        if let Some((id, volume)) = &volume {
            self.release_devices(id, volume)?;
        }
        Ok(proto::NodeUnstageVolumeResponse {})
    }

    pub(crate) fn publish(
        &self,
        request: &proto::NodePublishVolumeRequest,
    ) -> Result<proto::NodePublishVolumeResponse> {
        required(&request.volume_id, "volume id")?;
        let target = Path::new(required(&request.target_path, "target path")?);
        let usage = Usage::of(request.volume_capability.as_ref())?;
        let (id, volume) = self.usable_volume(&request.volume_id, &usage)?;
        let mut flags = mounts::options(&usage.mount_options)?;
        if request.readonly || usage.read_only() || volume.read_only {
            flags |= MountFlags::RDONLY;
        }
        let publication = Publication {
            node: self.settings.node_id.clone(),
            target: target.to_owned(),
            read_only: flags.contains(MountFlags::RDONLY),
            mode: usage.mode.into(),
        };
        let _locks = self.store.lock_mounts(&id, volume.content_owner(&id))?;
        check_publication(&self.store.publications(&id)?, &publication)?;
        // Written before anything is mounted: what is recorded can be undone by whoever comes next.
        self.store.add_publication(&id, &publication)?;
        let shown = self.show(&id, &volume, &request.staging_target_path, target, flags);
        if shown.is_err() && !mounts::is_mount_point(target)? {
            self.store.remove_publication(&id, &publication.node, target)?;
        }
        shown.map(|()| proto::NodePublishVolumeResponse {})
    }

    fn show(&self, id: &Id, volume: &Volume, staging: &str, target: &Path, flags: MountFlags) -> Result<()> {
        let content = self.existing_content(id, volume)?;
        let source = match (volume.access_type, volume.backing) {
            (AccessType::Block, _) => {
                create_mount_file(target)?;
                loops::attach(&content, flags.contains(MountFlags::RDONLY))?
            }
            (AccessType::Mount, Backing::Directory) => content,
            (AccessType::Mount, Backing::Image) => {
                let staging = PathBuf::from(required(staging, "staging target path")?);
                if !mounts::is_mount_point(&staging)? {
                    return Err(Error::FailedPrecondition(format!("volume {id} is not staged")));
                }
                staging
            }
        };
        if volume.access_type == AccessType::Mount {
            fs::create_dir_all(target).map_err(Error::io("create", target))?;
        }
        mounts::bind(&source, target, flags)
    }

    pub(crate) fn unpublish(
        &self,
        request: &proto::NodeUnpublishVolumeRequest,
    ) -> Result<proto::NodeUnpublishVolumeResponse> {
        required(&request.volume_id, "volume id")?;
        let target = Path::new(required(&request.target_path, "target path")?);
        let volume = self.volume_if_known(&request.volume_id)?;
        let locks = volume.as_ref().map(|(id, volume)| self.store.lock_mounts(id, volume.content_owner(id)));
        let _locks = locks.transpose()?;
        mounts::unmount(target)?;
        remove_mount_point(target)?;
        if let Some((id, volume)) = &volume {
            self.store.remove_publication(id, &self.settings.node_id, target)?;
            // If the driver is killed before this, the next start or the unstaging does it.
            self.release_devices(id, volume)?;
        }
        Ok(proto::NodeUnpublishVolumeResponse {})
    }

    pub(crate) fn stats(
        &self,
        request: &proto::NodeGetVolumeStatsRequest,
    ) -> Result<proto::NodeGetVolumeStatsResponse> {
        let (_, volume) = self.mounted_volume(&request.volume_id, &request.volume_path)?;
        let usage = |total: u64, available: u64, unit: Unit| proto::VolumeUsage {
            available: signed(available),
            total: signed(total),
            used: signed(total.saturating_sub(available)),
            unit: unit.into(),
        };
        if volume.access_type == AccessType::Block {
            let total = proto::VolumeUsage {
                total: signed(volume.capacity_bytes),
                unit: Unit::Bytes.into(),
                ..Default::default()
            };
            return Ok(proto::NodeGetVolumeStatsResponse { usage: vec![total] });
        }
        let path = Path::new(&request.volume_path);
        let stat = rustix::fs::statvfs(path).map_err(Error::io("measure", path))?;
        Ok(proto::NodeGetVolumeStatsResponse {
            usage: vec![
                usage(
                    stat.f_blocks.saturating_mul(stat.f_frsize),
                    stat.f_bavail.saturating_mul(stat.f_frsize),
                    Unit::Bytes,
                ),
                usage(stat.f_files, stat.f_favail, Unit::Inodes),
            ],
        })
    }

    pub(crate) fn expand_on_node(
        &self,
        request: &proto::NodeExpandVolumeRequest,
    ) -> Result<proto::NodeExpandVolumeResponse> {
        let (id, volume) = self.mounted_volume(&request.volume_id, &request.volume_path)?;
        let _locks = self.store.lock_mounts(&id, volume.content_owner(&id))?;
        let image = self.content_of(&id, &volume).path();
        match (volume.backing, volume.access_type) {
            (Backing::Directory, _) => {}
            (Backing::Image, AccessType::Block) => loops::refresh_size(&image)?,
            (Backing::Image, AccessType::Mount) => content::grow_mounted_filesystem(&image)?,
        }
        Ok(proto::NodeExpandVolumeResponse { capacity_bytes: signed(volume.capacity_bytes) })
    }

    /// The volume a request wants to use, if it can be used so and here.
    fn usable_volume(&self, id: &str, usage: &Usage) -> Result<(Id, Volume)> {
        let (id, volume) = self.store.get::<Volume>(id)?;
        if usage.access_type != volume.access_type {
            return Err(Error::InvalidArgument(format!("volume {id} has the other access type")));
        }
        if volume.node.as_ref().is_some_and(|node| *node != self.settings.node_id) {
            return Err(Error::FailedPrecondition(format!("volume {id} cannot be reached from this node")));
        }
        Ok((id, volume))
    }

    fn volume_if_known(&self, id: &str) -> Result<Option<(Id, Volume)>> {
        match self.store.get::<Volume>(id) {
            Err(Error::NotFound(_)) => Ok(None),
            found => found.map(Some),
        }
    }

    /// The volume that is mounted at a path.
    fn mounted_volume(&self, id: &str, path: &str) -> Result<(Id, Volume)> {
        required(id, "volume id")?;
        required(path, "volume path")?;
        let (id, volume) = self.store.get::<Volume>(id)?;
        if !mounts::is_mount_point(Path::new(path))? {
            return Err(Error::NotFound(format!("volume {id} at {path}")));
        }
        Ok((id, volume))
    }

    fn existing_content(&self, id: &Id, volume: &Volume) -> Result<PathBuf> {
        let path = self.content_of(id, volume).path();
        if path.exists() { Ok(path) } else { Err(Error::Lost(volume.content_owner(id).to_string())) }
    }
}

/// Whether a publication may be added to those that exist, by the rules of its access mode.
fn check_publication(existing: &[Publication], new: &Publication) -> Result<()> {
    let mode = Mode::try_from(new.mode).unwrap_or(Mode::Unknown);
    let one_node =
        !matches!(mode, Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter);
    let once = one_node && mode != Mode::SingleNodeMultiWriter;
    for other in existing {
        if (&other.node, &other.target) == (&new.node, &new.target) {
            if other == new {
                continue;
            }
            return Err(Error::AlreadyExists(format!("{} is published differently", new.target.display())));
        }
        let second_writer = mode == Mode::MultiNodeSingleWriter && !new.read_only && !other.read_only;
        if once || second_writer || one_node && other.node != new.node {
            let place = other.target.display();
            return Err(Error::FailedPrecondition(format!(
                "access mode {} forbids a second use: it is published on node {} at {place}",
                mode.as_str_name(),
                other.node
            )));
        }
    }
    Ok(())
}

/// A device can only be shown at a path where there is a file.
fn create_mount_file(target: &Path) -> Result<()> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    match fs::File::create_new(target) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::io("create", target)(error)),
        _ => Ok(()),
    }
}

/// Removes the file or the empty directory that was mounted on.
fn remove_mount_point(target: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("delete", target)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication(node: &str, target: &str, read_only: bool, mode: Mode) -> Publication {
        Publication { node: node.into(), target: target.into(), read_only, mode: mode.into() }
    }

    #[test]
    fn access_modes_decide_who_else_may_use_a_volume() {
        use Mode::*;
        // (mode, second path on the same node, second node, second node while both only read)
        let rules = [
            (SingleNodeWriter, false, false, false),
            (SingleNodeReaderOnly, false, false, false),
            (SingleNodeSingleWriter, false, false, false),
            (SingleNodeMultiWriter, true, false, false),
            (MultiNodeReaderOnly, true, true, true),
            (MultiNodeSingleWriter, false, false, true),
            (MultiNodeMultiWriter, true, true, true),
        ];
        for (mode, second_path, second_node, second_reader) in rules {
            let first = publication("a", "/1", false, mode);
            let allowed = |new: Publication, old: &Publication| {
                check_publication(std::slice::from_ref(old), &new).is_ok()
            };
            assert!(allowed(first.clone(), &first), "{mode:?} again");
            assert_eq!(allowed(publication("a", "/2", false, mode), &first), second_path, "{mode:?}");
            assert_eq!(allowed(publication("b", "/1", false, mode), &first), second_node, "{mode:?}");
            let reader = publication("a", "/1", true, mode);
            assert_eq!(allowed(publication("b", "/1", true, mode), &reader), second_reader, "{mode:?}");
        }
    }

    #[test]
    fn a_path_cannot_be_published_in_two_ways() {
        let first = publication("a", "/1", false, Mode::MultiNodeMultiWriter);
        let changed = publication("a", "/1", true, Mode::MultiNodeMultiWriter);
        assert!(matches!(check_publication(&[first], &changed), Err(Error::AlreadyExists(_))));
    }
}
