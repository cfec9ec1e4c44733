//! Files and links of a directory, many at a time: unchanged ones are taken over, small ones read and written
//! together, large ones handed on.

use super::directory::{Directory, DirectorySupply, Open, Part, PreviousDir};
use super::entry::{head_entry, is_rewritten, is_same_state, is_unchanged, set_extras};
use super::large::{Gathering, LargeFile, LargeSpec};
use super::parents::ParentDir;
use super::{Room, Run};
use crate::compression::compressor_for;
use crate::source::{Kind, SourceDir, changed, extras_of, extras_of_open, holes_of, is_sparse};
use crate::{Error, Result};
use jiff::Timestamp;
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::{DirEntry, Extras, Holes, RawEntry, encode_entry};
use lifeboat_repository::{AccessMode, BackupMode, DataType, ObjectInBuffer, ObjectWriteOptions};
use rustix::fs::{FileType, Stat};
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Names of files in a directory, and what its parents say about them.
#[derive(Debug, Default)]
pub(super) struct Batch {
    text: Vec<u8>,
    pub(super) items: Vec<Item>,
    /// For each item and parent, where in the text the parent's entry is.
    previous: Vec<Option<Range<usize>>>,
    extras_until: Vec<Option<Timestamp>>,
}

#[derive(Debug)]
pub(super) struct Item {
    pub(super) kind: Kind,
    /// With the NUL behind it.
    name: Range<usize>,
    /// The name in the listing, if it is another one.
    listed: Option<Range<usize>>,
}

/// A directory to be opened.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) name: CString,
    pub(super) listed: Vec<u8>,
    /// What each parent says about it.
    pub(super) previous: Vec<Option<Vec<u8>>>,
    /// When each parent was begun, if it has extras.
    pub(super) recorded: Vec<Option<Timestamp>>,
}

impl Child {
    /// What the parents know about the directory: the first one's entry, and all of their listings.
    pub(super) fn known_to_parents(&self) -> (Option<PreviousDir>, Vec<ParentDir>) {
        let mut previous = None;
        let mut parents: Vec<ParentDir> = Vec::new();
        for (number, (json, recorded)) in self.previous.iter().zip(&self.recorded).enumerate() {
            let Some(json) = json else { continue };
            let Ok(entry) = RawEntry::new(json).parse() else { continue };
            if parents.iter().any(|known| known.object == entry.object) {
                continue;
            }
            parents.push(ParentDir { object: entry.object.clone(), recorded: *recorded });
            if number == 0 {
                previous = Some(PreviousDir { json: json.clone(), entry, recorded: *recorded });
            }
        }
        (previous, parents)
    }
}

impl DirectorySupply {
    /// Takes the next name, that of a directory.
    pub(super) fn next_directory(&mut self, open: &SourceDir) -> Result<Child> {
        let mut child = Child {
            name: CString::default(),
            listed: Vec::new(),
            previous: Vec::with_capacity(self.parents.len()),
            recorded: self.parents.iter().map(|parent| parent.recorded).collect(),
        };
        if let Some(name) = self.names.peek() {
            child.name = name.as_c_str().to_owned();
            child.listed = name.listed.to_vec();
        }
        for parent in &mut self.parents {
            let mut json = Vec::new();
            child.previous.push(parent.find(true, &child.listed, &mut json).then_some(json));
        }
        self.names.advance().map_err(|e| Error::file("list", &open.path, e))?;
        Ok(child)
    }
}

impl Batch {
    /// Takes up to `most` names of files.
    pub(super) fn take(supply: &mut DirectorySupply, most: usize, open: &SourceDir) -> Result<Batch> {
        let extras_until = supply.parents.iter().map(|parent| parent.extras_until).collect();
        let mut batch = Batch { extras_until, ..Batch::default() };
        while batch.items.len() < most {
            let Some(name) = supply.names.peek() else { break };
            let text = &mut batch.text;
            let start = text.len();
            text.extend_from_slice(name.with_nul);
            let own = start..text.len();
            let listed = match name.listed == &name.with_nul[..name.with_nul.len() - 1] {
                true => None,
                false => {
                    text.extend_from_slice(name.listed);
                    Some(own.end..text.len())
                }
            };
            for parent in &mut supply.parents {
                let start = text.len();
                let found = parent.find(false, name.listed, text);
                batch.previous.push(found.then_some(start..text.len()));
            }
            batch.items.push(Item { kind: name.kind, name: own, listed });
            supply.names.advance().map_err(|e| Error::file("list", &open.path, e))?;
        }
        Ok(batch)
    }

    pub(super) fn name(&self, item: &Item) -> &CStr {
        CStr::from_bytes_until_nul(&self.text[item.name.clone()]).unwrap_or_default()
    }

    pub(super) fn listed(&self, item: &Item) -> &[u8] {
        let own = item.name.start..item.name.end - 1;
        &self.text[item.listed.clone().unwrap_or(own)]
    }

    /// Which parents know the item `number`, where in the text their entries are, and how long their extras are true.
    fn previous(
        &self,
        number: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>, Option<Timestamp>)> + use<'_> {
        let count = self.extras_until.len();
        let known = self.previous[number * count..][..count].iter().zip(&self.extras_until);
        let known = known.enumerate();
        known.filter_map(|(parent, (range, until))| range.clone().map(|range| (parent, range, *until)))
    }
}

/// What became of an item so far.
pub(super) enum Outcome {
    /// It is not in the listing.
    Absent,
    /// It is as in a parent: where in the batch its JSON is.
    Same(Range<usize>),
    Entry(Box<DirEntry>),
    /// It waits to be written: where in the room it is, and with which options.
    Read(Box<DirEntry>, Range<usize>, usize),
    Large(usize),
}

/// The work on one batch.
pub(super) struct FileWork<'r, 'a> {
    pub(super) run: &'r Run<'a>,
    pub(super) directory: &'r Arc<Directory>,
    slot: u64,
    part: Part,
    pub(super) outcomes: Vec<Outcome>,
    /// Large files come in the order in which they are found: if one of a later item was, there can be none before it.
    pub(super) has_large_behind: bool,
    /// How files are written, by compressor and splitter; nearly always one.
    options: Vec<ObjectWriteOptions>,
    gathering: Option<Arc<Gathering>>,
    /// How many files were taken over, and their bytes.
    cached: (u64, u64),
    json: Vec<u8>,
}

impl<'r, 'a> FileWork<'r, 'a> {
    pub(super) fn new(run: &'r Run<'a>, directory: &'r Arc<Directory>, slot: u64) -> Self {
        FileWork {
            run,
            directory,
            slot,
            part: Part::default(),
            outcomes: Vec::new(),
            has_large_behind: false,
            options: Vec::new(),
            gathering: None,
            cached: (0, 0),
            json: Vec::new(),
        }
    }

    /// Backs the batch up.
    pub(super) fn back_up(mut self, batch: &Batch, room: &mut Room) -> Result<()> {
        let mut missing = Vec::new();
        for (number, item) in batch.items.iter().enumerate() {
            self.run.check()?;
            let outcome = match self.examine(batch, number, item, room) {
                Err(error @ Error::File { .. }) if error.is_not_found() => {
                    missing.push(number);
                    Outcome::Absent
                }
                outcome => self.settled(batch, item, outcome)?,
            };
            self.outcomes.push(outcome);
        }
        self.look_again(batch, &missing, room)?;
        let is_lost = |(number, outcome): (usize, &Outcome)| {
            matches!(outcome, Outcome::Absent) && batch.previous(number).next().is_some()
        };
        self.part.same &= !self.outcomes.iter().enumerate().any(is_lost);
        self.write(room)?;
        self.finish(batch)
    }

    /// What became of an item: an error that is its own keeps nothing else from being backed up.
    pub(super) fn settled(
        &mut self,
        batch: &Batch,
        item: &Item,
        outcome: Result<Outcome>,
    ) -> Result<Outcome> {
        match outcome {
            Err(error @ Error::File { .. }) => {
                self.failed(batch, item, &error)?;
                Ok(Outcome::Absent)
            }
            outcome => outcome,
        }
    }

    pub(super) fn failed(&mut self, batch: &Batch, item: &Item, error: &Error) -> Result<()> {
        let path = self.directory.join(batch.listed(item));
        let policy = self.policy_of(batch.listed(item));
        let ignored = policy.error_handling.ignore_file_errors.unwrap_or(false);
        self.run.entry_failed(&path, error, ignored)?;
        self.part.add_failure(&path, error, ignored);
        Ok(())
    }

    fn policy_of(&self, listed: &[u8]) -> Arc<Policy> {
        let policies = &self.directory.policies;
        match policies.is_leaf() {
            true => policies.policy().clone(),
            false => policies.child(&String::from_utf8_lossy(listed)).policy().clone(),
        }
    }

    pub(super) fn examine(
        &mut self,
        batch: &Batch,
        number: usize,
        item: &Item,
        room: &mut Room,
    ) -> Result<Outcome> {
        let (run, directory) = (self.run, self.directory);
        let (name, listed) = (batch.name(item), batch.listed(item));
        let ignore = &directory.ignore;
        if ignore.has_rules() && ignore.leaves_out(&directory.join(listed), false) {
            run.progress.excluded_file(0);
            directory.details.file_ignored(|| directory.join(listed));
            return Ok(Outcome::Absent);
        }
        if item.kind == Kind::File && run.is_placeholder(name) {
            let entry = run.entry_of_placeholder(&directory.open, name, listed, false)?;
            self.count_cached(entry.size);
            self.json.clear();
            encode_entry(&entry, &mut self.json)?;
            let same = batch
                .previous(number)
                .next()
                .is_some_and(|(parent, range, _)| parent == 0 && batch.text[range] == self.json);
            return Ok(self.entry_done(entry, same));
        }
        // Without a parent a file has to be opened anyway: then it is examined only once.
        let is_known = batch.previous(number).next().is_some();
        let (opened, stat) = match item.kind {
            Kind::File if !is_known => {
                let (file, stat) = directory.open.open_file(name)?;
                (Some(file), stat)
            }
            _ => (None, directory.open.stat(name)?),
        };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if ignore.is_too_large(size) || ignore.is_elsewhere(stat.st_dev, directory.device) {
            run.progress.excluded_file(size);
            return Ok(Outcome::Absent);
        }
        let kind = Kind::of(FileType::from_raw_mode(stat.st_mode));
        if kind == Kind::Special && !run.options.extras {
            return self.unknown_type(name, listed);
        }
        if let Some(outcome) = self.reuse(batch, number, item, &stat)? {
            let entry = || head_entry(name, listed, &stat, run.options.extras);
            directory.details.file_cached(|| directory.join(listed), entry);
            return Ok(outcome);
        }
        let mut entry = head_entry(name, listed, &stat, run.options.extras);
        if let Some((_, range, _)) = batch.previous(number).last() {
            let previous = || RawEntry::new(&batch.text[range]).parse().ok();
            directory.details.file_changed(|| directory.join(listed), previous);
        }
        match kind {
            Kind::File => {
                let (file, stat) = match opened {
                    Some(file) => (file, stat),
                    None => {
                        let (file, stat) = directory.open.open_file(name)?;
                        entry = head_entry(name, listed, &stat, run.options.extras);
                        (file, stat)
                    }
                };
                self.read_file(file, name, &stat, entry, room)
            }
            Kind::Symlink => {
                self.add_extras(&mut entry, name, &stat, Holes::default())?;
                let target = directory.open.read_link(name)?;
                entry.size = target.len() as u64;
                self.make_room(room, target.len())?;
                let place = room.push(&target);
                Ok(Outcome::Read(Box::new(entry), place, self.options_for("", "")))
            }
            Kind::Special => {
                self.add_extras(&mut entry, name, &stat, Holes::default())?;
                entry.object = run.empty_object()?;
                run.progress.file_hashed();
                Ok(self.entry_done(entry, false))
            }
            Kind::Directory => Err(Error::file("back up", &directory.open.join(name), changed())),
        }
    }

    /// A device, pipe or socket where extras are not kept: the policy says what becomes of it.
    fn unknown_type(&mut self, name: &CStr, listed: &[u8]) -> Result<Outcome> {
        if self.policy_of(listed).error_handling.ignore_unknown_types.unwrap_or(true) {
            return Ok(Outcome::Absent);
        }
        let reason = std::io::Error::other("it is neither a file nor a directory nor a link");
        Err(Error::file("back up", &self.directory.open.join(name), reason))
    }

    fn entry_done(&mut self, entry: DirEntry, same: bool) -> Outcome {
        self.part.summary.add(&entry);
        self.part.same &= same;
        Outcome::Entry(Box::new(entry))
    }

    fn add_extras(&self, entry: &mut DirEntry, name: &CStr, stat: &Stat, holes: Holes) -> Result<()> {
        if self.run.options.extras {
            let extras = extras_of(&self.directory.open, name, stat, self.run.device)?;
            set_extras(entry, Extras { holes, ..extras });
        }
        Ok(())
    }

    /// The holes of a file that is not open.
    fn find_holes(&self, name: &CStr, stat: &Stat) -> Result<Holes> {
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !self.run.options.extras || !is_file || !is_sparse(stat) {
            return Ok(Holes::default());
        }
        let (file, stat) = self.directory.open.open_file(name)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        holes_of(file.as_fd(), size, &self.directory.open.join(name))
    }

    fn count_cached(&mut self, bytes: u64) {
        self.cached.0 += 1;
        self.cached.1 += bytes;
    }

    /// Takes an entry over from a parent if what Kopia looks at (type, size, time, mode, owner) is the same.
    fn reuse(&mut self, batch: &Batch, number: usize, item: &Item, stat: &Stat) -> Result<Option<Outcome>> {
        let (name, with_extras) = (batch.name(item), self.run.options.extras);
        if self.run.is_to_be_hashed(&self.directory.path, name) {
            return Ok(None);
        }
        let mut entry = None;
        for (parent, range, extras_until) in batch.previous(number) {
            let json = &batch.text[range.clone()];
            if let Some(plain) = RawEntry::new(json).plain()
                && item.listed.is_none()
                && is_unchanged(&plain, with_extras, stat, extras_until)
                && self.run.can_reuse(plain.object)?
            {
                self.count_cached(plain.size);
                self.part.summary.add_file(&plain.entry_type, plain.size, plain.mtime);
                self.part.same &= parent == 0;
                return Ok(Some(Outcome::Same(range)));
            }
            let entry = entry.get_or_insert_with(|| head_entry(name, batch.listed(item), stat, with_extras));
            let Ok(previous) = RawEntry::new(json).parse() else { continue };
            if is_same_state(&previous, entry) && self.run.can_reuse(&previous.object)? {
                let mut renewed = DirEntry { object: previous.object, ..entry.clone() };
                // Nothing was written to the file, so its holes are where they were.
                let holes = match extras_until {
                    Some(_) => previous.extras.map(|extras| extras.holes).unwrap_or_default(),
                    None => self.find_holes(name, stat)?,
                };
                self.add_extras(&mut renewed, name, stat, holes)?;
                self.count_cached(renewed.size);
                self.json.clear();
                encode_entry(&renewed, &mut self.json)?;
                let same = parent == 0 && self.json == json;
                return Ok(Some(self.entry_done(renewed, same)));
            }
        }
        Ok(None)
    }

    /// Reads a small file into the room, or starts on a large one.
    fn read_file(
        &mut self,
        file: OwnedFd,
        name: &CStr,
        stat: &Stat,
        mut entry: DirEntry,
        room: &mut Room,
    ) -> Result<Outcome> {
        let run = self.run;
        let path = || self.directory.open.join(name);
        if run.options.extras {
            let mut extras = extras_of_open(file.as_fd(), path, stat, run.device)?;
            if is_sparse(stat) {
                extras.holes = holes_of(file.as_fd(), entry.size, &path())?;
            }
            set_extras(&mut entry, extras);
        }
        if let Some(object) = run.links.find(&entry) {
            entry.object = object;
            self.count_cached(entry.size);
            return Ok(self.entry_done(entry, false));
        }
        let listed = entry.name.to_string();
        let policy = self.policy_of(entry.name.as_bytes());
        let compressor = compressor_for(&policy.compression, &listed, entry.size);
        let options = self.options_for(compressor, &policy.splitter.algorithm);
        if entry.size > run.rooms.small_file() {
            let path = path();
            if self.has_large_behind {
                return Err(Error::file("back up", &path, changed()));
            }
            let spec = self.large_spec(file, path, stat, entry, options, &policy);
            return self.start_large(spec, room);
        }
        let wanted = entry.size as usize;
        // One byte more than there should be, to see in the same call whether there is more.
        self.make_room(room, wanted + 1)?;
        let mut place = room.read(&file, wanted + 1).map_err(|e| Error::file("read", &path(), e))?;
        let is_rewritten = || rustix::fs::fstat(&file).is_ok_and(|now| is_rewritten(stat, &now));
        if place.len() != wanted || is_rewritten() {
            run.changed(&self.directory.join(entry.name.as_bytes()));
            // What was there when it was opened is the state that its time belongs to.
            place.end = place.end.min(place.start + wanted);
        }
        entry.size = place.len() as u64;
        Ok(Outcome::Read(Box::new(entry), place, options))
    }

    fn make_room(&mut self, room: &mut Room, wanted: usize) -> Result<()> {
        if !room.has(wanted) {
            self.write(room)?;
        }
        room.open(self.run.repository, self.run.rooms.len)
    }

    fn options_for(&mut self, compressor: &str, splitter: &str) -> usize {
        let same =
            |options: &ObjectWriteOptions| options.compressor == compressor && options.splitter == splitter;
        if let Some(known) = self.options.iter().position(same) {
            return known;
        }
        self.options.push(ObjectWriteOptions {
            data_type: DataType::Data,
            access_mode: AccessMode::File,
            backup_mode: BackupMode::Full,
            compressor: compressor.to_owned(),
            splitter: splitter.to_owned(),
            ..ObjectWriteOptions::default()
        });
        self.options.len() - 1
    }

    /// What a large file is, and where its entry goes.
    fn large_spec(
        &mut self,
        file: OwnedFd,
        path: PathBuf,
        stat: &Stat,
        entry: DirEntry,
        options: usize,
        policy: &Policy,
    ) -> LargeSpec {
        let (directory, slot) = (self.directory, self.slot);
        let gathering = self.gathering.get_or_insert_with(|| {
            let gathering = Arc::new(Gathering::new(directory.clone(), slot));
            directory.note(slot, Open::Files(Arc::downgrade(&gathering)));
            gathering
        });
        let place = gathering.expect();
        let options = ObjectWriteOptions {
            full_path: directory.join(entry.name.as_bytes()),
            ..self.options[options].clone()
        };
        let part_size = policy.upload.parallel_upload_above_size;
        LargeSpec {
            result: (gathering.clone(), place),
            file,
            path,
            stat: *stat,
            entry,
            options,
            part_size: part_size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0),
            ignore_errors: policy.error_handling.ignore_file_errors.unwrap_or(false),
        }
    }

    /// Hands a large file on, and helps with those that there are if they are too many.
    fn start_large(&mut self, spec: LargeSpec, room: &mut Room) -> Result<Outcome> {
        let (gathering, place) = spec.result.clone();
        let file = Arc::new(LargeFile::new(spec));
        gathering.note(&file);
        self.run.schedule.push_large(file);
        while let Some(file) = self.run.large_file_to_help_with() {
            // It needs the memory.
            let helped = self.write(room).and_then(|()| file.back_up_region(self.run));
            self.run.schedule.done();
            helped?;
        }
        self.run.check()?;
        Ok(Outcome::Large(place))
    }

    /// Writes what was read into the room, and empties it.
    pub(super) fn write(&mut self, room: &mut Room) -> Result<()> {
        let waiting = self.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Read(_, place, options) => {
                Some(ObjectInBuffer { range: place.clone(), options: &self.options[*options] })
            }
            _ => None,
        });
        let objects: Vec<_> = waiting.collect();
        if let Some(buffer) = room.take()
            && !objects.is_empty()
        {
            let mut ids = self.run.repository.write_objects_of(buffer, &objects)?.into_iter();
            self.part.same = false;
            for outcome in &mut self.outcomes {
                if let Outcome::Read(entry, ..) = outcome {
                    entry.object = ids.next().ok_or(Error::Worker)?.into_string();
                    self.run.progress.hashed(entry.size);
                    self.run.progress.file_hashed();
                    self.run.links.remember(entry);
                    let path = || self.directory.join(entry.name.as_bytes());
                    self.directory.details.file_done(path, entry);
                    self.part.summary.add(entry);
                    *outcome = Outcome::Entry(std::mem::take(entry));
                }
            }
        }
        Ok(())
    }

    /// Puts everything together in order.
    fn finish(mut self, batch: &Batch) -> Result<()> {
        let mut part = std::mem::take(&mut self.part);
        self.run.progress.cached(self.cached.0, self.cached.1);
        for outcome in std::mem::take(&mut self.outcomes) {
            match outcome {
                Outcome::Absent | Outcome::Read(..) => {}
                Outcome::Same(range) => part.add_json(&batch.text[range]),
                Outcome::Entry(entry) => {
                    self.json.clear();
                    encode_entry(&entry, &mut self.json)?;
                    part.add_json(&self.json);
                }
                Outcome::Large(place) => {
                    if let Some(gathering) = &self.gathering {
                        gathering.put_before(place, std::mem::take(&mut part));
                    }
                }
            }
        }
        match self.gathering.take() {
            Some(gathering) => gathering.close(self.run, part),
            None => self.directory.complete(self.run, self.slot, part),
        }
    }
}
