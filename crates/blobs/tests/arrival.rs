//! Reads wait to be admitted before they take bytes in, and not before the answer is there.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use futures::FutureExt;
use futures::future::BoxFuture;
use lifeboat_blobs::arrival::{Admission, with_admission};
use lifeboat_blobs::s3::{self, S3Credentials, S3Options};
use lifeboat_blobs::wrap::{Retry, RetryPolicy};
use lifeboat_blobs::{BlobId, BlobStore, FsOptions, FsStore, MemoryStore, PutOptions};
use lifeboat_testkit::servers::Minio;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Opened by hand.
#[derive(Debug)]
struct Gate {
    asked: Semaphore,
    open: Semaphore,
    /// What it gives memory for.
    capacity: usize,
}

impl Admission for Gate {
    fn admit(&self) -> BoxFuture<'_, Vec<u8>> {
        async {
            self.asked.add_permits(1);
            let _ = self.open.acquire().await;
            Vec::with_capacity(self.capacity)
        }
        .boxed()
    }
}

async fn reads_wait_to_be_admitted(store: &dyn BlobStore) {
    let id = BlobId::new("p1").unwrap();
    store.put(&id, b"hello".as_slice().into(), &PutOptions::default()).await.unwrap();
    // Too little, what it takes, and more than that.
    for capacity in [0, 1, 3, 4096] {
        let gate = Arc::new(Gate { asked: Semaphore::new(0), open: Semaphore::new(0), capacity });
        let mut read = std::pin::pin!(with_admission(gate.clone(), store.get_range(&id, 1..4)));
        tokio::select! {
            read = &mut read => panic!("{} delivered {read:?} without being let in", store.describe()),
            asked = gate.asked.acquire() => drop(asked.unwrap()),
        }
        gate.open.add_permits(1);
        assert_eq!(read.await.unwrap(), "ell");
    }
    // Without anybody at the gate there is none.
    assert_eq!(store.get_range(&id, 1..4).await.unwrap(), "ell");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_memory_and_of_folders() {
    reads_wait_to_be_admitted(&MemoryStore::new()).await;
    let folder = tempfile::tempdir().unwrap();
    reads_wait_to_be_admitted(&FsStore::open(FsOptions::new(folder.path())).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_buckets_also_through_wrappers() {
    let server = Minio::start().unwrap();
    server.create_bucket("backups").unwrap();
    let options = S3Options {
        endpoint: Some(server.endpoint()),
        region: Some(server.region().to_owned()),
        credentials: S3Credentials::Static {
            key_id: server.access_key().to_owned(),
            secret: server.secret_key().to_owned(),
            token: None,
        },
        ..S3Options::new("backups")
    };
    let store = s3::open(&options).await.unwrap();
    reads_wait_to_be_admitted(&Retry::new(store, RetryPolicy::default())).await;
}
