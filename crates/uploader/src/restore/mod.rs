//! A snapshot becomes a directory.
//!
//! A walk reads listings, makes directories and tells the repository which objects go where; the repository reads them
//! in the order of its packs and delivers them from many threads; files are written as their bytes come. A directory
//! gets its attributes when its last entry is in, the deepest first.

mod attributes;
mod files;
mod filter;
mod links;
mod overwrite;
mod places;
mod shallow;
pub(crate) mod sparse;
mod special;
pub(crate) mod target;
mod verify;
mod walk;

pub use filter::PathFilter;
pub use overwrite::Existing;
pub use shallow::Shallow;

use crate::progress::{Cancel, Progress};
use crate::{Error, Result};
use attributes::{Attributes, Before, Keep, On};
use files::TemporaryNames;
use lifeboat_kopia::snapshot::DirEntry;
use lifeboat_repository::{Repository, ScatterOptions, ScatterTotals, Wanted};
use parking_lot::Mutex;
use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use target::{Directory, Given};
use walk::{Purpose, Walk};

/// Trees are not restored deeper than this: no program can name what lies below by a path.
const MAX_DEPTH: usize = 4096;
/// So many failures are described; all are counted.
const DESCRIBED_FAILURES: usize = 100;

/// Where to restore to, and how.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    /// The directory, made if it does not exist; or the file, if the snapshot is one of a single file.
    pub target: PathBuf,
    /// What is done with files that are there.
    pub existing_files: Existing,
    /// What is done with symbolic links that are there.
    pub existing_links: Existing,
    /// Whether directories that are there are filled; otherwise they are an error.
    pub overwrite_directories: bool,
    /// Whether what the snapshot does not have is removed from directories that it has.
    pub delete_extra: bool,
    /// Which paths are restored.
    pub filter: PathFilter,
    /// How deep it goes: all the way down if not given.
    pub shallow: Option<Shallow>,
    /// Whether the target itself becomes what the root of the snapshot was; otherwise it stays as it is.
    pub attributes_of_target: bool,
    /// Set owner and group, which needs privileges.
    pub owner: bool,
    /// Set modes.
    pub permissions: bool,
    /// Set times of modification.
    pub times: bool,
    /// Set extended attributes, access control lists and capabilities.
    pub extended: bool,
    /// Go on where attributes must not or cannot be set; that is counted.
    pub ignore_permission_errors: bool,
    /// Leave holes where the snapshot says that there were, or else where there are long runs of zeros.
    pub sparse: bool,
    /// Files appear under their names when they are whole, in the place of those that are there; those that are updated are written in
    /// place all the same.
    pub atomic: bool,
    /// Read the target back at the end, and compare it with all of the snapshot that the filter takes.
    pub verify: bool,
    /// Wait at the end until everything is on disk.
    pub sync: bool,
    /// How many threads decrypt and write; 0 = as many as there are processors.
    pub threads: usize,
}

impl RestoreOptions {
    /// A faithful restore into `target`.
    pub fn new(target: impl Into<PathBuf>) -> Self {
        RestoreOptions {
            target: target.into(),
            existing_files: Existing::default(),
            existing_links: Existing::default(),
            overwrite_directories: true,
            delete_extra: false,
            filter: PathFilter::default(),
            shallow: None,
            attributes_of_target: true,
            owner: true,
            permissions: true,
            times: true,
            extended: true,
            ignore_permission_errors: true,
            sparse: true,
            atomic: false,
            verify: false,
            sync: false,
            threads: 0,
        }
    }
}

/// What a restore did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// Files, links and special files restored.
    pub files: u64,
    /// Directories restored.
    pub directories: u64,
    /// Bytes of files, also those that were there already.
    pub bytes: u64,
    /// Placeholders written for what stays in the repository.
    pub placeholders: u64,
    /// Files and links that were left as they are.
    pub skipped: u64,
    /// Bytes that were not written because they were there already.
    pub kept_bytes: u64,
    /// Entries of the target that were removed because the snapshot does not have them.
    pub deleted: u64,
    /// Attributes that could not be set, by permission or because the file system does not have them.
    pub ignored_errors: u64,
    /// Bytes that were read back and found right.
    pub verified_bytes: u64,
    /// Reads from the storage.
    pub reads: u64,
    /// Bytes that came from the storage.
    pub read_bytes: u64,
    /// Entries that could not be restored.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<RestoreFailure>,
}

/// An entry that could not be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreFailure {
    /// Its path below the target.
    pub path: PathBuf,
    /// Why.
    pub error: String,
    /// Whether the system did not allow it.
    pub denied: bool,
}

/// Restores the tree below `root`, an entry of a snapshot.
///
/// What is wrong with single entries stops no others; if there was anything, [`Error::Unrestored`] tells it at the end.
/// What must stop the restore (a full disk, storage that fails, a cancel) leaves what was complete by then; with
/// [`Existing::Update`] another restore goes on from there.
pub fn restore(
    repository: &dyn Repository,
    root: &DirEntry,
    options: &RestoreOptions,
    progress: &Progress,
    cancel: &Cancel,
) -> Result<RestoreReport> {
    let run = Run::new(repository, root, options, progress, cancel);
    cancel.interrupting(repository, || {
        run.walk(root, Purpose::Restore)?;
        if options.sync || options.verify {
            run.sync(root)?;
        }
        if options.verify {
            run.walk(root, Purpose::Verify)?;
        }
        run.forget_placeholder()
    })?;
    run.end()
}

/// What all parts of a restore share.
struct Run<'a> {
    repository: &'a dyn Repository,
    options: &'a RestoreOptions,
    progress: &'a Progress,
    cancel: &'a Cancel,
    keep: Keep,
    /// What files are called before they are whole, if that is not what they will be called.
    temporary: TemporaryNames,
    tally: Tally,
    stopped: AtomicBool,
    fatal: Mutex<Option<Error>>,
}

impl<'a> Run<'a> {
    fn new(
        repository: &'a dyn Repository,
        root: &DirEntry,
        options: &'a RestoreOptions,
        progress: &'a Progress,
        cancel: &'a Cancel,
    ) -> Self {
        let keep = Keep {
            owner: options.owner,
            permissions: options.permissions,
            times: options.times,
            extras: options.extended,
            ignore_permission_errors: options.ignore_permission_errors,
            extras_are_complete: root.extras.as_ref().is_some_and(|extras| extras.recorded),
            ignored: AtomicU64::new(0),
        };
        Run {
            repository,
            options,
            progress,
            cancel,
            keep,
            temporary: TemporaryNames::new(),
            tally: Tally::default(),
            stopped: AtomicBool::new(false),
            fatal: Mutex::default(),
        }
    }

    /// Goes through the snapshot and reads what that asks for.
    fn walk(&self, root: &DirEntry, purpose: Purpose) -> Result<()> {
        let mut walk = Walk::new(self, purpose);
        let read = match root.is_dir() {
            true => {
                let mut root = root.clone();
                let attributes = self.options.attributes_of_target.then(|| Attributes::of(&mut root));
                let directory = self.top(&self.options.target, attributes)?;
                walk.enter(directory, root.object);
                self.read(&mut walk)
            }
            false => {
                let (folder, name) = self.split_target()?;
                let directory = Arc::new(self.top(&folder, None)?);
                let mut single = walk.single(&directory, root.clone(), name).into_iter();
                self.read(&mut single)
            }
        };
        // What a cancel made fail is not a failure.
        self.cancel.check()?;
        if let Some(error) = self.fatal.lock().take() {
            return Err(error);
        }
        self.tally.read(read?);
        Ok(())
    }

    fn read(&self, wanted: &mut dyn Iterator<Item = Wanted<'_>>) -> Result<ScatterTotals> {
        let options = ScatterOptions { threads: self.options.threads, stop: &|| self.is_over() };
        Ok(self.repository.read_scattered(wanted, options)?)
    }

    /// Opens the directory that everything is relative to.
    fn top(&self, path: &Path, attributes: Option<Attributes>) -> Result<Directory> {
        let existed = match std::fs::create_dir(path) {
            Ok(()) => false,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                std::fs::create_dir_all(path).map_err(|e| Error::file("create", path, e))?;
                false
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => true,
            Err(error) => return Err(Error::file("create", path, error)),
        };
        Directory::top(path, existed, attributes)
    }

    /// The folder and the name of a target that is a file.
    fn split_target(&self) -> Result<(PathBuf, CString)> {
        let path = &self.options.target;
        let name = path.file_name().and_then(|name| CString::new(name.as_bytes()).ok());
        let name = name.ok_or_else(|| Error::file("create", path, rustix::io::Errno::INVAL))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok((folder.unwrap_or(Path::new(".")).to_path_buf(), name))
    }

    /// The target is what a placeholder beside it may have stood for. If it is not whole, that stays.
    fn forget_placeholder(&self) -> Result<()> {
        match self.split_target() {
            Ok((folder, name)) if !self.tally.has_failures() => shallow::forget_target(&folder, &name),
            _ => Ok(()),
        }
    }

    fn sync(&self, root: &DirEntry) -> Result<()> {
        let path = if root.is_dir() { self.options.target.clone() } else { self.split_target()?.0 };
        let synced = std::fs::File::open(&path).and_then(|file| Ok(rustix::fs::syncfs(file)?));
        synced.map_err(|e| Error::file("write to disk", &path, e))
    }

    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.cancel.is_cancelled()
    }

    /// Ends the restore.
    fn stop_with(&self, error: Error) {
        self.fatal.lock().get_or_insert(error);
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// An entry failed; if all others would, too, that ends the restore.
    fn entry_failed(&self, directory: &Directory, name: &CStr, error: Error) {
        match is_fatal(&error) {
            true => self.stop_with(error),
            false => self.failed(directory.relative_to(name), error),
        }
    }

    fn failed(&self, path: PathBuf, error: Error) {
        self.progress.failed();
        self.tally.failed(path, &error);
    }

    /// Something of `directory` is done. If it was the last, the directory gets its attributes, and so on upwards.
    fn part_done(&self, directory: &Arc<Directory>) {
        let mut directory = directory.clone();
        while directory.is_complete() {
            if let Err(error) = self.finish_directory(&directory) {
                self.failed(directory.relative(), error);
            }
            match directory.parent() {
                Some(parent) => directory = parent.clone(),
                None => break,
            }
        }
    }

    fn finish_directory(&self, directory: &Directory) -> Result<()> {
        if !directory.is_made() {
            return Ok(());
        }
        if let Some(attributes) = &directory.attributes {
            let fd = directory.fd()?;
            let stat = rustix::fs::fstat(&fd).map_err(|e| Error::file("examine", &directory.path(), e))?;
            let before = match directory.existed {
                true => Before::Old,
                false => Before::New(Given::by(&fd, &stat)),
            };
            self.set_attributes(directory, None, attributes, On::Open(fd.as_fd()), before)?;
        }
        if let Some((parent, name)) = directory.place()
            && parent.existed
            && !self.tally.has_failures()
        {
            shallow::forget(parent, name)?;
        }
        self.progress.directory_done();
        Ok(())
    }

    /// Sets the attributes of a directory, or of an entry in it. If one of them does not fit that is a failure of the
    /// entry, whose bytes and other attributes are there all the same.
    fn set_attributes(
        &self,
        directory: &Directory,
        name: Option<&CStr>,
        attributes: &Attributes,
        on: On<'_>,
        before: Before,
    ) -> Result<()> {
        let failed = |error: std::io::Error| {
            let path = name.map_or_else(|| directory.path(), |name| directory.join(name));
            Error::file("set the attributes of", &path, error)
        };
        if let Some(misfit) = self.keep.apply(attributes, on, before).map_err(|e| failed(e.into()))? {
            let path = name.map_or_else(|| directory.relative(), |name| directory.relative_to(name));
            self.failed(path, failed(misfit.into()));
        }
        Ok(())
    }

    fn end(self) -> Result<RestoreReport> {
        let totals = self.progress.totals();
        let report = RestoreReport {
            files: totals.files,
            directories: totals.directories,
            bytes: totals.bytes,
            ignored_errors: self.keep.ignored.into_inner(),
            ..self.tally.report.into_inner()
        };
        match report.failed {
            0 => Ok(report),
            _ => Err(Error::Unrestored(Box::new(report))),
        }
    }
}

/// Counts what the progress does not show.
#[derive(Debug, Default)]
struct Tally {
    report: Mutex<RestoreReport>,
}

impl Tally {
    fn skipped(&self) {
        self.report.lock().skipped += 1;
    }

    fn left(&self) {
        self.report.lock().placeholders += 1;
    }

    fn has_failures(&self) -> bool {
        self.report.lock().failed > 0
    }

    fn kept(&self, bytes: u64) {
        self.report.lock().kept_bytes += bytes;
    }

    fn deleted(&self, count: u64) {
        self.report.lock().deleted += count;
    }

    fn verified(&self, bytes: u64) {
        self.report.lock().verified_bytes += bytes;
    }

    fn read(&self, totals: ScatterTotals) {
        let mut report = self.report.lock();
        report.reads += totals.reads;
        report.read_bytes += totals.bytes;
    }

    fn failed(&self, path: PathBuf, error: &Error) {
        tracing::debug!(path = %path.display(), %error, "an entry was not restored");
        let mut report = self.report.lock();
        report.failed += 1;
        if report.failures.len() < DESCRIBED_FAILURES {
            let denied = error.is_denied();
            report.failures.push(RestoreFailure { path, error: error.to_string(), denied });
        }
    }
}

/// Whether a failure of one file will meet all others, too: no space, or a file system that takes no more writes.
fn is_fatal(error: &Error) -> bool {
    use rustix::io::Errno;
    const FATAL: [Errno; 3] = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS];
    matches!(error, Error::File { source, .. }
        if source.raw_os_error().is_some_and(|code| FATAL.iter().any(|errno| errno.raw_os_error() == code)))
}

/// Whether a failure of the repository is one of its storage as a whole.
fn is_outage(error: &Error) -> bool {
    matches!(error, Error::Repository(error) if error.kind() == lifeboat_repository::ErrorKind::Storage)
}
