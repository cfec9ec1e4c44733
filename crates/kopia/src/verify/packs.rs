//! Which packs are there.

use crate::Result;
use crate::pack::PackKind;
use futures::TryStreamExt;
use lifeboat_blobs::{BlobId, BlobStore};
use lifeboat_index::IndexEntry;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The packs in a store with their sizes, as a listing shows them. A pack that it does not show as it should be is looked up by
/// its name before that counts: a listing may be cut short.
#[derive(Debug)]
pub struct PackList {
    store: Arc<dyn BlobStore>,
    sizes: HashMap<Box<str>, u64>,
    /// Packs that were looked up; those that are not there have no size.
    looked_up: Mutex<HashMap<Box<str>, Option<u64>>>,
}

impl PackList {
    /// Lists the packs.
    pub async fn load(store: &Arc<dyn BlobStore>) -> Result<Self> {
        let mut sizes = HashMap::new();
        for kind in PackKind::ALL {
            let mut blobs = store.list(kind.blob_prefix());
            while let Some(blob) = blobs.try_next().await? {
                sizes.insert(blob.id.as_str().into(), blob.size);
            }
        }
        Ok(PackList { store: store.clone(), sizes, looked_up: Mutex::default() })
    }

    /// Whether the bytes that `entry` speaks of can be there; a text says why not.
    pub async fn check(&self, entry: &IndexEntry) -> Result<std::result::Result<(), String>> {
        let end = u64::from(entry.pack_offset) + u64::from(entry.packed_length);
        let pack = entry.pack.as_str();
        if self.sizes.get(pack).is_some_and(|size| *size >= end) {
            return Ok(Ok(()));
        }
        Ok(match self.look_up(pack).await? {
            None => Err("the pack is missing".into()),
            Some(size) if size < end => Err(format!("the pack has {size} bytes, the content ends at {end}")),
            Some(_) => Ok(()),
        })
    }

    /// The size of a pack by its name, asked for once.
    async fn look_up(&self, pack: &str) -> Result<Option<u64>> {
        let known = self.looked_up.lock().get(pack).copied();
        if let Some(size) = known {
            return Ok(size);
        }
        let size = match self.store.head(&BlobId::new(pack)?).await {
            Ok(blob) => Some(blob.size),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        self.looked_up.lock().insert(pack.into(), size);
        Ok(size)
    }
}
