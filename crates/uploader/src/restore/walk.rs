//! The walk through the tree of a snapshot: makes directories, and yields what has to be read.
//!
//! Listings are taken apart as they are read, one for each level of the tree, so that memory grows with the depth of
//! the tree and not with the number of its entries.

use super::attributes::Attributes;
use super::files::File;
use super::links::{First, HardLinks};
use super::overwrite::{Decision, Names, decide, delete_extra};
use super::places::Key;
use super::shallow;
use super::special::{Link, make_special, set_attributes};
use super::target::Directory;
use super::verify::Check;
use super::{MAX_DEPTH, Run};
use crate::{Error, Result};
use lifeboat_kopia::snapshot::{DirEntry, DirParser, EntryType, SpecialKind};
use lifeboat_repository::{Id, ObjectReader, Wanted};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::io::Read;
use std::sync::Arc;

/// How much of a listing is read at once: small, because there is one for each level of the tree.
const READ_LEN: usize = 16 << 10;

/// What the walk is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Restore,
    /// Everything is there, and is compared.
    Verify,
}

/// Yields the objects that are wanted, in the order of the tree.
pub(super) struct Walk<'a> {
    run: &'a Run<'a>,
    purpose: Purpose,
    levels: Vec<Level>,
    links: HardLinks<'a>,
    buffer: Box<[u8]>,
}

/// A directory that is being walked.
struct Level {
    directory: Arc<Directory>,
    reader: Box<dyn ObjectReader>,
    parser: DirParser,
    /// The names in it, if those that are not shall go.
    names: Option<Names>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(run: &'a Run<'a>, purpose: Purpose) -> Self {
        let buffer = vec![0; READ_LEN].into_boxed_slice();
        Walk { run, purpose, levels: Vec::new(), links: HardLinks::default(), buffer }
    }

    /// Starts with a directory whose listing is `object`. If it cannot be read, that is a failure of the directory.
    pub(super) fn enter(&mut self, directory: Directory, object: String) {
        let directory = Arc::new(directory);
        let id = Id::new(object);
        match self.run.repository.open_object(&id) {
            Ok(reader) => {
                let deletes = self.purpose == Purpose::Restore && self.run.options.delete_extra;
                let names = (deletes && directory.existed).then(Names::default);
                self.levels.push(Level { directory, reader, parser: DirParser::new(id.as_str()), names });
            }
            Err(error) => {
                self.directory_failed(&directory, error.into());
                self.left(&directory);
            }
        }
    }

    /// A single entry instead of a tree.
    pub(super) fn single(
        &mut self,
        directory: &Arc<Directory>,
        entry: DirEntry,
        name: CString,
    ) -> Option<Wanted<'a>> {
        self.file(directory, name, entry)
    }

    /// The next entry of the innermost directory; `None` at its end.
    fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        loop {
            if let Some(entry) = level.parser.next_entry()? {
                return Ok(Some(entry));
            }
            match level.reader.read(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => level.parser.feed(&self.buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // The engine's own error is inside, and says whether it concerns everything.
                    return Err(match error.downcast::<lifeboat_repository::Error>() {
                        Ok(error) => error.into(),
                        Err(error) => Error::file("read the listing of", &level.directory.path(), error),
                    });
                }
            }
        }
    }

    /// The innermost directory is at its end, or cannot be read any further.
    fn leave(&mut self, is_complete: bool) {
        let Some(level) = self.levels.pop() else { return };
        let directory = level.directory;
        let finished = level.parser.finish();
        match finished {
            Ok(_) if is_complete => {
                let deleted = level.names.map_or(Ok(()), |names| delete_extra(self.run, &directory, &names));
                if let Err(error) = deleted {
                    self.directory_failed(&directory, error);
                }
            }
            // Of a listing that is not whole nobody knows what is extra.
            Ok(_) => {}
            Err(error) if is_complete => self.directory_failed(&directory, error.into()),
            Err(_) => {}
        }
        self.left(&directory);
    }

    fn left(&self, directory: &Arc<Directory>) {
        match self.purpose {
            Purpose::Restore => self.run.part_done(directory),
            Purpose::Verify => {}
        }
    }

    fn directory_failed(&self, directory: &Directory, error: Error) {
        match super::is_outage(&error) {
            true => self.run.stop_with(error),
            false => self.run.failed(directory.relative(), error),
        }
    }

    fn entry(&mut self, entry: DirEntry) -> Option<Wanted<'a>> {
        let level = self.levels.last_mut()?;
        let directory = level.directory.clone();
        let Some(name) = entry.safe_name().and_then(|name| CString::new(name).ok()) else {
            let error = Error::UnsafeName {
                name: entry.name.to_string(),
                directory: directory.path().to_string_lossy().into_owned(),
            };
            self.run.failed(directory.relative(), error);
            return None;
        };
        if let Some(names) = &mut level.names {
            names.add(name.to_bytes());
        }
        if let Some(shallow) = &self.run.options.shallow
            && let Some(placeholder) = shallow.placeholder(&directory, &name, &entry)
        {
            if let Some(names) = &mut level.names {
                names.add(placeholder.to_bytes());
            }
            if let Err(error) = shallow::leave(self.run, &directory, &name, placeholder, entry) {
                self.run.entry_failed(&directory, &name, error);
            }
            return None;
        }
        let filter = &self.run.options.filter;
        let path = || directory.relative_to(&name);
        match filter.is_everything() {
            false if entry.is_dir() && !filter.descends(&path()) => None,
            false if !entry.is_dir() && !filter.takes(&path()) => None,
            _ if entry.is_dir() => {
                let is_above = !filter.is_everything() && !filter.takes(&path());
                if let Err(error) = self.directory(&directory, name.clone(), entry, is_above) {
                    self.run.entry_failed(&directory, &name, error);
                }
                None
            }
            _ => self.file(&directory, name, entry),
        }
    }

    /// Enters a directory; one that is only on the way to what is wanted is made when something is found.
    fn directory(
        &mut self,
        parent: &Arc<Directory>,
        name: CString,
        mut entry: DirEntry,
        is_above: bool,
    ) -> Result<()> {
        if parent.depth >= MAX_DEPTH {
            return Err(parent.failed("create", &name, Errno::NAMETOOLONG));
        }
        let mut existed = self.purpose == Purpose::Verify;
        if self.purpose == Purpose::Restore && parent.existed {
            existed = self.make_way(parent, &name)?;
        }
        let attributes = Attributes::of(&mut entry);
        let keeps_own = existed && self.run.options.existing_files == super::Existing::Skip;
        let directory = parent.child(name, existed, (!keeps_own).then_some(attributes));
        if !is_above {
            directory.fd()?;
        }
        parent.expect();
        self.enter(directory, entry.object);
        Ok(())
    }

    /// Whether a directory of this name is there. What else is there goes, if it may.
    fn make_way(&self, parent: &Directory, name: &CStr) -> Result<bool> {
        let options = &self.run.options;
        match parent.stat(name)? {
            None => Ok(false),
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                match options.overwrite_directories {
                    true => Ok(true),
                    false => Err(parent.failed("create", name, Errno::EXIST)),
                }
            }
            Some(_) if options.existing_files.replaces() => parent.unlink(name).map(|()| false),
            Some(_) => Err(parent.failed("create", name, Errno::EXIST)),
        }
    }

    fn file(&mut self, directory: &Arc<Directory>, name: CString, entry: DirEntry) -> Option<Wanted<'a>> {
        let wanted = match self.purpose {
            Purpose::Restore => self.restore(directory, name.clone(), entry),
            Purpose::Verify => Ok(Check::wanted(self.run, directory, name.clone(), entry)),
        };
        wanted.unwrap_or_else(|error| {
            self.run.entry_failed(directory, &name, error);
            None
        })
    }

    /// Remembers the first name of what may have others.
    fn remember(
        &mut self,
        group: Option<(Key, u64)>,
        directory: &Arc<Directory>,
        first: impl FnOnce() -> First<'a>,
    ) {
        if let Some((key, names)) = group {
            self.links.add(key, names, first(), directory);
        }
    }

    fn restore(
        &mut self,
        directory: &Arc<Directory>,
        name: CString,
        mut entry: DirEntry,
    ) -> Result<Option<Wanted<'a>>> {
        let attributes = Attributes::of(&mut entry);
        let decision = decide(self.run, directory, &name, &entry.entry_type, entry.size, &attributes)?;
        let group = group_of(&entry.entry_type, &attributes);
        if let Some((key, _)) = group
            && !matches!(decision, Decision::Skip)
            && self.links.add_name(self.run, key, directory, &name)?
        {
            return Ok(None);
        }
        let how = match decision {
            Decision::Restore(how) => how,
            Decision::Skip => {
                self.run.tally.skipped();
                return Ok(None);
            }
            Decision::There { has_attributes } => {
                if !has_attributes {
                    set_attributes(self.run, directory, &name, &attributes)?;
                }
                shallow::forget(directory, &name)?;
                self.run.tally.skipped();
                self.remember(group, directory, || First::There(directory.clone(), name));
                return Ok(None);
            }
        };
        let id = Id::new(entry.object);
        let is_special = attributes.extras.as_ref().is_some_and(|extras| extras.kind.is_some());
        match entry.entry_type {
            EntryType::File if is_special => {
                if make_special(self.run, directory, &name, &attributes, how)? {
                    self.remember(group, directory, || First::There(directory.clone(), name));
                }
                Ok(None)
            }
            EntryType::File => {
                let file = Arc::new(File::new(self.run, directory, name, entry.size, attributes, how));
                self.remember(group, directory, || First::File(file.clone()));
                let compare = file.compares();
                Ok(Some(Wanted { id, to: file, compare }))
            }
            EntryType::Symlink => {
                let link = Arc::new(Link::new(self.run, directory, name, attributes, how));
                self.remember(group, directory, || First::Symlink(link.clone()));
                Ok(Some(Wanted { id, to: link, compare: false }))
            }
            other => {
                let source = std::io::Error::other(format!("the unknown type {other:?}"));
                Err(Error::File { action: "restore", path: directory.join(&name), source })
            }
        }
    }
}

/// What the names of the file of an entry have in common, and how many it had; `None` if this is its only one.
fn group_of(entry_type: &EntryType, attributes: &Attributes) -> Option<(Key, u64)> {
    let extras = attributes.extras.as_deref()?;
    let link = extras.hard_link.as_ref()?;
    // A number that another file was given meanwhile must not make a pipe of it.
    let kind = match (&extras.kind, entry_type) {
        (None, EntryType::Symlink) => 1,
        (None, _) => 0,
        (Some(SpecialKind::Fifo), _) => 2,
        (Some(SpecialKind::Socket), _) => 3,
        (Some(SpecialKind::CharDevice), _) => 4,
        (Some(SpecialKind::BlockDevice), _) => 5,
        (Some(SpecialKind::Other(_)), _) => 6,
    };
    let (file_system, number) = link.group();
    Some(((file_system, number, kind), link.names))
}

impl<'a> Iterator for Walk<'a> {
    type Item = Wanted<'a>;

    fn next(&mut self) -> Option<Wanted<'a>> {
        while !self.levels.is_empty() && !self.run.is_over() {
            match self.next_entry() {
                Ok(Some(entry)) => {
                    if let Some(wanted) = self.entry(entry) {
                        return Some(wanted);
                    }
                }
                Ok(None) => self.leave(true),
                Err(error) => {
                    let is_broken = self.levels.last().is_none_or(|level| level.parser.is_broken())
                        || !matches!(error, Error::Model(_));
                    if let Some(level) = self.levels.last_mut() {
                        // What could not be read may name anything that is there.
                        level.names = None;
                        let directory = level.directory.clone();
                        self.directory_failed(&directory, error);
                    }
                    if is_broken {
                        self.leave(false);
                    }
                }
            }
        }
        None
    }
}
