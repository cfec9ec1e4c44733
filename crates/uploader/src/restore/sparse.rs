//! Which parts of a file's bytes are left as holes.

use crate::io::is_zero;
use lifeboat_kopia::snapshot::Holes;
use std::ops::Range;

/// Blocks of zeros that are aligned to their size become holes: what file systems allocate at a time.
const BLOCK: usize = 4096;
/// In less than this nobody looks for zeros.
pub(super) const WORTHWHILE: usize = 64 << 10;

/// A part of a piece of a file, as places in the piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// To be written.
    Data(Range<usize>),
    /// Zeros that take no space.
    Hole(Range<usize>),
}

/// Cuts the bytes at `offset` of a file into data and holes: where the snapshot says that holes were, or, if it does not
/// say, where there are zeros.
pub(crate) fn segments(recorded: Option<&Holes>, offset: u64, bytes: &[u8]) -> Vec<Segment> {
    let mut segments = Segments { segments: Vec::new(), done: 0 };
    match recorded.filter(|holes| holes.iter().next().is_some()) {
        Some(holes) => {
            let end = offset + bytes.len() as u64;
            for hole in holes.iter() {
                let from = hole.offset.clamp(offset, end);
                let to = hole.offset.saturating_add(hole.length).clamp(offset, end);
                let range = (from - offset) as usize..(to - offset) as usize;
                // The file may have changed between the look at its holes and the reading of its bytes.
                if is_zero(&bytes[range.clone()]) {
                    segments.hole(range);
                }
            }
        }
        None => {
            // The first and the last block of a piece may continue in its neighbours, which decide for themselves.
            let first = (offset.next_multiple_of(BLOCK as u64) - offset).min(bytes.len() as u64) as usize;
            let mut from = 0;
            while from < bytes.len() {
                let until = if from < first { first } else { bytes.len().min(from + BLOCK) };
                if is_zero(&bytes[from..until]) {
                    segments.hole(from..until);
                }
                from = until;
            }
        }
    }
    segments.end(bytes.len())
}

/// The same for a range that is known to be all zeros: whether each part of it is a hole.
pub(super) fn zeros(recorded: Option<&Holes>, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
    let Some(holes) = recorded.filter(|holes| holes.iter().next().is_some()) else {
        return vec![(range, true)];
    };
    let mut parts = Vec::new();
    let mut done = range.start;
    for hole in holes.iter().take_while(|hole| hole.offset < range.end) {
        let from = hole.offset.clamp(done, range.end);
        let to = hole.offset.saturating_add(hole.length).clamp(from, range.end);
        parts.extend([(done..from, false), (from..to, true)]);
        done = to;
    }
    parts.push((done..range.end, false));
    parts.retain(|(part, _)| !part.is_empty());
    parts
}

struct Segments {
    segments: Vec<Segment>,
    done: usize,
}

impl Segments {
    fn hole(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        if range.start > self.done {
            self.segments.push(Segment::Data(self.done..range.start));
        }
        self.done = range.end;
        match self.segments.last_mut() {
            Some(Segment::Hole(last)) if last.end == range.start => last.end = range.end,
            _ => self.segments.push(Segment::Hole(range)),
        }
    }

    fn end(mut self, length: usize) -> Vec<Segment> {
        if self.done < length {
            self.segments.push(Segment::Data(self.done..length));
        }
        self.segments
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_kopia::snapshot::Hole;

    #[test]
    fn aligned_blocks_of_zeros_are_holes() {
        let mut bytes = vec![7; 5 * BLOCK];
        bytes[BLOCK - 10..3 * BLOCK + 5].fill(0);
        let found = segments(None, 0, &bytes);
        let (data, hole) = (Segment::Data, Segment::Hole);
        assert_eq!(found, [data(0..BLOCK), hole(BLOCK..3 * BLOCK), data(3 * BLOCK..5 * BLOCK)]);
        // At an odd offset the blocks of the file lie elsewhere in the piece.
        let found = segments(None, 100, &bytes);
        let start = 2 * BLOCK - 100;
        assert_eq!(found, [data(0..start), hole(start..start + BLOCK), data(start + BLOCK..5 * BLOCK)]);
        assert_eq!(segments(None, 5, &[0; 20]), [hole(0..20)]);
        assert_eq!(segments(None, 0, &[]), []);
    }

    #[test]
    fn recorded_holes_are_kept_to_the_byte_and_other_zeros_are_written() {
        let holes = |list: &[(u64, u64)]| {
            let holes = list.iter().map(|&(offset, length)| Hole { offset, length });
            Holes::new(holes.collect()).unwrap()
        };
        let mut bytes = vec![0; 10_000];
        bytes[9_000] = 1;
        let found = segments(Some(&holes(&[(0, 500), (1000, 1500), (8_000, 50_000)])), 1000, &bytes);
        assert_eq!(
            found,
            [Segment::Hole(0..1500), Segment::Data(1500..10_000)],
            "a hole with data in it is data"
        );
        let parts = zeros(Some(&holes(&[(0, 500), (1000, 1500), (8_000, 50_000)])), 400..9000);
        assert_eq!(
            parts,
            [
                (400..500, true),
                (500..1000, false),
                (1000..2500, true),
                (2500..8000, false),
                (8000..9000, true)
            ]
        );
        assert_eq!(zeros(Some(&holes(&[(0, 100)])), 400..900), [(400..900, false)]);
        assert_eq!(zeros(None, 400..900), [(400..900, true)]);
        let later = segments(Some(&holes(&[(0, 100)])), 5000, &bytes);
        assert_eq!(later, [Segment::Data(0..10_000)]);
    }
}
