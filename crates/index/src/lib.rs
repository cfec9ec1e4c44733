//! The content index: Kopia's index encodings, and one sorted, memory-mapped catalogue of all contents.
//!
//! * [`codec`] reads and writes the plaintext of one index blob, versions 1 and 2.
//! * [`IndexBuilder`] collects the entries of a flush and splits them into shards.
//! * [`Catalog`] merges all active index blobs into local files and hands out [`Snapshot`]s that answer look-ups and
//!   scans straight from them, without a map of all contents in memory.
//!
//! The crate knows nothing of storage or encryption: plaintext bytes in, plaintext bytes out.

#![deny(unsafe_code)]

mod builder;
pub mod catalog;
pub mod codec;
mod entry;
mod error;
mod id;
mod map;

pub use builder::{IndexBuilder, MAX_SHARD_ENTRIES, shard_count, shard_of};
pub use catalog::{
    Catalog, CatalogOptions, Contents, Deleted, IdRange, IndexBlobName, IndexSource, PackUsage, Since,
    Snapshot,
};
pub use codec::{CodecError, IndexReader, IndexVersion};
pub use entry::{IndexEntry, MAX_PACK_NAME_LEN, PackName, supersedes};
pub use error::{Error, LoadError};
pub use id::{ContentId, InvalidContentId, MAX_HASH_LEN, Prefix};
