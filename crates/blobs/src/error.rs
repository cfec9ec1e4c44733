//! What can go wrong with backup storage, in terms that callers act on.

use crate::BlobId;
use std::fmt;

/// The outcome of a storage call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The blob does not exist.
    NotFound,
    /// A create-only put found the name taken.
    AlreadyExists,
    /// The requested range does not lie inside the blob.
    InvalidRange,
    /// Credentials are missing, wrong or expired.
    Unauthenticated,
    /// The credentials are known but may not do this.
    PermissionDenied,
    /// The bucket, container or folder does not exist or is not what was expected.
    NoSuchContainer,
    /// The store has no room or a quota is used up.
    Full,
    /// The blob is under retention and may not be changed or deleted.
    Locked,
    /// A passing failure (network, throttling, server error): worth another try.
    Transient,
    /// This store cannot do that at all.
    Unsupported,
    /// The configuration of the store is wrong.
    Configuration,
    /// The wrapper forbids it: the store was opened read only.
    ReadOnly,
    /// What came back is not what was asked for (short body, wrong length, garbled listing).
    Corrupt,
    /// Anything else; not retried.
    Other,
}

impl ErrorKind {
    /// Whether the same call may succeed if it is simply made again.
    pub fn is_transient(self) -> bool {
        matches!(self, ErrorKind::Transient)
    }
}

/// Which call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Operation {
    Open,
    Put,
    Get,
    Head,
    List,
    Delete,
    Retain,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Open => "open",
            Operation::Put => "write",
            Operation::Get => "read",
            Operation::Head => "look up",
            Operation::List => "list",
            Operation::Delete => "delete",
            Operation::Retain => "extend the retention of",
        })
    }
}

/// A failed storage call: what was tried, on what, where, why, and what to do.
///
/// The text never contains credentials: sources are built from status codes, operating-system errors and
/// messages that have been stripped of query strings and headers.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    operation: Operation,
    /// Blob name or listing prefix; empty for the store as a whole.
    blob: String,
    store: String,
    detail: String,
    remedy: Option<&'static str>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    out_of_time: bool,
}

impl Error {
    /// An error of `kind` while doing `operation` on `blob` (a name or a listing prefix) in `store`.
    pub fn new(
        kind: ErrorKind,
        operation: Operation,
        blob: impl fmt::Display,
        store: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Error {
            kind,
            operation,
            blob: blob.to_string(),
            store: store.into(),
            detail: detail.into(),
            remedy: None,
            source: None,
            out_of_time: false,
        }
    }

    /// A missing blob.
    pub fn not_found(operation: Operation, blob: &BlobId, store: impl Into<String>) -> Self {
        Error::new(ErrorKind::NotFound, operation, blob, store, "it does not exist")
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: &'static str) -> Self {
        self.remedy = Some(remedy);
        self
    }

    /// Adds the underlying cause. The cause must be free of secrets.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Notes that the call was repeated for all of the time that it had.
    #[must_use]
    pub(crate) fn after_all_its_time(mut self) -> Self {
        self.out_of_time = true;
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Which call failed.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The blob (or listing prefix) that the call was about.
    pub fn blob(&self) -> &str {
        &self.blob
    }

    /// Whether the call was repeated until its time was over. Whoever makes it again waits as long again.
    pub fn is_out_of_time(&self) -> bool {
        self.out_of_time
    }

    /// Whether the blob does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} ", self.operation)?;
        if self.blob.is_empty() {
            write!(f, "{}: {}", self.store, self.detail)?;
        } else {
            write!(f, "blob {:?} in {}: {}", self.blob, self.store, self.detail)?;
        }
        match self.remedy {
            Some(remedy) => write!(f, " ({remedy})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
