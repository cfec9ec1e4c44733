//! Zip archives, with the modes and times of Unix as Info-ZIP keeps them.

use super::{Archive, Member};
use anyhow::Result;
use jiff::tz::Offset;
use lifeboat_kopia::snapshot::SpecialKind;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use zip::write::FullFileOptions;
use zip::{CompressionMethod, DateTime, System, ZipWriter};

/// Files that may become longer than the plain format can say.
const LARGE: u64 = 0xf000_0000;
/// The field for the time of modification in seconds since 1970.
const TIME_FIELD: u16 = 0x5455;
/// That it holds the time of modification and no other.
const MODIFIED: u8 = 1;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// A zip archive that is being written.
pub(super) struct Zip {
    writer: ZipWriter<BufWriter<File>>,
    method: CompressionMethod,
    hard_links: u64,
    with_attributes: u64,
}

impl Zip {
    pub(super) fn new(file: File, compress: bool) -> Zip {
        let method = if compress { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        let writer = ZipWriter::new(BufWriter::with_capacity(256 << 10, file));
        Zip { writer, method, hard_links: 0, with_attributes: 0 }
    }

    fn start(&mut self, member: &Member<'_>, kind: u32, method: CompressionMethod) -> Result<()> {
        let entry = member.entry;
        let mut name = member.path.to_vec();
        if kind == DIRECTORY {
            name.push(b'/');
        }
        let mut options = FullFileOptions::default()
            .name(&name)
            .system(System::Unix)
            .compression_method(method)
            .external_attributes((kind | (entry.mode.to_unix() & 0o7777)) << 16)
            .large_file(entry.size >= LARGE)
            .last_modified_time(dos_time(entry.mtime));
        if let Ok(seconds) = u32::try_from(entry.file_time().seconds) {
            let [a, b, c, d] = seconds.to_le_bytes();
            options.add_extra_field(TIME_FIELD, [MODIFIED, a, b, c, d], false)?;
        }
        let has_attributes = entry.extras.as_ref().is_some_and(|extras| !extras.xattrs.is_empty());
        self.with_attributes += u64::from(has_attributes);
        Ok(self.writer.start_file_with_options(options)?)
    }
}

/// The time that programs show which know no other: of two seconds' precision, from 1980 on.
fn dos_time(time: jiff::Timestamp) -> DateTime {
    let time = Offset::UTC.to_datetime(time);
    let part = |number: i8| u8::try_from(number).unwrap_or(0);
    u16::try_from(time.year())
        .ok()
        .and_then(|year| {
            let (month, day) = (part(time.month()), part(time.day()));
            let (hour, minute, second) = (part(time.hour()), part(time.minute()), part(time.second()));
            DateTime::from_date_and_time(year, month, day, hour, minute, second).ok()
        })
        .unwrap_or(DateTime::DEFAULT)
}

impl Archive for Zip {
    fn directory(&mut self, member: &Member<'_>) -> Result<()> {
        self.start(member, DIRECTORY, CompressionMethod::Stored)
    }

    fn file(&mut self, member: &Member<'_>, data: &mut dyn Read) -> Result<()> {
        self.start(member, REGULAR, self.method)?;
        std::io::copy(data, &mut self.writer)?;
        Ok(())
    }

    fn symlink(&mut self, member: &Member<'_>, target: &[u8]) -> Result<()> {
        self.start(member, SYMLINK, CompressionMethod::Stored)?;
        Ok(self.writer.write_all(target)?)
    }

    fn hard_link(&mut self, _: &Member<'_>, _: &[u8]) -> Result<bool> {
        self.hard_links += 1;
        Ok(false)
    }

    fn special(&mut self, _: &Member<'_>, _: &SpecialKind) -> Result<bool> {
        Ok(false)
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>> {
        self.writer.finish()?.flush()?;
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
