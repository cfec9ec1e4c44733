//! Making segments: from an index blob's plaintext, or from other segments.

use super::IndexBlobName;
use super::layout::{
    Digest, FILTER_LEN, FIRST_KEY_LEN, Header, encode_record, filter_bits, records_per_block,
};
use super::merge::{Merge, PackMerge};
use super::pages::{PAGE, PageWriter, SectionWriter, WRITE_BUFFER};
use super::segment::Segment;
use crate::codec::{CodecError, IndexReader, PackRef};
use crate::entry::{MAX_PACK_NAME_LEN, Record};
use crate::id::first_key;
use crate::{ContentId, Error};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What the names of unfinished files start with.
pub(super) const TEMPORARY: &str = "tmp-";

/// What is known of a segment before its first record is written.
pub(super) struct Shape<'a> {
    pub(super) digest: Digest,
    pub(super) inputs: &'a [IndexBlobName],
    pub(super) key_len: usize,
    /// At most so many records, so that the place of what comes before them is known.
    pub(super) max_records: u64,
    /// At most so many packs.
    pub(super) max_packs: u64,
    /// One more than the length of the longest pack name.
    pub(super) pack_slot: usize,
}

/// A segment in the making: first its packs, then its records.
struct SegmentWriter {
    file: PageWriter,
    header: Header,
    packs: SectionWriter,
    keys: SectionWriter,
    filters: SectionWriter,
    records: SectionWriter,
    filter: [u8; FILTER_LEN],
    /// Reused for each record.
    scratch: Vec<u8>,
}

impl SegmentWriter {
    fn create(directory: &Path, shape: &Shape<'_>) -> io::Result<Self> {
        let mut file = PageWriter::create(directory, TEMPORARY)?;
        let mut inputs = SectionWriter::new(1);
        for name in shape.inputs {
            inputs.append(&mut file, &(name.as_str().len() as u32).to_le_bytes())?;
            inputs.append(&mut file, name.as_str().as_bytes())?;
        }
        let inputs = inputs.finish(&mut file)?;
        let blocks = match shape.max_records {
            0 => 0,
            count => count.div_ceil(records_per_block(shape.key_len) as u64) as usize,
        };
        let packs = inputs.end.div_ceil(PAGE);
        let keys = packs + (shape.max_packs as usize * shape.pack_slot).div_ceil(PAGE);
        let filters = keys + (blocks * FIRST_KEY_LEN).div_ceil(PAGE);
        let records = filters + (blocks * FILTER_LEN).div_ceil(PAGE);
        let header = Header {
            digest: shape.digest,
            key_len: shape.key_len,
            record_count: 0,
            pack_count: 0,
            pack_slot: shape.pack_slot,
            input_count: shape.inputs.len() as u32,
            inputs,
            packs: 0..0,
            keys: 0..0,
            filters: 0..0,
            records: 0..0,
        };
        Ok(SegmentWriter {
            file,
            header,
            packs: SectionWriter::new(packs),
            keys: SectionWriter::new(keys),
            filters: SectionWriter::new(filters),
            records: SectionWriter::new(records),
            filter: [0; FILTER_LEN],
            scratch: Vec::new(),
        })
    }

    /// Adds the next pack in ascending order; its number is how many were added before.
    fn add_pack(&mut self, name: &str) -> io::Result<()> {
        self.scratch.clear();
        self.scratch.push(name.len() as u8);
        self.scratch.extend_from_slice(name.as_bytes());
        self.scratch.resize(self.header.pack_slot, 0);
        self.packs.append(&mut self.file, &self.scratch)?;
        self.header.pack_count += 1;
        Ok(())
    }

    /// Adds the next record in ascending order.
    fn push(&mut self, record: &Record) -> io::Result<()> {
        let slot = self.header.record_count as usize % self.header.records_per_block();
        if slot == 0 {
            if self.header.record_count > 0 {
                self.finish_block()?;
            }
            self.keys.append(&mut self.file, &first_key(record.id.key()).to_be_bytes())?;
        }
        for bit in filter_bits(record.id.key()) {
            self.filter[bit / 8] |= 1 << (bit % 8);
        }
        self.scratch.clear();
        encode_record(record, &mut self.scratch);
        self.records.append(&mut self.file, &self.scratch)?;
        self.header.record_count += 1;
        Ok(())
    }

    fn finish_block(&mut self) -> io::Result<()> {
        self.filters.append(&mut self.file, &self.filter)?;
        self.filter = [0; FILTER_LEN];
        self.records.pad_to_page(&mut self.file)
    }

    /// Completes the file and gives it its name.
    fn finish(mut self, path: &Path) -> io::Result<File> {
        if self.header.record_count > 0 {
            self.finish_block()?;
        }
        let SegmentWriter { mut file, mut header, packs, keys, filters, records, .. } = self;
        header.packs = packs.finish(&mut file)?;
        header.keys = keys.finish(&mut file)?;
        header.filters = filters.finish(&mut file)?;
        header.records = records.finish(&mut file)?;
        file.finish(path, |table| header.encode(table))
    }
}

/// Either of the two things that can fail while an index is turned into a segment.
enum BuildError {
    Codec(CodecError),
    Io(io::Error),
}

impl From<CodecError> for BuildError {
    fn from(error: CodecError) -> Self {
        BuildError::Codec(error)
    }
}

impl From<io::Error> for BuildError {
    fn from(error: io::Error) -> Self {
        BuildError::Io(error)
    }
}

/// Writes the segment of one index blob to `path`, checking the whole index on the way.
///
/// Takes about twelve bytes of memory per pack.
pub(super) fn write_own(
    directory: &Path,
    path: &Path,
    digest: Digest,
    blob: &IndexBlobName,
    index: &IndexReader<&[u8]>,
) -> Result<File, Error> {
    write_index(directory, path, digest, blob, index).map_err(|error| match error {
        BuildError::Codec(source) => Error::Index { blob: blob.clone(), source },
        BuildError::Io(error) => Error::io("write", path)(error),
    })
}

fn write_index(
    directory: &Path,
    path: &Path,
    digest: Digest,
    blob: &IndexBlobName,
    index: &IndexReader<&[u8]>,
) -> Result<File, BuildError> {
    let packs = sorted_packs(index)?;
    let shape = Shape {
        digest,
        inputs: std::slice::from_ref(blob),
        key_len: index.key_len(),
        max_records: u64::from(index.len()),
        max_packs: packs.len() as u64,
        pack_slot: 1 + packs.iter().map(|pack| usize::from(pack.len)).max().unwrap_or(0),
    };
    let mut writer = SegmentWriter::create(directory, &shape)?;
    let mut numbers: Vec<(PackRef, u32)> = Vec::with_capacity(packs.len());
    let mut previous_name = "";
    for pack in packs {
        let name = index.pack_name(pack)?;
        if name != previous_name {
            writer.add_pack(name)?;
            previous_name = name;
        }
        numbers.push((pack, writer.header.pack_count - 1));
    }
    numbers.sort_unstable();
    let mut previous: Option<ContentId> = None;
    for position in 0..index.len() {
        let (mut record, pack) = index.record(position)?;
        if previous.is_some_and(|previous| previous >= record.id) {
            return Err(CodecError::Order(record.id).into());
        }
        previous = Some(record.id);
        record.pack =
            numbers.binary_search_by_key(&pack, |(pack, _)| *pack).map(|found| numbers[found].1).map_err(
                |_| CodecError::Entry { entry: position, what: "names a pack that is not in the table" },
            )?;
        writer.push(&record)?;
    }
    Ok(writer.finish(path)?)
}

/// Every pack that an index names, in order of the names; all names are known to be sound.
fn sorted_packs(index: &IndexReader<&[u8]>) -> Result<Vec<PackRef>, CodecError> {
    let mut packs: Vec<PackRef> = if index.pack_table_len() > 0 {
        (0..index.pack_table_len()).map(|number| index.pack_ref(number)).collect::<Result<_, _>>()?
    } else {
        let distinct: HashSet<PackRef> = (0..index.len())
            .map(|position| Ok(index.record(position)?.1))
            .collect::<Result<_, CodecError>>()?;
        distinct.into_iter().collect()
    };
    for pack in &packs {
        index.pack_name(*pack)?;
    }
    packs.sort_unstable_by(|a, b| {
        let name = |pack: &PackRef| index.pack_name(*pack).unwrap_or_default();
        name(a).cmp(name(b))
    });
    Ok(packs)
}

/// How much memory [`write_merged`] takes for `parts`: the renumbering of packs, and the buffers.
pub(super) fn merge_memory(parts: &[Arc<Segment>]) -> u64 {
    let packs: u64 = parts.iter().map(|part| u64::from(part.pack_count())).sum();
    let pages: u64 = parts.iter().map(|part| part.len() / 64).sum();
    packs * 4 + pages * 4 + 5 * WRITE_BUFFER as u64
}

/// Writes the merged entries of `parts`, whose keys are all of one length, to `path`.
pub(super) fn write_merged(
    directory: &Path,
    path: &Path,
    digest: Digest,
    inputs: &[IndexBlobName],
    parts: &[Arc<Segment>],
) -> Result<File, Error> {
    let failed = || Error::io("write", path);
    let shape = Shape {
        digest,
        inputs,
        key_len: parts.first().map_or(0, |part| part.key_len()),
        max_records: parts.iter().map(|part| part.len()).sum(),
        max_packs: parts.iter().map(|part| u64::from(part.pack_count())).sum(),
        pack_slot: parts.iter().map(|part| part.pack_slot()).max().unwrap_or(1).min(1 + MAX_PACK_NAME_LEN),
    };
    let mut writer = SegmentWriter::create(directory, &shape).map_err(failed())?;
    let mut numbers: Vec<Vec<u32>> = parts.iter().map(|part| vec![0; part.pack_count() as usize]).collect();
    let mut packs = PackMerge::new(parts)?;
    while let Some(name) = packs.next()? {
        for &(part, pack) in packs.members() {
            numbers[part][pack as usize] = writer.header.pack_count;
        }
        writer.add_pack(name).map_err(failed())?;
    }
    let mut merge = Merge::new(parts, &[])?;
    while let Some((part, mut record)) = merge.next()? {
        // The name of a pack out of bounds is refused when it is read, and so is this.
        record.pack = numbers[part].get(record.pack as usize).copied().unwrap_or(u32::MAX);
        writer.push(&record).map_err(failed())?;
    }
    writer.finish(path).map_err(failed())
}
