//! The model of a repository (format, manifests, snapshots, policies, maintenance, connection) crossed with the
//! real kopia: each side reads and changes what the other wrote.
#![allow(clippy::unwrap_used)]

use jiff::tz::TimeZone;
use lifeboat_blobs::{FsOptions, FsStore};
use lifeboat_kopia::connection::{Connection, forget_password, load_password, store_password};
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Format, Password};
use lifeboat_kopia::gojson::Base64;
use lifeboat_kopia::maintenance::{Params, Run, Schedule, Task};
use lifeboat_kopia::object::WriterOptions;
use lifeboat_kopia::policy::{self, PolicySet, RetentionPolicy, compute_retention};
use lifeboat_kopia::repo::{OpenOptions, Repository};
use lifeboat_kopia::snapshot::{
    self, DirEntries, DirEntry, DirWriter, EntryType, Extras, GoMode, HardLink, Hole, Holes, SourceInfo,
    SpecialKind, SummaryBuilder, XattrName,
};
use lifeboat_kopia::{Environment, Error};
use lifeboat_testkit::kopia::Kopia;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

const PASSWORD: &str = "correct horse";

/// A folder for a repository and one for what is backed up.
struct Place {
    folder: tempfile::TempDir,
    kopia: Kopia,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap(), kopia: Kopia::new(PASSWORD).unwrap() };
        fs::create_dir(place.repository()).unwrap();
        fs::create_dir(place.source()).unwrap();
        place
    }

    fn with_repository(extra: &[&str]) -> Place {
        let place = Place::new();
        let identity = ["--override-hostname=h", "--override-username=u"];
        place.kopia.create_filesystem(&place.repository(), &[&identity, extra].concat()).unwrap();
        place
    }

    fn repository(&self) -> std::path::PathBuf {
        self.folder.path().join("repository")
    }

    fn source(&self) -> std::path::PathBuf {
        self.folder.path().join("source")
    }

    async fn store(&self) -> FsStore {
        FsStore::open(FsOptions::new(self.repository())).await.unwrap()
    }

    async fn open(&self) -> Repository {
        let identity = ClientIdentity { username: "u".into(), hostname: "h".into() };
        let options = OpenOptions::new(Arc::new(self.store().await), Password::new(PASSWORD), identity);
        Repository::open(options).await.unwrap()
    }

    async fn format(&self) -> Format {
        let password = Password::new(PASSWORD);
        Format::open(&self.store().await, &password, &Environment::default(), None).await.unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        self.kopia.json(args).unwrap()
    }
}

fn write(path: impl AsRef<Path>, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
}

/// Every kind of entry and of difficult name that kopia stores.
fn plant(top: &Path) {
    write(top.join("hello.txt"), b"hello");
    write(top.join("empty"), b"");
    write(top.join("a<b>&c"), b"1");
    write(top.join("new\nline\ttab\u{8}\u{c}\u{1}\u{7f}\"q\\"), b"2");
    write(top.join("\u{2028}x\u{2029}é😀\u{fffd}"), b"3");
    for name in [&b"bad\xff\xfe"[..], b"bad\xff", b"cut\xe2\x80", b"\xf0\x80\x80A"] {
        write(top.join(OsStr::from_bytes(name)), b"4");
    }
    symlink("hello.txt", top.join("link")).unwrap();
    fs::create_dir_all(top.join("sub/deep")).unwrap();
    write(top.join("sub/deep/file"), b"5");
    symlink("nowhere", top.join("sub/link")).unwrap();
    for (name, mode) in [("sticky", 0o1777), ("setgid", 0o2750), ("closed", 0o000)] {
        fs::create_dir(top.join(name)).unwrap();
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    write(top.join("setuid"), b"6");
    fs::set_permissions(top.join("setuid"), fs::Permissions::from_mode(0o4755)).unwrap();
}

#[tokio::test]
async fn kopia_s_formats_of_all_versions_are_understood() {
    for version in ["1", "2", "3"] {
        let place = Place::with_repository(&["--format-version", version]);
        let format = place.format().await;
        assert_eq!(format.repository().version.to_string(), version);
        assert_eq!(format.repository().epochs().is_some(), version != "1");
        assert_eq!(format.recovery_block().unwrap().is_some(), version == "1");
        assert!(format.repository().unknown.is_empty(), "{:?}", format.repository().unknown);
        let wrong = Password::new("wrong");
        let opened = Format::open(&place.store().await, &wrong, &Environment::default(), None).await;
        assert!(matches!(opened, Err(Error::WrongPassword)));
    }
}

#[tokio::test]
async fn kopia_opens_what_we_create_and_after_our_change_of_the_password() {
    let place = Place::new();
    let store = FsStore::create(FsOptions::new(place.repository())).await.unwrap();
    let (password, env) = (Password::new(PASSWORD), Environment::default());
    let mut format = Format::create(&store, &password, &CreateOptions::default(), &env).await.unwrap();
    place.kopia.connect_filesystem(&place.repository(), &[]).unwrap();
    let status = place.json(&["repository", "status", "--json"]);
    assert_eq!(status["contentFormat"]["version"], 3);
    assert_eq!(status["uniqueIDHex"], hex::encode(format.unique_id()));

    format.change_password(&store, &Password::new("new"), &env).await.unwrap();
    let mut other = Kopia::new(PASSWORD).unwrap();
    assert!(other.connect_filesystem(&place.repository(), &[]).is_err());
    other.set_env("KOPIA_PASSWORD", "new");
    other.connect_filesystem(&place.repository(), &[]).unwrap();
    other.run(["repository", "change-password", "--new-password=newer"]).unwrap();
    let opened = Format::open(&store, &Password::new("newer"), &env, None).await.unwrap();
    assert_eq!(opened.repository(), format.repository(), "the keys are the same");

    format = opened;
    format.set_parameters(&store, &env, |f, _| f.max_pack_size_field = 32 << 20).await.unwrap();
    other.set_env("KOPIA_PASSWORD", "newer");
    other.connect_filesystem(&place.repository(), &[]).unwrap();
    let status: Value = other.json(["repository", "status", "--json"]).unwrap();
    assert_eq!(status["contentFormat"]["maxPackSize"], 32 << 20);
}

#[tokio::test]
async fn listings_are_written_byte_for_byte_as_kopia_does() {
    let place = Place::with_repository(&[]);
    plant(&place.source());
    let taken = place.kopia.snapshot(&place.source(), &[]).unwrap();
    let mut directories = vec![taken.root.obj];
    let mut seen = 0;
    while let Some(object) = directories.pop() {
        let listing = place.kopia.run(["show", &object]).unwrap().stdout;
        let mut reader = DirEntries::new(&object, &listing[..]);
        let mut entries: Vec<DirEntry> = reader.by_ref().map(Result::unwrap).collect();
        let summary = reader.finish().unwrap().unwrap();
        directories.extend(entries.iter().filter(|entry| entry.is_dir()).map(|entry| entry.object.clone()));
        if seen == 0 {
            restore_names(&mut entries, &place.source());
        }
        let mut sums = SummaryBuilder::default();
        let mut writer = DirWriter::new();
        for entry in &entries {
            sums.add(entry);
            writer.push(entry).unwrap();
        }
        if !entries.is_empty() {
            assert_eq!(sums.build(jiff::Timestamp::UNIX_EPOCH, ""), summary);
        }
        let written = writer.finish(&summary).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), String::from_utf8(listing).unwrap());
        seen += 1;
    }
    assert_eq!(seen, 6);
}

/// Gives entries whose names were not UTF-8 their real names back, and checks that all are in order.
fn restore_names(entries: &mut [DirEntry], folder: &Path) {
    let mut lossy: Vec<Vec<u8>> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .filter(|name| std::str::from_utf8(name).is_err())
        .collect();
    lossy.sort();
    let replaced = entries.iter_mut().filter(|entry| !folder.join(entry.name.as_str().unwrap()).exists());
    let replaced: Vec<_> = replaced.filter(|entry| entry.name.as_str() != Some("link")).collect();
    assert_eq!(replaced.len(), lossy.len());
    replaced.into_iter().zip(lossy).for_each(|(entry, name)| entry.name = name.into());
    assert!(entries.is_sorted_by(|a, b| a.listing_order(b).is_le()));
}

#[tokio::test]
async fn snapshots_policies_and_parameters_cross_both_ways() {
    let place = Place::with_repository(&[]);
    write(place.source().join("file"), b"data");
    let flags = ["--tags=color:red", "--description=d<e>", "--pin=keep"];
    let taken = place.kopia.snapshot(&place.source(), &flags).unwrap();
    place.kopia.set_policy(&["u@h", "--keep-daily=17", "--add-never-compress=.zip"]).unwrap();

    let repository = place.open().await;
    let list = repository.snapshots().await.unwrap();
    assert!(list.damaged.is_empty());
    let mut ours = list.snapshots[0].clone();
    assert_eq!(
        (ours.id.as_str(), &*ours.description, &*ours.pins),
        (&*taken.id, "d<e>", &["keep".to_owned()][..])
    );
    assert_eq!(ours.tags, BTreeMap::from([("tag:color".to_owned(), "red".to_owned())]));
    assert!(ours.unknown.is_empty() && ours.root_entry.as_ref().unwrap().unknown.is_empty());
    let source = ours.source.clone();
    let policies = PolicySet::load(repository.manifests()).await.unwrap();
    let (effective, definitions) = policies.effective(&source).unwrap();
    assert_eq!(effective.retention.keep_daily, Some(17));
    assert_eq!(definitions["retention.keepDaily"].to_string(), "u@h");
    assert_eq!(effective.compression.never_compress, [".zip"]);
    assert_eq!(Params::load(repository.manifests()).await.unwrap().unwrap().owner, "u@h");

    ours.description = "changed by us".to_owned();
    ours.update_pins(["more"], []);
    let id = snapshot::update(repository.manifests(), &mut ours).await.unwrap();
    let mut changed = policies.defined_for(&SourceInfo::parse("u@h").unwrap()).unwrap().policy.clone();
    changed.retention.keep_daily = Some(23);
    policy::save(repository.manifests(), &SourceInfo::parse("u@h").unwrap(), &changed).await.unwrap();
    let params = Params { owner: "we@there".into(), ..Params::default() };
    params.save(repository.manifests()).await.unwrap();
    repository.flush().await.unwrap();

    let listed = place.json(&["snapshot", "list", "--all", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(listed[0]["id"], id.as_str());
    assert_eq!(listed[0]["description"], "changed by us");
    assert_eq!(listed[0]["pins"], serde_json::json!(["keep", "more"]));
    let shown = place.json(&["policy", "show", "--json", "u@h"]);
    assert_eq!(shown["retention"]["keepDaily"], 23);
    assert_eq!(shown["compression"]["neverCompress"], serde_json::json!([".zip"]));
    assert_eq!(place.json(&["maintenance", "info", "--json"])["owner"], "we@there");
    place.kopia.verify_snapshots().unwrap();
}

/// Entries with everything that Kopia does not know, each a file or directory for it.
fn entries_with_extras(file: &str, empty: &str, below: &DirEntry) -> Vec<DirEntry> {
    let entry = |name: &str, object: &str, size, extras: Extras| DirEntry {
        name: name.into(),
        entry_type: EntryType::File,
        mode: GoMode::from_unix(0o640),
        size,
        object: object.to_owned(),
        extras: Some(Box::new(extras)),
        ..DirEntry::default()
    };
    let raw_name = b"not \xff text".to_vec();
    let listed = snapshot::listed_name(&raw_name).unwrap();
    let link = HardLink { inode: 5, names: 2, ..HardLink::default() };
    let xattrs = BTreeMap::from([
        (XattrName(b"user.a".to_vec()), Base64(b"v".to_vec())),
        (XattrName(b"system.posix_acl_access".to_vec()), Base64(vec![2, 0, 0, 0])),
    ]);
    let holes = Holes::new(vec![Hole { offset: 0, length: 2 }]).unwrap();
    vec![
        below.clone(),
        entry("attributes", file, 4, Extras { xattrs, holes, ..Extras::default() }),
        entry("fifo", empty, 0, Extras { kind: Some(SpecialKind::Fifo), ..Extras::default() }),
        entry("linked1", file, 4, Extras { hard_link: Some(link.clone()), ..Extras::default() }),
        entry("linked2", file, 4, Extras { hard_link: Some(link), ..Extras::default() }),
        entry(&listed, file, 4, Extras { raw_name: Base64(raw_name), ..Extras::default() }),
    ]
}

fn store_listing(repository: &Repository, entries: &[DirEntry], name: &str, extras: Extras) -> DirEntry {
    let (mut sums, mut listing) = (SummaryBuilder::default(), DirWriter::new());
    entries.iter().for_each(|entry| {
        sums.add(entry);
        listing.push(entry).unwrap();
    });
    let summary = sums.build(jiff::Timestamp::UNIX_EPOCH, "");
    let options = WriterOptions { prefix: lifeboat_index::Prefix::DIRECTORY, ..WriterOptions::default() };
    let listing = listing.finish(&summary).unwrap();
    let object = repository.objects().write_many(&[&listing], &options).unwrap()[0].to_string();
    DirEntry {
        name: name.into(),
        entry_type: EntryType::Directory,
        mode: GoMode::from_unix(0o755),
        object,
        summary: Some(summary),
        extras: Some(Box::new(extras)),
        ..DirEntry::default()
    }
}

#[tokio::test]
async fn kopia_reads_verifies_restores_and_maintains_what_it_does_not_know() {
    let place = Place::with_repository(&[]);
    let repository = place.open().await;
    let writing = repository.clone();
    let (root, entries) = tokio::task::spawn_blocking(move || {
        let options = WriterOptions::default();
        let files = writing.objects().write_many(&[b"data", b""], &options).unwrap();
        let xattrs = BTreeMap::from([(XattrName(b"user.d".to_vec()), Base64(b"w".to_vec()))]);
        let below = store_listing(&writing, &[], "below", Extras { xattrs, ..Extras::default() });
        let entries = entries_with_extras(&files[0].to_string(), &files[1].to_string(), &below);
        let recorded = Extras { recorded: true, ..Extras::default() };
        (store_listing(&writing, &entries, "source", recorded), entries)
    })
    .await
    .unwrap();
    let path = place.source();
    let mut manifest = snapshot::SnapshotManifest {
        source: SourceInfo::new("u", "h", path.to_str().unwrap()),
        start_time: jiff::Timestamp::now(),
        end_time: jiff::Timestamp::now(),
        root_entry: Some(root.clone()),
        ..Default::default()
    };
    let id = snapshot::save(repository.manifests(), &mut manifest).await.unwrap();
    repository.close().await.unwrap();

    place.kopia.verify_snapshots().unwrap();
    place.kopia.full_maintenance().unwrap();
    place.kopia.full_maintenance().unwrap();
    place.kopia.verify_contents().unwrap();
    let restored = place.folder.path().join("restored");
    place.kopia.restore(id.as_str(), &restored).unwrap();
    assert_eq!(fs::read_dir(&restored).unwrap().count(), entries.len());
    for entry in entries.iter().filter(|entry| !entry.is_dir()) {
        let expected: &[u8] = if entry.size > 0 { b"data" } else { b"" };
        assert_eq!(fs::read(restored.join(entry.name.as_str().unwrap())).unwrap(), expected);
    }
    // A snapshot by kopia on top of it, as a parent, works as well.
    write(path.join("attributes"), b"data");
    place.kopia.snapshot(&path, &[]).unwrap();

    let repository = place.open().await;
    let kept = snapshot::load(repository.manifests(), &id).await.unwrap();
    assert_eq!(kept.root_entry.unwrap(), root);
    let listing = repository.objects().read_all(root.object.parse().unwrap(), 1 << 20).await.unwrap();
    let found: Vec<DirEntry> = DirEntries::new(&root.object, &listing[..]).map(Result::unwrap).collect();
    assert_eq!(found, entries);
    assert_eq!(found[5].safe_name(), Some(&b"not \xff text"[..]));
}

#[tokio::test]
async fn the_schedule_of_maintenance_crosses_both_ways() {
    for version in ["1", "3"] {
        let place = Place::with_repository(&["--format-version", version]);
        place.kopia.run(["maintenance", "run", "--full"]).unwrap();
        let (store, format, env) = (place.store().await, place.format().await, Environment::default());
        let mut schedule = Schedule::load(&store, &format).await.unwrap();
        assert!(schedule.runs_of(Task::SnapshotGc)[0].success);
        assert!(schedule.next_full.get().unwrap() > schedule.next_quick.get().unwrap());
        assert!(schedule.unknown.is_empty());
        schedule.report(Task::SnapshotGc, Run { error: "said by us".into(), ..Run::default() });
        schedule.save(&store, &format, &env).await.unwrap();
        let shown = place.json(&["maintenance", "info", "--json"]);
        assert_eq!(shown["schedule"]["runs"]["snapshot-gc"][0]["error"], "said by us");
    }
}

#[tokio::test]
async fn connection_files_and_stored_passwords_cross_both_ways() {
    let mut place = Place::with_repository(&[]);
    let file = place.kopia.config_file();
    let connection = Connection::load(&file).unwrap();
    assert_eq!(connection.identity(), "u@h");
    assert_eq!(connection.storage().unwrap().storage_type, "filesystem");
    assert!(connection.unknown.is_empty(), "{:?}", connection.unknown);
    let before = fs::read_to_string(&file).unwrap();
    connection.save(&file).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), before);

    Connection { hostname: "renamed".into(), ..connection }.save(&file).unwrap();
    store_password(&file, &Password::new(PASSWORD)).unwrap();
    place.kopia.set_env("KOPIA_PERSIST_CREDENTIALS_ON_CONNECT", "true");
    place.kopia.set_env("KOPIA_USE_KEYRING", "false");
    place.kopia.set_env("KOPIA_PASSWORD", "");
    assert_eq!(place.json(&["repository", "status", "--json"])["clientOptions"]["hostname"], "renamed");
    place.kopia.set_env("KOPIA_PASSWORD", PASSWORD);
    forget_password(&file).unwrap();
    place.kopia.connect_filesystem(&place.repository(), &[]).unwrap();
    assert_eq!(load_password(&file).unwrap().unwrap().expose(), PASSWORD);
}

#[tokio::test]
async fn retention_keeps_what_kopia_keeps_for_the_same_reasons() {
    let place = Place::with_repository(&[]);
    write(place.source().join("file"), b"data");
    place.kopia.set_policy(&["--global", "--keep-latest=1000"]).unwrap();
    // Over three years: the beginning of a year (where weeks and months have equal numbers), ends of months, several
    // in one day and one hour.
    for start in [
        "2023-03-31 10:00:00",
        "2023-12-31 23:00:00",
        "2024-01-02 01:00:00",
        "2024-02-20 01:00:00",
        "2024-02-29 12:00:00",
        "2024-12-30 12:00:00",
        "2025-01-01 12:00:00",
        "2025-01-31 12:00:00",
        "2025-02-18 08:00:00",
        "2025-02-25 08:00:00",
        "2025-03-04 08:00:00",
        "2025-03-28 08:00:00",
        "2025-03-30 08:00:00",
        "2025-03-31 08:00:00",
        "2025-03-31 08:30:00",
        "2025-03-31 09:00:00",
    ] {
        let time = format!("{start} UTC");
        place.kopia.snapshot(&place.source(), &["--start-time", &time, "--end-time", &time]).unwrap();
    }
    let policies = [[2, 3, 4, 5, 6, 3], [0, 2, 0, 4, 12, 1], [1, 0, 30, 6, 1, 2], [0, 0, 0, 0, 0, 0]];
    for [latest, hourly, daily, weekly, monthly, annual] in policies {
        let flags = [
            ("latest", latest),
            ("hourly", hourly),
            ("daily", daily),
            ("weekly", weekly),
            ("monthly", monthly),
            ("annual", annual),
        ];
        let flags: Vec<String> =
            flags.iter().map(|(period, count)| format!("--keep-{period}={count}")).collect();
        place.kopia.run(["policy", "set", "--global"].iter().map(|s| (*s).to_owned()).chain(flags)).unwrap();
        let listed = place.json(&["snapshot", "list", "--all", "--json", "--show-identical"]);
        let theirs: BTreeMap<String, Vec<String>> = listed
            .as_array()
            .unwrap()
            .iter()
            .map(|snapshot| {
                let reasons = serde_json::from_value(snapshot["retentionReason"].clone()).unwrap_or_default();
                (snapshot["id"].as_str().unwrap().to_owned(), reasons)
            })
            .collect();
        let policy = RetentionPolicy {
            keep_latest: Some(latest),
            keep_hourly: Some(hourly),
            keep_daily: Some(daily),
            keep_weekly: Some(weekly),
            keep_monthly: Some(monthly),
            keep_annual: Some(annual),
            ..RetentionPolicy::default()
        };
        let snapshots = place.open().await.snapshots().await.unwrap().snapshots;
        assert_eq!(snapshots.len(), 16);
        let ours = compute_retention(&snapshots, &policy, &TimeZone::UTC);
        let ours: BTreeMap<_, _> = ours.into_iter().map(|kept| (kept.id.to_string(), kept.reasons)).collect();
        assert_eq!(ours, theirs, "{policy:?}");
    }
}
