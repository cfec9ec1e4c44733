//! Why maintenance did not run, or stopped.

use jiff::{SignedDuration, Timestamp};

/// The outcome of maintenance.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why maintenance did not run, or stopped. Whatever it had done until then is whole: it can be run again at any time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else is to run it.
    #[error(
        "maintenance of this repository belongs to {}, this is {us:?}; run it there, or make this client the owner",
        if .owner.is_empty() { "nobody".to_owned() } else { format!("{:?}", .owner) }
    )]
    NotOwner {
        /// Who owns it; empty if nobody does.
        owner: String,
        /// Who we are.
        us: String,
    },

    /// Time cannot be trusted, and all of maintenance rests on it.
    #[error(
        "the clocks of this machine ({local}) and of the store ({store}) differ by more than {limit:#}; \
         set the clock of this machine, nothing is deleted until then"
    )]
    ClockSkew {
        /// What this machine says.
        local: Timestamp,
        /// What the store says.
        store: Timestamp,
        /// The most that is allowed.
        limit: SignedDuration,
    },

    /// Somebody else changed the schedule while we were at it.
    #[error(
        "somebody else is maintaining this repository at the same time; \
         make sure that one client only does it, and run it again"
    )]
    Contended,

    /// Deleting would not be safe.
    #[error("{0}")]
    Blocked(String),

    /// Deleting would not be safe because of what the report names.
    #[error("{0}")]
    Obstructed(String),

    /// The repository failed.
    #[error(transparent)]
    Repository(#[from] crate::Error),
}

impl Error {
    /// Whether nothing more may be done, not even tasks that delete nothing.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Error::NotOwner { .. } | Error::ClockSkew { .. } | Error::Contended)
    }
}

impl From<lifeboat_blobs::Error> for Error {
    fn from(error: lifeboat_blobs::Error) -> Self {
        Error::Repository(error.into())
    }
}

impl From<lifeboat_index::Error> for Error {
    fn from(error: lifeboat_index::Error) -> Self {
        Error::Repository(error.into())
    }
}
