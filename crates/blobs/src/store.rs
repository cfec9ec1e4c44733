//! The trait and the values that pass through it.

use crate::{Error, ErrorKind, Operation, Result};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jiff::Timestamp;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The name of a blob: not empty, no control characters. Cheap to clone.
///
/// Object stores take any such name; the filesystem store refuses names that would leave its folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(Arc<str>);

impl BlobId {
    /// Checks `name` and makes it a blob name.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        if name.is_empty() || name.len() > 1000 || name.chars().any(char::is_control) {
            let detail = format!("{name:?} is not a valid blob name");
            return Err(Error::new(ErrorKind::Configuration, Operation::Open, "", "the store", detail));
        }
        Ok(BlobId(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// What a store knows about a blob without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobMetadata {
    /// Its name.
    pub id: BlobId,
    /// Its size in bytes.
    pub size: u64,
    /// When the **store** says it was written last; never this machine's clock.
    pub modified: Timestamp,
}

impl std::borrow::Borrow<str> for BlobId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The bytes of a put as pieces that are sent one after another, so that nobody has to join them first.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    pieces: Vec<Bytes>,
    len: u64,
}

impl Payload {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len() as u64;
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The pieces joined; free of copying if there is only one.
    pub fn into_bytes(mut self) -> Bytes {
        match self.pieces.len() {
            0 => Bytes::new(),
            1 => self.pieces.remove(0),
            _ => self.pieces.concat().into(),
        }
    }
}

impl From<Bytes> for Payload {
    fn from(piece: Bytes) -> Self {
        let mut payload = Payload::default();
        payload.push(piece);
        payload
    }
}

impl From<Vec<u8>> for Payload {
    fn from(piece: Vec<u8>) -> Self {
        Bytes::from(piece).into()
    }
}

impl From<&'static [u8]> for Payload {
    fn from(piece: &'static [u8]) -> Self {
        Bytes::from_static(piece).into()
    }
}

/// Whether a put may replace what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PutMode {
    /// Replace the blob if it exists.
    #[default]
    Overwrite,
    /// Fail with [`ErrorKind::AlreadyExists`] if the name is taken; decided by the store, not by looking first.
    CreateOnly,
}

/// How strict an object lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetentionMode {
    /// Principals with a special permission may lift it (S3 `GOVERNANCE`, Azure `Unlocked`).
    Governance,
    /// Nobody may lift or shorten it (S3 `COMPLIANCE`, Azure `Locked`).
    Compliance,
}

/// An object lock to be set on a put: nobody may change or delete the blob for `period` from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How strict.
    pub mode: RetentionMode,
    /// For how long, counted from the moment of the call.
    pub period: Duration,
}

/// How a blob is to be written.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Whether an existing blob may be replaced.
    pub mode: PutMode,
    /// An object lock; a store that cannot set one fails with [`ErrorKind::Unsupported`] and writes nothing.
    pub retention: Option<Retention>,
    /// The time that the blob gets instead of now; a store that cannot set one fails with [`ErrorKind::Unsupported`] and
    /// writes nothing.
    pub modified: Option<Timestamp>,
}

/// Metadata of blobs as a listing delivers them.
pub type BlobStream<'a> = BoxStream<'a, Result<BlobMetadata>>;

/// A place that keeps blobs.
///
/// Every implementation guarantees, and the conformance suite checks:
///
/// * **Atomic put.** A reader sees the old blob, no blob or the whole new one, never a part. A put that failed
///   left either nothing or the whole blob. When it returns `Ok`, the blob survives a crash of this machine
///   (filesystem) or of the store as far as the store promises (object stores).
/// * **Create-only put.** Of several concurrent [`PutMode::CreateOnly`] puts of one name exactly one succeeds.
/// * **Read after write.** A get, head or list that starts after a put or delete returned sees its effect.
/// * **Server timestamps.** [`BlobMetadata::modified`] comes from the store and is accurate to a second or better; it is the one that
///   [`PutOptions::modified`] wants, or such a put is refused.
/// * **Ranged read.** [`get_range`](BlobStore::get_range) returns exactly the bytes asked for, or
///   [`ErrorKind::InvalidRange`].
/// * **Streaming list.** [`list`](BlobStore::list) delivers every blob whose name starts with the prefix (a plain
///   string prefix, no folders) and that exists for the whole duration of the listing exactly once, in no promised
///   order, holding at most one page in memory. A listing that breaks ends with an error, never silently early;
///   after a [`ErrorKind::Transient`] error it may be polled again and then goes on where it broke, or ends.
/// * **Idempotent delete.** Deleting what does not exist succeeds.
/// * **Retention.** A lock is in force as soon as the put returned; deleting a locked blob fails with
///   [`ErrorKind::Locked`] or hides it while its data stays recoverable (versioned buckets).
///
/// Cancelling (dropping) a returned future leaves the store as if the call had failed.
#[async_trait]
pub trait BlobStore: fmt::Debug + Send + Sync {
    /// A short description for messages, free of secrets: `s3://bucket/prefix`, `folder /mnt/backups`.
    fn describe(&self) -> String;

    /// Writes a blob.
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()>;

    /// Reads a whole blob.
    async fn get(&self, id: &BlobId) -> Result<Bytes>;

    /// Reads `range` of a blob; the range must be non-empty and lie inside the blob.
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes>;

    /// Size and timestamp of a blob.
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata>;

    /// All blobs whose names start with `prefix`.
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a>;

    /// Removes a blob.
    async fn delete(&self, id: &BlobId) -> Result<()>;

    /// Sets or extends the object lock of an existing blob; never shortens it.
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        let _ = retention;
        let detail = "this kind of store has no object lock";
        Err(Error::new(ErrorKind::Unsupported, Operation::Retain, id, self.describe(), detail))
    }
}

/// Fails unless `range` is non-empty and lies inside a blob of `size` bytes.
pub(crate) fn check_range(
    range: &Range<u64>,
    size: u64,
    id: &BlobId,
    store: impl FnOnce() -> String,
) -> Result<()> {
    if range.start < range.end && range.end <= size {
        return Ok(());
    }
    let detail = format!("bytes {}..{} are not inside its {size} bytes", range.start, range.end);
    Err(Error::new(ErrorKind::InvalidRange, Operation::Get, id, store(), detail))
}

#[async_trait]
impl<S: BlobStore + ?Sized> BlobStore for Arc<S> {
    fn describe(&self) -> String {
        (**self).describe()
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        (**self).put(id, payload, options).await
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        (**self).get(id).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        (**self).get_range(id, range).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        (**self).head(id).await
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        (**self).list(prefix)
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        (**self).delete(id).await
    }
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        (**self).extend_retention(id, retention).await
    }
}
