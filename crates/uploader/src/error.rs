//! What can go wrong while data moves.

use std::path::{Path, PathBuf};

/// The outcome of moving data.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure that ends the whole run; failures of single files are counted and named in the result instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The repository failed.
    #[error(transparent)]
    Repository(#[from] lifeboat_repository::Error),

    /// The snapshot's structure is damaged.
    #[error(transparent)]
    Model(#[from] lifeboat_kopia::Error),

    /// A file of the source or target failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },

    /// A command that the policy calls essential failed.
    #[error("the action {action} of {} failed: {reason}; correct it, or make it optional in the policy", path.display())]
    Action {
        /// Which one.
        action: &'static str,
        /// The directory that it belongs to.
        path: PathBuf,
        /// Why it failed.
        reason: String,
    },

    /// Entries could not be backed up and the policy does not allow to go on without them.
    #[error(
        "{count} entries could not be backed up, the first is {path:?}: {error}; fix them or set the policy to ignore such errors"
    )]
    Entries {
        /// How many.
        count: u64,
        /// The first by path.
        path: String,
        /// What happened to it.
        error: String,
        /// Whether the system did not allow it.
        denied: bool,
    },

    /// Entries could not be restored; everything else was.
    #[error(
        "{} entries could not be restored, the first is {:?}: {}; everything else was restored",
        .0.failed,
        .0.failures.first().map(|first| first.path.clone()).unwrap_or_default(),
        .0.failures.first().map_or("", |first| &first.error)
    )]
    Unrestored(Box<crate::RestoreReport>),

    /// The snapshot holds a name that could lead out of the target.
    #[error(
        "the snapshot holds the entry name {name:?} in {directory:?}, which is not a file name; it was not restored"
    )]
    UnsafeName {
        /// The name.
        name: String,
        /// The directory that it is in.
        directory: String,
    },

    /// The target cannot hold what is to be restored; nothing was written.
    #[error(
        "{} has {available} bytes, the volume in the snapshot has {needed}; nothing was written, use a larger target",
        path.display()
    )]
    TargetTooSmall {
        /// The target.
        path: PathBuf,
        /// The size of the volume.
        needed: u64,
        /// The size of the target.
        available: u64,
    },

    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,

    /// A worker thread died.
    #[error("a worker thread ended unexpectedly")]
    Worker,
}

impl Error {
    pub(crate) fn file(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Self {
        Error::File { action, path: path.to_path_buf(), source: source.into() }
    }

    /// Whether it is that the system did not allow something, at least to one entry.
    pub fn is_denied(&self) -> bool {
        match self {
            Error::File { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
            Error::Entries { denied, .. } => *denied,
            Error::Unrestored(report) => report.failures.iter().any(|failure| failure.denied),
            _ => false,
        }
    }

    /// Whether a file or directory is not there (any more).
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Error::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}
