//! Reading an index in place: nothing is copied or built, every access is checked.

use super::{
    CodecError, DELETED, EMPTY_KEY_SIZE, V1_ENTRY_LEN, V1_HEADER_LEN, V2_ENTRY_LEN, V2_FORMAT_LEN,
    V2_HEADER_LEN, V2_PACK_LEN,
};
use crate::entry::{Fields, Format, Record};
use crate::id::MAX_KEY_LEN;
use crate::{ContentId, IndexEntry, PackName};

/// An index blob's plaintext, readable without being loaded into anything else.
///
/// [`parse`](IndexReader::parse) checks the header and that all tables lie within the bytes; entries are checked as
/// they are read. No input makes it panic or allocate more than one entry.
#[derive(Debug)]
pub struct IndexReader<B> {
    bytes: B,
    layout: Layout,
}

/// Where things are.
#[derive(Debug, Clone, Copy)]
struct Layout {
    version: u8,
    key_len: usize,
    stride: usize,
    count: u32,
    first_entry: usize,
    packs: usize,
    pack_count: u32,
    formats: usize,
    format_count: usize,
    base_timestamp: i64,
    v1_overhead: u32,
}

/// Where in the index a pack's name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackRef {
    pub(crate) offset: u32,
    pub(crate) len: u8,
}

impl<B: AsRef<[u8]>> IndexReader<B> {
    /// Reads the header of an index of either version; bytes after its end are ignored.
    ///
    /// A version 1 index does not store original lengths: `v1_overhead` is what encryption adds to each content and
    /// is subtracted from the packed length.
    pub fn parse(bytes: B, v1_overhead: u32) -> Result<Self, CodecError> {
        let layout = Layout::parse(bytes.as_ref(), v1_overhead)?;
        let reader = IndexReader { bytes, layout };
        for index in 0..layout.format_count {
            match reader.format(index)?.key_id {
                0 => {}
                other => return Err(CodecError::KeyId(other)),
            }
        }
        Ok(reader)
    }

    /// The version of the encoding.
    pub fn version(&self) -> u8 {
        self.layout.version
    }

    /// How many entries there are.
    pub fn len(&self) -> u32 {
        self.layout.count
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.layout.count == 0
    }

    /// The entry of a content.
    pub fn get(&self, id: &ContentId) -> Result<Option<IndexEntry>, CodecError> {
        let position = self.lower_bound(id.key())?;
        if position == self.len() || self.key(position)? != id.key() {
            return Ok(None);
        }
        self.entry(position).map(Some)
    }

    /// All entries in order of their ids. Ends after the first error.
    pub fn iter(&self) -> Entries<'_, B> {
        Entries { reader: self, next: 0, failed: None }
    }

    /// The entries whose binary id is `key` or above; `key` may be the beginning of an id.
    pub fn iter_from(&self, key: &[u8]) -> Entries<'_, B> {
        match self.lower_bound(key) {
            Ok(next) => Entries { reader: self, next, failed: None },
            Err(error) => Entries { reader: self, next: self.len(), failed: Some(error) },
        }
    }

    /// The length of the binary ids; 0 if there are none.
    pub(crate) fn key_len(&self) -> usize {
        if self.is_empty() { 0 } else { self.layout.key_len }
    }

    /// One entry and where the name of its pack is; the record's own pack number is 0.
    pub(crate) fn record(&self, position: u32) -> Result<(Record, PackRef), CodecError> {
        let id = ContentId::from_key(self.key(position)?)
            .map_err(|source| CodecError::Id { entry: position, source })?;
        let entry = self.value(position)?;
        let (fields, pack) = match self.layout.version {
            1 => self.fields_v1(position, entry)?,
            _ => self.fields_v2(position, entry)?,
        };
        Ok((Record { id, pack: 0, fields }, pack))
    }

    /// How many lines the pack table has; version 1 has no such table.
    pub(crate) fn pack_table_len(&self) -> u32 {
        self.layout.pack_count
    }

    /// A line of the pack table.
    pub(crate) fn pack_ref(&self, number: u32) -> Result<PackRef, CodecError> {
        let start = self.layout.packs + number as usize * V2_PACK_LEN;
        let line = self.slice("a line of the pack table", start, V2_PACK_LEN)?;
        Ok(PackRef { len: line[0], offset: be32(line, 1) })
    }

    /// The name at `pack`.
    pub(crate) fn pack_name(&self, pack: PackRef) -> Result<&str, CodecError> {
        let bytes = self.slice("a pack name", pack.offset as usize, usize::from(pack.len))?;
        match std::str::from_utf8(bytes) {
            Ok("") => Err(CodecError::Header("it has an empty pack name".into())),
            Ok(name) => Ok(name),
            Err(_) => Err(CodecError::Header("it has a pack name that is not text".into())),
        }
    }

    fn entry(&self, position: u32) -> Result<IndexEntry, CodecError> {
        let (record, pack) = self.record(position)?;
        Ok(record.into_entry(PackName::from(self.pack_name(pack)?)))
    }

    /// The first position whose key is `key` or above.
    fn lower_bound(&self, key: &[u8]) -> Result<u32, CodecError> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle)? < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn key(&self, position: u32) -> Result<&[u8], CodecError> {
        let start = self.layout.first_entry + position as usize * self.layout.stride;
        self.slice("a key", start, self.layout.key_len)
    }

    fn value(&self, position: u32) -> Result<&[u8], CodecError> {
        let Layout { first_entry, stride, key_len, .. } = self.layout;
        let start = first_entry + position as usize * stride + key_len;
        self.slice("an entry", start, stride - key_len)
    }

    fn fields_v1(&self, position: u32, entry: &[u8]) -> Result<(Fields, PackRef), CodecError> {
        let packed_length = be32(entry, 16);
        let original_length = packed_length
            .checked_sub(self.layout.v1_overhead)
            .ok_or(CodecError::Entry { entry: position, what: "is shorter than what encryption adds" })?;
        let location = be32(entry, 12);
        let fields = Fields {
            timestamp: (i64::from(be32(entry, 0)) << 16) | i64::from(be16(entry, 4)),
            pack_offset: location & !DELETED,
            packed_length,
            original_length,
            format: Format { compression: 0, version: entry[6], key_id: 0 },
            deleted: location & DELETED != 0,
        };
        Ok((fields, PackRef { len: entry[7], offset: be32(entry, 8) }))
    }

    fn fields_v2(&self, position: u32, entry: &[u8]) -> Result<(Fields, PackRef), CodecError> {
        let optional = |index: usize| entry.get(index).copied().map_or(0, u32::from);
        let high_bits = optional(18);
        let location = be32(entry, 4);
        let format_index = optional(16) as usize;
        if format_index >= self.layout.format_count {
            return Err(CodecError::Entry {
                entry: position,
                what: "names a format that is not in the table",
            });
        }
        let pack = u32::from(be16(entry, 14)) | optional(17) << 16;
        if pack >= self.layout.pack_count {
            return Err(CodecError::Entry { entry: position, what: "names a pack that is not in the table" });
        }
        let fields = Fields {
            timestamp: self.layout.base_timestamp + i64::from(be32(entry, 0)),
            pack_offset: location & !DELETED,
            packed_length: be24(entry, 11) | (high_bits & 15) << 24,
            original_length: be24(entry, 8) | (high_bits >> 4) << 24,
            format: self.format(format_index)?,
            deleted: location & DELETED != 0,
        };
        Ok((fields, self.pack_ref(pack)?))
    }

    fn format(&self, index: usize) -> Result<Format, CodecError> {
        let start = self.layout.formats + index * V2_FORMAT_LEN;
        let line = self.slice("a line of the format table", start, V2_FORMAT_LEN)?;
        Ok(Format { compression: be32(line, 0), version: line[4], key_id: line[5] })
    }

    fn slice(&self, what: &'static str, start: usize, len: usize) -> Result<&[u8], CodecError> {
        let bytes = self.bytes.as_ref();
        let end = start.saturating_add(len);
        bytes.get(start..end).ok_or(CodecError::Truncated { what, end: end as u64, len: bytes.len() as u64 })
    }
}

impl Layout {
    fn parse(bytes: &[u8], v1_overhead: u32) -> Result<Self, CodecError> {
        let len = bytes.len() as u64;
        let truncated = |what, end| CodecError::Truncated { what, end, len };
        let version = *bytes.first().ok_or(truncated("the header", 1))?;
        let header_len = match version {
            1 => V1_HEADER_LEN,
            2 => V2_HEADER_LEN,
            other => return Err(CodecError::Header(format!("version {other} is unknown"))),
        };
        let header = bytes.get(..header_len).ok_or(truncated("the header", header_len as u64))?;
        let (key_size, entry_len, count) = (header[1], usize::from(be16(header, 2)), be32(header, 4));
        if key_size == EMPTY_KEY_SIZE {
            return Ok(Layout::empty(version));
        }
        let key_len = usize::from(key_size);
        if !(2..=MAX_KEY_LEN).contains(&key_len) {
            return Err(CodecError::Header(format!(
                "its keys have {key_len} bytes, expected 2 to {MAX_KEY_LEN}"
            )));
        }
        let entry_len_fits = match version {
            1 => entry_len >= V1_ENTRY_LEN,
            _ => V2_ENTRY_LEN.contains(&entry_len),
        };
        if !entry_len_fits {
            return Err(CodecError::Header(format!("its entries have {entry_len} bytes")));
        }
        let stride = key_len + entry_len;
        let packs = header_len as u64 + u64::from(count) * stride as u64;
        let (pack_count, format_count) = if version == 2 { (be32(header, 8), header[12]) } else { (0, 0) };
        let formats = packs + u64::from(pack_count) * V2_PACK_LEN as u64;
        let end = formats + u64::from(format_count) * V2_FORMAT_LEN as u64;
        if end > len {
            return Err(truncated("the tables", end));
        }
        Ok(Layout {
            version,
            key_len,
            stride,
            count,
            first_entry: header_len,
            packs: packs as usize,
            pack_count,
            formats: formats as usize,
            format_count: usize::from(format_count),
            base_timestamp: if version == 2 { i64::from(be32(header, 13)) } else { 0 },
            v1_overhead,
        })
    }

    fn empty(version: u8) -> Self {
        Layout {
            version,
            key_len: 0,
            stride: 0,
            count: 0,
            first_entry: 0,
            packs: 0,
            pack_count: 0,
            formats: 0,
            format_count: 0,
            base_timestamp: 0,
            v1_overhead: 0,
        }
    }
}

/// Entries of an index in order of their ids.
#[derive(Debug)]
pub struct Entries<'a, B> {
    reader: &'a IndexReader<B>,
    next: u32,
    failed: Option<CodecError>,
}

impl<B: AsRef<[u8]>> Iterator for Entries<'_, B> {
    type Item = Result<IndexEntry, CodecError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        if self.next >= self.reader.len() {
            return None;
        }
        let entry = self.reader.entry(self.next);
        self.next = if entry.is_ok() { self.next + 1 } else { self.reader.len() };
        Some(entry)
    }
}

// The callers below pass slices whose length was checked when they were cut.

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be24(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
