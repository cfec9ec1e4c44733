#![allow(clippy::unwrap_used)]

use super::identity::{first_label, user_of};
use super::*;
use crate::Error;
use crate::format::Password;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Written by Kopia 0.22.3.
const KOPIA_FILE: &str = r#"{
  "storage": {
    "type": "filesystem",
    "config": {
      "path": "/backups/repo",
      "fileMode": 384,
      "dirMode": 448,
      "dirShards": null
    }
  },
  "caching": {
    "cacheDirectory": "home/.cache/kopia/844b0f69be46518c",
    "maxCacheSize": 5242880000,
    "maxMetadataCacheSize": 5242880000,
    "maxListCacheDuration": 30
  },
  "hostname": "h",
  "username": "u",
  "description": "Repository in Filesystem: /backups/repo",
  "enableActions": false,
  "formatBlobCacheDuration": 900000000000
}"#;

#[test]
fn kopia_s_connection_file_is_read_and_reproduced_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("repo.config");
    fs::write(&path, KOPIA_FILE).unwrap();
    let connection = Connection::load(&path).unwrap();
    assert_eq!(connection.identity(), "u@h");
    assert_eq!(connection.storage().unwrap().storage_type, "filesystem");
    assert_eq!(connection.storage().unwrap().config["path"], "/backups/repo");
    let config = connection.storage().unwrap().store_config().unwrap();
    assert_eq!(config.to_string(), "folder /backups/repo");
    assert_eq!(&StorageInfo::try_from(&config).unwrap(), connection.storage().unwrap());
    let caching = connection.caching.as_ref().unwrap();
    let cache = folder.path().join("home/.cache/kopia/844b0f69be46518c");
    assert_eq!(caching.cache_directory, cache.to_str().unwrap());
    connection.save(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), KOPIA_FILE);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
}

#[test]
fn unknown_fields_survive_and_servers_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/sub/repo.config");
    let json = r#"{"apiServer":{"url":"https://x","serverCertFingerprint":"aa"},"hostname":"h","username":"u","readonly":true,"enableActions":true,"permissiveCacheLoading":true,"throttlingLimits":{"readsPerSecond":1.5}}"#;
    let connection: Connection = serde_json::from_str(json).unwrap();
    connection.save(&path).unwrap();
    let loaded = Connection::load(&path).unwrap();
    assert_eq!(loaded.throttling.as_ref().unwrap().reads_per_second, 1.5);
    assert!(loaded.readonly && loaded.enable_actions);
    assert!(
        loaded.unknown.get("apiServer").is_some() && loaded.unknown.get("permissiveCacheLoading").is_some()
    );
    assert!(loaded.storage().unwrap_err().to_string().contains("server"));
}

#[test]
fn the_cache_directory_is_stored_as_seen_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("etc/repo.config");
    for cache in ["/var/cache/x", folder.path().join("cache").to_str().unwrap()] {
        let caching = CachingOptions { cache_directory: cache.to_owned(), ..Default::default() };
        Connection { caching: Some(caching), ..Default::default() }.save(&path).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("\"cacheDirectory\": \"../"));
        assert_eq!(Connection::load(&path).unwrap().caching.unwrap().cache_directory, cache);
    }
    Connection { caching: Some(CachingOptions::default()), ..Default::default() }.save(&path).unwrap();
    assert_eq!(Connection::load(&path).unwrap().caching, Some(CachingOptions::default()));
}

#[test]
fn credentials_appear_neither_in_messages_nor_when_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("repo.config");
    fs::write(&path, r#"{"storage":{"type":"s3","config":{"secretAccessKey":"hush"}}}"#).unwrap();
    assert!(!format!("{:?}", Connection::load(&path).unwrap()).contains("hush"));
    let unknown =
        StorageInfo { storage_type: "sftp".into(), config: "hush".into(), ..StorageInfo::default() };
    let error = unknown.store_config().unwrap_err().to_string();
    assert!(error.contains("sftp") && !error.contains("hush"), "{error}");
    fs::write(&path, r#"{"hostname":["hush"]}"#).unwrap();
    let error = Connection::load(&path).unwrap_err();
    assert!(error.to_string().contains("line 1") && !error.to_string().contains("hush"), "{error}");
    let missing = Connection::load(&folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, Error::LocalFile { .. }));
}

#[test]
fn a_new_connection_has_this_machine_s_identity() {
    let connection = Connection::new(StorageInfo::default(), "d");
    assert!(!connection.hostname.is_empty() && !connection.hostname.contains('.'));
    assert_eq!(connection.hostname, connection.hostname.to_lowercase());
    assert_eq!(connection.format_blob_cache_duration.0, 900_000_000_000);
    assert_eq!(first_label("Node-1.Example.COM"), "node-1");
    assert_eq!(first_label(""), "nohost");
    let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\n:x:7::\nalice:x:1000:1000::/home/alice:\n";
    assert_eq!(user_of(passwd, 1000).as_deref(), Some("alice"));
    assert_eq!((user_of(passwd, 7), user_of(passwd, 5)), (None, None));
}

#[test]
fn the_password_is_stored_as_kopia_stores_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("repo.config");
    assert!(load_password(&path).unwrap().is_none());
    store_password(&path, &Password::new("static-passw0rd")).unwrap();
    let file = folder.path().join("repo.config.kopia-password");
    assert_eq!(fs::read_to_string(&file).unwrap(), "c3RhdGljLXBhc3N3MHJk");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(load_password(&path).unwrap().unwrap().expose(), "static-passw0rd");
    fs::write(&file, "*not base64*").unwrap();
    let error = load_password(&path).unwrap_err().to_string();
    assert!(error.contains("kopia-password") && !error.contains("not base64"), "{error}");
    forget_password(&path).unwrap();
    forget_password(&path).unwrap();
    assert!(!file.exists());
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_a_connection_but_never_a_panic(bytes: Vec<u8>) {
        let _ = serde_json::from_slice::<Connection>(&bytes);
    }
}
