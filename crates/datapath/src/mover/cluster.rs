//! What a mover needs from the cluster before it can begin: the location, its credentials and the repository.

use super::assignment::Assignment;
use crate::legacy::{self, LegacyError};
use crate::location::{Access, LocationError, store_config};
use crate::transfer::{Format, Vault};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, SecretKeySelector};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use lifeboat_api::config::DEFAULT_CACHE_LIMIT_MB;
use lifeboat_api::v1::{
    AccessMode, BackupRepository, BackupRepositoryPhase, BackupRepositorySpec, BackupStorageLocation,
    UploaderType,
};
use lifeboat_api::{Duration, label_value, labels};
use lifeboat_exposer::Direction;
use lifeboat_kopia::format::Password;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration as Time;
use tempfile::TempDir;
use tokio::time::Instant;
use tracing::info;

/// The secret with the password of every repository, and the key in it.
const PASSWORD_SECRET: (&str, &str) = ("velero-repo-credentials", "repository-password");
/// The kind of repositories that there are.
const REPOSITORY_TYPE: &str = "kopia";
/// How often a repository that is being made is looked at.
const POLL: Time = Time::from_millis(500);

/// Why a mover cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Something cannot be read from the API server.
    #[error("cannot read {what}: {source}")]
    Api {
        /// What was asked for.
        what: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// A secret lacks a key.
    #[error("the secret {secret} has no key {key:?}")]
    NoKey {
        /// The secret.
        secret: String,
        /// The key.
        key: String,
    },
    /// A secret is no text.
    #[error("the key {key:?} of the secret {secret} is not valid UTF-8")]
    NotText {
        /// The secret.
        secret: String,
        /// The key.
        key: String,
    },
    /// Nothing may be written there.
    #[error("the backup location {0} is read only: nothing can be backed up to it")]
    ReadOnly(String),
    /// The location's description is wrong.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// The data of restic cannot be reached.
    #[error("the data was backed up by restic: {0}")]
    Legacy(#[from] LegacyError),
    /// There are several repositories where there can be one.
    #[error(
        "there are {count} BackupRepositories for namespace {namespace} in location {location}; delete all but one"
    )]
    Ambiguous {
        /// How many.
        count: usize,
        /// The namespace.
        namespace: String,
        /// The location.
        location: String,
    },
    /// The repository cannot be used.
    #[error("the repository {name} is not ready: {message}")]
    NotReady {
        /// Its object.
        name: String,
        /// What the server says about it.
        message: String,
    },
    /// The server did not make the repository in time.
    #[error(
        "the repository of namespace {namespace} in location {location} was not ready within {patience:?}; does the Velero server run?"
    )]
    Timeout {
        /// The namespace.
        namespace: String,
        /// The location.
        location: String,
        /// How long it was waited for.
        patience: Time,
    },
    /// A local file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// A repository that can be opened; credentials on disk go with it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) vault: Vault,
    _credentials: TempDir,
}

/// The cluster, as a mover in Velero's namespace sees it.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) patience: Time,
    /// How long the store is waited for.
    pub(super) store_patience: Time,
    /// Who writes what is written.
    pub(super) manager: &'static str,
}

impl Cluster {
    /// Everything that it takes to open the repository of `assignment`. The server makes it if it does not exist yet; one of
    /// restic is not the server's to make.
    pub(super) async fn prepare(
        &self,
        assignment: &Assignment,
        cache_folder: Option<&Path>,
    ) -> Result<Prepared, PrepareError> {
        let location = self.location(&assignment.location).await?;
        let read_only = location.spec.access_mode == Some(AccessMode::ReadOnly);
        if read_only && assignment.operation.kind.direction() == Direction::Backup {
            return Err(PrepareError::ReadOnly(assignment.location.clone()));
        }
        let repository = match assignment.restic {
            None => Some(self.repository(assignment).await?),
            Some(_) => None,
        };
        let temporary = std::env::temp_dir();
        let folder = TempDir::with_prefix_in("lifeboat-", &temporary)
            .map_err(|source| PrepareError::File { path: temporary, source })?;
        let access = self.access(&location, folder.path()).await?;
        let (format, store) = match &assignment.restic {
            None => (Format::Kopia, store_config(&location.spec, &assignment.source_namespace, &access)?),
            Some(name) => (Format::Restic, legacy::store_config(&location.spec, name, &access)?),
        };
        let password = self.secret_text(PASSWORD_SECRET.0, PASSWORD_SECRET.1).await?;
        let settings = repository.as_ref().map(|repository| &repository.spec.repository_config);
        let limit_mb =
            settings.and_then(|settings| settings.get("cacheLimitMB")).and_then(|limit| limit.parse().ok());
        let limit_mb = limit_mb.unwrap_or(u64::from(DEFAULT_CACHE_LIMIT_MB));
        let name = repository.and_then(|repository| repository.metadata.name);
        info!(location = %store, ?format, repository = name, "repository found");
        Ok(Prepared {
            vault: Vault {
                format,
                store,
                password: Password::new(password.trim()),
                cache_folder: cache_folder.map_or_else(|| folder.path().join("cache"), Path::to_owned),
                cache_limit: limit_mb.saturating_mul(1 << 20),
                patience: self.store_patience,
            },
            _credentials: folder,
        })
    }

    async fn location(&self, name: &str) -> Result<BackupStorageLocation, PrepareError> {
        let locations = Api::<BackupStorageLocation>::namespaced(self.client.clone(), &self.namespace);
        locations.get(name).await.map_err(|source| failed(format!("the backup location {name}"), source))
    }

    /// Credentials and certificates of a location. A credential becomes a file that nobody else can read, as the libraries
    /// of the clouds want it.
    async fn access(&self, location: &BackupStorageLocation, folder: &Path) -> Result<Access, PrepareError> {
        let storage = &location.spec.object_storage;
        let ca = match (&storage.ca_cert_ref, &storage.ca_cert) {
            (Some(reference), _) => Some(self.secret(&reference.name, &reference.key).await?.0),
            (None, Some(ByteString(pem))) => Some(pem.clone()),
            (None, None) => None,
        };
        let credentials_file = match &location.spec.credential {
            Some(reference) => Some(self.credentials_file(reference, folder).await?),
            None => None,
        };
        Ok(Access { ca, credentials_file, environment: std::env::vars().collect() })
    }

    async fn credentials_file(
        &self,
        reference: &SecretKeySelector,
        folder: &Path,
    ) -> Result<PathBuf, PrepareError> {
        let content = self.secret(&reference.name, &reference.key).await?;
        let path = folder.join("credentials");
        let write = || {
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(&content.0)
        };
        write().map_err(|source| PrepareError::File { path: path.clone(), source })?;
        Ok(path)
    }

    async fn secret(&self, name: &str, key: &str) -> Result<ByteString, PrepareError> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let secret =
            secrets.get(name).await.map_err(|source| failed(format!("the secret {name}"), source))?;
        let value = secret.data.and_then(|mut data| data.remove(key));
        value.ok_or_else(|| PrepareError::NoKey { secret: name.to_owned(), key: key.to_owned() })
    }

    async fn secret_text(&self, name: &str, key: &str) -> Result<String, PrepareError> {
        let ByteString(bytes) = self.secret(name, key).await?;
        String::from_utf8(bytes)
            .map_err(|_| PrepareError::NotText { secret: name.to_owned(), key: key.to_owned() })
    }

    /// The repository, once the server says that it can be used; asked for if nobody has yet.
    async fn repository(&self, assignment: &Assignment) -> Result<BackupRepository, PrepareError> {
        let repositories = Api::<BackupRepository>::namespaced(self.client.clone(), &self.namespace);
        let key = Key { namespace: &assignment.source_namespace, location: &assignment.location };
        let selector = ListParams::default().labels(&key.selector());
        let deadline = Instant::now() + self.patience;
        let mut asked = false;
        loop {
            let found = repositories.list(&selector).await;
            let mut found =
                found.map_err(|source| failed("the BackupRepositories".to_owned(), source))?.items;
            match (found.pop(), found.len()) {
                (None, _) if !asked => {
                    self.ask_for(&repositories, &key).await?;
                    asked = true;
                }
                (None, _) => {}
                (Some(one), 0) => {
                    let status = one.status.clone().unwrap_or_default();
                    match status.phase {
                        Some(BackupRepositoryPhase::Ready) => return Ok(one),
                        Some(BackupRepositoryPhase::NotReady) => {
                            let name = one.metadata.name.unwrap_or_default();
                            return Err(PrepareError::NotReady { name, message: status.message });
                        }
                        Some(BackupRepositoryPhase::New) | None => {}
                    }
                }
                (Some(_), others) => return Err(key.ambiguous(others + 1)),
            }
            if Instant::now() >= deadline {
                return Err(key.timeout(self.patience));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn ask_for(&self, repositories: &Api<BackupRepository>, key: &Key<'_>) -> Result<(), PrepareError> {
        let params = PostParams { field_manager: Some(self.manager.to_owned()), ..PostParams::default() };
        match repositories.create(&params, &key.object(&self.namespace)).await {
            Ok(_) => Ok(()),
            // Somebody else was faster; it will be found.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(source) => Err(failed("the answer to the request for a BackupRepository".to_owned(), source)),
        }
    }
}

/// Which repository.
struct Key<'a> {
    namespace: &'a str,
    location: &'a str,
}

impl Key<'_> {
    fn labels(&self) -> BTreeMap<String, String> {
        [
            (labels::VOLUME_NAMESPACE, label_value(self.namespace)),
            (labels::STORAGE_LOCATION, label_value(self.location)),
            (labels::REPOSITORY_TYPE, REPOSITORY_TYPE.to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    fn selector(&self) -> String {
        self.labels().iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    }

    fn object(&self, namespace: &str) -> BackupRepository {
        BackupRepository {
            metadata: ObjectMeta {
                name: Some(format!("{}-{}-{REPOSITORY_TYPE}", self.namespace, self.location)),
                namespace: Some(namespace.to_owned()),
                labels: Some(self.labels()),
                ..ObjectMeta::default()
            },
            spec: BackupRepositorySpec {
                volume_namespace: self.namespace.to_owned(),
                backup_storage_location: self.location.to_owned(),
                repository_type: UploaderType::Kopia,
                // The server fills it in.
                maintenance_frequency: Duration::default(),
                ..BackupRepositorySpec::default()
            },
            status: None,
        }
    }

    fn ambiguous(&self, count: usize) -> PrepareError {
        let (namespace, location) = (self.namespace.to_owned(), self.location.to_owned());
        PrepareError::Ambiguous { count, namespace, location }
    }

    fn timeout(&self, patience: Time) -> PrepareError {
        let (namespace, location) = (self.namespace.to_owned(), self.location.to_owned());
        PrepareError::Timeout { namespace, location, patience }
    }
}

fn failed(what: String, source: kube::Error) -> PrepareError {
    PrepareError::Api { what, source: Box::new(source) }
}
