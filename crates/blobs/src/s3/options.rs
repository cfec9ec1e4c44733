//! What can be set about an S3 store.

use super::S3Credentials;
use crate::rest::TlsOptions;
use std::fmt;

/// An S3 store and how to reach it.
#[derive(Debug, Clone)]
pub struct S3Options {
    /// The bucket.
    pub bucket: String,
    /// What every key starts with, used literally: end it with `/` to make it a folder.
    pub prefix: String,
    /// Host and port, or a URL; `None` is Amazon's of the region.
    pub endpoint: Option<String>,
    /// Whether to speak plain HTTP. An `endpoint` with a scheme decides by itself.
    pub plain_http: bool,
    /// Whom to trust.
    pub tls: TlsOptions,
    /// The region; `None` asks the store.
    pub region: Option<String>,
    /// How the bucket is addressed.
    pub addressing: Addressing,
    /// Who asks.
    pub credentials: S3Credentials,
    /// Storage class of new blobs; the store's `.storageconfig` comes first.
    pub storage_class: Option<String>,
    /// How the store encrypts what it keeps.
    pub encryption: Encryption,
    /// Whether puts carry a checksum that the store keeps.
    pub checksums: Checksums,
}

impl S3Options {
    /// A bucket at Amazon with the credentials of the environment and defaults for all else.
    pub fn new(bucket: impl Into<String>) -> Self {
        S3Options {
            bucket: bucket.into(),
            prefix: String::new(),
            endpoint: None,
            plain_http: false,
            tls: TlsOptions::default(),
            region: None,
            addressing: Addressing::Auto,
            credentials: S3Credentials::Environment,
            storage_class: None,
            encryption: Encryption::BucketDefault,
            checksums: Checksums::Off,
        }
    }
}

/// How a bucket is named in a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addressing {
    /// In the host name at Amazon (unless the name has dots, which certificates do not cover), else in the path.
    #[default]
    Auto,
    /// `https://host/bucket/key`
    Path,
    /// `https://bucket.host/key`
    VirtualHost,
}

/// Whether puts carry `x-amz-checksum-sha256`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksums {
    /// No: many stores that speak S3 reject or ignore the header.
    #[default]
    Off,
    /// If the store rejects a put with a wrong one, which is tried before the first put.
    IfProven,
}

/// Server-side encryption.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Encryption {
    /// Whatever the bucket says.
    #[default]
    BucketDefault,
    /// With a key of the store (SSE-S3).
    StoreKey,
    /// With a key of the key management service (SSE-KMS), the account's default one if none is named.
    Kms {
        /// Id or ARN of the key.
        key_id: Option<String>,
    },
    /// With a key that is sent along with every request and never kept by the store (SSE-C). Needs TLS.
    CustomerKey(CustomerKey),
}

/// An AES-256 key. Not shown in debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct CustomerKey([u8; 32]);

impl CustomerKey {
    /// The key with these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        CustomerKey(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomerKey(…)")
    }
}
