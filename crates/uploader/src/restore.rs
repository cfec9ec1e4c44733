//! A snapshot becomes a directory.
//!
//! The walk reads listings and makes directories; a pool of threads writes files. Everything is opened relative to
//! its directory and never through a link, so neither a hostile snapshot nor somebody who changes the target
//! meanwhile can make us write outside of it. A directory gets its owner, mode and time when its last entry is in.

use crate::backup::threads;
use crate::fsio::{OpenDir, set_attributes};
use crate::pool::{self, Queue};
use crate::progress::{Cancel, Progress};
use crate::{Error, Result};
use lifeboat_budget::Budget;
use lifeboat_kopia::snapshot::{DirEntries, DirEntry, EntryType};
use lifeboat_repository::{Id, Repository};
use std::ffi::{CStr, CString};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Files are written in pieces of this size.
const WRITE_BYTES: usize = 4 << 20;
/// The longest target that a link can have on Linux.
const MAX_LINK: u64 = 4096;

/// Where to restore to, and how.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    /// The directory; made if it does not exist.
    pub target: PathBuf,
    /// Replace files and links that are there; without this they are an error.
    pub overwrite: bool,
    /// Set owner and group, which needs privileges.
    pub owner: bool,
    /// How many threads write; 0 = as many as there are processors.
    pub threads: usize,
    /// The memory that buffers draw on.
    pub budget: Budget,
}

/// What a restore did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Files written.
    pub files: u64,
    /// Directories made.
    pub directories: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// Restores the tree below `root`, a directory entry of a snapshot.
pub fn restore(
    repository: &dyn Repository,
    root: &DirEntry,
    options: &RestoreOptions,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<RestoreReport> {
    std::fs::create_dir_all(&options.target).map_err(|e| Error::file("create", &options.target, e))?;
    let restore = Restore { repository, options, progress, cancel };
    let target = Directory::new(None, OpenDir::root(&options.target)?, root.clone());
    let walk = |queue: &Queue<Job>| match root.entry_type {
        EntryType::Directory => restore.walk(&Arc::new(target), queue),
        _ => restore.restore_single(&Arc::new(target), root, queue),
    };
    pool::run(threads(options.threads), |job| restore.work(job), walk)?;
    let totals = progress.totals();
    Ok(RestoreReport { files: totals.files, directories: totals.directories, bytes: totals.bytes })
}

/// A directory whose entries are not all restored yet.
struct Directory {
    parent: Option<Arc<Directory>>,
    open: OpenDir,
    entry: DirEntry,
    /// How many entries, and the walk itself, are outstanding.
    outstanding: AtomicUsize,
}

impl Directory {
    fn new(parent: Option<Arc<Directory>>, open: OpenDir, entry: DirEntry) -> Self {
        Directory { parent, open, entry, outstanding: AtomicUsize::new(1) }
    }

    fn unsafe_name(&self, name: &str) -> Error {
        Error::UnsafeName { name: name.to_owned(), directory: self.open.path.to_string_lossy().into_owned() }
    }
}

/// A file or link to be restored.
struct Job {
    directory: Arc<Directory>,
    name: CString,
    entry: DirEntry,
}

struct Restore<'a> {
    repository: &'a dyn Repository,
    options: &'a RestoreOptions,
    progress: &'a Progress,
    cancel: &'a Cancel,
}

impl Restore<'_> {
    fn walk(&self, directory: &Arc<Directory>, queue: &Queue<Job>) -> Result<()> {
        let id = Id::new(directory.entry.object.clone());
        let listing = self.repository.open_object(&id)?;
        let mut entries = DirEntries::new(id.as_str(), listing);
        for entry in entries.by_ref() {
            self.cancel.check()?;
            let entry = entry?;
            let name = entry.safe_name().ok_or_else(|| directory.unsafe_name(&entry.name.to_string()))?;
            let name = CString::new(name).map_err(|_| directory.unsafe_name(&entry.name.to_string()))?;
            directory.outstanding.fetch_add(1, Ordering::Relaxed);
            if entry.is_dir() {
                let open = directory.open.make_child(&name)?;
                self.walk(&Arc::new(Directory::new(Some(directory.clone()), open, entry)), queue)?;
            } else {
                queue.push(Job { directory: directory.clone(), name, entry })?;
            }
        }
        entries.finish()?;
        self.part_done(directory)
    }

    /// A snapshot of a single file: it is restored into the target directory, which keeps its attributes.
    fn restore_single(&self, target: &Arc<Directory>, entry: &DirEntry, queue: &Queue<Job>) -> Result<()> {
        let name = entry.safe_name().ok_or_else(|| target.unsafe_name(&entry.name.to_string()))?;
        let name = CString::new(name).map_err(|_| target.unsafe_name(&entry.name.to_string()))?;
        // The walk's own part stays outstanding, so the target is never "done".
        target.outstanding.fetch_add(1, Ordering::Relaxed);
        queue.push(Job { directory: target.clone(), name, entry: entry.clone() })
    }

    fn work(&self, job: Job) -> Result<()> {
        self.cancel.check()?;
        if self.options.overwrite {
            job.directory.open.remove(&job.name)?;
        }
        match &job.entry.entry_type {
            EntryType::Symlink => self.restore_link(&job)?,
            EntryType::File => self.restore_file(&job)?,
            other => {
                let text = format!("{:?} has the unknown type {other:?}", job.directory.open.join(&job.name));
                return Err(lifeboat_kopia::Error::Invalid(text).into());
            }
        }
        self.progress.file_done();
        self.part_done(&job.directory)
    }

    fn restore_link(&self, job: &Job) -> Result<()> {
        let mut target = Vec::new();
        let path = job.directory.open.join(&job.name);
        let reader = self.repository.open_object(&Id::new(job.entry.object.clone()))?;
        reader
            .take(MAX_LINK)
            .read_to_end(&mut target)
            .map_err(|e| Error::file("read the data of", &path, e))?;
        let target = CString::new(target)
            .map_err(|_| Error::file("create the link", &path, rustix::io::Errno::INVAL))?;
        job.directory.open.make_link(&job.name, &target)?;
        job.directory.open.set_link_attributes(&job.name, &job.entry, self.options.owner)
    }

    fn restore_file(&self, job: &Job) -> Result<()> {
        let path = job.directory.open.join(&job.name);
        let file = job.directory.open.create_file(&job.name)?;
        let written = self.write_data(&file, &job.directory.open, &job.name, &job.entry);
        if written.is_err() {
            // A file that is not whole must not look like one that is.
            job.directory.open.remove(&job.name)?;
        }
        written?;
        set_attributes(file.as_fd(), &path, &job.entry, self.options.owner)
    }

    fn write_data(&self, file: &OwnedFd, open: &OpenDir, name: &CStr, entry: &DirEntry) -> Result<()> {
        let path = open.join(name);
        let mut reader = self.repository.open_object(&Id::new(entry.object.clone()))?;
        let length = reader.length();
        let room = usize::try_from(length).unwrap_or(WRITE_BYTES).clamp(1, WRITE_BYTES);
        let _memory = self.options.budget.reserve(room as u64).map_err(lifeboat_kopia::Error::from)?;
        let mut buffer = vec![0; room];
        let mut offset = 0;
        loop {
            self.cancel.check()?;
            let count = reader.read(&mut buffer).map_err(|e| Error::file("read the data of", &path, e))?;
            if count == 0 {
                break;
            }
            write_at(file, &buffer[..count], offset).map_err(|e| Error::file("write", &path, e))?;
            offset += count as u64;
            self.progress.bytes_done(count as u64);
        }
        if offset != entry.size {
            let reason = format!("its object has {offset} bytes, the directory says {}", entry.size);
            return Err(lifeboat_kopia::Error::DamagedObject { id: entry.object.clone(), reason }.into());
        }
        Ok(())
    }

    /// An entry of `directory` is restored. If it was the last one, the directory gets its attributes, and an entry
    /// of its parent is restored.
    fn part_done(&self, directory: &Arc<Directory>) -> Result<()> {
        let mut directory = directory.clone();
        while directory.outstanding.fetch_sub(1, Ordering::AcqRel) == 1 {
            let open = &directory.open;
            set_attributes(open.fd.as_fd(), &open.path, &directory.entry, self.options.owner)?;
            self.progress.directory_done();
            match &directory.parent {
                Some(parent) => directory = parent.clone(),
                None => break,
            }
        }
        Ok(())
    }
}

fn write_at(file: &OwnedFd, mut data: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, offset) {
            Ok(0) => return Err(rustix::io::Errno::NOSPC),
            Ok(count) => {
                data = &data[count..];
                offset += count as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
