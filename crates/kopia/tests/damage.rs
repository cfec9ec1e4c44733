//! Every kind of blob, damaged in every way: what happens is a table, and never a panic or wrong data.
#![allow(missing_docs, clippy::unwrap_used)]

mod maintain_common;

use jiff::Timestamp;
use lifeboat_blobs::{BlobId, BlobMetadata};
use lifeboat_index::Deleted;
use lifeboat_kopia::content::{ContentRange, RecoverOptions};
use lifeboat_kopia::format::{Format, Password, RepositoryFormat, RequiredFeature, UpgradeLock};
use lifeboat_kopia::gojson::GoTime;
use lifeboat_kopia::maintain::{self, Mode, Options, Safety};
use lifeboat_kopia::manifest::ManifestId;
use lifeboat_kopia::repo::{Access, OpenOptions, Repository};
use lifeboat_kopia::session::{SessionId, SessionMarker};
use lifeboat_kopia::snapshot::DirEntries;
use lifeboat_kopia::verify::{self, VerifyBlobs, VerifyContents, VerifySnapshots};
use lifeboat_kopia::{Clock, Environment, Error};
use maintain_common::*;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Format,
    Config,
    Schedule,
    DataPack,
    MetadataPack,
    /// `xn`, or `n` without epochs.
    Index,
    /// `xs`.
    CompactedEpoch,
    /// `xr`.
    RangeCheckpoint,
    EpochMarker,
    Watermark,
    /// `m` without epochs.
    CompactionLog,
    Session,
    Log,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    /// The first half and then zeros.
    Torn,
    Half,
    Empty,
    FlippedAtStart,
    FlippedInTheMiddle,
    FlippedAtEnd,
    Missing,
    /// Under another name of its kind.
    Duplicated,
    /// With another blob of its kind, or of a related one if it is the only one.
    Swapped,
}

const DAMAGES: [Damage; 9] = [
    Damage::Torn,
    Damage::Half,
    Damage::Empty,
    Damage::FlippedAtStart,
    Damage::FlippedInTheMiddle,
    Damage::FlippedAtEnd,
    Damage::Missing,
    Damage::Duplicated,
    Damage::Swapped,
];

/// What a damage comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The repository is not opened; the error names the blob.
    Refused,
    /// It can be read, but not written to; the error of whoever wants to names the blob.
    ReadOnly,
    /// Some of it cannot be read; errors and verification name the blob. The rest is right.
    Named,
    /// All of it can be read; verification names the blob.
    NamedButHarmless,
    /// All of it can be read, and there is nothing to be noticed.
    Harmless,
    /// Nobody can tell that there was something; what can be read is right, and the packs still know the rest.
    Recoverable,
    /// None of these, which must not be.
    Wrong,
}

/// The table.
fn expected(kind: Kind, damage: Damage) -> Outcome {
    use {Damage::*, Kind::*, Outcome::*};
    match (kind, damage) {
        // Copies beside it are of no interest to anybody.
        (Format | Config | Schedule, Duplicated) => Harmless,
        (Format, _) => Refused,
        // A repository without one has no retention.
        (Config, Missing) => Harmless,
        (Config, _) => ReadOnly,
        // It begins anew.
        (Schedule, Missing) => Harmless,
        // With the configuration, which is noticed first.
        (Schedule, Swapped) => ReadOnly,
        // Nothing but maintenance needs it, and that says so.
        (Schedule, _) => NamedButHarmless,

        // A pack begins with bytes that mean nothing (and in format version 1 with a copy of the format).
        (DataPack | MetadataPack, FlippedAtStart) => Harmless,
        // It ends with what only the recovery of a lost index needs.
        (DataPack | MetadataPack, FlippedAtEnd) => NamedButHarmless,
        // The copy is none of anybody's packs.
        (DataPack | MetadataPack, Duplicated) => NamedButHarmless,
        (DataPack | MetadataPack, _) => Named,

        // Index blobs know nothing of each other.
        (Index, Missing) => Recoverable,
        // The name is the key: under another one it cannot be opened, and the first one is still there.
        (Index | CompactedEpoch | RangeCheckpoint | CompactionLog | Session | Log, Duplicated) => {
            NamedButHarmless
        }
        (Index, _) => Named,
        (CompactedEpoch, _) => Named,
        // The compacted epochs that it was made of are kept, and count again.
        (RangeCheckpoint, Missing) => Harmless,
        (RangeCheckpoint, Swapped) => Named,
        (RangeCheckpoint, _) => NamedButHarmless,
        // What it had replaced counts again beside it.
        (CompactionLog, Missing) => Harmless,
        (CompactionLog, _) => NamedButHarmless,

        // Only the name counts, and the epoch is known from other names as well.
        (EpochMarker, Missing) => NamedButHarmless,
        // Epochs have no contents of their own: the next one begins early.
        (EpochMarker | Watermark, Duplicated) => Harmless,
        // All of them hold the same.
        (EpochMarker | Watermark, Swapped) => Harmless,
        // Deletions that were dropped are known again, which changes nothing for what is not deleted.
        (Watermark, Missing) => Harmless,
        (EpochMarker | Watermark, _) => NamedButHarmless,

        // A session that cannot be read counts as alive, one that is gone was done; logs are for people.
        (Session | Log, Missing) => Harmless,
        (Session | Log, _) => NamedButHarmless,
    }
}

/// A repository that has every kind of blob at least once, and most of them twice.
struct Scene {
    world: World,
    expected: BTreeMap<ManifestId, Files>,
    targets: BTreeMap<Kind, (BlobId, BlobId)>,
    /// The middle of the largest content of each pack: most of a small pack means nothing.
    middles: BTreeMap<String, usize>,
}

impl Scene {
    async fn new(version: u8) -> Scene {
        let world = World::new();
        let mut repository = world.create(version).await;
        if version > 1 {
            repository = quicken_epochs(&world, repository, 4).await;
        }
        let mut expected = BTreeMap::new();
        // Contents stay where they are, so that index blobs of every age are needed.
        let min_content_age_for_rewrite = hours(10_000);
        let safety = Safety { two_gc_cycles: false, min_content_age_for_rewrite, ..Safety::FULL };
        let mut number = 0;
        for round in 0..9 {
            let content = files(&[("a", 1, 30_000), ("sub/b", 100 + round, 150_000)]);
            expected.insert(take_snapshot(&repository, &content).await, content);
            for _ in 0..10 {
                number += 1;
                write_orphan(&repository, 1_000_000 + number).await;
                world.clock.advance(jiff::SignedDuration::from_mins(5));
            }
            run(&repository, Mode::Full, &safety).await;
            world.clock.advance(hours(2));
        }
        let mut seed = 200;
        // The last epoch is not one that has only just begun: another one after it would make a hole of it.
        while seed < 202 || (version > 1 && is_last_epoch_empty(&world).await) {
            let content = files(&[("a", 1, 30_000), ("sub/b", seed, 150_000)]);
            expected.insert(take_snapshot(&repository, &content).await, content);
            seed += 1;
        }
        write_sessions_and_logs(&world, &repository).await;
        if version > 1 {
            let watermark = world.names("xw").await.pop().unwrap();
            let earlier = watermark[2..].parse::<i64>().unwrap() - 1;
            world.put(&id(&format!("xw{earlier}")), b"deletion-watermark").await;
        }
        let targets = targets(&world, version).await;
        let mut largest: BTreeMap<String, (u32, usize)> = BTreeMap::new();
        for entry in repository.contents().iterate(ContentRange::All, Deleted::Skip) {
            let entry = entry.unwrap();
            let middle = (entry.packed_length, entry.pack_offset as usize + entry.packed_length as usize / 2);
            let known = largest.entry(entry.pack.to_string()).or_insert(middle);
            *known = middle.max(*known);
        }
        let middles = largest.into_iter().map(|(pack, (_, middle))| (pack, middle)).collect();
        Scene { world, expected, targets, middles }
    }

    /// What became of a damage, and what was said about it.
    async fn observe(&self, kind: Kind, damage: Damage) -> (Outcome, String) {
        let world = self.world.fork().await;
        let (target, partner) = &self.targets[&kind];
        let name = self.inflict(&world, target, partner, damage).await;
        // Of two that were exchanged, either one may be noticed first.
        let mut names = vec![name.as_str(), stem(&name)];
        if damage == Damage::Swapped {
            names.push(partner.as_str());
        }
        let mut said = String::new();
        let opened = match Repository::open(world.options()).await {
            Ok(repository) => Some(repository),
            Err(error) => {
                writeln!(said, "{error}").unwrap();
                if !names.iter().any(|name| said.contains(name)) {
                    return (Outcome::Wrong, said);
                }
                None
            }
        };
        let read_only = opened.is_none();
        let opened = match opened {
            Some(repository) => repository,
            None => {
                let options = OpenOptions { access: Access::ReadOnly, ..world.options() };
                match Repository::open(options).await {
                    Ok(repository) => repository,
                    Err(_) => return (Outcome::Refused, said),
                }
            }
        };
        let all_read = self.read_all(&opened, &mut said).await;
        verify_everything(&opened, &mut said).await;
        let named = names.iter().any(|name| said.contains(name));
        let recoverable = all_read || {
            let plan = opened.contents().recover_index(&RecoverOptions::default(), &mut |_, _| {}).await;
            plan.is_ok_and(|plan| plan.missing > 0)
        };
        let outcome = match (read_only, all_read, named, recoverable) {
            (true, true, ..) => Outcome::ReadOnly,
            (_, false, true, _) => Outcome::Named,
            (_, true, true, _) => Outcome::NamedButHarmless,
            (_, true, false, _) if said.is_empty() => Outcome::Harmless,
            (_, false, false, true) if said.is_empty() => Outcome::Recoverable,
            _ => Outcome::Wrong,
        };
        if !read_only && outcome != Outcome::Recoverable {
            drop(opened);
            // Data that only some snapshots need does not keep what no snapshot needs from being deleted.
            let stops = outcome == Outcome::Named && (kind != Kind::DataPack || damage == Damage::Missing);
            if let Err(what) = self.maintain_and_undo(&world, &name, stops).await {
                return (Outcome::Wrong, what);
            }
        }
        (outcome, said)
    }

    /// Damages a blob; returns the name of the one that is wrong now.
    async fn inflict(&self, world: &World, target: &BlobId, partner: &BlobId, damage: Damage) -> String {
        let bytes = world.get(target).await;
        let flipped = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            bytes
        };
        let half = self.middles.get(target.as_str()).copied().unwrap_or(bytes.len() / 2);
        let bad = match damage {
            Damage::Torn => [&bytes[..half], &vec![0; bytes.len() - half]].concat(),
            Damage::Half => bytes[..half].to_vec(),
            Damage::Empty => Vec::new(),
            Damage::FlippedAtStart => flipped(0),
            Damage::FlippedInTheMiddle => flipped(half),
            Damage::FlippedAtEnd => flipped(bytes.len() - 1),
            Damage::Missing => {
                world.delete(target).await;
                return target.to_string();
            }
            Damage::Duplicated => {
                let other = id(&other_name(target.as_str()));
                world.put(&other, &bytes).await;
                return other.to_string();
            }
            Damage::Swapped => {
                assert_ne!(target, partner, "there is nothing to exchange it with");
                let others = world.get(partner).await;
                world.put(partner, &bytes).await;
                others
            }
        };
        world.put(target, &bad).await;
        target.to_string()
    }

    /// Reads every snapshot; says what failed. Never is anything else than what was written read.
    async fn read_all(&self, repository: &Repository, said: &mut String) -> bool {
        let mut all = true;
        let listed = repository.snapshots().await.unwrap();
        for damaged in repository.manifests().damage().await.unwrap() {
            writeln!(said, "{}", damaged.reason).unwrap();
        }
        let listed: Vec<_> = listed.snapshots.into_iter().map(|snapshot| snapshot.id).collect();
        all &= listed.len() == self.expected.len();
        for id in listed {
            let expected = &self.expected[&id];
            for (path, data) in expected {
                match read_file(repository, &id, path).await {
                    Ok(found) => assert!(found == *data, "{path} of {id} is not what was written"),
                    Err(error) => {
                        all = false;
                        writeln!(said, "{error}").unwrap();
                    }
                }
            }
        }
        all
    }

    /// Maintenance without any margin must not make it worse: with the blobs as they were, everything is there.
    async fn maintain_and_undo(&self, world: &World, name: &str, stops: bool) -> Result<(), String> {
        let repository = world.open().await;
        let report = maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await;
        let stopped = report.as_ref().map_or(true, |report| report.obstacle_count > 0);
        let report = report.map_or_else(|error| error.to_string(), |report| report.to_string());
        if stops && !stopped {
            return Err(format!("maintenance did not stop: {report}"));
        }
        for blob in self.world.list("").await {
            let of_targets = |(target, partner): &(BlobId, BlobId)| [target, partner].contains(&&blob.id);
            if self.targets.values().any(of_targets) {
                world.put(&blob.id, &self.world.get(&blob.id).await).await;
            }
        }
        let mut said = String::new();
        match self.read_all(&world.open().await, &mut said).await {
            true => Ok(()),
            false => Err(format!("after maintenance, with {name} as it was: {said}\n{report}")),
        }
    }
}

/// The part of a name that tells of an index blob which is not there.
fn stem(name: &str) -> &str {
    match name.rfind('_') {
        Some(at) if name.starts_with("xs") || name.starts_with("xr") => &name[..=at],
        _ => name,
    }
}

async fn write_sessions_and_logs(world: &World, repository: &Repository) {
    let sealer = repository.contents().sealer();
    for number in 0..2u8 {
        let session = SessionId::generate(&Environment::default()).unwrap();
        let marker = SessionMarker::new(session.clone(), Timestamp::now(), "tester", "testhost");
        let sealed = sealer.seal_blob(&serde_json::to_vec(&marker).unwrap()).unwrap();
        world.put(&id(&sealed.name("s", Some(session.as_str()))), sealed.bytes()).await;
        let sealed = sealer.seal_blob(&noise(number.into(), 500)).unwrap();
        let name = sealed.name(&format!("_log_20250615120000_abc{number}_1750000000_1750000001_1_"), None);
        world.put(&id(&name), sealed.bytes()).await;
    }
}

/// The blob of each kind that is damaged, and the one it is exchanged with.
async fn targets(world: &World, version: u8) -> BTreeMap<Kind, (BlobId, BlobId)> {
    let largest = |mut blobs: Vec<BlobMetadata>| {
        blobs.sort_by_key(|blob| blob.size);
        let mut last = blobs.into_iter().rev().map(|blob| blob.id);
        let first = last.next().unwrap();
        let second = last.next().unwrap_or_else(|| first.clone());
        (first, second)
    };
    let newest = |mut blobs: Vec<BlobMetadata>| {
        blobs.sort_by_key(|blob| (blob.modified, blob.size));
        let mut last = blobs.into_iter().rev().map(|blob| blob.id);
        (last.next().unwrap(), last.next().unwrap())
    };
    let pair = |a: &str, b: &str| (id(a), id(b));
    let mut targets = BTreeMap::from([
        (Kind::Format, pair("kopia.repository", "kopia.blobcfg")),
        (Kind::Config, pair("kopia.blobcfg", "kopia.maintenance")),
        (Kind::Schedule, pair("kopia.maintenance", "kopia.blobcfg")),
        (Kind::DataPack, largest(world.list("p").await)),
        (Kind::MetadataPack, largest(world.list("q").await)),
        (Kind::Session, largest(world.list("s").await)),
        (Kind::Log, largest(world.list("_log").await)),
    ]);
    if version > 1 {
        targets.insert(Kind::Index, newest(world.list("xn").await));
        let compacted = compacted_epochs(world).await;
        let range = (largest(world.list("xr").await).0, compacted.0.clone());
        targets.insert(Kind::CompactedEpoch, compacted);
        targets.insert(Kind::RangeCheckpoint, range);
        targets.insert(Kind::EpochMarker, newest(world.list("xe").await));
        targets.insert(Kind::Watermark, newest(world.list("xw").await));
    } else {
        targets.insert(Kind::Index, newest(world.list("n").await));
        targets.insert(Kind::CompactionLog, largest(world.list("m").await));
    }
    targets
}

async fn is_last_epoch_empty(world: &World) -> bool {
    let state = lifeboat_kopia::epoch::EpochState::from_listing(world.list("x").await);
    !state.uncompacted.contains_key(&state.write_epoch)
}

/// A compacted epoch that is in force and whose former blobs are gone, and another one.
async fn compacted_epochs(world: &World) -> (BlobId, BlobId) {
    let state = lifeboat_kopia::epoch::EpochState::from_listing(world.list("x").await);
    assert!(!state.chain.is_empty());
    let in_force = state.singles.range(state.first_unchained()..);
    let alone = in_force.filter(|(epoch, _)| !state.uncompacted.contains_key(epoch));
    // The largest one: some epochs have nothing but contents that no snapshot needs.
    let (epoch, target) = alone.max_by_key(|(_, blobs)| blobs[0].size).unwrap();
    let (_, partner) = state.singles.iter().find(|(other, _)| *other != epoch).unwrap();
    (target[0].id.clone(), partner[0].id.clone())
}

/// Another name of the same kind.
fn other_name(name: &str) -> String {
    if name.starts_with("kopia.") {
        return format!("{name}.copy");
    }
    if let Some((kind, number)) = name.split_at_checked(2).filter(|(kind, _)| ["xe", "xw"].contains(kind)) {
        return format!("{kind}{}", number.parse::<i64>().unwrap() + 1);
    }
    // The last digit of the hash is another one.
    let stem = name.split('-').next().unwrap();
    let (rest, digit) = stem.split_at(stem.len() - 1);
    let digit = if digit == "0" { "1" } else { "0" };
    format!("{rest}{digit}{}", &name[stem.len()..])
}

async fn read_file(repository: &Repository, snapshot: &ManifestId, path: &str) -> Result<Vec<u8>, Error> {
    let snapshot = lifeboat_kopia::snapshot::load(repository.manifests(), snapshot).await?;
    let mut object = snapshot.root_entry.unwrap().object;
    for name in path.split('/') {
        let listing = repository.objects().read_all(object.parse().unwrap(), 1 << 20).await?;
        let mut entries = DirEntries::new(object, &listing[..]).map(Result::unwrap);
        object = entries.find(|entry| entry.name.as_str() == Some(name)).unwrap().object;
    }
    Ok(repository.objects().read_all(object.parse().unwrap(), 1 << 30).await?.to_vec())
}

async fn verify_everything(repository: &Repository, said: &mut String) {
    let mut all = Vec::new();
    verify::blobs(repository, &VerifyBlobs::default(), &mut |damage| all.push(damage.to_string()))
        .await
        .unwrap();
    let full = VerifyContents { full: true, ..VerifyContents::default() };
    verify::contents(repository, &full, &mut |damage| all.push(damage.to_string())).await.unwrap();
    let full = VerifySnapshots { read_percent: 100, ..VerifySnapshots::default() };
    verify::snapshots(repository, &full, &mut |damage| all.push(damage.to_string())).await.unwrap();
    all.iter().for_each(|line| writeln!(said, "{line}").unwrap());
}

async fn check_table(version: u8) {
    let scene = Scene::new(version).await;
    let mut wrong = String::new();
    for kind in scene.targets.keys().copied() {
        for damage in DAMAGES {
            let (outcome, said) = scene.observe(kind, damage).await;
            if outcome != expected(kind, damage) {
                let line = format!("{kind:?} {damage:?}: {outcome:?}, not {:?}", expected(kind, damage));
                writeln!(wrong, "{line}\n{}", said.lines().take(6).collect::<Vec<_>>().join("\n")).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "format version {version}\n{wrong}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_any_blob_is_named_or_harmless_with_epochs() {
    check_table(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_to_any_blob_is_named_or_harmless_without_epochs() {
    check_table(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_reason_not_to_open_has_an_error_of_its_own_that_says_what_to_do() {
    let world = World::new();
    let repository = world.create(3).await;
    let wrong = OpenOptions { password: Password::new("wrong"), ..world.options() };
    let error = Repository::open(wrong).await.unwrap_err();
    assert!(
        matches!(error, Error::WrongPassword) && error.to_string().contains("give the password"),
        "{error}"
    );

    let environment = repository.environment().clone();
    let open = async || Format::open(&world.store, &Password::new(PASSWORD), &environment, None).await;
    let lock = UpgradeLock {
        owner_id: "alice@host".into(),
        creation_time: GoTime(world.clock.now()),
        message: "back at noon".into(),
        ..UpgradeLock::default()
    };
    let mut format = open().await.unwrap();
    format.set_parameters(&world.store, &environment, |f, _| f.upgrade_lock = Some(lock)).await.unwrap();
    let error = Repository::open(world.options()).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::UpgradeInProgress { .. }), "{text}");
    assert!(["alice@host", "back at noon", "wait"].iter().all(|part| text.contains(part)), "{text}");
    // Who was at work when it began stops, too.
    assert!(matches!(repository.refresh().await, Err(Error::UpgradeInProgress { .. })));

    let feature = RequiredFeature { feature: "time-travel".into(), ..RequiredFeature::default() };
    let change = |f: &mut RepositoryFormat, _: &mut _| {
        f.upgrade_lock = None;
        f.required_features = vec![feature];
    };
    format.set_parameters(&world.store, &environment, change).await.unwrap();
    let error = Repository::open(world.options()).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::RequiredFeature { .. }), "{text}");
    assert!(text.contains("time-travel") && text.contains("use a newer program"), "{text}");

    world.delete(&id("kopia.repository")).await;
    let error = Repository::open(world.options()).await.unwrap_err();
    assert!(
        matches!(error, Error::NoRepository { .. }) && error.to_string().contains("check bucket"),
        "{error}"
    );
}
