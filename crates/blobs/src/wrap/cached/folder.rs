//! The folder of a cache: entries that prove themselves, and the sweep that keeps it small.

use crate::{BlobId, Error, ErrorKind, Operation, Result};
use bytes::Bytes;
use std::fs::{DirBuilder, File, FileTimes, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const HASH: usize = blake3::OUT_LEN;
/// What marks a file that is still being written.
const TEMP_EXTENSION: &str = "tmp";
/// An entry's time of use is refreshed only if it is older than this: reads stay reads.
const USE_RESOLUTION: Duration = Duration::from_secs(600);
/// A temporary file older than this was left by a process that died.
const TEMP_EXPIRES: Duration = Duration::from_secs(3600);

/// What an entry holds: a blob, or a range of one.
#[derive(Debug, Clone)]
pub(super) struct Key {
    id: BlobId,
    range: Option<Range<u64>>,
}

impl Key {
    pub(super) fn whole(id: &BlobId) -> Self {
        Key { id: id.clone(), range: None }
    }

    pub(super) fn range(id: &BlobId, range: Range<u64>) -> Self {
        Key { id: id.clone(), range: Some(range) }
    }
}

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    limit: u64,
    store_id: String,
    /// Bytes written since the last sweep; sweeps are due in steps of a sixteenth of the limit.
    written: AtomicU64,
    sweeping: AtomicBool,
}

impl Folder {
    pub(super) async fn open(path: PathBuf, limit: u64, store_id: String) -> Result<Arc<Self>> {
        let folder = Folder {
            path,
            limit,
            store_id,
            written: AtomicU64::new(limit),
            sweeping: AtomicBool::new(false),
        };
        let folder = Arc::new(folder);
        folder
            .run(|folder| DirBuilder::new().recursive(true).mode(0o700).create(&folder.path))
            .await
            .map_err(|error| {
                let store = format!("cache folder {}", folder.path.display());
                Error::new(ErrorKind::Configuration, Operation::Open, "", store, format!("make it: {error}"))
                    .with_source(error)
            })?;
        Ok(folder)
    }

    /// The bytes of an entry that is there and sound.
    pub(super) async fn read(self: &Arc<Self>, key: &Key) -> Option<Bytes> {
        let key = key.clone();
        self.run(move |folder| folder.read_now(&key)).await.ok()
    }

    /// Adds an entry. The cache is a convenience: what cannot be written is not.
    pub(super) async fn write(self: &Arc<Self>, key: Key, bytes: Bytes) {
        if bytes.len() as u64 > self.limit {
            return;
        }
        let size = bytes.len() as u64;
        if let Err(error) = self.run(move |folder| folder.write_now(&key, &bytes)).await {
            tracing::debug!(%error, folder = %self.path.display(), "cannot write to the cache");
        }
        let written = self.written.fetch_add(size, Ordering::Relaxed) + size;
        if written > self.limit / 16 && !self.sweeping.swap(true, Ordering::AcqRel) {
            self.written.store(0, Ordering::Relaxed);
            if let Err(error) = self.run(Folder::sweep).await {
                tracing::warn!(%error, folder = %self.path.display(), "cannot sweep the cache");
            }
            self.sweeping.store(false, Ordering::Release);
        }
    }

    /// Removes all entries of a blob.
    pub(super) async fn forget(self: &Arc<Self>, id: &BlobId) {
        let id = id.clone();
        let _ = self
            .run(move |folder| {
                let (shard, stem) = folder.place(&id);
                for entry in std::fs::read_dir(shard)? {
                    let entry = entry?;
                    if entry.file_name().to_string_lossy().starts_with(&stem) {
                        std::fs::remove_file(entry.path())?;
                    }
                }
                Ok(())
            })
            .await;
    }

    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&Folder) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let folder = self.clone();
        tokio::task::spawn_blocking(move || call(&folder))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// The sub-folder of a blob's entries and what their names start with.
    fn place(&self, id: &BlobId) -> (PathBuf, String) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.store_id.len() as u64).to_le_bytes());
        hasher.update(self.store_id.as_bytes()).update(id.as_str().as_bytes());
        let name = hasher.finalize().to_hex();
        (self.path.join(&name[..2]), name[2..40].to_owned())
    }

    fn file(&self, key: &Key) -> PathBuf {
        let (shard, stem) = self.place(&key.id);
        match &key.range {
            None => shard.join(stem),
            Some(range) => shard.join(format!("{stem}-{}-{}", range.start, range.end)),
        }
    }

    /// The proof at the end of an entry's file; it binds the bytes to what they are.
    fn proof(&self, key: &Key, bytes: &[u8]) -> [u8; HASH] {
        let range = key.range.clone().unwrap_or(0..0);
        let mut hasher = blake3::Hasher::new();
        for text in [self.store_id.as_str(), key.id.as_str()] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        hasher.update(&range.start.to_le_bytes()).update(&range.end.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize().into()
    }

    fn read_now(&self, key: &Key) -> io::Result<Bytes> {
        let path = self.file(key);
        let mut file = File::open(&path)?;
        let found = file.metadata()?;
        if found.len() > self.limit.saturating_add(HASH as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::with_capacity(found.len() as usize + 1);
        file.read_to_end(&mut bytes)?;
        let sound = bytes.split_last_chunk::<HASH>().is_some_and(|(data, proof)| {
            // Not a secret, so plain equality is fine: this guards against damage.
            self.proof(key, data) == *proof
        });
        if !sound {
            tracing::warn!(path = %path.display(), "a cache entry was damaged and is fetched again");
            std::fs::remove_file(&path)?;
            return Err(io::ErrorKind::InvalidData.into());
        }
        if found.modified()?.elapsed().is_ok_and(|age| age > USE_RESOLUTION) {
            let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        }
        bytes.truncate(bytes.len() - HASH);
        Ok(bytes.into())
    }

    fn write_now(&self, key: &Key, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(key);
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let temp = path.with_extension(format!("{}.{TEMP_EXTENSION}", hex::encode(random)));
        let written = self.write_file(&temp, key, bytes).and_then(|()| std::fs::rename(&temp, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temp);
        }
        written
    }

    /// Not synced: a file torn by a crash fails its proof.
    fn write_file(&self, temp: &Path, key: &Key, bytes: &[u8]) -> io::Result<()> {
        let mut open = OpenOptions::new();
        open.write(true).create_new(true).mode(0o600);
        let mut file = match open.open(temp) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let shard = temp.parent().unwrap_or(&self.path);
                DirBuilder::new().recursive(true).mode(0o700).create(shard)?;
                open.open(temp)?
            }
            other => other?,
        };
        file.write_all(bytes)?;
        file.write_all(&self.proof(key, bytes))
    }

    /// Removes the entries used longest ago until an eighth of the limit is free, and what dead writers left.
    fn sweep(&self) -> io::Result<()> {
        let mut entries = Vec::new();
        let mut total = 0u64;
        for shard in std::fs::read_dir(&self.path)? {
            let shard = shard?;
            if !shard.file_type()?.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(shard.path())? {
                let entry = entry?;
                // Another process may remove entries at the same time.
                let Ok(found) = entry.metadata() else { continue };
                let used = found.modified()?;
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == TEMP_EXTENSION) {
                    if used.elapsed().is_ok_and(|age| age > TEMP_EXPIRES) {
                        let _ = std::fs::remove_file(path);
                    }
                    continue;
                }
                total += found.len();
                entries.push((used, found.len(), path));
            }
        }
        if total <= self.limit {
            return Ok(());
        }
        entries.sort_unstable_by_key(|(used, ..)| *used);
        let goal = self.limit - self.limit / 8;
        for (_, size, path) in entries {
            if total <= goal {
                break;
            }
            let _ = std::fs::remove_file(path);
            total -= size;
        }
        Ok(())
    }
}
