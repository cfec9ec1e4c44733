//! Reading one object.

use crate::repository::Shared;
use bytes::Bytes;
use lifeboat_repository::{Error, ErrorKind, ObjectReader, Result};
use parking_lot::Mutex;
use rustic_core::DataId;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;

/// What an object has in it.
pub(crate) enum Contents {
    /// Bytes that are at hand: a listing, or the target of a link.
    Held(Vec<u8>),
    /// The blobs of a file.
    Blobs(Vec<DataId>),
}

/// Bytes that are at hand.
pub(crate) struct Held(Cursor<Vec<u8>>);

impl Held {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Held(Cursor::new(bytes))
    }
}

impl Read for Held {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Seek for Held {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}

impl ObjectReader for Held {
    fn length(&self) -> u64 {
        self.0.get_ref().len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let bytes = self.0.get_ref();
        let rest = usize::try_from(offset).ok().and_then(|start| bytes.get(start..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// A file, blob by blob.
pub(crate) struct FileReader {
    shared: Arc<Shared>,
    /// Each blob with the place behind its last byte.
    blobs: Vec<(DataId, u64)>,
    position: u64,
    /// The blob that was read last: whoever reads in small steps needs it again.
    last: Mutex<Option<(usize, Bytes)>>,
}

impl FileReader {
    pub(crate) fn new(shared: Arc<Shared>, content: &[DataId]) -> Result<Self> {
        let mut end = 0;
        let mut blobs = Vec::with_capacity(content.len());
        for id in content {
            end += u64::from(shared.place(id)?.plain);
            blobs.push((*id, end));
        }
        Ok(FileReader { shared, blobs, position: 0, last: Mutex::default() })
    }

    fn blob(&self, at: usize) -> Result<Bytes> {
        if let Some((_, bytes)) = self.last.lock().as_ref().filter(|(last, _)| *last == at) {
            return Ok(bytes.clone());
        }
        let bytes = self.shared.blob(self.blobs[at].0)?;
        *self.last.lock() = Some((at, bytes.clone()));
        Ok(bytes)
    }
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.read_at(self.position, buffer)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for FileReader {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.length().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let before_start = || Error::new(ErrorKind::InvalidInput, "an object has nothing before its start");
        self.position = target.ok_or_else(before_start)?;
        Ok(self.position)
    }
}

impl ObjectReader for FileReader {
    fn length(&self) -> u64 {
        self.blobs.last().map_or(0, |(_, end)| *end)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        let mut at = self.blobs.partition_point(|(_, end)| *end <= offset);
        while done < buffer.len() && at < self.blobs.len() {
            let start = if at == 0 { 0 } else { self.blobs[at - 1].1 };
            let bytes = self.blob(at)?;
            let inside = usize::try_from(offset + done as u64 - start).unwrap_or(usize::MAX);
            let Some(rest) = bytes.get(inside..) else { break };
            let count = rest.len().min(buffer.len() - done);
            buffer[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
            at += 1;
        }
        Ok(done)
    }
}
