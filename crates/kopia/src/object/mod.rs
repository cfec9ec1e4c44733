//! Objects: files and directories, cut into contents and put together again by indirect indexes.
//!
//! [`Objects`] is the entry. An [`ObjectWriter`] takes a stream; a [`RegionWriter`] takes regions of one large
//! object from several threads; a [`PositionalWriter`] takes pieces in any order and fills the rest from a parent;
//! all three write ordinary objects. An [`ObjectReader`] reads any of them, from any place;
//! [`Objects::read_scattered`] reads many at once.

mod concat;
mod id;
mod indirect;
mod layout;
mod positional;
mod reader;
mod regions;
mod runs;
mod scatter;
mod table;
mod text;
mod whole;
mod writer;

pub use id::{InvalidObjectId, ObjectId};
pub use layout::{LayoutEntry, ObjectLayout};
pub use positional::{PositionalOptions, PositionalWriter};
pub use reader::ObjectReader;
pub use regions::{Pieces, RegionWriter};
pub use scatter::{Destination, ScatterOptions, ScatterTotals, Wanted};
pub(crate) use text::ObjectText;
pub use writer::{ObjectWriter, WriterOptions};

use crate::content::{ContentStore, ContentToWrite};
use crate::{Error, Result};
use bytes::Bytes;
use lifeboat_budget::{Budget, Buffer};
use lifeboat_index::Prefix;
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::splitter::SplitterAlgorithm;
use std::ops::Range;
use tokio::runtime::Handle;

/// The objects of a repository. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Objects {
    contents: ContentStore,
    splitter: SplitterAlgorithm,
    budget: Budget,
    runtime: Handle,
}

impl Objects {
    /// The objects in `contents`, cut by the repository's `splitter`.
    pub fn new(contents: ContentStore, splitter: SplitterAlgorithm, budget: Budget, runtime: Handle) -> Self {
        Objects { contents, splitter, budget, runtime }
    }

    /// The contents below.
    pub fn contents(&self) -> &ContentStore {
        &self.contents
    }

    /// The splitter of the repository.
    pub fn splitter(&self) -> SplitterAlgorithm {
        self.splitter
    }

    /// A writer for a stream.
    pub fn writer(&self, options: WriterOptions) -> ObjectWriter {
        ObjectWriter::new(self.clone(), options)
    }

    /// A writer for one large object that several threads feed.
    pub fn region_writer(&self, options: WriterOptions) -> RegionWriter {
        RegionWriter::new(self.clone(), options)
    }

    /// A reader.
    pub async fn open(&self, id: ObjectId) -> Result<ObjectReader> {
        ObjectReader::open(self.clone(), id).await
    }

    /// The whole of an object that is known to be small, such as a directory; refused if it is longer than `limit`.
    pub async fn read_all(&self, id: ObjectId, limit: u64) -> Result<Bytes> {
        if id.levels() == 0 && !id.is_compressed() {
            let data = self.contents.read(&id.content()).await?;
            return match data.len() as u64 <= limit {
                true => Ok(data),
                false => Err(too_long(id, data.len() as u64, limit)),
            };
        }
        let reader = self.open(id).await?;
        if reader.len() > limit {
            return Err(too_long(id, reader.len(), limit));
        }
        let mut data = vec![0; reader.len() as usize];
        reader.read_exact_at(0, &mut data).await?;
        Ok(data.into())
    }

    /// The bytes of one part of `object`, as its [`ObjectLayout`] names it; their length is checked.
    pub async fn read_part(&self, object: ObjectId, part: &LayoutEntry) -> Result<Bytes> {
        layout::read_part(self, object, part).await
    }

    /// Writes many small objects at once (small files, directories, link targets); their ids come in order.
    ///
    /// They are hashed side by side and packed together, which is far cheaper than one writer for each. For worker
    /// threads, like every write.
    pub fn write_many(&self, objects: &[&[u8]], options: &WriterOptions) -> Result<Vec<ObjectId>> {
        let splitter = options.splitter.unwrap_or(self.splitter);
        // Up to the minimum size there is no cut inside, whatever the bytes.
        let is_single = |data: &&&[u8]| data.len() <= splitter.min_size();
        if objects.iter().all(|data| is_single(&data)) {
            return self.write_chunks(objects, options.prefix, options.compression);
        }
        let small: Vec<&[u8]> = objects.iter().filter(is_single).copied().collect();
        let mut written = self.write_chunks(&small, options.prefix, options.compression)?.into_iter();
        let mut ids = Vec::with_capacity(objects.len());
        for data in objects {
            ids.push(match data.len() <= splitter.min_size() {
                true => written.next().ok_or_else(|| Error::Worker("an object got no id".into()))?,
                false => {
                    let mut writer = self.writer(options.clone());
                    writer.write(data)?;
                    writer.finish()?
                }
            });
        }
        Ok(ids)
    }

    /// The same for objects that lie in one buffer, in order and apart from each other.
    pub fn write_many_of(
        &self,
        buffer: Buffer,
        objects: &[Range<usize>],
        options: &WriterOptions,
    ) -> Result<Vec<ObjectId>> {
        let splitter = options.splitter.unwrap_or(self.splitter);
        if objects.iter().all(|range| range.len() <= splitter.min_size()) {
            return self.write_chunks_of(buffer, objects, options.prefix, options.compression);
        }
        self.write_many(&parts(buffer.as_ref(), objects)?, options)
    }

    /// How many chunks of one object are best written at once. More than the hash has lanes: chunks differ in
    /// length, and a lane that is done early wants another one to go on with.
    fn batch(&self) -> usize {
        2 * self.contents.sealer().hasher().lanes().clamp(1, 4)
    }

    /// Writes chunks, each of which is an object of its own; the ids come in order.
    fn write_chunks(
        &self,
        chunks: &[&[u8]],
        prefix: Prefix,
        compression: Option<Compressor>,
    ) -> Result<Vec<ObjectId>> {
        // Where contents do not carry their compressor, user data is compressed here and marked in the object id.
        let by_object = compression.filter(|_| !self.contents.supports_compression() && prefix.is_none());
        if let Some(compressor) = by_object {
            return chunks.iter().map(|chunk| self.write_compressed(chunk, compressor)).collect();
        }
        let items: Vec<_> = chunks.iter().map(|data| ContentToWrite { data, prefix, compression }).collect();
        Ok(self.contents.write_batch(&items)?.into_iter().map(ObjectId::direct).collect())
    }

    /// The same for chunks that lie in one buffer, in order and apart from each other.
    fn write_chunks_of(
        &self,
        buffer: Buffer,
        chunks: &[Range<usize>],
        prefix: Prefix,
        compression: Option<Compressor>,
    ) -> Result<Vec<ObjectId>> {
        if compression.is_some() {
            return self.write_chunks(&parts(buffer.as_ref(), chunks)?, prefix, compression);
        }
        Ok(self.contents.write_buffer(buffer, chunks, prefix)?.into_iter().map(ObjectId::direct).collect())
    }

    fn write_compressed(&self, chunk: &[u8], compressor: Compressor) -> Result<ObjectId> {
        let mut compressed = Vec::with_capacity(chunk.len() / 2);
        compressor.compress(chunk, &mut compressed)?;
        let shorter = compressed.len() < chunk.len();
        let data = if shorter { &compressed } else { chunk };
        let id = self.contents.write(&ContentToWrite { data, prefix: Prefix::NONE, compression: None })?;
        Ok(if shorter { ObjectId::direct_compressed(id) } else { ObjectId::direct(id) })
    }
}

/// Parts of a buffer.
fn parts<'a>(buffer: &'a [u8], ranges: &[Range<usize>]) -> Result<Vec<&'a [u8]>> {
    let outside = || Error::Invalid("an object is not in its buffer".into());
    ranges.iter().map(|range| buffer.get(range.clone()).ok_or_else(outside)).collect()
}

fn too_long(id: ObjectId, length: u64, limit: u64) -> Error {
    Error::DamagedObject {
        id: id.to_string(),
        reason: format!("it has {length} bytes where at most {limit} are possible"),
    }
}
