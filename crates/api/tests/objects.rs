//! Objects are read and written as Velero reads and writes them.

#![allow(clippy::unwrap_used)]

use lifeboat_api::v1::{
    Backup, BackupRepository, BackupStorageLocation, PodVolumeBackup, PodVolumeRestore, UploaderType,
};
use lifeboat_api::v2alpha1::{DataDownload, DataUpload, DataUploadResult};
use lifeboat_api::{Phase, Progress};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// What is read and written again is what it was.
#[track_caller]
fn survives<T: Serialize + DeserializeOwned>(object: &Value) -> T {
    let read: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(&serde_json::to_value(&read).unwrap(), object);
    read
}

#[test]
fn an_upload_as_the_server_creates_it() {
    let upload: DataUpload = survives(&json!({
        "apiVersion": "velero.io/v2alpha1",
        "kind": "DataUpload",
        "metadata": { "generateName": "b1-", "name": "b1-x7k2p", "namespace": "velero", "labels": { "velero.io/async-operation-id": "du-1.2" } },
        "spec": {
            "snapshotType": "CSI",
            "csiSnapshot": { "volumeSnapshot": "velero-data-abc", "storageClass": "fast", "snapshotClass": "snap", "driver": "csi.example.org" },
            "sourcePVC": "data",
            "sourceNamespace": "app",
            "backupStorageLocation": "default",
            "operationTimeout": "10m0s",
        },
        "status": { "progress": {} },
    }));
    assert_eq!(upload.spec.operation_timeout.to_std().as_secs(), 600);
    assert_eq!(upload.status.unwrap().movement.operation.phase.unwrap_or_default(), Phase::New);
}

#[test]
fn an_upload_that_is_done() {
    let upload: DataUpload = survives(&json!({
        "apiVersion": "velero.io/v2alpha1",
        "kind": "DataUpload",
        "metadata": { "name": "b1-x7k2p" },
        "spec": {
            "snapshotType": "CSI", "sourcePVC": "data", "sourceNamespace": "app", "backupStorageLocation": "default", "operationTimeout": "10m0s",
            "datamover": "velero", "dataMoverConfig": { "ParallelFilesUpload": "4" }, "cancel": true,
        },
        "status": {
            "phase": "Completed", "path": "/5f0c", "snapshotID": "k1", "startTimestamp": "2026-01-02T03:04:05Z", "completionTimestamp": "2026-01-02T03:05:05Z",
            "acceptedTimestamp": "2026-01-02T03:04:00Z", "acceptedByNode": "n1", "node": "n1", "nodeOS": "linux",
            "progress": { "totalBytes": 5_000_000_000i64, "bytesDone": 5_000_000_000i64 }, "incrementalBytes": 17,
        },
    }));
    let status = upload.status.unwrap();
    assert!(status.movement.operation.phase.unwrap().is_final());
    assert_eq!(
        status.movement.operation.progress,
        Progress { total_bytes: 5_000_000_000, bytes_done: 5_000_000_000 }
    );
}

#[test]
fn null_stands_for_nothing_where_velero_allows_it() {
    let upload: DataUpload = serde_json::from_value(json!({
        "metadata": { "name": "x" },
        "spec": {
            "snapshotType": "CSI", "csiSnapshot": null, "dataMoverConfig": null, "sourcePVC": "data", "sourceNamespace": "app",
            "backupStorageLocation": "default", "operationTimeout": "0s",
        },
        "status": { "dataMoverResult": null, "startTimestamp": null, "completionTimestamp": null, "acceptedTimestamp": null },
    }))
    .unwrap();
    assert!(upload.spec.data_mover_config.is_empty());
    assert_eq!(upload.status.unwrap(), Default::default());
}

#[test]
fn fields_of_later_versions_do_no_harm() {
    let download: DataDownload = serde_json::from_value(json!({
        "metadata": { "name": "x" },
        "spec": {
            "targetVolume": { "pvc": "data", "pv": "", "namespace": "app" }, "backupStorageLocation": "default", "snapshotID": "k1",
            "sourceNamespace": "app", "operationTimeout": "1h0m0s", "parentSnapshot": "auto",
        },
    }))
    .unwrap();
    assert_eq!(download.spec.target_volume.pvc, "data");
}

#[test]
fn a_download_and_both_kinds_of_pod_volumes() {
    survives::<DataDownload>(&json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload", "metadata": { "name": "r1-abcde" },
        "spec": {
            "targetVolume": { "pvc": "data", "pv": "", "namespace": "app" }, "backupStorageLocation": "default", "snapshotID": "k1",
            "sourceNamespace": "app", "operationTimeout": "10m0s", "nodeOS": "linux", "snapshotSize": 12,
        },
        "status": { "phase": "InProgress", "progress": { "totalBytes": 12 }, "node": "n1" },
    }));
    let backup: PodVolumeBackup = survives(&json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup", "metadata": { "name": "b1-abcde" },
        "spec": {
            "node": "n1", "pod": { "kind": "Pod", "namespace": "app", "name": "web", "uid": "u1" }, "volume": "data", "backupStorageLocation": "default",
            "repoIdentifier": "", "uploaderType": "kopia", "tags": { "backup": "b1" },
        },
        "status": { "phase": "Canceling", "progress": {} },
    }));
    assert_eq!(backup.spec.uploader_type, UploaderType::Kopia);
    survives::<PodVolumeRestore>(&json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeRestore", "metadata": { "name": "r1-abcde" },
        "spec": {
            "pod": { "kind": "Pod", "namespace": "app", "name": "web", "uid": "u1" }, "volume": "data", "backupStorageLocation": "default",
            "repoIdentifier": "", "uploaderType": "restic", "snapshotID": "k1", "sourceNamespace": "app", "uploaderSettings": { "WriteSparseFiles": "true" },
        },
        "status": { "progress": {} },
    }));
}

#[test]
fn a_backup_writes_its_durations_and_empty_groups_always() {
    let backup: Backup = serde_json::from_value(json!({ "metadata": { "name": "b1" }, "spec": { "includedNamespaces": ["app"], "snapshotMoveData": true } })).unwrap();
    assert_eq!(
        serde_json::to_value(&backup.spec).unwrap(),
        json!({
            "metadata": {}, "includedNamespaces": ["app"], "ttl": "0s", "hooks": {}, "csiSnapshotTimeout": "0s", "itemOperationTimeout": "0s",
            "snapshotMoveData": true,
        })
    );
}

#[test]
fn locations_and_repositories() {
    survives::<BackupStorageLocation>(&json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": { "name": "default" },
        "spec": {
            "provider": "aws", "default": true, "config": { "region": "minio", "s3Url": "http://minio:9000" }, "accessMode": "ReadWrite",
            "objectStorage": { "bucket": "b", "prefix": "p", "caCert": "QUJD" }, "credential": { "name": "c", "key": "cloud" }, "backupSyncPeriod": "1m0s",
        },
        "status": { "phase": "Available" },
    }));
    survives::<BackupRepository>(&json!({
        "apiVersion": "velero.io/v1", "kind": "BackupRepository", "metadata": { "name": "app-default-kopia" },
        "spec": { "volumeNamespace": "app", "backupStorageLocation": "default", "repositoryType": "kopia", "maintenanceFrequency": "1h0m0s" },
        "status": { "phase": "Ready", "recentMaintenance": [{ "result": "Succeeded", "startTimestamp": "2026-01-02T03:04:05Z" }] },
    }));
}

#[test]
fn the_result_that_a_restore_reads() {
    let result = DataUploadResult {
        backup_storage_location: "default".into(),
        snapshot_id: "k1".into(),
        source_namespace: "app".into(),
        ..Default::default()
    };
    let text = r#"{"backupStorageLocation":"default","snapshotID":"k1","sourceNamespace":"app"}"#;
    assert_eq!(serde_json::to_string(&result).unwrap(), text);
    assert_eq!(serde_json::from_str::<DataUploadResult>(text).unwrap(), result);
}
