//! Objects one after another as one object, without touching their bytes.

use super::indirect::IndexWriter;
use super::runs::Run;
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
        let first = match parts {
            [] => return Err(Error::Invalid("nothing to concatenate".into())),
            [only] => return Ok(*only),
            [first, ..] => *first,
        };
        let (objects, parts) = (self.clone(), parts.to_vec());
        let write = move || {
            let mut index = IndexWriter::new(&objects, Prefix::NONE, metadata_compression);
            // Of one part at a time it is in memory what it consists of.
            for part in parts {
                let layout = objects.runtime.block_on(ObjectLayout::load(&objects, part))?;
                // Parts without bytes would be entries without bytes, which are not allowed.
                for entry in layout.entries().iter().filter(|entry| entry.length > 0) {
                    index.push(Run { count: 1, length: entry.length, object: entry.object() })?;
                }
            }
            match index.end() {
                0 => Ok(first),
                _ => index.finish(),
            }
        };
        blocking(write).await?
    }
}
