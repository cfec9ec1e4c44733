//! Whether an object is still there.

use super::indirect::{Entry, visit_object};
use super::layout::MAX_DEPTH;
use super::{ObjectId, Objects};
use crate::worker::blocking;
use crate::{Error, Result};
use lifeboat_index::ContentId;

impl Objects {
    /// Whether everything that an object needs is there, as far as the index and one listing of the packs tell: asked
    /// before an object of an earlier snapshot is used again without its data being read.
    ///
    /// Its indexes are gone through part by part, so that the index of a huge object takes no memory. What keeps them
    /// from being read is an error, unless they are missing or damaged themselves.
    pub async fn is_whole(&self, id: ObjectId) -> Result<bool> {
        let objects = self.clone();
        match blocking(move || objects.look_through(id, None, 0)).await? {
            Ok(_) => Ok(true),
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Looks for all contents of an object; what is missing is an error. Returns its length, if `expected` tells it or it
    /// has an index.
    fn look_through(&self, id: ObjectId, expected: Option<u64>, depth: usize) -> Result<u64> {
        let damaged = |reason: &str| Error::DamagedObject { id: id.to_string(), reason: reason.to_owned() };
        if depth > MAX_DEPTH {
            return Err(damaged("its indexes are nested too deeply"));
        }
        let Some(index) = id.index_object() else {
            self.look_for(&id.content())?;
            return Ok(expected.unwrap_or(0));
        };
        let reader = self.runtime.block_on(self.open(index))?;
        let layout = reader.layout();
        layout.index_contents().iter().try_for_each(|content| self.look_for(content))?;
        layout.entries().iter().try_for_each(|part| self.look_for(&part.content))?;
        let mut end = 0;
        visit_object(id, reader, self.runtime.clone(), &mut |Entry { start, length, object }| {
            end = start + length;
            match self.look_through(object, Some(length), depth + 1)? == length {
                true => Ok(()),
                false => Err(damaged("a part of it does not have the length that its index says")),
            }
        })?;
        Ok(end)
    }

    fn look_for(&self, content: &ContentId) -> Result<()> {
        match self.runtime.block_on(self.contents.is_available(content))? {
            true => Ok(()),
            false => Err(Error::ContentNotFound { id: *content }),
        }
    }
}
