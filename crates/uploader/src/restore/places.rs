//! Where files with several names are, kept in files without a name: of some trees there are millions, whose other names
//! come late or, because they are not restored, never.
//!
//! One file has the names, each with the place of the directory that it is in; the other is a hash table of the groups.
//! Pages of both are the kernel's to keep or not. What is named is reached from the open target one step at a time and
//! never through a link, like everything else.

use super::target::{Directory, SAFE};
use crate::io::{read_at, write_at};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};
use std::ffi::{CStr, CString};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What the names of one file have in common: file system, number of the file, kind of file.
pub(super) type Key = (u64, u64, u8);

/// A place of the table: file system, number, place of the name, names that may still come and kind of file.
const SLOT: u64 = 32;
/// How many places the table has at first.
const SLOTS: u64 = 1 << 14;
/// Before a name: the place of its directory and its length.
const HEAD: usize = 10;
/// Longer names are on no file system.
const MOST_NAME: usize = 1024;
/// The place of what could not be restored.
const LOST: u64 = u64::MAX;
/// What the place of a name is counted from: 0 is no place, 1 that of the target itself.
const FIRST: u64 = 2;

/// Files by their groups.
pub(super) struct Places {
    names: OwnedFd,
    /// How long the file of names is.
    end: u64,
    table: OwnedFd,
    slots: u64,
    used: u64,
    hasher: RandomState,
    /// The directory that was opened last, and its place.
    last: Option<(u64, Arc<OwnedFd>)>,
}

/// What is known of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    slot: u64,
    key: Key,
    place: u64,
    left: u32,
}

impl Found {
    /// Whether it could not be restored.
    pub(super) fn is_lost(&self) -> bool {
        self.place == LOST
    }
}

/// A file that is gone when it is closed, beside what is restored or else wherever such files go.
fn scratch(target: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(target, c".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(file),
        Err(_) => match tempfile::tempfile() {
            Ok(file) => Ok(file.into()),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        },
    }
}

impl Places {
    pub(super) fn new(target: &OwnedFd) -> Result<Self> {
        let (names, table) = (scratch(target)?, scratch(target)?);
        rustix::fs::ftruncate(&table, SLOTS * SLOT)?;
        let hasher = RandomState::new();
        Ok(Places { names, end: FIRST, table, slots: SLOTS, used: 0, hasher, last: None })
    }

    /// Remembers where a file is, or that it is lost if it is nowhere, and how many names may still come.
    pub(super) fn insert(
        &mut self,
        target: &OwnedFd,
        key: Key,
        at: Option<(&Directory, &CStr)>,
        left: u64,
    ) -> Result<()> {
        if self.used * 2 >= self.slots {
            self.grow(target)?;
        }
        let place = match at {
            None => LOST,
            Some((directory, name)) => {
                let directory = self.place_of(directory)?;
                self.add_name(directory, name)?
            }
        };
        let slot = self.slot_of(key)?;
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        write_slot(&self.table, &Found { slot: slot.slot, key, place, left })?;
        self.used += u64::from(slot.place == 0);
        Ok(())
    }

    /// Looks a group up, of which another name has come.
    pub(super) fn take(&mut self, key: Key) -> Result<Option<Found>> {
        let found = self.slot_of(key)?;
        if found.place == 0 || found.left == 0 {
            return Ok(None);
        }
        write_slot(&self.table, &Found { left: found.left - 1, ..found })?;
        Ok(Some(found))
    }

    /// Opens the directory of a file in `target`, and tells its name there.
    pub(super) fn open(&mut self, target: &OwnedFd, found: &Found) -> Result<(Arc<OwnedFd>, CString)> {
        let (directory, name) = self.read_name(found.place)?;
        if let Some((last, fd)) = &self.last
            && *last == directory
        {
            return Ok((fd.clone(), name));
        }
        let mut at = directory;
        let mut steps = Vec::new();
        while at >= FIRST {
            let (above, name) = self.read_name(at)?;
            // Whoever is above was written before.
            if above >= at {
                return Err(Errno::IO);
            }
            steps.push(name);
            at = above;
        }
        let open = |fd: &OwnedFd, name: &CStr| {
            rustix::fs::openat(fd, name, OFlags::RDONLY | OFlags::DIRECTORY | SAFE, Mode::empty())
        };
        let mut fd = open(target, c".")?;
        for name in steps.iter().rev() {
            fd = open(&fd, name)?;
        }
        let fd = Arc::new(fd);
        self.last = Some((directory, fd.clone()));
        Ok((fd, name))
    }

    /// The place of a directory; its name, and those of the directories above it, are written if they were not.
    fn place_of(&mut self, directory: &Directory) -> Result<u64> {
        let mut unknown = Vec::new();
        let mut at = directory;
        let mut place = loop {
            match (at.noted(), at.place()) {
                (0, Some((parent, name))) => {
                    unknown.push((at, name));
                    at = parent;
                }
                (0, None) => break FIRST - 1,
                (place, _) => break place,
            }
        };
        while let Some((directory, name)) = unknown.pop() {
            place = self.add_name(place, name)?;
            directory.note(place);
        }
        Ok(place)
    }

    fn add_name(&mut self, directory: u64, name: &CStr) -> Result<u64> {
        let name = name.to_bytes();
        let length = name.len().min(MOST_NAME + 1) as u16;
        if usize::from(length) > MOST_NAME {
            return Err(Errno::NAMETOOLONG);
        }
        let mut record = Vec::with_capacity(HEAD + name.len());
        record.extend_from_slice(&directory.to_le_bytes());
        record.extend_from_slice(&length.to_le_bytes());
        record.extend_from_slice(name);
        let place = self.end;
        write_at(&self.names, &record, place)?;
        self.end += record.len() as u64;
        Ok(place)
    }

    fn read_name(&self, place: u64) -> Result<(u64, CString)> {
        let mut record = [0; HEAD + MOST_NAME];
        let length = read_at(&self.names, &mut record, place)?;
        let (head, rest) = record[..length].split_first_chunk::<HEAD>().ok_or(Errno::IO)?;
        let [d0, d1, d2, d3, d4, d5, d6, d7, l0, l1] = *head;
        let directory = u64::from_le_bytes([d0, d1, d2, d3, d4, d5, d6, d7]);
        let name = rest.get(..usize::from(u16::from_le_bytes([l0, l1]))).ok_or(Errno::IO)?;
        Ok((directory, CString::new(name).map_err(|_| Errno::IO)?))
    }

    /// The place of a group in the table: its own, or the empty one that it may have.
    fn slot_of(&self, key: Key) -> Result<Found> {
        let mut slot = self.hasher.hash_one(key) % self.slots;
        for _ in 0..self.slots {
            let found = read_slot(&self.table, slot)?;
            if found.place == 0 || found.key == key {
                return Ok(Found { key, ..found });
            }
            slot = (slot + 1) % self.slots;
        }
        Err(Errno::IO)
    }

    /// Moves to a table of twice the size, without the groups whose names have all come.
    fn grow(&mut self, target: &OwnedFd) -> Result<()> {
        let table = scratch(target)?;
        rustix::fs::ftruncate(&table, self.slots * 2 * SLOT)?;
        let (before, slots) = (std::mem::replace(&mut self.table, table), self.slots);
        (self.slots, self.used) = (slots * 2, 0);
        for slot in 0..slots {
            let found = read_slot(&before, slot)?;
            if found.place != 0 && found.left > 0 {
                let slot = self.slot_of(found.key)?.slot;
                write_slot(&self.table, &Found { slot, ..found })?;
                self.used += 1;
            }
        }
        Ok(())
    }
}

fn read_slot(table: &OwnedFd, slot: u64) -> Result<Found> {
    let mut bytes = [0; SLOT as usize];
    if read_at(table, &mut bytes, slot * SLOT)? < bytes.len() {
        return Err(Errno::IO);
    }
    let (words, _) = bytes.as_chunks::<8>();
    let word = |number: usize| words.get(number).map_or(0, |word| u64::from_le_bytes(*word));
    let (left, kind) = (word(3) as u32, (word(3) >> 32) as u8);
    Ok(Found { slot, key: (word(0), word(1), kind), place: word(2), left })
}

fn write_slot(table: &OwnedFd, found: &Found) -> Result<()> {
    let (file_system, number, kind) = found.key;
    let words = [file_system, number, found.place, u64::from(kind) << 32 | u64::from(found.left)];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    write_at(table, &bytes, found.slot * SLOT)
}
