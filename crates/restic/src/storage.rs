//! restic's files as blobs of a store.

use crate::errors::of_storage;
use bytes::Bytes;
use futures::TryStreamExt;
use lifeboat_blobs::{BlobId, BlobStore};
use lifeboat_repository::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustic_core::{BytesList, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend};
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// What a key may ask the password's derivation to use. restic takes 64 MiB; more than this is damage or an attack.
const MAX_KEY_MEMORY: u64 = 1 << 30;

/// A store that `rustic_core` reads from. It blocks.
pub(crate) struct Storage {
    store: Arc<dyn BlobStore>,
    runtime: Handle,
    interrupted: CancellationToken,
    /// Ranges of packs that were read beforehand and are about to be asked for, by pack and offset.
    staged: Mutex<HashMap<(Id, u32), Bytes>>,
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Storage {
    pub(crate) fn new(store: Arc<dyn BlobStore>, runtime: Handle) -> Self {
        Storage { store, runtime, interrupted: CancellationToken::new(), staged: Mutex::default() }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn describe(&self) -> String {
        self.store.describe()
    }

    /// Makes all reads fail from now on.
    pub(crate) fn interrupt(&self) {
        self.interrupted.cancel();
    }

    /// Whether there is a repository.
    pub(crate) fn has_config(&self) -> Result<bool> {
        Ok(self.config_size()?.is_some())
    }

    fn config_size(&self) -> Result<Option<u64>> {
        let id = name(FileType::Config, &Id::default())?;
        match self.runtime.block_on(self.interrupted.run_until_cancelled(self.store.head(&id))) {
            Some(Ok(found)) => Ok(Some(found.size)),
            Some(Err(error)) if error.is_not_found() => Ok(None),
            Some(Err(error)) => Err(of_storage(&error)),
            None => Err(interrupted()),
        }
    }

    /// Reads a range of a pack.
    pub(crate) async fn read_pack(&self, pack: &Id, range: Range<u64>) -> Result<Bytes> {
        let id = name(FileType::Pack, pack)?;
        let read = self.interrupted.run_until_cancelled(self.store.get_range(&id, range)).await;
        read.ok_or_else(interrupted)?.map_err(|error| of_storage(&error))
    }

    /// Keeps `bytes` for whoever reads that range of a pack while the answer lives.
    pub(crate) fn stage(&self, pack: Id, offset: u32, bytes: Bytes) -> Staged<'_> {
        self.staged.lock().insert((pack, offset), bytes);
        Staged { storage: self, place: (pack, offset) }
    }

    fn wait<T>(&self, call: impl Future<Output = lifeboat_blobs::Result<T>>) -> RusticResult<T> {
        let outcome = self.runtime.block_on(self.interrupted.run_until_cancelled(call));
        let outcome = outcome.ok_or_else(interrupted).and_then(|done| done.map_err(|e| of_storage(&e)));
        outcome.map_err(to_rustic)
    }
}

/// A range of a pack that is at hand.
pub(crate) struct Staged<'a> {
    storage: &'a Storage,
    place: (Id, u32),
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        self.storage.staged.lock().remove(&self.place);
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "reading was interrupted")
}

/// Carried through `rustic_core` as a cause, where [`crate::errors::of_engine`] finds it again.
fn to_rustic(error: Error) -> Box<RusticError> {
    RusticError::with_source(rustic_core::ErrorKind::Backend, "The storage failed.", error)
}

/// Where restic's default layout has a file.
fn name(kind: FileType, id: &Id) -> Result<BlobId> {
    let hex = id.to_hex();
    let folder = kind.dirname();
    let name = match kind {
        FileType::Config => folder.to_owned(),
        FileType::Pack => format!("{folder}/{}/{}", &hex.as_str()[..2], hex.as_str()),
        _ => format!("{folder}/{}", hex.as_str()),
    };
    BlobId::new(name).map_err(|error| of_storage(&error))
}

impl ReadBackend for Storage {
    fn location(&self) -> String {
        self.describe()
    }

    fn list_with_size(&self, kind: FileType) -> RusticResult<Vec<(Id, u32)>> {
        let size = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        if kind == FileType::Config {
            let found = self.config_size().map_err(to_rustic)?;
            return Ok(found.map(|bytes| (Id::default(), size(bytes))).into_iter().collect());
        }
        let prefix = format!("{}/", kind.dirname());
        let found: Vec<_> = self.wait(self.store.list(&prefix).try_collect())?;
        // Whatever else lies there, such as temporary files, is not the repository's.
        let file = |blob: &lifeboat_blobs::BlobMetadata| {
            let name = blob.id.as_str().rsplit('/').next()?;
            Some((Id::parse_some(name, kind)?, size(blob.size)))
        };
        Ok(found.iter().filter_map(file).collect())
    }

    fn read_full(&self, kind: FileType, id: &Id) -> RusticResult<Bytes> {
        let name = name(kind, id).map_err(to_rustic)?;
        let bytes = self.wait(self.store.get(&name))?;
        if kind == FileType::Key {
            check_key(&name, &bytes).map_err(to_rustic)?;
        }
        Ok(bytes)
    }

    fn read_partial(
        &self,
        kind: FileType,
        id: &Id,
        _cacheable: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        if let Some(staged) = self.staged.lock().get(&(*id, offset)).filter(|b| b.len() == length as usize) {
            return Ok(staged.clone());
        }
        let name = name(kind, id).map_err(to_rustic)?;
        let range = u64::from(offset)..u64::from(offset) + u64::from(length);
        self.wait(self.store.get_range(&name, range))
    }

    fn warmup_path(&self, kind: FileType, id: &Id) -> String {
        name(kind, id).map(|name| name.to_string()).unwrap_or_default()
    }
}

impl WriteBackend for Storage {
    fn write_bytes(&self, _: FileType, _: &Id, _: bool, _: BytesList) -> RusticResult<()> {
        Err(to_rustic(crate::errors::read_only("write")))
    }

    fn remove(&self, _: FileType, _: &Id, _: bool) -> RusticResult<()> {
        Err(to_rustic(crate::errors::read_only("delete")))
    }
}

/// The parameters of a key's derivation, which are not encrypted: whoever can write to the storage can change them.
#[derive(Deserialize)]
struct KeyParameters {
    #[serde(rename = "N")]
    n: u64,
    r: u64,
    p: u64,
}

fn check_key(name: &BlobId, bytes: &[u8]) -> Result<()> {
    let damaged = |reason: String| {
        let text = format!("the key {name} cannot be used: {reason}; remove it, or restore it from a copy");
        Error::new(ErrorKind::Damaged, text)
    };
    let KeyParameters { n, r, p } = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let memory = n.saturating_mul(r).saturating_mul(128);
    match n.is_power_of_two() && n > 1 && (1..=1024).contains(&p) && r > 0 && memory <= MAX_KEY_MEMORY {
        true => Ok(()),
        false => Err(damaged(format!("its parameters N={n}, r={r}, p={p} are not those of restic"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_restic_has_them() {
        let id: Id = "ab".repeat(32).parse().unwrap();
        let hex = "ab".repeat(32);
        for (kind, expected) in [
            (FileType::Config, "config".to_owned()),
            (FileType::Key, format!("keys/{hex}")),
            (FileType::Index, format!("index/{hex}")),
            (FileType::Snapshot, format!("snapshots/{hex}")),
            (FileType::Pack, format!("data/ab/{hex}")),
        ] {
            assert_eq!(name(kind, &id).unwrap().as_str(), expected);
        }
    }

    #[test]
    fn hostile_keys_are_refused_before_they_are_used() {
        let check = |text: &str| check_key(&BlobId::new("keys/x").unwrap(), text.as_bytes());
        assert!(check(r#"{"N":32768,"r":8,"p":6,"data":""}"#).is_ok());
        for text in [
            "",
            r#"{"N":0,"r":8,"p":1}"#,
            r#"{"N":3,"r":8,"p":1}"#,
            r#"{"N":1073741824,"r":8,"p":1}"#,
            r#"{"N":32768,"r":0,"p":1}"#,
            r#"{"N":32768,"r":8,"p":100000}"#,
        ] {
            let error = check(text).unwrap_err();
            assert!(error.kind() == ErrorKind::Damaged && error.to_string().contains("keys/x"), "{error}");
        }
    }
}
