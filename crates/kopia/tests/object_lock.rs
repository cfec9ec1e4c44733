//! Object locks: set on what is written, extended for what snapshots need, and respected by maintenance.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;
mod maintain_common;
#[path = "common/tree.rs"]
mod tree;

use jiff::SignedDuration;
use lifeboat_blobs::s3::{self, S3Credentials, S3Options};
use lifeboat_blobs::{BlobMetadata, BlobStore, ErrorKind, Retention, RetentionMode};
use lifeboat_kopia::format::CreateOptions;
use lifeboat_kopia::maintain::{self, Mode, Options, Outcome, Pending, Report, Safety, Waiting};
use lifeboat_kopia::maintenance::{Params, Task};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_primitives::kdf::KeyAlgorithm;
use lifeboat_testkit::kopia::{Kopia, S3Location};
use lifeboat_testkit::servers::Minio;
use lifeboat_testkit::tree::TreeSpec;
use maintain_common::*;
use std::sync::Arc;
use std::time::Duration;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn retention(days: u64) -> Retention {
    Retention { mode: RetentionMode::Compliance, period: Duration::from_secs(days * 86_400) }
}

async fn locked_repository(options: OpenOptions, days: u64) -> Repository {
    let create = CreateOptions {
        key_algorithm: KeyAlgorithm::Pbkdf2,
        retention: Some(retention(days)),
        ..CreateOptions::default()
    };
    let repository = Repository::create(options, &create, InitialState::Kopia).await.unwrap();
    let params = Params::load(repository.manifests()).await.unwrap().unwrap();
    Params { extend_object_locks: true, ..params }.save(repository.manifests()).await.unwrap();
    repository.flush().await.unwrap();
    repository
}

fn locked(report: &Report) -> Option<&Pending> {
    report.pending.iter().find(|pending| pending.waiting == Waiting::LockedBlobs)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_locked_but_for_what_has_to_go_soon() {
    let world = World::new();
    let repository = locked_repository(world.options(), 7).await;
    let data = files(&[("a", 1, 30_000)]);
    take_snapshot(&repository, &data).await;
    run(&repository, Mode::Quick, &Safety::FULL).await;
    assert!(world.names("s").await.is_empty(), "the session marker could be deleted");
    for blob in world.list("").await {
        let refused = world.store.delete(&blob.id).await.is_err_and(|e| e.kind() == ErrorKind::Locked);
        assert_eq!(refused, blob.id.as_str() != "kopia.maintenance", "{}", blob.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_extends_what_snapshots_need_and_waits_for_the_locks_of_the_rest() {
    let world = World::new();
    let repository = locked_repository(world.options(), 7).await;
    let kept = files(&[("a", 1, 300_000)]);
    let id = take_snapshot(&repository, &kept).await;
    let packs_of_kept = world.names("p").await;
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 300_000)])).await;
    let packs: Vec<BlobMetadata> = world.list("p").await;
    let doomed_pack =
        packs.iter().find(|pack| !packs_of_kept.contains(&pack.id.to_string())).unwrap().clone();
    delete_snapshot(&repository, &doomed).await;

    // Day after day, until what the deleted snapshot needed may go but for its lock.
    let mut report = full(&repository).await;
    for _ in 0..5 {
        world.clock.advance(DAY);
        report = full(&repository).await;
        assert!(report.is_clean(), "{report}");
    }
    let waiting = locked(&report).unwrap_or_else(|| panic!("{report}"));
    assert!(waiting.amount.bytes >= doomed_pack.size, "{report}");
    assert!(waiting.not_before >= doomed_pack.modified + 7 * DAY, "{report}");
    assert!(waiting.not_before <= doomed_pack.modified + 9 * DAY, "{report}");
    assert_eq!(report.task(Task::ExtendBlobRetentionTime).unwrap().outcome, Outcome::Done);
    assert!(world.names("p").await.contains(&doomed_pack.id.to_string()));

    // What is needed is locked for longer than it was at first; what is not goes when its time has come.
    for _ in 0..4 {
        world.clock.advance(DAY);
        report = full(&repository).await;
        assert!(report.is_clean(), "{report}");
    }
    assert!(!world.names("p").await.contains(&doomed_pack.id.to_string()), "{report}");
    for pack in world.names("p").await {
        let refused = world.store.delete(&maintain_common::id(&pack)).await;
        assert!(
            refused.is_err_and(|error| error.kind() == ErrorKind::Locked),
            "{pack} is not locked any more"
        );
    }
    assert!(restore(&repository, &id).await == kept);
    assert_sound(&repository).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_only_the_store_knows_of_is_counted_and_is_no_failure() {
    let world = World::new();
    let repository = world.create(3).await;
    let doomed = take_snapshot(&repository, &files(&[("b", 2, 300_000)])).await;
    delete_snapshot(&repository, &doomed).await;
    for pack in world.list("p").await {
        world.store.extend_retention(&pack.id, &retention(2)).await.unwrap();
    }
    world.clock.advance(hours(1));
    let report = run(&repository, Mode::Full, &Safety::NONE).await;
    assert!(
        report.is_clean() && locked(&report).is_some_and(|waiting| waiting.amount.bytes > 300_000),
        "{report}"
    );
    assert!(world.data_bytes().await > 300_000);
    world.clock.advance(3 * DAY);
    let report = run(&repository, Mode::Full, &Safety::NONE).await;
    assert!(report.is_clean() && locked(&report).is_none(), "{report}");
    assert!(world.data_bytes().await < 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_that_end_before_they_are_extended_are_refused() {
    let world = World::new();
    let repository = locked_repository(world.options(), 1).await;
    let report = full(&repository).await;
    let task = report.task(Task::ExtendBlobRetentionTime).unwrap();
    assert!(task.outcome == Outcome::Failed && task.summary.contains("must be longer"), "{report}");
}

/// A bucket with object lock, and a repository in it.
async fn minio_repository(server: &Minio, bucket: &str) -> (Arc<dyn BlobStore>, Repository) {
    server.create_locked_bucket(bucket).unwrap();
    let credentials = S3Credentials::Static {
        key_id: server.access_key().to_owned(),
        secret: server.secret_key().to_owned(),
        token: None,
    };
    let options = S3Options { endpoint: Some(server.endpoint()), credentials, ..S3Options::new(bucket) };
    let store = s3::open(&options).await.unwrap();
    let repository = locked_repository(common::options(store.clone()), 3).await;
    (store, repository)
}

/// Whether a blob has a lock that nobody may lift: the store refuses to replace it by a weaker one.
async fn is_locked_for_good(store: &dyn BlobStore, blob: &BlobMetadata) -> bool {
    let weaker = Retention { mode: RetentionMode::Governance, ..retention(30) };
    store.extend_retention(&blob.id, &weaker).await.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_object_lock_is_written_maintained_and_shared_with_kopia() {
    let server = Minio::start().unwrap();
    let (store, repository) = minio_repository(&server, "locked").await;
    let source = tempfile::tempdir().unwrap();
    TreeSpec::small(1).grow(&source.path().join("tree")).unwrap();
    let taken = tree::back_up(&repository, &source.path().join("tree"), None).await;
    let doomed = tree::back_up(&repository, source.path(), None).await;
    let list = async |prefix: &str| {
        use futures::TryStreamExt;
        store.list(prefix).try_collect::<Vec<_>>().await.unwrap()
    };
    for prefix in ["p", "q", "x", "kopia.repository", "kopia.blobcfg"] {
        for blob in list(prefix).await {
            assert!(is_locked_for_good(&*store, &blob).await, "{}", blob.id);
        }
    }
    repository.manifests().delete(&doomed.id).await.unwrap();
    repository.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let report = maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await.unwrap();
    assert!(report.is_clean(), "{report}");
    let extended = report.task(Task::ExtendBlobRetentionTime).unwrap();
    assert!(extended.outcome == Outcome::Done && !extended.summary.ends_with(": 0"), "{report}");
    let waiting = locked(&report).unwrap_or_else(|| panic!("{report}"));
    let now = repository.environment().clock.now();
    assert!(waiting.not_before > now + 2 * DAY && waiting.not_before < now + 5 * DAY, "{report}");
    assert_sound(&repository).await;

    // Kopia keeps to the same rules, on the same repository.
    let mut kopia = Kopia::new("correct horse").unwrap();
    let place = S3Location { server: &server, bucket: "locked", prefix: "" };
    let identity = ["--override-username=tester", "--override-hostname=testhost"];
    kopia.connect_s3(place, &identity).unwrap();
    kopia.verify_contents().unwrap();
    kopia.verify_snapshots().unwrap();
    kopia.snapshot(&source.path().join("tree"), &[]).unwrap();
    kopia.run(["maintenance", "run", "--full", "--safety=none"]).unwrap();
    kopia.verify_contents().unwrap();
    let repository = Repository::open(common::options(store.clone())).await.unwrap();
    assert_sound(&repository).await;
    let root = taken.root_object().unwrap();
    assert!(tree::read_tree(&repository, root).await == tree::read_folder(&source.path().join("tree")));
    let report = maintain::run(&repository, Mode::Full, &Safety::NONE, &Options::default()).await.unwrap();
    assert!(report.is_clean(), "{report}");
}
