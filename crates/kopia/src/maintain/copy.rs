//! Writing contents again into new packs.

use super::regions::{Region, Sealed, regions};
use super::report::Amount;
use crate::content::ContentStore;
use crate::repo::Repository;
use crate::worker::blocking;
use crate::{Error, Result};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use lifeboat_index::{ContentId, IndexEntry, Since, Snapshot};
use std::sync::Arc;

/// What became of the contents that were to be written again.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// Those that were.
    pub(super) written: Amount,
    /// Those that cannot be read, and why; they are where they were.
    pub(super) damaged: Vec<(ContentId, String)>,
}

/// Writes contents again that `index` had, living or deleted. They live in new packs after the next flush.
pub(super) async fn copy(
    repository: &Repository,
    index: &Snapshot,
    entries: Vec<IndexEntry>,
    parallel: usize,
) -> Result<Copied> {
    let since = Arc::new(repository.contents().snapshot().since(index)?);
    stream::iter(regions(entries, repository.budget()))
        .map(|region| copy_region(repository, region, since.clone()).boxed())
        .buffer_unordered(parallel.max(1))
        .try_fold(Copied::default(), |mut total, part| async move {
            total.written.count += part.written.count;
            total.written.bytes += part.written.bytes;
            total.damaged.extend(part.damaged);
            Ok(total)
        })
        .await
}

async fn copy_region(
    repository: &Repository,
    region: Region<IndexEntry>,
    since: Arc<Since>,
) -> Result<Copied> {
    let _memory = region.reserve(repository.budget()).await?;
    let contents = repository.contents().clone();
    let read = region.read(&contents).await?;
    let write = move || -> Result<Copied> {
        let mut copied = Copied::default();
        for (known, sealed) in read {
            match copy_one(&contents, &known, sealed, &since) {
                Ok(true) => copied.written.add(known.packed_length.into()),
                Ok(false) => {}
                Err(error) if error.is_damage() => copied.damaged.push((known.id, error.to_string())),
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    };
    blocking(write).await?
}

/// Writes one content again; `false` if somebody changed it meanwhile, so that it is none of our business any more.
fn copy_one(contents: &ContentStore, known: &IndexEntry, sealed: Sealed, since: &Since) -> Result<bool> {
    let (entry, sealed) = sealed?;
    if entry != *known {
        return Ok(false);
    }
    // Rewriting opens the seal but does not unpack: what cannot be unpacked is to stay where it can be looked at.
    contents.check_sealed(known, &sealed).map_err(|reason| Error::DamagedContent {
        id: known.id,
        blob: known.pack.to_string(),
        reason,
    })?;
    contents.rewrite(known, &sealed, since)
}
