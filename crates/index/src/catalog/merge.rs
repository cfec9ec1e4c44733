//! Going through several segments as if they were one.

use super::segment::{Scan, Segment};
use crate::entry::Record;
use crate::{ContentId, Error};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The records of several segments in order of their ids; of each content only the one that wins.
#[derive(Debug)]
pub(super) struct Merge {
    scans: Vec<Scan>,
    /// The next record of each segment that has one.
    heads: BinaryHeap<Head>,
}

#[derive(Debug)]
struct Head {
    record: Record,
    part: usize,
}

impl Merge {
    /// Starts at the first record whose key is `key` or above.
    pub(super) fn new(parts: &[Arc<Segment>], key: &[u8]) -> Result<Self, Error> {
        let scans = parts.iter().map(|part| part.scan_from(key)).collect::<Result<Vec<_>, _>>()?;
        let mut merge = Merge { scans, heads: BinaryHeap::with_capacity(parts.len()) };
        for part in 0..parts.len() {
            merge.advance(part)?;
        }
        Ok(merge)
    }

    /// The next record and the number of the segment that it is from.
    pub(super) fn next(&mut self) -> Result<Option<(usize, Record)>, Error> {
        let Some(mut best) = self.pop()? else { return Ok(None) };
        while self.heads.peek().is_some_and(|head| head.record.id == best.record.id) {
            let Some(other) = self.pop()? else { break };
            let segment = |head: &Head| self.scans[head.part].segment().as_ref();
            if outranks(segment(&other), &other.record, segment(&best), &best.record)? {
                best = other;
            }
        }
        Ok(Some((best.part, best.record)))
    }

    fn pop(&mut self) -> Result<Option<Head>, Error> {
        let Some(head) = self.heads.pop() else { return Ok(None) };
        self.advance(head.part)?;
        Ok(Some(head))
    }

    fn advance(&mut self, part: usize) -> Result<(), Error> {
        if let Some(record) = self.scans[part].next()? {
            self.heads.push(Head { record, part });
        }
        Ok(())
    }

    /// The name of a record's pack.
    pub(super) fn pack_name(&self, part: usize, pack: u32) -> Result<&str, Error> {
        self.scans[part].segment().pack_name(pack)
    }
}

/// Whether record `a` takes precedence over `b`, both of the same content.
pub(super) fn outranks(
    a_segment: &Segment,
    a: &Record,
    b_segment: &Segment,
    b: &Record,
) -> Result<bool, Error> {
    let mut names = Ok(Ordering::Equal);
    let order = a.fields.precedence(&b.fields, || {
        names = a_segment.pack_name(a.pack).and_then(|a| Ok(a.cmp(b_segment.pack_name(b.pack)?)));
        *names.as_ref().unwrap_or(&Ordering::Equal)
    });
    names.map(|_| order == Ordering::Greater)
}

// The heap gives its greatest element first: that is to be the least id.
impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |head: &Self| -> (ContentId, usize) { (head.record.id, head.part) };
        rank(other).cmp(&rank(self))
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

/// The packs of several segments in order of their names, each name once.
#[derive(Debug)]
pub(super) struct PackMerge<'a> {
    parts: &'a [Arc<Segment>],
    heads: BinaryHeap<Reverse<(&'a str, usize, u32)>>,
    members: Vec<(usize, u32)>,
}

impl<'a> PackMerge<'a> {
    pub(super) fn new(parts: &'a [Arc<Segment>]) -> Result<Self, Error> {
        let mut merge =
            PackMerge { parts, heads: BinaryHeap::with_capacity(parts.len()), members: Vec::new() };
        for part in 0..parts.len() {
            merge.push(part, 0)?;
        }
        Ok(merge)
    }

    /// The next name.
    pub(super) fn next(&mut self) -> Result<Option<&'a str>, Error> {
        self.members.clear();
        let Some(&Reverse((name, ..))) = self.heads.peek() else { return Ok(None) };
        while let Some(&Reverse((same, part, pack))) = self.heads.peek()
            && same == name
        {
            self.heads.pop();
            self.members.push((part, pack));
            self.push(part, pack + 1)?;
        }
        Ok(Some(name))
    }

    /// Which segments have the pack that [`next`](PackMerge::next) gave, and the numbers they know it by.
    pub(super) fn members(&self) -> &[(usize, u32)] {
        &self.members
    }

    fn push(&mut self, part: usize, pack: u32) -> Result<(), Error> {
        let segment: &'a Segment = &self.parts[part];
        if pack < segment.pack_count() {
            self.heads.push(Reverse((segment.pack_name(pack)?, part, pack)));
        }
        Ok(())
    }
}
