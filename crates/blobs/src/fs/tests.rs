#![allow(clippy::unwrap_used)]

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime};

const PACK: &str = "p0123456789abcdef0123456789abcdef-s0123456789abcdef122";

fn id(name: &str) -> BlobId {
    BlobId::new(name).unwrap()
}

async fn put(store: &FsStore, name: &str, bytes: &'static [u8]) {
    store.put(&id(name), Payload::from(bytes), &PutOptions::default()).await.unwrap();
}

async fn names(store: &FsStore, prefix: &str) -> Vec<String> {
    let mut names: Vec<_> =
        store.list(prefix).map_ok(|blob| blob.id.to_string()).try_collect().await.unwrap();
    names.sort();
    names
}

fn shards_file(folder: &Path) -> Option<String> {
    std::fs::read_to_string(folder.join(".shards")).ok()
}

#[tokio::test]
async fn a_new_store_records_its_layout_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("a/b");
    let store = FsStore::create(FsOptions::new(&root)).await.unwrap();
    assert_eq!(shards_file(&root).unwrap(), "{\"default\":[1,3],\"maxNonShardedLength\":20}\n");
    put(&store, PACK, b"x").await;
    assert!(root.join("p/012").join(format!("{}.f", &PACK[4..])).is_file());
    put(&store, "kopia.repository", b"x").await;
    assert!(root.join("kopia.repository.f").is_file());
    let mode = |path: &str| std::fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("kopia.repository.f"), mode("p"), mode("p/012")), (0o600, 0o700, 0o700));
}

#[tokio::test]
async fn an_old_store_without_a_record_gets_it_with_the_first_put_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::open(FsOptions::new(folder.path())).await.unwrap();
    assert!(store.get(&id(PACK)).await.unwrap_err().is_not_found());
    assert_eq!(shards_file(folder.path()), None);
    put(&store, PACK, b"x").await;
    assert_eq!(shards_file(folder.path()).unwrap(), "{\"default\":[3,3],\"maxNonShardedLength\":20}\n");
    assert!(folder.path().join("p01/234").join(format!("{}.f", &PACK[6..])).is_file());
}

#[tokio::test]
async fn explicit_shards_count_only_where_nothing_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let flat = FsOptions { shards: Some(vec![]), ..FsOptions::new(folder.path()) };
    let store = FsStore::create(flat).await.unwrap();
    put(&store, PACK, b"x").await;
    assert!(folder.path().join(format!("{PACK}.f")).is_file());
    let other = FsOptions { shards: Some(vec![2]), ..FsOptions::new(folder.path()) };
    let store = FsStore::create(other).await.unwrap();
    assert_eq!(&store.get(&id(PACK)).await.unwrap()[..], b"x");
}

#[tokio::test]
async fn the_layout_of_a_faster_client_is_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let late = FsStore::open(FsOptions::new(folder.path())).await.unwrap();
    FsStore::create(FsOptions::new(folder.path())).await.unwrap();
    put(&late, PACK, b"x").await;
    assert!(folder.path().join("p/012").is_dir());
}

#[tokio::test]
async fn a_missing_folder_is_not_made_by_opening_or_writing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("mount");
    let error = FsStore::open(FsOptions::new(&root)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchContainer);
    let store = FsStore::create(FsOptions::new(&root)).await.unwrap();
    std::fs::remove_dir_all(&root).unwrap();
    let error = store.put(&id(PACK), Payload::default(), &PutOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchContainer);
    assert_eq!(store.list("").try_collect::<Vec<_>>().await.unwrap_err().kind(), ErrorKind::NoSuchContainer);
    assert!(!root.exists());
    let error = FsStore::open(FsOptions::new(file!())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSuchContainer);
}

#[tokio::test]
async fn a_listing_ignores_what_is_not_a_blob_and_accepts_any_layout() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(FsOptions::new(folder.path())).await.unwrap();
    put(&store, PACK, b"x").await;
    put(&store, "kopia.repository", b"x").await;
    let write = |path: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"xyz").unwrap();
    };
    write("n12/345/6789.f");
    write("readme.txt");
    write("p/012/half.f.tmp.0123456789abcdef");
    std::fs::create_dir(folder.path().join("folder.f")).unwrap();
    std::os::unix::fs::symlink("/etc", folder.path().join("etc")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("passwd.f")).unwrap();
    assert_eq!(names(&store, "").await, ["kopia.repository", "n123456789", PACK]);
    assert_eq!(names(&store, "n12345").await, ["n123456789"]);
    assert_eq!(names(&store, "p0123").await, [PACK]);
    assert_eq!(names(&store, "p1").await, Vec::<String>::new());
}

#[tokio::test]
async fn a_listing_does_not_enter_folders_that_cannot_match() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(FsOptions::new(folder.path())).await.unwrap();
    put(&store, PACK, b"x").await;
    // A folder of another prefix, which would fail the walk: its name cannot be a blob's, so entering it shows.
    let deep = folder.path().join("q").join("x".repeat(250));
    std::fs::create_dir_all(&deep).unwrap();
    let (walked, entered) = (names(&store, "p").await, deep.metadata().unwrap().atime());
    assert_eq!(walked, [PACK]);
    let mut walk = Walk::new(folder.path(), "p", false);
    assert_eq!(walk.next_page(1000).unwrap().len(), 1);
    assert_eq!(deep.metadata().unwrap().atime(), entered);
}

#[tokio::test]
async fn leftovers_of_dead_writers_disappear_with_age_and_only_when_the_store_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(FsOptions::new(folder.path())).await.unwrap();
    let (stale, fresh) = ("a.f.tmp.0123456789abcdef", "b.f.tmp.0123456789abcdef");
    for name in [stale, fresh] {
        std::fs::write(folder.path().join(name), b"").unwrap();
    }
    let two_days_ago = SystemTime::now() - Duration::from_secs(48 * 3600);
    File::options().write(true).open(folder.path().join(stale)).unwrap().set_modified(two_days_ago).unwrap();
    assert!(names(&store, "").await.is_empty());
    assert!(folder.path().join(stale).exists());
    put(&store, "c", b"").await;
    assert_eq!(names(&store, "").await, ["c"]);
    assert!(!folder.path().join(stale).exists());
    assert!(folder.path().join(fresh).exists());
}

#[tokio::test]
async fn a_full_filesystem_is_reported_as_full_and_leaves_nothing() {
    let error = io::Error::from(rustix::io::Errno::NOSPC);
    let error = file::failure(Operation::Put, "p1", "folder /x", "write its file", error);
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("free space"), "{error}");
    // A put that fails after its temporary file was made removes it: here the target is a folder.
    let folder = tempfile::tempdir().unwrap();
    let store = FsStore::create(FsOptions::new(folder.path())).await.unwrap();
    std::fs::create_dir_all(folder.path().join("x.f/y")).unwrap();
    store.put(&id("x"), Payload::from(vec![1]), &PutOptions::default()).await.unwrap_err();
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[tokio::test]
async fn a_damaged_layout_record_stops_the_open() {
    let folder = tempfile::tempdir().unwrap();
    for damaged in [vec![b'{'], vec![b' '; 1 << 20]] {
        std::fs::write(folder.path().join(".shards"), damaged).unwrap();
        let error = FsStore::open(FsOptions::new(folder.path())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
