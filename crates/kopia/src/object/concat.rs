//! Objects one after another as one object, without touching their bytes.

use super::indirect::{self, Entry};
use super::{ObjectId, ObjectLayout, Objects};
use crate::worker::blocking;
use crate::{Error, Result};
use lifeboat_index::Prefix;
use lifeboat_primitives::compress::Compressor;

impl Objects {
    /// The object that holds the bytes of `parts` one after another. A single part is returned as it is.
    pub async fn concatenate(
        &self,
        parts: &[ObjectId],
        metadata_compression: Option<Compressor>,
    ) -> Result<ObjectId> {
        match parts {
            [] => return Err(Error::Invalid("nothing to concatenate".into())),
            [only] => return Ok(*only),
            _ => {}
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut end = 0;
        for part in parts {
            let layout = ObjectLayout::load(self, *part).await?;
            // Parts without bytes would be entries without bytes, which are not allowed.
            for entry in layout.entries().iter().filter(|entry| entry.length > 0) {
                entries.push(Entry {
                    start: end + entry.start,
                    length: entry.length,
                    object: entry.object(),
                });
            }
            end += layout.len();
        }
        let (objects, first) = (self.clone(), parts[0]);
        let write = move || match entries.is_empty() {
            true => Ok(first),
            false => indirect::write(&objects, &entries, Prefix::NONE, metadata_compression),
        };
        blocking(write).await?
    }
}
