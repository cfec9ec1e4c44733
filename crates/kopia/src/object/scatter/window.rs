//! The pieces of a window, sorted by where they lie, and joined into regions that are read at once.

use super::{Destination, Object};
use crate::Error;
use crate::content::ContentLocation;
use lifeboat_blobs::BlobId;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Gaps up to this size are read and thrown away rather than read around.
const MAX_GAP: u64 = 64 << 10;

/// Pieces that are planned together, and the room that they take.
pub(super) struct Window<D> {
    pub(super) pieces: Vec<Piece<D>>,
    pub(super) room: OwnedSemaphorePermit,
}

/// A content that an object wants at an offset.
pub(super) struct Piece<D> {
    pub(super) object: Arc<Object<D>>,
    pub(super) offset: u64,
    /// How long it must be; unknown if the object layer compressed a whole object.
    pub(super) length: Option<u64>,
    /// Whether the object layer compressed it.
    pub(super) compressed: bool,
    pub(super) location: ContentLocation,
}

impl<D: Destination> Piece<D> {
    /// Nothing more will come of it.
    pub(super) fn fail(self, error: Error) {
        self.object.failed(error);
        self.object.release();
    }

    fn place(&self) -> (&str, u32) {
        (self.location.entry.pack.as_str(), self.location.entry.pack_offset)
    }
}

/// A part of a pack with pieces that lie in it, in their order; pieces of one content follow each other.
pub(super) struct Region<D> {
    pub(super) pack: BlobId,
    pub(super) range: Range<u64>,
    pub(super) pieces: Vec<Piece<D>>,
    /// What opening it takes beyond its own bytes: room for its largest compressed content.
    pub(super) opened: u64,
}

impl<D> Region<D> {
    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Joins what lies close together, up to `limit` bytes. Pieces whose pack has no valid name fail.
pub(super) fn regions<D: Destination>(mut pieces: Vec<Piece<D>>, limit: u64) -> Vec<Region<D>> {
    pieces.sort_unstable_by(|a, b| a.place().cmp(&b.place()));
    let mut regions: Vec<Region<D>> = Vec::new();
    for piece in pieces {
        let range = piece.location.range();
        let opened = match piece.location.entry.compression == 0 && !piece.compressed {
            true => 0,
            false => piece.length.unwrap_or(0).max(piece.location.entry.original_length.into()),
        };
        match regions.last_mut() {
            Some(region) if region.takes(&piece, &range, limit) => {
                region.range.end = range.end.max(region.range.end);
                region.opened = region.opened.max(opened);
                region.pieces.push(piece);
            }
            _ => match BlobId::new(piece.location.entry.pack.as_str()) {
                Ok(pack) => regions.push(Region { pack, range, pieces: vec![piece], opened }),
                Err(error) => piece.fail(error.into()),
            },
        }
    }
    regions
}

impl<D> Region<D> {
    fn takes(&self, piece: &Piece<D>, range: &Range<u64>, limit: u64) -> bool {
        let inside = range.end <= self.range.end;
        self.pack.as_str() == piece.location.entry.pack.as_str()
            && (inside || (range.start <= self.range.end + MAX_GAP && range.end - self.range.start <= limit))
    }
}
