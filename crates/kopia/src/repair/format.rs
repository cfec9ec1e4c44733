//! Making a repository openable again: its format blob from the copies in packs, and its retention configuration.

use crate::format::{
    BACKUP_PREFIX, BlobConfig, FORMAT_BLOB, Format, FormatBlob, Password, RECOVERY_CHUNK_LEN,
    find_recovery_block,
};
use crate::pack::PackKind;
use crate::worker::blocking;
use crate::{Environment, Error, Result, epoch};
use bytes::Bytes;
use futures::TryStreamExt;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, PutOptions, Retention};

/// Every pack of a repository has the copy, or none has: so many are looked at.
const MAX_PACKS: usize = 100;
/// The format blob has a few kilobytes.
const MAX_LEN: u64 = 1 << 20;

/// What became of the format blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatRepair {
    /// There is nothing wrong with it.
    Sound,
    /// It was put back, or in a dry run would be.
    Restored {
        /// The blob that held a copy.
        from: BlobId,
    },
}

/// Puts the format blob back if it is missing or damaged and there is a copy that the password opens: in packs of
/// repositories whose password cannot be changed, and beside it while an upgrade is not finished.
///
/// Fails as opening the repository would if there is none.
pub async fn format_blob(store: &dyn BlobStore, password: &Password, dry_run: bool) -> Result<FormatRepair> {
    let id = BlobId::new(FORMAT_BLOB)?;
    let failure = match store.get(&id).await {
        Ok(bytes) => match opens(&bytes, password).await {
            Ok(()) => return Ok(FormatRepair::Sound),
            Err(error) => error,
        },
        Err(error) if error.is_not_found() => Error::NoRepository { store: store.describe() },
        Err(error) => return Err(error.into()),
    };
    let Some((from, copy)) = find_copy(store, password).await? else { return Err(failure) };
    if !dry_run {
        store.put(&id, copy.into(), &PutOptions::default()).await?;
    }
    Ok(FormatRepair::Restored { from })
}

/// Writes the retention configuration anew if it is damaged; without `retention`, blobs that are written from then on
/// get no lock. Returns whether it had to be.
pub async fn config(
    store: &dyn BlobStore,
    password: &Password,
    environment: &Environment,
    retention: Option<Retention>,
    dry_run: bool,
) -> Result<bool> {
    let mut format = Format::open(store, password, environment, None).await?;
    if format.check_config().is_ok() {
        return Ok(false);
    }
    if !dry_run {
        format.reset_config(store, environment, BlobConfig::new(retention)).await?;
    }
    Ok(true)
}

async fn opens(bytes: &[u8], password: &Password) -> Result<()> {
    let blob = FormatBlob::parse(bytes)?;
    let password = password.clone();
    let open = move || blob.derive_key(&password).and_then(|key| blob.open(&key)).map(drop);
    blocking(open).await?
}

/// A copy of the format blob that the password opens, and where it was.
async fn find_copy(store: &dyn BlobStore, password: &Password) -> Result<Option<(BlobId, Bytes)>> {
    for kind in PackKind::ALL {
        let mut packs = store.list(kind.blob_prefix());
        for _ in 0..MAX_PACKS {
            let Some(pack) = packs.try_next().await? else { break };
            if let Some(copy) = copy_in_pack(store, &pack).await?
                && opens(&copy, password).await.is_ok()
            {
                return Ok(Some((pack.id, copy)));
            }
        }
    }
    // Once the upgrade is finished the copy is of a repository that is no more.
    let upgraded = store.list(epoch::names::ALL).try_next().await?.is_some();
    let mut backups = store.list(BACKUP_PREFIX);
    while let Some(backup) = backups.try_next().await? {
        if upgraded || backup.size > MAX_LEN {
            continue;
        }
        let copy = store.get(&backup.id).await?;
        if opens(&copy, password).await.is_ok() {
            return Ok(Some((backup.id, copy)));
        }
    }
    Ok(None)
}

async fn copy_in_pack(store: &dyn BlobStore, pack: &BlobMetadata) -> Result<Option<Bytes>> {
    let len = pack.size.min(RECOVERY_CHUNK_LEN as u64);
    for range in [0..len, pack.size - len..pack.size] {
        if range.is_empty() {
            continue;
        }
        let chunk = match store.get_range(&pack.id, range).await {
            Err(error) if error.is_not_found() => return Ok(None),
            chunk => chunk?,
        };
        if let Some(copy) = find_recovery_block(&chunk)? {
            return Ok(Some(Bytes::copy_from_slice(copy)));
        }
    }
    Ok(None)
}
