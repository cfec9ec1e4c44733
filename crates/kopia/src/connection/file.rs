//! The connection file, `repository.config`.

use crate::gojson::{Nanos, go_object, to_pretty_line};
use crate::{Error, Result};
use lifeboat_blobs::config::{Limits, StoreConfig};
use std::fmt;
use std::io::Write;
use std::path::{Component, Path, PathBuf};

go_object! {
    /// Which storage, and how to reach it. Printing it shows no credentials.
    #[derive(Clone, PartialEq, Eq, Default)]
    pub struct StorageInfo {
        /// `filesystem`, `s3`, `gcs`, `azureBlob`…
        pub storage_type: String => "type",
        /// What that kind of storage needs to know.
        pub config: serde_json::Value => "config",
    }
}

impl StorageInfo {
    /// What the storage layer opens; an error if it does not know this kind of storage or its settings.
    pub fn store_config(&self) -> Result<StoreConfig> {
        let kind = &self.storage_type;
        let object = serde_json::json!({ "type": kind, "config": self.config });
        // The cause may quote a credential.
        serde_json::from_value(object).map_err(|_| {
            Error::Invalid(format!(
                "the connection's storage of type {kind:?} is not supported or not complete"
            ))
        })
    }
}

impl TryFrom<&StoreConfig> for StorageInfo {
    type Error = Error;

    fn try_from(config: &StoreConfig) -> Result<Self> {
        let object = serde_json::to_value(config).and_then(serde_json::from_value);
        object.map_err(|_| {
            Error::Invalid(format!("the settings of {config} cannot be stored in a connection file"))
        })
    }
}

impl fmt::Debug for StorageInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageInfo").field("storage_type", &self.storage_type).finish_non_exhaustive()
    }
}

go_object! {
    /// What is cached locally. Sizes are bytes, spans are seconds.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct CachingOptions {
        /// Where; relative paths are relative to the connection file in it, and absolute once read.
        pub cache_directory: String => "cacheDirectory" omitempty,
        /// How much of contents.
        pub content_cache_size: i64 => "maxCacheSize" omitempty,
        /// How much of contents at most.
        pub content_cache_size_limit: i64 => "contentCacheSizeLimitBytes" omitempty,
        /// How much of metadata.
        pub metadata_cache_size: i64 => "maxMetadataCacheSize" omitempty,
        /// How much of metadata at most.
        pub metadata_cache_size_limit: i64 => "metadataCacheSizeLimitBytes" omitempty,
        /// How long a listing is relied on.
        pub max_list_cache_duration: f64 => "maxListCacheDuration" omitempty,
        /// How long metadata stays at least.
        pub min_metadata_sweep_age: f64 => "minMetadataSweepAge" omitempty,
        /// How long contents stay at least.
        pub min_content_sweep_age: f64 => "minContentSweepAge" omitempty,
        /// How long indexes stay at least.
        pub min_index_sweep_age: f64 => "minIndexSweepAge" omitempty,
    }
}

go_object! {
    /// The connection of this machine to a repository.
    #[derive(Debug, Clone, PartialEq, Default)]
    pub struct Connection {
        /// Where the repository is; absent if it is reached through a Kopia server.
        pub storage: Option<StorageInfo> => "storage" omitempty,
        /// What is cached locally.
        pub caching: Option<CachingOptions> => "caching" omitempty,
        /// The host that snapshots are taken for.
        pub hostname: String => "hostname",
        /// The user that snapshots are taken for.
        pub username: String => "username",
        /// Whether nothing may be written.
        pub readonly: bool => "readonly" omitempty,
        /// Free text for people.
        pub description: String => "description" omitempty,
        /// Whether policies may run commands.
        pub enable_actions: bool => "enableActions",
        /// How long the format blob is relied on.
        pub format_blob_cache_duration: Nanos => "formatBlobCacheDuration" omitempty,
        /// How hard the storage may be used.
        pub throttling: Option<Limits> => "throttlingLimits" omitempty,
    }
}

impl Connection {
    /// A connection to `storage` with the identity of this machine and Kopia's defaults.
    pub fn new(storage: StorageInfo, description: impl Into<String>) -> Self {
        Connection {
            storage: Some(storage),
            hostname: super::default_host_name(),
            username: super::default_user_name(),
            description: description.into(),
            enable_actions: false,
            format_blob_cache_duration: crate::format::FORMAT_BLOB_VALIDITY.into(),
            ..Connection::default()
        }
    }

    /// `user@host`, as whom this machine takes snapshots and owns maintenance.
    pub fn identity(&self) -> String {
        format!("{}@{}", self.username, self.hostname)
    }

    /// The storage, or an error that says why there is none.
    pub fn storage(&self) -> Result<&StorageInfo> {
        self.storage.as_ref().ok_or_else(|| {
            let reason =
                "the connection is to a Kopia server, not to a storage; connect to the storage directly";
            Error::Invalid(reason.to_owned())
        })
    }

    /// Reads the connection file `path`.
    pub fn load(path: &Path) -> Result<Connection> {
        let json = std::fs::read(path).map_err(|source| local("read connection file", path, source))?;
        // The position only: a message that quotes the text could quote a credential.
        let mut connection: Connection = serde_json::from_slice(&json).map_err(|source| {
            let (line, column) = (source.line(), source.column());
            Error::Invalid(format!(
                "{} is not a connection file (line {line}, column {column})",
                path.display()
            ))
        })?;
        if let Some(caching) =
            connection.caching.as_mut().filter(|caching| !caching.cache_directory.is_empty())
        {
            let directory = folder(path).join(&caching.cache_directory);
            caching.cache_directory = normal(&directory).to_string_lossy().into_owned();
        }
        Ok(connection)
    }

    /// Writes the connection file `path`, readable by the owner alone: whoever reads it sees the old one or the new
    /// one, also after a crash.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut stored = self.clone();
        if let Some(caching) = &mut stored.caching {
            caching.cache_directory = relative(folder(path), &caching.cache_directory);
        }
        let mut json = to_pretty_line(&stored).map_err(|source| Error::Invalid(source.to_string()))?;
        json.pop();
        write_private(path, &json)
    }
}

/// Writes a file that only its owner can read, in one step.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let folder = folder(path);
        std::fs::create_dir_all(folder)?;
        // Made with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        std::fs::File::open(folder)?.sync_all()
    };
    write().map_err(|source| local("write", path, source))
}

pub(super) fn local(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::LocalFile { action, path: path.display().to_string(), source }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The absolute path `target` as seen from the absolute folder `base`, as Kopia stores it; otherwise as it is.
fn relative(base: &Path, target: &str) -> String {
    let target_path = Path::new(target);
    if target.is_empty() || !base.is_absolute() || !target_path.is_absolute() {
        return target.to_owned();
    }
    let (base, target_path) = (normal(base), normal(target_path));
    let common = base.components().zip(target_path.components()).take_while(|(a, b)| a == b).count();
    let up = base.components().skip(common).map(|_| Component::ParentDir);
    let path: PathBuf = up.chain(target_path.components().skip(common)).collect();
    if path.as_os_str().is_empty() { ".".to_owned() } else { path.to_string_lossy().into_owned() }
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir if normal.file_name().is_some() => drop(normal.pop()),
            other => normal.push(other),
        }
        normal
    })
}
