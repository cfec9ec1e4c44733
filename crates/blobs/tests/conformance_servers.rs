//! The conformance suite on real servers, and what is particular to each of them.

#![allow(clippy::unwrap_used, missing_docs)]

use futures::TryStreamExt;
use lifeboat_blobs::azure::{self, AzureCredentials, AzureOptions};
use lifeboat_blobs::conformance::{Expectations, Locks, run};
use lifeboat_blobs::gcs::{self, GcsCredentials, GcsOptions};
use lifeboat_blobs::s3::{self, AssumeRole, Checksums, CustomerKey, Encryption, S3Credentials, S3Options};
use lifeboat_blobs::wrap::{Pace, Pacer, Rates, Retry, RetryPolicy};
use lifeboat_blobs::{
    BlobId, BlobStore, ErrorKind, Payload, PutOptions, Result, Retention, RetentionMode, TlsOptions,
};
use lifeboat_testkit::servers::{Azurite, FakeGcs, Minio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// More blobs than fit on a page of any of the stores.
const MANY: usize = 1050;

fn id(name: &str) -> BlobId {
    BlobId::new(name).unwrap()
}

fn bytes(text: &'static str) -> Payload {
    Payload::from(text.as_bytes())
}

fn plain() -> PutOptions {
    PutOptions::default()
}

/// A new prefix for every scenario.
struct Prefixes(AtomicU32);

impl Prefixes {
    fn new() -> Self {
        Prefixes(AtomicU32::new(0))
    }

    fn next(&self) -> String {
        format!("velero/kopia/ns{}/", self.0.fetch_add(1, Ordering::Relaxed))
    }
}

fn with_retry(store: Arc<dyn BlobStore>) -> Arc<dyn BlobStore> {
    Arc::new(Retry::new(store, RetryPolicy::default()))
}

fn keys(server: &Minio) -> S3Credentials {
    S3Credentials::Static {
        key_id: server.access_key().to_owned(),
        secret: server.secret_key().to_owned(),
        token: None,
    }
}

fn on(server: &Minio, bucket: &str) -> S3Options {
    S3Options {
        endpoint: Some(server.endpoint()),
        tls: TlsOptions { ca_pem: server.ca_pem().map(|pem| pem.as_bytes().to_vec()), verify: true },
        credentials: keys(server),
        ..S3Options::new(bucket)
    }
}

async fn names(store: &dyn BlobStore) -> Vec<String> {
    store.list("").map_ok(|blob| blob.id.to_string()).try_collect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn minio() {
    let server = Minio::start().unwrap();
    server.create_bucket("plain").unwrap();
    let prefixes = Prefixes::new();
    // A bucket without object lock cannot lock anything.
    run(Expectations { locks: Locks::Unsupported, many: MANY }, async || {
        let options = S3Options { prefix: prefixes.next(), ..on(&server, "plain") };
        with_retry(s3::open(&options).await.unwrap())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn minio_with_tls_object_lock_checksums_and_pacing() {
    let server = Minio::start_tls().unwrap();
    server.create_locked_bucket("locked").unwrap();
    let prefixes = Prefixes::new();
    let pacer = Arc::new(Pacer::new(Rates { up: Some(1e9), down: Some(1e9), ..Rates::default() }));
    run(Expectations { locks: Locks::KeepVersions, many: MANY }, async || {
        let options =
            S3Options { prefix: prefixes.next(), checksums: Checksums::IfProven, ..on(&server, "locked") };
        with_retry(Arc::new(Pace::new(s3::open(&options).await.unwrap(), pacer.clone())))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn azurite() {
    let server = Azurite::start().unwrap();
    server.create_container("box").unwrap();
    let prefixes = Prefixes::new();
    run(Expectations { locks: Locks::Untested, many: MANY }, async || {
        let key = AzureCredentials::AccountKey(server.key().to_owned());
        let options = AzureOptions {
            prefix: prefixes.next(),
            endpoint: Some(server.endpoint()),
            ..AzureOptions::new(server.account(), "box", key)
        };
        with_retry(azure::open(&options).await.unwrap())
    })
    .await;

    let open = async |container: &str, key: &str| {
        let key = AzureCredentials::AccountKey(key.to_owned());
        let options = AzureOptions::new(server.account(), container, key);
        azure::open(&AzureOptions { endpoint: Some(server.endpoint()), ..options }).await
    };
    assert_eq!(open("none", server.key()).await.unwrap_err().kind(), ErrorKind::NoSuchContainer);
    let refused = open("box", "d3Jvbmc=").await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Unauthenticated | ErrorKind::PermissionDenied), "{refused}");
    assert!(!refused.to_string().contains("d3Jvbmc"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fake_gcs() {
    let server = FakeGcs::start().unwrap();
    server.create_bucket("bucket").unwrap();
    let prefixes = Prefixes::new();
    let on = |bucket: &str| GcsOptions {
        base_url: Some(server.endpoint()),
        credentials: GcsCredentials::Anonymous,
        ..GcsOptions::new(bucket)
    };
    run(Expectations { locks: Locks::Untested, many: MANY }, async || {
        let options = GcsOptions { prefix: prefixes.next(), ..on("bucket") };
        with_retry(gcs::open(&options).await.unwrap())
    })
    .await;
    assert_eq!(gcs::open(&on("none")).await.unwrap_err().kind(), ErrorKind::NoSuchContainer);
}

/// What is wrong with a bucket shows when it is read from.
async fn first_read(options: &S3Options) -> Result<()> {
    s3::open(options).await?.get(&id("blob")).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_refusals_say_what_is_wrong() {
    let server = Minio::start_tls().unwrap();
    server.create_bucket("backups").unwrap();
    let kind = async |options: S3Options| {
        let error = first_read(&options).await.unwrap_err();
        assert!(!error.to_string().contains("s3cr3t"), "{error}");
        error.kind()
    };
    assert_eq!(kind(on(&server, "none")).await, ErrorKind::NoSuchContainer);
    let wrong = |key_id: &str| S3Credentials::Static {
        key_id: key_id.to_owned(),
        secret: "s3cr3t".to_owned(),
        token: None,
    };
    let unknown_key = S3Options { credentials: wrong("nobody"), ..on(&server, "backups") };
    assert_eq!(kind(unknown_key).await, ErrorKind::Unauthenticated);
    let wrong_secret = S3Options { credentials: wrong(server.access_key()), ..on(&server, "backups") };
    assert_eq!(kind(wrong_secret).await, ErrorKind::Unauthenticated);
    let nobody = S3Options { credentials: S3Credentials::Anonymous, ..on(&server, "backups") };
    assert_eq!(kind(nobody).await, ErrorKind::PermissionDenied);

    // Without its authority the server is not trusted; without verification it does not matter.
    let untrusted = S3Options { tls: TlsOptions::default(), ..on(&server, "backups") };
    assert_eq!(kind(untrusted).await, ErrorKind::Configuration);
    let careless = S3Options { tls: TlsOptions { ca_pem: None, verify: false }, ..on(&server, "backups") };
    assert_eq!(kind(careless).await, ErrorKind::NotFound);

    // Nobody listens: worth another try.
    let gone = S3Options { endpoint: Some("http://127.0.0.1:1".to_owned()), ..on(&server, "backups") };
    assert_eq!(kind(gone).await, ErrorKind::Transient);
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_with_temporary_credentials_of_a_role() {
    let server = Minio::start().unwrap();
    server.create_bucket("backups").unwrap();
    let role = AssumeRole {
        role: "arn:aws:iam::123456789012:role/test".to_owned(),
        session: Some("lifeboat".to_owned()),
        duration: Some(Duration::from_secs(900)),
        endpoint: Some(server.endpoint()),
        region: Some(server.region().to_owned()),
        with: keys(&server),
    };
    let with = |role: AssumeRole| S3Options {
        credentials: S3Credentials::Role(Box::new(role)),
        ..on(&server, "backups")
    };
    let store = s3::open(&with(role.clone())).await.unwrap();
    store.put(&id("a"), bytes("x"), &plain()).await.unwrap();
    assert_eq!(&store.get(&id("a")).await.unwrap()[..], b"x");

    let wrong =
        S3Credentials::Static { key_id: "nobody".to_owned(), secret: "s3cr3t".to_owned(), token: None };
    let error = first_read(&with(AssumeRole { with: wrong, ..role })).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    let text = error.to_string();
    assert!(text.contains("AccessDenied") && !text.contains("s3cr3t"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_encrypts_as_told() {
    let server = Minio::start_tls().unwrap();
    server.create_bucket("backups").unwrap();
    let own_key = Encryption::CustomerKey(CustomerKey::new([5; 32]));
    let kms = Encryption::Kms { key_id: Some(server.kms_key().to_owned()) };
    for (name, encryption) in [("s3", Encryption::StoreKey), ("kms", kms), ("own", own_key)] {
        let store = s3::open(&S3Options { encryption, ..on(&server, "backups") }).await.unwrap();
        store.put(&id(name), bytes("hello"), &plain()).await.unwrap();
        assert_eq!(&store.get(&id(name)).await.unwrap()[..], b"hello", "{name}");
        assert_eq!(&store.get_range(&id(name), 1..3).await.unwrap()[..], b"el", "{name}");
        assert_eq!(store.head(&id(name)).await.unwrap().size, 5, "{name}");
    }
    let without_key = s3::open(&on(&server, "backups")).await.unwrap();
    assert!(without_key.get(&id("kms")).await.is_ok());
    assert!(without_key.get(&id("own")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_hides_the_storage_configuration_and_the_probe() {
    let server = Minio::start().unwrap();
    server.create_bucket("backups").unwrap();
    let bare = s3::open(&on(&server, "backups")).await.unwrap();
    let options =
        S3Options { prefix: "x-".to_owned(), checksums: Checksums::IfProven, ..on(&server, "backups") };
    let classes = r#"{"blobOptions":[{"prefix":"p","storageClass":"REDUCED_REDUNDANCY"}]}"#;
    bare.put(&id("x-.storageconfig"), bytes(classes), &plain()).await.unwrap();
    let store = s3::open(&options).await.unwrap();
    store.put(&id("p1"), bytes("1"), &plain()).await.unwrap();
    store.put(&id("q1"), bytes("1"), &plain()).await.unwrap();
    assert_eq!(names(&*store).await, ["p1", "q1"]);
    // The prefix is literal, with or without a slash.
    assert_eq!(names(&*bare).await, ["x-.storageconfig", "x-p1", "x-q1"]);

    bare.put(&id("x-.storageconfig"), bytes("{"), &plain()).await.unwrap();
    let unreadable = s3::open(&options).await.unwrap();
    assert_eq!(unreadable.get(&id("p1")).await.unwrap(), "1", "reading does not need it");
    assert_eq!(unreadable.put(&id("p2"), bytes("1"), &plain()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    let nonsense = r#"{"blobOptions":[{"prefix":"","storageClass":"NO_SUCH_CLASS"}]}"#;
    bare.put(&id("x-.storageconfig"), bytes(nonsense), &plain()).await.unwrap();
    let refused = s3::open(&S3Options { checksums: Checksums::Off, ..options }).await.unwrap();
    let error = refused.put(&id("p2"), bytes("1"), &plain()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_locks_are_set_and_seen_by_the_store() -> Result<()> {
    let server = Minio::start().unwrap();
    server.create_locked_bucket("backups").unwrap();
    let store = s3::open(&on(&server, "backups")).await?;
    let compliance = Retention { mode: RetentionMode::Compliance, period: Duration::from_secs(3600) };
    let locked = PutOptions { retention: Some(compliance), ..plain() };
    store.put(&id("a"), bytes("1"), &locked).await?;
    // A governance lock may not replace a compliance lock: the store's refusal shows that there is one.
    let longer = Duration::from_secs(7200);
    let weaker = Retention { mode: RetentionMode::Governance, period: longer };
    assert!(store.extend_retention(&id("a"), &weaker).await.is_err());
    store.extend_retention(&id("a"), &Retention { period: longer, ..compliance }).await
}

/// A way to a server on which single bytes are damaged.
struct BadWay {
    endpoint: String,
    /// So many bytes of large requests are still to be damaged.
    left: Arc<AtomicU32>,
}

/// So many bytes of a request do not come at once if it is a small one.
const LARGE: usize = 32 << 10;

impl BadWay {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let left = Arc::<AtomicU32>::default();
        let damages = left.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(pass_on(client, server, damages.clone()));
            }
        });
        BadWay { endpoint, left }
    }
}

async fn pass_on(client: TcpStream, server: TcpStream, damages: Arc<AtomicU32>) {
    let ((mut requests, mut to_client), (mut answers, mut to_server)) =
        (client.into_split(), server.into_split());
    tokio::spawn(async move { tokio::io::copy(&mut answers, &mut to_client).await });
    let mut chunk = vec![0; 2 * LARGE];
    while let Ok(length @ 1..) = requests.read(&mut chunk).await {
        let one_less = |left: u32| left.checked_sub(1);
        let relaxed = Ordering::Relaxed;
        if length > LARGE && damages.fetch_update(relaxed, relaxed, one_less).is_ok() {
            chunk[length - 1] ^= 1;
        }
        if to_server.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_refuses_a_pack_that_was_damaged_on_the_way_and_gets_it_again() {
    let server = Minio::start().unwrap();
    server.create_bucket("backups").unwrap();
    let way = BadWay::to(server.address()).await;
    let through = S3Options { endpoint: Some(way.endpoint.clone()), ..on(&server, "backups") };
    let kept = S3Options { checksums: Checksums::IfProven, ..through.clone() };
    let pack: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ n >> 7) as u8).collect();
    // Without a signature of the body, and with one.
    for (name, options, says) in [("p1", through, "ChecksumMismatch"), ("p2", kept, "SHA256Mismatch")] {
        let store = s3::open(&options).await.unwrap();
        way.left.store(1, Ordering::Relaxed);
        let error = store.put(&id(name), Payload::from(pack.clone()), &plain()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(store.get(&id(name)).await.unwrap_err().is_not_found(), "nothing was stored");
        way.left.store(1, Ordering::Relaxed);
        with_retry(store.clone()).put(&id(name), Payload::from(pack.clone()), &plain()).await.unwrap();
        assert_eq!(way.left.load(Ordering::Relaxed), 0);
        assert_eq!(store.get(&id(name)).await.unwrap(), pack);
    }
    assert_eq!(names(&*s3::open(&on(&server, "backups")).await.unwrap()).await, ["p1", "p2"]);
}
