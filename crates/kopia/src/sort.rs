//! Sorting more than fits into memory: records go to sorted files, which are read back as one ordered stream.
//!
//! A record is a key and a tail of fixed length. Streams are in order of the keys; of records with equal keys, only
//! the one with the least tail is delivered. The files have no names, so they vanish with the process.

use crate::{Error, Result};
use lifeboat_budget::{Budget, Reservation};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Runs are read in blocks of about this size, one in memory for each run.
const BLOCK: usize = 64 << 10;
/// So many runs are merged into one, to bound what reading them takes.
const MAX_RUNS: usize = 64;
/// A sorter has at least this much memory, whatever the budget says.
const LEAST: u64 = 64 << 10;
/// A key's length comes first, in two bytes.
const LENGTH: usize = 2;

/// Where sorting puts its files, and what it may take in memory.
#[derive(Debug, Clone)]
pub(crate) struct Scratch {
    pub(crate) folder: PathBuf,
    pub(crate) budget: Budget,
}

impl Scratch {
    /// A sorter for records with tails of `tail_len` bytes. It draws a 24th of the budget: five of them, the writer's
    /// half and the cache's eighth leave a sixth for what is being read. Where there is less it takes less, and writes
    /// to its file more often: a backup asks for packs in the middle of its work, with memory of its own that it would
    /// wait for.
    pub(crate) fn sorter(&self, tail_len: usize) -> Sorter {
        let mut bytes = (self.budget.total() / 24).clamp(LEAST, 32 << 20);
        let mut memory = self.budget.try_reserve(bytes);
        while memory.is_none() && bytes > LEAST {
            bytes = (bytes / 2).max(LEAST);
            memory = self.budget.try_reserve(bytes);
        }
        Sorter {
            scratch: self.clone(),
            tail_len,
            limit: bytes as usize,
            data: Vec::new(),
            starts: Vec::new(),
            runs: Vec::new(),
            _memory: memory,
        }
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::LocalFile { action, path: self.folder.display().to_string(), source }
    }
}

/// Takes records in any order. Its methods block in the measure of the local disk.
#[derive(Debug)]
pub(crate) struct Sorter {
    scratch: Scratch,
    tail_len: usize,
    limit: usize,
    data: Vec<u8>,
    starts: Vec<u32>,
    runs: Vec<Arc<Run>>,
    _memory: Option<Reservation>,
}

impl Sorter {
    /// Adds a record. Keys have at most 65535 bytes; tails have the length that the sorter was made for.
    pub(crate) fn push(&mut self, key: &[u8], tail: &[u8]) -> Result<()> {
        debug_assert_eq!(tail.len(), self.tail_len);
        let len = encoded_len(key, tail)?;
        if self.data.len() + len + (self.starts.len() + 1) * size_of::<u32>() > self.limit
            && !self.data.is_empty()
        {
            self.spill()?;
        }
        if self.data.len() + len > self.data.capacity() {
            // Never doubled beyond the limit, which is all that was reserved.
            let wanted =
                (2 * self.data.capacity()).clamp(BLOCK, self.limit.max(BLOCK)).max(self.data.len() + len);
            self.data.reserve_exact(wanted - self.data.len());
        }
        self.starts.push(self.data.len() as u32);
        encode(&mut self.data, key, tail);
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        let (data, tail_len) = (&self.data, self.tail_len);
        self.starts.sort_unstable_by(|a, b| {
            let (a, b) = (decode(&data[*a as usize..], tail_len), decode(&data[*b as usize..], tail_len));
            a.cmp(&b)
        });
        let mut writer = RunWriter::create(&self.scratch, tail_len)?;
        for start in &self.starts {
            let (key, tail) = decode(&data[*start as usize..], tail_len);
            writer.push(key, tail)?;
        }
        self.runs.push(Arc::new(writer.finish()?));
        self.data.clear();
        self.starts.clear();
        if self.runs.len() >= MAX_RUNS {
            let sorted =
                Sorted { runs: std::mem::take(&mut self.runs), scratch: self.scratch.clone(), tail_len };
            self.runs.push(Arc::new(sorted.merge_to_run()?));
        }
        Ok(())
    }

    /// Ends the input; the memory is given back.
    pub(crate) fn finish(mut self) -> Result<Sorted> {
        if !self.data.is_empty() {
            self.spill()?;
        }
        Ok(Sorted { runs: self.runs, scratch: self.scratch, tail_len: self.tail_len })
    }
}

/// Records in order, on disk. Can be read any number of times; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Sorted {
    runs: Vec<Arc<Run>>,
    scratch: Scratch,
    tail_len: usize,
}

impl Sorted {
    /// No records.
    pub(crate) fn empty(scratch: &Scratch, tail_len: usize) -> Self {
        Sorted { runs: Vec::new(), scratch: scratch.clone(), tail_len }
    }

    /// Whether there are no records.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The records in order. Holds one block of each run in memory.
    pub(crate) fn read(&self) -> Result<Merge> {
        let mut merge = Merge { cursors: Vec::new(), heads: BinaryHeap::new(), current: Head::default() };
        for run in &self.runs {
            let cursor = Cursor::start(run.clone(), &self.scratch)?;
            merge.heads.extend(cursor.head(merge.cursors.len(), Vec::new()));
            merge.cursors.push(cursor);
        }
        Ok(merge)
    }

    /// For looking up keys that come in ascending order.
    pub(crate) fn probe(&self) -> Result<Probe> {
        let start = |run: &Arc<Run>| Cursor::start(run.clone(), &self.scratch);
        Ok(Probe { cursors: self.runs.iter().map(start).collect::<Result<_>>()? })
    }

    /// Adds the records of a run.
    pub(crate) fn add(&mut self, run: Run) -> Result<()> {
        if run.blocks.is_empty() {
            return Ok(());
        }
        self.runs.push(Arc::new(run));
        if self.runs.len() >= MAX_RUNS {
            self.runs = vec![Arc::new(self.merge_to_run()?)];
        }
        Ok(())
    }

    fn merge_to_run(&self) -> Result<Run> {
        let mut writer = RunWriter::create(&self.scratch, self.tail_len)?;
        let mut records = self.read()?;
        while records.advance()? {
            writer.push(records.key(), records.tail())?;
        }
        writer.finish()
    }
}

/// One sorted file.
#[derive(Debug)]
pub(crate) struct Run {
    file: File,
    blocks: Vec<Block>,
    tail_len: usize,
}

/// Where a block lies, and what it begins with.
#[derive(Debug)]
struct Block {
    first: Box<[u8]>,
    start: u64,
    len: usize,
}

/// Writes a run from records that come in order.
#[derive(Debug)]
pub(crate) struct RunWriter {
    run: Run,
    block: Vec<u8>,
    written: u64,
    /// The key that came last; no key is empty.
    last: Vec<u8>,
    scratch: Scratch,
}

impl RunWriter {
    pub(crate) fn create(scratch: &Scratch, tail_len: usize) -> Result<Self> {
        let file = tempfile::tempfile_in(&scratch.folder).map_err(scratch.failed("create a file in"))?;
        let run = Run { file, blocks: Vec::new(), tail_len };
        Ok(RunWriter { run, block: Vec::new(), written: 0, last: Vec::new(), scratch: scratch.clone() })
    }

    /// Adds a record; one whose key was just there is left out.
    pub(crate) fn push(&mut self, key: &[u8], tail: &[u8]) -> Result<()> {
        if self.last == key {
            return Ok(());
        }
        if self.block.len() + encoded_len(key, tail)? > BLOCK && !self.block.is_empty() {
            self.write_block()?;
        }
        if self.block.is_empty() {
            self.run.blocks.push(Block { first: key.into(), start: self.written, len: 0 });
        }
        encode(&mut self.block, key, tail);
        self.last.clear();
        self.last.extend_from_slice(key);
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        self.run.file.write_all(&self.block).map_err(self.scratch.failed("write to a file in"))?;
        self.written += self.block.len() as u64;
        if let Some(block) = self.run.blocks.last_mut() {
            block.len = self.block.len();
        }
        self.block.clear();
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Run> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        Ok(self.run)
    }
}

/// A place in a run.
#[derive(Debug)]
struct Cursor {
    run: Arc<Run>,
    scratch: Scratch,
    /// The block in memory.
    place: usize,
    block: Vec<u8>,
    at: usize,
}

impl Cursor {
    fn start(run: Arc<Run>, scratch: &Scratch) -> Result<Self> {
        let mut cursor = Cursor { run, scratch: scratch.clone(), place: 0, block: Vec::new(), at: 0 };
        cursor.load(0)?;
        Ok(cursor)
    }

    /// Goes to the start of a block; beyond the last one there is nothing.
    fn load(&mut self, place: usize) -> Result<()> {
        (self.place, self.at) = (place, 0);
        let Some(block) = self.run.blocks.get(place) else {
            self.block.clear();
            return Ok(());
        };
        self.block.resize(block.len, 0);
        let read = self.run.file.read_exact_at(&mut self.block, block.start);
        read.map_err(self.scratch.failed("read a file in"))
    }

    fn current(&self) -> Option<(&[u8], &[u8])> {
        (self.at < self.block.len()).then(|| decode(&self.block[self.at..], self.run.tail_len))
    }

    fn advance(&mut self) -> Result<()> {
        if let Some((key, tail)) = self.current() {
            self.at += LENGTH + key.len() + tail.len();
        }
        match self.at >= self.block.len() && self.place < self.run.blocks.len() {
            true => self.load(self.place + 1),
            false => Ok(()),
        }
    }

    /// Goes forward to the first record whose key is `key` or above, reading only the block that can hold it.
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        let later = self.run.blocks.get(self.place + 1..).unwrap_or_default();
        let skip = later.partition_point(|block| *block.first <= *key);
        if skip > 0 {
            self.load(self.place + skip)?;
        }
        while self.current().is_some_and(|(current, _)| current < key) {
            self.advance()?;
        }
        Ok(())
    }

    /// The current record in `buffer`, as a member of a merge.
    fn head(&self, part: usize, mut buffer: Vec<u8>) -> Option<Head> {
        let (key, tail) = self.current()?;
        buffer.clear();
        buffer.extend_from_slice(key);
        buffer.extend_from_slice(tail);
        Some(Head { key_len: key.len(), bytes: buffer, part })
    }
}

/// The records of several runs in order.
#[derive(Debug)]
pub(crate) struct Merge {
    cursors: Vec<Cursor>,
    heads: BinaryHeap<Head>,
    current: Head,
}

impl Merge {
    /// Goes to the next record; `false` at the end. To be called before the first one, too.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        // The buffer of the record that is left goes round with the heads: nothing is allocated on the way.
        let mut spare = Vec::new();
        while let Some(mut head) = self.heads.pop() {
            let cursor = &mut self.cursors[head.part];
            cursor.advance()?;
            let repeated = !self.current.bytes.is_empty() && head.key() == self.current.key();
            if repeated {
                self.heads.extend(cursor.head(head.part, std::mem::take(&mut head.bytes)));
                continue;
            }
            std::mem::swap(&mut self.current.bytes, &mut spare);
            self.heads.extend(cursor.head(head.part, spare));
            self.current = head;
            return Ok(true);
        }
        self.current = Head::default();
        Ok(false)
    }

    /// The key of the current record.
    pub(crate) fn key(&self) -> &[u8] {
        self.current.key()
    }

    /// The tail of the current record.
    pub(crate) fn tail(&self) -> &[u8] {
        &self.current.bytes[self.current.key_len..]
    }
}

/// A record that waits for its turn in a merge.
#[derive(Debug, Default)]
struct Head {
    bytes: Vec<u8>,
    key_len: usize,
    part: usize,
}

impl Head {
    fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len]
    }
}

// The heap gives its greatest element first: that is to be the least record.
impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = |a: &Self, b: &Self| {
            a.key().cmp(b.key()).then_with(|| a.bytes[a.key_len..].cmp(&b.bytes[b.key_len..]))
        };
        order(other, self)
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// Tells which keys are there.
#[derive(Debug)]
pub(crate) struct Probe {
    cursors: Vec<Cursor>,
}

impl Probe {
    /// Whether there is a record with this key, which is not below the one that was asked for before.
    pub(crate) fn contains(&mut self, key: &[u8]) -> Result<bool> {
        for cursor in &mut self.cursors {
            cursor.seek(key)?;
            if cursor.current().is_some_and(|(current, _)| current == key) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn encoded_len(key: &[u8], tail: &[u8]) -> Result<usize> {
    match u16::try_from(key.len()) {
        Ok(_) => Ok(LENGTH + key.len() + tail.len()),
        Err(_) => Err(Error::Invalid(format!("a name of {} bytes is too long to be sorted", key.len()))),
    }
}

fn encode(out: &mut Vec<u8>, key: &[u8], tail: &[u8]) {
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(tail);
}

/// The record at the start of `bytes`, which this module wrote.
fn decode(bytes: &[u8], tail_len: usize) -> (&[u8], &[u8]) {
    let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let (key, rest) = bytes[LENGTH..].split_at(len);
    (key, &rest[..tail_len])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn scratch(budget: u64) -> Scratch {
        Scratch { folder: std::env::temp_dir(), budget: Budget::new(budget) }
    }

    /// Pseudo-random keys of all lengths, many of them twice.
    fn records(count: u64) -> Vec<(Vec<u8>, u32)> {
        let mix = |n: u64| (n ^ 0x55aa).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        (0..count)
            .map(|n| {
                let random = mix(n % (count * 2 / 3));
                let len = 1 + (random % 40) as usize;
                let key = (0..len).map(|at| (random >> (at % 8 * 8)) as u8).collect();
                (key, (mix(n + count) >> 40) as u32)
            })
            .collect()
    }

    fn read(sorted: &Sorted) -> Vec<(Vec<u8>, u32)> {
        let mut merge = sorted.read().unwrap();
        let mut found = Vec::new();
        while merge.advance().unwrap() {
            found.push((merge.key().to_vec(), u32::from_be_bytes(merge.tail().try_into().unwrap())));
        }
        assert!(!merge.advance().unwrap());
        found
    }

    #[tokio::test]
    async fn records_come_back_in_order_with_the_least_tail_of_each_key() {
        for (count, budget) in [(0, 1 << 20), (10, 1 << 20), (20_000, 32 << 20), (200_000, 1 << 20)] {
            let scratch = scratch(budget);
            let mut sorter = scratch.sorter(4);
            let mut expected = BTreeMap::new();
            for (key, tail) in records(count) {
                sorter.push(&key, &tail.to_be_bytes()).unwrap();
                expected.entry(key).and_modify(|least: &mut u32| *least = tail.min(*least)).or_insert(tail);
            }
            assert!(scratch.budget.used() > 0);
            let sorted = sorter.finish().unwrap();
            assert_eq!(scratch.budget.used(), 0, "the memory is given back");
            assert!(count < 100_000 || sorted.runs.len() > 10, "{} runs", sorted.runs.len());
            assert!(read(&sorted).into_iter().eq(expected.into_iter()), "{count}");
        }
    }

    #[tokio::test]
    async fn probes_find_exactly_the_keys_that_are_there() {
        let scratch = scratch(1 << 20);
        let mut sorted = Sorted::empty(&scratch, 4);
        let all = records(60_000);
        // Many small runs: they are joined on the way.
        for part in all.chunks(600) {
            let part: BTreeMap<_, _> = part.iter().cloned().collect();
            let mut run = RunWriter::create(&scratch, 4).unwrap();
            part.iter().for_each(|(key, tail)| run.push(key, &tail.to_be_bytes()).unwrap());
            sorted.add(run.finish().unwrap()).unwrap();
        }
        assert!(sorted.runs.len() < MAX_RUNS);
        let present: BTreeSet<Vec<u8>> = all.into_iter().map(|(key, _)| key).collect();
        let mut asked: BTreeSet<Vec<u8>> = records(90_000).into_iter().map(|(key, _)| key).collect();
        asked.extend(present.iter().step_by(7).cloned());
        let mut probe = sorted.probe().unwrap();
        for key in &asked {
            assert_eq!(probe.contains(key).unwrap(), present.contains(key));
        }
    }
}
