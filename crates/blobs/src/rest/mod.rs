//! What S3, Google Cloud Storage and Azure Blob have in common: blobs over HTTP.
//!
//! A [`Protocol`] says how one of them phrases a call, signs it and words its answers; [`RestStore`] does the rest
//! once for all. `object_store` supplies signatures and credentials. Its own store types are not used: they cannot
//! address every key literally, set object locks or tell error codes apart, and they retry on their own.

pub(crate) mod http;
pub(crate) mod text;

pub use http::TlsOptions;

use crate::{
    BlobId, BlobMetadata, BlobStore, BlobStream, Error, ErrorKind, Operation, Payload, PutOptions, Result,
    Retention, RetentionMode, arrival,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::{Http, Reply, Trouble};
use jiff::{SignedDuration, Timestamp};
use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RANGE};
use reqwest::{Method, StatusCode};
use std::ops::Range;
use std::time::Duration;

/// An error answer is short; more of it is not read.
pub(crate) const MAX_ERROR: u64 = 64 << 10;
/// A page of 1000 names of 1 KiB with metadata stays well below.
const MAX_PAGE: u64 = 32 << 20;
/// Text from a server that goes into an error message.
const MAX_MESSAGE: usize = 300;

/// One request before it is authorised.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Payload,
    /// For protocols that sign calls.
    pub(crate) signed: SignedBody,
}

/// What the signature of a call says about its body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum SignedBody {
    /// That there is none.
    #[default]
    Empty,
    /// Its SHA-256.
    Sha256([u8; 32]),
    /// Nothing; a checksum among the headers, which are signed, covers it.
    Left,
}

impl Call {
    pub(crate) fn new(method: Method, url: String) -> Self {
        Call { method, url, headers: HeaderMap::new(), body: Payload::default(), signed: SignedBody::Empty }
    }

    pub(crate) fn body(self, body: Payload) -> Self {
        Call { body, ..self }
    }

    /// Adds a header. A value that cannot be one is the caller's data, so it is an error, not a panic.
    pub(crate) fn header(mut self, name: &'static str, value: impl AsRef<str>) -> Result<Self, String> {
        let value = HeaderValue::from_str(value.as_ref())
            .map_err(|_| format!("the value of {name} has characters that cannot be sent"))?;
        self.headers.insert(HeaderName::from_static(name), value);
        Ok(self)
    }
}

/// What a store says about one object.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) size: u64,
    pub(crate) modified: Timestamp,
    pub(crate) locked_until: Option<Timestamp>,
}

/// One page of a listing, keys whole.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) objects: Vec<(String, Found)>,
    pub(crate) next: Option<String>,
}

/// A refusal in the words of the store.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
}

/// How one kind of object store is spoken to.
#[async_trait]
pub(crate) trait Protocol: std::fmt::Debug + Send + Sync + 'static {
    /// For messages: `s3://bucket/prefix`.
    fn describe(&self) -> String;
    /// What every key starts with, used literally.
    fn prefix(&self) -> &str;
    /// Whether a blob of this name is none of ours.
    fn hides(&self, _name: &str) -> bool {
        false
    }

    fn get(&self, key: &str) -> Result<Call, String>;
    fn head(&self, key: &str) -> Result<Call, String>;
    fn delete(&self, key: &str) -> Result<Call, String>;
    async fn put(&self, key: &str, name: &str, payload: Payload, options: PutRequest)
    -> Result<Call, String>;
    /// Finds out what a put of so many bytes needs to know; called before each.
    async fn prepare_put(_store: &RestStore<Self>, _bytes: u64, _request: PutRequest) -> Result<()>
    where
        Self: Sized,
    {
        Ok(())
    }
    fn list(&self, prefix: &str, page: Option<&str>) -> Result<Call, String>;
    fn lock(&self, key: &str, mode: RetentionMode, until: Timestamp) -> Result<Call, String>;

    /// Reads the answer to a head.
    fn found(&self, headers: &HeaderMap, body: &[u8]) -> Result<Found, String>;
    /// Reads the answer to a list.
    fn page(&self, body: &[u8]) -> Result<Page, String>;
    /// Reads an error answer.
    fn refusal(&self, headers: &HeaderMap, body: &[u8]) -> Refusal;
    /// What a refusal means, where the status code alone does not tell.
    fn kind(&self, status: StatusCode, refusal: &Refusal) -> Option<ErrorKind>;

    /// Adds the signature, and whatever else proves who asks.
    async fn authorize(&self, request: &mut HttpRequest, body: SignedBody) -> Result<(), Trouble>;
}

/// What a put asks for, with the lock's end worked out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PutRequest {
    pub(crate) create_only: bool,
    pub(crate) lock: Option<(RetentionMode, Timestamp)>,
}

/// When a lock set now ends.
pub(crate) fn lock_end(period: Duration) -> Timestamp {
    let period = SignedDuration::try_from(period).unwrap_or(SignedDuration::MAX);
    Timestamp::now().saturating_add(period).unwrap_or(Timestamp::MAX)
}

/// A store over HTTP.
#[derive(Debug)]
pub(crate) struct RestStore<P> {
    pub(crate) protocol: P,
    pub(crate) http: Http,
}

impl<P: Protocol> RestStore<P> {
    fn key(&self, operation: Operation, id: &BlobId) -> Result<String> {
        let key = format!("{}{id}", self.protocol.prefix());
        // URLs have no way to say these: every client and proxy resolves them.
        if key.split('/').any(|part| part == "." || part == "..") {
            let detail = "an object store cannot address a key with the part \".\" or \"..\"";
            return Err(Error::new(ErrorKind::Configuration, operation, id, self.describe(), detail));
        }
        Ok(key)
    }

    fn corrupt(&self, operation: Operation, blob: &str, detail: impl std::fmt::Display) -> Error {
        let detail = format!("the answer cannot be understood: {detail}");
        Error::new(ErrorKind::Corrupt, operation, blob, self.describe(), detail)
    }

    /// Sends a call and returns the start of its answer if it succeeded.
    async fn send(&self, operation: Operation, blob: &str, call: Result<Call, String>) -> Result<Reply> {
        let call = call.map_err(|detail| {
            Error::new(ErrorKind::Configuration, operation, blob, self.describe(), detail)
        })?;
        let reply = self
            .transmit(call)
            .await
            .map_err(|trouble| trouble.into_error(operation, blob, &self.describe()))?;
        if reply.status().is_success() { Ok(reply) } else { Err(self.refused(operation, blob, reply).await) }
    }

    /// Authorises a call and sends it; the answer may be a refusal.
    pub(crate) async fn transmit(&self, call: Call) -> Result<Reply, Trouble> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = call.method;
        let uri = call.url.parse();
        *request.uri_mut() =
            uri.map_err(|error| Trouble::configuration(format!("the address is not valid: {error}")))?;
        *request.headers_mut() = call.headers;
        // Azure signs the length; a body-less change has to say so everywhere.
        if !call.body.is_empty() || matches!(*request.method(), Method::PUT | Method::POST | Method::PATCH) {
            let length = HeaderValue::from(call.body.len());
            request.headers_mut().insert(reqwest::header::CONTENT_LENGTH, length);
        }
        self.protocol.authorize(&mut request, call.signed).await?;
        self.http.send(request, call.body).await
    }

    async fn refused(&self, operation: Operation, blob: &str, reply: Reply) -> Error {
        let (status, headers) = (reply.status(), reply.headers().clone());
        let body = reply.body(MAX_ERROR).await.unwrap_or_default();
        let Refusal { code, message } = self.protocol.refusal(&headers, &body);
        let kind = self
            .protocol
            .kind(status, &Refusal { code: code.clone(), message: message.clone() })
            .unwrap_or_else(|| kind_of_status(operation, status));
        let mut detail = format!("the store answered {}", status.as_u16());
        for text in [code, message] {
            if !text.is_empty() {
                detail.push_str(": ");
                detail.extend(text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE));
            }
        }
        let error = Error::new(kind, operation, blob, self.describe(), detail);
        match kind {
            ErrorKind::NotFound => Error::new(kind, operation, blob, self.describe(), "it does not exist"),
            ErrorKind::Unauthenticated => error.with_remedy("check the credentials and this machine's clock"),
            ErrorKind::PermissionDenied => {
                error.with_remedy("check what these credentials may do in the bucket")
            }
            ErrorKind::NoSuchContainer => error.with_remedy("check the bucket's name, endpoint and region"),
            ErrorKind::Full => error.with_remedy("free space in the store or raise the quota"),
            _ => error,
        }
    }

    /// Sends a call and reads its whole answer, which is text of the protocol.
    async fn ask(
        &self,
        operation: Operation,
        blob: &str,
        call: Result<Call, String>,
        limit: u64,
    ) -> Result<(HeaderMap, Bytes)> {
        let reply = self.send(operation, blob, call).await?;
        let headers = reply.headers().clone();
        let body = reply
            .body(limit)
            .await
            .map_err(|trouble| trouble.into_error(operation, blob, &self.describe()))?;
        Ok((headers, body))
    }

    async fn find(&self, operation: Operation, id: &BlobId) -> Result<Found> {
        let call = self.protocol.head(&self.key(operation, id)?);
        let (headers, body) = self.ask(operation, id.as_str(), call, MAX_ERROR).await?;
        self.protocol.found(&headers, &body).map_err(|detail| self.corrupt(operation, id.as_str(), detail))
    }

    /// Why a range was not served: it does not lie inside the blob, or the store does not serve ranges.
    async fn bad_range(&self, id: &BlobId, range: &Range<u64>) -> Error {
        let size = match self.find(Operation::Get, id).await {
            Ok(found) => found.size,
            Err(error) => return error,
        };
        match crate::store::check_range(range, size, id, || self.describe()) {
            Err(error) => error,
            Ok(()) => self.corrupt(Operation::Get, id.as_str(), "the store does not serve ranges"),
        }
    }

    async fn next_page(&self, prefix: &str, at: Option<&str>) -> Result<(Vec<BlobMetadata>, Option<String>)> {
        let call = self.protocol.list(&format!("{}{prefix}", self.protocol.prefix()), at);
        let (_, body) = self.ask(Operation::List, prefix, call, MAX_PAGE).await?;
        let corrupt = |detail: String| self.corrupt(Operation::List, prefix, detail);
        let page = self.protocol.page(&body).map_err(corrupt)?;
        if page.next.is_some() && page.next.as_deref() == at {
            return Err(corrupt("the listing does not advance".to_owned()));
        }
        let mut blobs = Vec::with_capacity(page.objects.len());
        for (key, found) in page.objects {
            let Some(name) = key.strip_prefix(self.protocol.prefix()) else {
                return Err(corrupt(format!("key {key:?} was not asked for")));
            };
            // The key that equals the prefix is a "folder" some tool made.
            if let (false, Ok(id)) = (self.protocol.hides(name), BlobId::new(name)) {
                blobs.push(BlobMetadata { id, size: found.size, modified: found.modified });
            }
        }
        Ok((blobs, page.next))
    }
}

/// What a status code means where the protocol has nothing special to say.
fn kind_of_status(operation: Operation, status: StatusCode) -> ErrorKind {
    match status.as_u16() {
        404 => match operation {
            Operation::List | Operation::Put => ErrorKind::NoSuchContainer,
            _ => ErrorKind::NotFound,
        },
        412 => ErrorKind::AlreadyExists,
        416 => ErrorKind::InvalidRange,
        401 => ErrorKind::Unauthenticated,
        403 => ErrorKind::PermissionDenied,
        301..=308 => ErrorKind::Configuration,
        501 => ErrorKind::Unsupported,
        507 => ErrorKind::Full,
        408 | 409 | 425 | 429 | 500..=599 => ErrorKind::Transient,
        _ => ErrorKind::Other,
    }
}

/// First and last byte, as `Content-Range` tells them.
fn content_range(header: &str) -> Option<(u64, u64)> {
    let (range, _) = header.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[async_trait]
impl<P: Protocol> BlobStore for RestStore<P> {
    fn describe(&self) -> String {
        self.protocol.describe()
    }

    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        if options.modified.is_some() {
            let detail = "a store of objects sets their times itself";
            return Err(Error::new(ErrorKind::Unsupported, Operation::Put, id, self.describe(), detail));
        }
        let key = self.key(Operation::Put, id)?;
        let request = PutRequest {
            create_only: options.mode == crate::PutMode::CreateOnly,
            lock: options.retention.map(|retention| (retention.mode, lock_end(retention.period))),
        };
        P::prepare_put(self, payload.len(), request).await?;
        let call = self.protocol.put(&key, id.as_str(), payload, request).await;
        self.ask(Operation::Put, id.as_str(), call, MAX_ERROR).await?;
        Ok(())
    }

    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        let call = self.protocol.get(&self.key(Operation::Get, id)?);
        Ok(self.ask(Operation::Get, id.as_str(), call, u64::MAX).await?.1)
    }

    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        // No store has such objects, and some read a number that they cannot hold as no range at all.
        if range.is_empty() || range.end > i64::MAX as u64 {
            return Err(self.bad_range(id, &range).await);
        }
        let last = range.end - 1;
        let call = self.protocol.get(&self.key(Operation::Get, id)?).and_then(|mut call| {
            let value = HeaderValue::try_from(format!("bytes={}-{last}", range.start));
            call.headers.insert(RANGE, value.map_err(|error| error.to_string())?);
            Ok(call)
        });
        let reply = self.send(Operation::Get, id.as_str(), call).await?;
        let covers = reply.header("content-range").and_then(content_range);
        // Stores cut a range that goes beyond the end, and send an empty blob for any; we want exactly what we ask.
        if reply.status() != StatusCode::PARTIAL_CONTENT || covers != Some((range.start, last)) {
            return Err(self.bad_range(id, &range).await);
        }
        let buffer = arrival::admitted().await;
        let length = range.end - range.start;
        let bytes = reply.body_in(buffer, length).await;
        let bytes =
            bytes.map_err(|trouble| trouble.into_error(Operation::Get, id.as_str(), &self.describe()))?;
        if bytes.len() as u64 != length {
            return Err(self.corrupt(Operation::Get, id.as_str(), "the body is too short"));
        }
        Ok(bytes)
    }

    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        let found = self.find(Operation::Head, id).await?;
        Ok(BlobMetadata { id: id.clone(), size: found.size, modified: found.modified })
    }

    /// After a transient error the same page is asked for again.
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        let prefix = prefix.to_owned();
        let pages = stream::unfold(Some(None), move |at: Option<Option<String>>| {
            let prefix = prefix.clone();
            async move {
                let at = at?;
                Some(match self.next_page(&prefix, at.as_deref()).await {
                    Ok((blobs, next)) => (blobs.into_iter().map(Ok).collect::<Vec<_>>(), next.map(Some)),
                    Err(error) => {
                        let again = error.kind().is_transient().then_some(at);
                        (vec![Err(error)], again)
                    }
                })
            }
        });
        pages.map(stream::iter).flatten().boxed()
    }

    async fn delete(&self, id: &BlobId) -> Result<()> {
        let call = self.protocol.delete(&self.key(Operation::Delete, id)?);
        match self.ask(Operation::Delete, id.as_str(), call, MAX_ERROR).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Looks first: no store may be asked to shorten a lock, and some would.
    async fn extend_retention(&self, id: &BlobId, retention: &Retention) -> Result<()> {
        let until = lock_end(retention.period);
        let found = self.find(Operation::Retain, id).await?;
        if found.locked_until.is_some_and(|present| present >= until) {
            return Ok(());
        }
        let call = self.protocol.lock(&self.key(Operation::Retain, id)?, retention.mode, until);
        self.ask(Operation::Retain, id.as_str(), call, MAX_ERROR).await?;
        Ok(())
    }
}
