//! Everything that can be wrong with a repository, named so that a caller can act on it.

use lifeboat_index::ContentId;

/// The outcome of a repository operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of a repository operation. Each text says what failed, on what, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage below failed.
    #[error(transparent)]
    Storage(#[from] lifeboat_blobs::Error),

    /// There is no repository at this place.
    #[error(
        "there is no repository in {store}: blob \"kopia.repository\" is missing; check bucket, prefix or path, or create one"
    )]
    NoRepository {
        /// The store that was looked at.
        store: String,
    },

    /// A repository is already there.
    #[error("{store} already holds a repository; connect to it, or choose an empty place")]
    AlreadyInitialized {
        /// The store that was looked at.
        store: String,
    },

    /// The format blob could not be decrypted.
    #[error(
        "the repository password is wrong (or the format blob \"kopia.repository\" is damaged); give the password that it was created with or last changed to"
    )]
    WrongPassword,

    /// The repository was written by something newer.
    #[error(
        "repository format version {version} is not supported (this program knows 1 to 3); use a newer program"
    )]
    UnsupportedVersion {
        /// The version found.
        version: i64,
    },

    /// The repository asks for a feature that this program does not know.
    #[error("the repository requires the feature {feature:?}, which this program does not know{}; use a newer program", .message.as_deref().map(|m| format!(": {m}")).unwrap_or_default())]
    RequiredFeature {
        /// The feature's name.
        feature: String,
        /// What the repository says about it.
        message: Option<String>,
    },

    /// Somebody is upgrading the repository.
    #[error("the repository is locked for an upgrade by {owner:?} since {since}{}; wait until it is finished or rolled back", .message.as_deref().map(|m| format!(" ({m})")).unwrap_or_default())]
    UpgradeInProgress {
        /// Who holds the lock.
        owner: String,
        /// When it was placed.
        since: jiff::Timestamp,
        /// What the owner says about it.
        message: Option<String>,
    },

    /// The index has moved to another place since the repository was opened.
    #[error("the repository was upgraded, or an upgrade was rolled back, since it was opened; open it again")]
    FormatChanged,

    /// An algorithm that is not registered.
    #[error("the repository uses the {kind} {name:?}, which is not known")]
    UnknownAlgorithm {
        /// `hash`, `encryption`, `splitter`, `compression`, `error correction`, `key derivation`.
        kind: &'static str,
        /// Its name or number.
        name: String,
    },

    /// A blob does not hold what it should.
    #[error("blob {blob:?} is damaged: {reason}; run `verify` to see what it affects, and `repair`")]
    DamagedBlob {
        /// The blob's name.
        blob: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A blob that the repository refers to is missing.
    #[error(
        "blob {blob:?} is missing from the storage, {needed_for} needs it; run `verify` to see what is affected"
    )]
    MissingBlob {
        /// The blob's name.
        blob: String,
        /// Who needs it.
        needed_for: String,
    },

    /// A content is not in the index.
    #[error("content {id} is not in the repository's index; run `verify` to see which snapshots need it")]
    ContentNotFound {
        /// The content.
        id: ContentId,
    },

    /// A content could be located but not decoded.
    #[error(
        "content {id} in pack blob {blob:?} is damaged: {reason}; run `verify` to see which snapshots need it"
    )]
    DamagedContent {
        /// The content.
        id: ContentId,
        /// The pack that holds it.
        blob: String,
        /// What is wrong with it.
        reason: String,
    },

    /// An object's structure is not valid.
    #[error("object {id:?} is damaged: {reason}")]
    DamagedObject {
        /// The object id.
        id: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A manifest does not exist.
    #[error("there is no manifest {id:?} in the repository")]
    ManifestNotFound {
        /// Its id.
        id: String,
    },

    /// A manifest's payload is not what it should be.
    #[error("manifest {id:?} is damaged: {reason}")]
    DamagedManifest {
        /// Its id (or the content that holds it).
        id: String,
        /// What is wrong with it.
        reason: String,
    },

    /// The caller asked for something that is not valid.
    #[error("{0}")]
    Invalid(String),

    /// The repository was opened for reading.
    #[error("cannot {action}: the repository was opened read only")]
    ReadOnly {
        /// What was attempted.
        action: &'static str,
    },

    /// The password of this repository cannot be changed.
    #[error(
        "the password cannot be changed: the repository was created without that ability (format version 1)"
    )]
    PasswordChangeUnsupported,

    /// A listing did not show everything.
    #[error(
        "index blob {blob:?} is in the store but was not listed; nothing was merged, try again or check the store"
    )]
    IncompleteListing {
        /// What the listing left out.
        blob: String,
    },

    /// Two clients write faster than the index settles.
    #[error("writing the index took so long that the index epoch moved on twice; nothing is lost, try again")]
    IndexWriteTooSlow,

    /// A pack could not be stored. What it holds is kept in memory; nothing that needs it is published.
    #[error("pack blob {blob:?} could not be written: {source}; nothing is lost yet, a flush tries again")]
    PackNotWritten {
        /// The pack.
        blob: String,
        /// Why.
        source: std::sync::Arc<lifeboat_blobs::Error>,
    },

    /// The local index cache failed.
    #[error("the local index cache failed: {0}")]
    IndexCache(#[source] lifeboat_index::Error),

    /// A file of this machine (cache, connection file) failed.
    #[error("cannot {action} {path}: {source}")]
    LocalFile {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },

    /// A buffer is larger than the memory budget.
    #[error(transparent)]
    Budget(#[from] lifeboat_budget::TooLarge),

    /// No random bytes.
    #[error("the operating system gave no random bytes: {reason}")]
    Random {
        /// Why.
        reason: String,
    },

    /// A background task died; its cause was logged where it happened.
    #[error("an internal worker ended unexpectedly: {0}")]
    Worker(String),
}

/// Where a kernel's failure needs no context of its own (a nonce, a derivation, the name of an algorithm).
impl From<lifeboat_primitives::Error> for Error {
    fn from(error: lifeboat_primitives::Error) -> Self {
        match error {
            lifeboat_primitives::Error::UnknownAlgorithm { kind, name } => {
                Error::UnknownAlgorithm { kind, name }
            }
            lifeboat_primitives::Error::Random(reason) => Error::Random { reason },
            other => Error::Invalid(other.to_string()),
        }
    }
}

impl Error {
    /// Whether something in the repository is broken, as opposed to a call that failed.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Error::DamagedBlob { .. }
                | Error::MissingBlob { .. }
                | Error::ContentNotFound { .. }
                | Error::DamagedContent { .. }
                | Error::DamagedObject { .. }
                | Error::DamagedManifest { .. }
        )
    }
}

/// What is wrong with an index blob is not a fault of the cache.
impl From<lifeboat_index::Error> for Error {
    fn from(error: lifeboat_index::Error) -> Self {
        match error {
            lifeboat_index::Error::Index { blob, source } => {
                Error::DamagedBlob { blob: blob.to_string(), reason: source.to_string() }
            }
            lifeboat_index::Error::Load { blob, source } => match source.downcast::<Error>() {
                Ok(error) => *error,
                Err(other) => Error::DamagedBlob { blob: blob.to_string(), reason: other.to_string() },
            },
            other => Error::IndexCache(other),
        }
    }
}
