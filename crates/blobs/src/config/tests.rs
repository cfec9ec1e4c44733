#![allow(clippy::unwrap_used)]

use super::*;
use crate::{BlobId, ErrorKind, Payload, PutOptions};
use serde_json::{Value, json};

/// What a real `kopia` writes for each kind, plus a field of a future version.
fn files() -> Vec<Value> {
    vec![
        json!({"type": "filesystem", "config": {"path": "/tmp/repo", "dirShards": null, "future": {"a": [1]}}}),
        json!({"type": "filesystem", "config": {"path": "/r", "fileMode": 416, "dirMode": 488, "uid": 1000, "gid": 100,
               "dirShards": [3, 3], "maxUploadSpeedBytesPerSecond": 1e6, "concurrentReads": 4}}),
        json!({"type": "s3", "config": {"bucket": "b", "prefix": "kopia/ns/", "endpoint": "127.0.0.1:9000",
               "doNotUseTLS": true, "rootCA": "aGVsbG8=", "accessKeyID": "AK", "secretAccessKey": "SECRET",
               "sessionToken": "TOKEN", "roleARN": "", "sessionName": "", "duration": "0s", "roleEndpoint": "",
               "roleRegion": "", "region": "eu-west-1", "readsPerSecond": 2.5, "future": "SECRET2"}}),
        json!({"type": "gcs", "config": {"bucket": "b", "prefix": "p", "readOnly": true,
               "credentials": {"type": "service_account", "private_key": "SECRET"}}}),
        json!({"type": "azureBlob", "config": {"container": "c", "storageAccount": "a", "storageKey": "SECRET",
               "sasToken": "SECRET", "TenantID": "t", "ClientID": "i", "ClientSecret": "SECRET",
               "clientCertificate": "SECRET", "storageDomain": "d", "doNotUseTLS": true}}),
    ]
}

#[test]
fn a_description_survives_reading_and_writing_with_unknown_fields() {
    for file in files() {
        let config: StoreConfig = serde_json::from_value(file.clone()).unwrap();
        assert_eq!(serde_json::to_value(&config).unwrap(), file);
    }
}

#[test]
fn no_secret_is_ever_shown() {
    for file in files() {
        let config: StoreConfig = serde_json::from_value(file).unwrap();
        for shown in [format!("{config:?}"), format!("{config:#?}"), config.to_string()] {
            assert!(!shown.contains("SECRET") && !shown.contains("TOKEN"), "{shown}");
        }
    }
}

#[test]
fn durations_are_read_as_go_writes_them() {
    use std::time::Duration;
    for (text, expected) in [
        ("0s", Some(Duration::ZERO)),
        ("1h30m0.5s", Some(Duration::from_millis(5_400_500))),
        ("250ms", Some(Duration::from_millis(250))),
        ("1000000000", Some(Duration::from_secs(1))),
        ("", Some(Duration::ZERO)),
        ("-1s", None),
        ("1x", None),
        ("h", None),
        ("99999999999999999999h", None),
    ] {
        assert_eq!(values::parse_duration(text), expected, "{text:?}");
    }
}

async fn open_error(file: Value) -> crate::Error {
    let config: StoreConfig = serde_json::from_value(file).unwrap();
    config.open(&OpenOptions::default()).await.unwrap_err()
}

#[tokio::test]
async fn what_is_not_supported_is_said_and_not_ignored() {
    for (file, says) in [
        (
            json!({"type": "s3", "config": {"bucket": "b", "pointInTime": "2026-01-01T00:00:00Z"}}),
            "pointInTime",
        ),
        (json!({"type": "s3", "config": {"bucket": "b", "roleARN": "r", "duration": "soon"}}), "soon"),
        (
            json!({"type": "s3", "config": {"bucket": "b", "lifeboat": {"serverSideEncryption": "rot13"}}}),
            "rot13",
        ),
        (
            json!({"type": "s3", "config": {"bucket": "b", "lifeboat": {"customerKeyEncryptionFile": "/none"}}}),
            "/none",
        ),
        (json!({"type": "azureBlob", "config": {"container": "c", "storageAccount": "a"}}), "credentials"),
        (
            json!({"type": "azureBlob", "config": {"container": "c", "storageAccount": "a", "TenantID": "t",
                   "ClientID": "i", "clientCertificate": "x"}}),
            "certificate",
        ),
        (
            json!({"type": "gcs", "config": {"bucket": "b", "credentials": {"private_key": "SECRET"}}}),
            "credentials",
        ),
    ] {
        let error = open_error(file).await;
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }
    let unknown: Result<StoreConfig, _> = serde_json::from_value(json!({"type": "webdav", "config": {}}));
    assert!(unknown.unwrap_err().to_string().contains("webdav"));
    let typo = json!({"type": "s3", "config": {"bucket": "b", "lifeboat": {"adressing": "path"}}});
    assert!(serde_json::from_value::<StoreConfig>(typo).unwrap_err().to_string().contains("adressing"));
}

#[tokio::test]
async fn a_folder_is_opened_with_its_wrappers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("repo");
    let file = json!({"type": "filesystem", "config": {"path": path, "dirShards": null, "concurrentReads": 2,
                      "maxUploadSpeedBytesPerSecond": 1e9}});
    let config: StoreConfig = serde_json::from_value(file).unwrap();
    let missing = config.open(&OpenOptions::default()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NoSuchContainer);
    let store = config.open(&OpenOptions { create: true, ..OpenOptions::default() }).await.unwrap();
    let id = BlobId::new("a").unwrap();
    store.put(&id, Payload::from(vec![1]), &PutOptions::default()).await.unwrap();
    let reader = config.open(&OpenOptions { read_only: true, ..OpenOptions::default() }).await.unwrap();
    assert_eq!(&reader.get(&id).await.unwrap()[..], [1]);
    assert_eq!(reader.delete(&id).await.unwrap_err().kind(), ErrorKind::ReadOnly);
}
