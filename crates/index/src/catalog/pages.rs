//! Files of checksummed pages: written section by section, read with every page checked before its first use.
//!
//! Nothing is synced to disk: after a crash a file may be there with holes in it, which the checksums find.

use crate::map::MappedFile;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::NamedTempFile;

/// The unit of checking, and of what the operating system brings in from disk.
pub(super) const PAGE: usize = 4096;
/// How much of a section is collected before it is written.
pub(super) const WRITE_BUFFER: usize = 16 * PAGE;

/// A file in the making.
#[derive(Debug)]
pub(super) struct PageWriter {
    file: NamedTempFile,
    checksums: Vec<u32>,
}

impl PageWriter {
    /// A new file in `directory` that only its owner may read, under a name that starts with `prefix`.
    pub(super) fn create(directory: &Path, prefix: &str) -> io::Result<Self> {
        let file = tempfile::Builder::new().prefix(prefix).tempfile_in(directory)?;
        Ok(PageWriter { file, checksums: Vec::new() })
    }

    /// Writes whole pages.
    fn write(&mut self, first_page: usize, pages: &[u8]) -> io::Result<()> {
        self.file.as_file().write_all_at(pages, (first_page * PAGE) as u64)?;
        let end = first_page + pages.len() / PAGE;
        if self.checksums.len() < end {
            self.checksums.resize(end, 0);
        }
        for (checksum, page) in self.checksums[first_page..end].iter_mut().zip(pages.chunks_exact(PAGE)) {
            *checksum = crc32fast::hash(page);
        }
        Ok(())
    }

    /// Writes the checksums behind the last page; `header` makes the first page from where they are. Then gives the
    /// file its name, replacing what had it, and returns it.
    pub(super) fn finish(
        mut self,
        path: &Path,
        header: impl FnOnce(ChecksumTable) -> Vec<u8>,
    ) -> io::Result<File> {
        let table: Vec<u8> = self.checksums.iter().flat_map(|checksum| checksum.to_le_bytes()).collect();
        let place = ChecksumTable {
            offset: self.checksums.len() * PAGE,
            pages: self.checksums.len(),
            checksum: crc32fast::hash(&table),
        };
        self.file.as_file().write_all_at(&table, place.offset as u64)?;
        let mut first_page = header(place);
        first_page.resize(PAGE, 0);
        self.write(0, &first_page)?;
        Ok(self.file.persist(path)?)
    }
}

/// Where the checksums of a file are; part of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChecksumTable {
    pub(super) offset: usize,
    pub(super) pages: usize,
    pub(super) checksum: u32,
}

/// A run of pages that is filled from front to back.
#[derive(Debug)]
pub(super) struct SectionWriter {
    first_page: usize,
    flushed: usize,
    buffer: Vec<u8>,
}

impl SectionWriter {
    /// A section that starts at a page; the caller sees to it that sections do not grow into each other.
    pub(super) fn new(first_page: usize) -> Self {
        SectionWriter { first_page, flushed: 0, buffer: Vec::with_capacity(WRITE_BUFFER) }
    }

    /// Appends `bytes`.
    pub(super) fn append(&mut self, file: &mut PageWriter, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(WRITE_BUFFER - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            if self.buffer.len() == WRITE_BUFFER {
                self.flush(file)?;
            }
            bytes = later;
        }
        Ok(())
    }

    /// Fills the last page with zeros.
    pub(super) fn pad_to_page(&mut self, file: &mut PageWriter) -> io::Result<()> {
        self.buffer.resize(self.buffer.len().next_multiple_of(PAGE), 0);
        if self.buffer.len() == WRITE_BUFFER { self.flush(file) } else { Ok(()) }
    }

    /// Writes what is left and says where the section is, in bytes.
    pub(super) fn finish(mut self, file: &mut PageWriter) -> io::Result<Range<usize>> {
        let start = self.first_page * PAGE;
        let end = start + self.flushed + self.buffer.len();
        self.pad_to_page(file)?;
        self.flush(file)?;
        Ok(start..end)
    }

    fn flush(&mut self, file: &mut PageWriter) -> io::Result<()> {
        file.write(self.first_page + self.flushed / PAGE, &self.buffer)?;
        self.flushed += self.buffer.len();
        self.buffer.clear();
        Ok(())
    }
}

/// What is wrong with a file.
pub(super) type Damage = &'static str;

/// A finished file, mapped into memory.
#[derive(Debug)]
pub(super) struct Pages {
    map: MappedFile,
    table: ChecksumTable,
    /// One bit per page: whether its checksum was found right.
    checked: Vec<AtomicU64>,
}

impl Pages {
    /// Maps `file`, whose first page `parse` understands, and checks the table of checksums.
    pub(super) fn open<H>(
        file: &File,
        parse: impl FnOnce(&[u8; PAGE]) -> Result<(H, ChecksumTable), Damage>,
    ) -> io::Result<Result<(Self, H), Damage>> {
        let map = MappedFile::new(file)?;
        map.expect_scattered_access();
        Ok(Self::check(map, parse))
    }

    fn check<H>(
        map: MappedFile,
        parse: impl FnOnce(&[u8; PAGE]) -> Result<(H, ChecksumTable), Damage>,
    ) -> Result<(Self, H), Damage> {
        let (header, table) = parse(map.as_ref().first_chunk().ok_or("it has no header")?)?;
        let table_len = table.pages.checked_mul(4).ok_or("its header is inconsistent")?;
        let end = table.offset.checked_add(table_len).ok_or("its header is inconsistent")?;
        let checksums = map.as_ref().get(table.offset..end).ok_or("it is cut short")?;
        if table.pages.checked_mul(PAGE) != Some(table.offset) || crc32fast::hash(checksums) != table.checksum
        {
            return Err("its checksums are damaged");
        }
        let checked = (0..table.pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok((Pages { map, table, checked }, header))
    }

    /// The bytes of `range`, once the pages they lie in have been checked.
    pub(super) fn bytes(&self, range: Range<usize>) -> Result<&[u8], Damage> {
        for page in range.start / PAGE..range.end.div_ceil(PAGE) {
            self.check_page(page)?;
        }
        self.map.as_ref().get(range).ok_or("it refers to what is not there")
    }

    /// The bytes of a range that has been checked before as a whole.
    pub(super) fn checked_bytes(&self, range: Range<usize>) -> &[u8] {
        self.map.as_ref().get(range).unwrap_or_default()
    }

    /// For scans.
    pub(super) fn map(&self) -> &MappedFile {
        &self.map
    }

    #[inline]
    fn check_page(&self, page: usize) -> Result<(), Damage> {
        let bit = 1 << (page % 64);
        let word = self.checked.get(page / 64).ok_or("it refers to what is not there")?;
        // The bit guards nothing but itself: at worst two threads check the same page.
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.check_page_now(page)?;
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    #[cold]
    fn check_page_now(&self, page: usize) -> Result<(), Damage> {
        let outside = "it refers to what is not there";
        let entry = self.table.offset + page * 4;
        let bytes = self.map.as_ref().get(page * PAGE..(page + 1) * PAGE).ok_or(outside)?;
        let expected = self.map.as_ref().get(entry..entry + 4).ok_or(outside)?;
        if page < self.table.pages && crc32fast::hash(bytes).to_le_bytes() == expected {
            Ok(())
        } else {
            Err("a page has the wrong checksum")
        }
    }
}
