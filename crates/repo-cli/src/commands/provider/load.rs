//! Many at once on one storage: writers, readers and listers, which check what they see.

use super::ProviderArgs;
use anyhow::{Context, Result, bail, ensure};
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, TryStreamExt};
use lifeboat_blobs::{BlobId, BlobStore, ErrorKind, PutOptions};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest blob that is written.
const LONGEST: u64 = 1 << 20;
/// The longest pause between two calls of one worker; also between naming a blob and writing it.
const PAUSE: u64 = 500;
/// How many list blobs, as Kopia has it.
const LISTERS: u16 = 3;

/// A blob that is written, or about to be.
#[derive(Debug, Clone)]
struct Blob {
    id: BlobId,
    /// What its bytes come from.
    seed: u64,
    is_written: bool,
}

struct Load<'a> {
    stores: &'a [Arc<dyn BlobStore>],
    prefix: String,
    end: Instant,
    random: AtomicU64,
    blobs: Mutex<Vec<Blob>>,
}

/// Runs as many workers as `args` says, until the time is up or one has seen something that must not be.
pub(super) async fn run(
    stores: &[Arc<dyn BlobStore>],
    prefix: &str,
    seed: u64,
    args: &ProviderArgs,
) -> Result<()> {
    let load = &Load {
        stores,
        prefix: format!("{prefix}load-"),
        end: Instant::now() + args.concurrency_test_duration,
        random: AtomicU64::new(seed),
        blobs: Mutex::new(Vec::new()),
    };
    let mut workers: Vec<BoxFuture<'_, Result<()>>> = Vec::new();
    for _ in 0..args.put_blob_workers {
        workers.push(load.write().boxed());
    }
    for _ in 0..args.get_blob_workers {
        workers.push(load.read().boxed());
    }
    for _ in 0..args.get_metadata_workers {
        workers.push(load.ask().boxed());
    }
    for _ in 0..LISTERS {
        workers.push(load.list().boxed());
    }
    try_join_all(workers).await.map(drop)
}

/// The next of a row of numbers that nobody foresees.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The bytes of a blob.
fn data(seed: u64) -> Vec<u8> {
    let length = seed % LONGEST + 1;
    let words = (0..length.div_ceil(8)).flat_map(|at| mixed(seed.wrapping_add(at)).to_le_bytes());
    words.take(length as usize).collect()
}

impl Load<'_> {
    fn random(&self) -> u64 {
        mixed(self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
    }

    fn store(&self) -> &dyn BlobStore {
        &*self.stores[self.random() as usize % self.stores.len()]
    }

    fn blobs(&self) -> std::sync::MutexGuard<'_, Vec<Blob>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pick(&self) -> Option<Blob> {
        let blobs = self.blobs();
        match blobs.len() {
            0 => None,
            count => blobs.get(self.random() as usize % count).cloned(),
        }
    }

    /// Waits a little; `false` when the time is up.
    async fn pause(&self) -> bool {
        tokio::time::sleep(Duration::from_millis(self.random() % PAUSE)).await;
        Instant::now() < self.end
    }

    async fn write(&self) -> Result<()> {
        while Instant::now() < self.end {
            let seed = self.random();
            let id = BlobId::new(format!("{}{seed:016x}", self.prefix))?;
            self.blobs().push(Blob { id: id.clone(), seed, is_written: false });
            // Others ask for it meanwhile, and must not find it.
            self.pause().await;
            self.store().put(&id, data(seed).into(), &PutOptions::default()).await?;
            if let Some(blob) = self.blobs().iter_mut().find(|blob| blob.id == id) {
                blob.is_written = true;
            }
        }
        Ok(())
    }

    async fn read(&self) -> Result<()> {
        while self.pause().await {
            let Some(blob) = self.pick() else { continue };
            match self.store().get(&blob.id).await {
                Ok(found) => {
                    ensure!(found == data(blob.seed), "{} was read differently than written", blob.id);
                }
                Err(error) if error.kind() == ErrorKind::NotFound && !blob.is_written => {}
                Err(error) => return Err(error).context("a blob that was written cannot be read"),
            }
        }
        Ok(())
    }

    async fn ask(&self) -> Result<()> {
        while self.pause().await {
            let Some(blob) = self.pick() else { continue };
            match self.store().head(&blob.id).await {
                Ok(found) => {
                    let length = data(blob.seed).len() as u64;
                    ensure!(found.size == length, "{} has {} bytes, not {length}", blob.id, found.size);
                }
                Err(error) if error.kind() == ErrorKind::NotFound && !blob.is_written => {}
                Err(error) => return Err(error).context("a blob that was written is not found"),
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<()> {
        while self.pause().await {
            let written: Vec<BlobId> =
                self.blobs().iter().filter(|blob| blob.is_written).map(|blob| blob.id.clone()).collect();
            let listed: HashSet<BlobId> =
                self.store().list(&self.prefix).map_ok(|blob| blob.id).try_collect().await?;
            if let Some(id) = written.iter().find(|id| !listed.contains(*id)) {
                bail!("a listing lacks {id}, which was written before");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use lifeboat_blobs::MemoryStore;

    fn args(duration: Duration) -> ProviderArgs {
        ProviderArgs {
            num_storage_connections: 2,
            concurrency_test_duration: duration,
            put_blob_workers: 2,
            get_blob_workers: 4,
            get_metadata_workers: 4,
        }
    }

    #[tokio::test]
    async fn a_store_that_keeps_its_promises_passes() {
        let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::new());
        run(&[store.clone(), store.clone()], "z-", 7, &args(Duration::from_secs(2))).await.unwrap();
        let left: Vec<_> = store.list("z-load-").try_collect().await.unwrap();
        assert!(!left.is_empty(), "something was written");
    }

    #[tokio::test]
    async fn a_store_of_which_the_connections_see_different_blobs_does_not() {
        let stores: [Arc<dyn BlobStore>; 2] = [Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new())];
        // It ends as soon as somebody has noticed.
        let outcome = run(&stores, "z-", 7, &args(Duration::from_secs(600))).await;
        let error = format!("{:#}", outcome.unwrap_err());
        assert!(error.contains("written"), "{error}");
    }
}
