//! Tar archives, with extended headers (pax) for what the plain ones are too small for.

use super::{Archive, Member};
use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use lifeboat_kopia::snapshot::{ExactTime, SpecialKind};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use tar::{Builder, EntryType, Header};

/// Names up to this length fit into a plain header.
const NAME_BYTES: usize = 100;
/// Numbers up to this one fit into the fields of owner and group.
const MAX_OWNER: u32 = 0o777_7777;
/// Numbers up to this one fit into the fields of size and time.
const MAX_NUMBER: u64 = 0o777_7777_7777;

/// A tar archive that is being written.
pub(super) struct Tar {
    builder: Builder<Out>,
    files_with_holes: u64,
    attributes_without_names: u64,
}

/// Where it goes.
enum Out {
    Plain(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::Plain(out) => out.write(bytes),
            Out::Gzip(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Plain(out) => out.flush(),
            Out::Gzip(out) => out.flush(),
        }
    }
}

impl Tar {
    pub(super) fn new(file: File, compress: bool) -> Tar {
        let out = BufWriter::with_capacity(256 << 10, file);
        let out = match compress {
            true => Out::Gzip(Box::new(GzEncoder::new(out, Compression::default()))),
            false => Out::Plain(out),
        };
        Tar { builder: Builder::new(out), files_with_holes: 0, attributes_without_names: 0 }
    }

    /// Writes the headers of an entry and what follows them.
    fn append(
        &mut self,
        member: &Member<'_>,
        entry_type: EntryType,
        link: &[u8],
        size: u64,
        data: &mut dyn Read,
    ) -> Result<()> {
        let entry = member.entry;
        let mut header = Header::new_ustar();
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
        let mut path = member.path.to_vec();
        if entry_type == EntryType::Directory {
            path.push(b'/');
        }
        let old = header.as_old_mut();
        fill(&mut old.name, &path, "path", &mut records);
        fill(&mut old.linkname, link, "linkpath", &mut records);
        header.set_entry_type(entry_type);
        header.set_mode(entry.mode.to_unix() & 0o7777);
        for (name, number, set) in
            [("uid", entry.uid, Header::set_uid as fn(&mut Header, u64)), ("gid", entry.gid, Header::set_gid)]
        {
            set(&mut header, number.min(MAX_OWNER).into());
            if number > MAX_OWNER {
                records.push((name.to_owned(), number.to_string().into_bytes()));
            }
        }
        header.set_size(size.min(MAX_NUMBER));
        if size > MAX_NUMBER {
            records.push(("size".to_owned(), size.to_string().into_bytes()));
        }
        let time = entry.file_time();
        let seconds = u64::try_from(time.seconds).unwrap_or(0).min(MAX_NUMBER);
        header.set_mtime(seconds);
        if i64::try_from(seconds) != Ok(time.seconds) || time.nanoseconds > 0 {
            records.push(("mtime".to_owned(), decimal(time).into_bytes()));
        }
        let extras = entry.extras.as_deref();
        // A further name is the same file, which has its attributes already.
        for (name, value) in extras.iter().filter(|_| entry_type != EntryType::Link).flat_map(|e| &e.xattrs) {
            match str::from_utf8(&name.0) {
                Ok(name) if !name.contains('=') => {
                    records.push((format!("SCHILY.xattr.{name}"), value.0.clone()));
                }
                _ => self.attributes_without_names += 1,
            }
        }
        if let Some(device) = extras.and_then(|extras| extras.device.as_ref()) {
            header.set_device_major(device.major)?;
            header.set_device_minor(device.minor)?;
        }
        header.set_cksum();
        self.builder.append_pax_extensions(records.iter().map(|(key, value)| (&**key, &value[..])))?;
        Ok(self.builder.append(&header, data)?)
    }
}

/// Puts a name into its field, or as much as there is room for, and all of it into a record.
fn fill(field: &mut [u8; NAME_BYTES], name: &[u8], record: &str, records: &mut Vec<(String, Vec<u8>)>) {
    let length = name.len().min(NAME_BYTES);
    field[..length].copy_from_slice(&name[..length]);
    if name.len() > NAME_BYTES {
        records.push((record.to_owned(), name.to_vec()));
    }
}

/// Seconds since 1970 with a fraction.
fn decimal(time: ExactTime) -> String {
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let nanoseconds = nanoseconds.unsigned_abs();
    let text = format!("{sign}{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Archive for Tar {
    fn directory(&mut self, member: &Member<'_>) -> Result<()> {
        self.append(member, EntryType::Directory, b"", 0, &mut io::empty())
    }

    fn file(&mut self, member: &Member<'_>, data: &mut dyn Read) -> Result<()> {
        let extras = member.entry.extras.as_deref();
        self.files_with_holes += u64::from(extras.is_some_and(|extras| extras.holes.iter().next().is_some()));
        self.append(member, EntryType::Regular, b"", member.entry.size, data)
    }

    fn symlink(&mut self, member: &Member<'_>, target: &[u8]) -> Result<()> {
        self.append(member, EntryType::Symlink, target, 0, &mut io::empty())
    }

    fn hard_link(&mut self, member: &Member<'_>, first: &[u8]) -> Result<bool> {
        self.append(member, EntryType::Link, first, 0, &mut io::empty())?;
        Ok(true)
    }

    fn special(&mut self, member: &Member<'_>, kind: &SpecialKind) -> Result<bool> {
        let entry_type = match kind {
            SpecialKind::Fifo => EntryType::Fifo,
            SpecialKind::CharDevice => EntryType::Char,
            SpecialKind::BlockDevice => EntryType::Block,
            SpecialKind::Socket | SpecialKind::Other(_) => return Ok(false),
        };
        self.append(member, entry_type, b"", 0, &mut io::empty())?;
        Ok(true)
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>> {
        match self.builder.into_inner()? {
            Out::Plain(mut out) => out.flush()?,
            Out::Gzip(out) => out.finish()?.flush()?,
        }
        let left_out = [
            (self.files_with_holes, "files have zeros where they had holes"),
            (self.attributes_without_names, "extended attributes whose names are no text"),
        ];
        let left_out = left_out.into_iter().filter(|(count, _)| *count > 0);
        Ok(left_out.map(|(count, what)| format!("{count} {what}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_decimal_numbers() {
        for (seconds, nanoseconds, text) in
            [(1, 500_000_000, "1.5"), (-2, 500_000_000, "-1.5"), (-1, 0, "-1"), (100, 1, "100.000000001")]
        {
            assert_eq!(decimal(ExactTime { seconds, nanoseconds }), text);
        }
    }
}
