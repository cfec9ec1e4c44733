//! What a call can fail with, in the terms the CSI specification gives callers to act on.

use std::path::{Path, PathBuf};
use tonic::{Code, Status};

/// The outcome of a driver operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed call; each variant is one gRPC code.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is wrong in itself; the same request will always fail.
    #[error("{0}")]
    InvalidArgument(String),
    /// The volume, snapshot or path does not exist.
    #[error("{0} does not exist")]
    NotFound(String),
    /// The name or path is taken by something incompatible.
    #[error("{0}")]
    AlreadyExists(String),
    /// The state of the object forbids it for now.
    #[error("{0}")]
    FailedPrecondition(String),
    /// A size or offset that cannot be had.
    #[error("{0}")]
    OutOfRange(String),
    /// No place satisfies the topology that was asked for.
    #[error("{0}")]
    ResourceExhausted(String),
    /// A listing token that this driver never gave out, or another operation on the same object is under way.
    #[error("{0}")]
    Aborted(String),
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A system tool is missing or failed.
    #[error("`{command}` failed: {reason}")]
    Tool {
        /// The command line.
        command: String,
        /// Its last words, or why it could not be run.
        reason: String,
    },
    /// A file of the driver, or its knobs, does not parse.
    #[error("{} is not valid: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Content that a record promises is not there.
    #[error("the content of {0} is lost")]
    Lost(String),
    /// A knob asked for this failure.
    #[error("{text}")]
    Injected {
        /// The code to answer.
        code: Code,
        /// The message to answer.
        text: String,
    },
}

impl Error {
    /// Wraps an operating-system error with what was tried on which path.
    pub(crate) fn io<E: Into<std::io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
        move |source| Error::Io { action, path: path.to_owned(), source: source.into() }
    }

    fn code(&self) -> Code {
        match self {
            Error::InvalidArgument(_) => Code::InvalidArgument,
            Error::NotFound(_) => Code::NotFound,
            Error::AlreadyExists(_) => Code::AlreadyExists,
            Error::FailedPrecondition(_) => Code::FailedPrecondition,
            Error::OutOfRange(_) => Code::OutOfRange,
            Error::ResourceExhausted(_) => Code::ResourceExhausted,
            Error::Aborted(_) => Code::Aborted,
            Error::Io { .. } | Error::Tool { .. } | Error::Malformed { .. } => Code::Internal,
            Error::Lost(_) => Code::DataLoss,
            Error::Injected { code, .. } => *code,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status::new(error.code(), error.to_string())
    }
}
