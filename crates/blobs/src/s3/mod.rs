//! S3 and what speaks like it.

mod credentials;
mod open;
mod options;

pub use credentials::{AssumeRole, S3Credentials};
pub use open::open;
pub use options::{Addressing, Checksums, CustomerKey, Encryption, S3Options};

use crate::rest::http::Trouble;
use crate::rest::{Call, Found, Page, Protocol, PutRequest, Refusal, RestStore, SignedBody, text};
use crate::{ErrorKind, Payload, RetentionMode};
use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use crc_fast::CrcAlgorithm;
use credentials::CredentialSource;
use jiff::Timestamp;
use md5::{Digest, Md5};
use object_store::aws::AwsAuthorizer;
use object_store::client::HttpRequest;
use open::{PROBE, StorageConfig};
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use tokio::sync::OnceCell;

/// The hidden object with storage classes by blob prefix.
const STORAGE_CONFIG: &str = ".storageconfig";
const CONTENT_TYPE: &str = "application/x-kopia";
/// Bodies from this size on are covered by a CRC, where the store proves that it checks one. The SHA-256 of a signature
/// can cost more than all else that is done to a pack, and the store has to work it out, too.
const LARGE: u64 = 1 << 20;

const CRC_HEADER: &str = "x-amz-checksum-crc32c";
const SHA256_HEADER: &str = "x-amz-checksum-sha256";

/// The S3 protocol towards one bucket.
#[derive(Debug)]
struct S3 {
    bucket: String,
    prefix: String,
    /// The bucket's address, without a slash at the end.
    base: String,
    region: String,
    credentials: CredentialSource,
    encryption: Encryption,
    storage_class: Option<String>,
    checksums: Checksums,
    /// Found out before the first put: who only reads does not wait for it.
    puts: OnceCell<PutSettings>,
    /// Found out before the first large put.
    checks_crc: OnceCell<bool>,
}

/// What puts need to know about the bucket.
#[derive(Debug, Default)]
struct PutSettings {
    storage_config: StorageConfig,
    sends_checksums: bool,
}

impl S3 {
    fn url(&self, key: &str) -> String {
        format!("{}/{}", self.base, text::path(key))
    }

    fn on(&self, method: Method, key: &str) -> Call {
        Call::new(method, self.url(key))
    }

    /// Whether a put is to be covered by a CRC if the store checks one. With a lock S3 insists on another digest anyway, and
    /// who wants checksums that the store keeps wants those.
    fn wants_crc(&self, bytes: u64, request: PutRequest) -> bool {
        bytes >= LARGE && request.lock.is_none() && self.checksums == Checksums::Off
    }

    /// The headers that a read of an object encrypted with our own key needs.
    fn with_customer_key(&self, call: Call) -> Result<Call, String> {
        let Encryption::CustomerKey(key) = &self.encryption else { return Ok(call) };
        call.header("x-amz-server-side-encryption-customer-algorithm", "AES256")?
            .header("x-amz-server-side-encryption-customer-key", BASE64_STANDARD.encode(key.bytes()))?
            .header("x-amz-server-side-encryption-customer-key-md5", md5_of(&[&key.bytes()[..]]))
    }

    fn with_encryption(&self, call: Call) -> Result<Call, String> {
        const ALGORITHM: &str = "x-amz-server-side-encryption";
        match &self.encryption {
            Encryption::BucketDefault => Ok(call),
            Encryption::StoreKey => call.header(ALGORITHM, "AES256"),
            Encryption::Kms { key_id: None } => call.header(ALGORITHM, "aws:kms"),
            Encryption::Kms { key_id: Some(id) } => {
                call.header(ALGORITHM, "aws:kms")?.header("x-amz-server-side-encryption-aws-kms-key-id", id)
            }
            Encryption::CustomerKey(_) => self.with_customer_key(call),
        }
    }
}

fn md5_of(pieces: &[impl AsRef<[u8]>]) -> String {
    let mut md5 = Md5::new();
    for piece in pieces {
        md5.update(piece.as_ref());
    }
    BASE64_STANDARD.encode(md5.finalize())
}

fn sha256_of(payload: &Payload) -> [u8; 32] {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    for piece in payload.pieces() {
        context.update(piece);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

fn crc_of(payload: &Payload) -> [u8; 4] {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in payload.pieces() {
        digest.update(piece);
    }
    // Only the lower half is used by an algorithm of 32 bits.
    (digest.finalize() as u32).to_be_bytes()
}

/// By what a store notices that a body was damaged on the way.
#[derive(Debug)]
enum Cover {
    /// A checksum in a header.
    Crc([u8; 4]),
    /// The signature.
    Signature([u8; 32]),
}

/// Works digests out where it may take its time.
async fn digest<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| format!("hashing was abandoned: {error}"))
}

fn mode_name(mode: RetentionMode) -> &'static str {
    match mode {
        RetentionMode::Governance => "GOVERNANCE",
        RetentionMode::Compliance => "COMPLIANCE",
    }
}

/// The end of a lock as S3 writes it: whole seconds, rounded up so that the lock is never too short.
fn lock_date(until: Timestamp) -> String {
    let whole =
        if until.subsec_nanosecond() > 0 { until.as_second().saturating_add(1) } else { until.as_second() };
    let until = Timestamp::from_second(whole).unwrap_or(until);
    until.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Whether a message is about the lock configuration of a bucket, however it is spelled.
fn mentions_lock(message: &str) -> bool {
    message.replace(' ', "").to_lowercase().contains("objectlock")
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListBucketResult {
    #[serde(default)]
    contents: Vec<Contents>,
    #[serde(default)]
    is_truncated: bool,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    size: u64,
    last_modified: Timestamp,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorBody {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// `Last-Modified` of an HTTP answer.
pub(crate) fn http_date(headers: &HeaderMap, name: &str) -> Result<Timestamp, String> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    let value = value.ok_or_else(|| format!("it has no {name}"))?;
    let zoned = jiff::fmt::rfc2822::parse(value).map_err(|error| format!("{name}: {error}"))?;
    Ok(zoned.timestamp())
}

/// `Content-Length` of an answer to a head.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<u64, String> {
    let value = headers.get("content-length").and_then(|value| value.to_str().ok());
    value.and_then(|value| value.parse().ok()).ok_or_else(|| "it has no length".to_owned())
}

#[async_trait]
impl Protocol for S3 {
    fn describe(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.prefix)
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn hides(&self, name: &str) -> bool {
        name == STORAGE_CONFIG || name == PROBE
    }

    fn get(&self, key: &str) -> Result<Call, String> {
        self.with_customer_key(self.on(Method::GET, key))
    }

    fn head(&self, key: &str) -> Result<Call, String> {
        self.with_customer_key(self.on(Method::HEAD, key))
    }

    fn delete(&self, key: &str) -> Result<Call, String> {
        Ok(self.on(Method::DELETE, key))
    }

    /// The store notices damage on the way, since the signature covers a CRC or the SHA-256 of the body. Object lock is
    /// the one case in which S3 insists on `Content-MD5`.
    async fn put(
        &self,
        key: &str,
        name: &str,
        payload: Payload,
        request: PutRequest,
    ) -> Result<Call, String> {
        let unknown = PutSettings::default();
        let settings = self.puts.get().unwrap_or(&unknown);
        let by_crc = self.wants_crc(payload.len(), request) && self.checks_crc.get() == Some(&true);
        let (body, with_md5) = (payload.clone(), request.lock.is_some());
        let digests = move || {
            let cover = if by_crc { Cover::Crc(crc_of(&body)) } else { Cover::Signature(sha256_of(&body)) };
            (cover, with_md5.then(|| md5_of(body.pieces())))
        };
        let (cover, md5) = digest(digests).await?;
        let mut call = self.on(Method::PUT, key).body(payload).header("content-type", CONTENT_TYPE)?;
        call = self.with_encryption(call)?;
        if request.create_only {
            call = call.header("if-none-match", "*")?;
        }
        if let Some(class) = settings.storage_config.class_of(name).or(self.storage_class.as_deref()) {
            call = call.header("x-amz-storage-class", class)?;
        }
        match cover {
            Cover::Crc(crc) => {
                call = call.header(CRC_HEADER, BASE64_STANDARD.encode(crc))?;
                call.signed = SignedBody::Left;
            }
            Cover::Signature(sha256) => {
                if settings.sends_checksums {
                    call = call.header(SHA256_HEADER, BASE64_STANDARD.encode(sha256))?;
                }
                call.signed = SignedBody::Sha256(sha256);
            }
        }
        if let (Some((mode, until)), Some(md5)) = (request.lock, md5) {
            call = call
                .header("content-md5", md5)?
                .header("x-amz-object-lock-mode", mode_name(mode))?
                .header("x-amz-object-lock-retain-until-date", lock_date(until))?;
        }
        Ok(call)
    }

    async fn prepare_put(store: &RestStore<S3>, bytes: u64, request: PutRequest) -> crate::Result<()> {
        let protocol = &store.protocol;
        let settings = protocol.puts.get_or_try_init(|| store.find_put_settings());
        let crc = async {
            if protocol.wants_crc(bytes, request) {
                protocol.checks_crc.get_or_try_init(|| store.proves_crc()).await?;
            }
            Ok(())
        };
        tokio::try_join!(settings, crc).map(|_| ())
    }

    fn list(&self, prefix: &str, page: Option<&str>) -> Result<Call, String> {
        let token = page.map(|token| format!("continuation-token={}&", text::segment(token)));
        let url = format!(
            "{}/?{}encoding-type=url&list-type=2&max-keys=1000&prefix={}",
            self.base,
            token.unwrap_or_default(),
            text::segment(prefix)
        );
        Ok(Call::new(Method::GET, url))
    }

    fn lock(&self, key: &str, mode: RetentionMode, until: Timestamp) -> Result<Call, String> {
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{}</Mode>\
             <RetainUntilDate>{}</RetainUntilDate></Retention>",
            mode_name(mode),
            lock_date(until)
        );
        let payload = Payload::from(body.into_bytes());
        let mut call = Call::new(Method::PUT, format!("{}?retention", self.url(key)))
            .header("content-md5", md5_of(payload.pieces()))?;
        call.signed = SignedBody::Sha256(sha256_of(&payload));
        Ok(call.body(payload))
    }

    fn found(&self, headers: &HeaderMap, _: &[u8]) -> Result<Found, String> {
        let lock = headers.get("x-amz-object-lock-retain-until-date").and_then(|value| value.to_str().ok());
        Ok(Found {
            size: content_length(headers)?,
            modified: http_date(headers, "last-modified")?,
            locked_until: lock.and_then(|date| date.parse().ok()),
        })
    }

    fn page(&self, body: &[u8]) -> Result<Page, String> {
        let result: ListBucketResult = text::xml(body)?;
        let encoded = result.encoding_type.as_deref() == Some("url");
        let objects = result.contents.into_iter().map(|object| {
            let key = if encoded { text::decode_key(&object.key) } else { Some(object.key) };
            let key = key.ok_or_else(|| "a key is not UTF-8".to_owned())?;
            Ok((key, Found { size: object.size, modified: object.last_modified, locked_until: None }))
        });
        let next = match (result.is_truncated, result.next_continuation_token) {
            (false, _) => None,
            (true, Some(token)) if !token.is_empty() => Some(token),
            (true, _) => return Err("the listing is cut off and cannot be continued".to_owned()),
        };
        Ok(Page { objects: objects.collect::<Result<_, String>>()?, next })
    }

    fn refusal(&self, _: &HeaderMap, body: &[u8]) -> Refusal {
        match text::xml::<ErrorBody>(body) {
            Ok(body) => Refusal { code: body.code, message: body.message },
            Err(_) => Refusal::default(),
        }
    }

    fn kind(&self, status: StatusCode, refusal: &Refusal) -> Option<ErrorKind> {
        Some(match refusal.code.as_str() {
            "NoSuchBucket" => ErrorKind::NoSuchContainer,
            "NoSuchKey" => ErrorKind::NotFound,
            "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "RequestTimeTooSkewed" => {
                ErrorKind::Unauthenticated
            }
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "ExpiredTokenException" => {
                // A new token may be had for the asking; if not, asking again ends with that answer.
                if self.credentials.discard() { ErrorKind::Transient } else { ErrorKind::Unauthenticated }
            }
            "AuthorizationHeaderMalformed" | "PermanentRedirect" | "InvalidStorageClass" => {
                ErrorKind::Configuration
            }
            "SlowDown"
            | "RequestTimeout"
            | "InternalError"
            | "ServiceUnavailable"
            | "OperationAborted"
            | "ConditionalRequestConflict"
            | "BadDigest"
            | "XAmzContentSHA256Mismatch"
            | "XAmzContentChecksumMismatch"
            | "IncompleteBody" => ErrorKind::Transient,
            "QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded" => ErrorKind::Full,
            "ObjectLocked" | "InvalidObjectState" => ErrorKind::Locked,
            "NotImplemented" | "ObjectLockConfigurationNotFoundError" => ErrorKind::Unsupported,
            "InvalidRequest" if mentions_lock(&refusal.message) => ErrorKind::Unsupported,
            "InvalidRange" => ErrorKind::InvalidRange,
            // The answer to a head has no body, so an expired token cannot be told from other mistakes.
            "" if status == StatusCode::BAD_REQUEST && self.credentials.discard() => ErrorKind::Transient,
            _ => return None,
        })
    }

    async fn authorize(&self, request: &mut HttpRequest, body: SignedBody) -> Result<(), Trouble> {
        let Some(credential) = self.credentials.current().await? else { return Ok(()) };
        let signer = AwsAuthorizer::new(&credential, "s3", &self.region);
        let signed = match body {
            SignedBody::Empty => signer.try_authorize(request, None),
            SignedBody::Sha256(sha256) => signer.try_authorize(request, Some(&sha256)),
            SignedBody::Left => signer.with_sign_payload(false).try_authorize(request, None),
        };
        signed.map_err(|error| Trouble {
            kind: ErrorKind::Other,
            detail: format!("signing failed: {error}"),
            remedy: None,
        })
    }
}

#[cfg(test)]
mod tests;
