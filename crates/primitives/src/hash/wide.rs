//! The queue of messages in front of BLAKE2b's own kernel: which of them run side by side, and for how long.
//!
//! Messages of different lengths would leave lanes idle at the end, and the fewer and longer they are the more. But a
//! message can be put aside behind any of its blocks. So while many are left, lanes are refilled as they run empty; of the
//! last few, those that have most left run, a slice at a time, until all end at about the same time.

#[cfg(target_arch = "x86_64")]
use super::avx512::Kernel;
use std::cmp::Reverse;
use std::slice;
use zeroize::Zeroizing;

/// Length of a block.
pub(super) const BLOCK: usize = 128;
/// What the words of the state start from.
pub(super) const IV: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];
/// Length of a digest, which is a parameter of the function.
const DIGEST: usize = 32;
/// The last so many messages take turns: twice what runs at once levels them well, and sorting them costs little.
const TAKING_TURNS: usize = 2 * Kernel::LANES;
/// How many blocks a message runs before another one may take its turn: long enough to read ahead.
const SLICE: usize = 128;

/// A message that is being hashed.
pub(super) struct Lane<'a> {
    number: usize,
    done: bool,
    /// The state of the function.
    pub(super) words: [u64; 8],
    /// How many bytes went into it.
    pub(super) count: u64,
    /// What has not.
    pub(super) rest: &'a [u8],
}

impl Lane<'_> {
    fn blocks_left(&self) -> usize {
        // The empty message is a block too.
        self.rest.len().div_ceil(BLOCK).max(1)
    }

    /// Whether the end is among the next `blocks`: the last one of a message is marked as such.
    pub(super) fn ends_within(&self, blocks: usize) -> bool {
        self.rest.len() <= blocks * BLOCK
    }

    /// How many bytes went into the state after that many more blocks.
    pub(super) fn count_after(&self, blocks: usize) -> u64 {
        self.count + self.rest.len().min(blocks * BLOCK) as u64
    }

    /// Goes on behind blocks that are in the state.
    fn advance(&mut self, blocks: usize) {
        self.done = self.ends_within(blocks);
        self.count = self.count_after(blocks);
        self.rest = self.rest.get(blocks * BLOCK..).unwrap_or_default();
    }

    fn digest(&self) -> [u8; DIGEST] {
        let mut digest = [0; DIGEST];
        for (bytes, word) in digest.as_chunks_mut().0.iter_mut().zip(self.words) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}

/// BLAKE2b with a key and a digest of 32 bytes, on processors that have what the kernel needs.
pub(super) struct Wide {
    kernel: Kernel,
    /// The state before the first byte.
    fresh: [u64; 8],
    /// A key is a block before the message, the same for all messages: this is the block, and the state behind it.
    key: Option<Zeroizing<([u8; BLOCK], [u64; 8])>>,
}

impl Wide {
    /// How many messages run side by side.
    pub(super) const LANES: usize = Kernel::LANES;

    /// `None` if the processor lacks a feature; `key` has at most 64 bytes.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        let mut fresh = IV;
        fresh[0] ^= 0x0101_0000 ^ (key.len() as u64) << 8 ^ DIGEST as u64;
        let mut wide = Wide { kernel: Kernel::detect()?, fresh, key: None };
        if !key.is_empty() {
            // More follows the key's block, so it is not the last.
            let mut start = Zeroizing::new([0; 2 * BLOCK]);
            start[..key.len()].copy_from_slice(key);
            let mut lane = wide.lane(0, &*start);
            wide.run(slice::from_mut(&mut lane), 1);
            let words = lane.words;
            wide.key = Some(Zeroizing::new((start.as_chunks().0[0], words)));
        }
        Some(wide)
    }

    fn lane<'a>(&'a self, number: usize, message: &'a [u8]) -> Lane<'a> {
        let (words, count, rest) = match self.key.as_deref() {
            None => (self.fresh, 0, message),
            // Behind nothing but the key, its block is the last.
            Some((block, _)) if message.is_empty() => (self.fresh, 0, &block[..]),
            Some((_, words)) => (*words, BLOCK as u64, message),
        };
        Lane { number, done: false, words, count, rest }
    }

    fn run(&self, lanes: &mut [Lane<'_>], blocks: usize) {
        self.kernel.run(lanes, blocks);
        lanes.iter_mut().for_each(|lane| lane.advance(blocks));
    }

    /// The hash of one message.
    pub(super) fn hash(&self, message: &[u8]) -> [u8; DIGEST] {
        let mut lane = self.lane(0, message);
        let blocks = lane.blocks_left();
        self.run(slice::from_mut(&mut lane), blocks);
        lane.digest()
    }

    /// Hashes messages and hands each hash, with the number of its message, to `done`. They should come longest first.
    pub(super) fn hash_many<'a>(
        &'a self,
        messages: impl ExactSizeIterator<Item = (usize, &'a [u8])>,
        mut done: impl FnMut(usize, [u8; DIGEST]),
    ) {
        let mut messages = messages.map(|(number, message)| self.lane(number, message));
        let mut lanes: Vec<Lane<'a>> = Vec::with_capacity(TAKING_TURNS);
        loop {
            let few = lanes.len() + messages.len() <= TAKING_TURNS;
            let room = if few { TAKING_TURNS } else { Kernel::LANES } - lanes.len();
            lanes.extend(messages.by_ref().take(room));
            let width = if few { level(&mut lanes) } else { Kernel::LANES };
            let running = width.min(lanes.len());
            let (running, aside) = lanes.split_at_mut(running);
            let Some(shortest) = running.iter().map(Lane::blocks_left).min() else { return };
            let blocks = if aside.is_empty() { shortest } else { shortest.min(SLICE) };
            self.run(running, blocks);
            lanes.retain(|lane| {
                if lane.done {
                    done(lane.number, lane.digest());
                }
                !lane.done
            });
        }
    }
}

/// Puts those first that have most left, and returns how many should run side by side.
///
/// A block of eight messages takes 5/3 of the time of a block of four. All lanes are worth it unless so little
/// is left, or so much of it of one message, that the end comes sooner with half of them.
fn level(lanes: &mut [Lane<'_>]) -> usize {
    lanes.sort_unstable_by_key(|lane| Reverse(lane.blocks_left()));
    let total: usize = lanes.iter().map(Lane::blocks_left).sum();
    let longest = lanes.first().map_or(0, Lane::blocks_left);
    if 3 * total >= 20 * longest { Kernel::LANES } else { Kernel::LANES / 2 }
}

/// Other processors have no kernel of our own.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
enum Kernel {}

#[cfg(not(target_arch = "x86_64"))]
impl Kernel {
    const LANES: usize = 8;

    fn detect() -> Option<Self> {
        None
    }

    fn run(self, _lanes: &mut [Lane<'_>], _blocks: usize) {
        match self {}
    }
}
