//! What a failure of the engine means to a mover.

use crate::{Error, ErrorKind};
use lifeboat_kopia as kopia;

impl From<kopia::Error> for Error {
    fn from(error: kopia::Error) -> Self {
        Error::from_source(kind_of(&error), error)
    }
}

fn kind_of(error: &kopia::Error) -> ErrorKind {
    use kopia::Error as E;
    use lifeboat_blobs::ErrorKind as Storage;
    match error {
        E::NoRepository { .. } | E::ContentNotFound { .. } | E::ManifestNotFound { .. } => {
            ErrorKind::NotFound
        }
        E::AlreadyInitialized { .. } => ErrorKind::AlreadyExists,
        E::WrongPassword => ErrorKind::WrongPassword,
        E::UpgradeInProgress { .. } => ErrorKind::Busy,
        E::ReadOnly { .. } => ErrorKind::ReadOnly,
        E::Invalid(_) => ErrorKind::InvalidInput,
        E::UnsupportedVersion { .. }
        | E::RequiredFeature { .. }
        | E::UnknownAlgorithm { .. }
        | E::PasswordChangeUnsupported => ErrorKind::Unsupported,
        E::DamagedBlob { .. }
        | E::MissingBlob { .. }
        | E::DamagedContent { .. }
        | E::DamagedObject { .. }
        | E::DamagedManifest { .. } => ErrorKind::Damaged,
        E::Storage(storage) => match storage.kind() {
            Storage::Configuration => ErrorKind::InvalidInput,
            Storage::NoSuchContainer => ErrorKind::NotFound,
            Storage::ReadOnly => ErrorKind::ReadOnly,
            _ => ErrorKind::Storage,
        },
        E::LocalFile { source, .. } if source.kind() == std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Other,
    }
}
