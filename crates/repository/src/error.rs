//! One error for all engines: a kind to act on and a text to show.

use std::fmt;

/// The outcome of a repository call.
pub type Result<T> = std::result::Result<T, Error>;

/// What a caller can do about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object, manifest or repository does not exist.
    NotFound,
    /// A repository is already there.
    AlreadyExists,
    /// The password is wrong.
    WrongPassword,
    /// The options or arguments are not valid.
    InvalidInput,
    /// The repository was opened read only.
    ReadOnly,
    /// This engine cannot do that.
    Unsupported,
    /// Somebody else holds the repository (upgrade lock, maintenance ownership); try later.
    Busy,
    /// Stored data is damaged or missing.
    Damaged,
    /// The storage failed and may work again later.
    Storage,
    /// [`crate::Repository::interrupt_reads`] was called.
    Interrupted,
    /// Anything else.
    Other,
}

/// A failed repository call.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a text that says what failed, on what, and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    /// An error of `kind` whose text is that of its cause.
    pub fn from_source(kind: ErrorKind, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error { kind, message: source.to_string(), source: Some(Box::new(source)) }
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text already is that of the cause: hand on the cause's own cause, so that chains do not repeat.
        self.source.as_deref().and_then(std::error::Error::source)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind {
            ErrorKind::NotFound => std::io::ErrorKind::NotFound,
            ErrorKind::AlreadyExists => std::io::ErrorKind::AlreadyExists,
            ErrorKind::InvalidInput => std::io::ErrorKind::InvalidInput,
            ErrorKind::Unsupported => std::io::ErrorKind::Unsupported,
            ErrorKind::Damaged => std::io::ErrorKind::InvalidData,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}
