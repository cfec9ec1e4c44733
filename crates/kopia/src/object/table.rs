//! The objects of the pieces of one large object, in little more memory than their hashes take: there are millions.

use super::{ObjectId, Objects};
use crate::{Error, Result};
use lifeboat_index::{ContentId, Prefix};
use std::collections::BTreeMap;

/// So many ids are kept together: few enough that pieces which lie far from each other do not take much, so many that
/// a page is next to nothing for its ids.
const PAGE: u64 = 64;
/// The first byte of a slot is that of the prefix, or this if there is none: zero is an empty slot.
const NO_PREFIX: u8 = 1;
/// Added to it if the object layer compressed the piece. Prefixes are ASCII.
const COMPRESSED: u8 = 0x80;

/// Ids of pieces by their numbers. A piece is a content of the repository that it is written to, and all hashes of a
/// repository have one length: so an id is a byte and the hash.
#[derive(Debug)]
pub(super) struct IdTable {
    hash_len: usize,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl IdTable {
    /// A table without ids.
    pub(super) fn new(objects: &Objects) -> Self {
        Self::of_hashes(objects.contents().sealer().hasher().output_len())
    }

    fn of_hashes(hash_len: usize) -> Self {
        IdTable { hash_len, pages: BTreeMap::new() }
    }

    /// Where the slot of a piece is: its page, and the place in there.
    fn place(&self, number: u64) -> (u64, usize) {
        (number / PAGE, (number % PAGE) as usize * self.slot_len())
    }

    fn slot_len(&self) -> usize {
        1 + self.hash_len
    }

    /// Puts the id of a piece in the place of what was there. An id that is none of a piece is an error.
    pub(super) fn set(&mut self, number: u64, object: ObjectId) -> Result<()> {
        let content = object.content();
        if object.levels() > 0 || content.hash().len() != self.hash_len {
            return Err(Error::Invalid(format!("{object} is not a piece of an object of this repository")));
        }
        let (page, at) = self.place(number);
        let slot_len = self.slot_len();
        let empty = || vec![0; PAGE as usize * slot_len].into_boxed_slice();
        let slot = &mut self.pages.entry(page).or_insert_with(empty)[at..at + slot_len];
        let prefix = if content.prefix().is_none() { NO_PREFIX } else { content.prefix().byte() };
        slot[0] = prefix | if object.is_compressed() { COMPRESSED } else { 0 };
        slot[1..].copy_from_slice(content.hash());
        Ok(())
    }

    /// The id of a piece.
    pub(super) fn get(&self, number: u64) -> Option<ObjectId> {
        let (page, at) = self.place(number);
        unpacked(self.pages.get(&page)?.get(at..at + self.slot_len())?)
    }

    /// All ids that there are from a number on, in order of their numbers.
    pub(super) fn iter_from(&self, first: u64) -> impl Iterator<Item = (u64, ObjectId)> {
        let numbered = |(page, slots): (u64, &[u8])| {
            let (first, slots) = (page * PAGE, slots.chunks_exact(self.slot_len()).zip(0..));
            slots.filter_map(|(slot, place)| Some((first + place, unpacked(slot)?))).collect::<Vec<_>>()
        };
        let pages = self.pages.range(first / PAGE..).map(|(page, slots)| (*page, &**slots));
        pages.flat_map(numbered).skip_while(move |(number, _)| *number < first)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

fn unpacked(slot: &[u8]) -> Option<ObjectId> {
    let (first, hash) = slot.split_first()?;
    let prefix = match first & !COMPRESSED {
        0 => return None,
        NO_PREFIX => Prefix::NONE,
        letter => Prefix::new(letter).ok()?,
    };
    let content = ContentId::new(prefix, hash).ok()?;
    Some(match first & COMPRESSED {
        0 => ObjectId::direct(content),
        _ => ObjectId::direct_compressed(content),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn id(text: &str) -> ObjectId {
        text.parse().unwrap()
    }

    /// What the slots of a table take.
    fn bytes(table: &IdTable) -> usize {
        table.pages.values().map(|page| page.len() + size_of::<(u64, Box<[u8]>)>()).sum()
    }

    #[test]
    fn every_id_that_a_piece_can_have_comes_back_as_it_was() {
        for hash_len in [16, 20, 28, 32] {
            let mut table = IdTable::of_hashes(hash_len);
            let hash = "a5".repeat(hash_len);
            let ids = ["", "g", "k", "x", "z", "Z"].map(|start| id(&format!("{start}{hash}")));
            let numbers = [0, 1, PAGE - 1, PAGE, 1 << 40, u64::MAX];
            for (number, object) in numbers.into_iter().zip(ids).rev() {
                assert_eq!(table.get(number), None);
                table.set(number, object).unwrap();
            }
            let all = Vec::from_iter(numbers.into_iter().zip(ids));
            assert_eq!(table.iter_from(0).collect::<Vec<_>>(), all);
            assert_eq!(table.iter_from(1 << 40).collect::<Vec<_>>(), all[4..]);
            assert_eq!(table.iter_from(PAGE - 1).collect::<Vec<_>>(), all[2..]);
            table.set(1 << 40, ids[5]).unwrap();
            assert_eq!((table.get(1 << 40), table.get(2)), (Some(ids[5]), None));
            // Neither an object with an index nor a content of another repository is a piece.
            for other in [format!("Ix{hash}"), hash[2..].to_owned(), "a5".to_owned()] {
                assert!(matches!(table.set(0, id(&other)), Err(Error::Invalid(_))), "{other}");
            }
        }
    }

    #[test]
    fn a_tebibyte_of_chunks_takes_less_than_eighteen_mebibytes() {
        let chunks = 1 << 20;
        let mut table = IdTable::of_hashes(16);
        let hash = |number: u64| ContentId::new(Prefix::NONE, &u128::from(number).to_be_bytes()).unwrap();
        // Threads do not keep to the order.
        (0..chunks).for_each(|number| table.set(number ^ 5, ObjectId::direct(hash(number))).unwrap());
        assert!(bytes(&table) < 18 << 20, "{}", bytes(&table));
        assert_eq!(table.iter_from(0).count(), 1 << 20);
        assert_eq!(table.get(12_345), Some(ObjectId::direct(hash(12_345 ^ 5))));
    }

    #[test]
    fn what_is_not_written_of_a_huge_device_takes_nothing() {
        let mut table = IdTable::of_hashes(16);
        (0..100).for_each(|number| table.set(number << 30, id(&"a5".repeat(16))).unwrap());
        assert!(bytes(&table) < 200 << 10, "{}", bytes(&table));
    }
}
