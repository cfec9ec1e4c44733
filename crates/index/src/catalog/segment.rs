//! A segment: the merged entries of some index blobs, sorted, in one immutable local file.

use super::IndexBlobName;
use super::layout::{
    self, Digest, FILTER_LEN, FIRST_KEY_LEN, Header, decode_record, filter_bits, record_len,
};
use super::pages::{Damage, PAGE, Pages};
use crate::entry::Record;
use crate::id::first_key;
use crate::{ContentId, Error};
use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// How many blocks a scan reads ahead at once, and gives back once it has passed them: 1 MiB.
const SCAN_WINDOW: usize = 256;

/// A segment that is ready for look-ups. All of its memory but a few bits per page belongs to the file.
#[derive(Debug)]
pub(super) struct Segment {
    path: PathBuf,
    pages: Pages,
    header: Header,
}

impl Segment {
    /// Opens the segment of the blobs that `digest` identifies.
    ///
    /// `None` if there is no such file; a file that is not what it should be counts as absent and is removed. Files
    /// of up to `check_limit` bytes are checked as a whole; of larger ones every page is checked before its first use.
    pub(super) fn open(path: &Path, digest: &Digest, check_limit: u64) -> Result<Option<Segment>, Error> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", path)(error)),
        };
        // A file in use is young; see `files::sweep`.
        let _ = file.set_modified(SystemTime::now());
        match Segment::from_file(&file, path, digest, check_limit) {
            Ok(segment) => Ok(Some(segment)),
            Err(error @ Error::Damaged { .. }) => {
                tracing::warn!("{error}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The segment in `file`, which is or was at `path`.
    pub(super) fn from_file(
        file: &File,
        path: &Path,
        digest: &Digest,
        check_limit: u64,
    ) -> Result<Segment, Error> {
        let len = file.metadata().map_err(Error::io("look at", path))?.len();
        let opened = Pages::open(file, Header::decode).map_err(Error::io("map", path))?;
        let checked = opened.and_then(|(pages, header)| {
            let segment = Segment { path: path.to_path_buf(), pages, header };
            segment.check(digest, len <= check_limit)?;
            Ok(segment)
        });
        checked.map_err(|detail| damaged(path, detail))
    }

    fn check(&self, digest: &Digest, every_page: bool) -> Result<(), Damage> {
        let header = &self.header;
        if header.digest != *digest {
            return Err("it belongs to other index blobs");
        }
        let blocks = match header.record_count {
            0 => 0,
            count if (2..=1 + crate::MAX_HASH_LEN).contains(&header.key_len) => {
                usize::try_from(count).unwrap_or(usize::MAX).div_ceil(header.records_per_block())
            }
            _ => return Err("its header is inconsistent"),
        };
        let sizes = [
            (header.packs.len(), (header.pack_count as usize).checked_mul(header.pack_slot)),
            (header.keys.len(), blocks.checked_mul(FIRST_KEY_LEN)),
            (header.filters.len(), blocks.checked_mul(FILTER_LEN)),
            (header.records.len(), blocks.checked_mul(PAGE)),
        ];
        if sizes.iter().any(|(have, want)| Some(*have) != *want) {
            return Err("its header is inconsistent");
        }
        let all = [&header.keys, &header.inputs, &header.packs, &header.filters, &header.records];
        let needed = if every_page { &all[..] } else { &all[..1] };
        needed.iter().for_each(|section| self.pages.map().read_ahead((*section).clone()));
        needed.iter().try_for_each(|section| self.pages.bytes((*section).clone()).map(|_| ()))
    }

    /// How many records there are.
    pub(super) fn len(&self) -> u64 {
        self.header.record_count
    }

    /// The length of the binary ids; 0 if there are none.
    pub(super) fn key_len(&self) -> usize {
        self.header.key_len
    }

    /// How many packs the table has.
    pub(super) fn pack_count(&self) -> u32 {
        self.header.pack_count
    }

    /// How long a slot of the pack table is.
    pub(super) fn pack_slot(&self) -> usize {
        self.header.pack_slot
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The blobs whose entries these are, in ascending order.
    pub(super) fn inputs(&self) -> Result<Vec<IndexBlobName>, Error> {
        self.try_inputs().map_err(|damage| self.damaged(damage))
    }

    fn try_inputs(&self) -> Result<Vec<IndexBlobName>, Damage> {
        let garbled = "its list of index blobs is garbled";
        let mut rest = self.pages.bytes(self.header.inputs.clone())?;
        let mut names = Vec::new();
        while let Some((len, tail)) = rest.split_first_chunk() {
            let (name, tail) = tail.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or(garbled)?;
            names.push(IndexBlobName::from(std::str::from_utf8(name).map_err(|_| garbled)?));
            rest = tail;
        }
        if names.len() == self.header.input_count as usize { Ok(names) } else { Err(garbled) }
    }

    /// How many blobs those are.
    pub(super) fn input_count(&self) -> u32 {
        self.header.input_count
    }

    /// The name of a pack; names ascend with their numbers.
    pub(super) fn pack_name(&self, pack: u32) -> Result<&str, Error> {
        self.try_pack_name(pack).map_err(|damage| self.damaged(damage))
    }

    fn try_pack_name(&self, pack: u32) -> Result<&str, Damage> {
        if pack >= self.header.pack_count {
            return Err("a record names an unknown pack");
        }
        let start = self.header.packs.start + pack as usize * self.header.pack_slot;
        let slot = self.pages.bytes(start..start + self.header.pack_slot)?;
        let name = slot.split_first().and_then(|(len, name)| name.get(..usize::from(*len)));
        name.and_then(|name| std::str::from_utf8(name).ok()).ok_or("a pack name is garbled")
    }

    /// The record of a content.
    pub(super) fn get(&self, id: &ContentId) -> Result<Option<Record>, Error> {
        self.try_get(id).map_err(|damage| self.damaged(damage))
    }

    fn try_get(&self, id: &ContentId) -> Result<Option<Record>, Damage> {
        let key = id.key();
        if key.len() != self.header.key_len {
            return Ok(None);
        }
        let blocks = self.blocks_around(key);
        if blocks.is_empty() || (blocks.len() == 1 && !self.may_contain(blocks.start, key)?) {
            return Ok(None);
        }
        let position = self.lower_bound(key, blocks)?;
        if position == self.len() {
            return Ok(None);
        }
        let bytes = self.record_bytes(position)?;
        if bytes.starts_with(key) { decode_record(bytes).map(Some) } else { Ok(None) }
    }

    /// The blocks in which `key` or the record before its lower bound can be; none if all keys are above it.
    fn blocks_around(&self, key: &[u8]) -> Range<usize> {
        let (wanted, keys) = (first_key(key), self.first_keys());
        let below = keys.partition_point(|first| u64::from_be_bytes(*first) < wanted);
        let equal = keys[below..].iter().take_while(|first| u64::from_be_bytes(**first) == wanted).count();
        below.saturating_sub(1)..below + equal
    }

    /// The beginnings of the first keys of all blocks.
    fn first_keys(&self) -> &[[u8; FIRST_KEY_LEN]] {
        // `check` has looked at the whole table.
        self.pages.checked_bytes(self.header.keys.clone()).as_chunks().0
    }

    fn may_contain(&self, block: usize, key: &[u8]) -> Result<bool, Damage> {
        let start = self.header.filters.start + block * FILTER_LEN;
        let filter = self.pages.bytes(start..start + FILTER_LEN)?;
        Ok(filter_bits(key).all(|bit| filter[bit / 8] & (1 << (bit % 8)) != 0))
    }

    /// The first position whose key is `key` or above, which `blocks` are [around](Segment::blocks_around).
    fn lower_bound(&self, key: &[u8], mut blocks: Range<usize>) -> Result<u64, Damage> {
        let (key_len, per_block) = (self.header.key_len, self.header.records_per_block());
        // More than one or two blocks only if their keys have the first eight bytes in common.
        while blocks.len() > 1 {
            let middle = blocks.start + blocks.len() / 2;
            let first = self.record_bytes((middle * per_block) as u64)?;
            if is_below(&first[..key_len], key) {
                blocks.start = middle;
            } else {
                blocks.end = middle;
            }
        }
        let start = self.header.records.start + blocks.start * PAGE;
        let block = self.pages.bytes(start..start + PAGE)?;
        let count = per_block.min(self.len() as usize - blocks.start * per_block);
        let first_of = |block: usize| self.first_keys().get(block).map(|first| u64::from_be_bytes(*first));
        let from = first_of(blocks.start).unwrap_or(0);
        let to = first_of(blocks.start + 1).unwrap_or(u64::MAX);
        let below = |at: usize| is_below(&block[at * record_len(key_len)..][..key_len], key);
        let found = partition_point(count, expected(first_key(key), from..to, count), below);
        Ok((blocks.start * per_block + found) as u64)
    }

    fn record_bytes(&self, position: u64) -> Result<&[u8], Damage> {
        let per_block = self.header.records_per_block();
        let (block, slot) = (position as usize / per_block, position as usize % per_block);
        let len = record_len(self.header.key_len);
        let start = self.header.records.start + block * PAGE + slot * len;
        self.pages.bytes(start..start + len)
    }

    /// The records from the first whose key is `key` or above.
    pub(super) fn scan_from(self: &Arc<Self>, key: &[u8]) -> Result<Scan, Error> {
        let blocks = self.blocks_around(key);
        let found = if blocks.is_empty() { Ok(0) } else { self.lower_bound(key, blocks) };
        let next = found.map_err(|damage| self.damaged(damage))?;
        Ok(Scan { segment: self.clone(), next, window: None })
    }

    /// Tells the system about a scan that comes to the records of a window.
    fn enter_window(&self, window: usize, previous: Option<usize>) {
        let bytes = |window: usize| {
            let start = self.header.records.start + window * SCAN_WINDOW * PAGE;
            start..start + SCAN_WINDOW * PAGE
        };
        if previous.is_none() {
            self.pages.map().read_ahead(bytes(window));
        }
        self.pages.map().read_ahead(bytes(window + 1));
        if let Some(previous) = previous {
            self.pages.map().release(bytes(previous));
        }
    }

    fn damaged(&self, detail: Damage) -> Error {
        damaged(&self.path, detail)
    }
}

/// Whether one key is below another: as `a < b`, but mostly without comparing byte by byte.
fn is_below(a: &[u8], b: &[u8]) -> bool {
    match first_key(a).cmp(&first_key(b)) {
        Ordering::Equal => a < b,
        order => order == Ordering::Less,
    }
}

/// Where among `count` keys in `range` one is to be expected: keys are hashes, which are spread evenly.
fn expected(key: u64, range: Range<u64>, count: usize) -> usize {
    let into = key.saturating_sub(range.start) as f64 / (range.end.saturating_sub(range.start)).max(1) as f64;
    (into * count as f64) as usize
}

/// How many of `count` come before the first that is not `below`, which is probably near `expected`: each look elsewhere
/// waits for memory.
fn partition_point(count: usize, expected: usize, below: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    let (mut at, mut step) = (expected.min(count.saturating_sub(1)), 1);
    while low < high {
        if below(at) {
            low = at + 1;
        } else {
            high = at;
        }
        // In longer and longer steps, until there is an end on both sides.
        at = match (low, high) {
            (_, high) if high == count => (low + step).min(count) - 1,
            (0, high) => high.saturating_sub(step),
            _ => low + (high - low) / 2,
        };
        step *= 2;
    }
    low
}

/// Removes a damaged file, so that the next update builds it anew, and says so.
fn damaged(path: &Path, detail: Damage) -> Error {
    remove(path);
    Error::Damaged { path: path.to_path_buf(), detail }
}

/// Removes a file of the cache; one that stays does no harm.
pub(super) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), %error, "cannot remove an index cache file");
    }
}

/// Records of a segment in order of their ids.
#[derive(Debug)]
pub(super) struct Scan {
    segment: Arc<Segment>,
    next: u64,
    window: Option<usize>,
}

impl Scan {
    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The next record.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Error> {
        let segment = &self.segment;
        if self.next >= segment.len() {
            return Ok(None);
        }
        let window = self.next as usize / (layout::records_per_block(segment.key_len()) * SCAN_WINDOW);
        if self.window != Some(window) {
            segment.enter_window(window, self.window);
            self.window = Some(window);
        }
        let record =
            segment.record_bytes(self.next).and_then(decode_record).map_err(|d| segment.damaged(d))?;
        self.next += 1;
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::{expected, partition_point};
    use proptest::prelude::*;
    use std::cell::Cell;

    proptest! {
        #[test]
        fn the_first_that_is_not_below_is_found_whatever_was_expected(
            keys in prop::collection::vec(0..60_u64, 0..50),
            key in 0..70_u64,
            expected in 0..60_usize,
        ) {
            let mut keys = keys;
            keys.sort_unstable();
            let below = |at: usize| keys[at] < key;
            prop_assert_eq!(partition_point(keys.len(), expected, below), keys.partition_point(|k| *k < key));
        }
    }

    #[test]
    fn among_keys_that_are_spread_evenly_few_are_looked_at() {
        let keys: Vec<u64> = (0..100).map(|number| number << 50).collect();
        let looks = Cell::new(0);
        for key in &keys {
            let below = |at: usize| {
                looks.set(looks.get() + 1);
                keys[at] < *key
            };
            let expected = expected(*key, 0..100 << 50, keys.len());
            assert_eq!(keys.get(partition_point(keys.len(), expected, below)), Some(key));
        }
        assert!(looks.get() <= 3 * keys.len(), "{}", looks.get());
        assert_eq!(expected(7, 9..9, 100), 0);
        assert_eq!(expected(u64::MAX, 0..1, 100), usize::MAX);
    }
}
