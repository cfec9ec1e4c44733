#![allow(clippy::unwrap_used)]

use super::codec::{StoredEntry, decode, encode};
use super::*;
use crate::env::{Clock, Environment, SystemRandom};
use crate::gojson::GoTime;
use crate::{Error, snapshot};
use jiff::{SignedDuration, Timestamp};
use lifeboat_index::Prefix;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;

/// Contents in memory, shared by several clients.
#[derive(Debug, Default)]
struct Contents(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    live: BTreeMap<ContentId, Bytes>,
    /// Listed, but gone when it is read: so many times.
    vanishing: usize,
    failing: bool,
    lost: Option<ContentId>,
}

fn content_id(data: &[u8]) -> ContentId {
    // Enough of a hash for what is written here.
    let sum = data.iter().fold(7u64, |sum, byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte));
    ContentId::new(Prefix::MANIFEST, &sum.to_be_bytes().repeat(2)).unwrap()
}

#[async_trait]
impl ManifestContents for Contents {
    async fn list(&self) -> Result<Vec<ContentId>> {
        Ok(self.0.lock().live.keys().copied().collect())
    }

    async fn read(&self, id: &ContentId) -> Result<Bytes> {
        let mut inner = self.0.lock();
        if inner.failing {
            let error = lifeboat_blobs::Error::new(
                lifeboat_blobs::ErrorKind::Transient,
                lifeboat_blobs::Operation::Get,
                "q0",
                "memory",
                "no network",
            );
            return Err(error.into());
        }
        if inner.lost == Some(*id) {
            return Err(Error::MissingBlob { blob: "q0".into(), needed_for: id.to_string() });
        }
        if inner.vanishing > 0 {
            inner.vanishing -= 1;
            return Err(Error::ContentNotFound { id: *id });
        }
        inner.live.get(id).cloned().ok_or(Error::ContentNotFound { id: *id })
    }

    async fn write(&self, data: Bytes, superseded: &[ContentId]) -> Result<ContentId> {
        let id = content_id(&data);
        let mut inner = self.0.lock();
        if inner.failing {
            return Err(Error::ReadOnly { action: "write" });
        }
        inner.live.insert(id, data);
        superseded.iter().filter(|old| **old != id).for_each(|old| drop(inner.live.remove(old)));
        Ok(id)
    }
}

impl Contents {
    fn add(&self, data: Vec<u8>) -> ContentId {
        let id = content_id(&data);
        self.0.lock().live.insert(id, data.into());
        id
    }

    fn count(&self) -> usize {
        self.0.lock().live.len()
    }
}

/// A clock that is moved by hand.
#[derive(Debug)]
struct Hand(Mutex<Timestamp>);

impl Clock for Hand {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

fn clock(text: &str) -> Arc<Hand> {
    Arc::new(Hand(Mutex::new(text.parse().unwrap())))
}

fn client(contents: &Arc<Contents>, clock: &Arc<Hand>) -> ManifestStore {
    let env = Environment { clock: clock.clone(), random: Arc::new(SystemRandom) };
    ManifestStore::new(contents.clone(), env)
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn item(color: &str) -> Labels {
    labels(&[("type", "item"), ("color", color)])
}

async fn colors(store: &ManifestStore) -> Vec<String> {
    let found = store.find(&labels(&[("type", "item")])).await.unwrap();
    found.iter().map(|manifest| manifest.labels()["color"].clone()).collect()
}

#[tokio::test]
async fn what_is_put_is_found_at_once_and_by_others_after_a_flush() {
    let (contents, clock) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let (ours, theirs) = (client(&contents, &clock), client(&contents, &clock));
    let red = ours.put(item("red"), &json!({"a<": 1})).await.unwrap();
    ours.put(item("blue"), &json!([])).await.unwrap();
    assert_eq!(red.as_str().len(), 32);
    assert_eq!(ours.get(&red).await.unwrap().data(), r#"{"a\u003c":1}"#);
    assert_eq!(ours.find(&item("red")).await.unwrap().len(), 1);
    assert!(ours.find(&labels(&[("type", "other")])).await.unwrap().is_empty());
    assert!(matches!(theirs.get(&red).await, Err(Error::ManifestNotFound { .. })));

    assert!(ours.flush().await.unwrap().is_some());
    assert_eq!(ours.flush().await.unwrap(), None, "nothing is left to write");
    assert_eq!(contents.count(), 1, "all changes go into one content");
    theirs.reload().await.unwrap();
    let manifest = theirs.get(&red).await.unwrap();
    assert_eq!(manifest.parse::<serde_json::Value>().unwrap(), json!({"a<": 1}));
    assert_eq!((manifest.id(), manifest.modified()), (&red, clock.now()));
    assert!(matches!(manifest.parse::<Vec<u8>>(), Err(Error::DamagedManifest { .. })));
}

#[tokio::test]
async fn a_manifest_needs_a_type() {
    let (contents, clock) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    assert!(store.put(labels(&[("color", "red")]), &1).await.is_err());
    assert!(store.put(labels(&[("type", "")]), &1).await.is_err());
}

#[tokio::test]
async fn a_deleted_manifest_is_gone_even_if_the_clock_runs_behind() {
    let (contents, clock) = (Arc::default(), clock("2026-01-02T00:00:00Z"));
    let store = client(&contents, &clock);
    let red = store.put(item("red"), &1).await.unwrap();
    store.flush().await.unwrap();
    *clock.0.lock() = "2026-01-01T00:00:00Z".parse().unwrap();
    store.delete(&red).await.unwrap();
    store.delete(&red).await.unwrap();
    store.delete(&"unknown".into()).await.unwrap();
    assert!(matches!(store.get(&red).await, Err(Error::ManifestNotFound { .. })));
    store.flush().await.unwrap();
    assert!(colors(&client(&contents, &clock)).await.is_empty());
}

#[tokio::test]
async fn a_manifest_that_nobody_has_seen_leaves_no_tombstone() {
    let (contents, clock) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    let red = store.put(item("red"), &1).await.unwrap();
    store.delete(&red).await.unwrap();
    assert_eq!(store.flush().await.unwrap(), None);
}

#[tokio::test]
async fn replacing_leaves_one_manifest_and_the_latest() {
    let (contents, clock) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    store.put(item("red"), &1).await.unwrap();
    store.flush().await.unwrap();
    store.put(item("red"), &2).await.unwrap();
    store.put(item("blue"), &3).await.unwrap();
    // The same moment, even an earlier one: the new manifest is still the latest.
    *clock.0.lock() = clock.now() - SignedDuration::from_hours(1);
    let new = store.replace(item("red"), &4).await.unwrap();
    store.flush().await.unwrap();
    let other = client(&contents, &clock);
    let found = other.find(&item("red")).await.unwrap();
    assert_eq!(
        found.iter().map(|m| (m.id().clone(), m.data().to_owned())).collect::<Vec<_>>(),
        [(new, "4".to_owned())]
    );
    assert_eq!(colors(&other).await.len(), 2);
}

#[tokio::test]
async fn a_failed_flush_loses_nothing() {
    let (contents, clock): (Arc<Contents>, _) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    store.put(item("red"), &1).await.unwrap();
    contents.0.lock().failing = true;
    assert!(store.flush().await.is_err());
    contents.0.lock().failing = false;
    assert_eq!(colors(&store).await, ["red"]);
    assert!(store.flush().await.unwrap().is_some());
}

#[tokio::test]
async fn many_contents_are_joined_and_tombstones_dropped() {
    let (contents, clock): (Arc<Contents>, _) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    let mut ids = Vec::new();
    for i in 0..COMPACTION_THRESHOLD - 1 {
        ids.push(store.put(item(&i.to_string()), &i).await.unwrap());
        store.flush().await.unwrap();
        assert!(!store.compact_if_needed().await.unwrap());
    }
    store.delete(&ids[0]).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!(contents.count(), COMPACTION_THRESHOLD);
    let pending = store.put(item("pending"), &0).await.unwrap();
    assert!(store.compact_if_needed().await.unwrap());
    assert_eq!(contents.count(), 1);
    assert!(store.get(&pending).await.is_ok(), "what is not flushed stays");
    let other = client(&contents, &clock);
    assert_eq!(colors(&other).await.len(), COMPACTION_THRESHOLD - 2);
    assert!(other.get(&ids[0]).await.is_err());
    let data = contents.0.lock().live.values().next().cloned().unwrap();
    assert!(decode(&data).unwrap().entries.iter().all(|entry| !entry.deleted));
}

#[tokio::test]
async fn one_damaged_content_does_not_hide_the_others() {
    let (contents, clock): (Arc<Contents>, _) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    store.put(item("red"), &1).await.unwrap();
    store.flush().await.unwrap();
    let gone = store.put(item("gone"), &1).await.unwrap();
    store.flush().await.unwrap();
    store.delete(&gone).await.unwrap();
    store.flush().await.unwrap();
    let whole = contents.0.lock().live.values().next().cloned().unwrap();
    let damaged = [
        contents.add(b"no gzip".to_vec()),
        contents.add(whole[..whole.len() / 2].to_vec()),
        contents.add(encode(&[]).unwrap().into_iter().take(9).collect()),
    ];
    let lost = contents.add(encode(&[&StoredEntry::default()]).unwrap());
    contents.0.lock().lost = Some(lost);

    store.reload().await.unwrap();
    assert_eq!(colors(&store).await, ["red"]);
    let report = store.damage().await.unwrap();
    assert_eq!(report.len(), 4);
    assert!(damaged.iter().chain([&lost]).all(|id| report.iter().any(|damage| damage.content == *id)));

    // Compaction leaves what it cannot read alone and keeps the tombstones for it.
    for i in 0..COMPACTION_THRESHOLD {
        store.put(item("x"), &i).await.unwrap();
        store.flush().await.unwrap();
    }
    assert!(store.compact_if_needed().await.unwrap());
    assert_eq!(contents.count(), 5);
    assert!(damaged.iter().all(|id| contents.0.lock().live.contains_key(id)));
    let again = client(&contents, &clock);
    assert_eq!(colors(&again).await.len(), COMPACTION_THRESHOLD + 1);
    assert!(again.get(&gone).await.is_err());
    let joined = contents.0.lock().live.clone();
    let tombstones = joined.values().filter_map(|data| decode(data).ok()).flat_map(|content| content.entries);
    assert_eq!(tombstones.filter(|entry| entry.deleted).count(), 1);
}

#[tokio::test]
async fn an_entry_that_is_not_understood_costs_only_itself() {
    let (contents, clock): (Arc<Contents>, _) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    contents.add(gzip(
        br#"{"entries":[{"id":"a","labels":{"type":"item","color":"red"},"modified":"2026-01-01T00:00:00+02:00","data":{}},
            {"id":7},{"labels":{}},null]}"#,
    ));
    let store = client(&contents, &clock);
    assert_eq!(colors(&store).await, ["red"]);
    assert_eq!(store.get(&"a".into()).await.unwrap().modified(), "2025-12-31T22:00:00Z".parse().unwrap());
    assert_eq!(store.damage().await.unwrap().len(), 3);
}

#[tokio::test]
async fn loading_starts_over_when_contents_vanish_and_ends_when_they_never_come() {
    let (contents, clock): (Arc<Contents>, _) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    store.put(item("red"), &1).await.unwrap();
    store.flush().await.unwrap();
    contents.0.lock().vanishing = 3;
    let other = client(&contents, &clock);
    assert_eq!(colors(&other).await, ["red"]);
    assert!(other.damage().await.unwrap().is_empty());
    contents.0.lock().vanishing = usize::MAX;
    other.reload().await.unwrap();
    assert_eq!(other.damage().await.unwrap().len(), 1);
    contents.0.lock().failing = true;
    assert!(matches!(other.reload().await, Err(Error::Storage(_))), "what may pass is an error, not damage");
}

#[tokio::test]
async fn of_several_entries_with_one_id_the_latest_counts_in_any_order() {
    let entry = |modified: &str, color: &str, deleted: bool| StoredEntry {
        id: "a".into(),
        labels: (!deleted).then(|| item(color)),
        modified: GoTime(modified.parse().unwrap()),
        deleted,
        data: (!deleted).then(|| serde_json::value::RawValue::from_string("1".into()).unwrap()),
        ..StoredEntry::default()
    };
    let old = entry("2026-01-01T00:00:00Z", "old", false);
    let tombstone = entry("2026-01-02T00:00:00Z", "", true);
    let new = entry("2026-01-03T00:00:00Z", "new", false);
    let cases: [(&[&StoredEntry], &[&str]); 4] = [
        (&[&old, &tombstone], &[]),
        (&[&tombstone, &old], &[]),
        (&[&new, &tombstone, &old], &["new"]),
        (&[&tombstone, &new], &["new"]),
    ];
    for (entries, expected) in cases {
        let (contents, clock): (Arc<Contents>, _) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
        contents.add(encode(entries).unwrap());
        assert_eq!(colors(&client(&contents, &clock)).await, expected);
    }
}

fn gzip(json: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(json).unwrap();
    gzip.finish().unwrap()
}

fn gunzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(bytes), &mut text).unwrap();
    text
}

#[test]
fn entries_and_tombstones_look_as_kopia_writes_them() {
    let entry = r#"{"id":"09f8bd9d1fa652f3f0c4a5ef87590ff4","labels":{"type":"maintenance"},"modified":"2026-11-16T00:30:20.828361801Z","data":{"owner":"u@h"}}"#;
    let tombstone =
        r#"{"id":"x","labels":null,"modified":"2026-11-16T00:30:21Z","deleted":true,"data":null}"#;
    let json = format!("{{\"entries\":[{entry},{tombstone}]}}\n");
    let decoded = decode(&gzip(json.as_bytes())).unwrap();
    assert!(decoded.damage.is_empty());
    let entries: Vec<_> = decoded.entries.iter().collect();
    assert_eq!(gunzip(&encode(&entries).unwrap()), json);
}

#[test]
fn a_content_that_unpacks_without_end_is_refused() {
    // Blanks without end in a few hundred KiB.
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let blanks = vec![b' '; 1 << 20];
    for _ in 0..=MAX_UNPACKED >> 20 {
        std::io::Write::write_all(&mut gzip, &blanks).unwrap();
    }
    assert!(decode(&gzip.finish().unwrap()).is_err());
}

#[tokio::test]
async fn snapshots_are_saved_listed_changed_and_one_damaged_does_not_hide_the_others() {
    let (contents, clock) = (Arc::default(), clock("2026-01-01T00:00:00Z"));
    let store = client(&contents, &clock);
    let root = snapshot::DirEntry { object: "k00".into(), ..Default::default() };
    let mut saved = snapshot::SnapshotManifest {
        source: snapshot::SourceInfo::new("u", "h", "/p"),
        root_entry: Some(root),
        tags: BTreeMap::from([("tag:a".to_owned(), "b".to_owned())]),
        pins: vec!["velero-pin".to_owned()],
        stats: snapshot::Stats { file_count: 1 << 40, ..Default::default() },
        ..Default::default()
    };
    saved.unknown.set("future", serde_json::value::RawValue::from_string("1".into()).unwrap());
    let first = snapshot::save(&store, &mut saved).await.unwrap();
    assert!(store.get(&first).await.unwrap().data().starts_with(r#"{"id":"","source":"#));
    store.put(saved.labels().unwrap(), &json!({"rootEntry": 5})).await.unwrap();
    store.put(saved.labels().unwrap(), &json!({"rootEntry": null})).await.unwrap();

    let mut loaded = snapshot::load(&store, &first).await.unwrap();
    assert_eq!(loaded.stats.file_count, i64::from(i32::MAX), "Kopia reads counts as 32 bits");
    loaded.description = "changed".to_owned();
    let second = snapshot::update(&store, &mut loaded).await.unwrap();
    assert_ne!(first, second);
    let list = snapshot::list(&store, &snapshot::SourceInfo::global(), &BTreeMap::new()).await.unwrap();
    assert_eq!((list.snapshots.len(), list.damaged.len()), (1, 2));
    let found = &list.snapshots[0];
    assert_eq!((&found.id, &*found.description, &*found.pins[0]), (&second, "changed", "velero-pin"));
    assert_eq!(found.unknown.get("future").unwrap().get(), "1");
    let other = snapshot::SourceInfo::new("u", "other", "");
    assert!(snapshot::list(&store, &other, &BTreeMap::new()).await.unwrap().snapshots.is_empty());
    let tagged = BTreeMap::from([("tag:a".to_owned(), "c".to_owned())]);
    assert!(snapshot::list(&store, &found.source, &tagged).await.unwrap().snapshots.is_empty());
    let rootless = &mut snapshot::SnapshotManifest { root_entry: None, ..found.clone() };
    assert!(snapshot::save(&store, rootless).await.is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_no_manifests_but_never_a_panic(bytes: Vec<u8>, json in "[\\[\\]{}\":,a-z0-9]*") {
        let _ = decode(&bytes);
        let _ = decode(&gzip(json.as_bytes()));
        let _ = decode(&gzip(format!("{{\"entries\":[{json}]}}").as_bytes()));
    }
}
