//! The format of segment files: what the header says and how a record is laid out.
//!
//! ```text
//! page 0    header
//! inputs    the names of the index blobs whose entries these are
//! packs     pack names in ascending order, each in a slot of the same size; a record names its pack by position
//! keys      for each block of records, the first eight bytes of its first key
//! filters   for each block of records, a Bloom filter of its keys
//! records   blocks of one page each, sorted by key
//! checksums of all pages before
//! ```
//!
//! The keys are the fan-out: they are few enough to stay in memory and lead to the one block that can hold a content.
//! Its filter then tells most contents that are not there without touching the block. As filter and block belong
//! together, a segment of any size is written front to back in constant memory.

use super::pages::{ChecksumTable, Damage, PAGE};
use crate::ContentId;
use crate::entry::{Fields, Format, Record};
use crate::id::first_key;
use std::ops::Range;

/// Names the format and its version; anything else is rebuilt.
const MAGIC: &[u8; 8] = b"LBINDEX1";
/// Where the header's checksum is: at the end of its page.
const HEADER_CHECKSUM: usize = PAGE - 4;
/// Length of a record without its key.
const VALUE_LEN: usize = 27;
/// Length of the filter of a block. A page holds 93 records of the usual 44 bytes, so that each has 11 bits.
pub(super) const FILTER_LEN: usize = 128;
/// How many bits of the filter a key sets: near the optimum for 10 bits a key, and 60 bits of hash suffice.
const FILTER_PROBES: u32 = 6;
/// Length of a line of the key table.
pub(super) const FIRST_KEY_LEN: usize = 8;
/// Marks a deletion in the pack offset.
const DELETED: u32 = 1 << 31;

/// Identifies a set of index blobs; see [`super::files`].
pub(super) type Digest = [u8; 16];

/// What the first page of a segment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) digest: Digest,
    pub(super) key_len: usize,
    pub(super) record_count: u64,
    pub(super) pack_count: u32,
    pub(super) pack_slot: usize,
    pub(super) input_count: u32,
    pub(super) inputs: Range<usize>,
    pub(super) packs: Range<usize>,
    pub(super) keys: Range<usize>,
    pub(super) filters: Range<usize>,
    pub(super) records: Range<usize>,
}

impl Header {
    /// How many records fit a page.
    pub(super) fn records_per_block(&self) -> usize {
        records_per_block(self.key_len)
    }

    pub(super) fn encode(&self, table: ChecksumTable) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE);
        page.extend_from_slice(MAGIC);
        page.extend_from_slice(&self.digest);
        page.extend_from_slice(&table.checksum.to_le_bytes());
        let sections = [&self.inputs, &self.packs, &self.keys, &self.filters, &self.records];
        let numbers = [
            table.offset as u64,
            table.pages as u64,
            self.key_len as u64,
            self.record_count,
            u64::from(self.pack_count),
            self.pack_slot as u64,
            u64::from(self.input_count),
        ];
        let bounds = sections.iter().flat_map(|section| [section.start as u64, section.end as u64]);
        for number in numbers.into_iter().chain(bounds) {
            page.extend_from_slice(&number.to_le_bytes());
        }
        page.resize(HEADER_CHECKSUM, 0);
        page.extend_from_slice(&crc32fast::hash(&page).to_le_bytes());
        page
    }

    pub(super) fn decode(page: &[u8; PAGE]) -> Result<(Header, ChecksumTable), Damage> {
        let (content, checksum) = page.split_at(HEADER_CHECKSUM);
        if !content.starts_with(MAGIC) {
            return Err("it is of another version");
        }
        if crc32fast::hash(content).to_le_bytes() != checksum {
            return Err("its header is damaged");
        }
        let mut digest = Digest::default();
        digest.copy_from_slice(&content[8..24]);
        let checksum = le32(content, 24);
        let mut next = 28;
        let mut number = || {
            next += 8;
            usize::try_from(le64(content, next - 8)).map_err(|_| "its header is inconsistent")
        };
        let table = ChecksumTable { offset: number()?, pages: number()?, checksum };
        let header = Header {
            digest,
            key_len: number()?,
            record_count: number()? as u64,
            pack_count: number()? as u32,
            pack_slot: number()?,
            input_count: number()? as u32,
            inputs: number()?..number()?,
            packs: number()?..number()?,
            keys: number()?..number()?,
            filters: number()?..number()?,
            records: number()?..number()?,
        };
        Ok((header, table))
    }
}

/// How many records with keys of `key_len` bytes fit a page.
pub(super) fn records_per_block(key_len: usize) -> usize {
    PAGE / record_len(key_len)
}

/// Length of a record with a key of `key_len` bytes.
pub(super) fn record_len(key_len: usize) -> usize {
    key_len + VALUE_LEN
}

/// Appends a record.
pub(super) fn encode_record(record: &Record, out: &mut Vec<u8>) {
    let fields = &record.fields;
    let location = fields.pack_offset | if fields.deleted { DELETED } else { 0 };
    out.extend_from_slice(record.id.key());
    out.extend_from_slice(&fields.timestamp.to_le_bytes()[..6]);
    for number in
        [record.pack, location, fields.packed_length, fields.original_length, fields.format.compression]
    {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.push(fields.format.version);
}

/// Reads a record of which `bytes` holds exactly the length.
pub(super) fn decode_record(bytes: &[u8]) -> Result<Record, Damage> {
    let (key, value) =
        bytes.split_at_checked(bytes.len().saturating_sub(VALUE_LEN)).ok_or("a record is too short")?;
    let id = ContentId::from_key(key).map_err(|_| "a record has an impossible id")?;
    let location = le32(value, 10);
    let fields = Fields {
        timestamp: i64::from(le32(value, 0)) | i64::from(value[4]) << 32 | i64::from(value[5]) << 40,
        pack_offset: location & !DELETED,
        packed_length: le32(value, 14),
        original_length: le32(value, 18),
        format: Format { compression: le32(value, 22), version: value[26], key_id: 0 },
        deleted: location & DELETED != 0,
    };
    Ok(Record { id, pack: le32(value, 6), fields })
}

/// The bits of a block's filter that belong to a key.
pub(super) fn filter_bits(key: &[u8]) -> impl Iterator<Item = usize> {
    // Ids are hashes already, but not all lengths and prefixes are alike: one multiplication per word mixes enough.
    let hash = key.chunks(8).fold(0x9e37_79b9_7f4a_7c15_u64, |hash, word| {
        let mixed = (hash ^ first_key(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ mixed >> 32
    });
    (0..FILTER_PROBES).map(move |probe| (hash >> (probe * 10)) as usize % (FILTER_LEN * 8))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}
