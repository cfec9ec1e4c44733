//! What the tests of the crate share.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use lifeboat_blobs::BlobStore;
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use std::sync::Arc;

pub fn options(store: Arc<dyn BlobStore>) -> OpenOptions {
    let identity = ClientIdentity { username: "tester".into(), hostname: "testhost".into() };
    let mut options = OpenOptions::new(store, Password::new("correct horse"), identity);
    options.budget = Budget::new(96 << 20);
    options
}

pub async fn create(store: Arc<dyn BlobStore>) -> Repository {
    create_with(options(store), &CreateOptions::default()).await
}

pub async fn create_with(options: OpenOptions, create: &CreateOptions) -> Repository {
    Repository::create(options, create, InitialState::Kopia).await.unwrap()
}

/// Pseudo-random bytes that never repeat within a test.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut data = vec![0; len.next_multiple_of(8)];
    for word in data.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    data.truncate(len);
    data
}

/// Runs blocking work as a worker thread would.
pub async fn worker<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
