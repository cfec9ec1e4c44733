//! A directory becomes a snapshot.
//!
//! One thread walks the tree depth first and hands out batches of small files and single large ones; a pool of
//! threads reads and writes them. A directory stays open until its last entry is in; whoever brings that entry
//! writes the listing and passes the directory's own entry on to its parent, up to the root.

use crate::compression::compressor_for;
use crate::fsio::{OpenDir, entry_of, read_full};
use crate::pool::{self, Queue};
use crate::progress::{Cancel, Progress};
use crate::{Error, Result};
use lifeboat_budget::Budget;
use lifeboat_kopia::policy::Policy;
use lifeboat_kopia::snapshot::{
    DIRECTORY_PREFIX, DirEntry, DirWriter, EntryType, SnapshotManifest, SourceInfo, Stats, SummaryBuilder,
};
use lifeboat_repository::{AccessMode, BackupMode, DataType, ObjectWriteOptions, Repository, WholeObject};
use parking_lot::Mutex;
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::sync::Arc;

/// Files up to this size are read whole and written in batches; larger ones are streamed by a thread of their own.
const SMALL_FILE: u64 = 1 << 20;
/// A batch ends when it holds this much data.
const BATCH_BYTES: u64 = 4 << 20;
/// A batch ends when it holds this many files.
const BATCH_FILES: usize = 256;
/// Large files are read in pieces of this size.
const READ_BYTES: usize = 4 << 20;

/// What to back up, and how.
#[derive(Debug, Clone)]
pub struct BackupOptions {
    /// The directory.
    pub path: PathBuf,
    /// Under which identity the snapshot is saved.
    pub source: SourceInfo,
    /// The effective policy of the source.
    pub policy: Policy,
    /// Free text.
    pub description: String,
    /// How many threads read and write; 0 = as many as there are processors.
    pub threads: usize,
    /// The memory that buffers draw on.
    pub budget: Budget,
}

/// Backs up a directory. The snapshot is returned, not saved: its data is durable after the repository's next flush.
pub fn back_up(
    repository: &dyn Repository,
    options: &BackupOptions,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<SnapshotManifest> {
    let start_time = repository.now();
    let root = OpenDir::root(&options.path)?;
    let name =
        options.path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned());
    let stat = rustix::fs::fstat(&root.fd).map_err(|e| Error::file("examine", &options.path, e))?;
    let entry = entry_of(&name, &stat)
        .ok_or_else(|| Error::file("back up", &options.path, rustix::io::Errno::NOTDIR))?;
    let backup = Backup::new(repository, options, progress, cancel);
    let root = Arc::new(Directory::new(None, Arc::new(root), PathBuf::new(), entry));
    let walk = |queue: &Queue<Job>| backup.walk(&root, queue);
    pool::run(threads(options.threads), |job| backup.work(job), walk)?;
    let root_entry = backup.root.into_inner().ok_or(Error::Worker)?;
    let summary = root_entry.summary.clone().unwrap_or_default();
    if summary.failed > 0 {
        let first = summary.errors.into_iter().next().unwrap_or_default();
        return Err(Error::Entries {
            count: summary.failed.unsigned_abs(),
            path: first.path,
            error: first.error,
        });
    }
    Ok(SnapshotManifest {
        source: options.source.clone(),
        description: options.description.clone(),
        start_time,
        end_time: repository.now().max(start_time),
        stats: Stats {
            total_size: summary.size,
            file_count: summary.files,
            non_cached_files: summary.files,
            dir_count: summary.dirs,
            ignored_error_count: summary.ignored_errors,
            ..Stats::default()
        },
        root_entry: Some(root_entry),
        ..SnapshotManifest::default()
    })
}

pub(crate) fn threads(wanted: usize) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

/// A directory whose entries are not all in yet.
struct Directory {
    parent: Option<Arc<Directory>>,
    open: Arc<OpenDir>,
    /// Below the root of the snapshot, for error reports.
    relative: PathBuf,
    /// Its own entry; object and summary are set at the end.
    entry: DirEntry,
    state: Mutex<DirectoryState>,
}

struct DirectoryState {
    entries: Vec<DirEntry>,
    failures: Vec<(String, String, bool)>,
    /// How many parts (batches, large files, sub-directories, the walk itself) are outstanding.
    outstanding: usize,
}

impl Directory {
    fn new(parent: Option<Arc<Directory>>, open: Arc<OpenDir>, relative: PathBuf, entry: DirEntry) -> Self {
        // The walk holds one part until it has handed out all others.
        let state = DirectoryState { entries: Vec::new(), failures: Vec::new(), outstanding: 1 };
        Directory { parent, open, relative, entry, state: Mutex::new(state) }
    }

    fn expect_part(&self) {
        self.state.lock().outstanding += 1;
    }

    fn relative(&self, name: &str) -> String {
        self.relative.join(name).to_string_lossy().into_owned()
    }
}

/// A file or link as the walk found it.
struct Found {
    name: CString,
    entry: DirEntry,
}

enum Job {
    Batch(Arc<Directory>, Vec<Found>),
    Large(Arc<Directory>, Box<Found>),
}

struct Backup<'a> {
    repository: &'a dyn Repository,
    progress: &'a Progress,
    cancel: &'a Cancel,
    budget: &'a Budget,
    policy: &'a Policy,
    directory_options: ObjectWriteOptions,
    data_options: ObjectWriteOptions,
    root: Mutex<Option<DirEntry>>,
}

impl<'a> Backup<'a> {
    fn new(
        repository: &'a dyn Repository,
        options: &'a BackupOptions,
        progress: &'a Progress,
        cancel: &'a Cancel,
    ) -> Self {
        let data_options = ObjectWriteOptions {
            data_type: DataType::Data,
            access_mode: AccessMode::File,
            backup_mode: BackupMode::Full,
            ..ObjectWriteOptions::default()
        };
        let directory_options = ObjectWriteOptions {
            data_type: DataType::Metadata,
            prefix: Some(DIRECTORY_PREFIX),
            compressor: options.policy.metadata_compression.compressor.clone(),
            ..data_options.clone()
        };
        Backup {
            repository,
            progress,
            cancel,
            budget: &options.budget,
            policy: &options.policy,
            directory_options,
            data_options,
            root: Mutex::new(None),
        }
    }

    /// How a file or link is written: for files the policy decides about compression by name and size.
    fn object_options(&self, directory: &Directory, entry: &DirEntry) -> ObjectWriteOptions {
        let compressor = match entry.entry_type {
            EntryType::File => compressor_for(&self.policy.compression, &entry.name.to_string(), entry.size),
            _ => "",
        };
        ObjectWriteOptions {
            full_path: directory.relative(&entry.name.to_string()),
            compressor: compressor.to_owned(),
            ..self.data_options.clone()
        }
    }

    /// Walks `directory` and everything below it.
    fn walk(&self, directory: &Arc<Directory>, queue: &Queue<Job>) -> Result<()> {
        let walked = self.walk_entries(directory, queue);
        self.part_done(directory)?;
        walked
    }

    fn walk_entries(&self, directory: &Arc<Directory>, queue: &Queue<Job>) -> Result<()> {
        let mut batch = Vec::new();
        let mut batch_bytes = 0;
        for name in directory.open.names()? {
            self.cancel.check()?;
            let entry = match examine(directory, &name) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(error) => {
                    self.entry_failed(directory, &name.to_string_lossy(), &error, false);
                    continue;
                }
            };
            match entry.entry_type {
                EntryType::Directory => self.walk_child(directory, &name, entry, queue)?,
                EntryType::File if entry.size > SMALL_FILE => {
                    directory.expect_part();
                    queue.push(Job::Large(directory.clone(), Box::new(Found { name, entry })))?;
                }
                _ => {
                    batch_bytes += entry.size;
                    batch.push(Found { name, entry });
                    if batch_bytes >= BATCH_BYTES || batch.len() >= BATCH_FILES {
                        batch_bytes = 0;
                        directory.expect_part();
                        queue.push(Job::Batch(directory.clone(), std::mem::take(&mut batch)))?;
                    }
                }
            }
        }
        if !batch.is_empty() {
            directory.expect_part();
            queue.push(Job::Batch(directory.clone(), batch))?;
        }
        Ok(())
    }

    fn walk_child(
        &self,
        directory: &Arc<Directory>,
        name: &CStr,
        entry: DirEntry,
        queue: &Queue<Job>,
    ) -> Result<()> {
        let relative = directory.relative.join(entry.name.to_string());
        match directory.open.child(name) {
            Ok(open) => {
                directory.expect_part();
                let child = Directory::new(Some(directory.clone()), Arc::new(open), relative, entry);
                self.walk(&Arc::new(child), queue)
            }
            Err(error) => {
                let ignored = self.policy.error_handling.ignore_directory_errors.unwrap_or(false);
                self.entry_failed(directory, &entry.name.to_string(), &error, ignored);
                Ok(())
            }
        }
    }

    fn entry_failed(&self, directory: &Directory, name: &str, error: &Error, ignored: bool) {
        self.progress.failed();
        let failure = (directory.relative(name), error.to_string(), ignored);
        directory.state.lock().failures.push(failure);
    }

    fn work(&self, job: Job) -> Result<()> {
        self.cancel.check()?;
        match job {
            Job::Batch(directory, files) => {
                self.write_batch(&directory, files)?;
                self.part_done(&directory)
            }
            Job::Large(directory, found) => {
                let Found { name, mut entry } = *found;
                let ignored = self.policy.error_handling.ignore_file_errors.unwrap_or(false);
                match self.write_large(&directory, &name, &mut entry) {
                    Ok(()) => directory.state.lock().entries.push(entry),
                    Err(error @ Error::File { .. }) => {
                        self.entry_failed(&directory, &entry.name.to_string(), &error, ignored);
                    }
                    Err(error) => return Err(error),
                }
                self.part_done(&directory)
            }
        }
    }

    fn write_batch(&self, directory: &Directory, files: Vec<Found>) -> Result<()> {
        let ignored = self.policy.error_handling.ignore_file_errors.unwrap_or(false);
        let room = files.iter().map(|file| file.entry.size).sum::<u64>();
        let _memory =
            self.budget.reserve(room.min(self.budget.total())).map_err(lifeboat_kopia::Error::from)?;
        let mut data = Vec::with_capacity(usize::try_from(room).unwrap_or(0));
        let mut read = Vec::with_capacity(files.len());
        for Found { name, mut entry } in files {
            let start = data.len();
            match self.read_small(&directory.open, &name, &entry, &mut data) {
                Ok(()) => {
                    entry.size = (data.len() - start) as u64;
                    read.push((start..data.len(), self.object_options(directory, &entry), entry));
                }
                Err(error) => {
                    data.truncate(start);
                    self.entry_failed(directory, &entry.name.to_string(), &error, ignored);
                }
            }
        }
        let objects: Vec<_> = read
            .iter()
            .map(|(range, options, _)| WholeObject { data: &data[range.clone()], options })
            .collect();
        let ids = self.repository.write_objects(&objects)?;
        let mut state = directory.state.lock();
        for ((_, _, mut entry), id) in read.into_iter().zip(ids) {
            self.progress.file_done();
            self.progress.bytes_done(entry.size);
            entry.object = id.as_str().to_owned();
            state.entries.push(entry);
        }
        Ok(())
    }

    /// Appends the content of a small file, or the target of a link. A file that has grown is read up to its end.
    fn read_small(&self, open: &OpenDir, name: &CStr, entry: &DirEntry, data: &mut Vec<u8>) -> Result<()> {
        if entry.entry_type == EntryType::Symlink {
            data.extend_from_slice(&open.read_link(name)?);
            return Ok(());
        }
        let file = open.open_file(name)?;
        let mut wanted = usize::try_from(entry.size).unwrap_or(0) + 1;
        loop {
            let start = data.len();
            data.resize(start + wanted, 0);
            let count = read_full(&file, &mut data[start..], &open.join(name))?;
            data.truncate(start + count);
            if count < wanted {
                return Ok(());
            }
            self.cancel.check()?;
            wanted = READ_BYTES;
        }
    }

    fn write_large(&self, directory: &Directory, name: &CStr, entry: &mut DirEntry) -> Result<()> {
        let path = directory.open.join(name);
        let file = directory.open.open_file(name)?;
        let _memory = self.budget.reserve(READ_BYTES as u64).map_err(lifeboat_kopia::Error::from)?;
        let mut buffer = vec![0; READ_BYTES];
        let mut writer = self.repository.new_object(&self.object_options(directory, entry))?;
        entry.size = 0;
        loop {
            self.cancel.check()?;
            let count = read_full(&file, &mut buffer, &path)?;
            writer.write(&buffer[..count])?;
            entry.size += count as u64;
            self.progress.bytes_done(count as u64);
            if count < buffer.len() {
                break;
            }
        }
        entry.object = writer.result()?.as_str().to_owned();
        self.progress.file_done();
        Ok(())
    }

    /// A part of `directory` is in. If it was the last one, the directory is written, and so is a part of its parent.
    fn part_done(&self, directory: &Arc<Directory>) -> Result<()> {
        let mut directory = directory.clone();
        loop {
            let state = {
                let mut state = directory.state.lock();
                state.outstanding -= 1;
                if state.outstanding > 0 {
                    return Ok(());
                }
                (std::mem::take(&mut state.entries), std::mem::take(&mut state.failures))
            };
            let entry = self.write_directory(&directory, state.0, state.1)?;
            let Some(parent) = directory.parent.clone() else {
                *self.root.lock() = Some(entry);
                return Ok(());
            };
            parent.state.lock().entries.push(entry);
            directory = parent;
        }
    }

    fn write_directory(
        &self,
        directory: &Directory,
        mut entries: Vec<DirEntry>,
        failures: Vec<(String, String, bool)>,
    ) -> Result<DirEntry> {
        entries.sort_unstable_by(DirEntry::listing_order);
        let mut summary = SummaryBuilder::default();
        let mut listing = DirWriter::new();
        let mut writer = self.repository.new_object(&self.directory_options)?;
        for (path, error, ignored) in failures {
            summary.add_failure(path, error, ignored);
        }
        for entry in &entries {
            summary.add(entry);
            listing.push(entry)?;
            if listing.buffered() >= READ_BYTES {
                writer.write(&listing.take())?;
            }
        }
        let summary = summary.build(directory.entry.mtime, "");
        writer.write(&listing.finish(&summary)?)?;
        let object = writer.result()?.as_str().to_owned();
        self.progress.directory_done();
        Ok(DirEntry { object, summary: Some(summary), ..directory.entry.clone() })
    }
}

/// The entry of a name; `None` for what a snapshot does not hold.
fn examine(directory: &Directory, name: &CStr) -> Result<Option<DirEntry>> {
    let Ok(text) = name.to_str() else {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "the name is not valid UTF-8");
        return Err(Error::file("back up", &directory.open.join(name), source));
    };
    Ok(entry_of(text, &directory.open.stat(name)?))
}
