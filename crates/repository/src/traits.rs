//! The interface itself.

use crate::regions::InOrder;
use crate::{
    Error, ErrorKind, ObjectWriteOptions, RepositoryOptions, Result, ScatterOptions, ScatterTotals, Wanted,
};
use jiff::Timestamp;
use lifeboat_budget::{Buffer, BufferPool, Loan, Reservation};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The identifier of an object or a manifest, opaque to movers, valid for as long as the repository exists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(String);

impl Id {
    /// An identifier from its stored form.
    pub fn new(id: impl Into<String>) -> Self {
        Id(id.into())
    }

    /// The stored form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The stored form, without a copy.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is at the place where a repository should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Nothing: it may be created.
    Absent,
    /// A repository whose creation was not finished: creating again completes it.
    Incomplete,
    /// A repository that can be opened.
    Ready,
}

/// Which maintenance to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaintenanceMode {
    /// Whatever the repository's own schedule says is due, possibly nothing.
    #[default]
    Auto,
    /// The cheap part only.
    Quick,
    /// Everything.
    Full,
}

/// What a maintenance run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaintenanceOutcome {
    /// What was run; `None` if nothing was due.
    pub ran: Option<MaintenanceMode>,
    /// One line per task, for people.
    pub report: Vec<String>,
}

/// Creates, connects, opens and maintains repositories of one engine.
pub trait RepositoryService: Send + Sync {
    /// Makes a new repository (finishing an incomplete one) and connects to it. Fails with
    /// [`ErrorKind::AlreadyExists`] if a complete one is there.
    fn create(&self, options: &RepositoryOptions) -> Result<()>;

    /// Checks the password against an existing repository and writes the local connection file.
    fn connect(&self, options: &RepositoryOptions) -> Result<()>;

    /// Creates or connects.
    fn init(&self, options: &RepositoryOptions, create_new: bool) -> Result<()> {
        if create_new { self.create(options) } else { self.connect(options) }
    }

    /// What is at the place that `options` name; reads only.
    fn readiness(&self, options: &RepositoryOptions) -> Result<Readiness>;

    /// Opens a repository that this machine was connected to.
    fn open(&self, options: &RepositoryOptions) -> Result<Arc<dyn Repository>>;

    /// Removes redundant data. Safe beside concurrent readers and writers; an interrupted run is simply repeated.
    fn maintain(&self, options: &RepositoryOptions, mode: MaintenanceMode) -> Result<MaintenanceOutcome>;

    /// How often [`maintain`](RepositoryService::maintain) should be called.
    fn default_maintenance_frequency(&self) -> Duration;
}

/// What an engine can do beyond the minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Parts of one object can be written as objects of their own and joined by
    /// [`Repository::concatenate`] without copying.
    pub concatenate: bool,
    /// [`ObjectWriter::write_at`] may be called from several threads at once.
    pub concurrent_write_at: bool,
    /// [`crate::BackupMode::Incremental`] clones unchanged ranges of the parent without reading them.
    pub clone_parent_ranges: bool,
    /// [`ObjectWriter::checkpoint`] gives an id.
    pub checkpoint: bool,
}

/// An object that is small enough to be handed over in one piece.
#[derive(Debug, Clone, Copy)]
pub struct WholeObject<'a> {
    /// All of its bytes.
    pub data: &'a [u8],
    /// How to write it.
    pub options: &'a ObjectWriteOptions,
}

/// The same for one that lies in a buffer.
#[derive(Debug, Clone)]
pub struct ObjectInBuffer<'a> {
    /// Where its bytes are.
    pub range: Range<usize>,
    /// How to write it.
    pub options: &'a ObjectWriteOptions,
}

/// Objects as they lie in a buffer.
pub(crate) fn whole_objects<'a>(
    buffer: &'a [u8],
    objects: &[ObjectInBuffer<'a>],
) -> Result<Vec<WholeObject<'a>>> {
    let outside = || Error::new(ErrorKind::InvalidInput, "an object is not in its buffer");
    let borrow = |object: &ObjectInBuffer<'a>| {
        let data = buffer.get(object.range.clone()).ok_or_else(outside)?;
        Ok(WholeObject { data, options: object.options })
    };
    objects.iter().map(borrow).collect()
}

/// What an open repository has written since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WrittenBytes {
    /// Data that was not there before, as it was handed in.
    pub new: u64,
    /// Bytes that went to the storage for it.
    pub stored: u64,
}

/// What is known about a manifest besides its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestMetadata {
    /// Its identifier.
    pub id: Id,
    /// Length of its payload in bytes.
    pub length: u64,
    /// The labels that it is found by.
    pub labels: BTreeMap<String, String>,
    /// When it was written.
    pub modified: Timestamp,
}

/// A small labelled record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// What is known about it.
    pub metadata: ManifestMetadata,
    /// The record: JSON text.
    pub payload: Vec<u8>,
}

/// Which manifests are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestFilter {
    /// Labels that must all be there with these values; none = every manifest.
    pub labels: BTreeMap<String, String>,
}

/// An open repository. Shared by threads; dropping the last handle closes it **without** flushing.
pub trait Repository: Send + Sync {
    /// Opens an object for reading.
    fn open_object(&self, id: &Id) -> Result<Box<dyn ObjectReader>>;

    /// Reads many objects at once, in the order that costs the engine least; `wanted` is asked on this thread, bit by
    /// bit.
    ///
    /// What is wrong with a single object is told to its destination and stops no other. A failure of the storage as
    /// a whole is returned; then, and after a stop, destinations that were not finished hear nothing more.
    fn read_scattered<'a>(
        &self,
        wanted: &mut dyn Iterator<Item = Wanted<'a>>,
        options: ScatterOptions<'_>,
    ) -> Result<ScatterTotals> {
        crate::scatter::one_by_one(self, wanted, options)
    }

    /// Starts a new object.
    fn new_object(&self, options: &ObjectWriteOptions) -> Result<Box<dyn ObjectWriter>>;

    /// Writes many small objects at once, which engines do faster than one by one; ids in the same order.
    fn write_objects(&self, objects: &[WholeObject<'_>]) -> Result<Vec<Id>> {
        let write_one = |object: &WholeObject<'_>| {
            let mut writer = self.new_object(object.options)?;
            writer.write(object.data)?;
            writer.result()
        };
        objects.iter().map(write_one).collect()
    }

    /// Memory for data that is going to be written: what is written from such a buffer is not copied by engines that need
    /// not. Waits until there is some. Whoever waits must not hold another such buffer.
    fn take_buffer(&self, len: usize) -> Result<Buffer> {
        let mut buffer = BufferPool::new(0, None).take_anyway(len);
        let enough = buffer.extend(len).is_some();
        enough.then_some(buffer).ok_or_else(|| Error::new(ErrorKind::Other, "a buffer is too small"))
    }

    /// Adds to the memory that such buffers come from, and that data is in until it is stored, until the loan is
    /// dropped.
    fn lend(&self, memory: Reservation) -> Result<Loan> {
        Ok(BufferPool::new(0, None).lend(memory))
    }

    /// Writes many small objects that lie in one buffer, in order and apart from each other; ids in the same order.
    fn write_objects_of(&self, buffer: Buffer, objects: &[ObjectInBuffer<'_>]) -> Result<Vec<Id>> {
        self.write_objects(&whole_objects(buffer.as_ref(), objects)?)
    }

    /// Starts a new object that is so large that several threads shall work on it.
    fn new_object_by_regions(&self, options: &ObjectWriteOptions) -> Result<Box<dyn RegionWriter>> {
        Ok(Box::new(InOrder::new(self.new_object(options)?)))
    }

    /// Whether all that an object needs is there, as far as it takes no reading of its data to tell: asked before it is
    /// used again. An engine that does not know says yes.
    fn is_whole(&self, _id: &Id) -> Result<bool> {
        Ok(true)
    }

    /// Joins objects, in order, into one without copying their data.
    fn concatenate(&self, parts: &[Id]) -> Result<Id>;

    /// One manifest with its payload.
    fn manifest(&self, id: &Id) -> Result<Manifest>;

    /// All manifests that match, oldest first.
    fn find_manifests(&self, filter: &ManifestFilter) -> Result<Vec<ManifestMetadata>>;

    /// Saves a manifest; it is durable, and seen by others, after the next [`flush`](Repository::flush).
    fn put_manifest(&self, labels: BTreeMap<String, String>, payload: &[u8]) -> Result<Id>;

    /// Deletes a manifest; deleting an unknown one succeeds.
    fn delete_manifest(&self, id: &Id) -> Result<()>;

    /// Makes everything written so far durable, data before what refers to it.
    fn flush(&self) -> Result<()>;

    /// What was written so far, for progress reports; zeros if the engine does not count.
    fn written(&self) -> WrittenBytes {
        WrittenBytes::default()
    }

    /// What this engine can do.
    fn features(&self) -> Features;

    /// The time by the repository's clock, which may differ from the caller's.
    fn now(&self) -> Timestamp;

    /// Makes reads that wait for the storage, on whatever thread, fail soon with [`ErrorKind::Interrupted`], and all
    /// later ones at once: for whoever gives up and cannot wait for a storage that hangs. Scattered reads have a stop
    /// of their own.
    fn interrupt_reads(&self) {}

    /// The same for everything that writes, flushing included. What is not in the storage by then is lost, as after a
    /// crash.
    fn interrupt_writes(&self) {}

    /// Flushes (if writable) and closes.
    fn close(&self) -> Result<()>;
}

/// Reads one object. Several readers of one object are independent of each other.
pub trait ObjectReader: std::io::Read + std::io::Seek + Send {
    /// Logical size of the object.
    fn length(&self) -> u64;

    /// Reads at `offset` without moving the position; fills `buffer` unless the object ends.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
}

/// Writes one object: sequentially ([`crate::AccessMode::File`]) or at offsets ([`crate::AccessMode::Block`]).
///
/// Nothing is visible until [`result`](ObjectWriter::result) returned an id; dropping the writer forgets the object.
pub trait ObjectWriter: Send + Sync {
    /// Appends at the current position.
    fn write(&mut self, data: &[u8]) -> Result<()>;

    /// Moves the position forward to `offset`: what lies between is the parent's data (incremental) or zeros.
    fn seek(&mut self, offset: u64) -> Result<()>;

    /// Writes at `offset`, from any thread; ranges of different calls must not overlap.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let _ = (offset, data);
        Err(Error::new(ErrorKind::Unsupported, "this object was not opened for writing at offsets"))
    }

    /// The same for ranges of a buffer that begins at `offset`; they are in order and apart from each other.
    fn write_buffer_at(&self, offset: u64, buffer: Buffer, ranges: &[Range<usize>]) -> Result<()> {
        let outside = || Error::new(ErrorKind::InvalidInput, "a range is not in its buffer");
        ranges.iter().try_for_each(|range| {
            let data = buffer.as_ref().get(range.clone()).ok_or_else(outside)?;
            self.write_at(offset + range.start as u64, data)
        })
    }

    /// An id for what was written so far, and its length; usable once the repository was flushed. `None` if the engine
    /// has no such.
    fn checkpoint(&mut self) -> Result<Option<(Id, u64)>>;

    /// The same for an object that is written at offsets, while other threads go on writing: what is not stored yet is the
    /// parent's data or zeros.
    fn checkpoint_meanwhile(&self) -> Result<Option<(Id, u64)>> {
        Ok(None)
    }

    /// Waits for everything and gives the object's id.
    fn result(self: Box<Self>) -> Result<Id>;
}

/// Writes one object that several threads work on; the object is the same as if one [`ObjectWriter`] had been given all
/// of its bytes in order.
///
/// Threads take turns: one reads the region that follows what was cut so far and has it [cut](RegionWriter::cut), which
/// is fast; then the next one does, while the first [writes](RegionWriter::write) its pieces.
pub trait RegionWriter: Send + Sync {
    /// The longest piece. No region may be shorter, unless the object ends with it.
    fn longest_piece(&self) -> usize;

    /// Cuts the region that begins where the pieces that were cut before end. `is_end` says whether the object ends
    /// with it; if not, what is left behind its last piece begins the next region.
    fn cut(&self, region: &[u8], is_end: bool) -> Result<Pieces>;

    /// The same for `length` zeros that nobody has to look at, as far as they become pieces of their own; which may be
    /// none.
    fn cut_zeros(&self, length: u64) -> Result<Pieces>;

    /// Writes the pieces of a region, on any thread and in any order. Its memory becomes free when they are stored.
    fn write(&self, region: Buffer, pieces: &Pieces) -> Result<()>;

    /// An id for a prefix of what was written so far, and its length; usable once the repository was flushed. `None` if
    /// there is none.
    fn checkpoint(&self) -> Result<Option<(Id, u64)>>;

    /// The object's id. All of it must have been cut, and all pieces written.
    fn result(&self) -> Result<Id>;
}

/// Pieces of an object that follow each other, found by a [`RegionWriter`].
#[derive(Debug)]
pub struct Pieces {
    bytes: u64,
    note: Box<dyn Any + Send + Sync>,
}

impl Pieces {
    /// So many bytes, and what the engine has to know about them.
    pub fn new(bytes: u64, note: impl Any + Send + Sync) -> Self {
        Pieces { bytes, note: Box::new(note) }
    }

    /// How many bytes they have; the next region begins behind them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the engine noted.
    pub fn note<T: Any>(&self) -> Option<&T> {
        self.note.downcast_ref()
    }
}
