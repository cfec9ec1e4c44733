//! The committed view: look-ups and scans over the segments of one set of index blobs.

use super::IndexBlobName;
use super::layout::Digest;
use super::merge::{Merge, PackMerge, outranks};
use super::segment::Segment;
use crate::codec::{CodecError, IndexVersion, RecordSource, encode_records};
use crate::entry::Record;
use crate::{ContentId, Error, IndexEntry, PackName, Prefix, shard_of};
use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;

/// All contents of a set of index blobs, as of one moment. Cheap to clone, and unaffected by what happens to the
/// catalogue's folder later.
///
/// Calls fail with [`Error::Damaged`] if a local file turns out to be damaged; [`Catalog::update`] then repairs it and
/// gives a new snapshot.
///
/// [`Catalog::update`]: super::Catalog::update
#[derive(Debug, Clone)]
pub struct Snapshot {
    segments: Arc<[Arc<Segment>]>,
    watermark: i64,
    identity: Digest,
}

/// What a view says that an earlier one did not; see [`Snapshot::since`].
///
/// Looking up a content that is there reads a page from the disk, if contents are asked for in no order and there are
/// more than fit into memory. That a content is *not* in what is new, small filters tell. So whoever goes through
/// contents of an earlier view in an order of their own asks only whether anything new contradicts them.
#[derive(Debug, Clone)]
pub struct Since {
    now: Snapshot,
    /// The segments with anything new; `None` if not all is there any more that was.
    newer: Option<Vec<Arc<Segment>>>,
}

/// Whether a scan delivers entries that say that a content was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deleted {
    /// Living contents only.
    Skip,
    /// Also deleted ones, unless the watermark has passed them.
    Include,
}

/// Which contents a scan goes through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdRange {
    /// The first key; it may be the beginning of one.
    start: Vec<u8>,
    /// The key to stop before.
    end: Option<Vec<u8>>,
}

impl IdRange {
    /// All contents.
    pub fn all() -> Self {
        IdRange::default()
    }

    /// The contents with this prefix; [`Prefix::NONE`] for those without one.
    pub fn prefix(prefix: Prefix) -> Self {
        IdRange { start: vec![prefix.byte()], end: Some(vec![prefix.byte() + 1]) }
    }

    /// The contents that have any prefix.
    pub fn prefixed() -> Self {
        IdRange { start: vec![1], end: None }
    }

    /// From `id` on.
    pub fn starting_at(id: &ContentId) -> Self {
        IdRange { start: id.key().to_vec(), end: None }
    }

    /// The same range, but only what is below `id`.
    #[must_use]
    pub fn ending_before(self, id: &ContentId) -> Self {
        let end = match self.end {
            Some(end) if end.as_slice() < id.key() => end,
            _ => id.key().to_vec(),
        };
        IdRange { end: Some(end), ..self }
    }
}

/// How much of a pack is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackUsage {
    /// The pack.
    pub pack: PackName,
    /// Living contents in it.
    pub live_contents: u64,
    /// Their packed bytes.
    pub live_bytes: u64,
    /// Deleted contents in it that the watermark has not passed.
    pub deleted_contents: u64,
    /// Their packed bytes.
    pub deleted_bytes: u64,
}

impl Snapshot {
    pub(super) fn new(segments: Vec<Arc<Segment>>, watermark: i64, identity: Digest) -> Self {
        // Segments without records only remember that a blob is empty.
        let segments = segments.into_iter().filter(|segment| segment.len() > 0).collect();
        Snapshot { segments, watermark, identity }
    }

    /// A view without contents.
    pub fn empty() -> Self {
        Snapshot::new(Vec::new(), i64::MIN, Digest::default())
    }

    /// The deletion watermark in unix seconds; `i64::MIN` if there is none.
    pub fn watermark(&self) -> i64 {
        self.watermark
    }

    /// The same view under another deletion watermark; `i64::MIN` for none.
    #[must_use]
    pub fn with_watermark(&self, watermark: i64) -> Self {
        Snapshot { watermark, ..self.clone() }
    }

    /// The entry of a content, which may be that of a deletion; `None` if there is none, or if it is a deletion at or
    /// before the watermark.
    pub fn get(&self, id: &ContentId) -> Result<Option<IndexEntry>, Error> {
        match self.find(id)? {
            Some((segment, record)) => Ok(Some(record.into_entry(segment.pack_name(record.pack)?.into()))),
            None => Ok(None),
        }
    }

    /// Whether a content is there and not deleted.
    pub fn contains_live(&self, id: &ContentId) -> Result<bool, Error> {
        Ok(self.find(id)?.is_some_and(|(_, record)| !record.fields.deleted))
    }

    /// Identifies the index blobs whose contents these are: equal for equal sets, also of other processes.
    pub fn identity(&self) -> [u8; 16] {
        self.identity
    }

    /// What this view says that `earlier` did not.
    pub fn since(&self, earlier: &Snapshot) -> Result<Since, Error> {
        let (known, have) = (earlier.inputs()?, self.inputs()?);
        let mut since = Since { now: self.clone(), newer: None };
        // Only if nothing was taken away does an answer stand for as long as nothing new contradicts it.
        if self.watermark == earlier.watermark && known.is_subset(&have) {
            let mut newer = Vec::new();
            for segment in self.segments.iter() {
                if !segment.inputs()?.iter().all(|input| known.contains(input)) {
                    newer.push(segment.clone());
                }
            }
            since.newer = Some(newer);
        }
        Ok(since)
    }

    /// Whether the view still has `entry`, which an earlier one had. `since` makes it cheap if it is of this view and of
    /// that earlier one; the answer is the same in any case.
    pub fn still_has(&self, entry: &IndexEntry, since: &Since) -> Result<bool, Error> {
        if let Some(newer) = &since.newer
            && Arc::ptr_eq(&self.segments, &since.now.segments)
            && self.watermark == since.now.watermark
        {
            let mut contradicted = false;
            for segment in newer {
                contradicted = contradicted || segment.get(&entry.id)?.is_some();
            }
            if !contradicted {
                return Ok(true);
            }
        }
        Ok(self.get(&entry.id)?.as_ref() == Some(entry))
    }

    /// The blobs whose contents these are, but for empty ones.
    fn inputs(&self) -> Result<HashSet<IndexBlobName>, Error> {
        let mut inputs = HashSet::new();
        for segment in self.segments.iter() {
            inputs.extend(segment.inputs()?);
        }
        Ok(inputs)
    }

    /// The contents of `range` in order of their ids.
    pub fn iter(&self, range: IdRange, deleted: Deleted) -> Contents {
        Contents { merge: MergeState::Start(self.clone()), range, deleted }
    }

    /// No more contents than this are in the view; those in several index blobs count several times.
    pub fn len_upper_bound(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len()).sum()
    }

    /// The names of all packs that any entry mentions, also superseded ones, in ascending order.
    pub fn pack_names(&self) -> Result<impl Iterator<Item = Result<PackName, Error>> + '_, Error> {
        let mut packs = PackMerge::new(&self.segments)?;
        Ok(std::iter::from_fn(move || packs.next().map(|name| name.map(PackName::from)).transpose()))
    }

    /// How much of each pack is in use, in order of their names, for all packs of [`pack_names`](Snapshot::pack_names).
    ///
    /// Goes through all contents first; takes about 32 bytes of memory per pack and segment.
    pub fn pack_usage(&self) -> Result<impl Iterator<Item = Result<PackUsage, Error>> + '_, Error> {
        let mut usage: Vec<Vec<[u64; 4]>> =
            self.segments.iter().map(|segment| vec![[0; 4]; segment.pack_count() as usize]).collect();
        self.for_each_record(&mut |part, record| {
            if let Some(pack) = usage[part].get_mut(record.pack as usize) {
                let kind = if record.fields.deleted { 2 } else { 0 };
                pack[kind] += 1;
                pack[kind + 1] += u64::from(record.fields.packed_length);
            }
            Ok::<(), Error>(())
        })?;
        let mut packs = PackMerge::new(&self.segments)?;
        Ok(std::iter::from_fn(move || {
            let pack = match packs.next().transpose()? {
                Ok(name) => PackName::from(name),
                Err(error) => return Some(Err(error)),
            };
            let total = |kind: usize| {
                packs.members().iter().map(|&(part, pack)| usage[part][pack as usize][kind]).sum()
            };
            Some(Ok(PackUsage {
                pack,
                live_contents: total(0),
                live_bytes: total(1),
                deleted_contents: total(2),
                deleted_bytes: total(3),
            }))
        }))
    }

    /// Of the packs that are `wanted` (asked once for each, in ascending order of the names), those that hold living
    /// contents.
    ///
    /// Goes through all contents if any pack is wanted; takes one byte of memory per pack and segment.
    pub fn living_packs<E: From<Error>>(
        &self,
        mut wanted: impl FnMut(&str) -> Result<bool, E>,
    ) -> Result<Vec<PackName>, E> {
        const WANTED: u8 = 1;
        const LIVING: u8 = 2;
        let mut marks: Vec<Vec<u8>> =
            self.segments.iter().map(|segment| vec![0; segment.pack_count() as usize]).collect();
        let mut any = false;
        let mut packs = PackMerge::new(&self.segments)?;
        while let Some(name) = packs.next()? {
            if wanted(name)? {
                any = true;
                packs.members().iter().for_each(|&(part, pack)| marks[part][pack as usize] = WANTED);
            }
        }
        if !any {
            return Ok(Vec::new());
        }
        self.for_each_record(&mut |part, record| {
            if let Some(mark) = marks[part].get_mut(record.pack as usize)
                && *mark == WANTED
                && !record.fields.deleted
            {
                *mark = LIVING;
            }
            Ok::<(), Error>(())
        })?;
        let mut living = Vec::new();
        let mut packs = PackMerge::new(&self.segments)?;
        while let Some(name) = packs.next()? {
            if packs.members().iter().any(|&(part, pack)| marks[part][pack as usize] == LIVING) {
                living.push(PackName::from(name));
            }
        }
        Ok(living)
    }

    /// Writes the contents of the view, deletions included as far as the watermark has not passed them, as one index:
    /// shard `shard` of `shards` of it. Returns how many bytes that took, or `None` if the shard is empty, when
    /// nothing is written.
    ///
    /// Memory is taken in proportion to the packs (about 28 bytes each), not the contents.
    pub fn encode_index(
        &self,
        version: IndexVersion,
        shard: u32,
        shards: u32,
        out: &mut dyn Write,
    ) -> Result<Option<u64>, CodecError> {
        let source =
            ShardSource::new(self, shard, shards).map_err(|error| CodecError::Write(error.into()))?;
        match encode_records(version, &source, out) {
            Err(CodecError::Empty) => Ok(None),
            written => written.map(Some),
        }
    }

    /// The exact number of contents in the view, deletions included; goes through all of them.
    pub fn count(&self) -> Result<u64, Error> {
        let mut count = 0;
        self.for_each_record(&mut |_, _| {
            count += 1;
            Ok::<(), Error>(())
        })?;
        Ok(count)
    }

    fn find(&self, id: &ContentId) -> Result<Option<(&Segment, Record)>, Error> {
        let mut best: Option<(&Segment, Record)> = None;
        for segment in self.segments.iter() {
            if let Some(record) = segment.get(id)? {
                match best {
                    Some((other, found)) if !outranks(segment, &record, other, &found)? => {}
                    _ => best = Some((segment, record)),
                }
            }
        }
        Ok(best.filter(|(_, record)| self.is_visible(record)))
    }

    fn is_visible(&self, record: &Record) -> bool {
        !record.fields.deleted || record.fields.timestamp > self.watermark
    }

    fn for_each_record<E: From<Error>>(
        &self,
        visit: &mut dyn FnMut(usize, &Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut merge = Merge::new(&self.segments, &[])?;
        while let Some((part, record)) = merge.next()? {
            if self.is_visible(&record) {
                visit(part, &record)?;
            }
        }
        Ok(())
    }
}

/// Contents in order of their ids. Ends after the first error.
#[derive(Debug)]
pub struct Contents {
    merge: MergeState,
    range: IdRange,
    deleted: Deleted,
}

#[derive(Debug)]
enum MergeState {
    /// Segments are opened at the first call, so that making the iterator cannot fail.
    Start(Snapshot),
    Running(Snapshot, Merge),
    Done,
}

impl Contents {
    fn advance(&mut self) -> Result<Option<IndexEntry>, Error> {
        if let MergeState::Start(snapshot) = &self.merge {
            let merge = Merge::new(&snapshot.segments, &self.range.start)?;
            self.merge = MergeState::Running(snapshot.clone(), merge);
        }
        let MergeState::Running(snapshot, merge) = &mut self.merge else { return Ok(None) };
        while let Some((part, record)) = merge.next()? {
            if self.range.end.as_ref().is_some_and(|end| record.id.key() >= end.as_slice()) {
                break;
            }
            let wanted = self.deleted == Deleted::Include || !record.fields.deleted;
            if wanted && snapshot.is_visible(&record) {
                let pack = merge.pack_name(part, record.pack)?.into();
                return Ok(Some(record.into_entry(pack)));
            }
        }
        Ok(None)
    }
}

impl Iterator for Contents {
    type Item = Result<IndexEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.advance().transpose();
        if !matches!(entry, Some(Ok(_))) {
            self.merge = MergeState::Done;
        }
        entry
    }
}

/// One shard of a snapshot, with its packs numbered across segments.
struct ShardSource<'a> {
    snapshot: &'a Snapshot,
    shard: u32,
    shards: u32,
    /// Segment and its number of a pack → common number.
    numbers: Vec<Vec<u32>>,
    /// Common number → one segment that has the pack, and its number there.
    packs: Vec<(u32, u32)>,
}

impl<'a> ShardSource<'a> {
    fn new(snapshot: &'a Snapshot, shard: u32, shards: u32) -> Result<Self, Error> {
        let mut numbers: Vec<Vec<u32>> =
            snapshot.segments.iter().map(|segment| vec![0; segment.pack_count() as usize]).collect();
        let mut packs = Vec::new();
        let mut merge = PackMerge::new(&snapshot.segments)?;
        while merge.next()?.is_some() {
            for &(part, pack) in merge.members() {
                numbers[part][pack as usize] = packs.len() as u32;
            }
            packs.extend(merge.members().first().map(|&(part, pack)| (part as u32, pack)));
        }
        Ok(ShardSource { snapshot, shard, shards, numbers, packs })
    }
}

impl RecordSource for ShardSource<'_> {
    fn pack_count(&self) -> usize {
        self.packs.len()
    }

    fn pack_name(&self, pack: u32) -> Result<&str, CodecError> {
        let (part, pack) = self.packs[pack as usize];
        Ok(self.snapshot.segments[part as usize].pack_name(pack)?)
    }

    fn for_each(&self, visit: &mut dyn FnMut(&Record) -> Result<(), CodecError>) -> Result<(), CodecError> {
        self.snapshot.for_each_record(&mut |part, record| {
            if self.shards > 1 && shard_of(&record.id, self.shards) != self.shard {
                return Ok(());
            }
            let unknown = CodecError::Header("a cached record names an unknown pack".into());
            let pack = *self.numbers[part].get(record.pack as usize).ok_or(unknown)?;
            visit(&Record { pack, ..*record })
        })
    }
}

impl From<Error> for CodecError {
    fn from(error: Error) -> Self {
        CodecError::Write(error.into())
    }
}
