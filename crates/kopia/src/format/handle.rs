//! An opened format: creating, opening and changing it in a store.

use super::{
    BLOBCFG_BLOB, BlobConfig, EpochParameters, FORMAT_BLOB, FormatBlob, Password, RepositoryFormat, Secret,
};
use crate::{Environment, Error, Result, gojson};
use bytes::Bytes;
use lifeboat_blobs::{BlobId, BlobStore, ErrorKind, PutMode, PutOptions, Retention};
use lifeboat_primitives::kdf::{KeyAlgorithm, hkdf_sha256_key};

/// What a new repository shall be like. The defaults are Kopia's.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Format version 1, 2 or 3.
    pub version: u8,
    /// The name of the hash.
    pub hash: String,
    /// The name of the cipher.
    pub encryption: String,
    /// The name of the splitter.
    pub splitter: String,
    /// Error correction: its name and its overhead in percent.
    pub error_correction: Option<(String, u32)>,
    /// How the password becomes a key.
    pub key_algorithm: KeyAlgorithm,
    /// Object-lock retention.
    pub retention: Option<Retention>,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions {
            version: 3,
            hash: "BLAKE2B-256-128".to_owned(),
            encryption: "AES256-GCM-HMAC-SHA256".to_owned(),
            splitter: "DYNAMIC-4M-BUZHASH".to_owned(),
            error_correction: None,
            key_algorithm: KeyAlgorithm::default(),
            retention: None,
        }
    }
}

impl CreateOptions {
    fn format(&self, env: &Environment) -> Result<RepositoryFormat> {
        let legacy = self.version == 1;
        if legacy && self.error_correction.is_some() {
            return Err(Error::Invalid("error correction needs format version 2 or later".to_owned()));
        }
        let (ecc, overhead) =
            self.error_correction.clone().filter(|(_, overhead)| *overhead > 0).unwrap_or_default();
        let format = RepositoryFormat {
            hash: self.hash.clone(),
            encryption: self.encryption.clone(),
            ecc,
            ecc_overhead_percent: overhead.into(),
            hash_secret: random_secret(env)?,
            master_key: random_secret(env)?,
            version: self.version.into(),
            max_pack_size_field: super::DEFAULT_MAX_PACK_SIZE as i64,
            index_version_field: if legacy { 1 } else { 2 },
            epoch_parameters: Some(if legacy {
                EpochParameters::disabled()
            } else {
                EpochParameters::default()
            }),
            enable_password_change: !legacy,
            splitter_field: self.splitter.clone(),
            ..RepositoryFormat::default()
        };
        format.validate_parameters()?;
        Ok(format)
    }
}

fn random_secret(env: &Environment) -> Result<Secret> {
    let bytes = zeroize::Zeroizing::new(env.random_array::<32>()?);
    Ok(Secret::from(bytes.as_slice()))
}

/// The format of an open repository with the key that opened it.
#[derive(Debug, Clone)]
pub struct Format {
    pub(super) blob: FormatBlob,
    /// The exact bytes of the blob.
    pub(super) bytes: Bytes,
    pub(super) key: Secret,
    pub(super) format: RepositoryFormat,
    config: BlobConfig,
    /// What is wrong with the blob of the configuration.
    config_damage: Option<String>,
    warnings: Vec<String>,
}

impl Format {
    /// Creates a repository in `store`: writes `kopia.blobcfg`, then `kopia.repository`.
    pub async fn create(
        store: &dyn BlobStore,
        password: &Password,
        options: &CreateOptions,
        env: &Environment,
    ) -> Result<Format> {
        let exists = || Error::AlreadyInitialized { store: store.describe() };
        if get(store, FORMAT_BLOB).await?.is_some() {
            return Err(exists());
        }
        let format = options.format(env)?;
        let config = BlobConfig::new(options.retention);
        config.retention()?;
        let mut blob = FormatBlob::new(env.random_array::<32>()?.to_vec(), options.key_algorithm);
        let key = derive(&blob, password).await?;
        blob.seal(&key, &format, env)?;
        let bytes = blob.to_bytes()?.into();
        let created = Format { bytes, blob, key, format, config, config_damage: None, warnings: Vec::new() };
        // The storage decides who comes first.
        created.put_config(store, env, PutMode::CreateOnly).await.map_err(|error| match error {
            Error::Storage(error) if error.kind() == ErrorKind::AlreadyExists => Error::Invalid(format!(
                "{} holds a blob {BLOBCFG_BLOB:?} but no {FORMAT_BLOB:?}: creating a repository was interrupted there, \
                 or its format blob was lost; delete the blob only if there is no data to be saved",
                store.describe()
            )),
            other => other,
        })?;
        created.put_format(store, PutMode::CreateOnly).await.map_err(|error| match error {
            Error::Storage(error) if error.kind() == ErrorKind::AlreadyExists => exists(),
            other => other,
        })?;
        Ok(created)
    }

    /// Opens the repository in `store`.
    ///
    /// Fails with an error of its own for: no repository, wrong password, unknown version or feature, and an
    /// upgrade that is going on (unless `upgrade_owner` is the one who does it).
    pub async fn open(
        store: &dyn BlobStore,
        password: &Password,
        env: &Environment,
        upgrade_owner: Option<&str>,
    ) -> Result<Format> {
        let key = async |blob: &FormatBlob| derive(blob, password).await;
        Format::read(store, key, env, upgrade_owner).await
    }

    /// Reads the format again, with the same checks; at the latest after
    /// [`FORMAT_BLOB_VALIDITY`](super::FORMAT_BLOB_VALIDITY).
    ///
    /// [`Error::WrongPassword`] if the password was changed meanwhile.
    pub async fn refresh(
        &self,
        store: &dyn BlobStore,
        env: &Environment,
        upgrade_owner: Option<&str>,
    ) -> Result<Format> {
        Format::read(store, async |_: &FormatBlob| Ok(self.key.clone()), env, upgrade_owner).await
    }

    async fn read(
        store: &dyn BlobStore,
        key: impl AsyncFnOnce(&FormatBlob) -> Result<Secret>,
        env: &Environment,
        upgrade_owner: Option<&str>,
    ) -> Result<Format> {
        let format = async {
            let missing = || Error::NoRepository { store: store.describe() };
            let bytes = get(store, FORMAT_BLOB).await?.ok_or_else(missing)?;
            let blob = FormatBlob::parse(&bytes)?;
            let key = key(&blob).await?;
            Ok::<_, Error>((bytes, blob, key))
        };
        let (format, sealed_config) = tokio::join!(format, get(store, BLOBCFG_BLOB));
        let (bytes, blob, key) = format?;
        let format = blob.open(&key)?;
        format.check_readable()?;
        if let Some(lock) = &format.upgrade_lock {
            lock.check(env.clock.now(), upgrade_owner)?;
        }
        let mut warnings = Vec::new();
        for feature in &format.required_features {
            warnings.extend(feature.check()?);
        }
        let mut opened =
            Format { blob, bytes, key, format, config: BlobConfig::default(), config_damage: None, warnings };
        if let Some(sealed) = sealed_config? {
            match open_config(&opened.blob, &opened.key, &sealed) {
                Ok(config) => opened.config = config,
                // Whoever only reads can do without it.
                Err(Error::DamagedBlob { reason, .. }) => opened.config_damage = Some(reason),
                Err(error) => return Err(error),
            }
        }
        Ok(opened)
    }

    /// Fails if the retention of the repository is not known because its blob is damaged: then nothing may be written,
    /// for it might lack a lock that it should have.
    pub fn check_config(&self) -> Result<()> {
        match &self.config_damage {
            None => Ok(()),
            Some(reason) => Err(Error::DamagedBlob { blob: BLOBCFG_BLOB.to_owned(), reason: reason.clone() }),
        }
    }

    /// Writes the retention configuration anew, whatever was there.
    pub(crate) async fn reset_config(
        &mut self,
        store: &dyn BlobStore,
        env: &Environment,
        config: BlobConfig,
    ) -> Result<()> {
        config.retention()?;
        let changed = Format { config, config_damage: None, ..self.clone() };
        changed.put_config(store, env, PutMode::Overwrite).await?;
        *self = changed;
        Ok(())
    }

    /// Changes the password. The keys of the repository stay the same, so nothing else is rewritten.
    pub async fn change_password(
        &mut self,
        store: &dyn BlobStore,
        password: &Password,
        env: &Environment,
    ) -> Result<()> {
        if !self.format.enable_password_change {
            return Err(Error::PasswordChangeUnsupported);
        }
        let key = derive(&self.blob, password).await?;
        self.rewrite(store, env, |changed| changed.key = key).await
    }

    /// Changes parameters: pack size, index version, epochs, required features, retention. Keys and algorithms
    /// cannot change.
    pub async fn set_parameters(
        &mut self,
        store: &dyn BlobStore,
        env: &Environment,
        change: impl FnOnce(&mut RepositoryFormat, &mut BlobConfig),
    ) -> Result<()> {
        let (mut format, mut config) = (self.format.clone(), self.config.clone());
        change(&mut format, &mut config);
        format.validate_parameters()?;
        config.retention()?;
        let fixed = |f: &RepositoryFormat| {
            let algorithms = (f.hash.clone(), f.encryption.clone(), f.ecc.clone(), f.ecc_overhead_percent);
            (algorithms, f.hash_secret.clone(), f.master_key.clone(), f.enable_password_change)
        };
        if fixed(&format) != fixed(&self.format) {
            return Err(Error::Invalid("keys and algorithms of a repository cannot be changed".to_owned()));
        }
        self.rewrite(store, env, |changed| (changed.format, changed.config) = (format, config)).await
    }

    /// Writes both blobs, `kopia.blobcfg` first, and then takes the change over.
    pub(super) async fn rewrite(
        &mut self,
        store: &dyn BlobStore,
        env: &Environment,
        change: impl FnOnce(&mut Format),
    ) -> Result<()> {
        self.check_config()?;
        let mut changed = self.clone();
        change(&mut changed);
        changed.blob.seal(&changed.key, &changed.format, env)?;
        changed.bytes = changed.blob.to_bytes()?.into();
        changed.put_config(store, env, PutMode::Overwrite).await?;
        changed.put_format(store, PutMode::Overwrite).await?;
        *self = changed;
        Ok(())
    }

    async fn put_config(&self, store: &dyn BlobStore, env: &Environment, mode: PutMode) -> Result<()> {
        let plain = gojson::to_vec(&self.config).map_err(|source| Error::Invalid(source.to_string()))?;
        let sealed = self.blob.cipher(&self.key)?.seal(env, &plain)?;
        self.put(store, BLOBCFG_BLOB, sealed.into(), mode).await
    }

    async fn put_format(&self, store: &dyn BlobStore, mode: PutMode) -> Result<()> {
        self.put(store, FORMAT_BLOB, self.bytes.clone(), mode).await
    }

    pub(super) async fn put(
        &self,
        store: &dyn BlobStore,
        name: &str,
        bytes: Bytes,
        mode: PutMode,
    ) -> Result<()> {
        let id = BlobId::new(name)?;
        let options = PutOptions { mode, ..self.config.put_options(&id)? };
        Ok(store.put(&id, bytes.into(), &options).await?)
    }

    /// How the repository is encoded.
    pub fn repository(&self) -> &RepositoryFormat {
        &self.format
    }

    /// The outer part.
    pub fn blob(&self) -> &FormatBlob {
        &self.blob
    }

    /// The identity of the repository.
    pub fn unique_id(&self) -> &[u8] {
        &self.blob.unique_id.0
    }

    /// Its retention.
    pub fn config(&self) -> &BlobConfig {
        &self.config
    }

    /// How `blob` has to be put: with an object lock if the repository has retention and the blob falls under it.
    pub fn put_options(&self, blob: &BlobId) -> Result<PutOptions> {
        self.config.put_options(blob)
    }

    /// What the user should know: features that are not understood but not needed either.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The key for `purpose`, derived from the master key, or in repositories whose password cannot change from
    /// the password's key.
    pub fn purpose_key(&self, purpose: &str) -> Result<Secret> {
        let from = if self.format.enable_password_change { &self.format.master_key } else { &self.key };
        let key = hkdf_sha256_key(from.expose(), self.unique_id(), purpose.as_bytes())?;
        Ok(Secret::from(key.as_slice()))
    }

    /// What every pack begins with: a copy of the format blob, in repositories whose password cannot change.
    pub fn recovery_block(&self) -> Result<Option<Vec<u8>>> {
        if self.format.enable_password_change {
            return Ok(None);
        }
        super::recovery_block(&self.bytes).map(Some)
    }
}

fn open_config(blob: &FormatBlob, key: &Secret, sealed: &[u8]) -> Result<BlobConfig> {
    let damaged = |reason: String| Error::DamagedBlob { blob: BLOBCFG_BLOB.to_owned(), reason };
    let plain = blob.cipher(key)?.open(sealed).map_err(|_| {
        damaged(
            "the repository's password does not open it; was a change of the password interrupted?"
                .to_owned(),
        )
    })?;
    serde_json::from_slice(&plain).map_err(|source| damaged(source.to_string()))
}

async fn get(store: &dyn BlobStore, name: &str) -> Result<Option<Bytes>> {
    match store.get(&BlobId::new(name)?).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Derives the key of `password` on a thread of its own: it takes long on purpose.
async fn derive(blob: &FormatBlob, password: &Password) -> Result<Secret> {
    let (blob, password) = (blob.clone(), password.clone());
    let derived = tokio::task::spawn_blocking(move || blob.derive_key(&password)).await;
    derived.map_err(|error| Error::Worker(error.to_string()))?
}
