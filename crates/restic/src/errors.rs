//! What failures of the storage and of `rustic_core` mean to a mover.

use lifeboat_blobs::ErrorKind as Storage;
use lifeboat_repository::{Error, ErrorKind};
use rustic_core::RusticError;

/// What to do about data that is not what it should be.
pub(crate) const CHECK: &str =
    "run `restic check --read-data` to see what else is touched; everything else can be restored";

/// A failure of the storage while a file of the repository was read.
pub(crate) fn of_storage(error: &lifeboat_blobs::Error) -> Error {
    match error.kind() {
        // Files are named by those that are there: one that is not, or is too short, was lost.
        Storage::NotFound | Storage::InvalidRange => {
            Error::new(ErrorKind::Damaged, format!("{error}: the repository is damaged; {CHECK}"))
        }
        Storage::Configuration => Error::new(ErrorKind::InvalidInput, error.to_string()),
        Storage::NoSuchContainer => Error::new(ErrorKind::NotFound, error.to_string()),
        Storage::ReadOnly => Error::new(ErrorKind::ReadOnly, error.to_string()),
        _ => Error::new(ErrorKind::Storage, error.to_string()),
    }
}

/// A failure of `rustic_core` while doing `what`; one of the storage below keeps its kind.
pub(crate) fn of_engine(what: &str, error: &RusticError) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        if let Some(ours) = found.downcast_ref::<Error>() {
            return Error::new(ours.kind(), format!("{what}: {ours}"));
        }
        cause = found.source();
    }
    let text = error.display_log();
    let text = text.strip_prefix("Error: ").unwrap_or(&text);
    Error::new(ErrorKind::Damaged, format!("{what}: {text}; {CHECK}"))
}

/// The answer to everything that would write.
pub(crate) fn read_only(what: &str) -> Error {
    let text = format!(
        "cannot {what}: restic repositories are only read; use `restic` for that, or back up into a repository of \
         Lifeboat's own"
    );
    Error::new(ErrorKind::Unsupported, text)
}
