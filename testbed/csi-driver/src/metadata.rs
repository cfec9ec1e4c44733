//! Answers about blocks: which of a snapshot are allocated, which changed since an earlier snapshot.

use crate::blocks::{self, Extent, Image};
use crate::controller::signed;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::knobs::Lie;
use crate::proto::{self, BlockMetadataType};
use crate::request::required;
use crate::store::{Backing, BlockStyle, Hold, Snapshot};
use tonic::Status;

/// The most blocks in one message when the caller has no wish.
const BLOCKS_PER_MESSAGE: usize = 1024;

/// One message of an answer, in the form that both calls share.
pub(crate) type Message = std::result::Result<proto::GetMetadataDeltaResponse, Status>;

/// Where to start and how much to put into a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) starting_offset: i64,
    pub(crate) max_results: i32,
}

impl Driver {
    pub(crate) fn allocated_blocks(
        &self,
        id: &str,
        window: Window,
        lie: Option<Lie>,
    ) -> Result<Vec<Message>> {
        let (id, _) = self.store.get::<Snapshot>(required(id, "snapshot id")?)?;
        let _lock = self.store.lock(&id, Hold::Shared)?;
        let (snapshot, image) = self.tracked_snapshot(id.as_str())?;
        let from = start(window, &snapshot)?;
        let runs = blocks::allocated(&image, snapshot.changed_blocks.block_size, from)?;
        messages(&snapshot, runs, window, lie)
    }

    pub(crate) fn changed_blocks(
        &self,
        base: &str,
        target: &str,
        window: Window,
        lie: Option<Lie>,
    ) -> Result<Vec<Message>> {
        let (base_id, _) = self.store.get::<Snapshot>(required(base, "base snapshot id")?)?;
        let (target_id, _) = self.store.get::<Snapshot>(required(target, "target snapshot id")?)?;
        let _locks = [self.store.lock(&base_id, Hold::Shared)?, self.store.lock(&target_id, Hold::Shared)?];
        let (base, base_image) = self.tracked_snapshot(base)?;
        let (target, target_image) = self.tracked_snapshot(target)?;
        if base.source_volume != target.source_volume {
            return Err(Error::InvalidArgument(format!(
                "{base_id} and {target_id} are of different volumes"
            )));
        }
        if base.created_ns > target.created_ns {
            return Err(Error::InvalidArgument(format!("{base_id} was taken after {target_id}")));
        }
        let from = start(window, &target)?;
        let runs = blocks::changed(&base_image, &target_image, target.changed_blocks.block_size, from)?;
        messages(&target, runs, window, lie)
    }

    /// A snapshot whose blocks are known.
    fn tracked_snapshot(&self, id: &str) -> Result<(Snapshot, Image)> {
        let (id, snapshot) = self.store.get::<Snapshot>(id)?;
        if snapshot.backing == Backing::Directory || snapshot.changed_blocks.style == BlockStyle::None {
            return Err(Error::FailedPrecondition(format!(
                "changed block tracking is not enabled for snapshot {id}"
            )));
        }
        let image = Image::open(&self.content_of_snapshot(&id, &snapshot).path())?;
        Ok((snapshot, image))
    }
}

fn start(window: Window, snapshot: &Snapshot) -> Result<u64> {
    u64::try_from(window.starting_offset).ok().filter(|start| *start <= snapshot.capacity_bytes).ok_or_else(
        || {
            Error::OutOfRange(format!(
                "offset {} is not in 0..={}",
                window.starting_offset, snapshot.capacity_bytes
            ))
        },
    )
}

/// Packs the blocks into messages, truthfully unless a lie is wanted.
fn messages(
    snapshot: &Snapshot,
    runs: Vec<Extent>,
    window: Window,
    lie: Option<Lie>,
) -> Result<Vec<Message>> {
    let size = snapshot.changed_blocks.block_size;
    let (kind, mut extents) = match snapshot.changed_blocks.style {
        BlockStyle::Variable => (BlockMetadataType::VariableLength, runs),
        _ => (BlockMetadataType::FixedLength, blocks::split(&runs, size).collect()),
    };
    let mut capacity = snapshot.capacity_bytes;
    match lie {
        Some(Lie::Missing) => drop((!extents.is_empty()).then(|| extents.remove(0))),
        Some(Lie::Extra) => insert_extra(&mut extents, size, capacity),
        Some(Lie::Truncated | Lie::Broken) => extents.truncate(extents.len() / 2),
        Some(Lie::Unordered) => extents.reverse(),
        Some(Lie::Capacity) => capacity *= 2,
        None => {}
    }
    let most = match usize::try_from(window.max_results) {
        Err(_) => return Err(Error::InvalidArgument("max results is negative".into())),
        Ok(0) => BLOCKS_PER_MESSAGE,
        Ok(most) => most.min(BLOCKS_PER_MESSAGE),
    };
    let message = |extents: &[Extent]| {
        Ok(proto::GetMetadataDeltaResponse {
            block_metadata_type: kind.into(),
            volume_capacity_bytes: signed(capacity),
            block_metadata: extents
                .iter()
                .map(|extent| proto::BlockMetadata {
                    byte_offset: signed(extent.offset),
                    size_bytes: signed(extent.length),
                })
                .collect(),
        })
    };
    let mut messages: Vec<Message> = extents.chunks(most).map(message).collect();
    if messages.is_empty() {
        // Without blocks there is still a capacity to tell.
        messages.push(message(&[]));
    }
    if lie == Some(Lie::Broken) {
        messages.push(Err(Status::unavailable("the stream broke, as a knob asked for")));
    }
    Ok(messages)
}

/// Adds a block where the first gap is.
fn insert_extra(extents: &mut Vec<Extent>, length: u64, capacity: u64) {
    let mut offset = 0;
    let gap = extents.iter().position(|extent| {
        let before = offset + length <= extent.offset;
        if !before {
            offset = extent.end();
        }
        before
    });
    if offset + length <= capacity {
        extents.insert(gap.unwrap_or(extents.len()), Extent { offset, length });
    }
}
