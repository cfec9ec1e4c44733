//! Healing: what is lost comes back with the next backup, damage never stops the rest, and repair makes a repository
//! that kopia agrees with.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;
mod maintain_common;
#[path = "common/place.rs"]
mod place;
#[path = "common/tree.rs"]
mod tree;

use common::{noise, options};
use lifeboat_blobs::wrap::Fault;
use lifeboat_blobs::wrap::fault::{Action, Rule};
use lifeboat_blobs::{BlobId, BlobStore, Operation, PutOptions};
use lifeboat_kopia::Error;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::maintain::{self, Mode, Options, Safety};
use lifeboat_kopia::object::ObjectId;
use lifeboat_kopia::repair::{self, Finding, FormatRepair, Remedy, RepairOptions, RepairReport};
use lifeboat_kopia::repo::Repository;
use lifeboat_kopia::verify::{self, VerifySnapshots};
use lifeboat_testkit::tree::TreeSpec;
use maintain_common::cut_listings;
use place::{Place, blobs, verify_all};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tree::{back_up, read_folder, read_tree};

/// A repository with two snapshots of a folder, each in packs of its own.
async fn two_backups(create: &CreateOptions) -> (Place, [String; 2]) {
    let place = Place::new(&TreeSpec::small(1));
    let repository = place.create(create).await;
    std::fs::write(place.source().join("first"), noise(1, 300_000)).unwrap();
    let first = back_up(&repository, &place.source(), None).await;
    std::fs::write(place.source().join("second"), noise(2, 300_000)).unwrap();
    let second = back_up(&repository, &place.source(), None).await;
    let roots = [first, second].map(|snapshot| snapshot.root_object().unwrap().to_owned());
    repository.close().await.unwrap();
    (place, roots)
}

fn file_of(place: &Place, blob: &str) -> PathBuf {
    let all = blobs(&place.repository(), blob);
    assert_eq!(all.len(), 1, "{blob}");
    all[0].clone()
}

fn names(place: &Place, prefix: &str) -> BTreeSet<String> {
    let name = |path: PathBuf| {
        let relative = path.strip_prefix(place.repository()).unwrap().to_str().unwrap().replace('/', "");
        relative.strip_suffix(".f").unwrap_or(&relative).to_owned()
    };
    blobs(&place.repository(), prefix).into_iter().map(name).collect()
}

/// The pack that holds the first content of an object.
fn pack_of(repository: &Repository, object: &str) -> String {
    let object: ObjectId = object.parse().unwrap();
    repository.contents().lookup(&object.content()).unwrap().unwrap().pack.to_string()
}

fn flip(path: &PathBuf, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

async fn mend(repository: &Repository, options: &RepairOptions) -> (RepairReport, Vec<String>) {
    let mut found = Vec::new();
    let mut note = |finding: Finding| found.push(finding.to_string());
    let report = repair::run(repository, options, &mut note).await.unwrap();
    (report, found)
}

fn kopia_finds_nothing_wrong(place: &Place, root: &str, target: &str) {
    place.kopia.run(["cache", "clear"]).unwrap();
    place.kopia_agrees(root, target);
    place.kopia.full_maintenance().unwrap();
    place.kopia_agrees(root, &format!("{target}-maintained"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_backup_brings_back_what_was_in_packs_that_are_gone() {
    for version in [1, 3] {
        let (place, [first, second]) =
            two_backups(&CreateOptions { version, ..CreateOptions::default() }).await;
        // Every pack with data, and (where kopia can cope with it afterwards) the one with the folders of the first
        // snapshot and its manifest.
        let lost = pack_of(&place.open().await, &first);
        if version == 3 {
            std::fs::remove_file(file_of(&place, &lost)).unwrap();
        }
        for path in blobs(&place.repository(), "p") {
            std::fs::remove_file(path).unwrap();
        }
        let repository = place.open().await;
        let missing = repository.contents().missing_packs().await;
        assert_eq!(missing.iter().any(|pack| pack.as_str() == lost), version == 3);
        assert_eq!(missing.iter().count(), if version == 3 { 3 } else { 2 });
        let root: ObjectId = second.parse().unwrap();
        assert!(
            repository.objects().is_whole(root).await.unwrap() && !repository.contents().is_whole().await
        );

        let third = back_up(&repository, &place.source(), None).await;
        assert_eq!(third.root_object(), Some(second.as_str()));
        repository.close().await.unwrap();
        let repository = place.open().await;
        assert!(read_tree(&repository, &second).await == read_folder(&place.source()));
        // The folders of the first snapshot are not those of the folder as it is now. With them it is whole again.
        std::fs::rename(place.source().join("second"), place.target("kept")).unwrap();
        let fourth = back_up(&repository, &place.source(), None).await;
        assert_eq!(fourth.root_object(), Some(first.as_str()), "version {version}");
        assert!(read_tree(&repository, &first).await == read_folder(&place.source()));
        let left = mend(&repository, &RepairOptions::default()).await.0;
        let manifests = u64::from(version == 3);
        assert_eq!(
            (left.lost_contents, left.lost_manifests),
            (manifests, manifests),
            "nobody has it to write it again"
        );
        verify_all(&repository).await;
        repository.close().await.unwrap();
        kopia_finds_nothing_wrong(&place, &first, "healed");
        assert!(place.open().await.contents().is_whole().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_repository_costs_nothing_to_look_at_and_needs_no_repair() {
    let (place, [first, second]) = two_backups(&CreateOptions::default()).await;
    let repository = place.open().await;
    for root in [&first, &second] {
        assert!(repository.objects().is_whole(root.parse().unwrap()).await.unwrap());
    }
    let before = names(&place, "");
    let (report, found) = mend(&repository, &RepairOptions { full: true, ..RepairOptions::default() }).await;
    assert!(
        report == RepairReport::default() && report.is_whole() && found.is_empty(),
        "{report:?} {found:?}"
    );
    assert_eq!(names(&place, ""), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_that_maintenance_removed_do_not_count_as_missing() {
    let (place, _) = two_backups(&CreateOptions::default()).await;
    let repository = place.open().await;
    for snapshot in repository.snapshots().await.unwrap().snapshots.iter().take(1) {
        repository.manifests().delete(&snapshot.id).await.unwrap();
    }
    repository.flush().await.unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let report = maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await.unwrap();
    assert!(report.is_clean() && report.reclaimed.count > 0, "{report}");
    assert!(place.open().await.contents().missing_packs().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_index_blob_stops_neither_backups_nor_reads_and_is_repaired() {
    for version in [1, 3] {
        let (place, [first, second]) =
            two_backups(&CreateOptions { version, ..CreateOptions::default() }).await;
        // It has what only the second snapshot needs.
        let damaged = damage_newest_index(&place, version);
        let refused = place.kopia.try_run(["cache", "clear"]).unwrap();
        assert!(!refused.status.success(), "kopia does not open it");

        let repository = place.open().await;
        assert_eq!(repository.contents().damaged_index().len(), 1);
        assert!(read_tree(&repository, &first).await.len() + 1 == read_folder(&place.source()).len());
        assert!(matches!(
            repository.objects().open(second.parse().unwrap()).await,
            Err(Error::ContentNotFound { .. })
        ));
        let again = back_up(&repository, &place.source(), None).await;
        assert_eq!(again.root_object(), Some(second.as_str()));

        let (planned, found) =
            mend(&repository, &RepairOptions { dry_run: true, ..RepairOptions::default() }).await;
        assert!(found.iter().any(|line| line.contains("index blob")), "{found:?}");
        assert!(damaged.exists() && planned.remedies.len() == 2, "{planned:?}");
        let (report, _) = mend(&repository, &RepairOptions::default()).await;
        assert!(report.is_whole() && !damaged.exists(), "{report:?}");
        assert!(matches!(
            report.remedies[0],
            Remedy::IndexRecovered { entries: 1.., unreadable_packs: 0, .. }
        ));
        assert!(repository.contents().damaged_index().is_empty());
        assert_eq!(
            repository.snapshots().await.unwrap().snapshots.len(),
            3,
            "the lost manifest is back as well"
        );
        verify_all(&repository).await;
        assert_eq!(mend(&repository, &RepairOptions::default()).await.0, RepairReport::default());
        kopia_finds_nothing_wrong(&place, &second, "repaired");
    }
}

/// Damages the newest index blob, and returns its file.
fn damage_newest_index(place: &Place, version: u8) -> PathBuf {
    let mut files = blobs(&place.repository(), if version == 1 { "n" } else { "xn" });
    files.sort_by_key(|path| std::fs::metadata(path).unwrap().modified().unwrap());
    let damaged = files.pop().unwrap();
    flip(&damaged, 100);
    damaged
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_that_does_not_see_every_pack_gives_nothing_up() {
    for version in [1, 3] {
        let (place, [_, second]) = two_backups(&CreateOptions { version, ..CreateOptions::default() }).await;
        let damaged = damage_newest_index(&place, version);
        // A listing of one kind of packs that is cut, and listings of all portions of it that are.
        for (kind, every_portion) in [("p", false), ("q", false), ("p", true), ("q", true)] {
            let store = Fault::new(place.store().await);
            let control = store.control();
            let repository = Repository::open(options(Arc::new(store))).await.unwrap();
            match every_portion {
                false => cut_listings(&control, kind, 0),
                true => {
                    let cut = Action::CutListing { after: 0 };
                    control.plan(Rule::on(Operation::List).prefix(kind).times(u64::MAX).action(cut));
                }
            }
            for dry_run in [true, false] {
                let (report, _) =
                    mend(&repository, &RepairOptions { dry_run, ..RepairOptions::default() }).await;
                let unread = report.unread_pack.clone().unwrap();
                assert!(
                    unread.pack.starts_with(kind) && unread.to_string().contains("nobody backs up"),
                    "{unread}"
                );
                assert!(!report.is_whole() && damaged.exists(), "{report:?}");
                assert!(matches!(report.remedies[..], [Remedy::IndexRecovered { .. }]), "{report:?}");
                assert_eq!(repository.contents().damaged_index().len(), 1);
            }
        }
        let repository = place.open().await;
        let blocked =
            maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await.unwrap();
        assert!(blocked.obstacle_count > 0 && blocked.reclaimed.count == 0, "{blocked}");

        let (report, _) = mend(&repository, &RepairOptions::default()).await;
        assert!(report.is_whole() && !damaged.exists(), "{report:?}");
        assert_eq!(repository.snapshots().await.unwrap().snapshots.len(), 2);
        verify_all(&repository).await;
        repository.close().await.unwrap();
        kopia_finds_nothing_wrong(&place, &second, "repaired");
    }
}

/// Packs are gone and the listing of those that are left is cut: what is there is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn contents_of_packs_that_a_listing_leaves_out_are_not_forgotten() {
    let (place, _) = two_backups(&CreateOptions::default()).await;
    let packs = names(&place, "p");
    assert!(packs.len() > 1);
    std::fs::remove_file(file_of(&place, packs.first().unwrap())).unwrap();
    let expected =
        mend(&place.open().await, &RepairOptions { dry_run: true, ..RepairOptions::default() }).await.0;
    assert!(expected.lost_contents > 0, "{expected:?}");
    // The first listing of packs, and the one that is taken because something was not in the first.
    for skip in 0..2 {
        let store = Fault::new(place.store().await);
        let control = store.control();
        let repository = Repository::open(options(Arc::new(store))).await.unwrap();
        let cut = Action::CutListing { after: 0 };
        control.plan(Rule::on(Operation::List).prefix("p").skip(skip).action(cut));
        let (report, _) =
            mend(&repository, &RepairOptions { dry_run: true, ..RepairOptions::default() }).await;
        assert_eq!(report.lost_contents, expected.lost_contents);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_that_cannot_be_read_are_forgotten_so_that_kopia_writes_them_again() {
    let (place, [first, second]) = two_backups(&CreateOptions::default()).await;
    let repository = place.open().await;
    let content = {
        let listing = repository.objects().read_all(second.parse().unwrap(), 1 << 20).await.unwrap();
        let mut entries = lifeboat_kopia::snapshot::DirEntries::new("x", &listing[..]).map(Result::unwrap);
        entries.find(|entry| entry.name.as_str() == Some("first")).unwrap().object
    };
    let object: ObjectId = content.parse().unwrap();
    let location = repository.contents().resolve(&object.content()).unwrap();
    flip(&file_of(&place, location.entry.pack.as_str()), location.range().start as usize + 1000);

    // Every snapshot that it touches is named, with what it is of and the path.
    let mut named = Vec::new();
    let options = VerifySnapshots { read_percent: 100, ..VerifySnapshots::default() };
    verify::snapshots(&repository, &options, &mut |damage| named.push(damage)).await.unwrap();
    assert_eq!(named.iter().map(|damage| damage.path.as_str()).collect::<Vec<_>>(), ["first", "first"]);
    for damage in &named {
        let (source, time) = damage.taken.as_ref().unwrap();
        assert_eq!(source.path, place.source().to_str().unwrap());
        assert!(damage.to_string().contains(&time.to_string()), "{damage}");
    }

    let quick = mend(&repository, &RepairOptions { dry_run: true, ..RepairOptions::default() }).await.0;
    assert!(quick.is_whole(), "only reading shows it");
    let full = RepairOptions { full: true, ..RepairOptions::default() };
    let (report, found) = mend(&repository, &full).await;
    assert_eq!((report.lost_contents, report.lost_manifests), (1, 0), "{found:?}");
    assert!(matches!(report.remedies[..], [Remedy::ContentsForgotten { count: 1 }]));
    drop(repository);

    // Kopia would have taken the content for being there. (It reads files again whose times have changed.)
    std::fs::write(place.source().join("first"), noise(1, 300_000)).unwrap();
    place.kopia.run(["cache", "clear"]).unwrap();
    place.kopia.snapshot(&place.source(), &[]).unwrap();
    let repository = place.open().await;
    let (report, found) = mend(&repository, &full).await;
    assert!(report.is_whole() && found.is_empty(), "{report:?} {found:?}");
    verify_all(&repository).await;
    assert_eq!(read_tree(&repository, &first).await.len() + 1, read_folder(&place.source()).len());
    kopia_finds_nothing_wrong(&place, &second, "again");
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_that_cannot_be_read_stop_nothing_and_are_forgotten() {
    let (place, [first, second]) = two_backups(&CreateOptions::default()).await;
    let repository = place.open().await;
    let manifests: Vec<_> = repository
        .contents()
        .iterate(
            lifeboat_kopia::content::ContentRange::Prefix(lifeboat_index::Prefix::MANIFEST),
            lifeboat_index::Deleted::Skip,
        )
        .map(Result::unwrap)
        .collect();
    // The one of the first snapshot; the others hold the policy and the second snapshot.
    let lost = manifests.iter().find(|entry| entry.pack.as_str() == pack_of(&repository, &first)).unwrap();
    flip(&file_of(&place, lost.pack.as_str()), lost.pack_offset as usize + 20);
    drop(repository);

    let repository = place.open().await;
    assert_eq!(repository.snapshots().await.unwrap().snapshots.len(), 1);
    assert_eq!(repository.manifests().damage().await.unwrap().len(), 1);
    std::fs::write(place.source().join("third"), noise(3, 5000)).unwrap();
    let third = back_up(&repository, &place.source(), None).await;
    assert!(read_tree(&repository, third.root_object().unwrap()).await == read_folder(&place.source()));
    let blocked = maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await.unwrap();
    assert!(blocked.obstacle_count > 0, "nobody knows which snapshots were in there: {blocked}");

    place.kopia.run(["cache", "clear"]).unwrap();
    let refused = place.kopia.try_run(["snapshot", "list", "--all"]).unwrap();
    assert!(!refused.status.success(), "kopia lists nothing");
    let (report, _) = mend(&repository, &RepairOptions { full: true, ..RepairOptions::default() }).await;
    assert_eq!((report.lost_contents, report.lost_manifests, report.damaged_files), (1, 1, 0));
    repository.close().await.unwrap();
    kopia_finds_nothing_wrong(&place, third.root_object().unwrap(), "repaired");
    assert_eq!(place.kopia.snapshots().unwrap().len(), 2);
    let repository = place.open().await;
    assert!(repository.manifests().damage().await.unwrap().is_empty());
    assert!(read_tree(&repository, &second).await.len() + 1 == read_folder(&place.source()).len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_format_blob_is_put_back_from_packs_that_carry_it() {
    let create = CreateOptions { version: 1, ..CreateOptions::default() };
    let (place, [_, second]) = two_backups(&create).await;
    let store = place.store().await;
    let password = Password::new("correct horse");
    assert_eq!(repair::format_blob(&store, &password, false).await.unwrap(), FormatRepair::Sound);
    let id = BlobId::new("kopia.repository").unwrap();
    let good = store.get(&id).await.unwrap();
    for bad in [None, Some(good.slice(..good.len() / 2)), Some(b"".as_slice().into())] {
        match bad {
            None => store.delete(&id).await.unwrap(),
            Some(bytes) => store.put(&id, bytes.into(), &PutOptions::default()).await.unwrap(),
        }
        assert!(Repository::open(options(Arc::new(place.store().await))).await.is_err());
        let wrong = repair::format_blob(&store, &Password::new("wrong"), false).await;
        assert!(wrong.is_err(), "{wrong:?}");
        let planned = repair::format_blob(&store, &password, true).await.unwrap();
        assert!(matches!(planned, FormatRepair::Restored { .. }));
        let done = repair::format_blob(&store, &password, false).await.unwrap();
        assert!(matches!(done, FormatRepair::Restored { from } if from.as_str().starts_with('p')));
        assert_eq!(store.get(&id).await.unwrap(), good);
    }
    verify_all(&place.open().await).await;
    kopia_finds_nothing_wrong(&place, &second, "restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_blobs_are_made_again() {
    let (place, [_, second]) = two_backups(&CreateOptions::default()).await;
    let repository = place.open().await;
    maintain::run(&repository, Mode::Quick, &Safety::FULL, &Options::default()).await.unwrap();
    let store = place.store().await;
    let put = async |name: &str, bytes: &'static [u8]| {
        store.put(&BlobId::new(name).unwrap(), bytes.into(), &PutOptions::default()).await.unwrap();
    };
    put("kopia.maintenance", b"garbage").await;
    put("xe1", b"").await;
    let failed =
        maintain::run(&repository, Mode::Quick, &Safety::FULL, &Options::default()).await.unwrap_err();
    assert!(failed.to_string().contains("kopia.maintenance"), "{failed}");
    let (report, _) = mend(&repository, &RepairOptions::default()).await;
    let marker = Remedy::MarkerWritten { blob: "xe1".into() };
    assert!(
        report.remedies.contains(&Remedy::ScheduleReset) && report.remedies.contains(&marker),
        "{report:?}"
    );
    maintain::run(&repository, Mode::Quick, &Safety::FULL, &Options::default()).await.unwrap();
    repository.close().await.unwrap();

    put("kopia.blobcfg", b"garbage").await;
    let refused = Repository::open(options(Arc::new(place.store().await))).await.unwrap_err();
    assert!(refused.to_string().contains("kopia.blobcfg"), "{refused}");
    let environment = lifeboat_kopia::Environment::default();
    let password = Password::new("correct horse");
    assert!(repair::config(&store, &password, &environment, None, false).await.unwrap());
    assert!(!repair::config(&store, &password, &environment, None, false).await.unwrap());
    verify_all(&place.open().await).await;
    kopia_finds_nothing_wrong(&place, &second, "repaired");
}
