//! One write session in memory: its packs, and the index entries that are not published yet.

use crate::pack::{PackBuilder, PackKind, PackRecord};
use crate::sealer::Sealer;
use crate::session::{MARKER_PREFIX, SessionId, SessionMarker};
use crate::{Environment, Error, Result};
use bytes::Bytes;
use lifeboat_blobs::{BlobId, BlobStore, Payload, PutOptions};
use lifeboat_index::{ContentId, IndexEntry, PackName};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The marker blob of a session, written before the first of its packs.
#[derive(Debug)]
pub(super) struct Marker {
    id: BlobId,
    bytes: Bytes,
    written: OnceCell<()>,
}

impl Marker {
    fn new(
        session: &SessionId,
        sealer: &Sealer,
        environment: &Environment,
        who: &ClientIdentity,
    ) -> Result<Self> {
        let marker =
            SessionMarker::new(session.clone(), environment.clock.now(), &who.username, &who.hostname);
        let plain = serde_json::to_vec(&marker).map_err(|e| Error::Invalid(e.to_string()))?;
        let sealed = sealer.seal_blob(&plain)?;
        let id = BlobId::new(sealed.name(MARKER_PREFIX, Some(session.as_str())))?;
        Ok(Marker { id, bytes: sealed.bytes().clone(), written: OnceCell::new() })
    }

    /// Writes the marker unless it is there already; several packs may ask at once.
    pub(super) async fn ensure(&self, store: &dyn BlobStore) -> lifeboat_blobs::Result<()> {
        let put = || store.put(&self.id, self.bytes.clone().into(), &NO_LOCK);
        self.written.get_or_try_init(put).await.map(|_| ())
    }

    /// Removes the marker if it was written. A marker that stays behind only delays garbage collection.
    pub(super) async fn remove(&self, store: &dyn BlobStore) -> lifeboat_blobs::Result<()> {
        match self.written.initialized() {
            true => store.delete(&self.id).await,
            false => Ok(()),
        }
    }
}

/// Markers are deleted with the flush: they never carry a lock.
const NO_LOCK: PutOptions =
    PutOptions { mode: lifeboat_blobs::PutMode::Overwrite, retention: None, modified: None };

/// Who writes: the names that session markers carry and that maintenance ownership is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The user.
    pub username: String,
    /// The host.
    pub hostname: String,
}

/// Where a pack of the session is.
#[derive(Debug)]
pub(super) enum PackState {
    /// Being filled.
    Open(Box<PackBuilder>),
    /// On its way to the store.
    Sending(Arc<PackBuilder>),
    /// Not written; kept so that nothing is lost.
    Failed(Arc<PackBuilder>, Option<Payload>, Arc<lifeboat_blobs::Error>),
    /// In the store.
    Stored,
}

#[derive(Debug)]
pub(super) struct SessionPack {
    pub(super) name: PackName,
    pub(super) state: PackState,
}

/// What the session knows of a content.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pending {
    /// Somebody is sealing it right now.
    Claimed,
    /// It has an entry in the pack with this number.
    Entry(u32, PackRecord),
}

/// What was written since the last flush.
#[derive(Debug)]
pub(super) struct WriteSession {
    pub(super) id: SessionId,
    pub(super) marker: Arc<Marker>,
    pub(super) packs: Vec<SessionPack>,
    open: [Option<u32>; 2],
    pub(super) entries: HashMap<ContentId, Pending>,
    /// Numbers of packs that were there before and that deletions name.
    foreign: HashMap<PackName, u32>,
}

impl WriteSession {
    pub(super) fn start(sealer: &Sealer, environment: &Environment, who: &ClientIdentity) -> Result<Self> {
        let id = SessionId::generate(environment)?;
        let marker = Arc::new(Marker::new(&id, sealer, environment, who)?);
        Ok(WriteSession {
            id,
            marker,
            packs: Vec::new(),
            open: [None, None],
            entries: HashMap::new(),
            foreign: HashMap::new(),
        })
    }

    /// The open pack for contents of `kind`, opened if need be.
    pub(super) fn open_pack(
        &mut self,
        kind: PackKind,
        recovery_block: &Bytes,
        environment: &Environment,
    ) -> Result<(u32, &mut PackBuilder)> {
        let slot = kind as usize;
        let number = match self.open[slot] {
            Some(number) => number,
            None => {
                let random = hex::encode(environment.random_array::<16>()?);
                let id = BlobId::new(format!("{}{random}-{}", kind.blob_prefix(), self.id))?;
                let pack = Box::new(PackBuilder::new(id, kind, recovery_block, environment)?);
                let number = self.packs.len() as u32;
                self.packs.push(SessionPack { name: pack.name().clone(), state: PackState::Open(pack) });
                self.open[slot] = Some(number);
                number
            }
        };
        match self.packs.get_mut(number as usize).map(|pack| &mut pack.state) {
            Some(PackState::Open(pack)) => Ok((number, pack)),
            _ => Err(Error::Worker("an open pack is not open".into())),
        }
    }

    /// The open pack of `kind`, if there is one.
    pub(super) fn opened(&mut self, kind: PackKind) -> Option<&mut PackBuilder> {
        match &mut self.packs.get_mut(self.open[kind as usize]? as usize)?.state {
            PackState::Open(pack) => Some(pack),
            _ => None,
        }
    }

    /// The kind of the open pack that holds most bytes, and how many.
    pub(super) fn largest_open(&mut self) -> Option<(PackKind, u64)> {
        self.open_sizes().max_by_key(|(_, size)| *size)
    }

    /// The packs that are open and not empty, and their sizes.
    pub(super) fn open_sizes(&mut self) -> impl Iterator<Item = (PackKind, u64)> + use<> {
        let sizes = PackKind::ALL.map(|kind| (kind, self.opened(kind).map_or(0, |pack| pack.len())));
        sizes.into_iter().filter(|(_, size)| *size > 0)
    }

    /// Closes the open pack of `kind`: it is to be sent.
    pub(super) fn close_pack(&mut self, kind: PackKind) -> Option<(u32, Arc<PackBuilder>)> {
        let number = self.open[kind as usize].take()?;
        let pack = self.packs.get_mut(number as usize)?;
        match std::mem::replace(&mut pack.state, PackState::Stored) {
            PackState::Open(mut builder) => {
                builder.close_room();
                let builder: Arc<PackBuilder> = Arc::from(builder);
                pack.state = PackState::Sending(builder.clone());
                Some((number, builder))
            }
            other => {
                pack.state = other;
                None
            }
        }
    }

    /// Sets the entry of a content that keeps its place: a deletion.
    pub(super) fn update(&mut self, entry: &IndexEntry) {
        match self.entries.get_mut(&entry.id) {
            Some(Pending::Entry(_, record)) => {
                (record.deleted, record.timestamp) = (entry.deleted, entry.timestamp_seconds);
            }
            _ => self.add_foreign(entry),
        }
    }

    /// Adds an entry that names a pack of an earlier session.
    pub(super) fn add_foreign(&mut self, entry: &IndexEntry) {
        let packs = &mut self.packs;
        let number = *self.foreign.entry(entry.pack.clone()).or_insert_with(|| {
            packs.push(SessionPack { name: entry.pack.clone(), state: PackState::Stored });
            packs.len() as u32 - 1
        });
        let record = PackRecord {
            id: entry.id,
            offset: entry.pack_offset,
            packed_length: entry.packed_length,
            original_length: entry.original_length,
            timestamp: entry.timestamp_seconds,
            compression: entry.compression,
            format_version: entry.format_version,
            deleted: entry.deleted,
        };
        self.entries.insert(entry.id, Pending::Entry(number, record));
    }

    /// The entry of a content, and its bytes if its pack is still here.
    pub(super) fn find(&self, id: &ContentId) -> Option<(IndexEntry, Option<Bytes>)> {
        let Pending::Entry(number, record) = self.entries.get(id)? else { return None };
        let pack = self.packs.get(*number as usize)?;
        let slice = |pack: &PackBuilder| pack.slice(record.offset.into(), record.packed_length.into());
        let bytes = match &pack.state {
            PackState::Open(pack) => slice(pack),
            PackState::Sending(pack) | PackState::Failed(pack, ..) => slice(pack),
            PackState::Stored => None,
        };
        Some((record.entry(pack.name.clone()), bytes))
    }

    /// All entries.
    pub(super) fn index_entries(&self) -> impl Iterator<Item = IndexEntry> + '_ {
        self.entries.values().filter_map(|pending| match pending {
            Pending::Entry(number, record) => {
                let pack = self.packs.get(*number as usize)?;
                Some(record.entry(pack.name.clone()))
            }
            Pending::Claimed => None,
        })
    }
}
