//! The search for candidates, common to both rolling hashes: a serial loop, and a test of several lanes at once.
//!
//! A rolling hash is a chain in which every step waits for the one before. So a block is divided into
//! lanes that are hashed side by side, each warmed up with the 64 bytes before it. Candidates are rare;
//! the lanes only tell whether there was any, and the serial loop then looks closer at the first lane that has one.
//!
//! Slices that are searched start with the 64 bytes before the first position in question; offsets count from
//! that position.

use super::WINDOW;
use std::array;

/// How many lanes run side by side where nothing else is said: a full AVX2 register of 32-bit hashes.
pub(super) const LANES: usize = 8;

/// The longest lane: long enough that warming up 64 bytes for each costs little, short enough that a block and its
/// tables stay in the first-level cache, and off a power of two so that the lanes do not compete for the same
/// lines of it.
const MAX_LANE: usize = 2048 + WINDOW;

/// Where a search starts, this many positions are tried serially first: runs of equal bytes make every position a
/// candidate, and then the first one is the answer.
const SERIAL_START: usize = 128;

/// A hash of the last 64 bytes that can be moved along by one byte.
pub(super) trait RollingHash: Copy {
    /// The hash of a window.
    fn of_window(window: &[u8; WINDOW]) -> Self;

    /// Moves the window along by one byte.
    fn roll(self, leaving: u8, entering: u8) -> Self;

    /// Those bits of the hash that must be zero behind a candidate.
    fn masked(self, mask: u32) -> u32;

    /// Whether the position behind the window is a candidate.
    #[inline(always)]
    fn is_candidate(self, mask: u32) -> bool {
        self.masked(mask) == 0
    }

    /// How many lanes a block has on this processor, at most 16.
    fn lanes() -> usize {
        LANES
    }

    /// Which lanes of `bytes`, as bits from the lowest on, hold a candidate. `bytes` are the 64 bytes before the
    /// block and the block, [`lanes`](Self::lanes) of `lane` bytes each, a multiple of 64.
    fn lanes_with_candidate(bytes: &[u8], lane: usize, mask: u32) -> u16 {
        interleaved_lanes::<Self>(bytes, lane, mask)
    }
}

/// So many hashes at once keep a processor's scalar units busy and still fit its registers.
const INTERLEAVED: usize = 4;

/// See [`RollingHash::lanes_with_candidate`]: the way that works for any hash on any processor, of [`LANES`] lanes.
pub(super) fn interleaved_lanes<H: RollingHash>(bytes: &[u8], lane: usize, mask: u32) -> u16 {
    (0..LANES)
        .step_by(INTERLEAVED)
        .fold(0, |bits, first| bits | interleaved::<H>(&bytes[first * lane..], lane, mask) << first)
}

/// The same for the first few lanes.
fn interleaved<H: RollingHash>(bytes: &[u8], lane: usize, mask: u32) -> u16 {
    let mut hashes: [H; INTERLEAVED] = array::from_fn(|i| H::of_window(window_at(bytes, i * lane)));
    // The smallest masked hash of a lane is zero if and only if the lane has a candidate.
    let mut smallest = [u32::MAX; INTERLEAVED];
    for start in (0..lane).step_by(WINDOW) {
        let leaving: [_; INTERLEAVED] = array::from_fn(|i| window_at(bytes, start + i * lane));
        let entering: [_; INTERLEAVED] = array::from_fn(|i| window_at(bytes, start + i * lane + WINDOW));
        for step in 0..WINDOW {
            for i in 0..INTERLEAVED {
                hashes[i] = hashes[i].roll(leaving[i][step], entering[i][step]);
                smallest[i] = smallest[i].min(hashes[i].masked(mask));
            }
        }
    }
    smallest.iter().rev().fold(0, |bits, &least| bits << 1 | u16::from(least == 0))
}

/// The 64 bytes from `start` on, which must exist, as an array: indexing it needs no checks.
#[inline(always)]
pub(super) fn window_at(bytes: &[u8], start: usize) -> &[u8; WINDOW] {
    &bytes[start..start + WINDOW].as_chunks().0[0]
}

/// The offset of the first candidate.
pub(super) fn find<H: RollingHash>(bytes: &[u8], mask: u32) -> Option<usize> {
    let positions = bytes.len().checked_sub(WINDOW)?;
    let start = positions.min(SERIAL_START);
    if let Some(offset) = find_serially::<H>(&bytes[..WINDOW + start], mask) {
        return Some(offset);
    }
    let mut at = start;
    let lanes = H::lanes();
    loop {
        let lane = ((positions - at) / lanes / WINDOW * WINDOW).min(MAX_LANE);
        if lane == 0 {
            return find_serially::<H>(&bytes[at..], mask).map(|offset| at + offset);
        }
        let hits = H::lanes_with_candidate(&bytes[at..at + WINDOW + lanes * lane], lane, mask);
        if hits != 0 {
            at += lane * hits.trailing_zeros() as usize;
            return find_serially::<H>(&bytes[at..], mask).map(|offset| at + offset);
        }
        at += lanes * lane;
    }
}

fn find_serially<H: RollingHash>(bytes: &[u8], mask: u32) -> Option<usize> {
    let (window, entering) = bytes.split_first_chunk()?;
    let mut hash = H::of_window(window);
    bytes.iter().zip(entering).position(|(&leaving, &entering)| {
        hash = hash.roll(leaving, entering);
        hash.is_candidate(mask)
    })
}

/// How many positions in a row are candidates, from the first one on.
pub(super) fn run<H: RollingHash>(bytes: &[u8], mask: u32) -> usize {
    let Some((window, entering)) = bytes.split_first_chunk() else { return 0 };
    let mut hash = H::of_window(window);
    let same = |&(&leaving, &entering): &(&u8, &u8)| {
        hash = hash.roll(leaving, entering);
        hash.is_candidate(mask)
    };
    bytes.iter().zip(entering).take_while(same).count()
}
