//! What the real restic backed up, read through the interface and restored by the code that restores everything.

#![allow(clippy::unwrap_used, clippy::panic)]

use lifeboat_blobs::OpenOptions;
use lifeboat_budget::Budget;
use lifeboat_kopia::snapshot::{DirEntries, DirEntry, SnapshotManifest};
use lifeboat_repository::{
    ErrorKind, Id, MaintenanceMode, ManifestFilter, ObjectWriteOptions, Readiness, Repository,
    RepositoryOptions, RepositoryService, Secret, StorageOptions, conformance,
};
use lifeboat_restic::{ResticRepository, ResticService, location, open_store};
use lifeboat_testkit::restic::Restic;
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::{Compare, Random, TreeSpec, assert_same, differences};
use lifeboat_uploader::{Cancel, Error, Existing, Progress, RestoreOptions, RestoreReport};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

const PASSWORD: &str = "correct horse battery staple";
/// Small enough that reads have to wait for each other.
const BUDGET: u64 = 48 << 20;

/// A tree with everything that restic keeps.
fn grow(top: &Path, seed: u64) {
    let spec =
        TreeSpec { undecodable_names: true, exact_sizes: vec![0, 1, 5_000_001], ..TreeSpec::small(seed) };
    spec.grow(top).unwrap();
    let odd = top.join("odd");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("first"), "one file").unwrap();
    fs::hard_link(odd.join("first"), odd.join("second")).unwrap();
    fs::hard_link(odd.join("first"), top.join("third")).unwrap();
    symlink(std::ffi::OsStr::new("\u{fffd}"), odd.join("looks-undecodable")).unwrap();
    let raw: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"nowhere\xff");
    symlink(raw, odd.join("undecodable")).unwrap();
    for (name, kind, device) in [
        ("pipe", FileType::Fifo, 0),
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("block", FileType::BlockDevice, makedev(259, 70_000)),
    ] {
        mknodat(CWD, odd.join(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    }
    for (path, value) in [(odd.join("first"), &b"v\0"[..]), (odd.clone(), b"")] {
        rustix::fs::setxattr(path, "user.note", value, XattrFlags::empty()).unwrap();
    }
}

fn note(path: &Path) -> Vec<u8> {
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(path, "user.note", &mut value[..]).unwrap();
    value[..length].to_vec()
}

struct Opened {
    runtime: Runtime,
    budget: Budget,
    repository: ResticRepository,
}

fn open(folder: &Path, password: &str) -> lifeboat_repository::Result<Opened> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let budget = Budget::new(BUDGET);
    let store =
        runtime.block_on(open_store(&location::parse(folder.to_str().unwrap())?, OpenOptions::default()))?;
    let handle = runtime.handle().clone();
    let repository = ResticRepository::open(store, &Secret::new(password), handle, budget.clone())?;
    Ok(Opened { runtime, budget, repository })
}

/// The entry of an absolute path in a snapshot.
fn entry(repository: &dyn Repository, root: DirEntry, path: &Path) -> DirEntry {
    let mut entry = root;
    for name in path.strip_prefix("/").unwrap().components() {
        let listing = repository.open_object(&Id::new(entry.object.clone())).unwrap();
        let mut entries = DirEntries::new(entry.object.clone(), listing).map(Result::unwrap);
        entry = entries.find(|entry| entry.file_name() == name.as_os_str().as_encoded_bytes()).unwrap();
    }
    entry
}

fn restore(
    repository: &dyn Repository,
    root: &DirEntry,
    options: &RestoreOptions,
) -> lifeboat_uploader::Result<RestoreReport> {
    lifeboat_uploader::restore(repository, root, options, &Progress::default(), &Cancel::default())
}

/// The root of the tree that was backed up, as a caller of the interface finds it.
fn root_of(repository: &dyn Repository, snapshot: &str, source: &Path) -> DirEntry {
    let manifest = repository.manifest(&Id::new(snapshot)).unwrap();
    let manifest: SnapshotManifest = serde_json::from_slice(&manifest.payload).unwrap();
    entry(repository, manifest.root_entry.unwrap(), source)
}

#[test]
fn every_format_of_restic_comes_back_exactly() {
    for (seed, version, compression) in [(1, "1", "off"), (2, "2", "max"), (3, "2", "off")] {
        let place = tempfile::tempdir().unwrap();
        let [source, before, folder] = ["source", "before", "repository"].map(|name| place.path().join(name));
        let restic = Restic::new(&folder, PASSWORD).unwrap();
        restic.init(&["--repository-version", version]).unwrap();
        // The same seed gives the same tree: the first state, for when the source has gone on.
        [&source, &before].into_iter().for_each(|top| grow(top, seed));
        let flags: &[&str] = if version == "1" { &[] } else { &["--compression", compression] };
        let first = restic.backup(&source, flags).unwrap();
        fs::write(source.join("new"), "later").unwrap();
        fs::remove_file(source.join("third")).unwrap();
        let second = restic.backup(&source, &["--tag", "pod=web", "--tag", "word"]).unwrap();

        let Opened { repository, budget, runtime: _runtime } = open(&folder, PASSWORD).unwrap();
        let filter = |name: &str, value: &str| ManifestFilter {
            labels: BTreeMap::from([(name.to_owned(), value.to_owned())]),
        };
        let tagged = repository.find_manifests(&filter("pod", "web")).unwrap();
        assert_eq!(tagged.iter().map(|found| found.id.as_str()).collect::<Vec<_>>(), [&second]);
        assert_eq!(repository.find_manifests(&filter("type", "snapshot")).unwrap().len(), 2);
        assert_eq!(repository.find_manifests(&filter("type", "policy")).unwrap(), []);

        for (snapshot, state) in [(&first, &before), (&second, &source)] {
            let target = place.path().join(format!("ours-{snapshot}"));
            let root = root_of(&repository, &snapshot[..8], &source);
            let options = RestoreOptions { verify: true, ..RestoreOptions::new(&target) };
            let report = restore(&repository, &root, &options).unwrap();
            assert!(report.verified_bytes > 5_000_000, "{report:?}");
            // Two trees of one seed differ in the times of what `grow` adds.
            let compare = match state == &source {
                true => Compare::exact(),
                false => Compare { top: false, ..Compare::exact() },
            };
            let found = differences(state, &target, compare).unwrap();
            let is_expected =
                |line: &String| state == &before && line.contains("odd") || line.contains("third");
            let found: Vec<_> = found.iter().filter(|line| !is_expected(line)).collect();
            assert!(found.is_empty(), "{found:#?}");
            assert_eq!(
                (note(&target.join("odd/first")), note(&target.join("odd"))),
                (b"v\0".to_vec(), vec![])
            );
        }
        let theirs = place.path().join("theirs");
        restic.restore(&second, &source, &theirs).unwrap();
        let ours = place.path().join(format!("ours-{second}"));
        assert_same(&theirs, &ours, Compare { top: false, ..Compare::exact() }).unwrap();
        assert!(budget.peak() > 0 && budget.used() == 0, "{budget:?}");
    }
}

#[test]
fn an_older_restore_is_brought_up_to_date_by_what_differs() {
    let place = tempfile::tempdir().unwrap();
    let [source, target, folder] = ["source", "target", "repository"].map(|name| place.path().join(name));
    let restic = Restic::new(&folder, PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    fs::create_dir(&source).unwrap();
    fs::write(source.join("large"), Random::new(4).bytes(30 << 20)).unwrap();
    fs::write(source.join("small"), "small").unwrap();
    let snapshot = restic.backup(&source, &[]).unwrap();
    let Opened { repository, runtime: _runtime, .. } = open(&folder, PASSWORD).unwrap();
    let root = root_of(&repository, &snapshot, &source);
    let options = RestoreOptions { existing_files: Existing::Update, ..RestoreOptions::new(&target) };
    restore(&repository, &root, &options).unwrap();
    let large = fs::OpenOptions::new().write(true).open(target.join("large")).unwrap();
    large.write_all_at(b"spoiled", 20 << 20).unwrap();
    fs::write(target.join("extra"), "").unwrap();
    let options = RestoreOptions { delete_extra: true, ..options };
    let report = restore(&repository, &root, &options).unwrap();
    assert_same(&source, &target, Compare::exact()).unwrap();
    assert!(report.kept_bytes > 12 << 20 && report.read_bytes < 18 << 20, "{report:?}");
    assert_eq!((report.skipped, report.deleted), (1, 1));
}

/// Options that name a bucket as Velero does.
fn in_bucket(server: &Minio, prefix: &str, password: &str) -> RepositoryOptions {
    let endpoint = server.address();
    let pairs = [
        ("bucket", "backups"),
        ("prefix", prefix),
        ("endpoint", &endpoint),
        ("region", server.region()),
        ("accessKeyID", server.access_key()),
        ("secretAccessKey", server.secret_key()),
        ("doNotUseTLS", "true"),
    ];
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    RepositoryOptions {
        storage_type: "s3".to_owned(),
        password: Secret::new(password),
        storage_options: StorageOptions(pairs.into()),
        ..RepositoryOptions::default()
    }
}

#[test]
fn a_repository_in_a_bucket_passes_the_reading_part_of_the_suite() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut random = Random::new(7);
    let mut mixed = random.bytes(12 << 20);
    mixed[3 << 20..9 << 20].fill(0);
    let mut samples = vec![random.bytes(24 << 20), vec![0; 9 << 20], mixed, vec![], b"short".to_vec()];
    samples.extend((0..40).map(|number| random.bytes(number * 997)));
    for (number, data) in samples.iter().enumerate() {
        fs::write(source.join(number.to_string()), data).unwrap();
    }
    let server = Minio::start().unwrap();
    server.create_bucket("backups").unwrap();
    let restic = Restic::in_bucket(&server, "backups", "velero/restic/app", PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    let snapshot = restic.backup(&source, &[]).unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let service = ResticService::new(runtime.handle().clone(), Budget::new(BUDGET));
    let options = in_bucket(&server, "velero/restic/app/", PASSWORD);
    assert_eq!(service.readiness(&options).unwrap(), Readiness::Ready);
    let elsewhere = in_bucket(&server, "velero/restic/other", PASSWORD);
    assert_eq!(service.readiness(&elsewhere).unwrap(), Readiness::Absent);
    let error = service.connect(&in_bucket(&server, "velero/restic/app", "wrong")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongPassword);
    service.init(&options, false).unwrap();
    let mut unknown = options.clone();
    unknown.general_options.insert("colour".to_owned(), "red".to_owned());
    assert_eq!(service.connect(&unknown).unwrap_err().kind(), ErrorKind::InvalidInput);

    let repository = service.open(&options).unwrap();
    let root = root_of(&*repository, &snapshot, &source);
    let listing = repository.open_object(&Id::new(root.object.clone())).unwrap();
    let entries = DirEntries::new(root.object, listing).map(Result::unwrap);
    let data = |entry: &DirEntry| samples[entry.name.as_str().unwrap().parse::<usize>().unwrap()].clone();
    let objects: Vec<_> = entries.map(|entry| (Id::new(entry.object.clone()), data(&entry))).collect();
    assert_eq!(objects.len(), samples.len());
    conformance::run_reading(&*repository, &objects);

    repository.interrupt_reads();
    let interrupted = repository.find_manifests(&ManifestFilter::default()).unwrap_err();
    assert_eq!(interrupted.kind(), ErrorKind::Interrupted);
}

#[test]
fn what_cannot_be_opened_says_why_and_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("repository");
    let explain = |password: &str| {
        let error = open(&folder, password).map(drop).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, text) = explain(PASSWORD);
    assert!(kind == ErrorKind::NotFound && text.contains("does not exist"), "{text}");
    fs::create_dir(&folder).unwrap();
    let (kind, text) = explain(PASSWORD);
    assert!(kind == ErrorKind::NotFound && text.contains("no restic repository"), "{text}");

    let restic = Restic::new(&folder, PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    let (kind, text) = explain("wrong");
    assert!(kind == ErrorKind::WrongPassword && text.contains("check it"), "{text}");
    assert!(!text.contains("wrong"), "{text}");
    let empty = open(&folder, PASSWORD).unwrap().repository.snapshots().unwrap();
    assert!(empty.find("latest").unwrap_err().to_string().contains("no snapshots"));

    let key = fs::read_dir(folder.join("keys")).unwrap().next().unwrap().unwrap().path();
    fs::write(&key, r#"{"N":0,"r":8,"p":1}"#).unwrap();
    let (kind, text) = explain(PASSWORD);
    assert!(kind == ErrorKind::Damaged && text.contains("N=0"), "{text}");
}

/// The packs with data, the largest first.
fn data_packs(folder: &Path) -> Vec<PathBuf> {
    let files = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut packs: Vec<PathBuf> =
        files(&folder.join("data")).flat_map(|below| files(&below).collect::<Vec<_>>()).collect();
    packs.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().len()));
    packs
}

#[test]
fn damage_is_named_file_by_file_and_everything_else_is_restored() {
    let place = tempfile::tempdir().unwrap();
    let [source, folder] = ["source", "repository"].map(|name| place.path().join(name));
    let restic = Restic::new(&folder, PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    fs::create_dir_all(source.join("below")).unwrap();
    let mut random = Random::new(9);
    // Of one blob each, so that what a pack holds is touched by nothing but that pack.
    for number in 0..60 {
        let folder = if number % 2 == 0 { source.clone() } else { source.join("below") };
        fs::write(folder.join(format!("file-{number}")), random.bytes(400_000)).unwrap();
    }
    let snapshot = restic.backup(&source, &["--pack-size", "4"]).unwrap();
    let packs = data_packs(&folder);
    assert!(packs.len() > 4, "{packs:?}");
    let writable = |path: &Path| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
    };
    let (lost, spoiled, short) = (&packs[0], &packs[1], &packs[2]);
    fs::remove_file(lost).unwrap();
    let pack = writable(spoiled);
    let mut byte = [0];
    pack.read_exact_at(&mut byte, 300_000).unwrap();
    pack.write_all_at(&[byte[0] ^ 1], 300_000).unwrap();
    writable(short).set_len(2_000_000).unwrap();

    let Opened { repository, runtime: _runtime, .. } = open(&folder, PASSWORD).unwrap();
    let root = root_of(&repository, &snapshot, &source);
    let target = place.path().join("target");
    let Error::Unrestored(report) = restore(&repository, &root, &RestoreOptions::new(&target)).unwrap_err()
    else {
        panic!("damage was not noticed")
    };
    assert!(report.failed > 7 && report.files > 10 && report.failed + report.files == 60, "{report:?}");
    let spoiled_ones = report.failures.iter().filter(|failure| failure.error.contains("MAC")).count();
    assert_eq!(spoiled_ones, 1, "{report:?}");
    let lost_name = lost.file_name().unwrap().to_str().unwrap();
    assert!(report.failures.iter().any(|failure| failure.error.contains(lost_name)), "{report:?}");
    assert!(report.failures.iter().all(|failure| failure.error.contains("restic check")), "{report:?}");
    // What was not named is there, and what was named is not, not even a part of it.
    for failure in &report.failures {
        assert!(!target.join(&failure.path).exists(), "{failure:?}");
        fs::remove_file(source.join(&failure.path)).unwrap();
    }
    let compare = Compare { directory_times: false, top: false, ..Compare::exact() };
    assert_same(&source, &target, compare).unwrap();

    // Of a snapshot that cannot be read, the others are still there.
    let second = restic.backup(&source, &[]).unwrap();
    let file = folder.join("snapshots").join(&snapshot);
    writable(&file).write_all_at(b"x", 20).unwrap();
    let list = open(&folder, PASSWORD).unwrap().repository.snapshots().unwrap();
    assert_eq!(list.snapshots.iter().map(|snapshot| &snapshot.id).collect::<Vec<_>>(), [&second]);
    assert_eq!(list.damaged.iter().map(|damaged| &damaged.id).collect::<Vec<_>>(), [&snapshot]);
    assert_eq!(list.find(&snapshot).unwrap_err().kind(), ErrorKind::Damaged);
}

#[test]
fn nothing_is_ever_written() {
    let place = tempfile::tempdir().unwrap();
    let [source, folder] = ["source", "repository"].map(|name| place.path().join(name));
    let restic = Restic::new(&folder, PASSWORD).unwrap();
    restic.init(&[]).unwrap();
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "text").unwrap();
    let snapshot = restic.backup(&source, &[]).unwrap();
    let copy = place.path().join("copy");
    assert!(std::process::Command::new("cp").arg("-a").args([&folder, &copy]).status().unwrap().success());

    let Opened { repository, runtime, budget } = open(&folder, PASSWORD).unwrap();
    let id = Id::new(snapshot.clone());
    let service = ResticService::new(runtime.handle().clone(), budget);
    let options = RepositoryOptions {
        storage_type: "filesystem".to_owned(),
        password: Secret::new(PASSWORD),
        storage_options: StorageOptions([("fspath".to_owned(), folder.to_str().unwrap().to_owned())].into()),
        ..RepositoryOptions::default()
    };
    for refused in [
        repository.new_object(&ObjectWriteOptions::default()).map(drop),
        repository.concatenate(std::slice::from_ref(&id)).map(drop),
        repository.put_manifest(BTreeMap::new(), b"{}").map(drop),
        repository.delete_manifest(&id),
        service.create(&options),
        service.maintain(&options, MaintenanceMode::Auto).map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("restic"), "{error}");
    }
    let root = root_of(&repository, &snapshot, &source);
    restore(&repository, &root, &RestoreOptions::new(place.path().join("target"))).unwrap();
    repository.flush().unwrap();
    repository.close().unwrap();
    assert_same(&copy, &folder, Compare::exact()).unwrap();
}
