//! One suite that every store and every wrapper has to pass: the guarantees of [`BlobStore`] as tests.
//!
//! [`run`] panics with a message that names the broken guarantee; it is meant to be called from tests.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::{BlobId, BlobStore, ErrorKind, Payload, PutMode, PutOptions, Retention, RetentionMode};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use jiff::SignedDuration;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the store under test is expected to do with object locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locks {
    /// It has none and says so.
    Unsupported,
    /// A locked blob cannot be deleted.
    PreventDelete,
    /// Deleting a locked blob hides it; its data stays (versioned buckets).
    KeepVersions,
    /// Not tried: the server that stands in for the store does not implement them.
    Untested,
}

/// What the suite should know about the store.
#[derive(Debug, Clone, Copy)]
pub struct Expectations {
    /// Object locks.
    pub locks: Locks,
    /// Blobs in the large listing: more than one page of the store.
    pub many: usize,
}

type Store = Arc<dyn BlobStore>;

/// Runs the whole suite. `fresh` opens a store that holds nothing yet; it is called once per scenario.
pub async fn run<F, Fut>(expectations: Expectations, fresh: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Store>,
{
    what_is_put_is_read_back(fresh().await).await;
    missing_blobs_are_not_found_and_deletes_are_idempotent(fresh().await).await;
    ranges_are_exact_or_refused(fresh().await).await;
    odd_names_are_just_names(fresh().await).await;
    prefixes_are_plain_strings(fresh().await).await;
    long_listings_are_complete(fresh().await, expectations.many).await;
    changes_are_visible_at_once(fresh().await).await;
    one_create_wins(fresh().await).await;
    readers_never_see_a_part(fresh().await).await;
    a_dropped_put_leaves_nothing_or_everything(fresh().await).await;
    timestamps_are_the_stores(fresh().await).await;
    wanted_timestamps_are_kept_or_refused(fresh().await).await;
    locks_hold(fresh().await, expectations.locks).await;
}

fn id(name: &str) -> BlobId {
    BlobId::new(name).unwrap()
}

fn overwrite() -> PutOptions {
    PutOptions::default()
}

fn create_only() -> PutOptions {
    PutOptions { mode: PutMode::CreateOnly, ..PutOptions::default() }
}

async fn names(store: &Store, prefix: &str) -> Vec<String> {
    let blobs: Vec<_> = store.list(prefix).try_collect().await.expect("a listing succeeds");
    let mut names: Vec<_> = blobs.into_iter().map(|blob| blob.id.to_string()).collect();
    names.sort();
    names
}

fn kind<T: std::fmt::Debug>(result: crate::Result<T>) -> ErrorKind {
    result.expect_err("the call must fail").kind()
}

async fn what_is_put_is_read_back(store: Store) {
    let piece = |len: usize, seed: u8| -> Bytes {
        (0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed ^ (at >> 8) as u8).collect::<Vec<_>>().into()
    };
    let sizes: [&[usize]; 5] = [&[], &[1], &[0, 5, 0], &[4096], &[3 << 20, 1, 70_000, 2 << 20, 4_000_003]];
    for (n, sizes) in sizes.into_iter().enumerate() {
        let mut payload = Payload::default();
        for (seed, &len) in sizes.iter().enumerate() {
            payload.push(piece(len, seed as u8));
        }
        let expected = payload.clone().into_bytes();
        let id = id(&format!("blob{n}"));
        store.put(&id, payload, &overwrite()).await.expect("a put succeeds");
        assert_eq!(store.get(&id).await.unwrap(), expected, "a get returns what was put, pieces joined");
        let head = store.head(&id).await.unwrap();
        assert_eq!((head.id, head.size), (id, expected.len() as u64), "a head tells name and size");
    }
    let id = id("blob4");
    store.put(&id, Payload::from(b"shorter".as_slice()), &overwrite()).await.unwrap();
    assert_eq!(&store.get(&id).await.unwrap()[..], b"shorter", "a put replaces the blob");
}

async fn missing_blobs_are_not_found_and_deletes_are_idempotent(store: Store) {
    let id = id("missing-blob");
    assert_eq!(names(&store, "").await, Vec::<String>::new(), "a fresh store is empty");
    assert_eq!(kind(store.get(&id).await), ErrorKind::NotFound);
    assert_eq!(kind(store.head(&id).await), ErrorKind::NotFound);
    assert_eq!(kind(store.get_range(&id, 0..1).await), ErrorKind::NotFound);
    store.delete(&id).await.expect("deleting what does not exist succeeds");
    store.put(&id, Payload::from(vec![1]), &overwrite()).await.unwrap();
    store.delete(&id).await.unwrap();
    store.delete(&id).await.expect("deleting twice succeeds");
    assert_eq!(kind(store.get(&id).await), ErrorKind::NotFound);
}

async fn ranges_are_exact_or_refused(store: Store) {
    let bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    let (blob, empty) = (id("ranged"), id("empty"));
    store.put(&blob, bytes.clone().into(), &overwrite()).await.unwrap();
    store.put(&empty, Payload::default(), &overwrite()).await.unwrap();
    for range in [0..1, 0..100_000, 99_999..100_000, 1234..56_789] {
        let expected = &bytes[range.start as usize..range.end as usize];
        assert_eq!(&store.get_range(&blob, range.clone()).await.unwrap()[..], expected, "{range:?}");
    }
    let backwards = Range { start: 20, end: 10 };
    for range in [5..5, backwards, 0..100_001, 99_999..100_002, 100_000..100_001, u64::MAX - 1..u64::MAX] {
        assert_eq!(kind(store.get_range(&blob, range.clone()).await), ErrorKind::InvalidRange, "{range:?}");
    }
    assert_eq!(kind(store.get_range(&empty, 0..1).await), ErrorKind::InvalidRange, "range of an empty blob");
    assert_eq!(store.get(&empty).await.unwrap().len(), 0);
}

async fn odd_names_are_just_names(store: Store) {
    let odd = [
        "with space",
        "a+b=c&d",
        "50%25 of %2F",
        "quote\"'`",
        "brackets[](){}<>",
        "?query#fragment",
        "star*tilde~pipe|caret^",
        "semi;colon:comma,at@dollar$bang!",
        "umlaut-äöü-漢字",
        "_log_20260820100000_ab12_1_2_1_ff",
        "UPPER-and-lower",
        ".hidden",
        "kopia.repository",
    ];
    for name in odd {
        store.put(&id(name), Payload::from(name.as_bytes().to_vec()), &overwrite()).await.expect(name);
    }
    let expected: BTreeSet<_> = odd.iter().map(ToString::to_string).collect();
    assert_eq!(names(&store, "").await.into_iter().collect::<BTreeSet<_>>(), expected);
    for name in odd {
        assert_eq!(&store.get(&id(name)).await.expect(name)[..], name.as_bytes());
        assert_eq!(store.head(&id(name)).await.expect(name).size, name.len() as u64);
        assert_eq!(names(&store, name).await, [name], "the whole name is a prefix that matches only itself");
        store.delete(&id(name)).await.expect(name);
    }
    assert_eq!(names(&store, "").await, Vec::<String>::new());
}

async fn prefixes_are_plain_strings(store: Store) {
    let long = "p0123456789abcdef0123456789abcdef-s0123456789abcdef122";
    let all = ["a", "aB", "ab", "ab-", "ab-c", "abc", "b", long, &long[..30], "p0", "p01", "p1"];
    for name in all {
        store.put(&id(name), Payload::from(vec![0]), &overwrite()).await.unwrap();
    }
    for prefix in
        ["", "a", "ab", "ab-", "abc", "abcd", "p", "p0", "p01", "p0123456789abcdef0", long, "z", "A"]
    {
        let mut expected: Vec<_> = all.into_iter().filter(|name| name.starts_with(prefix)).collect();
        expected.sort_unstable();
        assert_eq!(names(&store, prefix).await, expected, "prefix {prefix:?}");
    }
}

async fn long_listings_are_complete(store: Store, many: usize) {
    let all: Vec<_> =
        (0..many).map(|n| format!("n{:032x}", (n as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let puts = stream::iter(&all).map(|name| {
        let store = store.clone();
        async move { store.put(&id(name), Payload::from(vec![7; 3]), &overwrite()).await }
    });
    puts.buffer_unordered(16).try_collect::<()>().await.unwrap();
    let blobs: Vec<_> = store.list("n").try_collect().await.unwrap();
    assert!(blobs.iter().all(|blob| blob.size == 3));
    let listed: BTreeSet<_> = blobs.iter().map(|blob| blob.id.to_string()).collect();
    assert_eq!(blobs.len(), listed.len(), "no blob is listed twice");
    assert!(all.iter().all(|name| listed.contains(name)), "every blob is listed");
    assert_eq!(listed.len(), many, "nothing else is listed");
}

async fn changes_are_visible_at_once(store: Store) {
    for n in 0..20 {
        let name = format!("fresh{n}");
        store.put(&id(&name), Payload::from(vec![n]), &overwrite()).await.unwrap();
        assert_eq!(store.head(&id(&name)).await.unwrap().size, 1);
        assert_eq!(names(&store, "fresh").await, [name.as_str()]);
        store.delete(&id(&name)).await.unwrap();
        assert_eq!(kind(store.head(&id(&name)).await), ErrorKind::NotFound);
        assert_eq!(names(&store, "fresh").await, Vec::<String>::new());
    }
}

async fn one_create_wins(store: Store) {
    let blob = id("only-one");
    for round in 0..3 {
        let puts = (0..12u8).map(|n| {
            let (store, blob) = (store.clone(), blob.clone());
            tokio::spawn(async move { store.put(&blob, Payload::from(vec![n; 1000]), &create_only()).await })
        });
        let outcomes = futures::future::join_all(puts.collect::<Vec<_>>()).await;
        let mut winners = Vec::new();
        for (n, outcome) in outcomes.into_iter().enumerate() {
            match outcome.unwrap() {
                Ok(()) => winners.push(n as u8),
                Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "round {round}: {error}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}: exactly one create-only put succeeds");
        assert_eq!(&store.get(&blob).await.unwrap()[..], [winners[0]; 1000], "the winner's bytes are kept");
        let again = store.put(&blob, Payload::default(), &create_only()).await;
        assert_eq!(kind(again), ErrorKind::AlreadyExists);
        store.delete(&blob).await.unwrap();
    }
}

async fn readers_never_see_a_part(store: Store) {
    let blob = id("changing");
    let size = |n: u8| 50_000 + usize::from(n) * 1000;
    let payload = move |n: u8| {
        let mut payload = Payload::default();
        payload.push(vec![n; size(n) / 2].into());
        payload.push(vec![n; size(n) - size(n) / 2].into());
        payload
    };
    store.put(&blob, payload(0), &overwrite()).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (store, blob, done) = (store.clone(), blob.clone(), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    let seen = store.get(&blob).await.expect("a blob that is being replaced is always there");
                    assert_eq!(seen.len(), size(seen[0]), "a blob is seen whole");
                    assert!(seen.iter().all(|byte| *byte == seen[0]), "bytes of two versions do not mix");
                    let listed = names(&store, "changing").await;
                    assert_eq!(listed, ["changing"], "a blob that is being replaced is listed once");
                }
            })
        })
        .collect();
    for n in 1..=40 {
        store.put(&blob, payload(n), &overwrite()).await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
}

async fn a_dropped_put_leaves_nothing_or_everything(store: Store) {
    for n in 0..10u64 {
        let blob = id(&format!("dropped{n}"));
        let payload = Payload::from(vec![n as u8; 1 << 20]);
        let options = overwrite();
        let put = store.put(&blob, payload, &options);
        let _ = tokio::time::timeout(Duration::from_micros(n * 300), put).await;
        match store.get(&blob).await {
            Ok(bytes) => assert_eq!(bytes.len(), 1 << 20, "a dropped put leaves the whole blob or none"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
    }
}

async fn timestamps_are_the_stores(store: Store) {
    let second = SignedDuration::from_secs(1);
    let mut last = None;
    for n in 0..3 {
        let blob = id(&format!("stamp{n}"));
        store.put(&blob, Payload::from(vec![n]), &overwrite()).await.unwrap();
        let head = store.head(&blob).await.unwrap().modified;
        let listed: Vec<_> = store.list(blob.as_str()).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1);
        let apart = listed[0].modified.duration_since(head).abs();
        assert!(apart <= second, "head and listing tell the same time, within a second: {apart:?}");
        let now = jiff::Timestamp::now();
        // The servers under test share this machine's clock; coarse clocks lag by a little.
        assert!(head.duration_since(now).abs() < SignedDuration::from_mins(5), "{head} is about now ({now})");
        if let Some(last) = last {
            assert!(head.duration_since(last) >= -second, "time does not go backwards");
        }
        last = Some(head);
    }
    let blob = id("stamp0");
    let before = store.head(&blob).await.unwrap().modified;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    store.put(&blob, Payload::from(vec![9]), &overwrite()).await.unwrap();
    assert!(store.head(&blob).await.unwrap().modified > before, "a put renews the timestamp");
}

async fn wanted_timestamps_are_kept_or_refused(store: Store) {
    let blob = id("timed");
    let time: jiff::Timestamp = "2020-02-29T12:34:56Z".parse().unwrap();
    let timed = PutOptions { modified: Some(time), ..PutOptions::default() };
    match store.put(&blob, Payload::from(vec![1]), &timed).await {
        Ok(()) => assert_eq!(store.head(&blob).await.unwrap().modified, time),
        refused => {
            assert_eq!(kind(refused), ErrorKind::Unsupported);
            assert_eq!(
                kind(store.head(&blob).await),
                ErrorKind::NotFound,
                "nothing is written without its time"
            );
        }
    }
}

async fn locks_hold(store: Store, locks: Locks) {
    let blob = id("locked");
    let lock = |seconds| Retention { mode: RetentionMode::Governance, period: Duration::from_secs(seconds) };
    let locked_put = PutOptions { retention: Some(lock(3600)), ..PutOptions::default() };
    match locks {
        Locks::Untested => {}
        Locks::Unsupported => {
            let put = store.put(&blob, Payload::from(vec![1]), &locked_put).await;
            assert_eq!(kind(put), ErrorKind::Unsupported);
            assert_eq!(
                kind(store.head(&blob).await),
                ErrorKind::NotFound,
                "nothing is written without its lock"
            );
            store.put(&blob, Payload::from(vec![1]), &overwrite()).await.unwrap();
            assert_eq!(kind(store.extend_retention(&blob, &lock(60)).await), ErrorKind::Unsupported);
        }
        Locks::PreventDelete | Locks::KeepVersions => {
            store.put(&blob, Payload::from(vec![1]), &locked_put).await.expect("a put with a lock succeeds");
            store.extend_retention(&blob, &lock(7200)).await.expect("a lock can be extended");
            store.extend_retention(&blob, &lock(60)).await.expect("a shorter period is not an error");
            assert_eq!(kind(store.extend_retention(&id("none"), &lock(60)).await), ErrorKind::NotFound);
            match locks {
                Locks::PreventDelete => {
                    assert_eq!(kind(store.delete(&blob).await), ErrorKind::Locked);
                    assert_eq!(&store.get(&blob).await.unwrap()[..], [1]);
                }
                _ => store.delete(&blob).await.expect("a delete hides the blob"),
            }
            let later = id("locked-later");
            store.put(&later, Payload::from(vec![1]), &overwrite()).await.unwrap();
            store.extend_retention(&later, &lock(3600)).await.expect("a blob can be locked after its put");
        }
    }
}
