//! Manifests: small JSON documents with labels, kept in contents with the prefix `m` and merged by id.
//!
//! Writers never coordinate. Each flush adds one content with new entries and tombstones; a reader merges all live
//! `m` contents, and for each id the entry with the latest `modified` counts.

mod codec;
mod store;

pub use codec::MAX_UNPACKED;
pub use store::{COMPACTION_THRESHOLD, Damage, Manifest, ManifestStore};

use crate::Result;
use async_trait::async_trait;
use bytes::Bytes;
use lifeboat_index::ContentId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Labels of a manifest; `type` says what kind it is and is never empty.
pub type Labels = BTreeMap<String, String>;

/// The label that every manifest has.
pub const TYPE_LABEL: &str = "type";

/// The prefix of contents that hold manifests.
pub const CONTENT_PREFIX: char = 'm';

/// The name of a manifest: 32 hexadecimal digits as Kopia makes them, any text when read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ManifestId(String);

impl ManifestId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ManifestId {
    fn from(id: String) -> Self {
        ManifestId(id)
    }
}

impl From<&str> for ManifestId {
    fn from(id: &str) -> Self {
        ManifestId(id.to_owned())
    }
}

impl fmt::Display for ManifestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ManifestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What manifests need of the layer of contents.
#[async_trait]
pub trait ManifestContents: fmt::Debug + Send + Sync {
    /// The ids of all live (not deleted) contents with the prefix `m`, own unflushed ones included, as the index
    /// stands now.
    async fn list(&self) -> Result<Vec<ContentId>>;

    /// The bytes of a content. [`Error::ContentNotFound`](crate::Error::ContentNotFound) if it is not in the index
    /// any more.
    async fn read(&self, id: &ContentId) -> Result<Bytes>;

    /// Writes `data` as a content with the prefix `m`, asking for compression with `zstd-fastest`, and marks the
    /// `superseded` contents as deleted (except the one just written, should it be among them).
    ///
    /// All of it becomes visible to others in **one** index blob: a reader that saw only the deletions would see
    /// manifests vanish.
    async fn write(&self, data: Bytes, superseded: &[ContentId]) -> Result<ContentId>;
}

#[cfg(test)]
mod tests;
