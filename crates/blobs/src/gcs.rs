//! Google Cloud Storage, over its JSON interface.

use crate::rest::http::{Http, Trouble};
use crate::rest::{Call, Found, Page, Protocol, PutRequest, Refusal, RestStore, SignedBody, text};
use crate::{BlobStore, ErrorKind, Operation, Payload, Result, RetentionMode, TlsOptions};
use async_trait::async_trait;
use bytes::Bytes;
use futures::TryStreamExt;
use jiff::Timestamp;
use object_store::client::HttpRequest;
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder};
use object_store::{ClientOptions, RetryConfig};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

const DEFAULT_BASE: &str = "https://storage.googleapis.com";
const CONTENT_TYPE: &str = "application/x-kopia";
/// Where Kopia keeps a timestamp that it was told to preserve.
const KOPIA_TIME: &str = "Kopia-Mtime";
/// Sets the parts of an upload apart; the JSON before it cannot contain it.
const BOUNDARY: &str = "lifeboat-5c1e0cb0f4a14f0c";

/// Who asks.
#[derive(Clone, Default)]
pub enum GcsCredentials {
    /// The application default: `GOOGLE_APPLICATION_CREDENTIALS`, the gcloud tool's file, or the metadata server,
    /// which is also how workload identity arrives.
    #[default]
    Default,
    /// A file with a service account key or the gcloud tool's credentials.
    File(PathBuf),
    /// The content of such a file for a service account.
    ServiceAccount(String),
    /// Nobody: requests are not signed (emulators, public buckets).
    Anonymous,
}

impl fmt::Debug for GcsCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GcsCredentials::Default => f.write_str("Default"),
            GcsCredentials::File(path) => f.debug_tuple("File").field(path).finish(),
            GcsCredentials::ServiceAccount(_) => f.write_str("ServiceAccount(…)"),
            GcsCredentials::Anonymous => f.write_str("Anonymous"),
        }
    }
}

/// A bucket and how to reach it.
#[derive(Debug, Clone)]
pub struct GcsOptions {
    /// The bucket.
    pub bucket: String,
    /// What every key starts with, used literally.
    pub prefix: String,
    /// Address of the service; `None` is Google's.
    pub base_url: Option<String>,
    /// Whom to trust.
    pub tls: TlsOptions,
    /// Who asks.
    pub credentials: GcsCredentials,
}

impl GcsOptions {
    /// A bucket with the application's default credentials.
    pub fn new(bucket: impl Into<String>) -> Self {
        GcsOptions {
            bucket: bucket.into(),
            prefix: String::new(),
            base_url: None,
            tls: TlsOptions::default(),
            credentials: GcsCredentials::Default,
        }
    }
}

/// Opens a bucket and makes sure that it answers.
pub async fn open(options: &GcsOptions) -> Result<Arc<dyn BlobStore>> {
    let name = format!("gs://{}/{}", options.bucket, options.prefix);
    let fail = |trouble: Trouble| trouble.into_error(Operation::Open, "", &name);
    if options.bucket.is_empty() || options.bucket.contains('/') {
        return Err(fail(Trouble::configuration(format!(
            "{:?} is not the name of a bucket",
            options.bucket
        ))));
    }
    let base = options.base_url.as_deref().unwrap_or(DEFAULT_BASE).trim_end_matches('/').to_owned();
    let protocol = Gcs {
        objects: format!("{base}/storage/v1/b/{}/o", text::segment(&options.bucket)),
        uploads: format!("{base}/upload/storage/v1/b/{}/o", text::segment(&options.bucket)),
        bucket: options.bucket.clone(),
        prefix: options.prefix.clone(),
        credentials: credentials(options).map_err(fail)?,
    };
    let store = RestStore { protocol, http: Http::new(&base, &options.tls).map_err(fail)? };
    answers(&store).await?;
    Ok(Arc::new(store))
}

/// Asks for a name that does not exist: it shows whether the bucket does and may be read.
pub(crate) async fn answers(store: &dyn BlobStore) -> Result<()> {
    store.list("lifeboat-is-anybody-there").try_collect::<Vec<_>>().await?;
    Ok(())
}

fn credentials(options: &GcsOptions) -> Result<Option<GcpCredentialProvider>, Trouble> {
    // One try: whoever calls the store decides about more.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&options.bucket)
        .with_retry(retry)
        .with_client_options(ClientOptions::new().with_allow_http(true));
    match &options.credentials {
        GcsCredentials::Anonymous => return Ok(None),
        GcsCredentials::ServiceAccount(json) => builder = builder.with_service_account_key(json),
        GcsCredentials::File(path) => {
            builder = builder.with_application_credentials(path.to_string_lossy());
        }
        GcsCredentials::Default => {
            if let Some(path) = std::env::var_os("GOOGLE_APPLICATION_CREDENTIALS") {
                builder = builder.with_application_credentials(path.to_string_lossy());
            }
        }
    }
    // The error may quote the key that it could not parse.
    let store = builder.build().map_err(|_| {
        Trouble::configuration(
            "the Google credentials cannot be read or are not a service account's or user's",
        )
    })?;
    Ok(Some(store.credentials().clone()))
}

#[derive(Debug)]
struct Gcs {
    bucket: String,
    prefix: String,
    objects: String,
    uploads: String,
    credentials: Option<GcpCredentialProvider>,
}

impl Gcs {
    fn url(&self, key: &str) -> String {
        format!("{}/{}", self.objects, text::segment(key))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewObject<'a> {
    name: &'a str,
    content_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention: Option<ObjectRetention>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRetention {
    mode: String,
    retain_until_time: Timestamp,
}

impl ObjectRetention {
    fn new(mode: RetentionMode, until: Timestamp) -> Self {
        let mode = match mode {
            RetentionMode::Governance => "Unlocked",
            RetentionMode::Compliance => "Locked",
        };
        ObjectRetention { mode: mode.to_owned(), retain_until_time: until }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    name: String,
    /// A number as text, as JSON of Google has it.
    size: String,
    time_created: Timestamp,
    #[serde(default)]
    metadata: HashMap<String, String>,
    retention: Option<ObjectRetention>,
}

impl Object {
    fn found(self) -> Result<(String, Found), String> {
        let size = self.size.parse().map_err(|_| format!("{:?} is not a size", self.size))?;
        let preserved = self.metadata.get(KOPIA_TIME).and_then(|nanos| nanos.parse().ok());
        let preserved = preserved.and_then(|nanos: i64| Timestamp::from_nanosecond(nanos.into()).ok());
        let found = Found {
            size,
            modified: preserved.unwrap_or(self.time_created),
            locked_until: self.retention.map(|retention| retention.retain_until_time),
        };
        Ok((self.name, found))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Objects {
    #[serde(default)]
    items: Vec<Object>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    #[serde(default)]
    message: String,
    #[serde(default)]
    errors: Vec<ErrorReason>,
}

#[derive(Deserialize)]
struct ErrorReason {
    #[serde(default)]
    reason: String,
}

#[async_trait]
impl Protocol for Gcs {
    fn describe(&self) -> String {
        format!("gs://{}/{}", self.bucket, self.prefix)
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn get(&self, key: &str) -> Result<Call, String> {
        Ok(Call::new(Method::GET, format!("{}?alt=media", self.url(key))))
    }

    fn head(&self, key: &str) -> Result<Call, String> {
        Ok(Call::new(Method::GET, self.url(key)))
    }

    fn delete(&self, key: &str) -> Result<Call, String> {
        Ok(Call::new(Method::DELETE, self.url(key)))
    }

    async fn put(&self, key: &str, _: &str, payload: Payload, request: PutRequest) -> Result<Call, String> {
        let retention = request.lock.map(|(mode, until)| ObjectRetention::new(mode, until));
        let object = NewObject { name: key, content_type: CONTENT_TYPE, retention };
        let object = serde_json::to_string(&object).map_err(|error| error.to_string())?;
        let start = format!(
            "--{BOUNDARY}\r\ncontent-type: application/json; charset=UTF-8\r\n\r\n{object}\r\n\
             --{BOUNDARY}\r\ncontent-type: {CONTENT_TYPE}\r\n\r\n"
        );
        let mut body = Payload::from(start.into_bytes());
        for piece in payload.pieces() {
            body.push(piece.clone());
        }
        body.push(Bytes::from(format!("\r\n--{BOUNDARY}--\r\n")));
        let condition = if request.create_only { "&ifGenerationMatch=0" } else { "" };
        Call::new(Method::POST, format!("{}?uploadType=multipart{condition}", self.uploads))
            .header("content-type", format!("multipart/related; boundary={BOUNDARY}"))
            .map(|call| call.body(body))
    }

    fn list(&self, prefix: &str, page: Option<&str>) -> Result<Call, String> {
        let token = page.map(|token| format!("&pageToken={}", text::segment(token))).unwrap_or_default();
        let prefix = text::segment(prefix);
        Ok(Call::new(Method::GET, format!("{}?maxResults=1000&prefix={prefix}{token}", self.objects)))
    }

    fn lock(&self, key: &str, mode: RetentionMode, until: Timestamp) -> Result<Call, String> {
        let body = serde_json::json!({ "retention": ObjectRetention::new(mode, until) }).to_string();
        Call::new(Method::PATCH, self.url(key))
            .header("content-type", "application/json")
            .map(|call| call.body(Payload::from(body.into_bytes())))
    }

    fn found(&self, _: &HeaderMap, body: &[u8]) -> Result<Found, String> {
        let object: Object = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        Ok(object.found()?.1)
    }

    fn page(&self, body: &[u8]) -> Result<Page, String> {
        let objects: Objects = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        Ok(Page {
            objects: objects.items.into_iter().map(Object::found).collect::<Result<_, _>>()?,
            next: objects.next_page_token.filter(|token| !token.is_empty()),
        })
    }

    fn refusal(&self, _: &HeaderMap, body: &[u8]) -> Refusal {
        let Ok(ErrorBody { error }) = serde_json::from_slice(body) else {
            return Refusal::default(); // media answers are plain text
        };
        let code = error.errors.into_iter().next().map(|first| first.reason).unwrap_or_default();
        Refusal { code, message: error.message }
    }

    fn kind(&self, status: StatusCode, refusal: &Refusal) -> Option<ErrorKind> {
        Some(match refusal.code.as_str() {
            "retentionPolicyNotMet" | "objectUnderActiveHold" => ErrorKind::Locked,
            "quotaExceeded" => ErrorKind::Full,
            "rateLimitExceeded" | "userRateLimitExceeded" => ErrorKind::Transient,
            _ if status == StatusCode::BAD_REQUEST
                && refusal.message.to_lowercase().contains("retention") =>
            {
                ErrorKind::Unsupported
            }
            _ => return None,
        })
    }

    async fn authorize(&self, request: &mut HttpRequest, _: SignedBody) -> Result<(), Trouble> {
        let Some(provider) = &self.credentials else { return Ok(()) };
        let credential = provider.get_credential().await.map_err(token_trouble)?;
        let value = HeaderValue::try_from(format!("Bearer {}", credential.bearer));
        let mut value = value.map_err(|_| Trouble::configuration("the access token cannot be sent"))?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
        Ok(())
    }
}

/// A token service that fails is asked again, unless it said that we are not welcome.
pub(crate) fn token_trouble(error: object_store::Error) -> Trouble {
    let kind = match &error {
        object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. } => {
            ErrorKind::Unauthenticated
        }
        _ => ErrorKind::Transient,
    };
    drop(error); // its text may quote what the token service said
    Trouble { kind, detail: "no access token could be had".to_owned(), remedy: Some("check the credentials") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn gcs() -> Gcs {
        Gcs {
            bucket: "b".to_owned(),
            prefix: "x/".to_owned(),
            objects: "http://h/o".to_owned(),
            uploads: "http://h/u".to_owned(),
            credentials: None,
        }
    }

    #[tokio::test]
    async fn an_upload_carries_its_lock_and_its_condition() {
        let until = Timestamp::from_second(1_700_000_000).unwrap();
        let request = PutRequest { create_only: true, lock: Some((RetentionMode::Compliance, until)) };
        let call = gcs().put("x/a\"b", "a\"b", Payload::from(b"data".as_slice()), request).await.unwrap();
        assert_eq!(call.url, "http://h/u?uploadType=multipart&ifGenerationMatch=0");
        let body = String::from_utf8(call.body.into_bytes().to_vec()).unwrap();
        let json = r#"{"name":"x/a\"b","contentType":"application/x-kopia","retention":{"mode":"Locked","retainUntilTime":"2023-11-14T22:13:20Z"}}"#;
        assert!(body.contains(json), "{body}");
        assert!(body.ends_with(&format!("\r\n\r\ndata\r\n--{BOUNDARY}--\r\n")), "{body}");
    }

    #[test]
    fn timestamps_that_kopia_preserved_count() {
        let page = gcs().page(
            br#"{"kind":"storage#objects","nextPageToken":"t","items":[
                {"name":"x/a","size":"5","timeCreated":"2026-08-20T10:00:00.5Z","updated":"2027-01-01T00:00:00Z"},
                {"name":"x/b","size":"6","timeCreated":"2026-08-20T10:00:00Z","metadata":{"Kopia-Mtime":"1700000000000000000"}}]}"#,
        );
        let page = page.unwrap();
        let seen: Vec<_> = page
            .objects
            .iter()
            .map(|(key, found)| (&**key, found.size, found.modified.as_second()))
            .collect();
        assert_eq!(seen, [("x/a", 5, 1_787_220_000), ("x/b", 6, 1_700_000_000)]);
        assert_eq!(page.next.as_deref(), Some("t"));
        assert!(gcs().page(b"{").is_err());
        assert!(
            gcs()
                .page(br#"{"items":[{"name":"a","size":"-1","timeCreated":"2026-08-20T10:00:00Z"}]}"#)
                .is_err()
        );
    }

    #[test]
    fn secrets_do_not_show() {
        let key = GcsCredentials::ServiceAccount("PRIVATE".to_owned());
        assert!(!format!("{key:?}").contains("PRIVATE"));
        let options = GcsOptions { credentials: key, ..GcsOptions::new("b") };
        let trouble = credentials(&options).unwrap_err();
        assert!(!trouble.detail.contains("PRIVATE"));
    }
}
