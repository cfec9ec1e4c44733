//! Prints the speed of every kernel on one core, in GB/s of input, next to memcpy and to the whole data path.
//!
//! `cargo run --release -p lifeboat-primitives --example speed [filter]`; with a filter only kernels whose name
//! contains it run. Time is the processor time of the thread and each number the best of several runs: what a core
//! does, even if others use the machine at the same time.

use lifeboat_primitives::Result;
use lifeboat_primitives::aead::{Cipher, CipherAlgorithm, OVERHEAD, StreamDecryptor};
use lifeboat_primitives::compress::Compressor;
use lifeboat_primitives::ecc::Codec;
use lifeboat_primitives::hash::{Digest, HashAlgorithm, Hasher};
use lifeboat_primitives::random::{OsRandom, Random, SeededRandom};
use lifeboat_primitives::splitter::{Splitter, SplitterAlgorithm, scan_candidates};
use std::hint::black_box;

const MIB: usize = 1 << 20;
/// Larger than any cache, so that memory is part of what is measured.
const DATA: usize = 128 * MIB;
const CHUNK: usize = 4 * MIB;
const RUNS: usize = 5;

fn main() -> Result<()> {
    let speed = Speed { filter: std::env::args().nth(1).unwrap_or_default() };
    let mut data = vec![0; DATA];
    SeededRandom::new(1).fill(&mut data)?;
    let key = [7; 32];

    let mut copy = vec![0; DATA];
    speed.print("memcpy", DATA, || black_box(&mut copy).copy_from_slice(black_box(&data)));
    hashes(&speed, &data, &key)?;
    ciphers(&speed, &data, &key)?;
    splitters(&speed, &data)?;
    compressors(&speed)?;
    for percent in [2, 10, 25] {
        let codec = Codec::new(percent)?;
        let mut stored = Vec::new();
        codec.encode(&data[..CHUNK], &mut stored)?;
        let mut out = Vec::with_capacity(stored.len());
        speed.print(&format!("ecc {percent}% encode"), CHUNK, || {
            out.clear();
            _ = codec.encode(&data[..CHUNK], &mut out);
        });
        speed.print(&format!("ecc {percent}% decode"), CHUNK, || _ = black_box(codec.decode(&stored)));
    }
    data_path(&speed, &data, &key)
}

struct Speed {
    filter: String,
}

impl Speed {
    /// Runs `kernel` over `bytes` of input and prints its name and speed.
    fn print(&self, name: &str, bytes: usize, mut kernel: impl FnMut()) {
        if !name.contains(&self.filter) {
            return;
        }
        kernel();
        let seconds = (0..RUNS)
            .map(|_| {
                let start = thread_seconds();
                kernel();
                thread_seconds() - start
            })
            .fold(f64::INFINITY, f64::min);
        println!("{name:<44} {:>7.2} GB/s", bytes as f64 / seconds / 1e9);
    }
}

/// Processor time that this thread has used.
fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn hashes(speed: &Speed, data: &[u8], key: &[u8]) -> Result<()> {
    for algorithm in HashAlgorithm::ALL {
        let hasher = Hasher::new(algorithm, key)?;
        let name = algorithm.name();
        speed.print(&format!("hash {name}"), 2 * CHUNK, || {
            data[..2 * CHUNK].chunks(CHUNK).for_each(|chunk| _ = black_box(hasher.hash(chunk)));
        });
        if hasher.lanes() > 1 {
            let inputs: Vec<&[u8]> = data[..8 * CHUNK].chunks(CHUNK).collect();
            let mut digests = [Digest::default(); 8];
            speed.print(&format!("hash {name} ({} lanes)", hasher.lanes()), 8 * CHUNK, || {
                hasher.hash_many(black_box(&inputs), &mut digests);
            });
            let inputs: Vec<&[u8]> = data[..8 * CHUNK].chunks(4000).collect();
            let mut digests = vec![Digest::default(); inputs.len()];
            speed.print(&format!("hash {name} ({} lanes, 4 kB messages)", hasher.lanes()), 8 * CHUNK, || {
                hasher.hash_many(black_box(&inputs), &mut digests);
            });
        }
    }
    Ok(())
}

fn ciphers(speed: &Speed, data: &[u8], key: &[u8]) -> Result<()> {
    let data = &data[..8 * CHUNK];
    let id = [3; 16];
    for algorithm in CipherAlgorithm::ALL {
        let cipher = Cipher::new(algorithm, key)?;
        let name = algorithm.name();
        let mut pack = Vec::with_capacity(data.len() + 8 * OVERHEAD);
        speed.print(&format!("seal into a pack {name}"), data.len(), || {
            pack.clear();
            data.chunks(CHUNK).for_each(|chunk| _ = cipher.seal_into(&OsRandom, &id, chunk, &mut pack));
        });
        let mut place = data[..CHUNK].to_vec();
        speed.print(&format!("seal in place {name}"), CHUNK, || {
            _ = cipher.seal_in_place(&OsRandom, &id, &mut place);
        });
        speed.print(&format!("seal in place, 4 kB messages {name}"), CHUNK, || {
            place.chunks_mut(4096).for_each(|chunk| _ = cipher.seal_in_place(&OsRandom, &id, chunk));
        });
        let mut sealed = Vec::new();
        cipher.seal_into(&OsRandom, &id, &data[..CHUNK], &mut sealed)?;
        speed.print(&format!("open {name}"), CHUNK, || _ = black_box(cipher.open(&id, &sealed)));
        let mut opened = vec![0; CHUNK];
        let verify = || -> Result<StreamDecryptor> {
            let mut verifier = cipher.verify_stream(&id, sealed.len() as u64)?;
            sealed.chunks(MIB).try_for_each(|piece| verifier.update(piece))?;
            verifier.finish()
        };
        speed.print(&format!("verify a stream {name}"), CHUNK, || _ = black_box(verify()));
        let mut decryptor = verify()?;
        speed.print(&format!("decrypt a stream {name}"), CHUNK, || _ = decryptor.decrypt(0, &mut opened));
    }
    Ok(())
}

fn splitters(speed: &Speed, data: &[u8]) -> Result<()> {
    for name in
        ["DYNAMIC-128K-BUZHASH", "DYNAMIC-4M-BUZHASH", "DYNAMIC-128K-RABINKARP", "DYNAMIC-4M-RABINKARP"]
    {
        let algorithm = SplitterAlgorithm::from_name(name)?;
        speed.print(&format!("split {name}"), data.len(), || {
            black_box(cuts(algorithm, data));
        });
        let pieces = cuts(algorithm, data);
        let scanned: usize = pieces.iter().map(|piece| piece.saturating_sub(algorithm.min_size())).sum();
        speed.print(&format!("split {name} (of scanned bytes)"), scanned, || {
            black_box(cuts(algorithm, data));
        });
        speed.print(&format!("scan {name}"), data.len(), || {
            black_box(scan_candidates(algorithm, &[], data));
        });
    }
    Ok(())
}

/// Lengths of the pieces of `data`.
fn cuts(algorithm: SplitterAlgorithm, mut data: &[u8]) -> Vec<usize> {
    let mut splitter = Splitter::new(algorithm);
    let mut lengths = Vec::new();
    while let Some(cut) = splitter.next_cut(data) {
        lengths.push(cut);
        data = &data[cut..];
    }
    lengths.push(data.len());
    lengths
}

fn compressors(speed: &Speed) -> Result<()> {
    let text: Vec<u8> = (0..u64::MAX)
        .flat_map(|i| {
            format!("{:x} item {} of stock\n", i.wrapping_mul(0x9e37_79b9_7f4a_7c15), i * i % 9973)
                .into_bytes()
        })
        .take(CHUNK)
        .collect();
    for compressor in Compressor::ALL {
        let name = compressor.name();
        let mut stream = Vec::new();
        compressor.compress(&text, &mut stream)?;
        let percent = stream.len() * 100 / text.len();
        let mut out = Vec::with_capacity(2 * CHUNK);
        speed.print(&format!("compress {name} (to {percent}%)"), CHUNK, || {
            out.clear();
            _ = compressor.compress(&text, &mut out);
        });
        speed.print(&format!("decompress {name}"), CHUNK, || {
            _ = black_box(compressor.decompress(&stream, CHUNK));
        });
    }
    Ok(())
}

/// The default format from end to end: split, hash in batches of four, seal into packs of 20 MiB.
fn data_path(speed: &Speed, data: &[u8], key: &[u8]) -> Result<()> {
    let hasher = Hasher::new(HashAlgorithm::default(), key)?;
    let cipher = Cipher::new(CipherAlgorithm::default(), key)?;
    let mut pack = Vec::with_capacity(40 * MIB);
    speed.print("split + hash + seal, default format", data.len(), || {
        let mut splitter = Splitter::new(SplitterAlgorithm::default());
        let mut batch: Vec<&[u8]> = Vec::new();
        let mut digests = [Digest::default(); 4];
        let mut rest = data;
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(splitter.next_cut(rest).unwrap_or(rest.len()));
            rest = left;
            batch.push(piece);
            if batch.len() < digests.len() && !rest.is_empty() {
                continue;
            }
            hasher.hash_many(&batch, &mut digests);
            for (piece, digest) in batch.drain(..).zip(&digests) {
                if pack.len() > 20 * MIB {
                    pack.clear();
                }
                _ = cipher.seal_into(&OsRandom, digest.as_slice(), piece, &mut pack);
            }
        }
    });
    Ok(())
}
