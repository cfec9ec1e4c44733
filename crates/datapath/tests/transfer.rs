//! The core of the mover against a real object store, crossed with the real kopia.
#![allow(clippy::unwrap_used, clippy::panic)]

use lifeboat_api::v1::BackupStorageLocationSpec;
use lifeboat_budget::Budget;
use lifeboat_datapath::location::{Access as LocationAccess, store_config};
use lifeboat_datapath::transfer::{Backup, Meter, Restore, Transfer, TransferError, Vault};
use lifeboat_datapath::wire::{BackupResult, Progress, VolumeMode};
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::repo::{Access, InitialState, OpenOptions, Repository};
use lifeboat_kopia::velero;
use lifeboat_testkit::kopia::{Kopia, S3Location};
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::{Compare, Random, TreeSpec, assert_same};
use lifeboat_uploader::Cancel;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const BUCKET: &str = "velero";
const NAMESPACE: &str = "shop";
const OPERATION: (&str, &str) = ("velero.io/async-operation-id", "du-1.2");

/// A backup location in a real object store with the repository of one namespace, as the Velero server leaves it.
struct Place {
    runtime: Runtime,
    minio: Minio,
    folder: TempDir,
    vault: Vault,
}

impl Place {
    fn new() -> Self {
        let (runtime, minio) = (Runtime::new().unwrap(), Minio::start_tls().unwrap());
        let folder = tempfile::tempdir().unwrap();
        minio.create_bucket(BUCKET).unwrap();
        let credentials = folder.path().join("cloud");
        let text = format!(
            "[default]\naws_access_key_id={}\naws_secret_access_key={}\n",
            minio.access_key(),
            minio.secret_key()
        );
        fs::write(&credentials, text).unwrap();
        let location: BackupStorageLocationSpec = serde_json::from_value(json!({
            "provider": "aws",
            "objectStorage": { "bucket": BUCKET, "prefix": "backups" },
            "config": { "region": minio.region(), "s3Url": minio.endpoint(), "s3ForcePathStyle": "true" },
        }))
        .unwrap();
        let access = LocationAccess {
            ca: minio.ca_pem().map(|pem| pem.as_bytes().to_vec()),
            credentials_file: Some(credentials),
            environment: BTreeMap::new(),
        };
        let vault = Vault {
            store: store_config(&location, NAMESPACE, &access).unwrap(),
            password: Password::new(velero::DEFAULT_PASSWORD),
            cache_folder: folder.path().join("cache"),
            cache_limit: 100 << 20,
        };
        let place = Self { runtime, minio, folder, vault };
        place.create();
        place
    }

    fn create(&self) {
        self.runtime.block_on(async {
            let store = self.vault.store.open(&lifeboat_blobs::OpenOptions::default()).await.unwrap();
            let identity =
                ClientIdentity { username: velero::IDENTITY.into(), hostname: velero::IDENTITY.into() };
            let options = OpenOptions::new(store, self.vault.password.clone(), identity);
            Repository::create(options, &CreateOptions::default(), InitialState::Velero).await.unwrap();
        });
    }

    fn kopia(&self) -> Kopia {
        let mut kopia = Kopia::new(velero::DEFAULT_PASSWORD).unwrap();
        let location = S3Location { server: &self.minio, bucket: BUCKET, prefix: "backups/kopia/shop/" };
        kopia.connect_s3(location, &["--override-username=default", "--override-hostname=default"]).unwrap();
        kopia
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn transfer(&self, access: Access) -> Transfer {
        let budget = Budget::new(64 << 20);
        Transfer {
            repository: self.runtime.block_on(self.vault.open(&budget, access)).unwrap(),
            runtime: self.runtime.handle().clone(),
            budget,
            meter: Arc::new(Meter::default()),
            cancel: Cancel::default(),
        }
    }

    fn back_up(&self, path: &Path, mode: VolumeMode) -> BackupResult {
        let transfer = self.transfer(Access::ReadWrite);
        let result = transfer.back_up(&backup(path, mode)).unwrap();
        let all = Progress { total_bytes: result.total_bytes, done_bytes: result.total_bytes };
        assert_eq!(transfer.meter.read(), all, "the last progress is all of it");
        result
    }

    fn restore(&self, id: &str, path: &Path, mode: VolumeMode) -> i64 {
        let restore = Restore {
            path: path.to_owned(),
            mode,
            snapshot_id: id.to_owned(),
            sparse: false,
            parallel_files: 2,
        };
        let transfer = self.transfer(Access::ReadOnly);
        let result = transfer.restore(&restore).unwrap();
        assert_eq!(transfer.meter.read().done_bytes, result.total_bytes);
        result.total_bytes
    }
}

fn backup(path: &Path, mode: VolumeMode) -> Backup {
    Backup {
        path: path.to_owned(),
        mode,
        requester: velero::DATA_MOVER_REQUESTER,
        real_source: format!("{NAMESPACE}/data"),
        tags: [OPERATION].map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        parallel_files: 0,
    }
}

#[test]
fn a_volume_goes_in_and_comes_back_and_kopia_sees_it_as_veleros() {
    let place = Place::new();
    let (volume, back) = (place.path("8ce385b4"), place.path("back"));
    fs::create_dir_all(&volume).unwrap();
    let grown = TreeSpec::small(11).grow(&volume).unwrap();
    let first = place.back_up(&volume, VolumeMode::Filesystem);
    assert!(first.total_bytes > 0 && first.incremental_bytes == first.total_bytes, "{first:?} {grown:?}");
    assert_eq!(first.source.by_path, volume.to_string_lossy());

    let listed: Vec<serde_json::Value> = place.kopia().json(["snapshot", "list", "--all", "--json"]).unwrap();
    let [snapshot] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!(snapshot["id"], first.snapshot_id.as_str());
    let source = json!({
        "host": "default", "userName": "default", "path": "snapshot-data-upload-download/kopia/shop/data",
    });
    assert_eq!(snapshot["source"], source);
    assert_eq!(snapshot["description"], "Kopia Uploader");
    assert_eq!(snapshot["pins"], json!(["velero-pin"]));
    let tags = json!({
        "snapshot-requester": "snapshot-data-upload-download", "snapshot-uploader": "kopia", OPERATION.0: OPERATION.1,
    });
    assert_eq!(snapshot["tags"], tags);
    assert_eq!(snapshot["rootEntry"]["name"], "8ce385b4");

    // What links point to is counted by a backup alone.
    let restored = place.restore(&first.snapshot_id, &back, VolumeMode::Filesystem);
    assert!(restored > 0 && restored <= first.total_bytes, "{restored} {first:?}");
    assert_same(&volume, &back, Compare::exact()).unwrap();

    // The second time only what changed is read.
    fs::write(volume.join("new"), vec![7; 5000]).unwrap();
    let second = place.back_up(&volume, VolumeMode::Filesystem);
    assert_eq!(second.incremental_bytes, 5000, "{second:?}");
    assert_eq!(second.total_bytes, first.total_bytes + 5000);
    assert_ne!(second.snapshot_id, first.snapshot_id);
    place.kopia().verify_snapshots().unwrap();
}

#[test]
fn what_kopia_backed_up_in_the_same_repository_is_restored() {
    let place = Place::new();
    let (volume, back) = (place.path("volume"), place.path("back"));
    fs::create_dir_all(&volume).unwrap();
    TreeSpec::small(5).grow(&volume).unwrap();
    let theirs = place.kopia().snapshot(&volume, &[]).unwrap();
    place.restore(&theirs.id, &back, VolumeMode::Filesystem);
    assert_same(&volume, &back, Compare::kept_by_kopia()).unwrap();
}

#[test]
fn an_empty_volume_is_a_snapshot_like_any_other() {
    let place = Place::new();
    let (volume, back) = (place.path("empty"), place.path("back"));
    fs::create_dir_all(&volume).unwrap();
    let result = place.back_up(&volume, VolumeMode::Filesystem);
    assert_eq!((result.empty_snapshot, result.total_bytes, result.incremental_bytes), (false, 0, 0));
    assert_eq!(place.restore(&result.snapshot_id, &back, VolumeMode::Filesystem), 0);
    assert_eq!(fs::read_dir(&back).unwrap().count(), 0);
}

#[test]
fn a_device_goes_in_and_comes_back() {
    let place = Place::new();
    let mut data = Random::new(3).bytes(6 << 20);
    data.extend(vec![0; 10 << 20]);
    fs::write(place.path("image"), &data).unwrap();
    fs::write(place.path("target"), vec![9; data.len()]).unwrap();
    let device = Device::over(&place.path("image"));
    let result = place.back_up(&device.0, VolumeMode::Block);
    assert_eq!(result.total_bytes, 16 << 20);
    assert!(result.incremental_bytes >= 6 << 20, "{result:?}");
    let again = place.back_up(&device.0, VolumeMode::Block);
    assert!(again.incremental_bytes < 4096, "nothing changed but the listing: {again:?}");

    let target = Device::over(&place.path("target"));
    assert_eq!(place.restore(&result.snapshot_id, &target.0, VolumeMode::Block), 16 << 20);
    drop(target);
    assert!(fs::read(place.path("target")).unwrap() == data, "the device is not the same");
    // The one file of the snapshot is named like the device, with its slashes: not a path for anybody.
    let kopia = place.kopia();
    let shown: serde_json::Value = kopia.json(["show", &kopia.snapshots().unwrap()[0].root.obj]).unwrap();
    assert_eq!(shown["entries"][0]["name"], device.0.to_str().unwrap());
}

#[test]
fn a_file_in_place_of_a_device_is_refused() {
    let place = Place::new();
    fs::write(place.path("file"), [1; 100]).unwrap();
    let refused = place.transfer(Access::ReadWrite).back_up(&backup(&place.path("file"), VolumeMode::Block));
    assert!(matches!(refused, Err(TransferError::NotADevice(_))), "{refused:?}");
    let missing =
        place.transfer(Access::ReadWrite).back_up(&backup(Path::new("/nowhere"), VolumeMode::Block));
    assert!(matches!(missing, Err(TransferError::NoVolume { .. })), "{missing:?}");
}

#[test]
fn a_backup_that_is_cancelled_leaves_no_snapshot() {
    let place = Place::new();
    let volume = place.path("volume");
    fs::create_dir_all(&volume).unwrap();
    TreeSpec::small(1).grow(&volume).unwrap();
    let transfer = place.transfer(Access::ReadWrite);
    transfer.cancel.cancel();
    let outcome = transfer.back_up(&backup(&volume, VolumeMode::Filesystem));
    assert!(matches!(outcome, Err(TransferError::Canceled)), "{outcome:?}");
    assert!(place.kopia().snapshots().unwrap().is_empty());
}

#[test]
fn a_wrong_password_and_a_snapshot_that_is_gone_are_named() {
    let place = Place::new();
    let wrong = Vault { password: Password::new("not it"), ..place.vault.clone() };
    let error = place.runtime.block_on(wrong.open(&Budget::new(64 << 20), Access::ReadOnly)).unwrap_err();
    assert!(error.to_string().contains("password is wrong"), "{error}");
    let restore = Restore {
        path: place.path("back"),
        mode: VolumeMode::Filesystem,
        snapshot_id: "0123456789abcdef0123456789abcdef".to_owned(),
        sparse: false,
        parallel_files: 0,
    };
    let error = place.transfer(Access::ReadOnly).restore(&restore).unwrap_err();
    assert!(error.to_string().contains("0123456789abcdef"), "{error}");
    assert!(!place.path("back").exists(), "nothing is touched before the snapshot is known");
}

/// A loop device, gone when dropped.
struct Device(PathBuf);

impl Device {
    fn over(image: &Path) -> Self {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let output = output.unwrap_or_else(|_| panic!("losetup is missing: install util-linux"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "losetup failed (it takes root and loop devices): {error}");
        Device(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
