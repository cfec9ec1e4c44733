//! Opening a bucket: its address, its region, its storage classes and what it can do.

use super::credentials::CredentialSource;
use super::{
    Addressing, CRC_HEADER, Checksums, Encryption, PutSettings, S3, S3Options, SHA256_HEADER, STORAGE_CONFIG,
};
use crate::rest::http::{Http, Trouble};
use crate::rest::{Call, Protocol, PutRequest, RestStore, SignedBody};
use crate::{BlobId, BlobStore, Error, ErrorKind, Operation, Payload, Result};
use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::Method;
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::OnceCell;

const DEFAULT_REGION: &str = "us-east-1";
/// The name of the put that a store has to reject to prove that it checks checksums. Of one that takes it, it is deleted.
pub(super) const PROBE: &str = ".lifeboat-checksum-probe";
/// Checksums of no bytes.
const CRC_OF_NOTHING: &str = "AAAAAA==";
const SHA256_OF_NOTHING: &str = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

/// Storage classes by blob prefix, as Kopia keeps them beside the blobs; the first match counts.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct StorageConfig {
    #[serde(rename = "blobOptions", default)]
    blob_options: Option<Vec<BlobOptions>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlobOptions {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    storage_class: String,
}

impl StorageConfig {
    pub(super) fn class_of(&self, name: &str) -> Option<&str> {
        let options = self.blob_options.as_deref().unwrap_or_default();
        let found = options.iter().find(|options| name.starts_with(&options.prefix))?;
        Some(found.storage_class.as_str()).filter(|class| !class.is_empty())
    }
}

/// Opens a bucket. Whether it is there and lets us in shows with the first call.
pub async fn open(options: &S3Options) -> Result<Arc<dyn BlobStore>> {
    let name = format!("s3://{}/{}", options.bucket, options.prefix);
    let fail = |detail: String| Error::new(ErrorKind::Configuration, Operation::Open, "", &*name, detail);
    let endpoint = Endpoint::parse(options).map_err(fail)?;
    if matches!(options.encryption, Encryption::CustomerKey(_)) && !endpoint.is_https {
        return Err(fail(
            "encryption with a customer key needs TLS: the key travels with every request".to_owned(),
        ));
    }
    let protocol = S3 {
        bucket: options.bucket.clone(),
        prefix: options.prefix.clone(),
        base: endpoint.base(&options.bucket, options.addressing, options.region.as_deref()),
        region: options.region.clone().unwrap_or_else(|| DEFAULT_REGION.to_owned()),
        credentials: CredentialSource::new(&options.credentials, options.region.as_deref()).await,
        encryption: options.encryption.clone(),
        storage_class: options.storage_class.clone(),
        checksums: options.checksums,
        puts: OnceCell::new(),
        checks_crc: OnceCell::new(),
    };
    let http = Http::new(&protocol.base, &options.tls)
        .map_err(|trouble| trouble.into_error(Operation::Open, "", &name))?;
    let mut store = RestStore { protocol, http };
    if options.region.is_none() {
        store.protocol.region = store.discover_region(&endpoint, &options.bucket).await?;
        let region = store.protocol.region.clone();
        store.protocol.base = endpoint.base(&options.bucket, options.addressing, Some(&region));
    }
    Ok(Arc::new(store))
}

/// Where an S3 service listens.
#[derive(Debug)]
struct Endpoint {
    is_https: bool,
    host: String,
}

impl Endpoint {
    fn parse(options: &S3Options) -> Result<Self, String> {
        let is_name = |text: &str, others: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
        };
        if !is_name(&options.bucket, "-._") {
            return Err(format!("{:?} is not the name of a bucket", options.bucket));
        }
        if options.region.as_deref().is_some_and(|region| !is_name(region, "-_")) {
            return Err(format!("{:?} is not a region", options.region.as_deref().unwrap_or_default()));
        }
        let given = options.endpoint.as_deref().filter(|endpoint| !endpoint.is_empty());
        let given = given.unwrap_or("s3.amazonaws.com").trim_end_matches('/');
        let (is_https, host) = match given.split_once("://") {
            None => (!options.plain_http, given),
            Some(("https", host)) => (true, host),
            Some(("http", host)) => (false, host),
            Some((scheme, _)) => {
                return Err(format!("the endpoint's scheme {scheme:?} is not http or https"));
            }
        };
        if !is_name(host, "-._:[]") {
            return Err(format!(
                "{given:?} is not an endpoint: give a host, and a port if needed, without a path"
            ));
        }
        Ok(Endpoint { is_https, host: host.to_owned() })
    }

    fn is_amazon(&self) -> bool {
        let host = self.host.split(':').next().unwrap_or_default();
        host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn")
    }

    /// The bucket's address, without a slash at the end.
    fn base(&self, bucket: &str, addressing: Addressing, region: Option<&str>) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        // The global host redirects to the region's.
        let host = match region {
            Some(region) if self.host == "s3.amazonaws.com" => &format!("s3.{region}.amazonaws.com"),
            _ => &self.host,
        };
        let in_host = match addressing {
            Addressing::Path => false,
            Addressing::VirtualHost => true,
            // Alibaba's store refuses buckets in the path.
            Addressing::Auto => {
                (self.is_amazon() || self.host.ends_with(".aliyuncs.com"))
                    && !(self.is_https && bucket.contains('.'))
            }
        };
        if in_host { format!("{scheme}://{bucket}.{host}") } else { format!("{scheme}://{host}/{bucket}") }
    }
}

#[derive(Deserialize)]
struct LocationConstraint {
    #[serde(rename = "$text", default)]
    region: String,
}

#[derive(Deserialize)]
struct RegionOfError {
    #[serde(rename = "Region", default)]
    region: String,
}

impl RestStore<S3> {
    /// The bucket's region: from the header that every answer about a bucket has at Amazon, else by asking.
    async fn discover_region(&self, endpoint: &Endpoint, bucket: &str) -> Result<String> {
        let fail = |trouble: Trouble| trouble.into_error(Operation::Open, "", &self.describe());
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = Method::HEAD;
        let address = endpoint.base(bucket, Addressing::Path, None);
        *request.uri_mut() = address
            .parse()
            .map_err(|_| fail(Trouble::configuration(format!("{address:?} is not a valid address"))))?;
        let reply = self.http.send(request, Payload::default()).await.map_err(fail)?;
        if let Some(region) = reply.header("x-amz-bucket-region").filter(|region| !region.is_empty()) {
            return Ok(region.to_owned());
        }
        let call = Call::new(Method::GET, format!("{}/?location", self.protocol.base));
        let reply = self.transmit(call).await.map_err(fail)?;
        let found = reply.status().is_success();
        let body = reply.body(crate::rest::MAX_ERROR).await.map_err(fail)?;
        let region = if found {
            crate::rest::text::xml::<LocationConstraint>(&body).map(|answer| answer.region)
        } else {
            crate::rest::text::xml::<RegionOfError>(&body).map(|answer| answer.region)
        };
        Ok(region.ok().filter(|region| !region.is_empty()).unwrap_or_else(|| DEFAULT_REGION.to_owned()))
    }

    pub(super) async fn find_put_settings(&self) -> Result<PutSettings> {
        let checksums = async {
            match self.protocol.checksums {
                Checksums::Off => Ok(false),
                Checksums::IfProven => self.proves(SHA256_HEADER, SHA256_OF_NOTHING, None).await,
            }
        };
        let (storage_config, sends_checksums) = tokio::try_join!(self.read_storage_config(), checksums)?;
        Ok(PutSettings { storage_config, sends_checksums })
    }

    async fn read_storage_config(&self) -> Result<StorageConfig> {
        let bytes = match self.get(&BlobId::new(STORAGE_CONFIG)?).await {
            Err(error) if error.is_not_found() => return Ok(StorageConfig::default()),
            other => other?,
        };
        serde_json::from_slice(&bytes).map_err(|error| {
            let detail = format!("its {STORAGE_CONFIG} is not valid: {error}");
            Error::new(ErrorKind::Corrupt, Operation::Open, STORAGE_CONFIG, self.describe(), detail)
        })
    }

    /// Whether the store checks CRCs of bodies that are not signed.
    pub(super) async fn proves_crc(&self) -> Result<bool> {
        let proven = self.proves(CRC_HEADER, CRC_OF_NOTHING, Some(SignedBody::Left)).await;
        proven.inspect(|proven| tracing::debug!(store = self.describe(), proven, "CRCs of packs"))
    }

    /// Whether the store checks a checksum: it has to refuse a put with a wrong one, signed like those that will have a
    /// right one.
    async fn proves(&self, checksum: &'static str, wrong: &str, signed: Option<SignedBody>) -> Result<bool> {
        let fail = |trouble: Trouble| trouble.into_error(Operation::Open, PROBE, &self.describe());
        let request = PutRequest { create_only: false, lock: None };
        let key = format!("{}{PROBE}", self.protocol.prefix);
        let payload = Payload::from(b"probe".as_slice());
        let call = self.protocol.put(&key, PROBE, payload, request).await;
        let call = call.and_then(|call| call.header(checksum, wrong));
        let mut call = call.map_err(|detail| fail(Trouble::configuration(detail)))?;
        call.signed = signed.unwrap_or(call.signed);
        let reply = self.transmit(call).await.map_err(fail)?;
        if reply.status().is_success() {
            // If it may not be deleted, it stays: it is hidden, and no reason not to back up.
            if let Err(error) = self.delete(&BlobId::new(PROBE)?).await {
                tracing::debug!(%error, "the probe of checksums stays");
            }
            return Ok(false);
        }
        let (status, headers) = (reply.status(), reply.headers().clone());
        let body = reply.body(crate::rest::MAX_ERROR).await.map_err(fail)?;
        let refusal = self.protocol.refusal(&headers, &body);
        match refusal.code.as_str() {
            "BadDigest" | "XAmzContentChecksumMismatch" => Ok(true),
            // A busy store says nothing about checksums.
            _ if self.protocol.kind(status, &refusal).is_some_and(ErrorKind::is_transient) => {
                Err(fail(Trouble { kind: ErrorKind::Transient, detail: refusal.code, remedy: None }))
            }
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn base(endpoint: &str, bucket: &str, addressing: Addressing, region: Option<&str>) -> String {
        let options = S3Options { endpoint: Some(endpoint.to_owned()), ..S3Options::new(bucket) };
        Endpoint::parse(&options).unwrap().base(bucket, addressing, region)
    }

    #[test]
    fn buckets_are_addressed_as_the_store_wants_it() {
        use Addressing::{Auto, Path, VirtualHost};
        assert_eq!(base("", "b", Auto, Some("eu-west-1")), "https://b.s3.eu-west-1.amazonaws.com");
        assert_eq!(base("s3.amazonaws.com", "b", Auto, None), "https://b.s3.amazonaws.com");
        assert_eq!(
            base("s3-eu-west-1.amazonaws.com", "b", Path, None),
            "https://s3-eu-west-1.amazonaws.com/b"
        );
        assert_eq!(base("s3.amazonaws.com", "a.b", Auto, None), "https://s3.amazonaws.com/a.b");
        assert_eq!(base("minio:9000", "b", Auto, Some("x")), "https://minio:9000/b");
        assert_eq!(base("http://minio:9000/", "b", VirtualHost, None), "http://b.minio:9000");
        assert_eq!(
            base("oss-cn-beijing.aliyuncs.com", "b", Auto, None),
            "https://b.oss-cn-beijing.aliyuncs.com"
        );
        assert_eq!(base("http://[::1]:9000", "b", Auto, None), "http://[::1]:9000/b");
    }

    #[tokio::test]
    async fn senseless_settings_are_refused_before_anything_is_sent() {
        let at = |endpoint: &str| S3Options { endpoint: Some(endpoint.to_owned()), ..S3Options::new("b") };
        let key = crate::s3::CustomerKey::new([0; 32]);
        for options in [
            S3Options::new(""),
            S3Options::new("a/b"),
            at("ftp://host"),
            at("https://host/path"),
            at("user:secret@host"),
            S3Options { region: Some("eu west".to_owned()), ..at("host") },
            S3Options { encryption: Encryption::CustomerKey(key), ..at("http://host") },
            S3Options {
                tls: crate::rest::TlsOptions { ca_pem: Some(b"no pem".to_vec()), verify: true },
                ..at("host")
            },
        ] {
            let error = open(&options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{options:?}: {error}");
        }
    }

    #[test]
    fn the_first_matching_storage_class_counts() {
        let text =
            r#"{"blobOptions":[{"prefix":"p","storageClass":"DEEP"},{"prefix":"","storageClass":""}]}"#;
        let config: StorageConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.class_of("p123"), Some("DEEP"));
        assert_eq!(config.class_of("q123"), None);
        assert_eq!(serde_json::from_str::<StorageConfig>("{}").unwrap().class_of("p"), None);
    }
}
