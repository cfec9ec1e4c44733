//! The controller's operations: volumes and snapshots are made, listed, grown and deleted.

use crate::content::{self, Content};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::loops;
use crate::proto::{self, volume_content_source as from};
use crate::request::{self, MAXIMUM_SIZE, Parameters, SizeRange, Usage, required};
use crate::store::{AccessType, Backing, Hold, Id, Lock, Record, Snapshot, Source, Volume};
use std::time::{SystemTime, UNIX_EPOCH};

/// What a request for a volume asks for.
struct Wanted {
    usages: Vec<Usage>,
    access_type: AccessType,
    read_only: bool,
    parameters: Parameters,
    size: SizeRange,
    source: Option<Source>,
}

impl Wanted {
    fn of(request: &proto::CreateVolumeRequest) -> Result<Wanted> {
        let usages = request::usages(&request.volume_capabilities)?;
        Ok(Wanted {
            access_type: usages.first().map_or(AccessType::Mount, |usage| usage.access_type),
            read_only: usages.iter().all(Usage::read_only),
            usages,
            parameters: Parameters::of(&request.parameters)?,
            size: SizeRange::of(request.capacity_range.as_ref())?,
            source: request.volume_content_source.as_ref().map(source_of).transpose()?,
        })
    }

    /// Whether a volume of this name that exists already is the one that is asked for.
    fn is_met_by(&self, volume: &Volume) -> Result<bool> {
        let given = volume.parameters.clone().into_iter().collect();
        Ok(self.access_type == volume.access_type
            && self.read_only == volume.read_only
            && self.source == volume.source
            && self.size.admits(volume.capacity_bytes)
            && self.parameters == Parameters::of(&given)?)
    }

    /// How the volume is to be kept, given where its content comes from.
    fn backing(&self, origin: Option<&Origin>) -> Result<Backing> {
        let refuse = |why: &str| Err(Error::InvalidArgument(why.to_owned()));
        let backing =
            match (self.access_type, self.parameters.backing, origin.map(|origin| origin.content.backing)) {
                (AccessType::Block, _, Some(Backing::Directory)) => {
                    return refuse("a block volume cannot be made from a directory");
                }
                (AccessType::Block, ..) => Backing::Image,
                (AccessType::Mount, Some(asked), Some(given)) if asked != given => {
                    return refuse(
                        "the source of the volume has another backing than the storage class asks for",
                    );
                }
                (AccessType::Mount, asked, given) => given.or(asked).unwrap_or(Backing::Directory),
            };
        let known: &[&str] = if backing == Backing::Image { &["", "ext4"] } else { &[""] };
        if !self.usages.iter().all(|usage| known.contains(&usage.filesystem.as_str())) {
            return refuse("the only filesystem type is ext4, and only with `backing: image`");
        }
        Ok(backing)
    }
}

/// The content a new volume starts with, held so that it is not deleted meanwhile.
struct Origin {
    content: Content,
    capacity_bytes: u64,
    _lock: Lock,
}

impl Driver {
    pub(crate) fn create_volume(
        &self,
        request: &proto::CreateVolumeRequest,
    ) -> Result<proto::CreateVolumeResponse> {
        let id = Id::of_name::<Volume>(required(&request.name, "name")?);
        let wanted = Wanted::of(request)?;
        let _lock = self.store.lock(&id, Hold::Exclusive)?;
        if let Some(existing) = self.store.find::<Volume>(&id)? {
            if wanted.is_met_by(&existing)? {
                return Ok(proto::CreateVolumeResponse {
                    volume: Some(self.describe_volume(&id, &existing)),
                });
            }
            return Err(Error::AlreadyExists(format!("volume {:?} exists and is different", request.name)));
        }
        let origin = wanted.source.as_ref().map(|source| self.origin(source)).transpose()?;
        let (key, here) = (&self.settings.topology_key, &self.settings.node_id);
        let node = request::choose_node(request.accessibility_requirements.as_ref(), key, here)?;
        let volume = Volume {
            name: request.name.clone(),
            capacity_bytes: wanted.size.choose(origin.as_ref().map(|origin| origin.capacity_bytes))?,
            access_type: wanted.access_type,
            backing: wanted.backing(origin.as_ref())?,
            read_only: wanted.read_only,
            node: (!wanted.parameters.anywhere).then_some(node),
            changed_blocks: wanted.parameters.changed_blocks,
            parameters: request.parameters.clone().into_iter().collect(),
            source: wanted.source,
        };
        self.store.create(&id, &volume, |folder| {
            let Some(origin) = origin else {
                return content::create(folder, volume.backing, volume.access_type, volume.capacity_bytes);
            };
            if volume.shows_snapshot().is_some() {
                return Ok(());
            }
            content::copy(&origin.content, folder, &self.freezer(&id))?;
            match volume.backing {
                Backing::Directory => Ok(()),
                Backing::Image => {
                    content::set_size(&content::path_in(folder, volume.backing), volume.capacity_bytes)
                }
            }
        })?;
        Ok(proto::CreateVolumeResponse { volume: Some(self.describe_volume(&id, &volume)) })
    }

    fn origin(&self, source: &Source) -> Result<Origin> {
        match source {
            Source::Snapshot(id) => {
                let _lock = self.store.lock(id, Hold::Shared)?;
                let (_, snapshot) = self.store.get::<Snapshot>(id.as_str())?;
                let content = self.content_of_snapshot(id, &snapshot);
                if !content.path().exists() {
                    return Err(Error::Lost(format!("snapshot {id}")));
                }
                Ok(Origin { content, capacity_bytes: snapshot.capacity_bytes, _lock })
            }
            Source::Volume(id) => {
                let _lock = self.store.lock(id, Hold::Shared)?;
                let (_, volume) = self.store.get::<Volume>(id.as_str())?;
                Ok(Origin {
                    content: self.content_of(id, &volume),
                    capacity_bytes: volume.capacity_bytes,
                    _lock,
                })
            }
        }
    }

    pub(crate) fn delete_volume(
        &self,
        request: &proto::DeleteVolumeRequest,
    ) -> Result<proto::DeleteVolumeResponse> {
        let done = proto::DeleteVolumeResponse {};
        let Some(id) = Id::parse::<Volume>(required(&request.volume_id, "volume id")?) else {
            return Ok(done);
        };
        let lock = self.store.lock(&id, Hold::Exclusive)?;
        if let Some(volume) = self.store.find::<Volume>(&id)? {
            let published = !self.store.publications(&id)?.is_empty();
            // The devices of a snapshot that a volume shows may serve other volumes as well.
            let own_image = volume.backing == Backing::Image && volume.shows_snapshot().is_none();
            if published || own_image && !loops::detach_all(&self.content_of(&id, &volume).path())? {
                return Err(Error::FailedPrecondition(format!("volume {id} is in use on a node")));
            }
            self.store.remove::<Volume>(&id)?;
        }
        self.store.forget_locks(&id, &lock);
        Ok(done)
    }

    pub(crate) fn validate_volume_capabilities(
        &self,
        request: &proto::ValidateVolumeCapabilitiesRequest,
    ) -> Result<proto::ValidateVolumeCapabilitiesResponse> {
        let (_, volume) = self.store.get::<Volume>(required(&request.volume_id, "volume id")?)?;
        let refuse = |message: &str| proto::ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message: message.to_owned(),
        };
        let usages = request::usages(&request.volume_capabilities)?;
        if usages.iter().any(|usage| usage.access_type != volume.access_type) {
            return Ok(refuse("the volume has the other access type"));
        }
        if volume.read_only && !usages.iter().all(Usage::read_only) {
            return Ok(refuse("the volume can only be read"));
        }
        Ok(proto::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(proto::validate_volume_capabilities_response::Confirmed {
                volume_context: request.volume_context.clone(),
                volume_capabilities: request.volume_capabilities.clone(),
                parameters: request.parameters.clone(),
            }),
            message: String::new(),
        })
    }

    pub(crate) fn list_volumes(
        &self,
        request: &proto::ListVolumesRequest,
    ) -> Result<proto::ListVolumesResponse> {
        let (page, next_token) =
            page(self.store.list::<Volume>()?, request.max_entries, &request.starting_token)?;
        let entries = page
            .iter()
            .map(|(id, volume)| proto::list_volumes_response::Entry {
                volume: Some(self.describe_volume(id, volume)),
            })
            .collect();
        Ok(proto::ListVolumesResponse { entries, next_token })
    }

    pub(crate) fn get_capacity(
        &self,
        request: &proto::GetCapacityRequest,
    ) -> Result<proto::GetCapacityResponse> {
        Parameters::of(&request.parameters)?;
        let elsewhere = |place: &proto::Topology| !place.segments.contains_key(&self.settings.topology_key);
        if request.accessible_topology.as_ref().is_some_and(elsewhere) {
            return Ok(proto::GetCapacityResponse::default());
        }
        let root = self.store.root();
        let free = rustix::fs::statvfs(root).map_err(Error::io("measure", root))?;
        let available = free.f_bavail.saturating_mul(free.f_frsize);
        Ok(proto::GetCapacityResponse {
            available_capacity: signed(available),
            // Images are sparse, so a volume may be larger than the room there is.
            maximum_volume_size: Some(signed(MAXIMUM_SIZE)),
        })
    }

    pub(crate) fn expand_volume(
        &self,
        request: &proto::ControllerExpandVolumeRequest,
    ) -> Result<proto::ControllerExpandVolumeResponse> {
        required(&request.volume_id, "volume id")?;
        if request.capacity_range.is_none() {
            return Err(Error::InvalidArgument("capacity range is missing".into()));
        }
        let range = SizeRange::of(request.capacity_range.as_ref())?;
        let (id, _) = self.store.get::<Volume>(&request.volume_id)?;
        let _lock = self.store.lock(&id, Hold::Exclusive)?;
        let (id, mut volume) = self.store.get::<Volume>(id.as_str())?;
        let size = range.choose(Some(volume.capacity_bytes))?;
        if size > volume.capacity_bytes {
            if volume.read_only {
                return Err(Error::FailedPrecondition(format!("volume {id} can only be read")));
            }
            if volume.backing == Backing::Image {
                content::set_size(&self.content_of(&id, &volume).path(), size)?;
            }
            volume.capacity_bytes = size;
            self.store.update(&id, &volume)?;
        }
        Ok(proto::ControllerExpandVolumeResponse {
            capacity_bytes: signed(size),
            node_expansion_required: volume.backing == Backing::Image,
        })
    }

    pub(crate) fn create_snapshot(
        &self,
        request: &proto::CreateSnapshotRequest,
    ) -> Result<proto::CreateSnapshotResponse> {
        let id = Id::of_name::<Snapshot>(required(&request.name, "name")?);
        let source = required(&request.source_volume_id, "source volume id")?;
        request::check_snapshot_parameters(&request.parameters)?;
        let _lock = self.store.lock(&id, Hold::Exclusive)?;
        if let Some(existing) = self.store.find::<Snapshot>(&id)? {
            if existing.source_volume.as_str() == source {
                return Ok(proto::CreateSnapshotResponse {
                    snapshot: Some(describe_snapshot(&id, &existing)),
                });
            }
            return Err(Error::AlreadyExists(format!(
                "snapshot {:?} of another volume exists",
                request.name
            )));
        }
        let (source, _) = self.store.get::<Volume>(source)?;
        let _source_lock = self.store.lock(&source, Hold::Shared)?;
        let (source, volume) = self.store.get::<Volume>(source.as_str())?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let snapshot = Snapshot {
            name: request.name.clone(),
            created_ns: i64::try_from(now).unwrap_or(i64::MAX),
            capacity_bytes: volume.capacity_bytes,
            access_type: volume.access_type,
            backing: volume.backing,
            changed_blocks: volume.changed_blocks,
            parameters: request.parameters.clone().into_iter().collect(),
            source_volume: source,
        };
        let content = self.content_of(&snapshot.source_volume, &volume);
        self.store.create(&id, &snapshot, |folder| content::copy(&content, folder, &self.freezer(&id)))?;
        Ok(proto::CreateSnapshotResponse { snapshot: Some(describe_snapshot(&id, &snapshot)) })
    }

    pub(crate) fn delete_snapshot(
        &self,
        request: &proto::DeleteSnapshotRequest,
    ) -> Result<proto::DeleteSnapshotResponse> {
        let done = proto::DeleteSnapshotResponse {};
        let Some(id) = Id::parse::<Snapshot>(required(&request.snapshot_id, "snapshot id")?) else {
            return Ok(done);
        };
        let lock = self.store.lock(&id, Hold::Exclusive)?;
        if self.store.list::<Volume>()?.iter().any(|(_, volume)| volume.shows_snapshot() == Some(&id)) {
            return Err(Error::FailedPrecondition(format!("a read-only volume shows snapshot {id}")));
        }
        loops::detach_all(&content::path_in(&self.store.folder::<Snapshot>(&id), Backing::Image))?;
        self.store.remove::<Snapshot>(&id)?;
        self.store.forget_locks(&id, &lock);
        Ok(done)
    }

    pub(crate) fn list_snapshots(
        &self,
        request: &proto::ListSnapshotsRequest,
    ) -> Result<proto::ListSnapshotsResponse> {
        let mut found = self.store.list::<Snapshot>()?;
        found.retain(|(id, snapshot)| {
            let asked = |wanted: &str, has: &Id| wanted.is_empty() || wanted == has.as_str();
            asked(&request.snapshot_id, id) && asked(&request.source_volume_id, &snapshot.source_volume)
        });
        let (page, next_token) = page(found, request.max_entries, &request.starting_token)?;
        let entries = page
            .iter()
            .map(|(id, snapshot)| proto::list_snapshots_response::Entry {
                snapshot: Some(describe_snapshot(id, snapshot)),
            })
            .collect();
        Ok(proto::ListSnapshotsResponse { entries, next_token })
    }

    fn describe_volume(&self, id: &Id, volume: &Volume) -> proto::Volume {
        let source = volume.source.as_ref().map(|source| match source {
            Source::Snapshot(id) => {
                from::Type::Snapshot(from::SnapshotSource { snapshot_id: id.to_string() })
            }
            Source::Volume(id) => from::Type::Volume(from::VolumeSource { volume_id: id.to_string() }),
        });
        proto::Volume {
            capacity_bytes: signed(volume.capacity_bytes),
            volume_id: id.to_string(),
            volume_context: [].into(),
            content_source: source.map(|source| proto::VolumeContentSource { r#type: Some(source) }),
            accessible_topology: volume.node.iter().map(|node| self.topology(node)).collect(),
        }
    }
}

fn source_of(source: &proto::VolumeContentSource) -> Result<Source> {
    fn parse<R: Record>(id: &str) -> Result<Id> {
        Id::parse::<R>(id).ok_or_else(|| Error::NotFound(format!("{} {id:?}", R::KIND)))
    }
    match &source.r#type {
        Some(from::Type::Snapshot(source)) => Ok(Source::Snapshot(parse::<Snapshot>(&source.snapshot_id)?)),
        Some(from::Type::Volume(source)) => Ok(Source::Volume(parse::<Volume>(&source.volume_id)?)),
        None => Err(Error::InvalidArgument("the kind of volume content source is missing".into())),
    }
}

fn describe_snapshot(id: &Id, snapshot: &Snapshot) -> proto::Snapshot {
    const SECOND: i64 = 1_000_000_000;
    proto::Snapshot {
        size_bytes: signed(snapshot.capacity_bytes),
        snapshot_id: id.to_string(),
        source_volume_id: snapshot.source_volume.to_string(),
        creation_time: Some(prost_types::Timestamp {
            seconds: snapshot.created_ns.div_euclid(SECOND),
            nanos: i32::try_from(snapshot.created_ns.rem_euclid(SECOND)).unwrap_or(0),
        }),
        ready_to_use: true,
    }
}

/// A size for the wire; sizes are bounded far below where this could matter.
pub(crate) fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// Cuts a page out of a sorted list. The token is the last id of the page before, so deletions cannot shift pages.
fn page<R: Record>(mut all: Vec<(Id, R)>, most: i32, token: &str) -> Result<(Vec<(Id, R)>, String)> {
    let most = usize::try_from(most).map_err(|_| Error::InvalidArgument("max entries is negative".into()))?;
    if !token.is_empty() {
        let last = Id::parse::<R>(token)
            .ok_or_else(|| Error::Aborted(format!("{token:?} is not a listing token")))?;
        all.retain(|(id, _)| *id > last);
    }
    let mut next = String::new();
    if most > 0 && all.len() > most {
        all.truncate(most);
        next = all.last().map(|(id, _)| id.to_string()).unwrap_or_default();
    }
    Ok((all, next))
}
