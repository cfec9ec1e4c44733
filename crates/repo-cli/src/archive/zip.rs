//! Zip archives, with the modes and times of Unix as Info-ZIP keeps them.
//!
//! The list of entries stands at the end of an archive. Until then it is in a temporary file: it grows with the number of
//! entries, and memory does not.

use super::{Archive, Member};
use anyhow::{Context, Result};
use flate2::write::DeflateEncoder;
use flate2::{Compression, CrcReader};
use jiff::tz::Offset;
use lifeboat_kopia::snapshot::SpecialKind;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::FileExt;

/// What is written at once.
const BUFFER: usize = 256 << 10;
/// Files that may become longer than the plain format can say, also if they cannot be compressed.
const LARGE: u64 = 0xf000_0000;
/// What stands where a number does not fit, which is in a longer field elsewhere then.
const ELSEWHERE: u32 = u32::MAX;
/// The same for the number of entries.
const MANY: u16 = u16::MAX;
/// The field for numbers that do not fit.
const LONG_FIELD: u16 = 0x0001;
/// The field for the time of modification in seconds since 1970.
const TIME_FIELD: u16 = 0x5455;
/// That it holds the time of modification and no other.
const MODIFIED: u8 = 1;
/// What a reader has to understand: directories and compression, or numbers that do not fit, too.
const PLAIN_VERSION: u16 = 20;
const LONG_VERSION: u16 = 45;
/// That attributes are those of Unix.
const UNIX: u16 = 3 << 8;
/// That a name is in UTF-8.
const UTF8: u16 = 1 << 11;
/// The earliest day that the plain format knows, 1980-01-01.
const FIRST_DAY: (u16, u16) = (0, 1 << 5 | 1);
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// How data is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Stored = 0,
    Deflated = 8,
}

/// A zip archive that is being written.
pub(super) struct Zip {
    out: Counted<File>,
    /// The list of entries so far.
    list: Counted<File>,
    count: u64,
    method: Method,
    hard_links: u64,
    with_attributes: u64,
}

/// What is written somewhere, and how much that is.
struct Counted<W: Write> {
    out: BufWriter<W>,
    length: u64,
}

impl<W: Write> Counted<W> {
    fn new(out: W) -> Self {
        Counted { out: BufWriter::with_capacity(BUFFER, out), length: 0 }
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.length += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// What both headers of an entry say: the one before its data, and the one in the list.
struct Header {
    name: Vec<u8>,
    method: Method,
    /// Time and day.
    time: (u16, u16),
    seconds: Option<u32>,
    attributes: u32,
    is_large: bool,
    offset: u64,
    checksum: u32,
    stored: u64,
    size: u64,
}

impl Header {
    fn version(&self) -> u16 {
        if self.is_large || self.offset >= u64::from(ELSEWHERE) { LONG_VERSION } else { PLAIN_VERSION }
    }

    /// The part that both have.
    fn common(&self, extra: &[u8]) -> Result<Vec<u8>> {
        let too_long = || format!("the path {:?} is too long for zip", String::from_utf8_lossy(&self.name));
        let name_length = u16::try_from(self.name.len()).with_context(too_long)?;
        let [stored, size] = [self.stored, self.size].map(|size| match self.is_large {
            true => ELSEWHERE,
            false => u32::try_from(size).unwrap_or(ELSEWHERE),
        });
        let flags = if str::from_utf8(&self.name).is_ok() { UTF8 } else { 0 };
        let mut bytes = self.version().to_le_bytes().to_vec();
        for number in [flags, self.method as u16, self.time.0, self.time.1] {
            bytes.extend(number.to_le_bytes());
        }
        for number in [self.checksum, stored, size] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(name_length.to_le_bytes());
        bytes.extend(u16::try_from(extra.len())?.to_le_bytes());
        Ok(bytes)
    }

    /// The fields behind the name; `long` are numbers that do not fit elsewhere.
    fn extra(&self, long: &[u64]) -> Vec<u8> {
        let mut fields = Vec::new();
        let mut add = |id: u16, data: &[u8]| {
            fields.extend(id.to_le_bytes());
            fields.extend((data.len() as u16).to_le_bytes());
            fields.extend(data);
        };
        // First, so that the sizes are found again.
        if !long.is_empty() {
            add(LONG_FIELD, &long.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
        }
        if let Some(seconds) = self.seconds {
            let [a, b, c, d] = seconds.to_le_bytes();
            add(TIME_FIELD, &[MODIFIED, a, b, c, d]);
        }
        fields
    }

    /// The header before the data.
    fn before_data(&self) -> Result<Vec<u8>> {
        let extra = if self.is_large { self.extra(&[self.size, self.stored]) } else { self.extra(&[]) };
        Ok([b"PK\x03\x04", &self.common(&extra)?[..], &self.name, &extra].concat())
    }

    /// The header in the list.
    fn in_list(&self) -> Result<Vec<u8>> {
        let mut long = if self.is_large { vec![self.size, self.stored] } else { Vec::new() };
        let offset = u32::try_from(self.offset).unwrap_or(ELSEWHERE);
        if offset == ELSEWHERE {
            long.push(self.offset);
        }
        let extra = self.extra(&long);
        let mut bytes = b"PK\x01\x02".to_vec();
        bytes.extend((UNIX | self.version()).to_le_bytes());
        bytes.extend(self.common(&extra)?);
        // No comment, on the first disk, of no known kind.
        bytes.extend([0; 6]);
        bytes.extend(self.attributes.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        Ok([&bytes, &self.name[..], &extra].concat())
    }
}

impl Zip {
    /// Begins an archive in an empty file; `list` is where its list of entries is meanwhile.
    pub(super) fn new(file: File, list: File, compress: bool) -> Zip {
        let method = if compress { Method::Deflated } else { Method::Stored };
        let (out, list) = (Counted::new(file), Counted::new(list));
        Zip { out, list, count: 0, method, hard_links: 0, with_attributes: 0 }
    }

    fn add(&mut self, member: &Member<'_>, kind: u32, method: Method, data: &mut dyn Read) -> Result<()> {
        let entry = member.entry;
        let mut name = member.path.to_vec();
        if kind == DIRECTORY {
            name.push(b'/');
        }
        let has_attributes = entry.extras.as_ref().is_some_and(|extras| !extras.xattrs.is_empty());
        self.with_attributes += u64::from(has_attributes);
        let mut header = Header {
            name,
            method,
            time: plain_time(entry.mtime),
            seconds: u32::try_from(entry.file_time().seconds).ok(),
            attributes: (kind | (entry.mode.to_unix() & 0o7777)) << 16,
            is_large: kind == REGULAR && entry.size >= LARGE,
            offset: self.out.length,
            checksum: 0,
            stored: 0,
            size: 0,
        };
        self.out.write_all(&header.before_data()?)?;
        let start = self.out.length;
        let mut data = CrcReader::new(data);
        header.size = match method {
            Method::Stored => io::copy(&mut data, &mut self.out)?,
            Method::Deflated => {
                let mut encoder = DeflateEncoder::new(&mut self.out, Compression::default());
                let size = io::copy(&mut data, &mut encoder)?;
                encoder.finish()?;
                size
            }
        };
        header.checksum = data.crc().sum();
        header.stored = self.out.length - start;
        if header.stored > 0 {
            // It stands before the data, and what it says is known only now.
            self.out.flush()?;
            self.out.out.get_ref().write_all_at(&header.before_data()?, header.offset)?;
        }
        self.list.write_all(&header.in_list()?)?;
        self.count += 1;
        Ok(())
    }

    /// What stands behind the list: where it is, and how long.
    fn end(&self, start: u64) -> Vec<u8> {
        let length = self.list.length;
        let count = u16::try_from(self.count).unwrap_or(MANY);
        let [short_length, short_start] =
            [length, start].map(|number| u32::try_from(number).unwrap_or(ELSEWHERE));
        let mut bytes = Vec::new();
        if count == MANY || short_length == ELSEWHERE || short_start == ELSEWHERE {
            bytes.extend(b"PK\x06\x06");
            bytes.extend(44u64.to_le_bytes());
            bytes.extend((UNIX | LONG_VERSION).to_le_bytes());
            bytes.extend(LONG_VERSION.to_le_bytes());
            bytes.extend([0; 8]);
            for number in [self.count, self.count, length, start] {
                bytes.extend(number.to_le_bytes());
            }
            bytes.extend(b"PK\x06\x07");
            bytes.extend([0; 4]);
            bytes.extend((start + length).to_le_bytes());
            bytes.extend(1u32.to_le_bytes());
        }
        bytes.extend(b"PK\x05\x06");
        bytes.extend([0; 4]);
        bytes.extend(count.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(short_length.to_le_bytes());
        bytes.extend(short_start.to_le_bytes());
        bytes.extend([0; 2]);
        bytes
    }
}

/// The time and day that programs show which know no other: of two seconds' precision, from 1980 to 2107.
fn plain_time(time: jiff::Timestamp) -> (u16, u16) {
    let time = Offset::UTC.to_datetime(time);
    let part = |number: i8| u16::try_from(number).unwrap_or(0);
    match u16::try_from(i32::from(time.year()) - 1980) {
        Ok(year) if year < 128 => (
            (part(time.hour()) << 11) | (part(time.minute()) << 5) | (part(time.second()) / 2),
            (year << 9) | (part(time.month()) << 5) | part(time.day()),
        ),
        _ => FIRST_DAY,
    }
}

impl Archive for Zip {
    fn directory(&mut self, member: &Member<'_>) -> Result<()> {
        self.add(member, DIRECTORY, Method::Stored, &mut io::empty())
    }

    fn file(&mut self, member: &Member<'_>, data: &mut dyn Read) -> Result<()> {
        self.add(member, REGULAR, self.method, data)
    }

    fn symlink(&mut self, member: &Member<'_>, mut target: &[u8]) -> Result<()> {
        self.add(member, SYMLINK, Method::Stored, &mut target)
    }

    fn hard_link(&mut self, _: &Member<'_>, _: &[u8]) -> Result<bool> {
        self.hard_links += 1;
        Ok(false)
    }

    fn special(&mut self, _: &Member<'_>, _: &SpecialKind) -> Result<bool> {
        Ok(false)
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>> {
        let start = self.out.length;
        self.list.flush()?;
        let mut list = self.list.out.get_ref();
        list.rewind()?;
        io::copy(&mut list, &mut self.out)?;
        let end = self.end(start);
        self.out.write_all(&end)?;
        self.out.flush()?;
        let mut left_out = vec!["owners and groups".to_owned(), "parts of seconds".to_owned()];
        if self.with_attributes > 0 {
            left_out.push(format!("extended attributes of {} entries", self.with_attributes));
        }
        if self.hard_links > 0 {
            left_out.push(format!("{} further names of files are files of their own", self.hard_links));
        }
        Ok(left_out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_kopia::snapshot::DirEntry;

    #[test]
    fn more_entries_than_the_plain_format_can_count_are_all_found() {
        const COUNT: usize = 70_000;
        let file = tempfile::tempfile().unwrap();
        let mut zip = Box::new(Zip::new(file.try_clone().unwrap(), tempfile::tempfile().unwrap(), true));
        let entry = DirEntry::default();
        for number in 0..COUNT {
            let (path, text) = (format!("file {number}"), number.to_string());
            zip.file(&Member { path: path.as_bytes(), entry: &entry }, &mut text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        let mut found = zip::ZipArchive::new(file).unwrap();
        assert_eq!(found.len(), COUNT);
        for number in [0, 65_535, COUNT - 1] {
            let mut text = String::new();
            found.by_name(&format!("file {number}")).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, number.to_string());
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_in_longer_fields() {
        // As of an entry behind five gigabytes, which nobody writes in a test.
        let far = 5 << 30;
        let header = Header {
            name: b"x".to_vec(),
            method: Method::Stored,
            time: FIRST_DAY,
            seconds: None,
            attributes: 0,
            is_large: true,
            offset: far,
            checksum: 7,
            stored: far + 1,
            size: far + 2,
        };
        let before = header.before_data().unwrap();
        let field = [
            &LONG_FIELD.to_le_bytes()[..],
            &16u16.to_le_bytes(),
            &(far + 2).to_le_bytes(),
            &(far + 1).to_le_bytes(),
        ];
        assert_eq!(before[31..], field.concat());
        assert_eq!(before[18..26], [0xff; 8]);
        let list = header.in_list().unwrap();
        assert_eq!(list[42..46], [0xff; 4]);
        assert_eq!(list[list.len() - 8..], far.to_le_bytes());
        let long = Header { name: vec![b'x'; 70_000], ..header };
        assert!(long.before_data().unwrap_err().to_string().contains("too long for zip"));
    }

    #[test]
    fn times_that_the_plain_format_does_not_know_are_the_first() {
        let time = |text: &str| plain_time(text.parse().unwrap());
        assert_eq!(time("1969-01-01T00:00:00Z"), FIRST_DAY);
        assert_eq!(time("2108-01-01T00:00:00Z"), FIRST_DAY);
        assert_eq!(time("2026-03-04T05:06:08Z"), (5 << 11 | 6 << 5 | 4, 46 << 9 | 3 << 5 | 4));
    }
}
