//! Servers that break off, lie or ramble: every answer becomes the right kind of error.

#![allow(clippy::unwrap_used, missing_docs)]

use futures::TryStreamExt;
use lifeboat_blobs::s3::{self, S3Credentials, S3Options};
use lifeboat_blobs::wrap::{Retry, RetryPolicy};
use lifeboat_blobs::{BlobId, BlobStore, ErrorKind, Payload, PutMode, PutOptions};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that gives the planned answers, one per request, each on its own connection.
struct Planned {
    endpoint: String,
    answers: Arc<Mutex<VecDeque<Vec<u8>>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Planned {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (answers, requests) = (Arc::default(), Arc::default());
        let server = Planned { endpoint, answers, requests };
        let (answers, requests) = (server.answers.clone(), server.requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let request = read_request(stream, &answers).await;
                requests.lock().unwrap().push(request);
            }
        });
        server
    }

    fn plan(&self, answers: &[&str]) {
        self.answers.lock().unwrap().extend(answers.iter().map(|answer| answer.as_bytes().to_vec()));
    }

    /// A store on this server.
    async fn store(&self) -> Arc<dyn BlobStore> {
        let credentials =
            S3Credentials::Static { key_id: "k".to_owned(), secret: "s".to_owned(), token: None };
        let options = S3Options {
            endpoint: Some(self.endpoint.clone()),
            region: Some("us-east-1".to_owned()),
            credentials,
            ..S3Options::new("bucket")
        };
        s3::open(&options).await.unwrap()
    }
}

const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

async fn read_request(mut stream: TcpStream, answers: &Mutex<VecDeque<Vec<u8>>>) -> String {
    let mut request = Vec::new();
    let mut chunk = [0; 4096];
    let body_at = loop {
        let read = stream.read(&mut chunk).await.unwrap_or(0);
        request.extend_from_slice(&chunk[..read]);
        if let Some(at) = request.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if read == 0 {
            break request.len();
        }
    };
    let text = String::from_utf8_lossy(&request).to_lowercase();
    let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    while request.len() < body_at + length {
        match stream.read(&mut chunk).await {
            Ok(read) if read > 0 => request.extend_from_slice(&chunk[..read]),
            _ => break,
        }
    }
    let answer = answers.lock().unwrap().pop_front();
    if let Some(answer) = answer {
        let _ = stream.write_all(&answer).await;
    }
    text
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn id() -> BlobId {
    BlobId::new("blob").unwrap()
}

async fn get_kind(answers: &[&str]) -> ErrorKind {
    let server = Planned::start().await;
    let store = server.store().await;
    server.plan(answers);
    store.get(&id()).await.unwrap_err().kind()
}

#[tokio::test]
async fn a_body_that_breaks_off_is_worth_another_try() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort";
    assert_eq!(get_kind(&[cut]).await, ErrorKind::Transient);
    assert_eq!(get_kind(&["HTTP/1.1 200"]).await, ErrorKind::Transient);
    assert_eq!(get_kind(&[]).await, ErrorKind::Transient);
    assert_eq!(get_kind(&["complete nonsense\r\n\r\n"]).await, ErrorKind::Transient);
}

#[tokio::test]
async fn an_answer_without_a_known_code_is_judged_by_its_status() {
    for (status, kind) in [
        ("401 Unauthorized", ErrorKind::Unauthenticated),
        ("403 Forbidden", ErrorKind::PermissionDenied),
        ("429 Too Many Requests", ErrorKind::Transient),
        ("500 Internal Server Error", ErrorKind::Transient),
        ("501 Not Implemented", ErrorKind::Unsupported),
        ("507 Insufficient Storage", ErrorKind::Full),
        ("301 Moved Permanently", ErrorKind::Configuration),
        ("418 I'm a teapot", ErrorKind::Other),
    ] {
        let body = "<html>\u{1b}[31m not xml".repeat(20_000);
        assert_eq!(get_kind(&[&answer(status, "", &body)]).await, kind, "{status}");
    }
}

#[tokio::test]
async fn ranges_that_are_not_what_was_asked_for_are_not_passed_on() {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\nlast-modified: Thu, 20 Aug 2026 10:00:00 GMT\r\n\r\n";
    for (reply, kind) in [
        (answer("200 OK", "", "0123456789"), ErrorKind::Corrupt),
        (answer("206 Partial Content", "content-range: bytes 0-3/10\r\n", "0123"), ErrorKind::Corrupt),
        (answer("206 Partial Content", "content-range: gibberish\r\n", "2345"), ErrorKind::Corrupt),
        (answer("206 Partial Content", "content-range: bytes 2-5/10\r\n", "23456789"), ErrorKind::Corrupt),
        (answer("206 Partial Content", "content-range: bytes 2-5/10\r\n", "23"), ErrorKind::Corrupt),
        (answer("416 Range Not Satisfiable", "", ""), ErrorKind::InvalidRange),
    ] {
        let server = Planned::start().await;
        let store = server.store().await;
        server.plan(&[&reply, head]);
        assert_eq!(store.get_range(&id(), 2..6).await.unwrap_err().kind(), kind, "{reply}");
    }
}

fn page(content: &str) -> String {
    answer("200 OK", "", &format!("<ListBucketResult>{content}</ListBucketResult>"))
}

fn object(key: &str) -> String {
    format!(
        "<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-08-20T10:00:00Z</LastModified></Contents>"
    )
}

const MORE: &str = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>";

#[tokio::test]
async fn a_listing_never_ends_early_without_an_error() {
    for (answers, kind) in [
        (vec![page("<Contents><Key>a")], ErrorKind::Corrupt),
        (vec![page(&format!("{}{MORE}", object("a"))), answer("200 OK", "", "")], ErrorKind::Corrupt),
        // The second page leads to itself.
        (vec![page(MORE), page(MORE)], ErrorKind::Corrupt),
        (vec![page("<IsTruncated>true</IsTruncated>")], ErrorKind::Corrupt),
        (vec![page(MORE)], ErrorKind::Transient),
    ] {
        let server = Planned::start().await;
        let store = server.store().await;
        server.plan(&answers.iter().map(String::as_str).collect::<Vec<_>>());
        let error = store.list("").try_collect::<Vec<_>>().await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[tokio::test]
async fn a_listing_that_broke_asks_for_the_same_page_again() {
    let server = Planned::start().await;
    let policy = RetryPolicy { first_delay: Duration::from_millis(1), ..RetryPolicy::default() };
    let store = Retry::new(server.store().await, policy);
    let first = page(&format!("{}{MORE}", object("a")));
    server.plan(&[&first, &answer("503 Slow Down", "", ""), "", &page(&object("b"))]);
    let names: Vec<_> = store.list("").map_ok(|blob| blob.id.to_string()).try_collect().await.unwrap();
    assert_eq!(names, ["a", "b"]);
    let asked: Vec<_> = server
        .requests
        .lock()
        .unwrap()
        .iter()
        .map(|request| request.contains("continuation-token=t"))
        .collect();
    assert_eq!(asked, [false, true, true, true]);
}

#[tokio::test]
async fn a_create_whose_answer_was_lost_is_recognised_over_http() {
    let server = Planned::start().await;
    let policy = RetryPolicy { first_delay: Duration::from_millis(1), ..RetryPolicy::default() };
    let store = Retry::new(server.store().await, policy);
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nlast-modified: Thu, 20 Aug 2026 10:00:00 GMT\r\n\r\n";
    let exists = answer("412 Precondition Failed", "", "");
    // Before the first put the storage configuration is looked for, which is not there.
    server.plan(&[NOT_FOUND, "", &exists, head, &answer("200 OK", "", "ours")]);
    let create = PutOptions { mode: PutMode::CreateOnly, ..PutOptions::default() };
    store.put(&id(), Payload::from(b"ours".as_slice()), &create).await.unwrap();
    let put = &server.requests.lock().unwrap()[1];
    assert!(put.contains("if-none-match: *") && put.ends_with("ours"), "{put}");
    assert!(!put.contains("transfer-encoding"), "{put}");
}

const LARGE: usize = 1 << 20;

/// What a store that has answered the probe of CRCs so gets for a large blob: all requests from the probe on.
async fn large_put(answers: &[&str]) -> Vec<String> {
    let server = Planned::start().await;
    let policy = RetryPolicy { first_delay: Duration::from_millis(1), ..RetryPolicy::default() };
    let store = Retry::new(server.store().await, policy);
    let ok = answer("200 OK", "", "");
    // A small blob asks for nothing but the storage configuration.
    server.plan(&[NOT_FOUND, &ok]);
    store.put(&id(), Payload::from(b"small".as_slice()), &PutOptions::default()).await.unwrap();
    server.plan(answers);
    server.plan(&[&ok, &ok]);
    for _ in 0..2 {
        store.put(&id(), Payload::from(vec![7; LARGE]), &PutOptions::default()).await.unwrap();
    }
    assert!(server.answers.lock().unwrap().is_empty(), "answers that nobody wanted");
    server.requests.lock().unwrap().drain(2..).collect()
}

fn error_answer(status: &str, code: &str) -> String {
    answer(status, "", &format!("<Error><Code>{code}</Code></Error>"))
}

#[tokio::test]
async fn a_crc_takes_the_place_of_a_signed_body_only_where_the_store_proves_that_it_checks_it() {
    let refusal = error_answer("400 Bad Request", "BadDigest");
    let busy = error_answer("503 Service Unavailable", "SlowDown");
    let proven = large_put(&[&busy, &refusal]).await;
    for probe in &proven[..2] {
        assert!(probe.starts_with("put /bucket/.lifeboat-checksum-probe"), "{probe}");
        assert!(probe.contains("x-amz-checksum-crc32c: aaaaaa=="), "{probe}");
    }
    let large = &proven[2..];
    assert_eq!(large.len(), 2);
    for put in large {
        assert!(put.contains("x-amz-content-sha256: unsigned-payload\r\n"), "{}", &put[..800]);
        assert!(put.contains("x-amz-checksum-crc32c: frcoag==\r\n"), "{}", &put[..800]);
        let signed = put.split("signedheaders=").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        assert!(signed.contains("x-amz-checksum-crc32c"), "{signed}");
    }

    // Stores that do not know the header ignore or refuse it; of one that takes the probe it is taken away again, if it may be.
    let ok = answer("200 OK", "", "");
    let denied = error_answer("403 Forbidden", "AccessDenied");
    let unknown = error_answer("501 Not Implemented", "NotImplemented");
    for answers in [&[&*ok, &*ok][..], &[&*ok, &*denied], &[&*unknown]] {
        let requests = large_put(answers).await;
        assert_eq!(requests.len(), answers.len() + 2);
        assert_eq!(answers.len() == 2, requests[1].starts_with("delete /bucket/.lifeboat-checksum-probe"));
        for put in &requests[answers.len()..] {
            assert!(!put.contains("crc32c") && !put.contains("unsigned-payload"), "{}", &put[..800]);
        }
    }
}
