//! From a description to a store with its usual wrappers.

use super::{AzureConfig, FilesystemConfig, GcsConfig, Limits, S3Addressing, S3Config, StoreConfig, values};
use crate::azure::{AzureCredentials, AzureOptions};
use crate::gcs::{GcsCredentials, GcsOptions};
use crate::s3::{Addressing, AssumeRole, Checksums, CustomerKey, Encryption, S3Credentials, S3Options};
use crate::wrap::{Limit, Metered, Metrics, Pace, Pacer, Rates, ReadOnly, Retry, RetryPolicy};
use crate::{BlobStore, Error, ErrorKind, FsOptions, FsStore, Operation, PlainFolder, Result, TlsOptions};
use std::path::Path;
use std::sync::Arc;

/// How a store is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Whether a repository is about to be created: makes the folder and records its layout.
    pub create: bool,
    /// Whether every change is refused.
    pub read_only: bool,
    /// Whether a folder is one of another program, in which files have the names of their blobs; it is only read.
    pub plain_folder: bool,
    /// How passing failures are repeated.
    pub retry: RetryPolicy,
    /// Where calls are counted; `None` counts them nowhere.
    pub metrics: Option<Arc<Metrics>>,
    /// A bandwidth limit that several stores share, in place of the one in the description.
    pub pacer: Option<Arc<Pacer>>,
}

impl StoreConfig {
    /// Opens the store and wraps it: counted, paced, limited, repeated, and read only if asked for.
    pub async fn open(&self, options: &OpenOptions) -> Result<Arc<dyn BlobStore>> {
        let (store, limits): (Arc<dyn BlobStore>, _) = match self {
            StoreConfig::Filesystem(config) if options.plain_folder => {
                (Arc::new(PlainFolder::open(&config.path).await?), config.limits)
            }
            StoreConfig::Filesystem(config) => (open_folder(config, options.create).await?, config.limits),
            StoreConfig::S3(config) => (crate::s3::open(&self.s3(config)?).await?, config.limits),
            StoreConfig::Gcs(config) => (crate::gcs::open(&self.gcs(config)?).await?, config.limits),
            StoreConfig::Azure(config) => (crate::azure::open(&self.azure(config)?).await?, config.limits),
        };
        let read_only =
            options.read_only || matches!(self, StoreConfig::Gcs(GcsConfig { read_only: true, .. }));
        Ok(wrap(store, &limits, read_only, options))
    }

    fn wrong<T>(&self, detail: impl Into<String>) -> Result<T> {
        Err(Error::new(ErrorKind::Configuration, Operation::Open, "", self.to_string(), detail))
    }

    fn no_point_in_time(&self, point: Option<&String>) -> Result<()> {
        if point.is_some() {
            return self.wrong("opening a store as it was at a point in time (pointInTime) is not supported");
        }
        Ok(())
    }

    fn s3(&self, config: &S3Config) -> Result<S3Options> {
        self.no_point_in_time(config.point_in_time.as_ref())?;
        let additions = &config.lifeboat;
        Ok(S3Options {
            bucket: config.bucket.clone(),
            prefix: config.prefix.clone(),
            endpoint: some(&config.endpoint),
            plain_http: config.do_not_use_tls,
            tls: TlsOptions { ca_pem: config.root_ca.clone(), verify: !config.do_not_verify_tls },
            region: some(&config.region),
            addressing: match additions.addressing {
                None => Addressing::Auto,
                Some(S3Addressing::Path) => Addressing::Path,
                Some(S3Addressing::VirtualHost) => Addressing::VirtualHost,
            },
            credentials: self.s3_credentials(config)?,
            storage_class: additions.storage_class.clone(),
            encryption: self.s3_encryption(config)?,
            checksums: if additions.checksums { Checksums::IfProven } else { Checksums::Off },
        })
    }

    fn s3_credentials(&self, config: &S3Config) -> Result<S3Credentials> {
        let additions = &config.lifeboat;
        let own = if !config.access_key_id.is_empty() {
            S3Credentials::Static {
                key_id: config.access_key_id.clone(),
                secret: config.secret_access_key.reveal().to_owned(),
                token: some(config.session_token.reveal()),
            }
        } else if additions.profile.is_some() || additions.credentials_file.is_some() {
            S3Credentials::Profile {
                name: additions.profile.clone(),
                file: additions.credentials_file.clone(),
            }
        } else {
            S3Credentials::Environment
        };
        if config.role_arn.is_empty() {
            return Ok(own);
        }
        let Some(duration) = values::parse_duration(&config.role_duration) else {
            return self.wrong(format!("{:?} is not a duration", config.role_duration));
        };
        Ok(S3Credentials::Role(Box::new(AssumeRole {
            role: config.role_arn.clone(),
            session: some(&config.session_name),
            duration: Some(duration).filter(|duration| !duration.is_zero()),
            endpoint: some(&config.role_endpoint),
            region: some(&config.role_region),
            with: own,
        })))
    }

    fn s3_encryption(&self, config: &S3Config) -> Result<Encryption> {
        let additions = &config.lifeboat;
        if let Some(file) = &additions.customer_key_encryption_file {
            return match read_key(file) {
                Ok(key) => Ok(Encryption::CustomerKey(key)),
                Err(detail) => self.wrong(format!("the customer key in {}: {detail}", file.display())),
            };
        }
        match (additions.server_side_encryption.as_deref(), &additions.kms_key_id) {
            (None, None) => Ok(Encryption::BucketDefault),
            (Some("AES256"), None) => Ok(Encryption::StoreKey),
            (None | Some("aws:kms"), key_id) => Ok(Encryption::Kms { key_id: key_id.clone() }),
            (Some(other), _) => {
                self.wrong(format!("serverSideEncryption {other:?} with these settings is unknown"))
            }
        }
    }

    fn gcs(&self, config: &GcsConfig) -> Result<GcsOptions> {
        self.no_point_in_time(config.point_in_time.as_ref())?;
        let credentials = match (&config.credentials, &config.credentials_file) {
            _ if config.lifeboat.anonymous => GcsCredentials::Anonymous,
            (Some(json), _) => match serde_json::to_string(json) {
                Ok(json) => GcsCredentials::ServiceAccount(json),
                Err(_) => return self.wrong("the credentials cannot be written as JSON"),
            },
            (None, Some(file)) => GcsCredentials::File(file.clone()),
            (None, None) => GcsCredentials::Default,
        };
        Ok(GcsOptions {
            bucket: config.bucket.clone(),
            prefix: config.prefix.clone(),
            base_url: config.lifeboat.base_url.clone(),
            tls: TlsOptions { ca_pem: config.lifeboat.root_ca.clone(), ..TlsOptions::default() },
            credentials,
        })
    }

    fn azure(&self, config: &AzureConfig) -> Result<AzureOptions> {
        self.no_point_in_time(config.point_in_time.as_ref())?;
        let has_principal = !config.tenant_id.is_empty() && !config.client_id.is_empty();
        let credentials = if !config.sas_token.is_empty() {
            AzureCredentials::Sas(config.sas_token.reveal().to_owned())
        } else if !config.storage_key.is_empty() {
            AzureCredentials::AccountKey(config.storage_key.reveal().to_owned())
        } else if has_principal && !config.client_secret.is_empty() {
            AzureCredentials::ClientSecret {
                tenant: config.tenant_id.clone(),
                client: config.client_id.clone(),
                secret: config.client_secret.reveal().to_owned(),
            }
        } else if has_principal && !config.client_certificate.is_empty() {
            return self.wrong("a client certificate is not supported; use a secret or a workload identity");
        } else if let (true, Some(token_file)) = (has_principal, &config.azure_federated_token_file) {
            AzureCredentials::WorkloadIdentity {
                tenant: config.tenant_id.clone(),
                client: config.client_id.clone(),
                token_file: token_file.clone(),
            }
        } else if config.lifeboat.managed_identity {
            AzureCredentials::ManagedIdentity { client: some(&config.client_id) }
        } else {
            return self
                .wrong("it has no credentials: a key, a signature, a secret or an identity is needed");
        };
        Ok(AzureOptions {
            account: config.storage_account.clone(),
            container: config.container.clone(),
            prefix: config.prefix.clone(),
            credentials,
            domain: some(&config.storage_domain),
            endpoint: config.lifeboat.endpoint.clone(),
            plain_http: config.do_not_use_tls,
            tls: TlsOptions { ca_pem: config.lifeboat.root_ca.clone(), ..TlsOptions::default() },
            authority: config.lifeboat.authority.clone(),
        })
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn read_key(file: &Path) -> Result<CustomerKey, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    let bytes = <[u8; 32]>::try_from(&bytes[..]).map_err(|_| "it is not 32 bytes long".to_owned())?;
    Ok(CustomerKey::new(bytes))
}

async fn open_folder(config: &FilesystemConfig, create: bool) -> Result<Arc<FsStore>> {
    let defaults = FsOptions::new(&config.path);
    let or = |mode: u32, default: u32| if mode == 0 { default } else { mode };
    let options = FsOptions {
        file_mode: or(config.file_mode, defaults.file_mode),
        dir_mode: or(config.dir_mode, defaults.dir_mode),
        owner: config.uid.zip(config.gid),
        shards: config.dir_shards.clone(),
        ..defaults
    };
    let store = if create { FsStore::create(options).await? } else { FsStore::open(options).await? };
    Ok(Arc::new(store))
}

fn wrap(
    mut store: Arc<dyn BlobStore>,
    limits: &Limits,
    read_only: bool,
    options: &OpenOptions,
) -> Arc<dyn BlobStore> {
    if let Some(metrics) = &options.metrics {
        store = Arc::new(Metered::new(store, metrics.clone()));
    }
    let limit = |rate: f64| Some(rate).filter(|rate| *rate > 0.0);
    let rates = Rates {
        up: limit(limits.max_upload_speed_bytes_per_second),
        down: limit(limits.max_download_speed_bytes_per_second),
        changes: limit(limits.writes_per_second),
        reads: limit(limits.reads_per_second),
        lists: limit(limits.lists_per_second),
    };
    let own_pacer = || (rates != Rates::default()).then(|| Arc::new(Pacer::new(rates)));
    if let Some(pacer) = options.pacer.clone().or_else(own_pacer) {
        store = Arc::new(Pace::new(store, pacer));
    }
    if limits.concurrent_reads > 0 || limits.concurrent_writes > 0 {
        let or_unlimited = |limit: usize| if limit == 0 { usize::MAX } else { limit };
        let (changes, reads) =
            (or_unlimited(limits.concurrent_writes), or_unlimited(limits.concurrent_reads));
        store = Arc::new(Limit::new(store, changes, reads));
    }
    store = Arc::new(Retry::new(store, options.retry.clone()));
    if read_only {
        store = Arc::new(ReadOnly::new(store));
    }
    store
}
