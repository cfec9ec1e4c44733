//! Storage as a connection file describes it: the `storage` object of Kopia's, read, kept and opened.

mod open;
mod values;

pub use open::OpenOptions;
pub use values::{Extra, Secret};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The `storage` object of a connection file. Fields that are not known here survive a rewrite.
///
/// Debug output shows no secrets, display output shows where the store is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "config")]
#[non_exhaustive]
pub enum StoreConfig {
    /// A folder.
    #[serde(rename = "filesystem")]
    Filesystem(FilesystemConfig),
    /// An S3 bucket.
    #[serde(rename = "s3")]
    S3(S3Config),
    /// A Google Cloud Storage bucket.
    #[serde(rename = "gcs")]
    Gcs(GcsConfig),
    /// An Azure Blob Storage container.
    #[serde(rename = "azureBlob")]
    Azure(AzureConfig),
}

impl fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreConfig::Filesystem(config) => write!(f, "folder {}", config.path.display()),
            StoreConfig::S3(config) => write!(f, "s3://{}/{}", config.bucket, config.prefix),
            StoreConfig::Gcs(config) => write!(f, "gs://{}/{}", config.bucket, config.prefix),
            StoreConfig::Azure(config) => {
                write!(f, "azure://{}/{}/{}", config.storage_account, config.container, config.prefix)
            }
        }
    }
}

/// How much a client may load the store; zero is unlimited. Part of every kind of storage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// Gets and heads per second.
    #[serde(skip_serializing_if = "is_zero")]
    pub reads_per_second: f64,
    /// Puts, deletes and locks per second.
    #[serde(skip_serializing_if = "is_zero")]
    pub writes_per_second: f64,
    /// Listings per second.
    #[serde(skip_serializing_if = "is_zero")]
    pub lists_per_second: f64,
    /// Bytes per second to the store.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_upload_speed_bytes_per_second: f64,
    /// Bytes per second from the store.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_download_speed_bytes_per_second: f64,
    /// Reads in flight.
    #[serde(skip_serializing_if = "is_default")]
    pub concurrent_reads: usize,
    /// Changes in flight.
    #[serde(skip_serializing_if = "is_default")]
    pub concurrent_writes: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde asks for
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemConfig {
    /// The folder.
    pub path: PathBuf,
    /// Mode of new files, 0600 if absent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub file_mode: u32,
    /// Mode of new folders, 0700 if absent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dir_mode: u32,
    /// Owner of new files; only together with `gid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group of new files; only together with `uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Lengths of folder names, where the folder has not recorded its own.
    #[serde(default)]
    pub dir_shards: Option<Vec<u32>>,
    /// Limits.
    #[serde(flatten)]
    pub limits: Limits,
    /// Everything else.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An S3 bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct S3Config {
    /// The bucket.
    pub bucket: String,
    /// What every key starts with, used literally.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prefix: String,
    /// Host and port.
    #[serde(default)]
    pub endpoint: String,
    /// Plain HTTP.
    #[serde(rename = "doNotUseTLS", default, skip_serializing_if = "is_default")]
    pub do_not_use_tls: bool,
    /// Any certificate will do.
    #[serde(rename = "doNotVerifyTLS", default, skip_serializing_if = "is_default")]
    pub do_not_verify_tls: bool,
    /// Certificates (PEM, in base64) of the authorities to trust.
    #[serde(
        rename = "rootCA",
        default,
        skip_serializing_if = "Option::is_none",
        with = "values::base64_bytes"
    )]
    pub root_ca: Option<Vec<u8>>,
    /// Access key id; without, credentials come from the environment.
    #[serde(rename = "accessKeyID", default)]
    pub access_key_id: String,
    /// Secret access key.
    #[serde(default)]
    pub secret_access_key: Secret,
    /// Session token of temporary keys.
    #[serde(default)]
    pub session_token: Secret,
    /// A role to assume with those keys.
    #[serde(rename = "roleARN", default)]
    pub role_arn: String,
    /// What the role's session is called.
    #[serde(default)]
    pub session_name: String,
    /// How long a session of the role lasts, as Go writes durations.
    #[serde(rename = "duration", default = "values::zero_duration")]
    pub role_duration: String,
    /// Address of the token service.
    #[serde(default)]
    pub role_endpoint: String,
    /// Region of the token service.
    #[serde(default)]
    pub role_region: String,
    /// Region of the bucket; without, the store is asked.
    #[serde(default, skip_serializing_if = "is_default")]
    pub region: String,
    /// Limits.
    #[serde(flatten)]
    pub limits: Limits,
    /// A moment of the past to look at; not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point_in_time: Option<String>,
    /// What Kopia has no field for; it ignores this one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lifeboat: S3Additions,
    /// Everything else.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Settings of S3 that Kopia's connection file does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct S3Additions {
    /// `path` or `virtualHost`; without, what suits the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addressing: Option<S3Addressing>,
    /// Profile of the shared credentials file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The shared credentials file, also read as config file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Storage class of new blobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// `AES256` or `aws:kms`, as Velero's setting of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_side_encryption: Option<String>,
    /// Key for `aws:kms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kms_key_id: Option<String>,
    /// File with the 32 bytes of a customer key, as Velero's setting of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customer_key_encryption_file: Option<PathBuf>,
    /// Whether puts carry a checksum if the store proves that it checks it.
    #[serde(skip_serializing_if = "is_default")]
    pub checksums: bool,
}

/// How the bucket is named in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum S3Addressing {
    /// In the path.
    Path,
    /// In the host name.
    VirtualHost,
}

/// A Google Cloud Storage bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GcsConfig {
    /// The bucket.
    pub bucket: String,
    /// What every key starts with, used literally.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prefix: String,
    /// File with credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// The credentials themselves: the JSON object of a service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Extra>,
    /// Whether the store is opened read only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub read_only: bool,
    /// Limits.
    #[serde(flatten)]
    pub limits: Limits,
    /// A moment of the past to look at; not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point_in_time: Option<String>,
    /// What Kopia has no field for; it ignores this one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lifeboat: GcsAdditions,
    /// Everything else.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Settings of Google Cloud Storage that Kopia's connection file does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GcsAdditions {
    /// Address of the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Certificates (PEM, in base64) of the authorities to trust.
    #[serde(rename = "rootCA", skip_serializing_if = "Option::is_none", with = "values::base64_bytes")]
    pub root_ca: Option<Vec<u8>>,
    /// Whether requests are not signed.
    #[serde(skip_serializing_if = "is_default")]
    pub anonymous: bool,
}

/// An Azure Blob Storage container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AzureConfig {
    /// The container.
    pub container: String,
    /// What every key starts with, used literally.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prefix: String,
    /// The storage account.
    #[serde(default, skip_serializing_if = "is_default")]
    pub storage_account: String,
    /// Its key.
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub storage_key: Secret,
    /// A shared access signature.
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub sas_token: Secret,
    /// Tenant of a service principal or workload identity.
    #[serde(rename = "TenantID", default, skip_serializing_if = "is_default")]
    pub tenant_id: String,
    /// Its client id.
    #[serde(rename = "ClientID", default, skip_serializing_if = "is_default")]
    pub client_id: String,
    /// Its secret.
    #[serde(rename = "ClientSecret", default, skip_serializing_if = "Secret::is_empty")]
    pub client_secret: Secret,
    /// Its certificate; not supported.
    #[serde(default, skip_serializing_if = "Secret::is_empty")]
    pub client_certificate: Secret,
    /// File with the token of a workload identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure_federated_token_file: Option<PathBuf>,
    /// What follows the account in the host name.
    #[serde(default, skip_serializing_if = "is_default")]
    pub storage_domain: String,
    /// Plain HTTP.
    #[serde(rename = "doNotUseTLS", default, skip_serializing_if = "is_default")]
    pub do_not_use_tls: bool,
    /// Limits.
    #[serde(flatten)]
    pub limits: Limits,
    /// A moment of the past to look at; not supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point_in_time: Option<String>,
    /// What Kopia has no field for; it ignores this one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lifeboat: AzureAdditions,
    /// Everything else.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Settings of Azure that Kopia's connection file does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AzureAdditions {
    /// The whole address of the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Whether the machine's identity is used; `ClientID` then tells which.
    #[serde(skip_serializing_if = "is_default")]
    pub managed_identity: bool,
    /// Address of the token service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    /// Certificates (PEM, in base64) of the authorities to trust.
    #[serde(rename = "rootCA", skip_serializing_if = "Option::is_none", with = "values::base64_bytes")]
    pub root_ca: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests;
