//! The names in a directory in the order of a listing, also where they do not fit into memory.

use crate::placeholder::real_name;
use crate::source::SourceDir;
use crate::{Error, Result};
use lifeboat_kopia::snapshot::listed_name;
use rustix::fs::{FileType, RawDir};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ffi::CStr;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::ops::Range;

/// Room for what one system call returns.
const READ_BYTES: usize = 32 << 10;
/// Names beyond this many bytes go to a file: about a hundred thousand of them.
const WINDOW_BYTES: usize = 4 << 20;

/// What an entry is, as far as the directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Symlink,
    /// A device, pipe or socket.
    Special,
}

impl Kind {
    pub(crate) fn of(file_type: FileType) -> Kind {
        match file_type {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File,
            FileType::Symlink => Kind::Symlink,
            _ => Kind::Special,
        }
    }

    fn code(self) -> u8 {
        match self {
            Kind::Directory => b'd',
            Kind::File => b'f',
            Kind::Symlink => b's',
            Kind::Special => b'x',
        }
    }

    fn from_code(code: u8) -> Kind {
        match code {
            b'd' => Kind::Directory,
            b'f' => Kind::File,
            b's' => Kind::Symlink,
            _ => Kind::Special,
        }
    }
}

/// How names become those of a listing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spelling {
    /// Whether names that are not UTF-8 are listed under names of their own, else under their bytes.
    pub(crate) escape: bool,
    /// Whether placeholders are listed as what they stand for.
    pub(crate) placeholders: bool,
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    /// What it names.
    pub(crate) kind: Kind,
    /// Its bytes with a NUL behind them, for system calls.
    pub(crate) with_nul: &'a [u8],
    /// The name in the listing.
    pub(crate) listed: &'a [u8],
}

impl<'a> Name<'a> {
    /// For system calls.
    pub(crate) fn as_c_str(&self) -> &'a CStr {
        CStr::from_bytes_until_nul(self.with_nul).unwrap_or_default()
    }

    /// Directories first, then everything else, each bytewise.
    fn order(&self, other: &Name<'_>) -> Ordering {
        let is_dir = |name: &Name<'_>| name.kind == Kind::Directory;
        is_dir(other).cmp(&is_dir(self)).then_with(|| self.listed.cmp(other.listed))
    }
}

/// The names in a directory, in the order of a listing. A large directory takes a file in the temporary folder and
/// a bounded amount of memory.
#[derive(Debug)]
pub(crate) struct Names {
    window: Window,
    /// The next one of the window.
    next: usize,
    spilled: Option<Spilled>,
}

impl Names {
    /// Reads a directory.
    pub(crate) fn read(directory: &SourceDir, spelling: Spelling) -> Result<Names> {
        let failed = |e: std::io::Error| Error::file("list", &directory.path, e);
        let mut buffer = Vec::with_capacity(READ_BYTES);
        let mut entries = RawDir::new(&directory.fd, buffer.spare_capacity_mut());
        let mut window = Window::default();
        let mut spilled: Option<Spilled> = None;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|e| failed(e.into()))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match directory.stat(name) {
                    Ok(stat) => Kind::of(FileType::from_raw_mode(stat.st_mode)),
                    // Whoever examines it says what is wrong with it.
                    Err(_) => Kind::File,
                },
                known => Kind::of(known),
            };
            window.push(kind, name, spelling);
            if window.bytes() >= WINDOW_BYTES {
                let file = match &mut spilled {
                    Some(file) => file,
                    None => spilled.insert(Spilled::new().map_err(failed)?),
                };
                window.sort();
                file.add(&window).map_err(failed)?;
                window.clear();
            }
        }
        window.sort();
        if let Some(file) = &mut spilled {
            file.add(&window).and_then(|()| file.rewind()).map_err(failed)?;
            window = Window::default();
        }
        Ok(Names { window, next: 0, spilled })
    }

    /// Forgets all names.
    pub(crate) fn clear(&mut self) {
        self.window.clear();
        self.spilled = None;
    }

    /// Whether a regular file or link of this name is here. Not known of large directories: then it may be.
    pub(crate) fn may_have(&self, name: &[u8]) -> bool {
        self.spilled.is_some()
            || self.window.find(Kind::File, name).is_some()
            || self.window.find(Kind::Symlink, name).is_some()
    }

    /// Whether there are no directories here, and at most `most` names.
    pub(crate) fn are_few_files(&self, most: usize) -> bool {
        let is_dir = |name: Name<'_>| name.kind == Kind::Directory;
        // Directories come first.
        self.spilled.is_none() && self.window.names.len() <= most && !self.window.get(0).is_some_and(is_dir)
    }

    /// The next name, without going on to the one behind it.
    pub(crate) fn peek(&mut self) -> Option<Name<'_>> {
        match &self.spilled {
            Some(spilled) => spilled.peek(),
            None => self.window.get(self.next),
        }
    }

    /// Goes on to the name behind the next one.
    pub(crate) fn advance(&mut self) -> std::io::Result<()> {
        match &mut self.spilled {
            Some(spilled) => spilled.advance(),
            None => {
                self.next += 1;
                Ok(())
            }
        }
    }
}

/// Names in memory.
#[derive(Debug, Default)]
struct Window {
    text: Vec<u8>,
    names: Vec<Place>,
}

/// Where in the text a name lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u32,
    /// Without its NUL.
    len: u16,
    /// The listed name that follows it, if it is another one.
    listed_len: u16,
    kind: Kind,
}

impl Window {
    fn push(&mut self, kind: Kind, name: &CStr, spelling: Spelling) {
        let start = self.text.len() as u32;
        self.text.extend_from_slice(name.to_bytes_with_nul());
        let is_usual = matches!(kind, Kind::File | Kind::Directory);
        let real = real_name(name.to_bytes()).filter(|_| spelling.placeholders && is_usual);
        let escaped = if spelling.escape { listed_name(real.unwrap_or(name.to_bytes())) } else { None };
        let other = escaped.as_ref().map(String::as_bytes).or(real).unwrap_or_default();
        self.text.extend_from_slice(other);
        // Linux has no names longer than 255 bytes.
        let (len, listed_len) = (name.to_bytes().len() as u16, other.len() as u16);
        self.names.push(Place { start, len, listed_len, kind });
    }

    fn bytes(&self) -> usize {
        self.text.len() + self.names.len() * size_of::<Place>()
    }

    fn sort(&mut self) {
        let text = &self.text;
        self.names.sort_unstable_by(|a, b| a.name(text).order(&b.name(text)));
    }

    fn clear(&mut self) {
        self.text.clear();
        self.names.clear();
    }

    fn get(&self, index: usize) -> Option<Name<'_>> {
        self.names.get(index).map(|place| place.name(&self.text))
    }

    fn find(&self, kind: Kind, listed: &[u8]) -> Option<usize> {
        let wanted = Name { kind, with_nul: &[], listed };
        let place = self.names.partition_point(|place| place.name(&self.text).order(&wanted).is_lt());
        self.get(place).filter(|name| name.kind == kind && name.listed == listed).map(|_| place)
    }
}

impl Place {
    fn name<'a>(&self, text: &'a [u8]) -> Name<'a> {
        let start = self.start as usize;
        let end = start + usize::from(self.len) + 1;
        let with_nul = &text[start..end];
        let listed = match usize::from(self.listed_len) {
            0 => &with_nul[..with_nul.len() - 1],
            len => &text[end..end + len],
        };
        Name { kind: self.kind, with_nul, listed }
    }
}

/// Sorted runs of names in a file that has no name, merged as they are read.
#[derive(Debug)]
struct Spilled {
    out: BufWriter<File>,
    runs: Vec<Range<u64>>,
    heads: BinaryHeap<Reverse<Head>>,
}

/// The first name of a run that has not been taken.
#[derive(Debug)]
struct Head {
    name: OwnedName,
    run: BufReader<Section>,
}

#[derive(Debug)]
struct OwnedName {
    kind: Kind,
    with_nul: Vec<u8>,
    listed: Vec<u8>,
}

impl OwnedName {
    fn name(&self) -> Name<'_> {
        let same = &self.with_nul[..self.with_nul.len().saturating_sub(1)];
        let listed = if self.listed.is_empty() { same } else { &self.listed };
        Name { kind: self.kind, with_nul: &self.with_nul, listed }
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.name().order(&other.name.name())
    }
}

impl Spilled {
    fn new() -> std::io::Result<Spilled> {
        let out = BufWriter::new(tempfile::tempfile()?);
        Ok(Spilled { out, runs: Vec::new(), heads: BinaryHeap::new() })
    }

    fn add(&mut self, window: &Window) -> std::io::Result<()> {
        let start = self.out.stream_position()?;
        for place in &window.names {
            let name = place.name(&window.text);
            let [low, high] = (name.with_nul.len() as u16).to_le_bytes();
            let [listed_low, listed_high] = place.listed_len.to_le_bytes();
            self.out.write_all(&[place.kind.code(), low, high, listed_low, listed_high])?;
            self.out.write_all(name.with_nul)?;
            if place.listed_len > 0 {
                self.out.write_all(name.listed)?;
            }
        }
        self.runs.push(start..self.out.stream_position()?);
        Ok(())
    }

    fn rewind(&mut self) -> std::io::Result<()> {
        self.out.flush()?;
        for run in self.runs.clone() {
            let section = Section { file: self.out.get_ref().try_clone()?, rest: run };
            self.add_head(BufReader::with_capacity(READ_BYTES, section))?;
        }
        Ok(())
    }

    fn add_head(&mut self, mut run: BufReader<Section>) -> std::io::Result<()> {
        let mut header = [0; 5];
        match run.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let [code, low, high, listed_low, listed_high] = header;
        let mut with_nul = vec![0; u16::from_le_bytes([low, high]).into()];
        let mut listed = vec![0; u16::from_le_bytes([listed_low, listed_high]).into()];
        run.read_exact(&mut with_nul)?;
        run.read_exact(&mut listed)?;
        let name = OwnedName { kind: Kind::from_code(code), with_nul, listed };
        self.heads.push(Reverse(Head { name, run }));
        Ok(())
    }

    fn peek(&self) -> Option<Name<'_>> {
        self.heads.peek().map(|Reverse(head)| head.name.name())
    }

    fn advance(&mut self) -> std::io::Result<()> {
        match self.heads.pop() {
            Some(Reverse(head)) => self.add_head(head.run),
            None => Ok(()),
        }
    }
}

/// A part of a file.
#[derive(Debug)]
struct Section {
    file: File,
    rest: Range<u64>,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.rest.end - self.rest.start).unwrap_or(usize::MAX);
        let len = buffer.len().min(left);
        let count = std::os::unix::fs::FileExt::read_at(&self.file, &mut buffer[..len], self.rest.start)?;
        self.rest.start += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    const ESCAPED: Spelling = Spelling { escape: true, placeholders: false };

    fn all(names: &mut Names) -> Vec<(Kind, Vec<u8>, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some(name) = names.peek() {
            found.push((name.kind, name.as_c_str().to_bytes().to_vec(), name.listed.to_vec()));
            names.advance().unwrap();
        }
        found
    }

    #[test]
    fn directories_come_first_and_names_that_are_no_text_where_their_listed_name_belongs() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        for name in [&b"b"[..], b"a\xffz", b"a%", b"\xff", b"zz"] {
            std::fs::write(top.join(std::ffi::OsStr::from_bytes(name)), b"").unwrap();
        }
        std::fs::create_dir(top.join("z")).unwrap();
        std::os::unix::fs::symlink("x", top.join("link")).unwrap();
        let directory = SourceDir::root(top).unwrap();
        let found = all(&mut Names::read(&directory, ESCAPED).unwrap());
        let raw: Vec<&[u8]> = found.iter().map(|(_, raw, _)| &raw[..]).collect();
        assert_eq!(raw, [&b"z"[..], b"\xff", b"a%", b"a\xffz", b"b", b"link", b"zz"]);
        assert_eq!(found[0].0, Kind::Directory);
        assert!(found.iter().skip(1).is_sorted_by_key(|(_, _, listed)| listed));
        assert!(found.iter().all(|(_, _, listed)| std::str::from_utf8(listed).is_ok()));

        let directory = SourceDir::root(top).unwrap();
        let mut names = Names::read(&directory, Spelling { escape: false, placeholders: false }).unwrap();
        assert!(names.may_have(b"zz") && names.may_have(b"link") && !names.may_have(b"z"));
        assert!(!names.are_few_files(100), "there is a directory");
        let found = all(&mut names);
        assert!(found.iter().all(|(_, raw, listed)| raw == listed));
    }

    #[test]
    fn placeholders_are_listed_where_what_they_stand_for_belongs() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        for name in [&b"b"[..], b"a.kopia-entry", b"\xff.kopia-entry", b".kopia-entry"] {
            std::fs::write(top.join(std::ffi::OsStr::from_bytes(name)), b"").unwrap();
        }
        std::fs::create_dir(top.join("z.kopia-entry")).unwrap();
        std::os::unix::fs::symlink("x", top.join("link.kopia-entry")).unwrap();
        let listed = |placeholders| {
            let directory = SourceDir::root(top).unwrap();
            let mut names = Names::read(&directory, Spelling { escape: true, placeholders }).unwrap();
            all(&mut names).into_iter().map(|(_, _, listed)| listed).collect::<Vec<_>>()
        };
        let escaped = listed_name(b"\xff").unwrap().into_bytes();
        let mut files = vec![
            b".kopia-entry".to_vec(),
            b"a".to_vec(),
            b"b".to_vec(),
            b"link.kopia-entry".to_vec(),
            escaped,
        ];
        files.sort();
        assert_eq!(listed(true), [vec![b"z".to_vec()], files].concat());
        assert!(listed(false).contains(&b"a.kopia-entry".to_vec()));
    }

    #[test]
    fn names_that_do_not_fit_into_memory_come_in_the_same_order() {
        let mut window = Window::default();
        let mut spilled = Spilled::new().unwrap();
        let mut expected = Vec::new();
        for number in 0..1000u32 {
            let name = format!("{:05}\0", number.wrapping_mul(7919) % 100_000);
            let kind = if number % 3 == 0 { Kind::Directory } else { Kind::File };
            let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap();
            window.push(kind, name, ESCAPED);
            expected.push((kind != Kind::Directory, name.to_bytes().to_vec()));
            if number % 100 == 99 {
                window.push(Kind::Symlink, c"\xff", ESCAPED);
                expected.push((true, listed_name(b"\xff").unwrap().into_bytes()));
                window.sort();
                spilled.add(&window).unwrap();
                window.clear();
            }
        }
        spilled.rewind().unwrap();
        expected.sort();
        let mut names = Names { window, next: 0, spilled: Some(spilled) };
        assert!(names.may_have(b"anything"));
        let found: Vec<_> =
            all(&mut names).into_iter().map(|(kind, _, listed)| (kind != Kind::Directory, listed)).collect();
        assert_eq!(found, expected);
    }
}
