//! What can go wrong in a kernel, in terms that the layers above can act on.

/// The outcome of a fallible kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed kernel. The text never contains key material or plaintext.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The repository names an algorithm that this version does not know.
    #[error("unknown {kind} {name:?}; the repository may need a newer version of this program")]
    UnknownAlgorithm {
        /// What was looked up, for example "hash function".
        kind: &'static str,
        /// The name that was not found.
        name: String,
    },
    /// The key (or another parameter) has a length that the algorithm cannot use.
    #[error(
        "{algorithm} cannot use a key of {length} bytes (it needs {expected}); the repository's format is damaged"
    )]
    InvalidKey {
        /// The algorithm that refused.
        algorithm: &'static str,
        /// How long the key is.
        length: usize,
        /// Which lengths it takes.
        expected: &'static str,
    },
    /// A parameter is outside of what the algorithm supports.
    #[error("{what} of {value} is not supported (it must be {expected})")]
    InvalidParameter {
        /// Which parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it must be.
        expected: &'static str,
    },
    /// The authentication tag does not match: wrong key, wrong id, or the bytes were changed.
    #[error("the data failed authentication: it was changed, belongs to another id, or the key is wrong")]
    NotAuthentic,
    /// The bytes are not what their format demands.
    #[error("damaged {what}: {detail}")]
    Corrupt {
        /// Which kind of data.
        what: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The result would be larger than the caller allows.
    #[error("{what} expands to more than the allowed {limit} bytes; the data is damaged or hostile")]
    TooLarge {
        /// Which kind of data.
        what: &'static str,
        /// The limit that the caller set.
        limit: usize,
    },
    /// The operating system gave no random bytes.
    #[error("the operating system's random number generator failed: {0}")]
    Random(String),
    /// A library refused an operation that cannot fail on valid arguments.
    #[error("{0} failed inside the cryptographic library")]
    Internal(&'static str),
}

impl Error {
    /// Damaged data of kind `what`.
    pub(crate) fn corrupt(what: &'static str, detail: impl Into<String>) -> Self {
        Error::Corrupt { what, detail: detail.into() }
    }
}
