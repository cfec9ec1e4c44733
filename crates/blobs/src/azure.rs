//! Azure Blob Storage.

use crate::gcs::{answers, token_trouble};
use crate::rest::http::{Http, Trouble};
use crate::rest::{Call, Found, Page, Protocol, PutRequest, Refusal, RestStore, SignedBody, text};
use crate::s3::{content_length, http_date};
use crate::{BlobStore, ErrorKind, Operation, Payload, Result, RetentionMode, TlsOptions};
use async_trait::async_trait;
use jiff::Timestamp;
use object_store::azure::{
    AzureAccessKey, AzureAuthorizer, AzureCredential, AzureCredentialProvider, MicrosoftAzureBuilder,
};
use object_store::client::HttpRequest;
use object_store::{ClientOptions, RetryConfig, StaticCredentialProvider};
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

const DEFAULT_DOMAIN: &str = "blob.core.windows.net";
const CONTENT_TYPE: &str = "application/x-kopia";
/// Where Kopia keeps a timestamp that it was told to preserve.
const KOPIA_TIME: &str = "x-ms-meta-kopiamtime";
const LOCKED_UNTIL: &str = "x-ms-immutability-policy-until-date";
const LOCK_MODE: &str = "x-ms-immutability-policy-mode";

/// Who asks.
#[derive(Clone, PartialEq, Eq)]
pub enum AzureCredentials {
    /// A key of the storage account.
    AccountKey(String),
    /// A shared access signature: the query string, with or without its question mark.
    Sas(String),
    /// A service principal.
    ClientSecret {
        /// Its tenant.
        tenant: String,
        /// Its client id.
        client: String,
        /// Its secret.
        secret: String,
    },
    /// A workload identity: a token of the cluster, exchanged for one of Azure.
    WorkloadIdentity {
        /// The tenant.
        tenant: String,
        /// The client id.
        client: String,
        /// The file that holds the cluster's token and is renewed by it.
        token_file: PathBuf,
    },
    /// The identity of the machine.
    ManagedIdentity {
        /// Which one, if it has several.
        client: Option<String>,
    },
}

impl fmt::Debug for AzureCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AzureCredentials::AccountKey(_) => "AccountKey(…)",
            AzureCredentials::Sas(_) => "Sas(…)",
            AzureCredentials::ClientSecret { .. } => "ClientSecret(…)",
            AzureCredentials::WorkloadIdentity { .. } => "WorkloadIdentity(…)",
            AzureCredentials::ManagedIdentity { .. } => "ManagedIdentity(…)",
        })
    }
}

/// A container and how to reach it.
#[derive(Debug, Clone)]
pub struct AzureOptions {
    /// The storage account.
    pub account: String,
    /// The container.
    pub container: String,
    /// What every key starts with, used literally.
    pub prefix: String,
    /// Who asks.
    pub credentials: AzureCredentials,
    /// What follows the account in the host name; `None` is that of Azure's public cloud.
    pub domain: Option<String>,
    /// The whole address of the account, in place of account and domain (emulators, private endpoints).
    pub endpoint: Option<String>,
    /// Whether to speak plain HTTP; `endpoint` decides by itself.
    pub plain_http: bool,
    /// Whom to trust.
    pub tls: TlsOptions,
    /// Address of the token service; `None` is that of Azure's public cloud.
    pub authority: Option<String>,
}

impl AzureOptions {
    /// A container of an account in Azure's public cloud.
    pub fn new(
        account: impl Into<String>,
        container: impl Into<String>,
        credentials: AzureCredentials,
    ) -> Self {
        AzureOptions {
            account: account.into(),
            container: container.into(),
            prefix: String::new(),
            credentials,
            domain: None,
            endpoint: None,
            plain_http: false,
            tls: TlsOptions::default(),
            authority: None,
        }
    }

    fn account_url(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.trim_end_matches('/').to_owned(),
            None => {
                let scheme = if self.plain_http { "http" } else { "https" };
                format!("{scheme}://{}.{}", self.account, self.domain.as_deref().unwrap_or(DEFAULT_DOMAIN))
            }
        }
    }
}

/// Opens a container and makes sure that it answers.
pub async fn open(options: &AzureOptions) -> Result<Arc<dyn BlobStore>> {
    let name = format!("azure://{}/{}/{}", options.account, options.container, options.prefix);
    let fail = |trouble: Trouble| trouble.into_error(Operation::Open, "", &name);
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '$' | '_'))
    };
    for (what, text) in [("account", &options.account), ("container", &options.container)] {
        if !is_name(text) {
            return Err(fail(Trouble::configuration(format!(
                "{text:?} is not the name of a storage {what}"
            ))));
        }
    }
    let protocol = Azure {
        base: format!("{}/{}", options.account_url(), options.container),
        account: options.account.clone(),
        prefix: options.prefix.clone(),
        credentials: credentials(options).map_err(fail)?,
        name: name.clone(),
    };
    let http = Http::new(&protocol.base, &options.tls).map_err(fail)?;
    let store = RestStore { protocol, http };
    answers(&store).await?;
    Ok(Arc::new(store))
}

fn credentials(options: &AzureOptions) -> Result<AzureCredentialProvider, Trouble> {
    // One try: whoever calls the store decides about more.
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let mut builder = MicrosoftAzureBuilder::new()
        .with_account(&options.account)
        .with_container_name(&options.container)
        .with_retry(retry)
        .with_client_options(ClientOptions::new().with_allow_http(true));
    if let Some(authority) = &options.authority {
        builder = builder.with_authority_host(authority);
    }
    // Errors are not quoted: they may contain the key that could not be parsed.
    builder = match &options.credentials {
        AzureCredentials::AccountKey(key) => {
            let key = AzureAccessKey::try_new(key)
                .map_err(|_| Trouble::configuration("the key of the storage account is not base64"))?;
            return Ok(fixed(AzureCredential::AccessKey(key)));
        }
        AzureCredentials::Sas(query) => {
            let pairs = object_store::azure::split_sas(query)
                .map_err(|_| Trouble::configuration("the shared access signature cannot be read"))?;
            return Ok(fixed(AzureCredential::SASToken(pairs)));
        }
        AzureCredentials::ClientSecret { tenant, client, secret } => {
            builder.with_client_secret_authorization(client, secret, tenant)
        }
        AzureCredentials::WorkloadIdentity { tenant, client, token_file } => builder
            .with_tenant_id(tenant)
            .with_client_id(client)
            .with_federated_token_file(token_file.to_string_lossy()),
        AzureCredentials::ManagedIdentity { client: Some(client) } => builder.with_client_id(client),
        AzureCredentials::ManagedIdentity { client: None } => builder,
    };
    let store =
        builder.build().map_err(|_| Trouble::configuration("the Azure credentials cannot be used"))?;
    Ok(store.credentials().clone())
}

/// A credential that needs no token service.
fn fixed(credential: AzureCredential) -> AzureCredentialProvider {
    Arc::new(StaticCredentialProvider::new(credential))
}

#[derive(Debug)]
struct Azure {
    name: String,
    account: String,
    prefix: String,
    /// The container's address.
    base: String,
    credentials: AzureCredentialProvider,
}

impl Azure {
    fn on(&self, method: Method, key: &str) -> Call {
        Call::new(method, format!("{}/{}", self.base, text::path(key)))
    }
}

/// The end of a lock as HTTP writes dates: whole seconds, rounded up so that the lock is never too short.
fn lock_date(until: Timestamp) -> String {
    let whole =
        if until.subsec_nanosecond() > 0 { until.as_second().saturating_add(1) } else { until.as_second() };
    let until = Timestamp::from_second(whole).unwrap_or(until);
    until.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn mode_name(mode: RetentionMode) -> &'static str {
    match mode {
        RetentionMode::Governance => "Unlocked",
        RetentionMode::Compliance => "Locked",
    }
}

fn preserved_time(nanos: Option<&str>) -> Option<Timestamp> {
    let nanos: i64 = nanos?.parse().ok()?;
    Timestamp::from_nanosecond(nanos.into()).ok()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EnumerationResults {
    blobs: Blobs,
    next_marker: Option<String>,
}

#[derive(Deserialize)]
struct Blobs {
    #[serde(rename = "Blob", default)]
    blobs: Vec<Blob>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blob {
    name: Name,
    properties: Properties,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Name {
    #[serde(rename = "@Encoded", default)]
    encoded: bool,
    #[serde(rename = "$text", default)]
    text: String,
}

#[derive(Deserialize)]
struct Properties {
    #[serde(rename = "Last-Modified")]
    last_modified: String,
    #[serde(rename = "Content-Length")]
    content_length: u64,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(alias = "Kopiamtime")]
    kopiamtime: Option<String>,
}

impl Blob {
    fn found(self) -> Result<(String, Found), String> {
        let key = if self.name.encoded { text::decode_key(&self.name.text) } else { Some(self.name.text) };
        let key = key.ok_or_else(|| "a name is not UTF-8".to_owned())?;
        let preserved =
            preserved_time(self.metadata.as_ref().and_then(|metadata| metadata.kopiamtime.as_deref()));
        let modified = match preserved {
            Some(time) => time,
            None => jiff::fmt::rfc2822::parse(&self.properties.last_modified)
                .map_err(|error| format!("Last-Modified: {error}"))?
                .timestamp(),
        };
        Ok((key, Found { size: self.properties.content_length, modified, locked_until: None }))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ErrorBody {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

#[async_trait]
impl Protocol for Azure {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn get(&self, key: &str) -> Result<Call, String> {
        Ok(self.on(Method::GET, key))
    }

    fn head(&self, key: &str) -> Result<Call, String> {
        Ok(self.on(Method::HEAD, key))
    }

    fn delete(&self, key: &str) -> Result<Call, String> {
        Ok(self.on(Method::DELETE, key))
    }

    async fn put(&self, key: &str, _: &str, payload: Payload, request: PutRequest) -> Result<Call, String> {
        let mut call = self
            .on(Method::PUT, key)
            .body(payload)
            .header("content-type", CONTENT_TYPE)?
            .header("x-ms-blob-type", "BlockBlob")?;
        if request.create_only {
            call = call.header("if-none-match", "*")?;
        }
        if let Some((mode, until)) = request.lock {
            call = call.header(LOCKED_UNTIL, lock_date(until))?.header(LOCK_MODE, mode_name(mode))?;
        }
        Ok(call)
    }

    fn list(&self, prefix: &str, page: Option<&str>) -> Result<Call, String> {
        let marker = page.map(|marker| format!("&marker={}", text::segment(marker))).unwrap_or_default();
        let prefix = text::segment(prefix);
        let query = "restype=container&comp=list&include=metadata&maxresults=1000";
        Ok(Call::new(Method::GET, format!("{}?{query}&prefix={prefix}{marker}", self.base)))
    }

    fn lock(&self, key: &str, mode: RetentionMode, until: Timestamp) -> Result<Call, String> {
        let url = format!("{}/{}?comp=immutabilityPolicies", self.base, text::path(key));
        Call::new(Method::PUT, url).header(LOCKED_UNTIL, lock_date(until))?.header(LOCK_MODE, mode_name(mode))
    }

    fn found(&self, headers: &HeaderMap, _: &[u8]) -> Result<Found, String> {
        let preserved = preserved_time(headers.get(KOPIA_TIME).and_then(|value| value.to_str().ok()));
        Ok(Found {
            size: content_length(headers)?,
            modified: preserved.map_or_else(|| http_date(headers, "last-modified"), Ok)?,
            locked_until: http_date(headers, LOCKED_UNTIL).ok(),
        })
    }

    fn page(&self, body: &[u8]) -> Result<Page, String> {
        let results: EnumerationResults = text::xml(body)?;
        Ok(Page {
            objects: results.blobs.blobs.into_iter().map(Blob::found).collect::<Result<_, _>>()?,
            next: results.next_marker.filter(|marker| !marker.is_empty()),
        })
    }

    fn refusal(&self, headers: &HeaderMap, body: &[u8]) -> Refusal {
        let body = text::xml::<ErrorBody>(body).ok();
        let header = headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
        let (code, message) = body.map(|body| (body.code, body.message)).unwrap_or_default();
        // The message goes on with a request id and a time.
        let message = message.lines().next().unwrap_or_default().to_owned();
        Refusal { code: header.map_or(code, ToOwned::to_owned), message }
    }

    fn kind(&self, status: StatusCode, refusal: &Refusal) -> Option<ErrorKind> {
        Some(match refusal.code.as_str() {
            "ContainerNotFound" => ErrorKind::NoSuchContainer,
            "BlobNotFound" | "ResourceNotFound" => ErrorKind::NotFound,
            "BlobAlreadyExists" => ErrorKind::AlreadyExists,
            "InvalidRange" => ErrorKind::InvalidRange,
            "AuthenticationFailed" | "InvalidAuthenticationInfo" | "NoAuthenticationInformation" => {
                ErrorKind::Unauthenticated
            }
            "BlobImmutableDueToPolicy" | "LeaseIdMissing" | "BlobImmutableDueToLegalHold" => {
                ErrorKind::Locked
            }
            "FeatureNotSupportedForAccount" | "UnsupportedHeader" => ErrorKind::Unsupported,
            code if code.contains("Immutability") => ErrorKind::Unsupported,
            "OutOfRangeInput" | "InvalidResourceName" => ErrorKind::Configuration,
            _ if status == StatusCode::CONFLICT => ErrorKind::Other,
            _ => return None,
        })
    }

    async fn authorize(&self, request: &mut HttpRequest, _: SignedBody) -> Result<(), Trouble> {
        let credential = self.credentials.get_credential().await.map_err(token_trouble)?;
        if let AzureCredential::BearerToken(token) = &*credential
            && !token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(Trouble::configuration("the access token cannot be sent"));
        }
        AzureAuthorizer::new(&credential, &self.account)
            .try_authorize(request)
            .map_err(|_| Trouble::configuration("the request cannot be signed"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn azure() -> Azure {
        let key = AzureCredentials::AccountKey("c2VjcmV0".to_owned());
        let options = AzureOptions::new("acct", "box", key);
        Azure {
            name: "azure".to_owned(),
            account: "acct".to_owned(),
            prefix: String::new(),
            base: format!("{}/box", options.account_url()),
            credentials: credentials(&options).unwrap(),
        }
    }

    #[tokio::test]
    async fn locks_and_conditions_become_headers() {
        let until = Timestamp::new(1_700_000_000, 5).unwrap();
        let request = PutRequest { create_only: true, lock: Some((RetentionMode::Governance, until)) };
        let call = azure().put("a b", "a b", Payload::default(), request).await.unwrap();
        assert_eq!(call.url, "https://acct.blob.core.windows.net/box/a%20b");
        let header = |name: &str| call.headers[name].to_str().unwrap();
        assert_eq!(header("if-none-match"), "*");
        assert_eq!(header(LOCKED_UNTIL), "Tue, 14 Nov 2023 22:13:21 GMT");
        assert_eq!(header(LOCK_MODE), "Unlocked");
        let lock = azure().lock("k", RetentionMode::Compliance, until).unwrap();
        assert!(lock.url.ends_with("/box/k?comp=immutabilityPolicies"));
        assert_eq!(lock.headers[LOCK_MODE], "Locked");
    }

    #[test]
    fn listings_are_read_with_preserved_timestamps() {
        let body = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"c\"><Prefix>x</Prefix>
            <Blobs><Blob><Name>x1</Name><Properties><Creation-Time>x</Creation-Time>
            <Last-Modified>Thu, 20 Aug 2026 10:00:00 GMT</Last-Modified><Content-Length>7</Content-Length>
            </Properties><Metadata /></Blob>
            <Blob><Name Encoded=\"true\">x%EF%BF%BE</Name><Properties><Last-Modified>Thu, 20 Aug 2026 10:00:00 GMT</Last-Modified>
            <Content-Length>0</Content-Length></Properties><Metadata><kopiamtime>1700000000000000000</kopiamtime></Metadata></Blob>
            </Blobs><NextMarker>2!abc</NextMarker></EnumerationResults>";
        let page = azure().page(body.as_bytes()).unwrap();
        let seen: Vec<_> = page
            .objects
            .iter()
            .map(|(key, found)| (&**key, found.size, found.modified.as_second()))
            .collect();
        assert_eq!(seen, [("x1", 7, 1_787_220_000), ("x\u{fffe}", 0, 1_700_000_000)]);
        assert_eq!(page.next.as_deref(), Some("2!abc"));
        let end = azure().page(b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>").unwrap();
        assert!(end.objects.is_empty() && end.next.is_none());
        assert!(azure().page(&body.as_bytes()[..200]).is_err());
    }

    #[tokio::test]
    async fn a_shared_access_signature_joins_the_query() {
        let sas = AzureCredentials::Sas("?sv=2024-01-01&sig=a%2Bb%3D".to_owned());
        let azure = Azure { credentials: credentials(&AzureOptions::new("a", "b", sas)).unwrap(), ..azure() };
        let call = azure.list("x", None).unwrap();
        let mut request = HttpRequest::new(object_store::client::HttpRequestBody::empty());
        *request.uri_mut() = call.url.parse().unwrap();
        azure.authorize(&mut request, SignedBody::Empty).await.unwrap();
        let query = request.uri().query().unwrap();
        for part in ["comp=list", "prefix=x", "sv=2024-01-01", "sig=a%2Bb%3D"] {
            assert!(query.split('&').any(|pair| pair == part), "{query}");
        }
        assert!(request.headers().get("authorization").is_none());
    }

    #[test]
    fn refusals_are_told_apart_and_secrets_do_not_show() {
        let mut headers = HeaderMap::new();
        headers.insert("x-ms-error-code", "BlobImmutableDueToPolicy".parse().unwrap());
        let refusal = azure().refusal(&headers, b"");
        assert_eq!(azure().kind(StatusCode::CONFLICT, &refusal), Some(ErrorKind::Locked));
        let secret = AzureCredentials::Sas("sig=SECRET".to_owned());
        assert!(!format!("{:?}", AzureOptions::new("a", "b", secret)).contains("SECRET"));
        assert!(!format!("{:?}", azure()).contains("c2VjcmV0"));
        let broken = AzureOptions::new("a", "b", AzureCredentials::AccountKey("no base64!".to_owned()));
        assert!(!credentials(&broken).unwrap_err().detail.contains("base64!"));
    }
}
