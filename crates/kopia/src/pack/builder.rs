//! A pack that is being filled, kept as pieces so that nothing is copied when it is sent.

use super::postamble::Postamble;
use crate::sealer::Sealer;
use crate::{Environment, Error, Result};
use bytes::{Bytes, BytesMut};
use lifeboat_blobs::{BlobId, Payload};
use lifeboat_budget::Buffer;
use lifeboat_index::{ContentId, IndexBuilder, IndexEntry, IndexVersion, PackName, Prefix};

/// Random bytes at the start of every pack.
const PREAMBLE_LEN: usize = 32;
/// Random bytes at the end of every local index: two packs with the same contents must not look alike.
const SUFFIX_LEN: usize = 32;
/// Contents are followed by random bytes up to a multiple of this.
const ALIGNMENT: u64 = 4096;
/// Which contents a pack holds: user data or metadata. They are apart so that metadata can be read and rewritten
/// without touching the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PackKind {
    /// Contents without prefix.
    Data,
    /// Contents with a prefix.
    Metadata,
}

impl PackKind {
    /// Both kinds.
    pub const ALL: [PackKind; 2] = [PackKind::Data, PackKind::Metadata];

    /// The kind for contents with `prefix`.
    pub fn of(prefix: Prefix) -> Self {
        if prefix.is_none() { PackKind::Data } else { PackKind::Metadata }
    }

    /// What the names of such packs start with.
    pub fn blob_prefix(self) -> &'static str {
        match self {
            PackKind::Data => "p",
            PackKind::Metadata => "q",
        }
    }
}

/// What one index entry says, the pack being understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackRecord {
    /// The content.
    pub id: ContentId,
    /// Where it starts in the pack.
    pub offset: u32,
    /// Its sealed length.
    pub packed_length: u32,
    /// Its length as it was handed in.
    pub original_length: u32,
    /// When the entry was made, in unix seconds.
    pub timestamp: i64,
    /// The number of its compressor, or 0.
    pub compression: u32,
    /// The format version that the entry carries.
    pub format_version: u8,
    /// Whether the entry marks a deletion.
    pub deleted: bool,
}

impl PackRecord {
    /// The whole entry.
    pub fn entry(&self, pack: PackName) -> IndexEntry {
        IndexEntry {
            id: self.id,
            pack,
            pack_offset: self.offset,
            packed_length: self.packed_length,
            original_length: self.original_length,
            timestamp_seconds: self.timestamp,
            format_version: self.format_version,
            compression: self.compression,
            encryption_key_id: 0,
            deleted: self.deleted,
        }
    }
}

/// A pack that is being filled.
///
/// Large contents come as pieces of their own; small ones are copied into the *room* that the owner adds whenever it
/// is used up.
#[derive(Debug)]
pub struct PackBuilder {
    id: BlobId,
    name: PackName,
    kind: PackKind,
    /// Finished pieces, each with the offset of its end.
    pieces: Vec<(u64, Bytes)>,
    /// Small contents that are being joined into the next piece.
    room: Option<Buffer>,
    len: u64,
    records: Vec<PackRecord>,
    /// Deletions that were queued while the pack was open; they name other packs.
    deletions: Vec<IndexEntry>,
}

impl PackBuilder {
    /// An empty pack. `recovery_block` is what repositories without password change put first.
    pub fn new(
        id: BlobId,
        kind: PackKind,
        recovery_block: &Bytes,
        environment: &Environment,
    ) -> Result<Self> {
        let mut pack = PackBuilder {
            name: PackName::from(id.as_str()),
            id,
            kind,
            pieces: Vec::new(),
            room: None,
            len: 0,
            records: Vec::new(),
            deletions: Vec::new(),
        };
        pack.push(recovery_block.clone());
        pack.push(Bytes::copy_from_slice(&environment.random_array::<PREAMBLE_LEN>()?));
        Ok(pack)
    }

    /// The blob's name.
    pub fn id(&self) -> &BlobId {
        &self.id
    }

    /// The blob's name as indexes hold it.
    pub fn name(&self) -> &PackName {
        &self.name
    }

    /// Which contents it takes.
    pub fn kind(&self) -> PackKind {
        self.kind
    }

    /// Bytes so far, before padding.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no content was added.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds whole sealed contents, in pieces, and returns where they start. The caller follows with one
    /// [`record`](Self::record) for each content.
    pub fn append(&mut self, pieces: impl IntoIterator<Item = Bytes>) -> u64 {
        self.close_room();
        let offset = self.len;
        pieces.into_iter().for_each(|piece| self.push(piece));
        offset
    }

    /// Copies a sealed content into the room and returns where it starts; `None` if there is not enough room.
    pub fn append_small(&mut self, sealed: &[u8]) -> Option<u64> {
        self.room.as_mut()?.extend(sealed.len())?.copy_from_slice(sealed);
        let offset = self.len;
        self.len += sealed.len() as u64;
        Some(offset)
    }

    /// Adds room for small contents.
    pub fn add_room(&mut self, room: Buffer) {
        self.close_room();
        self.room = Some(room);
    }

    /// Adds an entry to the pack's local index.
    pub fn record(&mut self, record: PackRecord) {
        self.records.push(record);
    }

    /// Adds a deletion to the pack's local index.
    pub fn record_deletion(&mut self, entry: IndexEntry) {
        self.deletions.push(entry);
    }

    fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len() as u64;
            self.pieces.push((self.len, bytes));
        }
    }

    /// Ends the joined piece; what comes next starts another one.
    pub fn close_room(&mut self) {
        if let Some(room) = self.room.take()
            && !room.is_empty()
        {
            // Its bytes are in the length already.
            self.pieces.push((self.len, room.into_bytes()));
        }
    }

    /// Bytes of the pack while it is here, for reading a content that was just written.
    pub fn slice(&self, offset: u64, length: u64) -> Option<Bytes> {
        let place = self.pieces.partition_point(|(end, _)| *end <= offset);
        let mut at = self.pieces.get(place.wrapping_sub(1)).map_or(0, |(end, _)| *end);
        let within = |piece: &[u8], at: u64| {
            let start = usize::try_from(offset.saturating_sub(at)).ok()?;
            let end = usize::try_from(offset.checked_add(length)?.saturating_sub(at)).ok()?;
            Some(start.min(piece.len())..end.min(piece.len()))
        };
        let room = self.room.iter().map(AsRef::as_ref);
        let mut joined = BytesMut::new();
        for (number, piece) in
            self.pieces[place..].iter().map(|(_, piece)| &piece[..]).chain(room).enumerate()
        {
            let range = within(piece, at)?;
            match self.pieces.get(place + number) {
                // Most contents lie in one piece, which is shared.
                Some((_, piece)) if range.len() as u64 == length => return Some(piece.slice(range)),
                _ => joined.extend_from_slice(&piece[range]),
            }
            at += piece.len() as u64;
            if joined.len() as u64 == length {
                return Some(joined.freeze());
            }
        }
        None
    }

    /// The bytes of the whole pack: its contents, padding, the sealed local index and the postamble.
    ///
    /// The room must be closed.
    pub fn finish(
        &self,
        sealer: &Sealer,
        version: IndexVersion,
        environment: &Environment,
    ) -> Result<Payload> {
        let mut end = vec![0; (ALIGNMENT - self.len % ALIGNMENT) as usize];
        environment.random.fill(&mut end)?;
        let local = self.local_index(version, environment)?;
        let iv = sealer.hash(&local);
        let sealed = sealer.seal_with_id(iv.as_slice(), &local)?;
        let offset = self.len + end.len() as u64;
        let postamble = Postamble { iv: iv.as_slice().to_vec(), offset, length: sealed.len() as u64 };
        end.extend_from_slice(&sealed);
        end.extend_from_slice(&postamble.encode());
        let mut payload = Payload::default();
        self.pieces.iter().for_each(|(_, piece)| payload.push(piece.clone()));
        payload.push(end.into());
        Ok(payload)
    }

    fn local_index(&self, version: IndexVersion, environment: &Environment) -> Result<Vec<u8>> {
        let mut index = IndexBuilder::new();
        index.extend(self.records.iter().map(|record| record.entry(self.name.clone())));
        index.extend(self.deletions.iter().cloned());
        index
            .encode(version, &environment.random_array::<SUFFIX_LEN>()?)
            .map_err(|e| Error::Invalid(format!("cannot encode the local index of pack {:?}: {e}", self.id)))
    }
}
