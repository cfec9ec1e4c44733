//! Writing an index: two passes over the entries, memory in proportion to the packs only.
//!
//! The output is the stable encoding: packs and formats are numbered as they first appear in the order of the
//! entries, so that equal entries give equal bytes.

use super::{
    CodecError, DELETED, PackRef, V1_ENTRY_LEN, V1_HEADER_LEN, V2_ENTRY_LEN, V2_FORMAT_LEN, V2_HEADER_LEN,
    V2_PACK_LEN,
};
use crate::entry::{Format, MAX_PACK_NAME_LEN, Record};
use crate::{ContentId, IndexEntry, PackName};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::io::Write;

/// Which encoding to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexVersion {
    /// Version 1: no compression, and original lengths follow from what encryption adds to a content.
    V1 {
        /// What encryption adds to each content, in bytes.
        overhead: u32,
    },
    /// Version 2.
    V2,
}

/// Entries that can be gone through several times, in ascending order of their ids.
pub(crate) trait RecordSource {
    /// Every record's pack is below this.
    fn pack_count(&self) -> usize;
    /// The name of a pack.
    fn pack_name(&self, pack: u32) -> Result<&str, CodecError>;
    /// Calls `visit` with each record.
    fn for_each(&self, visit: &mut dyn FnMut(&Record) -> Result<(), CodecError>) -> Result<(), CodecError>;
}

/// Writes `entries`, which must be in strictly ascending order of their ids, as an index; returns how many bytes that
/// took.
///
/// The entries are gone through three times and may be made on the fly: memory is taken for the packs only. Unbuffered
/// outputs are to be wrapped in a buffer by the caller.
pub fn encode<I>(version: IndexVersion, entries: I, out: &mut dyn Write) -> Result<u64, CodecError>
where
    I: IntoIterator,
    I::Item: Borrow<IndexEntry>,
    I::IntoIter: Clone,
{
    let entries = entries.into_iter();
    let mut source = EntrySource { entries, names: Vec::new(), numbers: HashMap::new() };
    for entry in source.entries.clone() {
        let name = &entry.borrow().pack;
        if !source.numbers.contains_key(name) {
            source.numbers.insert(name.clone(), source.names.len() as u32);
            source.names.push(name.clone());
        }
    }
    encode_records(version, &source, out)
}

struct EntrySource<I> {
    entries: I,
    names: Vec<PackName>,
    numbers: HashMap<PackName, u32>,
}

impl<I> RecordSource for EntrySource<I>
where
    I: Iterator + Clone,
    I::Item: Borrow<IndexEntry>,
{
    fn pack_count(&self) -> usize {
        self.names.len()
    }

    fn pack_name(&self, pack: u32) -> Result<&str, CodecError> {
        Ok(self.names[pack as usize].as_str())
    }

    fn for_each(&self, visit: &mut dyn FnMut(&Record) -> Result<(), CodecError>) -> Result<(), CodecError> {
        for entry in self.entries.clone() {
            let entry = entry.borrow();
            let pack = *self.numbers.get(&entry.pack).ok_or(CodecError::Changed)?;
            visit(&Record { id: entry.id, pack, fields: entry.fields() })?;
        }
        Ok(())
    }
}

/// [`encode`] for entries from anywhere.
pub(crate) fn encode_records(
    version: IndexVersion,
    source: &dyn RecordSource,
    out: &mut dyn Write,
) -> Result<u64, CodecError> {
    let mut plan = Plan::survey(version, source)?;
    plan.place_names(source)?;
    match version {
        IndexVersion::V1 { .. } => plan.write_v1(source, out)?,
        IndexVersion::V2 => plan.write_v2(source, out)?,
    }
    for &pack in &plan.order {
        out.write_all(source.pack_name(pack)?.as_bytes())?;
    }
    Ok(plan.total_len)
}

/// Marks a pack that no entry has named yet.
const UNNUMBERED: u32 = u32::MAX;

/// What the first pass finds out.
struct Plan {
    version: IndexVersion,
    count: u32,
    key_len: usize,
    entry_len: usize,
    /// Source's pack → number in the output.
    numbers: Vec<u32>,
    /// Number in the output → source's pack.
    order: Vec<u32>,
    /// Number in the output → where the name goes.
    names: Vec<PackRef>,
    formats: Vec<Format>,
    total_len: u64,
}

impl Plan {
    fn survey(version: IndexVersion, source: &dyn RecordSource) -> Result<Self, CodecError> {
        let mut numbers = vec![UNNUMBERED; source.pack_count()];
        let (mut order, mut formats) = (Vec::new(), Vec::<Format>::new());
        let (mut count, mut longest) = (0_u32, 0);
        let mut previous: Option<ContentId> = None;
        source.for_each(&mut |record| {
            check_representable(version, record)?;
            if let Some(previous) = previous {
                if previous >= record.id {
                    return Err(CodecError::Order(record.id));
                }
                if previous.key().len() != record.id.key().len() {
                    return Err(unrepresentable(version, record, "its hash is not as long as the others"));
                }
            }
            previous = Some(record.id);
            count = count.checked_add(1).ok_or(CodecError::TooMany("entries"))?;
            longest = longest.max(record.fields.original_length).max(record.fields.packed_length);
            let number = &mut numbers[record.pack as usize];
            if *number == UNNUMBERED {
                *number = order.len() as u32;
                order.push(record.pack);
            }
            if !formats.contains(&record.fields.format) {
                formats.push(record.fields.format);
            }
            Ok(())
        })?;
        let key_len = previous.ok_or(CodecError::Empty)?.key().len();
        let entry_len = match version {
            IndexVersion::V1 { .. } => V1_ENTRY_LEN,
            IndexVersion::V2 => v2_entry_len(formats.len(), order.len(), longest)?,
        };
        Ok(Plan {
            version,
            count,
            key_len,
            entry_len,
            numbers,
            order,
            names: Vec::new(),
            formats,
            total_len: 0,
        })
    }

    /// Decides where each pack name goes: they are the last thing in the output.
    fn place_names(&mut self, source: &dyn RecordSource) -> Result<(), CodecError> {
        let entries = u64::from(self.count) * (self.key_len + self.entry_len) as u64;
        let mut offset = entries
            + match self.version {
                IndexVersion::V1 { .. } => V1_HEADER_LEN,
                IndexVersion::V2 => {
                    V2_HEADER_LEN + self.order.len() * V2_PACK_LEN + self.formats.len() * V2_FORMAT_LEN
                }
            } as u64;
        self.names.reserve_exact(self.order.len());
        for &pack in &self.order {
            let name = source.pack_name(pack)?;
            if name.is_empty() || name.len() > MAX_PACK_NAME_LEN {
                return Err(CodecError::Header(format!(
                    "pack name {name:?} is empty or longer than 255 bytes"
                )));
            }
            let place = u32::try_from(offset).map_err(|_| CodecError::TooMany("bytes"))?;
            self.names.push(PackRef { offset: place, len: name.len() as u8 });
            offset += name.len() as u64;
        }
        self.total_len = offset;
        Ok(())
    }

    fn write_v1(&self, source: &dyn RecordSource, out: &mut dyn Write) -> Result<(), CodecError> {
        out.write_all(&[1, self.key_len as u8])?;
        out.write_all(&(self.entry_len as u16).to_be_bytes())?;
        out.write_all(&self.count.to_be_bytes())?;
        source.for_each(&mut |record| {
            let name = self.names[self.numbers[record.pack as usize] as usize];
            let fields = &record.fields;
            let mut entry = [0; V1_ENTRY_LEN];
            entry[0..6].copy_from_slice(&fields.timestamp.to_be_bytes()[2..]);
            entry[6] = fields.format.version;
            entry[7] = name.len;
            entry[8..12].copy_from_slice(&name.offset.to_be_bytes());
            entry[12..16].copy_from_slice(&location(record).to_be_bytes());
            entry[16..20].copy_from_slice(&fields.packed_length.to_be_bytes());
            out.write_all(record.id.key())?;
            Ok(out.write_all(&entry)?)
        })
    }

    fn write_v2(&self, source: &dyn RecordSource, out: &mut dyn Write) -> Result<(), CodecError> {
        out.write_all(&[2, self.key_len as u8])?;
        out.write_all(&(self.entry_len as u16).to_be_bytes())?;
        out.write_all(&self.count.to_be_bytes())?;
        out.write_all(&(self.order.len() as u32).to_be_bytes())?;
        out.write_all(&[self.formats.len() as u8])?;
        // The base timestamp: other writers always leave it at 0.
        out.write_all(&[0; 4])?;
        source.for_each(&mut |record| {
            out.write_all(record.id.key())?;
            Ok(out.write_all(&self.entry_v2(record)[..self.entry_len])?)
        })?;
        for name in &self.names {
            out.write_all(&[name.len])?;
            out.write_all(&name.offset.to_be_bytes())?;
        }
        for format in &self.formats {
            out.write_all(&format.compression.to_be_bytes())?;
            out.write_all(&[format.version, format.key_id])?;
        }
        Ok(())
    }

    /// An entry with all optional bytes.
    fn entry_v2(&self, record: &Record) -> [u8; *V2_ENTRY_LEN.end()] {
        let fields = &record.fields;
        let pack = self.numbers[record.pack as usize].to_be_bytes();
        let format = self.formats.iter().position(|format| *format == fields.format).unwrap_or_default();
        let (original, packed) = (fields.original_length.to_be_bytes(), fields.packed_length.to_be_bytes());
        let mut entry = [0; *V2_ENTRY_LEN.end()];
        entry[0..4].copy_from_slice(&(fields.timestamp as u32).to_be_bytes());
        entry[4..8].copy_from_slice(&location(record).to_be_bytes());
        entry[8..11].copy_from_slice(&original[1..]);
        entry[11..14].copy_from_slice(&packed[1..]);
        entry[14..16].copy_from_slice(&pack[2..]);
        entry[16] = format as u8;
        entry[17] = pack[1];
        entry[18] = original[0] << 4 | packed[0];
        entry
    }
}

fn location(record: &Record) -> u32 {
    record.fields.pack_offset | if record.fields.deleted { DELETED } else { 0 }
}

/// How many of the optional bytes the entries need; they form a prefix, so the last one needed decides.
fn v2_entry_len(formats: usize, packs: usize, longest: u32) -> Result<usize, CodecError> {
    if formats > 255 {
        return Err(CodecError::TooMany("formats"));
    }
    if packs > 1 << 24 {
        return Err(CodecError::TooMany("packs"));
    }
    let optional = if longest >= 1 << 24 {
        3
    } else if packs > 1 << 16 {
        2
    } else {
        usize::from(formats > 1)
    };
    Ok(V2_ENTRY_LEN.start() + optional)
}

fn unrepresentable(version: IndexVersion, record: &Record, what: &'static str) -> CodecError {
    let version = match version {
        IndexVersion::V1 { .. } => 1,
        IndexVersion::V2 => 2,
    };
    CodecError::Unrepresentable { id: record.id, version, what }
}

fn check_representable(version: IndexVersion, record: &Record) -> Result<(), CodecError> {
    let fields = &record.fields;
    let problem = match version {
        _ if fields.format.key_id != 0 => "its encryption key id is not 0",
        IndexVersion::V1 { overhead } => {
            if fields.format.compression != 0 {
                "it is compressed"
            } else if Some(fields.packed_length) != fields.original_length.checked_add(overhead) {
                "its original length does not follow from its packed length"
            } else if !(0..1 << 48).contains(&fields.timestamp) {
                "its timestamp is out of range"
            } else if fields.pack_offset >= 1 << 31 {
                "its offset in the pack is too large"
            } else {
                return Ok(());
            }
        }
        IndexVersion::V2 => {
            if fields.original_length >= 1 << 28 || fields.packed_length >= 1 << 28 {
                "it is longer than 256 MiB"
            } else if !(0..1 << 32).contains(&fields.timestamp) {
                "its timestamp is out of range"
            } else if fields.pack_offset >= 1 << 30 {
                "its offset in the pack is too large"
            } else {
                return Ok(());
            }
        }
    };
    Err(unrepresentable(version, record, problem))
}
