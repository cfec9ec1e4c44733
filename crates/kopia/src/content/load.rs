//! Fetching index blobs: small ones through memory, large ones through a file, none of them twice in memory.

use crate::Error;
use crate::sealer::Sealer;
use crate::worker::blocking;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore};
use lifeboat_budget::{Budget, Reservation};
use lifeboat_index::IndexSource;
use lifeboat_primitives::aead::{StreamDecryptor, StreamVerifier};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Blobs up to this size are opened in memory, if the budget is large enough for several of them.
const IN_MEMORY: u64 = 4 << 20;
/// Larger ones are fetched in ranges of this size.
const RANGE: u64 = 4 << 20;
/// And in ranges of this size where memory is short.
const SHORT_RANGE: u64 = 256 << 10;

/// Why an index blob could not be had.
#[derive(Debug)]
pub(super) enum FetchError {
    /// It is not there any more.
    Vanished(BlobId),
    /// Something else.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for FetchError {
    fn from(error: E) -> Self {
        FetchError::Failed(error.into())
    }
}

/// Fetches and opens index blobs.
#[derive(Debug)]
pub(super) struct IndexLoader {
    store: Arc<dyn BlobStore>,
    sealer: Arc<Sealer>,
    budget: Budget,
    /// Where large plaintexts are put; the files have no name.
    folder: PathBuf,
}

impl IndexLoader {
    pub(super) fn new(
        store: Arc<dyn BlobStore>,
        sealer: Arc<Sealer>,
        budget: Budget,
        folder: PathBuf,
    ) -> Self {
        IndexLoader { store, sealer, budget, folder }
    }

    pub(super) fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The plaintext of an index blob; the memory that it takes is held by the reservation.
    ///
    /// Memory is never waited for: whoever needs the index may hold all of it. A blob that does not fit what is left
    /// goes through a file.
    pub(super) async fn fetch(
        &self,
        blob: &BlobMetadata,
    ) -> std::result::Result<(IndexSource, Option<Reservation>), FetchError> {
        let verifier = self.sealer.verify_blob(blob.id.as_str(), blob.size)?;
        let small = blob.size <= IN_MEMORY.min(self.budget.total() / 16);
        // Sealed and opened bytes are there at the same time.
        let memory = small.then(|| self.budget.try_reserve(blob.size.saturating_mul(2))).flatten();
        match verifier {
            Some(verifier) if memory.is_none() => Ok((self.fetch_to_file(blob, verifier).await?, None)),
            // Error correction works on the whole only.
            _ => Ok((self.fetch_to_memory(blob).await?, memory)),
        }
    }

    async fn fetch_to_memory(&self, blob: &BlobMetadata) -> std::result::Result<IndexSource, FetchError> {
        let sealed = self.store.get(&blob.id).await.map_err(|e| vanished_or(&blob.id, e))?;
        let (sealer, id) = (self.sealer.clone(), blob.id.clone());
        let plain = blocking(move || sealer.open_blob(id.as_str(), &sealed)).await??;
        Ok(IndexSource::memory(plain))
    }

    /// Fetches the sealed blob into a file and checks it on the way; only then is it decrypted, in place.
    async fn fetch_to_file(
        &self,
        blob: &BlobMetadata,
        mut verifier: StreamVerifier,
    ) -> std::result::Result<IndexSource, FetchError> {
        let memory = self.budget.try_reserve(RANGE);
        let range_len = if memory.is_some() { RANGE } else { SHORT_RANGE };
        let mut file = tempfile::tempfile_in(&self.folder).map_err(|e| self.local("create a file in", e))?;
        let mut at = 0;
        while at < blob.size {
            let range = at..(at + range_len).min(blob.size);
            at = range.end;
            let part = self.store.get_range(&blob.id, range).await.map_err(|e| vanished_or(&blob.id, e))?;
            verifier.update(&part).map_err(|e| damaged(&blob.id, &e))?;
            file.write_all(&part).map_err(|e| self.local("write to", e))?;
        }
        let decryptor = verifier.finish().map_err(|e| damaged(&blob.id, &e))?;
        let opened = blocking(move || decrypt_file(&file, decryptor).map(|()| file)).await?;
        drop(memory);
        Ok(IndexSource::File(opened.map_err(|e| self.local("decrypt an index in", e))?))
    }

    fn local(&self, action: &'static str, source: std::io::Error) -> Error {
        Error::LocalFile { action, path: self.folder.display().to_string(), source }
    }
}

/// Decrypts a verified file in place. The plaintext lies before the ciphertext that it came from, so going forward
/// never overwrites what is still to be read.
fn decrypt_file(file: &File, mut decryptor: StreamDecryptor) -> std::io::Result<()> {
    let total = decryptor.plaintext_len();
    let mut buffer = vec![0; total.min(1 << 20) as usize];
    let mut at = 0;
    while at < total {
        let part = &mut buffer[..(total - at).min(1 << 20) as usize];
        file.read_exact_at(part, StreamDecryptor::sealed_offset(at))?;
        decryptor.decrypt(at, part).map_err(std::io::Error::other)?;
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    file.set_len(total)
}

fn vanished_or(id: &BlobId, error: lifeboat_blobs::Error) -> FetchError {
    match error.is_not_found() {
        true => FetchError::Vanished(id.clone()),
        false => FetchError::Failed(error.into()),
    }
}

fn damaged(id: &BlobId, error: &lifeboat_primitives::Error) -> Error {
    Error::DamagedBlob { blob: id.to_string(), reason: error.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sealer::SealerKeys;
    use crate::{Environment, Result};
    use lifeboat_blobs::MemoryStore;
    use lifeboat_blobs::{PutOptions, Result as BlobResult};

    async fn opened(len: usize, damage: Option<usize>) -> Result<Vec<u8>> {
        let environment = Environment::default();
        let keys = SealerKeys {
            hash: Default::default(),
            hash_secret: &[1; 32],
            cipher: Default::default(),
            master_key: &[2; 32],
            ecc_overhead_percent: None,
        };
        let sealer = Arc::new(Sealer::new(&keys, &environment).unwrap());
        let plain: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let sealed = sealer.seal_blob(&plain).unwrap();
        let store = MemoryStore::new();
        let id = BlobId::new(sealed.name("xn0_", Some("s1-c1"))).unwrap();
        let mut bytes = sealed.bytes().to_vec();
        if let Some(at) = damage {
            bytes[at] ^= 1;
        }
        let put: BlobResult<()> = store.put(&id, bytes.into(), &PutOptions::default()).await;
        put.unwrap();
        let loader =
            IndexLoader::new(Arc::new(store.clone()), sealer, Budget::new(16 << 20), std::env::temp_dir());
        let metadata = store.head(&id).await.unwrap();
        match loader.fetch(&metadata).await {
            Ok((IndexSource::Memory(bytes), _)) => Ok((*bytes).as_ref().to_vec()),
            Ok((IndexSource::File(file), _)) => {
                let mut found = vec![0; file.metadata().unwrap().len() as usize];
                file.read_exact_at(&mut found, 0).unwrap();
                Ok(found)
            }
            Err(FetchError::Failed(error)) => Err(error),
            Err(FetchError::Vanished(id)) => {
                Err(Error::MissingBlob { blob: id.to_string(), needed_for: "the test".into() })
            }
        }
    }

    #[tokio::test]
    async fn large_blobs_go_through_a_file_and_small_ones_through_memory() {
        for len in [0, 1000, (1 << 20) - 28, 1 << 20, (9 << 20) + 5] {
            let plain = opened(len, None).await.unwrap();
            assert!(plain.len() == len && plain.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
        }
    }

    #[tokio::test]
    async fn damage_is_found_before_anything_is_used() {
        for (len, at) in [(1000, 500), (9 << 20, 5 << 20), (9 << 20, 3), (9 << 20, (9 << 20) + 20)] {
            assert!(matches!(opened(len, Some(at)).await, Err(Error::DamagedBlob { .. })), "{len} {at}");
        }
    }
}
