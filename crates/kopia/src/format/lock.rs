//! The upgrade lock of an open format: placing it, and ending the upgrade in the one way or the other.
//!
//! Before the lock is placed the format blob is copied, so that the upgrade can be undone. Each step leaves a state from
//! which the owner can go on or go back, whatever becomes of the next one.

use super::{BACKUP_PREFIX, FORMAT_BLOB, Format, FormatBlob, MAX_VERSION, RepositoryFormat, UpgradeLock};
use crate::{Environment, Error, Result, epoch, legacy};
use bytes::Bytes;
use futures::TryStreamExt;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, PutMode};

impl Format {
    /// Places `lock`, or changes the one that its owner has placed before. From then on clients that do not know of
    /// locks find a version that they do not know. `None` if the repository has the newest version already.
    pub async fn place_upgrade_lock(
        &mut self,
        store: &dyn BlobStore,
        env: &Environment,
        lock: UpgradeLock,
    ) -> Result<Option<UpgradeLock>> {
        lock.validate()?;
        let placed = match &self.format.upgrade_lock {
            None if self.format.version >= MAX_VERSION => return Ok(None),
            None => {
                self.check_config()?;
                let backup = backup_name(&lock.owner_id);
                self.put(store, &backup, self.bytes.clone(), PutMode::Overwrite).await?;
                // Without a lock there is no upgrade that other copies could be of.
                delete_backups(store, Some(&backup)).await?;
                lock
            }
            Some(held) => held.updated(&lock)?,
        };
        if self.format.upgrade_lock.as_ref() != Some(&placed) {
            let lock = placed.clone();
            let change = |changed: &mut Format| {
                (changed.format.version, changed.format.upgrade_lock) = (MAX_VERSION, Some(lock));
            };
            self.rewrite(store, env, change).await?;
        }
        Ok(Some(placed))
    }

    /// How the repository was before the upgrade that is going on, and the bytes of its format blob.
    pub(crate) async fn before_upgrade(
        &self,
        store: &dyn BlobStore,
    ) -> Result<Option<(RepositoryFormat, Bytes)>> {
        let own = backup_name(&self.upgrade_lock()?.owner_id);
        let mut backups = backups(store).await?;
        // The oldest one, as Kopia has it, unless the owner's own is there.
        backups.sort_by_key(|backup| (backup.id.as_str() != own, backup.modified));
        let Some(backup) = backups.first() else { return Ok(None) };
        let bytes = store.get(&backup.id).await?;
        let format = FormatBlob::parse(&bytes)
            .and_then(|blob| blob.open(&self.key))
            .map_err(|error| Error::DamagedBlob { blob: backup.id.to_string(), reason: error.to_string() })?;
        Ok(Some((format, bytes)))
    }

    /// Ends the upgrade: the repository is open to everybody who knows its new format.
    pub async fn commit_upgrade(&mut self, store: &dyn BlobStore, env: &Environment) -> Result<()> {
        self.upgrade_lock()?;
        self.put_poison(store).await?;
        self.rewrite(store, env, |changed| changed.format.upgrade_lock = None).await?;
        // It would be a copy under an old password once that is changed. If it stays, the next upgrade removes it.
        if let Err(error) = delete_backups(store, None).await {
            tracing::warn!(%error, "the copy of the format blob from before the upgrade could not be removed");
        }
        Ok(())
    }

    /// Keeps clients away that know the index without epochs only and have the old format blob in a cache.
    pub(crate) async fn put_poison(&self, store: &dyn BlobStore) -> Result<()> {
        let content = Bytes::from_static(legacy::POISON_CONTENT);
        self.put(store, legacy::POISON, content, PutMode::Overwrite).await
    }

    /// Undoes the upgrade: the repository is as it was when the lock was placed. What the owner has written since into
    /// an index with epochs, if that is new, is not in the old index.
    pub async fn roll_back_upgrade(&mut self, store: &dyn BlobStore, env: &Environment) -> Result<()> {
        let lock = self.upgrade_lock()?.clone();
        let Some((before, bytes)) = self.before_upgrade(store).await? else {
            return Err(Error::Invalid(format!(
                "there is no copy of the format blob from before the upgrade ({BACKUP_PREFIX}{}): \
                 finish the upgrade instead",
                lock.owner_id
            )));
        };
        if before.epochs().is_none() {
            store.delete(&BlobId::new(legacy::POISON)?).await?;
            if self.format.epochs().is_some() {
                // Still locked, but with the old index: the new one can go.
                let (before, lock) = (before.clone(), lock.clone());
                let change = |changed: &mut Format| {
                    changed.format =
                        RepositoryFormat { version: MAX_VERSION, upgrade_lock: Some(lock), ..before };
                };
                self.rewrite(store, env, change).await?;
            }
            delete_epochs(store).await?;
        }
        self.put(store, FORMAT_BLOB, bytes.clone(), PutMode::Overwrite).await?;
        (self.blob, self.bytes, self.format) = (FormatBlob::parse(&bytes)?, bytes, before);
        delete_backups(store, None).await
    }

    fn upgrade_lock(&self) -> Result<&UpgradeLock> {
        let none = || Error::Invalid("no upgrade of the repository is going on".to_owned());
        self.format.upgrade_lock.as_ref().ok_or_else(none)
    }
}

/// Deletes every index blob with epochs. Only for repositories whose format says that they have none: there it is what
/// a migration left that did not come to its end.
pub(crate) async fn delete_epochs(store: &dyn BlobStore) -> Result<()> {
    let left: Vec<BlobMetadata> = store.list(epoch::names::ALL).try_collect().await?;
    for blob in left {
        store.delete(&blob.id).await?;
    }
    Ok(())
}

fn backup_name(owner: &str) -> String {
    format!("{BACKUP_PREFIX}{owner}")
}

async fn backups(store: &dyn BlobStore) -> Result<Vec<BlobMetadata>> {
    Ok(store.list(BACKUP_PREFIX).try_collect().await?)
}

async fn delete_backups(store: &dyn BlobStore, except: Option<&str>) -> Result<()> {
    for backup in backups(store).await? {
        if Some(backup.id.as_str()) != except {
            store.delete(&backup.id).await?;
        }
    }
    Ok(())
}
