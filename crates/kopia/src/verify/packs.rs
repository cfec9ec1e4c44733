//! Which packs are there.

use crate::Result;
use crate::pack::PackKind;
use futures::TryStreamExt;
use lifeboat_blobs::BlobStore;
use lifeboat_index::IndexEntry;
use std::collections::HashMap;

/// The packs in a store with their sizes, as one listing shows them.
#[derive(Debug, Default)]
pub struct PackList {
    sizes: HashMap<Box<str>, u64>,
}

impl PackList {
    /// Lists the packs.
    pub async fn load(store: &dyn BlobStore) -> Result<Self> {
        let mut list = PackList::default();
        for kind in PackKind::ALL {
            let mut blobs = store.list(kind.blob_prefix());
            while let Some(blob) = blobs.try_next().await? {
                list.sizes.insert(blob.id.as_str().into(), blob.size);
            }
        }
        Ok(list)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Whether the bytes that `entry` speaks of can be there; a text says why not.
    pub fn check(&self, entry: &IndexEntry) -> std::result::Result<(), String> {
        let end = u64::from(entry.pack_offset) + u64::from(entry.packed_length);
        match self.sizes.get(entry.pack.as_str()) {
            None => Err("the pack is missing".into()),
            Some(size) if *size < end => Err(format!("the pack has {size} bytes, the content ends at {end}")),
            Some(_) => Ok(()),
        }
    }
}
