//! What can go wrong with a test cluster: what failed, on what, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The outcome of a testbed call.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the testbed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file, socket or process of the testbed could not be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("{program} failed ({outcome}): {output}")]
    Command {
        /// The program and its first arguments; never its environment or its input.
        program: String,
        /// The exit code or signal.
        outcome: String,
        /// The end of what it said.
        output: String,
    },
    /// Something that has to be installed or built is not there.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// What is missing.
        what: String,
        /// The command that provides it.
        remedy: String,
    },
    /// A condition did not come true in time.
    #[error("{what} did not happen within {}s\n{detail}", timeout.as_secs())]
    Timeout {
        /// The condition.
        what: String,
        /// How long it was waited for.
        timeout: Duration,
        /// What was seen last: state, events, logs.
        detail: String,
    },
    /// The request does not make sense: a bad name, an unknown component.
    #[error("{0}")]
    Invalid(String),
    /// A part of the cluster answered with something unexpected.
    #[error("{part}: {problem}")]
    Unexpected {
        /// The part.
        part: String,
        /// What it did.
        problem: String,
    },
}

/// Tests unwrap: what they then show must be the message itself, with its lines of events and logs.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_owned();
        move |source| Error::Io { action, path, source }
    }

    pub(crate) fn unexpected(part: impl Into<String>, problem: impl ToString) -> Error {
        Error::Unexpected { part: part.into(), problem: problem.to_string() }
    }
}
