//! Kopia's index encodings, versions 1 and 2: one index blob's plaintext to entries and back.

mod encode;
mod reader;

pub use encode::{IndexVersion, encode};
pub(crate) use encode::{RecordSource, encode_records};
pub(crate) use reader::PackRef;
pub use reader::{Entries, IndexReader};

use crate::{ContentId, InvalidContentId};

/// Length of the fixed part at the start of a version 1 index.
const V1_HEADER_LEN: usize = 8;
/// Length of an entry (without its key) in version 1.
const V1_ENTRY_LEN: usize = 20;
/// Length of the fixed part at the start of a version 2 index.
const V2_HEADER_LEN: usize = 17;
/// Length of an entry (without its key) in version 2: the bytes always there, and the optional ones.
const V2_ENTRY_LEN: std::ops::RangeInclusive<usize> = 16..=19;
/// One line of the pack table of version 2: name length and offset.
const V2_PACK_LEN: usize = 5;
/// One line of the format table of version 2: compression, format version, key id.
const V2_FORMAT_LEN: usize = 6;
/// The key size with which old writers marked an index without entries.
const EMPTY_KEY_SIZE: u8 = 255;
/// The bit of the pack offset that marks a deletion.
const DELETED: u32 = 1 << 31;

/// Why bytes are not an index, or entries cannot be written as one.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The header is not that of an index we know.
    #[error("not a usable index: {0}")]
    Header(String),
    /// A table or an entry reaches beyond the end.
    #[error("the index is cut short: {what} ends at byte {end} of {len}")]
    Truncated {
        /// What does not fit.
        what: &'static str,
        /// Where it would end.
        end: u64,
        /// How many bytes there are.
        len: u64,
    },
    /// An entry's key is not a content id.
    #[error("entry {entry} of the index: {source}")]
    Id {
        /// Which entry.
        entry: u32,
        /// What is wrong with it.
        source: InvalidContentId,
    },
    /// An entry says something impossible.
    #[error("entry {entry} of the index {what}")]
    Entry {
        /// Which entry.
        entry: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Entries are not in strictly ascending order of their ids.
    #[error("the entry of content {0} is not above the one before it")]
    Order(ContentId),
    /// A format names an encryption key other than the repository's.
    #[error("encryption key id {0} is not supported; a newer version may be able to read this repository")]
    KeyId(u8),
    /// There is nothing to write; an empty index is never written.
    #[error("an index needs at least one entry")]
    Empty,
    /// An entry does not fit the encoding.
    #[error("content {id} cannot be written to a version {version} index: {what}")]
    Unrepresentable {
        /// Which content.
        id: ContentId,
        /// The version of the encoding.
        version: u8,
        /// What does not fit.
        what: &'static str,
    },
    /// There are more packs, formats or bytes than the encoding can count.
    #[error("too many {0} for one index; split it into more shards")]
    TooMany(&'static str),
    /// The second pass over the entries met a pack that the first did not.
    #[error("the entries changed while the index was being written")]
    Changed,
    /// Writing the output, or reading the source of the entries, failed.
    #[error("cannot write the index")]
    Write(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<std::io::Error> for CodecError {
    fn from(error: std::io::Error) -> Self {
        CodecError::Write(error.into())
    }
}
