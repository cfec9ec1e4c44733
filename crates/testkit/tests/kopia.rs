//! Real kopia crossed with itself: what our own tests rely on when they cross with it.

#![allow(clippy::unwrap_used)]

use lifeboat_testkit::kopia::{Kopia, S3Location};
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::{Compare, TreeSpec, assert_same};

#[test]
fn a_tree_survives_kopia_on_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let [repository, source, target] = ["repository", "source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&repository).unwrap();
    TreeSpec::small(3).grow(&source).unwrap();

    let writer = Kopia::new("open sesame").unwrap();
    writer.create_filesystem(&repository, &["--block-hash=BLAKE3-256"]).unwrap();
    writer.set_policy(&["--global", "--compression=zstd"]).unwrap();
    let snapshot = writer.snapshot(&source, &[]).unwrap();
    assert_eq!(snapshot.source.path, source.to_str().unwrap());

    let reader = Kopia::new("open sesame").unwrap();
    reader.connect_filesystem(&repository, &[]).unwrap();
    let listed = reader.snapshots().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].id, &listed[0].root.obj), (&snapshot.id, &snapshot.root.obj));
    reader.verify_snapshots().unwrap();
    reader.verify_contents().unwrap();
    reader.full_maintenance().unwrap();
    reader.restore(&snapshot.id, &target).unwrap();
    assert_same(&source, &target, Compare::kept_by_kopia()).unwrap();
}

#[test]
fn a_wrong_password_fails_readably() {
    let dir = tempfile::tempdir().unwrap();
    Kopia::new("right").unwrap().create_filesystem(dir.path(), &[]).unwrap();
    let error = Kopia::new("wrong").unwrap().connect_filesystem(dir.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("invalid repository password"), "{error}");
    assert!(!error.contains("right") && !error.contains("KOPIA_PASSWORD"), "{error}");
}

#[test]
fn a_tree_survives_kopia_on_s3_with_tls() {
    let minio = Minio::start_tls().unwrap();
    minio.create_bucket("backups").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    TreeSpec::small(4).grow(&source).unwrap();
    let location = S3Location { server: &minio, bucket: "backups", prefix: "kopia/ns/" };
    let mut writer = Kopia::new("open sesame").unwrap();
    writer.create_s3(location, &[]).unwrap();
    let snapshot = writer.snapshot(&source, &[]).unwrap();
    let mut reader = Kopia::new("open sesame").unwrap();
    reader.connect_s3(location, &[]).unwrap();
    reader.restore(&snapshot.root.obj, &target).unwrap();
    assert_same(&source, &target, Compare { top: false, ..Compare::kept_by_kopia() }).unwrap();
}
