//! What has been read and may be wanted again soon: files that are being read, and listings of small directories. Both
//! only from memory that nobody else needs.

use super::nodes::Thing;
use anyhow::{Context, Result};
use lifeboat_budget::{Budget, Reservation};
use lifeboat_kopia::snapshot::{DirEntries, DirEntry};
use lifeboat_repository::{Id, ObjectReader, Repository};
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files that stay open between two reads.
const READERS: usize = 16;
/// What an open file holds at most: the chunk that was read last.
const READER_MEMORY: u64 = 8 << 20;
/// Reads that are no farther than this from where the last one ended go on with it: the kernel asks for several at once,
/// and they come in any order.
const NEAR: u64 = 1 << 20;
/// Directories whose entries are kept.
const DIRECTORIES: usize = 8;
/// The longest listing that is kept; a longer one is read for each name.
const LISTING: u64 = 512 << 10;
/// How much larger entries are in memory than in a listing.
const GROWTH: u64 = 4;

/// Entries of a directory, as they come.
pub type Children = Box<dyn Iterator<Item = Result<(Vec<u8>, Arc<Thing>)>> + Send>;

/// The bytes behind the entries.
pub struct Data {
    repository: Arc<dyn Repository>,
    budget: Budget,
    readers: Mutex<Recent<Mutex<Reader>>>,
    directories: Mutex<Recent<HashMap<Vec<u8>, Arc<Thing>>>>,
}

impl Data {
    /// Nothing is open.
    pub fn new(repository: Arc<dyn Repository>, budget: Budget) -> Data {
        let affordable = usize::try_from(budget.total() / 2 / READER_MEMORY).unwrap_or(READERS);
        let readers = Recent::new(affordable.clamp(1, READERS));
        Data {
            repository,
            budget,
            readers: Mutex::new(readers),
            directories: Mutex::new(Recent::new(DIRECTORIES)),
        }
    }

    /// Reads a file that has this number, as much as `buffer` holds or there is.
    pub fn read(&self, number: u64, entry: &DirEntry, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let kept = lock(&self.readers).get(number);
        let reader = match kept {
            Some(reader) => reader,
            None => {
                let reader = Reader { object: self.open(entry)?, expected: 0 };
                let size = reader.object.length().min(READER_MEMORY);
                let Some(memory) = self.budget.try_reserve(size) else {
                    return Ok(reader.object.read_at(offset, buffer)?);
                };
                lock(&self.readers).keep(number, Arc::new(Mutex::new(reader)), memory)
            }
        };
        lock(&reader).read(offset, buffer)
    }

    /// All bytes of a small object.
    pub fn read_small(&self, entry: &DirEntry, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(entry)?.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The entries of a directory. Those whose names cannot be names of files are left out.
    pub fn children(&self, directory: &Thing) -> Result<Children> {
        match directory {
            Thing::Folder(things) => Ok(Box::new(things.clone().into_iter().map(Ok))),
            Thing::Entry { entry, snapshot } => {
                let (listing, snapshot) =
                    (DirEntries::new(entry.object.clone(), self.open(entry)?), *snapshot);
                Ok(Box::new(listing.filter_map(move |entry| match entry {
                    Ok(entry) => {
                        let name = entry.safe_name()?.to_vec();
                        Some(Ok((name, Arc::new(Thing::Entry { entry, snapshot }))))
                    }
                    Err(error) => Some(Err(error.into())),
                })))
            }
        }
    }

    /// What has this name in the directory with this number.
    pub fn child(&self, number: u64, directory: &Thing, name: &[u8]) -> Result<Option<Arc<Thing>>> {
        let entry = match directory {
            Thing::Folder(things) => return Ok(things.get(name).cloned()),
            Thing::Entry { entry, .. } => entry,
        };
        if let Some(entries) = lock(&self.directories).get(number) {
            return Ok(entries.get(name).cloned());
        }
        let length = self.open(entry)?.length();
        let memory =
            if length <= LISTING { self.budget.try_reserve(length.saturating_mul(GROWTH)) } else { None };
        let mut children = self.children(directory)?;
        match memory {
            Some(memory) => {
                let entries = Arc::new(children.collect::<Result<HashMap<_, _>>>()?);
                let entries = lock(&self.directories).keep(number, entries, memory);
                Ok(entries.get(name).cloned())
            }
            None => {
                let found = children.find(|child| child.as_ref().map_or(true, |(found, _)| found == name));
                Ok(found.transpose()?.map(|(_, thing)| thing))
            }
        }
    }

    fn open(&self, entry: &DirEntry) -> Result<Box<dyn ObjectReader>> {
        let id = Id::new(entry.object.clone());
        self.repository.open_object(&id).with_context(|| format!("cannot open object {id}"))
    }
}

/// A file that is being read.
struct Reader {
    object: Box<dyn ObjectReader>,
    /// Where the next read will begin if they follow each other.
    expected: u64,
}

impl Reader {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        if offset.abs_diff(self.expected) <= NEAR {
            // In order: what follows is fetched ahead.
            self.object.seek(SeekFrom::Start(offset))?;
            while done < buffer.len() {
                match self.object.read(&mut buffer[done..])? {
                    0 => break,
                    count => done += count,
                }
            }
        } else {
            done = self.object.read_at(offset, buffer)?;
        }
        self.expected = offset + done as u64;
        Ok(done)
    }
}

/// The things that were used last, by number, with the memory that they take.
struct Recent<T> {
    things: VecDeque<(u64, Arc<T>, Reservation)>,
    most: usize,
}

impl<T> Recent<T> {
    fn new(most: usize) -> Recent<T> {
        Recent { things: VecDeque::new(), most }
    }

    fn get(&mut self, number: u64) -> Option<Arc<T>> {
        let place = self.things.iter().position(|(kept, ..)| *kept == number)?;
        let used = self.things.remove(place)?;
        let thing = used.1.clone();
        self.things.push_front(used);
        Some(thing)
    }

    /// Keeps it, unless somebody else was faster; the one that is kept.
    fn keep(&mut self, number: u64, thing: Arc<T>, memory: Reservation) -> Arc<T> {
        if let Some(there) = self.get(number) {
            return there;
        }
        self.things.truncate(self.most - 1);
        self.things.push_front((number, thing.clone(), memory));
        thing
    }
}

/// Nothing that is behind these locks is broken by a thread that panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_with_its_memory() {
        let budget = Budget::new(100);
        let mut recent = Recent::new(2);
        for number in [1, 2] {
            recent.keep(number, Arc::new(number), budget.try_reserve(10).unwrap());
        }
        assert_eq!(recent.get(1).as_deref(), Some(&1));
        recent.keep(3, Arc::new(3), budget.try_reserve(10).unwrap());
        assert!(recent.get(2).is_none() && recent.get(1).is_some() && recent.get(3).is_some());
        assert_eq!(budget.used(), 20);
    }
}
