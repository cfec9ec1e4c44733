//! How fast one thread takes bytes from memory to packs: split, hash, look up, encrypt and pack, against the sum of
//! the primitives measured in the same run. Usage: `pipeline [MiB] [threads]`.
//!
//! Times are processor times of the measured threads, so that a busy machine does not blur them.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

use async_trait::async_trait;
use bytes::Bytes;
use lifeboat_blobs::MemoryStore;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, BlobStream, Payload, PutOptions, Result};
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::object::{Objects, WriterOptions};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_primitives::aead::OVERHEAD;
use lifeboat_primitives::hash::Digest;
use lifeboat_primitives::splitter::Splitter;
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A store that forgets packs and keeps the rest.
#[derive(Debug, Default)]
struct NullStore(MemoryStore);

#[async_trait]
impl BlobStore for NullStore {
    fn describe(&self) -> String {
        "nowhere".into()
    }
    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> Result<()> {
        match id.as_str().starts_with('p') {
            true => Ok(()),
            false => self.0.put(id, payload, options).await,
        }
    }
    async fn get(&self, id: &BlobId) -> Result<Bytes> {
        self.0.get(id).await
    }
    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> Result<Bytes> {
        self.0.get_range(id, range).await
    }
    async fn head(&self, id: &BlobId) -> Result<BlobMetadata> {
        self.0.head(id).await
    }
    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        self.0.list(prefix)
    }
    async fn delete(&self, id: &BlobId) -> Result<()> {
        self.0.delete(id).await
    }
}

/// Seconds of processor time that `work` takes on this thread.
fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let start = now();
    let result = work();
    (now() - start, result)
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut data = vec![0; len];
    for word in data.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    data
}

fn primitives(objects: &Objects, data: &[u8]) -> f64 {
    let gigabytes = data.len() as f64 / 1e9;
    let (split, cuts) = seconds(|| {
        let mut splitter = Splitter::new(objects.splitter());
        let (mut cuts, mut at) = (vec![0], 0);
        while let Some(cut) = splitter.next_cut(&data[at..]) {
            at += cut;
            cuts.push(at);
        }
        cuts
    });
    let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &data[pair[0]..pair[1]]).collect();
    let sealer = objects.contents().sealer();
    let (hash, ()) = seconds(|| {
        for batch in chunks.chunks(4) {
            let mut out = [Digest::default(); 4];
            sealer.hasher().hash_many(batch, &mut out[..batch.len()]);
        }
    });
    let mut place = vec![1; objects.splitter().max_size() + OVERHEAD];
    let (seal, ()) = seconds(|| {
        for chunk in &chunks {
            sealer.seal_to(&[7; 16], chunk, &mut place[..chunk.len() + OVERHEAD]).unwrap();
        }
    });
    let sum = split + hash + seal;
    println!(
        "split {:.2} GB/s, hash {:.2}, encrypt {:.2}: together {:.2} GB/s",
        gigabytes / split,
        gigabytes / hash,
        gigabytes / seal,
        gigabytes / sum
    );
    sum
}

async fn repository() -> Repository {
    let identity = ClientIdentity { username: "bench".into(), hostname: "bench".into() };
    let mut options = OpenOptions::new(Arc::new(NullStore::default()), Password::new("x"), identity);
    options.budget = Budget::new(192 << 20);
    Repository::create(options, &CreateOptions::default(), InitialState::Kopia).await.unwrap()
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let mebibytes = arguments.next().unwrap_or(1024);
    let threads = arguments.next().unwrap_or(2);
    let data = Bytes::from(noise(mebibytes << 20));
    let gigabytes = data.len() as f64 / 1e9;
    let options = WriterOptions::default();

    for region in [1 << 20, 32 << 20] {
        let repository = repository().await;
        let (objects, data, options) = (repository.objects().clone(), data.clone(), options.clone());
        tokio::task::spawn_blocking(move || {
            let sum = primitives(&objects, &data);
            let (time, _) = seconds(|| {
                let mut writer = objects.writer(options);
                data.chunks(region).for_each(|region| writer.write(region).unwrap());
                writer.finish().unwrap()
            });
            println!(
                "one stream in writes of {} MiB: {:.2} GB/s, {:.0} % over the primitives",
                region >> 20,
                gigabytes / time,
                (time / sum - 1.0) * 100.0
            );
        })
        .await
        .unwrap();
        repository.flush().await.unwrap();
    }

    for size in [256, 2048, 16_384] {
        let repository = repository().await;
        let (objects, data, options) = (repository.objects().clone(), data.clone(), options.clone());
        tokio::task::spawn_blocking(move || {
            let small: Vec<&[u8]> = data.chunks_exact(size).take(200_000).collect();
            let (time, ()) = seconds(|| {
                for batch in small.chunks(64) {
                    objects.write_many(batch, &options).unwrap();
                }
            });
            println!("small objects of {size} bytes: {:.0} per second", small.len() as f64 / time);
        })
        .await
        .unwrap();
        repository.flush().await.unwrap();
    }

    let repository = repository().await;
    let writer = Arc::new(repository.objects().region_writer(options));
    let next = Arc::new(AtomicUsize::new(0));
    let regions: Vec<Bytes> =
        (0..data.len()).step_by(16 << 20).map(|at| data.slice(at..data.len().min(at + (16 << 20)))).collect();
    let regions = Arc::new(regions);
    let started = std::time::Instant::now();
    let mut workers = Vec::new();
    for _ in 0..threads {
        let (writer, next, regions) = (writer.clone(), next.clone(), regions.clone());
        workers.push(tokio::task::spawn_blocking(move || {
            let (time, ()) = seconds(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(region) = regions.get(number) else { break };
                    let preceding = number
                        .checked_sub(1)
                        .map_or(&[][..], |before| &regions[before][regions[before].len() - 64..]);
                    writer.submit(number as u64, preceding, region.clone()).unwrap();
                }
            });
            time
        }));
    }
    let mut time = 0.0;
    for worker in workers {
        time += worker.await.unwrap();
    }
    let writer = Arc::into_inner(writer).unwrap();
    let (rest, _) = tokio::task::spawn_blocking(move || seconds(|| writer.finish().unwrap())).await.unwrap();
    println!(
        "one object by {threads} threads: {:.2} GB/s per processor, {:.2} GB/s by the clock",
        gigabytes / (time + rest),
        gigabytes / started.elapsed().as_secs_f64()
    );
    repository.flush().await.unwrap();
}
