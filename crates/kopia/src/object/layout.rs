//! An object as a flat list of contents: all levels of indexes resolved.

use super::indirect::{self, Entry};
use super::{ObjectId, ObjectReader, Objects};
use crate::worker::blocking;
use crate::{Error, Result};
use bytes::Bytes;
use lifeboat_index::ContentId;
use std::ops::Range;

/// More levels than this, counting objects inside indexes too, no writer makes.
pub(super) const MAX_DEPTH: usize = 8;
/// Longer indexes are not in memory as a whole when they are read.
const LONG_INDEX: u64 = 4 << 20;

/// A part of an object that is one content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutEntry {
    /// Where it starts in the object.
    pub start: u64,
    /// How long it is.
    pub length: u64,
    /// The content.
    pub content: ContentId,
    /// Whether the object layer compressed it.
    pub compressed: bool,
}

impl LayoutEntry {
    /// The id of the part as an object.
    pub fn object(&self) -> ObjectId {
        match self.compressed {
            true => ObjectId::direct_compressed(self.content),
            false => ObjectId::direct(self.content),
        }
    }

    /// Its place in the object.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.length
    }
}

/// An object as a flat list of contents, without gaps, in order.
#[derive(Debug, Clone)]
pub struct ObjectLayout {
    id: ObjectId,
    entries: Vec<LayoutEntry>,
    /// Contents that hold the object's own indexes.
    index_contents: Vec<ContentId>,
    length: u64,
}

impl ObjectLayout {
    /// Reads the indexes of an object.
    pub async fn load(objects: &Objects, id: ObjectId) -> Result<Self> {
        let mut layout = Self::empty(id);
        layout.add(objects, id, None, 0).await?;
        Ok(layout)
    }

    fn empty(id: ObjectId) -> Self {
        ObjectLayout { id, entries: Vec::new(), index_contents: Vec::new(), length: 0 }
    }

    /// The object.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Its length.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Its parts.
    pub fn entries(&self) -> &[LayoutEntry] {
        &self.entries
    }

    /// The contents that hold its indexes.
    pub fn index_contents(&self) -> &[ContentId] {
        &self.index_contents
    }

    /// The part that holds the byte at `offset`.
    pub fn find(&self, offset: u64) -> Option<usize> {
        let place = self.entries.partition_point(|entry| entry.start + entry.length <= offset);
        (place < self.entries.len()).then_some(place)
    }

    /// Adds the parts of `object`, of which an index above says how long it must be.
    async fn add(
        &mut self,
        objects: &Objects,
        object: ObjectId,
        expected: Option<u64>,
        depth: usize,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(self.damaged("its indexes are nested too deeply"));
        }
        let start = self.length;
        match object.index_object() {
            None => {
                let length = match expected {
                    // The content is checked against it when it is read.
                    Some(length) => length,
                    None => direct_length(objects, object).await?,
                };
                self.push(objects, object, length)?;
            }
            Some(index) => {
                let own = self.layout_of_index(objects, index, depth).await?;
                if own.length > LONG_INDEX.min(objects.budget.total() / 16) {
                    self.add_long_index(objects, own, depth).await?;
                } else {
                    for entry in self.read_index(objects, own).await? {
                        Box::pin(self.add(objects, entry.object, Some(entry.length), depth + 1)).await?;
                    }
                }
            }
        }
        match expected {
            Some(expected) if expected != self.length - start => Err(self.damaged(&format!(
                "its part {object} does not have the {expected} bytes that its index says"
            ))),
            _ => Ok(()),
        }
    }

    /// Adds a part that is one content.
    fn push(&mut self, objects: &Objects, object: ObjectId, length: u64) -> Result<()> {
        // The budget bounds what a hostile index can make us keep. It is not waited for: whoever opens an object may
        // hold all of it.
        let requested = ((self.entries.len() + 1) * size_of::<LayoutEntry>()) as u64;
        let total = objects.budget.total();
        if requested > total {
            return Err(lifeboat_budget::TooLarge { requested, total }.into());
        }
        let (start, content, compressed) = (self.length, object.content(), object.is_compressed());
        self.entries.push(LayoutEntry { start, length, content, compressed });
        self.length = start.checked_add(length).ok_or_else(|| self.damaged("it is too long"))?;
        Ok(())
    }

    async fn layout_of_index(&mut self, objects: &Objects, index: ObjectId, depth: usize) -> Result<Self> {
        let mut own = Self::empty(index);
        Box::pin(own.add(objects, index, None, depth + 1)).await?;
        self.index_contents.append(&mut own.index_contents);
        self.index_contents.extend(own.entries.iter().map(|entry| entry.content));
        Ok(own)
    }

    async fn read_index(&self, objects: &Objects, own: Self) -> Result<Vec<Entry>> {
        let _memory = objects.budget.try_reserve(own.length);
        let json = own.read_all(objects).await?;
        indirect::parse(&json).map_err(|reason| self.damaged(&reason))
    }

    /// Adds the parts in the index whose own layout this is, as they are read.
    async fn add_long_index(&mut self, objects: &Objects, own: Self, depth: usize) -> Result<()> {
        let (id, objects) = (self.id, objects.clone());
        let mut layout = std::mem::replace(self, Self::empty(id));
        let read = move || {
            let runtime = objects.runtime.clone();
            let reader = ObjectReader::of(objects.clone(), own);
            let outcome = indirect::visit_object(id, reader, runtime.clone(), &mut |entry| match entry
                .object
                .index_object()
            {
                None => layout.push(&objects, entry.object, entry.length),
                Some(_) => {
                    runtime.block_on(layout.add(&objects, entry.object, Some(entry.length), depth + 1))
                }
            });
            outcome.map(|()| layout)
        };
        *self = blocking(read).await??;
        Ok(())
    }

    async fn read_all(&self, objects: &Objects) -> Result<Bytes> {
        if let [only] = self.entries.as_slice() {
            return read_part(objects, self.id, only).await;
        }
        let mut data = Vec::with_capacity(self.length as usize);
        for entry in &self.entries {
            data.extend_from_slice(&read_part(objects, self.id, entry).await?);
        }
        Ok(data.into())
    }

    fn damaged(&self, reason: &str) -> Error {
        Error::DamagedObject { id: self.id.to_string(), reason: reason.to_owned() }
    }
}

/// The length of an object that is one content: the index knows, unless the object layer compressed it.
async fn direct_length(objects: &Objects, object: ObjectId) -> Result<u64> {
    if object.is_compressed() {
        return Ok(decode(object, &objects.contents.read(&object.content()).await?, None)?.len() as u64);
    }
    match objects.contents.lookup(&object.content())? {
        Some(entry) => Ok(entry.original_length.into()),
        // Reading looks once more, after a refresh, and gives the right error.
        None => Ok(objects.contents.read(&object.content()).await?.len() as u64),
    }
}

/// The bytes of one part of `object`.
pub(super) async fn read_part(objects: &Objects, object: ObjectId, part: &LayoutEntry) -> Result<Bytes> {
    let data = objects.contents.read(&part.content).await?;
    let data = if part.compressed { decode(part.object(), &data, Some(part.length))? } else { data };
    if data.len() as u64 != part.length {
        return Err(Error::DamagedObject {
            id: object.to_string(),
            reason: format!(
                "its part {} has {} bytes, its index says {}",
                part.object(),
                data.len(),
                part.length
            ),
        });
    }
    Ok(data)
}

/// Undoes the object layer's compression.
pub(super) fn decode(object: ObjectId, data: &[u8], expected: Option<u64>) -> Result<Bytes> {
    let limit =
        expected.unwrap_or(crate::sealer::MAX_CONTENT_LEN as u64).min(crate::sealer::MAX_CONTENT_LEN as u64);
    lifeboat_primitives::compress::decompress_by_header(data, limit as usize)
        .map(Bytes::from)
        .map_err(|e| Error::DamagedObject { id: object.to_string(), reason: e.to_string() })
}
