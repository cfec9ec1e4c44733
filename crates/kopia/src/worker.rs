//! Work that blocks, on threads where that is allowed.

use crate::{Error, Result};

/// Runs `work` there; fails only if it panics.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::Worker(e.to_string()))
}
