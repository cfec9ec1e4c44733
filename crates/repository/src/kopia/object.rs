//! Objects: the engine's writers and readers as movers see them.

use crate::{
    AccessMode, BackupMode, Error, ErrorKind, Id, ObjectReader, ObjectWriteOptions, ObjectWriter, Pieces,
    RegionWriter, Result,
};
use lifeboat_budget::Buffer;
use lifeboat_index::Prefix;
use lifeboat_kopia::object::{self, ObjectId, Objects, PositionalOptions, PositionalWriter, WriterOptions};
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::splitter::SplitterAlgorithm;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Chunks of objects that are written at offsets: what Velero's design for block volumes names.
const BLOCK_CHUNK: usize = 1 << 20;
/// Kopia's choice for everything that is not user data.
const METADATA_COMPRESSOR: Compressor = Compressor::ZstdFastest;

/// The engine's id for an id of the interface.
pub(super) fn object_id(id: &Id) -> Result<ObjectId> {
    id.as_str().parse().map_err(|error| Error::from_source(ErrorKind::InvalidInput, error))
}

fn id_of(object: ObjectId) -> Id {
    Id::new(object.to_string())
}

/// The engine's options for options of the interface.
pub(super) fn writer_options(options: &ObjectWriteOptions) -> Result<WriterOptions> {
    let prefix = match options.prefix {
        None => Prefix::NONE,
        Some(letter) => {
            u8::try_from(letter).ok().and_then(|byte| Prefix::new(byte).ok()).ok_or_else(|| {
                Error::new(ErrorKind::InvalidInput, format!("{letter:?} is not a prefix for objects"))
            })?
        }
    };
    let compression = match options.compressor.as_str() {
        "" | "none" => None,
        name => Some(
            Compressor::from_name(name)
                .map_err(|error| Error::from_source(ErrorKind::InvalidInput, error))?,
        ),
    };
    let splitter = match options.splitter.as_str() {
        "" => None,
        name => Some(
            SplitterAlgorithm::from_name(name)
                .map_err(|error| Error::from_source(ErrorKind::InvalidInput, error))?,
        ),
    };
    Ok(WriterOptions { prefix, compression, metadata_compression: Some(METADATA_COMPRESSOR), splitter })
}

/// Starts an object.
pub(super) fn new_writer(
    objects: &Objects,
    runtime: &Handle,
    options: &ObjectWriteOptions,
) -> Result<Box<dyn ObjectWriter>> {
    let writer = writer_options(options)?;
    let parent = match (options.backup_mode, &options.parent) {
        (BackupMode::Incremental, Some(parent)) => Some(object_id(parent)?),
        (BackupMode::Incremental, None) => return Err(invalid("an incremental object needs a parent")),
        (_, Some(_)) => return Err(invalid("only an incremental object has a parent")),
        (_, None) => None,
    };
    match options.access_mode {
        AccessMode::Block => {
            let options =
                PositionalOptions { writer, chunk_size: BLOCK_CHUNK, parent, length: options.length };
            let writer = runtime.block_on(objects.positional_writer(options))?;
            Ok(Box::new(AtOffsets { writer, position: 0 }))
        }
        _ if parent.is_some() => {
            Err(invalid("an incremental object is written at offsets: use block access"))
        }
        _ if options.length.is_some() => {
            Err(invalid("only an object with block access has a length beforehand"))
        }
        _ => Ok(Box::new(Streamed { writer: objects.writer(writer) })),
    }
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

struct Streamed {
    writer: object::ObjectWriter,
}

impl ObjectWriter for Streamed {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        Ok(self.writer.write(data)?)
    }

    fn seek(&mut self, offset: u64) -> Result<()> {
        let gap = offset.checked_sub(self.writer.len());
        let gap = gap.ok_or_else(|| invalid("a stream cannot be written backwards: use block access"))?;
        Ok(self.writer.write_zeros(gap)?)
    }

    fn checkpoint(&mut self) -> Result<Option<(Id, u64)>> {
        Ok(self.writer.checkpoint()?.map(|(object, length)| (id_of(object), length)))
    }

    fn result(self: Box<Self>) -> Result<Id> {
        Ok(id_of(self.writer.finish()?))
    }
}

/// Starts an object that several threads work on.
pub(super) fn new_region_writer(
    objects: &Objects,
    options: &ObjectWriteOptions,
) -> Result<Box<dyn RegionWriter>> {
    if options.access_mode == AccessMode::Block || options.parent.is_some() {
        return Err(invalid("an object by regions is written in full, without a parent: use block access"));
    }
    Ok(Box::new(Regions(objects.region_writer(writer_options(options)?))))
}

struct Regions(object::RegionWriter);

impl RegionWriter for Regions {
    fn longest_piece(&self) -> usize {
        self.0.longest_piece()
    }

    fn cut(&self, region: &[u8], is_end: bool) -> Result<Pieces> {
        let pieces = self.0.cut(region, is_end)?;
        Ok(Pieces::new(pieces.bytes(), pieces))
    }

    fn cut_zeros(&self, length: u64) -> Result<Pieces> {
        let pieces = self.0.cut_zeros(length)?;
        Ok(Pieces::new(pieces.bytes(), pieces))
    }

    fn write(&self, region: Buffer, pieces: &Pieces) -> Result<()> {
        let pieces = pieces.note().ok_or_else(|| invalid("pieces of an object of another kind"))?;
        Ok(self.0.write(region, pieces)?)
    }

    fn checkpoint(&self) -> Result<Option<(Id, u64)>> {
        Ok(self.0.checkpoint()?.map(|(object, length)| (id_of(object), length)))
    }

    fn result(&self) -> Result<Id> {
        Ok(id_of(self.0.finish()?))
    }
}

struct AtOffsets {
    writer: PositionalWriter,
    position: u64,
}

impl ObjectWriter for AtOffsets {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.writer.write_at(self.position, data)?;
        self.position += data.len() as u64;
        Ok(())
    }

    fn seek(&mut self, offset: u64) -> Result<()> {
        self.position = offset;
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.writer.write_at(offset, data)?)
    }

    fn write_buffer_at(&self, offset: u64, buffer: Buffer, ranges: &[Range<usize>]) -> Result<()> {
        Ok(self.writer.write_buffer_at(offset, buffer, ranges)?)
    }

    fn checkpoint(&mut self) -> Result<Option<(Id, u64)>> {
        self.checkpoint_meanwhile()
    }

    fn checkpoint_meanwhile(&self) -> Result<Option<(Id, u64)>> {
        Ok(self.writer.checkpoint()?.map(|(object, length)| (id_of(object), length)))
    }

    fn result(self: Box<Self>) -> Result<Id> {
        Ok(id_of(self.writer.finish()?))
    }
}

/// Waits for reads of the storage until they are interrupted.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub(super) runtime: Handle,
    pub(super) interrupted: CancellationToken,
}

impl Waiter {
    pub(super) fn wait<T>(&self, call: impl Future<Output = lifeboat_kopia::Result<T>>) -> Result<T> {
        let outcome = self.runtime.block_on(self.interrupted.run_until_cancelled(call));
        let interrupted = || Error::new(ErrorKind::Interrupted, "reading was interrupted");
        Ok(outcome.ok_or_else(interrupted)??)
    }
}

/// A reader that blocks.
pub(super) struct Reader {
    reader: object::ObjectReader,
    waiter: Waiter,
}

impl Reader {
    pub(super) fn new(reader: object::ObjectReader, waiter: Waiter) -> Self {
        Reader { reader, waiter }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(self.waiter.wait(self.reader.read(buffer))?)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.reader.seek(to).map_err(|error| Error::from(error).into())
    }
}

impl ObjectReader for Reader {
    fn length(&self) -> u64 {
        self.reader.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.waiter.wait(self.reader.read_at(offset, buffer))
    }
}
