//! What can go wrong with the catalogue.

use crate::{CodecError, IndexBlobName};
use std::io;
use std::path::{Path, PathBuf};

/// An error of whoever loads index blobs, passed through.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// A failed call on the catalogue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on the catalogue's folder failed.
    #[error("cannot {action} {} (the index cache needs a writable folder with free space)", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A local file was damaged after it had been written. It has been removed: updating the catalogue again
    /// rebuilds it from the index blobs.
    #[error("the index cache file {} is damaged ({detail}); it was set aside and will be rebuilt", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// An index blob does not hold a usable index.
    #[error("index blob {blob} is damaged: {source}")]
    Index {
        /// The blob.
        blob: IndexBlobName,
        /// What is wrong with it.
        source: CodecError,
    },
    /// An index blob could not be loaded.
    #[error("cannot load index blob {blob}: {source}")]
    Load {
        /// The blob.
        blob: IndexBlobName,
        /// Why.
        source: LoadError,
    },
}

impl Error {
    /// Whether updating the catalogue again repairs what is wrong.
    pub fn is_damaged_cache(&self) -> bool {
        matches!(self, Error::Damaged { .. })
    }

    /// Turns an operating-system error on `path` into ours; for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { action, path: path.to_path_buf(), source }
    }
}
