//! What restic wrote for earlier releases of Velero: which operations mean it, and where it lies. It is only read.

use crate::location::{self, Access, LocationError};
use lifeboat_api::v1::{BackupStorageLocationSpec, UploaderType};
use lifeboat_blobs::StoreConfig;

/// Why data of restic cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum LegacyError {
    /// Nothing says where it is.
    #[error("spec.repoIdentifier is empty, so nothing says where restic keeps it")]
    Unnamed,
    /// Its place is none that can be read.
    #[error(transparent)]
    Unreadable(#[from] lifeboat_repository::Error),
    /// It is not in storage that a backup location leads to.
    #[error(
        "restic keeps it in {0:?}, and only what is in the object storage of its backup location can be reached"
    )]
    Elsewhere(String),
    /// The location's description is wrong.
    #[error(transparent)]
    Location(#[from] LocationError),
}

/// Whether an operation is about data of restic. Old ones do not say who moves the data, but where restic keeps it; those of
/// kopia never say that.
#[must_use]
pub fn is_restic(uploader: UploaderType, repository: &str) -> bool {
    uploader == UploaderType::Restic || uploader == UploaderType::Unset && !repository.is_empty()
}

/// Whether the repository of this name can be one that a backup location leads to.
///
/// # Errors
/// If it cannot.
pub fn check(repository: &str) -> Result<(), LegacyError> {
    named(repository).map(drop)
}

/// The store that holds the repository. Its name says the bucket and the folder; how that is reached, and with which
/// credentials, is the backup location's to say, as for every other repository: they go nowhere else.
///
/// # Errors
/// If the repository is not in the location's kind of storage, or the location's settings make no sense.
pub fn store_config(
    location: &BackupStorageLocationSpec,
    repository: &str,
    access: &Access,
) -> Result<StoreConfig, LegacyError> {
    let named = named(repository)?;
    let mut config = location::store_config(location, "", access)?;
    match (&mut config, named) {
        (StoreConfig::S3(own), StoreConfig::S3(named)) => {
            (own.bucket, own.prefix) = (named.bucket, named.prefix);
        }
        (StoreConfig::Gcs(own), StoreConfig::Gcs(named)) => {
            (own.bucket, own.prefix) = (named.bucket, named.prefix);
        }
        (StoreConfig::Azure(own), StoreConfig::Azure(named)) => {
            (own.container, own.prefix) = (named.container, named.prefix);
        }
        _ => return Err(LegacyError::Elsewhere(repository.to_owned())),
    }
    Ok(config)
}

fn named(repository: &str) -> Result<StoreConfig, LegacyError> {
    if repository.is_empty() {
        return Err(LegacyError::Unnamed);
    }
    match lifeboat_restic::location::parse(repository)? {
        StoreConfig::Filesystem(_) => Err(LegacyError::Elsewhere(repository.to_owned())),
        named => Ok(named),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use serde_json::json;

    fn location(provider: &str, config: serde_json::Value) -> BackupStorageLocationSpec {
        let storage = json!({ "bucket": "now", "prefix": "p" });
        serde_json::from_value(json!({ "provider": provider, "config": config, "objectStorage": storage }))
            .unwrap()
    }

    #[test]
    fn a_repository_of_restic_is_reached_as_its_location_is() {
        let aws = location("aws", json!({ "region": "r", "s3Url": "https://store:9000" }));
        let access = Access { credentials_file: Some("/credentials/cloud".into()), ..Access::default() };
        let found = store_config(&aws, "s3:http://evil.example/bucket/velero/restic/shop", &access).unwrap();
        let StoreConfig::S3(found) = found else { panic!("{found:?}") };
        assert_eq!((&*found.bucket, &*found.prefix), ("bucket", "velero/restic/shop/"));
        // Whoever makes an operation cannot have credentials sent where he likes.
        assert_eq!((&*found.endpoint, found.do_not_use_tls, &*found.region), ("store:9000", false, "r"));
        assert_eq!(found.lifeboat.credentials_file, access.credentials_file);
        let azure = location("azure", json!({ "storageAccount": "a" }));
        let found = store_config(&azure, "azure:blobs:/restic/shop", &Access::default()).unwrap();
        let StoreConfig::Azure(found) = found else { panic!("{found:?}") };
        assert_eq!(
            (&*found.container, &*found.prefix, &*found.storage_account),
            ("blobs", "restic/shop/", "a")
        );
    }

    #[test]
    fn what_cannot_be_reached_is_named() {
        for (repository, named) in [
            ("", "spec.repoIdentifier"),
            ("/srv/restic", "/srv/restic"),
            ("sftp:user@host:/srv/restic", "sftp"),
            ("s3:host", "s3:host"),
        ] {
            let error = check(repository).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        let aws = location("aws", json!({ "region": "r" }));
        let error = store_config(&aws, "gs:bucket:/restic/shop", &Access::default()).unwrap_err();
        assert!(error.to_string().contains("gs:bucket:/restic/shop"), "{error}");
    }

    #[test]
    fn what_restic_wrote_is_told_from_what_kopia_wrote() {
        assert!(is_restic(UploaderType::Restic, ""));
        assert!(is_restic(UploaderType::Unset, "s3:host/bucket"));
        assert!(!is_restic(UploaderType::Unset, "") && !is_restic(UploaderType::Kopia, "s3:host/bucket"));
    }
}
