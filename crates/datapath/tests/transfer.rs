//! The core of the mover against a real object store, crossed with the real kopia.
#![allow(clippy::unwrap_used, clippy::panic)]

use lifeboat_api::v1::BackupStorageLocationSpec;
use lifeboat_blobs::Operation;
use lifeboat_blobs::wrap::fault::{Action as StoreAction, Control, Rule};
use lifeboat_blobs::wrap::{Fault, Metered, Metrics};
use lifeboat_budget::Budget;
use lifeboat_datapath::legacy;
use lifeboat_datapath::location::{Access as LocationAccess, store_config};
use lifeboat_datapath::transfer::{
    Backup, CHECKPOINT_INTERVAL, Format, Meter, Opened, Restore, Transfer, TransferError, Vault,
};
use lifeboat_datapath::wire::{BackupResult, Progress, VolumeMode};
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::repo::{Access, InitialState, OpenOptions, Repository};
use lifeboat_kopia::snapshot::SnapshotManifest;
use lifeboat_kopia::velero;
use lifeboat_repository::kopia::KopiaRepository;
use lifeboat_testkit::kopia::{Kopia, S3Location};
use lifeboat_testkit::restic::Restic;
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::{Compare, Random, TreeSpec, assert_same};
use lifeboat_uploader::{Cancel, find_snapshots};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
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
    location: BackupStorageLocationSpec,
    access: LocationAccess,
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
            format: Format::Kopia,
            store: store_config(&location, NAMESPACE, &access).unwrap(),
            password: Password::new(velero::DEFAULT_PASSWORD),
            cache_folder: folder.path().join("cache"),
            cache_limit: 100 << 20,
            patience: Duration::from_mins(5),
        };
        let place = Self { runtime, minio, folder, location, access, vault };
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
        self.transfer_with(&self.vault, access)
    }

    fn transfer_with(&self, vault: &Vault, access: Access) -> Transfer {
        let budget = Budget::new(64 << 20);
        let repository = self.runtime.block_on(vault.open(&budget, access)).unwrap();
        self.transfer_of(repository, budget)
    }

    fn transfer_of(&self, repository: Opened, budget: Budget) -> Transfer {
        Transfer {
            repository,
            runtime: self.runtime.handle().clone(),
            budget,
            meter: Arc::new(Meter::default()),
            cancel: Cancel::default(),
            to_be_continued: Arc::default(),
            checkpoint_interval: CHECKPOINT_INTERVAL,
        }
    }

    fn back_up(&self, path: &Path, mode: VolumeMode) -> BackupResult {
        let transfer = self.transfer(Access::ReadWrite);
        let result = transfer.back_up(&backup(path, mode), || ()).unwrap();
        let all = Progress { total_bytes: result.total_bytes, done_bytes: result.total_bytes };
        assert_eq!(transfer.meter.read(), all, "the last progress is all of it");
        result
    }

    fn restore(&self, id: &str, path: &Path, mode: VolumeMode) -> i64 {
        restored(&self.transfer(Access::ReadOnly), &restore(id, path, mode))
    }
}

fn restored(transfer: &Transfer, restore: &Restore) -> i64 {
    let result = transfer.restore(restore, || ()).unwrap();
    assert_eq!(transfer.meter.read().done_bytes, result.total_bytes);
    result.total_bytes
}

fn restore(id: &str, path: &Path, mode: VolumeMode) -> Restore {
    Restore {
        path: path.to_owned(),
        mode,
        snapshot_id: id.to_owned(),
        sparse: false,
        parallel_files: 2,
        goes_on: false,
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
    let refused =
        place.transfer(Access::ReadWrite).back_up(&backup(&place.path("file"), VolumeMode::Block), || ());
    assert!(matches!(refused, Err(TransferError::NotADevice(_))), "{refused:?}");
    let missing =
        place.transfer(Access::ReadWrite).back_up(&backup(Path::new("/nowhere"), VolumeMode::Block), || ());
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
    let outcome = transfer.back_up(&backup(&volume, VolumeMode::Filesystem), || ());
    assert!(matches!(outcome, Err(TransferError::Canceled)), "{outcome:?}");
    assert!(place.kopia().snapshots().unwrap().is_empty());
}

#[test]
fn a_wrong_password_and_a_snapshot_that_is_gone_are_named() {
    let place = Place::new();
    let wrong = Vault { password: Password::new("not it"), ..place.vault.clone() };
    let error = place.runtime.block_on(wrong.open(&Budget::new(64 << 20), Access::ReadOnly)).unwrap_err();
    assert!(error.to_string().contains("password is wrong"), "{error}");
    let gone = restore("0123456789abcdef0123456789abcdef", &place.path("back"), VolumeMode::Filesystem);
    let error = place.transfer(Access::ReadOnly).restore(&gone, || ()).unwrap_err();
    assert!(error.to_string().contains("0123456789abcdef"), "{error}");
    assert!(!place.path("back").exists(), "nothing is touched before the snapshot is known");
}

/// How a mover ends before its backup does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// At once, as if it were killed: nothing that it asks of its store happens any more.
    Killed,
    /// It is told to end, and another one is to follow.
    ToldToEnd,
}

impl Place {
    /// A mover that restores, what is to go wrong with its store, and what it reads.
    fn watched(&self) -> (Transfer, Control, Arc<Metrics>) {
        let open = lifeboat_blobs::OpenOptions::default();
        let fault = Fault::new(self.runtime.block_on(self.vault.store.open(&open)).unwrap());
        let (control, metrics) = (fault.control(), Arc::new(Metrics::default()));
        let identity =
            ClientIdentity { username: velero::IDENTITY.into(), hostname: velero::IDENTITY.into() };
        let budget = Budget::new(64 << 20);
        let _context = self.runtime.enter();
        let store = Arc::new(Metered::new(fault, Arc::clone(&metrics)));
        let mut options = OpenOptions::new(store, self.vault.password.clone(), identity);
        options.access = Access::ReadOnly;
        options.budget = budget.clone();
        let repository = self.runtime.block_on(Repository::open(options)).unwrap();
        (self.transfer_of(Opened::Kopia(repository), budget), control, metrics)
    }

    /// What unfinished backups have left, with the bytes of each.
    fn unfinished(&self, observer: &Repository) -> Vec<u64> {
        self.runtime.block_on(observer.refresh()).unwrap();
        let source = velero::source(velero::DATA_MOVER_REQUESTER, &format!("{NAMESPACE}/data"), "");
        let interface = KopiaRepository::new(observer.clone());
        let found = find_snapshots(&interface, &source, &BTreeMap::new()).unwrap();
        let bytes = |snapshot: SnapshotManifest| {
            let summary = snapshot.root_entry.and_then(|root| root.summary);
            summary.map_or(0, |summary| u64::try_from(summary.size).unwrap())
        };
        found.into_iter().filter(|snapshot| !snapshot.is_complete()).map(bytes).collect()
    }

    /// Begins a backup and ends it in the middle, unless it was done before. Every pack takes so long.
    fn lose_mover(&self, volume: &Path, loss: Loss, delay: Duration) -> bool {
        let open = lifeboat_blobs::OpenOptions::default();
        let fault = Fault::new(self.runtime.block_on(self.vault.store.open(&open)).unwrap());
        let control = fault.control();
        control.plan(Rule::on(Operation::Put).prefix("p").times(u64::MAX).action(StoreAction::Delay(delay)));
        let identity =
            ClientIdentity { username: velero::IDENTITY.into(), hostname: velero::IDENTITY.into() };
        // Memory for two packs: the backup cannot run ahead of its store.
        let budget = Budget::new(28 << 20);
        let _context = self.runtime.enter();
        let mut options = OpenOptions::new(Arc::new(fault), self.vault.password.clone(), identity);
        options.budget = budget.clone();
        let repository = self.runtime.block_on(Repository::open(options)).unwrap();
        let mover = Transfer {
            checkpoint_interval: Duration::from_millis(match loss {
                Loss::Killed => 100,
                Loss::ToldToEnd => 600_000,
            }),
            ..self.transfer_of(Opened::Kopia(repository), budget)
        };
        let Opened::Kopia(observer) = self.transfer(Access::ReadOnly).repository else { panic!() };
        let done = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let moved = mover.meter.read().done_bytes > 12 << 20;
                    match loss {
                        Loss::Killed if self.unfinished(&observer).iter().any(|bytes| *bytes > 0) => {
                            return control.crash();
                        }
                        Loss::ToldToEnd if moved => {
                            mover.to_be_continued.store(true, Ordering::Relaxed);
                            return mover.cancel.cancel();
                        }
                        _ => std::thread::sleep(Duration::from_millis(5)),
                    }
                }
            });
            let outcome = mover.back_up(&backup(volume, VolumeMode::Filesystem), || ());
            done.store(true, Ordering::Relaxed);
            outcome
        });
        outcome.is_err()
    }
}

/// A volume of which a mover is lost in the middle; `None` if its backup was done before.
fn with_lost_mover(loss: Loss, delay: Duration) -> Option<(Place, PathBuf)> {
    let place = Place::new();
    let volume = place.path("volume");
    let mut random = Random::new(5);
    for folder in 0..16 {
        let folder = volume.join(format!("folder-{folder:02}"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..60 {
            fs::write(folder.join(format!("file-{file:02}")), random.bytes(60_000)).unwrap();
        }
    }
    place.kopia().run(["repository", "set-parameters", "--max-pack-size-mb=10"]).unwrap();
    place.lose_mover(&volume, loss, delay).then_some((place, volume))
}

#[test]
fn the_replacement_of_a_lost_mover_goes_on_from_what_it_had_saved() {
    for loss in [Loss::Killed, Loss::ToldToEnd] {
        // A machine may be done before anyone sees that something is saved: give it more to wait for.
        let delays = [300, 2_000, 8_000].map(Duration::from_millis);
        let lost = delays.into_iter().find_map(|delay| with_lost_mover(loss, delay));
        let Some((place, volume)) = lost else { panic!("{loss:?}: no mover could be lost in time") };
        let Opened::Kopia(observer) = place.transfer(Access::ReadOnly).repository else { panic!() };
        let saved = place.unfinished(&observer).into_iter().max().unwrap_or(0);
        assert!(saved > 0, "{loss:?}: nothing was saved");

        let second = place.back_up(&volume, VolumeMode::Filesystem);
        let (read, all) = (second.incremental_bytes, second.total_bytes);
        let saved = i64::try_from(saved).unwrap();
        assert!(read <= all - saved, "{loss:?}: {read} of {all} bytes were read though {saved} were saved");
        // One snapshot of the volume, as if nothing had happened.
        let list = ["snapshot", "list", "--all", "--incomplete", "--json"];
        let listed: Vec<serde_json::Value> = place.kopia().json(list).unwrap();
        let [snapshot] = listed.as_slice() else { panic!("{loss:?}: {listed:?}") };
        assert_eq!(snapshot["id"], second.snapshot_id.as_str());
        assert_eq!(snapshot["source"]["path"], "snapshot-data-upload-download/kopia/shop/data");
        place.restore(&second.snapshot_id, &place.path("back"), VolumeMode::Filesystem);
        assert_same(&volume, &place.path("back"), Compare::exact()).unwrap();
    }
}

/// A mover that is killed while it writes leaves whole files, half of one, and a file whose data its node has lost though not its
/// size and time.
#[test]
fn the_replacement_of_a_lost_mover_reads_only_what_is_missing_and_takes_no_file_for_whole_that_is_not() {
    let place = Place::new();
    let (volume, back) = (place.path("volume"), place.path("back"));
    let mut random = Random::new(6);
    for folder in 0..8 {
        let folder = volume.join(format!("folder-{folder}"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..40 {
            fs::write(folder.join(format!("file-{file:02}")), random.bytes(200_000)).unwrap();
        }
    }
    place.kopia().run(["repository", "set-parameters", "--max-pack-size-mb=10"]).unwrap();
    let backed_up = place.back_up(&volume, VolumeMode::Filesystem);
    let (id, all) = (&backed_up.snapshot_id, u64::try_from(backed_up.total_bytes).unwrap());

    let (killed, control, _) = place.watched();
    let done = AtomicBool::new(false);
    let lost = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && killed.meter.read().done_bytes < 20 << 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            control.crash();
            killed.cancel.cancel();
        });
        let lost = killed.restore(&restore(id, &back, VolumeMode::Filesystem), || ());
        done.store(true, Ordering::Relaxed);
        lost
    });
    assert!(lost.is_err(), "{lost:?}");
    let files = |path: &Path| {
        let found = Command::new("find").arg(path).args(["-type", "f", "-size", "+195k"]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect::<Vec<_>>()
    };
    let written = files(&back);
    let same = |file: &PathBuf| {
        fs::read(file).unwrap() == fs::read(volume.join(file.strip_prefix(&back).unwrap())).unwrap()
    };
    let whole: Vec<_> = written.into_iter().filter(same).collect();
    assert!(whole.len() > 20 && whole.len() < 320, "{} whole files", whole.len());
    for (file, blank) in [(&whole[0], 0..200_000), (&whole[1], 50_000..60_000)] {
        let modified = fs::metadata(file).unwrap().modified().unwrap();
        let mut data = fs::read(file).unwrap();
        data[blank].fill(0);
        fs::write(file, data).unwrap();
        fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
    }

    let (next, _, metrics) = place.watched();
    let before = metrics.snapshot().get.bytes;
    let goes_on = Restore { goes_on: true, ..restore(id, &back, VolumeMode::Filesystem) };
    restored(&next, &goes_on);
    assert_same(&volume, &back, Compare::exact()).unwrap();
    let read = metrics.snapshot().get.bytes - before;
    let kept = u64::try_from(whole.len()).unwrap() * 200_000;
    // Packs are read in long runs, and two files had to be read again.
    assert!(read < all - kept / 2, "{read} of {all} bytes were read though {kept} were there");
}

/// As earlier releases of Velero had restic back volumes up: what is in the volume, under a short id.
#[test]
fn what_restic_backed_up_for_velero_comes_back_and_nothing_is_added_to_it() {
    let place = Place::new();
    let (volume, back) = (place.path("volume"), place.path("back"));
    fs::create_dir_all(&volume).unwrap();
    TreeSpec::small(8).grow(&volume).unwrap();
    let folder = "backups/restic/shop";
    let restic = Restic::in_bucket(&place.minio, BUCKET, folder, velero::DEFAULT_PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    let id = restic.backup_contents(&volume, &["--host", "velero", "--tag", "pod=web"]).unwrap();
    let (short, mode) = (&id[..8], VolumeMode::Filesystem);

    let name = |folder: &str| format!("s3:{}/{BUCKET}/{folder}", place.minio.endpoint());
    let vault = |folder: &str| Vault {
        format: Format::Restic,
        store: legacy::store_config(&place.location, &name(folder), &place.access).unwrap(),
        ..place.vault.clone()
    };
    let reached = vault(folder);
    // A volume has a root of its own, of which restic kept nothing.
    fs::create_dir(&back).unwrap();
    fs::set_permissions(&back, fs::Permissions::from_mode(0o2775)).unwrap();
    let bytes = restored(&place.transfer_with(&reached, Access::ReadOnly), &restore(short, &back, mode));
    assert!(bytes > 0);
    assert_same(&volume, &back, Compare { top: false, ..Compare::exact() }).unwrap();
    assert_eq!(fs::metadata(&back).unwrap().mode() & 0o7777, 0o2775);

    let stopped = place.transfer_with(&reached, Access::ReadOnly);
    stopped.cancel.cancel();
    let outcome = stopped.restore(&restore(short, &place.path("again"), mode), || ());
    assert!(matches!(outcome, Err(TransferError::Canceled)), "{outcome:?}");
    let refused = place.transfer_with(&reached, Access::ReadWrite).back_up(&backup(&volume, mode), || ());
    assert!(matches!(refused, Err(TransferError::OnlyRead)), "{refused:?}");
    let gone = place.transfer_with(&reached, Access::ReadOnly);
    let error = gone.restore(&restore("01234567", &place.path("gone"), mode), || ()).unwrap_err();
    assert!(error.to_string().contains("01234567") && !place.path("gone").exists(), "{error}");
    let wrong = Vault { password: Password::new("not it"), ..reached };
    for (vault, words) in
        [(wrong, "the password is not"), (vault("backups/restic/other"), "there is no restic repository")]
    {
        let opened = place.runtime.block_on(vault.open(&Budget::new(64 << 20), Access::ReadOnly));
        let error = opened.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
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
