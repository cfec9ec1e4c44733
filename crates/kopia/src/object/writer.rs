//! Writing an object from a stream of bytes.

use super::indirect::Indexed;
use super::runs::{Run, Runs, object_of};
use super::{ObjectId, Objects};
use crate::{Error, Result};
use lifeboat_budget::Reservation;
use lifeboat_index::Prefix;
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::splitter::{Splitter, SplitterAlgorithm, WINDOW};

/// How an object is written.
#[derive(Debug, Clone, Default)]
pub struct WriterOptions {
    /// The prefix of its contents: none for files, `k` for directories.
    pub prefix: Prefix,
    /// How its contents are compressed.
    pub compression: Option<Compressor>,
    /// How its indexes are compressed.
    pub metadata_compression: Option<Compressor>,
    /// How it is cut; the repository's splitter if not given.
    pub splitter: Option<SplitterAlgorithm>,
}

/// How many bytes [`ObjectWriter::space`] offers at least: enough to make a system call worth its while, little
/// enough to be cheap to move when a cut falls inside.
const SPACE: usize = 256 << 10;

/// Writes one object from first to last byte. For worker threads: all calls block.
///
/// Chunks are gathered until the hash can work on several side by side, as far as the memory budget allows.
#[derive(Debug)]
pub struct ObjectWriter {
    objects: Objects,
    options: WriterOptions,
    splitter: Splitter,
    /// The beginning of the next chunk.
    partial: Buffer,
    gathered: Vec<Gathered>,
    /// Buffers to be used again.
    spare: Vec<Buffer>,
    /// How many chunks are written at once.
    batch: usize,
    runs: Runs,
    length: u64,
    zeros: Option<ZeroChunk>,
}

/// A chunk that waits for others.
#[derive(Debug)]
struct Gathered {
    data: Buffer,
    _memory: Reservation,
}

/// Bytes that are filled from the front. What lies behind them is initialised too, so that it can be read into.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl Buffer {
    fn filled(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// At least `len` bytes behind the filled ones.
    fn space(&mut self, len: usize) -> &mut [u8] {
        let wanted = self.filled + len;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted.max(2 * self.bytes.len()), 0);
        }
        &mut self.bytes[self.filled..]
    }

    fn push(&mut self, data: &[u8]) {
        self.space(data.len())[..data.len()].copy_from_slice(data);
        self.filled += data.len();
    }
}

/// A chunk of zeros that was written before.
#[derive(Debug, Clone, Copy)]
struct ZeroChunk {
    length: usize,
    object: ObjectId,
}

impl ObjectWriter {
    pub(super) fn new(objects: Objects, options: WriterOptions) -> Self {
        let splitter = Splitter::new(options.splitter.unwrap_or(objects.splitter));
        ObjectWriter {
            batch: objects.batch(),
            runs: Runs::new(&objects),
            objects,
            options,
            splitter,
            partial: Buffer::default(),
            gathered: Vec::new(),
            spare: Vec::new(),
            length: 0,
            zeros: None,
        }
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds bytes. Large slices are cheapest: chunks that lie whole in `data` are not copied if several do.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        self.length += data.len() as u64;
        let mut rest = data;
        let mut whole: Vec<&[u8]> = Vec::new();
        while let Some(cut) = self.splitter.next_cut(rest) {
            let (chunk, following) = rest.split_at(cut);
            rest = following;
            if self.partial.is_empty() {
                whole.push(chunk);
                if whole.len() + self.gathered.len() >= self.batch {
                    self.write_chunks(&whole)?;
                    whole.clear();
                }
            } else {
                self.partial.push(chunk);
                self.end_chunk()?;
            }
        }
        // What is left in the caller's slice is written if it fills the lanes of the hash; else it has to be kept.
        if !whole.is_empty() && whole.len() + self.gathered.len() >= self.batch / 2 {
            self.write_chunks(&whole)?;
            whole.clear();
        }
        for (at, chunk) in whole.iter().enumerate() {
            match self.objects.budget.try_reserve(chunk.len() as u64) {
                Some(memory) => {
                    let mut data = self.spare.pop().unwrap_or_default();
                    data.push(chunk);
                    self.gathered.push(Gathered { data, _memory: memory });
                }
                None => {
                    self.write_chunks(&whole[at..])?;
                    break;
                }
            }
        }
        self.partial.push(rest);
        Ok(())
    }

    /// Room for the next bytes, to be read into straight from a file; [`advance`](Self::advance) adds them.
    pub fn space(&mut self) -> &mut [u8] {
        self.partial.space(SPACE)
    }

    /// Adds the first `count` bytes of the [`space`](Self::space).
    pub fn advance(&mut self, count: usize) -> Result<()> {
        let mut from = self.partial.filled;
        let end = from.checked_add(count).filter(|end| *end <= self.partial.bytes.len());
        self.partial.filled =
            end.ok_or_else(|| Error::Invalid("more bytes were added than there was space for".into()))?;
        self.length += count as u64;
        while let Some(cut) = self.splitter.next_cut(&self.partial.filled()[from..]) {
            let mut next = self.spare.pop().unwrap_or_default();
            next.push(&self.partial.filled()[from + cut..]);
            let mut whole = std::mem::replace(&mut self.partial, next);
            whole.filled = from + cut;
            self.gather(whole)?;
            from = 0;
        }
        Ok(())
    }

    /// Adds `length` zeros, as fast as their chunks can be counted: what a hole in a sparse file is.
    ///
    /// The result is the same as if the zeros had been passed to [`write`](Self::write).
    pub fn write_zeros(&mut self, length: u64) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        // After a window of zeros every splitter cuts at its minimum size, so all chunks but the first and the last
        // are equal.
        let min = self.splitter.algorithm().min_size();
        let mut left = length;
        let mut run = 0u64;
        while left > 0 {
            if self.partial.is_empty()
                && self.splitter.pending() == 0
                && run >= WINDOW as u64
                && left >= min as u64
            {
                let count = left / min as u64;
                self.add_zero_chunks(min, count)?;
                left -= count * min as u64;
                continue;
            }
            let part = &ZEROS[..left.min(ZEROS.len() as u64) as usize];
            // A cut may fall inside; from there on the chunks are whole.
            let take = match self.splitter.clone().next_cut(part) {
                Some(cut) => cut,
                None => part.len(),
            };
            self.write(&part[..take])?;
            left -= take as u64;
            run += take as u64;
        }
        Ok(())
    }

    fn add_zero_chunks(&mut self, length: usize, count: u64) -> Result<()> {
        self.write_gathered()?;
        let known = self.zeros.filter(|zeros| zeros.length == length);
        let object = match known {
            Some(zeros) => zeros.object,
            None => {
                let (prefix, compression) = (self.options.prefix, self.options.compression);
                let ids = self.objects.write_chunks(&[&vec![0; length]], prefix, compression)?;
                *ids.first().ok_or_else(|| Error::Worker("a chunk got no id".into()))?
            }
        };
        self.zeros = Some(ZeroChunk { length, object });
        self.runs.push(Run { count, length: length as u64, object })?;
        self.length += length as u64 * count;
        Ok(())
    }

    /// The partial chunk is whole.
    fn end_chunk(&mut self) -> Result<()> {
        let next = self.spare.pop().unwrap_or_default();
        let whole = std::mem::replace(&mut self.partial, next);
        self.gather(whole)
    }

    /// Keeps a whole chunk until there are enough of them.
    fn gather(&mut self, data: Buffer) -> Result<()> {
        match self.objects.budget.try_reserve(data.filled as u64) {
            Some(memory) => self.gathered.push(Gathered { data, _memory: memory }),
            None => {
                self.write_chunks(&[data.filled()])?;
                self.recycle(data);
            }
        }
        if self.gathered.len() >= self.batch {
            self.write_gathered()?;
        }
        Ok(())
    }

    fn write_gathered(&mut self) -> Result<()> {
        match self.gathered.is_empty() {
            true => Ok(()),
            false => self.write_chunks(&[]),
        }
    }

    /// Writes what was gathered, and then `more`.
    fn write_chunks(&mut self, more: &[&[u8]]) -> Result<()> {
        let gathered = std::mem::take(&mut self.gathered);
        let chunks: Vec<&[u8]> =
            gathered.iter().map(|gathered| gathered.data.filled()).chain(more.iter().copied()).collect();
        let ids = self.objects.write_chunks(&chunks, self.options.prefix, self.options.compression)?;
        let lengths: Vec<u64> = chunks.iter().map(|chunk| chunk.len() as u64).collect();
        for (length, id) in lengths.into_iter().zip(ids) {
            self.runs.push(Run { count: 1, length, object: id })?;
        }
        gathered.into_iter().for_each(|gathered| self.recycle(gathered.data));
        Ok(())
    }

    fn recycle(&mut self, mut buffer: Buffer) {
        if self.spare.len() < self.batch {
            buffer.filled = 0;
            self.spare.push(buffer);
        }
    }

    /// The object as it is up to the last cut, and its length, so that what was written so far can be found after a
    /// crash; `None` if there is no cut yet. Writing goes on afterwards.
    pub fn checkpoint(&mut self) -> Result<Option<(ObjectId, u64)>> {
        self.write_gathered()?;
        Ok(self.object()?.map(|written| (written.object, written.length)))
    }

    /// Writes what is left and returns the object's id.
    pub fn finish(mut self) -> Result<ObjectId> {
        let rest = std::mem::take(&mut self.partial);
        // An object without bytes is one chunk without bytes.
        let empty = self.length == 0;
        if !rest.is_empty() || empty {
            self.write_chunks(&[rest.filled()])?;
        } else {
            self.write_gathered()?;
        }
        let written = self.object()?.ok_or_else(|| Error::Worker("an object got no chunk".into()))?;
        self.runs.check_all(&written)?;
        Ok(written.object)
    }

    fn object(&self) -> Result<Option<Indexed>> {
        object_of(&self.objects, &self.options, |place| self.runs.some_from(place))
    }
}
