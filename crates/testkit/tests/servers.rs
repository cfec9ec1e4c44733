//! The storage servers start, answer, take buckets and vanish.

#![allow(clippy::unwrap_used)]

use lifeboat_testkit::servers::{Azurite, FakeGcs, Minio};
use std::net::TcpStream;

#[test]
fn minio_makes_plain_and_locked_buckets_and_is_gone_when_dropped() {
    let minio = Minio::start().unwrap();
    minio.create_bucket("plain").unwrap();
    minio.create_locked_bucket("locked").unwrap();
    let again = minio.create_bucket("plain").unwrap_err();
    assert!(format!("{again:#}").contains("BucketAlreadyOwnedByYou"), "{again:#}");
    let address = minio.address();
    drop(minio);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn minio_speaks_tls_with_a_private_authority() {
    let minio = Minio::start_tls().unwrap();
    assert!(minio.endpoint().starts_with("https://"));
    assert!(minio.ca_pem().unwrap().contains("BEGIN CERTIFICATE"));
    assert_eq!(std::fs::read_to_string(minio.ca_file().unwrap()).unwrap(), minio.ca_pem().unwrap());
    minio.create_locked_bucket("secret").unwrap();
}

#[test]
fn azurite_makes_containers() {
    let azurite = Azurite::start().unwrap();
    azurite.create_container("box").unwrap();
    let again = azurite.create_container("box").unwrap_err();
    assert!(format!("{again:#}").contains("ContainerAlreadyExists"), "{again:#}");
}

#[test]
fn fake_gcs_makes_buckets() {
    let gcs = FakeGcs::start().unwrap();
    gcs.create_bucket("bin").unwrap();
    let again = gcs.create_bucket("bin").unwrap_err();
    assert!(format!("{again:#}").contains("409"), "{again:#}");
}
