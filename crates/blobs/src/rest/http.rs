//! The HTTP client under all object stores: TLS settings, streamed bodies, stalls, and what went wrong.

use crate::wrap::pace::Scope;
use crate::{Error, ErrorKind, Operation, Payload};
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use object_store::client::HttpRequest;
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, Response, StatusCode, redirect};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection on which nothing moved for so long is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Shorter than the idle time after which common stores and load balancers hang up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
/// Bodies are handed over in slices of this size, so that progress is seen.
const SLICE: usize = 256 << 10;
/// Most that is reserved on the word of a `Content-Length` header.
const MOST_RESERVED: u64 = 64 << 20;

/// Whom to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificates (PEM) of the authorities to trust, in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// Whether the server's certificate is checked at all. Without, anybody on the way can read and change
    /// what is sent; blobs stay encrypted.
    pub verify: bool,
}

impl Default for TlsOptions {
    fn default() -> Self {
        TlsOptions { ca_pem: None, verify: true }
    }
}

/// A failure below HTTP.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: ErrorKind,
    pub(crate) detail: String,
    pub(crate) remedy: Option<&'static str>,
}

impl Trouble {
    pub(crate) fn configuration(detail: impl Into<String>) -> Self {
        Trouble { kind: ErrorKind::Configuration, detail: detail.into(), remedy: None }
    }

    /// As an error of a storage call.
    pub(crate) fn into_error(self, operation: Operation, blob: &str, store: &str) -> Error {
        let error = Error::new(self.kind, operation, blob, store, self.detail);
        match self.remedy {
            Some(remedy) => error.with_remedy(remedy),
            None => error,
        }
    }

    fn transient(detail: impl Into<String>) -> Self {
        Trouble { kind: ErrorKind::Transient, detail: detail.into(), remedy: None }
    }
}

/// Text of an error and its causes, without addresses, which may carry signatures.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

impl From<reqwest::Error> for Trouble {
    fn from(error: reqwest::Error) -> Self {
        let is_connect = error.is_connect();
        let detail = chain(&error.without_url());
        if is_connect && detail.contains("certificate") {
            let remedy = Some("configure the certificate authority of the server (rootCA)");
            return Trouble { kind: ErrorKind::Configuration, detail, remedy };
        }
        Trouble::transient(detail)
    }
}

/// The client of one store.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    client: Client,
}

impl Http {
    /// A client for the store at `base`. A store without TLS needs no certificates, not even the system's: small
    /// container images have none.
    pub(crate) fn new(base: &str, tls: &TlsOptions) -> Result<Self, Trouble> {
        // HTTP/1.1: many parallel transfers do better on many connections than on one.
        let mut builder = Client::builder()
            .http1_only()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .redirect(redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("lifeboat/", env!("CARGO_PKG_VERSION")))
            .tls_danger_accept_invalid_certs(!tls.verify)
            .tls_danger_accept_invalid_hostnames(!tls.verify);
        if !base.starts_with("https:") {
            builder = builder.tls_certs_only([]);
        } else if let Some(pem) = &tls.ca_pem {
            let certificates = Certificate::from_pem_bundle(pem).map_err(|error| {
                Trouble::configuration(format!("the CA certificates cannot be read: {}", chain(&error)))
            })?;
            if certificates.is_empty() {
                return Err(Trouble::configuration("the CA certificates are not PEM"));
            }
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().map_err(|error| Trouble {
            kind: ErrorKind::Configuration,
            detail: format!("the HTTP client cannot be set up: {}", chain(&error)),
            remedy: Some("install the system's CA certificates or configure the server's (rootCA)"),
        })?;
        Ok(Http { client })
    }

    /// Sends an authorised request with `payload` as its body, in place of the request's own.
    pub(crate) async fn send(&self, request: HttpRequest, payload: Payload) -> Result<Reply, Trouble> {
        let (parts, _) = request.into_parts();
        let url = parts.uri.to_string().parse();
        let url =
            url.map_err(|error| Trouble::configuration(format!("the address is not valid: {error}")))?;
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        let progress = Progress::new();
        if !payload.is_empty() {
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(payload.len()));
            *request.body_mut() = Some(body(payload, progress.clone()));
        }
        let response = progress.guard(self.client.execute(request)).await??;
        Ok(Reply { response })
    }
}

/// The body as a stream of slices that keeps the pace of the current call.
fn body(payload: Payload, progress: Progress) -> reqwest::Body {
    let pace = Scope::current();
    let size = pace.as_ref().map_or(SLICE, Scope::up_quantum);
    let slices = payload.pieces().to_vec().into_iter().flat_map(move |piece| {
        (0..piece.len()).step_by(size).map(move |at| piece.slice(at..piece.len().min(at + size)))
    });
    let sent = stream::iter(slices).then(move |slice| {
        let (pace, progress) = (pace.clone(), progress.clone());
        async move {
            if let Some(pace) = pace {
                pace.upload(slice.len()).await;
            }
            progress.made();
            Ok::<Bytes, Infallible>(slice)
        }
    });
    reqwest::Body::wrap_stream(sent)
}

/// When bytes last moved, in milliseconds since the start.
#[derive(Debug, Clone)]
struct Progress {
    start: Instant,
    last: Arc<AtomicU64>,
}

impl Progress {
    fn new() -> Self {
        Progress { start: Instant::now(), last: Arc::default() }
    }

    fn made(&self) {
        self.last.store(self.start.elapsed().as_millis() as u64, Relaxed);
    }

    /// Waits for `work`, but not beyond a stall.
    async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Trouble> {
        let mut work = pin!(work);
        loop {
            let last = self.last.load(Relaxed);
            let stalls_at = self.start + Duration::from_millis(last) + STALL_TIMEOUT;
            match tokio::time::timeout_at(stalls_at, &mut work).await {
                Ok(done) => return Ok(done),
                Err(_) if self.last.load(Relaxed) > last => {}
                Err(_) => return Err(Trouble::transient("the connection stalled")),
            }
        }
    }
}

/// The start of an answer; its body is still to come.
#[derive(Debug)]
pub(crate) struct Reply {
    response: Response,
}

impl Reply {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name)?.to_str().ok()
    }

    /// The body, which must not be longer than `limit`.
    pub(crate) async fn body(self, limit: u64) -> Result<Bytes, Trouble> {
        self.body_in(Vec::new(), limit).await
    }

    /// The same in a buffer that is empty, and grows if it has to.
    pub(crate) async fn body_in(self, mut joined: Vec<u8>, limit: u64) -> Result<Bytes, Trouble> {
        let too_long = || Trouble {
            kind: ErrorKind::Corrupt,
            detail: format!("the answer is longer than the {limit} bytes expected"),
            remedy: None,
        };
        let declared = self.response.content_length();
        if declared.is_some_and(|declared| declared > limit) {
            return Err(too_long());
        }
        let pace = Scope::current();
        let mut response = self.response;
        loop {
            let chunk = tokio::time::timeout(STALL_TIMEOUT, response.chunk())
                .await
                .map_err(|_| Trouble::transient("the connection stalled"))??;
            let Some(chunk) = chunk else { return Ok(joined.into()) };
            if let Some(pace) = &pace {
                pace.download(chunk.len()).await;
            }
            if (joined.len() + chunk.len()) as u64 > limit {
                return Err(too_long());
            }
            if joined.is_empty() {
                if declared == Some(chunk.len() as u64) && joined.capacity() == 0 {
                    return Ok(chunk); // all of it in one piece: nothing to join
                }
                joined.reserve_exact(declared.unwrap_or_default().min(MOST_RESERVED) as usize);
            }
            joined.extend_from_slice(&chunk);
        }
    }
}
