//! A store in a folder, laid out as Kopia's filesystem provider lays it out.
//!
//! A put writes a temporary file beside the final one, syncs it, renames it and syncs the folder, so that a crash
//! leaves the old blob or the new one. A delete is not synced: a deleted blob that reappears after a crash is one
//! that garbage collection deletes again.

mod file;
mod layout;
mod plain;
mod walk;

pub use plain::PlainFolder;

use crate::wrap::pace::Scope;
use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Error, ErrorKind, Operation, Payload, PutMode, PutOptions,
    Result, arrival,
};
use async_trait::async_trait;
use bytes::Bytes;
use file::Looks;
use futures::stream::{self, StreamExt, TryStreamExt};
use layout::{Layout, SHARDS_FILE, SHARDS_OF_NEW, SHARDS_WHEN_UNRECORDED};
use parking_lot::RwLock;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use walk::Walk;

/// Blobs that a listing reads from disk at a time.
const PAGE: usize = 1000;
/// A `.shards` file is one short line; anything larger is not one.
const MAX_SHARDS_FILE: u64 = 64 << 10;

/// How a folder is used as a store.
#[derive(Debug, Clone)]
pub struct FsOptions {
    /// The root folder.
    pub path: PathBuf,
    /// Mode of new files, before the umask.
    pub file_mode: u32,
    /// Mode of new folders, before the umask.
    pub dir_mode: u32,
    /// Owner of new files; takes effect only when running as root.
    pub owner: Option<(u32, u32)>,
    /// Lengths of the folder names that blob names are cut into, for a store that has not recorded its own.
    pub shards: Option<Vec<u32>>,
}

impl FsOptions {
    /// Kopia's defaults for the folder at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FsOptions { path: path.into(), file_mode: 0o600, dir_mode: 0o700, owner: None, shards: None }
    }
}

/// Blobs as files in a folder. Clones share their state.
#[derive(Debug, Clone)]
pub struct FsStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    name: String,
    looks: Looks,
    layout: RwLock<Arc<Layout>>,
    /// Whether `.shards` is known to exist.
    layout_is_recorded: AtomicBool,
    /// Whether this store has been written to: only then may a listing clean up.
    writes: AtomicBool,
}

impl FsStore {
    /// Opens an existing folder. Nothing is written until the first put.
    pub async fn open(options: FsOptions) -> Result<Self> {
        let fallback = options.shards.clone().unwrap_or_else(|| SHARDS_WHEN_UNRECORDED.to_vec());
        blocking(move || Shared::open(options, &fallback).map(FsStore::from)).await
    }

    /// Opens a folder for a new repository: makes the folder if needed and records its layout.
    pub async fn create(options: FsOptions) -> Result<Self> {
        let fallback = options.shards.clone().unwrap_or_else(|| SHARDS_OF_NEW.to_vec());
        blocking(move || {
            let fail =
                |error| file::failure(Operation::Open, "", &name_of(&options.path), "make folder", error);
            let mut builder = std::fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), options.dir_mode);
            builder.create(&options.path).map_err(fail)?;
            let shared = Shared::open(options, &fallback)?;
            shared.record_layout()?;
            Ok(shared.into())
        })
        .await
    }

    /// The root folder.
    pub fn path(&self) -> &Path {
        &self.shared.root
    }

    async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        blocking(move || call(&shared)).await
    }
}

impl From<Shared> for FsStore {
    fn from(shared: Shared) -> Self {
        FsStore { shared: Arc::new(shared) }
    }
}

fn name_of(path: &Path) -> String {
    format!("folder {}", path.display())
}

/// Runs file I/O where it may block.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(call).await.unwrap_or_else(|error| {
        let detail = format!("the file operation was abandoned: {error}");
        Err(Error::new(ErrorKind::Other, Operation::Open, "", "the folder", detail))
    })
}

impl Shared {
    fn open(options: FsOptions, fallback: &[u32]) -> Result<Self> {
        let name = name_of(&options.path);
        match std::fs::metadata(&options.path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(no_folder(&name, "it is not a folder")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(no_folder(&name, "it does not exist"));
            }
            Err(error) => return Err(file::failure(Operation::Open, "", &name, "look at it", error)),
        }
        let recorded = read_layout(&options.path, &name)?;
        Ok(Shared {
            layout_is_recorded: AtomicBool::new(recorded.is_some()),
            layout: RwLock::new(Arc::new(recorded.unwrap_or_else(|| Layout::of_shards(fallback)))),
            writes: AtomicBool::new(false),
            looks: Looks { file_mode: options.file_mode, dir_mode: options.dir_mode, owner: options.owner },
            root: options.path,
            name,
        })
    }

    fn relative(&self, operation: Operation, id: &BlobId) -> Result<PathBuf> {
        let layout = self.layout.read().clone();
        layout.path(operation, id, &self.name)
    }

    /// Writes `.shards` before the first blob: without it Kopia would look for blobs elsewhere. If another client
    /// was faster, its layout counts.
    fn record_layout(&self) -> Result<()> {
        if self.layout_is_recorded.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut layout = self.layout.write();
        let line = Payload::from(layout.to_bytes());
        let path = Path::new(SHARDS_FILE);
        let only_new = PutOptions { mode: PutMode::CreateOnly, ..PutOptions::default() };
        match file::write_atomically(&self.root, path, &line, &only_new, &self.looks, None) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if let Some(theirs) = read_layout(&self.root, &self.name)? {
                    *layout = Arc::new(theirs);
                }
            }
            Err(error) => {
                return Err(file::failure(Operation::Put, "", &self.name, "record the layout", error));
            }
        }
        self.layout_is_recorded.store(true, Ordering::Release);
        Ok(())
    }

    fn put(&self, id: &BlobId, payload: &Payload, options: &PutOptions, pace: Option<&Scope>) -> Result<()> {
        self.writes.store(true, Ordering::Relaxed);
        self.record_layout()?;
        let relative = self.relative(Operation::Put, id)?;
        file::write_atomically(&self.root, &relative, payload, options, &self.looks, pace).map_err(|error| {
            match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    let detail = "the name is taken";
                    Error::new(ErrorKind::AlreadyExists, Operation::Put, id, &*self.name, detail)
                }
                // Folders below the root are made on demand, so the root itself is gone.
                io::ErrorKind::NotFound => no_folder(&self.name, "it does not exist any more"),
                _ => self.failure(Operation::Put, id, "write its file", error),
            }
        })
    }

    fn open_blob(&self, operation: Operation, id: &BlobId) -> Result<(File, u64)> {
        let path = self.root.join(self.relative(operation, id)?);
        let open = || {
            let file = File::open(path)?;
            let found = file.metadata()?;
            if found.is_file() { Ok((file, found.len())) } else { Err(io::ErrorKind::NotFound.into()) }
        };
        open().map_err(|error| self.failure(operation, id, "open its file", error))
    }

    fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        let path = self.root.join(self.relative(Operation::Head, id)?);
        let look = || {
            let found = std::fs::metadata(path)?;
            if found.is_file() {
                walk::metadata(id.clone(), &found)
            } else {
                Err(io::ErrorKind::NotFound.into())
            }
        };
        look().map_err(|error| self.failure(Operation::Head, id, "look at its file", error))
    }

    fn delete(&self, id: &BlobId) -> Result<()> {
        self.writes.store(true, Ordering::Relaxed);
        match std::fs::remove_file(self.root.join(self.relative(Operation::Delete, id)?)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failure(Operation::Delete, id, "remove its file", error))
            }
            _ => Ok(()),
        }
    }

    fn failure(&self, operation: Operation, id: &BlobId, doing: &str, error: io::Error) -> Error {
        if error.kind() == io::ErrorKind::NotFound {
            return Error::not_found(operation, id, &*self.name);
        }
        file::failure(operation, id.as_str(), &self.name, doing, error)
    }
}

fn no_folder(name: &str, detail: &str) -> Error {
    Error::new(ErrorKind::NoSuchContainer, Operation::Open, "", name, detail)
        .with_remedy("check the path and that the volume is mounted")
}

fn read_layout(root: &Path, name: &str) -> Result<Option<Layout>> {
    let read = || {
        let file = File::open(root.join(SHARDS_FILE))?;
        let size = file.metadata()?.len();
        // One byte beyond the limit makes the parser's message true.
        file::read_exact_at(&file, 0..size.min(MAX_SHARDS_FILE + 1), Vec::new(), None)
    };
    match read() {
        Ok(bytes) => Layout::parse(&bytes, name).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file::failure(Operation::Open, "", name, "read its layout", error)),
    }
}

#[async_trait]
impl BlobStore for FsStore {
    fn describe(&self) -> String {
        self.shared.name.clone()
    }

    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        if options.retention.is_some() {
            let detail = "a folder has no object lock";
            return Err(Error::new(ErrorKind::Unsupported, Operation::Put, id, self.describe(), detail));
        }
        let (id, options, pace) = (id.clone(), options.clone(), Scope::current());
        self.run(move |shared| shared.put(&id, &payload, &options, pace.as_ref())).await
    }

    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        let (id, pace) = (id.clone(), Scope::current());
        self.run(move |shared| {
            let (file, size) = shared.open_blob(Operation::Get, &id)?;
            file::read_exact_at(&file, 0..size, Vec::new(), pace.as_ref())
                .map_err(|error| shared.failure(Operation::Get, &id, "read its file", error))
        })
        .await
    }

    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        let buffer = arrival::admitted().await;
        let (id, pace) = (id.clone(), Scope::current());
        self.run(move |shared| {
            let (file, size) = shared.open_blob(Operation::Get, &id)?;
            crate::store::check_range(&range, size, &id, || shared.name.clone())?;
            file::read_exact_at(&file, range, buffer, pace.as_ref())
                .map_err(|error| shared.failure(Operation::Get, &id, "read its file", error))
        })
        .await
    }

    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        let id = id.clone();
        self.run(move |shared| shared.head(&id)).await
    }

    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let walk = Walk::new(&self.shared.root, prefix, self.shared.writes.load(Ordering::Relaxed));
        let prefix = prefix.to_owned();
        let pages = stream::try_unfold(walk, move |mut walk| {
            let prefix = prefix.clone();
            self.run(move |shared| match walk.next_page(PAGE) {
                Ok(page) if page.is_empty() => Ok(None),
                Ok(page) => Ok(Some((stream::iter(page.into_iter().map(Ok)), walk))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(no_folder(&shared.name, "it does not exist any more"))
                }
                Err(error) => Err(file::failure(Operation::List, &prefix, &shared.name, "read it", error)),
            })
        });
        pages.try_flatten().boxed()
    }

    async fn delete(&self, id: &BlobId) -> Result<()> {
        let id = id.clone();
        self.run(move |shared| shared.delete(&id)).await
    }
}

#[cfg(test)]
mod tests;
