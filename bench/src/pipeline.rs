//! How fast one core takes bytes from memory to packs (split, hash, look up, encrypt, pack), beside the sum of the
//! kernels in the same run, and beside what kopia reaches on one processor.

use crate::datasets::write_noise;
use crate::kernels::processor_time;
use crate::peers::PASSWORD;
use crate::runs::finish;
use crate::table::{Table, ratio};
use anyhow::{Context, Result};
use async_trait::async_trait;
use bytes::Bytes;
use lifeboat_blobs::{BlobId, BlobMetadata, BlobStore, BlobStream, MemoryStore, Payload, PutOptions};
use lifeboat_budget::Budget;
use lifeboat_kopia::content::ClientIdentity;
use lifeboat_kopia::format::{CreateOptions, Password};
use lifeboat_kopia::object::{Objects, RegionWriter, WriterOptions};
use lifeboat_kopia::repo::{InitialState, OpenOptions, Repository};
use lifeboat_primitives::aead::OVERHEAD;
use lifeboat_primitives::hash::Digest;
use lifeboat_primitives::random::{Random, SeededRandom};
use lifeboat_primitives::splitter::Splitter;
use lifeboat_testkit::kopia::Kopia;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;

/// What one object is read in when all processors work on it.
const REGION: usize = 16 << 20;
/// As many chunks as the object writer hashes at once.
const HASH_BATCH: usize = 8;
/// As many as a worker of the uploader hands over at once.
const SMALL_BATCH: usize = 64;
const MAX_SMALL: usize = 200_000;

/// Measures all rows and prints one table.
pub fn run(mebibytes: usize) -> Result<()> {
    let mut noise = vec![0; mebibytes << 20];
    SeededRandom::new(1).fill(&mut noise)?;
    let data = Bytes::from(noise);
    let runtime = Runtime::new()?;
    let mut table = Table::new(&["one core, default format", "GB/s", "beside"]);
    let kernels = of_kernels(&runtime, &data, &mut table)?;
    let gigabytes = data.len() as f64 / 1e9;
    let mut stream = f64::INFINITY;
    for (what, size) in [("one stream to packs, in writes of 1 MiB", 1 << 20), ("… of 64 MiB", 64 << 20)] {
        stream = fresh(&runtime, |objects| {
            let start = processor_time();
            let mut writer = objects.writer(WriterOptions::default());
            data.chunks(size).try_for_each(|part| writer.write(part))?;
            writer.finish()?;
            Ok(processor_time() - start)
        })?;
        let over = format!("{:.0} % over the kernels", (stream / kernels - 1.0) * 100.0);
        table.row([what.to_owned(), format!("{:.2}", gigabytes / stream), over]);
    }
    let regions = on_all_cores(&runtime, &data)?;
    table.row([
        "one object by all cores, per core".to_owned(),
        format!("{:.2}", gigabytes / regions),
        String::new(),
    ]);
    let theirs = of_kopia(mebibytes as u64)?;
    table.row(["kopia, one file, one processor".to_owned(), format!("{theirs:.2}"), {
        format!("ours is {}", ratio(gigabytes / stream, theirs))
    }]);
    for size in [256, 2048, 16_384] {
        let small: Vec<&[u8]> = data.chunks_exact(size).take(MAX_SMALL).collect();
        let seconds = fresh(&runtime, |objects| {
            let start = processor_time();
            for batch in small.chunks(SMALL_BATCH) {
                objects.write_many(batch, &WriterOptions::default())?;
            }
            Ok(processor_time() - start)
        })?;
        let each = format!("{:.0} objects per second", small.len() as f64 / seconds);
        let speed = (small.len() * size) as f64 / 1e9 / seconds;
        table.row([format!("small objects of {size} bytes"), format!("{speed:.2}"), each]);
    }
    table.print();
    Ok(())
}

/// Gives a new repository, whose packs go nowhere, to `work` on a thread of its own.
fn fresh<T: Send>(runtime: &Runtime, work: impl FnOnce(&Objects) -> Result<T> + Send) -> Result<T> {
    let repository = runtime.block_on(async {
        let identity = ClientIdentity { username: "bench".into(), hostname: "bench".into() };
        let mut options = OpenOptions::new(Arc::new(NoPacks::default()), Password::new(PASSWORD), identity);
        options.budget = Budget::new(192 << 20);
        Repository::create(options, &CreateOptions::default(), InitialState::Kopia).await
    })?;
    let objects = repository.objects().clone();
    let done = std::thread::scope(|scope| scope.spawn(|| work(&objects)).join());
    runtime.block_on(repository.close())?;
    done.ok().context("the measured thread panicked")?
}

/// The seconds that the kernels alone take for the same bytes.
fn of_kernels(runtime: &Runtime, data: &[u8], table: &mut Table) -> Result<f64> {
    fresh(runtime, |objects| {
        let start = processor_time();
        let mut splitter = Splitter::new(objects.splitter());
        let (mut cuts, mut at) = (vec![0], 0);
        while let Some(cut) = splitter.next_cut(&data[at..]) {
            at += cut;
            cuts.push(at);
        }
        let split = processor_time() - start;
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &data[pair[0]..pair[1]]).collect();
        let sealer = objects.contents().sealer();
        let start = processor_time();
        for batch in chunks.chunks(HASH_BATCH) {
            let mut digests = [Digest::default(); HASH_BATCH];
            sealer.hasher().hash_many(batch, &mut digests[..batch.len()]);
        }
        let hash = processor_time() - start;
        let mut sealed = vec![1; objects.splitter().max_size() + OVERHEAD];
        let start = processor_time();
        for chunk in &chunks {
            sealer.seal_to(&[7; 16], chunk, &mut sealed[..chunk.len() + OVERHEAD])?;
        }
        let seal = processor_time() - start;
        let gigabytes = data.len() as f64 / 1e9;
        for (name, seconds) in
            [("split", split), ("hash", hash), ("encrypt", seal), ("the three together", split + hash + seal)]
        {
            table.row([name.to_owned(), format!("{:.2}", gigabytes / seconds), String::new()]);
        }
        Ok(split + hash + seal)
    })
}

/// The processor seconds of all threads that write one object together.
fn on_all_cores(runtime: &Runtime, data: &Bytes) -> Result<f64> {
    fresh(runtime, |objects| {
        let writer = objects.region_writer(WriterOptions::default());
        let next = Mutex::new(0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let times: Vec<Result<f64>> = std::thread::scope(|scope| {
            let workers: Vec<_> =
                (0..threads).map(|_| scope.spawn(|| write_regions(objects, &writer, &next, data))).collect();
            let panicked = || Err(anyhow::anyhow!("a measured thread panicked"));
            workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| panicked())).collect()
        });
        let start = processor_time();
        writer.finish()?;
        let rest = processor_time() - start;
        Ok(times.into_iter().sum::<Result<f64>>()? + rest)
    })
}

/// Cuts and writes regions, in turn with others, until there are none left; returns the processor time that took.
fn write_regions(objects: &Objects, writer: &RegionWriter, next: &Mutex<usize>, data: &[u8]) -> Result<f64> {
    let start = processor_time();
    loop {
        let mut next = next.lock().map_err(|_| anyhow::anyhow!("a measured thread panicked"))?;
        let region = &data[*next..data.len().min(*next + REGION)];
        if region.is_empty() {
            return Ok(processor_time() - start);
        }
        let pieces = writer.cut(region, *next + region.len() == data.len())?;
        *next += usize::try_from(pieces.bytes())?;
        drop(next);
        let mut buffer = objects.contents().take_buffer(region.len())?;
        buffer.as_mut().copy_from_slice(region);
        writer.write(buffer, &pieces)?;
    }
}

/// Bytes per second that kopia backs up with one processor, without its start-up.
fn of_kopia(mebibytes: u64) -> Result<f64> {
    let folder = tempfile::Builder::new().prefix("lifeboat-bench-").tempdir_in("/dev/shm")?;
    let (full, empty) = (folder.path().join("full"), folder.path().join("empty"));
    std::fs::create_dir(&full)?;
    std::fs::create_dir(&empty)?;
    write_noise(&full.join("file"), mebibytes << 20)?;
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository)?;
    let kopia = Kopia::new(PASSWORD)?;
    kopia.create_filesystem(&repository, &[])?;
    let mut seconds = [0.0; 2];
    for (source, seconds) in [&empty, &full].into_iter().zip(&mut seconds) {
        let mut command = kopia.command(["snapshot", "create", "--no-progress"]);
        command.arg(source).env("GOMAXPROCS", "1");
        *seconds = finish(command)?.seconds;
    }
    Ok((mebibytes << 20) as f64 / 1e9 / (seconds[1] - seconds[0]))
}

/// A store that forgets packs and keeps the rest.
#[derive(Debug, Default)]
struct NoPacks(MemoryStore);

#[async_trait]
impl BlobStore for NoPacks {
    fn describe(&self) -> String {
        "nowhere".into()
    }

    async fn put(&self, id: &BlobId, payload: Payload, options: &PutOptions) -> lifeboat_blobs::Result<()> {
        match id.as_str().starts_with('p') {
            true => Ok(()),
            false => self.0.put(id, payload, options).await,
        }
    }

    async fn get(&self, id: &BlobId) -> lifeboat_blobs::Result<Bytes> {
        self.0.get(id).await
    }

    async fn get_range(&self, id: &BlobId, range: Range<u64>) -> lifeboat_blobs::Result<Bytes> {
        self.0.get_range(id, range).await
    }

    async fn head(&self, id: &BlobId) -> lifeboat_blobs::Result<BlobMetadata> {
        self.0.head(id).await
    }

    fn list<'a>(&'a self, prefix: &str) -> BlobStream<'a> {
        self.0.list(prefix)
    }

    async fn delete(&self, id: &BlobId) -> lifeboat_blobs::Result<()> {
        self.0.delete(id).await
    }
}
