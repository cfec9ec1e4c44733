#![allow(clippy::unwrap_used)]

use super::*;
use crate::env::{Clock, Environment, Random};
use crate::gojson::{self, Base64, GoTime, Nanos};
use crate::{Error, Result};
use jiff::Timestamp;
use lifeboat_blobs::{BlobId, BlobStore, MemoryStore, PutOptions, Retention, RetentionMode};
use lifeboat_primitives::kdf::KeyAlgorithm;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// Always the same time and the bytes 0, 1, 2…: never for anything but tests.
#[derive(Debug)]
struct Fixed(Timestamp);

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        self.0
    }
}

impl Random for Fixed {
    fn fill(&self, out: &mut [u8]) -> Result<()> {
        (0u8..).zip(out).for_each(|(value, byte)| *byte = value);
        Ok(())
    }
}

fn fixed() -> Environment {
    let fixed = Arc::new(Fixed("2026-11-16T00:00:00Z".parse().unwrap()));
    Environment { clock: fixed.clone(), random: fixed }
}

fn password() -> Password {
    Password::new("static-passw0rd")
}

/// PBKDF2 is several times faster here than scrypt.
fn quick() -> CreateOptions {
    CreateOptions { key_algorithm: KeyAlgorithm::Pbkdf2, ..CreateOptions::default() }
}

fn id(name: &str) -> BlobId {
    BlobId::new(name).unwrap()
}

async fn overwrite(store: &dyn BlobStore, name: &str, bytes: Vec<u8>) {
    store.put(&id(name), bytes.into(), &PutOptions::default()).await.unwrap();
}

/// Rewrites the inner format of the repository in `store`.
async fn edit_format(store: &MemoryStore, edit: impl FnOnce(&mut RepositoryFormat)) {
    let mut blob = FormatBlob::parse(&store.get(&id(FORMAT_BLOB)).await.unwrap()).unwrap();
    let key = blob.derive_key(&password()).unwrap();
    let mut format = blob.open(&key).unwrap();
    edit(&mut format);
    blob.seal(&key, &format, &Environment::default()).unwrap();
    overwrite(store, FORMAT_BLOB, blob.to_bytes().unwrap()).await;
}

async fn open(store: &MemoryStore) -> Result<Format> {
    Format::open(store, &password(), &fixed(), None).await
}

#[tokio::test]
async fn a_new_repository_has_kopia_s_defaults_and_opens_again() {
    let store = MemoryStore::new();
    let created = Format::create(&store, &password(), &CreateOptions::default(), &fixed()).await.unwrap();
    let json = gojson::to_string(created.repository()).unwrap();
    assert_eq!(
        json,
        concat!(
            r#"{"hash":"BLAKE2B-256-128","encryption":"AES256-GCM-HMAC-SHA256","#,
            r#""secret":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","#,
            r#""masterKey":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","#,
            r#""version":3,"maxPackSize":20971520,"indexVersion":2,"epochParameters":{"Enabled":true,"#,
            r#""EpochRefreshFrequency":1200000000000,"FullCheckpointFrequency":7,"#,
            r#""CleanupSafetyMargin":14400000000000,"MinEpochDuration":86400000000000,"#,
            r#""EpochAdvanceOnCountThreshold":20,"EpochAdvanceOnTotalSizeBytesThreshold":10485760,"#,
            r#""DeleteParallelism":4},"enablePasswordChange":true,"splitter":"DYNAMIC-4M-BUZHASH"}"#
        )
    );
    let opened = open(&store).await.unwrap();
    assert_eq!(opened.repository(), created.repository());
    assert_eq!(opened.unique_id(), created.unique_id());
    assert_eq!(opened.config(), &BlobConfig::default());
    assert!(opened.warnings().is_empty());
    assert_eq!(opened.recovery_block().unwrap(), None);
    let text = String::from_utf8(store.get(&id(FORMAT_BLOB)).await.unwrap().to_vec()).unwrap();
    assert!(
        text.starts_with(
            "{\n  \"tool\": \"https://github.com/kopia/kopia\",\n  \"buildVersion\": \"lifeboat-"
        )
    );
    assert!(text.contains("\n  \"keyAlgo\": \"scrypt-65536-8-1\",\n  \"encryption\": \"AES256_GCM\",\n"));
    assert!(text.ends_with("\"\n}\n"));
}

#[tokio::test]
async fn keys_and_passwords_are_never_printed() {
    let store = MemoryStore::new();
    let created = Format::create(&store, &password(), &quick(), &Environment::default()).await.unwrap();
    let printed = format!("{created:?} {:?}", password());
    assert!(printed.contains("redacted") && !printed.contains("static-passw0rd"));
    for secret in [&created.repository().master_key, &created.repository().hash_secret] {
        let listed = format!("{:?}", secret.expose());
        assert!(!printed.contains(&gojson::to_string(secret).unwrap()) && !printed.contains(&listed));
    }
}

#[tokio::test]
async fn the_configuration_blob_of_a_repository_without_retention_is_the_known_one() {
    let store = MemoryStore::new();
    Format::create(&store, &password(), &CreateOptions::default(), &fixed()).await.unwrap();
    let config = store.get(&id(BLOBCFG_BLOB)).await.unwrap();
    assert_eq!(hex::encode(config), "000102030405060708090a0bac71a207461601d094a3d61e786bac84751d");
}

#[tokio::test]
async fn a_place_that_holds_something_is_not_overwritten() {
    let store = MemoryStore::new();
    Format::create(&store, &password(), &quick(), &fixed()).await.unwrap();
    let error = Format::create(&store, &password(), &quick(), &fixed()).await.unwrap_err();
    assert!(matches!(error, Error::AlreadyInitialized { .. }), "{error}");
    store.delete(&id(FORMAT_BLOB)).await.unwrap();
    let error = Format::create(&store, &password(), &quick(), &fixed()).await.unwrap_err();
    assert!(error.to_string().contains("kopia.blobcfg"), "{error}");
    assert!(store.get(&id(FORMAT_BLOB)).await.is_err());
}

#[tokio::test]
async fn each_reason_to_refuse_has_its_own_error() {
    let store = MemoryStore::new();
    assert!(matches!(open(&store).await, Err(Error::NoRepository { .. })));
    Format::create(&store, &password(), &quick(), &fixed()).await.unwrap();
    let wrong = Format::open(&store, &Password::new("wrong"), &fixed(), None).await;
    assert!(matches!(wrong, Err(Error::WrongPassword)));

    let feature = |name: &str, warn| RequiredFeature {
        feature: name.into(),
        if_not_understood: IfNotUnderstood { warn, message: "m".into(), ..Default::default() },
        ..Default::default()
    };
    edit_format(&store, |f| f.required_features = vec![feature("index-v2", false), feature("novel", true)])
        .await;
    let opened = open(&store).await.unwrap();
    assert!(opened.warnings().len() == 1 && opened.warnings()[0].contains("novel"));
    edit_format(&store, |f| f.required_features = vec![feature("novel", false)]).await;
    assert!(matches!(open(&store).await, Err(Error::RequiredFeature { feature, .. }) if feature == "novel"));
    edit_format(&store, |f| f.required_features.clear()).await;

    for version in [0, 4, -1] {
        edit_format(&store, |f| f.version = version).await;
        assert!(matches!(open(&store).await, Err(Error::UnsupportedVersion { version: v }) if v == version));
    }
    edit_format(&store, |f| (f.version, f.max_pack_size_field) = (3, 1 << 40)).await;
    assert!(matches!(open(&store).await, Err(Error::DamagedBlob { .. })));
    edit_format(&store, |f| (f.max_pack_size_field, f.index_version_field) = (0, 3)).await;
    assert!(matches!(open(&store).await, Err(Error::DamagedBlob { .. })));
    edit_format(&store, |f| f.index_version_field = 0).await;
    let opened = open(&store).await.unwrap();
    assert_eq!(
        (opened.repository().index_version(), opened.repository().max_pack_size()),
        (1, DEFAULT_MAX_PACK_SIZE)
    );
}

#[tokio::test]
async fn damaged_format_blobs_are_told_from_wrong_passwords() {
    let store = MemoryStore::new();
    Format::create(&store, &password(), &quick(), &fixed()).await.unwrap();
    let good = store.get(&id(FORMAT_BLOB)).await.unwrap().to_vec();
    for bad in [vec![], b"{".to_vec(), b"{}".to_vec(), good[..good.len() / 2].to_vec(), vec![0xff; 10]] {
        overwrite(&store, FORMAT_BLOB, bad).await;
        let error = open(&store).await.unwrap_err();
        assert!(!matches!(error, Error::WrongPassword | Error::NoRepository { .. }), "{error}");
    }
    let text = String::from_utf8(good.clone()).unwrap();
    for (from, to) in [("AES256_GCM", "NONE"), ("pbkdf2-sha256-600000", "pbkdf2")] {
        overwrite(&store, FORMAT_BLOB, text.replace(from, to).into_bytes()).await;
        assert!(matches!(open(&store).await, Err(Error::UnknownAlgorithm { name, .. }) if name == to));
    }
    overwrite(&store, FORMAT_BLOB, good).await;
    overwrite(&store, BLOBCFG_BLOB, vec![1; 40]).await;
    let checked = open(&store).await.unwrap().check_config();
    assert!(matches!(checked, Err(Error::DamagedBlob { blob, .. }) if blob == BLOBCFG_BLOB));
    store.delete(&id(BLOBCFG_BLOB)).await.unwrap();
    assert_eq!(open(&store).await.unwrap().config(), &BlobConfig::default());
}

#[tokio::test]
async fn the_password_changes_and_the_keys_stay() {
    let store = MemoryStore::new();
    let mut format = Format::create(&store, &password(), &quick(), &Environment::default()).await.unwrap();
    let keys = format.repository().clone();
    let maintenance = format.purpose_key("maintenance schedule").unwrap();
    format.change_password(&store, &Password::new("new"), &Environment::default()).await.unwrap();
    assert!(matches!(open(&store).await, Err(Error::WrongPassword)));
    let opened = Format::open(&store, &Password::new("new"), &fixed(), None).await.unwrap();
    assert_eq!(opened.repository(), &keys);
    assert_eq!(opened.purpose_key("maintenance schedule").unwrap(), maintenance);
    assert!(format.refresh(&store, &fixed(), None).await.is_ok());
}

#[tokio::test]
async fn a_repository_of_version_1_keeps_its_password_and_carries_its_format_in_packs() {
    let store = MemoryStore::new();
    let options = CreateOptions { version: 1, ..quick() };
    let mut format = Format::create(&store, &password(), &options, &fixed()).await.unwrap();
    assert_eq!((format.repository().index_version(), format.repository().epochs()), (1, None));
    let changed = format.change_password(&store, &Password::new("new"), &fixed()).await;
    assert!(matches!(changed, Err(Error::PasswordChangeUnsupported)));
    let block = format.recovery_block().unwrap().unwrap();
    let bytes = store.get(&id(FORMAT_BLOB)).await.unwrap();
    assert_eq!(find_recovery_block(&[&block, &[7; 500][..]].concat()).unwrap(), Some(&bytes[..]));
    // Keys for other purposes come from the password here.
    let master = RepositoryFormat { enable_password_change: true, ..format.repository().clone() };
    edit_format(&store, |f| *f = master).await;
    let flagged = open(&store).await.unwrap();
    assert_ne!(flagged.purpose_key("p").unwrap(), format.purpose_key("p").unwrap());
    let refused = CreateOptions { error_correction: Some(("REED-SOLOMON-CRC32".into(), 10)), ..options };
    assert!(Format::create(&MemoryStore::new(), &password(), &refused, &fixed()).await.is_err());
}

#[tokio::test]
async fn fields_of_newer_programs_survive_a_rewrite() {
    let store = MemoryStore::new();
    Format::create(&store, &password(), &quick(), &fixed()).await.unwrap();
    let mut blob = FormatBlob::parse(&store.get(&id(FORMAT_BLOB)).await.unwrap()).unwrap();
    let key = blob.derive_key(&password()).unwrap();
    let json = gojson::to_string(&blob.open(&key).unwrap()).unwrap();
    let json = json.replacen("{\"hash\"", "{\"future\":{\"x\": 1},\"hash\"", 1);
    let json = json.replacen("\"Enabled\":true", "\"Enabled\":true,\"Novel\":[2]", 1);
    let newer: RepositoryFormat = serde_json::from_str(&json).unwrap();
    blob.seal(&key, &newer, &fixed()).unwrap();
    blob.unknown.set("outer", serde_json::value::RawValue::from_string("true".into()).unwrap());
    overwrite(&store, FORMAT_BLOB, blob.to_bytes().unwrap()).await;

    let mut format = open(&store).await.unwrap();
    format.change_password(&store, &Password::new("new"), &fixed()).await.unwrap();
    let opened = Format::open(&store, &Password::new("new"), &fixed(), None).await.unwrap();
    assert_eq!(opened.repository().unknown.get("future").unwrap().get(), "{\"x\": 1}");
    assert_eq!(opened.repository().epochs().unwrap().unknown.get("Novel").unwrap().get(), "[2]");
    assert_eq!(opened.blob().unknown.get("outer").unwrap().get(), "true");
}

#[tokio::test]
async fn parameters_change_within_limits_and_keys_never() {
    let store = MemoryStore::new();
    let mut format = Format::create(&store, &password(), &quick(), &fixed()).await.unwrap();
    format.set_parameters(&store, &fixed(), |f, _| f.max_pack_size_field = 40 << 20).await.unwrap();
    assert_eq!(open(&store).await.unwrap().repository().max_pack_size(), 40 << 20);
    for change in [
        (|f| f.max_pack_size_field = 5 << 20) as fn(&mut RepositoryFormat),
        |f| f.version = 4,
        |f| f.hash = "HMAC-SHA256".into(),
        |f| f.master_key = Secret::default(),
        |f| f.epoch_parameters = Some(EpochParameters { min_epoch_duration: 1, ..Default::default() }),
        |f| f.epoch_parameters = Some(EpochParameters { full_checkpoint_frequency: 0, ..Default::default() }),
    ] {
        let before = format.repository().clone();
        assert!(format.set_parameters(&store, &fixed(), |f, _| change(f)).await.is_err());
        assert_eq!(format.repository(), &before);
    }
    let short = |_: &mut RepositoryFormat, c: &mut BlobConfig| *c = retention(3600);
    assert!(format.set_parameters(&store, &fixed(), short).await.is_err());
}

fn retention(seconds: u64) -> BlobConfig {
    BlobConfig::new(Some(Retention { mode: RetentionMode::Compliance, period: Duration::from_secs(seconds) }))
}

#[test]
fn retention_locks_data_and_format_but_no_markers() {
    let config = retention(48 * 3600);
    assert_eq!(
        gojson::to_string(&config).unwrap(),
        r#"{"retentionMode":"COMPLIANCE","retentionPeriod":172800000000000}"#
    );
    for (name, locked) in [
        ("p0123-s1", true),
        ("q0123-s1", true),
        ("xn0_00-s1-c1", true),
        ("n00", true),
        ("kopia.repository", true),
        ("kopia.blobcfg", true),
        ("s00-s1", false),
        ("kopia.maintenance", false),
        ("_log_1", false),
        ("m00", false),
    ] {
        assert_eq!(config.put_options(&id(name)).unwrap().retention.is_some(), locked, "{name}");
    }
    assert!(BlobConfig::default().put_options(&id("p0")).unwrap().retention.is_none());
    for bad in [
        r#"{"retentionMode":"FOREVER","retentionPeriod":172800000000000}"#,
        r#"{"retentionMode":"GOVERNANCE"}"#,
        r#"{"retentionPeriod":172800000000000}"#,
        r#"{"retentionMode":"Locked","retentionPeriod":1}"#,
    ] {
        assert!(serde_json::from_str::<BlobConfig>(bad).unwrap().retention().is_err(), "{bad}");
    }
}

#[test]
fn an_upgrade_locks_everybody_else_out_in_time() {
    let lock = UpgradeLock {
        owner_id: "owner".into(),
        creation_time: GoTime("2026-01-01T00:00:00Z".parse().unwrap()),
        advance_notice: Nanos::from_hours(24),
        io_drain_timeout: Nanos::from_hours(1),
        max_permitted_clock_drift: Nanos::from_secs(300),
        message: "soon".into(),
        ..UpgradeLock::default()
    };
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    // 24 h of notice, of which the last 2 h 5 min are for draining.
    for (now, locked, exclusive) in [
        ("2026-01-01T21:54:59.999Z", false, false),
        ("2026-01-01T21:55:00Z", true, false),
        ("2026-01-01T23:59:59Z", true, false),
        ("2026-01-02T00:00:00Z", true, true),
    ] {
        assert_eq!((lock.is_locked(at(now)), lock.is_exclusive(at(now))), (locked, exclusive), "{now}");
    }
    assert!(lock.check(at("2026-01-02T00:00:00Z"), Some("owner")).is_ok());
    assert!(lock.check(at("2026-01-01T01:00:00Z"), None).is_ok());
    let error = lock.check(at("2026-01-02T00:00:00Z"), Some("other")).unwrap_err();
    assert!(matches!(&error, Error::UpgradeInProgress { owner, .. } if owner == "owner"), "{error}");
    let immediate = UpgradeLock { advance_notice: Nanos(0), ..lock };
    assert!(immediate.is_locked(at("2025-12-31T00:00:00Z")));
    let hostile = UpgradeLock {
        io_drain_timeout: Nanos(i64::MAX),
        max_permitted_clock_drift: Nanos(i64::MAX),
        advance_notice: Nanos(i64::MIN),
        creation_time: GoTime(Timestamp::MAX),
        ..UpgradeLock::default()
    };
    assert!(hostile.is_locked(Timestamp::MIN) && !hostile.is_exclusive(Timestamp::MAX));
}

#[tokio::test]
async fn an_upgrade_that_is_going_on_keeps_a_repository_closed() {
    let store = MemoryStore::new();
    let format = Format::create(&store, &password(), &quick(), &fixed()).await.unwrap();
    let lock = UpgradeLock {
        owner_id: "me".into(),
        creation_time: GoTime(fixed().clock.now()),
        io_drain_timeout: Nanos(1),
        ..Default::default()
    };
    edit_format(&store, |f| f.upgrade_lock = Some(lock)).await;
    assert!(matches!(open(&store).await, Err(Error::UpgradeInProgress { .. })));
    assert!(matches!(format.refresh(&store, &fixed(), None).await, Err(Error::UpgradeInProgress { .. })));
    assert!(Format::open(&store, &password(), &fixed(), Some("me")).await.is_ok());
}

#[test]
fn the_recovery_block_is_the_known_one() {
    let block = recovery_block(b"{}").unwrap();
    let known = "22007b7dcb1c9a3de89d0f26f28cf5f0d9876594b7f74aa942437895d0ce09d0ecaa274a2200";
    assert_eq!(hex::encode(&block), known);
    assert_eq!(find_recovery_block(&block).unwrap(), Some(&b"{}"[..]));
    assert_eq!(find_recovery_block(&[&[9; 100][..], &block].concat()).unwrap(), Some(&b"{}"[..]));
    assert_eq!(find_recovery_block(&block[1..]).unwrap(), Some(&b"{}"[..]), "the end is enough");
    assert_eq!(find_recovery_block(&block[1..block.len() - 1]).unwrap(), None);
    assert!(recovery_block(&[b' '; 64_968]).is_ok());
    assert!(recovery_block(&[b' '; 64_969]).is_err());
}

#[test]
fn keys_for_purposes_are_the_known_ones() {
    let blob = FormatBlob {
        unique_id: Base64((0..32).collect()),
        key_algorithm: "scrypt-65536-8-1".into(),
        ..Default::default()
    };
    let key = blob.derive_key(&password()).unwrap();
    assert_eq!(hex::encode(key.expose()), "ffe609844d93eddf89ad495da77bd83e8cec100e27b03a6257d505de6e36094d");
}

proptest! {
    #[test]
    fn any_bytes_are_no_format_but_never_a_panic(bytes: Vec<u8>) {
        prop_assert!(FormatBlob::parse(&bytes).is_err());
        prop_assert_eq!(find_recovery_block(&bytes).unwrap(), None);
        let _ = serde_json::from_slice::<RepositoryFormat>(&bytes);
    }
}

#[test]
fn a_key_that_was_derived_before_is_only_taken_for_the_same_repository() {
    let blob = |salt: u8| FormatBlob::new(vec![salt; 32], KeyAlgorithm::Pbkdf2);
    let fresh = |salt| blob(salt).derive_key(&password()).unwrap();
    let kept = password();
    for salt in [1, 1, 2, 1] {
        assert_eq!(blob(salt).derive_key(&kept.clone()).unwrap(), fresh(salt));
    }
    assert_ne!(blob(1).derive_key(&Password::new("another")).unwrap(), fresh(1));
}
