#![allow(clippy::unwrap_used)]

use super::*;
use crate::Environment;
use crate::format::{CreateOptions, Password};
use lifeboat_blobs::MemoryStore;
use lifeboat_primitives::kdf::KeyAlgorithm;

#[test]
fn sources_are_named_by_requester_and_real_source() {
    let path = |requester: &str, real: &str| source(requester, real, "/host_pods/1").path;
    assert_eq!(path(DATA_MOVER_REQUESTER, "shop/data"), "snapshot-data-upload-download/kopia/shop/data");
    assert_eq!(path(POD_VOLUME_REQUESTER, "/shop//pod/./data/"), "snapshot-pod-volume/kopia/shop/pod/data");
    assert_eq!(path(LEGACY_POD_VOLUME_REQUESTER, ""), "/host_pods/1");
    assert_eq!(source("r", "a/b", "").to_string(), "default@default:r/kopia/a/b");
}

#[test]
fn paths_are_cleaned_as_go_does_it() {
    for (path, cleaned) in [
        ("a/b/../c", "a/c"),
        ("../a", "../a"),
        ("/../a", "/a"),
        ("a/..", "."),
        ("", "."),
        ("/", "/"),
        ("a/../..", ".."),
    ] {
        assert_eq!(clean(path), cleaned, "{path}");
    }
}

#[test]
fn tags_name_requester_and_uploader() {
    let extra = BTreeMap::from([("velero.io/async-operation-id".to_owned(), "du-1".to_owned())]);
    let tags = tags(DATA_MOVER_REQUESTER, &extra);
    assert_eq!(
        gojson::to_string(&tags).unwrap(),
        r#"{"snapshot-requester":"snapshot-data-upload-download","snapshot-uploader":"kopia","velero.io/async-operation-id":"du-1"}"#
    );
}

#[test]
fn the_policy_is_the_one_that_velero_1_18_stores() {
    let json = r#"{"retention":{"keepLatest":2147483647,"keepHourly":2147483647,"keepDaily":2147483647,"keepWeekly":2147483647,"keepMonthly":2147483647,"keepAnnual":2147483647},"files":{},"errorHandling":{"ignoreUnknownTypes":true},"scheduling":{"manual":true},"compression":{"compressorName":"none"},"metadataCompression":{},"splitter":{},"actions":{},"osSnapshots":{"volumeShadowCopy":{}},"logging":{"directories":{},"entries":{}},"upload":{"maxParallelFileReads":2,"parallelUploadAboveSize":2147483648}}"#;
    assert_eq!(gojson::to_string(&policy(2)).unwrap(), json);
    assert!(policy(2).validate(&source(DATA_MOVER_REQUESTER, "shop/data", "")).is_ok());
}

#[test]
fn the_parent_is_the_latest_complete_snapshot_of_the_same_requester() {
    let snapshot = |day: i64, requester: &str, incomplete: &str| SnapshotManifest {
        start_time: jiff::Timestamp::from_second(day * 86400).unwrap(),
        tags: tags(requester, &BTreeMap::new()),
        incomplete: incomplete.to_owned(),
        ..SnapshotManifest::default()
    };
    let mut all = vec![
        snapshot(1, "r", ""),
        snapshot(2, "r", ""),
        snapshot(3, "r", "checkpoint"),
        snapshot(4, "x", ""),
    ];
    assert_eq!(parent(&all, "r"), Some(&all[1]));
    all[1].tags.remove(UPLOADER_TAG);
    assert_eq!(parent(&all, "r"), Some(&all[0]));
    assert_eq!(parent(&all, "none"), None);
}

#[tokio::test]
async fn the_marker_tells_a_finished_repository_from_an_interrupted_or_a_foreign_one() {
    let (store, env) = (MemoryStore::new(), Environment::default());
    let options = CreateOptions { key_algorithm: KeyAlgorithm::Pbkdf2, ..CreateOptions::default() };
    let format = Format::create(&store, &Password::new(DEFAULT_PASSWORD), &options, &env).await.unwrap();
    assert_eq!(Marker::check(&store, &format).await.unwrap(), Readiness::Unmarked);
    Marker::write(&store, &format).await.unwrap();
    assert_eq!(Marker::check(&store, &format).await.unwrap(), Readiness::Ready);
    let bytes = store.get(&BlobId::new(MARKER_BLOB).unwrap()).await.unwrap();
    assert!(bytes.starts_with(b"{\"uniqueID\":\"") && bytes.len() == 44 + 15);
    let other = Format::create(&MemoryStore::new(), &Password::new("p"), &options, &env).await.unwrap();
    assert!(matches!(Marker::check(&store, &other).await, Err(Error::DamagedBlob { .. })));
    let id = BlobId::new(MARKER_BLOB).unwrap();
    store.put(&id, b"{".to_vec().into(), &PutOptions::default()).await.unwrap();
    assert!(matches!(Marker::check(&store, &format).await, Err(Error::DamagedBlob { .. })));
}
