//! A tree of a snapshot as one file: a tar, compressed or not, or a zip archive.
//!
//! Entries are read one after another, in the order of the tree, and written as they come: nothing of their data is kept in
//! memory.
//! An archive appears under its name when it is complete.

mod tar;
mod zip;

use crate::tree::Browser;
use anyhow::{Context, Result, bail};
use lifeboat_kopia::snapshot::{DirEntries, DirEntry, EntryType, HardLink, SpecialKind};
use lifeboat_repository::{Id, ObjectReader};
use lifeboat_uploader::{Cancel, PathFilter};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::NamedTempFile;

/// The longest target that a link can have on Linux.
const MAX_LINK: u64 = 4096;
/// Trees are not followed deeper than this.
const MAX_DEPTH: usize = 4096;

/// The kinds of archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A zip archive.
    Zip,
    /// A zip archive without compression.
    ZipNocompress,
    /// A tar archive.
    Tar,
    /// A tar archive, compressed by gzip.
    Tgz,
}

impl Format {
    /// What the name of a file says.
    pub fn of(path: &Path) -> Option<Format> {
        let name = path.as_os_str().as_bytes();
        let ends = |suffix: &str| name.ends_with(suffix.as_bytes());
        match () {
            () if ends(".zip") => Some(Format::Zip),
            () if ends(".tar") => Some(Format::Tar),
            () if ends(".tar.gz") || ends(".tgz") => Some(Format::Tgz),
            () => None,
        }
    }
}

/// What was put into an archive, and what was not.
#[derive(Debug, Default)]
pub struct Contents {
    /// Files, links and special files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What could not be read, and why.
    pub failures: Vec<(PathBuf, String)>,
    /// What the format has no place for, in words.
    pub left_out: Vec<String>,
}

/// How far it is, for whoever shows that.
#[derive(Debug, Default)]
pub struct Written {
    /// Files, links and special files.
    pub files: AtomicU64,
    /// Bytes of files.
    pub bytes: AtomicU64,
}

/// Something of a tree, and where in it.
struct Member<'a> {
    /// Its path below the root, without a slash at either end.
    path: &'a [u8],
    entry: &'a DirEntry,
}

/// An archive that is being written. What it has no place for it leaves out, and counts.
trait Archive {
    fn directory(&mut self, member: &Member<'_>) -> Result<()>;
    fn file(&mut self, member: &Member<'_>, data: &mut dyn Read) -> Result<()>;
    fn symlink(&mut self, member: &Member<'_>, target: &[u8]) -> Result<()>;
    /// Another name of a file that was written as `first`; `false` if the format has no such thing.
    fn hard_link(&mut self, member: &Member<'_>, first: &[u8]) -> Result<bool>;
    /// A device, pipe or socket; `false` if the format has no such thing.
    fn special(&mut self, member: &Member<'_>, kind: &SpecialKind) -> Result<bool>;
    /// Ends the archive; returns what was left out of what is in it.
    fn finish(self: Box<Self>) -> Result<Vec<String>>;
}

/// Writes what is below `root`, or `root` itself if it is a file, into the archive `target`.
pub fn write(
    trees: Browser<'_>,
    root: &DirEntry,
    format: Format,
    target: &Path,
    filter: &PathFilter,
    written: &Written,
    cancel: &Cancel,
) -> Result<Contents> {
    let place = Place::new(format, target)?;
    let archive: Box<dyn Archive> = match format {
        Format::Zip => Box::new(zip::Zip::new(place.file()?, nameless_beside(target)?, true)),
        Format::ZipNocompress => Box::new(zip::Zip::new(place.file()?, nameless_beside(target)?, false)),
        Format::Tar => Box::new(tar::Tar::new(place.file()?, false)),
        Format::Tgz => Box::new(tar::Tar::new(place.file()?, true)),
    };
    let links = HashMap::new();
    let mut walk =
        Walk { trees, filter, written, cancel, archive, links, contents: Contents::default(), missing: 0 };
    match root.is_dir() {
        true => walk.tree(root)?,
        false => {
            let name = root.safe_name().map_or_else(|| b"file".to_vec(), <[u8]>::to_vec);
            walk.add(&Member { path: &name, entry: root })?;
        }
    }
    let Walk { archive, mut contents, missing, .. } = walk;
    contents.left_out = archive.finish()?;
    if missing > 0 {
        contents.left_out.push(format!("{missing} devices, pipes or sockets"));
    }
    contents.files = written.files.load(Ordering::Relaxed);
    contents.bytes = written.bytes.load(Ordering::Relaxed);
    place.keep(target)?;
    Ok(contents)
}

fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file where there is room for the archive; it goes when it is closed.
fn nameless_beside(target: &Path) -> Result<File> {
    tempfile::tempfile_in(folder_of(target))
        .with_context(|| format!("cannot make a temporary file beside {}", target.display()))
}

/// Where an archive is written.
enum Place {
    /// A file that gets its name in the end.
    New(NamedTempFile),
    /// A pipe or device.
    There(File),
}

impl Place {
    fn new(format: Format, target: &Path) -> Result<Place> {
        let failed = || format!("cannot write {}", target.display());
        match std::fs::metadata(target) {
            Ok(found) if found.is_dir() => {
                bail!(
                    "{} is a directory; an archive is a file (--mode local restores into it)",
                    target.display()
                )
            }
            Ok(found) if !found.is_file() => {
                if matches!(format, Format::Zip | Format::ZipNocompress) {
                    bail!(
                        "a zip archive cannot be written to {}: it is not written from front to back; use a file, or tar",
                        target.display()
                    );
                }
                Ok(Place::There(OpenOptions::new().write(true).open(target).with_context(failed)?))
            }
            _ => {
                let mut builder = tempfile::Builder::new();
                // As any other file that a program makes; the user's mask says what is left of it.
                builder.prefix(".lifeboat-").permissions(PermissionsExt::from_mode(0o666));
                Ok(Place::New(builder.tempfile_in(folder_of(target)).with_context(failed)?))
            }
        }
    }

    fn file(&self) -> Result<File> {
        Ok(match self {
            Place::New(file) => file.as_file().try_clone()?,
            Place::There(file) => file.try_clone()?,
        })
    }

    fn keep(self, target: &Path) -> Result<()> {
        if let Place::New(file) = self {
            file.persist(target).with_context(|| format!("cannot write {}", target.display()))?;
        }
        Ok(())
    }
}

/// The way through a tree.
struct Walk<'a> {
    trees: Browser<'a>,
    filter: &'a PathFilter,
    written: &'a Written,
    cancel: &'a Cancel,
    archive: Box<dyn Archive>,
    /// Files of which more names may come: the first one, and how many are left.
    links: HashMap<(u64, u64), (Vec<u8>, u64)>,
    contents: Contents,
    /// Special files that the format has no place for.
    missing: u64,
}

impl Walk<'_> {
    fn tree(&mut self, root: &DirEntry) -> Result<()> {
        let mut levels = vec![(Vec::new(), self.trees.children(root)?)];
        while let Some((path, entries)) = levels.last_mut() {
            if self.cancel.is_cancelled() {
                bail!("cancelled; there is no archive");
            }
            let entry = match entries.next() {
                None => {
                    levels.pop();
                    continue;
                }
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    let path = PathBuf::from(OsStr::from_bytes(path));
                    self.contents.failures.push((path, error.to_string()));
                    levels.pop();
                    continue;
                }
            };
            let Some(name) = entry.safe_name() else {
                let path = PathBuf::from(OsStr::from_bytes(path));
                self.contents.failures.push((path, format!("{:?} is not a file name", entry.name)));
                continue;
            };
            let separator = if path.is_empty() { &b""[..] } else { b"/" };
            let path = [path, separator, name].concat();
            if let Some(below) = self.entry(&path, &entry, levels.len())? {
                levels.push((path, below));
            }
        }
        Ok(())
    }

    /// Adds an entry if it is wanted; returns what is below it.
    fn entry(
        &mut self,
        path: &[u8],
        entry: &DirEntry,
        depth: usize,
    ) -> Result<Option<DirEntries<Box<dyn ObjectReader>>>> {
        let as_path = Path::new(OsStr::from_bytes(path));
        let member = Member { path, entry };
        if !entry.is_dir() {
            if self.filter.takes(as_path) {
                self.add(&member)?;
            }
            return Ok(None);
        }
        if !self.filter.descends(as_path) {
            return Ok(None);
        }
        match self.trees.children(entry) {
            _ if depth >= MAX_DEPTH => self.failed(&member, "it is too deep".to_owned()),
            Err(error) => self.failed(&member, format!("{error:#}")),
            Ok(below) => {
                if self.filter.takes(as_path) {
                    self.archive.directory(&member)?;
                    self.contents.directories += 1;
                }
                return Ok(Some(below));
            }
        }
        Ok(None)
    }

    fn failed(&mut self, member: &Member<'_>, error: String) {
        self.contents.failures.push((PathBuf::from(OsStr::from_bytes(member.path)), error));
    }

    /// Adds what is not a directory.
    fn add(&mut self, member: &Member<'_>) -> Result<()> {
        let entry = member.entry;
        let extras = entry.extras.as_deref();
        if let Some(kind) = extras.and_then(|extras| extras.kind.as_ref()) {
            match self.archive.special(member, kind)? {
                true => _ = self.written.files.fetch_add(1, Ordering::Relaxed),
                false => self.missing += 1,
            }
            return Ok(());
        }
        // Once the header is written there is no way back: what is lost has to be known before.
        let is_whole = self.trees.0.is_whole(&Id::new(entry.object.clone()));
        let reader = match is_whole {
            Ok(true) => self.trees.read(entry),
            Ok(false) => Err(anyhow::anyhow!("unable to open object: {}: its data is lost", entry.object)),
            Err(error) => Err(error.into()),
        };
        let mut reader = match reader {
            Ok(reader) => reader,
            Err(error) => {
                self.failed(member, format!("{error:#}"));
                return Ok(());
            }
        };
        match &entry.entry_type {
            EntryType::File => {
                let group = extras.and_then(|extras| extras.hard_link.as_ref());
                let is_there = match group {
                    Some(group) => self.is_another_name(group, member)?,
                    None => false,
                };
                if !is_there {
                    let mut data = Exactly {
                        reader: &mut *reader,
                        left: entry.size,
                        written: &self.written.bytes,
                        cancel: self.cancel,
                    };
                    self.archive.file(member, &mut data).with_context(|| {
                        format!("cannot put {:?} into the archive", String::from_utf8_lossy(member.path))
                    })?;
                }
            }
            EntryType::Symlink => {
                let mut target = Vec::new();
                reader.take(MAX_LINK).read_to_end(&mut target)?;
                self.archive.symlink(member, &target)?;
            }
            other => {
                self.failed(member, format!("it is of the unknown type {other:?}"));
                return Ok(());
            }
        }
        self.written.files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a file is in the archive already, under another name, and was given this one.
    fn is_another_name(&mut self, group: &HardLink, member: &Member<'_>) -> Result<bool> {
        let Some((first, left)) = self.links.get_mut(&group.group()) else {
            if group.names > 1 {
                self.links.insert(group.group(), (member.path.to_vec(), group.names - 1));
            }
            return Ok(false);
        };
        *left -= 1;
        let is_last = *left == 0;
        let linked = self.archive.hard_link(member, first)?;
        if is_last {
            self.links.remove(&group.group());
        }
        Ok(linked)
    }
}

/// The bytes of a file: as many as its entry says, or it is an error. Counts them, and ends with a cancel.
struct Exactly<'a> {
    reader: &'a mut dyn ObjectReader,
    left: u64,
    written: &'a AtomicU64,
    cancel: &'a Cancel,
}

impl Read for Exactly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("cancelled; there is no archive"));
        }
        let count = self.reader.read(buffer)?;
        let wrong = |than| io::Error::other(format!("its object has {than} bytes than the directory says"));
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(wrong("fewer"));
        }
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| wrong("more"))?;
        self.written.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_an_archive_is() {
        let formats = [
            ("a.zip", Some(Format::Zip)),
            ("a.tar", Some(Format::Tar)),
            ("a.tar.gz", Some(Format::Tgz)),
            ("a.tgz", Some(Format::Tgz)),
            ("zip", None),
            ("a.gz", None),
        ];
        for (name, format) in formats {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }
}
