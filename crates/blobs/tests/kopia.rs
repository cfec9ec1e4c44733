//! Connection files and folders of a real kopia.

#![allow(clippy::unwrap_used, missing_docs)]

use futures::TryStreamExt;
use lifeboat_blobs::{BlobId, BlobStore, OpenOptions, Payload, PutOptions, StoreConfig};
use lifeboat_testkit::kopia::{Kopia, S3Location};
use lifeboat_testkit::servers::Minio;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The store that a kopia is connected to, opened from its connection file.
async fn open(kopia: &Kopia) -> Arc<dyn BlobStore> {
    let file: Value = serde_json::from_slice(&std::fs::read(kopia.config_file()).unwrap()).unwrap();
    let storage = &file["storage"];
    let config: StoreConfig = serde_json::from_value(storage.clone()).unwrap();
    assert_eq!(&serde_json::to_value(&config).unwrap(), storage, "nothing is lost or added");
    config.open(&OpenOptions::default()).await.unwrap()
}

/// Names and sizes as kopia lists them.
fn kopias_list(kopia: &Kopia) -> BTreeMap<String, u64> {
    let output = kopia.run(["blob", "list", "--json"]).unwrap();
    let listed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let entry = |blob: Value| (blob["id"].as_str().unwrap().to_owned(), blob["length"].as_u64().unwrap());
    listed.into_iter().map(entry).collect()
}

async fn our_list(store: &dyn BlobStore) -> BTreeMap<String, u64> {
    store.list("").map_ok(|blob| (blob.id.to_string(), blob.size)).try_collect().await.unwrap()
}

/// Both see the same blobs, and kopia sees what we add.
async fn share_a_store(kopia: &Kopia) {
    let store = open(kopia).await;
    let listed = our_list(&*store).await;
    assert!(listed.contains_key("kopia.repository") && listed.len() > 3, "{listed:?}");
    assert_eq!(listed, kopias_list(kopia));
    for (name, size) in &listed {
        assert_eq!(store.get(&BlobId::new(name).unwrap()).await.unwrap().len() as u64, *size, "{name}");
    }
    let long = BlobId::new("zzz-written-by-somebody-else-0123456789").unwrap();
    store.put(&long, Payload::from(b"hello".as_slice()), &PutOptions::default()).await.unwrap();
    let shown = kopia.run(["blob", "show", long.as_str()]).unwrap();
    assert_eq!(shown.stdout, b"hello");
    store.delete(&long).await.unwrap();
    assert_eq!(our_list(&*store).await, kopias_list(kopia));
}

fn kopia_with_a_snapshot(create: impl FnOnce(&mut Kopia)) -> Kopia {
    let mut kopia = Kopia::new("correct horse").unwrap();
    create(&mut kopia);
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("file"), "content").unwrap();
    kopia.run(["snapshot".as_ref(), "create".as_ref(), tree.path().as_os_str()]).unwrap();
    kopia
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_kopia_is_shared_with_it() {
    for extra in [&[][..], &["--flat"][..], &["--format-version=1"][..]] {
        let folder = tempfile::tempdir().unwrap();
        let kopia = kopia_with_a_snapshot(|kopia| kopia.create_filesystem(folder.path(), extra).unwrap());
        share_a_store(&kopia).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_of_kopia_is_shared_with_it() {
    for server in [Minio::start().unwrap(), Minio::start_tls().unwrap()] {
        server.create_bucket("backups").unwrap();
        let location = S3Location { server: &server, bucket: "backups", prefix: "velero/kopia/ns/" };
        let kopia = kopia_with_a_snapshot(|kopia| kopia.create_s3(location, &[]).unwrap());
        share_a_store(&kopia).await;
    }
}
