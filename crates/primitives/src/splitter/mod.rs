//! Splitters: where an object is cut into contents, exactly as Kopia cuts it.
//!
//! Whether a position is a *candidate* for a cut depends only on the 64 bytes before it; sizes decide which
//! candidates become cuts. So there are two ways to the same cuts:
//!
//! * [`Splitter::next_cut`] streams through an object and never looks at bytes that cannot hold a cut;
//! * [`scan_candidates`] finds the candidates of a region on its own, so that several threads can scan regions of
//!   one large file, and [`Splitter::stitch`] turns them, in order, into cuts.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod buzhash;
mod lanes;
mod rabin_karp;

use crate::{Error, Result};
use lanes::RollingHash;

/// How many bytes the rolling hashes look back.
pub const WINDOW: usize = 64;

/// How an object is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SplitterFamily {
    /// After every so many bytes.
    Fixed,
    /// Where a cyclic-polynomial hash of the last bytes says so.
    Buzhash,
    /// Where a Rabin fingerprint of the last bytes says so.
    RabinKarp,
}

/// A splitter of the format, by the name that the format blob or a policy gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SplitterAlgorithm {
    family: SplitterFamily,
    size: usize,
}

/// The sizes that Kopia registers, with their name.
const SIZES: [(usize, &str); 7] = [
    (128 << 10, "128K"),
    (256 << 10, "256K"),
    (512 << 10, "512K"),
    (1 << 20, "1M"),
    (2 << 20, "2M"),
    (4 << 20, "4M"),
    (8 << 20, "8M"),
];

/// Names of the first releases.
const ALIASES: [(&str, SplitterAlgorithm); 2] = [
    ("FIXED", SplitterAlgorithm { family: SplitterFamily::Fixed, size: 4 << 20 }),
    ("DYNAMIC", SplitterAlgorithm { family: SplitterFamily::Buzhash, size: 4 << 20 }),
];

impl Default for SplitterAlgorithm {
    /// `DYNAMIC-4M-BUZHASH`, as in every new Kopia repository.
    fn default() -> Self {
        SplitterAlgorithm { family: SplitterFamily::Buzhash, size: 4 << 20 }
    }
}

impl SplitterAlgorithm {
    /// A splitter of any size (a power of two from 2 up to 1 GiB if dynamic), also of those that have no name.
    pub fn new(family: SplitterFamily, size: usize) -> Result<Self> {
        let possible = (1..=1 << 30).contains(&size)
            && (family == SplitterFamily::Fixed || (size.is_power_of_two() && size > 1));
        if !possible {
            return Err(Error::InvalidParameter {
                what: "a splitter size",
                value: size as u64,
                expected: "a power of two from 2 to 1 GiB",
            });
        }
        Ok(SplitterAlgorithm { family, size })
    }

    /// Every splitter that has a name, without the aliases.
    pub fn all() -> impl Iterator<Item = SplitterAlgorithm> {
        [SplitterFamily::Fixed, SplitterFamily::Buzhash, SplitterFamily::RabinKarp]
            .into_iter()
            .flat_map(|family| SIZES.into_iter().map(move |(size, _)| SplitterAlgorithm { family, size }))
    }

    /// The splitter called `name`, which may be an alias.
    pub fn from_name(name: &str) -> Result<Self> {
        let alias = ALIASES.into_iter().find(|(alias, _)| *alias == name).map(|(_, algorithm)| algorithm);
        alias
            .or_else(|| Self::all().find(|algorithm| algorithm.name() == name))
            .ok_or_else(|| Error::UnknownAlgorithm { kind: "splitter", name: name.into() })
    }

    /// The name in format blobs and policies.
    pub fn name(self) -> String {
        let size = SIZES
            .into_iter()
            .find(|(size, _)| *size == self.size)
            .map_or_else(|| self.size.to_string(), |(_, name)| name.to_owned());
        match self.family {
            SplitterFamily::Fixed => format!("FIXED-{size}"),
            SplitterFamily::Buzhash => format!("DYNAMIC-{size}-BUZHASH"),
            SplitterFamily::RabinKarp => format!("DYNAMIC-{size}-RABINKARP"),
        }
    }

    /// How it cuts.
    pub fn family(self) -> SplitterFamily {
        self.family
    }

    /// The shortest piece, except for the last one of an object.
    pub fn min_size(self) -> usize {
        match self.family {
            SplitterFamily::Fixed => self.size,
            SplitterFamily::Buzhash | SplitterFamily::RabinKarp => self.size / 2,
        }
    }

    /// The longest piece.
    pub fn max_size(self) -> usize {
        match self.family {
            SplitterFamily::Fixed => self.size,
            SplitterFamily::Buzhash | SplitterFamily::RabinKarp => self.size * 2,
        }
    }

    /// A position is a candidate if these bits of its hash are zero.
    fn mask(self) -> u32 {
        (self.size - 1) as u32
    }

    /// The first candidate among the bytes of `data` from index `first` up to (not including) `end`; `before` are
    /// the 64 bytes in front of `data`.
    fn find_candidate(self, before: &[u8; WINDOW], data: &[u8], first: usize, end: usize) -> Option<usize> {
        match self.family {
            SplitterFamily::Fixed => None,
            SplitterFamily::Buzhash => {
                find_candidate::<buzhash::Buzhash>(before, data, first, end, self.mask())
            }
            SplitterFamily::RabinKarp => {
                find_candidate::<rabin_karp::RabinKarp>(before, data, first, end, self.mask())
            }
        }
    }

    /// How many bytes in a row are candidates, from the candidate at `first` on.
    fn run_of_candidates(self, before: &[u8; WINDOW], data: &[u8], first: usize) -> usize {
        match self.family {
            SplitterFamily::Fixed => 0,
            SplitterFamily::Buzhash => {
                run_of_candidates::<buzhash::Buzhash>(before, data, first, self.mask())
            }
            SplitterFamily::RabinKarp => {
                run_of_candidates::<rabin_karp::RabinKarp>(before, data, first, self.mask())
            }
        }
    }
}

/// Cuts one object. State is carried across calls, so the object may arrive in pieces of any size (pieces of a few
/// kilobytes or more keep it fast).
#[derive(Debug, Clone)]
pub struct Splitter {
    algorithm: SplitterAlgorithm,
    /// Bytes since the last cut.
    filled: usize,
    /// The last bytes of the object so far, as if it had been preceded by zeros. A cut does not reset them.
    tail: [u8; WINDOW],
}

impl Splitter {
    /// A splitter at the start of an object.
    pub fn new(algorithm: SplitterAlgorithm) -> Self {
        Splitter { algorithm, filled: 0, tail: [0; WINDOW] }
    }

    /// Which splitter this is.
    pub fn algorithm(&self) -> SplitterAlgorithm {
        self.algorithm
    }

    /// Returns to the start of an object.
    pub fn reset(&mut self) {
        *self = Splitter::new(self.algorithm);
    }

    /// Bytes since the last cut.
    pub fn pending(&self) -> usize {
        self.filled
    }

    /// The next cut in `data`, the bytes that follow those of earlier calls.
    ///
    /// `Some(n)`: there is a cut after `n` bytes; only these are consumed, and the rest must be passed again.
    /// `None`: no cut, and all of `data` is consumed. What is left after the last cut of an object is its last
    /// piece; there is none if the object ends with a cut, except that an empty object is one empty piece.
    pub fn next_cut(&mut self, data: &[u8]) -> Option<usize> {
        let to_max = self.algorithm.max_size() - self.filled;
        let first = self.algorithm.min_size().saturating_sub(self.filled + 1);
        let end = to_max.min(data.len());
        let candidate = self.algorithm.find_candidate(&self.tail, data, first, end).map(|index| index + 1);
        let cut = candidate.or((to_max <= data.len()).then_some(to_max));
        match cut {
            Some(cut) => {
                self.remember(&data[..cut]);
                self.filled = 0;
            }
            None => {
                self.remember(data);
                self.filled += data.len();
            }
        }
        cut
    }

    /// All cuts in `region`, the bytes that follow those of earlier calls, given the `candidates` that
    /// [`scan_candidates`] found in it: calls `cut` with each offset in `region` after which there is a cut.
    pub fn stitch(&mut self, region: &[u8], candidates: &Candidates, mut cut: impl FnMut(usize)) {
        let Some(runs) = &candidates.runs else {
            let mut at = 0;
            while let Some(length) = self.next_cut(&region[at..]) {
                at += length;
                cut(at);
            }
            return;
        };
        let mut at = 0;
        loop {
            let first = at + self.algorithm.min_size().saturating_sub(self.filled + 1);
            let limit = at + self.algorithm.max_size() - self.filled;
            let next = first_at_or_after(runs, first).map_or(limit, |index| limit.min(index + 1));
            if next > region.len() {
                break;
            }
            cut(next);
            self.filled = 0;
            at = next;
        }
        self.filled += region.len() - at;
        self.remember(region);
    }

    fn remember(&mut self, consumed: &[u8]) {
        self.tail = tail_of(&self.tail, consumed);
    }
}

/// The places in a region where the bytes allow a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// Runs of adjacent candidates, as index of the first one and number; `None` if there are too many to list.
    runs: Option<Vec<(usize, usize)>>,
}

/// A region may list one run for so many bytes. Real data has one candidate in `size` bytes, so this leaves a wide
/// margin; made-up data that exceeds it is simply cut serially.
const BYTES_PER_RUN: usize = 1024;
/// Small regions may list a few runs anyway.
const MIN_RUNS: usize = 16;

/// Finds the candidates in `region`, a part of an object whose preceding bytes end with `preceding`. Of these the
/// last 64 matter; fewer may be given only where the object starts.
///
/// Regions of an object can be scanned in any order and at the same time. Unlike [`Splitter::next_cut`] this looks
/// at every byte, which costs about 1.6 times the work: it pays from two threads on.
pub fn scan_candidates(algorithm: SplitterAlgorithm, preceding: &[u8], region: &[u8]) -> Candidates {
    let before = tail_of(&[0; WINDOW], preceding);
    let most_runs = region.len() / BYTES_PER_RUN + MIN_RUNS;
    let mut runs = Vec::new();
    let mut from = 0;
    while let Some(first) = algorithm.find_candidate(&before, region, from, region.len()) {
        if runs.len() == most_runs {
            return Candidates { runs: None };
        }
        let length = algorithm.run_of_candidates(&before, region, first);
        runs.push((first, length));
        from = first + length;
    }
    Candidates { runs: Some(runs) }
}

/// The first candidate in `runs` that is not before `index`.
fn first_at_or_after(runs: &[(usize, usize)], index: usize) -> Option<usize> {
    let next = runs.partition_point(|&(start, length)| start + length <= index);
    runs.get(next).map(|&(start, _)| start.max(index))
}

/// The last 64 bytes of `earlier` followed by `data`.
fn tail_of(earlier: &[u8; WINDOW], data: &[u8]) -> [u8; WINDOW] {
    if let Some(tail) = data.last_chunk() {
        return *tail;
    }
    let mut tail = [0; WINDOW];
    let kept = WINDOW - data.len();
    tail[..kept].copy_from_slice(&earlier[data.len()..]);
    tail[kept..].copy_from_slice(data);
    tail
}

/// The first 64 bytes of `data` behind the 64 bytes before it: what hashing needs where a window reaches back.
fn seam(before: &[u8; WINDOW], data: &[u8]) -> ([u8; 2 * WINDOW], usize) {
    let mut joined = [0; 2 * WINDOW];
    let len = data.len().min(WINDOW);
    joined[..WINDOW].copy_from_slice(before);
    joined[WINDOW..WINDOW + len].copy_from_slice(&data[..len]);
    (joined, len)
}

/// See [`SplitterAlgorithm::find_candidate`].
fn find_candidate<H: RollingHash>(
    before: &[u8; WINDOW],
    data: &[u8],
    first: usize,
    end: usize,
    mask: u32,
) -> Option<usize> {
    if first >= end {
        return None;
    }
    let mut first = first;
    if first < WINDOW {
        let (joined, len) = seam(before, &data[..end]);
        if let Some(offset) = lanes::find::<H>(&joined[first..WINDOW + len], mask) {
            return Some(first + offset);
        }
        first = WINDOW;
    }
    if first >= end {
        return None;
    }
    lanes::find::<H>(&data[first - WINDOW..end], mask).map(|offset| first + offset)
}

/// See [`SplitterAlgorithm::run_of_candidates`].
fn run_of_candidates<H: RollingHash>(before: &[u8; WINDOW], data: &[u8], first: usize, mask: u32) -> usize {
    let mut length = 0;
    if first < WINDOW {
        let (joined, len) = seam(before, data);
        length = lanes::run::<H>(&joined[first..WINDOW + len], mask);
        if first + length < WINDOW {
            return length;
        }
    }
    length + lanes::run::<H>(&data[first + length - WINDOW..], mask)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
